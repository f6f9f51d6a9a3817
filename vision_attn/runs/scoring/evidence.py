"""What heatmaps are scored on: images as the network sees them, and where their evidence lies.

Axes: h, w the network's input, H, W a photo, b images, k boxes.
"""

import json
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from os import PathLike, fspath
from pathlib import Path, PurePosixPath
from typing import Any
from unicodedata import normalize
from zlib import crc32

import numpy as np
import PIL.Image
import torch
from jaxtyping import Bool, Float
from PIL.Image import Image
from torch import Tensor

from vision_attn.data.draws import Draws, permutation
from vision_attn.data.faults import ImageError, sample_errors
from vision_attn.data.images import find_images
from vision_attn.data.masks import Masks, read_mask
from vision_attn.data.planted import CLASSES, Cue, paint
from vision_attn.data.sources import CIFAR10, CIFAR100, Source
from vision_attn.data.split_names import say_scored, split_folders, subfolders
from vision_attn.errors import quoted
from vision_attn.runs.keys import file_stamp
from vision_attn.runs.labels import class_names
from vision_attn.types import Model

__all__ = [
    "Data",
    "Files",
    "PhotoSamples",
    "PlantedSamples",
    "Sample",
    "Samples",
    "TestSet",
    "as_data",
    "data_name",
    "open_data",
]

IMAGES = "images", "image", "imgs", "img", "photos", "jpegimages"  # names of folders, in any case
MASKS = "masks", "mask", "segmentationclass"
IMAGENET = 1000  # classes of a model for which the number of a label in boxes.json stands
# Of red, green and blue, ITU-R 601.
GREY = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float32, device="cpu")
Mask = Bool[Tensor, "h w"]


@dataclass(frozen=True, eq=False)
class Sample:
    """An image in the network's frame, and what is known of it.

    Attributes:
        label: The model's class of what it shows, None where the model has no such class.
        masks: By what they are of, `object` or `shortcut`.
        ignore: Pixels that count on neither side.
        boxes: Left, top, right, bottom, in pixels of the network's input.
        cells: Of a mosaic, the name and the class of each of its photos, row by row.

    Examples:
        >>> import torch
        >>> from vision_attn.runs.scoring.evidence import Sample
        >>> mask = torch.zeros(8, 8, dtype=torch.bool)
        >>> Sample("a.png", torch.zeros(3, 8, 8), label=3, masks={"object": mask}).boxes is None
        True
    """

    name: str
    image: Float[Tensor, "c h w"]
    label: int | None
    masks: dict[str, Mask] = field(default_factory=dict)
    ignore: Mask | None = None
    boxes: Float[Tensor, "k 4"] | None = None
    cells: tuple[tuple[str, int], ...] = ()


class Samples(ABC):
    """A data set as `model` sees it, an image at a time.

    Examples:
        >>> from vision_attn.runs.scoring.evidence import Samples
        >>> sorted(Samples.__abstractmethods__)  # what a subclass has to say
        ['__getitem__']
    """

    names: Sequence[str]
    name: str = ""
    """What tables call the data, where `score` is given them as they are."""
    folders: Sequence[str] = ()
    """The names of the folders that the images lie in, where these may be classes."""

    def __init__(self, model: Model):
        self.preprocess = model.preprocess
        self.size = model.preprocess.input_size
        self.classes_known = len(model.classes)
        self.labels = class_names(model.classes)

    def __len__(self) -> int:
        return len(self.names)

    @abstractmethod
    def __getitem__(self, item: int) -> Sample:
        """Read an image; ImageError, one line, for one that cannot be scored."""

    def sample(self, item: int) -> Sample:
        """Read an image; ImageError, one line that names it, for whatever is wrong with it."""
        with sample_errors(self.names[item]):
            return self[item]

    def label(self, item: int) -> int | None:
        """The model's class of an image, None where it is not known; without reading the image."""
        return self[item].label

    def stamp(self, item: int) -> int:
        """32 bits of what a sample is: other ones where its photo or what is known of it changes.

        0 where its name says all of it, as for samples that are made.
        """
        return 0

    def chosen(self, most: int, seed: int = 0) -> list[int]:
        """The places of `most` images at most, drawn evenly; a larger number only adds to them."""
        return permutation((seed,), len(self))[:most].tolist()


