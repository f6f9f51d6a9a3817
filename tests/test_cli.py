"""The command line before a command is chosen: help, the version, an unknown word."""

import platform
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest

import vision_attn
from vision_attn.cli import main


def test_help_and_version_load_no_torch() -> None:
    code = "import sys; from vision_attn.cli import main; "
    code += "main(['--help']); main(['--version']); main(['fit', '--help']); main(['fit']); "
    code += "print([m for m in ('torch', 'lightning', 'numpy', 'yaml') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "vision-attn 0." in done.stdout


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["-h"], ["--help"]):
        assert main(words) == 0
        out = capsys.readouterr().out
        for command in ("fit", "validate", "test", "predict", "explain", "demo"):
            assert re.search(rf"^  {command} ", out, re.MULTILINE)


def test_a_word_too_many_is_not_called_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "senet"]) == 2
    assert capsys.readouterr().err == (
        "vision-attn: error: unexpected argument 'senet': leave it out, or name an option before "
        "it (see vision-attn models --help)\n"
    )


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fitt"]) == 2
    line = capsys.readouterr().err
    assert line == "vision-attn: error: unknown command 'fitt': did you mean fit?\n"


def test_the_version_names_the_libraries_and_the_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"torch": "7.1", "timm": "3.5"}

    def version(name: str) -> str:
        if name not in known:
            raise PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr("importlib.metadata.version", version)
    assert main(["--version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"vision-attn {vision_attn.__version__}"
    assert lines[1] == f"Python {platform.python_version()}"
    assert {"torch 7.1", "timm 3.5", "lightning is not installed"} <= set(lines)
    assert re.search(r", \d+ cores$", lines[-1])
