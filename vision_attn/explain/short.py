"""Attention of short sequences, written out in tiles: its heads are fused while it runs.

Axes: b batch, head, i queries, j keys, d width of a head, e value width.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.explain.calls import Fusion, Room, product
from vision_attn.explain.kernels import computes_exactly, takes_flash
from vision_attn.explain.tiles import CPU_TILE, tiles


def short_attention(
    fusion: Fusion,
    room: Room,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Float[Tensor, "b head i e"], Float[Tensor, "b i j"]] | None:
    """torch's attention, and its map with the heads fused; None where that is no gain.

    It is one where the map takes no more room than the queries and keys, which would be kept in its
    place, and the network computes without gradients on a CPU, in float32 or float64. The output
    has the strides that torch's would have.
    """
    plain = attn_mask is None and not (dropout_p or is_causal or enable_gqa) and query.ndim == 4
    if not plain or not query.shape[:2] == key.shape[:2] == value.shape[:2]:
        return None
    if torch.is_grad_enabled() or not computes_exactly(query):
        return None
    (batch, heads, queries, width), keys = query.shape, key.shape[2]
    if not batch * keys or queries * keys > (queries + keys) * heads * width:
        return None
    alpha = width**-0.5 if scale is None else scale
    context = query.new_empty(batch, heads, queries, value.shape[3])
    if takes_flash(query, key, value, dropout_p, scale):
        context = torch.empty_like(query)
    fused = query.new_empty(batch, queries, keys)
    limit = CPU_TILE * torch.get_num_threads()
    for image, _, row in tiles(batch, 1, queries, heads * keys, limit):
        scores = product(query[image, :, row], key[image].mT, "weights", room, alpha)
        weights = torch.softmax(scores, -1, out=scores)
        context[image, :, row] = weights @ value[image]
        fused[image, row] = fusion.fuse(weights)
    return context, fused
