"""What `vision-attn explain` says of photos and videos, from one process or from many.

results.jsonl         a line for each photo and method
index.html            the gallery
results.I-of-N.jsonl  of one shard: a line for each photo, and one more when it has ended
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vision_attn import render
from vision_attn.render import Row, Shot


@dataclass(frozen=True)
class Entry:
    """What is said of a file: a record for each method, and its row of the gallery, if any."""

    file: str
    records: list[dict[str, Any]]
    row: Row | None = None

    def line(self) -> str:
        row = None if self.row is None else asdict(self.row)
        return as_line({"file": self.file, "records": self.records, "row": row})

    @classmethod
    def read(cls, said: dict[str, Any]) -> "Entry":
        """From a line of `line`."""
        row = said["row"]
        if row is not None:
            shots = [Shot(**{**shot, "size": tuple(shot["size"])}) for shot in row["shots"]]
            row = Row(row["name"], row["note"], shots)
        return cls(said["file"], said["records"], row)


class Results:
    """Keeps entries as they come; those of shards are put together by the one that ends last.

    args: of the command line. files: all there are, in their order. lead: the gallery's first
    sentence, None without a gallery. page: the gallery, when it is written.
    """

    page: Path | None = None

    def __init__(self, args: argparse.Namespace, files: Sequence[str], lead: str | None):
        self.folder, self.lead, self.title = Path(args.output), lead, title(args.model)
        self.number, self.shards = args.shard
        self.files = list(files)
        own = ("output", "shard", "processes", "batch_size", "device")
        asked = {name: value for name, value in vars(args).items() if name not in own}
        self.ended = as_line({"asked": asked})
        self.entries: list[Entry] = []
        self.path = self.folder / "results.jsonl" if self.shards == 1 else self.part(self.number)
        for earlier in (self.folder / "results.jsonl", self.path):
            earlier.unlink(missing_ok=True)

    def part(self, number: int) -> Path:
        return self.folder / f"results.{number}-of-{self.shards}.jsonl"

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        lines = map(as_line, entry.records) if self.shards == 1 else [entry.line()]
        with self.path.open("a", encoding="utf-8", errors="replace") as file:
            file.writelines(lines)

    def write_page(self) -> None:
        """The gallery of the photos so far; of shards, `end` writes it."""
        if self.shards == 1:
            self._gallery(self.entries)

    def end(self) -> bool:
        """This shard is done. Puts all of them together, if that was the last."""
        with self.path.open("a", encoding="utf-8", errors="replace") as file:
            file.write(self.ended)
        entries: list[Entry] = []
        for number in range(1, self.shards + 1):
            if not self.part(number).is_file():
                return False
            with self.part(number).open(encoding="utf-8") as file:
                *lines, ended = [*file] or [""]
            if ended != self.ended:
                return False
            entries += [Entry.read(json.loads(line)) for line in lines]
        order = {file: place for place, file in enumerate(self.files)}
        entries.sort(key=lambda entry: order[entry.file])
        whole = self.folder / f"results.jsonl.{self.number}"
        with whole.open("w", encoding="utf-8", errors="replace") as file:
            file.writelines(as_line(record) for entry in entries for record in entry.records)
        whole.replace(self.folder / "results.jsonl")
        self._gallery(entries)
        return True

    def _gallery(self, entries: Iterable[Entry]) -> None:
        if self.lead is not None:
            rows = [entry.row for entry in entries if entry.row is not None]
            gallery = render.Gallery("Photos", rows)
            self.page = render.write_page(self.folder, self.title, [gallery], self.lead)


def as_line(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"


def title(model: str) -> str:
    """Of the gallery: the end of a checkpoint's path says which it is."""
    named = "/".join(Path(model).parts[-3:]) if Path(model).is_file() else model
    return f"Where {named} looks"
