"""Pictures drawn from saved maps on request: no network, only its preprocessing."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from vision_attn import pages
from vision_attn.data.faults import fault_line
from vision_attn.data.preprocess import Preprocess
from vision_attn.files import claimed
from vision_attn.methods import Explainer, parse_method
from vision_attn.render import ColorMap, Style, natural
from vision_attn.runs.explain import query_place
from vision_attn.runs.explanation import Explanation, Pictures
from vision_attn.runs.maps import Map
from vision_attn.runs.naming import file_names, label
from vision_attn.runs.opened import SavedResults, open_results
from vision_attn.runs.progress import Bar, Silent
from vision_attn.types import Calibration, Model, TokenLayout

__all__ = ["Drawn", "draw_pictures", "saved_model"]


class Drawn(list[Path]):
    """The pictures' folders. photos: how many were drawn; problems: a line for each that was not.

    Examples:
        >>> from vision_attn.runs.drawing import Drawn
        >>> Drawn().photos
        0
    """

    photos: int = 0
    problems: Sequence[str] = ()


def draw_pictures(
    folder: str | PathLike[str],
    classes: Sequence[str | int] = (),
    methods: Sequence[str | Explainer] | None = None,
    *,
    limit: int = 100,
    output: str | PathLike[str] | None = None,
    style: Style | None = None,
    progress: Silent | None = None,
) -> Drawn:
    """Draw pictures from the maps that `explain --save maps` left in a folder.

    classes: those to draw, by name or index, each into a folder of its own with a page; a photo is
    of its true class where that is known, else of the predicted one. None at all: the first photos.
    A folder is named by its class, with the index where two classes share a name (crane-134).
    methods: all that were kept unless given. limit: photos of each class at most. output:
    FOLDER/pictures unless given.

    Raises ValueError where there are no maps, and for an unknown class or method. A photo that is
    gone is a line of the problems.
    """
    results = open_results(folder)
    model = saved_model(results)
    wanted = [None] if not classes else [model.class_index(one) for one in classes]
    kept = _kept_methods(results, methods)
    folders = _folder_names(model.classes)
    drawn = Drawn()
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
            names = file_names([Path(records[0]["file"]) for records in chosen])
            for records, stem in zip(chosen, names, strict=True):
                shown.advance()
                try:
                    explanation = _explanation(results, model, records, kept)
                    rows.append(pictures.write(stem, explanation).row)
                except Exception as error:  # of this photo
                    shown.problem(fault_line(records[0]["file"], error))
            drawn.photos += len(rows)
            gallery = pages.Gallery("Photos", [row for row in rows if row is not None])
            title = "Where it looks" if one is None else model.classes[one].split(",")[0]
            lead = f"{pictures.style.meaning} What the network did not see is grey."
            pages.write_page(pictures.folder, title, [gallery], lead, model.warning)
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
        raise ValueError(
            f"{results.folder}: expected results of explain --save maps or both, with about.json"
        )
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
            f"{results.folder / 'about.json'}: damaged ({error}): run the same command again"
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


def _kept_methods(
    results: SavedResults, methods: Sequence[str | Explainer] | None
) -> dict[str, Explainer]:
    """The methods to draw, by their names."""
    kept = {name: parse_method(name) for name in results.methods}
    if results.about["asked"].get("save") not in ("maps", "both"):
        raise ValueError(
            f"{results.folder}: no maps were kept: explain --save maps (or both) keeps them"
        )
    if not methods:
        return kept
    wanted = [str(parse_method(one) if isinstance(one, str) else one) for one in methods]
    for name in wanted:
        if name not in kept:
            raise ValueError(f"no maps of {name} in {results.folder}: there are {', '.join(kept)}")
    return {name: kept[name] for name in wanted}


def _photos(results: SavedResults, index: int | None) -> Iterator[list[dict[str, Any]]]:
    """Yield the records of each photo of a class, or of any."""
    for _, group in groupby(results, key=lambda row: row["file"]):
        records = list(group)
        first = records[0]
        shown = first.get("label_index", first.get("predicted_index"))
        if index is None or shown == index:
            yield records


def _explanation(
    results: SavedResults,
    model: Model,
    records: Sequence[dict[str, Any]],
    methods: dict[str, Explainer],
) -> Explanation:
    first = records[0]
    probabilities = np.zeros(len(model.classes), np.float32)
    if "predicted_index" in first:
        probabilities[first["predicted_index"]] = first["probability"]
    by_name = {label(name): one for name, one in methods.items()}
    maps = []
    for record in records:
        explainer = by_name.get(Path(record["map"]).name.rsplit(".", 2)[0])
        if explainer is not None:
            maps.append(_map(explainer, results.map(record), model, record))
    file = os.path.join(results.about["from"], first["file"])
    photo = model.preprocess.read(first["file"] if os.path.exists(first["file"]) else file)
    return Explanation(model, photo, first["file"], probabilities, maps)


def _map(explainer: Explainer, values: np.ndarray, model: Model, record: dict[str, Any]) -> Map:
    mass = record.get("prefix_mass")
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
    )
