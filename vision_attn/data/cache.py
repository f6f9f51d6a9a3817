"""Image files decoded once: their pixels in one flat file, mapped into memory ever after.

A cache is a folder with `pixels.bin`, which only grows, and `index.jsonl`, one line for each image:
its name, the file's size and time of change, where its pixels lie, and a CRC-32 of the line and of
the pixels. A line is written when its pixels are on the disk, so a build that is killed goes on
where it stopped. A file whose size or time changed is decoded anew, and so is an image whose line
or pixels do not match their checksum; all are checked once, when the cache is loaded. A lock lets
one process build while the others wait.

Axes: n images, h height, w width.
"""

import json
import logging
import os
import sys
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

import numpy as np
from filelock import FileLock
from jaxtyping import Integer, UInt8
from rich.console import Console
from rich.progress import track

from vision_attn.compat.native_stderr import native_stderr_dropped
from vision_attn.cores import usable_cores
from vision_attn.data.images import ImageError
from vision_attn.data.photos import FilePhotos, Photos
from vision_attn.data.sources import DataError

__all__ = ["CachedFile", "CachedPixels", "PixelCache"]

log = logging.getLogger(__name__)

CHUNK = 64  # images decoded between two writes, or checked at once


@dataclass(frozen=True)
class CachedFile:
    """A line of the index: the file as it was, its pixels in pixels.bin, and their checksum.

    Examples:
        >>> from vision_attn.data.cache import CachedFile
        >>> record = CachedFile("a.png", bytes=300, changed=17, offset=100, height=4, width=5)
        >>> record.end  # where its pixels end in pixels.bin
        160
    """

    name: str
    bytes: int
    changed: int
    offset: int = 0
    height: int = 0
    width: int = 0
    checksum: int = 0

    @classmethod
    def read(cls, line: str) -> "CachedFile | None":
        """The record of a line of the index, or None where it is not one: cut, damaged or older."""
        try:
            name, *numbers = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            return None
        plain = all(type(number) is int and number >= 0 for number in numbers)
        if not isinstance(name, str) or not plain or len(numbers) != len(fields(cls)) - 1:
            return None
        return cls(name, *numbers)

    @property
    def end(self) -> int:
        """The place in pixels.bin after the image's last byte."""
        return self.offset + self.height * self.width * 3

    def checksum_with(self, pixels: UInt8[np.ndarray, " total"]) -> int:
        """CRC-32 of all the other fields and of the image's pixels."""
        return zlib.crc32(pixels.data, zlib.crc32(_line(replace(self, checksum=0)).encode()))

    def is_whole(self, pixels: UInt8[np.ndarray, " total"]) -> bool:
        """Whether line and pixels are those that were written; `pixels` is all of pixels.bin."""
        return self.checksum == self.checksum_with(pixels[self.offset : self.end])

    def is_of(self, file: "CachedFile") -> bool:
        """Whether the file is still the one that was decoded."""
        return (self.bytes, self.changed) == (file.bytes, file.changed)


@dataclass(frozen=True, eq=False)
class CachedPixels:
    """Pixels of n images, each of a size of its own.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.data.cache import CachedPixels
        >>> pixels, one = np.zeros(36, np.uint8), np.array([0, 12])
        >>> photos = CachedPixels(pixels, one, heights=np.array([2, 2]), widths=np.array([2, 4]))
        >>> photos.chosen(np.array([1])).widths
        array([4])
    """

    pixels: UInt8[np.ndarray, " total"]
    offsets: Integer[np.ndarray, " n"]
    heights: Integer[np.ndarray, " n"]
    widths: Integer[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, i: int) -> UInt8[np.ndarray, "h w 3"]:
        height, width = self.heights[i], self.widths[i]
        flat = self.pixels[self.offsets[i] : self.offsets[i] + height * width * 3]
        return flat.reshape(height, width, 3)

    def chosen(self, items: Integer[np.ndarray, " m"]) -> "CachedPixels":
        """Choose some of the images; the pixels are not copied."""
        return CachedPixels(
            self.pixels, self.offsets[items], self.heights[items], self.widths[items]
        )


