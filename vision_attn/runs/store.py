"""The store of a run: a row for each sample and method, and its map, in files of one shard.

    store/I-of-N.sqlite       rows of shard I: records as JSON, deflated, and what each depends on
    maps/METHOD.I-of-N.npy    raw maps of shard I; a row says in which slot its map lies

A row and its map have a CRC-32 each. Maps are on the disk before the rows that name them are
committed, so a kill or a full disk leaves whole rows only; what is damaged later is found by its
CRC, and computed again by the run that the shard belongs to.

Axes: n rows, h, w a map.
"""

import json
import sqlite3
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, SupportsInt, runtime_checkable
from zlib import crc32

import numpy as np
from jaxtyping import Bool, Float, Int64
from numpy import ndarray

from vision_attn import __version__
from vision_attn.files import naming
from vision_attn.runs.database import (
    FORMAT,
    LARGEST,
    DamagedError,
    connect,
    database_errors,
    open_limited,
)
from vision_attn.runs.keys import digest, sample_number, sample_numbers
from vision_attn.runs.mapfile import MapFile, map_crc, map_name, open_maps, packed

__all__ = ["Column", "MemoryStore", "RowKeeper", "ShardFile", "Store", "StoreRow", "shard_path"]

SCHEMA = [
    "CREATE TABLE columns(id INTEGER PRIMARY KEY, key INTEGER, kind TEXT, method TEXT, "
    "settings TEXT, dictionary BLOB, crc INTEGER)",
    "CREATE TABLE rows(id INTEGER PRIMARY KEY, column_id INTEGER, sample INTEGER, "
    "content INTEGER, record BLOB, slot INTEGER, exponent INTEGER, map_crc INTEGER, crc INTEGER)",
    "CREATE TABLE finished(id INTEGER PRIMARY KEY, samples INTEGER)",
]
ROW = "id, column_id, sample, content, record, slot, exponent, map_crc, crc"
DEFLATE = {"level": 6, "method": zlib.DEFLATED, "wbits": -12, "memLevel": 4}
COMMIT_SHARE = 20  # times as long as a commit takes, rows may wait for the next one
CHUNK = 10_000  # rows that are read at once
_ENCODER = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True)
class Column:
    """A method, and all that its rows depend on beside the sample: settings, as plain values.

    kind: what was computed, such as `map`. A row of other settings, or of another version of the
    package, belongs to another column.

    Examples:
        >>> from vision_attn.runs.store import Column
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

    content: what the sample was, as `keys.content_number` puts it.

    Examples:
        >>> from vision_attn.runs.store import Column, StoreRow
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
        >>> from vision_attn.runs.store import RowIndex
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
        >>> from vision_attn.runs.store import MemoryStore, RowKeeper
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
        >>> from vision_attn.runs.store import Column, ShardFile, Store, StoreRow
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
                    if crc != _column_crc(key, kind, method, settings, dictionary):
                        raise ValueError("its CRC is wrong")
                    self._columns[number] = Column(kind, method, json.loads(settings))
                    self._dictionaries[number], self._keys[number] = dictionary, key
                    self._numbers[key] = number
                except (ValueError, TypeError, AttributeError, struct.error) as error:
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
        """Read the record of a row. Raises DamagedError, one line, where its CRC is wrong."""
        with database_errors(self.path):
            row = self._connection.execute(
                f"SELECT {ROW} FROM rows WHERE id=?", (int(row_id),)
            ).fetchone()
        try:
            return self._record(row)
        except (ValueError, TypeError, KeyError, struct.error, zlib.error, RecursionError):
            raise self._damaged(f"row {row_id}") from None

    def map(self, row_id: SupportsInt) -> Float[ndarray, "h w"]:
        """Read the raw map of a row. Raises DamagedError where its CRC is wrong, or it has none."""
        with database_errors(self.path):
            row = self._connection.execute(
                f"SELECT {ROW} FROM rows WHERE id=?", (int(row_id),)
            ).fetchone()
        try:
            if row is None or row[-1] != self._row_crc(row):
                raise ValueError("its CRC is wrong")
            return self._map(row)
        except (ValueError, TypeError, KeyError, IndexError, struct.error) as error:
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

    def leave_out(self, row_ids: Sequence[SupportsInt] | ndarray) -> None:
        """Leave rows out of the index, as if they were not there."""
        kept = ~np.isin(self.index.ids, row_ids)
        self.__dict__["index"] = RowIndex(*(values[kept] for values in self.index))

    def check(self) -> None:
        """Read all rows and maps. Raises DamagedError, one line, at the first that is damaged."""
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
        except (ValueError, TypeError, KeyError, IndexError, struct.error, zlib.error):
            return False
        except RecursionError:
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
        if _signed(map_crc(values)) != row[7]:
            raise ValueError("its CRC is wrong")
        return values.astype(np.float32) * np.float32(2.0 ** row[6])

    def _row_crc(self, row: tuple[Any, ...]) -> int:
        _, number, sample, content, record, slot, exponent, crc, _ = row
        return _row_crc(self._keys[number], sample, content, record, slot, exponent, crc)

    def _damaged(self, what: str) -> DamagedError:
        return DamagedError(f"{self.path}: damaged ({what}): {self.repair}")


class Store(ShardFile):
    """The rows and maps of one shard, which this process alone writes.

    wanted: the columns of this run; rows of others are removed, unless `keeps_others`. half: keep
    maps as float16 times a power of two, else as float32. What is damaged is removed, so that it is
    computed again; of a file that cannot be read as a whole, the rows that can are kept.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from vision_attn.runs.store import Column, Store, StoreRow
        >>> rollout = Column("map", "Rollout")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Store(Path(folder), wanted=[rollout]) as store:
        ...         store.add([StoreRow(rollout, "a.png", {"target": 3})])
        ...     with Store(Path(folder), wanted=[rollout]) as store:
        ...         store.has(rollout, ["a.png", "b.png"]).tolist()
        [True, False]
    """

    writes = True

    def __init__(
        self,
        folder: Path,
        shard: tuple[int, int] = (1, 1),
        wanted: Sequence[Column] = (),
        *,
        keeps_others: bool = False,
        half: bool = True,
    ):
        self._half = half
        self._files: dict[str, MapFile] = {}
        self._next_commit = 0.0
        self._closed = False
        (folder / "store").mkdir(parents=True, exist_ok=True)
        super().__init__(folder, shard)
        keys = {column.key for column in wanted}
        try:
            try:
                self._take_up(keys, keeps_others)
            except DamagedError:
                self._connection.close()
                self._salvage()
                self._connect()
                self._take_up(keys, keeps_others)
        except BaseException:
            self._connection.close()
            raise

    def _connect(self) -> None:
        try:
            super()._connect()
        except DamagedError:
            self._salvage()
            super()._connect()

    def _take_up(self, wanted: set[int], keeps_others: bool) -> None:
        """Remove what is damaged, or of other columns; then find where the rest is."""
        kept = {n for n, key in self._keys.items() if keeps_others or key in wanted}
        gone: list[tuple[int]] = []
        used: dict[int, list[int]] = {}  # slots of maps, by column
        for row in self._all_rows():
            if row[1] in kept and self._whole(row):
                used.setdefault(row[1], []).extend([] if row[5] is None else [row[5]])
            else:
                gone.append((row[0],))
        stale = gone or self.finished is not None or set(self._columns) - set(used)
        with database_errors(self.path):
            self._connection.execute("BEGIN IMMEDIATE")  # fails where another process writes
            if stale:
                self._connection.execute("DELETE FROM finished")
                self._connection.executemany("DELETE FROM rows WHERE id=?", gone)
                self._connection.execute(
                    "DELETE FROM columns WHERE id NOT IN (SELECT column_id FROM rows)"
                )
            self._connection.execute("COMMIT")
        self._mapped.clear()  # the files may be written to
        for number in set(self._columns) - set(used):
            del self._columns[number], self._dictionaries[number], self._keys[number]
        self._numbers = {key: number for number, key in self._keys.items()}
        names = {map_name(self._columns[n].method, self.shard): n for n in used if used[n]}
        for path in (self.folder / "maps").glob(f"*.{self.shard[0]}-of-{self.shard[1]}.npy"):
            number = names.get(f"maps/{path.name}")
            if number is None:
                path.unlink()
                continue
            maps = open_maps(path)
            self._files[f"maps/{path.name}"] = MapFile(path, maps.shape[1:], maps.dtype)
            self._files[f"maps/{path.name}"].free(used[number])

    def _salvage(self) -> None:
        """Copy the rows that can be read of a damaged file into a new one in its place."""
        found: list[tuple[Any, ...]] = []
        columns: list[tuple[Any, ...]] = []
        try:
            damaged = open_limited(self.path, write=False)
            tables = damaged.execute("SELECT sql FROM sqlite_schema").fetchall()
            if sorted(sql for (sql,) in tables) == sorted(SCHEMA):
                columns = list(
                    _readable(
                        damaged, "id, key, kind, method, settings, dictionary, crc", "columns"
                    )
                )
                found = list(_readable(damaged, ROW, "rows"))
            damaged.close()
        except (sqlite3.Error, TypeError, OSError):
            pass
        for path in (self.path, Path(f"{self.path}-journal")):
            path.unlink(missing_ok=True)
        self._columns, self._dictionaries, self._keys, self._numbers = {}, {}, {}, {}
        connection = connect(self.path, SCHEMA, write=True)
        with database_errors(self.path):
            connection.execute("BEGIN IMMEDIATE")
            for table, rows in (("columns", columns), ("rows", found)):
                marks = ", ".join("?" * (7 if table == "columns" else 9))
                connection.executemany(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", rows)
            connection.execute("COMMIT")
        connection.close()

    def remove(self, row_ids: Iterable[SupportsInt]) -> None:
        """Remove rows, so that they are computed again."""
        gone = [(int(row_id),) for row_id in row_ids]
        if gone:
            with database_errors(self.path):
                self._begin()
                self._connection.executemany("DELETE FROM rows WHERE id=?", gone)
            self.__dict__.pop("index", None)

    def forget(self, column: Column, samples: Int64[ndarray, " n"]) -> None:
        """Remove the rows of samples that are others by now."""
        ids, _ = self.find(column, samples)
        self.remove(ids[ids >= 0])

    def add(self, rows: Sequence[StoreRow]) -> None:
        """Keep rows and their maps; they are committed now, or with some that come soon.

        Raises OSError where they cannot be written: then none of these rows is kept.
        """
        if not rows:
            return
        self.__dict__.pop("index", None)
        self._mapped.clear()  # the files grow
        with database_errors(self.path):
            self._begin()
            self._connection.execute("SAVEPOINT rows_before")
            try:
                values = self._values(rows)
                self._connection.executemany(
                    f"INSERT INTO rows({ROW[4:]}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values
                )
                self._connection.execute("RELEASE rows_before")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK TO rows_before")
                    self._connection.execute("RELEASE rows_before")
                    self._forget_new_columns()
                raise
        if time.monotonic() >= self._next_commit:
            self.commit()

    def commit(self) -> None:
        """Bring all rows that were added to the disk, their maps first. Raises OSError."""
        if not self._connection.in_transaction:
            return
        start = time.monotonic()
        try:
            for maps in self._files.values():
                maps.sync()
            with database_errors(self.path):
                self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._forget_new_columns()
            raise
        end = time.monotonic()
        self._next_commit = end + COMMIT_SHARE * (end - start)

    def finish(self, samples: int) -> None:
        """Mark this shard as done with the list of samples of this number."""
        with database_errors(self.path):
            self._begin()
            self._connection.execute("DELETE FROM finished")
            self._connection.execute("INSERT INTO finished(samples) VALUES (?)", (samples,))
        self.commit()

    def close(self) -> None:
        """Commit what was added, and close the files."""
        if self._closed:
            return
        self._closed = True
        try:
            self.commit()
        finally:
            for maps in self._files.values():
                maps.close()
            super().close()

    def __enter__(self) -> "Store":
        return self

    def _begin(self) -> None:
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")

    def _values(self, rows: Sequence[StoreRow]) -> list[tuple[Any, ...]]:
        """Write the maps of rows; return the rows as the table has them."""
        maps = self._write_maps(rows)
        values = []
        for row, (slot, exponent, crc) in zip(rows, maps, strict=True):
            record = _ENCODER.encode(row.record).encode()
            number = self._number(row.column, record)
            deflate = zlib.compressobj(**DEFLATE, zdict=self._dictionaries[number])
            content = deflate.compress(record) + deflate.flush()
            known = sample_number(row.sample), row.content, content, slot, exponent, crc
            values.append((number, *known, _row_crc(row.column.key, *known)))
        return values

    def _write_maps(self, rows: Sequence[StoreRow]) -> list[tuple[int | None, int, int]]:
        """Write the maps of rows; of each row the slot, the exponent and the CRC, if it has one."""
        found: list[tuple[int | None, int, int]] = [(None, 0, 0)] * len(rows)
        places: dict[str, list[tuple[int, ndarray, int]]] = {}
        for place, row in enumerate(rows):
            if row.map is not None:
                values, exponent = packed(row.map) if self._half else (row.map, 0)
                values = np.ascontiguousarray(values, "<f2" if self._half else "<f4")
                places.setdefault(row.column.method, []).append((place, values, exponent))
        for method, maps in places.items():
            slots = self._map_file(method, maps[0][1]).write([values for _, values, _ in maps])
            for slot, (place, values, exponent) in zip(slots, maps, strict=True):
                found[place] = slot, exponent, _signed(map_crc(values))
        return found

    def _number(self, column: Column, record: bytes) -> int:
        """The column's number in the file; a new one gets its first record as its dictionary."""
        if column.key not in self._numbers:
            settings = json.dumps(dict(column.settings), sort_keys=True, default=repr)
            values = column.key, column.kind, column.method, settings, record[-4000:]
            number = self._connection.execute(
                "INSERT INTO columns(key, kind, method, settings, dictionary, crc) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (*values, _column_crc(*values)),
            ).lastrowid
            assert number is not None
            self._numbers[column.key], self._columns[number] = number, column
            self._keys[number], self._dictionaries[number] = column.key, record[-4000:]
        return self._numbers[column.key]

    def _forget_new_columns(self) -> None:
        """Forget columns that were rolled back."""
        self.__dict__.pop("index", None)
        with database_errors(self.path):
            kept = {number for (number,) in self._connection.execute("SELECT id FROM columns")}
        for number in set(self._columns) - kept:
            del self._columns[number], self._dictionaries[number]
            del self._numbers[self._keys.pop(number)]

    def _map_file(self, method: str, values: ndarray) -> MapFile:
        name = map_name(method, self.shard)
        if name not in self._files:
            with naming(self.folder / name):
                (self.folder / name).unlink(missing_ok=True)
            self._files[name] = MapFile(self.folder / name, values.shape, values.dtype)
        return self._files[name]


