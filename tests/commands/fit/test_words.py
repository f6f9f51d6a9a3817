"""The words after `fit`, `test` and `predict` before torch is loaded: help, and what is missing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vision_attn.cli import main
from vision_attn.commands.fit.words import MISPLACED


@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict"])
def test_help_of_training_commands_says_what_is_here(
    command: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "configs/tiny.yaml" in out
    assert f"example: vision-attn {command}" in out


def test_help_all_lists_the_options_of_the_config_s_kind(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words, option in (
        ([], "--model.layer_decay"),
        (["--config", "additive_dates"], "--model CONFIG | CLASS_PATH"),
    ):
        assert main(["fit", *words, "--help-all"]) == 0
        assert option in capsys.readouterr().out


@pytest.mark.parametrize("name", MISPLACED)
def test_an_option_without_its_section_is_named_at_once(
    here: Path, name: str, complaint: Callable[..., Any]
) -> None:
    """Before torch is imported, and so before the config is looked for."""
    assert main(["fit", "--config", "configs/tinny.yaml", f"--{name}=3"]) == 2
    assert complaint() == f"unknown option --{name}: did you mean --{MISPLACED[name]}?"


def test_missing_config_names_the_nearest(here: Path, complaint: Callable[..., Any]) -> None:
    assert main(["fit", "--config", "configs/tinny.yaml"]) == 2
    assert complaint() == (
        "no such config file: configs/tinny.yaml: did you mean configs/tiny.yaml?"
    )
    assert main(["fit"]) == 2
    assert complaint() == (
        "fit needs a config: --config FILE_OR_NAME (here: configs/tiny.yaml); "
        "vision-attn configs lists those of the package"
    )
    assert main(["fit", "vit_planted", "--trainer.max_epochs=1"]) == 2
    assert complaint() == "fit needs a config: did you mean --config vit_planted?"


def test_missing_checkpoint(fit: Callable[..., int], complaint: Callable[..., Any]) -> None:
    assert main(["test", "--config", "configs/tiny.yaml"]) == 2
    assert "test needs a checkpoint: --ckpt_path" in complaint()
    assert fit("--ckpt_path=outputs/none.ckpt") == 2
    assert complaint() == "no such checkpoint file: outputs/none.ckpt"
