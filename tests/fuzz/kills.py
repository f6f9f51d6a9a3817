"""Work that is killed at a random moment and begun again ends as if it had not been killed.

    python tests/fuzz/kills.py --times 20        (make kills)

Each job runs once unbroken. Then, as often as `--times` says, it runs in a process that SIGKILL ends
at a moment drawn evenly from the time that the job takes; the job is begun again, killed once more
in every second round, and left to end. Counts of jobs that are not asked for (--job) are kept from
earlier runs. What it leaves is compared with the unbroken run's: weights,
optimizer and averages to the bit, scores and heatmaps by value, pictures and pixels byte for byte.
"""

import argparse
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import seeds
import torch
from rich.console import Console

from vision_attn.cli import main as run_command
from vision_attn.data import cache, photos
from vision_attn.data.images import read_image


class Job(ABC):
    """Something that takes a while. `begin` does it, or does what a killed run left undone."""

    def __init__(self, whole: Path) -> None:
        self.whole = whole

    @abstractmethod
    def begin(self, place: Path) -> int:
        """Work in the folder `place`; the exit status."""

    @abstractmethod
    def result(self, place: Path) -> Any:
        """What is compared: dicts, lists, tensors, arrays, bytes and plain values."""


class Fit(Job):
    """Three epochs of a network, an average of its weights beside them."""

    network = ""

    def begin(self, place: Path) -> int:
        config = place / "run.yaml"
        config.write_text(seeds.CONFIG.replace(*self.network_in_config()))
        words = ["--trainer.max_epochs", "3", "--trainer.callbacks+=EMAWeightAveraging"]
        words += ["--trainer.callbacks.decay=0.5", "--trainer.default_root_dir", str(place)]
        words += ["--ckpt_path", "auto"]
        return run_command(["fit", "--config", str(config), *words])

    def result(self, place: Path) -> Any:
        contents = torch.load(self._versions(place)[-1] / "last.ckpt", weights_only=True)
        kept = ("state_dict", "current_model_state", "optimizer_states", "epoch", "global_step")
        return {name: contents[name] for name in kept}

    def _versions(self, place: Path) -> list[Path]:
        found = [path.parent for path in place.glob("run/version_*/last.ckpt")]
        return sorted(found, key=lambda path: int(path.name.removeprefix("version_")))

    def network_in_config(self) -> tuple[str, str]:
        """A part of `seeds.CONFIG`, and what takes its place."""
        return "depth: 1", "depth: 2"


class FitCNN(Fit):
    """The same of a CNN with batch statistics and gates."""

    def network_in_config(self) -> tuple[str, str]:
        old = seeds.CONFIG[seeds.CONFIG.index("class_path") : seeds.CONFIG.index("  optimizer")]
        new = """class_path: vision_attn.models.SEResNet
    init_args:
      num_classes: 10
      layers: [1, 1, 1, 1]
      widths: [8, 8, 8, 8]
      gate: vision_attn.attention.SqueezeExcite
"""
        return old, new


class Score(Job):
    """The scores of two methods on planted images."""

    def begin(self, place: Path) -> int:
        words = ["--method", "GradCAM", "--method", "Rollout", "--steps", "3", "--limit", "30"]
        words += ["--batch-size", "5", "--processes", "1", "-o", str(place / "out")]
        return run_command(["score", str(self.whole / "models" / "vit.ckpt"), "planted", *words])

    def result(self, place: Path) -> Any:
        return without_time(json.loads((place / "out" / "scores.json").read_text()))


class ExplainShards(Job):
    """Both shards of a folder of photos, one after the other."""

    def begin(self, place: Path) -> int:
        words = ["explain", str(self.whole / "models/vit.ckpt"), str(self.whole / "caches/photos")]
        words += ["--batch-size", "2", "--page", "-o", str(place / "out")]
        codes = [run_command([*words, "--shard", f"{number}/2"]) for number in (1, 2)]
        return max(codes)

    def result(self, place: Path) -> Any:
        found: dict[str, Any] = {}
        for path in sorted((place / "out").rglob("*.*")):
            if path.name.startswith("."):  # what a kill left of a lock or of a file not yet whole
                continue
            name = path.relative_to(place).as_posix()
            if path.suffix == ".sqlite" or path.name == "run.json.gz":
                continue  # what they hold is in results.jsonl and the page
            if path.name == "results.jsonl":
                found[name] = [without_time(json.loads(x)) for x in path.read_text().splitlines()]
            elif path.suffix == ".npy":
                found[name] = np.load(path)
            elif path.suffix in (".png", ".jpg", ".html"):
                found[name] = path.read_bytes()
        return found


