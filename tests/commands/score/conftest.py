"""Ten scored images, and how to score and to read what is left."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vision_attn.cli import main


@pytest.fixture(scope="session")
def score() -> Callable[..., int]:
    """Runs `score` on the CPU; returns its status."""
    return lambda *words: main(["score", *map(str, words), "--device", "cpu"])


@pytest.fixture
def complaint(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """What is on stderr."""
    return lambda: capsys.readouterr().err.strip()


@pytest.fixture(scope="session")
def scores() -> Callable[[Path], dict[str, Any]]:
    """Reads the scores of each method."""
    return lambda folder: json.loads((folder / "scores.json").read_text())["methods"]


@pytest.fixture(scope="session")
def same() -> Callable[[dict[str, Any], dict[str, Any]], None]:
    """Asserts that scores are those of another run."""

    def check(a: dict[str, Any], b: dict[str, Any]) -> None:
        assert a.keys() == b.keys()
        for method in a:
            for metric, score in a[method]["scores"].items():
                other = b[method]["scores"][metric]
                assert score["mean"] == pytest.approx(other["mean"], abs=2e-3), (method, metric)
                assert score["n"] == other["n"]

    return check


@pytest.fixture(scope="session")
def planted(
    models: Callable[[str], str],
    score: Callable[..., int],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Ten planted images, scored: to read, or to copy.

    Tests that take it are of xdist_group("scored"), so that one process makes it.
    """
    folder = tmp_path_factory.mktemp("scored")
    quick = "--steps", 4, "--batch-size", 4, "--method", "GradCAM"
    assert score(models("vit"), "planted", *quick, "--limit", 10, "-o", folder) == 0
    return folder
