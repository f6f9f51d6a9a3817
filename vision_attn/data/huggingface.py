"""Data sets of the `datasets` library: Parquet, Arrow, folders, or a name on its hub."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vision_attn.data.images import ImageError, decode_image, open_encoded, open_image, read_image
from vision_attn.data.jpeg import jpeg_bytes
from vision_attn.data.photo_sets import Part, PhotoSource
from vision_attn.data.photos import Names, Photos
from vision_attn.data.sources import DataError

__all__ = ["HuggingFace", "RowPhotos"]

HELD_OUT = {"val": ("validation", "val", "valid", "dev"), "test": ("test",)}
KINDS = {".parquet": "parquet", ".arrow": "arrow", ".csv": "csv", ".json": "json"}


class RowPhotos(Photos):
    """Photos in a column of a data set of the `datasets` library, as it stores them.

    Examples:
        >>> from vision_attn.data.huggingface import RowPhotos
        >>> photos = RowPhotos([{"image": {"bytes": b"GIF", "path": "a.gif"}}], "image", "set")
        >>> photos.names[0]
        'set row 0'
    """

    def __init__(self, rows: Any, column: str, where: str) -> None:
        self.rows, self.column = rows, column
        self.names = Names(f"{where} row {place}" for place in range(len(rows)))

    def read(self, item: int, shorter_side: int | None = None) -> Image.Image:
        encoded, path = self._cell(item)
        if encoded is not None:
            return decode_image(encoded, self.names[item], shorter_side)
        return read_image(path, shorter_side)

    def jpeg(self, item: int) -> bytes | None:
        encoded, path = self._cell(item)
        return jpeg_bytes(Path(path)) if encoded is None else encoded

    def side(self, item: int) -> tuple[int, int]:
        encoded, path = self._cell(item)
        opened = open_image(path) if encoded is None else open_encoded(encoded, self.names[item])
        with opened as image:
            return image.size

    def stamp(self, item: int) -> tuple[int, int]:
        return 0, 0  # rows stay as they are: of other files the library makes another cache

    def _cell(self, item: int) -> tuple[bytes | None, str]:
        """The photo's encoded bytes, or the path of its file."""
        cell = self.rows[item][self.column]
        if isinstance(cell, Mapping):
            encoded, path = cell.get("bytes"), cell.get("path")
            if encoded is not None or path:
                return encoded, str(path)
        if isinstance(cell, bytes):
            return cell, ""
        raise ImageError(
            f"{self.names[item]}: expected an encoded image in the column {self.column!r}, "
            f"got {type(cell).__name__}"
        )


