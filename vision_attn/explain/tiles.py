"""One layer of attention, transposed and applied to rows, without its n x n matrix.

A map that starts at token s is row s of a product of matrices, so it goes through the layers from
the last to the first as r <- A' r. Only tiles of rows of A exist at a time, each as large as the
cache: memory grows with n, and the time is that of the fused forward pass or less (a tile's softmax
never leaves the cache). Many rows r go through at once: a tile serves them all.

Axes: b images (or windows), head, i queries, j keys, s rows carried, t rows of a tile.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from vision_attn.explain.calls import AttentionCall, Room
from vision_attn.threads import Modes, Threads

Rows = Float[Tensor, "b s i"]
# The weights of some rows, heads fused: (call, images, rows, room) -> (b t j), none below 0.
Fuse = Callable[[AttentionCall, slice, slice | Tensor, Room | None], Tensor]

# Elements of a tile: for each core of a CPU so few that its cache has what one operation wrote for
# the next, on a GPU enough to fill the chip. Measured by benchmarks/rollout.py.
CPU_TILE, GPU_TILE = 3 * 2**18, 2**25
SHARE = 2**23  # elements for each core from which a core has tiles of its own
WIDE = 1024  # keys of a tile that need not have all: products are fastest where no side is short
ALIGNED = 16  # numbers: where rows of a tile best begin and end


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


def shares(call: AttentionCall, rows: int) -> int:
    """Into how many shares its tiles go, a thread each; in one, all cores work on each tile."""
    cores = torch.get_num_threads() if call.device.type == "cpu" else 1
    return cores if call.batch * call.heads * rows * call.keys >= cores * SHARE else 1


def limit_of(call: AttentionCall, rows: int) -> int:
    if call.device.type != "cpu":
        return GPU_TILE
    return CPU_TILE * torch.get_num_threads() // shares(call, rows)


def pull(
    call: AttentionCall, r: Rows, head_share: Float[Tensor, "b head"] | None = None
) -> Float[Tensor, "b s j"]:
    """sum_h w_h A_h' r: a weighted mean of the heads, by default the plain one. Linear in A."""
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

    limit = limit_of(call, count)
    blocks = tiles(call.batch, call.heads, count, min(width, call.keys), limit)
    return added(add, blocks, call, r, count)


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

    return added(add, row_tiles(call, live), call, r, rows_of(call, live))


def pull_as_is(call: AttentionCall, r: Rows, fuse: Fuse) -> Float[Tensor, "b s j"]:
    """C' r, C the fused map as it comes."""
    call, r, live = start(call, r)

    def add(out: Tensor, room: Room | None, image: slice, row: slice | Tensor) -> None:
        out += r[image][:, :, row] @ fuse(call, image, row, room)

    return added(add, row_tiles(call, live), call, r, rows_of(call, live))


def start(call: AttentionCall, r: Rows) -> tuple[AttentionCall, Tensor, Tensor | None]:
    """The call and r in the dtype of the weights, and the rows that need work."""
    r = r.to(call.dtype)
    return call.full(), r, support(r)


def added(
    add: Callable[..., None],
    blocks: Iterable[Sequence[Any]],
    call: AttentionCall,
    r: Rows,
    rows: int,
) -> Float[Tensor, "b s j"]:
    """The sum of what `add(out, room, *block)` adds to out, the rows of the images of its block.

    rows: how many the blocks have in all. A thread always has the same blocks.
    """
    blocks, modes = list(blocks), Modes()
    total = r.new_zeros(call.batch, r.shape[1], call.keys)
    cores = min(shares(call, rows), len(blocks))
    if cores < 2:
        room = room_for(call)
        for image, *rest in blocks:
            add(total[image], room, image, *rest)
        return total
    bounds = [len(blocks) * core // cores for core in range(cores + 1)]

    def part(first: int, end: int) -> tuple[slice, Tensor]:
        images = slice(blocks[first][0].start, blocks[end - 1][0].stop)
        out = torch.zeros_like(total[images])
        room = room_for(call)
        with modes.on():
            for image, *rest in blocks[first:end]:
                here = slice(image.start - images.start, image.stop - images.start)
                add(out[here], room, image, *rest)
        return images, out

    with Threads(cores) as threads:
        for images, out in threads.each(part, bounds[:-1], bounds[1:]):
            total[images] += out
    return total


def room_for(call: AttentionCall) -> Room | None:
    """On a GPU there is none: torch keeps memory at hand there."""
    return Room() if call.device.type == "cpu" else None


def row_tiles(call: AttentionCall, live: Tensor | None) -> Iterator[tuple[slice, slice | Tensor]]:
    """Blocks of rows with all their heads, of the rows that are `live` (None: all)."""
    rows, keys = rows_of(call, live), call.heads * call.keys
    for image, _, row in tiles(call.batch, 1, rows, keys, limit_of(call, rows)):
        yield image, row if live is None else live[row]


def rows_of(call: AttentionCall, live: Tensor | None) -> int:
    return call.queries if live is None else len(live)


def support(r: Rows) -> Tensor | None:
    """The positions that are not 0 in every row; None where that is most of them."""
    half = r.shape[2] // 2
    if r.count_nonzero() > half * r.shape[0] * r.shape[1]:  # so some row alone has more than half
        return None
    live = (r != 0).flatten(0, 1).any(0).nonzero()[:, 0]
    return live if len(live) <= half else None


def threshold(call: AttentionCall, fuse: Fuse, share: float, windows: int) -> Float[Tensor, " b"]:
    """Each image's `share`-quantile of the fused map: exact, by a radix select over tiles.

    The bits of floats that are not below 0 sort like the floats. Sixteen bits are settled a pass
    over the map (two passes in float32): count how many entries have which, and find the ones in
    which the rank lies. An entry is below the quantile just if it is below the next value up, so
    no interpolation is needed.
    """
    images = call.batch // windows
    entries = windows * call.queries * call.keys
    rank = torch.full((images,), ceil(share * (entries - 1) - 1e-9), device=call.device)
    bits, integer = (64, torch.int64) if call.dtype == torch.float64 else (32, torch.int32)
    found = torch.zeros(images, dtype=integer, device=call.device)
    call, room = call.full(), room_for(call)
    for shift in range(bits - 16, -1, -16):
        counts = torch.zeros(images, 2**16, dtype=torch.int64, device=call.device)
        for image, row in row_tiles(call, None):
            pattern = fuse(call, image, row, room).abs().view(integer).flatten(1)  # abs: no -0.0
            owner = torch.arange(call.batch, device=call.device)[image] // windows
            digit = (pattern >> shift & 0xFFFF) + (owner - owner[0])[:, None] * 2**16
            if shift + 16 < bits:
                digit = digit[pattern >> shift + 16 == found[owner, None] >> shift + 16]
            tile = counts[image.start // windows : (image.stop - 1) // windows + 1]
            tile += torch.bincount(digit.flatten(), minlength=tile.numel()).view_as(tile)
        upto = counts.cumsum(1)
        digit = (upto <= rank[:, None]).sum(1)
        rank = rank - F.pad(upto, (1, 0)).gather(1, digit[:, None])[:, 0]
        found |= digit.to(integer) << shift
    return found.view(call.dtype).repeat_interleave(windows)
