"""Any folder of images, one folder a class, read at memory speed after the first time."""

import hashlib
import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

import numpy as np

from vision_attn.data.listing import Tree
from vision_attn.data.photo_sets import CachedSet, CenterCrop, Part, PhotoSource, RandomCrop
from vision_attn.data.photos import FilePhotos
from vision_attn.data.sources import DataError
from vision_attn.data.split_names import say_parts, split_folders, subfolders
from vision_attn.data.wordnet import imagenet_descriptions
from vision_attn.errors import quoted

__all__ = ["CachedSet", "CenterCrop", "ImageFolder", "RandomCrop", "imagenet_names"]

log = logging.getLogger(__name__)


@dataclass(eq=False)
class ImageFolder(PhotoSource):
    """Photos in `path/CLASS/`, or in `path/train/CLASS/` and `path/val/CLASS/`.

    With train/ and one of val/ and test/, that one is the test set and a part of train/ is held out
    for validation; with all three each is what its name says; with none of them, `test_fraction` of
    every class is the test set. Other usual names (Training/, valid/, dev/, test2017/) count too,
    and a line says what was taken for what; folders of classes beside such folders are refused, or
    named in a warning. An index in the root folder's .cache makes later starts fast; it notices
    files that come and go.

    Training shows random boxes, all else the centre. All ways of `storage` show the same pixels.

    Args:
        path: Lies in the root folder, or is absolute.
        classes: Only these folders, in this order.
        names: What the classes are called; "imagenet": the folders are WordNet ids as in ImageNet
            (n01440764), and a class has the first name of its id ("tench").
        size: (h, w) of training images, or one number for both.
        test_size: The same of validation and test images, and the network's input size from then
            on; None: `size`.
        shorter_side: What the shorter side of a photo is reduced to; None: 8/7 of the longest side
            of these sizes.
        per_class: At most so many images of each class in every part.
        test_fraction: Share of every class that is the test set, where the data have none.
        scale: The smallest and the largest share of the area of the boxes that training shows.
        ratio: The smallest and the largest ratio of their width to their height.
        corrupt: With `cache` and `memory`, `skip` leaves unreadable images out and says which,
            `error` stops.
        cache: The folder of the cache; None: one below the root folder.
        storage: `cache` decodes every image once, reduced to `shorter_side`, into a cache; `memory`
            keeps them in memory; `stream` decodes them when they are needed and keeps nothing;
            `auto` chooses by what is free.
        workers: Processes in which `stream` decodes; None: one a core, up to eight; 0: threads.
        max_corrupt: How many unreadable images `stream` passes over.
        fraction: This share of each class's training images.
        subset: A text file with the training images to take, a name a line.
        value_range: The numbers that are black and white in the photos; None: as `read_image` finds
            them.

    Raises:
        ValueError: An option is out of range.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from vision_attn.data import ImageFolder
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("cat/1", "cat/2", "dog/1", "dog/2"):
        ...         Path(folder, name).parent.mkdir(exist_ok=True)
        ...         Image.new("RGB", (40, 30)).save(f"{folder}/{name}.png")
        ...     photos = ImageFolder(folder, size=16, test_fraction=0.5, cache=f"{folder}/cache")
        ...     splits = photos.load(Path(folder), val_fraction=0.0, seed=0)
        >>> splits.classes, splits.test.labels
        (['cat', 'dog'], tensor([0, 1]))
    """

    path: str
    classes: list[str] | None = None
    names: Literal["folders", "imagenet"] = "folders"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.classes, list | tuple | None):
            raise ValueError(
                f"classes must be a list of folders' names, got {quoted(self.classes)}; "
                "give other options by keyword, such as size=64"
            )

    def place(self, root: Path) -> Path:
        return root / self.path

    def parts(self, root: Path) -> tuple[dict[str, Part], list[str]]:
        folder = root / self.path
        folders = _parts(folder)
        if folders["train"] != folder:
            say_parts(folder, folders)
        classes = self._classes(folder, folders["train"])
        tree = Tree(folder, self._index(root, folder))
        parts = {name: self._part(tree, name, path, classes) for name, path in folders.items()}
        with suppress(OSError):  # a start without an index only takes longer
            tree.keep()
        return parts, imagenet_names(classes) if self.names == "imagenet" else classes

    def _part(self, tree: Tree, part: str, path: Path, classes: Sequence[str]) -> Part:
        names: list[str] = []
        labels = []
        for label, name in enumerate(classes):
            below = (path / name).relative_to(tree.folder).as_posix()
            files = tree.files(below) if (path / name).is_dir() else []
            if not files and part == "train":
                raise DataError(
                    f"{path / name}: no image in this folder, which should hold a class"
                )
            names += files
            labels.append(np.full(len(files), label))
        if not names:
            raise DataError(f"{path}: no image of any class: expected folders such as {classes[0]}")
        folders = subfolders(path)
        if self.classes is None and (others := sorted({*folders} - {*classes})):
            some = ", ".join(others[:5]) + (", ..." if len(others) > 5 else "")
            log.warning(
                "%s: %d of %d folders have no training image (%s): they are left out",
                *(path, len(others), len(folders), some),
            )
        return Part(FilePhotos(tree.folder, names), np.concatenate(labels), str(path))

    def _index(self, root: Path, folder: Path) -> Path:
        address = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]
        return Path(self.cache or root / ".cache") / f"{folder.name}-{address}.index.json"

    def _classes(self, folder: Path, train: Path) -> list[str]:
        present = subfolders(train)
        for name in self.classes or ():
            if name not in present:
                near = get_close_matches(name, present, 3) or present[:3]
                raise DataError(f"{train}: no class {quoted(name)}; the nearest: {', '.join(near)}")
        classes = self.classes or present
        if len(classes) < 2:
            raise DataError(
                f"{folder}: expected one folder of images for each class, at least two classes, "
                f"got {len(classes)} ({', '.join(classes) or 'no folder'})"
                + (f"; is it {folder / present[0]}?" if _holds_folders(train, present) else "")
            )
        return classes


