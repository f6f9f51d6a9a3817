"""What is kept of each photo: a line of plain values, its row on the page; shards are merged."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from vision_attn import pages
from vision_attn.files import append_text, kept_together, write_text
from vision_attn.pages import Row, Shot

__all__ = ["Entry", "Results", "as_line"]


@dataclass(frozen=True)
class Entry:
    """One file's results: a record for each method, and its row of the gallery, if any.

    written: its pictures and maps, which are not part of its line.

    Examples:
        >>> import json
        >>> from vision_attn.runs.entries import Entry
        >>> line = Entry("a.png", [{"method": "Rollout"}]).line()
        >>> Entry.read(json.loads(line)).records
        [{'method': 'Rollout'}]
    """

    file: str
    records: list[dict[str, Any]]
    row: Row | None = None
    written: tuple[Path, ...] = ()

    def line(self) -> str:
        """Write the entry as one line of JSON, in ASCII: file names that are no text stay whole."""
        row = None if self.row is None else asdict(self.row)
        values = {"file": self.file, "records": self.records, "row": row}
        return json.dumps({**values, "checksum": _checksum(values)}) + "\n"

    @classmethod
    def read(cls, values: dict[str, Any]) -> "Entry":
        """Read the entry from the values of a `line`; ValueError where they are damaged."""
        if values.pop("checksum", None) != _checksum(values):
            raise ValueError("its checksum is wrong")
        row = values["row"]
        if row is not None:
            shots = [Shot(**{**shot, "size": tuple(shot["size"])}) for shot in row["shots"]]
            row = Row(**{**row, "shots": shots})
        return cls(values["file"], values["records"], row)


class Results:
    """Keeps entries as they come; the last shard to finish merges those of all shards.

    files: all there are, in their order. shard: (number, of how many), from 1. settings: plain
    values, which all shards must share. title and lead: of the gallery, which has no page without
    a lead; warning: added to the title; first: the method that it shows first. page: the gallery,
    when it is written.

    Examples:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from vision_attn.runs.entries import Entry, Results
        >>> with TemporaryDirectory() as folder:
        ...     results = Results(Path(folder), ["a.png"])
        ...     results.add(Entry("a.png", [{"method": "Rollout"}]))
        ...     results.path.read_text()
        '{"method": "Rollout"}\\n'
    """

    page: Path | None = None

    def __init__(
        self,
        folder: Path,
        files: Sequence[str],
        *,
        shard: tuple[int, int] = (1, 1),
        settings: dict[str, Any] | None = None,
        title: str = "Where it looks",
        lead: str | None = None,
        warning: str = "",
        first: str = "",
    ):
        self.folder, self.title, self.lead, self.warning = folder, title, lead, warning
        self.first = first
        self.number, self.shards = shard
        self.files = list(files)
        self.last_line = as_line({"asked": settings or {}})
        self.entries: list[Entry] = []
        self.path = folder / "results.jsonl" if self.shards == 1 else self.part(self.number)
        for earlier in (folder / "results.jsonl", self.path):
            earlier.unlink(missing_ok=True)

    def part(self, number: int) -> Path:
        """Name the file of one shard's results."""
        return self.folder / f"results.{number}-of-{self.shards}.jsonl"

    def add(self, entry: Entry) -> None:
        """Keep an entry, in memory and in the file.

        Raises OSError where its lines cannot be written; then its pictures are not left either.
        """
        lines = map(as_line, entry.records) if self.shards == 1 else [entry.line()]
        with kept_together() as written:
            written += entry.written
            append_text(self.path, "".join(lines))
        self.entries.append(entry)

    def write_page(self) -> None:
        """Write the gallery of the photos so far; of shards, `end` writes it."""
        if self.shards == 1:
            self._gallery(self.entries)

    def end(self) -> bool:
        """Mark this shard as done; if it was the last one, merge all of them and return True."""
        append_text(self.path, self.last_line)
        entries: list[Entry] = []
        for number in range(1, self.shards + 1):
            if not self.part(number).is_file():
                return False
            with self.part(number).open(encoding="utf-8", errors="replace") as file:
                *lines, last = [*file] or [""]
            if last != self.last_line:
                return False
            try:
                entries += [Entry.read(json.loads(line)) for line in lines]
            except (ValueError, AttributeError, RecursionError):
                raise ValueError(
                    f"{self.part(number)}: damaged: run --shard {number}/{self.shards} again"
                ) from None
        order = {file: place for place, file in enumerate(self.files)}
        entries.sort(key=lambda entry: order[entry.file])
        records = (record for entry in entries for record in entry.records)
        write_text(self.folder / "results.jsonl", "".join(map(as_line, records)))
        self._gallery(entries)
        return True

    def _gallery(self, entries: Iterable[Entry]) -> None:
        if self.lead is not None:
            rows = [entry.row for entry in entries if entry.row is not None]
            shown = pages.Gallery("Photos", rows, self.first)
            self.page = pages.write_page(self.folder, self.title, [shown], self.lead, self.warning)


def _checksum(values: dict[str, Any]) -> int:
    """CRC-32 of values as `as_line` puts them into a file."""
    return crc32(as_line(values).encode(errors="replace"))


def as_line(value: dict[str, Any]) -> str:
    """Write plain values as one line of JSON."""
    return json.dumps(value, ensure_ascii=False) + "\n"
