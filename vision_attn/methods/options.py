"""Options of an explainer: values against the annotations of its fields, and words for errors."""

import types
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Literal, Union, get_args, get_origin

from torch import nn

__all__ = ["choices", "conform", "describe", "hint", "spelt", "takes"]

LONGEST = 80  # characters of a value that a message quotes
WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "none",
    nn.Module: "a module",
}


def conform(value: Any, kind: Any) -> Any:
    """Convert a value to an annotation's type: int to float, list to tuple, all else as it is.

    kind: bool, int, float, str, None, nn.Module, Literal[...], tuple[...] or a union of these;
    tuple[X, ...] and list[X] take one or more. Raises ValueError for a value that does not fit.

    Examples:
        >>> from vision_attn.methods.options import conform
        >>> conform([1, 2], tuple[float, float] | None)
        (1.0, 2.0)
    """
    if get_origin(kind) in (Union, types.UnionType):
        for arm in get_args(kind):
            try:
                return conform(value, arm)
            except ValueError:
                continue
    elif get_origin(kind) is Literal:
        if value in get_args(kind) and not isinstance(value, bool):
            return value
    elif get_origin(kind) in (tuple, list):
        parts = get_args(kind)
        if isinstance(value, tuple | list) and value and _any_number(kind):
            parts = parts[:1] * len(value)
        if isinstance(value, tuple | list) and len(value) == len(parts):
            return tuple(conform(one, part) for one, part in zip(value, parts, strict=True))
    elif kind is float and type(value) is int:
        return float(value)
    elif type(value) is kind or (kind is nn.Module and isinstance(value, nn.Module)):
        return value
    found = repr(value)
    if len(found) > LONGEST:
        found = f"a value of type {type(value).__name__}"
    raise ValueError(f"expected {describe(kind)}, got {found}{hint(value, choices(kind))}")


def takes(kind: Any, wanted: Any) -> bool:
    """Whether an annotation, or a part of it, is this type, or `...` for any number of them.

    Examples:
        >>> from vision_attn.methods.options import takes
        >>> takes(int | tuple[str, ...], str)
        True
    """
    return kind is wanted or any(takes(arm, wanted) for arm in get_args(kind))


def spelt(value: Any) -> str:
    """Write a value as Python does, a module by its class alone."""
    if isinstance(value, nn.Module):
        return f"<{type(value).__name__}>"
    if isinstance(value, tuple):
        return f"({', '.join(map(spelt, value))}{',' * (len(value) == 1)})"
    return repr(value)


def choices(kind: Any) -> list[str]:
    """List the words that a Literal, alone or in a union, allows."""
    if get_origin(kind) is Literal:
        return [value for value in get_args(kind) if isinstance(value, str)]
    return [value for arm in get_args(kind) for value in choices(arm)]


def describe(kind: Any) -> str:
    """Put an annotation in words.

    Examples:
        >>> from typing import Literal
        >>> from vision_attn.methods.options import describe
        >>> describe(Literal["a", "b"] | None)
        "'a', 'b' or none"
    """
    return _either(list(dict.fromkeys(_alternatives(kind))))


def _any_number(kind: Any) -> bool:
    """Whether an annotation is that of a list, of any length."""
    return get_origin(kind) is list or get_args(kind)[-1:] == (...,)


def _alternatives(kind: Any) -> list[str]:
    if get_origin(kind) in (Union, types.UnionType):
        return [words for arm in get_args(kind) for words in _alternatives(arm)]
    if get_origin(kind) is Literal:
        return [repr(value) for value in get_args(kind)]
    if _any_number(kind):
        return ["a list of these"]
    if get_origin(kind) is tuple:
        return [f"({', '.join(describe(part) for part in get_args(kind))})"]
    return [WORDS.get(kind, str(kind))]


def _either(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def hint(word: Any, names: Iterable[str]) -> str:
    """Suggest the nearest name, to add to an error; an empty text where none is near.

    Examples:
        >>> from vision_attn.methods.options import hint
        >>> hint("GradCma", ["GradCAM", "Rollout"])
        " (did you mean 'GradCAM'?)"
    """
    lowered = {name.lower(): name for name in names}
    near = get_close_matches(str(word).lower(), lowered, n=1)
    return f" (did you mean {lowered[near[0]]!r}?)" if near else ""
