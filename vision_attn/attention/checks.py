"""Argument checks: a ValueError with the argument's name, what was expected and what came."""

from torch import Tensor

__all__ = ["above_zero", "at_least_one", "divisible", "not_empty", "odd"]


def at_least_one(**sizes: int) -> None:
    """Raise ValueError, by name, for a size below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")


def odd(**sizes: int) -> None:
    """Raise ValueError, by name, for a size that is even or below 1."""
    for name, size in sizes.items():
        if size < 1 or size % 2 == 0:
            raise ValueError(f"{name} must be odd and at least 1, got {size}")


def above_zero(**numbers: int | float) -> None:
    """Raise ValueError, by name, for a number that is not above 0."""
    for name, number in numbers.items():
        if not number > 0:
            raise ValueError(f"{name} must be above 0, got {number}")


def divisible(dim: int, heads: int) -> None:
    """Raise ValueError where `dim` cannot be cut into `heads` equal parts."""
    if dim < 1 or heads < 1 or dim % heads:
        raise ValueError(f"dim must be a multiple of heads, got dim={dim} and heads={heads}")


def not_empty(**sequences: Tensor) -> None:
    """Raise ValueError, by name, for a sequence (... n d) with n = 0."""
    for name, sequence in sequences.items():
        if sequence.size(-2) == 0:
            raise ValueError(f"{name} must not be empty, got shape {tuple(sequence.shape)}")
