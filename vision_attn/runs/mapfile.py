"""Maps of one method in one file: a .npy that grows at its end, read as a memory map.

Axes: n maps, h, w a map.
"""

import io
import os
import re
from collections.abc import Sequence
from math import frexp
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from vision_attn.errors import quoted
from vision_attn.files import naming
from vision_attn.runs.naming import label

__all__ = ["MapFile", "map_crc", "map_name", "open_maps", "packed", "saved_map"]

LARGEST, SMALLEST = 2.0**15, 2.0**-10  # of a map's largest value, for float16 to hold it as it is
HEADER = 128  # bytes of a header with room for any number of maps
# What `_write_header` writes. numpy's own reader takes more, and raises what Python's parser does.
FIRST = re.compile(
    rb"\x93NUMPY\x01\x00v\x00\{'descr': '(<f[24])', 'fortran_order': False, "
    rb"'shape': \(\d+, (\d{1,9}), (\d{1,9})\), \} *\n"
)

# What `numpy.save` writes of a map, or of a film's.
SAVED = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '[<>]f[248]', 'fortran_order': (?:True|False), "
    rb"'shape': \((?:[1-9]\d*, ){1,2}[1-9]\d*\), \} *\n",
    re.DOTALL,
)


def map_name(method: str, shard: tuple[int, int]) -> str:
    """Name the file of a method's maps, from the results' folder."""
    number, shards = shard
    return f"maps/{label(method)}.{number}-of-{shards}.npy"


def packed(values: Float[ndarray, "h w"]) -> tuple[Float[ndarray, "h w"], int]:
    """Write a map as float16 times a power of two; return both, the latter as its exponent.

    The exponent is 0 wherever float16 holds the map as it is. Each value is right to 2^-11 of
    itself, or to 2^-24 of the largest.
    """
    largest = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
    exponent = 0
    if largest > LARGEST or 0 < largest < SMALLEST:
        exponent = frexp(largest)[1] - 1
    return (values / np.float32(2.0**exponent)).astype(np.float16), exponent


class MapFile:
    """Maps of one shape and type, written one by one; a slot that no row uses is written again.

    rows: how many maps the file holds, whatever its header says.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from vision_attn.runs.mapfile import MapFile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     maps = MapFile(Path(folder, "Rollout.npy"), (2, 2), np.dtype("<f2"))
        ...     slots = maps.write([np.full((2, 2), 0.25, np.float16)])
        ...     maps.sync()
        ...     maps.close()
        ...     slots, np.load(maps.path).tolist()
        ([0], [[[0.25, 0.25], [0.25, 0.25]]])
    """

    def __init__(self, path: Path, shape: tuple[int, int], dtype: "np.dtype[Any]"):
        self.path, self.shape, self.dtype = path, shape, dtype
        self._bytes = dtype.itemsize * shape[0] * shape[1]
        self._free: list[int] = []
        self._dirty = False
        with naming(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            new = not path.exists()
            self._file = path.open("x+b" if new else "r+b", buffering=0)
            try:
                size = self._file.seek(0, os.SEEK_END)
                self.rows = max(0, size - HEADER) // self._bytes
                if size < HEADER:
                    self._write_header()
            except BaseException:
                self._file.close()
                if new:
                    path.unlink()
                raise

    def free(self, used: Sequence[int]) -> None:
        """Say which slots rows refer to; the others may be written again."""
        self._free = sorted(set(range(self.rows)) - set(used))

    def write(self, maps: Sequence[Float[ndarray, "h w"]]) -> list[int]:
        """Write maps and return their slots.

        Raises:
            ValueError: A map has another shape.
            OSError: They cannot be written; then none of them is kept.
        """
        for values in maps:
            if values.shape != self.shape:
                raise ValueError(
                    f"{self.path.name}: expected a map of {self.shape}, as for the photos before, "
                    f"got {values.shape}"
                )
        content = [values.astype(self.dtype, copy=False).tobytes() for values in maps]
        again, new = content[: len(self._free)], content[len(self._free) :]
        slots = self._free[: len(again)] + list(range(self.rows, self.rows + len(new)))
        with naming(self.path):
            for slot, one_map in zip(slots, again, strict=False):
                self._write_at(HEADER + slot * self._bytes, one_map)
            try:
                self._write_at(HEADER + self.rows * self._bytes, b"".join(new))
            except OSError:
                self._file.truncate(HEADER + self.rows * self._bytes)
                raise
        del self._free[: len(again)]
        self.rows += len(new)
        self._dirty = True
        return slots

    def sync(self) -> None:
        """Bring what was written to the disk, the number of maps in the header too."""
        if self._dirty:
            with naming(self.path):
                self._write_header()
                os.fsync(self._file.fileno())
            self._dirty = False

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write_header(self) -> None:
        header = {"descr": self.dtype.str, "fortran_order": False}
        text = io.BytesIO()
        np.lib.format.write_array_header_1_0(text, header | {"shape": (self.rows, *self.shape)})
        assert len(text.getvalue()) == HEADER
        self._write_at(0, text.getvalue())

    def _write_at(self, offset: int, content: bytes) -> None:
        self._file.seek(offset)
        left = memoryview(content)
        while left:
            left = left[self._file.write(left) :]


def open_maps(path: Path) -> Float[ndarray, "n h w"]:
    """Map a file of maps into memory; how many there are is known by the file's size.

    Raises ValueError where it is not there, or is no such file.
    """
    try:
        with path.open("rb") as file:
            found = FIRST.fullmatch(file.read(HEADER))
            size = file.seek(0, os.SEEK_END)
        if found is None:
            raise ValueError("not a file of maps")
        dtype, shape = np.dtype(found[1].decode()), (int(found[2]), int(found[3]))
        each = dtype.itemsize * shape[0] * shape[1]
        if each < 1:
            raise ValueError("maps of no pixels")
        rows = (size - HEADER) // each
        if not rows:
            return np.empty((0, *shape), dtype)
        return np.memmap(path, dtype, "r", HEADER, (rows, *shape))
    except FileNotFoundError:
        raise ValueError(f"{path}: this file of maps is not there") from None
    except (OSError, ValueError, OverflowError) as error:
        raise ValueError(f"{path}: damaged ({error})") from None


def saved_map(path: Path) -> Float[ndarray, "*frames h w"]:
    """Map a .npy of a photo's map, or of a film's, into memory.

    Raises ValueError where it is no such file.
    """
    try:
        with path.open("rb") as file:
            if not SAVED.match(file.read(HEADER)):
                raise ValueError("not a map as numpy saves it")
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, OverflowError) as error:
        raise ValueError(f"{path}: damaged ({quoted(str(error))})") from None


def map_crc(values: Float[ndarray, "h w"]) -> int:
    """Compute the CRC-32 of a map as it lies in its file, of its type and shape too."""
    kind = f"{values.dtype.str} {values.shape}".encode()
    return crc32(np.ascontiguousarray(values).data, crc32(kind))
