"""Masks of photos: which file belongs to which photo, and which of its numbers are the object.

Axes: H, W a photo.
"""

import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path, PurePath
from typing import NamedTuple
from unicodedata import normalize

import cv2
import numpy as np
from jaxtyping import Bool, UInt8
from numpy import ndarray

from vision_attn.data.faults import ImageError
from vision_attn.data.images import images_below, open_image, turn_of

__all__ = ["BORDER", "OBJECTS", "Masks", "Regions", "read_mask", "regions_of"]

log = logging.getLogger(__name__)

BORDER = 255  # in a mask: neither object nor background, as in Pascal VOC
OBJECTS = 20  # in a mask: 1 to this are classes of objects, as in Pascal VOC
STRAY_SHARE = 20  # so many pixels of 255 for each of 1 to 20, at least, where these are stray
STRAY_PIXELS = 16  # that hang together, at most, where they are stray


class Regions(NamedTuple):
    """The pixels of the object, and those that count on neither side.

    Attributes:
        note: What was decided by evidence, in a sentence; else empty.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.data.masks import regions_of
        >>> regions = regions_of(np.array([[0, 3, 255]], np.uint8))
        >>> regions.inside, regions.ignored
        (array([[False,  True, False]]), array([[False, False,  True]]))
    """

    inside: Bool[ndarray, "H W"]
    ignored: Bool[ndarray, "H W"]
    note: str = ""


def regions_of(values: UInt8[ndarray, "H W"]) -> Regions:
    """Tell object, background and border by the numbers of a mask.

    0 is background. With 1 to 20, these are objects, and 255 is their border, which counts on
    neither side, as in Pascal VOC. With 255 alone, that is the object. Where numbers of 1 to 20 are
    stray, less than one for twenty pixels of 255 and nowhere 16 together, 255 is the object and
    they count on neither side. Raises ValueError for other numbers.
    """
    numbers = np.unique(values)
    strange = numbers[(numbers > OBJECTS) & (numbers < BORDER)]
    if strange.size:
        raise ValueError(
            f"the mask holds {', '.join(map(str, strange[:3]))}: expected 0 background, "
            f"1 to {OBJECTS} objects and {BORDER} border, or 0 and {BORDER} alone"
        )
    objects = (values > 0) & (values <= OBJECTS)
    white = values == BORDER
    if not objects.any():
        return Regions(white, objects)
    if white.any() and _stray(objects, white):
        count = int(objects.sum())
        pixels, they = ("pixel", "it counts") if count == 1 else ("pixels", "they count")
        return Regions(
            white,
            objects,
            f"{count} stray {pixels} of 1 to {OBJECTS} beside {int(white.sum())} of {BORDER}: "
            f"{BORDER} is taken as the object, and {they} on neither side",
        )
    return Regions(objects, white)


def _stray(objects: Bool[ndarray, "H W"], white: Bool[ndarray, "H W"]) -> bool:
    if objects.sum() * STRAY_SHARE >= white.sum():
        return False
    _, _, parts, _ = cv2.connectedComponentsWithStats(objects.astype(np.uint8), connectivity=8)
    return bool(parts[1:, cv2.CC_STAT_AREA].max() < STRAY_PIXELS)


def read_mask(
    path: Path,
    size: tuple[int, int],
    any_numbers: bool = False,
    photo: str | Path | None = None,
) -> Regions:
    """Read the mask of a photo.

    Args:
        path: The mask's file.
        size: (width, height) of the photo.
        any_numbers: Take colours and other numbers too: the object is what is not 0.
        photo: Its file. A mask whose sides are those of the photo before its EXIF orientation
            turned it upright is turned with it.

    Raises:
        ImageError: The file cannot be read, has another size than the photo, colours, or other
            numbers than `regions_of` takes.
    """
    with open_image(path) as image:
        if image.mode not in ("1", "L", "P") and not any_numbers:
            raise ImageError(
                f"{path}: expected a mask with one number per pixel (a grey or palette PNG), "
                f"got mode {image.mode}"
            )
        grey = image if image.mode in ("1", "L", "P") else image.convert("L")
        if photo is not None and grey.size == size[::-1] != size:
            turn = turn_of(photo)
            grey = grey if turn is None else grey.transpose(turn)
        values = np.asarray(grey).astype(np.uint8)
    if values.shape != size[::-1]:
        raise ImageError(
            f"{path}: the mask is {values.shape[1]} x {values.shape[0]}, its image {size[0]} x "
            f"{size[1]}: save it at the image's size"
        )
    try:
        regions = regions_of(values)
    except ValueError as error:
        if not any_numbers:
            raise ImageError(f"{path}: {error}") from None
        return Regions(values > 0, np.zeros_like(values, bool))
    if regions.note:
        _say_once(f"{path}: {regions.note}")
    return regions


