"""Folders of very many images listed: in order, as strings, again only where something changed.

The index of a tree keeps the names in each of its folders with the folder's time of change. A file
that comes, goes or gets another name changes that time; what is in a file does not.
"""

import json
import os
import time
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

from vision_attn.data.images import SUFFIXES
from vision_attn.files import write_text

__all__ = ["Tree", "walk"]

FORMAT = 1
SETTLED = 2.0  # seconds after a change; a folder that is younger may change in the same tick


def walk(folder: str | PathLike[str]) -> Iterator[str]:
    """Yield the image files below `folder`, at any depth, in order; hidden ones are left out.

    The order is that of `images_below`, and nothing is kept: a million files take no memory.
    """
    inside, names = _listed(os.fspath(folder))
    for name in sorted([*inside, *names]):
        path = os.path.join(folder, name)
        if name in inside:
            yield from walk(path)
        else:
            yield path


class Tree:
    """The images below a folder, by an index that is brought up to date.

    index: the file that keeps it; None reads every folder each time. read: how many folders were
    read when `files` last ran.

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
        self._known: dict[str, tuple[int, list[str], list[str]]] = {}
        self._now: dict[str, tuple[int, list[str], list[str]]] = {}
        if index is not None:
            self._known = _kept(index)

    def files(self, below: str = "") -> list[str]:
        """List the images below a folder of the tree, as paths from the tree's own folder."""
        found: list[str] = []
        self._walk(below, found)
        return found

    def keep(self) -> None:
        """Write the index, of all that was listed, where it differs from what is there."""
        if self.index is None or self._now == self._known:
            return
        self.index.parent.mkdir(parents=True, exist_ok=True)
        folders = {name: list(entry) for name, entry in self._now.items()}
        write_text(self.index, json.dumps({"format": FORMAT, "folders": folders}))
        self._known = dict(self._now)

    def _walk(self, place: str, found: list[str]) -> None:
        inside, names = self._folder(place)
        if not inside:
            found += [f"{place}/{name}" if place else name for name in names]
            return
        among = set(inside)
        for name in sorted([*inside, *names]):
            path = f"{place}/{name}" if place else name
            if name in among:
                self._walk(path, found)
            else:
                found.append(path)

    def _folder(self, place: str) -> tuple[list[str], list[str]]:
        path = self.folder / place
        changed = path.stat().st_mtime_ns
        known = self._known.get(place)
        if known is not None and known[0] == changed:
            self._now[place] = known
        else:
            self.read += 1
            inside, names = _listed(os.fspath(path))
            settled = time.time() - changed / 1e9 > SETTLED
            self._now[place] = (changed if settled else -1, sorted(inside), sorted(names))
        return self._now[place][1:]


def _listed(folder: str) -> tuple[set[str], list[str]]:
    """The folders in a folder, and its images; links to folders are not followed."""
    inside, names = set(), []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                inside.add(entry.name)
            elif os.path.splitext(entry.name)[1].lower() in SUFFIXES and not entry.is_dir():
                names.append(entry.name)
    return inside, names


def _kept(index: Path) -> dict[str, tuple[int, list[str], list[str]]]:
    """The folders of an index; none of one that is missing, damaged or of another format."""
    try:
        content = json.loads(index.read_bytes())
        if content["format"] != FORMAT:
            return {}
        return {
            str(name): (int(changed), list(inside), list(names))
            for name, (changed, inside, names) in content["folders"].items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}
