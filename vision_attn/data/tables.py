"""Photos in a folder whose labels stand in a CSV file: one class a photo, or any number of them.

Axes: n photos, k classes.
"""

import csv
import logging
from collections import defaultdict
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path, PurePath

import numpy as np

from vision_attn.data.kinds import ENCODED
from vision_attn.data.listing import walk
from vision_attn.data.photo_sets import Part, PhotoSource
from vision_attn.data.photos import FilePhotos
from vision_attn.data.sources import DataError
from vision_attn.data.split_names import part_of
from vision_attn.errors import quoted

__all__ = ["ImageTable"]

log = logging.getLogger(__name__)

YES, NO = ("1", "1.0", "true", "yes"), ("", "0", "0.0", "-1", "false", "no")
Row = dict[str, str]


@dataclass(eq=False)
class ImageTable(PhotoSource):
    r"""Photos in a folder with labels from a CSV file with a header.

    The table's cells are divided by commas, semicolons or tabs. Labels are given in one of three
    ways:

    - One column, `label`: the class of each photo;
    - One column and a separator: the classes, such as "cat;dog", or none;
    - A column a class, `labels`, with 1 or 0 (true or false, yes or no).

    With the latter two a photo has any number of classes: its labels are 0 and 1 (k), for
    `training.MultiLabelCrossEntropy`. The options by keyword that are not listed are those of
    `ImageFolder`.

    Args:
        path: The photos' folder: lies in the root folder, or is absolute.
        table: The CSV file: lies in the folder `path`, or is absolute.
        image: The column of the photos' files, from `path` too; the suffix may be left out.
        label: The column of the class or classes.
        labels: The columns of the classes.
        separator: What divides the classes in a cell of `label`.
        split: A column that says train, val or test; None: the parts are drawn.
        classes: Only these, in this order; of `label` others are left out.

    Raises:
        ValueError: Labels are given in none of the ways or in two, or an option is out of range.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from vision_attn.data import ImageTable
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for i in range(4):
        ...         Image.new("RGB", (40, 30)).save(f"{folder}/{i}.png")
        ...     rows = "image,cat,dog\n0.png,1,0\n1.png,1,1\n2.png,0,1\n3.png,0,0\n"
        ...     _ = Path(folder, "labels.csv").write_text(rows)
        ...     photos = ImageTable(folder, f"{folder}/labels.csv", labels=["cat", "dog"], size=16)
        ...     splits = photos.load(Path(folder), val_fraction=0.25, seed=0)
        >>> splits.classes, len(splits.train), splits.train.labels.shape[1]
        (['cat', 'dog'], 2, 2)
    """

    path: str
    table: str
    image: str = "image"
    label: str | None = None
    labels: list[str] | None = None
    separator: str | None = None
    split: str | None = None
    classes: list[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.label is None) == (self.labels is None):
            raise ValueError(
                "expected either `label`, one column, or `labels`, one column for each class"
            )
        if self.separator is not None and not (self.label and self.separator):
            raise ValueError("a separator needs `label`, the column whose cells it splits")

    def place(self, root: Path) -> Path:
        return root / self.path

    def parts(self, root: Path) -> tuple[dict[str, Part], list[str]]:
        table = root / self.path / self.table
        rows = self._rows(table)
        classes = self._classes(rows)
        if len(classes) < (2 if self._one_class() else 1):
            raise DataError(f"{table}: expected at least two classes, got {', '.join(classes)}")
        class_indices = {name: index for index, name in enumerate(classes)}
        if self._one_class():
            if empty := sum(not self._cells(row) for _, row in rows):
                log.warning("%s: %d of %d rows have no class: left out", table, empty, len(rows))
            rows = [(line, row) for line, row in rows if self._cell(row) in class_indices]
        names: dict[str, list[str]] = {}
        labels: dict[str, list[np.ndarray]] = {}
        for line, row in rows:
            part = self._part(table, line, row)
            names.setdefault(part, []).append(row[self.image].strip())
            labels.setdefault(part, []).append(self._label(table, line, row, class_indices))
        if "train" not in names:
            raise DataError(f"{table}: no row belongs to the split train ({self.split})")
        folder = root / self.path
        files = {part: _files(table, folder, written) for part, written in names.items()}
        return {
            part: Part(FilePhotos(folder, files[part]), np.stack(labels[part]), f"{table}, {part}")
            for part in names
        }, classes

    def _one_class(self) -> bool:
        return self.labels is None and self.separator is None

    def _rows(self, table: Path) -> list[tuple[int, Row]]:
        """The rows with the numbers of their lines."""
        try:
            with table.open(newline="", encoding="utf-8-sig") as file:
                reader = csv.DictReader(file, strict=True, delimiter=_delimiter(file.readline()))
                file.seek(0)
                columns = reader.fieldnames = [name.strip() for name in reader.fieldnames or []]
                rows = [(reader.line_num, row) for row in reader]
        except FileNotFoundError:
            raise DataError(
                f"{table}: no such file: give the path of a CSV with a header, from the folder of "
                f"the photos ({self.path})"
            ) from None
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{table}: expected a CSV file in UTF-8 ({error})") from None
        for name in (self.image, self.label, *(self.labels or ()), self.split):
            if name is not None and name not in columns:
                near = get_close_matches(name, columns, 3) or columns[:5]
                raise DataError(f"{table}: no column {quoted(name)}: there are {', '.join(near)}")
        for line, row in rows:
            if None in row or None in row.values():
                raise DataError(
                    f"{table}, line {line}: expected {len(columns)} cells, as in the header"
                )
        if not rows:
            raise DataError(f"{table}: expected one row for each photo below the header, got none")
        return rows

    def _classes(self, rows: list[tuple[int, Row]]) -> list[str]:
        if self.labels is not None:
            return self.labels
        cells = {name for _, row in rows for name in self._cells(row)}
        for name in self.classes or ():
            if name not in cells:
                near = get_close_matches(name, cells, 3) or sorted(cells)[:3]
                raise DataError(
                    f"{self.table}: no class {quoted(name)}; the nearest: {', '.join(near)}"
                )
        return self.classes or sorted(cells)

    def _cell(self, row: Row) -> str:
        assert self.label is not None
        cell = row[self.label].strip()
        return "" if cell.casefold() == "nan" else cell  # as pandas writes it for nothing

    def _cells(self, row: Row) -> list[str]:
        cells = [self._cell(row)]
        if self.separator is not None:
            cells = [name.strip() for name in cells[0].split(self.separator)]
        return [name for name in cells if name]

    def _label(self, table: Path, line: int, row: Row, class_indices: dict[str, int]) -> np.ndarray:
        """The number of the row's class, or 0 and 1 for each class."""
        if self._one_class():
            return np.array(class_indices[self._cell(row)])
        several = np.zeros(len(class_indices), np.float32)
        if self.labels is None:
            for name in self._cells(row):
                if name in class_indices:
                    several[class_indices[name]] = 1
            return several
        for name, index in class_indices.items():
            cell = row[name].strip().lower()
            if cell not in YES + NO:
                raise DataError(
                    f"{table}, line {line}: expected 1 or 0 in the column {quoted(name)}, "
                    f"got {quoted(row[name])}"
                )
            several[index] = cell in YES
        return several

    def _part(self, table: Path, line: int, row: Row) -> str:
        if self.split is None:
            return "train"
        part = part_of(row[self.split])
        if part is None:
            raise DataError(
                f"{table}, line {line}: expected train, val or test in the column "
                f"{quoted(self.split)}, got {quoted(row[self.split])}"
            )
        return part


def _delimiter(header: str) -> str:
    """What divides the cells: a comma, or as some spreadsheets write it, a semicolon or a tab."""
    return "," if "," in header else max(";\t", key=header.count)


def _files(table: Path, folder: Path, written: list[str]) -> list[str]:
    """The photos' files, as a table writes them: also as Windows does, and without a suffix."""
    paths = [name.replace("\\", "/") if "\\" in name else name for name in written]
    bare = [name for name in paths if PurePath(name).suffix.casefold() not in ENCODED]
    if not bare or (folder / bare[0]).is_file():
        return paths
    stems: dict[str, list[str]] = defaultdict(list)
    for file in walk(folder):
        below = PurePath(file).relative_to(folder)
        stems[below.with_suffix("").as_posix()].append(below.as_posix())
    for name in bare:
        if len(several := stems.get(name, [])) > 1:
            raise DataError(
                f"{table}: {quoted(name)} may be {' or '.join(several[:3])}: write the suffix"
            )
    return [stems[name][0] if name in stems else name for name in paths]
