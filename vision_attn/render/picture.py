"""Pictures to look at: the overlay with its colour bar, and marks upon it.

Axes: H, W height and width in pixels.
"""

from io import BytesIO
from itertools import product
from os import PathLike

import cv2
import numpy as np
from jaxtyping import UInt8
from matplotlib.ticker import MaxNLocator
from numpy import ndarray
from PIL import Image, ImageDraw

from vision_attn.files import replacing
from vision_attn.render.fonts import pil_font, wrapped
from vision_attn.render.overlay import Style, resize
from vision_attn.render.scale import Scale

__all__ = [
    "bar",
    "enlarged",
    "mark",
    "place",
    "save",
    "save_within",
    "shrunk",
    "thumbnail",
    "ticks",
    "with_caption",
    "with_colorbar",
]

Picture = UInt8[ndarray, "_ _ 3"]  # height, width, colours

LEGIBLE = 320  # pixels: a photo of at most half this size is enlarged, or it could not be read
THUMB, LARGE = 400, 640  # pixels: the longer side of a picture on a page, and enlarged
THUMB_QUALITY = 78  # of these JPEGs: about 17 KB a picture
SIDES, QUALITIES = (640, 480, 400, 320, 240, 160, 120, 80), (78, 60)  # largest and best first
PAPER, INK, QUIET = (255, 255, 255), (38, 38, 42), (110, 110, 118)
WARNING = (180, 60, 9)  # dark orange: 5 to 1 on white


