"""Errors that several parts raise, and the nearest names for a misspelt one."""

from collections.abc import Iterable
from difflib import get_close_matches


class ModelError(ValueError):
    """A model could not be found, read or built. The message is one line for the user."""


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Name the nearest names, else those that contain the word: `; did you mean a, b, c?`."""
    by_lower = {name.lower(): name for name in names}
    near = [by_lower[name] for name in get_close_matches(word.lower(), by_lower, n=3)]
    near = near or [name for lower, name in by_lower.items() if word.lower() in lower][:5]
    return f"; did you mean {', '.join(near)}?" if near else ""