class PixelCache:
    """The cache in `folder`, of images reduced to `shorter_side`; smaller ones stay.

    Raises:
        OSError: It cannot be written.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from vision_attn.data.cache import PixelCache
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("RGB", (40, 20)).save(f"{folder}/a.png")
        ...     cache = PixelCache(Path(folder, "cache"), shorter_side=10)
        ...     photos, unreadable = cache.load(Path(folder), ["a.png"])
        >>> photos.heights, photos.widths
        (array([10]), array([20]))
    """

    def __init__(self, folder: Path, shorter_side: int) -> None:
        self.folder = folder
        self.shorter_side = shorter_side
        self._pixels, self._index = folder / "pixels.bin", folder / "index.jsonl"

    def load(self, folder: Path, names: Sequence[str]) -> tuple[CachedPixels, dict[int, str]]:
        """The images `names` below `folder`; those that are not in the cache yet are decoded.

        With them, by its place in `names`, what is wrong with each one that cannot be read: its
        size is 0 x 0. Such a file is tried again the next time.
        """
        return self.load_photos(FilePhotos(folder, names))

    def load_photos(self, photos: Photos) -> tuple[CachedPixels, dict[int, str]]:
        """Load as `load` does, from wherever the photos lie.

        Raises:
            DataError: Different photos have one name, as they would share their pixels.
        """
        names = photos.cached_as()
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / "lock"):
            records, errors = self._records(), {}
            files = [CachedFile(name, *photos.stamp(item)) for item, name in enumerate(names)]
            _check_names(files)
            intact = [f.name for f in files if f.name in records and records[f.name].is_of(f)]
            whole = set(intact) - self._damaged([records[name] for name in intact])
            stale = [file for file in files if file.name not in whole]
            if stale:
                errors = self._build(photos, names, stale, records)
        table = np.zeros((len(names), 3), np.int64)
        for row, name in zip(table, names, strict=True):
            if name not in errors:
                row[:] = records[name].offset, records[name].height, records[name].width
        pixels = np.empty(0, np.uint8)
        if table.any():
            pixels = np.asarray(np.memmap(self._pixels, np.uint8, "r"))
        wrong = {index: errors[name] for index, name in enumerate(names) if name in errors}
        return CachedPixels(pixels, *table.T), wrong

    def _records(self) -> dict[str, CachedFile]:
        """What the cache holds. It starts afresh where most of pixels.bin is out of date."""
        records: dict[str, CachedFile] = {}
        if not (self._index.exists() and self._pixels.exists()):
            return records
        written = self._pixels.stat().st_size
        for line in self._index.read_text("utf-8", errors="replace").split("\n"):
            record = CachedFile.read(line)
            if record and record.end <= written:
                records[record.name] = record
        used = sum(record.end - record.offset for record in records.values())
        if used * 2 < written:
            with suppress(PermissionError):  # Windows keeps a file that is mapped
                self._pixels.unlink()  # elsewhere, whoever has it mapped keeps it
                records.clear()
        return records

    def _damaged(self, records: list[CachedFile]) -> set[str]:
        """The names of those whose line or pixels are not what was written."""
        if not records:
            return set()
        pixels = np.asarray(np.memmap(self._pixels, np.uint8, "r"))

        def among(chunk: list[CachedFile]) -> list[str]:
            return [record.name for record in chunk if not record.is_whole(pixels)]

        in_order = sorted(records, key=lambda record: record.offset)
        chunks = [in_order[i : i + CHUNK] for i in range(0, len(in_order), CHUNK)]
        with ThreadPoolExecutor(usable_cores()) as pool:
            damaged = {name for names in pool.map(among, chunks) for name in names}
        if damaged:
            log.warning(
                "%s: %d images of this cache are damaged (the first: %s) and are decoded again",
                *(self.folder, len(damaged), min(damaged)),
            )
        return damaged

    @property
    def bytes(self) -> int:
        """How many bytes of pixels there are already."""
        return self._pixels.stat().st_size if self._pixels.is_file() else 0

    def _build(
        self,
        photos: Photos,
        names: Sequence[str],
        stale: list[CachedFile],
        records: dict[str, CachedFile],
    ) -> dict[str, str]:
        """Decodes the stale files, adds them to the records, and gives the errors by name."""
        errors: dict[str, str] = {}
        wanted = {file.name for file in stale}
        items = {name: item for item, name in enumerate(names) if name in wanted}
        for file in stale:
            records.pop(file.name, None)
        fresh = self._index.with_suffix(".new")
        fresh.write_text("".join(map(_line, records.values())), "utf-8")
        fresh.replace(self._index)
        with (
            native_stderr_dropped(),
            ThreadPoolExecutor(usable_cores()) as pool,
            self._pixels.open("ab") as pixels,
            self._index.open("a", encoding="utf-8") as index,
        ):
            end = pixels.seek(0, os.SEEK_END)  # what lies before it may be mapped somewhere
            for chunk in _progress([stale[i : i + CHUNK] for i in range(0, len(stale), CHUNK)]):
                decoded = pool.map(lambda file: self._decode(photos, items[file.name]), chunk)
                lines = []
                for file, image in zip(chunk, decoded, strict=True):
                    if isinstance(image, str):
                        errors[file.name] = image
                        continue
                    pixels.write(image.tobytes())
                    height, width = image.shape[:2]
                    record = replace(file, offset=end, height=height, width=width)
                    record = replace(record, checksum=record.checksum_with(image.ravel()))
                    end = record.end
                    records[file.name] = record
                    lines.append(_line(record))
                pixels.flush()
                os.fsync(pixels.fileno())
                index.writelines(lines)
                index.flush()
        return errors

    def _decode(self, photos: Photos, item: int) -> UInt8[np.ndarray, "h w 3"] | str:
        """The reduced image, or what is wrong with the file."""
        try:
            return photos.pixels(item, self.shorter_side)
        except ImageError as error:
            return str(error)


def _check_names(files: list[CachedFile]) -> None:
    """Raise DataError where files of one name are not the same."""
    firsts: dict[str, CachedFile] = {}
    for file in files:
        first = firsts.setdefault(file.name, file)
        if not first.is_of(file):
            raise DataError(
                f"{file.name}: expected one photo of this name, got two, of {first.bytes} and "
                f"{file.bytes} bytes: rename one of them, or use storage: stream"
            )


def _line(record: CachedFile) -> str:
    return json.dumps(astuple(record)) + "\n"


def _progress(chunks: list[list[CachedFile]]) -> Iterable[list[CachedFile]]:
    return track(
        chunks,
        f"decoding {sum(map(len, chunks))} images",
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
