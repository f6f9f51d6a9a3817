"""Explanations as rows of the store: a column for each method, a row for each photo in it.

Axes: h, w a map.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from vision_attn.methods import Explainer
from vision_attn.runs.keys import bytes_crc, content_number, file_stamp, model_settings
from vision_attn.runs.labels import label_of
from vision_attn.runs.maps import Map
from vision_attn.runs.runfile import RunFile, write_run
from vision_attn.runs.shard import Column, StoreRow
from vision_attn.runs.store import Store
from vision_attn.types import Model

__all__ = [
    *("DRAWN", "FILM", "MAP", "NOTHING_NEW", "Explained", "about_model", "explained_columns"),
    *("explained_rows", "replaced_line", "store_explained"),
]

MAP, DRAWN, FILM = "map", "drawn", "film"  # kinds of columns
NOTHING_NEW = "nothing to explain: the results of an earlier run stay"


@runtime_checkable
class Explained(Protocol):
    """What a photo's rows are made of: an `Explanation`.

    Examples:
        >>> from vision_attn.runs.rows import Explained
        >>> sorted(name for name in vars(Explained) if name in ("maps", "model", "name"))
        ['maps', 'model', 'name']
    """

    @property
    def model(self) -> Model:
        """The model that explained it."""

    @property
    def name(self) -> str:
        """The photo's file."""

    @property
    def maps(self) -> list[Map]:
        """Its maps, one a method."""


def about_model(model: Model) -> dict[str, Any]:
    """What it takes to read and draw results without the network, as plain values."""
    return {
        "what": "explain",
        "model": model.name,
        "weights": model.weights,
        "classes": list(model.classes),
        "preprocess": asdict(model.preprocess) if is_dataclass(model.preprocess) else None,
        "layout": None if model.layout is None else asdict(model.layout),
        "calibration": asdict(model.calibration),
        "from": os.getcwd(),  # which the records' files are relative to
    }


def explained_columns(
    model: Model,
    explainers: Sequence[Explainer],
    target: str | None,
    **more: Any,
) -> list[Column]:
    """Make the column of each method.

    target: the key of what is explained, as `Request.key` puts it. more: what else its rows depend
    on.
    """
    shared = model_settings(model) | more
    return [
        Column(
            MAP,
            str(explainer),
            shared
            | {
                "class": f"{type(explainer).__module__}.{type(explainer).__qualname__}",
                "options": asdict(explainer),
                "target": target if explainer.class_specific else None,
            },
        )
        for explainer in explainers
    ]


def explained_rows(
    explanation: Explained,
    records: Sequence[dict[str, Any]],
    columns: Sequence[Column],
    content: int,
    keeps: bool,
) -> list[StoreRow]:
    """Make the row of each map of a photo. keeps: also the map itself."""
    by_method = {column.method: column for column in columns}
    classes = explanation.model.classes
    label = label_of(explanation.name, classes)
    known = {} if label is None else {"label": classes[label], "label_index": label}
    return [
        StoreRow(
            by_method[found.method],
            explanation.name,
            {name: value for name, value in record.items() if name != "file"} | known,
            content,
            found.values if keeps else None,
        )
        for record, found in zip(records, explanation.maps, strict=True)
    ]


def store_explained(
    folder: Path, explained: Sequence[tuple[Explained, Sequence[dict[str, Any]]]]
) -> None:
    """Write photos that were explained in Python as the store of a finished run.

    explained: each with the records of its maps. Raises OSError where it cannot be written.
    """
    model = explained[0][0].model
    explainers = {found.method: found.explainer for one, _ in explained for found in one.maps}
    columns = explained_columns(model, list(explainers.values()), None, saved=True)
    names: list[str] = []
    rows: list[StoreRow] = []
    for one, records in explained:
        name = one.name if one.name not in names else f"{one.name} ({len(names) + 1})"
        names.append(name)
        there = Path(one.name).is_file()
        content = content_number(file_stamp(one.name), bytes_crc(one.name)) if there else 0
        made = explained_rows(one, records, columns, content, keeps=False)
        rows += [row._replace(sample=name) for row in made]
    about = about_model(model)
    about |= {"asked": {"save": "pictures", "methods": list(explainers)}, "films": []}
    run = RunFile(about, names, columns=tuple(column.key for column in columns))
    with Store(folder, wanted=columns) as store:
        store.remove(store.index.ids)
        store.add(rows)
        store.finish(run.number)
    write_run(folder, run)


def replaced_line(counts: Mapping[str, int]) -> str:
    """Say how many results of an earlier run are replaced, by their methods, and how to keep them.

    Examples:
        >>> from vision_attn.runs.rows import replaced_line
        >>> replaced_line({"Rollout": 2})
        'replaced 2 results of an earlier run (Rollout): another output folder (-o) keeps both'
    """
    total = sum(counts.values())
    noun = "result" if total == 1 else "results"
    return (
        f"replaced {total} {noun} of an earlier run ({', '.join(counts)}): another output folder "
        "(-o) keeps both"
    )
