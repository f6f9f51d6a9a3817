"""Rows a second and bytes a photo of the store, without a network.

    python benchmarks/store.py [--photos N]

Keeps made-up records and maps of 14 x 14 in batches of eight, as `explain --save maps` does, opens
the store again, as a run that goes on does, and exports results.jsonl. Prints rows per second of
CPU time for each, and the bytes that a photo takes in each file. `bench.py` holds the same against
lines of JSON and bytes of maps, written to two files and read again.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from timing import Clock, KeyRatio

from vision_attn.runs.keys import sample_numbers
from vision_attn.runs.results import SavedResults, export_lines
from vision_attn.runs.runfile import RunFile, write_run
from vision_attn.runs.shard import Column, StoreRow
from vision_attn.runs.store import Store

BATCH, SIDE, CLASSES = 8, 14, 1000
ROLLOUT = Column("map", "Rollout")


def record(number: int, draws: np.ndarray) -> dict[str, Any]:
    """A record as `explain` makes it; draws: three numbers, 0 to 1."""
    predicted, label = (number * 7) % CLASSES, number % CLASSES
    return {
        "method": "Rollout",
        "options": {"fusion": "mean", "residual": 0.5, "discard": 0.0},
        "weights": "trained",
        "predicted": f"class number {predicted}, synonym",
        "predicted_index": predicted,
        "probability": round(float(draws[0]), 6),
        **dict.fromkeys(["target", "target_index", "against", "against_index"]),
        "prefix_mass": float(draws[1]),
        "outlier_mass": None,
        "seconds": round(float(draws[2]) / 30, 6),
        "label": f"class number {label}, synonym",
        "label_index": label,
    }


def fill(folder: Path, names: list[str]) -> None:
    """Keep all rows and maps."""
    rng = np.random.default_rng(0)
    maps = rng.random((1000, SIDE, SIDE), dtype=np.float32) / SIDE**2
    draws = rng.random((len(names), 3))
    with Store(folder, wanted=[ROLLOUT]) as store:
        for start in range(0, len(names), BATCH):
            store.add(
                [
                    StoreRow(ROLLOUT, names[i], record(i, draws[i]), i, maps[i % len(maps)])
                    for i in range(start, min(start + BATCH, len(names)))
                ]
            )


def reopen(folder: Path, names: list[str]) -> None:
    """Check all rows and maps, and find that none is missing."""
    with Store(folder, wanted=[ROLLOUT]) as store:
        assert (store.find(ROLLOUT, sample_numbers(names))[0] >= 0).all()


def export(folder: Path, names: list[str]) -> None:
    """Write results.jsonl."""
    run = RunFile({"what": "explain"}, names, columns=(ROLLOUT.key,))
    write_run(folder, run)
    with SavedResults(folder, run) as results:
        export_lines(results)


def plain(folder: Path, names: list[str]) -> None:
    """Write records as lines and maps as bytes, with no checksum; read both."""
    rng = np.random.default_rng(0)
    maps = rng.random((1000, SIDE, SIDE), dtype=np.float32) / SIDE**2
    draws = rng.random((len(names), 3))
    with (folder / "lines").open("w") as lines, (folder / "maps").open("wb") as arrays:
        for i, name in enumerate(names):
            lines.write(json.dumps({"image": name, **record(i, draws[i])}) + "\n")
            arrays.write(maps[i % len(maps)].tobytes())
    for line in (folder / "lines").read_text().splitlines():
        json.loads(line)
    np.fromfile(folder / "maps", dtype=np.float32)


def names_of(count: int) -> list[str]:
    return [f"photos/train/n{i % CLASSES:08}/n{i % CLASSES:08}_{i}.JPEG" for i in range(count)]


def in_new_folder(*steps: Callable[[Path, list[str]], None], count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for step in steps:
            step(Path(folder), names_of(count))


def key_ratios(clock: Clock) -> Iterator[KeyRatio]:
    """2,000 rows and maps: kept, opened again and exported."""
    ours = partial(in_new_folder, fill, reopen, export, count=2000)
    theirs = partial(in_new_folder, plain, count=2000)
    yield clock.ratio("a row of the store / of plain files", ours, theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photos", type=int, default=100_000)
    count = parser.parse_args().photos
    names = names_of(count)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        steps: list[Callable[[Path, list[str]], None]] = [fill, reopen, export]
        for step in steps:
            start = time.process_time()
            step(folder, names)
            print(f"{step.__name__}: {count / (time.process_time() - start):,.0f} rows/s")
        for path in sorted(folder.rglob("*.*")):
            if path.is_file():
                print(
                    f"{path.relative_to(folder)}: {path.stat().st_size / count:.0f} bytes a photo"
                )


if __name__ == "__main__":
    main()
