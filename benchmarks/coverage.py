"""Every network there is, tried: its maps right, refused, wrong, or a crash.

    python benchmarks/coverage.py [NAME ...]
    python benchmarks/coverage.py --all [--only PATTERN ...] [--limit-parameters 150] [--jobs 2]
    python benchmarks/coverage.py --shares [--only PATTERN ...] [--limit-parameters 150]
    python benchmarks/coverage.py [--shares] --write

The first prints the table of tests/methods/test_dense.py: networks of few layers, all their maps
beside dense float64 matrices. `--all` tries each network of tests/methods/every/catalogue.py in a
process of its own, bound in time and memory, and appends a line of JSON to --results; networks that
are there already are left out, so that it goes on where it stopped. First come the architectures of
attending.py, then one network of each family, then the others. All that was found of a network,
method by method, goes to --details. `--again older` tries again what an earlier commit was tried
with. `--write` keeps the newest line of each network in --results, and makes docs/coverage.md's
counts of these lines. With --probe nothing is compared: it says only of which networks there is a
map.

`--shares` goes through the same networks in the same way. It asks of each whether the shares of its
pixels and additive constants add up to its logit under the rules of LibraGradient
(tests/methods/every/shares.py). Its lines are in docs/shares.jsonl, of which `--shares --write`
makes a table on the same page.

On Linux a trial is forked from this process, which has imported everything; elsewhere each trial
imports for itself, and nothing bounds its memory.
"""

import argparse
import fnmatch
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from datetime import date
from functools import cache
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.context import ForkContext, ForkProcess, SpawnContext, SpawnProcess

    from tests.methods.every.catalogue import Entry

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported: no threads before a fork

ROOT = Path(__file__).parent.parent
RESULTS, SHARES = ROOT / "docs" / "coverage.jsonl", ROOT / "docs" / "shares.jsonl"
Line = dict[str, Any]  # of RESULTS or SHARES
sys.path += [str(ROOT / "tests" / "methods"), str(ROOT / "tests" / "methods" / "every")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="networks of the dense table")
    parser.add_argument("--all", action="store_true", help="try every network")
    parser.add_argument("--shares", action="store_true", help="add up every network's shares")
    parser.add_argument("--probe", action="store_true", help="ask for a map, compare nothing")
    parser.add_argument("--write", action="store_true", help="write docs/coverage.md")
    parser.add_argument("--only", nargs="+", default=["*"], help="shell patterns of names")
    parser.add_argument("--limit-parameters", type=float, default=150, help="millions")
    parser.add_argument("--results", type=Path, help="docs/coverage.jsonl, docs/shares.jsonl")
    parser.add_argument("--details", type=Path, default=ROOT / "outputs" / "coverage.jsonl")
    parser.add_argument(
        "--again", nargs="*", default=[], help="what to try again, such as crash, or older"
    )
    parser.add_argument("--seconds", type=int, default=240, help="of a core, for one network")
    parser.add_argument("--gigabytes", type=float, default=10, help="of memory, for one network")
    parser.add_argument("--jobs", type=int, default=1, help="networks at a time")
    parser.add_argument("--minutes", type=float, default=1e9, help="after which none is begun")
    words = parser.parse_args()
    words.results = words.results or (SHARES if words.shares else RESULTS)
    if words.write:
        (write_shares if words.shares else write)(words.results)
    elif words.all or words.shares:
        sweep(words)
    else:
        dense(words.names)


def dense(names: list[str]) -> None:
    """Print the table of networks whose maps are all compared with dense matrices."""
    import pytest
    import test_dense

    if unknown := set(names) - set(test_dense.NETWORKS):
        sys.exit(f"unknown {sorted(unknown)}: expected some of {', '.join(test_dense.NETWORKS)}")
    print("| network | calls captured / expected | error, float64 | error, float32 | sum of r |")
    print("|---|---|---|---|---|")
    for name in names or test_dense.NETWORKS:
        found = test_dense.compared(name, pytest.MonkeyPatch())
        print(
            f"| {name} | {found.captured} / {found.expected} | {found.error64:.0e} | "
            f"{found.error32:.0e} | {found.total:.7f} |",
            flush=True,
        )


def known(results: Path) -> dict[str, Line]:
    """Read the last line of each network."""
    lines = results.read_text().splitlines() if results.exists() else []
    return {one["name"]: one for one in map(json.loads, lines)}


