"""Results read back lazily: rows of plain values, and raw maps as NumPy arrays.

Axes: n photos, h, w a map.
"""

import json
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from jaxtyping import Float, Int64
from numpy import ndarray

from vision_attn.runs.naming import label

if TYPE_CHECKING:
    import pyarrow

__all__ = ["SavedMaps", "SavedResults", "open_results"]

MOST_OPEN = 64  # memory maps


def open_results(folder: str | PathLike[str]) -> "SavedResults":
    """Open what `explain` or `score` left in a folder, without reading it.

    Gives a sequence of rows: of `explain`, one for each photo (or frame) and method; of `score`,
    one for each method and image, as in per_image/. Raises ValueError where there are no results.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from vision_attn.runs.opened import open_results
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "results.jsonl").write_text('{"file": "a.png"}\\n')
        ...     results = open_results(folder)
        ...     len(results), results[0]
        (1, {'file': 'a.png'})
    """
    place = Path(folder)
    files = [place / "results.jsonl"]
    if not files[0].is_file():
        files = sorted((place / "per_image").glob("*.jsonl"))
    if not files:
        unfinished = sorted(place.glob("results.*-of-*.jsonl"))
        why = (
            f"{len(unfinished)} shards are not finished: run the same command until all are done"
            if unfinished
            else "expected results.jsonl of explain, or per_image/ of score"
        )
        raise ValueError(f"{place}: no results in this folder: {why}")
    return SavedResults(place, files)


