"""How the files that a photo leaves are named: no two alike, and none like a photo."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from unicodedata import normalize
from zlib import crc32

__all__ = ["file_names", "folded", "folder_id", "label"]

MOST_BYTES = 120  # of a photo's name, and of a method's; a file's may have 255
RESERVED = r"[<>:/\\|?*]"
DEVICE = re.compile(r"(con|prn|aux|nul|(com|lpt)\d)(\..*)?")  # on Windows, in any folder
# What a method's name may hold and still be known by its label: words in quotes, and commas.
PLAIN = re.compile(r"(?:[^\W\d]\w*+|'(?!True'|False'|None')[^\W\d][\w.-]*'|[\d.()=+-]|, | \()*")


def folded(name: str) -> str:
    """Write a name as file systems compare it that fold capitals and composed letters.

    Examples:
        >>> from vision_attn.runs.naming import folded
        >>> folded("Caf\\u00e9") == folded("CAFE\\u0301")
        True
    """
    return normalize("NFC", normalize("NFD", name).casefold())


def folder_id(folder: str | os.PathLike[str]) -> tuple[int, int] | str:
    """Tell a folder from others, however its path is written: in other capitals, by a link.

    macOS resolves links in a path, and leaves capitals as they were typed.

    Examples:
        >>> from vision_attn.runs.naming import folder_id
        >>> folder_id(".") == folder_id("./")
        True
    """
    try:
        status = os.stat(folder)
    except OSError:  # it is not there yet
        return os.path.realpath(folder)
    return status.st_dev, status.st_ino


def file_names(
    files: Sequence[Path], folder: Path | None = None, taken: Iterable[str] = ()
) -> list[str]:
    """Name the pictures of each file: by its stem, or by as much of its path as tells it apart.

    No two names are alike, also where capitals or composed letters are folded; what a path does not
    tell apart has a number of its own. None is that of a device of Windows, such as nul.

    Args:
        files: The photos.
        folder: Where the pictures NAME.METHOD.png go; no photo that lies there begins with NAME.
        taken: Names that other photos have.

    Returns:
        A name for each file. The names of the same files are the same again.

    Examples:
        >>> from pathlib import Path
        >>> from vision_attn.runs.naming import file_names
        >>> file_names([Path("a/1.png"), Path("b/1.png"), Path("2.png")])
        ['a-1.png', 'b-1.png', '2']
    """
    paths = [os.path.realpath(file) for file in files]
    avoided = _beginnings(files, paths, folder) | set(map(folded, taken))
    names = [file.stem for file in files]
    apart = [Path(path).parts[1:] for path in paths]
    for length in range(1, max(map(len, apart), default=0) + 1):
        again = _alike(names, avoided)
        if not any(again):
            break
        names = [
            "-".join(parts[-length:]) if alike else name
            for name, parts, alike in zip(names, apart, again, strict=True)
        ]
    names = [_short(name, path) for name, path in zip(names, paths, strict=True)]
    names = [f"_{name}" if DEVICE.fullmatch(folded(name)) else name for name in names]
    digits = 8
    while any(again := _alike(names, avoided)):
        seen: Counter[str] = Counter()
        for i in (i for i, alike in enumerate(again) if alike):
            seen[paths[i]] += 1
            names[i] = f"{names[i]}-{_digest(f'{paths[i]} {seen[paths[i]]}', digits)}"
        digits += 8
    return names


def _alike(names: Sequence[str], taken: set[str]) -> list[bool]:
    """Whether each name is that of another file too, or begins that of a photo."""
    keys = [folded(name) for name in names]
    count = Counter(keys)
    return [count[key] > 1 or key in taken for key in keys]


def _beginnings(files: Sequence[Path], paths: Sequence[str], folder: Path | None) -> set[str]:
    """What the names of the photos in a folder begin with, up to each of their points."""
    if folder is None:
        return set()
    own, parents = folder_id(folder), cache(folder_id)
    stems = [
        folded(file.stem)
        for file, path in zip(files, paths, strict=True)
        if parents(os.path.dirname(path)) == own
    ]
    return {stem[:i] for stem in stems for i, letter in enumerate(stem) if letter == "."}


def _short(name: str, path: str) -> str:
    """A name that leaves room for a method's; what is cut off is in its number."""
    if len(os.fsencode(name)) <= MOST_BYTES:
        return name
    return f"{_cut(name, MOST_BYTES - 9)}-{_digest(path, 8)}"


def _cut(name: str, most: int) -> str:
    """As much of the beginning of a name as has so many bytes."""
    while len(os.fsencode(name)) > most:
        name = name[: max(1, len(name) - 1 - (len(os.fsencode(name)) - most) // 4)]
    return name


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:digits]


def label(method: str) -> str:
    """Write a method as part of a file's name: without quotes, spaces and signs of paths.

    Two methods have two labels: where something of the options is lost, a number of them is added.
    """
    plain = re.sub(RESERVED, "-", re.sub(r"['\"\s]", "", method))
    if "(" in method and not PLAIN.fullmatch(method):
        plain = f"{plain}-{crc32(method.encode(errors='surrogateescape')):08x}"
    if len(os.fsencode(plain)) <= MOST_BYTES:
        return plain
    return f"{_cut(plain, MOST_BYTES - 9)}-{_digest(method, 8)}"
