"""What heatmaps are scored on: images as the network sees them, and where their evidence lies.

Axes: h, w the network's input, H, W a photo, b images, k boxes.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import timm
import torch
from jaxtyping import Bool, Float
from numpy import ndarray
from PIL.Image import Image, Resampling
from torch import Tensor

from vision_attn.data.draws import Draws, permutation
from vision_attn.data.images import ImageError, find_images, images_below, read_image
from vision_attn.data.planted import CLASSES, Cue, paint
from vision_attn.data.sources import CIFAR10, CIFAR100, Source
from vision_attn.reports.scoring.truth import read_boxes, read_mask, sides
from vision_attn.types import Model

Mask = Bool[Tensor, "h w"]


@dataclass(frozen=True, eq=False)
class Sample:
    """An image in the network's frame, and what is known of it.

    label: the model's class of what it shows, None where the model has no such class. masks: by
    what they are of, `object` or `shortcut`. ignore: pixels that count on neither side. boxes:
    left, top, right, bottom, in pixels of the network's input.
    """

    name: str
    image: Float[Tensor, "3 h w"]
    label: int | None
    masks: dict[str, Mask] = field(default_factory=dict)
    ignore: Mask | None = None
    boxes: Float[Tensor, "k 4"] | None = None


class Samples(ABC):
    """A data set as `model` sees it, an image at a time."""

    names: Sequence[str]

    def __init__(self, model: Model):
        self.model = model
        self.size = model.preprocess.input_size
        self.labels = class_names(model.classes)

    def __len__(self) -> int:
        return len(self.names)

    @abstractmethod
    def __getitem__(self, item: int) -> Sample:
        """Raises ImageError, one line, for an image that cannot be scored."""

    def chosen(self, most: int, seed: int = 0) -> list[int]:
        """The places of `most` images at most, drawn evenly; a larger number only adds to them."""
        return permutation((seed,), len(self))[:most].tolist()


class PlantedSamples(Samples):
    """The planted test images, painted at the network's own size, with exact masks."""

    def __init__(self, model: Model, cue: Cue, count: int = 2000):
        super().__init__(model)
        self.cue = cue
        self.names = [f"test {item}" for item in range(count)]

    def __getitem__(self, item: int) -> Sample:
        drawn = paint(item, item + 1, size=self.size, split="test", cue=self.cue)
        mean, std = torch.tensor([self.model.preprocess.mean, self.model.preprocess.std])
        image = (drawn.images[0].float() / 255 - mean[:, None, None]) / std[:, None, None]
        masks = {"object": drawn.object_mask[0]}
        if self.cue != "none":
            masks["shortcut"] = drawn.shortcut_mask[0]
        label = self.labels.get(CLASSES[int(drawn.labels[0])])
        return Sample(self.names[item], image, label, masks)


class TestSet(Samples):
    """The test images of a source of the data module: labels, no masks."""

    __test__ = False  # to pytest

    def __init__(self, model: Model, source: Source, root: Path):
        super().__init__(model)
        splits = source.load(root, 0.0, 0)
        self.images, self.classes = splits.test, splits.classes
        self.names = [f"test {item}" for item in range(len(self.images))]

    def __getitem__(self, item: int) -> Sample:
        items = np.array([item])
        pixels = self.images.fetch(items, Draws(0, 0, items))[0].permute(1, 2, 0).numpy()
        label = self.labels.get(self.classes[int(self.images.labels[item])].lower())
        image = self.model.preprocess(PIL.Image.fromarray(pixels))
        return Sample(self.names[item], image, label)


class Files(Samples):
    """Image files; the folder that holds one says its class, where the model has such a class."""

    def __init__(self, model: Model, folder: Path, files: Sequence[Path]):
        super().__init__(model)
        self.folder = folder
        self.files = files
        self.names = [file.relative_to(folder).as_posix() for file in files]

    def __getitem__(self, item: int) -> Sample:
        file = self.files[item]
        label = self.labels.get(file.parent.name.lower())
        return Sample(self.names[item], self.model.preprocess(read_image(file)), label)

    def in_sight(self, of: Bool[ndarray, "H W"]) -> Mask:
        """A photo's mask in the network's frame, each pixel that of the nearest."""
        box = self.model.preprocess.box((of.shape[1], of.shape[0]))
        whole = PIL.Image.fromarray(of.astype(np.uint8))
        seen = whole.resize(self.size[::-1], Resampling.NEAREST, box=box)
        return torch.from_numpy(np.array(seen) > 0)


class MaskedFiles(Files):
    """`images/` and `masks/` of the same stems.

    In a mask 0 is background, 1 to 20 are objects and 255 is their border; or 0 and 255 alone.
    """

    def __init__(self, model: Model, folder: Path):
        super().__init__(model, folder, find_images([folder / "images"]))
        self.masks = {file.stem: file for file in images_below(folder / "masks")}
        if self.masks.keys().isdisjoint(file.stem for file in self.files):
            raise ValueError(
                f"{folder}: no mask fits an image: expected files of the same stem, "
                f"such as masks/{self.files[0].stem}.png"
            )

    def __getitem__(self, item: int) -> Sample:
        file = self.files[item]
        if file.stem not in self.masks:
            raise ImageError(f"{file}: no mask of this image: expected masks/{file.stem}.png")
        path, photo = self.masks[file.stem], read_image(file)
        inside, border = read_mask(path, photo.size)
        mask, ignore = self.in_sight(inside), self.in_sight(border)
        if not mask.any() or (mask | ignore).all():
            missing = "object" if not mask.any() else "background"
            raise ImageError(f"{path}: no {missing} in what the network sees of the photo")
        label = self.labels.get(file.parent.name.lower())
        image = self.model.preprocess(photo)
        return Sample(self.names[item], image, label, {"object": mask}, ignore)


