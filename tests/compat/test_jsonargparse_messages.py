"""jsonargparse's real messages, each made by a parser, and what is read from them."""

from argparse import ArgumentError
from pathlib import Path
from typing import Any, Literal

import jsonargparse
import pytest
from jsonargparse import ArgumentParser
from torch import nn

from vision_attn.compat.jsonargparse_messages import (
    Complaint,
    NoClass,
    NotAClass,
    NotOfClass,
    NotSubclass,
    Other,
    UnknownOption,
    UnknownWord,
    WrongType,
    complaint,
)
from vision_attn.fitting.messages import readable


def parser() -> ArgumentParser:
    made = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    made.add_argument("-c", "--config", action="config")
    made.add_argument("--size", type=int)
    made.add_argument("--kind", type=Literal["a", "b"])
    made.add_argument("--either", type=int | float | None)
    made.add_argument("--module", type=nn.Module)
    made.add_argument("--maybe", type=nn.Module | None)
    made.add_argument("--list", type=list[nn.Module] | nn.Module | None)
    made.add_class_arguments(nn.Flatten, "flatten")
    return made


def raised(words: str | None, config: str | None, tmp_path: Path) -> str:
    """jsonargparse's own words for a wrong command line, or a wrong config."""
    if config:
        (tmp_path / "wrong.yaml").write_text(config)
        words = f"--config {tmp_path / 'wrong.yaml'}"
    reader = parser()
    assert words is not None
    with pytest.raises((ArgumentError, ValueError)) as caught:
        reader.instantiate_classes(reader.parse_args(words.split()))
    return str(caught.value)


CASES = {
    "unrecognized": ("--siize=3", None, UnknownWord("--siize"), ""),
    "stray": ("stray", None, UnknownWord("stray"), ""),
    "group": (None, "flatten: {start_dimm: 3}", UnknownOption("flatten.start_dimm"), ""),
    "no group": (None, "flaten: {end_dim: 3}", UnknownOption("flaten.end_dim"), ""),
    "of class": (
        "--maybe torch.nn.ReLU --maybe.inplce 1",
        None,
        NotOfClass("inplce", "torch.nn.ReLU"),
        "maybe",
    ),
    "type": ("--size two", None, WrongType(("int",), "two"), "size"),
    "types": ("--either two", None, WrongType(("int", "float"), "two"), "either"),
    "choice": ("--kind c", None, WrongType(("'a', 'b'",), "c"), "kind"),
    "attribute": ("--maybe torch.nn.Lineer", None, NoClass("torch.nn.Lineer"), "maybe"),
    "module": ("--maybe nowhere.ReLU", None, NoClass("nowhere.ReLU"), "maybe"),
    "bare name": ("--maybe ReLUU", None, NoClass("ReLUU"), "maybe"),
    "base": ("--module torch.optim.SGD", None, NotSubclass("torch.optim.SGD", "Module"), "module"),
    "base or none": (
        "--maybe torch.optim.SGD", None, NotSubclass("torch.optim.SGD", "Module"), "maybe",
    ),
    "no class": (None, "module: 3", NotAClass("3"), "module"),
}  # fmt: skip


@pytest.mark.parametrize(("words", "config", "reason", "where"), CASES.values(), ids=CASES)
def test_what_it_says_is_understood(
    words: str | None, config: str | None, reason: Any, where: str, tmp_path: Path
) -> None:
    message = raised(words, config, tmp_path)
    assert complaint(message) == Complaint(reason, where), (
        f"jsonargparse {jsonargparse.__version__} no longer says this as vision_attn reads it, "
        f"which then shows the message itself, in one line without a hint:\n{message}"
    )


def test_a_message_that_is_not_known_is_shown_in_one_line() -> None:
    message = 'Parser key "size":\n  Something   new\n  in version 5'
    assert complaint(message) == Complaint(Other("size: Something new in version 5"), "size")
    assert readable(message, parser()) == "size: Something new in version 5"
