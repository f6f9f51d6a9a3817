"""The rows and maps of one shard of a store, as they are read; `store` writes them.

    store/I-of-N.sqlite       rows of shard I: records as JSON, deflated, and what each depends on
    maps/METHOD.I-of-N.npy    raw maps of shard I; a row says in which slot its map lies

A row and its map have a CRC-32 each, so that what is damaged is found.

Axes: n rows, h, w a map.
"""

import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, SupportsInt, runtime_checkable
from zlib import crc32

import numpy as np
from jaxtyping import Bool, Float, Int64
from numpy import ndarray

from vision_attn import __version__
from vision_attn.runs.database import (
    FORMAT,
    LARGEST,
    DamagedError,
    connect,
    database_errors,
)
from vision_attn.runs.keys import digest, sample_numbers
from vision_attn.runs.mapfile import map_crc, map_name, open_maps

__all__ = ["Column", "RowKeeper", "ShardFile", "StoreRow", "shard_path"]

SCHEMA = [
    "CREATE TABLE columns(id INTEGER PRIMARY KEY, key INTEGER, kind TEXT, method TEXT, "
    "settings TEXT, dictionary BLOB, crc INTEGER)",
    "CREATE TABLE rows(id INTEGER PRIMARY KEY, column_id INTEGER, sample INTEGER, "
    "content INTEGER, record BLOB, slot INTEGER, exponent INTEGER, map_crc INTEGER, crc INTEGER)",
    "CREATE TABLE finished(id INTEGER PRIMARY KEY, samples INTEGER)",
]
ROW = "id, column_id, sample, content, record, slot, exponent, map_crc, crc"
DEFLATE = {"level": 6, "method": zlib.DEFLATED, "wbits": -12, "memLevel": 4}
CHUNK = 10_000  # rows that are read at once
BROKEN = (  # what values of a damaged file raise
    *(ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError),
    *(RecursionError, struct.error, zlib.error),
)
ENCODER = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True)
class Column:
    """A method, and all that its rows depend on beside the sample: settings, as plain values.

    A row of other settings, or of another version of the package, belongs to another column.

    Attributes:
        kind: What was computed, such as `map`.

    Examples:
        >>> from vision_attn.runs.shard import Column
        >>> Column("map", "Rollout", {"target": 1}).key == Column("map", "Rollout").key
        False
    """

    kind: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def key(self) -> int:
        """The number of 64 bits that all of it comes to."""
        return digest([FORMAT, __version__, self.kind, self.method, dict(self.settings)])


class StoreRow(NamedTuple):
    """What a method gives of a sample: plain values, and a raw map where it is kept.

    Attributes:
        content: What the sample was, as `keys.content_number` puts it.

    Examples:
        >>> from vision_attn.runs.shard import Column, StoreRow
        >>> StoreRow(Column("map", "Rollout"), "a.png", {"probability": 0.5}).map is None
        True
    """

    column: Column
    sample: str
    record: dict[str, Any]
    content: int = 0
    map: Float[ndarray, "h w"] | None = None


class RowIndex(NamedTuple):
    """Where the rows of a shard are, in the order in which they were written.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.runs.shard import RowIndex
        >>> len(RowIndex(*np.zeros((6, 3), np.int64)).ids)
        3
    """

    ids: Int64[ndarray, " n"]
    columns: Int64[ndarray, " n"]
    samples: Int64[ndarray, " n"]
    contents: Int64[ndarray, " n"]
    slots: Int64[ndarray, " n"]  # -1 without a map
    exponents: Int64[ndarray, " n"]


@runtime_checkable
class RowKeeper(Protocol):
    """What keeps rows: a `Store`, a `MemoryStore`, or several files as one.

    Examples:
        >>> from vision_attn.runs.shard import RowKeeper
        >>> from vision_attn.runs.store import MemoryStore
        >>> isinstance(MemoryStore(), RowKeeper)
        True
    """

    def add(self, rows: Sequence[StoreRow]) -> None:
        """Keep rows."""

    def commit(self) -> None:
        """Bring what was added to the disk."""

    def find(
        self, column: Column, samples: Int64[ndarray, " n"]
    ) -> tuple[Int64[ndarray, " n"], Int64[ndarray, " n"]]:
        """Find the id of each sample's row, -1 without one, and what its content was."""

    def forget(self, column: Column, samples: Int64[ndarray, " n"]) -> None:
        """Remove the rows of samples that are others by now."""

    def kept(self, columns: Sequence[Column] | None = None) -> Iterator[StoreRow]:
        """Yield every row of these columns with its map; None: of all columns."""


def shard_path(folder: Path, shard: tuple[int, int]) -> Path:
    """Name the file of a shard's rows."""
    return folder / "store" / f"{shard[0]}-of-{shard[1]}.sqlite"


