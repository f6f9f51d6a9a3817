"""Where evidence lies, as people write it down: masks, and boxes.json.

Axes: H, W a photo.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
from jaxtyping import Bool
from numpy import ndarray

from vision_attn.data.images import ImageError

BORDER = 255  # in a mask: neither object nor background, as in Pascal VOC
OBJECTS = 20  # in a mask: 1 to this are classes of objects, as in Pascal VOC


def read_mask(
    path: Path, size: tuple[int, int]
) -> tuple[Bool[ndarray, "H W"], Bool[ndarray, "H W"]]:
    """The pixels of the object and those of its border; ImageError for anything else.

    size: (width, height) of the photo.
    """
    try:
        with PIL.Image.open(path) as image:
            if image.mode not in ("1", "L", "P"):
                raise ImageError(
                    f"{path}: expected a mask with one number a pixel (a grey or palette PNG), "
                    f"got mode {image.mode}"
                )
            values = np.asarray(image).astype(np.uint8)
    except (OSError, SyntaxError) as error:
        raise ImageError(f"{path}: the mask cannot be read ({error})") from None
    if values.shape != size[::-1]:
        raise ImageError(
            f"{path}: the mask is {sides(values.shape[::-1])}, its image {sides(size)}: "
            "save it at the image's size"
        )
    found = np.unique(values)
    strange = found[(found > OBJECTS) & (found < BORDER)]
    if strange.size:
        raise ImageError(
            f"{path}: the mask holds {', '.join(map(str, strange[:3]))}: expected 0 background, "
            f"1 to {OBJECTS} objects and {BORDER} border, or 0 and {BORDER} alone"
        )
    objects = (values > 0) & (values <= OBJECTS)
    border = values == BORDER
    inside, border = (objects, border) if objects.any() else (border, objects)
    if not inside.any():
        raise ImageError(f"{path}: the object is absent: the mask is 0 everywhere")
    if (inside | border).all():
        raise ImageError(f"{path}: no background: no pixel of the mask is 0")
    return inside, border


def read_boxes(path: Path) -> list[dict[str, Any]]:
    """The entries of a boxes.json."""
    expected = 'expected {"images": [{"file": ..., "boxes": [[left, top, right, bottom], ...]}]}'
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["images"]
        if not all(isinstance(e["file"], str) and isinstance(e["boxes"], list) for e in entries):
            raise TypeError("a file or its boxes are of another kind")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {expected} ({type(error).__name__}: {error})") from None
    if not entries:
        raise ValueError(f"{path}: no image in it: {expected}")
    return entries


def sides(size: Sequence[int]) -> str:
    """(width, height) in words."""
    return f"{size[0]} x {size[1]}"
