"""Results read back lazily from a store: rows of plain values, and raw maps as NumPy arrays.

Axes: n photos, m rows, h, w a map.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from jaxtyping import Float, Int64
from numpy import ndarray

from vision_attn.arguments import checked
from vision_attn.errors import quoted
from vision_attn.files import replacing
from vision_attn.runs.database import DamagedError, StoppedError
from vision_attn.runs.entries import as_line
from vision_attn.runs.keys import sample_number, sample_numbers
from vision_attn.runs.mapfile import saved_map
from vision_attn.runs.rows import DRAWN, FILM
from vision_attn.runs.runfile import RunFile, read_run
from vision_attn.runs.shard import Column, ShardFile, shard_path

if TYPE_CHECKING:
    import pyarrow

__all__ = ["SavedMaps", "SavedResults", "export_lines", "open_results", "unfinished_shards"]


@checked()
def open_results(folder: str | PathLike[str]) -> "SavedResults":
    """Open what `explain` or `score` left in a folder, without reading it.

    Args:
        folder: The folder of the run.

    Returns:
        A sequence of rows: of `explain`, one for each photo (or frame) and method, as in
        results.jsonl; of `score`, one for each method and image.

    Raises:
        ValueError: There are no results, they are not finished, or their files are damaged.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from vision_attn.runs.results import open_results
        >>> from vision_attn.runs.runfile import RunFile, write_run
        >>> from vision_attn.runs.shard import Column, StoreRow
        >>> from vision_attn.runs.store import Store
        >>> rollout = Column("map", "Rollout")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = RunFile({"what": "explain"}, ["a.png"], columns=[rollout.key])
        ...     write_run(Path(folder), run)
        ...     with Store(Path(folder)) as store:
        ...         store.add([StoreRow(rollout, "a.png", {"method": "Rollout"})])
        ...         store.finish(run.number)
        ...     results = open_results(folder)
        ...     len(results), results[0]
        (1, {'file': 'a.png', 'method': 'Rollout'})
    """
    path = Path(folder)
    if path.is_file():
        raise ValueError(f"{path}: expected a folder that explain or score wrote, got a file")
    run = read_run(path)
    if run is None and (run := read_run(path / "per_image")) is not None:
        path = path / "per_image"
    if run is None:
        raise ValueError(
            f"{path}: no results in this folder: expected what explain or score wrote, with store/"
        )
    if run.about.get("what") == "explain" and (left := unfinished_shards(path, run)):
        raise ValueError(
            f"{path}: no results in this folder: {len(left)} shards are not finished: run the "
            "same command until all are done"
        )
    return SavedResults(path, run)


def unfinished_shards(folder: Path, run: RunFile) -> list[int]:
    """Name the shards of a run that have not finished. Raises DamagedError for a damaged one."""
    left = []
    for number in range(1, run.shards + 1):
        if not shard_path(folder, (number, run.shards)).is_file():
            left.append(number)
            continue
        try:
            with ShardFile(folder, (number, run.shards)) as shard:
                if shard.finished != run.number:
                    left.append(number)
        except StoppedError:
            left.append(number)
    return left


def export_lines(results: "SavedResults") -> Path:
    """Write all rows of `explain` as results.jsonl, a line each; return its path."""
    path = results.folder / "results.jsonl"
    with replacing(path) as beside, beside.open("wb") as file:
        for row in results:
            file.write(as_line(row).encode(errors="replace"))
    return path


@dataclass(frozen=True)
class RowTable:
    """Where the rows of a run are, in the order of its samples and columns.

    Attributes:
        shards: Numbers from 0.
        ids: In their shard.
        samples: Numbers in the run's list.
        frames: Of a film, else -1.
    """

    shards: Int64[ndarray, " m"]
    ids: Int64[ndarray, " m"]
    columns: Int64[ndarray, " m"]
    samples: Int64[ndarray, " m"]
    slots: Int64[ndarray, " m"]
    exponents: Int64[ndarray, " m"]
    contents: Int64[ndarray, " m"]
    frames: Int64[ndarray, " m"]


class SavedResults(Sequence[dict[str, Any]]):
    """The rows of a folder of results, read from the disk as they are needed.

    `open_results` makes one.

    Args:
        folder: The folder.
        run: Its record of the run.

    Attributes:
        about: The model's classes, its preprocessing and the options.

    Examples:
        >>> import tempfile
        >>> import vision_attn
        >>> from PIL import Image
        >>> from vision_attn.data import Preprocess
        >>> from vision_attn.models import ViT
        >>> from vision_attn.types import Model
        >>> vit = ViT(image_size=16, patch_size=8, dim=8, depth=1, heads=2, num_classes=2).eval()
        >>> preprocess = Preprocess((16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
        >>> model = Model(vit, preprocess, ["cat", "dog"], vit.layout((16, 16)))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("RGB", (40, 24)).save(folder + "/a.png")
        ...     _ = vision_attn.gallery(model, folder + "/a.png", output=folder, save="maps")
        ...     results = vision_attn.open_results(folder)
        ...     [row["method"] for row in results.rows(contrast=None)], results.map(0).shape
        (['LibraGradient'], (2, 2))
    """

    def __init__(self, folder: Path, run: RunFile):
        self.folder, self.run = folder, run
        self.about = run.about
        self.shards: list[ShardFile] = []
        found = [(number, run.shards) for number in range(1, run.shards + 1)]
        if run.about.get("what") != "explain":  # score leaves files of every division of its work
            found = [_shard_of(path) for path in (folder / "store").glob("*-of-*.sqlite")]
            found.sort(reverse=True)  # what one process merged comes last, and counts
        for shard in found:
            if shard_path(folder, shard).is_file():
                self.shards.append(ShardFile(folder, shard))
        self._film: tuple[tuple[int, int], list[dict[str, Any]]] = ((-1, -1), [])
        self._columns: list[Column]  # by their rank
        self._rows, self._drawn = self._tables()

    def _tables(self) -> tuple[RowTable, RowTable]:
        """Find all rows: those of methods, and what was drawn of each photo."""
        numbers = sample_numbers(self.run.samples)
        order = np.argsort(numbers, kind="stable")
        ranks: dict[int, int] = {key: rank for rank, key in enumerate(self.run.columns)}
        by_key: dict[int, Column] = {}
        parts = [np.empty((0, 7), np.int64)]
        for place, shard in enumerate(self.shards):
            index = shard.index
            samples = np.searchsorted(numbers[order], index.samples)
            there = samples < len(numbers)
            samples[there] = order[samples[there]]
            there[there] = numbers[samples[there]] == index.samples[there]
            rank = np.full(len(samples), -1)
            for number, key in shard.keys.items():
                if key not in ranks and self.about.get("what") != "explain":
                    ranks[key] = len(ranks)
                rank[index.columns == number] = ranks.get(key, -1)
                by_key.setdefault(key, shard.columns[number])
            values = [np.full(len(samples), place), index.ids, rank, samples, index.slots]
            part = np.stack([*values, index.exponents, index.contents], axis=1)
            parts.append(part[there & (rank >= 0)])
        table = np.concatenate(parts)
        table = table[np.lexsort((table[:, 1], table[:, 0], table[:, 2], table[:, 3]))]
        if len(table) > 1:  # of two rows of one sample and column the later one counts
            table = table[np.append((np.diff(table[:, 2:4], axis=0) != 0).any(axis=1), True)]
        self._columns = [by_key.get(key, Column("", "")) for key in ranks]
        kinds = np.array([column.kind for column in self._columns] or [""])[table[:, 2]]
        frames = np.full(len(table), -1)
        methods = np.column_stack([table, frames])[kinds != DRAWN]
        if (kinds == FILM).any():
            methods = self._with_frames(methods, kinds[kinds != DRAWN])
        drawn = np.column_stack([table, frames])[kinds == DRAWN]
        return RowTable(*methods.T.copy()), RowTable(*drawn.T.copy())

    def _with_frames(self, table: ndarray, kinds: ndarray) -> ndarray:
        """Put a row for each frame and method in place of a film's."""
        parts = []
        for row, kind in zip(table, kinds, strict=True):
            if kind != FILM:
                parts.append(row[None])
                continue
            count = len(self.shards[row[0]].record(row[1]).get("records", ()))
            every = np.repeat(row[None], count, axis=0)
            every[:, -1] = np.arange(count)
            parts.append(every)
        return np.concatenate(parts)

    @property
    def classes(self) -> list[str]:
        """The model's classes, in the order of their indices."""
        return list(self.about.get("classes", []))

    @property
    def methods(self) -> list[str]:
        """The methods whose maps are kept, as they are written on the command line."""
        return list(self.about.get("asked", {}).get("methods", []))

    def __len__(self) -> int:
        return len(self._rows.ids)

    @overload
    def __getitem__(self, item: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, item: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, item: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(item, slice):
            return [self[place] for place in range(*item.indices(len(self)))]
        place = range(len(self))[item]
        rows = self._rows
        numbers = (rows.shards[place], rows.ids[place], rows.frames[place])
        record = self._record(*map(int, numbers))
        if self.about.get("what") != "explain":
            return record
        row = {"file": self.run.samples[rows.samples[place]]} | record
        if rows.slots[place] >= 0:
            row["row"] = int(rows.slots[place])
        if rows.exponents[place]:
            row["map_scale"] = 2.0 ** int(rows.exponents[place])
        return row

    def _record(self, shard: int, row_id: int, frame: int) -> dict[str, Any]:
        if frame < 0:
            return self.shards[shard].record(row_id)
        if self._film[0] != (shard, row_id):
            records = self.shards[shard].record(row_id)["records"]
            self._film = (shard, row_id), records
        return dict(self._film[1][frame])

    def rows(self, **equal: Any) -> Iterator[dict[str, Any]]:
        """Yield some of the rows.

        Args:
            equal: Values that they must have: `rows(predicted="tench", method="Rollout")`.
        """
        for row in self:
            if all(row.get(name) == value for name, value in equal.items()):
                yield row

    def first_rows(self) -> list[int]:
        """List the number of the first row of each photo."""
        samples = self._rows.samples
        return np.flatnonzero(np.diff(samples, prepend=-1)).tolist()

    def method(self, place: int) -> str:
        """Name the method of a row as it is written on the command line.

        Args:
            place: The row's number.
        """
        return self._columns[self._rows.columns[place]].method

    def content(self, place: int) -> int:
        """The number of the content that a row's photo had; see `keys.content_number`.

        Args:
            place: The row's number.
        """
        return int(self._rows.contents[place])

    @checked()
    def map(self, row: dict[str, Any] | int) -> Float[ndarray, "h w"]:
        """Read the raw map of a row.

        Args:
            row: The row, which is known by its file, its method with options, and its frame; or its
                number.

        Returns:
            The map, (h w).

        Raises:
            ValueError: There is no such row, no map of it was kept, or it is damaged.
        """
        place = range(len(self))[row] if isinstance(row, int) else self._place(row)
        rows = self._rows
        if rows.slots[place] >= 0:
            return self.shards[rows.shards[place]].map(rows.ids[place])
        known = self[place]
        picture = known.get("picture")
        path = None if picture is None else (self.folder / picture).with_suffix(".npy")
        if path is None or not path.is_file():
            raise ValueError(
                f"{self.folder}: no map of {known.get('file', 'this row')} was kept: "
                "explain --save maps (or both) keeps them"
            )
        values, frame = saved_map(path), known.get("frame")
        if values.ndim != (2 if frame is None else 3) or not 0 <= (frame or 0) < len(values):
            raise ValueError(f"{path}: damaged (no map of {quoted(frame)} in {values.shape})")
        return np.asarray(values if frame is None else values[frame], np.float32)

    def _place(self, row: dict[str, Any]) -> int:
        """Find a row by what it says of itself."""
        file = row.get("file", row.get("image"))
        number = sample_number(file) if isinstance(file, str) else None
        names = ("method", "options", "frame", "kind")
        if number is not None:
            same = np.flatnonzero(self._numbers == number)
            for sample in same:
                start, end = np.searchsorted(self._rows.samples, [sample, sample + 1])
                for place in range(start, end):
                    known = self[place]
                    if all(known.get(name) == row.get(name) for name in names):
                        return place
        words = ", ".join(f"{name} {row.get(name)!r}" for name in ("file", "method", "options"))
        raise ValueError(f"{self.folder}: no such row: {words}"[:500])

    @property
    def _numbers(self) -> Int64[ndarray, " n"]:
        if "_sample_numbers" not in self.__dict__:
            self._sample_numbers = sample_numbers(self.run.samples)
        return self._sample_numbers

    @checked()
    def maps(self, method: str) -> "SavedMaps":
        """Open the maps of a method, of all photos in their order.

        Args:
            method: As it is written on the command line; without its options, where only one
                method of that name was used.

        Raises:
            ValueError: No maps of this method were kept, or a file of them is not there.
        """
        known = ", ".join(self.methods) or "none"
        named = [one for one in self.methods if one.partition("(")[0] == method]
        if method not in self.methods and len(named) == 1:
            method = named[0]
        rows = self._rows
        mine = [rank for rank, column in enumerate(self._columns) if column.method == method]
        chosen = np.isin(rows.columns, mine) & (rows.slots >= 0)
        if not chosen.any():
            raise ValueError(f"no maps of {quoted(method)} in {self.folder}: there are {known}")
        ids = np.full(len(self.run.samples), -1)
        ids[rows.samples[chosen]] = rows.ids[chosen]
        places = np.zeros(len(ids), np.int64)
        places[rows.samples[chosen]] = rows.shards[chosen]
        arrays = []
        for shard in self.shards:
            number = [n for n, column in shard.columns.items() if column.method == method]
            arrays += [shard.maps_of(number[0])] if number else []
        return SavedMaps(arrays, self.shards, ids, places)

    def drawn(self) -> Iterator[dict[str, Any]]:
        """Yield the row of the gallery of each photo that was drawn for a page; see `Entry`."""
        for shard, row_id in zip(self._drawn.shards, self._drawn.ids, strict=True):
            if row := self.shards[shard].record(row_id)["row"]:
                yield row

    def table(self) -> "pyarrow.Table":
        """Read all rows as a table in columns: of results.parquet, or of the store.

        Raises:
            ValueError: pyarrow is not installed.
        """
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            raise ValueError(
                "a table in columns needs pyarrow: pip install 'vision-attn[parquet]'"
            ) from None
        whole = self.folder / "results.parquet"
        if whole.is_file():
            return parquet.read_table(whole)
        rows = list(self)
        names = dict.fromkeys(name for row in rows for name in row)
        return pyarrow.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])

    def close(self) -> None:
        """Close the files."""
        for shard in self.shards:
            shard.close()

    def __enter__(self) -> "SavedResults":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SavedResults({str(self.folder)!r}, {len(self)} rows)"


class SavedMaps(Sequence[Float[ndarray, "h w"]]):
    """Maps of one method in the order of the photos, read as they are needed; NaN for none.

    A map whose CRC is wrong raises ValueError.

    Args:
        arrays: The memory maps themselves, float16 (maps, h, w), one a shard; a row says by `row`
            which of them is its own.
        shards: The files of the rows.
        ids: The number of each photo's row in its file; -1 where there is none.
        places: Which of the files that is.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.runs.results import SavedMaps
        >>> len(SavedMaps([], [], np.zeros(0, int), np.zeros(0, int)))
        0
    """

    def __init__(
        self,
        arrays: Sequence[ndarray],
        shards: Sequence[ShardFile],
        ids: Int64[ndarray, " n"],
        places: Int64[ndarray, " n"],
    ):
        self.arrays, self._shards = list(arrays), shards
        self._ids, self._places = ids, places

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, item: int) -> Float[ndarray, "h w"]: ...
    @overload
    def __getitem__(self, item: slice) -> list[Float[ndarray, "h w"]]: ...
    def __getitem__(self, item: int | slice) -> Any:
        if isinstance(item, slice):
            return [self[place] for place in range(*item.indices(len(self)))]
        place = range(len(self))[item]
        if self._ids[place] < 0:
            return np.full(self.arrays[0].shape[1:], np.nan, np.float32)
        return self._shards[self._places[place]].map(self._ids[place])


def _shard_of(path: Path) -> tuple[int, int]:
    number, _, shards = path.stem.partition("-of-")
    try:
        return int(number), int(shards)
    except ValueError:
        raise DamagedError(f"{path}: not a file of the store: remove it") from None
