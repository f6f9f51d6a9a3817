"""Arguments against their annotations, for public functions and the options of explainers.

    @checked(limit=1, batch_size=1)
    def gallery(model: Model, images: Paths, *, limit: int | None = None, batch_size: int = 8): ...

A value of another kind is a ValueError of one line, which names the argument, what was expected,
what came and, where that is known, what to do.
"""

import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from functools import cache, partial, wraps
from inspect import Signature, signature
from numbers import Integral, Real
from pathlib import Path, PurePath
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from vision_attn.errors import LONGEST, cut, quoted

__all__ = [
    "argument",
    "article",
    "check_fields",
    "check_path",
    "checked",
    "choices",
    "conform",
    "describe",
    "hint",
    "launched",
]

Checked = TypeVar("Checked", bound=Callable[..., Any])

LONGEST_NAME = 255  # bytes of a part of a path, on every usual file system
LONGEST_NUMBER = 10  # digits of how many processes there are, and of which this is
LARGEST = 2**63  # a whole number is below it, as torch's and numpy's are
WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "none",
    os.PathLike: "a path",
}
LAUNCHED_BY = {  # variables of the environment, each with its least value
    **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS"), 1),
    **dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK"), 0),
    **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"), 0),
}
BY_NAME = {  # of classes whose files would have to be imported
    "Tensor": "a tensor",
    "Module": "a network (torch.nn.Module)",
    "Model": "a model of load_model or wrap",
    "Style": "a style, such as ColorMap('viridis')",
    "Silent": "a progress, such as Bar()",
}


def checked(**least: int) -> Callable[[Checked], Checked]:
    """Check the arguments of a function by its annotations, before anything is done.

    Plain values, paths, tuples and objects are checked and converted as `conform` does; what an
    annotation cannot tell, such as a function or a sequence, is left to the function.

    Args:
        least: The smallest value of a number, by its name.

    Examples:
        >>> from vision_attn.arguments import checked
        >>> @checked(count=1)
        ... def double(count: int = 1) -> int:
        ...     return 2 * count
        >>> double(3)
        6
        >>> double(0)
        Traceback (most recent call last):
        ValueError: count must be at least 1, got 0
    """

    def decorate(function: Checked) -> Checked:
        own = signature(function)
        kinds = cache(partial(_kinds, function, own))  # annotations may name what comes later

        @wraps(function)
        def checking(*args: Any, **named: Any) -> Any:
            try:
                given = own.bind(*args, **named)
            except TypeError:
                return function(*args, **named)  # which says what is missing
            for name, value in given.arguments.items():
                if name in kinds():
                    given.arguments[name] = argument(name, value, kinds()[name], least.get(name))
            return function(*given.args, **given.kwargs)

        return cast(Checked, checking)

    return decorate


