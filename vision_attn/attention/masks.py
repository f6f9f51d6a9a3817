"""Masks: bool, True where query i may attend to key j; any shape that broadcasts to (b head i j).

Axes: b batch, head, i queries, j keys.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def causal_mask(queries: int, keys: int | None = None) -> Bool[Tensor, "i j"]:
    """Each query sees the keys up to its own position."""
    return torch.ones(queries, queries if keys is None else keys, dtype=torch.bool).tril()


def padding_mask(lengths: Int[Tensor, " b"], keys: int) -> Bool[Tensor, "b 1 1 j"]:
    """Each sequence of the batch has `lengths` true keys, and padding after them."""
    return (torch.arange(keys, device=lengths.device) < lengths[:, None])[:, None, None]


def check_mask(mask: Tensor, pairs: Sequence[int]) -> None:
    """ValueError unless the mask is bool and broadcasts to the shape of the scores."""
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be bool (True = may attend), got {mask.dtype}")
    fits = mask.ndim <= len(pairs) and all(
        own in (1, size) for own, size in zip(reversed(mask.shape), reversed(pairs), strict=False)
    )
    if not fits:
        raise ValueError(
            f"mask must broadcast to {tuple(pairs)}, the shape of the scores, got "
            f"{tuple(mask.shape)}"
        )


def check_exists(tokens: Tensor, **masks: Tensor | None) -> None:
    """ValueError unless each mask says of every token (b n d) whether it exists, or is None."""
    for name, mask in masks.items():
        if mask is not None and (mask.dtype != torch.bool or mask.shape != tokens.shape[:2]):
            raise ValueError(
                f"{name} must be bool of shape {tuple(tokens.shape[:2])} (True = exists), got "
                f"{mask.dtype} of shape {tuple(mask.shape)}"
            )


def both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Allowed by both masks, where None allows everything."""
    if a is None or b is None:
        return b if a is None else a
    return a & b