Data = str | PathLike[str] | Sequence[str | PathLike[str] | Image] | Samples


class PlantedSamples(Samples):
    """The planted test images, painted at the network's own size, with exact masks.

    Examples:
        >>> from vision_attn.data import Preprocess
        >>> from vision_attn.models import ViT
        >>> from vision_attn.runs.scoring.evidence import PlantedSamples
        >>> from vision_attn.types import Model
        >>> vit = ViT(image_size=16, patch_size=8, dim=12, depth=1, heads=2, num_classes=10).eval()
        >>> preprocess = Preprocess((16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
        >>> model = Model(vit, preprocess, [f"class {i}" for i in range(10)], vit.layout((16, 16)))
        >>> samples = PlantedSamples(model, "none", count=3)
        >>> len(samples), sorted(samples[0].masks)
        (3, ['object'])
    """

    def __init__(self, model: Model, cue: Cue, count: int = 2000):
        super().__init__(model)
        self.cue = cue
        self.names = [f"test {item}" for item in range(count)]

    def __getitem__(self, item: int) -> Sample:
        drawn = paint(item, item + 1, size=self.size, split="test", cue=self.cue)
        means = [self.preprocess.mean, self.preprocess.std]
        mean, std = torch.tensor(means, dtype=torch.float32, device="cpu")
        colours = drawn.images[0].float() / 255
        if len(mean) == 1:
            colours = (GREY[:, None, None] * colours).sum(dim=0, keepdim=True)
        elif len(mean) != 3:
            raise ImageError(
                f"{self.names[item]}: planted images have colours, the network takes {len(mean)} "
                "channels: give photos of your own"
            )
        image = (colours - mean[:, None, None]) / std[:, None, None]
        masks = {"object": drawn.object_mask[0]}
        if self.cue != "none":
            masks["shortcut"] = drawn.shortcut_mask[0]
        return Sample(self.names[item], image, self.label(item), masks)

    def label(self, item: int) -> int | None:
        return self.labels.get(CLASSES[item % len(CLASSES)])


class TestSet(Samples):
    """The test images of a source of the data module: labels, no masks.

    Examples:
        >>> from pathlib import Path
        >>> from vision_attn.data import Planted, Preprocess
        >>> from vision_attn.models import ViT
        >>> from vision_attn.runs.scoring.evidence import TestSet
        >>> from vision_attn.types import Model
        >>> vit = ViT(image_size=16, patch_size=8, dim=12, depth=1, heads=2, num_classes=10).eval()
        >>> preprocess = Preprocess((16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
        >>> model = Model(vit, preprocess, [f"class {i}" for i in range(10)], vit.layout((16, 16)))
        >>> samples = TestSet(model, Planted(size=16, train=2, val=1, test=3), Path())
        >>> len(samples), tuple(samples[0].image.shape)
        (3, (3, 16, 16))
    """

    __test__ = False  # to pytest

    def __init__(self, model: Model, source: Source, root: Path):
        super().__init__(model)
        splits = source.load(root, 0.0, 0)
        self.images, self.classes = splits.test, splits.classes
        self.names = [f"test {item}" for item in range(len(self.images))]

    def __getitem__(self, item: int) -> Sample:
        items = np.array([item])
        pixels = self.images.fetch(items, Draws(0, 0, items))[0].permute(1, 2, 0).numpy()
        image = self.preprocess(PIL.Image.fromarray(pixels))
        return Sample(self.names[item], image, self.label(item))

    def label(self, item: int) -> int | None:
        return self.labels.get(self.classes[int(self.images.labels[item])].lower())


