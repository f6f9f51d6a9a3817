"""A tiny config to run, what it leaves, and what is said of a mistake."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vision_attn.cli import main

TINY = (Path(__file__).parents[2] / "tiny.yaml").read_text(encoding="utf-8")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with configs/tiny.yaml."""
    monkeypatch.chdir(tmp_path)
    Path("configs").mkdir()
    Path("configs/tiny.yaml").write_text(TINY)
    return tmp_path


@pytest.fixture(scope="session")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of one finished `fit` of the tiny config: to read, or to copy.

    Tests that take it are of xdist_group("fitted"), so that one process makes it.
    """
    folder = tmp_path_factory.mktemp("fitted")
    config = folder / "tiny.yaml"
    config.write_text(TINY)
    assert main(["fit", "--config", str(config), "--trainer.default_root_dir", str(folder)]) == 0
    return folder / "tiny/version_0"


@pytest.fixture
def fit(here: Path) -> Callable[..., int]:
    """Runs `fit` on the tiny config with more words; returns its status."""
    return lambda *words: main(["fit", "--config", "configs/tiny.yaml", *words])


@pytest.fixture
def complaint(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """The one line on stderr."""

    def told() -> str:
        lines = capsys.readouterr().err.strip().splitlines()
        lines = [line for line in lines if not line.startswith("Seed set")]
        assert len(lines) == 1, lines
        assert lines[0].startswith("vision-attn: error: ")
        return lines[0].removeprefix("vision-attn: error: ")

    return told
