"""Photos in Parquet files, on this disk or behind a URL, read in place.

Parquet keeps each column of a row group in one piece: the labels of a whole set are few bytes, and
whoever reads a photo reads the photos of its group.

Axes: n photos, m of them, b batch.
"""

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer

from vision_attn.data.block_photos import BlockPhotos
from vision_attn.data.blocks import Blocks
from vision_attn.data.photos import Photos
from vision_attn.data.rows import RowPhotos
from vision_attn.data.sources import DataError
from vision_attn.errors import quoted
from vision_attn.files import write_text

__all__ = ["RowGroupPhotos", "RowGroups", "index_files", "schema_features"]

FORMAT = 1
READERS = 8  # threads that look into files at the start
KEPT = 4  # row groups that stay for photos asked for one by one
PAUSES = 0.5, 2.0  # seconds, before a file that could not be read is tried again


@dataclass(frozen=True)
class RowGroups:
    """The row groups of Parquet files, and one of their columns.

    Attributes:
        table: Of each group its file, its number there, and its rows.

    Examples:
        >>> from vision_attn.data.row_groups import RowGroups
        >>> groups = RowGroups(["a.parquet"], [(0, 0, 100), (0, 1, 40)], "image")
        >>> groups.rows, groups.first.tolist()
        (140, [0, 100])
    """

    files: Sequence[str]
    table: Sequence[tuple[int, int, int]]
    column: str

    @property
    def first(self) -> Integer[np.ndarray, " groups"]:
        """The number of each group's first row."""
        counts = np.array([rows for _, _, rows in self.table], np.int64)
        return np.cumsum(counts) - counts

    @property
    def rows(self) -> int:
        """Count the rows of all groups."""
        return sum(rows for _, _, rows in self.table)

    def read(self, group: int) -> Any:
        """The column of a group, as pyarrow has it. Raises DataError."""
        file, number, rows = self.table[group]
        path = self.files[file]

        def column(opened: Any) -> Any:
            _check_column(path, opened, self.column)
            about = opened.metadata
            if number >= about.num_row_groups or about.row_group(number).num_rows != rows:
                raise DataError(
                    f"{path}: it was replaced since the run began (row group {number} had {rows} "
                    "rows): put the same file back, or start again"
                )
            return opened.read_row_group(number, columns=[self.column], use_threads=False)[0]

        return _tried(path, column).combine_chunks()


class RowGroupPhotos(RowPhotos, BlockPhotos):
    """Photos in the rows of Parquet files.

    Args:
        window: See `Blocks`.
        places: The row of each photo.

    Examples:
        >>> from vision_attn.data.row_groups import RowGroupPhotos, RowGroups
        >>> groups = RowGroups(["a.parquet"], [(0, 0, 100), (0, 1, 40)], "image")
        >>> photos = RowGroupPhotos(groups, "set train", window=200)
        >>> photos.names[139], int(photos.blocks.numbers[139])
        ('set train row 139', 1)
    """

    def __init__(
        self,
        groups: RowGroups,
        where: str,
        window: int,
        places: Integer[np.ndarray, " n"] | None = None,
    ) -> None:
        self.groups, self.where, self.window = groups, where, window
        self.column = groups.column
        self.places = np.arange(groups.rows) if places is None else places
        self.names = _RowNames(where, self.places)
        self._first = groups.first
        numbers = np.searchsorted(self._first, self.places, side="right") - 1
        self.blocks = Blocks(numbers, window)
        self._rows, inverse = np.unique(self.places, return_inverse=True)
        self._starts = np.searchsorted(self._rows, [*self._first, groups.rows])
        self._at = (inverse - self._starts[numbers]).astype(np.int32)  # among its group's
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": OrderedDict(), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def chosen(self, items: Integer[np.ndarray, " m"]) -> "RowGroupPhotos":
        some = RowGroupPhotos(self.groups, self.where, self.window, self.places[items])
        some.value_range = self.value_range
        return some

    def read_block(self, block: int) -> Any:
        column = self.groups.read(block)
        rows = self._rows[self._starts[block] : self._starts[block + 1]] - self._first[block]
        return column if len(rows) == len(column) else column.take(rows)

    def held(self, items: Integer[np.ndarray, " b"], blocks: Mapping[int, Any]) -> Photos:
        wanted = items.tolist()
        cells = {item: self._in(item, blocks[int(self.blocks.numbers[item])]) for item in wanted}
        names = {item: self.names[item] for item in wanted}
        photos = RowPhotos(cells, names, self.column)
        photos.value_range = self.value_range
        return photos

    def cell(self, item: int) -> Any:
        block = int(self.blocks.numbers[item])
        with self._lock:
            if block not in self._kept:
                self._kept[block] = self.read_block(block)
                if len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(block)
            return self._in(item, self._kept[block])

    def _in(self, item: int, column: Any) -> Any:
        return column[int(self._at[item])].as_py()