@cache
def commit() -> str:
    """Name the last commit that changed the package; with a + where it has changed since."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words, "--", "vision_attn"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    try:
        return git("log", "-1", "--format=%h", "--abbrev=7") + "+" * bool(git("diff", "HEAD"))
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


@cache
def entries() -> dict[str, "Entry"]:
    """List the networks of the catalogue by name, in the order to try them."""
    import attending
    import catalogue

    listed = catalogue.one_a_family_first(catalogue.every())
    listed.sort(key=lambda entry: entry.name not in attending.NETWORKS)
    return {entry.name: entry for entry in listed}


def sweep(words: argparse.Namespace) -> None:
    """Try what is not known yet, a process each."""
    before = known(words.results)
    todo = [
        name
        for name in entries()
        if any(fnmatch.fnmatch(name, each) for each in words.only)
        and (name not in before or to_try_again(before[name], words.again))
    ]
    todo.sort(key=lambda name: name in before)
    fork = sys.platform == "linux"
    if fork:
        import_once(todo)
    context: ForkContext | SpawnContext = (
        multiprocessing.get_context("fork") if fork else multiprocessing.get_context("spawn")
    )
    for path in (words.results, words.details):
        path.parent.mkdir(parents=True, exist_ok=True)
    words.commit = commit()  # of the code as it is imported here
    print(f"{len(todo)} to try, {len(before)} known, commit {words.commit}", flush=True)
    end = time.monotonic() + 60 * words.minutes
    running: dict[int, tuple[ForkProcess | SpawnProcess, str, float]] = {}
    while todo or running:
        while todo and len(running) < words.jobs and time.monotonic() < end:
            name = todo.pop(0)
            process = context.Process(target=attempt, args=(name, words), daemon=True)
            process.start()
            running[process.sentinel] = (process, name, time.monotonic())
        if not running:
            break
        ended = wait(list(running), timeout=10)
        for sentinel, (process, name, begun) in list(running.items()):
            took = time.monotonic() - begun
            late = took > wall_clock(words)
            if late:
                process.kill()
            elif sentinel not in ended:
                continue
            process.join()
            del running[sentinel]
            if process.exitcode:
                why = stopped_by(process.exitcode, late, words)
                add(words, entries()[name], {"map": "stopped", "why": why})
            last = known(words.results).get(name, {})
            why = last.get("why", "")[:150]
            print(f"{last.get('map'):8} {name} {took:.0f} s {why}", flush=True)


def to_try_again(line: Line, again: list[str]) -> bool:
    return line["map"] in again or ("older" in again and line.get("commit") != commit())


def import_once(names: Iterable[str]) -> None:
    """Import what trials need, for all of them."""
    import catalogue
    import shares  # noqa: F401
    import torch

    torch.set_num_threads(1)
    catalogue.load_libraries(entries()[name] for name in names)


def wall_clock(words: argparse.Namespace) -> int:
    """How many seconds of the clock a trial may take, on a machine that others use too."""
    seconds: int = words.seconds
    return max(600, 20 * seconds)


def stopped_by(exitcode: int, late: bool, words: argparse.Namespace) -> str:
    """Say why a trial ended without a line of its own."""
    if late:
        return f"took more than {wall_clock(words)} seconds of the clock"
    if exitcode > 0:
        return f"its process ended with status {exitcode}"
    killed = signal.Signals(-exitcode)
    if killed.name == "SIGXCPU":
        return f"took more than {words.seconds} seconds of a core"
    if killed.name == "SIGKILL":
        return "its process was killed, as the system does where memory is short"
    return f"its process ended by {killed.name}"


def add(words: argparse.Namespace, entry: "Entry", found: Line) -> None:
    """Append what was found: in short to the results, in full to the details."""
    when = {"date": date.today().isoformat(), "commit": words.commit}
    line = {"name": entry.name, "family": entry.family, "map": found["map"]}
    line |= {"gap": float(f"{found['gap']:.1e}")} if "gap" in found else {}
    line |= {"why": shortened(found["why"])} if found.get("why") else {}
    line |= {"part": True} if found.get("part") else {}
    line |= {"far": True} if found.get("far") else {}
    line |= {"cam": True} if found.get("maps", {}).get("GradCAM") == "map" else {}
    line |= {"formulas": by_method(found["formulas"])} if found.get("formulas") else {}
    with words.results.open("a") as file:
        file.write(as_line(line | when))
    with words.details.open("a") as file:
        file.write(as_line({"name": entry.name, **found, **when}))


def by_method(errors: dict[str, float | None]) -> dict[str, float]:
    """The worst error of each method beside its dense formula, by the method's class."""
    worst: dict[str, float] = {}
    for method, error in errors.items():
        if error is not None:
            name = method.partition("(")[0]
            worst[name] = max(worst.get(name, 0), float(f"{error:.1e}"))
    return worst


def as_line(values: Line) -> str:
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False) + "\n"


def shortened(why: str) -> str:
    """Shorten a reason to what the page shows."""
    why = why.partition(" [softmaxes")[0]
    return why if len(why) <= LONGEST else why[: LONGEST - 4] + " ..."


