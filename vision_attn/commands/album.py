"""Explained photos in a folder: pictures, raw maps, records, and a page of them all.

    NAME.METHOD.png    the photo under its heatmap
    NAME.METHOD.npy    the map as the method gives it
    NAME.grid.png      all methods side by side, where there are several
    NAME.channels.png  how far each channel's gate is open, for ChannelGates
    results.jsonl      a line for each photo and method
    index.html, page/  the gallery

Axes: h height, w width.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
from jaxtyping import Float
from numpy import ndarray
from PIL.Image import Image

from vision_attn import render
from vision_attn.commands.explained import Explained, Map, Request
from vision_attn.data.images import ImageError, read_image
from vision_attn.render import ColorMap, Dim, Panel, Row, Scale, Shot, Style
from vision_attn.render.picture import Picture


class Album:
    """Fills a folder. masks: where masks of the photos' stems are. page: also keep a gallery."""

    def __init__(
        self, folder: Path, request: Request, style: Style, masks: Path | None, page: bool
    ):
        self.folder = folder
        self.request = request
        self.style = style
        self.masks = masks
        self.page = page
        self.rows: list[Row] = []
        self.done = 0
        self._records = folder / "results.jsonl"
        self._records.unlink(missing_ok=True)

    def add(self, batch: Sequence[tuple[Path, str]]) -> list[str]:
        """Explain these files, each with a name for its pictures; a line for each that failed."""
        read, problems = [], []
        for file, name in batch:
            try:
                read.append((file, name, read_image(file)))
            except ImageError as error:
                problems.append(str(error))
        if not read:
            return problems
        try:
            answers = self.request.explain([image for *_, image in read])
        except ValueError as error:
            if len(read) == 1:
                return [*problems, f"{read[0][0]}: {error}"]
            return problems + [line for file, name, _ in read for line in self.add([(file, name)])]
        for (file, name, image), explained in zip(read, answers, strict=True):
            try:
                self._write(file, name, image, explained)
                self.done += 1
            except (ImageError, OSError) as error:
                problems.append(f"{file}: {error}")
        return problems

    def write_page(self, title: str) -> Path:
        """The gallery of the photos so far."""
        lead = f"{self.style.meaning} What the network did not see is grey. Click to enlarge."
        return render.write_page(self.folder, title, [render.Gallery("Photos", self.rows)], lead)

    def _write(self, file: Path, name: str, image: Image, explained: Explained) -> None:
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
        if self.page:
            shots = [
                self._shot(panel, name, link) for panel, link in zip(panels, links, strict=True)
            ]
            self.rows.append(Row(file.name, panels[0].note, shots))
        self.record(file, name, explained)

    def record(
        self, file: Path, name: str, explained: Explained, ending: str = ".png", **more: int
    ) -> None:
        """A line for each method. ending: of the pictures' names. more: further entries."""
        with self._records.open("a", encoding="utf-8", errors="replace") as records:
            for found in explained.maps:
                picture = f"{name}.{label(found.explainer)}{ending}"
                record = {"file": str(file), "picture": picture, **more}
                record |= self._record(explained, found)
                records.write(json.dumps(record, ensure_ascii=False) + "\n")

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
        return {**record, "seconds": round(found.seconds, 6)}


def label(method: object) -> str:
    """A method as part of a file's name: as on the command line, without quotes and spaces."""
    return re.sub(r"[<>:/\\|?*]", "-", re.sub(r"['\"\s]", "", str(method)))
