"""What jsonargparse says is wrong, as values.

It raises one kind of error for everything: what is wrong stands in the message alone, nested and
long. Tried with jsonargparse 4.53.0. What no pattern here knows, because it is new or worded anew,
becomes `Other`: its own words in one line, without the help that the rest allow for.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class UnknownWord:
    """A word of the command line that no option takes; `--name=value` without its value."""

    word: str


@dataclass(frozen=True)
class UnknownOption:
    """An option, dotted, that the parser does not have."""

    option: str


@dataclass(frozen=True)
class NotOfClass:
    """An option that the class at a path does not take."""

    option: str
    path: str


@dataclass(frozen=True)
class NotAllowed:
    """A path whose package may not be imported."""

    path: str


@dataclass(frozen=True)
class Incomplete:
    """Options that the class at a path needs and was not given."""

    path: str
    missing: str


@dataclass(frozen=True)
class WrongType:
    """A value that is none of the expected types or choices; None if it is not quoted."""

    expected: tuple[str, ...]
    value: str | None


@dataclass(frozen=True)
class NoClass:
    """A path, or a name, at which there is no class."""

    path: str


@dataclass(frozen=True)
class NotSubclass:
    """A class of another kind than the base that is expected."""

    path: str
    base: str


@dataclass(frozen=True)
class NotAClass:
    """A value where a class is expected."""

    value: str


@dataclass(frozen=True)
class Other:
    """A message that is not known here, in one line."""

    text: str


Reason = (
    UnknownWord
    | UnknownOption
    | NotOfClass
    | NotAllowed
    | Incomplete
    | WrongType
    | NoClass
    | NotSubclass
    | NotAClass
    | Other
)


@dataclass(frozen=True)
class Complaint:
    """What is wrong, and with which option, dotted; empty where the message does not say."""

    reason: Reason
    where: str = ""


# What an option may take beside a class, which then is what its value was meant to be.
CONTAINERS = frozenset({"Iterable", "Sequence", "list", "tuple", "set", "bool"})


def complaint(message: str) -> Complaint:
    """Parse a message of jsonargparse's ArgumentError, or of its instantiation."""
    where = ".".join(re.findall(r'Parser key "(.*?)"', message))
    return Complaint(_reason(message), where)


def _without_guess(message: str) -> str:
    """The message without what it says of an option's base class, where a class was named.

    Of an option that takes a class or a list of these, each way is tried, one with the base class,
    which a policy of imports may deny.
    """
    bases = re.findall(r"[\w.]*\.(\w+)\b", "".join(re.findall(r"Subtypes: \[.*", message)))
    base = rf"[\w.]+\.(?:{'|'.join(bases)})"
    guess = rf"- Problem with given class_path '({base})':\n *Importing '\1' .*"
    rest = re.sub(guess, "", message) if bases else message
    return rest if "Problem with given class_path" in rest else message


def _reason(message: str) -> Reason:
    message = _without_guess(message)
    paths = re.findall(r"class_path[= ]'(.*?)'", message)
    if found := re.search(r"Importing '(.*?)' is not allowed", message):
        return NotAllowed(found[1])
    incomplete = r"class_path '(\S+?)':\s+the following arguments are required: ([\w, ]+)"
    if found := re.search(incomplete, message):
        return Incomplete(found[1], found[2].strip())
    if found := re.search(r"unrecognized arguments: (\S+)", message):
        return UnknownWord(found[1].split("=")[0])
    if found := re.search(r"Group '(.*?)' does not accept \w+(?: key)? '(.*?)'", message):
        return UnknownOption(f"{found[1]}.{found[2].split('.')[0]}")
    if found := re.search(r"Option '(.*?)' is not accepted", message):
        return NotOfClass(found[1], paths[-1]) if paths else UnknownOption(found[1])
    types = re.findall(r"Expected an? (?:<class '(.*?)'>|typing\.Literal\[(.*?)\])", message)
    expected = [name.split(".")[-1] or choices for name, choices in types if name != "NoneType"]
    if not CONTAINERS.issuperset(expected):
        return WrongType(tuple(expected), _value(message))
    if found := re.search(r"module '(.*?)' has no attribute '(.*?)'", message):
        return NoClass(f"{found[1]}.{found[2]}")
    if found := re.search(r"Expected a dot import path string: (\S+)", message):
        simple = tuple(name for name in expected if name == "bool")
        return WrongType(simple, found[1]) if simple else NoClass(found[1])
    if "No module named" in message and paths:
        return NoClass(paths[-1])
    if found := re.search(
        r"Import path (\S+ )?does not correspond to a subclass of (\w+)", message
    ):
        path = found[1] or _value(message) or "?"  # among several types it is quoted at the end
        return NotSubclass(path.strip(), found[2])
    if found := re.search(r"Not a valid subclass of \w+. Got value: (.*)", message):
        return NotAClass(found[1])
    if expected:
        return WrongType(tuple(expected), _value(message))
    return Other(" ".join(re.sub(r'Parser key "(.*?)":', r"\1:", message).split()))


def _value(message: str) -> str | None:
    """The value that was given, as far as it stands in one line."""
    found = re.search(r"(?:Given|Got) value: (.*?)(?:\. Got value|$)", message, re.MULTILINE)
    return found[1] if found else None
