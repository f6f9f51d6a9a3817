"""Put small faults into attention, methods and evaluate, and count those that the tests find.

    python tests/release/mutants.py --count 300 --seed 0      (make mutants)
    python tests/release/mutants.py --only 17 203             (these again, and what pytest says)

The mutants of mutation.py are drawn from all that there are, and put into a copy of the package. One
process imports the package and the tests of a part, and notes which mutants each test reaches. Then
each mutant is tried in a fork of it, by the tests that reach it, until one fails. A mutant that acts
at import has a fork that has imported the libraries alone. The results are lines of results.jsonl in
--folder; the same command goes on where it was stopped.

killed: a test failed. survived: none did. timeout: it took ten times as long as without the mutant.
unreached: no test came by; it counts as survived.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any

import pytest
from mutation import Mutant, mutants_of, with_mutants

ROOT = Path(__file__).parents[2]
PARTS = ("attention", "methods", "evaluate")
COPIED = ("vision_attn", "tests", "configs", "pyproject.toml", "README.md", "CONTRIBUTING.md")
# This test also knows the defaults of arguments.
SIGNATURES = "tests/test_public_names.py::test_public_signatures_are_those_that_are_written_down"
SWITCH = """import os
active = int(os.environ.get("ACTIVE_MUTANT", -1))
reached = set()
reach = reached.update


def on(number):
    reached.add(number)
    return number == active
