"""Sets of photos by what holds them, and the source that cuts photos into parts and sets.

Axes: n images, b batch, h height, w width, k classes.
"""

import hashlib
import logging
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Integer, UInt8
from torch import Tensor

from vision_attn.data.augment import TRIES, checked_range, random_crops
from vision_attn.data.cache import CachedPixels, PixelCache
from vision_attn.data.draws import Draws
from vision_attn.data.photos import Photos
from vision_attn.data.preprocess import seen_box
from vision_attn.data.ranges import ValueRange, checked_value_range
from vision_attn.data.sources import DataError, Source, Splits, hold_out
from vision_attn.data.storage import (
    STORAGES,
    Storage,
    choose,
    in_memory,
    pixel_bytes,
    room,
    say,
)
from vision_attn.data.streaming import Crop, StreamedSet, stretch
from vision_attn.data.subset import few_of_each
from vision_attn.data.tensors import ImageSet, Items
from vision_attn.errors import quoted

__all__ = ["CachedSet", "CenterCrop", "Part", "PhotoSource", "RandomCrop"]

log = logging.getLogger(__name__)

Labels = Integer[np.ndarray, " n"] | Float[np.ndarray, "n k"]


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
            stretch(self.pixels[item], box, shown)
        return torch.from_numpy(out)


@dataclass(frozen=True, eq=False)
class Part:
    """Photos of one part of a data set, and their labels.

    Attributes:
        photos: The encoded photos.
        labels: (n), or (n k) of 0 and 1.
        where: What messages call it.

    Examples:
        >>> import numpy as np
        >>> from pathlib import Path
        >>> from vision_attn.data.photo_sets import Part
        >>> from vision_attn.data.photos import FilePhotos
        >>> part = Part(FilePhotos(Path("photos"), ["a.jpg", "b.jpg"]), np.array([0, 1]), "photos")
        >>> part.chosen(np.array([1])).labels
        array([1])
    """

    photos: Photos
    labels: Labels
    where: str

    def chosen(self, items: Integer[np.ndarray, " m"]) -> "Part":
        """Choose some of the photos, in this order."""
        return Part(self.photos.chosen(items), self.labels[items], self.where)


