"""Every network there is, tried: its maps right, refused, wrong, or a crash.

    python benchmarks/coverage.py [NAME ...]
    python benchmarks/coverage.py --all [--only PATTERN ...] [--limit-parameters 150] [--jobs 2]
    python benchmarks/coverage.py --write

The first prints the table of tests/explain/test_dense.py: networks of few layers, all their maps
beside dense float64 matrices. `--all` tries each network of tests/explain/every/catalogue.py in a
process of its own, bound in time and memory, and appends a line of JSON to --results; networks that
are there already are left out, so that it goes on where it stopped. `--write` makes
docs/coverage.md's counts of these lines.
"""

import argparse
import fnmatch
import json
import os
import resource
import signal
import sys
import time
from collections import Counter
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path += [str(ROOT / "tests" / "explain"), str(ROOT / "tests" / "explain" / "every")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="networks of the dense table")
    parser.add_argument("--all", action="store_true", help="try every network")
    parser.add_argument("--write", action="store_true", help="write docs/coverage.md")
    parser.add_argument("--only", nargs="+", default=["*"], help="shell patterns of names")
    parser.add_argument("--limit-parameters", type=float, default=150, help="millions")
    parser.add_argument("--results", type=Path, default=ROOT / "outputs" / "coverage.jsonl")
    parser.add_argument("--again", nargs="*", default=[], help="what to try again, such as crash")
    parser.add_argument("--seconds", type=int, default=240, help="of a core, for one network")
    parser.add_argument("--gigabytes", type=float, default=10, help="of memory, for one network")
    parser.add_argument("--jobs", type=int, default=1, help="networks at a time")
    parser.add_argument("--minutes", type=float, default=1e9, help="after which none is begun")
    words = parser.parse_args()
    if words.all:
        sweep(words)
    elif words.write:
        write(words.results)
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


def known(results: Path) -> dict[str, dict]:
    """Read the last line of each network."""
    lines = results.read_text().splitlines() if results.exists() else []
    return {one["name"]: one for one in map(json.loads, lines)}


def sweep(words: argparse.Namespace) -> None:
    """Try what is not known yet, a process each."""
    import torch

    torch.set_num_threads(1)
    import catalogue
    import oracle  # noqa: F401 - loaded once, for all processes

    words.results.parent.mkdir(parents=True, exist_ok=True)
    done = {name for name, one in known(words.results).items() if one["map"] not in words.again}
    asked = [
        entry
        for entry in catalogue.every()
        if any(fnmatch.fnmatch(entry.name, each) for each in words.only)
    ]
    todo = [entry for entry in catalogue.one_a_family_first(asked) if entry.name not in done]
    catalogue.load_libraries(todo)  # once, for all processes
    print(f"{len(todo)} to try, {len(done)} known", flush=True)
    end = time.monotonic() + 60 * words.minutes
    running: dict[int, tuple] = {}
    while todo or running:
        while todo and len(running) < words.jobs and time.monotonic() < end:
            entry = todo.pop(0)
            pid = os.fork()
            if not pid:
                attempt(entry, words)
            running[pid] = (entry, time.monotonic())
        if not running:
            break
        pid, status = os.waitpid(-1, 0)
        entry, begun = running.pop(pid)
        if status:
            add(words.results, entry, {"map": "stopped", "why": stopped_by(status, words)})
        last = known(words.results).get(entry.name, {})
        took = time.monotonic() - begun
        why = last.get("why", "")[:150]
        print(f"{last.get('map'):8} {entry.name} {took:.0f} s {why}", flush=True)


def stopped_by(status: int, words: argparse.Namespace) -> str:
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGALRM, signal.SIGXCPU):
        return f"took more than {words.seconds} seconds"
    return f"its process ended with status {status}"


def add(results: Path, entry, found: dict) -> None:
    line = {"name": entry.name, "source": entry.source, "family": entry.family, **found}
    line["date"] = date.today().isoformat()
    with results.open("a") as file:
        file.write(json.dumps(line) + "\n")


def attempt(entry, words: argparse.Namespace) -> None:
    """Try one network in this process, and end it."""
    signal.alarm(20 * words.seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (words.seconds, words.seconds + 5))
    limit = int(words.gigabytes * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        from oracle import tried

        begun = time.monotonic()
        found = tried(entry, words.limit_parameters * 1e6)
        add(words.results, entry, {**found, "seconds": round(time.monotonic() - begun, 1)})
    except MemoryError:
        add(words.results, entry, {"map": "stopped", "why": f"more than {words.gigabytes} GB"})
    except Exception as error:
        add(words.results, entry, {"map": "crash", "why": f"{type(error).__name__}: {error}"})
    finally:
        sys.stdout.flush()
        os._exit(0)


def write(results: Path) -> None:
    """Put the counts, and a line a family, into docs/coverage.md."""
    tried = [one for one in known(results).values() if one["map"] in VERDICTS]
    counts = Counter(one["map"] for one in tried)
    families: dict[tuple[str, str], list[dict]] = {}
    for one in sorted(tried, key=lambda one: (SOURCES.index(one["source"]), one["family"])):
        families.setdefault((one["source"], one["family"]), []).append(one)
    lines = [
        f"{len(tried)} networks of {len(families)} families were tried: the maps of "
        f"{counts['right']} are right, {counts['refused']} were refused, {counts['wrong']} are "
        f"wrong, {counts['crash']} crashed, {counts['stopped']} took too much time or memory.",
        "",
        "| family | tried | right | wrong, crashed | GradCAM | the first that is not right: why |",
        "|---|---|---|---|---|---|",
    ]
    for (source, family), members in families.items():
        right = sum(one["map"] == "right" for one in members)
        bad = sum(one["map"] not in ("right", "refused") for one in members)
        cams = sum(one.get("maps", {}).get("GradCAM") == "map" for one in members)
        reasons = [one["why"] for one in members if one["map"] != "right"]
        why = reasons[0].partition(" [softmaxes")[0].replace("|", "/") if reasons else ""
        name = source if source == family else f"{source}: {family}"
        lines.append(f"| {name} | {len(members)} | {right} | {bad} | {cams} | {why} |")
    page = ROOT / "docs" / "coverage.md"
    before, start, rest = page.read_text().partition(START)
    _, end, after = rest.partition(END)
    page.write_text("\n".join([before + start, *lines, end + after]))
    print(lines[0])


VERDICTS = ("right", "refused", "wrong", "crash", "stopped")
SOURCES = ["timm", "torchvision", "transformers", "vit-pytorch", "by hand"]
START, END = "<!-- the sweep -->", "<!-- the end of the sweep -->"

if __name__ == "__main__":
    main()