def attempt(name: str, words: argparse.Namespace) -> None:
    """Try one network, in a process of its own."""
    bound(words)
    entry = entries()[name]
    try:
        begun = time.process_time()
        found = trial(entry, words)
        found["seconds"] = round(time.process_time() - begun, 1)  # of a core
    except MemoryError:
        found = {"map": "stopped", "why": "std::bad_alloc"}
    except Exception as error:
        found = {"map": "crash", "why": f"{type(error).__name__}: {error}"}
    if any(sign in found["why"] for sign in OUT_OF_MEMORY):
        found |= {"map": "stopped", "why": f"needs more than {words.gigabytes:g} GB"}
    add(words, entry, found)


def trial(entry: "Entry", words: argparse.Namespace) -> Line:
    """Try one network, in whichever way is asked for."""
    if words.shares:
        from shares import shared_out

        found: Line = shared_out(entry, words.limit_parameters * 1e6)
        return found
    from oracle import tried

    found = tried(entry, words.limit_parameters * 1e6, check=not words.probe)
    return found


def bound(words: argparse.Namespace) -> None:
    """Bound this process in time and memory; where memory is short it is the first to go."""
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (words.seconds, words.seconds + 5))
    with suppress(ValueError, OSError):
        limit = int(words.gigabytes * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def write(results: Path) -> None:
    """Tidy the results, and put counts, the share of the fixed list, and families on the page."""
    lines_of = tidied(results)
    tried = {name: one for name, one in lines_of.items() if one["map"] in VERDICTS}
    put([*counted(lines_of), "", *share(tried), "", *by_family(tried.values())], START, END)


def write_shares(results: Path) -> None:
    """Tidy the results, and put on the page of how many networks the shares add up."""
    lines_of = tidied(results)
    found = {name: one for name, one in lines_of.items() if name in entries()}
    count = Counter(one["map"] for one in found.values())
    judged = {name: one for name, one in found.items() if one["map"] not in NOT_JUDGED}
    whole = count["complete"]
    days = sorted({one["date"] for one in found.values()}) or ["never"]
    period = f"from {days[0]} to {days[-1]}" if len(days) > 1 else f"on {days[0]}"
    others = [one for _, one in sorted(judged.items()) if one["map"] != "complete"]
    lines = [
        f"Tried {period}: {len(found)} of the catalogue's {len(entries())} networks.",
        "",
        "| what came of it | networks |",
        "|---|---|",
        f"| the shares of pixels and constants are the logit, to 1e-10 | {whole} |",
        f"| they are not | {count['gap']} |",
        f"| LibraGradient makes no map | {count['refused']} |",
        f"| crashed, or stopped | {count['crash'] + count['stopped']} |",
        f"| left out: too many parameters | {count['left out']} |",
        f"| cannot be built, or gives no finite logits | {count['not built']} |",
        "",
        f"Of the {len(judged)} networks that give finite logits, {whole} "
        f"({whole / max(1, len(judged)):.1%}) add up and have a map. The others:",
        "",
        "| network | gap | why |",
        "|---|---|---|",
        *(f"| {one['name']} | {one.get('gap', '')} | {cell(one)} |" for one in others),
    ]
    put(lines, START_SHARES, END_SHARES)


def tidied(results: Path) -> dict[str, Line]:
    """Keep the newest line of each network, sorted; return them by name."""
    lines_of = known(results)
    results.write_text("".join(as_line(lines_of[name]) for name in sorted(lines_of)))
    return lines_of


def put(lines: list[str], first: str, last: str) -> None:
    """Put lines on the page, between two that stay."""
    page = ROOT / "docs" / "coverage.md"
    before, start, rest = page.read_text().partition(first)
    _, end, after = rest.partition(last)
    assert start, f"{page} has no line {first!r}"
    assert end, f"{page} has no line {last!r}"
    page.write_text("\n".join([before + start, *lines, end + after]))
    print("\n".join(lines[:20]))


def counted(lines_of: dict[str, Line]) -> list[str]:
    """Count what came of all networks, and say how many there are."""
    found = [one for name, one in lines_of.items() if name in entries()]
    count = Counter(one["map"] for one in found)
    parts = sum("part" in one for one in found)
    far = [one["name"] for one in found if "far" in one and one["map"] == "right"]
    older = sum(one["commit"] != commit() for one in found)
    tried = sum(count[verdict] for verdict in VERDICTS)
    days = sorted({one["date"] for one in found}) or ["never"]
    period = f"from {days[0]} to {days[-1]}" if len(days) > 1 else f"on {days[0]}"
    every = len(entries())
    return [
        f"Tried {period}: {tried} of the catalogue's {every} networks.",
        "",
        "| what came of it | networks |",
        "|---|---|",
        f"| the maps are right | {count['right']} |",
        f"| a map is made, but it was compared with nothing | {count['unchecked']} |",
        f"| of these two, a map of the last attention calls alone | {parts} |",
        f"| of the right ones, by the order of their rows and columns | {len(far)} |",
        f"| refused, with a reason | {count['refused']} |",
        f"| wrong | {count['wrong']} |",
        f"| crashed | {count['crash']} |",
        f"| stopped, as it took too much time or memory | {count['stopped']} |",
        f"| left out: too many parameters, or no such attention | {count['left out']} |",
        f"| cannot be built or run by its library as it is | {count['not built']} |",
        f"| of all these, tried with an earlier commit than {commit()} | {older} |",
        f"| in the catalogue, not tried | {every - len(found)} |",
        *(
            ["", f"By the order of their rows and columns: {', '.join(sorted(far))}."]
            if far
            else []
        ),
        "",
        *formulas_table(found),
    ]


def formulas_table(found: list[Line]) -> list[str]:
    """Make a table of the methods that were compared with dense formulas, a line each."""
    compared = [one for one in found if one.get("formulas")]
    families = {(source_of(one), one["family"]) for one in compared}
    lines = [
        f"The maps of these methods were computed once more, as dense matrices in float64, from "
        f"weights that no recorder kept, for {len(compared)} networks of {len(families)} families. "
        "Methods and layers that do not fit a network are left out there:",
        "",
        "| method | networks | families | largest error, as a share of the map's maximum |",
        "|---|---|---|---|",
    ]
    methods = sorted({name for one in compared for name in one["formulas"]})
    for name in methods:
        having = [one for one in compared if name in one["formulas"]]
        within = {(source_of(one), one["family"]) for one in having}
        worst = max(one["formulas"][name] for one in having)
        lines.append(f"| {name} | {len(having)} | {len(within)} | {worst:.0e} |")
    return lines


def share(tried: dict[str, Line]) -> list[str]:
    """Count the token maps of the fixed list, and say why the others have none."""
    from attending import NETWORKS

    known = [tried[name] for name in NETWORKS if name in tried]
    mapped = [one for one in known if one["map"] in ("right", "unchecked")]
    whole = [one for one in mapped if "part" not in one]
    lines = [
        f"Of {len(NETWORKS)} architectures whose blocks attend from token to token "
        f"(tests/methods/every/attending.py), {len(known)} were tried and {len(mapped)} have a "
        f"token map ({len(mapped) / max(1, len(known)):.0%}): {len(whole)} of all their attention "
        f"calls, {len(mapped) - len(whole)} of the last. The others:",
        "",
        "| architecture | why there is no token map |",
        "|---|---|",
    ]
    lines += [f"| {one['name']} | {cell(one)} |" for one in known if one not in mapped]
    others = [name for name in NETWORKS if name not in tried]
    return lines + (["", f"Not tried: {', '.join(others)}."] if others else [])


def by_family(tried: Iterable[Line]) -> list[str]:
    """Make a table with a line for each family."""
    families: dict[tuple[str, str], list[Line]] = {}
    for one in sorted(tried, key=lambda one: (SOURCES.index(source_of(one)), one["family"])):
        families.setdefault((source_of(one), one["family"]), []).append(one)
    lines = [
        "| family | tried | right | not compared | bad | GradCAM | the first without a map: why |",
        "|---|---|---|---|---|---|---|",
    ]
    for (source, family), members in families.items():
        count = Counter(one["map"] for one in members)
        bad = count["wrong"] + count["crash"] + count["stopped"]
        cams = sum("cam" in one for one in members)
        without = [one for one in members if one["map"] not in ("right", "unchecked")]
        name = source if source == family else f"{source}: {family}"
        why = cell(without[0]) if without else ""
        lines.append(
            f"| {name} | {len(members)} | {count['right']} | {count['unchecked']} | {bad} | {cams} "
            f"| {why} |"
        )
    return lines


def source_of(line: Line) -> str:
    name: str = line["name"]
    return name.partition(":")[0]


def cell(line: Line) -> str:
    """The reason of a line, for a table."""
    why: str = line["why"]
    return why.replace("|", "/")


LONGEST = 320  # letters of a reason
OUT_OF_MEMORY = ("can't allocate memory", "std::bad_alloc", "MemoryError")
VERDICTS = ("right", "unchecked", "refused", "wrong", "crash", "stopped")
SOURCES = ["timm", "torchvision", "transformers", "vit-pytorch", "by hand"]
NOT_JUDGED = ("left out", "not built")
START, END = "<!-- the sweep -->", "<!-- the end of the sweep -->"
START_SHARES, END_SHARES = "<!-- the shares -->", "<!-- the end of the shares -->"

if __name__ == "__main__":
    main()
