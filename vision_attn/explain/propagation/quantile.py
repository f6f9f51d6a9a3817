"""The quantile of a map that exists only in tiles.

Axes: b images (or windows), v values of sixteen bits.
"""

from collections.abc import Sequence
from math import ceil

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from vision_attn.explain.propagation.tiles import (
    Block,
    Fuse,
    room_for,
    row_tiles,
    shared,
    threads_for,
)
from vision_attn.explain.recording.calls import AttentionCall


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
    bits, integer = pattern_of(call)
    found = torch.zeros(images, dtype=integer, device=call.device)
    call, above = call.full(), None
    for shift in range(bits - 16, -1, -16):
        counts = digit_counts(call, fuse, windows, shift, above)
        upto = counts.cumsum(1)
        digit = (upto <= rank[:, None]).sum(1)
        rank = rank - F.pad(upto, (1, 0)).gather(1, digit[:, None])[:, 0]
        found |= digit.to(integer) << shift
        above = found >> shift
    return found.view(call.dtype).repeat_interleave(windows)


def digit_counts(
    call: AttentionCall, fuse: Fuse, windows: int, shift: int, above: Int[Tensor, " image"] | None
) -> Int[Tensor, "image v"]:
    """How many entries of each image's map have which sixteen bits from `shift` on.

    above: of those alone whose bits further up are these; None where there are none.
    """
    _, integer = pattern_of(call)
    total = torch.zeros(call.batch // windows, 2**16, dtype=torch.int64, device=call.device)

    def count(blocks: Sequence[Block]) -> tuple[slice, Tensor]:
        room = room_for(call)
        owners = slice(blocks[0][0].start // windows, (blocks[-1][0].stop - 1) // windows + 1)
        counts = torch.zeros_like(total[owners])
        for image, row in blocks:
            pattern = fuse(call, image, row, room).abs().view(integer).flatten(1)  # abs: no -0.0
            first, last = image.start // windows, (image.stop - 1) // windows
            owner = torch.arange(image.start, image.stop, device=call.device) // windows
            digit = (pattern >> shift & 0xFFFF) + (owner - first)[:, None] * 2**16
            if above is not None:
                digit = digit[pattern >> shift + 16 == above[owner, None]]
            tile = counts[first - owners.start : last - owners.start + 1]
            tile += torch.bincount(digit.flatten(), minlength=tile.numel()).view_as(tile)
        return owners, counts

    threads = threads_for(call, call.queries)
    for owners, counts in shared(count, row_tiles(call, None, threads), threads):
        total[owners] += counts
    return total


def pattern_of(call: AttentionCall) -> tuple[int, torch.dtype]:
    """How many bits a weight has, and the integers that have as many."""
    return (64, torch.int64) if call.dtype == torch.float64 else (32, torch.int32)
