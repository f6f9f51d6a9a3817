"""Photos explained: their classes and maps, drawn over the photos and written to a folder.

    NAME.METHOD.png    the photo under its heatmap
    NAME.METHOD.npy    the map as the method gives it
    NAME.grid.png      all methods side by side, where there are several
    NAME.channels.png  how far each channel's gate is open, for ChannelGates
    results.jsonl      a line for each photo and method

Axes: h height, w width, k classes, H, W a photo's height and width.
"""

import logging
import os
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import PIL.Image
import torch
from jaxtyping import Float
from numpy import ndarray
from PIL.Image import Image
from torch import Tensor

from vision_attn import render
from vision_attn.arguments import checked
from vision_attn.data.masks import Masks, read_mask
from vision_attn.errors import cut
from vision_attn.files import kept_together, replacing
from vision_attn.methods import Explainer
from vision_attn.methods.targets import name_of
from vision_attn.render import ColorMap, Dim, Panel, Scale, Style
from vision_attn.render.picture import Picture
from vision_attn.runs.entries import Entry
from vision_attn.runs.inputs import check_apart, output_folder, written_over
from vision_attn.runs.labels import label_of
from vision_attn.runs.maps import Map
from vision_attn.runs.naming import label
from vision_attn.runs.rows import replaced_line
from vision_attn.runs.saved import SavedBefore
from vision_attn.types import Heatmaps, Model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Explanation", "Explanations", "Pictures"]

log = logging.getLogger(__name__)

PAGE_BYTES = 58_000  # of a photo on the page: all its pictures, and HTML_BYTES of text for each
HTML_BYTES = 600
LEAST_BYTES = 4_400  # of a picture, where there are so many that each would be a blur


