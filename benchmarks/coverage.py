"""Every network there is, tried: its maps right, refused, wrong, or a crash.

    python benchmarks/coverage.py [NAME ...]
    python benchmarks/coverage.py --all [--only PATTERN ...] [--limit-parameters 150] [--jobs 2]
    python benchmarks/coverage.py --write

The first prints the table of tests/explain/test_dense.py: networks of few layers, all their maps
beside dense float64 matrices. `--all` tries each network of tests/explain/every/catalogue.py in a
process of its own, bound in time and memory, and appends a line of JSON to --results; networks that
are there already are left out, so that it goes on where it stopped. `--write` makes
docs/coverage.md's counts of these lines. With --probe nothing is compared: it says only of which
networks there is a map.
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
from collections.abc import Iterable
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path += [str(ROOT / "tests" / "explain"), str(ROOT / "tests" / "explain" / "every")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="networks of the dense table")
    parser.add_argument("--all", action="store_true", help="try every network")
    parser.add_argument("--probe", action="store_true", help="ask for a map, compare nothing")
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
        found = tried(entry, words.limit_parameters * 1e6, check=not words.probe)
        add(words.results, entry, {**found, "seconds": round(time.monotonic() - begun, 1)})
    except MemoryError:
        add(words.results, entry, {"map": "stopped", "why": f"more than {words.gigabytes} GB"})
    except Exception as error:
        add(words.results, entry, {"map": "crash", "why": f"{type(error).__name__}: {error}"})
    finally:
        sys.stdout.flush()
        os._exit(0)


def write(results: Path) -> None:
    """Put the counts, the share of the fixed list, and a line a family into docs/coverage.md."""
    tried = {name: one for name, one in known(results).items() if one["map"] in VERDICTS}
    lines = [*counted(list(tried.values())), "", *share(tried), "", *by_family(tried.values())]
    page = ROOT / "docs" / "coverage.md"
    before, start, rest = page.read_text().partition(START)
    _, end, after = rest.partition(END)
    assert start, f"{page} has no line {START!r}"
    assert end, f"{page} has no line {END!r}"
    page.write_text("\n".join([before + start, *lines, end + after]))
    print("\n".join(lines[:20]))


def counted(tried: list[dict]) -> list[str]:
    """Count what came of all networks that were tried, and say how many there are."""
    import catalogue

    count = Counter(one["map"] for one in tried)
    parts = sum(bool(one.get("part")) for one in tried)
    earlier = sum("date" not in one for one in tried)
    every = sum(1 for _ in catalogue.every())
    days = sorted({one.get("date", EARLIER) for one in tried})
    return [
        f"Tried from {days[0]} to {days[-1]}: {len(tried)} of the catalogue's {every} networks.",
        "",
        "| what came of it | networks |",
        "|---|---|",
        f"| the maps are right | {count['right']} |",
        f"| a map is made, but it was compared with nothing | {count['unchecked']} |",
        f"| of these two, a map of the last attention calls alone | {parts} |",
        f"| refused, with a reason | {count['refused']} |",
        f"| wrong | {count['wrong']} |",
        f"| crashed | {count['crash']} |",
        f"| stopped, as it took too much time or memory | {count['stopped']} |",
        f"| of all these, tried by an earlier version of the code that day | {earlier} |",
        f"| in the catalogue, not tried | {every - len(tried)} |",
    ]


def share(tried: dict[str, dict]) -> list[str]:
    """Count the token maps of the fixed list, and say why the others have none."""
    from attending import NETWORKS

    known = [tried[name] for name in NETWORKS if name in tried]
    mapped = [one for one in known if one["map"] in ("right", "unchecked")]
    whole = [one for one in mapped if not one.get("part")]
    lines = [
        f"Of {len(NETWORKS)} architectures whose blocks attend from token to token "
        f"(tests/explain/every/attending.py), {len(known)} were tried and {len(mapped)} have a "
        f"token map ({len(mapped) / max(1, len(known)):.0%}): {len(whole)} of all their attention "
        f"calls, {len(mapped) - len(whole)} of the last. The others:",
        "",
        "| architecture | why there is no token map |",
        "|---|---|",
    ]
    lines += [f"| {one['name']} | {told(one)} |" for one in known if one not in mapped]
    return lines + [f"| {name} | not tried |" for name in NETWORKS if name not in tried]


def by_family(tried: Iterable[dict]) -> list[str]:
    """Make a table with a line for each family."""
    families: dict[tuple[str, str], list[dict]] = {}
    for one in sorted(tried, key=lambda one: (SOURCES.index(one["source"]), one["family"])):
        families.setdefault((one["source"], one["family"]), []).append(one)
    lines = [
        "| family | tried | right | not compared | bad | GradCAM | the first without a map: why |",
        "|---|---|---|---|---|---|---|",
    ]
    for (source, family), members in families.items():
        count = Counter(one["map"] for one in members)
        bad = count["wrong"] + count["crash"] + count["stopped"]
        cams = sum(one.get("maps", {}).get("GradCAM") == "map" for one in members)
        without = [one for one in members if one["map"] not in ("right", "unchecked")]
        name = source if source == family else f"{source}: {family}"
        why = told(without[0]) if without else ""
        lines.append(
            f"| {name} | {len(members)} | {count['right']} | {count['unchecked']} | {bad} | {cams} "
            f"| {why} |"
        )
    return lines


def told(one: dict) -> str:
    """The reason of a line, for a table."""
    return one["why"].partition(" [softmaxes")[0].replace("|", "/")


EARLIER = "2026-11-25"  # of lines without a date
VERDICTS = ("right", "unchecked", "refused", "wrong", "crash", "stopped")
SOURCES = ["timm", "torchvision", "transformers", "vit-pytorch", "by hand"]
START, END = "<!-- the sweep -->", "<!-- the end of the sweep -->"

if __name__ == "__main__":
    main()
