"""Kept ratios of benchmarks: which are worse, better, another machine's, new or gone."""

import importlib
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("bench")
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def row(bench: ModuleType) -> Any:
    return bench.Kept(
        "rollout", "Rollout / forward", 0.97, 1.0, 1.07, "here", "2026-11-23", "abc", "2.15", 0.3
    )


@pytest.mark.parametrize(
    ("median", "verdict"),
    [
        (1.0701, "worse: 1.07, at most 1.07 was kept"),
        (1.0699, "as before"),
        (0.9701, "as before"),
        (0.9699, "better"),
    ],
)
def test_a_median_beyond_the_kept_spread_is_worse_or_better(
    bench: ModuleType, row: Any, median: float, verdict: str
) -> None:
    line = bench.Line(row, replace(row, median=median))
    assert line.verdict == verdict
    assert line.fails == verdict.startswith("worse")


def test_a_narrow_spread_leaves_runs_three_percent(bench: ModuleType, row: Any) -> None:
    narrow = replace(row, least=0.999, largest=1.001)
    verdicts = [
        bench.Line(narrow, replace(row, median=m)).verdict for m in (0.969, 0.971, 1.029, 1.031)
    ]
    assert verdicts == ["better", "as before", "as before", "worse: 1.03, at most 1 was kept"]


def test_another_machines_ratio_is_shown_and_not_judged(bench: ModuleType, row: Any) -> None:
    (line,) = bench.compare([row], [replace(row, median=9.0, machine="there")], ["rollout"])
    assert not line.fails
    assert line.verdict == "not judged: kept on here"
    assert row.spread in line.cells()
    assert "800%" not in line.cells()


def test_the_same_machines_ratio_is_preferred(bench: ModuleType, row: Any) -> None:
    kept = [replace(row, machine="there", largest=99.0), row]
    (line,) = bench.compare(kept, [replace(row, median=2.0)], ["rollout"])
    assert line.fails
    assert "+100%" in line.cells()


def test_new_and_missing_ratios_are_named(bench: ModuleType, row: Any) -> None:
    unmeasured = replace(row, what="GradCAM")
    elsewhere = replace(row, what="LeGrad", script="libra")
    now = replace(row, what="LibraGradient")
    lines = bench.compare([unmeasured, elsewhere], [now], ["rollout"])
    assert [(line.verdict, line.fails) for line in lines] == [
        ("new", False),
        ("not measured", True),  # LeGrad's script was not asked for
    ]


def test_keeping_replaces_this_machines_ratios_of_the_scripts_that_ran(
    bench: ModuleType, row: Any, tmp_path: Path
) -> None:
    renamed = replace(row, what="its name before")
    there, libra = replace(row, machine="there"), replace(row, script="libra", what="Libra")
    now = replace(row, median=0.9)
    rows = bench.merged([renamed, there, libra], [now], ["rollout"])
    assert sorted(rows, key=str) == sorted([now, libra, there], key=str)
    bench.write(tmp_path / "ratios.json", rows)
    assert bench.read(tmp_path / "ratios.json") == rows
    assert bench.read(tmp_path / "absent.json") == []


def test_the_kept_file_names_scripts_that_give_ratios(bench: ModuleType) -> None:
    kept = bench.read(BENCHMARKS / "ratios.json")
    assert {row.script for row in kept} <= set(bench.SCRIPTS)
    assert all(row.least <= row.median <= row.largest for row in kept)
    for script in bench.SCRIPTS:
        assert "def key_ratios(" in (BENCHMARKS / f"{script}.py").read_text()


def test_a_clock_divides_ours_by_theirs_round_by_round(bench: ModuleType) -> None:
    from timing import Clock

    seconds = [0.0]
    clock = Clock(Namespace(device="cpu", rounds=5, seconds=100), now=lambda: seconds[0])

    def lasts(duration: float) -> Callable[..., Any]:
        def run() -> None:
            seconds[0] += duration

        return run

    ratio = clock.ratio("a / b", lasts(3.0), lasts(2.0))
    assert ratio.values == pytest.approx([1.5] * 5)
    rates = clock.rates("a / b", lambda: 1 / 3.0, lambda: 1 / 2.0)
    assert rates.values == pytest.approx([1.5] * 3)
