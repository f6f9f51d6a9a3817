"""Docstrings that people can use: a plain first line for every public name, examples that run."""

import ast
import doctest
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, cast

import pytest

PACKAGE = Path(__file__).parent.parent / "vision_attn"
THIRD_PERSON = re.compile(
    "(Returns|Gives|Makes|Writes|Saves|Puts|Draws|Takes|Leaves|Raises|Computes|Checks|Reads)\\b"
)

# Parts of the package whose docstrings keep these rules. Add yours.
PARTS = [
    "attention",
    "data",
    "evaluate",
    "fitting",
    "methods",
    "models",
    "pages",
    "render",
    "runs",
    "sequences",
    "tokens",
    "training",
]

DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
MODULES = [path for part in PARTS for path in sorted((PACKAGE / part).rglob("*.py"))]
each_module = pytest.mark.parametrize(
    "path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE))
)


def module_of(path: Path) -> ModuleType:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return importlib.import_module(".".join(parts).removesuffix(".__init__"))


def examples(source: str, name: str) -> list[doctest.DocTest]:
    """Every docstring of a module that has examples, each to be run on its own."""
    parser, tests = doctest.DocTestParser(), []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, *DEFINITIONS)) and (text := ast.get_docstring(node)):
            line = node.body[0].lineno - 1
            owner = f"{name}.{getattr(node, 'name', '')}"
            test = parser.get_doctest(text, {"__name__": "__main__"}, owner, name, line)
            if test.examples:
                tests.append(test)
    return tests


def faults(source: str, public: list[str]) -> list[str]:
    """What is wrong with the docstrings of a module's public names, one line each."""
    wrong = []
    for node in ast.parse(source).body:
        if isinstance(node, DEFINITIONS) and node.name in public and not _overloads(node):
            wrong += _faults(node, node.name)
            if isinstance(node, ast.ClassDef):
                if ">>> " not in (ast.get_docstring(node) or ""):
                    wrong.append(f"{node.name}: a public class needs an example (>>> ...)")
                for method in node.body:
                    if not isinstance(method, DEFINITIONS) or method.name.startswith("_"):
                        continue
                    if ast.get_docstring(method) or not node.bases:  # an override has its parent's
                        wrong += _faults(method, f"{node.name}.{method.name}")
    return wrong


def _overloads(node: ast.AST) -> bool:
    return any(
        getattr(mark, "id", "") == "overload" for mark in getattr(node, "decorator_list", ())
    )


def _faults(node: Any, name: str) -> list[str]:
    text = ast.get_docstring(node) or ""
    first, _, rest = text.partition("\n")
    if not text:
        return [f"{name}: no docstring"]
    wrong = []
    if ">>> " in text and "\n\nExamples:\n    " not in text:
        wrong.append(f"{name}: examples stand indented under a line 'Examples:', for the site")
    if rest and not rest.startswith("\n"):
        wrong.append(f"{name}: the first line must be a sentence of its own: {first!r}")
    if not first.endswith((".", ":", "?")):
        wrong.append(f"{name}: the first line must end with a full stop: {first!r}")
    if THIRD_PERSON.match(first):
        wrong.append(f"{name}: the first line must be an imperative or a noun phrase: {first!r}")
    return wrong


@each_module
def test_examples_run(path: Path) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    for test in examples(path.read_text(), str(path)):
        runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)


@each_module
def test_public_names_are_listed_and_described(path: Path) -> None:
    module = module_of(path)
    defined = [
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, DEFINITIONS) and not node.name.startswith("_")
    ]
    public = getattr(module, "__all__", None)
    assert public is not None or not defined, "__all__ is missing: list the public names in it"
    missing = [name for name in public or [] if not hasattr(module, name)]
    assert not missing, f"__all__ lists names that are not there: {missing}"
    assert inspect.getdoc(module), "the module needs a docstring"
    wrong = faults(path.read_text(), public or [])
    assert not wrong, "\n".join(wrong)


# What a person calls: the functions of the package itself, and those that its parts export.
OWN = "vision_attn."


def exported() -> dict[str, Any]:
    """What the package and its parts export of their own, by name."""
    modules = ["", ".fitting.fit", ".hub", ".types", *(f".{part}" for part in PARTS)]
    values = {}
    for module in modules:
        part = importlib.import_module(f"vision_attn{module}")
        for name in getattr(part, "__all__", ()):
            value = inspect.unwrap(getattr(part, name))
            if str(getattr(value, "__module__", "")).startswith("vision_attn."):
                values[name] = value
    return values


def exported_functions() -> dict[str, FunctionType]:
    return {name: value for name, value in exported().items() if inspect.isfunction(value)}


def exported_classes() -> dict[str, type]:
    classes = {name: value for name, value in exported().items() if inspect.isclass(value)}
    return {name: kind for name, kind in classes.items() if not issubclass(kind, Exception)}


def described(text: str, *sections: str) -> set[str]:
    """The names that these sections of a docstring describe."""
    named = f"^(?:{'|'.join(sections)}):\n((?:    .*\n?|\n)+)"
    bodies = re.findall(named, inspect.cleandoc(text), re.MULTILINE)
    return {name for body in bodies for name in re.findall(r"^    (\w+):", body, re.MULTILINE)}


def missing_sections(function: FunctionType) -> list[str]:
    """The parameters that `Args:` leaves out, and "Returns" where it returns what no line tells."""
    text, signature = inspect.getdoc(function) or "", inspect.signature(function)
    missing = [name for name in signature.parameters if name not in described(text, "Args")]
    returns = signature.return_annotation not in (None, "None", inspect.Signature.empty)
    if (
        signature.parameters
        and returns
        and not re.search(r"^(Returns|Yields):$", text, re.MULTILINE)
    ):
        missing.append("Returns")
    return missing


