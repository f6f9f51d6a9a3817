"""A whole number stays one, in whichever order Python keeps a union's types."""

from collections.abc import Callable
from types import UnionType
from typing import Any

from jsonargparse import ArgumentParser

from vision_attn.compat.jsonargparse_private import whole_numbers_first

FLOAT_FIRST = float | int | None  # what Python's cache may make of Optional[Union[int, float]]


def parsed(kind: UnionType | Callable[..., Any], *words: Any) -> tuple[Any, Any]:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--most", type=kind)
    before = parser.parse_args(words).most
    whole_numbers_first(parser)
    return before, parser.parse_args(words).most


def test_one_is_a_whole_number_where_float_comes_first() -> None:
    (before, after) = parsed(FLOAT_FIRST, "--most", "1")
    assert isinstance(before, float)  # what goes wrong without it
    assert isinstance(after, int)
    assert after == 1


def test_shares_and_nothing_are_as_they_were() -> None:
    assert parsed(FLOAT_FIRST, "--most", "0.5") == (0.5, 0.5)
    assert parsed(FLOAT_FIRST, "--most", "null") == (None, None)
    assert [type(value) for value in parsed(FLOAT_FIRST, "--most", "1.0")] == [float, float]
    assert parsed(int, "--most", "3") == (3, 3)
