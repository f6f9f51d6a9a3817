"""What is kept of each photo: a line of plain values, and its row on the page."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from vision_attn.render import Row, Shot

__all__ = ["Entry", "as_line"]


@dataclass(frozen=True)
class Entry:
    """One file's results: a record for each method, and its row of the gallery, if any.

    written: its pictures and maps, which are not part of its line.

    Examples:
        >>> import json
        >>> from vision_attn.reports.entries import Entry
        >>> line = Entry("a.png", [{"method": "Rollout"}]).line()
        >>> Entry.read(json.loads(line)).records
        [{'method': 'Rollout'}]
    """

    file: str
    records: list[dict[str, Any]]
    row: Row | None = None
    written: tuple[Path, ...] = ()

    def line(self) -> str:
        """Write the entry as one line of JSON."""
        row = None if self.row is None else asdict(self.row)
        values = {"file": self.file, "records": self.records, "row": row}
        return as_line({**values, "checksum": _checksum(values)})

    @classmethod
    def read(cls, values: dict[str, Any]) -> "Entry":
        """Read the entry from the values of a `line`; ValueError where they are damaged."""
        if values.pop("checksum", None) != _checksum(values):
            raise ValueError("not as it was written")
        row = values["row"]
        if row is not None:
            shots = [Shot(**{**shot, "size": tuple(shot["size"])}) for shot in row["shots"]]
            row = Row(**{**row, "shots": shots})
        return cls(values["file"], values["records"], row)


def _checksum(values: dict[str, Any]) -> int:
    """CRC-32 of values as `as_line` puts them into a file."""
    return crc32(as_line(values).encode(errors="replace"))


def as_line(value: dict[str, Any]) -> str:
    """Write plain values as one line of JSON."""
    return json.dumps(value, ensure_ascii=False) + "\n"
