"""The rows of a split: in the memory-mapped files of the library `datasets`, or in Parquet."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vision_attn.data.photos import Names, Photos
from vision_attn.data.row_groups import RowGroupPhotos, RowGroups, index_files, schema_features
from vision_attn.data.rows import RowPhotos

__all__ = ["MappedSplit", "ParquetSplit", "Split", "file_version", "mapped_splits"]


class Split(ABC):
    """The rows of a split: their columns (features), and plain values that change with them.

    Examples:
        >>> from vision_attn.data.row_splits import Split
        >>> sorted(Split.__abstractmethods__)  # what a subclass has to say
        ['labels', 'photos']
    """

    features: Mapping[str, Any]
    about: list[Any]

    @abstractmethod
    def labels(self, column: str) -> list[Any]:
        """Read the labels of all rows."""

    @abstractmethod
    def photos(self, column: str, where: str) -> Photos:
        """The photos of all rows, after their labels were read."""


class MappedSplit(Split):
    """Rows in the library's memory-mapped files, a `datasets.Dataset`.

    Examples:
        >>> from datasets import Dataset
        >>> from vision_attn.data.row_splits import MappedSplit
        >>> MappedSplit(Dataset.from_dict({"label": [2, 0]})).labels("label")
        [2, 0]
    """

    def __init__(self, rows: Any) -> None:
        self.rows, self.features = rows, rows.features
        files = [cache_file["filename"] for cache_file in rows.cache_files]
        self.about = [[(file, file_version(file)) for file in files], len(rows)]

    def labels(self, column: str) -> list[Any]:
        return list(self.rows.with_format(None)[column][:])

    def photos(self, column: str, where: str) -> Photos:
        import datasets

        rows = self.rows
        if isinstance(rows.features[column], datasets.Image):
            rows = rows.cast_column(column, datasets.Image(decode=False))
        names = Names(f"{where} row {row}" for row in range(len(rows)))
        return RowPhotos(_Cells(rows.select_columns([column]), column), names, column)


class _Cells:
    """A column of a data set by the number of the row."""

    def __init__(self, rows: Any, column: str) -> None:
        self._rows, self._column = rows, column

    def __getitem__(self, item: int) -> Any:
        return self._rows[item][self._column]


class ParquetSplit(Split):
    """Rows in Parquet files: the version of each by path or URL, and its columns if they are known.

    Args:
        index: The folder for the index of the labels.
        window: See `Blocks`.

    Examples:
        >>> from pathlib import Path
        >>> from vision_attn.data.row_splits import ParquetSplit
        >>> split = ParquetSplit({"a.parquet": "1"}, {"label": None}, Path(".cache"), window=2048)
        >>> split.about
        [('a.parquet', '1')]
    """

    def __init__(self, files: dict[str, str], features: Any, index: Path, window: int) -> None:
        self.files, self.index, self.window = files, index, window
        self.features = features or schema_features(next(iter(files)))
        self.about = list(files.items())
        self._table: list[tuple[int, int, int]] = []

    def labels(self, column: str) -> list[Any]:
        self._table, labels = index_files(self.files, column, self.index)
        return labels

    def photos(self, column: str, where: str) -> Photos:
        groups = RowGroups(list(self.files), self._table, column)
        return RowGroupPhotos(groups, where, self.window)


def file_version(path: str) -> str:
    """What is another when a file is: its size and time of change; "" for no file of this machine.

    Examples:
        >>> from vision_attn.data.row_splits import file_version
        >>> file_version("https://example.org/a.parquet")
        ''
    """
    try:
        about = os.stat(path)
    except OSError:
        return ""
    return f"{about.st_size} {about.st_mtime_ns}"


def mapped_splits(loaded: Any) -> dict[str, Split]:
    """The splits of what `datasets.load_dataset` gives, by name; a single one is `train`."""
    splits = loaded if isinstance(loaded, Mapping) else {"train": loaded}
    return {str(name): MappedSplit(rows) for name, rows in splits.items()}
