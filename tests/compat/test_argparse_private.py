"""argparse keeps its options where it did, and without that its help lists the same."""

import platform
from importlib import import_module

import pytest

from vision_attn.cli import COMMANDS, Parser
from vision_attn.compat import argparse_private as reaches


@pytest.mark.parametrize("command", COMMANDS)
def test_options_are_listed_with_and_without_the_reach(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = Parser(prog="vision-attn")
    import_module(f"vision_attn.commands.{command}").add_arguments(parser)
    assert hasattr(parser, reaches.ACTIONS), (
        f"Python {platform.python_version()}'s argparse no longer has ArgumentParser."
        f"{reaches.ACTIONS}: options are read from the help"
    )
    options = reaches.options_of(parser)
    assert options[:2] == ["-h", "--help"]
    assert len(options) > {"configs": 1, "models": 2}.get(command, 4)
    monkeypatch.setattr(reaches, "ACTIONS", "_taken_away")
    assert sorted(reaches.options_of(parser)) == sorted(options)
