"""Any folder of images, one folder a class, read at memory speed after the first time.

Axes: n images, b batch, h height, w width.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
import torch
from jaxtyping import Float, Integer, UInt8
from torch import Tensor

from vision_attn.data.augment import TRIES, checked_range, random_crops
from vision_attn.data.cache import CachedPixels, PixelCache
from vision_attn.data.draws import Draws, permutation
from vision_attn.data.images import images_below
from vision_attn.data.preprocess import seen_box
from vision_attn.data.sources import DataError, Source, Splits, hold_out
from vision_attn.data.tensors import ImageSet, Items

__all__ = ["CachedSet", "CenterCrop", "ImageFolder", "RandomCrop", "imagenet_names"]

log = logging.getLogger(__name__)

Labels = Integer[np.ndarray, " n"]


# From the sides (height, width) of images, what is shown: left, top, right, bottom, in pixels.
Crop = Callable[[Integer[np.ndarray, "b 2"], Draws], Float[np.ndarray, "b 4"]]


class CenterCrop:
    """The box that a Preprocess of `size` and `crop_pct` shows.

    Examples:
        >>> from vision_attn.data.folders import CenterCrop
        >>> crop = CenterCrop((16, 16), crop_pct=1.0)
    """

    def __init__(self, size: tuple[int, int], crop_pct: float) -> None:
        self.size, self.crop_pct = size, crop_pct

    def __call__(self, sides: Integer[np.ndarray, "b 2"], draws: Draws) -> Float[np.ndarray, "b 4"]:
        return np.array(
            [seen_box((W, H), self.size, self.crop_pct) for H, W in sides.tolist()]
        ).reshape(-1, 4)


class RandomCrop:
    """A random box, as in RandomResizedCrop.

    Examples:
        >>> from vision_attn.data.folders import RandomCrop
        >>> crop = RandomCrop(scale=(0.35, 1.0), ratio=(0.75, 4 / 3))
    """

    def __init__(self, scale: tuple[float, float], ratio: tuple[float, float]) -> None:
        self.scale, self.ratio = checked_range("scale", scale), checked_range("ratio", ratio)

    def __call__(self, sides: Integer[np.ndarray, "b 2"], draws: Draws) -> Float[np.ndarray, "b 4"]:
        u = draws.uniform(2 * TRIES + 2)
        boxes = random_crops(u, torch.from_numpy(sides).long(), self.scale, self.ratio).numpy()
        extent, corner = boxes[:, :2], boxes[:, 2:]
        return np.concatenate([corner, corner + extent], 1)[:, [1, 0, 3, 2]].astype(float)


class CachedSet(ImageSet):
    """Images of many sizes, each cropped and resized to `size` as it is fetched.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.data.cache import CachedPixels
        >>> from vision_attn.data.draws import Draws
        >>> from vision_attn.data.folders import CachedSet, CenterCrop
        >>> pixels, first = np.zeros(600, np.uint8), np.array([0])
        >>> photos = CachedPixels(pixels, first, heights=np.array([10]), widths=np.array([20]))
        >>> images = CachedSet(photos, np.array([0]), (8, 8), CenterCrop((8, 8), 1.0))
        >>> images.fetch(np.array([0]), Draws(0, 0, np.array([0]))).shape
        torch.Size([1, 3, 8, 8])
    """

    def __init__(
        self, pixels: CachedPixels, labels: Labels, size: tuple[int, int], crop: Crop
    ) -> None:
        self.pixels = pixels
        self.labels = torch.from_numpy(labels)
        self.size = size
        self.crop = crop
        self.ahead = torch.get_num_threads() + 1

    def fetch(self, items: Items, draws: Draws) -> UInt8[Tensor, "b 3 h w"]:
        sides = np.stack([self.pixels.heights[items], self.pixels.widths[items]], 1)
        boxes = self.crop(sides, draws).round().astype(int).tolist()
        out = np.empty((len(items), 3, *self.size), np.uint8)
        for item, box, shown in zip(items.tolist(), boxes, out, strict=True):
            _stretch(self.pixels[item], box, shown)
        return torch.from_numpy(out)


class ImageFolder(Source):
    """Photos in `path/CLASS/`, or in `path/train/CLASS/` and `path/val/CLASS/`.

    `path` lies in the root folder, or is absolute. With train/ and one of val/ and test/, that one
    is the test set and a part of train/ is held out for validation; with all three each is what its
    name says; with none of them, `test_fraction` of every class is the test set.

    Every image is decoded once, its shorter side reduced to `shorter_side`, into a cache below the
    root folder (or in the folder `cache`). Training shows random boxes of `scale` of the area and
    `ratio` of width to height, all else the centre, at `size` (h, w, or one number for both).

    classes: only these folders, in this order. names: what the classes are called; "imagenet": the
    folders are WordNet ids as in ImageNet (n01440764), and a class has the first name of its id
    ("tench"). per_class: at most so many images of each in every part.
    corrupt: `skip` leaves unreadable images out and says which, `error` stops.

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

    def __init__(
        self,
        path: str,
        size: int | tuple[int, int] = 128,
        shorter_side: int | None = None,
        classes: list[str] | None = None,
        per_class: int | None = None,
        test_fraction: float = 0.2,
        scale: tuple[float, float] = (0.35, 1.0),
        ratio: tuple[float, float] = (0.75, 4 / 3),
        corrupt: Literal["skip", "error"] = "skip",
        cache: str | None = None,
        names: Literal["folders", "imagenet"] = "folders",
    ) -> None:
        self.path = path
        self.size = (size, size) if isinstance(size, int) else size
        self.shorter_side = shorter_side or max(self.size) * 8 // 7
        if min(self.size) < 1 or self.shorter_side < max(self.size):
            raise ValueError(
                "expected a size of at least 1 pixel and a shorter_side of at least the size, "
                f"got size {self.size} and shorter_side {self.shorter_side}"
            )
        if per_class is not None and per_class < 1:
            raise ValueError(f"per_class must be at least 1, got {per_class}")
        self.classes = classes
        self.per_class = per_class
        self.test_fraction = test_fraction
        self.crop_pct = max(self.size) / self.shorter_side
        self.train_crop = RandomCrop(scale, ratio)
        self.test_crop = CenterCrop(self.size, self.crop_pct)
        self.corrupt = corrupt
        self.cache = cache
        self.names = names

    def load(self, root: Path, val_fraction: float, seed: int) -> Splits:
        folder = root / self.path
        parts = _parts(folder)
        classes = self._classes(folder, parts["train"])
        read = {name: self._read(root, folder, part, classes, seed) for name, part in parts.items()}
        pixels, labels = read["train"]
        rest = np.arange(len(labels))
        if "test" not in read:
            rest, part = hold_out(labels, self.test_fraction, seed)
            read["test"] = pixels.chosen(part), labels[part]
        if "val" not in read:
            stays, part = hold_out(labels[rest], val_fraction, seed + 1)
            read["val"] = pixels.chosen(rest[part]), labels[rest[part]]
            rest = rest[stays]
        return Splits(
            train=CachedSet(pixels.chosen(rest), labels[rest], self.size, self.train_crop),
            val=CachedSet(*read["val"], self.size, self.test_crop),
            test=CachedSet(*read["test"], self.size, self.test_crop),
            classes=imagenet_names(classes) if self.names == "imagenet" else classes,
            crop_pct=self.crop_pct,
        )

    def _classes(self, folder: Path, train: Path) -> list[str]:
        present = _subfolders(train)
        for name in self.classes or ():
            if name not in present:
                near = get_close_matches(name, present, 3) or present[:3]
                raise DataError(f"{train}: no class {name!r}; the nearest: {', '.join(near)}")
        classes = self.classes or present
        if len(classes) < 2:
            raise DataError(
                f"{folder}: expected images in one folder a class, at least two classes, "
                f"got {len(classes)} ({', '.join(classes) or 'no folder'})"
            )
        return classes

    def _read(
        self, root: Path, folder: Path, part: Path, classes: list[str], seed: int
    ) -> tuple[CachedPixels, Labels]:
        """The readable images of one part and their labels."""
        names, labels = [], []
        for label, name in enumerate(classes):
            files = images_below(part / name)
            if not files:
                raise DataError(f"{part / name}: no image in this folder of a class")
            if self.per_class and self.per_class < len(files):
                kept = permutation((seed, label), len(files))[: self.per_class]
                files = [files[i] for i in np.sort(kept)]
            names += [file.relative_to(folder).as_posix() for file in files]
            labels += [label] * len(files)
        cache = PixelCache(self._cache_place(root, folder), self.shorter_side)
        try:
            pixels, errors = cache.load(folder, names)
        except OSError as error:
            raise DataError(
                f"{cache.place}: the cache of decoded images cannot be written ({error}): free "
                "space, or name another folder with the option `cache` of this source"
            ) from error
        readable = self._without(errors, part, len(names))
        return pixels.chosen(readable), np.array(labels)[readable]

    def _without(self, errors: dict[int, str], part: Path, count: int) -> Labels:
        """The places of what is left; says what is left out, or stops, as `corrupt` asks."""
        if errors:
            some = "; ".join(list(errors.values())[:10])
            message = f"{part}: {len(errors)} of {count} images cannot be read: {some}"
            if self.corrupt == "error" or len(errors) == count:
                raise DataError(message)
            log.warning("%s. They are left out.", message)
        return np.setdiff1d(np.arange(count), list(errors)).astype(int)

    def _cache_place(self, root: Path, folder: Path) -> Path:
        address = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]
        name = f"{folder.name}-{address}-{self.shorter_side}px"
        return Path(self.cache or root / ".cache") / name


