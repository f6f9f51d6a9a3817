"""The quantile of a map that exists only in tiles.

Axes: b images (or windows), v values of sixteen bits.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from vision_attn.tokens.carry.tiles import (
    FuseTile,
    row_tiles,
    share_tiles,
    thread_count,
    workspace_for,
)
from vision_attn.tokens.record.calls import AttentionCall, Tile

__all__ = ["threshold"]


def threshold(
    call: AttentionCall, fuse: FuseTile, share: float, windows: int
) -> Float[Tensor, " b"]:
    """Find each image's `share`-quantile of the fused map: exact, by a radix select over tiles.

    An entry is below the quantile exactly if it is below the value returned, which is the next
    entry up: no interpolation is needed. windows: how many in a row belong to one image.

    The bits of floats that are not below 0 sort like the floats. Sixteen bits are settled a pass
    over the map (two passes in float32): count how many entries have which, and find the ones in
    which the rank lies.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.carry.quantile import threshold
        >>> from vision_attn.tokens.record.calls import ExplicitWeights
        >>> weights = torch.tensor([[[[0.1, 0.9], [0.4, 0.6]]]])
        >>> call = ExplicitWeights("", None, None, all_weights=weights, all_scores=None)
        >>> threshold(call, lambda call, tile: call.tile_weights(tile).mean(1), 0.5, windows=1)
        tensor([0.6000])
    """
    images = call.batch // windows
    entries = windows * call.queries * call.keys
    last = ceil(share * (entries - 1) - 1e-9)
    rank = torch.full((images,), last, dtype=torch.long, device=call.device)
    bits, integer = _bits_of(call)
    settled = torch.zeros(images, dtype=integer, device=call.device)
    call, above = call.upcast(), None
    for shift in range(bits - 16, -1, -16):
        counts = _digit_counts(call, fuse, windows, shift, above)
        upto = counts.cumsum(1)
        digit = (upto <= rank[:, None]).sum(1)
        rank = rank - F.pad(upto, (1, 0)).gather(1, digit[:, None])[:, 0]
        settled |= digit.to(integer) << shift
        above = settled >> shift
    return settled.view(call.dtype).repeat_interleave(windows)


def _digit_counts(
    call: AttentionCall,
    fuse: FuseTile,
    windows: int,
    shift: int,
    above: Int[Tensor, " image"] | None,
) -> Int[Tensor, "image v"]:
    """Count the entries of each image's map by their sixteen bits from `shift` on.

    above: count those alone whose bits further up are these; None where there are none.
    """
    _, integer = _bits_of(call)
    total = torch.zeros(call.batch // windows, 2**16, dtype=torch.int64, device=call.device)

    def count(tiles: Sequence[Tile]) -> tuple[slice, Tensor]:
        workspace, start, stop = workspace_for(call), tiles[0].images.start, tiles[-1].images.stop
        owners = slice(start // windows, (stop - 1) // windows + 1)
        counts = torch.zeros_like(total[owners])
        for tile in tiles:
            start, stop = tile.images.start, tile.images.stop
            fused = fuse(call, replace(tile, workspace=workspace))
            pattern = fused.abs().view(integer).flatten(1)  # abs: no -0.0
            first, last = start // windows, (stop - 1) // windows
            owner = torch.arange(start, stop, device=call.device) // windows
            digit = (pattern >> shift & 0xFFFF) + (owner - first)[:, None] * 2**16
            if above is not None:
                digit = digit[pattern >> shift + 16 == above[owner, None]]
            own = counts[first - owners.start : last - owners.start + 1]
            own += torch.bincount(digit.flatten(), minlength=own.numel()).view_as(own)
        return owners, counts

    threads = thread_count(call, call.queries)
    for owners, counts in share_tiles(count, row_tiles(call, None, threads), threads):
        total[owners] += counts
    return total


def _bits_of(call: AttentionCall) -> tuple[int, torch.dtype]:
    """How many bits a weight has, and the integers that have as many."""
    return (64, torch.int64) if call.dtype == torch.float64 else (32, torch.int32)
