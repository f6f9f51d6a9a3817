"""The page of very many photos, made from their rows: by class, with search."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from vision_attn.pages.gallery.records import Records, Thumb, write_records
from vision_attn.pages.page import write_page
from vision_attn.runs.results import SavedResults
from vision_attn.types import Model

__all__ = ["write_browser"]


def write_browser(results: SavedResults, title: str, lead: str, model: Model) -> Path:
    """Write index.html and page/records-*.js beside the results; return the page.

    A photo is listed under its true class where that is known, else under the predicted one.
    """
    starts, listed = _photos(results)
    order = np.lexsort((np.arange(len(listed)), listed))
    photos = _thumbs(results, starts, listed, order)
    classes = write_records(results.folder, model.classes, photos)
    section = Records("Photos", list(model.classes), classes)
    return write_page(results.folder, title, [section], lead, model.warning)


def _photos(results: SavedResults) -> tuple[Int64[ndarray, " n"], Int64[ndarray, " n"]]:
    """The number of each photo's first row, and the class that it is listed under."""
    starts, listed = [], []
    for place in results.first_rows():
        row = results[place]
        shown = row.get("label_index", row.get("predicted_index", -1))
        starts.append(place)
        listed.append(-1 if shown is None else shown)
    return np.array(starts, np.int64), np.array(listed, np.int64)


def _thumbs(
    results: SavedResults, starts: ndarray, listed: ndarray, order: ndarray
) -> Iterator[tuple[int, Thumb]]:
    here = results.folder.resolve()
    ends = np.append(starts[1:], len(results))
    for photo in order:
        rows = [results[int(starts[photo])]]
        if "picture" in rows[0]:
            rows = results[int(starts[photo]) : int(ends[photo])]
        yield int(listed[photo]), _thumb(here, rows)


def _thumb(here: Path, records: list[dict[str, Any]]) -> Thumb:
    first = records[0]
    return Thumb(
        _link(first["file"], here),
        first.get("predicted_index", -1),
        first.get("label_index", -1),
        first.get("probability"),
        [quote(record["picture"], errors="replace") for record in records if "picture" in record],
    )


def _link(file: str, here: Path) -> str:
    """Write a photo's path as a link from the page; as a whole URI where it is on another drive."""
    try:
        path = os.path.relpath(file, here)
    except ValueError:
        return Path(os.path.abspath(file)).as_uri()
    return quote(Path(path).as_posix(), errors="replace")
