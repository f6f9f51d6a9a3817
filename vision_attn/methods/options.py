"""Annotations of explainers' options, and their values as they are written."""

from typing import Any, get_args

from torch import nn

__all__ = ["spelt", "takes"]


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
