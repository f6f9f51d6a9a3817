"""A config whose run takes a second, in a folder to work in."""

from pathlib import Path

import pytest

TINY = (Path(__file__).parents[1] / "tiny.yaml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one finished run of the tiny config."""
    from vision_attn import fit

    folder = tmp_path_factory.mktemp("fitted")
    (folder / "tiny.yaml").write_text(TINY)
    return fit(folder / "tiny.yaml", output=folder).folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with tiny.yaml."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    return tmp_path


@pytest.fixture
def tiny() -> str:
    return TINY