@dataclass(eq=False, kw_only=True)
class PhotoSource(Source):
    """Base class: photos of many sizes with labels, from anywhere.

    A subclass is a dataclass too: its own fields come first, and the options of this class follow,
    by keyword. It lists `parts`: `train`, and `val` and `test` where there are such parts; what is
    missing is held out of `train`. Training shows random boxes, all else the centre. All ways of
    `storage` show the same pixels.

    Args:
        size: (h, w) of training images, or one number for both.
        test_size: The same of all other images, and the network's input size from then on; None:
            `size`. A network that learns from random boxes sees objects smaller in whole photos,
            and better where these are enlarged (Touvron 2019, arXiv:1906.06423).
        shorter_side: What the shorter side of a photo is reduced to; None: 8/7 of the longest side
            of these sizes.
        per_class: At most so many photos of each class in every part.
        test_fraction: Share of each class that is held out as the test set, where there is none.
        scale: The smallest and the largest share of the area of the boxes that training shows.
        ratio: The smallest and the largest ratio of their width to their height.
        corrupt: What `cache` and `memory` do with unreadable photos, `skip` leaves them out and
            says which, `error` stops.
        cache: The folder of the cache; None: one below the root folder.
        storage: `cache` decodes every photo once, its shorter side reduced to `shorter_side`, into
            a cache; `memory` decodes them at each start into memory; `stream` decodes them when
            they are needed, and keeps nothing. `auto` chooses by what is free; see `choose`.
        workers: Processes in which `stream` decodes; None: one a core, up to eight; 0: threads.
        max_corrupt: How many unreadable photos `stream` passes over, another photo of the same
            labels in their place; one more stops.
        fraction: This share of each class's training photos.
        subset: A text file with the names of the training photos to take, one a line; a name counts
            with or without its folder and suffix.
        value_range: The numbers that are black and white in the photos, such as (0, 4095) for 12
            bits in a TIFF of 16; None: as `read_image` finds them. It goes into the checkpoint with
            the size.

    Raises:
        ValueError: An option is out of range.

    Examples:
        >>> from vision_attn.data import ImageFolder
        >>> from vision_attn.data.photo_sets import PhotoSource
        >>> issubclass(ImageFolder, PhotoSource)
        True
    """

    size: int | tuple[int, int] = 128
    test_size: int | tuple[int, int] | None = None
    shorter_side: int | None = None
    per_class: int | None = None
    test_fraction: float = 0.2
    scale: tuple[float, float] = (0.35, 1.0)
    ratio: tuple[float, float] = (0.75, 4 / 3)
    corrupt: Literal["skip", "error"] = "skip"
    cache: str | None = None
    storage: Storage = "auto"
    workers: int | None = None
    max_corrupt: int = 0
    fraction: float = 1.0
    subset: str | None = None
    value_range: ValueRange | None = None

    def __post_init__(self) -> None:
        self._range = checked_value_range(self.value_range)
        self._size = both(self.size)
        self._test_size = both(self.size if self.test_size is None else self.test_size)
        longest = max(*self._size, *self._test_size)
        self._reduced = self.shorter_side or longest * 8 // 7
        if min(*self._size, *self._test_size) < 1 or self._reduced < longest:
            tested = f", test_size {self._test_size}" if self.test_size is not None else ""
            raise ValueError(
                "expected sizes of at least 1 pixel and a shorter_side of at least each size, "
                f"got size {self._size}{tested} and shorter_side {self._reduced}"
            )
        if self.per_class is not None and self.per_class < 1:
            raise ValueError(f"per_class must be at least 1, got {self.per_class}")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction must be above 0 and at most 1, got {self.fraction}")
        if self.storage not in STORAGES:
            raise ValueError(
                f"storage must be one of {', '.join(STORAGES)}, got {quoted(self.storage)}"
            )
        if self.workers is not None and self.workers < 0:
            raise ValueError(f"workers must be at least 0, got {self.workers}")
        if self.max_corrupt < 0:
            raise ValueError(f"max_corrupt must be at least 0, got {self.max_corrupt}")
        self._train_crop = RandomCrop(self.scale, self.ratio)
        self._test_crop = CenterCrop(self._test_size, max(self._test_size) / self._reduced)

    @abstractmethod
    def parts(self, root: Path) -> tuple[dict[str, Part], list[str]]:
        """List the photos of each part, and the classes.

        Raises:
            DataError: There are none.
        """

    @abstractmethod
    def place(self, root: Path) -> Path:
        """Name what the photos come from, for the cache's name."""

    def load(self, root: Path, val_fraction: float, seed: int) -> Splits:
        parts, classes = self.parts(root)
        for each in parts.values():
            each.photos.value_range = self._range
        parts = {name: self._subset(part, name, seed) for name, part in parts.items()}
        _check_classes(parts, classes)
        storage = self._storage(root, parts)
        read = {name: self._read(root, part, storage) for name, part in parts.items()}
        train = read["train"]
        rest = np.arange(len(train.labels))
        if "test" not in read:
            rest, part = hold_out(train.labels, self.test_fraction, seed)
            read["test"] = train.chosen(part)
        if "val" not in read:
            stays, part = hold_out(train.labels[rest], val_fraction, seed + 1)
            read["val"] = train.chosen(rest[part])
            rest = rest[stays]
        return Splits(
            train=self._set(train.chosen(rest), self._size, self._train_crop),
            val=self._set(read["val"], self._test_size, self._test_crop),
            test=self._set(read["test"], self._test_size, self._test_crop),
            classes=classes,
            crop_pct=self._test_crop.crop_pct,
            value_range=self._range,
        )

    def _subset(self, part: Part, name: str, seed: int) -> Part:
        """The photos of a part that `subset`, `fraction` and `per_class` leave."""
        items = np.arange(len(part.labels))
        if name == "train" and self.subset is not None:
            items = _named(part, Path(self.subset))
        fraction = self.fraction if name == "train" else 1.0
        if self.per_class is None and fraction == 1:
            return part if len(items) == len(part.labels) else part.chosen(items)
        few = few_of_each(_groups(part.labels[items]), seed, fraction, self.per_class)
        return part.chosen(items[few])

    def _storage(self, root: Path, parts: dict[str, Part]) -> Storage:
        if self.storage != "auto":
            return self.storage
        folder = self._cache_place(root)
        needed = sum(pixel_bytes(part.photos, self._reduced) for part in parts.values())
        bytes_kept = PixelCache(folder, self._reduced).bytes
        storage, why = choose(needed, bytes_kept, room(folder))
        say(storage, why, needed)
        return storage

    def _read(self, root: Path, part: Part, storage: Storage) -> "_KeptPart":
        """What of a part can be read, kept as the storage says."""
        if storage == "stream":
            return _KeptPart(part, None)
        if storage == "memory":
            pixels, errors = in_memory(part.photos, self._reduced)
        else:
            cache = PixelCache(self._cache_place(root), self._reduced)
            try:
                pixels, errors = cache.load_photos(part.photos)
            except OSError as error:
                raise DataError(
                    f"{cache.folder}: the cache of decoded images cannot be written ({error}): "
                    "free space, or name another folder with the option `cache` of this source"
                ) from error
        readable = self._without(errors, part)
        return _KeptPart(part, pixels).chosen(readable)

    def _set(self, part: "_KeptPart", size: tuple[int, int], crop: Crop) -> ImageSet:
        if part.pixels is not None:
            return CachedSet(part.pixels, part.labels, size, crop)
        return StreamedSet(
            part.part.photos,
            part.labels,
            size,
            crop,
            self._reduced,
            self.workers,
            self.max_corrupt,
        )

    def _without(self, errors: dict[int, str], part: Part) -> Integer[np.ndarray, " m"]:
        """The places of what is left; says what is left out, or stops, as `corrupt` asks."""
        count = len(part.labels)
        if errors:
            some = "; ".join(list(errors.values())[:10])
            message = f"{part.where}: {len(errors)} of {count} images cannot be read: {some}"
            if self.corrupt == "error" or len(errors) == count:
                raise DataError(message)
            log.warning("%s. They are left out.", message)
        return np.setdiff1d(np.arange(count), list(errors)).astype(int)

    def _cache_place(self, root: Path) -> Path:
        folder = self.place(root)
        address = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]
        name = f"{folder.name}-{address}-{self._reduced}px"
        if self._range is not None:
            name += "-{:g}to{:g}".format(*self._range)
        return Path(self.cache or root / ".cache") / name


