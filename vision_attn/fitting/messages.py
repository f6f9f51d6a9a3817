"""jsonargparse's complaints as one line for a person, with the nearest name that would do."""

import re
import sys
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from inspect import isclass, signature

from jsonargparse import ArgumentParser

from vision_attn.compat.jsonargparse_messages import (
    Incomplete,
    NoClass,
    NotAClass,
    NotAllowed,
    NotOfClass,
    NotSubclass,
    Other,
    UnknownOption,
    UnknownWord,
    WrongType,
    complaint,
)
from vision_attn.errors import quoted

__all__ = ["nearest", "options_of", "readable"]

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
        case NotAllowed(path):
            return prefix + _refused(path)
        case Incomplete(path, missing):
            return prefix + _incomplete(path, missing)
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


def nearest(word: str, known: Iterable[str]) -> str:
    """Name what is most like an unknown word, for the end of a message; nothing if none is."""
    close = get_close_matches(word, list(known), n=2, cutoff=0.75)
    return f": did you mean {' or '.join(close)}?" if close else ""


def _unrecognized(word: str, options: list[str]) -> str:
    if not word.startswith("-"):
        return f"unexpected word {quoted(word)}: an option looks like --trainer.max_epochs 2"
    hint = nearest(word, [f"--{option}" for option in options])
    if not hint:  # --batch_size for --data.batch_size
        ends = {option.split(".")[-1]: f"--{option}" for option in options}
        close = get_close_matches(word.lstrip("-").split(".")[-1], ends, n=1, cutoff=0.75)
        hint = f": did you mean {ends[close[0]]}?" if close else " (--help-all lists them all)"
    return f"unknown option {word}{hint}"


def _refused(path: str) -> str:
    """What to say of a class of a package that is not known to be safe."""
    package = path.split(".")[0]
    return (
        f"{path} was not imported: a config can name only classes of vision_attn, torch.nn, "
        "torch.optim, torchvision, timm and lightning.pytorch that networks are made of and "
        f"trained with (--allow {package} lets it run the code of {package} too)"
    )


def _incomplete(path: str, missing: str) -> str:
    """What a class lacks, and our own class of nearly its name where it is of another package."""
    ours = dict(_classes("vision_attn.models"))
    close = get_close_matches(path.rpartition(".")[2].lower(), ours, n=1, cutoff=0.6)
    mine = close and not path.startswith("vision_attn.")
    hint = f": did you mean {ours[close[0]]}?" if mine else ""
    return f"{path} needs {missing}{hint}"


def _not_of_class(word: str, path: str) -> str:
    module, _, name = path.rpartition(".")
    try:
        known = list(signature(getattr(sys.modules[module], name)).parameters)
    except (KeyError, AttributeError, ValueError):
        known = []
    if word in known:
        return f"{name} gets {quoted(word)} from what uses it: leave it out"
    listed = f": it has {', '.join(known)}" if known else ""
    return f"{name} has no option {quoted(word)}{nearest(word, known) or listed}"


def _no_class(path: str) -> str:
    """Nearest classes: of the module that was named, or of all places where classes usually are."""
    module, _, name = path.rpartition(".")
    known = dict(_classes(module)) or {n: p for home in HOMES[::-1] for n, p in _classes(home)}
    close = get_close_matches(name.lower(), known, n=2, cutoff=0.6)
    hint = f": did you mean {' or '.join(known[c] for c in close)}?" if close else ""
    return f"no class {quoted(path)}{hint}"


def _classes(module: str) -> Iterator[tuple[str, str]]:
    """Name in lower case and import path of each public class in a module."""
    package = sys.modules.get(
        module
    )  # the message of an error imports no module that is not in use
    names = dict.fromkeys([*vars(package), *getattr(package, "__all__", ())]) if package else ()
    for name in names:
        if not name.startswith("_") and isclass(getattr(package, name, None)):
            yield name.lower(), f"{module}.{name}"
