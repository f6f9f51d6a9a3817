"""One layer of attention, transposed and applied to rows, without its n x n matrix.

A map that starts at token s is row s of a product of matrices, so it goes through the layers from
the last to the first as r <- A' r, a sum over tiles of A. One row takes no longer than the fused
forward pass. Many rows r go through at once: a tile serves them all.

Axes: b images (or windows), head, i queries, j keys, s rows carried, t rows of a tile.
"""

from collections.abc import Callable
from math import ceil

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.explain.propagation.quantile import threshold
from vision_attn.explain.propagation.tiles import (
    Fuse,
    Rows,
    added,
    even,
    limit_of,
    row_tiles,
    rows_of,
    threads_for,
    tiles,
)
from vision_attn.explain.recording.calls import AttentionCall
from vision_attn.explain.recording.workspace import Room

WIDE = 1024  # keys of a tile that need not have all: products are fastest where no side is short
ALIGNED = 16  # numbers: where rows of a tile best begin and end


def pull(
    call: AttentionCall, r: Rows, head_share: Float[Tensor, "b head"] | None = None
) -> Float[Tensor, "b s j"]:
    """sum_h w_h A_h' r: a weighted mean of the heads, by default the plain one. Linear in A."""
    if head_share is None and call.whole is not None:
        return r.to(call.dtype) @ call.whole
    call, r, live = start(call, r)
    if head_share is None:
        head_share = r.new_full((1, 1), 1 / call.heads).expand(call.batch, call.heads)
    count = rows_of(call, live)
    width = call.keys if call.whole_rows else ALIGNED * ceil(even(call.keys, WIDE) / ALIGNED)

    def add(out: Tensor, room: Room | None, image: slice, head: slice, row: slice) -> None:
        at = row if live is None else live[row]
        rows = (head_share[image, None, head, None] * r[image][:, :, None, at]).flatten(2)
        for first in range(0, call.keys, width):
            key = slice(first, first + width)
            weights = call.weights(image, head, at, key, room)
            out[:, :, key].baddbmm_(rows, weights.flatten(1, 2))

    threads = threads_for(call, count, r.shape[1])
    limit = limit_of(call, threads)
    blocks = tiles(call.batch, call.heads, count, min(width, call.keys), limit)
    return added(add, blocks, call, r, threads)


def pull_fused(
    call: AttentionCall,
    r: Rows,
    fuse: Fuse,
    discard: float = 0.0,
    windows: int = 1,
    spared: int = 0,
) -> Float[Tensor, "b s j"]:
    """F' r, F the fused map: entries below its discard-quantile 0, then every row summing to 1.

    windows: how many in a row belong to one image, whose entries are one map. spared: the first
    columns, which lose nothing to discard. A row with nothing left stays where it is.
    """
    low = threshold(call, fuse, discard, windows) if discard else None
    call, r, live = start(call, r)

    def add(out: Tensor, room: Room | None, image: slice, row: slice | Tensor) -> None:
        fused = fuse(call, image, row, room)
        if low is not None:
            dropped = fused < low[image, None, None]
            dropped[..., :spared] = False
            fused = fused.masked_fill(dropped, 0)
        total = fused.sum(-1, keepdim=True)
        rows = r[image][:, :, row]
        out += rows @ (fused / total.masked_fill(total == 0, 1))
        if call.queries == call.keys:
            places = torch.arange(call.queries, device=r.device)[row]
            out.index_add_(2, places, (total == 0).mT * rows)

    return added_by_rows(add, call, r, live)


def pull_as_is(call: AttentionCall, r: Rows, fuse: Fuse) -> Float[Tensor, "b s j"]:
    """C' r, C the fused map as it comes."""
    call, r, live = start(call, r)

    def add(out: Tensor, room: Room | None, image: slice, row: slice | Tensor) -> None:
        out += r[image][:, :, row] @ fuse(call, image, row, room)

    return added_by_rows(add, call, r, live)


def added_by_rows(
    add: Callable[..., None], call: AttentionCall, r: Rows, live: Tensor | None
) -> Float[Tensor, "b s j"]:
    """What add(out, room, image, row) adds up to over whole rows of all heads."""
    threads = threads_for(call, rows_of(call, live), r.shape[1])
    return added(add, row_tiles(call, live, threads), call, r, threads)


def start(call: AttentionCall, r: Rows) -> tuple[AttentionCall, Tensor, Tensor | None]:
    """The call and r in the dtype of the weights, and the rows that need work."""
    r = r.to(call.dtype)
    return call.full(), r, support(r)


def support(r: Rows) -> Tensor | None:
    """The positions that are not 0 in every row; None where that is most of them."""
    half = r.shape[2] // 2
    if r.count_nonzero() > half * r.shape[0] * r.shape[1]:  # so some row alone has more than half
        return None
    live = (r != 0).flatten(0, 1).any(0).nonzero()[:, 0]
    return live if len(live) <= half else None
