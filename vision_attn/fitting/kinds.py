"""What a config may name: the classes of each kind of option, and the files that these may write.

A config is data: to name a class is to have it called. So an option takes only subclasses of the
class in its type, and of these only the ones in `KINDS`: they are built from plain values and start
nothing. A plain function is called with whatever its caller has, so no option takes one. `allow`
opens a package of the user's own for all of this.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import partial
from inspect import isfunction
from os import PathLike, fspath
from os.path import abspath, expanduser
from pathlib import PurePath
from typing import Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import torch
import yaml
from jsonargparse import ArgumentParser, Namespace
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.pytorch import Callback
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins import CheckpointIO, LayerSync, Precision
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.strategies import Strategy
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from vision_attn.arguments import article
from vision_attn.compat.import_policy import importing_only
from vision_attn.compat.jsonargparse_private import Option, options_of_class, typed_options
from vision_attn.errors import quoted
from vision_attn.fitting.records import RunLogger, SavedConfig
from vision_attn.training import BestCheckpoint, Predictions, Summary

__all__ = [
    "KINDS",
    "Kind",
    "check_classes",
    "check_files",
    "classes_in",
    "names_kind",
    "only_packages",
    "type_args",
]

OURS = "vision_attn"
PLAIN = (type(None), bool, int, float, str, bytes, PathLike, timedelta, Enum, torch.dtype)
DTYPES = ("dtype", "float64", "float32", "float16", "bfloat16")
OF_THE_RUN = (SavedConfig, RunLogger, Predictions, Summary, BestCheckpoint)  # made by fit alone
WRITTEN = {"cache", "dirpath", "folder"}  # options of our own classes


@dataclass(frozen=True)
class Kind:
    """Classes of other libraries that an option may take.

    Args:
        name: What they are called, in the plural.
        base: The class that the option's type names, or a base of it.
        modules: Where they are defined, with all modules below.
        public: The modules that people import them from, where these are others.

    Examples:
        >>> from torch import nn
        >>> from vision_attn.fitting.kinds import Kind
        >>> Kind("networks", nn.Module, ("torch.nn",)).base is nn.Module
        True
    """

    name: str
    base: type
    modules: tuple[str, ...]
    public: tuple[str, ...] = ()


PLUGINS = ("lightning.pytorch.plugins", "lightning.fabric.plugins")
KINDS = (
    Kind(
        "networks, layers and losses",
        nn.Module,
        (
            *("torch.nn.modules", "torchvision.models", "torchvision.ops"),
            *("timm.models", "timm.layers", "timm.loss"),
        ),
        ("torch.nn",),
    ),
    Kind("optimizers", Optimizer, ("torch.optim", "timm.optim")),
    Kind("schedules", LRScheduler, ("torch.optim",)),
    Kind("callbacks", Callback, ("lightning.pytorch.callbacks",)),
    Kind("loggers", Logger, ("lightning.pytorch.loggers",)),
    Kind("profilers", Profiler, ("lightning.pytorch.profilers",)),
    Kind("strategies", Strategy, ("lightning.pytorch.strategies",)),
    Kind("accelerators", Accelerator, ("lightning.pytorch.accelerators",)),
    Kind("precision plugins", Precision, PLUGINS),
    Kind("cluster environments", ClusterEnvironment, PLUGINS),
    Kind("checkpoint plugins", CheckpointIO, PLUGINS),
    Kind("layer plugins", LayerSync, PLUGINS),
)


def only_packages(allow: Sequence[str] = ()) -> AbstractContextManager[None]:
    """Let a config import only what lies in the modules of `KINDS`, in vision_attn and in `allow`.

    Raises ValueError for a name in `allow` that is no package's.
    """
    for name in allow:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"--allow {name}: expected the name of a package, such as my_networks")
    modules = [module for kind in KINDS for module in (*kind.modules, *kind.public)]
    dtypes = [f"torch.{name}" for name in DTYPES]
    return importing_only([OURS, *modules, *dtypes, *allow])


def check_classes(config: Namespace, parser: ArgumentParser, allow: Sequence[str] = ()) -> None:
    """Raise ValueError for a parsed config in which an option names what it may not.

    Args:
        config: What the parser made of a config; nothing of it is built yet.
        parser: The parser, for the types of its options.
        allow: Packages whose classes and functions any option may name.
    """
    options = {option.name: option for option in typed_options(parser)}
    for name, value in _flat(_values(config), options):
        _check(value, options.get(name, Option(name)), name, tuple(allow))


def names_kind(value: Any, base: type) -> bool:
    """Whether a class of this kind is named, by itself or in a list."""
    listed = value if isinstance(value, (list, tuple)) else [value]
    named = (_object(str(_values(item).get("class_path"))) for item in listed)
    return any(isinstance(cls, type) and base in cls.__mro__ for cls in named)


def _check(value: Any, option: Option, where: str, allow: tuple[str, ...]) -> None:
    default = option.default  # a function's is its import path
    if isinstance(value, PLAIN) or value is default or value is _object(str(default)):
        return
    if isinstance(value, (Namespace, Mapping)):
        values = _values(value)
        if isinstance(path := values.get("class_path"), str):
            cls = _object(path)
            _check_class(cls, path, list(classes_in(option.type)), where, allow)
            _check_options(cls, values, where, allow)
        else:
            for key, item in values.items():
                _check(item, option, f"{where}.{key}", allow)
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            _check(item, option, where, allow)
    elif isinstance(value, type):
        classes = (part for hint in type_args(option.type) for part in classes_in(hint))
        _check_class(value, _path(value), list(classes), where, allow)
    elif not _within(getattr(_called(value), "__module__", None), allow):
        what = "a function" if callable(value) else article(type(value).__name__)
        raise ValueError(f"{where}: {_path(_called(value))} is {what}: expected a class")


def _check_options(
    cls: type, values: Mapping[str, Any], where: str, allow: tuple[str, ...]
) -> None:
    """Check what a class is called with."""
    init_args = _values(values.get("init_args"))
    listed = () if _plain(init_args) else options_of_class(cls)
    options = {option.name: option for option in listed}
    for name, value in _flat(init_args, options):
        _check(value, options.get(name, Option(name)), f"{where}.{name}", allow)
    for name, value in _values(values.get("dict_kwargs")).items():
        simple = not isinstance(value, Mapping) and _plain(value)
        if not simple and not _within(cls.__module__, (OURS, *allow)):
            raise ValueError(
                f"{where}.{name}: {cls.__name__} hands it on to another library, so it must be a "
                f"plain value or a list of them, got {quoted(value)}"
            )


def _plain(value: Any) -> bool:
    """Whether there is nothing but plain values, in lists and mappings or by itself."""
    if isinstance(value, (Namespace, Mapping)):
        values = _values(value)
        return "class_path" not in values and all(map(_plain, values.values()))
    return (
        all(map(_plain, value))
        if isinstance(value, (list, tuple, set))
        else isinstance(value, PLAIN)
    )


def _flat(values: Mapping[str, Any], options: Mapping[str, Option]) -> Iterator[tuple[str, Any]]:
    """Name values by option, that of a dataclass by one of its fields: theme.description."""
    for name, value in values.items():
        fields = any(option.startswith(f"{name}.") for option in options)
        if fields and isinstance(value, (Namespace, Mapping)):
            inner = {f"{name}.{key}": item for key, item in _values(value).items()}
            yield from _flat(inner, options)
        else:
            yield name, value


def _check_class(
    cls: Any, path: str, wanted: list[type], where: str, allow: tuple[str, ...]
) -> None:
    """Raise ValueError unless a base of the class is wanted, and `KINDS` has the class."""
    if not isinstance(cls, type):
        raise ValueError(f"{where}: {path} is not a class: expected a class_path of one")
    if _within(cls.__module__, allow):
        return
    if set(OF_THE_RUN) & set(cls.__mro__):
        raise ValueError(f"{where}: {path} is made by vision-attn itself: leave it out")
    bases = [base for base in wanted if base in cls.__mro__]
    result = _returned(cls) if _within(cls.__module__, (OURS,)) else None
    if not bases and not (result and set(wanted) & set(result.__mro__)):
        raise ValueError(
            f"{where}: a config cannot name what is called here: {path} was refused (--allow "
            "PACKAGE lets it name classes and functions of a package of your own)"
        )
    kinds = [kind for kind in KINDS for base in bases if kind.base in base.__mro__]
    modules = (OURS, *dict.fromkeys(module for kind in kinds for module in kind.modules))
    if not _within(cls.__module__, modules):
        raise ValueError(f"{where}: {path} was refused: expected a class of {', '.join(modules)}")


def _returned(cls: type) -> type | None:
    """Find the class of what an object of a class returns when it is called, if it says so."""
    call = getattr(cls, "__call__", None)  # noqa: B004
    result = get_type_hints(call).get("return") if isfunction(call) else None
    return result if isinstance(result, type) else None


def classes_in(hint: Any) -> Iterator[type]:
    """Find the classes of which a type takes objects, or objects that a factory makes.

    Examples:
        >>> from collections.abc import Callable
        >>> from torch import nn
        >>> from vision_attn.fitting.kinds import classes_in
        >>> [cls.__name__ for cls in classes_in(list[nn.Linear] | Callable[[int], nn.ReLU])]
        ['Linear', 'ReLU']
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin is None and isinstance(hint, type) and hint not in (object, Callable):
        yield hint
    elif origin not in (Literal, type):
        for part in inner[-1:] if origin is Callable else inner:
            yield from classes_in(part)


