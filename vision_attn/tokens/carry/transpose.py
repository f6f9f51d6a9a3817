"""One layer of attention, transposed and applied to rows, without its n x n matrix.

A map that starts at token s is row s of a product of matrices, so it goes through the layers from
the last to the first as r <- A' r, a sum over tiles of A. One row takes no longer than the fused
forward pass. Many rows r go through at once: a tile serves them all.

Axes: b images (or windows), head, i queries, j keys, s rows carried, t rows of a tile.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.tokens.carry.quantile import threshold
from vision_attn.tokens.carry.tiles import (
    FuseTile,
    Rows,
    live_count,
    row_tiles,
    sum_tiles,
    thread_count,
    tile_limit,
)
from vision_attn.tokens.record.calls import AttentionCall, Tile, cut_tiles, evenly

__all__ = ["apply_fused_transpose", "apply_raw_transpose", "apply_transpose"]

WIDE = 1024  # keys of a tile that need not have all: products are fastest where no side is short
ALIGNED = 16  # numbers: where rows of a tile best begin and end


def apply_transpose(
    call: AttentionCall, r: Rows, head_share: Float[Tensor, "b head"] | None = None
) -> Float[Tensor, "b s j"]:
    """Compute sum_h w_h A_h' r: a weighted mean of the heads, by default the plain one.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.carry.transpose import apply_transpose
        >>> from vision_attn.tokens.record.calls import LazyWeights
        >>> q, k = torch.randn(2, 1, 3, 5, 8)
        >>> call = LazyWeights("", None, None, q=q, k=k, scale=1.0, mask=None, causal=False)
        >>> r = torch.rand(1, 2, 5)
        >>> torch.allclose(apply_transpose(call, r), r @ call.weights().mean(1))
        True
    """
    if head_share is None and (single := call.single_head) is not None:
        return r.to(single.dtype) @ single
    call, r, live = _prepare(call, r)
    if head_share is None:
        head_share = r.new_full((1, 1), 1 / call.heads).expand(call.batch, call.heads)
    count = live_count(call, live)
    width = call.keys if call.needs_full_rows else ALIGNED * ceil(evenly(call.keys, WIDE) / ALIGNED)

    def add(out: Tensor, tile: Tile) -> None:
        if live is not None:
            tile = replace(tile, rows=live[tile.rows])
        image, head, queries = tile.images, tile.heads, tile.rows
        rows = (head_share[image, None, head, None] * r[image][:, :, None, queries]).flatten(2)
        for first in range(0, call.keys, width):
            keys = slice(first, first + width)
            weights = call.tile_weights(replace(tile, keys=keys))
            out[:, :, keys].baddbmm_(rows, weights.flatten(1, 2))

    threads = thread_count(call, count, r.shape[1])
    limit = tile_limit(call, threads)
    tiles = cut_tiles(call.batch, call.heads, count, min(width, call.keys), limit)
    return sum_tiles(add, tiles, call, r, threads)


def apply_fused_transpose(
    call: AttentionCall,
    r: Rows,
    fuse: FuseTile,
    discard: float = 0.0,
    windows: int = 1,
    patches: Sequence[int] | None = None,
) -> Float[Tensor, "b s j"]:
    """Compute F' r, F the fused map: entries below its discard-quantile 0, then rows of sum 1.

    windows: how many in a row belong to one image, whose entries are one map. patches: the columns
    that may lose something to discard; None: all. A row with nothing left stays where it is.
    """
    low = threshold(call, fuse, discard, windows) if discard else None
    call, r, live = _prepare(call, r)
    may_drop = torch.ones(call.keys, dtype=torch.bool, device=r.device)
    if patches is not None:
        may_drop[:] = False
        may_drop[list(patches)] = True

    def add(out: Tensor, tile: Tile) -> None:
        fused = fuse(call, tile)
        if low is not None:
            dropped = fused < low[tile.images, None, None]
            fused = fused.masked_fill(dropped & may_drop, 0)
        total = fused.sum(-1, keepdim=True)
        rows = r[tile.images][:, :, tile.rows]
        out += rows @ (fused / total.masked_fill(total == 0, 1))
        if call.queries == call.keys:
            diagonal = torch.arange(call.queries, device=r.device)[tile.rows]
            out.index_add_(2, diagonal, (total == 0).mT * rows)

    return _sum_rows(add, call, r, live)


def apply_raw_transpose(call: AttentionCall, r: Rows, fuse: FuseTile) -> Float[Tensor, "b s j"]:
    """Compute C' r, C the fused map as `fuse` gives it."""
    call, r, live = _prepare(call, r)

    def add(out: Tensor, tile: Tile) -> None:
        out += r[tile.images][:, :, tile.rows] @ fuse(call, tile)

    return _sum_rows(add, call, r, live)


def _sum_rows(
    add: Callable[[Tensor, Tile], None], call: AttentionCall, r: Rows, live: Tensor | None
) -> Float[Tensor, "b s j"]:
    """The sum of what `add` adds for tiles of whole rows of all heads."""
    threads = thread_count(call, live_count(call, live), r.shape[1])
    return sum_tiles(add, row_tiles(call, live, threads), call, r, threads)


def _prepare(call: AttentionCall, r: Rows) -> tuple[AttentionCall, Tensor, Tensor | None]:
    """The call and r in the dtype of the weights, and the rows that need work."""
    r = r.to(call.dtype)
    return call.upcast(), r, _support(r)


def _support(r: Rows) -> Tensor | None:
    """The positions that are not 0 in every row; None where that is most of them."""
    half = r.shape[2] // 2
    if r.count_nonzero() > half * r.shape[0] * r.shape[1]:  # so some row alone has more than half
        return None
    live = (r != 0).flatten(0, 1).any(0).nonzero()[:, 0]
    return live if len(live) <= half else None
