"""Every public name of the package with its signature, a line each.

    python tests/public_signatures.py    (writes public_signatures.txt beside it)

Public is what a part of the package lists in `__all__`; of a class, its constructor and its methods
without an underscore that are defined in this package. Annotations are left out, since Python's
versions write them differently.
"""

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import vision_attn

FILE = Path(__file__).with_suffix(".txt")


def lines() -> list[str]:
    """All public names, sorted, each under every name that it can be imported by."""
    parts = [
        name for name in vision_attn.__all__ if isinstance(getattr(vision_attn, name), ModuleType)
    ]
    modules = [vision_attn, *(import_module(f"vision_attn.{part}") for part in parts)]
    return sorted(
        line
        for module in modules
        for name in getattr(module, "__all__", ())
        if not isinstance(value := getattr(module, name), ModuleType) and name != "__version__"
        for line in described(f"{module.__name__}.{name}", value)
    )


def described(name: str, value: Any) -> Iterator[str]:
    """The lines of one name."""
    if not callable(value):
        yield f"{name}: {type(value).__name__}"
    elif not inspect.isclass(value):
        yield name + signature(value)
    else:
        yield name + signature(value)
        for method, function in inspect.getmembers(value):
            ours = getattr(function, "__module__", "") or ""
            if not method.startswith("_") and callable(function) and ours.startswith("vision_attn"):
                yield f"{name}.{method}{signature(function)}"
        for attribute, found in inspect.getmembers(value, lambda one: isinstance(one, property)):
            ours = getattr(found.fget, "__module__", "") or ""
            if not attribute.startswith("_") and ours.startswith("vision_attn"):
                yield f"{name}.{attribute}: property"


def signature(function: Any) -> str:
    """A signature without annotations; (...) where Python does not know it."""
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    empty = inspect.Signature.empty
    plain = [
        p.replace(annotation=empty, default=p.default if p.default is empty else Shown(p.default))
        for p in found.parameters.values()
    ]
    return str(found.replace(parameters=plain, return_annotation=empty))


class Shown:
    """A default as it is shown: functions and classes by name, other objects without addresses."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        named = inspect.isclass(self.value) or inspect.isroutine(self.value)
        text = self.value.__qualname__ if named else repr(self.value)
        return f"{type(self.value).__name__}(...)" if " at 0x" in text else text


if __name__ == "__main__":
    FILE.write_text("\n".join(lines()) + "\n", encoding="utf-8")
