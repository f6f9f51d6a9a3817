"""The class that a folder's name stands for."""

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import timm

__all__ = ["class_names", "label_of"]


def class_names(classes: Sequence[str]) -> dict[str, int]:
    """Class by name in small letters, by each of its synonyms, and by ImageNet's wnid."""
    found: dict[str, set[int]] = defaultdict(set)
    for index, full in enumerate(classes):
        for name in (full, *full.split(",")):
            found[name.strip().lower()].add(index)
    if len(classes) == 1000 and "tench" in classes[0]:
        for index, wnid in enumerate(timm.data.ImageNetInfo().label_names()):
            found[wnid].add(index)
    return {name: min(places) for name, places in found.items() if len(places) == 1}


def label_of(file: str | Path, classes: Sequence[str]) -> int | None:
    """The class whose name the file's folder has; None where none has it.

    Examples:
        >>> from vision_attn.reports.labels import label_of
        >>> label_of("photos/Tabby/1.jpg", ["collie", "tabby, tabby cat"])
        1
    """
    return _class_names(tuple(classes)).get(Path(file).parent.name.lower())


@lru_cache(maxsize=4)
def _class_names(classes: tuple[str, ...]) -> dict[str, int]:
    return class_names(classes)