def parameters_of(member: Any) -> list[str]:
    """The names of what it takes; none where Python itself makes it, as a subclass of str."""
    try:
        return [*inspect.signature(member).parameters]
    except ValueError:
        return []


def missing_arguments(kind: type) -> list[str]:
    """The arguments of a class that neither its docstring describes nor that of an own base.

    A base's docstring counts for what the class takes over as it is: an `__init__`, or fields of a
    dataclass.
    """
    missing = []
    for name in parameters_of(kind):
        for owner in kind.__mro__:
            if not owner.__module__.startswith(OWN) or name in described(
                owner.__doc__ or "", "Args", "Attributes"
            ):
                break
            init = inspect.unwrap(vars(owner).get("__init__", object.__init__))
            if getattr(init, "__code__", None) and init.__code__.co_filename != "<string>":
                missing += [name] if init.__module__.startswith(OWN) else []
                break
            has_fields = "__dataclass_fields__" in vars(owner) or issubclass(owner, tuple)
            if has_fields and name in vars(owner).get("__annotations__", {}):
                missing.append(name)
                break
    return missing


def arguments_in_prose(text: str, names: Iterable[str]) -> list[str]:
    """The names that a docstring describes as `name: ...` above its sections."""
    prose = re.split(r"^[A-Z][a-z]+:$", inspect.cleandoc(text), flags=re.MULTILINE)[0]
    listed = re.findall(r"(?:^|[.;] )((?:\w+(?:, | and ))*\w+): ", prose, re.MULTILINE)
    given = {name for names in listed for name in re.split(", | and ", names)}
    return [name for name in names if name in given]


def test_what_people_call_has_its_arguments_and_results_told() -> None:
    functions = exported_functions()
    assert {"explain", "score", "fit", "load_model", "overlay"} <= set(functions)
    missing = {name: missing_sections(function) for name, function in functions.items()}
    assert not {name: what for name, what in missing.items() if what}


def test_the_arguments_of_classes_are_described() -> None:
    classes = exported_classes()
    assert {"ViT", "Rollout", "Model", "ImageFolder", "Heatmaps", "Deletion"} <= set(classes)
    missing = {name: missing_arguments(kind) for name, kind in classes.items()}
    assert not {name: what for name, what in missing.items() if what}


def members_of(classes: dict[str, type]) -> Iterator[tuple[str, Any]]:
    """These classes and their public methods, by name."""
    for name, kind in classes.items():
        yield name, kind
        for method, function in vars(kind).items():
            if inspect.isfunction(function) and not method.startswith("_"):
                yield f"{name}.{method}", function


def test_classes_describe_their_arguments_in_sections_alone() -> None:
    prose, unknown = {}, {}
    for name, member in members_of(exported_classes()):
        text, parameters = member.__doc__ or "", parameters_of(member)
        prose[name] = arguments_in_prose(text, parameters)
        unknown[name] = described(text, "Args") - set(parameters)
    assert not {name: names for name, names in prose.items() if names}
    assert not {name: names for name, names in unknown.items() if names}, "no such arguments"


@dataclass(frozen=True)
class Box:
    """A box.

    Args:
        width: In metres.
    """

    width: float
    height: float = 1.0


@dataclass(frozen=True)
class Crate(Box):
    """A box. lid: whether it has one, which
    many have; weight, load: in kilograms.

    Args:
        height: In metres.
    """

    lid: bool = True
    weight: float = 1.0


class Barrel(Box):
    """A round box.

    Args:
        width: In metres.
    """

    def __init__(self, width: float, staves: int):
        super().__init__(width)


def test_missing_arguments_of_a_class_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "OWN", __name__)
    assert missing_arguments(Box) == ["height"]
    assert missing_arguments(Crate) == ["lid", "weight"]
    assert missing_arguments(Barrel) == ["staves"]
    assert arguments_in_prose(Crate.__doc__ or "", ["width", "lid", "weight", "load"]) == [
        *("lid", "weight", "load")
    ]


def test_missing_sections_are_seen() -> None:
    def area(width: float, height: float) -> float:
        """Multiply.

        Args:
            width: In metres.
        """
        return width * height

    assert missing_sections(cast(Any, area)) == ["height", "Returns"]


def test_faults_are_seen() -> None:
    source = '''
class Bare: pass
class Dressed:
    """Clothes, on.

    Examples:
        >>> 1 + 1
        2
    """
    def wear(self): pass
class Two:
    """A line
    that goes on.
    >>> 1
    """
def run():
    """Run it"""
def _private(): pass
def unlisted(): pass
'''
    assert faults(source, ["Bare", "Dressed", "Two", "run"]) == [
        "Bare: no docstring",
        "Bare: a public class needs an example (>>> ...)",
        "Dressed.wear: no docstring",
        "Two: examples stand indented under a line 'Examples:', for the site",
        "Two: the first line must be a sentence of its own: 'A line'",
        "Two: the first line must end with a full stop: 'A line'",
        "run: the first line must end with a full stop: 'Run it'",
    ]
    (test,) = [test for test in examples(source, "it") if test.name == "it.Dressed"]
    assert doctest.DocTestRunner(verbose=False).run(test).failed == 0
    wrong = examples('"""Sum.\n\n>>> 1 + 1\n3\n"""', "it")
    assert doctest.DocTestRunner(verbose=False).run(wrong[0], out=lambda _: None).failed == 1
