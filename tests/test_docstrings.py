"""Docstrings that people can use: a plain first line for every public name, examples that run."""

import ast
import doctest
import importlib
import inspect
import re
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

PACKAGE = Path(__file__).parent.parent / "vision_attn"
REFERENCE = Path(__file__).parent.parent / "docs/reference"
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


def _faults(node: ast.AST, name: str) -> list[str]:
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
def test_examples_run(path: Path):
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    for test in examples(path.read_text(), str(path)):
        runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)


@each_module
def test_public_names_are_listed_and_described(path: Path):
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
UNTOLD = {"probe"}  # whose docstring has no sections yet


def exported_functions() -> dict[str, FunctionType]:
    modules = ["", ".fitting.fit", ".hub", *(f".{part}" for part in PARTS)]
    functions = {}
    for module in modules:
        part = importlib.import_module(f"vision_attn{module}")
        for name in getattr(part, "__all__", ()):
            function = inspect.unwrap(getattr(part, name))
            if inspect.isfunction(function) and function.__module__.startswith("vision_attn."):
                functions[name] = function
    return functions


def missing_sections(function: FunctionType) -> list[str]:
    """The parameters that `Args:` leaves out, and "Returns" where it returns what no line tells."""
    text, signature = inspect.getdoc(function) or "", inspect.signature(function)
    section = re.search(r"\nArgs:\n((?:    .*\n?|\n)+)", text)
    told = re.findall(r"^    (\w+):", section[1], re.MULTILINE) if section else []
    missing = [name for name in signature.parameters if name not in told]
    returns = signature.return_annotation not in (None, "None", inspect.Signature.empty)
    if (
        signature.parameters
        and returns
        and not re.search(r"^(Returns|Yields):$", text, re.MULTILINE)
    ):
        missing.append("Returns")
    return missing


def test_what_people_call_has_its_arguments_and_results_told():
    functions = exported_functions()
    assert {"explain", "score", "fit", "load_model", "overlay"} <= set(functions)
    missing = {name: missing_sections(function) for name, function in functions.items()}
    missing = {name: what for name, what in missing.items() if what and name not in UNTOLD}
    assert not missing


def test_missing_sections_are_seen():
    def area(width: float, height: float) -> float:
        """Multiply.

        Args:
            width: In metres.
        """
        return width * height

    assert missing_sections(area) == ["height", "Returns"]


def test_faults_are_seen():
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


@pytest.mark.parametrize("package", PARTS)
def test_the_reference_has_every_exported_name(package):
    page = (REFERENCE / f"{package}.md").read_text(encoding="utf-8")
    if "members:" not in page:
        return  # such a page shows all that is there
    shown = {word for line in re.findall(r"members: \[(.*)\]", page) for word in line.split(", ")}
    shown |= {word.rpartition(".")[2] for word in re.findall(r"::: ([\w.]+)", page)}
    top = importlib.import_module(f"vision_attn.{package}")
    homes = {name: getattr(top, name).__module__.split(".") for name in top.__all__}
    own = {name: home[-1] for name, home in homes.items() if home[1] == package}
    missing = {name for name, module in own.items() if module not in shown}
    assert not missing, f"docs/reference/{package}.md does not show the modules of {missing}"