class MemoryStore:
    """Rows that are kept while this process runs, in the way of a `Store`.

    Examples:
        >>> from vision_attn.runs.store import Column, MemoryStore, StoreRow
        >>> store = MemoryStore()
        >>> store.add([StoreRow(Column("maps", "Rollout"), "a.png", {"target": 3})])
        >>> [row.record for row in store.kept()]
        [{'target': 3}]
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int], StoreRow] = {}

    def add(self, rows: Sequence[StoreRow]) -> None:
        """Keep rows."""
        for row in rows:
            self._rows[row.column.key, sample_number(row.sample)] = row

    def commit(self) -> None:
        """Do nothing: what is added is kept."""

    def find(
        self, column: Column, samples: Int64[ndarray, " n"]
    ) -> tuple[Int64[ndarray, " n"], Int64[ndarray, " n"]]:
        """Say of each sample 0 where it has a row, else -1, and what its content was."""
        found = [self._rows.get((column.key, number)) for number in samples.tolist()]
        ids = np.array([-1 if row is None else 0 for row in found], np.int64)
        contents = [0 if row is None else row.content for row in found]
        return ids, np.array(contents, np.int64)

    def forget(self, column: Column, samples: Int64[ndarray, " n"]) -> None:
        """Remove the rows of samples that are others by now."""
        for number in samples.tolist():
            self._rows.pop((column.key, number), None)

    def kept(self, columns: Sequence[Column] | None = None) -> Iterator[StoreRow]:
        """Yield every row of these columns; None: of all columns."""
        wanted = None if columns is None else {column.key for column in columns}
        for (key, _), row in self._rows.items():
            if wanted is None or key in wanted:
                yield row


def _readable(connection: sqlite3.Connection, names: str, table: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a damaged table that can be read, stepping over those that cannot."""
    last, step = -(1 << 62), 1
    while step < 1 << 40:
        try:
            cursor = connection.execute(
                f"SELECT {names} FROM {table} WHERE id > ? ORDER BY id", (last,)
            )
            for row in cursor:
                if not isinstance(row[0], int) or row[0] <= last:
                    raise sqlite3.DatabaseError("a circle")
                yield row
                last, step = row[0], 1
            return
        except sqlite3.DatabaseError:
            last, step = max(last, 0) + step, 2 * step


def _row_crc(
    key: int, sample: int, content: int, record: bytes, slot: int | None, exponent: int, crc: int
) -> int:
    """CRC-32 of the values of a row, its map's CRC among them, as SQLite keeps it in 4 bytes."""
    head = struct.pack("<4q2i", key, sample, content, -1 if slot is None else slot, exponent, crc)
    return _signed(crc32(record, crc32(head)))


def _column_crc(key: int, kind: str, method: str, settings: str, dictionary: bytes) -> int:
    text = "\0".join((kind, method, settings)).encode(errors="surrogatepass")
    return _signed(crc32(dictionary, crc32(text, crc32(struct.pack("<q", key)))))


def _signed(crc: int) -> int:
    return crc - (1 << 32) if crc >> 31 else crc
