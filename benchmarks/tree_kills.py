"""Many photos scored and explained by processes that are killed: each photo is there once.

    python benchmarks/tree_kills.py FOLDER [--photos N] [--scored N] [--parts score shards torchrun]

Writes a tree of JPEGs into FOLDER/tree (as benchmarks/tree.py does), and then
    score      scores some of the photos, killed on the way; the same command goes on;
    shards     explains all photos with --save maps as four processes, --shard 1/4 to 4/4; the
               second is killed after a third of its photos, and its command is given again;
    torchrun   the same with torchrun --nproc-per-node 4: one of its processes is killed, and it
               starts all of them again by itself.
Kills are kill -9. Checks afterwards that each photo has one row for each method, and that what was
done before the kill was not done again. Prints a line for each part; ends with status 1 where one
is not so.
"""

import argparse
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from tree import write_tree

import vision_attn

METHOD = "Rollout"
PROCESSES = 4
COMMAND = [sys.executable, "-m", "vision_attn"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def rows(path: Path) -> list[tuple[int, int]]:
    """The rows of a shard's store, as (sample, CRC); none where there is no file."""
    if not path.is_file():
        return []
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True)) as store:
        try:
            return store.execute("SELECT sample, crc FROM rows ORDER BY id").fetchall()
        except sqlite3.OperationalError:
            return []


def started(words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own; what it says goes to a file."""
    with log.open("ab") as file:
        return subprocess.Popen(words, stdout=file, stderr=file, start_new_session=True)


def wait_for(path: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a store has so many rows. Exits where the command ends before."""
    while len(found := rows(path)) < count:
        if process.poll() is not None:
            sys.exit(f"{path}: {len(found)} rows when the command ended, expected {count} before")
        time.sleep(0.05)


def ended(process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for a command. Exits where it fails."""
    if process.wait():
        sys.exit(f"status {process.returncode}: {log.read_text(errors='replace')[-2000:]}")


def faults(found: Sequence[tuple[str, str]], files: set[str], methods: int) -> list[str]:
    """What is wrong with the (photo, method) pairs that were written, one line each."""
    twice = [pair for pair, count in Counter(found).items() if count > 1]
    done = Counter(photo for photo, _ in set(found))
    short = [photo for photo in files if done[photo] != methods]
    strange = set(done) - files
    kinds = (twice, "more than once"), (short, f"not by {methods} methods"), (strange, "unknown")
    return [f"{len(some)} {what}, such as {next(iter(some))}" for some, what in kinds if some]


def report(part: str, before: int, found: Sequence[tuple[str, str]], wrong: list[str]) -> bool:
    """Print how a part ended; return whether it is as it should be."""
    photos = len({photo for photo, _ in found})
    print(f"{part}: {before} rows before the kill, {photos} photos in the end", flush=True)
    for line in wrong:
        print(f"{part}: {line}", flush=True)
    return not wrong


def scored(folder: Path, args: argparse.Namespace) -> bool:
    """Score, killed once."""
    out, log = folder / "scores", folder / "scores.log"
    words = [*COMMAND, "score", args.model, str(folder / "tree/train"), "--limit", str(args.scored)]
    words += ["--method", METHOD, "--steps", "2", "--processes", "1", "-o", str(out)]
    written = out / "per_image/store/1-of-1.sqlite"
    process = started(words, log)
    wait_for(written, args.scored, process)  # one of four methods
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = rows(written)
    ended(started(words, log), log)
    after = rows(written)
    records = vision_attn.open_results(out)
    maps = [(one["image"], one["method"]) for one in records if one["kind"] == "maps"]
    methods = len({method for _, method in maps})
    photos = {photo for photo, _ in maps}
    wrong = faults(maps, photos, methods)
    if len(photos) != args.scored:
        wrong.append(f"{len(photos)} photos, expected {args.scored}")
    if after[: len(before)] != before:
        wrong.append("what was there before the kill was changed")
    return report("score", len(before), maps, wrong)


def explained(part: str, folder: Path, args: argparse.Namespace) -> bool:
    """Explain as four processes, one of which is killed."""
    out, log = folder / part, folder / f"{part}.log"
    words = ["explain", args.model, str(folder / "tree"), "--method", METHOD, "--save", "maps"]
    words += ["-o", str(out)]
    files = {str(path) for path in (folder / "tree").rglob("*.jpg")}
    third = len(files) // PROCESSES // 3
    before = (by_shards if part == "shards" else by_torchrun)(words, out, log, third)
    results = vision_attn.open_results(out)
    found = [(one["file"], one["method"]) for one in results]
    wrong = faults(found, files, 1)
    maps = results.maps(METHOD)
    absent = sum(bool(np.isnan(values).all()) for values in maps)
    if absent:
        wrong.append(f"{absent} photos without a map")
    return report(part, before, found, wrong)


def by_shards(words: list[str], out: Path, log: Path, third: int) -> int:
    """Run four shards, kill the second, and run it again; return how far it had come."""
    every = [
        [*COMMAND, *words, "--shard", f"{number}/{PROCESSES}"] for number in range(1, PROCESSES + 1)
    ]
    processes = [started(one, log) for one in every]
    journal = out / f"store/2-of-{PROCESSES}.sqlite"
    wait_for(journal, third, processes[1])
    os.killpg(processes[1].pid, signal.SIGKILL)
    processes[1].wait()
    before = len(rows(journal))
    for process in (*processes[:1], *processes[2:]):
        ended(process, log)
    ended(started(every[1], log), log)
    return before


def by_torchrun(words: list[str], out: Path, log: Path, third: int) -> int:
    """Run four processes, kill one, and wait; return how far its shard had come."""
    launch = [*TORCHRUN, "--nproc-per-node", str(PROCESSES), "--max-restarts", "3"]
    launcher = started([*launch, "-m", "vision_attn", *words], log)
    journal = out / f"store/2-of-{PROCESSES}.sqlite"
    wait_for(journal, third, launcher)
    (second,) = (
        child
        for child in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        if b"\0RANK=1\0" in Path(f"/proc/{child}/environ").read_bytes()
    )
    os.kill(int(second), signal.SIGKILL)
    before = len(rows(journal))
    ended(launcher, log)
    return before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--photos", type=int, default=200_000)
    parser.add_argument("--scored", type=int, default=2000)
    parser.add_argument("--model", default="vision_attn:vit_planted")
    parts = ("score", "shards", "torchrun")
    parser.add_argument("--parts", nargs="*", choices=parts, default=parts)
    args = parser.parse_args()
    folder = args.folder.resolve()
    write_tree(folder / "tree", args.photos)
    right = []
    for part, result in zip(parts, ("scores", "shards", "torchrun"), strict=True):
        if part in args.parts:
            shutil.rmtree(folder / result, ignore_errors=True)
            (folder / f"{result}.log").unlink(missing_ok=True)
            right.append(scored(folder, args) if part == "score" else explained(part, folder, args))
    sys.exit(0 if all(right) else 1)


if __name__ == "__main__":
    main()