def type_args(hint: Any) -> Iterator[Any]:
    """Find what a type takes classes of: nn.ReLU in `list[type[nn.ReLU]]`."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is type:
        yield from inner
    elif origin not in (Literal, Callable):
        for part in inner:
            yield from type_args(part)


def check_files(config: Namespace, words: Sequence[str]) -> None:
    """Raise ValueError for a config that has files written where nobody who runs it has said.

    What classes write lies in the working folder, or where a word of the command line says. The
    run's own folder is a new one below trainer.default_root_dir, wherever that is.
    """
    typed = set(_strings([_read(word) for word in words]))
    root = fspath(config.trainer.default_root_dir or "")
    folders = [abspath("."), *([abspath(expanduser(root))] if root in typed else [])]
    for where, value in _written(config):
        if value not in typed and not _lies_in(value, folders):
            raise ValueError(
                f"{where}: {value} lies outside of the working folder, where a config alone cannot "
                f"have files written: to allow it type --{where} {value}"
            )
    if config.get("output") and config.output not in typed:
        raise ValueError("output: a config cannot name the file of predictions: type --output FILE")


def _written(value: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Find the values that may say where a file is written, each with its dotted option."""
    values = _values(value)
    if isinstance(path := values.get("class_path"), str):
        given = {**_values(values.get("init_args")), **_values(values.get("dict_kwargs"))}
        if _within(path, ("lightning",)):  # any text may be a part of a path
            defaults = {option.name: option.default for option in options_of_class(_object(path))}
            for key, item in given.items():
                if item != defaults.get(key):
                    yield from ((f"{where}.{key}", text) for text in _strings(item))
        elif _within(path, (OURS,)):
            written = WRITTEN & given.keys()
            yield from (
                (f"{where}.{key}", text) for key in written for text in _strings(given[key])
            )
        values = given
    for key, item in values.items():
        for part in item if isinstance(item, (list, tuple)) else [item]:
            yield from _written(part, f"{where}.{key}" if where else str(key))


