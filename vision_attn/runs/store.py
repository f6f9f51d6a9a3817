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
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, SupportsInt

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from vision_attn.files import naming
from vision_attn.runs.database import (
    DamagedError,
    connect,
    database_errors,
    open_limited,
)
from vision_attn.runs.keys import sample_number
from vision_attn.runs.mapfile import MapFile, map_crc, map_name, open_maps, packed
from vision_attn.runs.shard import (
    DEFLATE,
    ENCODER,
    ROW,
    SCHEMA,
    Column,
    ShardFile,
    StoreRow,
    column_crc,
    row_crc,
    signed,
)

__all__ = ["MemoryStore", "Store"]

COMMIT_SHARE = 20  # times as long as a commit takes, rows may wait for the next one


class Store(ShardFile):
    """The rows and maps of one shard, which this process alone writes.

    What is damaged is removed, so that it is computed again; of a file that cannot be read as a
    whole, the rows that can are kept.

    Args:
        wanted: The columns of this run; rows of others are removed, unless `keeps_others`.
        half: Whether to keep maps as float16 times a power of two, else as float32.

    Attributes:
        replaced: How many rows of other columns were removed, by their method.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from vision_attn.runs.shard import Column, StoreRow
        >>> from vision_attn.runs.store import Store
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
        self.replaced = Counter[str]()
        used: dict[int, list[int]] = {}  # slots of maps, by column
        for row in self._all_rows():
            if row[1] in kept and self._whole(row):
                used.setdefault(row[1], []).extend([] if row[5] is None else [row[5]])
            else:
                gone.append((row[0],))
                if row[1] in self._columns and row[1] not in kept:
                    self.replaced[self._columns[row[1]].method] += 1
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
            column = names.get(f"maps/{path.name}")
            if column is None:
                path.unlink()
                continue
            maps = open_maps(path)
            self._files[f"maps/{path.name}"] = MapFile(path, maps.shape[1:], maps.dtype)
            self._files[f"maps/{path.name}"].free(used[column])

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

        Raises:
            OSError: They cannot be written: then none of these rows is kept.
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
        """Bring all rows that were added to the disk, their maps first.

        Raises:
            OSError: They cannot be written.
        """
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
            record = ENCODER.encode(row.record).encode()
            number = self._number(row.column, record)
            deflate = zlib.compressobj(**DEFLATE, zdict=self._dictionaries[number])
            content = deflate.compress(record) + deflate.flush()
            known = sample_number(row.sample), row.content, content, slot, exponent, crc
            values.append((number, *known, row_crc(row.column.key, *known)))
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
                found[place] = slot, exponent, signed(map_crc(values))
        return found

    def _number(self, column: Column, record: bytes) -> int:
        """The column's number in the file; a new one gets its first record as its dictionary."""
        if column.key not in self._numbers:
            settings = json.dumps(dict(column.settings), sort_keys=True, default=repr)
            values = column.key, column.kind, column.method, settings, record[-4000:]
            number = self._connection.execute(
                "INSERT INTO columns(key, kind, method, settings, dictionary, crc) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (*values, column_crc(*values)),
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
        >>> from vision_attn.runs.shard import Column, StoreRow
        >>> from vision_attn.runs.store import MemoryStore
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
