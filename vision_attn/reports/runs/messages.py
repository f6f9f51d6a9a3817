"""jsonargparse's complaints as one line for a person, with the nearest name that would do.

Its messages are nested and long, and only their text says what is wrong; what no pattern here knows
is passed on as it is, in one line.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from inspect import isclass, signature

from jsonargparse import ArgumentParser

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
    options = sorted(a.dest for a in parser._actions if not a.dest.endswith("help"))
    where = ".".join(re.findall(r'Parser key "(.*?)"', message))
    prefix = f"{where}: " if where else ""
    if found := re.search(r"Importing '(.*?)' is not allowed", message):
        return prefix + _refused(found[1])
    incomplete = r"class_path '(\S+?)':\s+the following arguments are required: ([\w, ]+)"
    if found := re.search(incomplete, message):
        return prefix + _incomplete(found[1], found[2].strip())
    if found := re.search(r"unrecognized arguments: (\S+)", message):
        return _unrecognized(found[1].split("=")[0], options)
    if found := re.search(r"Group '(.*?)' does not accept \w+(?: key)? '(.*?)'", message):
        word = f"{found[1]}.{found[2].split('.')[0]}"
        return f"unknown option {word}{nearest(word, options)}"
    if found := re.search(r"Option '(.*?)' is not accepted", message):
        if paths := re.findall(r"class_path[= ]'(.*?)'", message):
            return prefix + _not_of_class(found[1], paths[-1])
        return f"unknown option {found[1]}{nearest(found[1], options)}"
    if words := _own_words(message):
        return prefix + words
    types = re.findall(r"Expected an? (?:<class '(.*?)'>|typing\.Literal\[(.*?)\])", message)
    expected = [name.split(".")[-1] or choices for name, choices in types if name != "NoneType"]
    if expected:
        value = re.findall(r"(?:Given|Got) value: (.*?)(?:\. Got value|$)", message, re.MULTILINE)
        return f"{prefix}expected {' or '.join(expected)}, got {value[0] if value else '?'}"
    if found := re.search(r"module '(.*?)' has no attribute '(.*?)'", message):
        return prefix + _no_class(f"{found[1]}.{found[2]}")
    if found := re.search(r"No module named|Expected a dot import path string: (\S+)", message):
        paths = re.findall(r"class_path[= ]'(.*?)'", message)
        return prefix + _no_class(found[1] or (paths or ["?"])[-1])
    if found := re.search(r"Import path (\S+) does not correspond to a subclass of (\w+)", message):
        return f"{prefix}{found[1]} is not a {found[2]}"
    if found := re.search(r"Not a valid subclass of \w+. Got value: (.*)", message):
        return f"{prefix}expected a class, or its class_path and init_args, got {found[1]}"
    return " ".join(re.sub(r'Parser key "(.*?)":', r"\1:", message).split())


def _own_words(message: str) -> str | None:
    """What a class that may stand here says of its options, among jsonargparse's lists of types."""
    errors = message.partition("Errors:")[2].partition("Given value")[0]
    lines = [line.strip() for line in re.split(r"\n\s*- ", errors)]
    theirs = (
        "Problem with ",
        "Expected ",
        "Not a valid ",
        "Does not validate ",
        "Parser key ",
        "a class path",
        "a dict",
    )
    own = [line for line in lines if line and not line.startswith(theirs)]
    return " ".join(own[0].split()) if own else None


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


def _refused(path: str) -> str:
    """What to say of a class of a package that is not known to be safe."""
    package = path.split(".")[0]
    return (
        f"{path} was not imported: a config names classes of vision_attn, torch, torchvision, timm "
        f"and lightning (--allow {package} lets it run the code of {package} too)"
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
    found = sys.modules.get(module)  # the message of an error imports nothing
    for name, value in (vars(found) if found else {}).items():
        if isclass(value) and not name.startswith("_"):
            yield name.lower(), f"{module}.{name}"