def _kinds(function: Callable[..., Any], own: Signature) -> dict[str, Any]:
    """The annotations of the arguments; those of `*args` and `**named` are of each of them."""
    several = {
        p.name for p in own.parameters.values() if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    hints = get_type_hints(function, include_extras=False)
    return {name: kind for name, kind in hints.items() if name not in several}


def check_fields(instance: Any) -> None:
    """Check the fields of a dataclass, and convert them, as `checked` does arguments.

    Used as its `__post_init__`.
    """
    kind: Any = type(instance)
    hints = _hints(kind)
    for field in fields(instance):
        value = argument(field.name, getattr(instance, field.name), hints[field.name])
        object.__setattr__(instance, field.name, value)


@cache
def _hints(kind: type) -> dict[str, Any]:
    """The annotations of a dataclass's fields; a layout is made in each run of a ViT."""
    return get_type_hints(kind)


def argument(name: str, value: Any, kind: Any, least: int | None = None) -> Any:
    """Convert an argument to its annotation's type; ValueError, with its name, if it does not fit.

    least: the smallest value, if it is a number.
    """
    try:
        value = conform(value, kind)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if least is not None and isinstance(value, int | float) and not value >= least:
        raise ValueError(f"{name} must be at least {least}, got {quoted(value)}")
    return value


def conform(value: Any, kind: Any) -> Any:
    """Convert a value to an annotation's type: int to float, list to tuple, all else as it is.

    kind: bool, int, float, str, None, a path, Literal[...], tuple[...], a class, or a union of
    these; a value fits every other kind. Raises ValueError for a value that does not fit.

    Examples:
        >>> from vision_attn.arguments import conform
        >>> conform([1, 2], tuple[float, float] | None)
        (1.0, 2.0)
    """
    if isinstance(value, str) and any(map(_is_path, _arms(kind))):
        if not value:
            raise ValueError("expected a path, got an empty one")
        return check_path(value)
    if any(type(value) is arm for arm in _arms(kind)) and not isinstance(value, int):
        return value
    alone = len([arm for arm in _arms(kind) if arm is not type(None)]) == 1
    for arm in _arms(kind):
        if alone and get_origin(arm) in (Sequence, list, Mapping) and _holds(value, arm):
            return value
        if alone and get_origin(arm) in (Sequence, list, Mapping):
            continue
        try:
            return _conform_to_one(value, arm)
        except Misfit:
            continue
    near = hint(value, choices(kind)) if isinstance(value, str) else ""
    raise ValueError(
        f"expected {describe(kind)}, got {quoted(value)}{near or _advice(value, kind)}"
    )


class Misfit(Exception):
    """A value is not of an annotation's kind."""


def _conform_to_one(value: Any, kind: Any) -> Any:
    """Do the same for an annotation that is no union."""
    origin = get_origin(kind)
    if origin is Literal:
        if isinstance(value, str | int) and not isinstance(value, bool) and value in get_args(kind):
            return value
    elif origin is tuple:
        return _conform_to_tuple(value, get_args(kind))
    elif origin is list:
        if _holds(value, kind):
            return value
    elif origin is Callable:
        if callable(value):
            return value
    elif _is_path(kind):
        if isinstance(value, str | os.PathLike):
            return check_path(value)
    elif kind is bool:
        if isinstance(value, bool) or type(value).__name__ == "bool_":  # numpy's
            return bool(value)
    elif kind is int:
        if isinstance(value, Integral) and not isinstance(value, bool):
            number = int(value)
            if abs(number) < LARGEST:
                return number
    elif kind is float:
        if isinstance(value, Real) and not isinstance(value, bool):
            return _as_float(value)
    elif hasattr(kind, "dim_str"):
        if _is_array(value, kind):
            return value
    elif not isinstance(kind, type) or origin is not None or kind is object:
        return value
    else:
        try:
            fits = isinstance(value, kind)
        except TypeError:  # a protocol that cannot be seen while the program runs
            return value
        if fits:
            return value
    raise Misfit


def _conform_to_tuple(value: Any, parts: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(value, tuple | list):
        raise Misfit
    if parts[1:] == (...,):
        parts = parts[:1] * len(value)
    if len(value) != len(parts):
        raise Misfit
    try:
        return tuple(conform(one, part) for one, part in zip(value, parts, strict=True))
    except ValueError:
        raise Misfit from None


def _holds(value: Any, kind: Any) -> bool:
    """Whether a value is a sequence of the type that an annotation names, or a mapping."""
    if get_origin(kind) is Mapping:
        return isinstance(value, Mapping)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return False
    try:
        for one in value:
            conform(one, *get_args(kind))
    except ValueError:
        return False
    return True


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        raise Misfit from None


def _is_array(value: Any, kind: Any) -> bool:
    """Whether a value is an array of the dtype and the number of axes that jaxtyping's type "
    "names."""
    axes = kind.dim_str.split()
    dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
    return (
        isinstance(value, kind.array_type)
        and (isinstance(kind.dtypes, type) or dtype in kind.dtypes)
        and (any(axis[0] in "*.#" for axis in axes) or value.ndim == len(axes))
    )


def check_path(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Return a path; ValueError for one that no file system takes."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise ValueError(f"expected a path as text, got {quoted(text)}")
    longest = max((len(os.fsencode(part)) for part in PurePath(text).parts), default=0)
    if "\0" in text or longest > LONGEST_NAME:
        fault = "holds a null character" if "\0" in text else f"has a name of {longest} bytes"
        raise ValueError(f"expected a path, got {quoted(text)}, which {fault}")
    return path


def launched() -> tuple[int, int]:
    """Return which process this is, from 0, and of how many, as torchrun's environment says.

    Raises ValueError where a variable of torchrun or SLURM holds no number that it can hold.
    """
    numbers = {}
    for name, least in LAUNCHED_BY.items():
        text = os.environ.get(name, "").strip()
        number = int(text) if text.isdecimal() and len(text) < LONGEST_NUMBER else -1
        if name in os.environ and number < least:
            raise ValueError(
                f"{name}={cut(text)} in the environment: expected a whole number of at least "
                f"{least}, as {'SLURM' if name.startswith('SLURM') else 'torchrun'} sets it: "
                f"unset {name}"
            )
        numbers[name] = int(text or least)
    rank, size = numbers["RANK"], numbers["WORLD_SIZE"]
    if rank >= size:
        raise ValueError(
            f"RANK={rank} in the environment: expected 0 to {size - 1}, as there are {size} "
            "processes (WORLD_SIZE): unset RANK, or let torchrun set both"
        )
    return rank, size


def _arms(kind: Any) -> tuple[Any, ...]:
    """The kinds of a union, those of unions in it too; else the kind itself."""
    if get_origin(kind) in (Union, types.UnionType):
        return tuple(one for arm in get_args(kind) for one in _arms(arm))
    return (kind,)


def _is_path(kind: Any) -> bool:
    return get_origin(kind) is os.PathLike or (isinstance(kind, type) and issubclass(kind, Path))


def choices(kind: Any) -> list[str]:
    """List the words that a Literal, alone or in a union, allows."""
    if get_origin(kind) is Literal:
        return [value for value in get_args(kind) if isinstance(value, str)]
    return [value for arm in get_args(kind) for value in choices(arm)]


def describe(kind: Any) -> str:
    """Put an annotation in words.

    Examples:
        >>> from typing import Literal
        >>> from vision_attn.arguments import describe
        >>> describe(Literal["a", "b"] | None)
        "'a', 'b' or none"
    """
    return _either(_alternatives(kind))


def _alternatives(kind: Any) -> list[str]:
    words: dict[str, None] = {}
    for arm in _arms(kind):
        if arm is int and float in _arms(kind):
            continue
        if get_origin(arm) is Literal:
            words |= dict.fromkeys(map(repr, get_args(arm)))
        elif _any_number(arm) and set(_arms(get_args(arm)[0])) <= set(_arms(kind)):
            words["a list of these"] = None
        elif get_origin(arm) is tuple:
            parts = [describe(part) if part is not ... else "..." for part in get_args(arm)]
            words[f"({', '.join(parts)})"] = None
        elif _is_path(arm):
            words.pop(WORDS[str], None)
            words[WORDS[os.PathLike]] = None
        elif get_origin(arm) is Callable:
            words["a function"] = None
        elif get_origin(arm) in (Sequence, list):
            words[f"a list of {describe(*get_args(arm))}"] = None
        elif hasattr(arm, "dim_str"):
            words[f"{arm.__name__.partition('[')[0].lower()}s ({arm.dim_str.strip()})"] = None
        else:
            name = getattr(arm, "__name__", str(arm))
            words[WORDS.get(arm) or BY_NAME.get(name) or article(name)] = None
    return list(words)


def _any_number(kind: Any) -> bool:
    """Whether an annotation is that of a list or a tuple of any length."""
    return get_origin(kind) is list or get_args(kind)[1:] == (...,)


def article(noun: str) -> str:
    """Put "a" or "an" before a noun.

    Examples:
        >>> from vision_attn.arguments import article
        >>> article("Image"), article("tensor")
        ('an Image', 'a tensor')
    """
    return f"an {noun}" if noun[0].lower() in "aeiou" else f"a {noun}"


def _either(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def hint(word: Any, names: Iterable[str]) -> str:
    """Suggest the nearest name, to add to an error; an empty text where none is near.

    Examples:
        >>> from vision_attn.arguments import hint
        >>> hint("GradCma", ["GradCAM", "Rollout"])
        " (did you mean 'GradCAM'?)"
    """
    lowered = {name.lower(): name for name in names}
    near = get_close_matches(str(word).lower()[:LONGEST], lowered, n=1)
    return f" (did you mean {lowered[near[0]]!r}?)" if near else ""


def _advice(value: Any, kind: Any) -> str:
    """Say how a value of the kind is made of what came, where that is known."""
    expected = {getattr(arm, "__name__", "").partition("[")[0] for arm in _arms(kind)}
    tensors = {
        "Tensor",
        *(arm.__name__.partition("[")[0] for arm in _arms(kind) if hasattr(arm, "dim_str")),
    }
    if isinstance(value, int) and abs(value) >= LARGEST:
        return f", which is more than {LARGEST}"
    if isinstance(value, type):
        return f": make one, {value.__name__}(...)" if value.__name__ in expected else ""
    if "Model" in expected and hasattr(value, "named_modules"):
        return ": vision_attn.wrap(network, transform) makes one"
    if "Model" in expected and isinstance(value, str):
        return f": vision_attn.load_model({quoted(value)}) loads one"
    if expected & tensors and (
        isinstance(value, str | os.PathLike) or type(value).__module__.startswith("PIL.")
    ):
        return ": model.preprocess(photo)[None] makes one of a photo"
    if expected & tensors and type(value).__module__ == "numpy":
        return ": torch.from_numpy(array) makes one"
    if expected & tensors and isinstance(value, list | tuple):
        return ": torch.stack(list) makes one of several"
    return ""
