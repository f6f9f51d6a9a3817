"""The page of very many photos, made from their records: by class, with search."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from vision_attn import pages
from vision_attn.pages.gallery.records import Records, Thumb, write_records
from vision_attn.types import Model

__all__ = ["write_browser"]


def write_browser(folder: Path, title: str, lead: str, model: Model) -> Path:
    """Write index.html and page/records-*.js from the folder's results.jsonl; return the page.

    A photo is listed under its true class where that is known, else under the predicted one.
    """
    begins, listed = _photos(folder / "results.jsonl")
    order = np.lexsort((np.arange(len(listed)), listed))
    classes = write_records(folder, model.classes, _thumbs(folder, begins, listed, order))
    section = Records("Photos", list(model.classes), classes)
    return pages.write_page(folder, title, [section], lead, model.warning)


def _photos(path: Path) -> tuple[Int64[ndarray, " n"], Int64[ndarray, " n"]]:
    """Where each photo's first line begins, and the class that it is listed under."""
    begins, listed = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    some: list[tuple[int, int]] = []
    before, place = None, 0

    def close() -> None:
        table = np.array(some, np.int64).reshape(-1, 2)
        begins.append(table[:, 0].copy())
        listed.append(table[:, 1].copy())
        some.clear()

    with path.open("rb") as lines:
        for line in lines:
            record = json.loads(line)
            if record["file"] != before:
                before = record["file"]
                shown = record.get("label_index", record.get("predicted_index", -1))
                some.append((place, -1 if shown is None else shown))
                if len(some) == 65_536:
                    close()
            place += len(line)
    close()
    return np.concatenate(begins), np.concatenate(listed)


def _thumbs(
    folder: Path, begins: ndarray, listed: ndarray, order: ndarray
) -> Iterator[tuple[int, Thumb]]:
    here = folder.resolve()
    with (folder / "results.jsonl").open("rb") as lines:
        for at in order:
            lines.seek(int(begins[at]))
            records = [json.loads(lines.readline())]
            while "picture" in records[0] and (line := lines.readline()):
                record = json.loads(line)
                if record["file"] != records[0]["file"]:
                    break
                records.append(record)
            yield int(listed[at]), _thumb(here, records)


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