class Files(Samples):
    """Image files; the folder that holds one says its class, where the model has such a class.

    Examples:
        >>> from pathlib import Path
        >>> from vision_attn.data import Preprocess
        >>> from vision_attn.models import ViT
        >>> from vision_attn.runs.scoring.evidence import Files
        >>> from vision_attn.types import Model
        >>> vit = ViT(image_size=16, patch_size=8, dim=12, depth=1, heads=2, num_classes=10).eval()
        >>> preprocess = Preprocess((16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
        >>> model = Model(vit, preprocess, [f"class {i}" for i in range(10)], vit.layout((16, 16)))
        >>> Files(model, Path("photos"), [Path("photos/class 3/a.png")]).names
        ['class 3/a.png']
    """

    def __init__(self, model: Model, folder: Path, files: Sequence[Path]):
        super().__init__(model)
        self.folder = folder
        self.files = files
        self.names = [
            (file.relative_to(folder) if file.is_relative_to(folder) else file).as_posix()
            for file in files
        ]
        self.folders = sorted({file.parent.name for file in files if file.parent != folder})

    def __getitem__(self, item: int) -> Sample:
        photo = self.preprocess.read(self.files[item])
        return Sample(self.names[item], self.preprocess(photo), self.label(item))

    def label(self, item: int) -> int | None:
        return self.labels.get(self.files[item].parent.name.lower())

    def stamp(self, item: int) -> int:
        return file_stamp(self.files[item])


class PhotoSamples(Samples):
    """Image files and PIL images in a list; the folder that holds a file says its class.

    Examples:
        >>> from PIL import Image
        >>> from vision_attn.data import Preprocess
        >>> from vision_attn.models import ViT
        >>> from vision_attn.runs.scoring.evidence import PhotoSamples
        >>> from vision_attn.types import Model
        >>> vit = ViT(image_size=16, patch_size=8, dim=12, depth=1, heads=2, num_classes=10).eval()
        >>> preprocess = Preprocess((16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
        >>> model = Model(vit, preprocess, [f"class {i}" for i in range(10)], vit.layout((16, 16)))
        >>> samples = PhotoSamples(model, [Image.new("RGB", (30, 20))])
        >>> tuple(samples[0].image.shape)
        (3, 16, 16)
    """

    def __init__(self, model: Model, photos: Sequence[str | PathLike[str] | Image]):
        super().__init__(model)
        if not photos:
            raise ValueError("expected at least one image, got an empty list")
        self.photos = photos
        self.names = [
            f"image {place}" if isinstance(photo, Image) else fspath(photo)
            for place, photo in enumerate(photos)
        ]

    def __getitem__(self, item: int) -> Sample:
        photo = self.photos[item]
        image = self.preprocess(photo)
        return Sample(self.names[item], image, self.label(item))

    def label(self, item: int) -> int | None:
        photo = self.photos[item]
        if isinstance(photo, Image):
            return None
        return self.labels.get(Path(photo).parent.name.lower())

    def stamp(self, item: int) -> int:
        photo = self.photos[item]
        return crc32(photo.tobytes()) if isinstance(photo, Image) else file_stamp(photo)


class MaskedFiles(Files):
    """`images/` and `masks/` of the same paths but for their suffixes; see `Masks`.

    What the numbers of a mask mean stands in `regions_of`.
    """

    def __init__(self, model: Model, folder: Path, images: Path, masks: Path):
        super().__init__(model, folder, find_images([images]))
        below = [file.relative_to(images).as_posix() for file in self.files]
        self.masks = Masks(
            masks, {str(file): name for file, name in zip(self.files, below, strict=True)}
        )
        self.expected = [
            f"{masks.name}/{PurePosixPath(name).with_suffix('.png')}" for name in below
        ]
        if not len(self.masks):
            raise ValueError(
                f"{folder}: no mask belongs to an image: expected masks named like the images, "
                f"such as {self.expected[0]}"
            )

    def __getitem__(self, item: int) -> Sample:
        file = self.files[item]
        if why := self.masks.refusal(file):
            raise ImageError(f"{file}: {why}")
        path = self.masks.of(file)
        if path is None:
            raise ImageError(f"{file}: no mask for this image: expected {self.expected[item]}")
        photo = self.preprocess.read(file)
        inside, border, _ = read_mask(path, photo.size, photo=file)
        if not inside.any():
            raise ImageError(f"{path}: the object is absent: the mask is 0 everywhere")
        if (inside | border).all():
            raise ImageError(f"{path}: no background: no pixel of the mask is 0")
        mask, ignore = self.preprocess.mask(inside), self.preprocess.mask(border)
        if not mask.any() or (mask | ignore).all():
            missing = "object" if not mask.any() else "background"
            raise ImageError(f"{path}: no {missing} in what the network sees of the photo")
        image = self.preprocess(photo)
        return Sample(self.names[item], image, self.label(item), {"object": mask}, ignore)

    def stamp(self, item: int) -> int:
        file = self.files[item]
        mask = self.masks.of(file)
        return file_stamp(file) if mask is None else file_stamp(file, mask, more=str(mask))


