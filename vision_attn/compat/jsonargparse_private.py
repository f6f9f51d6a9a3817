"""jsonargparse's private state: each reach, why it is needed, and what happens without it.

Tried with jsonargparse 4.53.0.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, reduce
from operator import or_
from typing import Any, get_args

from jsonargparse import ArgumentParser

__all__ = ["Option", "classes_first", "options_of_class", "typed_options", "whole_numbers_first"]


@dataclass(frozen=True)
class Option:
    """An option of a parser or a class: its dotted name, its type (None: unknown), its default."""

    name: str
    type: Any = None
    default: Any = None


def typed_options(parser: ArgumentParser) -> Iterator[Option]:
    """Find the options that take a value of a type.

    `_actions` is argparse's own; jsonargparse keeps the type in `_typehint`. Without it no option
    is found, and so none may name a class.
    """
    for action in parser._actions:
        if hasattr(action, "_typehint") and not action.dest.endswith(".help"):
            yield Option(action.dest, action._typehint, action.default)


@cache
def options_of_class(cls: type) -> tuple[Option, ...]:
    """List what a class is made with, as the parser sees it: its bases' options are among them."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(cls, fail_untyped=False, sub_configs=True)
    return tuple(typed_options(parser))


def classes_first(parser: Any, *names: str) -> None:
    """Have these options, which take text too, read the path of a class as the class.

    jsonargparse tries types in order, and to any text str is right. Without `_typehint` a class is
    named by class_path alone.
    """
    for action in getattr(parser, "_actions", ()):
        kinds = get_args(getattr(action, "_typehint", None))
        if action.dest in names and str in kinds:
            action._typehint = reduce(or_, [kind for kind in kinds if kind is not str] + [str])


def whole_numbers_first(parser: Any) -> None:
    """Have each option that takes int or float read a whole number as an int.

    `Optional[Union[int, float]]` is the same to Python as `Optional[Union[float, int]]`, so
    whichever of the two a process wrote first stands for both. jsonargparse tries types in order:
    if float comes first, `--trainer.limit_val_batches 1`, one batch, is read as 1.0, all of them.
    Without `_typehint` nothing is changed.
    """
    for action in getattr(parser, "_actions", ()):
        kinds = get_args(getattr(action, "_typehint", None))
        if int in kinds and float in kinds and kinds.index(float) < kinds.index(int):
            rest = [kind for kind in kinds if kind is not int]
            action._typehint = reduce(or_, rest, int)