"""
MEMORY = 8 * 2**30  # of data: what a wrong size asks for
QUIET = ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # of what is imported before it
TIME_IS_UP = (signal.SIGXCPU, signal.SIGKILL)
LIBRARIES = (
    "torch",
    "torchvision",
    "timm",
    "cv2",
    "matplotlib.pyplot",
    "torchmetrics",
    "jaxtyping",
)


def prepared(folder: Path, count: int, seed: int) -> list[Mutant]:
    """Draw mutants and put them into a copy of the tree; later, bring only the tests up to date."""
    tree, kept = folder / "tree", folder / "mutants.json"
    if kept.exists():
        mutants = [Mutant(**fields) for fields in json.loads(kept.read_text())]
        shutil.copytree(ROOT / "tests", tree / "tests", dirs_exist_ok=True)
        return mutants
    tree.mkdir(parents=True)
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tree / name)
    every = []
    for part in PARTS:
        for path in sorted((tree / "vision_attn" / part).rglob("*.py")):
            every += mutants_of(path.relative_to(tree).as_posix(), path.read_text("utf-8"))
    print(f"{count} mutants of {len(every)}, seed {seed}", flush=True)
    mutants = random.Random(seed).sample(every, count)  # in random order: a part is a sample too
    numbers = {mutant: number for number, mutant in enumerate(mutants)}
    for file in {mutant.file for mutant in mutants}:
        path = tree / file
        path.write_text(with_mutants(file, path.read_text("utf-8"), numbers), "utf-8")
    (tree / "mutants_on.py").write_text(SWITCH)
    kept.write_text(json.dumps([asdict(mutant) for mutant in mutants]))
    return mutants


class Session:
    """Note what each test reaches, then try mutants by those that reach them; or try one alone."""

    def __init__(self, results: "Results", mutant: int | None = None) -> None:
        self.results, self.mutant = results, mutant
        self.killer: str | None = None

    @property
    def notes(self) -> dict[str, dict[str, Any]]:
        return self.results.notes

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if self.mutant is not None:
            self.run(session.items, self.mutant)
            return True
        unknown = [item for item in session.items if item.nodeid not in self.notes]
        if unknown and not self.results.only:
            apart(lambda: self.note(unknown))
            self.results.read()
        for mutant in self.results.missing(at_import=False):
            seconds = reaching_seconds(self.notes, mutant)
            self.results.fork(mutant, seconds, partial(self.run, session.items, mutant))
        return True

    def note(self, items: list[pytest.Item]) -> None:
        """Run each test; note how long it takes and which mutants it reaches."""
        import mutants_on

        for item, following in in_turn(items):
            mutants_on.reached.clear()
            self.killer, began = None, time.process_time()
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            seconds = time.process_time() - began
            reached = [] if self.killer else sorted(mutants_on.reached)
            note = {"test": item.nodeid, "seconds": round(seconds, 3), "reached": reached}
            add_line(self.results.noted, note)

    def run(self, items: list[pytest.Item], mutant: int) -> str | None:
        """Run the tests that reach a mutant, short files first, until one fails."""
        import mutants_on

        mutants_on.active = mutant
        os.environ["ACTIVE_MUTANT"] = str(mutant)  # for the processes that tests start
        new = {"seconds": 0.0 if self.results.only else inf, "reached": [mutant]}
        notes = {item.nodeid: self.notes.get(item.nodeid, new) for item in items}
        chosen = [item for item in items if mutant in notes[item.nodeid]["reached"]]
        files: Counter[str] = Counter()
        for item in chosen:
            files[str(item.path)] += notes[item.nodeid]["seconds"]
        chosen.sort(key=lambda item: (files[str(item.path)], str(item.path)))
        for item, following in in_turn(chosen):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.killer:
                break
        return self.killer

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.killer = self.killer or report.nodeid


def in_turn(items: list[pytest.Item]) -> zip[tuple[pytest.Item, pytest.Item | None]]:
    """Tests, each with the one that follows it."""
    return zip(items, [*items[1:], None][: len(items)], strict=True)


def reaching_seconds(notes: dict[str, dict[str, Any]], mutant: int) -> float:
    return sum(note["seconds"] for note in notes.values() if mutant in note["reached"])


class Results:
    """The lines of results.jsonl, and the forks that add to them."""

    def __init__(self, folder: Path, mutants: list[Mutant], part: str, args: argparse.Namespace):
        self.file, self.noted = folder / "results.jsonl", folder / "notes.jsonl"
        self.mutants, self.only = mutants, args.only
        self.own = [n for n, one in enumerate(mutants) if f"/{part}/" in one.file]
        self.tests = [test for test in args.tests if f"/{part}" in test] or [f"tests/{part}"]
        self.whole = not args.tests
        self.read()

    def read(self) -> None:
        self.lines = read_lines(self.file, "number")
        self.notes = read_lines(self.noted, "test")

    def missing(self, at_import: bool) -> list[int]:
        """Numbers without a line; mutants that no test reaches get theirs at once."""
        numbers = []
        for number in self.only or self.own:
            done = number in self.lines and not self.only
            if number not in self.own or done or self.mutants[number].at_import != at_import:
                continue
            if self.only or reaching_seconds(self.notes, number):
                numbers.append(number)
            elif self.whole:
                self.add(number, "unreached", None, 0)
        return numbers

    def add(self, number: int, result: str, killer: str | None, seconds: float) -> None:
        row = {"number": number, "mutant": str(self.mutants[number]), "result": result}
        row |= {"by": killer, "seconds": round(seconds, 1)}
        self.lines[number] = row
        add_line(self.file, row)
        print(json.dumps(row), file=sys.__stdout__, flush=True)

    def fork(self, number: int, seconds: float, tried: Callable[[], str | None]) -> None:
        """Try a mutant in a process of its own, within limits of time and memory."""
        began = time.monotonic()
        limit = int(10 * seconds) + 30
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            code = 1
            try:
                if not self.only:
                    silent = os.open(os.devnull, os.O_WRONLY)
                    os.dup2(silent, 1)
                    os.dup2(silent, 2)
                killer = tried()
                os.write(writing, (killer or "").encode())
                code = 0
            finally:
                os._exit(code)
        os.close(writing)
        ended, status = 0, 0
        while not ended and time.monotonic() - began < 6 * limit:
            time.sleep(0.02)
            ended, status = os.waitpid(child, os.WNOHANG)
        with suppress(ProcessLookupError):  # what a test started and left behind, too
            os.killpg(child, signal.SIGKILL)
        if not ended:
            os.waitpid(child, 0)
        with os.fdopen(reading, "rb") as pipe:
            killer = pipe.read().decode()
        if not ended or (os.WIFSIGNALED(status) and os.WTERMSIG(status) in TIME_IS_UP):
            result = "timeout"
        elif status:
            result, killer = "killed", f"crash, status {status}"
        else:
            result = "killed" if killer else "survived"
        self.add(number, result, killer, time.monotonic() - began)


def run_pytest(session: Session) -> str:
    """Run pytest over the tests of a part; return why it could not begin, if it could not."""
    words = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", *QUIET]
    marks = ["-m", "not slow and not compiled and not browser"]
    status = pytest.main([*words, *marks, *session.results.tests], plugins=[session])
    return "" if status in (0, 1, 5) else f"pytest, status {int(status)}"


def apart(job: Callable[[], object]) -> None:
    """Run a job in a fork, so that this process imports no more than libraries."""
    child = os.fork()
    if not child:
        code = 1
        try:
            job()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    if os.waitpid(child, 0)[1]:
        raise SystemExit("a part of the run failed: see above")


def add_line(file: Path, values: dict[str, Any]) -> None:
    with file.open("a", encoding="utf-8") as lines:
        print(json.dumps(values), file=lines)


def read_lines(file: Path, key: str) -> dict[Any, dict[str, Any]]:
    """The lines of a JSONL file by one of their values; the last of each."""
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    return {line[key]: line for line in map(json.loads, lines)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=ROOT / "outputs" / "mutants")
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--tests", nargs="*", default=[], help="these files alone, in tests/PART")
    parser.add_argument("--only", type=int, nargs="*", default=[], help="try these numbers again")
    args = parser.parse_args()
    folder = args.folder.resolve()
    mutants = prepared(folder, args.count, args.seed)
    os.chdir(folder / "tree")
    sys.path.insert(0, str(folder / "tree"))
    os.environ |= {"PYTHONPATH": str(folder / "tree"), "OMP_NUM_THREADS": "1"}
    import_module("torch")
    for part in args.parts:
        results = Results(folder, mutants, part, args)
        apart(partial(run_pytest, Session(results)))
        results.read()
        for number in results.missing(at_import=True):
            for library in LIBRARIES:
                import_module(library)
            session = Session(results, number)
            seconds = 15 + reaching_seconds(results.notes, number)
            results.fork(number, seconds, partial(run_alone, session))
    counts = Counter(row["result"] for row in results.lines.values())
    print(dict(counts), f"killed: {counts['killed'] / len(results.lines):.1%}", flush=True)


def run_alone(session: Session) -> str:
    """Try a mutant that acts at import, in a process that has not imported the package."""
    os.environ["ACTIVE_MUTANT"] = str(session.mutant)
    session.results.tests.append(SIGNATURES)
    return run_pytest(session) or session.killer or ""


if __name__ == "__main__":
    main()
