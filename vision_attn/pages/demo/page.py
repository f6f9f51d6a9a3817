"""The demo's page: how accurate the networks are, whether their maps find the object, a gallery.

Axes: n images, h height, w width.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vision_attn import pages, render
from vision_attn.data import planted
from vision_attn.data.images import open_image
from vision_attn.evaluate import PointingGame
from vision_attn.pages import Name, Row, Section, Shot
from vision_attn.pages.demo.photos import map_shots, photo_networks
from vision_attn.render import Dim, Scale
from vision_attn.runs.explain import Request
from vision_attn.runs.explanation import Explanation
from vision_attn.runs.progress import Bar, Silent
from vision_attn.types import Model

__all__ = ["ENTRIES", "Demo", "DemoNetwork", "write_first_page"]

SCORED = 500  # test images whose maps are compared with the masks
SHOWN = 10  # test images in the gallery, one of each class
BATCH = 50

TITLE = "Where networks look"
LEAD = (
    "Photos of the package, and where trained networks look in them; none of these networks was "
    "trained on them. Then three small networks, trained here on images whose evidence is known."
)
DRAWN = (
    "Three small networks, trained from scratch on drawn images. In each image one object, by its "
    "shape and texture together, decides the class; the plain shapes around it are no evidence. "
    "Because the object's pixels are known, a map of where a network looked can be checked."
)
ABOUT_HITS = "maximum inside the object"


@dataclass(frozen=True)
class DemoNetwork:
    """A network of the demo: its name, its title, its part of the time, what explains it.

    Attributes:
        share: Of the minutes, where these are given in place of epochs.

    Examples:
        >>> from vision_attn.pages.demo.page import DemoNetwork
        >>> DemoNetwork("senet", "SENet", 0.3, ("GradCAM", "ChannelGates")).config
        'senet_planted_fast'
    """

    name: str
    title: str
    share: float
    methods: tuple[str, ...]

    @property
    def config(self) -> str:
        """The name of the config that it trains by."""
        return f"{self.name}_planted_fast"


ENTRIES = (
    DemoNetwork("vit", "Vision Transformer", 0.4, ("LibraGradient", "Rollout", "GradCAM")),
    DemoNetwork("senet", "SENet", 0.3, ("GradCAM", "ChannelGates")),
    DemoNetwork("spatial_cnn", "Spatial-attention CNN", 0.3, ("GradCAM", "SpatialGates")),
)


def write_first_page(folder: Path, photos: Sequence[Section]) -> Path:
    """Write the page as it is while the networks are being trained: the photos alone."""
    soon = "Three networks are being trained now. Reload this page when the command has ended."
    return pages.write_page(folder, TITLE, [*photos, pages.Text("In training", [soon])], lead=LEAD)


class Demo:
    """The page of the demo: its networks, what they learned, and where they look.

    Args:
        models: By the entries' names; their runs are in folder/NAME.

    Examples:
        >>> from vision_attn.pages.demo.page import ENTRIES, Demo
        >>> [entry.name for entry in ENTRIES]  # Demo(folder, ENTRIES, models).write_page()
        ['vit', 'senet', 'spatial_cnn']
    """

    def __init__(
        self,
        folder: Path,
        entries: Sequence[DemoNetwork],
        models: Mapping[str, Model],
        progress: Silent | None = None,
    ):
        self.folder = folder
        self.entries = entries
        self.models = models
        self.test = planted.paint(0, SCORED, split="test")
        self.photos = [
            Image.fromarray(image.permute(1, 2, 0).numpy()) for image in self.test.images
        ]
        self.shown: dict[str, list[Explanation]] = {}
        self.hits: dict[str, dict[str, float]] = {}
        with Bar() if progress is None else progress as shown:
            shown.start("explaining", len(entries) * SCORED)
            for entry in entries:
                self._explain(entry, shown)

    def _explain(self, entry: DemoNetwork, progress: Silent) -> None:
        request = Request.of(self.models[entry.name], entry.methods)
        found: list[Explanation] = []
        for start in range(0, SCORED, BATCH):
            found += request.explain(
                [("image", photo) for photo in self.photos[start : start + BATCH]]
            )
            progress.advance(BATCH)
        self.shown[entry.name] = found[:SHOWN]
        self.hits[entry.name] = {
            method: self._pointing_game([torch.from_numpy(one.maps[i].values) for one in found])
            for i, method in enumerate(entry.methods)
        }

    def _pointing_game(self, maps: list[Tensor]) -> float:
        """The share of maps whose maximum, at the images' size, lies inside the object's mask."""
        game = PointingGame()
        game.update(torch.stack(maps), self.test.object_mask)
        return game.compute().item()

    @cached_property
    def accuracy(self) -> dict[str, dict[str, float]]:
        """Test top-1, top-5 and calibration error of each entry, from its summary.json."""
        return {
            entry.name: json.loads((self.folder / entry.name / "summary.json").read_text("utf-8"))
            for entry in self.entries
        }

    def results(self) -> list[list[str]]:
        """A table: the first row is the header."""
        rows = [["network", "test accuracy", "minutes", f"map: {ABOUT_HITS}"]]
        for entry in self.entries:
            result = self.accuracy[entry.name]
            hits = [f"{method} {share:.0%}" for method, share in self.hits[entry.name].items()]
            rows.append(
                [
                    Name(entry.title),
                    f"{result['test/top1']:.1%}",
                    f"{result['minutes']:.1f}",
                    ", ".join(hits),
                ]
            )
        return rows

    def write_page(self, first: Sequence[Section] = ()) -> Path:
        """Write the page and its pictures, folder/index.html; `first` are the sections on top."""
        header, *rows = self.results()
        chance = self.test.object_mask.float().mean().item()
        sections = [
            *first,
            pages.Text("Trained here", [DRAWN]),
            pages.Table("Results", header, rows),
            pages.Text(
                "How to read this",
                [
                    f"A point chosen blindly falls inside the object in {chance:.0%} of the test "
                    f"images. The shares above are of {SCORED} test images.",
                    "Colours start at 0, and the colour bar of each picture (click it) says what "
                    "full colour stands for; no map is scaled up to look more certain than it is.",
                ],
            ),
            pages.Gallery("Where they look", [self._row(i) for i in range(SHOWN)]),
            *(pages.Figures(f"How the {e.title} learned", self._figures(e)) for e in self.entries),
            pages.Commands("What next", self.next_steps()),
        ]
        lead = LEAD if first else ""
        return pages.write_page(self.folder, TITLE, sections, lead=lead)

    def _row(self, index: int) -> Row:
        name = self.test.classes[int(self.test.labels[index])]
        photo = render.enlarged(np.asarray(self.photos[index]))
        mask = self.test.object_mask[index].numpy().astype(np.float32)
        shots = [
            self._shot(photo, f"{index}.photo", "image", name),
            self._shot(
                render.overlay(photo, mask, style=Dim(), scale=Scale(1.0)),
                f"{index}.mask",
                "the object",
                name,
            ),
        ]
        groups = [("The image", 2)]
        for entry in self.entries:
            explained = self.shown[entry.name][index]
            called = self.test.classes[int(explained.probabilities.argmax())]
            verdict = "✓" if called == name else "✗"
            groups.append((f"{entry.title}: {verdict} {called}", len(explained.maps)))
            file, large = f"{index}.{entry.name}", f"{entry.name}/maps"
            shots += map_shots(photo, explained, self.folder, file, large, name)
        return Row(name, "", shots, groups=groups)

    def _shot(self, picture: np.ndarray, file: str, caption: str, name: str) -> Shot:
        return pages.shot(picture, self.folder, file, caption, f"{name}: {caption}")

    def _figures(self, entry: DemoNetwork) -> list[Shot]:
        """Draw the learning curves of one network, and show what its run drew."""
        shots = []
        run = self.folder / entry.name
        panels = render.learning_curve_panels(run / "metrics.csv")
        for metric in ("loss", "top-1 accuracy"):
            picture = panels[metric]
            file = f"page/{entry.name}.{metric}.png".replace(" ", "_")
            render.save(picture, self.folder / file)
            size = picture.shape[1], picture.shape[0]
            shots.append(Shot(file, file, size, metric, f"{entry.title}: {metric} by epoch"))
        for file, caption in (
            ("confusion_matrix.png", "confusion matrix on the test images"),
            ("heatmaps.png", "attention as it forms"),
        ):
            if not (run / file).is_file():
                continue
            with open_image(run / file) as opened:
                size = opened.size
            link = f"{entry.name}/{file}"
            shots.append(Shot(link, link, size, caption, f"{entry.title}: {caption}"))
        return shots

    def next_steps(self) -> list[tuple[str, str]]:
        """List what to try now, each with the command for it."""
        best = quote(str(self.folder / self.entries[0].name / "best.ckpt"))
        known, about = next(iter(photo_networks()), None), ""
        run = known or best
        if known is None:
            known, about = "timm:vit_small_patch16_224", " (its weights are downloaded)"
        return [
            (
                "See where the network trained here looks in your photos (a file or a folder):",
                f"vision-attn explain {best} photo.jpg --page --output outputs/look",
            ),
            (
                f"See where a network trained on photos looks{about}:",
                f"vision-attn explain {known} photo.jpg --page",
            ),
            (
                "Click through every layer and head of the network trained here:",
                f"vision-attn inspect {best} photo.jpg --output outputs/inspect.html",
            ),
            (
                "Run the network in a page, cover parts of a photo and watch the class change:",
                f"vision-attn live {run} photo.jpg --output outputs/live.html",
            ),
            (
                "Measure which of its heatmaps to trust:",
                f"vision-attn score {best} planted --output outputs/score",
            ),
            ("Train it again, longer:", "vision-attn fit --config vit_planted"),
        ]