@dataclass(frozen=True, eq=False)
class _KeptPart:
    """A part, and its decoded pixels where they are kept."""

    part: Part
    pixels: CachedPixels | None

    @property
    def labels(self) -> Labels:
        return self.part.labels

    def chosen(self, items: Integer[np.ndarray, " m"]) -> "_KeptPart":
        pixels = None if self.pixels is None else self.pixels.chosen(items)
        return _KeptPart(self.part.chosen(items), pixels)


def both(size: int | tuple[int, int]) -> tuple[int, int]:
    """Height and width, from one number for both or as they are."""
    return (size, size) if isinstance(size, int) else size


def _groups(labels: Labels) -> Integer[np.ndarray, " n"]:
    """What photos are counted by: their class; all are of one group where they have several."""
    return labels if labels.ndim == 1 else np.zeros(len(labels), int)


def _check_classes(parts: dict[str, Part], classes: Sequence[str]) -> None:
    """Raise DataError for a class without training photos; warn of one that another part lacks."""
    for name, part in parts.items():
        counts = (
            np.bincount(part.labels, minlength=len(classes))
            if part.labels.ndim == 1
            else (part.labels.sum(0))
        )
        absent = [classes[int(i)] for i in np.flatnonzero(counts[: len(classes)] == 0)]
        if not absent:
            continue
        some = ", ".join(absent[:5]) + (", ..." if len(absent) > 5 else "")
        text = f"{part.where}: no image of {len(absent)} of {len(classes)} classes ({some})"
        if name == "train":
            raise DataError(f"{text}: leave them out of `classes`, or add images")
        log.warning("%s: they are not measured on the %s images", text, name)


def _named(part: Part, path: Path) -> Integer[np.ndarray, " m"]:
    """The places of the photos that a text file names."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: the list of photos (`subset`) cannot be read ({error}): expected a text file "
            "with one name on each line"
        ) from None
    wanted = {line.strip() for line in lines if line.strip()}
    items, matched = [], set()
    for item, name in enumerate(part.photos.names):
        last = name.rpartition("/")[2]
        for form in (name, last, name.rpartition(".")[0], last.rpartition(".")[0]):
            if form in wanted:
                items.append(item)
                matched.add(form)
                break
    if absent := sorted(wanted - matched):
        some = list(part.photos.names[:1000])
        near = get_close_matches(absent[0], some, 1) or some[:1]
        raise DataError(
            f"{path}: {len(absent)} of {len(wanted)} names are not in {part.where}, such as "
            f"{quoted(absent[0])}: expected names such as {quoted(near[0])}"
        )
    return np.array(items, int)
