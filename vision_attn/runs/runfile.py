"""What a run is: its model and options, and the list of its samples, in store/run.json.gz.

All shards of a run read one list. The first shard writes it; it stays as it is until all of them
have finished, whatever happens to the folder of photos meanwhile.
"""

import gzip
import json
import os
import secrets
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from vision_attn.files import naming, replacing
from vision_attn.runs.database import FORMAT, DamagedError
from vision_attn.runs.keys import digest

__all__ = ["RunFile", "agree", "mark_merged", "read_run", "run_path", "write_run"]

LARGEST = 1 << 30  # bytes of a list, which would be of some 20 million samples
NAMED = 3  # samples that a line names


@dataclass(frozen=True)
class RunFile:
    """A run: what it was asked for, and its samples in their order.

    Attributes:
        about: Plain values: the model, its classes and preprocessing, the options.
        shards: How many share the samples.
        columns: The keys of what is computed of each sample.
        merged: Whether all shards have finished, and their results are together.

    Examples:
        >>> from vision_attn.runs.runfile import RunFile
        >>> RunFile({}, ["a.png", "b.png", "c.png"], shards=2).numbers(2)
        range(1, 3, 2)
    """

    about: dict[str, Any]
    samples: Sequence[str]
    shards: int = 1
    columns: Sequence[int] = field(default_factory=tuple)
    merged: bool = False

    @cached_property
    def number(self) -> int:
        """A number of 64 bits of the list and of what is computed: other ones, another number."""
        return digest([list(self.samples), self.shards, list(self.columns)])

    def numbers(self, shard: int) -> range:
        """The numbers of a shard's samples among all."""
        return range(shard - 1, len(self.samples), self.shards)


def run_path(folder: Path) -> Path:
    """Name the file, from the results' folder."""
    return folder / "store" / "run.json.gz"


def read_run(folder: Path) -> RunFile | None:
    """Read the run of a folder; None where there is none.

    Raises DamagedError where it is damaged, ValueError where another version has written it.
    """
    path = run_path(folder)
    try:
        inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)  # gzip, whose CRC-32 it checks
        text = inflate.decompress(path.read_bytes(), LARGEST)
        if not inflate.eof:
            raise ValueError("cut short")
        values = json.loads(text)
        kept = values["format"]
        if kept == FORMAT:
            run = RunFile(
                dict(values["about"]), list(values["samples"]), int(values["shards"]),
                tuple(map(int, values["columns"])), bool(values["merged"]),
            )  # fmt: skip
            if run.shards < 1 or not all(isinstance(name, str) for name in run.samples):
                raise TypeError("not a list of samples")
    except FileNotFoundError:
        return None
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        zlib.error,
        EOFError,
        RecursionError,
    ) as error:
        raise DamagedError(f"{path}: damaged ({error}): run the same command again") from None
    if kept != FORMAT:
        raise ValueError(
            f"{path}: format {kept}, expected {FORMAT}: it was written by another version of "
            "vision_attn: use that one, or name another folder"
        )
    return run


def write_run(folder: Path, run: RunFile) -> None:
    """Write the run of a folder, in place of what is there."""
    path = run_path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as beside:
        beside.write_bytes(_content(run))


def agree(folder: Path, run: RunFile) -> tuple[RunFile, list[str]]:
    """Return the run that all shards share, and a line where samples came that it does not have.

    That is the one that the first of them wrote, if it was asked the same, is not finished and is
    of some of these samples; else `run` itself, which is then written.
    """
    if run.shards == 1:
        write_run(folder, run)
        return run, []
    try:
        known = read_run(folder)
    except ValueError:
        known = None
    if known is None and not run_path(folder).exists():
        known = _write_first(folder, run)
    if known is None or not _goes_on(known, run):
        write_run(folder, run)
        return run, []
    have = set(known.samples)
    new = [name for name in run.samples if name not in have]
    if not new:
        return known, []
    named = ", ".join(new[:NAMED]) + (", ..." if len(new) > NAMED else "")
    return known, [
        f"{len(new)} new since the first shard began ({named}): left out; when all shards are "
        "done, run them again, which adds what is new"
    ]


def _goes_on(known: RunFile, run: RunFile) -> bool:
    """Whether the run that is there is this one, unless it is finished."""
    same = (known.shards, tuple(known.columns)) == (run.shards, tuple(run.columns))
    if not same or known.about.get("asked") != run.about.get("asked"):
        return False
    if list(known.samples) == list(run.samples):
        return True
    return not known.merged and not set(known.samples).isdisjoint(run.samples)


def _write_first(folder: Path, run: RunFile) -> RunFile | None:
    """Write the run unless another process does so in the same moment; return what is there."""
    path = run_path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".run.{secrets.token_hex(4)}.part.gz")
    try:
        with naming(path):
            beside.write_bytes(_content(run))
        with suppress(OSError):  # it is there by now, or this disk knows no links
            os.link(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    return read_run(folder)


def mark_merged(folder: Path, run: RunFile) -> None:
    """Say that all shards have finished."""
    write_run(folder, replace(run, merged=True))


def _content(run: RunFile) -> bytes:
    values = {
        "format": FORMAT,
        "about": run.about,
        "shards": run.shards,
        "columns": list(run.columns),
        "merged": run.merged,
        "samples": list(run.samples),
    }
    return gzip.compress(json.dumps(values).encode(), 6, mtime=0)
