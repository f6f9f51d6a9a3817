"""Damaged files by the thousand through the command line, each in a process of its own.

    python tests/fuzz/run.py --minutes 30        (make fuzz MINUTES=30)
    python tests/fuzz/run.py --replay outputs/fuzz/failures/NAME

What must hold for every case: it ends in time, with a documented exit status; no traceback and no
raw exception; at most a line on stderr for each damaged input, and one more; nothing written but
below its output folder; the good files beside the damaged ones are done. Case number i of a corpus
depends on the seed, the corpus and i alone. A run into the same folder goes on behind the last case
of the one before; --fresh begins again.
"""

import argparse
import gc
import hashlib
import importlib
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import cases
import seeds
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

GOOD = ("done", "partly", "refused")  # exit status 0, 1, 2, and all as it should be
HEADROOM = 4 << 30  # bytes of address space beyond those of an idle process


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit status, or minus its signal; `late` if it was stopped."""

    code: int
    late: bool
    out: str
    err: str


def in_child(work: Callable[[], int], place: Path, limit: float) -> Ended:
    """Do `work` in a forked process of its own session, in the folder place/work."""
    for name in ("work", "home", "tmp"):
        (place / name).mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            _settle(place)
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    end, late = time.monotonic() + limit, False
    try:
        while not (found := os.waitpid(pid, os.WNOHANG))[0]:
            if time.monotonic() > end and not late:
                late = True
                _kill(pid)
            time.sleep(0.003)
    except BaseException:
        _kill(pid)
        os.waitpid(pid, 0)
        raise
    _kill(pid)  # whatever it left running
    texts = [(place / f"std{name}").read_text(errors="replace") for name in ("out", "err")]
    return Ended(os.waitstatus_to_exitcode(found[1]), late, *texts)


def _settle(place: Path) -> None:
    """A session, standard streams, a home and limits of its own."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(place / f"std{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(place / "work")
    os.environ.update(HOME=str(place / "home"), TMPDIR=str(place / "tmp"))
    tempfile.tempdir = None
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + HEADROOM
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def files_below(folder: Path) -> dict[str, tuple[int, str]]:
    """Size and content hash of all that a case may not change: all but `out` and its own streams."""
    found = {}
    for place, inside, names in os.walk(folder):
        inside[:] = [name for name in inside if name not in ("out", "tmp")]
        for name in names:
            path = Path(place, name)
            if name not in ("stdout", "stderr") and path.is_file():
                digest = hashlib.sha1(path.read_bytes()).hexdigest()
                found[str(path.relative_to(folder))] = (path.stat().st_size, digest)
    return found


def judged(case: cases.Case, ended: Ended, changed: list[str]) -> tuple[str, str]:
    """The outcome in a word, and what there is to say of it."""
    lines = [line for line in ended.err.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    if ended.late:
        return "hang", last
    if ended.code < 0:
        return "crash", f"signal {-ended.code}: {last}"
    if "Traceback (most recent call last)" in ended.err:
        return "traceback", last
    if "--traceback shows where" in ended.err:
        return "raw exception", last
    if ended.code not in case.codes:
        return "exit status", f"{ended.code}, expected one of {case.codes}: {last}"
    if len(lines) > case.bad + 1:
        return "noise", f"{len(lines)} lines for {case.bad} inputs: {lines[0]}"
    if ended.code in (1, 2) and not lines:
        return "silence", f"exit status {ended.code} without a word"
    if changed:
        return "leak", f"wrote {', '.join(changed[:3])}"
    wrong = case.check(ended.code)
    if wrong:
        return "wrong", f"{wrong}: {last}"
    return {0: "done", 1: "partly", 2: "refused", 3: "partly"}[ended.code], last


class Fuzzer:
    """Cases from the seeds in `whole`, each in a folder of its own below `scratch`."""

    def __init__(self, seed: int, limit: float, scratch: Path, kept: Path) -> None:
        self.seed, self.limit, self.scratch, self.kept = seed, limit, scratch, kept
        self.whole = scratch / "seeds"
        setup = in_child(lambda: self._set_up() or 0, scratch / "setup", 300)
        if setup.code:
            raise RuntimeError(f"the seeds cannot be made:\n{setup.err}")
        for name in (scratch / "modules").read_text().split():
            if name.startswith("triton"):  # complains on stderr as it is unloaded
                continue
            with suppress(Exception):  # what a child loaded, so that each need not do it again
                importlib.import_module(name)
        gc.freeze()

    def _set_up(self) -> None:
        seeds.make(self.whole)
        (self.scratch / "modules").write_text("\n".join(sys.modules))

    def case(self, corpus: str, number: int) -> tuple[str, str]:
        """Run one case; the files of one that went wrong are kept."""
        place = self.scratch / "a" / "b" / "case"
        shutil.rmtree(place, ignore_errors=True)
        here = place / "files"
        here.mkdir(parents=True)
        draw = Random(f"{self.seed}/{corpus}/{number}")
        case = cases.CORPORA[corpus](draw, self.whole, here)
        before = files_below(self.scratch)
        shutil.copytree(here, place / "tmp" / "given")
        ended = in_child(case.run, place, self.limit)
        after = files_below(self.scratch)
        changed = sorted(name for name, what in after.items() if before.get(name) != what)
        changed += sorted(before.keys() - after.keys())
        outcome, text = judged(case, ended, changed)
        if outcome not in GOOD:
            self._keep(
                f"{corpus.replace(' ', '_')}-{self.seed}-{number}", case, ended, text, outcome
            )
        return outcome, text

    def _keep(self, name: str, case: cases.Case, ended: Ended, text: str, outcome: str) -> None:
        place = self.kept / name
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.scratch / "a" / "b" / "case" / "tmp" / "given", place / "files")
        about = {"outcome": outcome, "text": text, "words": case.words, "code": ended.code}
        about |= {"seed": self.seed, "stderr": ended.err[-4000:]}
        (place / "about.json").write_text(json.dumps(about, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (default: 1)")
    parser.add_argument("--cases", type=int, help="so many of each corpus instead")
    parser.add_argument("--corpus", action="append", choices=cases.CORPORA, help="only these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=60, help="seconds for a case (default: 60)")
    parser.add_argument("--output", type=Path, default=Path("outputs/fuzz"))
    parser.add_argument("--fresh", action="store_true", help="forget an earlier run")
    parser.add_argument("--replay", type=Path, metavar="FAILURE", help="run a kept case again")
    options = parser.parse_args()
    path = options.output / "summary.json"
    summary = {"minutes": 0.0, "seed": options.seed, "cases": {}, "failures": []}
    if path.is_file() and not options.fresh:
        earlier = json.loads(path.read_text())
        if earlier["seed"] == options.seed:
            summary = earlier
    options.output.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="fuzz") as scratch:
        fuzzer = Fuzzer(
            options.seed, options.limit, Path(scratch), options.output.resolve() / "failures"
        )
        if options.replay:
            corpus, _, number = options.replay.name.rsplit("-", 2)
            console.print(*fuzzer.case(corpus.replace("_", " "), int(number)), markup=False)
            return 0
        try:
            _rounds(fuzzer, options, summary, console)
        except KeyboardInterrupt:
            console.print("stopped; the same command goes on from here")
        finally:
            fresh = path.with_suffix(".new")
            fresh.write_text(json.dumps(summary, indent=1) + "\n")
            fresh.replace(path)
    failed = len(summary["failures"])
    total = sum(sum(counts.values()) for counts in summary["cases"].values())
    for corpus, counts in summary["cases"].items():
        console.print(f"{corpus:18}", *(f"{name} {n}" for name, n in sorted(counts.items())))
    console.print(f"{total} cases in {summary['minutes']:.1f} minutes, {failed} failed: {path}")
    return 1 if failed else 0


def _rounds(
    fuzzer: Fuzzer, options: argparse.Namespace, summary: dict[str, Any], console: Console
) -> None:
    """One case of each corpus after the other, until the time is up or the cases are done."""
    corpora = options.corpus or list(cases.CORPORA)
    start, before, turn = time.monotonic(), summary["minutes"], 0
    total = options.cases * len(corpora) if options.cases else options.minutes * 60
    columns = [TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("fuzz", total=total)
        while True:
            for corpus in corpora:
                elapsed = time.monotonic() - start
                if turn >= options.cases if options.cases else elapsed >= options.minutes * 60:
                    return
                counts = summary["cases"].setdefault(corpus, {})
                number = sum(counts.values())
                outcome, text = fuzzer.case(corpus, number)
                counts[outcome] = counts.get(outcome, 0) + 1
                if outcome not in GOOD:
                    line = re.sub(r"\S*/fuzz\w+/", "", text)
                    failure = {"corpus": corpus, "number": number, "outcome": outcome, "text": line}
                    summary["failures"].append(failure)
                    console.print(f"{outcome}: {corpus} {number}: {line}"[:400], markup=False)
                summary["minutes"] = before + (time.monotonic() - start) / 60
                done = progress.tasks[0].completed + 1 if options.cases else elapsed
                progress.update(bar, completed=done, description=f"{corpus} {number}")
            turn += 1


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # native libraries complain on stderr as they are unloaded
