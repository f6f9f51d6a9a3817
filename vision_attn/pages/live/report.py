"""From models and photos to a page that runs the networks itself.

Axes: none; photos are files, or images (H W 3).
"""

import io
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

import PIL.Image
import torch
from numpy import ndarray
from PIL.Image import Image
from torch import Tensor

from vision_attn.arguments import checked
from vision_attn.data.example_photos import example_photos
from vision_attn.data.faults import ImageError, sample_errors
from vision_attn.data.images import open_image
from vision_attn.errors import ModelError, cut
from vision_attn.methods import Class, as_target, is_trusted, usual_method
from vision_attn.methods.by_name import method_list
from vision_attn.methods.targets import TargetLike, model_output
from vision_attn.pages.inspect import Page, ShownMap
from vision_attn.pages.inspect.inspection import CELLS, named_models, prefix_names
from vision_attn.pages.live import LiveNetwork, LivePhoto, live_page
from vision_attn.pages.live.page import COMPUTED
from vision_attn.pages.live.translation import translate
from vision_attn.runs.explain import (
    Methods,
    Photo,
    Request,
    predict,
    prepare,
    read,
    several_photos,
)
from vision_attn.runs.inputs import check_file
from vision_attn.runs.progress import Bar, Silent
from vision_attn.tokens.activation import settled
from vision_attn.types import Model, Preprocessing, TokenLayout

__all__ = ["live"]

MOST_BYTES = 600_000  # of a file that goes into the page as it is
LARGEST = 1024  # pixels of the longer side, of any other
TYPES = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}


@checked(limit=1)
def live(
    model: Model | tuple[Model, ...],
    images: Photo | Sequence[Photo] = (),
    methods: Methods | None = None,
    *,
    target: TargetLike = None,
    contrast: TargetLike = None,
    limit: int | None = None,
    output: str | PathLike[str] | None = None,
    progress: Silent | None = None,
) -> Page:
    """Make a page that runs the model: drop a photo, cover parts of it, see what changes.

        vision_attn.live(model, ["dog_cat.png"], output="page.html")

    Of several images, one that cannot be read is a problem of `progress`, and the rest is shown.

    Args:
        model: One, or a tuple of several to compare.
        images: Photos to begin with, PIL images or files; those of the package (`example_photos`)
            if there are none. Files of at most 600 kB go in as they are, metadata too, others at
            most 1024 pixels high and wide.
        methods: The page computes `Rollout` of a ViT and `GradCAM` of a CNN, and nothing else.
        target: A class to show besides the likeliest, or a list of classes.
        contrast: The page offers none.
        limit: Only the first images, so many.
        output: The file to write; None writes none.
        progress: `Bar()` unless given.

    Returns:
        The page, which shows itself in a notebook.

    Raises:
        ModelError: A page cannot run the network exactly.
        ValueError: No image can be read, or the page does not offer what is asked.
    """
    models = named_models(model)
    given = several_photos(images)[1]
    if output is not None:
        check_file(output, [one for one in given if isinstance(one, str | PathLike)])
    given = (given or list(example_photos().values()))[:limit]
    if contrast is not None:
        raise ValueError("contrast: the page of live computes none: make one with inspect")
    networks = [network_of(name, one, target) for name, one in models.items()]
    check_methods(methods, networks)
    photos: list[LivePhoto] = []
    first = next(iter(models.values()))
    with Bar() if progress is None else progress as shown:
        recorders = [MapRecorder(model) for model in models.values()]
        shown.start("photos", len(given))
        for image in given:
            try:
                with sample_errors(
                    "image" if isinstance(image, Image | ndarray | Tensor) else image
                ):
                    photo = photo_of(image, first.preprocess)
                    maps = [recorder.map_of(image) for recorder in recorders]
                    photos.append(replace(photo, maps=maps))
            except ImageError as error:
                shown.problem(str(error))
            shown.advance()
    if not photos:
        raise ValueError("none of the images could be read: name at least one that can")
    page = live_page(networks, photos)
    if output is not None:
        page.save(output)
    return page


class MapRecorder:
    """The map of a method that passed on a model and that the page cannot compute itself.

    Examples:
        >>> from PIL import Image
        >>> import vision_attn
        >>> from vision_attn.pages.live.report import MapRecorder
        >>> recorder = MapRecorder(vision_attn.load_model("vision_attn:compact_vit_imagenette"))
        >>> recorder.map_of(vision_attn.sample("church")).method
        'LibraGradient(smooth=1.0)'
    """

    def __init__(self, model: Model):
        self.model = model = settled(model)
        usual = usual_method(model)
        passed = is_trusted(usual, model) and str(usual) not in COMPUTED
        self.explainer = usual if passed else None
        self.request = Request(model, [usual])

    def map_of(self, image: Photo) -> ShownMap | None:
        """The map for the predicted class; None without such a method.

        Raises:
            ImageError: The photo cannot be read.
        """
        if self.explainer is None or self.model.trust is None:
            return None
        batch = prepare(self.model, [read(image, self.model.preprocess)[1]])
        target = int(predict(self.model, batch)[0].argmax())
        (found,) = self.request.maps(self.explainer, batch, Class.of(self.model, target))
        about = (type(self.explainer).__doc__ or "").split("\n\n")[0]
        return ShownMap(
            method=found.method,
            values=found.values,
            about=f"{' '.join(about.split())} {self.model.trust.verdict(found.method)}",
            target=target if self.explainer.class_specific else None,
            unit=found.scale.unit,
            factor=found.scale.factor,
            passed=True,
        )


def check_methods(methods: Methods | None, networks: Sequence[LiveNetwork]) -> None:
    """Raise ValueError for a method that the page does not compute."""
    offered = {"GradCAM" if one.program.cam else "Rollout" for one in networks}
    for method in method_list(methods):
        if str(method) not in offered:
            raise ValueError(
                f"{cut(str(method))}: the page of live computes {' and '.join(sorted(offered))} "
                "alone: inspect takes every method"
            )


def classes_of(model: Model, target: TargetLike) -> list[int]:
    """Look up the classes to show; ValueError for a target that is none."""
    several = target if isinstance(target, list | tuple) else [target]
    found = []
    for one in several:
        if one in (None, "predicted"):
            continue
        index = as_target(one, model).pair()[0]
        if index is None or not isinstance(as_target(one, model), Class):
            raise ValueError("target: the page of live takes classes alone: inspect takes others")
        found.append(index)
    return found


def network_of(name: str, model: Model, target: TargetLike = None) -> LiveNetwork:
    """Translate a model for the page. Raises ModelError where a page cannot run it."""
    asked = classes_of(model, target)
    model = settled(model)
    program = translate(model)
    with torch.no_grad():
        size = model.preprocess.input_size
        blank = torch.zeros(1, 3, *size, dtype=torch.float32, device=model.device)
        outputs = model_output(model, blank).shape[1]
    if model.calibration.activation == "none" or outputs != len(model.classes):
        raise ModelError(
            f"{name}: a page shows the probability of each class, from as many outputs"
        )
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
        asked=asked,
        trust=model.trust,
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
