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
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path += [str(ROOT / "tests" / "explain"), str(ROOT / "tests" / "explain" / "every")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="networks of the dense table")
    parser.add_argument("--all", action="store_true", help="try every network")
    parser.add_argument("--write", action="store_true", help="write docs/coverage.md")
    parser.add_argument("--only", nargs="+", default=["*"], help="shell patterns of names")
    parser.add_argument("--limit-parameters", type=float, default=150, help="millions, as published")
    parser.add_argument("--results", type=Path, default=ROOT / "outputs" / "coverage.jsonl")
    parser.add_argument("--again", nargs="*", default=[], help="verdicts to try again, such as crash")
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
    import oracle  # noqa: F401

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
        print(f"{last.get('map'):8} {entry.name} {took:.0f} s {last.get('why', '')[:150]}", flush=True)


def stopped_by(status: int, words: argparse.Namespace) -> str:
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGALRM, signal.SIGXCPU):
        return f"took more than {words.seconds} seconds"
    return f"its process ended with status {status}"


def add(results: Path, entry, found: dict) -> None:
    line = {"name": entry.name, "source": entry.source, "family": entry.family, **found}
    with results.open("a") as file:
        file.write(json.dumps(line) + "\n")


def attempt(entry, words: argparse.Namespace) -> None:
    """Try one network in this process, and end it."""
    signal.alarm(20 * words.seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (words.seconds, words.seconds + 5))
    limit = int(words.gigabytes * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        begun = time.monotonic()
        found = tried(entry, words.limit_parameters)
        add(words.results, entry, {**found, "seconds": round(time.monotonic() - begun, 1)})
    except MemoryError:
        add(words.results, entry, {"map": "stopped", "why": f"more than {words.gigabytes} GB"})
    finally:
        sys.stdout.flush()
        os._exit(0)


def tried(entry, limit: float) -> dict:
    """Build a network and judge it."""
    import catalogue
    import torch
    from handwritten import Own
    from oracle import judge, off

    from vision_attn.explain import Rollout

    if entry.source == "timm":
        published = catalogue.parameters_of_timm(entry.name.removeprefix("timm:"))
        if published > limit * 1e6:
            return {"map": "left out", "why": f"{published / 1e6:.0f} million parameters"}
    torch.manual_seed(3)
    try:
        network, sizes = entry.build()
        network = network.eval()
        count = sum(x.numel() for x in network.parameters())
        if count > limit * 1e6:
            return {"map": "left out", "why": f"{count / 1e6:.0f} million parameters"}
        network = network.double()
    except Exception as error:
        absent = "does not support an attention implementation" in str(error)
        why = "has no such attention" if absent else f"{type(error).__name__}: {error}"[:300]
        return {"map": "left out" if absent else "not built", "why": why}
    for size in sizes:
        images = torch.randn(2, 3, *size, dtype=torch.float64)
        try:
            with torch.no_grad():
                out = network(images)
            assert getattr(out, "logits", out).ndim == 2
            break
        except Exception as error:
            why = f"{type(error).__name__}: {error}"[:300]
    else:
        return {"map": "not built", "why": f"it does not run: {why}"}
    found = judge(network, images)
    if isinstance(network, Own) and found.map == "right":
        error = off(Rollout()(network, images).values.double(), network.dense_rollout(images))
        if not error < 3e-6:
            found.map, found.why = "wrong", f"{error:.1e} off the weights of its own"
    return asdict(found) | {"parameters": count, "size": list(size)}


def write(results: Path) -> None:
    print(Counter(one["map"] for one in known(results).values()))


if __name__ == "__main__":
    main()