@dataclass(eq=False)
class HuggingFace(PhotoSource):
    """A data set of the library `datasets`: `pip install 'vision-attn[datasets]'`.

    path: a folder or a glob of Parquet or Arrow files below the root folder (or absolute), a folder
    that `save_to_disk` wrote, or a name on the hub. name: that of the configuration. image and
    label: the columns; a label is a class (a ClassLabel, a whole number or a word), or a list of
    them, with which a photo has any number of classes. train, val and test: its splits; None takes
    the usual names where they are, else a part is held out of `train`. classes: their names, for
    numbers without. The other options are those of `ImageFolder`; the rows themselves stay in the
    library's memory-mapped files.

    Examples:
        >>> from vision_attn.data import HuggingFace
        >>> source = HuggingFace("shards/*.parquet", image="img", size=64)  # reads nothing yet
    """

    path: str
    name: str | None = None
    image: str = "image"
    label: str = "label"
    train: str = "train"
    val: str | None = None
    test: str | None = None
    classes: list[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._address = ""

    def place(self, root: Path) -> Path:
        return root / f"{Path(self.path.replace('*', '')).name or 'set'}-{self._address}"

    def prepare(self, root: Path) -> None:
        self._open(root)

    def parts(self, root: Path) -> tuple[dict[str, Part], list[str]]:
        found = self._open(root)
        splits = {}
        for part, asked in {"train": self.train, "val": self.val, "test": self.test}.items():
            usual = (asked,) if asked is not None else HELD_OUT[part]
            named = [name for name in usual if name in found]
            if asked is not None and not named:
                raise DataError(f"{self.path}: no split {asked!r}: there are {', '.join(found)}")
            if named:
                splits[part] = found[named[0]]
        files = [[one["filename"] for one in rows.cache_files] for rows in splits.values()]
        told = json.dumps([files, [len(rows) for rows in splits.values()]])
        self._address = hashlib.sha256(told.encode()).hexdigest()[:8]
        names, raw = self._labels(splits)
        return {
            part: Part(self._photos(rows, part), raw[part], f"{self.path}, {part}")
            for part, rows in splits.items()
        }, names

    def _open(self, root: Path) -> dict[str, Any]:
        """The splits by name."""
        try:
            import datasets
        except ImportError:
            raise DataError(
                "HuggingFace needs the library datasets: pip install 'vision-attn[datasets]'"
            ) from None
        local = root / self.path
        try:
            if (local / "dataset_dict.json").is_file() or (local / "state.json").is_file():
                found = datasets.load_from_disk(str(local))
            else:
                files = _files(local)
                kind = KINDS.get(files[0].suffix) if files else None
                if kind:
                    data = _by_split(files)
                    found = datasets.load_dataset(kind, data_files=data)
                elif local.is_dir():
                    found = datasets.load_dataset(str(local), self.name)
                else:
                    found = datasets.load_dataset(self.path, self.name)
        except Exception as error:  # of any library below it
            text = " ".join(str(error).split())[:300]
            raise DataError(
                f"{self.path}: the data set cannot be opened ({type(error).__name__}: {text}): "
                "expected Parquet or Arrow files below the root folder, a folder of save_to_disk, "
                "or a name on the hub"
            ) from error
        return dict(found) if isinstance(found, Mapping) else {"train": found}

    def _photos(self, rows: Any, part: str) -> RowPhotos:
        import datasets

        if isinstance(rows.features[self.image], datasets.Image):
            rows = rows.cast_column(self.image, datasets.Image(decode=False))
        return RowPhotos(rows.select_columns([self.image]), self.image, f"{self.path} {part}")

    def _labels(self, splits: dict[str, Any]) -> tuple[list[str], dict[str, np.ndarray]]:
        """The classes, and the labels of each part as numbers, or 0 and 1 for each class."""
        columns = {}
        for part, rows in splits.items():
            for column in (self.image, self.label):
                if column not in rows.features:
                    known = list(rows.features)
                    near = get_close_matches(column, known, 3) or known[:5]
                    raise DataError(
                        f"{self.path}, {part}: no column {column!r}: there are {', '.join(near)}"
                    )
            columns[part] = rows.with_format(None)[self.label][:]
        first = next((value for value in columns["train"] if value is not None), None)
        several = isinstance(first, list)
        every = {
            part: [value if several else [value] for value in values]
            for part, values in columns.items()
        }
        self._check(every)
        names = self._names(splits["train"].features[self.label], every)
        words = {name: place for place, name in enumerate(names)}
        table = {}
        for part, values in every.items():
            numbers = [
                [words[one] if isinstance(one, str) else int(one) for one in row] for row in values
            ]
            worst = max((one for row in numbers for one in row), default=0)
            if worst >= len(names):
                raise DataError(
                    f"{self.path}, {part}: a label is {worst}, but there are {len(names)} classes"
                )
            table[part] = _hot(numbers, len(names)) if several else np.array(numbers, int)[:, 0]
        return names, table

    def _check(self, every: dict[str, list[list[Any]]]) -> None:
        for part, values in every.items():
            for place, row in enumerate(values):
                for one in row:
                    if not isinstance(one, int | str) or (isinstance(one, int) and one < 0):
                        raise DataError(
                            f"{self.path}, {part}, row {place}: expected a class in the column "
                            f"{self.label!r}, a whole number from 0 or a word, got {one!r}"
                        )

    def _names(self, feature: Any, every: dict[str, list[list[Any]]]) -> list[str]:
        inner = getattr(feature, "feature", feature)
        known = self.classes or getattr(inner, "names", None)
        if known:
            return list(known)
        found = {one for values in every.values() for row in values for one in row}
        if any(isinstance(one, str) for one in found):
            return sorted(map(str, found))
        return [str(number) for number in range(max(found) + 1)]


def _hot(numbers: list[list[int]], classes: int) -> np.ndarray:
    several = np.zeros((len(numbers), classes), np.float32)
    for row, places in zip(several, numbers, strict=True):
        row[places] = 1
    return several


def _files(local: Path) -> list[Path]:
    """The data files of a folder, of a glob, or the file itself."""
    if any(sign in str(local) for sign in "*?["):
        anchor = Path(local.anchor) if local.is_absolute() else Path()
        return sorted(anchor.glob(str(local.relative_to(anchor))))
    if local.is_dir():
        return sorted(file for file in local.rglob("*") if file.suffix in (".parquet", ".arrow"))
    return [local] if local.is_file() else []


def _by_split(files: list[Path]) -> dict[str, list[str]]:
    """Data files by the split that their names begin with, as the hub names them."""
    found: dict[str, list[str]] = {}
    usual = {alias: alias for names in HELD_OUT.values() for alias in names}
    for file in files:
        word = file.stem.split("-")[0].split("_")[0].lower()
        found.setdefault(usual.get(word, "train"), []).append(str(file))
    return found
