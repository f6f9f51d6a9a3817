"""The results of very many photos in a handful of files, taken up again where they stopped.

    about.json                  the model's classes and preprocessing, and what was asked
    maps/METHOD.I-of-N.npy      raw maps of shard I, float16 (photos, h, w); row r is photo
                                number I - 1 + r * N
    results.I-of-N.jsonl        a line a photo of shard I, as they come
    results.jsonl               a line for each photo and method, once all shards are done
    results.parquet             the same in columns, where pyarrow is installed

A line is written when its maps are on the disk. A run that was stopped or killed goes on with the
photos that have no line yet; a line that is cut or damaged does not count.

Axes: h, w a map.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import frexp
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from jaxtyping import Float, Float16
from numpy import ndarray

from vision_attn.files import append_text, naming, replacing
from vision_attn.runs.columns import write_parquet
from vision_attn.runs.entries import as_line
from vision_attn.runs.naming import label

__all__ = ["Found", "Ledger", "MapFile", "map_name", "packed"]

LARGEST, SMALLEST = 2.0**15, 2.0**-10  # of a map's largest value, for float16 to hold it as it is


@dataclass(frozen=True)
class Found:
    """What was found of one photo: a record for each method, and the maps that are kept.

    place: the photo's number among all, from 0. maps: by the names of their files in `Ledger.maps`.

    Examples:
        >>> from vision_attn.runs.ledger import Found
        >>> Found(0, "a.png", [{"method": "Rollout"}]).maps
        {}
    """

    place: int
    file: str
    records: list[dict[str, Any]]
    maps: dict[str, Float16[ndarray, "h w"]] = field(default_factory=dict)


def map_name(method: str, shard: tuple[int, int]) -> str:
    """Name the file of a method's maps, from the results' folder."""
    number, shards = shard
    return f"maps/{label(method)}.{number}-of-{shards}.npy"


def packed(values: Float[ndarray, "h w"]) -> tuple[Float16[ndarray, "h w"], float]:
    """Write a map as float16 times a power of two, which is 1 wherever float16 holds it so.

    Each value is right to 2^-11 of itself, or to 2^-24 of the largest.
    """
    largest = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
    scale = 1.0
    if largest > LARGEST or 0 < largest < SMALLEST:
        scale = 2.0 ** (frexp(largest)[1] - 1)
    return (values / np.float32(scale)).astype(np.float16), scale


class MapFile:
    """One method's maps of one shard, a .npy of `rows` maps that is written row by row.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from vision_attn.runs.ledger import MapFile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     maps = MapFile(Path(folder, "Rollout.npy"), rows=3)
        ...     maps.write(1, np.full((2, 2), 0.25, np.float16))
        ...     np.load(maps.path)[1].tolist()
        [[0.25, 0.25], [0.25, 0.25]]
    """

    def __init__(self, path: Path, rows: int):
        self.path, self.rows = path, rows
        self._shape: tuple[int, ...] | None = None
        self._start = 0

    def write(self, row: int, values: Float16[ndarray, "h w"]) -> None:
        """Write a map into its row.

        Raises ValueError for a map of another size than those before, OSError where it cannot be
        written.
        """
        if self._shape is None:
            self._open(values.shape)
        if values.shape != self._shape:
            raise ValueError(
                f"{self.path.name}: expected a map of {self._shape}, as for the photos before, "
                f"got {values.shape}"
            )
        with naming(self.path), self.path.open("r+b", buffering=0) as file:
            file.seek(self._start + row * values.nbytes)
            left = memoryview(values.tobytes())
            while left:
                left = left[file.write(left) :]

    def blank(self, row: int) -> None:
        """Write nan into the row of a photo that has no map, if the file is there."""
        if self._shape is None and not self._found():
            return
        assert self._shape is not None
        self.write(row, np.full(self._shape, np.nan, np.float16))

    def _found(self) -> bool:
        """Whether a whole file of as many rows is there; its shape is then known."""
        try:
            kept = np.load(self.path, mmap_mode="r")
        except (OSError, ValueError, EOFError):
            return False
        if kept.dtype != np.float16 or kept.ndim != 3 or len(kept) != self.rows:
            return False
        self._shape, self._start = kept.shape[1:], kept.offset
        return True

    def _open(self, shape: tuple[int, ...]) -> None:
        if self._found() and self._shape == shape:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        header = {"descr": "<f2", "fortran_order": False, "shape": (self.rows, *shape)}
        with replacing(self.path) as beside, beside.open("r+b") as file:
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + self.rows * int(np.prod(shape)) * 2)
        assert self._found()


class Ledger:
    """Keeps what is found of the photos of one shard; the shard that ends last merges all.

    files: all there are, in their order. shard: (number, of how many), from 1. settings: plain
    values, which all shards share; a run of other values starts over. methods: of the maps that
    are kept, by method; none where no maps are. done: which of the shard's photos have their line.

    Examples:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from vision_attn.runs.ledger import Found, Ledger
        >>> with TemporaryDirectory() as folder:
        ...     ledger = Ledger(Path(folder), ["a.png", "b.png"])
        ...     ledger.add([Found(1, "b.png", [{"method": "Rollout"}])])
        ...     list(ledger.left()), ledger.end(), Path(folder, "results.jsonl").read_text()
        ([0], True, '{"method": "Rollout"}\\n')
    """

    def __init__(
        self,
        folder: Path,
        files: Sequence[str],
        shard: tuple[int, int] = (1, 1),
        settings: dict[str, Any] | None = None,
        methods: Sequence[str] = (),
    ):
        self.folder, self.files = folder, files
        self.number, self.shards = shard
        self.first = as_line({"asked": settings or {}})
        self.path = self.part(self.number)
        rows = len(range(self.number - 1, len(files), self.shards))
        self.done = np.zeros(rows, bool)
        names = [map_name(method, shard) for method in methods]
        self.maps = {name: MapFile(folder / name, rows) for name in names}
        for merged in ("results.jsonl", "results.parquet", "index.html"):
            (folder / merged).unlink(missing_ok=True)
        self._take_up()

    def part(self, number: int) -> Path:
        """Name the file of one shard's lines."""
        return self.folder / f"results.{number}-of-{self.shards}.jsonl"

    def left(self) -> Iterator[int]:
        """Yield the numbers, among all, of this shard's photos that have no line yet."""
        for row in np.flatnonzero(~self.done):
            yield self.number - 1 + int(row) * self.shards

    def add(self, found: Sequence[Found]) -> None:
        """Keep photos: first their maps, then their lines.

        Raises OSError where they cannot be written: what was kept before stays.
        """
        lines = ""
        for one in found:
            for name, values in one.maps.items():
                self.maps[name].write(one.place // self.shards, values)
            lines += _line(one)
        append_text(self.path, lines)
        for one in found:
            self.done[one.place // self.shards] = True

    def end(self) -> bool:
        """Mark this shard as done; if all are, merge them and return True."""
        for row in np.flatnonzero(~self.done):
            for maps in self.maps.values():
                maps.blank(int(row))
        append_text(self.path, self._last(int(self.done.sum())))
        lines = np.full(len(self.files), -1, np.int64)
        for number in range(1, self.shards + 1):
            if not self._ended(number, lines):
                return False
        with replacing(self.folder / "results.jsonl") as beside, beside.open("wb") as file:
            for records in self._merged(lines):
                for record in records:
                    file.write(as_line(record).encode(errors="replace"))
        write_parquet(self.folder)
        if self.shards == 1:
            self.path.unlink()
        return True

    def _last(self, count: int) -> str:
        return as_line(json.loads(self.first) | {"done": count})

    def _take_up(self) -> None:
        """Read what is done; an earlier run that asked for something else is removed."""
        if self.path.is_file():
            with self.path.open("rb") as file:
                goes_on = file.readline().decode(errors="replace") == self.first
                whole = True
                for line in file if goes_on else ():
                    whole = line.endswith(b"\n")
                    if (one := _read(line)) is not None:
                        self.done[one["place"] // self.shards] = True
            if goes_on:
                if not whole:
                    append_text(self.path, "\n")
                return
            self.path.unlink()
        for maps in self.maps.values():
            maps.path.unlink(missing_ok=True)
        append_text(self.path, self.first)

    def _ended(self, number: int, lines: ndarray) -> bool:
        """Whether a shard is done; where each of its photos' lines begins then goes into `lines`.

        Raises ValueError where a line is missing that was there.
        """
        if not self.part(number).is_file():
            return False
        begins, last = 0, b""
        with self.part(number).open("rb") as file:
            if file.readline().decode(errors="replace") != self.first:
                return False
            begins = file.tell()
            for line in file:
                if (one := _read(line)) is not None:
                    lines[one["place"]] = begins
                begins += len(line)
                last = line
        count = int((lines[number - 1 :: self.shards] >= 0).sum())
        text = last.decode(errors="replace")
        if text == self._last(count):
            return True
        try:
            ended = json.loads(text).get("done")
        except (ValueError, AttributeError, RecursionError):
            ended = None
        if ended is None:
            return False
        raise ValueError(f"{self.part(number)}: damaged: run --shard {number}/{self.shards} again")

    def _merged(self, lines: ndarray) -> Iterator[list[dict[str, Any]]]:
        """Yield the records of each photo, in the order of all."""
        with ExitStack() as opened:
            parts = [
                opened.enter_context(self.part(number).open("rb"))
                for number in range(1, self.shards + 1)
            ]
            for place in np.flatnonzero(lines >= 0):
                part = parts[place % self.shards]
                part.seek(int(lines[place]))
                one = _read(part.readline())
                if one is None:  # changed while it was read
                    raise ValueError(f"{part.name}: damaged: run the same command again")
                yield one["records"]


def _line(found: Found) -> str:
    """Write a photo's records as one line of JSON with its checksum."""
    values = {"place": found.place, "file": found.file, "records": found.records}
    return as_line({**values, "checksum": _checksum(values)})


def _read(line: bytes) -> dict[str, Any] | None:
    """The values of a `_line`; None where they are damaged, or of another kind."""
    try:
        values = json.loads(line)
        if values.pop("checksum") != _checksum(values):
            return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return values


def _checksum(values: dict[str, Any]) -> int:
    return crc32(as_line(values).encode(errors="replace"))
