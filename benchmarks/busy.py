"""What people run beside other programs: as the command line sets threads up, and in other ways.

    python benchmarks/busy.py [fit] [explain] [score] [tests] [--loads 0 1 2 4] [--rounds 3]
    python benchmarks/busy.py fit --recipes senet_planted_fast --ways plain ours --seconds 3

A load is so many processes that want a core each, all the time, each in a session of its own, as a
browser and a video call are. The ways are environments: `plain` has the runtimes' own waits and all
threads, `passive` threads that sleep at once, `short` those that soon sleep, `one` a single thread,
and `ours` nothing at all, so that the command line chooses. Processes of all ways stand side by
side and train in turns; each way's order changes with every round. Tables give least / median /
most. For `fit` they also give the median as a part of what the first way reaches without load, over
the part of the cores that is this process's fair share; and images a second of CPU time, which say
how much of that time goes into waiting, also on a machine that is busy anyway.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from alone import spread
from machines import VISION_ATTN, photos_of

from vision_attn.cores import POLICY, THREADS, WAITS, available_cores, usable_cores

ROOT = Path(__file__).parent.parent
CORES = usable_cores()
ALL = {"OMP_NUM_THREADS": str(CORES)}
WAYS = {
    "plain": ALL | {"GOMP_SPINCOUNT": "300000", "KMP_BLOCKTIME": "200"},
    "passive": ALL | {"OMP_WAIT_POLICY": "passive"},
    "short": ALL | WAITS,
    "one": WAITS | {"OMP_NUM_THREADS": "1"},
    "ours": {},
}
RECIPES = "vit_planted_fast", "senet_planted_fast", "spatial_cnn_planted_fast"
COMMANDS = {
    "explain": "explain vision_attn:compact_vit_imagenette {folder} -o out",
    "score": "score vision_attn:compact_vit_imagenette {folder} --limit 3 --steps 4 -o out",
}
TESTS = "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-m"
NAMES = "fit", "explain", "score", "tests"
BUSY = """
import os
first = os.getppid()
while os.getppid() == first:  # it ends with the benchmark, however that ends
    for _ in range(1_000_000):
        pass
"""
FIRST = 3  # steps that make kernels and room


def main() -> None:
    if sys.argv[1:2] == ["--train"]:
        train(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NAMES)} (all but the last)")
    parser.add_argument("--loads", nargs="+", type=int, default=[0, 1, 2, 4])
    parser.add_argument(
        "--ways", nargs="+", choices=WAYS, default=["plain", "short", "one", "ours"]
    )
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of training, each turn")
    parser.add_argument("--unplanned", action="store_true", help="fit without measuring its plan")
    parser.add_argument("--photos", type=int, default=8)
    args = parser.parse_args()
    if wrong := set(args.names) - set(NAMES):
        parser.error(f"expected {', '.join(NAMES)}, got {', '.join(wrong)}")
    print(f"{CORES} cores, of which other programs left {available_cores(1.0):.2f} at the start\n")
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.names or NAMES[:-1]:
            if name == "fit":
                for recipe in args.recipes:
                    fit(recipe, args, Path(scratch))
            else:
                whole(name, args, Path(scratch))


def environment(way: str, scratch: Path) -> dict[str, str]:
    """The caller's, but for what says how many threads there are and how they wait."""
    kept = {k: v for k, v in os.environ.items() if k not in (*THREADS, *WAITS, POLICY)}
    return {**kept, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(scratch / "cache")} | WAYS[way]


@contextmanager
def beside(count: int) -> Iterator[None]:
    """So many other programs."""
    words = [sys.executable, "-c", BUSY]
    others = [subprocess.Popen(words, start_new_session=True) for _ in range(count)]
    try:
        time.sleep(0.5)
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def fair_share(load: int) -> float:
    """The part of the cores that each of so many programs, and this one, can have at least."""
    return max(CORES / (load + 1), CORES - load) / CORES


def fit(recipe: str, args: argparse.Namespace, scratch: Path) -> None:
    """Images a second of one recipe, by load and way."""
    words = [recipe, *(["--probe=false"] if args.unplanned else [])]
    print(f"| {recipe}, other programs | {' | '.join(args.ways)} |")
    print(f"|--:|{'---|' * len(args.ways)}", flush=True)
    quiet = 0.0
    for load in args.loads:
        with ExitStack() as stack:
            stack.enter_context(beside(load))
            runs = {
                way: stack.enter_context(Training(words, environment(way, scratch), scratch))
                for way in args.ways
            }
            speeds = in_turns(
                args.rounds,
                {way: partial(run.speed, args.seconds) for way, run in runs.items()},
            )
        quiet = quiet or statistics.median(speeds[args.ways[0]])
        cells = [
            f"{'/'.join(f'{one:.0f}' for one in low_middle_high(speeds[way]))}, "
            f"{statistics.median(speeds[way]) / quiet / fair_share(load):.0%}, "
            f"{runs[way].images / runs[way].cpu_seconds:.0f}/CPU s, threads: {runs[way].threads}"
            for way in args.ways
        ]
        print(f"| {load} | {' | '.join(cells)} |", flush=True)
    print()