class _RowNames(Sequence[str]):
    def __init__(self, where: str, places: Integer[np.ndarray, " n"]) -> None:
        self._where, self._places = where, places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, slice):
            return [f"{self._where} row {row}" for row in self._places[item].tolist()]
        return f"{self._where} row {self._places[item]}"


def index_files(
    files: Mapping[str, str], label: str, folder: Path
) -> tuple[list[tuple[int, int, int]], list[Any]]:
    """The row groups of Parquet files, and the labels of all rows.

    files: the version of each by path or URL, which is another when the file is. What is found is
    kept in `folder`, so that the files are looked into once; not so where a version is unknown
    (""). Raises DataError.
    """
    about = [FORMAT, label, list(files.items())]
    address = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
    index = folder / f"{address}.index.json"
    versioned = all(files.values())
    try:
        content = json.loads(index.read_bytes()) if versioned else {}
        return [(int(a), int(b), int(c)) for a, b, c in content["table"]], content["labels"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pass

    def look(path: str) -> tuple[list[int], list[Any]]:
        def inside(opened: Any) -> tuple[list[int], list[Any]]:
            _check_column(path, opened, label)
            about = opened.metadata
            counts = [about.row_group(i).num_rows for i in range(about.num_row_groups)]
            return counts, opened.read([label], use_threads=False)[0].to_pylist()

        return _tried(path, inside)

    table, labels = [], []
    with ThreadPoolExecutor(READERS) as threads:
        for number, (counts, column) in enumerate(threads.map(look, files)):
            table += [(number, group, rows) for group, rows in enumerate(counts)]
            labels += column
    if not versioned:
        return table, labels
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(index, json.dumps({"table": table, "labels": labels}))
    except (OSError, TypeError):  # a full disk, or labels that are no plain values
        pass
    return table, labels


def schema_features(path: str) -> Mapping[str, Any]:
    """The columns of a Parquet file, as the `datasets` library describes them. Raises DataError."""
    from datasets import Features

    return _tried(path, lambda opened: Features.from_arrow_schema(opened.schema_arrow))


def _check_column(path: str, opened: Any, column: str) -> None:
    columns = opened.schema_arrow.names
    if column not in columns:
        raise DataError(
            f"{path}: no column {quoted(column)}, which other files of its split have: there are "
            f"{', '.join(columns[:5])}"
        )


def _tried(path: str, use: Any) -> Any:
    """Open a Parquet file and use it; again after a while where its server or disk failed."""
    import fsspec
    import pyarrow
    from pyarrow import parquet

    for pause in (*PAUSES, None):
        try:
            with fsspec.open(path, "rb") as file:
                return use(parquet.ParquetFile(file, pre_buffer=True))
        except DataError:
            raise
        except FileNotFoundError:
            raise DataError(f"{path}: no such file: it was there when the run began") from None
        except pyarrow.ArrowInvalid as error:
            text = " ".join(str(error).split())[:200]
            raise DataError(f"{path}: cut short or no Parquet ({text}): fetch it again") from None
        except Exception as error:  # OSError, and whatever the library of a protocol has
            if pause is None:
                text = " ".join(str(error).split())[:200]
                raise DataError(
                    f"{path}: cannot be read ({type(error).__name__}: {text}): try again, "
                    "or continue from last.ckpt, when it can"
                ) from error
            time.sleep(pause)
    raise AssertionError("unreachable")