def enlarged(photo: Picture) -> Picture:
    """Enlarge a small photo by a whole factor, each pixel a square; leave others as they are.

    Args:
        photo: Uint8 (h w 3).

    Returns:
        Uint8, of the same shape or a multiple.
    """
    factor = max(1, LEGIBLE // max(photo.shape[:2]))
    return photo.repeat(factor, axis=0).repeat(factor, axis=1)


def shrunk(picture: Picture, longest: int) -> Picture:
    """Shrink the picture until neither side is longer than `longest` pixels.

    Args:
        picture: Uint8 (h w 3).
        longest: Pixels.

    Returns:
        The picture, or the same where it is small.
    """
    factor = longest / max(picture.shape[:2])
    height, width = (max(1, round(side * factor)) for side in picture.shape[:2])
    return resize(picture, height, width) if factor < 1 else picture


def save(picture: Picture, path: str | PathLike[str], quality: int = 88) -> None:
    """Save as PNG or JPEG, by the path's ending; a PNG quickly rather than as small as can be.

    Args:
        picture: Uint8 (h w 3).
        path: The file.
        quality: Of a JPEG, 1 to 95; below 85 its colours have half the resolution.
    """
    subsampling = 0 if quality >= 85 else 2  # 4:4:4, 4:2:0
    with replacing(path) as file:
        Image.fromarray(picture).save(
            file, compress_level=4, quality=quality, subsampling=subsampling
        )


def save_within(picture: Picture, path: str | PathLike[str], most: int) -> Picture:
    """Save as the largest JPEG of at most `most` bytes.

    A picture that is too large even at 80 pixels is saved at 80.

    Args:
        picture: Uint8 (h w 3).
        path: The file.
        most: Bytes.

    Returns:
        The picture at the size that was saved.

    Examples:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import numpy as np
        >>> from vision_attn import render
        >>> noise = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
        >>> with TemporaryDirectory() as folder:
        ...     small = render.save_within(noise, Path(folder, "noise.jpg"), 9000)
        ...     Path(folder, "noise.jpg").stat().st_size <= 9000 and small.shape < noise.shape
        True
    """
    for side, quality in product(SIDES, QUALITIES):
        small, data = shrunk(picture, side), BytesIO()
        Image.fromarray(small).save(data, "JPEG", quality=quality, optimize=True)
        if data.tell() <= most:
            break
    with replacing(path) as file:
        file.write_bytes(data.getvalue())
    return small


def thumbnail(
    picture: Picture, path: str | PathLike[str], most: int | None = None, *, alone: bool = False
) -> Picture:
    """Save what a page shows of a picture as a JPEG of 400 pixels.

    Args:
        picture: Uint8 (h w 3).
        path: The file.
        most: How many bytes it may take; it is shrunk until it does.
        alone: It is all that there is of the picture, and so it is saved somewhat larger.

    Returns:
        The picture at the size that was saved.

    Examples:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import numpy as np
        >>> from vision_attn import render
        >>> with TemporaryDirectory() as folder:
        ...     render.thumbnail(np.zeros((600, 800, 3), np.uint8), Path(folder, "a.jpg")).shape
        (300, 400, 3)
    """
    small = shrunk(picture, LARGE if alone else THUMB)
    if most is not None:
        return save_within(small, path, most)
    save(small, path, THUMB_QUALITY)
    return small


def mark(picture: Picture, x: float, y: float) -> Picture:
    """Draw a ring around a point, to mark a query.

    Args:
        picture: Uint8 (h w 3).
        x: From 0 to 1 of the width.
        y: From 0 to 1 of the height.

    Returns:
        A picture of the same size.

    Examples:
        >>> import numpy as np
        >>> from vision_attn import render
        >>> photo = np.zeros((40, 40, 3), np.uint8)
        >>> bool((render.mark(photo, 0.5, 0.5) != photo).any())
        True
    """
    height, width = picture.shape[:2]
    radius = max(4, round(min(height, width) / 45))
    line = max(1, radius // 3)
    at = (int(x * width), int(y * height))
    marked = picture.copy()
    for ring, colour in ((radius + line, 20), (radius - line, 20), (radius, 255)):
        cv2.circle(marked, at, ring, (colour,) * 3, line + (colour == 255), cv2.LINE_AA)
    return marked


def with_colorbar(picture: Picture, style: Style, scale: Scale) -> Picture:
    """Put the picture's colour bar in a white strip to the right; the picture itself is untouched.

    Args:
        picture: Uint8 (h w 3).
        style: How the map was painted.
        scale: What its full colour stands for.

    Returns:
        A picture as high, and wider.

    Examples:
        >>> import numpy as np
        >>> from vision_attn import render
        >>> photo, scale = np.zeros((60, 80, 3), np.uint8), render.Scale(top=3.0, unit="× uniform")
        >>> picture = render.with_colorbar(photo, render.ColorMap(), scale)
        >>> picture.shape[0] >= 60, picture.shape[1] > 80
        (True, True)
    """
    height, width = picture.shape[:2]
    size = pad = round(min(max(height / 26, 12), 48))
    labels = ticks(scale)
    texts = [scale.unit, *(text for _, text in labels)]
    font = pil_font("".join(texts), size)
    first = round(3.5 * pad) if scale.unit else 2 * pad  # the bar's first row
    length = max(height - first - 2 * pad, 8 * size)
    wide = round(3.4 * pad + max(font.getlength(text) for text in texts))
    strip = Image.new("RGB", (wide, first + length + 2 * pad), PAPER)
    upright = Image.fromarray(bar(style, scale, length, pad)).rotate(90, expand=True)
    strip.paste(upright, (pad, first))
    draw = ImageDraw.Draw(strip)
    draw.text((pad, pad), scale.unit, INK, font)
    for value, text in labels:
        y = first + length - 1 - round((length - 1) * place(value, scale))
        draw.line([(2 * pad, y), (2 * pad + pad // 3, y)], INK, max(1, size // 14))
        draw.text((2 * pad + 0.6 * size, y), text, INK, font, anchor="lm")
    whole = np.full((max(height, strip.height), width + wide, 3), PAPER, np.uint8)
    whole[:height, :width] = picture
    whole[: strip.height, width:] = np.asarray(strip)
    return whole


def with_caption(picture: Picture, text: str, size: int | None = None) -> Picture:
    """Put a line of text in a white strip below the picture, on several lines where it is narrow.

    The picture itself is untouched; without text nothing is added.

    Args:
        picture: Uint8 (h w 3).
        text: The line.
        size: Of the letters, in pixels; None takes that of `with_colorbar`.

    Returns:
        A picture as wide, and higher.

    Examples:
        >>> import numpy as np
        >>> from vision_attn import render
        >>> photo = np.zeros((60, 80, 3), np.uint8)
        >>> render.with_caption(photo, "random weights").shape[0] > 60
        True
        >>> render.with_caption(photo, "") is photo
        True
    """
    if not text:
        return picture
    height, width = picture.shape[:2]
    size = size or round(min(max(height / 26, 12), 48))
    pad = size // 2
    lines = wrapped(text, size, width - 2 * pad)
    strip = Image.new("RGB", (width, len(lines) * round(1.4 * size) + pad), PAPER)
    draw = ImageDraw.Draw(strip)
    for number, line in enumerate(lines):
        draw.text((pad, pad + number * round(1.4 * size)), line, WARNING, pil_font(line, size))
    return np.concatenate([picture, np.asarray(strip)])


def bar(style: Style, scale: Scale, length: int, thickness: int) -> Picture:
    """Paint the scale from its low end to its top, left to right, as on a grey photo.

    length, thickness: in pixels.
    """
    heat = np.linspace(scale.low / scale.top, 1, length, dtype=np.float32)
    grey = np.full((thickness, length, 3), 112, np.uint8)
    return style.paint(grey, heat[None].repeat(thickness, axis=0))


def ticks(scale: Scale, most: int = 5) -> list[tuple[float, str]]:
    """Choose round values between the scale's ends, each with its label."""
    values = MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]).tick_values(scale.low, scale.top)
    inside = [v for v in values if -1e-6 <= place(v, scale) <= 1 + 1e-6]
    return [(v, _number(v)) for v in inside]


def _number(value: float) -> str:
    """Write a number in few signs: 0.25, −3, 2e−5."""
    mantissa, _, exponent = f"{value:z.4g}".partition("e")
    text = f"{mantissa}e{int(exponent)}" if exponent else mantissa
    return text.replace("-", "\N{MINUS SIGN}")


def place(value: float, scale: Scale) -> float:
    """Place a value on the colour bar, 0..1."""
    return (value - scale.low) / (scale.top - scale.low)
