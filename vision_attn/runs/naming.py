"""How the files that a photo leaves are named."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

__all__ = ["file_names", "label"]


def file_names(files: Sequence[Path]) -> list[str]:
    """Name the pictures of each file: by its stem, or by as much of its path as tells it apart.

    Names that differ only in capitals count as the same.
    """
    names = [file.stem for file in files]
    paths = [Path(os.path.realpath(file)).parts[1:] for file in files]
    for length in range(1, max(map(len, paths), default=0) + 1):
        count = Counter(name.casefold() for name in names)
        names = [
            "-".join(path[-length:]) if count[name.casefold()] > 1 else name
            for name, path in zip(names, paths, strict=True)
        ]
    return names


def label(method: str) -> str:
    """Write a method as part of a file's name: without quotes, spaces and signs of paths."""
    return re.sub(r"[<>:/\\|?*]", "-", re.sub(r"['\"\s]", "", method))
