"""Small objects of known shape and colour, placed on a ground: what strings and questions show.

Axes: n images, h height, w width.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from vision_attn.data import painting
from vision_attn.data.canvas import REACH, Pose, background, pixels_around, plane
from vision_attn.data.draws import Items, bits, uniforms

__all__ = ["Scene"]

SHAPES = (
    painting.disk,
    painting.square,
    painting.triangle,
    painting.cross,
    painting.star,
)
HUES = {"red": 0.0, "blue": 0.62, "yellow": 0.15, "green": 0.36}
SHAPE_NAMES = [shape.__name__ for shape in SHAPES]
COLOUR_NAMES = list(HUES)
TEXTURE_NAMES = list(painting.TEXTURES)
PERIOD = 0.36  # of a texture, in square roots of the object's area

Numbers = Float[Tensor, " n"]
Kinds = Int[Tensor, " n"]


class Scene:
    """Images that objects are put into one after the other, and which object each pixel is of.

    Args:
        items: The images' numbers in their split.
        size: (h, w) in pixels.
        key: Of the random numbers.
        draws: How many random numbers an image the objects take.
        lean: How much of a turn the objects' angles cover, half of it either way.

    Attributes:
        canvas: (n 3 h w) in 0..1.
        owner: (n h w), 0 the ground, else the number of the object.

    Examples:
        >>> import numpy as np
        >>> import torch
        >>> from vision_attn.sequences.data.objects import Scene
        >>> scene = Scene(np.arange(2), (24, 24), key=(0, 1), draws=40)
        >>> middle, zero = torch.full((2,), 12.0), torch.zeros(2).long()
        >>> there = torch.tensor([True, False])
        >>> scene.put(1, there, middle, middle, torch.full((2,), 8.0), shape=zero, colour=zero)
        >>> scene.owner.flatten(1).amax(1)  # object 1 is in the first image alone
        tensor([1, 0], dtype=torch.uint8)
    """

    def __init__(
        self,
        items: Items,
        size: tuple[int, int],
        key: tuple[int, ...],
        draws: int,
        lean: float = 1.0,
    ):
        height, width = size
        self.draw: Iterator[Tensor] = iter(uniforms((*key, 0), items, draws + 32).unbind(1))
        grain = bits((*key, 1), items, height * width // 8 + 1)
        self.canvas = background(self.draw, size, grain) * 0.6
        self.lean = lean
        self.owner = torch.zeros(len(items), height, width, dtype=torch.uint8, device="cpu")

    def put(
        self,
        number: int,
        there: Bool[Tensor, " n"],
        y: Numbers,
        x: Numbers,
        scale: Numbers,
        shape: Kinds,
        colour: Kinds,
        texture: Kinds | None = None,
    ) -> None:
        """Object `number` where it is `there`: its centre and the root of its area in pixels.

        Takes four random numbers: angle, hue, saturation and value; for a texture, in near-white or
        near-black ink, three more: where its pattern begins, and which ink.
        """
        height, width = self.owner.shape[1:]
        upright = 1 / 8
        cos, sin = painting.unit_vectors((upright + self.lean * (next(self.draw) - 0.5)) % 1)
        pose = Pose(y, x, scale, cos, sin)
        side = min(int(2 * REACH * float(scale.max())) + 3, height, width)
        rows, columns = pixels_around(y, side, height), pixels_around(x, side, width)
        across, down = pose.axes(rows, columns)
        edge = painting.by_kind(SHAPES, shape, across, down) * scale[:, None, None]
        edge = edge.where(there[:, None, None], 1.0)
        image = torch.arange(len(y), device="cpu")[:, None, None]
        window = (image, slice(None), rows[..., None], columns[:, None])
        under = self.canvas[window]  # n side side 3
        rgb = self._rgb(colour)[:, None, None]
        if texture is not None:
            u = across / PERIOD + plane(next(self.draw))
            v = down / PERIOD + plane(next(self.draw))
            pattern = painting.by_kind(tuple(painting.TEXTURES.values()), texture, u, v)
            pattern = painting.coverage(pattern * plane(scale * PERIOD))[..., None]
            dark, light = torch.tensor([0.05, 0.95], dtype=torch.float32, device="cpu")
            ink = torch.where(next(self.draw) < 0.5, dark, light)[:, None, None, None]
            rgb = rgb + (ink - rgb) * pattern
        self.canvas[window] = under + (rgb - under) * painting.coverage(edge)[..., None]
        own = (image, rows[..., None], columns[:, None])
        self.owner[own] = self.owner[own].where(edge > 0, number)

    def _rgb(self, colour: Kinds) -> Float[Tensor, "n 3"]:
        hues = torch.tensor(list(HUES.values()), dtype=torch.float32, device="cpu")
        hue = hues[colour] + 0.08 * (next(self.draw) - 0.5)
        return painting.hsv(hue + 1, 0.75 + 0.25 * next(self.draw), 0.8 + 0.2 * next(self.draw))

    def images(self) -> UInt8[Tensor, "n 3 h w"]:
        """The images so far, as bytes."""
        return (self.canvas * 255 + 0.5).clamp(0, 255).to(torch.uint8)
