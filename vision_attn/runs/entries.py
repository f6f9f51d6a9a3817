"""What is drawn of a photo: a record of plain values for each method, and its row on a page."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Entry", "as_line"]


@dataclass(frozen=True)
class Entry:
    """One file's results: a record for each method, and its row of the gallery, if any.

    Attributes:
        row: Plain values, by which `pages.gallery` makes a `pages.Row`.
        written: Its pictures and maps.

    Examples:
        >>> from vision_attn.runs.entries import Entry
        >>> Entry("a.png", [{"method": "Rollout"}]).written
        ()
    """

    file: str
    records: list[dict[str, Any]]
    row: dict[str, Any] | None = None
    written: tuple[Path, ...] = ()


def as_line(value: dict[str, Any]) -> str:
    """Write plain values as one line of JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"
