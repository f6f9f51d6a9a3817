"""The project's own files agree with the code: dependencies, hooks, workflow, worked examples."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FILES = sorted((ROOT / "vision_attn").rglob("*.py"))


def imported(tree: ast.AST, lazy: bool = False) -> Iterator[tuple[str, bool]]:
    """Top-level names of the packages imported, and whether only a function or a type imports it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module).partition(".")[0], lazy
        in_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        yield from imported(node, lazy or in_function or for_types)


def normalised(requirement: str) -> str:
    """The distribution that a requirement names, as PEP 503 compares them."""
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None
    return re.sub(r"[-_.]+", "-", name[0]).lower()


installed = cache(packages_distributions)  # it reads the files of every distribution


@cache
def distributions(package: str) -> frozenset[str]:
    return frozenset(map(normalised, installed().get(package, [package])))


DEPENDENCIES = set(map(normalised, PROJECT["dependencies"]))
EXTRAS = {
    normalised(requirement)
    for extra, requirements in PROJECT["optional-dependencies"].items()
    for requirement in requirements
    if extra not in ("dev", "notebooks", "release")
}
OURS = {"vision_attn", *sys.stdlib_module_names}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_imported_is_declared(path: Path) -> None:
    for package, lazy in imported(ast.parse(path.read_text(encoding="utf-8"))):
        declared = DEPENDENCIES | EXTRAS if lazy else DEPENDENCIES
        assert package in OURS or distributions(package) & declared, (
            f"{package} is imported {'in a function' if lazy else 'at the top'}, but pyproject.toml "
            f"does not declare {' or '.join(sorted(distributions(package)))}"
        )


def test_what_is_declared_is_imported_and_comes_by_no_other() -> None:
    words = [sys.executable, "-m", "deptry", "vision_attn", "--no-ansi"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


INSIDE = {"dev", "release"}  # extras of who works on the package


@pytest.mark.parametrize("language", ["", ".ja", ".zh"])
def test_the_page_on_installing_has_a_row_for_each_extra(language: str) -> None:
    page = (ROOT / f"docs/start/install{language}.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `pip install")]
    extras = re.findall(r"'\.\[(\w+)\]'", "\n".join(rows))
    assert sorted(extras) == sorted(PROJECT["optional-dependencies"].keys() - INSIDE)


def test_the_walk_tells_lazy_imports_from_others() -> None:
    code = (
        "import torch.nn\nif TYPE_CHECKING:\n    from onnx import helper\n"
        "try:\n    import cv2\nexcept ImportError:\n    pass\n"
        "class A:\n    def late(self):\n        from captum import attr\n"
    )
    expected = {("torch", False), ("onnx", True), ("cv2", False), ("captum", True)}
    assert set(imported(ast.parse(code))) == expected


