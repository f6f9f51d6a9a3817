"""From a model and two photos to where a class is decided, as values and as a page.

DIR/index.html       the page, its pictures beside it in page/
"""

from collections.abc import Iterator
from os import PathLike
from pathlib import Path

import numpy as np
from PIL import ImageOps
from PIL.Image import Image

from vision_attn import render
from vision_attn.arguments import checked
from vision_attn.methods.targets import TargetLike
from vision_attn.pages.page import (
    Figures,
    Gallery,
    Row,
    Section,
    Shot,
    Text,
    figure_shot,
    shot,
    write_page,
)
from vision_attn.runs.diagnosis.measure import token_words
from vision_attn.runs.explain import Photo, read
from vision_attn.runs.inputs import output_folder
from vision_attn.runs.patched_states import PatchedStates, measure_states
from vision_attn.runs.progress import Bar, Silent
from vision_attn.types import Head, Model

__all__ = ["patch_states", "write"]

SHOWN = 480, 480  # pixels of a photo, at most
NAMED = 5  # states that a sentence names
WORDS = [
    "The state of one token, where a layer begins, is taken from the other photo, and the rest of "
    "the network runs as it is (Meng et al. 2022, causal tracing, with another photo in the place "
    "of noise). 0 %: the number is as for the photo; 100 %: as for the other. Below 0 % it moves "
    "away from it.",
    "All maps have one scale: full colour is the largest share of any patch; blue is below 0 %.",
]


@checked(batch_size=1)
def patch_states(
    model: Model,
    photo: Photo,
    other: Photo,
    *,
    target: TargetLike = None,
    contrast: TargetLike = None,
    output: str | PathLike[str] | None = None,
    head: Head | None = None,
    batch_size: int = 32,
    progress: Silent | None = None,
) -> PatchedStates:
    """Find where a class is decided: patch each token's state, in each layer, from another photo.

    Meng et al. 2022, causal tracing, with another photo in the place of noise.

    Args:
        model: A model of `load_model` or `wrap`.
        photo: A photo as `explain` takes it.
        other: Another one, whose states are taken.
        target: The number that is followed. None: the logit of the other's predicted class rather
            than of the photo's.
        contrast: What is subtracted from it.
        output: A folder for the page, index.html: layer by layer, over the photo; None writes none.
        head: Which part of the network's output is meant.
        batch_size: Tokens at once.
        progress: None shows a bar where there is a terminal.

    Returns:
        What each (layer, token) recovers of the number, from 0 to 1, and the number of both photos.

    Raises:
        ValueError: The stream's tokens cannot be told (windows), or the target's number is the same
            for both photos.

    Examples:
        >>> import numpy as np
        >>> import vision_attn
        >>> model = vision_attn.load_model("timm:test_vit", pretrained=False, num_classes=10)
        >>> photos = np.random.default_rng(0).integers(0, 256, (2, 60, 80, 3), np.uint8)
        >>> states = vision_attn.patch_states(model, *photos, target=3, contrast=5)
        >>> states.recovered.shape[0] == len(states.layers)
        True
    """
    names, (first, second) = zip(
        *(read(image, model.preprocess) for image in (photo, other)), strict=True
    )
    folder = None if output is None else output_folder(output)
    progress = progress or Bar()
    states = measure_states(model, first, second, target, contrast, head, batch_size, progress)
    if folder is not None:
        write(states, folder, model, (first, second), names)
    return states


def write(
    states: PatchedStates,
    folder: Path,
    model: Model,
    photos: tuple[Image, Image],
    names: tuple[str, str] = ("photo", "other"),
) -> Path:
    """Write the page into a folder; return its path. names: of the photos' files."""
    folder.mkdir(parents=True, exist_ok=True)
    shots = [
        shot(
            np.asarray(ImageOps.contain(photo, SHOWN)),
            folder,
            name.replace(" ", "_"),
            f"{name}: {value:.3g}",
            name,
        )
        for name, value, photo in zip(
            ("the photo", "the other"), (states.photo, states.other), photos, strict=True
        )
    ]
    own, others = (Path(name).name for name in names)
    sections: list[Section] = [
        Text("What was found", list(sentences(states))),
        Gallery("Both photos", [Row(f"{own} · {others}", states.explained, shots)]),
    ]
    if states.layout is not None:
        note = f"the share of the way that each patch brings; full colour: {largest(states):.0%}"
        over = Row(own, note, list(map_shots(states, folder, model, photos[0])))
        sections.append(Gallery("Over the photo", [over]))
    sections += [
        Figures("Layer by layer", [curve_shot(states, folder)]),
        Text("What the numbers are", WORDS),
    ]
    name = model.name or type(model.network).__name__
    lead = f"{len(states.layers)} layers x {states.recovered.shape[1]} tokens of {name}"
    return write_page(folder, "Where the class is decided", sections, lead, model.warning)


def sentences(states: PatchedStates) -> Iterator[str]:
    """Name the states that bring most of the other photo's answer."""
    values = states.recovered
    most = values.flatten().argsort(descending=True)[:NAMED].tolist()
    named = []
    for at in most:
        row, token = divmod(at, values.shape[1])
        words = f"token {token}" if states.layout is None else token_words(states.layout, token)
        named.append(f"{words} in layer {states.layers[row]} ({float(values[row, token]):.0%})")
    yield (
        f"{states.explained[0].upper()}{states.explained[1:]} is {states.photo:.3g} for the photo "
        f"and {states.other:.3g} for the other. One state of the other photo brings at most "
        f"this share of the way: {'; '.join(named)}."
    )


def largest(states: PatchedStates) -> float:
    """The largest share of a patch, either way."""
    assert states.layout is not None
    return max(float(states.recovered[:, states.layout.patches].abs().max()), 1e-6)


def map_shots(states: PatchedStates, folder: Path, model: Model, photo: Image) -> Iterator[Shot]:
    """Lay the shares of each layer's patches over the photo, all on one scale."""
    assert states.layout is not None
    values = states.layout.to_map(states.recovered).numpy()
    scale = render.Scale(top=largest(states), signed=True)
    small = ImageOps.contain(photo, SHOWN)
    for layer, grid in zip(states.layers, values, strict=True):
        laid = model.preprocess.to_original(grid, small.size)
        picture = render.overlay(small, laid, scale=scale)
        caption = f"layer {layer}: at most {grid.max():.0%}"
        yield shot(picture, folder, f"layer{layer}", caption, f"the photo, {caption}")


def curve_shot(states: PatchedStates, folder: Path) -> Shot:
    """Draw the largest share of a patch by layer, and that of each token that is none."""
    values = 100 * states.recovered
    lines = {"largest of all tokens": values.amax(1).tolist()}
    if states.layout is not None:
        lines = {"largest of a patch": values[:, states.layout.patches].amax(1).tolist()}
        lines |= {
            token_words(states.layout, token): values[:, token].tolist()
            for token in states.layout.beside[:3]
        }
    title = "Share of the way to the other photo's answer (%)"
    picture = render.block_curves(lines, title, low=None, x="layer", places=states.layers)
    caption = f"{title}, over the layers"
    return figure_shot(picture, folder, "curve", caption, caption)