class BoxedFiles(Files):
    """Photos with boxes around their objects, of a `boxes.json`.

    The file holds {"images": [{"file", "boxes": [[left, top, right, bottom], ...], "wnid" or
    "label", "size": [width, height]}, ...]}, boxes in pixels of the photo.
    """

    def __init__(self, model: Model, folder: Path):
        self.about = read_boxes(folder / "boxes.json")
        super().__init__(model, folder, [folder / entry["file"] for entry in self.about])
        self.written = Counter(map(same_file, self.files))

    def __getitem__(self, item: int) -> Sample:
        entry, file = self.about[item], self.files[item]
        if (count := self.written[same_file(file)]) > 1:
            raise ImageError(f"{file}: {count} entries for this image in boxes.json: keep one")
        photo = self.preprocess.read(file)
        if not entry["boxes"]:
            raise ImageError(f"{file}: no box for this image in boxes.json")
        label, given = self.label(item), entry.get("label")
        if label is None and given is not None and self.classes_known == IMAGENET:
            raise ImageError(
                f"{file}: label {quoted(given)} in boxes.json is none of the model's classes: "
                "give the "
                f"name of one class or its number, 0 to {IMAGENET - 1}, or leave the label out"
            )
        if tuple(entry.get("size", photo.size)) != photo.size:
            raise ImageError(
                f"{file}: {sides(photo.size)}, but boxes.json is of {sides(entry['size'])}: "
                "give the boxes in pixels of the file"
            )
        try:
            boxes = self.preprocess.boxes(entry["boxes"], photo.size)
        except ValueError as error:
            raise ImageError(f"{file}: {error}") from None
        h, w = self.size
        y, x = (torch.arange(n, dtype=torch.float32, device="cpu") + 0.5 for n in (h, w))
        y = y[:, None]
        mask = torch.zeros(h, w, dtype=torch.bool, device="cpu")
        for left, top, right, bottom in boxes.tolist():
            mask |= (left <= x) & (x < right) & (top <= y) & (y < bottom)
        if not mask.any():
            raise ImageError(f"{file}: its boxes lie outside the part that the network sees")
        image = self.preprocess(photo)
        return Sample(self.names[item], image, label, {"object": mask}, boxes=boxes)

    def label(self, item: int) -> int | None:
        entry = self.about[item]
        found, given = self.labels.get(str(entry.get("wnid")).lower()), entry.get("label")
        if found is None and isinstance(given, str):
            found = self.labels.get(given.lower())
        if found is None and isinstance(given, int) and not isinstance(given, bool):
            found = given if 0 <= given < IMAGENET == self.classes_known else None
        return found

    def stamp(self, item: int) -> int:
        file = self.files[item]
        return file_stamp(file, more=[self.about[item], self.written[same_file(file)]])


def open_folder(path: str, model: Model) -> Samples:
    """What a folder holds: photos with boxes, with masks, or in folders of classes."""
    folder = Path(path)
    if (folder / "boxes.json").is_file():
        return BoxedFiles(model, folder)
    inside = {name.casefold(): folder / name for name in reversed(subfolders(folder))}
    images, masks = (
        next((inside[n] for n in names if n in inside), None) for names in (IMAGES, MASKS)
    )
    if images is not None and masks is not None:
        return MaskedFiles(model, folder, images, masks)
    if "masks" in inside and len(inside) == 2:
        raise ValueError(
            f"{folder}: {inside['masks'].name}/ without images/: name the folder of the images so"
        )
    if parts := split_folders(folder):  # the network knows the images of train
        held_out = next(part for part in ("test", "val", "train") if part in parts)
        say_scored(folder, parts[held_out])
        folder = parts[held_out]
    return Files(model, folder, find_images([folder]))


