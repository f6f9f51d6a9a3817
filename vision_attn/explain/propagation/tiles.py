"""Attention maps in tiles: how they are cut, and which thread works on which.

Only tiles of a map exist at a time, each small enough that a core finds in its share of the cache
what it wrote there: memory grows with n, and not with its square.

Axes: b images (or windows), head, i queries, j keys, s rows carried, t rows of a tile.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.explain.recording.calls import AttentionCall
from vision_attn.explain.recording.workspace import Room
from vision_attn.threads import Modes, Threads

Rows = Float[Tensor, "b s i"]
# The weights of some rows, heads fused: (call, images, rows, room) -> (b t j), none below 0.
Fuse = Callable[[AttentionCall, slice, slice | Tensor, Room | None], Tensor]
Block = Sequence[Any]  # images, and which part of them

# Elements of a tile: for each core of a CPU so few that its cache has what one operation wrote for
# the next, on a GPU enough to fill the chip. Measured by benchmarks/rollout.py.
CPU_TILE, GPU_TILE = 3 * 2**18, 2**25
SHARE = 2**23  # elements for each core from which a core has tiles of its own


def tiles(
    batch: int, heads: int, rows: int, keys: int, limit: int
) -> Iterator[tuple[slice, slice, slice]]:
    """Cuts (batch, heads, rows) into nearly equal blocks of at most `limit` elements: rows first,
    then heads, then images."""
    if not rows:
        return
    t = even(rows, limit // keys)
    h = even(heads, limit // (rows * keys)) if t == rows else 1
    b = even(batch, limit // (heads * rows * keys)) if h == heads else 1
    for image in range(0, batch, b):
        for head in range(0, heads, h):
            for row in range(0, rows, t):
                yield (
                    slice(image, min(image + b, batch)),
                    slice(head, head + h),
                    slice(row, row + t),
                )


def even(size: int, most: int) -> int:
    """How long pieces of at most `most` are, if they are few and nearly equal; 1 or more."""
    return ceil(size / ceil(size / max(1, most)))


def threads_for(call: AttentionCall, rows: int, carried: int = 1) -> int:
    """How many threads share the tiles of so many rows, each with tiles of its own.

    It is one, with all cores at work on each tile, where there is little to do, or where what each
    of them would add up apart is large (`carried` rows of keys).
    """
    cores = torch.get_num_threads() if call.device.type == "cpu" else 1
    enough = call.batch * call.heads * rows * call.keys >= cores * SHARE
    return cores if enough and carried * call.keys <= SHARE else 1


def limit_of(call: AttentionCall, threads: int) -> int:
    if call.device.type != "cpu":
        return GPU_TILE
    return CPU_TILE * torch.get_num_threads() // threads


def row_tiles(
    call: AttentionCall, live: Tensor | None, threads: int
) -> Iterator[tuple[slice, slice | Tensor]]:
    """Blocks of rows with all their heads, of the rows that are `live` (None: all)."""
    rows, keys = rows_of(call, live), call.heads * call.keys
    for image, _, row in tiles(call.batch, 1, rows, keys, limit_of(call, threads)):
        yield image, row if live is None else live[row]


def rows_of(call: AttentionCall, live: Tensor | None) -> int:
    return call.queries if live is None else len(live)


def added(
    add: Callable[..., None],
    blocks: Iterable[Block],
    call: AttentionCall,
    r: Rows,
    threads: int,
) -> Float[Tensor, "b s j"]:
    """The sum of what `add(out, room, *block)` adds to out, the rows of the images of its block."""

    def part(blocks: Sequence[Block]) -> tuple[slice, Tensor]:
        room, images = room_for(call), slice(blocks[0][0].start, blocks[-1][0].stop)
        out = r.new_zeros(images.stop - images.start, r.shape[1], call.keys)
        for image, *rest in blocks:
            add(out[image.start - images.start : image.stop - images.start], room, image, *rest)
        return images, out

    parts = shared(part, blocks, threads)
    if len(parts) == 1:
        return parts[0][1]
    total = r.new_zeros(call.batch, r.shape[1], call.keys)
    for images, out in parts:
        total[images] += out
    return total


def shared(
    work: Callable[[Sequence[Block]], Any], blocks: Iterable[Block], threads: int
) -> list[Any]:
    """What work gives for each thread's share of the blocks, which is the same in every run."""
    blocks, modes = list(blocks), Modes()
    count = min(threads, len(blocks))
    if count < 2:
        return [work(blocks)] if blocks else []
    bounds = [len(blocks) * share // count for share in range(count + 1)]

    def alone(first: int, end: int) -> Any:
        with modes.on():
            return work(blocks[first:end])

    with Threads(count) as pool:
        return pool.each(alone, bounds[:-1], bounds[1:])


def room_for(call: AttentionCall) -> Room | None:
    """On a GPU there is none: torch keeps memory at hand there."""
    return Room() if call.device.type == "cpu" else None
