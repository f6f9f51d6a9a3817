"""Attention of short sequences, written out in tiles: its heads are fused while it runs.

Axes: b batch, head, i queries, j keys, d width of a head, e value width.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.explain.calls import Fusion
from vision_attn.explain.kernels import Given
from vision_attn.explain.room import Room, product
from vision_attn.explain.tiles import CPU_TILE, tiles


def short_attention(
    given: Given, fusion: Fusion, room: Room
) -> tuple[Float[Tensor, "b head i e"], Float[Tensor, "b i j"]] | None:
    """torch's attention, and its map with the heads fused; None where that is no gain.

    It is one where the map takes no more room than the queries and keys, which would be kept in its
    place, and the network computes without gradients on a CPU, in float32 or float64. The output
    has the strides that torch's would have.
    """
    if not given.plain or given.dropout_p or torch.is_grad_enabled():
        return None
    query, key, value = given[:3]
    if not query.shape[:2] == key.shape[:2] == value.shape[:2]:
        return None
    (batch, heads, queries, width), keys = query.shape, key.shape[2]
    if not batch * keys or queries * keys > (queries + keys) * heads * width:
        return None
    context = given.empty_context()
    fused = query.new_empty(batch, queries, keys)
    limit = CPU_TILE * torch.get_num_threads()
    for image, _, row in tiles(batch, 1, queries, heads * keys, limit):
        scores = product(query[image, :, row], key[image].mT, "weights", room, given.alpha)
        weights = torch.softmax(scores, -1, out=scores)
        context[image, :, row] = weights @ value[image]
        fused[image, row] = fusion.fuse(weights)
    return context, fused
