"""A text that is another for a function that computes something else."""

from collections.abc import Iterable, Mapping
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from zlib import crc32

import torch
from numpy import ndarray
from torch import Tensor, nn

__all__ = ["function_key"]


def function_key(function: Any) -> str:
    """Sum up a function: its instructions, its defaults, and the values that it refers to.

    Values are those of its closure and of its module's globals: numbers, texts, tensors, lists of
    them, functions, networks by their weights, and objects by their attributes.

    Examples:
        >>> from vision_attn.methods.function_key import function_key
        >>> def times(factor):
        ...     return lambda output: factor * output[:, 0]
        >>> function_key(times(2)) == function_key(times(2)) != function_key(times(3))
        True
    """
    return f"{crc32(_text(function, {}).encode(errors='surrogatepass')):08x}"


def _text(value: Any, seen: dict[int, Any]) -> str:
    """Write a value; seen: objects that are written already, by their ids."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | range):
        return repr(value)
    if isinstance(value, CodeType):
        return f"{value.co_code.hex()} {_all(value.co_consts, seen)} {value.co_names}"
    if isinstance(value, ModuleType):
        return value.__name__
    if id(value) in seen:
        return "again"
    seen[id(value)] = value
    if isinstance(value, Tensor | ndarray):
        numbers = torch.as_tensor(value, device="cpu").detach().contiguous()
        total = crc32(numbers.flatten().view(torch.uint8).numpy().tobytes())
        return f"{numbers.dtype} {tuple(numbers.shape)} {total:08x}"
    if isinstance(value, FunctionType):
        return _of_function(value, seen)
    if isinstance(value, MethodType):
        return _all((value.__func__, value.__self__), seen)
    if isinstance(value, partial):
        return _all((value.func, value.args, value.keywords), seen)
    if isinstance(value, nn.Module):
        return f"{_name(type(value))} {_text(dict(value.state_dict()), seen)}"
    if isinstance(value, Mapping):
        return _all([(str(key), item) for key, item in value.items()], seen)
    if isinstance(value, list | tuple):
        return _all(value, seen)
    if isinstance(value, set | frozenset):
        return _all(sorted(value, key=repr), seen)
    if hasattr(value, "__qualname__"):  # a class, or a function that is not of Python
        return _name(value)
    return f"{_name(type(value))} {_text(getattr(value, '__dict__', None), seen)}"


def _of_function(function: FunctionType, seen: dict[int, Any]) -> str:
    cells = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
    namespace = function.__globals__
    library = str(function.__module__).split(".")[0] in ("torch", "numpy", "vision_attn")
    names = [] if library else [name for name in _names(function.__code__) if name in namespace]
    values = [namespace[name] for name in names]
    return _all(
        (function.__code__, function.__defaults__, function.__kwdefaults__, cells, values), seen
    )


def _names(code: CodeType) -> list[str]:
    """The names that a function looks up, those of functions within it too."""
    inner = [
        name
        for constant in code.co_consts
        if isinstance(constant, CodeType)
        for name in _names(constant)
    ]
    return [*code.co_names, *inner]


def _filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _all(values: Iterable[Any], seen: dict[int, Any]) -> str:
    return f"({', '.join(_text(value, seen) for value in values)})"


def _name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