def whole(name: str, args: argparse.Namespace, scratch: Path) -> None:
    """Seconds of a command, by load and way."""
    if name == "tests":
        words = [*TESTS, "not slow and not compiled", str(ROOT / "tests" / "attention")]
    else:
        folder = scratch / "photos"
        if not folder.is_dir():
            photos_of(args.photos, scratch)
        words = [*VISION_ATTN, *COMMANDS[name].format(folder=folder).split()]
    print(f"| {name}, other programs | {' | '.join(args.ways)} |")
    print(f"|--:|{'---|' * len(args.ways)}", flush=True)
    for load in args.loads:
        with beside(load):
            seconds = in_turns(
                args.rounds,
                {way: partial(timed, words, environment(way, scratch)) for way in args.ways},
            )
        print(f"| {load} | {' | '.join(f'{spread(seconds[way])} s' for way in args.ways)} |")
    print(flush=True)


def in_turns(rounds: int, measures: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {way: [] for way in measures}
    for turn in range(rounds):
        for way in list(measures) if turn % 2 == 0 else reversed(measures):
            found[way].append(measures[way]())
    return found


def low_middle_high(values: Sequence[float]) -> tuple[float, ...]:
    return min(values), statistics.median(values), max(values)


def timed(words: Sequence[str], environment: dict[str, str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True
        )
        seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed: {(done.stdout + done.stderr)[-800:]}")
    return seconds


class Training:
    """A process that trains when it is told to."""

    def __init__(self, recipe: Sequence[str], environment: dict[str, str], scratch: Path):
        words = [sys.executable, str(Path(__file__)), "--train", *recipe]
        self.process = subprocess.Popen(
            words, cwd=scratch, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.threads = int(self._answer()[0])
        self.images = self.cpu_seconds = 0.0  # of all turns

    def speed(self, seconds: float) -> float:
        """Images a second of steps that take about so long."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        images, took, cpu_seconds = self._answer()
        self.images += images
        self.cpu_seconds += cpu_seconds
        return images / took

    def _answer(self) -> list[float]:
        assert self.process.stdout is not None
        told = []
        for line in self.process.stdout:
            word, *values = line.split() or [""]
            if word == "busy.py:":
                return [float(value) for value in values]
            told.append(line)
        raise SystemExit("".join(told[-8:]))

    def __enter__(self) -> "Training":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()


def train(recipe: Sequence[str]) -> None:
    """Fit a config with options, so many seconds at a time, each as a line of stdin says."""
    from vision_attn import cores

    cores.keep_to_quota()
    cores.wait_briefly()
    import torch
    from lightning.pytorch import Callback, LightningModule, Trainer

    from vision_attn.fitting.making import make_run

    class Paced(Callback):
        def __init__(self) -> None:
            self.start, self.cpu, self.images, self.end = 0.0, 0.0, 0, 0.0

        def on_train_batch_start(
            self,
            trainer: Trainer,
            pl_module: LightningModule,
            batch: Sequence[torch.Tensor],
            batch_idx: int,
        ) -> None:
            if trainer.global_step < FIRST:
                return
            if time.perf_counter() >= self.end:
                if self.images:
                    took = time.perf_counter() - self.start, time.process_time() - self.cpu
                    print("busy.py:", self.images, *took, flush=True)
                else:  # ready: it waits, so that what starts next has the cores for itself
                    print("busy.py:", run.threads or torch.get_num_threads(), flush=True)
                self.images, seconds = 0, float(sys.stdin.readline())
                self.start, self.cpu = time.perf_counter(), time.process_time()
                self.end = self.start + seconds
            self.images += len(batch[0])

    words = ["--config", *recipe, "--trainer.max_epochs=1000"]
    words += ["--trainer.enable_progress_bar=false", "--data.source.val=8", "--data.source.test=8"]
    run = make_run("fit", words, show=[Paced()])
    run.fit()


if __name__ == "__main__":
    main()