class SavedResults(Sequence[dict[str, Any]]):
    """The rows of a folder of results, read from the disk as they are needed.

    about: the model's classes, its preprocessing and the settings; empty for pictures alone.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from vision_attn.runs.opened import open_results
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     lines = '{"file": "a.png", "predicted": "cat"}\\n{"file": "b.png"}\\n'
        ...     _ = Path(folder, "results.jsonl").write_text(lines)
        ...     [row["file"] for row in open_results(folder).rows(predicted="cat")]
        ['a.png']
    """

    def __init__(self, folder: Path, files: Sequence[Path]):
        self.folder, self.files = folder, list(files)
        self.about: dict[str, Any] = {}
        if (about := folder / "about.json").is_file():
            try:
                self.about = dict(json.loads(about.read_bytes()))
            except (ValueError, TypeError, RecursionError):
                raise ValueError(f"{about}: damaged: run the same command again") from None
        begins = [_begins(file) for file in self.files]
        self._first = np.cumsum([0, *map(len, begins)])
        self._begins = np.concatenate(begins)
        self._open: dict[str, ndarray] = {}

    @property
    def classes(self) -> list[str]:
        """The model's classes, in the order of their indices."""
        return list(self.about.get("classes", []))

    @property
    def methods(self) -> list[str]:
        """The methods whose maps are kept, as they are written on the command line."""
        return list(self.about.get("asked", {}).get("methods", []))

    def __len__(self) -> int:
        return len(self._begins)

    @overload
    def __getitem__(self, item: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, item: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, item: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(item, slice):
            return [self[place] for place in range(*item.indices(len(self)))]
        place = range(len(self))[item]
        number = int(np.searchsorted(self._first, place, side="right")) - 1
        with self.files[number].open("rb") as file:
            file.seek(int(self._begins[place]))
            return self._read(file.readline(), number)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number, path in enumerate(self.files):
            with path.open("rb") as file:
                for line in file:
                    if line.strip():
                        yield self._read(line, number)

    def rows(self, **equal: Any) -> Iterator[dict[str, Any]]:
        """Yield the rows whose values are these: `rows(predicted="tench", method="Rollout")`."""
        for row in self:
            if all(row.get(name) == value for name, value in equal.items()):
                yield row

    def map(self, row: dict[str, Any] | int) -> Float[ndarray, "h w"]:
        """Read the raw map of a row, or of the row of that number.

        Raises ValueError where no map of it was kept.
        """
        row = self[row] if isinstance(row, int) else row
        if "map" in row:
            values = self._mapped(row["map"])[row["row"]].astype(np.float32)
            return values * np.float32(row.get("map_scale") or 1.0)
        picture = row.get("picture")
        path = None if picture is None else (self.folder / picture).with_suffix(".npy")
        if path is None or not path.is_file():
            raise ValueError(
                f"{self.folder}: no map of {row.get('file', 'this row')} was kept: "
                "explain --save maps (or both) keeps them"
            )
        values = np.load(path, mmap_mode="r")
        return np.asarray(values[row["frame"]] if "frame" in row else values, np.float32)

    def maps(self, method: str) -> "SavedMaps":
        """Open the maps of a method, of all photos in their order.

        Files that no row belongs to, as a run of another number of shards leaves them, do not
        count. Raises ValueError for a method without maps.
        """
        known = ", ".join(self.methods) or "none"
        none = f"no maps of {method!r} in {self.folder}: there are {known}"
        if not any(_stem(path.name) == label(method) for path in self.folder.glob("maps/*.npy")):
            raise ValueError(none)
        scales: dict[tuple[str, int], float] = {}
        found = ""
        for row in self:
            if "map" in row and _stem(row["map"]) == f"maps/{label(method)}":
                found = row["map"]
                if row.get("map_scale"):
                    scales[found, row["row"]] = row["map_scale"]
        if not found:
            raise ValueError(none)
        shards = int(found.rsplit("-of-", 1)[1].removesuffix(".npy"))
        names = [f"{_stem(found)}.{number}-of-{shards}.npy" for number in range(1, shards + 1)]
        if missing := [name for name in names if not (self.folder / name).is_file()]:
            raise ValueError(
                f"no maps of {method!r} for all photos in {self.folder}: {missing[0]} is not "
                "there: read those of single rows with map(row)"
            )
        return SavedMaps([self._mapped(name) for name in names], names, scales)

    def table(self) -> "pyarrow.Table":
        """Read all rows as a table in columns: of results.parquet, or of the lines.

        Raises ValueError where pyarrow is not installed.
        """
        try:
            from pyarrow import json as lines
            from pyarrow import parquet
        except ImportError:
            raise ValueError(
                "a table in columns needs pyarrow: pip install 'vision-attn[parquet]'"
            ) from None
        import pyarrow

        whole = self.folder / "results.parquet"
        if whole.is_file():
            return parquet.read_table(whole)
        tables = [lines.read_json(file) for file in self.files if file.stat().st_size]
        return pyarrow.concat_tables(tables, promote_options="default")

    def _mapped(self, name: str) -> ndarray:
        if name not in self._open:
            if len(self._open) == MOST_OPEN:
                self._open.pop(next(iter(self._open)))
            self._open[name] = np.load(self.folder / name, mmap_mode="r")
        return self._open[name]

    def _read(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            return dict(json.loads(line))
        except (ValueError, TypeError, RecursionError):
            raise ValueError(
                f"{self.files[number]}: a damaged line: run the same command again"
            ) from None

    def __repr__(self) -> str:
        return f"SavedResults({str(self.folder)!r}, {len(self)} rows)"


class SavedMaps(Sequence[Float[ndarray, "h w"]]):
    """Maps of one method in the order of the photos, read as they are needed; NaN for none.

    arrays: the memory maps themselves, float16 (photos, h, w), one a shard.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.runs.opened import SavedMaps
        >>> maps = SavedMaps([np.zeros((2, 3, 5), np.float16), np.ones((1, 3, 5), np.float16)])
        >>> len(maps), float(maps[1].mean())  # number 1 is the first of the second shard
        (3, 1.0)
    """

    def __init__(
        self,
        arrays: Sequence[ndarray],
        names: Sequence[str] = (),
        scales: dict[tuple[str, int], float] | None = None,
    ):
        self.arrays, self._names, self._scales = list(arrays), list(names), scales or {}

    def __len__(self) -> int:
        return sum(map(len, self.arrays))

    @overload
    def __getitem__(self, item: int) -> Float[ndarray, "h w"]: ...
    @overload
    def __getitem__(self, item: slice) -> list[Float[ndarray, "h w"]]: ...
    def __getitem__(self, item: int | slice) -> Any:
        if isinstance(item, slice):
            return [self[place] for place in range(*item.indices(len(self)))]
        row, shard = divmod(range(len(self))[item], len(self.arrays))
        name = self._names[shard] if self._names else ""
        scale = self._scales.get((name, row), 1.0)
        return self.arrays[shard][row].astype(np.float32) * np.float32(scale)


def _stem(name: str) -> str:
    """The name of a file of maps without its shard: `maps/Rollout` of maps/Rollout.1-of-2.npy."""
    return name.rsplit(".", 2)[0]


def _begins(path: Path) -> Int64[ndarray, " n"]:
    """Where each line that is not empty begins."""
    ends, place = [np.empty(0, np.int64)], 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            ends.append(np.flatnonzero(np.frombuffer(chunk, np.uint8) == 10) + place)
            place += len(chunk)
    every = np.concatenate(ends)
    begins = np.concatenate([[0], every + 1])
    lengths = np.diff(np.append(begins, place)) if place else np.zeros(1, np.int64)
    return begins[lengths > 1].astype(np.int64)
