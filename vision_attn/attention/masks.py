"""Masks: bool, True where query i may attend to key j; any shape that broadcasts to (b head i j).

Axes: b batch, head, i queries, j keys.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

__all__ = ["both", "causal_mask", "check_exists", "check_mask", "padding_mask"]


def causal_mask(queries: int, keys: int | None = None) -> Bool[Tensor, "i j"]:
    """Let each query see the keys up to its own position.

    Args:
        queries: How many queries.
        keys: How many keys; None for as many as queries.

    Returns:
        Bool (queries, keys), True where a key is seen.

    Examples:
        >>> from vision_attn.attention import causal_mask
        >>> causal_mask(2, 3)
        tensor([[ True, False, False],
                [ True,  True, False]])
    """
    return torch.ones(queries, queries if keys is None else keys, dtype=torch.bool).tril()


def padding_mask(lengths: Int[Tensor, " b"], keys: int) -> Bool[Tensor, "b 1 1 j"]:
    """Hide the padding of each sequence, whose first `lengths` keys are true ones.

    Args:
        lengths: Of each sequence of the batch, (b).
        keys: How many keys the longest has.

    Returns:
        Bool, True where a key is seen.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import padding_mask
        >>> padding_mask(torch.tensor([1, 3]), keys=3)[:, 0, 0]
        tensor([[ True, False, False],
                [ True,  True,  True]])
    """
    return (torch.arange(keys, device=lengths.device) < lengths[:, None])[:, None, None]


def check_mask(mask: Tensor, pairs: Sequence[int]) -> None:
    """Raise ValueError unless the mask is bool and broadcasts to the shape of the scores."""
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
    """Raise ValueError unless each mask is None or bool (b n), one value a token of (b n d)."""
    for name, mask in masks.items():
        if mask is not None and (mask.dtype != torch.bool or mask.shape != tokens.shape[:2]):
            raise ValueError(
                f"{name} must be bool of shape {tuple(tokens.shape[:2])} (True = a token, "
                f"False = padding), got {mask.dtype} of shape {tuple(mask.shape)}"
            )


def both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Combine two masks: allowed by both, where None allows everything."""
    if a is None or b is None:
        return b if a is None else a
    return a & b
