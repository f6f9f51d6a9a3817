"""Attention maps in tiles: how large a tile is, and which thread works on which.

Only tiles of a map exist at a time, each small enough that a core finds in its share of the cache
what it wrote there: memory grows with n, and not with its square.

Axes: b images (or windows), head, i queries, j keys, s rows carried, t rows of a tile.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.threads import Modes, Threads
from vision_attn.tokens.record.calls import CPU_TILE, AttentionCall, Tile, Workspace, cut_tiles

__all__ = [
    "FuseTile",
    "Rows",
    "live_count",
    "row_tiles",
    "share_tiles",
    "sum_tiles",
    "thread_count",
    "tile_limit",
    "workspace_for",
]

Rows = Float[Tensor, "b s i"]
# The weights of some images and rows, heads fused: (call, tile) -> (b t j), none below 0.
FuseTile = Callable[[AttentionCall, Tile], Tensor]

GPU_TILE = 2**25  # elements of a tile: enough to fill the chip
SHARE = 2**23  # elements for each core from which a core has tiles of its own


def thread_count(call: AttentionCall, rows: int, carried: int = 1) -> int:
    """How many threads share the tiles of so many rows, each with tiles of its own.

    It is one, with all cores at work on each tile, where there is little to do, or where what each
    of them would add up apart is large (`carried` rows of keys).
    """
    cores = torch.get_num_threads() if call.device.type == "cpu" else 1
    enough = call.batch * call.heads * rows * call.keys >= cores * SHARE
    return cores if enough and carried * call.keys <= SHARE else 1


def tile_limit(call: AttentionCall, threads: int) -> int:
    """How many elements a tile may have where so many threads have tiles of their own."""
    if call.device.type != "cpu":
        return GPU_TILE
    return CPU_TILE * torch.get_num_threads() // threads


def row_tiles(call: AttentionCall, live: Tensor | None, threads: int) -> Iterator[Tile]:
    """Cut rows into tiles with all their heads; only the rows that are `live` (None: all)."""
    rows, keys = live_count(call, live), call.heads * call.keys
    for tile in cut_tiles(call.batch, 1, rows, keys, tile_limit(call, threads)):
        yield Tile(tile.images, rows=tile.rows if live is None else live[tile.rows])


def live_count(call: AttentionCall, live: Tensor | None) -> int:
    """How many rows are live (None: all)."""
    return call.queries if live is None else len(live)


def sum_tiles(
    add: Callable[[Tensor, Tile], None],
    tiles: Iterable[Tile],
    call: AttentionCall,
    r: Rows,
    threads: int,
) -> Float[Tensor, "b s j"]:
    """The sum of what `add(out, tile)` adds to `out`, the rows of the images of its tile.

    Each tile comes with the workspace of its thread.
    """

    def part(tiles: Sequence[Tile]) -> tuple[slice, Tensor]:
        workspace = workspace_for(call)
        images = slice(tiles[0].images.start, tiles[-1].images.stop)
        out = r.new_zeros(images.stop - images.start, r.shape[1], call.keys)
        for tile in tiles:
            own = out[tile.images.start - images.start : tile.images.stop - images.start]
            add(own, replace(tile, workspace=workspace))
        return images, out

    parts = share_tiles(part, tiles, threads)
    if len(parts) == 1:
        alone: Tensor = parts[0][1]
        return alone
    total = r.new_zeros(call.batch, r.shape[1], call.keys)
    for images, out in parts:
        total[images] += out
    return total


def share_tiles(
    work: Callable[[Sequence[Tile]], Any], tiles: Iterable[Tile], threads: int
) -> list[Any]:
    """What `work` gives for each thread's share of the tiles, which is the same in every run."""
    tiles, modes = list(tiles), Modes()
    count = min(threads, len(tiles))
    if count < 2:
        return [work(tiles)] if tiles else []
    bounds = [len(tiles) * share // count for share in range(count + 1)]

    def alone(first: int, end: int) -> Any:
        with modes.on():
            return work(tiles[first:end])

    with Threads(count) as pool:
        return pool.each(alone, bounds[:-1], bounds[1:])


def workspace_for(call: AttentionCall) -> Workspace | None:
    """A workspace for a call's tiles; None on a GPU, where torch keeps memory at hand."""
    return Workspace() if call.device.type == "cpu" else None
