"""Two checkpoints over a folder, as plain values and as a page that begins where they differ most.

Axes: none.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from PIL.Image import Image

from vision_attn.arguments import checked
from vision_attn.methods.targets import TargetLike
from vision_attn.pages.page import (
    Gallery,
    Name,
    Row,
    Section,
    Shot,
    Table,
    Text,
    shot,
    write_page,
)
from vision_attn.render.picture import Picture
from vision_attn.runs.comparison import ComparedPhoto, Comparison, PairOfModels
from vision_attn.runs.explain import Methods
from vision_attn.runs.explanation import Explanation
from vision_attn.runs.inputs import check_apart, list_images, output_folder, path_list
from vision_attn.runs.progress import Bar, Silent
from vision_attn.types import Head, Model

__all__ = ["compare"]

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]
SHOWN = 96  # photos on the page


@checked(limit=1, batch_size=1, shown=1)
def compare(
    models: tuple[Model, Model],
    images: Paths,
    methods: Methods | None = None,
    *,
    target: TargetLike = None,
    contrast: TargetLike = None,
    limit: int | None = None,
    output: str | PathLike[str] | None = None,
    head: Head | None = None,
    shown: int = SHOWN,
    batch_size: int = 8,
    progress: Silent | None = None,
) -> Comparison:
    """Compare two checkpoints over photos: where they agree, and where their maps differ.

    Before and after fine-tuning, teacher and student, two seeds. Both explain the same class of a
    photo, so that maps differ for no other reason. Maps are compared by their overlap, the share
    of the map that lies in the same place (`runs.comparison.overlap`); beside it stands that of two
    different photos, which maps have that only follow the frame. Ctrl-C gives what there is.

    Args:
        models: Two models of `load_model` or `wrap` with the same classes.
        images: Files, and folders of them; a photo's folder may name its class.
        methods: Names as on the command line, or explainers. None: the usual one of the first.
        target: What both explain. None: the class of a photo where that is known, else the one that
            the first model predicts.
        contrast: What is subtracted from it.
        limit: At most the first photos, so many.
        output: A folder for the page (index.html), comparison.json and comparison.csv; None writes
            none.
        head: Which part of the networks' output is meant.
        shown: Photos on the page, at most: those whose maps differ most.
        batch_size: Photos at once.
        progress: None shows a bar where there is a terminal.

    Returns:
        The photos, those whose maps differ most first, and the problems.

    Raises:
        ValueError: The classes differ, a method does not fit both models, or no photo could be
            compared.

    Examples:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import torch
        >>> from PIL import Image
        >>> import vision_attn
        >>> from vision_attn.data import Preprocess
        >>> from vision_attn.models import ViT
        >>> from vision_attn.types import Model
        >>> def model():
        ...     vit = ViT(image_size=16, patch_size=8, dim=8, depth=1, heads=2, num_classes=2)
        ...     preprocess = Preprocess((16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
        ...     return Model(vit.eval(), preprocess, ["cat", "dog"], vit.layout((16, 16)))
        >>> with TemporaryDirectory() as folder:
        ...     Image.effect_noise((30, 20), 50).convert("RGB").save(Path(folder) / "a.png")
        ...     found = vision_attn.compare((model(), model()), folder, "Rollout")
        >>> [row["file"][-5:] for row in found.table()]
        ['a.png']
    """
    pair = PairOfModels.of(models, methods, target, contrast, head)
    paths = path_list(images)
    files, problems = list_images(paths, limit)
    if not files and problems:
        raise ValueError(f"no photo could be compared: {problems[0]}")
    folder = None if output is None else output_folder(output)
    if folder is not None:
        check_apart(folder, files, paths)
    progress = progress or Bar()
    with progress:
        for problem in problems:
            progress.problem(problem)
        pair.measure(files, batch_size, progress)
        if not pair.photos:
            why = f": {progress.problems[0]}" if progress.problems else ""
            raise ValueError(f"no photo could be compared{why}")
        names = names_of(models)
        classes = [name.split(",")[0] for name in models[0].classes]
        found = Comparison(names, classes, pair.methods, pair.photos, progress.problems)
        if folder is not None:
            found.save(folder)
            write(folder, found, pair, shown, progress)
    return found


def names_of(models: tuple[Model, Model]) -> tuple[str, str]:
    """Name both models, as they were loaded; those of one name by a letter too."""
    a, b = (one.name or type(one.network).__name__ for one in models)
    return (a, b) if a != b else (f"{a} (a)", f"{b} (b)")


def write(
    folder: Path, found: Comparison, pair: PairOfModels, shown: int, progress: Silent
) -> Path:
    """Write the page: what was found, by class, and the photos whose maps differ most."""
    photos = found.photos[:shown]
    progress.start("drawing", len(photos))
    rows = []
    table = found.table()
    for number, photo in enumerate(photos):
        image = pair.read(photo.file)
        if not isinstance(image, str):
            ((a, b),) = pair.explained([(photo.file, image)])
            rows.append(row_of(folder, photo, table[number], found, (a, b)))
        progress.advance()
    left = len(found.photos) - len(rows)
    title = "Photos, those whose maps differ most first"
    if left:
        title += f" ({len(rows)} of {len(found.photos)})"
    first, *said = found.sentences()
    sections: list[Section] = [
        Text("What was found", [*said, MEANING]),
        Table("By class", *class_table(found)),
        Gallery(title, rows, order="most different first", front=3),
    ]
    warning = ", ".join(dict.fromkeys(filter(None, (r.model.warning for r in pair.requests))))
    return write_page(folder, Name(" · ".join(found.models)), sections, first, warning)


MEANING = (
    "Overlap: each map is made to sum to 1 over the photo, and what lies in the same place in both "
    "is added up. 100 %: the same map; 0 %: nothing in common. Intervals are of 95 %, by a "
    "bootstrap over photos. That of a single photo is over its parts (6 x 6, a jackknife): how "
    "much its number hangs on single places. Ranks in brackets are those that intervals allow."
)


def class_table(found: Comparison) -> tuple[list[str], list[list[str]]]:
    """Write the classes as a header and rows of text."""

    def percent(value: float | None) -> str:
        return "" if value is None else f"{value:.1%}"

    labelled = found.accuracy() is not None
    accuracies = [f"accuracy {name}" for name in found.models] if labelled else []
    header = ["class", "photos", "same class", *accuracies]
    rows = []
    for row in found.by_class():
        ends = [percent(row[f"overlap_{end}"]) for end in ("low", "high")]
        known = ("accuracy_a", "accuracy_b") if labelled else ()
        cells = [row[key] for key in ("agreement", *known, "overlap")]
        interval = " to ".join(ends) if ends[0] else ""
        rows.append([Name(row["class"]), str(row["n"]), *map(percent, cells), interval])
    return [*header, "overlap of maps", "95 %"], rows


def row_of(
    folder: Path,
    photo: ComparedPhoto,
    values: Mapping[str, Any],
    found: Comparison,
    both: tuple[Explanation, Explanation],
) -> Row:
    """Draw a photo and the maps of both models. values: its row of the table."""
    name, number = Path(photo.file).name, values["rank"] - 1
    shots: list[Shot] = [shot(_small(both[0].photo), folder, f"{number}", "photo", name)]
    for method in found.methods:
        for letter, model, one in zip("ab", found.models, both, strict=True):
            caption = model if len(found.methods) == 1 else f"{method} · {model}"
            stem = f"{number}_{found.methods.index(method)}{letter}"
            picture = _small(one.overlay(method))
            shots.append(shot(picture, folder, stem, caption, f"{name} · {caption}"))
    predicted, label, probability = both[0].facts
    said = [
        f"{model}: {found.classes[index]} {chance:.1%}"
        for model, index, chance in zip(
            found.models, photo.predicted, photo.probability, strict=True
        )
    ]
    share, rank = f"overlap {photo.overlap:.1%}", f"rank {values['rank']}"
    if photo.interval is not None:
        share += f" ({photo.interval[0]:.1%} to {photo.interval[1]:.1%})"
    if values["rank_low"] < values["rank_high"]:
        rank += f" ({values['rank_low']} to {values['rank_high']})"
    note = " · ".join([share, rank, *said])
    warning = "" if photo.agree else "They predict different classes"
    return Row(name, note, shots, predicted, label, probability, warning=warning)


def _small(picture: Image) -> Picture:
    """Shrink a picture to what a page shows, as an array."""
    picture = picture.copy()
    picture.thumbnail((640, 640))
    return np.asarray(picture)
