"""Mosaics of photos that the network is sure of: where each class's evidence lies is known exactly.

A mosaic shows photos of different classes, side by side. For each class in turn a map should lie on
its photo: the grid pointing game of Böhle, Fritz and Schiele 2021. Of each class come the photos
that the network names right and is surest of, each once; which classes a mosaic shows is drawn.

A network that takes larger images sees each photo at its own size (`full`), one that is built for
one size sees them `shrunk` into its input. Of the frames that it takes, that one is used in which
it still names more of the photos: the share of a mosaic's classes among as many of highest logit.

Axes: b mosaics, k cells, h, w a photo, H, W a mosaic, y, x a map.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, NamedTuple
from zlib import crc32

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from vision_attn.data.draws import permutation
from vision_attn.errors import quoted
from vision_attn.runs.scoring.evidence import Sample, Samples
from vision_attn.runs.scoring.scorer import GRIDS, Record
from vision_attn.types import Model

__all__ = ["FRAMES", "Mosaic", "MosaicSamples", "Mosaics", "check_sides", "paste"]

CANDIDATES = 3000  # photos at most, drawn evenly, of which the surest are taken
PHOTOS = 400  # in the mosaics of one side together, at most
FRAMES = "full", "shrunk"
Key = tuple[str, str, str]  # kind, method, image


class Mosaic(NamedTuple):
    """Photos of different classes, row by row: their places in the data, and their classes.

    Examples:
        >>> from vision_attn.runs.scoring.mosaics import Mosaic
        >>> Mosaic("2x2 mosaic 0", side=2, items=(4, 8, 0, 3), classes=(1, 7, 0, 2)).side
        2
    """

    name: str
    side: int
    items: tuple[int, ...]
    classes: tuple[int, ...]


class MosaicSummary(NamedTuple):
    """What is known of the mosaics of one side.

    Attributes:
        frame: What the network sees.
        named: Of each frame that it takes, the mean share of a mosaic's classes that it names.
        least: The lowest probability of a photo's class.
        surest: The highest probability of a photo's class.

    Examples:
        >>> from vision_attn.runs.scoring.mosaics import MosaicSummary
        >>> one = MosaicSummary(2, 9, frame="full", named={"full": 0.9}, least=0.8, surest=1.0)
        >>> one.frame
        'full'
    """

    side: int
    mosaics: int
    frame: str
    named: dict[str, float]
    least: float
    surest: float

    def __str__(self) -> str:
        size = "at its own size" if self.frame == "full" else "shrunk into the network's input"
        share = f"{self.named[self.frame]:.1%}"
        other = [frame for frame in self.named if frame != self.frame]
        beside = f" ({other[0]}: {self.named[other[0]]:.1%})" if other else ""
        return (
            f"mosaics of {self.side}x{self.side}: {self.mosaics}, each photo {size}; the photos "
            "are those that the network classifies right with the highest probability "
            f"({self.least:.3f} to {self.surest:.3f}), each used once; of a mosaic's "
            f"{self.side**2} classes {share} are among its {self.side**2} most probable"
            f"{beside}; a map that is the same for every class has {1 / self.side**2:.3f}"
        )


@dataclass(eq=False)
class Mosaics:
    """The mosaics of a data set for one model, once they are composed; they can be pickled.

    What is measured of photos and mosaics makes them: `named` says of which photos the network is
    sure, `framed` in which frame it names more of a mosaic's.

    Attributes:
        name: What the data are called.
        sides: Photos a side.
        most: How many mosaics of each, as far as PHOTOS go.

    Examples:
        >>> from vision_attn.data import Preprocess
        >>> from vision_attn.models import ViT
        >>> from vision_attn.runs.scoring.evidence import PlantedSamples
        >>> from vision_attn.runs.scoring.mosaics import Mosaics
        >>> from vision_attn.types import Model
        >>> vit = ViT(image_size=16, patch_size=8, dim=12, depth=1, heads=2, num_classes=10).eval()
        >>> preprocess = Preprocess((16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
        >>> model = Model(vit, preprocess, [f"class {i}" for i in range(10)], vit.layout((16, 16)))
        >>> mosaics = Mosaics("planted", model, PlantedSamples(model, "none"), sides=(2,), most=10)
        >>> mosaics.candidates()  # the network knows no class of a planted image
        []
    """

    name: str
    model: Model
    data: Samples
    sides: Sequence[int]
    most: int
    seed: int = 0
    made: list[Mosaic] = field(default_factory=list)
    frames: dict[int, str] = field(default_factory=dict)
    known: list[MosaicSummary] = field(default_factory=list)
    sure: dict[int, list[tuple[float, int]]] = field(default_factory=dict)

    def check(self) -> None:
        """Raise ValueError, one line, where the data cannot fill a mosaic of each side."""
        found = {self.data.label(item) for item in range(len(self.data))}
        labels = {label for label in found if label is not None}
        if not labels:
            wrong = "mosaics need to know what each photo shows"
            if self.data.folders:
                wrong = f"the model knows no class named {some(self.data.folders)}"
            raise ValueError(
                f"{self.name}: {wrong}: give a folder with one folder for each class, named like "
                f"the model's classes, such as {some(self.model.classes)}"
            )
        self._enough(labels, "that the model knows")

    def candidates(self) -> list[int]:
        """Return the places of the photos that the network has to name."""
        with_class = [
            item
            for item in self.data.chosen(len(self.data), self.seed)
            if self.data.label(item) is not None
        ]
        return with_class[:CANDIDATES]

    def compose(self, records: Mapping[Key, Record]) -> None:
        """Make the mosaics from the records of `named`; ValueError with too few photos named right.

        The first ones stay the same where there are more.
        """
        places = {image: item for item, image in enumerate(self.data.names)}
        sure: dict[int, list[tuple[float, int]]] = defaultdict(list)
        for (kind, _, image), one in records.items():
            if kind == "named" and image in places and one["label"] == one["predicted"]:
                sure[one["label"]].append((-one["probability"], places[image]))
        self._enough(set(sure), "that the model classifies right")
        self.made, self.sure = [], {label: sorted(found) for label, found in sure.items()}
        for side in self.sides:
            self.made += self._of_side(side)

    def _of_side(self, side: int) -> list[Mosaic]:
        left = {label: [item for _, item in found] for label, found in self.sure.items()}
        found: list[Mosaic] = []
        while len(found) < min(self.most, PHOTOS // side**2):
            labels = sorted(label for label, items in left.items() if items)
            if len(labels) < side**2:
                break
            drawn = permutation((self.seed, side, len(found)), len(labels))[: side**2]
            classes = tuple(labels[place] for place in drawn)
            items = tuple(left[label].pop(0) for label in classes)
            photos = crc32(repr([self.data.names[item] for item in items]).encode())
            name = f"{side}x{side} mosaic {len(found)} ({photos:08x})"
            found.append(Mosaic(name, side, items, classes))
        return found

    def choose_frames(self, records: Mapping[Key, Record]) -> None:
        """Choose what the network sees of mosaics of each side, by the records of `framed`."""
        self.known = []
        for side in self.sides:
            mine = self.of_side(side)
            named = {}
            for frame in FRAMES:
                keys = [("framed", "", framed_name(self.made[i], frame)) for i in mine]
                found = [records[key] for key in keys if key in records]
                if found and not any("problem" in one for one in found):
                    named[frame] = sum(one["named"] for one in found) / len(found)
            if not named:
                raise ValueError(f"no mosaic of {side}x{side} could be read")
            self.frames[side] = max(named, key=lambda frame: named[frame])  # full where both do
            used = {item for i in mine for item in self.made[i].items}
            chances = [-p for found in self.sure.values() for p, item in found if item in used]
            self.known.append(
                MosaicSummary(side, len(mine), self.frames[side], named, min(chances), max(chances))
            )

    def of_side(self, side: int) -> list[int]:
        """The numbers of the mosaics of that side."""
        return [i for i, one in enumerate(self.made) if one.side == side]

    def names(self) -> list[str]:
        """A name of each mosaic as it is scored, from its photos and its frame."""
        return [framed_name(one, self.frames[one.side]) for one in self.made]

    def samples(self, frame: str) -> "MosaicSamples":
        """The mosaics as samples, in this frame."""
        return MosaicSamples(self.model, self.data, self.made, frame)

    def _enough(self, labels: set[int], words: str) -> None:
        side, names = max(self.sides), self.model.classes
        if len(labels) < side**2:
            known = f" ({some([names[label] for label in sorted(labels)])})" if labels else ""
            raise ValueError(
                f"{self.name}: a mosaic of {side}x{side} needs photos of {side**2} classes "
                f"{words}, got {len(labels)}{known}"
            )


class MosaicSamples(Samples):
    """Mosaics as samples: images of several photos, with the name and the class of each cell.

    Examples:
        >>> from vision_attn.data import Preprocess
        >>> from vision_attn.models import ViT
        >>> from vision_attn.runs.scoring.evidence import PlantedSamples
        >>> from vision_attn.runs.scoring.mosaics import Mosaic, MosaicSamples
        >>> from vision_attn.types import Model
        >>> vit = ViT(image_size=16, patch_size=8, dim=12, depth=1, heads=2, num_classes=10).eval()
        >>> preprocess = Preprocess((16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
        >>> model = Model(vit, preprocess, [f"class {i}" for i in range(10)], vit.layout((16, 16)))
        >>> mosaic = Mosaic("2x2 mosaic 0", side=2, items=(4, 8, 0, 3), classes=(1, 7, 0, 2))
        >>> sample = MosaicSamples(model, PlantedSamples(model, "none"), [mosaic], "full")[0]
        >>> tuple(sample.image.shape), sample.cells[1]
        ((3, 32, 32), ('test 8', 7))
    """

    def __init__(self, model: Model, data: Samples, mosaics: Sequence[Mosaic], frame: str):
        self.data, self.mosaics, self.frame = data, mosaics, frame
        self.names = [framed_name(mosaic, frame) for mosaic in mosaics]

    def __getitem__(self, item: int) -> Sample:
        mosaic = self.mosaics[item]
        photos = torch.stack([self.data.sample(photo).image for photo in mosaic.items])
        names = [self.data.names[photo] for photo in mosaic.items]
        cells = tuple(zip(names, mosaic.classes, strict=True))
        return Sample(self.names[item], paste(photos, self.frame), None, cells=cells)

    def stamp(self, item: int) -> int:
        stamps = [self.data.stamp(photo) for photo in self.mosaics[item].items]
        return crc32(repr(stamps).encode())


def framed_name(mosaic: Mosaic, frame: str) -> str:
    """Name a mosaic in a frame."""
    return f"{mosaic.name}, {frame}"


def check_sides(mosaic: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the sides in order, each once; ValueError for one that is not offered."""
    sides = () if mosaic is None else tuple(mosaic) if isinstance(mosaic, Sequence) else (mosaic,)
    for side in sides:
        if not isinstance(side, Integral) or side not in GRIDS:
            raise ValueError(
                f"mosaic must be {', '.join(map(str, GRIDS))} photos a side, got {quoted(side)}"
            )
    return tuple(sorted(set(map(int, sides))))


def paste(photos: Float[Tensor, "k c h w"], frame: str) -> Float[Tensor, "c H W"]:
    """Lay photos out in a square of cells, row by row.

    frame: `full`, each photo as it is, or `shrunk`, all of them in the size of one; where that is
    no multiple of the side, some cells are a pixel larger.

    Examples:
        >>> import torch
        >>> from vision_attn.runs.scoring.mosaics import paste
        >>> paste(torch.arange(4.0).view(4, 1, 1, 1).expand(-1, 1, 2, 2), "full")[0, :, ::2]
        tensor([[0., 1.],
                [0., 1.],
                [2., 3.],
                [2., 3.]])
    """
    side = round(len(photos) ** 0.5)
    if frame == "full":
        return rearrange(photos, "(r s) c h w -> c (r h) (s w)", r=side)
    h, w = photos.shape[2:]
    rows, columns = ([round(i * n / side) for i in range(side + 1)] for n in (h, w))
    whole = torch.empty_like(photos[0])
    for i, photo in enumerate(photos):
        top, bottom = rows[i // side : i // side + 2]
        left, right = columns[i % side : i % side + 2]
        whole[:, top:bottom, left:right] = F.interpolate(
            photo[None], size=(bottom - top, right - left), mode="bilinear", antialias=True
        )[0]
    return whole


def some(words: Sequence[Any], most: int = 4) -> str:
    """The first words of several."""
    return ", ".join(map(str, words[:most])) + (", ..." if len(words) > most else "")
