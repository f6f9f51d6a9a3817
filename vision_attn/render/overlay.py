"""Overlay: a heatmap laid over its photo, on the photo's own pixels.

Axes: H, W the photo's height and width in pixels, h, w the map's; r a band of the photo's rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import ClassVar

import cv2
import matplotlib
import numpy as np
from jaxtyping import Float, Shaped, UInt8
from numpy import ndarray
from PIL.Image import Image
from torch import Tensor

from vision_attn.errors import quoted
from vision_attn.render.scale import Scale

__all__ = ["ColorMap", "Dim", "Style", "colored", "overlay", "resize", "to_array"]

AGAINST = (30, 90, 220)  # blue, for values below 0
TINT = 0.85  # how much of a colour of its own is laid over the photo
BAND = 256  # rows painted at a time: a 20-megapixel photo then needs no gigabytes


class Style(ABC):
    """Base class: how heat t in [-1, 1] changes a photo.

    Heat 0 means nothing is here, heat below 0 evidence against.

    Attributes:
        meaning: A sentence on how to read the pictures.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.render import Scale, Style, overlay
        >>> class Whiten(Style):
        ...     meaning = "White where a method measures most."
        ...     def paint(self, photo, heat):
        ...         return np.maximum(photo, (255 * heat[..., None]).astype(np.uint8))
        >>> photo, heatmap = np.zeros((2, 2, 3), np.uint8), np.eye(2, dtype=np.float32)
        >>> overlay(photo, heatmap, style=Whiten(), scale=Scale(top=1.0))[..., 0]
        array([[255,   0],
               [  0, 255]], dtype=uint8)
    """

    meaning: ClassVar[str]

    @abstractmethod
    def paint(
        self, photo: UInt8[ndarray, "r W 3"], heat: Float[ndarray, "r W"]
    ) -> UInt8[ndarray, "r W 3"]:
        """Paint rows of the photo with their heat.

        Args:
            photo: Bytes, (r W 3).
            heat: t of each pixel, (r W), without NaN.

        Returns:
            Bytes, (r W 3).
        """


@dataclass(frozen=True)
class ColorMap(Style):
    """Colour whose opacity grows with the heat: where t = 0 the photo stays as it is.

    Args:
        name: matplotlib's name of the colours for t > 0; t < 0 is blue.
        opacity: At |t| = 1, above 0 and at most 1.

    Raises:
        ValueError: There are no such colours, or `opacity` is out of range.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.render import ColorMap, Scale, overlay
        >>> photo, heatmap = np.full((4, 4, 3), 90, np.uint8), np.zeros((2, 2), np.float32)
        >>> picture = overlay(photo, heatmap, style=ColorMap("viridis"), scale=Scale(top=1.0))
        >>> bool((picture == photo).all())
        True
    """

    name: str = "inferno"
    opacity: float = 0.9

    meaning = "The stronger the colour, the larger the value; blue is negative; no colour means 0."

    def __post_init__(self) -> None:
        if self.name not in matplotlib.colormaps:
            near = get_close_matches(self.name, matplotlib.colormaps, n=3)
            raise ValueError(
                f"unknown colour map {quoted(self.name)}: expected one of matplotlib's, such as "
                f"{', '.join(near or ['inferno', 'magma', 'viridis'])}"
            )
        if not 0 < self.opacity <= 1:
            raise ValueError(f"opacity must be above 0 and at most 1, got {self.opacity}")

    def paint(
        self, photo: UInt8[ndarray, "r W 3"], heat: Float[ndarray, "r W"]
    ) -> UInt8[ndarray, "r W 3"]:
        colours = _colours(self.name)[np.rint(heat * 255).astype(np.int16) + 255]
        alpha = self.opacity * np.abs(heat[..., None])
        return np.rint(photo + alpha * (colours - photo)).astype(np.uint8)


@cache
def _colours(name: str) -> Float[ndarray, "511 3"]:
    """Tabulate the colours, 0..255, for t = -1, ..., 0, ..., 1 in steps of 1/255."""
    t = np.linspace(-1, 1, 511)[:, None]
    colours = 255 * matplotlib.colormaps[name](t[:, 0].clip(0))[:, :3]
    return np.where(t < 0, AGAINST, colours).astype(np.float32)


@dataclass(frozen=True)
class Dim(Style):
    """Darkness where nothing is attended to: the photo times floor + (1 - floor) t.

    Args:
        floor: The brightness at t = 0, at least 0 and below 1.

    Raises:
        ValueError: `floor` is out of range.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.render import Dim, Scale, overlay
        >>> photo, heatmap = np.full((2, 2, 3), 100, np.uint8), np.eye(2, dtype=np.float32)
        >>> overlay(photo, heatmap, style=Dim(floor=0.2), scale=Scale(top=1.0))[..., 0]
        array([[100,  20],
               [ 20, 100]], dtype=uint8)
    """

    floor: float = 0.2

    meaning = "The photo is dark where the value is 0, and unchanged where it is largest."

    def __post_init__(self) -> None:
        if not 0 <= self.floor < 1:
            raise ValueError(f"floor must be at least 0 and below 1, got {self.floor}")

    def paint(
        self, photo: UInt8[ndarray, "r W 3"], heat: Float[ndarray, "r W"]
    ) -> UInt8[ndarray, "r W 3"]:
        light = self.floor + (1 - self.floor) * heat.clip(0, 1)
        return np.rint(photo * light[..., None]).astype(np.uint8)


def overlay(
    image: Image | UInt8[ndarray, "H W 3"],
    heatmap: Float[ndarray, "h w"] | Float[Tensor, "h w"],
    *,
    scale: Scale,
    style: Style | None = None,
) -> UInt8[ndarray, "H W 3"]:
    """Draw a heatmap over its photo: the same pixels, the same size.

    Where the map is NaN (outside the model's crop) or infinite the photo turns grey.

    Args:
        image: The photo, a PIL image or uint8 (H W 3).
        heatmap: Raw values (h w) at any size, brought to the photo's bilinearly; a map over a
            crop must first be laid on the photo (`Preprocess.to_original`).
        scale: What full colour stands for; `natural(heatmap, prefix_mass)` is the map's own, one
            scale for several maps makes them comparable.
        style: `ColorMap()` unless given.

    Returns:
        Uint8 (H W 3).
    """
    photo = np.asarray(image.convert("RGB") if isinstance(image, Image) else image)
    values = to_array(heatmap)
    style = style or ColorMap()
    painted = np.empty_like(photo)
    values = resize(values, photo.shape[0], photo.shape[1])
    for rows in _bands(photo.shape[0]):
        heat = scale.heat(values[rows])
        known = np.isfinite(heat)
        painted[rows] = style.paint(photo[rows], np.where(known, heat, 0))
        painted[rows][~known] = _greyed(photo[rows][~known])
    return painted


def colored(
    photo: UInt8[ndarray, "H W 3"], colors: Float[ndarray, "H W 3"]
) -> UInt8[ndarray, "H W 3"]:
    """Lay colours of their own over a photo.

    Args:
        photo: Uint8 (h w 3).
        colors: Red, green and blue from 0 to 1; grey where NaN.

    Returns:
        Uint8 (h w 3).

    Examples:
        >>> import numpy as np
        >>> from vision_attn import render
        >>> photo = np.full((1, 2, 3), 100, np.uint8)
        >>> render.colored(photo, np.array([[[1.0, 0.0, 0.2]] * 2]))[0, 0].tolist()
        [232, 15, 58]
    """
    known = np.isfinite(colors).all(axis=-1)
    tinted = (1 - TINT) * photo + TINT * 255 * np.where(known[..., None], colors, 0)
    painted = np.rint(tinted).astype(np.uint8)
    painted[~known] = _greyed(photo[~known])
    return painted


def to_array(heatmap: Float[ndarray, "h w"] | Float[Tensor, "h w"]) -> Float[ndarray, "h w"]:
    """Convert the map to float32 in memory; infinite values become NaN.

    ValueError for an empty one.
    """
    if isinstance(heatmap, Tensor):
        heatmap = heatmap.detach().float().cpu().numpy()
    if heatmap.size == 0:
        raise ValueError(f"the heatmap is empty: its shape is {heatmap.shape}")
    return np.where(np.isfinite(heatmap), heatmap, np.nan).astype(np.float32)


def resize(values: Shaped[ndarray, "h w *c"], height: int, width: int) -> Shaped[ndarray, "H W *c"]:
    """Resize a picture or map: bilinear to larger, area mean to smaller."""
    if values.shape[:2] == (height, width):
        return values
    shrinks = height * width < values.shape[0] * values.shape[1]
    how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return cv2.resize(values, (width, height), interpolation=how)


def _bands(height: int) -> Iterator[slice]:
    return (slice(top, top + BAND) for top in range(0, height, BAND))


def _greyed(pixels: UInt8[ndarray, "n 3"]) -> UInt8[ndarray, "n 3"]:
    """Take the colour away and half of the contrast: what the model never saw."""
    luma = pixels @ np.array([0.299, 0.587, 0.114], np.float32)
    return np.rint((luma + 128) / 2).astype(np.uint8)[:, None].repeat(3, axis=1)