@dataclass(frozen=True, eq=False)
class Explanation:
    """One photo explained: its classes, its maps, and the way back to its pixels.

    In a notebook it shows itself: the photo, and each map with its colour bar.

    Attributes:
        model: What explained it.
        photo: The photo, upright.
        name: The photo's file, or "image".
        probabilities: Of each class, (k), empty where the network has no classifier; values, where
            it gives values that have no probability.
        maps: One a method, in the order of the methods.
        channels: How far each layer's channel gates are open, for ChannelGates.
        problems: A line for each method that failed.

    Examples:
        >>> from PIL import Image
        >>> from vision_attn.data import Preprocess
        >>> from vision_attn.models import ViT
        >>> from vision_attn.runs.explain import explain
        >>> from vision_attn.types import Model
        >>> vit = ViT(image_size=16, patch_size=8, dim=8, depth=1, heads=2, num_classes=2).eval()
        >>> preprocess = Preprocess((16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
        >>> model = Model(vit, preprocess, ["cat", "dog"], vit.layout((16, 16)))
        >>> found = explain(model, Image.new("RGB", (40, 24)), ["Rollout"], target="dog")
        >>> found.overlay().size
        (40, 24)
    """

    model: Model
    photo: Image
    name: str
    probabilities: Float[ndarray, " k"]
    maps: list[Map]
    channels: dict[str, Float[ndarray, " _"]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def predicted(self) -> int | None:
        """The most probable class; None where the network has no classifier, or gives values."""
        if not self.probabilities.size or self.model.calibration.activation == "none":
            return None
        return int(self.probabilities.argmax())

    @property
    def prediction(self) -> str:
        """The most probable class with its probability, in words, or the values; or empty."""
        if self.predicted is None:
            values = zip(self.model.classes, self.probabilities, strict=False)
            return ", ".join(f"{name} {value:.4g}" for name, value in values)
        name = self.model.classes[self.predicted].split(",")[0]
        return f"{name} {self.probabilities[self.predicted]:.1%}"

    @property
    def unlike(self) -> str:
        """A sentence where the photo is unlike what the network knows (`Calibration`); or empty."""
        if self.predicted is None:
            return ""
        return self.model.calibration.unlike(float(self.probabilities[self.predicted]))

    @property
    def warning(self) -> str:
        """A sentence where weights are random, or the photo is unlike what the network knows."""
        return self.model.warning or self.unlike

    @property
    def caution(self) -> str:
        """What titles and captions warn of: `warning`, and maps that nothing speaks for."""
        cautions = dict.fromkeys(found.caution for found in self.maps)
        return ". ".join(filter(None, [self.warning, *cautions]))

    @property
    def asked(self) -> str:
        """What is explained, in words, where that is more than the predicted class."""
        predicted = "" if self.predicted is None else name_of(self.predicted, self.model.classes)
        asked = dict.fromkeys(found.explained for found in self.maps if found.explained)
        return "" if set(asked) <= {predicted} else f"explained: {', '.join(asked)}"

    @property
    def facts(self) -> tuple[str, str, float | None]:
        """The predicted class, the one that the photo's folder is named for, the probability."""
        if self.predicted is None:
            return "", "", None
        classes = self.model.classes
        label = label_of(self.name, classes)
        predicted = classes[self.predicted].split(",")[0]
        true = "" if label is None else classes[label].split(",")[0]
        if true == predicted and label != self.predicted:  # ImageNet has two classes named crane
            true = f"{true} (class {label})"
        return predicted, true, float(self.probabilities[self.predicted])

    @checked()
    def classes(self, most: int = 5) -> list[tuple[str, float]]:
        """List the most probable classes, each with its probability.

        Args:
            most: How many, at most.
        """
        order = np.argsort(-self.probabilities, kind="stable")[:most]
        return [(self.model.classes[at], float(self.probabilities[at])) for at in order]

    def __getitem__(self, method: str | int | Explainer) -> Map:
        """Return the map of a method.

        Args:
            method: Its name as in `methods`, its number there, or the explainer.

        Raises:
            KeyError: The method was not used.
        """
        if isinstance(method, int):
            return self.maps[method]
        for one in self.maps:
            if str(method) in (one.method, type(one.explainer).__name__):
                return one
        raise KeyError(
            f"no map of {cut(str(method))}: there are {', '.join(self.methods) or 'none'}"
        )

    @property
    def methods(self) -> list[str]:
        """The methods in their order, as they are written on the command line."""
        return [one.method for one in self.maps]

    @checked()
    def on_photo(self, method: str | int | Explainer = 0) -> Float[ndarray, "H W"]:
        """Lay the raw map on the photo's own pixels.

        Args:
            method: The method, as on the command line, or its number, or the explainer.

        Returns:
            The map, (H W); NaN where the network did not look.

        Raises:
            KeyError: There is no map of that method.
        """
        return self.model.preprocess.to_original(self[method].values, self.photo.size)

    @checked()
    def overlay(
        self, method: str | int | Explainer = 0, *, style: Style | None = None
    ) -> PIL.Image.Image:
        """Draw the map over the whole photo, in its own scale and at its own place.

        What the network did not see is grey; a query is marked. `show` adds the colour bar.

        Args:
            method: As in `on_photo`.
            style: How heat changes the photo; None: colours, `ColorMap()`.

        Returns:
            A picture of the photo's size.

        Raises:
            KeyError: There is no map of that method.
        """
        return PIL.Image.fromarray(self.painted(np.asarray(self.photo), self[method], style))

    def painted(self, photo: Picture, found: Map, style: Style | None = None) -> Picture:
        """Draw a map over the photo's pixels.

        Args:
            photo: The photo, which may be enlarged.
            found: One of the maps.
            style: As in `overlay`.

        Returns:
            A picture of the size of `photo`.
        """
        size = photo.shape[1], photo.shape[0]
        preprocess = self.model.preprocess
        laid = preprocess.to_original(found.values, size)
        painted = render.overlay(photo, laid, style=style or ColorMap(), scale=found.scale)
        if found.query is None:
            return painted
        left, top, right, bottom = preprocess.box(size)
        x, y = found.query
        return render.mark(
            painted, (left + x * (right - left)) / size[0], (top + y * (bottom - top)) / size[1]
        )

    def panels(self, style: Style | None = None) -> list[Panel]:
        """Draw the photo and every map as panels of a grid.

        Args:
            style: As in `overlay`.
        """
        style = style or ColorMap()
        photo = render.enlarged(np.asarray(self.photo))
        return [Panel("photo", photo, self.prediction)] + [
            Panel(
                found.title,
                self.painted(photo, found, style),
                found.note,
                None if found.note else found.scale,
                style,
            )
            for found in self.maps
        ]

    @checked()
    def grid(self, style: Style | None = None) -> PIL.Image.Image:
        """Draw the photo and every map with its colour bar, side by side.

        Args:
            style: As in `overlay`.
        """
        title = ", ".join(filter(None, [Path(self.name).name, self.asked]))
        sheet = render.heatmap_grid(self.panels(style), title, warning=self.caution)
        return PIL.Image.fromarray(sheet)

    def show(self, style: Style | None = None) -> "Figure":
        """Show the grid as a matplotlib figure, in a window where there are windows; return it.

        Args:
            style: As in `overlay`.
        """
        return render.show(np.asarray(self.grid(style)))

    @checked()
    def save(self, folder: str | PathLike[str], *, style: Style | None = None) -> Path:
        """Write what `vision-attn explain` writes into the folder.

        A picture and the raw map (.npy) for each method, a grid of several methods, and a line for
        each method in results.jsonl. Results of other photos stay: see `Explanations.save`.

        Args:
            folder: Made if it is not there.
            style: As in `overlay`.

        Returns:
            The folder.
        """
        return Explanations([self]).save(folder, style=style)

    def records(self, picture: Callable[[Map], str], **more: int) -> list[dict[str, Any]]:
        """List plain values of each map.

        Args:
            picture: From a map to the name of its picture.
            more: Numbers that every record gets too.
        """
        return [
            {"file": self.name, "picture": picture(found), **more} | self._record(found)
            for found in self.maps
        ]

    def _record(self, found: Map) -> dict[str, Any]:
        classes = self.model.classes
        record: dict[str, Any] = {
            "method": type(found.explainer).__name__,
            "options": asdict(found.explainer),
            "weights": self.model.weights,
        }
        if self.predicted is not None:
            record["predicted"] = classes[self.predicted]
            record["predicted_index"] = self.predicted
            record["probability"] = round(float(self.probabilities[self.predicted]), 6)
            if self.model.calibration.threshold is not None:
                record["unlike"] = self.unlike
        if self.predicted is None and self.probabilities.size:
            record["values"] = [round(float(value), 6) for value in self.probabilities]
        for word, index in (("target", found.target), ("contrast", found.contrast)):
            record[word] = classes[index] if classes and index is not None else None
            record[f"{word}_index"] = index
        record["target"] = record["target"] or found.explained or None
        record["prefix_mass"] = found.prefix_mass
        record["outlier_mass"] = found.outlier_mass
        if found.completeness_gap is not None:
            record["completeness_gap"] = round(found.completeness_gap, 6)
        if found.left_out is not None:
            record["left_out"] = np.flatnonzero(found.left_out).tolist()
        if found.unproven:
            record["unproven"] = True
        if found.note:
            record["note"] = found.note
        return {**record, "seconds": round(found.seconds, 6)}

    def _repr_png_(self) -> bytes:
        data = BytesIO()
        self.grid().save(data, "PNG")
        return data.getvalue()

    def __repr__(self) -> str:
        about = [self.name, self.prediction, ", ".join(self.methods), self.caution]
        return f"Explanation({'; '.join(filter(None, about))})"


class Explanations(Sequence[Explanation]):
    """Several photos explained by the same methods, in the order that they came in.

    Args:
        explanations: One a photo.

    Examples:
        >>> from vision_attn.runs.explanation import Explanations
        >>> len(Explanations([]))
        0
    """

    def __init__(self, explanations: Sequence[Explanation]):
        self._all = list(explanations)

    @overload
    def __getitem__(self, item: int) -> Explanation: ...
    @overload
    def __getitem__(self, item: slice) -> "Explanations": ...
    def __getitem__(self, item: int | slice) -> "Explanation | Explanations":
        return Explanations(self._all[item]) if isinstance(item, slice) else self._all[item]

    def __len__(self) -> int:
        return len(self._all)

    @cached_property
    def problems(self) -> list[str]:
        """A line for each method that failed on a photo."""
        return [f"{one.name}: {text}" for one in self._all for text in one.problems]

    def heatmaps(self, method: str | int | Explainer = 0) -> Heatmaps:
        """Return the raw maps of one method, of all photos, as one batch.

        Args:
            method: As in `Explanation.on_photo`.

        Raises:
            KeyError: There is no map of that method.
            ValueError: There are no photos.
        """
        every = [one[method].heatmaps() for one in self._all]
        if not every:
            raise ValueError("expected at least one explained photo, got none")

        def together(name: str) -> Tensor | None:
            parts = [getattr(maps, name) for maps in every]
            return None if any(part is None for part in parts) else torch.cat(parts)

        return Heatmaps(
            torch.cat([maps.values for maps in every]),
            every[0].method,
            together("targets"),
            together("prefix_mass"),
            together("outlier_mass"),
            together("completeness_gap"),
            every[0].left_out,
        )

    def save(self, folder: str | PathLike[str], *, style: Style | None = None) -> Path:
        """Write what `vision-attn explain` writes into the folder, beside what was saved there.

        Results that the same model saved of other photos or methods stay. Those of the same photo
        and method are replaced, and so is all that another model or a command left there; a line of
        the log counts those that explained something else.

        Args:
            folder: Made if it is not there.
            style: How heat changes the photo; None: colours, `ColorMap()`.

        Returns:
            The folder.

        Raises:
            OSError: A file cannot be written; then none of them is left.
            ValueError: The folder cannot be written to, or a file could be written over a photo.
        """
        pictures = Pictures(output_folder(folder), style or ColorMap())
        files = [one.name for one in self._all if os.path.isfile(one.name)]
        if written_over(pictures.folder, files):
            check_apart(pictures.folder, files, files)
        if not self._all:
            return pictures.folder
        before = SavedBefore.read(pictures.folder, self._all[0].model)
        photos = before.place(pictures.folder, self._all)
        with kept_together() as written:
            records = []
            for photo, one in zip(photos, self._all, strict=True):
                entry = pictures.write(photo.stem, one)
                records.append((one, entry.records))
                written += entry.written
            replaced = before.add(pictures.folder, photos, records)
        if replaced:
            log.warning("%s: %s", pictures.folder, replaced_line(replaced))
        return pictures.folder

    def _repr_html_(self) -> str:
        pictures = (b64encode(one._repr_png_()).decode() for one in self._all)
        return "".join(f'<img src="data:image/png;base64,{picture}">' for picture in pictures)

    def __repr__(self) -> str:
        return f"Explanations({self._all!r})"


@dataclass(frozen=True)
class Pictures:
    """Where and how explanations are drawn.

    Attributes:
        masks: The masks of the photos, shown beside the maps.
        page: Whether to draw thumbnails too.
        raw: Whether to write each raw map too, as a .npy.

    Examples:
        >>> from pathlib import Path
        >>> from vision_attn.render import Dim
        >>> from vision_attn.runs.explanation import Pictures
        >>> Pictures(Path("look"), Dim()).style
        Dim(floor=0.2)
    """

    folder: Path
    style: Style = field(default_factory=ColorMap)
    masks: Masks | None = None
    page: bool = False
    raw: bool = True

    def write(self, name: str, explanation: Explanation) -> Entry:
        """Write the pictures and raw maps of one photo; `name` begins the files' names.

        Raises:
            OSError: One of them cannot be written; then none of them is left.
        """
        with kept_together() as written:
            records, row = self._write(name, explanation, written)
        return Entry(explanation.name, records, row, tuple(written))

    def _write(
        self, name: str, explanation: Explanation, written: list[Path]
    ) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        def place(file: str) -> Path:
            written.append(self.folder / file)
            return written[-1]

        panels = explanation.panels(self.style)
        links: list[str | None] = [None]
        for found, panel in zip(explanation.maps, panels[1:], strict=True):
            stem, picture = f"{name}.{label(found.method)}", panel.picture
            links.append(f"{stem}.png")
            if isinstance(self.style, ColorMap):
                picture = render.with_colorbar(picture, self.style, found.scale)
            cautions = filter(None, [explanation.warning, found.caution])
            picture = render.with_caption(picture, ". ".join(cautions))
            picture = render.with_caption(picture, found.note)
            if found.explained:
                picture = render.with_caption(picture, explanation.asked)
            render.save(picture, place(f"{stem}.png"))
            if self.raw:
                with replacing(place(f"{stem}.npy")) as file:
                    np.save(file, found.values)
        photo = Path(explanation.name)
        title = photo.name if name == photo.stem else name  # another photo may have its name
        if (mask := self.mask(explanation.name, explanation.photo.size)) is not None:
            covered = render.overlay(panels[0].picture, mask, style=Dim(), scale=Scale(1.0))
            panels.append(Panel("mask", covered))
            links.append(None)
        if len(explanation.maps) > 1:
            heading = ", ".join(filter(None, [title, explanation.asked]))
            sheet = render.heatmap_grid(panels, heading, warning=explanation.caution)
            render.save(sheet, place(f"{name}.grid.png"))
        if explanation.channels:
            chart = render.channel_gates(explanation.channels, title)
            chart = render.with_caption(chart, explanation.warning, size=20)
            render.save(chart, place(f"{name}.channels.png"))
        row = None
        if self.page:
            names = [f"{name}.{label(panel.title)}" for panel in panels]
            written += [self.folder / f"page/{each}.jpg" for each in names]
            (self.folder / "page").mkdir(exist_ok=True)
            shots = [
                self._shot(panel, each, f"{name} · {panel.title}", link, most)
                for panel, each, link, most in zip(
                    panels, names, links, page_bytes(links), strict=True
                )
            ]
            for found, shown in zip(explanation.maps, shots[1:], strict=False):
                shown["passed"] = found.passed(explanation.model)
            predicted, true, probability = explanation.facts
            row = {
                **{"name": title, "note": panels[0].note, "shots": shots, "predicted": predicted},
                **{"label": true, "probability": probability},
                "warning": "" if explanation.model.warning else explanation.caution,
            }
        records = explanation.records(lambda found: f"{name}.{label(found.method)}.png")
        return records, row

    def _shot(
        self, panel: Panel, name: str, alt: str, link: str | None, most: int
    ) -> dict[str, Any]:
        """Write what the page shows of a panel; return the values of a `pages.Shot`."""
        file = f"page/{name}.jpg"
        small = render.thumbnail(panel.picture, self.folder / file, most, alone=link is None)
        return {
            **{"thumb": file, "full": link or file, "size": [small.shape[1], small.shape[0]]},
            **{"caption": panel.title, "alt": alt},
        }

    def mask(self, photo: str, size: tuple[int, int]) -> Float[ndarray, "h w"] | None:
        """Read the mask of a photo of that size (W, H), if it has one.

        It is 1 on the object, 0 beside it, and 0.5 where neither counts.
        """
        path = None if self.masks is None else self.masks.of(photo)
        if path is None:
            return None
        inside, ignored, _ = read_mask(path, size, any_numbers=True, photo=photo)
        return (inside + 0.5 * ignored).astype(np.float32)


def page_bytes(links: Sequence[str | None]) -> list[int]:
    """Divide what the page may take for one photo among its pictures.

    links: what each picture enlarges to; one without a link is all that there is of it and gets
    twice as much. None gets less than LEAST_BYTES.
    """
    parts = [1 if link else 2 for link in links]
    whole = PAGE_BYTES - HTML_BYTES * len(parts)
    return [max(part * whole // sum(parts), part * LEAST_BYTES) for part in parts]
