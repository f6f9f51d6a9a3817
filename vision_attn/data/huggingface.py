"""Data sets of the `datasets` library: Parquet, Arrow, folders, or a name on its hub."""

import hashlib
import json
from contextlib import nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from vision_attn.compat.download import hub_reached_or_left
from vision_attn.data.photo_sets import Part, PhotoSource
from vision_attn.data.row_splits import ParquetSplit, Split, file_version, mapped_splits
from vision_attn.data.sources import DataError
from vision_attn.data.split_names import part_of
from vision_attn.data.storage import Storage
from vision_attn.errors import quoted

__all__ = ["HuggingFace"]

KINDS = {".parquet": "parquet", ".arrow": "arrow", ".csv": "csv", ".json": "json"}


@dataclass(eq=False)
class HuggingFace(PhotoSource):
    """A data set of the library `datasets`: `pip install 'vision-attn[datasets]'`.

    The library copies what it opens to its own cache, and maps that into memory. Files, or else
    their folders, begin with the name of their split. The options by keyword that are not listed
    are those of `ImageFolder`.

    Args:
        path: A folder or a glob of Parquet or Arrow files below the root folder (or absolute), a
            folder that `save_to_disk` wrote, or a name on the hub.
        name: Of the data set's configuration.
        image: The column of the photos.
        label: The column of the labels: a label is a class (a ClassLabel, a whole number or a
            word), or a list of them, with which a photo has any number of classes.
        train: The split of the training images.
        val: The split of the validation images; None takes a usual name where there is one, else a
            part is held out of `train`.
        test: The split of the test images; None: as of `val`.
        classes: Their names, for numbers without.
        streaming: Whether to read Parquet in place instead, here or on the hub, and keep nothing
            but the labels. A photo is then read with its row group. So an epoch takes the row
            groups in a new order, each once: let the rows lie shuffled in the files. Each process
            of a run reads all row groups.
        window: About how many photos an epoch mixes, if it is streamed.
        revision: A commit, tag or branch on the hub; None: the newest at each start.

    Raises:
        ValueError: An option is out of range.

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
    streaming: bool = False
    window: int = 2048
    revision: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 0:
            raise ValueError(f"window must be at least 0, got {self.window}")
        self._address = ""

    def place(self, root: Path) -> Path:
        return root / f"{Path(self.path.replace('*', '')).name or 'set'}-{self._address}"

    def prepare(self, root: Path) -> None:
        splits = self._splits(root)
        if self.streaming:
            self._columns(splits)  # the index of the labels, which all processes read

    def parts(self, root: Path) -> tuple[dict[str, Part], list[str]]:
        splits = self._splits(root)
        about = json.dumps([split.about for split in splits.values()])
        self._address = hashlib.sha256(about.encode()).hexdigest()[:8]
        names, labels = self._labels(splits)
        return {
            part: Part(
                split.photos(self.image, f"{self.path} {part}"),
                labels[part],
                f"{self.path}, {part}",
            )
            for part, split in splits.items()
        }, names

    def _splits(self, root: Path) -> dict[str, Split]:
        """The splits that are wanted, or usual, by the part that each one is."""
        available = self._open(root)
        splits: dict[str, Split] = {}
        for part, wanted in {"train": self.train, "val": self.val, "test": self.test}.items():
            named = [name for name in available if name == wanted] or [
                name for name in available if wanted in (None, part) and part_of(name) == part
            ]
            if wanted is not None and not named:
                raise DataError(
                    f"{self.path}: no split {quoted(wanted)}: there are {', '.join(available)}"
                )
            if named:
                splits[part] = available[named[0]]
        return splits

    def _storage(self, root: Path, parts: dict[str, Part]) -> Storage:
        if self.streaming and self.storage == "auto":
            return "stream"
        return super()._storage(root, parts)

    def _open(self, root: Path) -> dict[str, Split]:
        """The splits by name."""
        try:
            import datasets
        except ImportError:
            raise DataError(
                "HuggingFace needs the library datasets: pip install 'vision-attn[datasets]'"
            ) from None
        local = root / self.path
        saved = (local / "dataset_dict.json").is_file() or (local / "state.json").is_file()
        if saved and self.streaming:
            raise DataError(
                f"{self.path}: a folder of save_to_disk is read in place anyway: leave out "
                "`streaming`"
            )
        try:
            if saved:
                return mapped_splits(datasets.load_from_disk(str(local)))
            files = _files(local)
            kind = KINDS.get(files[0].suffix) if files else None
            what: dict[str, Any] = {
                "path": self.path,
                "name": self.name,
                "revision": self.revision,
            }
            if kind:
                what = {"path": kind, "data_files": _by_split(files, local)}
            elif local.is_dir():
                what = {"path": str(local), "name": self.name}
            on_hub = not kind and not local.is_dir()
            with hub_reached_or_left() if on_hub else nullcontext():
                if not self.streaming:
                    return mapped_splits(datasets.load_dataset(**what))
                return self._in_place(datasets.load_dataset_builder(**what), root)
        except DataError:
            raise
        except Exception as error:  # of any library below it
            text = " ".join(str(error).split())[:300]
            raise DataError(
                f"{self.path}: the data set cannot be opened ({type(error).__name__}: {text}): "
                "expected Parquet or Arrow files below the root folder, a folder of save_to_disk, "
                "or a name on the hub"
            ) from error

    def _in_place(self, builder: Any, root: Path) -> dict[str, Split]:
        """The splits of a builder whose files are Parquet."""
        splits: dict[str, Split] = {}
        for split, files in (builder.config.data_files or {}).items():
            other = next((file for file in files if not file.endswith(".parquet")), None)
            if other:
                break
            etags = [str(version) if version else "" for version in files.origin_metadata]
            versions = {
                str(file): file_version(str(file)) or version
                for file, version in zip(files, etags, strict=True)
            }
            splits[str(split)] = ParquetSplit(
                versions,
                builder.info.features,
                Path(self.cache or root / ".cache") / "rows",
                self.window,
            )
        else:
            if splits:
                return splits
            other = "no data files"
        raise DataError(
            f"{self.path}: `streaming` reads Parquet, got {other}: leave it out, or write the set "
            "with to_parquet"
        )

    def _columns(self, splits: dict[str, Split]) -> dict[str, list[Any]]:
        """The labels of each part as they are written."""
        columns = {}
        for part, split in splits.items():
            for column in (self.image, self.label):
                if column not in split.features:
                    existing = list(split.features)
                    near = get_close_matches(column, existing, 3) or existing[:5]
                    raise DataError(
                        f"{self.path}, {part}: no column {quoted(column)}: there are "
                        f"{', '.join(near)}"
                    )
            columns[part] = split.labels(self.label)
        return columns

    def _labels(self, splits: dict[str, Split]) -> tuple[list[str], dict[str, np.ndarray]]:
        """The classes, and the labels of each part as numbers, or 0 and 1 for each class."""
        columns = self._columns(splits)
        feature = splits["train"].features[self.label]
        whole = {part: _whole_numbers(values) for part, values in columns.items()}
        if all(numbers is not None for numbers in whole.values()):
            table = {part: numbers for part, numbers in whole.items() if numbers is not None}
            names = self._names(
                feature, {int(numbers.max(initial=0)) for numbers in table.values()}
            )
            worst = {part: int(numbers.max(initial=0)) for part, numbers in table.items()}
        else:
            names, table, worst = self._mixed_labels(feature, columns)
        for part, number in worst.items():
            if number >= len(names):
                raise DataError(
                    f"{self.path}, {part}: a label is {number}, but there are {len(names)} classes"
                )
        return names, table

    def _mixed_labels(
        self, feature: Any, columns: dict[str, list[Any]]
    ) -> tuple[list[str], dict[str, np.ndarray], dict[str, int]]:
        """The classes, the labels and the largest number of each part, of words, lists, or both."""
        first = next((value for value in columns["train"] if value is not None), None)
        several = isinstance(first, list)
        every = {
            part: values if several else [[value] for value in values]
            for part, values in columns.items()
        }
        self._check(every)
        names = self._names(
            feature, {label for rows in every.values() for row in rows for label in row}
        )
        words = {name: index for index, name in enumerate(names)}
        table, worst = {}, {}
        for part, values in every.items():
            numbers = [
                [words[label] if isinstance(label, str) else int(label) for label in row]
                for row in values
            ]
            worst[part] = max((label for row in numbers for label in row), default=0)
            if worst[part] < len(names):
                table[part] = (
                    _hot(numbers, len(names))
                    if several
                    else np.array([label for (label,) in numbers], int)
                )
        return names, table, worst

    def _check(self, every: dict[str, list[Any]]) -> None:
        for part, values in every.items():
            for index, row in enumerate(values):
                where = f"{self.path}, {part}, row {index}"
                if not isinstance(row, list):
                    raise DataError(
                        f"{where}: expected a list of classes in the column {quoted(self.label)}, "
                        "as in "
                        f"the first row of train, got {quoted(row)}"
                    )
                for label in row:
                    if not isinstance(label, int | str) or (isinstance(label, int) and label < 0):
                        raise DataError(
                            f"{where}: expected a class in the column {quoted(self.label)}, a "
                            "whole "
                            f"number from 0 or a word, got {quoted(label)}: correct it, or name a "
                            "split "
                            f"that has classes with `{part}`"
                        )

    def _names(self, feature: Any, labels: set[Any]) -> list[str]:
        inner = getattr(feature, "feature", feature)
        names = self.classes or getattr(inner, "names", None)
        if names:
            return list(names)
        if not labels:
            raise DataError(
                f"{self.path}: no photo has a class in the column {quoted(self.label)}: name the "
                "classes "
                "with `classes`, or another column"
            )
        if any(isinstance(label, str) for label in labels):
            return sorted(map(str, labels))
        return [str(number) for number in range(max(labels) + 1)]


def _whole_numbers(labels: list[Any]) -> np.ndarray | None:
    """Labels as an array, where all are whole numbers from 0; else None."""
    try:
        numbers = np.asarray(labels)
    except ValueError:  # lists of several lengths
        return None
    return (
        numbers
        if numbers.dtype.kind == "i" and numbers.ndim == 1 and (numbers >= 0).all()
        else None
    )


def _hot(numbers: list[list[int]], classes: int) -> np.ndarray:
    several = np.zeros((len(numbers), classes), np.float32)
    for row, indices in zip(several, numbers, strict=True):
        row[indices] = 1
    return several


def _files(local: Path) -> list[Path]:
    """The data files of a folder, of a glob, or the file itself."""
    if any(sign in str(local) for sign in "*?["):
        anchor = Path(local.anchor) if local.is_absolute() else Path()
        return sorted(anchor.glob(str(local.relative_to(anchor))))
    if local.is_dir():
        return sorted(file for file in local.rglob("*") if file.suffix in (".parquet", ".arrow"))
    return [local] if local.is_file() else []


def _by_split(files: list[Path], local: Path) -> dict[str, list[str]]:
    """Data files by the split that their names begin with, or else those of their folders."""
    files_by_split: dict[str, list[str]] = {}
    fixed = Path(*takewhile(lambda part: not any(sign in part for sign in "*?["), local.parts))
    for file in files:
        below = file.parent.relative_to(fixed).parts if file != fixed else ()
        words = [name.split("-")[0].split("_")[0].lower() for name in (file.stem, *below[::-1])]
        split = next((word for word in words if part_of(word) is not None), "train")
        files_by_split.setdefault(split, []).append(str(file))
    return files_by_split
