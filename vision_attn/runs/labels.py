"""The class that a folder's name stands for."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from vision_attn.data.wordnet import imagenet_descriptions

__all__ = ["class_names", "label_of"]

WNID = re.compile(r"n\d{8}")  # of WordNet


def class_names(classes: Sequence[str]) -> dict[str, int]:
    """Number each class by its name in small letters, by each synonym, and by ImageNet's wnid.

    A wnid stands for the one class that shares a synonym with it. A name of several is left out.

    Examples:
        >>> from vision_attn.runs.labels import class_names
        >>> found = class_names(["tench", "golf ball"])
        >>> found["golf ball"], found["n01440764"]  # the latter: tench, Tinca tinca
        (1, 0)
    """
    found = _own_names(classes)
    of_imagenet = len(classes) == 1000 and "tench" in classes[0]
    for place, (wnid, description) in enumerate(imagenet_descriptions().items()):
        names = description.lower().split(",")
        meant = {index for name in names for index in found.get(name.strip(), ())}
        found[wnid] |= {place} if of_imagenet else meant
    return _numbers(found)


def _own_names(classes: Sequence[str]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = defaultdict(set)
    for index, full in enumerate(classes):
        for name in (full, *full.split(",")):
            found[name.strip().lower()].add(index)
    return found


def _numbers(found: Mapping[str, set[int]]) -> dict[str, int]:
    return {name: min(places) for name, places in found.items() if len(places) == 1}


def label_of(file: str | Path, classes: Sequence[str]) -> int | None:
    """The class whose name the file's folder has; None where none has it.

    Examples:
        >>> from vision_attn.runs.labels import label_of
        >>> label_of("photos/Tabby/1.jpg", ["collie", "tabby, tabby cat"])
        1
    """
    folder = Path(file).parent.name.lower()
    return _class_names(tuple(classes), WNID.fullmatch(folder) is not None).get(folder)


@lru_cache(maxsize=8)
def _class_names(classes: tuple[str, ...], wnids: bool) -> dict[str, int]:
    """Number the classes by name; by wnid too only where it is one: timm, which knows, is slow."""
    return class_names(classes) if wnids else _numbers(_own_names(classes))
