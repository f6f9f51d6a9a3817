"""The cheap commands in odd surroundings: another user, no home, a plain terminal, no writable folder."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import vision_attn

ROOT = Path(vision_attn.__file__).parents[1]
NOBODY = 65534
pytestmark = pytest.mark.slow


@pytest.fixture
def place(models: Callable[[str], str]) -> Iterator[Path]:
    """A folder that any user may enter, with a model and a photo, and one that any may write to."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copy(models("vit"), folder / "vit.ckpt")
        Image.new("RGB", (40, 30), (9, 99, 50)).save(folder / "photo.png")
        (folder / "work").mkdir()
        (folder / "work").chmod(0o777)
        yield folder


# It reads everything, so the interpreter too, wherever that lies, and writes what it may.
AS_NOBODY = [
    *("setpriv", f"--reuid={NOBODY}", "--clear-groups"),
    *("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"),
]


def can_be_nobody() -> bool:
    try:
        return subprocess.run([*AS_NOBODY, "true"], capture_output=True).returncode == 0
    except OSError:
        return False


needs_root = pytest.mark.skipif(not can_be_nobody(), reason="only root becomes another user")


def run(
    place: Path,
    *words: str,
    without: tuple[str, ...] = (),
    cwd: str = "work",
    other_user: bool = False,
    **more: str,
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process with these variables of the environment more and less."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    kept = {name: value for name, value in environment.items() if name not in without}
    script = "import sys; from vision_attn.cli import main; sys.exit(main())"
    return subprocess.run(
        [*(AS_NOBODY if other_user else []), sys.executable, "-c", script, *words],
        capture_output=True, text=True, errors="replace", cwd=place / cwd, env=kept,
        timeout=120,
    )  # fmt: skip


HOMES = ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR", "TORCH_HOME", "HF_HOME")
SURROUNDINGS = {
    "no home": {"without": HOMES},
    "a home that is not there": {"HOME": "/nonexistent", "without": HOMES[1:]},
    "a dumb terminal": {"TERM": "dumb"},
    "a C locale": {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "another user without a home": {"without": HOMES, "other_user": True},
}
COMMANDS = {
    "help": ["--help"],
    "configs": ["configs"],
    "explain": ["explain", "../vit.ckpt", "../photo.png", "-o", "out"],
    "score": ["score", "../vit.ckpt", "planted", "--limit", "2", "--steps", "2", "--method", "GradCAM",
              "--processes", "1", "-o", "out"],
}  # fmt: skip
ASKED = [
    *(("explain", name) for name in SURROUNDINGS),
    *(("score", name) for name in ("no home", "another user without a home")),
    *(("configs", name) for name in ("a dumb terminal", "another user without a home")),
    ("help", "another user without a home"),
]


@pytest.mark.parametrize(("command", "surroundings"), ASKED)
def test_commands_work_in_odd_surroundings(place: Path, command: str, surroundings: str) -> None:
    options: Any = SURROUNDINGS[surroundings]
    if "other_user" in options and not can_be_nobody():
        pytest.skip("only root becomes another user")
    done = run(place, *COMMANDS[command], **options)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    if command in ("explain", "score"):
        assert list((place / "work" / "out").rglob("*.png"))


@needs_root
@pytest.mark.parametrize("command", ["explain", "score"])
def test_a_folder_that_cannot_be_written_to_is_one_line(place: Path, command: str) -> None:
    (place / "work").chmod(0o555)
    done = run(place, *COMMANDS[command], other_user=True, without=HOMES)
    assert done.returncode == 2
    assert done.stderr.startswith("vision-attn: error: --output out: cannot write there")
    assert done.stderr.count("\n") == 1
    assert list((place / "work").iterdir()) == []


@needs_root
def test_what_writes_nothing_works_in_a_read_only_folder(place: Path) -> None:
    (place / "work").chmod(0o555)
    done = run(place, "configs", "vit_planted", other_user=True, without=HOMES)
    assert done.returncode == 0, done.stderr
    assert "class_path: vision_attn.models.ViT" in done.stdout
