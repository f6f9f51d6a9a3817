"""Names of an earlier version, which work for one more, with a DeprecationWarning."""

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["old_names"]


def old_names(package: str, renamed: Mapping[str, str]) -> Callable[[str], Any]:
    """Make a package's `__getattr__` that leads old names to the new ones, with a warning.

    Examples:
        >>> from vision_attn.deprecated import old_names
        >>> __getattr__ = old_names("math", {"square_root": "sqrt"})
        >>> __getattr__("square_root")  # DeprecationWarning: math.square_root is now sqrt
        <built-in function sqrt>
    """

    def look_up(name: str) -> Any:
        if name not in renamed:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        short = package.removeprefix("vision_attn.")
        text = f"{short}.{name} is now {renamed[name]}"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[package], renamed[name])

    return look_up
