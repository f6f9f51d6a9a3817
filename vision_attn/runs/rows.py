"""Explanations as rows of the store: a column for each method, a row for each photo in it.

Axes: h, w a map.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, Protocol, runtime_checkable

from vision_attn.methods import Explainer
from vision_attn.runs.keys import model_settings
from vision_attn.runs.labels import label_of
from vision_attn.runs.maps import Map
from vision_attn.runs.shard import Column, StoreRow
from vision_attn.types import Model

__all__ = [
    *("DRAWN", "FILM", "MAP", "NOTHING_NEW", "Explained", "about_model", "explained_columns"),
    *("explained_rows", "replaced_line"),
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


def replaced_line(counts: Mapping[str, int]) -> str:
    """Say how many results of an earlier run are replaced, by their methods, and how to keep them.

    Examples:
        >>> from vision_attn.runs.rows import replaced_line
        >>> replaced_line({"Rollout": 2})
        'replaced 2 results of an earlier run (Rollout): another output folder keeps both'
    """
    total = sum(counts.values())
    noun = "result" if total == 1 else "results"
    return (
        f"replaced {total} {noun} of an earlier run ({', '.join(counts)}): another output folder "
        "keeps both"
    )
