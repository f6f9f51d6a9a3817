"""softmax(scale q k') v by the fastest way for the device, the type and the length.

What is fastest was measured, see benchmarks/attention.py.

Axes: b batch, head, i queries, j keys, d width of queries and keys, e width of values.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

PART = 1 << 20  # scores of the heads worked on at a time: they stay in cache


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, scale: float
) -> Tensor:
    """softmax(scale q k') v, (b head i d), (b head j d), (b head j e) -> (b head i e)."""
    if mask is None and products_are_faster(q, k):
        return by_products(q, k, v, dropout, scale)
    return fused(q, k, v, mask, dropout, scale)


def products_are_faster(q: Tensor, k: Tensor) -> bool:
    """For bfloat16 on a CPU, whose instructions for it the fused kernel makes little use of.

    Not for long memories: there the weights, kept for backward, would be too large.
    """
    longest = 2048 if torch.is_grad_enabled() else 8192
    return q.device.type == "cpu" and q.dtype == torch.bfloat16 and k.size(-2) <= longest


def by_products(q: Tensor, k: Tensor, v: Tensor, dropout: float, scale: float) -> Tensor:
    """Product, softmax, product, a few heads at a time."""
    heads = torch.broadcast_shapes(q.shape[:2], k.shape[:2], v.shape[:2])
    q, k, v = (x.expand(*heads, -1, -1).flatten(0, 1) for x in (q * scale, k, v))
    part = max(1, PART // (q.size(1) * k.size(1)))
    contexts = [
        F.dropout(torch.bmm(q_part, k_part.mT).softmax(-1), dropout) @ v_part
        for q_part, k_part, v_part in zip(q.split(part), k.split(part), v.split(part), strict=True)
    ]
    return torch.cat(contexts).unflatten(0, heads)


def fused(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, scale: float
) -> Tensor:
    """torch's kernels."""
    if mask is None or q.device.type == "cpu":
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, scale=scale)
    # Not every kernel of a GPU gives zeros for a row without keys: let it see all, then drop it.
    blind = ~mask.any(-1, keepdim=True)
    context = F.scaled_dot_product_attention(q, k, v, mask | blind, dropout, scale=scale)
    return context.masked_fill(blind, 0)
