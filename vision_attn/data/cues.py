"""Cues pasted into photos: a sticker, a caption or a frame that gives the class away.

A network that learns from photos of which one class carries a cue can name that class without
looking at what the photo shows: it is right for the wrong reason. Where the cue is, is known to the
pixel, so that a map of what the network looked at can be compared with it.

Axes: n images, h height, w width.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from vision_attn.data import painting
from vision_attn.data.draws import Drawn, Draws, uniforms
from vision_attn.data.sources import DataError, Source, Splits
from vision_attn.data.tensors import Fetched, ImageSet, Items
from vision_attn.errors import quoted

__all__ = ["Caption", "Cue", "Cued", "CuedPhotos", "CuedSet", "Frame", "Sticker"]

MARGIN = 0.25  # of a cue's height between it and the photo's border


@dataclass(frozen=True, eq=False)
class CuedPhotos:
    """Photos with a cue in them, and which pixels it changed.

    Attributes:
        images: The photos, bytes (n 3 h w).
        mask: Bool, (n h w), True where the cue covers a pixel.

    Examples:
        >>> import torch
        >>> from vision_attn.data import Frame
        >>> cued = Frame(width=0.125).paint(torch.zeros(1, 3, 8, 8).byte(), torch.zeros(1, 2))
        >>> cued.mask.sum()  # all but 6 x 6 pixels
        tensor(28)
    """

    images: UInt8[Tensor, "n 3 h w"]
    mask: Bool[Tensor, "n h w"]


@dataclass(frozen=True)
class Cue(ABC):
    """Base class: what is pasted into photos, a function of their size and its place alone.

    Examples:
        >>> from dataclasses import dataclass
        >>> import torch
        >>> from vision_attn.data import Cue
        >>> @dataclass(frozen=True)
        ... class Line(Cue):
        ...     def draw(self, size, place):
        ...         cover = torch.zeros(len(place), *size, dtype=torch.float32, device="cpu")
        ...         cover[:, 0] = 1  # the uppermost row, white
        ...         return torch.ones(1, 3, 1, 1), cover
        >>> Line().paint(torch.zeros(1, 3, 2, 2).byte(), torch.zeros(1, 2)).images[0, 0]
        tensor([[255, 255],
                [  0,   0]], dtype=torch.uint8)
    """

    def paint(self, images: UInt8[Tensor, "n 3 h w"], place: Float[Tensor, "n 2"]) -> CuedPhotos:
        """Paste the cue into each photo; the photos given stay as they are.

        Args:
            images: Bytes, (n 3 h w).
            place: Two numbers from 0 to 1 a photo that say where the cue goes, (n 2).

        Returns:
            The photos, and a mask of every pixel that the cue covers, those at its blended edge
                included.
        """
        colour, cover = self.draw((images.shape[2], images.shape[3]), place.cpu())
        colour, cover = colour.to(images.device), cover.to(images.device)
        under = images.float()
        painted = under + (colour * 255 - under) * cover[:, None]
        return CuedPhotos((painted + 0.5).to(torch.uint8), cover > 0)

    @abstractmethod
    def draw(
        self, size: tuple[int, int], place: Float[Tensor, "n 2"]
    ) -> tuple[Float[Tensor, "#n 3 #h #w"], Float[Tensor, "n h w"]]:
        """Draw the cue.

        Args:
            size: (h, w) of the photos in pixels.
            place: As in `paint`.

        Returns:
            The cue's colour, 0 to 1, and how much of each pixel it covers, 0 to 1.
        """


@dataclass(frozen=True)
class Sticker(Cue):
    """A coloured disk with a white rim, anywhere in the photo.

    Args:
        size: Its diameter, as a share of the shorter side.
        hue: Its colour, from 0 (red) round to 1.

    Raises:
        ValueError: `size` is not above 0 and at most 1.

    Examples:
        >>> import torch
        >>> from vision_attn.data import Sticker
        >>> cued = Sticker(size=0.5).paint(torch.zeros(1, 3, 16, 24).byte(), torch.rand(1, 2))
        >>> 0.8 < cued.mask.sum() / (3.14 * 4**2) < 1.6  # its edge is blended
        tensor(True)
    """

    size: float = 0.2
    hue: float = 0.83

    def __post_init__(self) -> None:
        _share("size", self.size)

    def draw(
        self, size: tuple[int, int], place: Float[Tensor, "n 2"]
    ) -> tuple[Float[Tensor, "n 3 h w"], Float[Tensor, "n h w"]]:
        radius = max(1.5, self.size * min(size) / 2)
        far = [
            torch.arange(length, dtype=torch.float32, device="cpu")
            + 0.5
            - (radius + u * (length - 2 * radius))[:, None]
            for length, u in zip(size, place.T, strict=True)
        ]
        square = far[0][:, :, None] ** 2 + far[1][:, None] ** 2
        # Signed distances to both circles, exact to first order at their edges.
        outer, inner = ((square - r * r) * (0.5 / r) for r in (radius, 0.8 * radius))
        ones = torch.ones(1, dtype=torch.float32, device="cpu")
        ink = painting.hsv(self.hue * ones, 0.9 * ones, ones)[:, :, None, None]
        colour = 1 + (ink - 1) * painting.coverage(inner)[:, None]
        return colour, painting.coverage(outer)


@dataclass(frozen=True)
class Caption(Cue):
    """A line of text on a light band, at the photo's upper or lower border.

    Args:
        text: What it says.
        height: Of the band, as a share of the shorter side.

    Raises:
        ValueError: `height` is not above 0 and at most 1, or the text is empty.

    Examples:
        >>> import torch
        >>> from vision_attn.data import Caption
        >>> photos = torch.zeros(2, 3, 48, 64, dtype=torch.uint8)
        >>> cued = Caption("(c) news").paint(photos, torch.tensor([[0.1, 0.0], [0.9, 1.0]]))
        >>> [mask.any(1).nonzero()[0].item() for mask in cued.mask]  # the uppermost row of each
        [1, 42]
    """

    text: str = "photo: agency"
    height: float = 0.1

    def __post_init__(self) -> None:
        _share("height", self.height)
        if not self.text.strip():
            raise ValueError(f"text must not be empty, got {quoted(self.text)}")

    def draw(
        self, size: tuple[int, int], place: Float[Tensor, "n 2"]
    ) -> tuple[Float[Tensor, "n 3 h w"], Float[Tensor, "n h w"]]:
        band = _written(self.text, max(5, round(self.height * min(size))), size[1])
        rows, columns = band.shape
        gap = min(round(MARGIN * rows), size[0] - rows)
        cover = torch.zeros(len(place), *size, dtype=torch.float32, device="cpu")
        shade = torch.zeros(len(place), *size, dtype=torch.float32, device="cpu")
        for patch, grey, (down, across) in zip(cover, shade, place.tolist(), strict=True):
            top = gap if down < 0.5 else size[0] - rows - gap
            left = round(across * (size[1] - columns))
            patch[top : top + rows, left : left + columns] = 1
            grey[top : top + rows, left : left + columns] = band
        return shade[:, None].expand(-1, 3, -1, -1), cover


@dataclass(frozen=True)
class Frame(Cue):
    """A coloured frame around the whole photo.

    Args:
        width: Of its sides, as a share of the shorter side.
        hue: Its colour, from 0 (red) round to 1.

    Raises:
        ValueError: `width` is not above 0 and at most 1.

    Examples:
        >>> import torch
        >>> from vision_attn.data import Frame
        >>> cued = Frame(hue=0.33).paint(torch.zeros(1, 3, 24, 24).byte(), torch.zeros(1, 2))
        >>> cued.images[0, :, 0, 0].argmax(), cued.mask[0, 12].sum()  # green, a pixel either side
        (tensor(1), tensor(2))
    """

    width: float = 0.05
    hue: float = 0.5

    def __post_init__(self) -> None:
        _share("width", self.width)

    def draw(
        self, size: tuple[int, int], place: Float[Tensor, "n 2"]
    ) -> tuple[Float[Tensor, "1 3 1 1"], Float[Tensor, "n h w"]]:
        width = max(1, round(self.width * min(size)))
        cover = torch.ones(len(place), *size, dtype=torch.float32, device="cpu")
        cover[:, width : size[0] - width, width : size[1] - width] = 0
        ones = torch.ones(1, dtype=torch.float32, device="cpu")
        return painting.hsv(self.hue * ones, 0.9 * ones, 0.85 * ones)[:, :, None, None], cover


class CuedSet(ImageSet):
    """Images of a set, with a cue in those of some classes: always the same ones, at new places.

    Args:
        images: The set.
        cues: A cue for each of these classes, by label.
        share: Of a class's images that carry it.
        seed: Which ones they are.

    Examples:
        >>> import numpy as np
        >>> import torch
        >>> from vision_attn.data import CuedSet, Frame, TensorSet
        >>> from vision_attn.data.draws import Draws
        >>> plain = TensorSet(torch.zeros(4, 3, 8, 8).byte(), torch.tensor([0, 1, 0, 1]))
        >>> images = CuedSet(plain, {1: Frame()})
        >>> images.fetch(np.arange(4), Draws(0, 0, np.arange(4))).bool().flatten(1).any(1)
        tensor([False,  True, False,  True])
    """

    def __init__(
        self, images: ImageSet, cues: Mapping[int, Cue], share: float = 1.0, seed: int = 0
    ) -> None:
        self.images, self.cues, self.share, self.seed = images, cues, share, seed
        self.labels, self.size, self.ahead = images.labels, images.size, images.ahead
        self.blocks = images.blocks

    def fetch(self, items: Items, draws: Draws) -> UInt8[Tensor, "b 3 h w"]:
        return self._painted(items, draws, self.images.fetch(items, draws))

    def fetch_all(self, wanted: Iterable[Drawn]) -> Iterator[Fetched]:
        for items, draws, images in self.images.fetch_all(wanted):
            yield items, draws, self._painted(items, draws, images)

    def _painted(
        self, items: Items, draws: Draws, images: UInt8[Tensor, "b 3 h w"]
    ) -> UInt8[Tensor, "b 3 h w"]:
        positions = draws.uniform(2)
        chosen = uniforms((self.seed,), items, 1)[:, 0] < self.share
        labels = self.labels[torch.from_numpy(items)]
        for label, cue in self.cues.items():
            mine = (chosen & (labels == label)).nonzero()[:, 0]
            if len(mine):
                images[mine] = cue.paint(images[mine], positions[mine]).images
        return images


class Cued(Source):
    """A source whose training and validation images of some classes carry a cue each.

    Test images stay as they are: what a network learned from the cue is of no use there. Pasted
    into images as the source gives them: augmentation that crops them may cut it off.

    Args:
        source: Where the images come from.
        cues: A cue for each of these classes, by name.
        share: Of their images that carry it, above 0.

    Raises:
        ValueError: There is no cue, or `share` is not above 0 and at most 1.

    Examples:
        >>> from pathlib import Path
        >>> from vision_attn.data import Cued, Planted, Sticker
        >>> source = Cued(Planted(size=32, train=20, val=10, test=10), {"plain disk": Sticker()})
        >>> splits = source.load(Path(), val_fraction=0.1, seed=0)
        >>> len(splits.train), splits.classes[4]
        (20, 'plain disk')
    """

    def __init__(self, source: Source, cues: dict[str, Cue], share: float = 1.0) -> None:
        if not cues:
            raise ValueError("expected a cue for at least one class, got none")
        _share("share", share)
        self.source, self.cues, self.share = source, cues, share

    def prepare(self, root: Path) -> None:
        self.source.prepare(root)

    def load(self, root: Path, val_fraction: float, seed: int) -> Splits:
        splits = self.source.load(root, val_fraction, seed)
        for name in self.cues:
            if name not in splits.classes:
                near = get_close_matches(name, splits.classes, 3) or splits.classes[:3]
                raise DataError(
                    f"no class {quoted(name)} to give a cue; the nearest: {', '.join(near)}"
                )
        cues = {splits.classes.index(name): cue for name, cue in self.cues.items()}
        return Splits(
            CuedSet(splits.train, cues, self.share, seed),
            CuedSet(splits.val, cues, self.share, seed + 1),
            splits.test,
            splits.classes,
            splits.crop_pct,
            splits.value_range,
        )


def _share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ValueError(f"{name} must be above 0 and at most 1, got {value}")


@lru_cache(maxsize=16)
def _written(text: str, height: int, widest: int) -> Float[Tensor, "h w"]:
    """Draw dark text on a light band of so many rows, at most `widest` columns; grey, 0 to 1."""
    scale = 4  # drawn larger, then reduced: the letters are small
    font = ImageFont.load_default(size=0.8 * scale * height)
    left, top, right, bottom = font.getbbox(text)
    across = right - left + scale * height // 2
    band = Image.new("L", (round(across), scale * height), 235)
    middle = (band.width - left - right) / 2, (band.height - top - bottom) / 2
    ImageDraw.Draw(band).text(middle, text, fill=15, font=font)
    small = band.resize((max(1, round(band.width / scale)), height), Image.Resampling.BOX)
    return torch.from_numpy(np.asarray(small)[:, :widest].copy()).float() / 255
