"""The sweep over all networks: a process each, whose end of any kind is recorded."""

import argparse
import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))
import catalogue
import oracle

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(sys.platform != "linux", reason="its trials are forked on Linux alone"),
]

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "coverage.py"
SPEC = importlib.util.spec_from_file_location("the_sweep", SCRIPT)
assert SPEC is not None
assert SPEC.loader is not None
benchmark = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(benchmark)
FOUND = {
    "map": "right", "why": "", "part": "a convolution", "far": "a spot on patch", "maps": {"GradCAM": "map", "LeGrad": "empty"},
    "calls": 7,
}  # fmt: skip


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hungry() -> bytearray:
    return bytearray(2**33)


def busy() -> None:
    while True:
        pass


def broken() -> None:
    raise RuntimeError("no such thing")


def out_of_memory() -> dict[str, Any]:
    return FOUND | {
        "map": "crash",
        "why": "path crashed: DefaultCPUAllocator: can't allocate memory",
    }


TRIALS = {
    "by hand:killed": (killed, "stopped", "its process was killed, as the system does"),
    "by hand:leaves": (lambda: os._exit(7), "stopped", "its process ended with status 7"),
    "by hand:busy": (busy, "stopped", "took more than 1 seconds of a core"),
    "by hand:hungry": (hungry, "stopped", "needs more than 6 GB"),
    "by hand:out_of_memory": (out_of_memory, "stopped", "needs more than 6 GB"),
    "by hand:broken": (broken, "crash", "RuntimeError: no such thing"),
    "by hand:good": (lambda: FOUND, "right", None),
}


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    def tried(entry: Any, most: Any, check: Any) -> dict[Any, Any]:
        trial: Any = TRIALS[entry.name][0]
        return dict(trial())

    entries = {name: catalogue.Entry(name, "by hand", "by hand", None) for name in TRIALS}
    monkeypatch.setattr(oracle, "tried", tried)
    monkeypatch.setattr(benchmark, "entries", lambda: entries)
    return argparse.Namespace(
        results=tmp_path / "results.jsonl", details=tmp_path / "details.jsonl", only=["*"],
        again=[], seconds=1, gigabytes=6, jobs=2, minutes=10, limit_parameters=150, probe=False, shares=False,
    )  # fmt: skip


def test_a_trial_that_ends_in_any_way_leaves_a_line_and_the_sweep_goes_on(
    words: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark.sweep(words)
    found = benchmark.known(words.results)
    assert {name: one["map"] for name, one in found.items()} == {
        name: verdict for name, (_, verdict, _) in TRIALS.items()
    }
    for name, (_, _, why) in TRIALS.items():
        assert ("why" in found[name]) == (why is not None)
        assert found[name].get("why", "").startswith(why or "")
    good = found["by hand:good"]
    assert good.pop("date")
    assert good == {
        "name": "by hand:good", "family": "by hand", "map": "right", "part": True, "far": True,
        "cam": True, "commit": benchmark.commit(),
    }  # fmt: skip
    details = [json.loads(line) for line in words.details.read_text().splitlines()]
    assert next(one for one in details if one["name"] == "by hand:good")["maps"] == FOUND["maps"]

    lines = words.results.read_text()
    benchmark.sweep(words)
    assert words.results.read_text() == lines, "what is known is not tried again"
    words.again = ["crash"]
    benchmark.sweep(words)
    assert words.results.read_text().splitlines()[len(TRIALS) :] == [
        line for line in lines.splitlines() if "broken" in line
    ]
    words.again = ["older"]
    benchmark.sweep(words)
    assert len(words.results.read_text().splitlines()) == len(TRIALS) + 1
    monkeypatch.setattr(benchmark, "commit", lambda: "1234567")
    words.only = ["*good"]
    benchmark.sweep(words)
    assert benchmark.known(words.results)["by hand:good"]["commit"] == "1234567"


def test_the_page_counts_the_newest_line_of_each_network(
    words: argparse.Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "docs" / "coverage.md"
    page.parent.mkdir()
    page.write_text(f"before\n{benchmark.START}\nold\n{benchmark.END}\nafter\n")
    monkeypatch.setattr(benchmark, "commit", lambda: "1234567")
    day = {"family": "by hand", "date": "2031-02-03", "commit": "1234567"}
    lines = [
        {"name": "by hand:good", "map": "crash", "why": "of an | earlier", **day, "commit": "7654321"},
        {"name": "by hand:killed", "map": "right", "far": True, "cam": True, **day, "commit": "7654321"},
        {"name": "by hand:good", "map": "refused", "why": "it is | so", **day},
        {"name": "by hand:busy", "map": "left out", "why": "large", **day},
    ]  # fmt: skip
    words.results.write_text("".join(map(benchmark.as_line, lines)))
    monkeypatch.setattr(benchmark, "ROOT", tmp_path)
    benchmark.write(words.results)
    text = page.read_text()
    assert text.startswith(f"before\n{benchmark.START}\n")
    assert text.endswith(f"{benchmark.END}\nafter\n")
    assert "2 of the catalogue's 7 networks" in text
    for row in [
        "| the maps are right | 1 |",
        "| of the right ones, by the order of their rows and columns | 1 |",
        "By the order of their rows and columns: by hand:killed.",
        "| refused, with a reason | 1 |",
        "| crashed | 0 |",
        "| left out: too many parameters, or no such attention | 1 |",
        "| of all these, tried with an earlier commit than 1234567 | 1 |",
        "| in the catalogue, not tried | 4 |",
        "| by hand | 2 | 1 | 0 | 0 | 1 | it is / so |",
    ]:
        assert row in text
    assert list(benchmark.known(words.results)) == [
        "by hand:busy",
        "by hand:good",
        "by hand:killed",
    ]
    assert len(words.results.read_text().splitlines()) == 3


def test_the_page_says_of_how_many_networks_the_shares_add_up(
    words: argparse.Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "docs" / "coverage.md"
    page.parent.mkdir()
    page.write_text(f"before\n{benchmark.START_SHARES}\nold\n{benchmark.END_SHARES}\nafter\n")
    day = {"family": "by hand", "date": "2031-02-03", "commit": "1234567"}
    lines = [
        {"name": "by hand:good", "map": "gap", "gap": 0.5, "why": "exp", **day},
        {"name": "by hand:good", "map": "complete", "gap": 1e-17, **day},
        {"name": "by hand:killed", "map": "gap", "gap": 0.02, "why": "a | b", **day},
        {"name": "by hand:broken", "map": "refused", "gap": 1e-16, "why": "two branches", **day},
        {"name": "by hand:busy", "map": "left out", "why": "large", **day},
    ]
    words.results.write_text("".join(map(benchmark.as_line, lines)))
    monkeypatch.setattr(benchmark, "ROOT", tmp_path)
    benchmark.write_shares(words.results)
    text = page.read_text()
    assert "4 of the catalogue's 7 networks" in text
    assert "Of the 3 networks that give finite logits, 1 (33.3%) add up and have a map" in text
    for row in [
        "| the shares of pixels and constants are the logit, to 1e-10 | 1 |",
        "| by hand:broken | 1e-16 | two branches |",
        "| by hand:killed | 0.02 | a / b |",
    ]:
        assert row in text
    assert "by hand:good |" not in text
    assert len(words.results.read_text().splitlines()) == 4
