"""The first part of the demo's page: photos, and where networks that know photos look."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from vision_attn import pages, render
from vision_attn.data import example_photos, read_image
from vision_attn.models.shelf import list_models
from vision_attn.pages import Row, Section, Shot
from vision_attn.pages.live.report import live
from vision_attn.render import ColorMap
from vision_attn.runs.explain import Request
from vision_attn.runs.explanation import Explanation
from vision_attn.runs.progress import Silent
from vision_attn.types import Model

__all__ = ["PhotoWall", "map_shots", "photo_networks"]

DATA = "imagenette160"  # whose classes the photos show
LIVE = "live.html"
ABOUT_LIVE = (
    "drop a photo, click a patch to see what it attends to, cover a part and watch the answer "
    "change. Nothing leaves this computer."
)


def photo_networks() -> list[str]:
    """List the specs of the package's networks that know the classes of its photos.

    Examples:
        >>> from vision_attn.pages.demo.photos import photo_networks
        >>> all(spec.startswith("vision_attn:") for spec in photo_networks())
        True
    """
    return [f"vision_attn:{row['name']}" for row in list_models() if row["data"] == DATA]


class PhotoWall:
    """The photos of the package, each explained by some models' usual method.

    The pictures land in folder/page and folder/photos, a page that runs the models in
    folder/live.html.

    Args:
        folder: Where they land.
        models: By the name that stands above their maps.

    Examples:
        >>> from vision_attn.pages.demo.photos import PhotoWall
        >>> PhotoWall.__init__.__annotations__["models"]  # PhotoWall(folder, models).sections()
        collections.abc.Mapping[str, vision_attn.types.Model]
    """

    def __init__(self, folder: Path, models: Mapping[str, Model]):
        self.folder = folder
        self.models = models
        self.photos = {name: read_image(path) for name, path in example_photos().items()}
        self.found = {
            title: Request.of(model).explain(list(self.photos.items()))
            for title, model in models.items()
        }

    def sections(self) -> list[Section]:
        """Draw the maps beside the photos, a row a photo, and write the page of the networks."""
        rows = [self._row(place, name) for place, name in enumerate(self.photos)]
        models = tuple(replace(model, name=title) for title, model in self.models.items())
        live(models, progress=Silent(), output=self.folder / LIVE)
        return [
            pages.Gallery("Where they look in photos", rows),
            pages.Links("Ask the networks", [(LIVE, "Run them in your browser", ABOUT_LIVE)]),
        ]

    def _row(self, place: int, name: str) -> Row:
        photo = render.enlarged(np.asarray(self.photos[name]))
        title = name.replace("_", " ")
        file = f"photos.{name}"
        shots = [pages.shot(photo, self.folder, file, "photo", title)]
        groups = [("The photo", 1)]
        for model, found in self.found.items():
            explained = found[place]
            called, probability = explained.classes(1)[0]
            short = model.removesuffix("_imagenette")
            groups.append((f"{short}: {called} {probability:.0%}", len(explained.maps)))
            shots += map_shots(photo, explained, self.folder, f"{file}.{model}", "photos", title)
        return Row(title, "", shots, groups=groups)


def map_shots(
    photo: np.ndarray, explained: Explanation, folder: Path, file: str, large: str, title: str
) -> list[Shot]:
    """Draw each map over the photo for a page: small ones, and large ones with their colour bars.

    file: what the pictures' names begin with. large: the folder of the large ones, in `folder`.
    """
    style, shots = ColorMap(), []
    for found in explained.maps:
        method = str(found.explainer)
        picture = render.overlay(photo, found.values, style=style, scale=found.scale)
        full = f"{large}/{file}.{method}.png"
        (folder / full).parent.mkdir(parents=True, exist_ok=True)
        render.save(render.with_colorbar(picture, style, found.scale), folder / full)
        shots.append(
            pages.shot(picture, folder, f"{file}.{method}", method, f"{title}: {method}", full=full)
        )
    return shots