class BoxedFiles(Files):
    """Photos of a `boxes.json`: {"images": [{"file", "boxes": [[left, top, right, bottom], ...],
    "wnid" or "label", "size": [width, height]}, ...]}, boxes in pixels of the photo."""

    def __init__(self, model: Model, folder: Path):
        self.about = read_boxes(folder / "boxes.json")
        super().__init__(model, folder, [folder / entry["file"] for entry in self.about])

    def __getitem__(self, item: int) -> Sample:
        entry, file = self.about[item], self.files[item]
        photo = read_image(file)
        if not entry["boxes"]:
            raise ImageError(f"{file}: no box of this image in boxes.json")
        if tuple(entry.get("size", photo.size)) != photo.size:
            raise ImageError(
                f"{file}: {sides(photo.size)}, but boxes.json is of {sides(entry['size'])}: "
                "give the boxes in pixels of the file"
            )
        boxes = self._boxes(entry["boxes"], photo, file)
        h, w = self.size
        y, x = torch.arange(h)[:, None] + 0.5, torch.arange(w) + 0.5
        mask = torch.zeros(h, w, dtype=torch.bool)
        for left, top, right, bottom in boxes.tolist():
            mask |= (left <= x) & (x < right) & (top <= y) & (y < bottom)
        if not mask.any():
            raise ImageError(f"{file}: its boxes lie outside of what the network sees")
        image = self.model.preprocess(photo)
        return Sample(self.names[item], image, self._label(entry), {"object": mask}, boxes=boxes)

    def _boxes(self, boxes: Any, photo: Image, file: Path) -> Float[Tensor, "k 4"]:
        """In the network's frame, those that it sees at least a pixel of."""
        given = torch.tensor(boxes, dtype=torch.float32)
        if given.ndim != 2 or given.shape[1] != 4 or (given[:, :2] >= given[:, 2:]).any():
            raise ImageError(
                f"{file}: expected boxes [left, top, right, bottom], left < right and "
                f"top < bottom, got {boxes}"
            )
        if (given < -1).any() or (given[:, 2:] > torch.tensor(photo.size) + 1).any():
            raise ImageError(f"{file}: a box leaves the photo of {sides(photo.size)}: {boxes}")
        left, top, right, bottom = self.model.preprocess.box(photo.size)
        h, w = self.size
        corner = torch.tensor([left, top, left, top])
        scale = torch.tensor([w / (right - left), h / (bottom - top)] * 2)
        seen = ((given - corner) * scale).clamp(min=torch.zeros(4), max=torch.tensor([w, h, w, h]))
        return seen[((seen[:, 2:] - seen[:, :2]) >= 1).all(dim=1)]

    def _label(self, entry: dict[str, Any]) -> int | None:
        found = self.labels.get(str(entry.get("wnid")).lower())
        if found is None and isinstance(entry.get("label"), str):
            found = self.labels.get(entry["label"].lower())
        if found is None and len(self.model.classes) == 1000:
            found = entry.get("label")
        return found


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


def open_folder(path: str, model: Model) -> Samples:
    """What a folder holds: photos with boxes, with masks, or in folders of classes."""
    folder = Path(path)
    if (folder / "boxes.json").is_file():
        return BoxedFiles(model, folder)
    if (folder / "masks").is_dir() and (folder / "images").is_dir():
        return MaskedFiles(model, folder)
    if (folder / "train").is_dir():  # its images are known to the network
        held_out = [folder / name for name in ("test", "val") if (folder / name).is_dir()]
        folder = held_out[0] if held_out else folder / "train"
    return Files(model, folder, find_images([folder]))


PLANTED: dict[str, Cue] = {
    "planted": "none",
    "planted:shortcut": "agree",
    "planted:contradict": "contradict",
}
SOURCES: dict[str, Callable[[], Source]] = {"cifar10": CIFAR10, "cifar100": CIFAR100}


def open_data(word: str, model: Model, root: Path) -> Samples:
    """DATA of the command line. Raises ValueError where there is no such data."""
    if word in PLANTED:
        return PlantedSamples(model, PLANTED[word])
    if word in SOURCES:
        return TestSet(model, SOURCES[word](), root)
    if Path(word).is_dir():
        return open_folder(word, model)
    if Path(word).exists():
        raise ValueError(f"{word}: expected a folder of images, got a file")
    known = [*PLANTED, *SOURCES]
    close = get_close_matches(word.lower(), known, n=2)
    hint = f": did you mean {' or '.join(close)}?" if close else ""
    raise ValueError(
        f"no data {word!r}{hint or ':'} expected {', '.join(known)} or a folder of images"
    )