def imagenet_names(wnids: Sequence[str]) -> list[str]:
    """Name each WordNet id of ImageNet: its first name, with the id where two of them share it.

    Raises DataError for another id, with the nearest.

    Examples:
        >>> from vision_attn.data.folders import imagenet_names
        >>> imagenet_names(["n01440764", "n03445777"])
        ['tench', 'golf ball']
    """
    from timm.data import ImageNetInfo

    known = ImageNetInfo()
    described = dict(zip(known.label_names(), known.label_descriptions(), strict=True))
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


def _stretch(image: np.ndarray, box: list[int], out: np.ndarray) -> None:
    """Fills `out` (3 h w) with the box of an image (H W 3), of one pixel at least.

    Linear interpolation leaves no pixel out down to a half, and is five times as fast as areas.
    """
    left, top, right, bottom = box
    left, top = min(left, image.shape[1] - 1), min(top, image.shape[0] - 1)
    seen = image[top : max(bottom, top + 1), left : max(right, left + 1)]
    height, width = out.shape[1:]
    shrinks = seen.shape[0] > 2 * height or seen.shape[1] > 2 * width
    method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    cv2.split(cv2.resize(seen, (width, height), interpolation=method), list(out))


def _parts(folder: Path) -> dict[str, Path]:
    """Where the training set lies and, where the folder says so, the validation and test sets."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder: give the image folder's path, relative to root")
    inside = _subfolders(folder)
    if "train" not in inside:
        return {"train": folder}
    named = [name for name in ("val", "test") if name in inside]
    parts = {"train": folder / "train"} | {name: folder / name for name in named}
    if named == ["val"]:
        parts["test"] = parts.pop("val")
    return parts


def _subfolders(folder: Path) -> list[str]:
    return sorted(
        path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
