"""Planted strings: a row of objects, to be named from left to right; image to sequence.

Axes: n images, h height, w width, t objects of a row.
"""

import numpy as np
import torch

from vision_attn.data import planted
from vision_attn.data.canvas import REACH
from vision_attn.data.draws import Items, uniforms
from vision_attn.data.preprocess import Preprocess
from vision_attn.sequences.data import objects
from vision_attn.sequences.data.pairs import SPECIAL, ExampleSource, Pairs, Split, Vocabulary
from vision_attn.types import PAD, STOP

__all__ = ["PlantedStrings"]

NAMES = Vocabulary(planted.CLASSES)
SHAPES = torch.tensor(
    [objects.SHAPES.index(shape) for shape in planted.SHAPES], dtype=torch.long, device="cpu"
)
TEXTURES = len(objects.TEXTURE_NAMES)
PITCH = 24  # pixels from one object to the next, at least; the height of the image
SCALE = 10.5, 12.5  # root of an object's area, in pixels


class PlantedStrings(ExampleSource):
    """Rows of 1 to `most` planted objects, whose classes are to be written in order.

    The classes are those of `Planted`: a texture of five on a shape of two, in any colour. Images
    are 24 pixels high, and wide enough for `most` objects and one more. Image i of a split is a
    function of (seed, split, i, most) alone.

    Args:
        most: Objects of the longest row, from 1 to 64.
        train: How many training images.
        val: How many validation images.
        test: How many test images.
        seed: Another seed, other images.

    Raises:
        ValueError: A number of images is below 1, or `most` out of range.

    Examples:
        >>> from vision_attn.sequences import PlantedStrings
        >>> source = PlantedStrings(most=3, train=1, val=1, test=2)
        >>> pairs = source.examples("test")
        >>> pairs.source.shape[:3], len(source.vocabularies["target"].decode(pairs.target))
        (torch.Size([2, 3, 24]), 2)
    """

    def __init__(
        self,
        most: int = 12,
        train: int = 20_000,
        val: int = 500,
        test: int = 1_000,
        seed: int = 0,
    ) -> None:
        super().__init__(train, val, test, seed)
        if not 1 <= most <= 64:
            raise ValueError(f"most must be from 1 to 64 objects, got {most}")
        self.most = most

    @property
    def size(self) -> tuple[int, int]:
        return PITCH, PITCH * (self.most + 1)

    @property
    def vocabularies(self) -> dict[str, Vocabulary]:
        return {"target": NAMES}

    @property
    def preprocess(self) -> Preprocess:
        return Preprocess(self.size, (0.4, 0.4, 0.4), (0.25, 0.25, 0.25), fit="squash")

    def examples(self, split: Split) -> Pairs:
        count = self.counts[split]
        parts = [
            self.paint(np.arange(first, min(first + planted.CHUNK, count)), self.key(split))
            for first in range(0, count, planted.CHUNK)
        ]
        return Pairs(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))

    def paint(self, items: Items, key: tuple[int, int]) -> Pairs:
        """Paint images: their pixels, their names, and which object each pixel belongs to.

        Args:
            items: The images' numbers in their split.
            key: The split's key of random numbers.
        """
        n, most = len(items), self.most
        count = 1 + (uniforms((*key, 2), items, 1)[:, 0] * most).long()
        kinds = (uniforms((*key, 3), items, most) * len(planted.CLASSES)).long()
        step = torch.arange(most, device="cpu")
        there = step < count[:, None]
        # Half a pitch of play an object, as far as the image has room, shared out at random.
        play = torch.minimum((most + 1 - count) * PITCH, count * (PITCH // 2))
        places = uniforms((*key, 4), items, most).where(there, 2.0).sort(1).values
        x = (step + 0.5) * PITCH + places * play[:, None]
        scale = SCALE[0] + (SCALE[1] - SCALE[0]) * uniforms((*key, 5), items, most)
        margin = scale * REACH
        y = margin + uniforms((*key, 6), items, most) * (PITCH - 2 * margin)
        colours = (uniforms((*key, 7), items, most) * len(objects.COLOUR_NAMES)).long()
        shapes, textures = SHAPES[kinds // TEXTURES], kinds % TEXTURES
        scene = objects.Scene(items, self.size, key, 7 * most)
        for t in range(most):
            where = x[:, t].clamp(max=self.size[1] - PITCH / 2)
            looks = shapes[:, t], colours[:, t], textures[:, t]
            scene.put(t + 1, there[:, t], y[:, t], where, scale[:, t], *looks)
        target = torch.full((n, most + 1), PAD, dtype=torch.long, device="cpu")
        target[:, :most] = (kinds + SPECIAL).where(there, PAD)
        target[torch.arange(n, device="cpu"), count] = STOP
        return Pairs(scene.images(), target, scene.owner)