PLANTED: dict[str, Cue] = {
    "planted": "none",
    "planted:shortcut": "agree",
    "planted:contradict": "contradict",
}
SOURCES: dict[str, Callable[[], Source]] = {"cifar10": CIFAR10, "cifar100": CIFAR100}


def check_data(word: str) -> None:
    """Raise ValueError where the command's DATA is neither a name of data nor a folder."""
    if word in PLANTED or word in SOURCES or Path(word).is_dir():
        return
    if Path(word).exists():
        raise ValueError(
            f"{word}: expected a folder of images, got a file; inspect --score scores one photo"
        )
    known = [*PLANTED, *SOURCES]
    close = get_close_matches(word.lower(), known, n=2)
    hint = f": did you mean {' or '.join(close)}?" if close else ""
    raise ValueError(
        f"no data {quoted(word)}{hint or ':'} expected {', '.join(known)} or a folder of images"
    )


def as_data(data: Any) -> Data:
    """Return data as they are named, or the list of files and PIL images that a value holds.

    Raises ValueError for anything else.
    """
    if isinstance(data, Samples | str | PathLike):
        return data
    single = isinstance(data, Image | bytes | Mapping | type) or not isinstance(data, Iterable)
    single = single or getattr(data, "ndim", 1) != 1  # of an array
    photos = [data] if single else list(data)
    for photo in photos:
        if not isinstance(photo, str | PathLike | Image):
            raise ValueError(
                f"images: expected {', '.join((*PLANTED, *SOURCES))}, a folder, or a list of image "
                f"files and PIL images, got {quoted(photo)}"
            )
    return photos


def open_data(data: Data, model: Model, root: Path) -> Samples:
    """Open the images that the command's DATA or a list names; ValueError for anything else.

    Samples are taken as they are. root: the folder in which cifar10 and cifar100 lie.
    """
    if isinstance(data, Samples):
        return data
    if not isinstance(data, str | PathLike):
        return PhotoSamples(model, data)
    word = fspath(data)
    check_data(word)
    if word in PLANTED:
        return PlantedSamples(model, PLANTED[word])
    if word in SOURCES:
        return TestSet(model, SOURCES[word](), root)
    return open_folder(word, model)


def data_name(data: Data) -> str:
    """Name the data in tables and settings; PIL images by a checksum of their pixels too."""
    if isinstance(data, Samples):
        return data.name or type(data).__name__
    if isinstance(data, str | PathLike):
        return fspath(data)
    drawn = [photo for photo in data if isinstance(photo, Image)]
    if not drawn:
        return "a list of files"
    total = 0
    for photo in drawn:
        total = crc32(photo.tobytes(), crc32(repr((photo.mode, photo.size)).encode(), total))
    return f"a list of images ({total:08x})"


def read_boxes(path: Path) -> list[dict[str, Any]]:
    """Read the entries of a boxes.json; ValueError where it is not one."""
    expected = 'expected {"images": [{"file": ..., "boxes": [[left, top, right, bottom], ...]}]}'
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["images"]
        if not all(isinstance(e["file"], str) and isinstance(e["boxes"], list) for e in entries):
            raise TypeError("a file name or a box is of the wrong type")
        sizes = [entry["size"] for entry in entries if "size" in entry]
        if not all(isinstance(size, list) and len(size) == 2 for size in sizes):
            raise TypeError("a size is not [width, height]")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {expected} ({type(error).__name__}: {error})") from None
    if not entries:
        raise ValueError(f"{path}: no image in it: {expected}")
    return entries


def same_file(file: Path) -> str:
    """A path as one text, however it is written."""
    return normalize("NFC", os.path.normpath(file))


def sides(size: Sequence[int]) -> str:
    """(width, height) in words."""
    return f"{size[0]} x {size[1]}"
