"""From models and photos to a page that runs the networks itself.

Axes: none; photos are files, or images (H W 3).
"""

import io
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

import PIL.Image
from numpy import ndarray
from PIL.Image import Image

from vision_attn.data.example_photos import example_photos
from vision_attn.data.faults import ImageError, sample_errors
from vision_attn.data.images import open_image
from vision_attn.models.timm_model import TimmModel
from vision_attn.pages.inspect import Page
from vision_attn.pages.inspect.inspection import CELLS, prefix_names
from vision_attn.pages.live import LiveNetwork, LivePhoto, live_page
from vision_attn.pages.live.translation import translate
from vision_attn.runs.explain import Photo, read
from vision_attn.runs.progress import Bar, Silent
from vision_attn.types import Model, Preprocessing, TokenLayout

__all__ = ["live"]

MOST_BYTES = 600_000  # of a file that goes into the page as it is
LARGEST = 1024  # pixels of the longer side, of any other
TYPES = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}


def live(
    model: Model | Mapping[str, Model],
    images: Photo | Sequence[Photo] = (),
    *,
    progress: Silent | None = None,
) -> Page:
    """Make a page that runs the model: drop a photo, cover parts of it, see what changes.

    model: one, or several by the names that the page gives them. images: photos to begin with, PIL
    images or files; those of the package (`example_photos`) if there are none. Files of at most
    600 kB go in as they are, metadata too, others at most 1024 pixels high and wide. progress:
    `Bar()` unless given.

        vision_attn.live(model, ["dog_cat.png"]).save("page.html")

    Of several images, one that cannot be read is a problem of `progress`, and the rest is shown.

    Raises ModelError for a network that a page cannot run exactly, and ValueError where no image
    can be read.
    """
    models = model if isinstance(model, Mapping) else {name_of(model): model}
    given: Sequence[Photo]
    given = [images] if isinstance(images, Image | str | PathLike | ndarray) else images
    given = given or list(example_photos().values())
    networks = [network_of(name, one) for name, one in models.items()]
    photos: list[LivePhoto] = []
    first = next(iter(models.values()))
    with Bar() if progress is None else progress as shown:
        shown.start("photos", len(given))
        for image in given:
            try:
                with sample_errors("image" if isinstance(image, Image | ndarray) else image):
                    photos.append(photo_of(image, first.preprocess))
            except ImageError as error:
                shown.problem(str(error))
            shown.advance()
    if not photos:
        raise ValueError("none of the images could be read: name at least one that can")
    return live_page(networks, photos)


def network_of(name: str, model: Model) -> LiveNetwork:
    """Translate a model for the page. Raises ModelError where a page cannot run it."""
    program = translate(model)
    known = program.layout
    layout = None if known is None else TokenLayout(**known)
    preprocess = model.preprocess
    how = {
        "input": preprocess.input_size,
        "mean": preprocess.mean,
        "std": preprocess.std,
        "crop": getattr(preprocess, "crop_pct", 1.0),
        "fit": getattr(preprocess, "fit", "crop"),
        "interpolation": getattr(preprocess, "interpolation", "bilinear"),
    }
    return LiveNetwork(
        name,
        program,
        model.classes,
        how,
        grid=CELLS if layout is None else layout.grid,
        prefix=() if layout is None else prefix_names(layout),
        drops=layout is not None,
        warning=model.warning,
        calibration=model.calibration,
    )


def name_of(model: Model) -> str:
    """Name a model as it was loaded, or by its network's class."""
    network = model.network
    return (
        model.name or type(network.network if isinstance(network, TimmModel) else network).__name__
    )


def photo_of(image: Photo, preprocess: Preprocessing) -> LivePhoto:
    """Take a small file as it is, and of anything else an image that browsers read.

    Raises ImageError for a file that cannot be read.
    """
    name, pixels = read(image, preprocess)
    as_stored = getattr(preprocess, "value_range", None) is None
    if isinstance(image, str | PathLike) and as_stored:
        with open_image(image) as opened:
            plain = opened.mode in ("RGB", "L")  # others are made RGB as Python does it
            kind = TYPES.get(opened.format or "") if plain else None
        file = Path(image).read_bytes() if Path(image).stat().st_size <= MOST_BYTES else b""
        if kind and file:
            return LivePhoto(Path(name).name, file, kind)
    return encoded(Path(name).name, pixels)


def encoded(name: str, image: Image) -> LivePhoto:
    """Encode an image: as PNG where it is small, else as JPEG, not too large."""
    small = image.width * image.height <= 256**2
    if not small:
        image = image.copy()
        image.thumbnail((LARGEST, LARGEST), PIL.Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "PNG" if small else "JPEG", **({} if small else {"quality": 92}))
    return LivePhoto(name, file.getvalue(), "image/png" if small else "image/jpeg")
