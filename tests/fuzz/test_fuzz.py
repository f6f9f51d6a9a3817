"""A short, seeded part of the fuzzing and of the kills; `make fuzz` and `make kills` run the rest."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
CASES = 8
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="each case is a forked process"),
]


def script(name: str, *words: Any) -> subprocess.CompletedProcess[str]:
    """Run a script of this folder on one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1])}
    command = [sys.executable, str(HERE / name), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What became of the first cases of each corpus."""
    output = tmp_path_factory.mktemp("fuzz")
    done = script("run.py", "--cases", CASES, "--output", output)
    assert (output / "summary.json").exists(), done.stderr
    return json.loads((output / "summary.json").read_text())


CORPORA = [
    *("images", "videos", "checkpoints", "checkpoint trees", "weights", "configs"),
    *("config classes", "caches", "stopped runs", "boxes"),
]


@pytest.mark.xdist_group("fuzz")
@pytest.mark.parametrize("corpus", CORPORA)
def test_damaged_files_end_in_a_line_and_harm_nothing(corpus: str, summary: dict[str, Any]) -> None:
    assert [case for case in summary["failures"] if case["corpus"] == corpus] == []
    assert sum(summary["cases"][corpus].values()) == CASES


@pytest.mark.xdist_group("fuzz")
def test_every_corpus_is_tested(summary: dict[str, Any]) -> None:
    assert list(summary["cases"]) == CORPORA


@pytest.mark.xdist_group("kills")
def test_killed_work_begun_again_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    done = script("kills.py", "--times", 2, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    table = json.loads((tmp_path / "kills.json").read_text())
    explained = ["explain --save maps", "explain --shard"]
    assert list(table) == ["fit a ViT", "fit a CNN", "score", *explained, "build a cache"]
    assert [row["right"] for row in table.values()] == [2] * 6
    assert sum(row["kills"] for row in table.values()) >= 5
