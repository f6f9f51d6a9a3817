"""Smooth maps on their own grid.

Axes: b batch, h height, w width.
"""

from math import ceil

import torch
from jaxtyping import Bool, Float
from torch import Tensor

__all__ = ["smoothed"]

REACH = 6.0  # standard deviations, beyond which a Gaussian is nothing in float32


def smoothed(
    values: Float[Tensor, "b h w"], cells: float, left_out: Bool[Tensor, "h w"] | None = None
) -> Float[Tensor, "b h w"]:
    """Smooth maps by a Gaussian of this standard deviation in cells; 0 leaves them as they are.

    At its borders a map goes on as in a mirror, so that nothing is lost: the total of each map
    stays what it was. Rows and columns that are left out are no part of the map.

    Examples:
        >>> import torch
        >>> from vision_attn.methods.smoothing import smoothed
        >>> corner = torch.zeros(1, 3, 5)
        >>> corner[0, 0, 0] = 1
        >>> smooth = smoothed(corner, 1.0)
        >>> bool(smooth[0, 0, 0] < 0.5), round(smooth.sum().item(), 6)
        (True, 1.0)
    """
    if cells == 0:
        return values
    if left_out is not None:
        whole = torch.zeros_like(values)
        rows, columns = (~left_out.all(axis) for axis in (1, 0))
        part = rows[:, None] & columns
        kept_grid = values[:, part].unflatten(1, (int(rows.sum()), int(columns.sum())))
        whole[:, part] = smoothed(kept_grid, cells).flatten(1)
        return whole
    rows, columns = (
        mirrored_gaussian(size, cells).to(values.device, values.dtype) for size in values.shape[1:]
    )
    with torch.autocast(values.device.type, enabled=False):  # which would give half precision
        return rows @ values @ columns.mT


def mirrored_gaussian(size: int, cells: float) -> Float[Tensor, "size size"]:
    """The weight of each place of a line for each other place: rows and columns sum to 1."""
    positions = torch.arange(size, dtype=torch.float64, device="cpu")
    mirrors = ceil(REACH * cells / (2 * size)) + 1
    turns = 2 * size * torch.arange(-mirrors, mirrors + 1, dtype=torch.long, device="cpu")
    straight, mirrored = positions[:, None] - positions, positions[:, None] + positions + 1
    apart = torch.stack([straight, mirrored])[..., None] + turns
    weights = torch.exp(-apart.square() / (2 * cells**2)).sum((0, -1))
    return weights / weights.sum(1, keepdim=True)