def _lies_in(value: str, folders: Sequence[str]) -> bool:
    """Whether text that may be a path, or a part of one, leads nowhere but into these folders."""
    address = urlsplit(value) if ":/" in value and not PurePath(value).drive else None
    if address is not None:
        if address.scheme in ("http", "https"):  # of a service, which a logger sends to
            return True
        if address.scheme != "file":
            return False
        value = address.path
    path = PurePath(abspath(expanduser(value)))
    inside = not PurePath(value).is_absolute() and ".." not in PurePath(value).parts
    return (inside and not value.startswith("~")) or any(map(path.is_relative_to, folders))


def _values(options: Any) -> Mapping[Any, Any]:
    """Name the options in a part of a config; none in what is no mapping."""
    if isinstance(options, Namespace):  # whose vars have names of their own where it has methods
        return dict(options.items(branches=True, nested=False))
    return options if isinstance(options, Mapping) else {}


def _read(word: str) -> list[Any]:
    """Read a word's value as the parser does: as text, or as the YAML of a list or mapping."""
    text = word.partition("=")[2] if word.startswith("--") else word
    try:
        return [text, yaml.safe_load(text)]
    except yaml.YAMLError:
        return [text]


def _strings(content: Any) -> Iterator[str]:
    if isinstance(content, (str, PurePath)):
        yield str(content)
    elif isinstance(content, (list, tuple, set)):
        for item in content:
            yield from _strings(item)
    else:
        for item in _values(content).values():
            yield from _strings(item)


def _within(module: str | None, modules: Sequence[str]) -> bool:
    return module is not None and any(f"{module}.".startswith(f"{name}.") for name in modules)


def _called(value: Any) -> Any:
    """What runs when the value is called: a function of a partial, the class of an object."""
    while isinstance(value, partial):
        value = value.func
    return value if hasattr(value, "__qualname__") else type(value)


def _path(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _object(path: str) -> Any:
    """Find what an import path leads to in the modules that the parser has imported, or None."""
    module, _, name = path.rpartition(".")
    parent = sys.modules.get(module) or (_object(module) if module else None)
    return getattr(parent, name, None)
