"""The house keeps its shape: imports go one way, and the command line's module stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "vision_attn"

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "types": {"errors"},
    "threads": set(),
    "devices": set(),
    "attention": {"types"},
    "models": {"types", "errors", "attention"},
    "data": {"types"},
    "render": {"types"},
    "evaluate": {"types"},
    "explain": {"types", "threads", "attention"},
    "fitting": {"hub", "models", "reports"},
    "training": {"types", "threads", "devices", "models", "render"},
    "reports": {
        *("types", "errors", "threads", "devices", "attention", "models", "data", "training"),
        *("explain", "evaluate", "render", "compat"),
    },
    "compat": set(),
    "hub": {"types", "errors", "models", "data", "explain", "reports"},
    "commands": {"types", "errors", "devices", "models", "data", "reports", "hub", "training"},
    "cli": {"commands"},
}
ALLOWED["__init__"] = set(ALLOWED) - {"cli", "commands"}


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_parts(path: Path) -> set[str]:
    """The parts of the package that a file imports, at any depth of its code."""
    inside = ["vision_attn", *path.relative_to(PACKAGE).with_suffix("").parts]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(inside[: len(inside) - node.level]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("vision_attn.")}
    return found & (set(ALLOWED) | {part_of(p) for p in PACKAGE.rglob("*.py")})


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_no_import_runs_back_up(path: Path):
    part = part_of(path)
    assert part in ALLOWED, f"{part} is a new part of the house: say here what it may import"
    wrong = imported_parts(path) - ALLOWED[part] - {part}
    assert not wrong, f"{part} may import {sorted(ALLOWED[part])}, not {sorted(wrong)}"


def test_the_walk_sees_a_wrong_import(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    (tmp_path / "types.py").touch()
    for part in ("attention", "hub"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "__init__.py").touch()
    wrong = tmp_path / "attention" / "scores.py"
    wrong.write_text("def late():\n    from ..hub import load_model\n")
    assert imported_parts(wrong) == {"hub"}


def test_the_command_line_starts_without_torch():
    code = (
        "import sys, vision_attn, vision_attn.cli; "
        "print(sorted({'torch', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
