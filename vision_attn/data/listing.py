"""Folders of very many images listed: in order, as strings, again only where something changed.

The index of a tree keeps the names in each of its folders with the folder's time of change. A file
that comes, goes or gets another name changes that time; what is in a file does not.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

from vision_attn.data.kinds import holds_results, is_hidden, kind_of_file, say_passed_over
from vision_attn.files import write_text

__all__ = ["Tree", "walk"]

FORMAT = 3
Listed = tuple[int, list[str], list[str], dict[str, int]]  # when; folders, images, what is neither
SETTLED = 2.0  # seconds after a change; a folder that is younger may change in the same tick


def walk(folder: str | PathLike[str]) -> Iterator[str]:
    """Yield the image files below `folder`, at any depth, in order; hidden ones are left out.

    The order is that of `images_below`, and nothing is kept: a million files take no memory. At the
    end a line is logged that counts the files that cannot be read as images.
    """
    passed: Counter[str] = Counter()
    results: list[str] = []
    yield from _walk(os.fspath(folder), passed, results)
    say_passed_over(folder, passed, results)


def _walk(folder: str, passed: Counter[str], results: list[str]) -> Iterator[str]:
    inside, names, others = _listed(folder)
    passed.update(others)
    for name in sorted([*inside, *names]):
        path = os.path.join(folder, name)
        if name not in inside:
            yield path
        elif holds_results(path):
            results.append(path)
        else:
            yield from _walk(path, passed, results)


class Tree:
    """The images below a folder, by an index that is brought up to date.

    Args:
        folder: The folder.
        index: The file that keeps the index; None reads every folder each time.

    Attributes:
        read: How many folders were read when `files` last ran.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from vision_attn.data.listing import Tree
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Path(folder, "cat").mkdir()
        ...     for name in ("2.jpg", "1.jpg", "notes.txt"):
        ...         Path(folder, "cat", name).touch()
        ...     Tree(Path(folder)).files("cat")
        ['cat/1.jpg', 'cat/2.jpg']
    """

    def __init__(self, folder: Path, index: Path | None = None) -> None:
        self.folder, self.index = folder, index
        self.read = 0
        self._known: dict[str, Listed] = {}
        self._now: dict[str, Listed] = {}
        if index is not None:
            self._known = _kept(index)

    def files(self, below: str = "") -> list[str]:
        """List the images below a folder of the tree, as paths from the tree's own folder.

        A line is logged that counts the files there that cannot be read as images.
        """
        names: list[str] = []
        passed: Counter[str] = Counter()
        self._walk(below, names, passed)
        say_passed_over(self.folder / below, passed)
        return names

    def keep(self) -> None:
        """Write the index, of all that was listed, where it differs from what is there."""
        if self.index is None or self._now == self._known:
            return
        self.index.parent.mkdir(parents=True, exist_ok=True)
        folders = {name: list(entry) for name, entry in self._now.items()}
        write_text(self.index, json.dumps({"format": FORMAT, "folders": folders}))
        self._known = dict(self._now)

    def _walk(self, subfolder: str, files: list[str], passed: Counter[str]) -> None:
        inside, names, others = self._folder(subfolder)
        passed.update(others)
        if not inside:
            files += [f"{subfolder}/{name}" if subfolder else name for name in names]
            return
        among = set(inside)
        for name in sorted([*inside, *names]):
            path = f"{subfolder}/{name}" if subfolder else name
            if name in among:
                self._walk(path, files, passed)
            else:
                files.append(path)

    def _folder(self, subfolder: str) -> tuple[list[str], list[str], dict[str, int]]:
        path = self.folder / subfolder
        changed = path.stat().st_mtime_ns
        entry = self._known.get(subfolder)
        if entry is not None and entry[0] == changed:
            self._now[subfolder] = entry
        else:
            self.read += 1
            inside, names, others = _listed(os.fspath(path))
            settled = time.time() - changed / 1e9 > SETTLED
            self._now[subfolder] = changed if settled else -1, sorted(inside), sorted(names), others
        return self._now[subfolder][1:]


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    """Whether an entry is a folder; a link that leads in a circle is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _listed(folder: str) -> tuple[set[str], list[str], dict[str, int]]:
    """The folders in a folder, its images, and a count of what is neither by its suffix.

    Links to folders are not followed.
    """
    inside, names = set(), []
    others: Counter[str] = Counter()
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                inside.add(entry.name)
            elif not _is_folder(entry):
                is_image, kind = kind_of_file(entry.path, entry.name)
                if is_image:
                    names.append(entry.name)
                elif kind:
                    others[kind] += 1
    return inside, names, dict(others)


def _kept(index: Path) -> dict[str, Listed]:
    """The folders of an index; none of one that is missing, damaged or of another format."""
    try:
        content = json.loads(index.read_bytes())
        if content["format"] != FORMAT:
            return {}
        return {
            str(name): (int(changed), list(inside), list(names), dict(others))
            for name, (changed, inside, names, others) in content["folders"].items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}