class ExplainMaps(ExplainShards):
    """A folder of photos, maps alone, in one file a method."""

    def begin(self, place: Path) -> int:
        words = ["explain", str(self.whole / "models/vit.ckpt"), str(self.whole / "caches/photos")]
        words += ["--batch-size", "1", "--save", "maps", "--page", "-o", str(place / "out")]
        return run_command(words)


class Cache(Job):
    """The cache of a folder of photos, an image at a time."""

    def begin(self, place: Path) -> int:
        cache.CHUNK = 1
        vars(photos)["read_image"] = slowly
        return 1 if self._load(place)[1] else 0

    def result(self, place: Path) -> Any:
        pixels, errors = self._load(place)
        return [errors, *(pixels[i] for i in range(len(pixels)))]

    def _load(self, place: Path) -> Any:
        folder = self.whole / "caches" / "photos"
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))
        return cache.PixelCache(place / "cache", 16).load(folder, names)


def slowly(*args: Any) -> Any:
    time.sleep(0.05)
    return read_image(*args)


JOBS: dict[str, type[Job]] = {
    "fit a ViT": Fit,
    "fit a CNN": FitCNN,
    "score": Score,
    "explain --save maps": ExplainMaps,
    "explain --shard": ExplainShards,
    "build a cache": Cache,
}


def without_time(value: Any) -> Any:
    """A tree without what differs from run to run."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if "second" not in k and "time" not in k}
        return {k: without_time(v) for k, v in kept.items()}
    return [without_time(v) for v in value] if isinstance(value, list) else value


def same(a: Any, b: Any) -> bool:
    """Whether two results are equal to the bit."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.array_equal(a, b, equal_nan=True)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def attempt(work: Callable[[], int], place: Path, after: float) -> int | None:
    """Run in a forked process; the exit status, or None where SIGKILL came `after` seconds."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.setsid()
            for number in (1, 2):
                os.dup2(os.open(place / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
            code = work()
        finally:
            sys.stdout.flush()
            os._exit(code)
    end = time.monotonic() + after
    while not (found := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() >= end:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            found = os.waitpid(pid, 0)
            break
        time.sleep(0.001)
    code = os.waitstatus_to_exitcode(found[1])
    return None if code == -signal.SIGKILL else code


def trial(
    job: Job, place: Path, moments: list[float], unbroken: Any, limit: float
) -> tuple[int, str | None]:
    """Kill it at these moments of its runs, then let it end; the kills that struck, what is wrong."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    struck = 0
    for moment in moments:
        if attempt(lambda: job.begin(place), place, moment) is not None:
            break
        struck += 1
    code = attempt(lambda: job.begin(place), place, limit)
    if code != 0:
        said = (place / "said").read_text().strip().splitlines()
        return struck, f"ended with {code}: {said[-1] if said else ''}"
    return struck, None if same(job.result(place), unbroken) else "another result than unbroken"


def warm(whole: Path, limit: float) -> None:
    """Import what the jobs import, so that a kill strikes the work."""
    modules = whole / "modules"

    def listed() -> int:
        seeds.make(whole / "files")
        return 0 if modules.write_text("\n".join(sys.modules)) else 1

    assert attempt(listed, whole, limit) == 0, (whole / "said").read_text()
    for name in modules.read_text().split():
        if not name.startswith("triton"):
            with suppress(Exception):
                importlib.import_module(name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=20, help="of each job (default: 20)")
    parser.add_argument("--job", action="append", choices=JOBS, help="only these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=120, help="seconds for one run of a job")
    parser.add_argument("--output", type=Path, default=Path("outputs/fuzz"))
    options = parser.parse_args()
    console, draw, table, failed = Console(stderr=True), Random(options.seed), {}, 0
    with tempfile.TemporaryDirectory(prefix="kills") as name:
        scratch = Path(name)
        warm(scratch, options.limit)
        for title in options.job or JOBS:
            job, first = JOBS[title](scratch / "files"), scratch / "unbroken" / title
            first.mkdir(parents=True)
            start = time.monotonic()
            code = attempt(partial(job.begin, first), first, options.limit)
            seconds = time.monotonic() - start
            if code != 0:
                raise RuntimeError(f"{title} ended with {code}: {(first / 'said').read_text()}")
            unbroken = job.result(first)
            right = kills = 0
            for round_ in range(options.times):
                moments = [draw.uniform(0.02, 1) * seconds for _ in range(1 + round_ % 2)]
                struck, wrong = trial(job, scratch / "trial", moments, unbroken, options.limit)
                kills += struck
                right += wrong is None
                if wrong:
                    failed += 1
                    console.print(f"{title}: killed after {moments}: {wrong}", markup=False)
            table[title] = {"rounds": options.times, "kills": kills, "right": right}
            console.print(f"{title:16} {right} of {options.times} right, {kills} kills")
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "kills.json"
    earlier = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(earlier | table, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # native libraries complain on stderr as they are unloaded
