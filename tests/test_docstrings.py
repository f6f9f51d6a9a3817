"""Docstrings: every public class shows how it is used, and every example runs."""

import doctest
import inspect
import pkgutil
import re
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

PACKAGES = ["attention", "evaluate", "render"]
REFERENCE = Path(__file__).parent.parent / "docs/reference"
THIRD_PERSON = re.compile(
    "(Returns|Gives|Makes|Writes|Saves|Puts|Draws|Takes|Leaves|Raises|Computes|Checks|Reads)\\b"
)


def modules_of(package: str) -> Iterator[ModuleType]:
    """The package itself and every module below it."""
    top = import_module(f"vision_attn.{package}")
    yield top
    for found in pkgutil.walk_packages(top.__path__, f"{top.__name__}."):
        yield import_module(found.name)


MODULES = [module for package in PACKAGES for module in modules_of(package)]


def own(module: ModuleType) -> dict[str, object]:
    """The module's public classes and functions, but not those it imports."""
    named = {name: getattr(module, name) for name in getattr(module, "__all__", ())}
    return {
        name: it
        for name, it in named.items()
        if callable(it) and getattr(it, "__module__", None) == module.__name__
    }


def methods(cls: type) -> dict[str, object]:
    """The public methods and properties that a class defines itself."""
    kinds = staticmethod | classmethod | property
    return {
        name: getattr(cls, name)
        for name, it in vars(cls).items()
        if not name.startswith("_") and (inspect.isfunction(it) or isinstance(it, kinds))
    }


@pytest.fixture(params=MODULES, ids=lambda module: module.__name__.removeprefix("vision_attn."))
def module(request) -> ModuleType:
    return request.param


def test_examples_run(module, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        failed, _ = doctest.testmod(module)
    assert not failed, capsys.readouterr().out


def test_public_names_are_listed(module):
    defined = {
        name
        for name, it in vars(module).items()
        if getattr(it, "__module__", None) == module.__name__ and not name.startswith("_")
    }
    assert not defined or hasattr(module, "__all__"), f"{module.__name__} needs an __all__"
    missing = [name for name in getattr(module, "__all__", ()) if not hasattr(module, name)]
    assert not missing, f"{module.__name__}.__all__ names what it lacks: {missing}"


def test_first_lines_are_sentences(module):
    documented = {module.__name__: module}
    for name, it in own(module).items():
        documented[name] = it
        if inspect.isclass(it):
            documented |= {f"{name}.{method}": of for method, of in methods(it).items()}
    wrong = []
    for name, it in documented.items():
        text = inspect.getdoc(it) or ""
        first, *rest = text.split("\n")
        if not first.endswith((".", "?")) or (rest and rest[0]) or THIRD_PERSON.match(first):
            wrong.append(f"{name}: {first!r}")
    assert not wrong, "expected one sentence and then an empty line: " + "; ".join(wrong)


def test_classes_have_examples(module):
    finder = doctest.DocTestFinder(recurse=False)
    bare = [
        name
        for name, it in own(module).items()
        if inspect.isclass(it) and not any(test.examples for test in finder.find(it, name))
    ]
    assert not bare, f"{module.__name__}: no example in the docstrings of {bare}"


@pytest.mark.parametrize("package", PACKAGES)
def test_the_reference_has_every_exported_name(package):
    page = (REFERENCE / f"{package}.md").read_text(encoding="utf-8")
    if "members:" not in page:
        return  # such a page shows all that is there
    shown = {word for line in re.findall(r"members: \[(.*)\]", page) for word in line.split(", ")}
    top = import_module(f"vision_attn.{package}")
    homes = {name: getattr(top, name).__module__ for name in top.__all__}
    missing = {name for name, home in homes.items() if home.split(".")[2] not in shown}
    assert not missing, f"docs/reference/{package}.md does not show the modules of {missing}"
