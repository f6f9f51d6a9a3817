"""The key ratios of all benchmarks, now and as they were kept: what has become worse?

    python benchmarks/bench.py [SCRIPT ...] [--keep]      `make bench`, `make bench KEEP=1`

A ratio is what ours costs / what it is held against costs, in turns in one process, in CPU seconds
of all threads and processes, on one thread: other programs change it little. Each script that is
listed in SCRIPTS gives its own (`key_ratios`). Printed are the kept ratio and the one now (least /
median / largest of the rounds), the change of the median, and a word: a ratio is worse where its
median is above all that was kept, by 3 % of the kept median at least, and better where it is as
far below. Ratios that another machine has kept are shown, and not judged. Exits with 1 if something
is worse, or could not be measured any more.

--keep writes what was measured to ratios.json, in the place of this machine's earlier ones, with
the date, the commit, torch's version and the load of the machine when the script began.
"""

import argparse
import importlib
import json
import logging
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from timing import Clock, KeyRatio, cpu_seconds

HERE = Path(__file__).parent
FILE = HERE / "ratios.json"
SLACK = 0.03  # of a median, by which runs of one commit differ
SCRIPTS = (
    *("rollout", "libra", "attention", "training", "fit"),
    *("loading", "data", "store", "scores", "saving", "machines"),
)


@dataclass(frozen=True)
class Kept:
    """A ratio with its spread, and where and when it was measured."""

    script: str
    what: str
    least: float
    median: float
    largest: float
    machine: str
    date: str
    commit: str
    torch: str
    load: float

    @property
    def spread(self) -> str:
        return " / ".join(f"{value:.3g}" for value in (self.least, self.median, self.largest))


@dataclass(frozen=True)
class Line:
    """A row of the table. Of kept and now, one may be missing."""

    kept: Kept | None
    now: Kept | None

    @property
    def judged(self) -> bool:
        return bool(self.kept and self.now and self.kept.machine == self.now.machine)

    @property
    def verdict(self) -> str:
        """In words: what the ratio is now beside the kept one."""
        if not self.now:
            return "not measured"
        if not self.kept:
            return "new"
        if not self.judged:
            return f"not judged: kept on {self.kept.machine}"
        median, kept = self.now.median, self.kept
        if median > max(kept.largest, kept.median * (1 + SLACK)):
            return f"worse: {median:.3g}, at most {kept.largest:.3g} was kept"
        return "better" if median < min(kept.least, kept.median * (1 - SLACK)) else "as before"

    @property
    def fails(self) -> bool:
        return self.verdict.startswith(("worse", "not measured"))

    def cells(self) -> str:
        either, change = self.now or self.kept, ""
        assert either is not None
        if self.judged and self.now and self.kept:
            change = f"{self.now.median / self.kept.median - 1:+.0%}"
        spreads = [row.spread if row else "" for row in (self.kept, self.now)]
        return f"| {either.what} | {' | '.join(spreads)} | {change} | {self.verdict} |"


def compare(kept: Sequence[Kept], now: Sequence[Kept], scripts: Sequence[str]) -> list[Line]:
    """Pair what was kept with what was measured, that of the same machine first.

    What this machine kept and what was not measured now comes last, if its script was to run.
    """
    lines, machine = [], now[0].machine if now else this_machine()
    for row in now:
        candidates = [other for other in kept if other.what == row.what]
        candidates.sort(key=lambda other: other.machine != machine)
        lines.append(Line(candidates[0] if candidates else None, row))
    measured = {row.what for row in now}
    missing = (row for row in kept if row.script in scripts and row.what not in measured)
    return lines + [Line(row, None) for row in missing if row.machine == machine]


def merged(kept: Sequence[Kept], now: Sequence[Kept], scripts: Sequence[str]) -> list[Kept]:
    """Put this machine's ratios of these scripts in the place of its earlier ones."""
    machine = now[0].machine if now else this_machine()
    others = [row for row in kept if row.machine != machine or row.script not in scripts]
    order = {name: number for number, name in enumerate(SCRIPTS)}
    return sorted([*others, *now], key=lambda row: (row.machine, order.get(row.script, 99)))


def read(path: Path) -> list[Kept]:
    """Read what was kept; nothing where there is no file."""
    return [Kept(**row) for row in json.loads(path.read_text())] if path.exists() else []


def write(path: Path, rows: Sequence[Kept]) -> None:
    """A line a ratio, so that a change of one is a change of one line."""
    lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
    path.write_text(f"[\n{lines}\n]\n")


def this_machine() -> str:
    """The CPU, its cores and the instructions that torch takes."""
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{names[0] if names else 'unknown CPU'}, {os.cpu_count()} cores, {capability}"


def this_commit() -> str:
    """The commit that is measured, with a + if files of it were changed."""
    words = ["git", "-C", str(HERE), "describe", "--always", "--exclude", "*", "--dirty=+"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def measure(script: str, clock: Clock) -> Iterator[KeyRatio]:
    """What a script says in words goes to stderr: stdout has the table. Lightning says nothing."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with redirect_stdout(sys.stderr):
        yield from importlib.import_module(script).key_ratios(clock)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help=f"of {', '.join(SCRIPTS)}")
    parser.add_argument("--keep", action="store_true", help="write ratios.json")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=8.0, help="for a ratio, about (8)")
    args = parser.parse_args()
    args.device, scripts = "cpu", args.scripts or SCRIPTS
    if unknown := set(scripts) - set(SCRIPTS):
        parser.error(f"expected scripts of {', '.join(SCRIPTS)}, got {', '.join(sorted(unknown))}")
    import torch

    torch.set_num_threads(1)
    clock, machine = Clock(args, now=cpu_seconds), this_machine()
    date, commit = f"{datetime.now(UTC):%Y-%m-%d}", this_commit()
    measured, left_out = list[Kept](), list[str]()
    for script in scripts:
        load, start = os.getloadavg()[0], cpu_seconds()
        torch.manual_seed(0)
        try:
            for ratio in measure(script, clock):
                values = ratio.values
                spread = (rounded(of(values)) for of in (min, statistics.median, max))
                least, middle, most = spread
                about = machine, date, commit, torch.__version__, round(load, 1)
                measured.append(Kept(script, ratio.what, least, middle, most, *about))
                print(f"{ratio.what}: {measured[-1].spread}", file=sys.stderr, flush=True)
        except ImportError as error:
            left_out.append(f"{script} was left out: {error}")
        print(f"  {script}: {cpu_seconds() - start:.0f} CPU s", file=sys.stderr, flush=True)
    kept = read(FILE)
    lines = compare(kept, measured, scripts)
    print(f"{machine}, torch {torch.__version__}, CPU seconds of one thread, ours / theirs\n")
    print("| ratio | kept: least / median / largest | now | change | verdict |")
    print("|---|---|---|---|---|")
    print("\n".join([*(line.cells() for line in lines), *left_out]))
    if args.keep:
        write(FILE, merged(kept, measured, scripts))
    elif any(line.fails for line in lines):
        sys.exit("\nworse than kept, or not measured: see above")


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


if __name__ == "__main__":
    main()
