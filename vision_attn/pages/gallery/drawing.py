"""Pictures drawn from saved maps on request: no network, only its preprocessing."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from vision_attn.arguments import checked
from vision_attn.data.faults import ImageError, sample_errors
from vision_attn.data.preprocess import Preprocess
from vision_attn.files import claimed
from vision_attn.methods import Explainer, parse_method
from vision_attn.methods.by_name import method_list
from vision_attn.pages.gallery.rows import page_row
from vision_attn.pages.page import Gallery, Name, write_page
from vision_attn.render import ColorMap, Style, natural
from vision_attn.runs.explain import Methods, query_place
from vision_attn.runs.explanation import Explanation, Pictures
from vision_attn.runs.keys import bytes_crc
from vision_attn.runs.maps import Map
from vision_attn.runs.naming import file_names, label
from vision_attn.runs.progress import Bar, Silent
from vision_attn.runs.results import SavedResults, open_results
from vision_attn.runs.runfile import run_path
from vision_attn.types import Calibration, Model, TokenLayout

__all__ = ["DrawnPictures", "draw_pictures", "saved_model"]


class DrawnPictures(list[Path]):
    """The pictures' folders.

    Attributes:
        photos: How many were drawn.
        problems: A line for each that was not.

    Examples:
        >>> from vision_attn.pages.gallery.drawing import DrawnPictures
        >>> DrawnPictures().photos
        0
    """

    photos: int = 0
    problems: Sequence[str] = ()


@checked(limit=1)
def draw_pictures(
    folder: str | PathLike[str],
    classes: Sequence[str | int] = (),
    methods: Methods | None = None,
    *,
    limit: int = 100,
    output: str | PathLike[str] | None = None,
    style: Style | None = None,
    progress: Silent | None = None,
) -> DrawnPictures:
    """Draw pictures from the maps that `explain --save maps` left in a folder.

    A photo is of its true class where that is known, else of the predicted one. A folder is named
    by its class, with the index where two classes share a name (crane-134).

    Args:
        folder: The folder of maps.
        classes: Those to draw, by name or index, each into a folder of its own with a page. None:
            the first photos.
        methods: Names as on the command line. None: all that were kept.
        limit: Photos of each class at most.
        output: Where to; None: FOLDER/pictures.
        style: How maps are painted; None: `ColorMap()`.
        progress: None shows a bar where there is a terminal.

    Returns:
        What was written; a photo that is gone is a line of the problems.

    Raises:
        ValueError: There are no maps, or no such class or method.
    """
    results = open_results(folder)
    model = saved_model(results)
    wanted = [None] if not classes else [model.class_index(one) for one in classes]
    kept = _kept_methods(results, methods)
    folders = _folder_names(model.classes)
    drawn = DrawnPictures()
    place = Path(results.folder / "pictures" if output is None else output)
    place.mkdir(parents=True, exist_ok=True)
    with claimed(place), Bar() if progress is None else progress as shown:
        for one in wanted:
            name = "all" if one is None else folders[one]
            pictures = Pictures(place / name, style or ColorMap(), None, page=True, raw=False)
            pictures.folder.mkdir(exist_ok=True)
            chosen = list(islice(_photos(results, one), limit))
            if not chosen:
                shown.problem(f"class {name}: no photo of it in {results.folder}")
                continue
            shown.start(name, len(chosen))
            rows = []
            names = file_names([Path(results[places[0]]["file"]) for places in chosen])
            for places, stem in zip(chosen, names, strict=True):
                shown.advance()
                try:
                    with sample_errors(results[places[0]]["file"]):
                        explanation = _explanation(results, model, places, kept)
                        rows.append(pictures.write(stem, explanation).row)
                except ImageError as error:
                    shown.problem(str(error))
            drawn.photos += len(rows)
            gallery = Gallery("Photos", [page_row(row) for row in rows if row is not None])
            title = "Where it looks" if one is None else Name(model.classes[one].split(",")[0])
            lead = f"{pictures.style.meaning} What the network did not see is grey."
            write_page(pictures.folder, title, [gallery], lead, model.warning)
            drawn.append(pictures.folder)
        drawn.problems = list(shown.problems)
    return drawn


def saved_model(results: SavedResults) -> Model:
    """Make the model of saved results, all but its network.

    Raises ValueError where the folder does not say enough of it.
    """
    about = results.about
    preprocess = about.get("preprocess")
    if not isinstance(preprocess, dict):
        raise ValueError(f"{results.folder}: expected results of explain --save maps or both")
    sizes = ("input_size", "mean", "std")
    try:
        ready = Preprocess(**{**preprocess, **{name: tuple(preprocess[name]) for name in sizes}})
        layout = about["layout"]
        if layout is not None:
            axes = {name: tuple(layout[name]) for name in ("grid", "registers")}
            layout = TokenLayout(**{**layout, **axes})
        calibration = Calibration(**about["calibration"])
        return Model(
            nn.Identity(),
            ready,
            list(about["classes"]),
            layout,
            about["model"],
            about["weights"],
            calibration,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{run_path(results.folder)}: damaged ({error}): run the same command again"
        ) from None


def _folder_names(classes: Sequence[str]) -> list[str]:
    """Name a folder for each class by its first synonym, with its index where others have it too.

    Names that differ only in capitals count as the same.
    """
    names = [label(one.split(",")[0]) for one in classes]
    while len(count := Counter(map(str.casefold, names))) < len(names):
        names = [
            f"{name}-{index}" if count[name.casefold()] > 1 else name
            for index, name in enumerate(names)
        ]
    return names


def _kept_methods(results: SavedResults, methods: Methods | None) -> dict[str, Explainer]:
    """The methods to draw, by their names."""
    kept = {name: parse_method(name) for name in results.methods}
    if results.about["asked"].get("save") not in ("maps", "both"):
        raise ValueError(
            f"{results.folder}: no maps were kept: explain --save maps (or both) keeps them"
        )
    if not (asked := method_list(methods)):
        return kept
    wanted = [str(parse_method(one) if isinstance(one, str) else one) for one in asked]
    for name in wanted:
        if name not in kept:
            raise ValueError(f"no maps of {name} in {results.folder}: there are {', '.join(kept)}")
    return {name: kept[name] for name in wanted}


def _photos(results: SavedResults, index: int | None) -> Iterator[range]:
    """Yield the numbers of the rows of each photo of a class, or of any."""
    starts = results.first_rows()
    for start, end in zip(starts, [*starts[1:], len(results)], strict=True):
        first = results[start]
        shown = first.get("label_index", first.get("predicted_index"))
        if index is None or shown == index:
            yield range(start, end)


def _explanation(
    results: SavedResults, model: Model, places: range, methods: dict[str, Explainer]
) -> Explanation:
    first = results[places[0]]
    photo = model.preprocess.read(_photo_file(results, places[0]))
    probabilities = np.zeros(len(model.classes), np.float32)
    if "predicted_index" in first:
        probabilities[first["predicted_index"]] = first["probability"]
    maps = [
        _map(methods[results.method(place)], results.map(place), model, results[place])
        for place in places
        if results.method(place) in methods
    ]
    return Explanation(model, photo, first["file"], probabilities, maps)


def _photo_file(results: SavedResults, place: int) -> str:
    """Find the photo that a row is of, by its content: from here, or from where it was explained.

    Raises ValueError where there is none, or another photo has its name.
    """
    file, crc = results[place]["file"], results.content(place) & 0xFFFFFFFF
    elsewhere = os.path.join(results.about["from"], file)
    there = [path for path in dict.fromkeys([file, elsewhere]) if os.path.exists(path)]
    if not there:
        raise ImageError(f"{elsewhere}: no such file: its maps are kept, but the photo is gone")
    for path in there:
        if bytes_crc(path) == crc:
            return path
    raise ImageError(
        f"{there[0]}: it is not the photo that was explained, whose content was another one: put "
        "that photo back, or explain this one"
    )


def _map(explainer: Explainer, values: np.ndarray, model: Model, record: dict[str, Any]) -> Map:
    mass, cells = record.get("prefix_mass"), record.get("left_out")
    left_out = None if cells is None else np.isin(np.arange(values.size), cells)
    return Map(
        explainer=explainer,
        values=values,
        scale=natural(values, mass),
        prefix_mass=mass,
        outlier_mass=record.get("outlier_mass"),
        completeness_gap=record.get("completeness_gap"),
        target=record.get("target_index"),
        contrast=record.get("contrast_index"),
        explained=record.get("target") or "",
        seconds=record.get("seconds", 0.0),
        query=query_place(explainer, model),
        unproven=record.get("unproven", False),
        left_out=None if left_out is None else left_out.reshape(values.shape),
    )
