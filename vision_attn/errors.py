"""Errors that several parts raise, and what their messages quote: short values, nearest names."""

from collections.abc import Iterable
from difflib import get_close_matches
from reprlib import Repr
from typing import Any

LONGEST = 80  # characters of a value that a message quotes
LONGEST_LIST = 160  # and of a list of names


class Quoting(Repr):
    """Write values in a line, and objects without a short text of their own by their type."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 3, LONGEST, LONGEST, LONGEST

    def repr_instance(self, x: Any, level: int) -> str:
        """Write an object; see reprlib."""
        kind = type(x).__name__
        if isinstance(x, type):
            return f"the class {x.__name__}"
        if hasattr(x, "named_modules"):
            return f"a network ({kind})"
        shape = getattr(x, "shape", None)
        if isinstance(shape, tuple) and hasattr(x, "dtype"):
            return f"{kind} of shape {tuple(shape)}" if shape else f"{kind} {x}"
        try:
            text = repr(x)
        except Exception:  # its own code
            text = "<"
        plain = not text.startswith("<") and "\n" not in text and len(text) <= LONGEST
        return text if plain else f"a value of type {kind}"


class ModelError(ValueError):
    """A model could not be found, read or built. The message is one line for the user."""


def quoted(value: Any) -> str:
    """Quote a value in one line of at most 80 characters: the middle of a long one is left out.

    Of tensors and arrays the shape is told, of objects without a text of their own the type.

    Examples:
        >>> from vision_attn.errors import quoted
        >>> quoted("cat"), quoted([1, 2]), quoted(dict), quoted("x" * 1000)[:9]
        ("'cat'", '[1, 2]', 'the class dict', "'xxxxxxxx")
    """
    if isinstance(value, str):
        return repr(value) if len(value) < LONGEST - 1 else repr(cut(value, LONGEST - 2))
    return cut(Quoting().repr(value))


def cut(text: str, most: int = LONGEST) -> str:
    """Leave out the middle of a text that has more characters than `most`."""
    half = (most - 3) // 2
    return text if len(text) <= most else f"{text[:half]}...{text[-half:]}"


def listed(names: Iterable[object], separator: str = ", ", most: int = LONGEST_LIST) -> str:
    """List names in about so many characters: `a, b and 7 more`.

    Examples:
        >>> from vision_attn.errors import listed
        >>> listed(["cat", "dog", "fox"], most=9)
        'cat, dog and 1 more'
    """
    words = [cut(str(name)) for name in names]
    count, length = 0, 0
    while count < len(words) and length + len(words[count]) <= most:
        length += len(words[count]) + len(separator)
        count += 1
    more = f" and {len(words) - count} more" if count < len(words) else ""
    return separator.join(words[:count]) + more


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Name the nearest names, else those that contain the word: `; did you mean a, b, c?`."""
    by_lower = {name.lower(): name for name in names}
    near = [by_lower[name] for name in get_close_matches(word.lower()[:LONGEST], by_lower, n=3)]
    near = near or [name for lower, name in by_lower.items() if word.lower() in lower][:5]
    return f"; did you mean {listed(near)}?" if near else ""
