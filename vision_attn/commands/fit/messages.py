"""jsonargparse's complaints as one line for a person, with the nearest name that would do."""

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from importlib import import_module
from inspect import isclass, signature
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser

from vision_attn.compat.jsonargparse_messages import (
    NoClass,
    NotAClass,
    NotOfClass,
    NotSubclass,
    Other,
    RaisedByClass,
    UnknownOption,
    UnknownWord,
    WrongType,
    complaint,
)

HOMES = (
    "vision_attn.models",
    "vision_attn.attention",
    "vision_attn.training",
    "vision_attn.data",
    "lightning.pytorch.callbacks",
    "lightning.pytorch.loggers",
    "torch.optim",
    "torch.nn",
)


def readable(message: str, parser: ArgumentParser) -> str:
    """One line that names the option, what was expected and what came, and the nearest names."""
    found = complaint(message)
    prefix = f"{found.where}: " if found.where else ""
    match found.reason:
        case UnknownWord(word):
            return _unrecognized(word, options_of(parser))
        case UnknownOption(option):
            return f"unknown option {option}{nearest(option, options_of(parser))}"
        case NotOfClass(option, path):
            return prefix + _not_of_class(option, path)
        case RaisedByClass(text):
            return prefix + text
        case WrongType(expected, value):
            return (
                f"{prefix}expected {' or '.join(expected)}, got {'?' if value is None else value}"
            )
        case NoClass(path):
            return prefix + _no_class(path)
        case NotSubclass(path, base):
            return f"{prefix}{path} is not a {base}"
        case NotAClass(value):
            return f"{prefix}expected a class, or its class_path and init_args, got {value}"
        case Other(text):
            return text


def options_of(parser: ArgumentParser) -> list[str]:
    """The options and groups of a parser, dotted; those of a class that an option names are not."""
    defaults = parser.get_defaults()
    leaves = (re.split(r"\.class_path|\.init_args", key)[0] for key in vars(defaults.as_flat()))
    parts = [leaf.split(".") for leaf in leaves]
    groups = {".".join(each[:count]) for each in parts for count in range(1, len(each) + 1)}
    return sorted(groups | {"print_config"})


def check_yaml(path: str) -> None:
    """ValueError for a file that is not YAML, or has a misspelt key beside class_path."""
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise ValueError(f"{path} is not YAML: line {line}: {error.problem}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected sections such as model, data and trainer")
    for where, section in _classes_named(content):
        for key in section.keys() - {"class_path", "init_args", "dict_kwargs"}:
            hint = nearest(key, ["class_path", "init_args"])
            raise ValueError(f"{path}: {where}: unknown key {key!r}{hint}")


def _classes_named(content: Any, where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping inside that names a class, with its dotted place."""
    if isinstance(content, dict):
        if "class_path" in content:
            yield where, content
        for key, value in content.items():
            yield from _classes_named(value, f"{where}.{key}" if where else str(key))
    elif isinstance(content, list):
        for item in content:
            yield from _classes_named(item, where)


def nearest(word: str, known: Iterable[str]) -> str:
    """What to say after an unknown word: the names most like it, or nothing."""
    close = get_close_matches(word, list(known), n=2, cutoff=0.75)
    return f": did you mean {' or '.join(close)}?" if close else ""


def _unrecognized(word: str, options: list[str]) -> str:
    if not word.startswith("-"):
        return f"unexpected word {word!r}: an option looks like --trainer.max_epochs 2"
    hint = nearest(word, [f"--{option}" for option in options])
    if not hint:  # --batch_size for --data.batch_size
        ends = {option.split(".")[-1]: f"--{option}" for option in options}
        close = get_close_matches(word.lstrip("-").split(".")[-1], ends, n=1, cutoff=0.75)
        hint = f": did you mean {ends[close[0]]}?" if close else " (--help-all lists them all)"
    return f"unknown option {word}{hint}"


def _not_of_class(word: str, path: str) -> str:
    module, _, name = path.rpartition(".")
    try:
        known = list(signature(getattr(import_module(module), name)).parameters)
    except (ImportError, AttributeError, ValueError):
        known = []
    listed = f": it has {', '.join(known)}" if known else ""
    return f"{name} has no option {word!r}{nearest(word, known) or listed}"


def _no_class(path: str) -> str:
    """Nearest classes: of the module that was named, or of all places where classes usually are."""
    module, _, name = path.rpartition(".")
    known = dict(_classes(module)) or {n: p for home in HOMES[::-1] for n, p in _classes(home)}
    close = get_close_matches(name.lower(), known, n=2, cutoff=0.6)
    hint = f": did you mean {' or '.join(known[c] for c in close)}?" if close else ""
    return f"no class {path!r}{hint}"


def _classes(module: str) -> Iterator[tuple[str, str]]:
    """Name in lower case and import path of each public class in a module."""
    try:
        found = vars(import_module(module)) if module else {}
    except ImportError:
        found = {}
    for name, value in found.items():
        if isclass(value) and not name.startswith("_"):
            yield name.lower(), f"{module}.{name}"
