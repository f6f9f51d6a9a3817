"""What reaches the terminal: names cannot steer it, any encoding will do, and it may be closed."""

import io
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from vision_attn import terminal
from vision_attn.cli import main

STEERING = "\x1b[31m[red]\x9b2J\u202eé.png"
ESCAPED = "\\x1b[31m[red]\\x9b2J\\u202eé.png"
SCRIPT = "from vision_attn.cli import script; script()"


def command(words: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of the shell in which `vision-attn` is this package's command."""
    line = words.replace("vision-attn", f"{sys.executable} -c '{SCRIPT}'")
    environment = {**os.environ, "PYTHONUNBUFFERED": "", **environment}
    return subprocess.run(["bash", "-c", line], capture_output=True, check=False, env=environment)


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def steering(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.new("RGB", (40, 40), "red").save(folder / STEERING)
    (folder / f"bad{STEERING}").write_text("no photo")
    return folder


def test_what_steers_a_terminal_is_escaped_and_text_is_not() -> None:
    assert terminal.printable(STEERING) == ESCAPED
    assert terminal.printable("a\r\x07\x7f\udcff\u2066") == "a\\r\\x07\\x7f\\udcff\\u2066"
    for text in ("a\tb\n", "写真　１.png", "naïve 👩‍🔬", "[bold]"):
        assert terminal.printable(text) == text


def test_a_line_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.say("a\nvision-attn: error: forged")
    terminal.complain("b\nc")
    captured = capsys.readouterr()
    assert captured.out == "a\\nvision-attn: error: forged\n"
    assert captured.err == "vision-attn: b\\nc\n"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_file_names_reach_the_terminal_as_written(
    is_terminal: bool,
    steering: Path,
    models: Callable[[str], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / STEERING
    words = [models("senet"), str(steering), "--device", "cpu"]
    screens = [Screen(), Screen()]
    if is_terminal:
        monkeypatch.setenv("TERM", "dumb")  # rich then draws no bar and no colour of its own
        monkeypatch.setenv("COLUMNS", "400")
        monkeypatch.setattr(sys, "stdout", screens[0])
        monkeypatch.setattr(sys, "stderr", screens[1])
    assert main(["explain", *words, "-o", str(out), "--method", "GradCAM"]) == 1
    score = ["--method", "GradCAM", "--steps", "2", "-o", str(out)]
    assert main(["score", *words, *score]) == 1
    assert main(["inspect", *words, "-o", f"{out}.html"]) == 1
    texts = [s.getvalue() for s in screens] if is_terminal else capsys.readouterr()
    for text in texts:
        assert ESCAPED in text
        assert "\x1b" not in text
        assert "\x9b" not in text
        assert "\u202e" not in text


def test_a_bar_names_a_film_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    from vision_attn.runs.progress import Bar

    screen = Screen()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stderr", screen)
    with Bar() as bar:
        bar.start(STEERING, 3)
        bar.advance()
    assert ESCAPED in screen.getvalue()
    assert STEERING not in screen.getvalue()


def test_a_heading_of_a_run_is_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    from vision_attn.runs.progress import Terminal

    console = Terminal()
    console.width = 200
    table = Table("[red]x", STEERING)
    table.add_row(STEERING, Text(STEERING))
    for what in (f"[red]{STEERING}", Text(STEERING), table):
        console.print(what)
    out = capsys.readouterr().out
    assert out.count(ESCAPED) == 2  # a table cuts its cells to their width
    assert out.count(ESCAPED[:16]) == 5
    assert "[red]x" in out
    assert "\x1b" not in out


def test_logged_errors_are_escaped_lines(
    steering: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import logging

    terminal.log_lines()
    logging.getLogger("vision_attn.data.files").error("%s: damaged", STEERING)
    assert capsys.readouterr().err == f"vision-attn: error: {ESCAPED}: damaged\n"


def test_warnings_of_the_package_are_lines_and_others_say_where_they_come_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    terminal.log_lines()
    own = warnings.formatwarning(f"{STEERING}: odd", UserWarning, terminal.__file__, 7)
    assert own == f"vision-attn: warning: {ESCAPED}: odd\n"
    other = warnings.formatwarning("odd", UserWarning, "elsewhere.py", 7)
    assert other.startswith("elsewhere.py:7: UserWarning: odd\n")


@pytest.mark.slow
def test_an_ascii_stdout_takes_every_table(
    models: Callable[[str], str], photos: Path, tmp_path: Path
) -> None:
    words = f"vision-attn score {models('senet')} {photos} --method GradCAM --steps 2 --device cpu"
    words += f" -o {tmp_path / 'é'}"
    done = command(words, PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode("ascii")
    assert "GradCAM" in text
    assert "\\u2193" in text or "\\u2191" in text  # the arrow that says which way is better
    assert "\\xe9" in text or "\\udcc3\\udca9" in text  # é, as a C locale reads it


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("vision-attn configs >&-", 0),
        ("vision-attn --help >&- 2>&-", 0),
        ("vision-attn nothing 2>&-", 2),
        ("set -o pipefail; vision-attn configs | true", 141),
        ("set -o pipefail; vision-attn configs vit_planted | true", 141),
        ("set -o pipefail; vision-attn configs | head -1", (0, 141)),  # a pipe holds a lot
        ("vision-attn nothing 2>&1 | true", 0),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_nobody_who_reads_is_a_quiet_end(
    words: str, status: int | tuple[int, int], unbuffered: str
) -> None:
    done = command(words, PYTHONUNBUFFERED=unbuffered)
    assert done.stderr == b""
    assert done.returncode in (status if isinstance(status, tuple) else (status,))


def test_a_full_stdout_is_one_line() -> None:
    done = command("vision-attn configs >/dev/full")
    assert done.returncode == 2
    line = "vision-attn: error: [Errno 28] No space left on device\n"
    assert done.stderr.decode() == line


@pytest.mark.slow
def test_a_closed_stdout_does_not_end_in_a_file(
    models: Callable[[str], str], photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = f"{models('senet')} {photos / 'cat.png'} --method GradCAM --device cpu -o {out}"
    done = command(f"vision-attn explain {words} >&-")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"explained" not in b"".join(p.read_bytes() for p in out.iterdir() if p.is_file())


NO_POLL = """
import select, sys
del select.poll
from vision_attn.cli import main
sys.exit(main(["nonsense"]))
"""


def test_errors_are_seen_where_pipes_cannot_be_asked() -> None:
    """As on Windows, whose select has no poll."""
    done = subprocess.run([sys.executable, "-c", NO_POLL], capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"vision-attn: error: unknown command 'nonsense'")
