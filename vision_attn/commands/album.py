"""Explained photos in a folder: pictures and raw maps; see `results` for what is said of them.

    NAME.METHOD.png    the photo under its heatmap
    NAME.METHOD.npy    the map as the method gives it
    NAME.grid.png      all methods side by side, where there are several
    NAME.channels.png  how far each channel's gate is open, for ChannelGates
    page/              thumbnails, for the gallery

Axes: h height, w width.
"""

import argparse
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from jaxtyping import Float
from numpy import ndarray
from PIL.Image import Image

from vision_attn import render
from vision_attn.commands.explained import Explained, Map, Request
from vision_attn.commands.results import Entry
from vision_attn.data.images import ImageError, read_image
from vision_attn.render import ColorMap, Dim, Panel, Row, Scale, Shot, Style
from vision_attn.render.picture import Picture


@dataclass(frozen=True)
class Added:
    """The photos of a batch that could be explained, and a line for each that could not."""

    entries: list[Entry]
    problems: list[str]


class Album:
    """Fills a folder. masks: where masks of the photos' stems are. page: also thumbnails."""

    def __init__(
        self, folder: Path, request: Request, style: Style, masks: Path | None, page: bool
    ):
        self.folder = folder
        self.request = request
        self.style = style
        self.masks = masks
        self.page = page

    @classmethod
    def of(cls, args: argparse.Namespace) -> "Album":
        """As the command line has it. Raises ValueError for what does not fit the model."""
        torch.manual_seed(args.seed)
        style = Dim() if args.style == "dim" else ColorMap(args.style)
        masks = None if args.masks is None else Path(args.masks)
        return cls(Path(args.output), Request.of(args), style, masks, args.page)

    def add(self, batch: Sequence[tuple[Path, str]]) -> Added:
        """Explain these files, each with a name for its pictures."""
        read, problems = [], []
        for file, name in batch:
            try:
                read.append((file, name, read_image(file)))
            except ImageError as error:
                problems.append(str(error))
        if not read:
            return Added([], problems)
        try:
            answers = self.request.explain([image for *_, image in read])
        except ValueError as error:
            if len(read) == 1:
                return Added([], [*problems, f"{read[0][0]}: {error}"])
            each = [self.add([(file, name)]) for file, name, _ in read]
            entries = [entry for added in each for entry in added.entries]
            return Added(entries, problems + [line for added in each for line in added.problems])
        entries = []
        for (file, name, image), explained in zip(read, answers, strict=True):
            try:
                entries.append(self._write(file, name, image, explained))
            except (ImageError, OSError) as error:
                problems.append(f"{file}: {error}")
        return Added(entries, problems)

    def _write(self, file: Path, name: str, image: Image, explained: Explained) -> Entry:
        photo = render.enlarged(np.asarray(image))
        panels = [Panel("photo", photo, self._prediction(explained))]
        links: list[str | None] = [None]
        for found in explained.maps:
            picture = self.painted(photo, found)
            stem = f"{name}.{label(found.explainer)}"
            panels.append(Panel(str(found.explainer), picture, "", found.scale, self.style))
            links.append(f"{stem}.png")
            if isinstance(self.style, ColorMap):
                picture = render.with_colorbar(picture, self.style, found.scale)
            render.save(picture, self.folder / f"{stem}.png")
            np.save(self.folder / f"{stem}.npy", found.values)
        if (mask := self._mask(file)) is not None:
            covered = render.overlay(photo, mask, style=Dim(), scale=Scale(1.0))
            panels.append(Panel("mask", covered))
            links.append(None)
        if len(explained.maps) > 1:
            render.save(render.heatmap_grid(panels, file.name), self.folder / f"{name}.grid.png")
        if explained.channels:
            chart = render.channel_gates(explained.channels, file.name)
            render.save(chart, self.folder / f"{name}.channels.png")
        row = None
        if self.page:
            shots = [
                self._shot(panel, name, link) for panel, link in zip(panels, links, strict=True)
            ]
            row = Row(file.name, panels[0].note, shots)
        return Entry(str(file), self.records(file, name, explained), row)

    def records(
        self, file: Path, name: str, explained: Explained, ending: str = ".png", **more: int
    ) -> list[dict[str, Any]]:
        """One for each method. ending: of the pictures' names. more: further values."""
        return [
            {"file": str(file), "picture": f"{name}.{label(found.explainer)}{ending}", **more}
            | self._record(explained, found)
            for found in explained.maps
        ]

    def painted(self, photo: Picture, found: Map) -> Picture:
        """The photo under its map, and where a place of it is asked about, that place marked."""
        size = photo.shape[1], photo.shape[0]
        preprocess = self.request.model.preprocess
        laid = preprocess.to_original(found.values, size)
        painted = render.overlay(photo, laid, style=self.style, scale=found.scale)
        if found.query is None:
            return painted
        left, top, right, bottom = preprocess.box(size)
        x, y = found.query
        return render.mark(
            painted, (left + x * (right - left)) / size[0], (top + y * (bottom - top)) / size[1]
        )

    def _shot(self, panel: Panel, name: str, link: str | None) -> Shot:
        file = f"{name}.{label(panel.title)}"
        alt = f"{name}, {panel.title}"
        return render.shot(panel.picture, self.folder, file, panel.title, alt, full=link)

    def _mask(self, file: Path) -> Float[ndarray, "h w"] | None:
        """Of the photo's stem: 1 on the object, 0 beside it, 0.5 where the mask does not say."""
        if self.masks is None:
            return None
        for path in sorted(self.masks.glob(f"{escape(file.stem)}.*")):
            with PIL.Image.open(path) as mask:
                values = np.asarray(mask if mask.mode in "1LP" else mask.convert("L")).astype(int)
            unsure = (values == 255) & (values == 1).any()  # as in Pascal VOC
            return ((values > 0) - 0.5 * unsure).astype(np.float32)
        return None

    def _prediction(self, explained: Explained) -> str:
        if not explained.chances.size:
            return ""
        best = explained.chances.argmax()
        return f"{self.request.model.classes[best].split(',')[0]} {explained.chances[best]:.1%}"

    def _record(self, explained: Explained, found: Map) -> dict[str, Any]:
        classes = self.request.model.classes
        record: dict[str, Any] = {
            "method": type(found.explainer).__name__,
            "options": asdict(found.explainer),
        }
        if explained.chances.size:
            best = int(explained.chances.argmax())
            record["predicted"] = classes[best]
            record["predicted_index"] = best
            record["probability"] = round(float(explained.chances[best]), 6)
        for word, index in (("target", found.target), ("against", found.against)):
            record[word] = classes[index] if classes and index is not None else None
            record[f"{word}_index"] = index
        record["prefix_mass"] = found.prefix_mass
        record["outlier_mass"] = found.outlier_mass
        if found.completeness_gap is not None:
            record["completeness_gap"] = round(found.completeness_gap, 6)
        return {**record, "seconds": round(found.seconds, 6)}


def label(method: object) -> str:
    """A method as part of a file's name: as on the command line, without quotes and spaces."""
    return re.sub(r"[<>:/\\|?*]", "-", re.sub(r"['\"\s]", "", str(method)))