class ShardFile:
    """The rows and maps of one shard, to be read.

    columns: by their numbers in the file. repair: what an error about damage says to do.

    Raises DamagedError where the file is damaged, FileNotFoundError where it is not there.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from vision_attn.runs.shard import Column, ShardFile, StoreRow
        >>> from vision_attn.runs.store import Store
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Store(Path(folder)) as store:
        ...         store.add([StoreRow(Column("map", "Rollout"), "a.png", {"target": 3})])
        ...     with ShardFile(Path(folder)) as shard:
        ...         shard.record(shard.index.ids[0])
        {'target': 3}
    """

    writes = False

    def __init__(self, folder: Path, shard: tuple[int, int] = (1, 1)):
        self.folder, self.shard = folder, shard
        self.path = shard_path(folder, shard)
        self.repair = "run the same command again"
        if shard[1] > 1:
            self.repair = f"run --shard {shard[0]}/{shard[1]} again"
        if not self.writes and not self.path.is_file():
            raise FileNotFoundError(f"{self.path}: no such file")
        self._columns: dict[int, Column] = {}
        self._dictionaries: dict[int, bytes] = {}
        self._keys: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._mapped: dict[str, ndarray] = {}
        self._connect()

    def _connect(self) -> None:
        try:
            self._connection = connect(self.path, SCHEMA, write=self.writes)
            self._read_columns()
        except DamagedError as error:
            raise type(error)(f"{error}: {self.repair}") from None

    def _read_columns(self) -> None:
        with database_errors(self.path):
            for number, key, *values, crc in self._connection.execute("SELECT * FROM columns"):
                try:
                    kind, method, settings, dictionary = values
                    if crc != column_crc(key, kind, method, settings, dictionary):
                        raise ValueError("its CRC is wrong")
                    self._columns[number] = Column(kind, method, json.loads(settings))
                    self._dictionaries[number], self._keys[number] = dictionary, key
                    self._numbers[key] = number
                except BROKEN as error:
                    if not self.writes:
                        raise DamagedError(f"{self.path}: damaged column ({error})") from None

    @property
    def columns(self) -> dict[int, Column]:
        """The columns that have rows, by their numbers in the index."""
        return dict(self._columns)

    @property
    def keys(self) -> dict[int, int]:
        """The keys of the columns, by their numbers: those that they had when they were written."""
        return dict(self._keys)

    @property
    def finished(self) -> int | None:
        """The number of the list of samples that this shard has done; None where it has not."""
        with database_errors(self.path):
            found = self._connection.execute("SELECT samples FROM finished").fetchone()
        return found[0] if found and isinstance(found[0], int) else None

    @cached_property
    def index(self) -> RowIndex:
        """Where all rows are; their CRC is checked when they are read."""
        numbers = "id, column_id, sample, content, coalesce(slot, -1), exponent"
        parts = [np.empty((0, 6), np.int64)]
        with database_errors(self.path):
            cursor = self._connection.execute(f"SELECT {numbers} FROM rows ORDER BY id")
            while some := cursor.fetchmany(CHUNK):
                try:
                    parts.append(np.array(some, np.int64).reshape(-1, 6))
                except (TypeError, ValueError, OverflowError):
                    raise self._damaged("a row is not one of the store") from None
        return RowIndex(*np.concatenate(parts).T.copy())

    def record(self, row_id: SupportsInt) -> dict[str, Any]:
        """Read the record of a row.

        Raises:
            DamagedError: Its CRC is wrong; one line.
        """
        with database_errors(self.path):
            row = self._connection.execute(
                f"SELECT {ROW} FROM rows WHERE id=?", (int(row_id),)
            ).fetchone()
        try:
            return self._record(row)
        except BROKEN:
            raise self._damaged(f"row {row_id}") from None

    def map(self, row_id: SupportsInt) -> Float[ndarray, "h w"]:
        """Read the raw map of a row.

        Raises:
            DamagedError: Its CRC is wrong, or it has none.
        """
        with database_errors(self.path):
            row = self._connection.execute(
                f"SELECT {ROW} FROM rows WHERE id=?", (int(row_id),)
            ).fetchone()
        try:
            if row is None or row[-1] != self._row_crc(row):
                raise ValueError("its CRC is wrong")
            return self._map(row)
        except BROKEN as error:
            raise self._damaged(f"the map of row {row_id}: {error}") from None

    def maps_of(self, number: int) -> ndarray:
        """Map the maps of a column into memory, whatever rows they belong to."""
        name = map_name(self._columns[number].method, self.shard)
        if name not in self._mapped:
            try:
                self._mapped[name] = open_maps(self.folder / name)
            except ValueError as error:
                raise DamagedError(f"{error}: {self.repair}") from None
        return self._mapped[name]

    def has(self, column: Column, samples: Sequence[str]) -> Bool[ndarray, " n"]:
        """Say of which samples the column has a row."""
        return self.find(column, sample_numbers(samples))[0] >= 0

    def find(
        self, column: Column, samples: Int64[ndarray, " n"]
    ) -> tuple[Int64[ndarray, " n"], Int64[ndarray, " n"]]:
        """Find the id of each sample's row, -1 without one, and what its content was."""
        ids, contents = np.full(len(samples), -1), np.zeros(len(samples), np.int64)
        number = self._numbers.get(column.key)
        if number is None:
            return ids, contents
        mine = self.index.columns == number
        order = np.argsort(self.index.samples[mine], kind="stable")
        known = self.index.samples[mine][order]
        if not len(known):
            return ids, contents
        places = np.searchsorted(known, samples, side="right") - 1  # the last of several
        there = (places >= 0) & (known[places] == samples)
        ids[there] = self.index.ids[mine][order][places[there]]
        contents[there] = self.index.contents[mine][order][places[there]]
        return ids, contents

    def kept(self, columns: Sequence[Column] | None = None) -> Iterator[StoreRow]:
        """Yield every row of these columns with its map; the samples' names are not kept.

        Args:
            columns: None for all.
        """
        index = self.index
        wanted = self._keys.values() if columns is None else [column.key for column in columns]
        numbers = {number for number, key in self._keys.items() if key in wanted}
        for row_id, number, slot in zip(index.ids, index.columns, index.slots, strict=True):
            if number not in numbers:
                continue
            values = None if slot < 0 else self.map(row_id)
            yield StoreRow(self._columns[int(number)], "", self.record(row_id), 0, values)

    def sift(self) -> None:
        """Leave damaged rows out of the index."""
        self.leave_out([row[0] for row in self._all_rows() if not self._whole(row)])

    def leave_out(self, row_ids: Sequence[int] | ndarray) -> None:
        """Leave rows out of the index, as if they were not there."""
        kept = ~np.isin(self.index.ids, np.array([int(row_id) for row_id in row_ids], np.int64))
        self.__dict__["index"] = RowIndex(*(values[kept] for values in self.index))

    def check(self) -> None:
        """Read all rows and maps.

        Raises:
            DamagedError: One is damaged: the first, in one line.
        """
        for row in self._all_rows():
            if not self._whole(row):
                raise self._damaged(f"row {row[0]}")

    def close(self) -> None:
        """Close the files."""
        self._mapped.clear()
        self._connection.close()

    def __enter__(self) -> "ShardFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _all_rows(self) -> Iterator[tuple[Any, ...]]:
        with database_errors(self.path):
            yield from self._connection.execute(f"SELECT {ROW} FROM rows ORDER BY id")

    def _whole(self, row: tuple[Any, ...]) -> bool:
        try:
            self._record(row)
            if row[5] is not None:
                self._map(row)
        except BROKEN:
            return False
        return True

    def _record(self, row: tuple[Any, ...]) -> dict[str, Any]:
        if row[-1] != self._row_crc(row):
            raise ValueError("its CRC is wrong")
        inflate = zlib.decompressobj(DEFLATE["wbits"], self._dictionaries[row[1]])
        record = json.loads(inflate.decompress(row[4], LARGEST))
        if not isinstance(record, dict):
            raise TypeError("not a record")
        return record

    def _map(self, row: tuple[Any, ...]) -> Float[ndarray, "h w"]:
        if row[5] is None:
            raise ValueError("it has none")
        values = self.maps_of(row[1])[row[5]]
        if signed(map_crc(values)) != row[7]:
            raise ValueError("its CRC is wrong")
        return values.astype(np.float32) * np.float32(2.0 ** row[6])

    def _row_crc(self, row: tuple[Any, ...]) -> int:
        _, number, sample, content, record, slot, exponent, crc, _ = row
        return row_crc(self._keys[number], sample, content, record, slot, exponent, crc)

    def _damaged(self, what: str) -> DamagedError:
        return DamagedError(f"{self.path}: damaged ({what}): {self.repair}")


def row_crc(
    key: int, sample: int, content: int, record: bytes, slot: int | None, exponent: int, crc: int
) -> int:
    """CRC-32 of the values of a row, its map's CRC among them, as SQLite keeps it in 4 bytes."""
    head = struct.pack("<4q2i", key, sample, content, -1 if slot is None else slot, exponent, crc)
    return signed(crc32(record, crc32(head)))


def column_crc(key: int, kind: str, method: str, settings: str, dictionary: bytes) -> int:
    """CRC-32 of the values of a column."""
    text = "\0".join((kind, method, settings)).encode(errors="surrogatepass")
    return signed(crc32(dictionary, crc32(text, crc32(struct.pack("<q", key)))))


def signed(crc: int) -> int:
    """Write a CRC-32 as a number with a sign, which SQLite keeps in 4 bytes."""
    return crc - (1 << 32) if crc >> 31 else crc
