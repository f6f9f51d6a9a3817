"""What people run, timed as they run it: with this CPU's instructions, and held to those of AVX2.

    python benchmarks/machines.py [NAME ...] [--rounds 3] [--before COMMIT] [--photos 20]
    python benchmarks/machines.py demo tests --rounds 1          # the long ones, by name alone
    python benchmarks/machines.py --before COMMIT --native --cpu   # this code and an earlier one
    python benchmarks/machines.py starts                         # one photo, beside `import torch`

Each command runs in a process of its own, the ways in turns, and in folders of its own. A CPU with
AVX512 or AMX is held to AVX2 by the environment: oneDNN, ATen and MKL then take the kernels that
they take on a CPU without; not so with `--native`. `--before` also times an earlier commit, from a
copy of it. The table gives least / median / most seconds, and the median's ratio to this CPU's own.
`--cpu` and `starts` give CPU seconds, which other programs change little; `starts` has bytecode
cached, and also gives memory at most.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from alone import spread
from timing import Clock, KeyRatio

ROOT = Path(__file__).parent.parent
HELD = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
VISION_ATTN = (
    "-c",
    "import sys; from vision_attn.cli import script; sys.argv[0] = 'vision-attn'; "
    "sys.exit(script())",
)
VIT, SENET = "vision_attn:compact_vit_imagenette", "vision_attn:senet_imagenette"
PLANTED = "--data.source.train 6400 --trainer.max_epochs 1"
COMMANDS = {
    "start-up: --help": "--help",
    "start-up: explain --help": "explain --help",
    "explain, a ViT, {photos} photos": f"explain {VIT} {{folder}} --method Rollout -o out",
    "explain, a CNN, {photos} photos": f"explain {SENET} {{folder}} --method GradCAM -o out",
    "score, a ViT, 5 photos": f"score {VIT} {{folder}} --limit 5 --method Rollout -o out",
    "score, a CNN, 5 photos": f"score {SENET} {{folder}} --limit 5 --method GradCAM -o out",
    "fit: ViT, 6,400 drawn images": f"fit --config vit_planted {PLANTED}",
    "fit: SENet, 6,400 drawn images": f"fit --config senet_planted {PLANTED}",
    "fit: spatial CNN, 6,400 drawn images": f"fit --config spatial_cnn_planted {PLANTED}",
}
LONG = {
    "demo": "demo -o out",
    "gallery, a ViT, {photos} photos": f"explain {VIT} {{folder}} --method Rollout --page -o out",
}
STARTS = {
    "explain, the compact ViT": "explain vision_attn:compact_vit_imagenette {photo} -o out",
    "explain, the SENet": "explain vision_attn:senet_imagenette {photo} -o out",
    "explain --page, the compact ViT": "explain vision_attn:compact_vit_imagenette {photo} "
    "-o out --page",
    "inspect, the compact ViT": "inspect vision_attn:compact_vit_imagenette {photo} -o out",
    "live, the compact ViT": "live vision_attn:compact_vit_imagenette -o out",
}
TESTS = ("-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider")
LEFT_OUT = "not compiled and not slow"
CODE = "{code}"  # where the way's code lies


@dataclass(frozen=True)
class Way:
    """A machine, and the code that runs on it."""

    name: str
    code: Path
    held: bool

    def environment(self) -> dict[str, str]:
        """The process's: PYTHONPATH leads to the code."""
        return {**os.environ, "PYTHONPATH": str(self.code), **(HELD if self.held else {})}

    def seconds(self, words: Sequence[str], folder: Path, cpu: bool) -> float:
        """Run Python with these words in a folder. SystemExit, with its last lines, if it fails."""
        start, used = time.perf_counter(), cpu_seconds()
        done = subprocess.run(
            [sys.executable, *(word.replace(CODE, str(self.code)) for word in words)],
            cwd=folder,
            env=self.environment(),
            capture_output=True,
            text=True,
        )
        seconds = cpu_seconds() - used if cpu else time.perf_counter() - start
        if done.returncode:
            lines = (done.stdout + done.stderr).splitlines()[-8:]
            raise SystemExit("\n".join([f"{self.name}: {' '.join(words)} failed", *lines]))
        return seconds


