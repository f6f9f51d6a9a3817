"""Planted: drawn images whose evidence is known to the pixel.

Each picture holds one object, whose shape and texture together decide the class, at a random place,
size, angle and colour; plain shapes that are no evidence; and a textured background. A map of what
a network looked at can be compared with the mask of the object, pixel by pixel. With a shortcut, a
corner mark gives the class away: a network that looks there is right for the wrong reason.

Axes: n images, c channels, h height, w width, k distractors.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Int, UInt8
from torch import Tensor

from vision_attn.data import painting
from vision_attn.data.canvas import REACH, Pose, as_colour, background, pixels_around, plane
from vision_attn.data.draws import bits, uniforms
from vision_attn.data.sources import Source, Splits
from vision_attn.data.tensors import TensorSet

__all__ = ["Planted", "PlantedImages", "paint"]

Cue = Literal["none", "agree", "contradict"]
Split = Literal["train", "val", "test"]

SHAPES = (painting.disk, painting.cross)
CLASSES = [f"{texture} {shape.__name__}" for shape, texture in product(SHAPES, painting.TEXTURES)]

SCALE = 0.38, 0.50  # square root of the object's area, as a share of the image's shorter side
DISTRACTORS = 3
DISTRACTOR_SHAPES = (*SHAPES, painting.triangle, painting.square, painting.star)
DISTRACTOR_SCALE = 0.10, 0.16
PERIOD = 0.22  # of the texture, in square roots of the object's area
MARK = 1 / 8  # side of the shortcut's mark, as a share of the shorter side
MOST = 10**7  # images of a part: all of them are painted, and lie in memory
CHUNK = 256  # images painted at once: enough that the small steps between cost little


@dataclass(frozen=True, eq=False)
class PlantedImages:
    """Images with their labels and the exact masks of the object and of the shortcut's mark.

    A pixel belongs to the object where its centre lies inside the object's outline and no mark
    covers it. Edges are blended over one pixel, so a pixel just outside may carry up to half of the
    object's colour.

    Attributes:
        images: Bytes, (n 3 h w).
        labels: Class indices, (n).
        object_mask: Bool, (n h w).
        shortcut_mask: Bool, (n h w); without a mark False everywhere.
        classes: The classes' names.

    Examples:
        >>> from vision_attn.data import Planted
        >>> planted = Planted(size=32, train=1, val=1, test=3).images("test")
        >>> planted.images.shape, planted.object_mask.shape, planted.shortcut_mask.any().item()
        (torch.Size([3, 3, 32, 32]), torch.Size([3, 32, 32]), False)
    """

    images: UInt8[Tensor, "n 3 h w"]
    labels: Int[Tensor, " n"]
    object_mask: Bool[Tensor, "n h w"]
    shortcut_mask: Bool[Tensor, "n h w"]
    classes: list[str]

    def __len__(self) -> int:
        return len(self.labels)


class Planted(Source):
    """Pictures of one textured shape each, 10 classes, drawn as they are loaded.

    Args:
        size: Pixels, (h, w) or one number for both.
        train: How many training images.
        val: How many validation images.
        test: How many test images.
        shortcut: Whether every training and validation image carries a corner mark in its class's
            colour.
        test_cue: What the test images carry: "none", a mark that is right ("agree"), or one of
            another class ("contradict"); None: the same as the others.
        seed: Another seed, other pictures.

    Raises:
        ValueError: A number of images is below 1 or too large.

    Examples:
        >>> from pathlib import Path
        >>> from vision_attn.data import Planted
        >>> splits = Planted(size=32, train=8, val=2, test=2).load(Path(), val_fraction=0.1, seed=0)
        >>> len(splits.train.labels), len(splits.classes)
        (8, 10)
    """

    def __init__(
        self,
        size: int | tuple[int, int] = 64,
        train: int = 20_000,
        val: int = 1_000,
        test: int = 2_000,
        shortcut: bool = False,
        test_cue: Cue | None = None,
        seed: int = 0,
    ) -> None:
        self.size = (size, size) if isinstance(size, int) else size
        self.counts: dict[Split, int] = {"train": train, "val": val, "test": test}
        if min(train, val, test) < 1 or max(train, val, test) > MOST:
            raise ValueError(
                f"train, val and test must be at least 1 and at most {MOST}, got {self.counts}"
            )
        self.cue: Cue = "agree" if shortcut else "none"
        self.test_cue = test_cue or self.cue
        self.seed = seed

    def load(self, root: Path, val_fraction: float, seed: int) -> Splits:
        sets = {}
        for split in self.counts:
            planted = self.images(split)
            sets[split] = TensorSet(planted.images, planted.labels)
        return Splits(sets["train"], sets["val"], sets["test"], CLASSES)

    def images(self, split: Split = "test", cue: Cue | None = None) -> PlantedImages:
        """The pictures of a split with their masks.

        Args:
            split: Which split.
            cue: Another cue than the split's own; None: its own.
        """
        own = self.test_cue if split == "test" else self.cue
        return paint(
            0, self.counts[split], size=self.size, split=split, cue=cue or own, seed=self.seed
        )


def paint(
    start: int,
    stop: int,
    *,
    size: tuple[int, int] = (64, 64),
    split: Split = "train",
    cue: Cue = "none",
    seed: int = 0,
) -> PlantedImages:
    """Paint images number start..stop-1 of a split, at `size` (h, w).

    Image i is a function of (seed, split, i, size) alone. Its class is i modulo 10. The cue changes
    the corner mark and nothing else: `agree` shows the class's own colour there, `contradict`
    that of another class. Another size shows the same scenes at that size.
    """
    if min(size) < 16:
        raise ValueError(f"planted images need at least 16 x 16 pixels, got {size[0]} x {size[1]}")
    key = (seed, ("train", "val", "test").index(split))
    chunks = [
        _paint_chunk(np.arange(first, min(first + CHUNK, stop)), size, key, cue)
        for first in range(start, stop, CHUNK)
    ]
    images, labels, object_mask, shortcut_mask = map(torch.cat, zip(*chunks, strict=True))
    return PlantedImages(images, labels, object_mask, shortcut_mask, CLASSES)


def _paint_chunk(
    items: np.ndarray, size: tuple[int, int], key: tuple[int, int], cue: Cue
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    labels = torch.from_numpy(items % len(CLASSES))
    draw = iter(uniforms((*key, 0), items, 64).unbind(1))
    canvas = background(draw, size, bits((*key, 1), items, size[0] * size[1] // 8 + 1))
    for _ in range(DISTRACTORS):
        _distractor(canvas, draw)
    object_mask = _object(canvas, draw, labels)
    shortcut_mask = _mark(canvas, draw, labels, cue)
    images = (canvas * 255 + 0.5).to(torch.uint8)
    return images, labels, object_mask & ~shortcut_mask, shortcut_mask


def _distractor(canvas: Tensor, draw: Iterator[Tensor]) -> None:
    """One plain shape an image, of any kind: neither its shape nor its colour tells the class.

    Painted in a window that just holds it: the images are many, the shapes small.
    """
    kinds = (next(draw) * len(DISTRACTOR_SHAPES)).long()
    height, width = canvas.shape[2:]
    pose = _pose(draw, (height, width), DISTRACTOR_SCALE)
    side = int(min(height, width) * DISTRACTOR_SCALE[1] * REACH * 2) + 2
    rows, columns = pixels_around(pose.y, side, height), pixels_around(pose.x, side, width)
    x, y = pose.axes(rows, columns)
    shape = painting.by_kind(DISTRACTOR_SHAPES, kinds, x, y) * plane(pose.scale)
    window = (
        torch.arange(len(canvas), device="cpu")[:, None, None],
        slice(None),
        rows[..., None],
        columns[:, None],
    )
    under = canvas[window]  # n h w 3
    colour = _bright(draw)[:, None, None]
    canvas[window] = under + (colour - under) * painting.coverage(shape)[..., None]


def _object(canvas: Tensor, draw: Iterator[Tensor], labels: Tensor) -> Tensor:
    """The object of each label's class; gives its mask."""
    height, width = canvas.shape[2:]
    pose = _pose(draw, (height, width), SCALE)
    x, y = pose.axes(
        *(torch.arange(n, dtype=torch.float32, device="cpu")[None] for n in (height, width))
    )
    textures = tuple(painting.TEXTURES.values())
    shape = painting.by_kind(SHAPES, labels // len(textures), x, y) * plane(pose.scale)
    u, v = x / PERIOD + plane(next(draw)), y / PERIOD + plane(next(draw))
    texture = painting.by_kind(textures, labels % len(textures), u, v)
    texture = texture * plane(pose.scale * PERIOD)
    body, ink = _bright(draw), _ink(draw)
    colour = as_colour(body) + as_colour(ink - body) * painting.coverage(texture)[:, None]
    canvas += (colour - canvas) * painting.coverage(shape)[:, None]
    return shape <= 0


def _mark(canvas: Tensor, draw: Iterator[Tensor], labels: Tensor, cue: Cue) -> Tensor:
    """A small square in a random corner, in a colour that stands for a class; gives its mask."""
    height, width = canvas.shape[2:]
    side = max(2, round(min(height, width) * MARK))
    gap = side // 4
    at_right, at_bottom, shift = next(draw) < 0.5, next(draw) < 0.5, next(draw)
    if cue == "none":
        return torch.zeros(len(canvas), height, width, dtype=torch.bool, device="cpu")
    left = torch.where(at_right, width - side - gap, gap)[:, None, None]
    top = torch.where(at_bottom, height - side - gap, gap)[:, None, None]
    row, column = (torch.arange(n, device="cpu") for n in (height, width))
    row = row[:, None]
    mask = (row >= top) & (row < top + side) & (column >= left) & (column < left + side)
    other = labels + 1 + (shift * (len(CLASSES) - 1)).long()
    shown = (labels if cue == "agree" else other) % len(CLASSES)
    ones = torch.ones(len(canvas), dtype=torch.float32, device="cpu")
    colour = painting.hsv(shown / len(CLASSES), ones, ones)
    canvas += (as_colour(colour) - canvas) * mask[:, None]
    return mask


def _pose(draw: Iterator[Tensor], size: tuple[int, int], scale: tuple[float, float]) -> Pose:
    """A random pose that keeps the whole shape in the picture, whatever its angle."""
    scales = (scale[0] + (scale[1] - scale[0]) * next(draw)) * min(size)
    margin = scales * REACH
    y, x = (margin + next(draw) * (length - 2 * margin) for length in size)
    return Pose(y, x, scales, *painting.unit_vectors(next(draw)))


def _bright(draw: Iterator[Tensor]) -> Tensor:
    return painting.hsv(next(draw), 0.65 + 0.3 * next(draw), 0.75 + 0.25 * next(draw))


def _ink(draw: Iterator[Tensor]) -> Tensor:
    """Nearly white or nearly black, tinted."""
    white = next(draw) < 0.5
    tint = 0.25 * next(draw)
    return painting.hsv(next(draw), torch.where(white, tint, 0.5), torch.where(white, 1.0, tint))