def test_hooks_run_what_make_check_runs() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert [repo["repo"] for repo in hooks] == ["local"], "hooks come from .venv alone"
    entries = {hook["entry"].split(" --")[0] for repo in hooks for hook in repo["hooks"]}
    recipe = re.search(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    commands = re.findall(r"\$\(BIN\)/(.+?)(?: --[\w-]+)*(?: \.)?$", recipe[1], re.MULTILINE)
    assert entries == {f".venv/bin/{command}" for command in commands}


def workflow(name: str) -> dict[Any, Any]:
    return yaml.safe_load((ROOT / ".github/workflows" / name).read_text(encoding="utf-8"))


def test_the_tests_run_on_every_python_that_is_promised_and_on_every_system() -> None:
    matrix = workflow("check.yml")["jobs"]["test"]["strategy"]["matrix"]
    promised = {c.rpartition(" ")[2] for c in PROJECT["classifiers"] if ":: Python :: 3." in c}
    assert set(matrix["python"]) == promised
    assert {system.partition("-")[0] for system in matrix["system"]} == {
        "ubuntu", "macos", "windows"
    }  # fmt: skip
    assert all(each["may_fail"] for each in matrix["include"])


def test_workflows_run_targets_of_the_makefile() -> None:
    recipes = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = set()
    for path in sorted((ROOT / ".github/workflows").glob("*.yml")):
        for job in workflow(path.name)["jobs"].values():
            for step in job["steps"]:
                words = [w for w in step.get("run", "").split() if w.isascii()]
                if words[:1] == ["make"]:
                    asked |= {w for w in words[1:] if re.fullmatch(r"[a-z-]+", w)}
    assert asked == {"check", "test", "release-check", "audit", "demo", "docs"}
    assert asked <= recipes
    assert "make check test SLOW=1 " in (ROOT / ".ci/run").read_text()


def test_a_release_is_published_from_a_tag_without_a_password() -> None:
    jobs = workflow("release.yml")["jobs"]
    assert workflow("release.yml")[True] == {"push": {"tags": ["v*"]}}  # YAML reads `on` as True
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["needs"] == "build"
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text()


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        (["SLOW=1"], ["not compiled", "compiled"]),  # nothing is left out
        ([], ["not compiled and not slow", "compiled and not slow"]),
        (["FAST=1"], ["not slow and not compiled and not browser"]),
    ],
)
def test_which_tests_make_runs(words: list[str], chosen: list[str]) -> None:
    made = ["make", "-n", "test", *words]
    # The make that runs this test hands its own words on, SLOW=1 among them.
    clean = {
        k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "SLOW", "FAST")
    }
    done = subprocess.run(made, cwd=ROOT, env=clean, capture_output=True, text=True, check=True)
    runs = re.findall(r'-m pytest (.*)-m "(.*)"(.*)', done.stdout.replace("\\\n", ""))
    assert [expression for _, expression, _ in runs] == chosen
    paths = [path for *_, rest in runs for path in rest.split()]
    assert all((ROOT / path).exists() for path in paths)
    if "FAST=1" not in words:  # all files, and then all that hold a test to compile
        mark = "pytest.mark." + "compiled"
        files = [path for path in (ROOT / "tests").rglob("test_*.py") if mark in path.read_text()]
        assert files
        assert sorted(paths) == sorted(str(path.relative_to(ROOT)) for path in files)
    else:
        assert paths


def test_make_keeps_bytecode_whatever_the_shell_says() -> None:
    """Without it each process compiles the libraries anew: seconds in each of hundreds."""
    show = "show:\n\t@echo found=$$PYTHONDONTWRITEBYTECODE\n"
    done = subprocess.run(
        ["make", "-s", "-f", "Makefile", "-f", "-", "show"],
        cwd=ROOT, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        input=show, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "found=\n"


def worked_examples() -> dict[str, str]:
    """The Python below each heading of CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    sections = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)[1:]
    blocks = {
        title: re.findall(r"^```python\n(.*?)^```", body, re.MULTILINE | re.DOTALL)
        for title, body in zip(sections[::2], sections[1::2], strict=True)
    }
    return {title: "\n".join(code) for title, code in blocks.items() if code}


EXAMPLES = worked_examples()


def test_there_is_an_example_of_each_kind() -> None:
    assert list(EXAMPLES) == [
        "Add an explainer",
        "Add a score",
        "Add an attention",
        "Add a data set",
    ]


@pytest.mark.parametrize("title", EXAMPLES)
def test_worked_examples_run(title: str) -> None:
    code = EXAMPLES[title]
    assert len(code.splitlines()) < 40
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, f"CONTRIBUTING.md, {title}", "exec"), names)
    tests = [function for name, function in names.items() if name.startswith("test_")]
    assert tests
    for test in tests:
        test()


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "CHANGELOG.md"])
def test_files_that_are_named_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    paths = re.findall(
        r"\b(?:vision_attn|tests|benchmarks|docs|configs)/[\w/-]+(?:\.\w+)?", text
    ) + re.findall(r"\]\((?!http)([^)#]+)\)", text)
    missing = [path for path in paths if not (ROOT / path).exists()]
    assert not missing, f"{page} names {missing}"