def _holds_folders(train: Path, present: Sequence[str]) -> bool:
    """Whether the one folder that there is holds several."""
    return len(present) == 1 and len(subfolders(train / present[0])) > 1


def imagenet_names(wnids: Sequence[str]) -> list[str]:
    """Name each WordNet id of ImageNet: its first name, with the id where two of them share it.

    Raises DataError for another id, with the nearest.

    Examples:
        >>> from vision_attn.data.folders import imagenet_names
        >>> imagenet_names(["n01440764", "n03445777"])
        ['tench', 'golf ball']
    """
    described = imagenet_descriptions()
    for wnid in wnids:
        if wnid not in described:
            near = ", ".join(get_close_matches(wnid, described, 2)) or "n01440764"
            raise DataError(
                f"{wnid}: expected a folder named by a WordNet id of ImageNet (such as {near}): "
                "rename it, or leave out the option `names` of this source"
            )
    firsts = [described[wnid].split(",")[0] for wnid in wnids]
    count = Counter(firsts)
    return [
        name if count[name] == 1 else f"{name} ({wnid})"
        for name, wnid in zip(firsts, wnids, strict=True)
    ]


def _parts(folder: Path) -> dict[str, Path]:
    """Where the training set lies and, where the folder says so, the validation and test sets."""
    if not folder.is_dir():
        raise DataError(
            f"{folder}: no such folder: name one by --data.source.path, seen from --data.root"
        )
    split_paths = split_folders(folder)
    if not split_paths:
        return {"train": folder}
    if "train" not in split_paths:
        names = ", ".join(f"{path.name}/" for path in split_paths.values())
        raise DataError(
            f"{folder}: no folder of training images (train/) beside {names}: add one, or name a "
            "folder of classes alone"
        )
    parts = {str(name): path for name, path in split_paths.items()}
    if "test" not in parts and "val" in parts:
        parts["test"] = parts.pop("val")
    return parts