def cpu_seconds() -> float:
    """Of the processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="commands, or parts of their names (all but long)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", metavar="COMMIT", help="time this commit too")
    parser.add_argument("--native", action="store_true", help="as this CPU is, not held to AVX2")
    parser.add_argument("--cpu", action="store_true", help="CPU seconds, not those of the clock")
    parser.add_argument("--photos", type=int, default=20)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="photos (the package's, again)")
    args = parser.parse_args()
    if args.names == ["starts"]:
        starts(args.rounds)
        return
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        ways = [way for way in ways_of(args.before, place) if not (args.native and way.held)]
        print(f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}\n")
        print(f"| command | {' | '.join(way.name for way in ways)} |")
        print(f"|---|{'---|' * len(ways)}")
        for name, words in chosen(args, photos_of(args.photos, place, args.data)).items():
            cells = measured(words, ways, args.rounds, place, args.cpu)
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


def starts(rounds: int) -> None:
    """CPU seconds and memory of commands for one photo, and of `import torch`, in turns."""
    from vision_attn.data import example_photos

    photo = next(iter(example_photos().values()))
    commands: dict[str, tuple[str, ...]] = {"import torch": ("-c", "import torch")}
    commands |= {n: (*VISION_ATTN, *w.format(photo=photo).split()) for n, w in STARTS.items()}
    used: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as bytecode:
        for turn in range(-1, rounds):  # the first one fills the caches
            for name, words in commands.items():
                cpu_and_memory = resources(words, bytecode)
                if turn >= 0:
                    used[name].append(cpu_and_memory)
    torch_seconds, torch_memory = zip(*used["import torch"], strict=True)
    print("| command | CPU seconds | beyond `import torch` | MB at most | beyond |")
    print("|---|---|---|---|---|")
    for name, turns in used.items():
        seconds, memory = zip(*turns, strict=True)
        more = [a - b for a, b in zip(seconds, torch_seconds, strict=True)]
        beyond = max(memory) - max(torch_memory)
        cells = f"{spread(list(seconds))} | {spread(more)} | {max(memory):.0f} | {beyond:.0f}"
        print(f"| {name} | {cells} |", flush=True)


def key_ratios(clock: Clock) -> Iterator[KeyRatio]:
    """The CPU seconds of a start: help beside Python's own, `explain` beside `import torch`."""
    from vision_attn.data import example_photos

    photo = next(iter(example_photos().values()))
    explain = STARTS["explain, the compact ViT"].format(photo=photo).split()
    with tempfile.TemporaryDirectory() as bytecode:

        def rate_of(*words: str) -> Callable[[], float]:
            return lambda: 1 / resources(words, bytecode)[0]

        python, torchs = rate_of("-c", "pass"), rate_of("-c", "import torch")
        yield clock.rates("vision-attn --help / python", rate_of(*VISION_ATTN, "--help"), python)
        command = rate_of(*VISION_ATTN, *explain)
        yield clock.rates("vision-attn explain / import torch", command, torchs)


# A process counts what its parent held when it was started as its own: a small one stands between.
MEASURED = """
import os, sys
child = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, *sys.argv[1:]])
_, status, usage = os.wait4(child, 0)
with open("usage", "w") as file:
    print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss, file=file)
raise SystemExit(os.waitstatus_to_exitcode(status) != 0)
"""


def resources(words: Sequence[str], bytecode: str) -> tuple[float, float]:
    """CPU seconds and MB at most of Python with these words, in a folder of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": bytecode}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        measured = [sys.executable, "-S", "-c", MEASURED, *words]
        done = subprocess.run(
            measured, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=False
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(words)} failed")
        seconds, kilobytes = map(float, (Path(folder) / "usage").read_text().split())
    return seconds, kilobytes / 1024


def ways_of(before: str | None, place: Path) -> list[Way]:
    """This code and, where asked for, an earlier one; each on both machines, if they differ."""
    codes = {"": ROOT}
    if before:
        codes["before: "] = place / "before"
        codes["before: "].mkdir()
        archive = subprocess.run(
            ["git", "archive", before], cwd=ROOT, capture_output=True, check=True
        )
        subprocess.run(["tar", "x"], cwd=codes["before: "], input=archive.stdout, check=True)
    machines = {"this CPU": False}
    if torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        machines["AVX2"] = True
    return [
        Way(f"{when}{machine}", code, held)
        for when, code in codes.items()
        for machine, held in machines.items()
    ]


def photos_of(count: int, place: Path, data: Path | None = None) -> Path:
    """A folder of photos of a folder, or of the package's, again and again under other names."""
    from vision_attn.data import example_photos

    folder = place / "photos"
    folder.mkdir()
    known = sorted(data.rglob("*.[jJ][pP]*[gG]")) if data else []
    known = known[:: max(1, len(known) // count)] or [*map(Path, example_photos().values())]
    for number in range(count):
        photo = known[number % len(known)]
        shutil.copy(photo, folder / f"{number:03}{photo.suffix}")
    return folder


def chosen(args: argparse.Namespace, folder: Path) -> dict[str, tuple[str, ...]]:
    """What to run, by name: words of Python's command line."""
    every = {
        name.format(photos=args.photos): (*VISION_ATTN, *words.format(folder=folder).split())
        for name, words in (COMMANDS | LONG).items()
    }
    every["tests"] = (*TESTS, "-m", LEFT_OUT, CODE + "/tests")
    if not args.names:
        return {name: every[name] for name in every if name not in (*LONG, "tests")}
    found = {n: w for n, w in every.items() if any(part in n for part in args.names)}
    if not found:
        raise SystemExit(f"no such command: expected parts of {', '.join(every)}")
    return found


def measured(
    words: Sequence[str], ways: Sequence[Way], rounds: int, place: Path, cpu: bool
) -> list[str]:
    """A cell a way: least / median / most seconds, and the median's ratio to the first way's."""
    seconds: dict[Way, list[float]] = {way: [] for way in ways}
    for turn in range(rounds):
        for way in ways if turn % 2 == 0 else reversed(ways):
            with tempfile.TemporaryDirectory(dir=place) as folder:
                seconds[way].append(way.seconds(words, Path(folder), cpu))
    first = statistics.median(seconds[ways[0]])
    return [
        f"{spread(times)} s, {statistics.median(times) / first:.2f}" for times in seconds.values()
    ]


if __name__ == "__main__":
    main()
