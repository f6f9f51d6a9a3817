"""Encoded photos by number, wherever they lie: in files, in the rows of a table, in tar shards.

Axes: n photos, m of them, h height, w width.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import overload

import numpy as np
from jaxtyping import Int64, Integer, UInt8
from PIL import Image

from vision_attn.data.faults import sample_errors
from vision_attn.data.images import open_image, read_image
from vision_attn.data.jpeg import jpeg_bytes, plain_jpeg
from vision_attn.data.ranges import ValueRange
from vision_attn.data.sources import DataError

__all__ = ["ChosenPhotos", "FilePhotos", "Names", "Photos"]


class Names(Sequence[str]):
    """Many strings in two arrays: a tenth of what a list takes, and shared by forked processes.

    Examples:
        >>> from vision_attn.data.photos import Names
        >>> names = Names(["cat/1.jpg", "dog/été.jpg"])
        >>> names[1], len(names)
        ('dog/été.jpg', 2)
    """

    def __init__(self, names: Iterable[str]) -> None:
        ends, parts, total = [0], [], 0
        for name in names:
            part = name.encode(errors="surrogateescape")
            total += len(part)
            parts.append(part)
            ends.append(total)
        self._text: UInt8[np.ndarray, " bytes"] = np.frombuffer(b"".join(parts), np.uint8)
        self._ends: Int64[np.ndarray, " n"] = np.array(ends, np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, item: int) -> str: ...
    @overload
    def __getitem__(self, item: slice) -> list[str]: ...
    def __getitem__(self, item: int | slice) -> str | list[str]:
        if isinstance(item, slice):
            return [self[index] for index in range(*item.indices(len(self)))]
        index = range(len(self))[item]
        part = self._text[self._ends[index] : self._ends[index + 1]]
        return part.tobytes().decode(errors="surrogateescape")


class Photos(ABC):
    """Encoded photos, decoded one at a time; they can be sent to other processes.

    Attributes:
        names: Of each photo, for messages and lists.
        value_range: The numbers that are black and white in them; see `read_image`.

    Examples:
        >>> from vision_attn.data.photos import Photos
        >>> sorted(Photos.__abstractmethods__)  # what a subclass has to say
        ['read', 'side', 'stamp']
    """

    names: Sequence[str]
    value_range: ValueRange | None = None

    def __len__(self) -> int:
        return len(self.names)

    @abstractmethod
    def read(self, item: int, shorter_side: int | None = None) -> Image.Image:
        """Decode a photo as `read_image` does.

        Args:
            item: The photo's number.
            shorter_side: What its shorter side may be reduced to, in pixels; None: all of it.

        Raises:
            ImageError: Whatever is wrong with it.
        """

    def jpeg(self, item: int) -> bytes | None:
        """Read the bytes of a photo that may be a JPEG; None where another way is better."""
        return None

    def pixels(self, item: int, shorter_side: int) -> UInt8[np.ndarray, "h w 3"]:
        """Decode a photo.

        Plain JPEGs are decoded by `plain_jpeg`, all else by `read`: the same pixels.

        Args:
            item: The photo's number.
            shorter_side: What its shorter side is reduced to, in pixels; smaller ones stay.

        Raises:
            ImageError: Whatever is wrong with a photo.
            DataError: Something is wrong with the whole set.
        """
        with sample_errors(self.names[item], passing=(DataError,)):
            data = self.jpeg(item) if self.value_range is None else None
            decoded = None if data is None else plain_jpeg(data, shorter_side)
            if decoded is not None and min(decoded.shape[:2]) <= shorter_side:
                return decoded
            image = self.read(item, shorter_side) if decoded is None else Image.fromarray(decoded)
            scale = shorter_side / min(image.size)
            if scale < 1:
                width, height = (max(1, round(side * scale)) for side in image.size)
                image = image.resize((width, height), Image.Resampling.BILINEAR)
            return np.asarray(image)

    @abstractmethod
    def side(self, item: int) -> tuple[int, int]:
        """Width and height of a photo as it is stored, without decoding.

        Raises:
            ImageError: Whatever is wrong with it.
        """

    @abstractmethod
    def stamp(self, item: int) -> tuple[int, int]:
        """Two numbers that change when the photo does: bytes and time. Zeros where it is gone."""

    def cached_as(self) -> Sequence[str]:
        """Name each photo for the cache, as no other one of the set: its name, or more of it."""
        return self.names

    def chosen(self, items: Integer[np.ndarray, " m"]) -> "Photos":
        """Choose some of the photos, in this order; nothing is read."""
        return ChosenPhotos(self, items)


class FilePhotos(Photos):
    """Photos in files, named from a folder.

    Examples:
        >>> from pathlib import Path
        >>> from vision_attn.data.photos import FilePhotos
        >>> FilePhotos(Path("photos"), ["cat/1.jpg"]).stamp(0)  # it is not there
        (0, 0)
    """

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self.folder = folder
        self.names = names if isinstance(names, Names) else Names(names)

    def read(self, item: int, shorter_side: int | None = None) -> Image.Image:
        return read_image(self.folder / self.names[item], shorter_side, self.value_range)

    def jpeg(self, item: int) -> bytes | None:
        return jpeg_bytes(self.folder / self.names[item])

    def side(self, item: int) -> tuple[int, int]:
        with open_image(self.folder / self.names[item]) as image:
            return image.size

    def stamp(self, item: int) -> tuple[int, int]:
        try:
            file = (self.folder / self.names[item]).stat()
        except OSError:
            return 0, 0  # reading it will say what is wrong
        return file.st_size, file.st_mtime_ns


class ChosenPhotos(Photos):
    """Some of other photos, in an order of their own.

    Examples:
        >>> import numpy as np
        >>> from pathlib import Path
        >>> from vision_attn.data.photos import FilePhotos
        >>> FilePhotos(Path("photos"), ["a.jpg", "b.jpg"]).chosen(np.array([1])).names[0]
        'b.jpg'
    """

    def __init__(self, photos: Photos, items: Integer[np.ndarray, " m"]) -> None:
        self.photos, self.items = photos, np.asarray(items)
        self.names = _ChosenNames(photos.names, self.items)

    def read(self, item: int, shorter_side: int | None = None) -> Image.Image:
        return self.photos.read(int(self.items[item]), shorter_side)

    def jpeg(self, item: int) -> bytes | None:
        return self.photos.jpeg(int(self.items[item]))

    def side(self, item: int) -> tuple[int, int]:
        return self.photos.side(int(self.items[item]))

    def stamp(self, item: int) -> tuple[int, int]:
        return self.photos.stamp(int(self.items[item]))

    @property
    def value_range(self) -> ValueRange | None:
        return self.photos.value_range

    @value_range.setter
    def value_range(self, value_range: ValueRange | None) -> None:
        self.photos.value_range = value_range

    def cached_as(self) -> Sequence[str]:
        return _ChosenNames(self.photos.cached_as(), self.items)

    def chosen(self, items: Integer[np.ndarray, " m"]) -> Photos:
        return ChosenPhotos(self.photos, self.items[items])


class _ChosenNames(Sequence[str]):
    def __init__(self, names: Sequence[str], items: Integer[np.ndarray, " m"]) -> None:
        self._names, self._items = names, items

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, item: int) -> str: ...
    @overload
    def __getitem__(self, item: slice) -> list[str]: ...
    def __getitem__(self, item: int | slice) -> str | list[str]:
        if isinstance(item, slice):
            return [self._names[int(index)] for index in self._items[item]]
        return self._names[int(self._items[item])]
