"""`vision-attn probe`: the table of a network's tokens, and one line for what cannot be probed."""

from collections.abc import Callable

import pytest

from vision_attn import load_model, probe
from vision_attn.cli import main


def test_the_table_is_that_of_python(
    models: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", models("vit"), "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    path = probe(load_model(models("vit")))
    assert printed.splitlines() == str(path).splitlines()
    assert len(path.steps) > 0
    assert printed.count("blocks.") == len(path.steps)


def test_a_cnn_is_told_why_there_is_no_map(
    models: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", models("senet"), "--device", "cpu"]) == 0
    assert "no map: no attention was found" in capsys.readouterr().out


def test_an_unknown_file_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "nothing.ckpt"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
