"""Checks of what users give: a ValueError with its name, what was expected and what came."""

from torch import Tensor


def at_least_one(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")


def odd(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1 or size % 2 == 0:
            raise ValueError(f"{name} must be odd and at least 1, got {size}")


def above_zero(**numbers: int | float) -> None:
    for name, number in numbers.items():
        if not number > 0:
            raise ValueError(f"{name} must be above 0, got {number}")


def divisible(dim: int, heads: int) -> None:
    if dim < 1 or heads < 1 or dim % heads:
        raise ValueError(f"dim must be a multiple of heads, got dim={dim} and heads={heads}")


def not_empty(**sequences: Tensor) -> None:
    """Each (... n d): n is at least 1."""
    for name, sequence in sequences.items():
        if sequence.size(-2) == 0:
            raise ValueError(f"{name} must not be empty, got shape {tuple(sequence.shape)}")
