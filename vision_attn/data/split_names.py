"""Parts of a data set by the names that people give them: training/, Valid/, test2017/, dev.

Where the folders of classes and of parts look mixed, nothing is guessed.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from vision_attn.data.kinds import holds_results, is_hidden
from vision_attn.data.listing import walk
from vision_attn.data.sources import DataError

__all__ = ["part_of", "say_parts", "say_scored", "split_folders", "subfolders"]

log = logging.getLogger(__name__)

Part = Literal["train", "val", "test"]
NAMES: dict[str, Part] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
BESIDE_THEM = {"set", "data", "dataset", "split", "image", "images", "imgs", "photos"}
GLUED = {name: {name + word for word in BESIDE_THEM} for name in NAMES}  # trainset, testdata
ROLES: dict[Part, str] = {"train": "training", "val": "validation", "test": "test"}


def part_of(name: str) -> Part | None:
    """Say which part of a data set a folder, a split or a cell names; None for no part.

    In any case, with a number or a word such as set or images beside it.

    Examples:
        >>> from vision_attn.data.split_names import part_of
        >>> [part_of(name) for name in ("Training", "valid", "test2017", "trainset", "trains")]
        ['train', 'val', 'test', 'train', None]
    """
    words = [word for word in re.split(r"[^a-z]+", name.casefold()) if word]
    words = [next((w for w in NAMES if word in GLUED[w]), word) for word in words]
    telling = [word for word in words if word not in BESIDE_THEM]
    return NAMES.get(telling[0]) if len(telling) == 1 else None


def subfolders(folder: Path) -> list[str]:
    """The names of the folders in a folder, in order; hidden ones and results are left out."""
    return sorted(
        path.name
        for path in folder.iterdir()
        if path.is_dir() and not is_hidden(path.name) and not holds_results(str(path))
    )


def split_folders(folder: Path) -> dict[Part, Path]:
    """Find the folders of the parts of a data set in its folder; none where it holds classes.

    Raises DataError where two folders name one part, and where folders of classes and of parts
    look mixed. What is only likely is said in a warning.
    """
    inside = subfolders(folder)
    named: dict[Part, list[str]] = defaultdict(list)
    for name in inside:
        if (part := part_of(name)) is not None:
            named[part].append(name)
    others = [name for name in inside if part_of(name) is None]
    if not named:
        _say_alike(folder, inside)
    if not named or _is_a_class(folder, named, others):
        return {}
    for part, names in named.items():
        if len(names) > 1:
            raise DataError(
                f"{folder}: {' and '.join(f'{name}/' for name in names)} both name the "
                f"{ROLES[part]} images: rename one of them, or name its parent folder alone"
            )
    parts: dict[Part, Path] = {part: folder / named[part][0] for part in ROLES if part in named}
    unused = [name for name in others if next(walk(folder / name), None) is not None]
    if unused:
        log.warning(
            "%s: %s beside %s: images in them are not used, as %s: rename them if they are",
            *(folder, _some(unused), _some([path.name for path in parts.values()])),
            "they belong to no part of the set",
        )
    return parts


def _say_alike(folder: Path, inside: Sequence[str]) -> None:
    """Log a line where all folders hold the same folders, which then may be the classes."""
    within = {tuple(subfolders(folder / name)) for name in inside}
    if len(inside) > 1 and len(within) == 1 and len(same := within.pop()) > 1:
        log.warning(
            "%s: %s are taken as classes, though all of them hold %s: name one of them if these "
            "are the classes, or call them train/, val/ and test/",
            *(folder, _some(inside), _some(same)),
        )


def _is_a_class(folder: Path, named: Mapping[Part, Sequence[str]], others: Sequence[str]) -> bool:
    """Whether what is named like a part lies among classes, and is one of them.

    Raises DataError where that cannot be told.
    """
    if not others:
        return False
    words = [name for names in named.values() for name in names]
    flat = [name for name in words if not subfolders(folder / name)]
    if "train" in named and named["train"][0] not in flat:
        return False  # it has folders of its own: the classes
    within = {name for word in words for name in subfolders(folder / word)}
    if within & set(others) or (within and flat):
        raise DataError(
            f"{folder}: {_some(words)} look like parts of the set, {_some(others)} like classes: "
            "put the folders of all classes into one folder train/, or name the folder of the "
            "classes alone"
        )
    if within:
        return False
    log.warning("%s: %s taken as a class, as %s", folder, _some(words), _some(others))
    return True


def say_parts(folder: Path, parts: Mapping[str, Path]) -> None:
    """Log a line that says which folder is taken for what, of a training."""
    train = parts["train"].name
    words = [
        f"{parts[part].name}/ for {role}" if part in parts else f"a part of {train}/ for {role}"
        for part, role in ROLES.items()
    ]
    log.info("%s: %s", folder, ", ".join(words))


def say_scored(folder: Path, part: Path) -> None:
    """Log a line that says which folder of a data set is scored."""
    log.info("%s: the images in %s/ are scored", folder, part.name)


def _some(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(f"{name}/" for name in names[:most]) + (", ..." if len(names) > most else "")