@lru_cache(4096)
def _say_once(line: str) -> None:
    log.warning("%s", line)


class Masks:
    """The masks in a folder, by the photos that they belong to.

    A mask lies below its folder as the photo does below its own, with the same stem and any suffix:
    masks/circle/1.png is that of images/circle/1.jpg. A photo that is named itself has the mask of
    its name, or of more of its path. Where two masks would belong to a photo, or two photos to a
    mask, none of them does.

    Args:
        folder: The folder of the masks.
        photos: Each photo's file, with its path below the folder in which it was found.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from vision_attn.data.masks import Masks
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("L", (4, 4)).save(f"{folder}/cat.2.png")
        ...     masks = Masks(Path(folder), {"in/cat.jpg": "cat.jpg", "in/cat.2.jpg": "cat.2.jpg"})
        ...     masks.of("in/cat.jpg"), masks.of("in/cat.2.jpg").name
        (None, 'cat.2.png')
    """

    def __init__(self, folder: Path, photos: Mapping[str, str]) -> None:
        self.folder = folder
        masks: dict[str, list[Path]] = defaultdict(list)
        own = {os.path.realpath(photo) for photo in photos}
        for file in images_below(folder, quiet=True):
            if os.path.realpath(file) not in own:
                masks[stem_key(file.relative_to(folder))].append(file)
        self._keys: dict[str, str] = {}
        takers: dict[str, list[str]] = defaultdict(list)
        for photo, below in photos.items():
            key = next((key for key in _keys(photo, below) if key in masks), None)
            if key is not None:
                self._keys[photo] = key
                takers[key].append(photo)
        self._masks = {key: files[0] for key, files in masks.items() if len(files) == 1}
        self._refused: dict[str, str] = {}
        for key, several in takers.items():
            if len(masks[key]) > 1:
                why = f"{len(masks[key])} masks for this image ({_some(masks[key])}): leave one"
            elif len(several) > 1:
                why = f"{masks[key][0]} would be the mask of {len(several)} images "
                why += f"({_some(several)}): give each one of its own"
            else:
                continue
            self._refused |= dict.fromkeys(several, why)

    @property
    def problems(self) -> list[str]:
        """A line for each photo whose mask is refused."""
        return [f"{photo}: {why}" for photo, why in self._refused.items()]

    def __len__(self) -> int:
        """How many photos have a mask, or several."""
        return len(self._keys)

    def of(self, photo: str | Path) -> Path | None:
        """Find the mask of a photo; None where it has none, or not one alone."""
        key = self._keys.get(str(photo))
        return None if key is None or str(photo) in self._refused else self._masks[key]

    def refusal(self, photo: str | Path) -> str:
        """Say why the mask of a photo is refused; empty where it is not."""
        return self._refused.get(str(photo), "")

    def __str__(self) -> str:
        return str(self.folder)


def stem_key(path: PurePath) -> str:
    """A path without its suffix, the same for each way to write its letters."""
    return normalize("NFC", path.with_suffix("").as_posix())


def _keys(photo: str, below: str) -> Iterable[str]:
    """What the mask of a photo may be called: by all of its path first, at last by `below`."""
    parts, least = Path(os.path.abspath(photo)).parts[1:], len(PurePath(below).parts)
    for length in range(len(parts), least, -1):
        yield stem_key(PurePath(*parts[-length:]))
    yield stem_key(PurePath(below))


def _some(files: Sequence[str | Path]) -> str:
    return ", ".join(map(str, files[:3])) + (", ..." if len(files) > 3 else "")
