"""What is drawn of a photo: a record of plain values for each method, and its row on the page."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vision_attn.pages import Row, Shot

__all__ = ["Entry", "as_line", "page_row"]


@dataclass(frozen=True)
class Entry:
    """One file's results: a record for each method, and its row of the gallery, if any.

    written: its pictures and maps.

    Examples:
        >>> from vision_attn.runs.entries import Entry
        >>> Entry("a.png", [{"method": "Rollout"}]).written
        ()
    """

    file: str
    records: list[dict[str, Any]]
    row: Row | None = None
    written: tuple[Path, ...] = ()


def page_row(values: dict[str, Any]) -> Row:
    """Make a row of the gallery from its `dataclasses.asdict`, read as JSON."""
    shots = [Shot(**{**shot, "size": tuple(shot["size"])}) for shot in values["shots"]]
    return Row(**{**values, "shots": shots})


def as_line(value: dict[str, Any]) -> str:
    """Write plain values as one line of JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"
