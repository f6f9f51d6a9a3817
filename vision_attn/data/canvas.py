"""What drawn pictures are put together from: a ground, and places for shapes on it.

Axes: n images, h height, w width.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, Real
from torch import Tensor

from vision_attn.data import painting

__all__ = ["Pose", "background", "pixels_around"]

REACH = 0.8774  # from the centre to the farthest corner of any shape, in square roots of its area


def background(draw: Iterator[Tensor], size: tuple[int, int], noise: np.ndarray) -> Tensor:
    """Two muted colours, mixed by three bent waves, and a little grain."""
    height, width = size
    unit = 1 / min(size)
    y = torch.arange(height, dtype=torch.float32, device="cpu")[:, None] * unit
    x = torch.arange(width, dtype=torch.float32, device="cpu") * unit
    mix = torch.zeros(1, dtype=torch.float32, device="cpu")
    bend = torch.zeros_like(mix)
    for share, least, most in ((0.4, 0.6, 1.5), (0.35, 1.5, 3.0), (0.25, 3.0, 6.0)):
        cos, sin = painting.unit_vectors(next(draw))
        cycles = least + (most - least) * next(draw)
        phase = plane(cos * cycles) * x + plane(sin * cycles) * y + plane(next(draw))
        bend = painting.bumps(phase + bend * 0.5)
        mix = mix + bend * share
    grain = torch.from_numpy(noise.view(np.uint8)[:, : height * width].reshape(-1, height, width))
    mix = mix + grain.float() * (0.25 / 255)
    hue = next(draw)
    dark = painting.hsv(hue, 0.15 + 0.35 * next(draw), 0.25 + 0.25 * next(draw))
    light = painting.hsv(hue + 0.3 * next(draw), 0.10 + 0.30 * next(draw), 0.55 + 0.3 * next(draw))
    return as_colour(dark) + as_colour(light - dark) * mix[:, None] * 0.8


@dataclass(frozen=True, eq=False)
class Pose:
    """The place of shapes: centre and scale in pixels, cosine and sine of the angle.

    Examples:
        >>> import torch
        >>> from vision_attn.data.canvas import Pose
        >>> one, zero = torch.ones(1), torch.zeros(1)
        >>> pose = Pose(y=2 * one, x=2 * one, scale=2 * one, cos=one, sin=zero)
        >>> across, down = pose.axes(torch.arange(4)[None], torch.arange(4)[None])
        >>> across[0, 0]
        tensor([-0.7500, -0.2500,  0.2500,  0.7500])
    """

    y: Float[Tensor, " n"]
    x: Float[Tensor, " n"]
    scale: Float[Tensor, " n"]
    cos: Float[Tensor, " n"]
    sin: Float[Tensor, " n"]

    def axes(
        self, rows: Real[Tensor, "#n h"], columns: Real[Tensor, "#n w"]
    ) -> tuple[Tensor, Tensor]:
        """x and y (n h w) of pixel centres along the shape's own axes, in units of its scale."""
        rows, columns = rows.to(self.y.dtype), columns.to(self.x.dtype)
        y = ((rows + 0.5 - self.y[:, None]) / self.scale[:, None])[:, :, None]
        x = ((columns + 0.5 - self.x[:, None]) / self.scale[:, None])[:, None, :]
        cos, sin = plane(self.cos), plane(self.sin)
        return cos * x + sin * y, cos * y - sin * x


def pixels_around(centre: Float[Tensor, " n"], side: int, length: int) -> Int[Tensor, "n side"]:
    """`side` neighbouring pixels around a centre, inside 0..length-1."""
    first = (centre - side / 2).floor().long().clamp(0, length - side)
    return first[:, None] + torch.arange(side, device="cpu")


def as_colour(rgb: Float[Tensor, "n 3"]) -> Float[Tensor, "n 3 1 1"]:
    return rgb[:, :, None, None]


def plane(numbers: Float[Tensor, " n"]) -> Float[Tensor, "n 1 1"]:
    return numbers[:, None, None]
