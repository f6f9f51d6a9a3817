"""Softmax attention by the fastest way for the device, the type and the length.

What is fastest was measured, see benchmarks/attention.py.

Axes: b batch, head, i queries, j keys, d width of queries and keys, e width of values.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from vision_attn.attention.shapes import broadcast_shape

__all__ = ["softmax_attention"]

PART = 1 << 21  # scores worked on at a time: they stay in cache


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, scale: float
) -> Tensor:
    """Compute softmax(scale q k') v: (b head i d), (b head j d), (b head j e) -> (b head i e).

    mask: bool, True where query i may attend to key j; None: everywhere. dropout: the share of
    weights set to 0. A query whose keys are all masked gets zeros.
    """
    if mask is None and products_are_faster(q, k):
        return by_products(q, k, v, dropout, scale)
    if mask is not None and masked_products_are_faster(q, k):
        return by_masked_products(q, k, v, mask, dropout, scale)
    return fused(q, k, v, mask, dropout, scale)


def products_are_faster(q: Tensor, k: Tensor) -> bool:
    """Whether plain products are faster than the fused kernel: for bfloat16 on a CPU.

    There the fused kernel makes little use of the instructions for it. Not for long memories, whose
    weights, kept for backward, would be too large.
    """
    longest = 2048 if torch.is_grad_enabled() else 8192
    return q.device.type == "cpu" and q.dtype == torch.bfloat16 and k.size(-2) <= longest


def masked_products_are_faster(q: Tensor, k: Tensor) -> bool:
    """Whether plain products with a mask are faster: in training, for at least 16 queries.

    There the fused kernel's backward is the slow part.
    """
    training = torch.is_grad_enabled() and products_are_faster(q, k)
    return training and q.size(-2) >= 16 and k.size(-2) <= 1024


def by_products(q: Tensor, k: Tensor, v: Tensor, dropout: float, scale: float) -> Tensor:
    """Compute product, softmax, product, for a few heads, or a few queries of one, at a time."""
    heads = broadcast_shape(q.shape[:2], k.shape[:2], v.shape[:2])
    q, k, v = (x.expand(*heads, -1, -1).flatten(0, 1) for x in (q, k, v))
    part, rows = max(1, PART // (q.size(1) * k.size(1))), max(1, PART // k.size(1))
    contexts = []
    for q_part, k_part, v_part in zip(q.split(part), k.split(part), v.split(part), strict=True):
        weights = (scores(s, k_part, scale).softmax(-1) for s in q_part.split(rows, dim=1))
        contexts.append(joined([F.dropout(a, dropout) @ v_part for a in weights], dim=1))
    return joined(contexts, dim=0).unflatten(0, heads)


def by_masked_products(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout: float, scale: float
) -> Tensor:
    """Compute the same with a mask, as a bias; a query that sees nothing has a context of zeros."""
    lowest = torch.finfo(q.dtype).min
    bias = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(~mask, lowest)
    weights = ((q * scale) @ k.mT + bias).softmax(-1)
    return (F.dropout(weights, dropout) @ v).masked_fill(~mask.any(-1, keepdim=True), 0)


def scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Compute scale q k', (b i d), (b j d) -> (b i j), scaled inside the product."""
    return torch.baddbmm(q.new_zeros(()), q, k.mT, beta=0, alpha=scale)


def joined(parts: list[Tensor], dim: int) -> Tensor:
    """Concatenate the parts, without a copy if there is only one."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def fused(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, scale: float
) -> Tensor:
    """Compute the context by torch's own kernels."""
    if mask is None or q.device.type == "cpu":
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, scale=scale)
    # Not every kernel of a GPU gives zeros for a row without keys: let it see all, then drop it.
    blind = ~mask.any(-1, keepdim=True)
    context = F.scaled_dot_product_attention(q, k, v, mask | blind, dropout, scale=scale)
    return context.masked_fill(blind, 0)
