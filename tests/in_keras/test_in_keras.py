"""The Keras 3 tabs of Learn: every page of a mechanism has one, and each gives our numbers."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
sys.path.insert(0, str(Path(__file__).parent))
from keras_tabs import COUNTERPARTS, snippets, with_keras

ROOT = Path(__file__).parents[2]
CODE = snippets()
PAGES = [
    page
    for page in sorted((ROOT / "docs/learn").glob("[0-9][0-9]-*.md"))
    if int(page.name[:2]) <= 11  # the last page is about maps, not a mechanism
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_code_of_a_mechanism_has_a_tab_with_keras(page: Path) -> None:
    named = re.findall(r"<!-- code: (\S+) -->", page.read_text(encoding="utf-8"))
    assert named
    assert set(named) <= set(COUNTERPARTS), f"{page.name} shows code without its counterpart"
    for name in named:
        shown = with_keras(name, f'```py title="ours"\n{name}\n```')
        first, second = re.findall(r'^=== "(.+)"$', shown, re.MULTILINE)
        assert (first, second) == ("PyTorch", "Keras 3")
        assert f"\n    {name}\n" in shown
        ours, keras = shown.split('=== "Keras 3"')
        assert "keras" not in ours
        assert re.findall(r'\?\?\? example "(\w+)"', keras) == COUNTERPARTS[name][1:]
        assert keras.count("from keras import") == len(COUNTERPARTS[name])


def test_every_snippet_has_one_place_on_a_page() -> None:
    listed = [name for names in COUNTERPARTS.values() for name in names]
    assert sorted(listed) == sorted(CODE)
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert all(f"<!-- code: {name} -->" in text for name in COUNTERPARTS)


def test_code_without_a_counterpart_stays_as_it_is() -> None:
    assert with_keras("attention.GRUUpdate.forward", "code") == "code"


@pytest.mark.parametrize("name", CODE)
def test_a_snippet_is_short_narrow_and_stands_alone(name: Any) -> None:
    lines = CODE[name].splitlines()
    assert 8 <= len(lines) <= 24
    assert max(map(len, lines)) <= 76
    tree = ast.parse(CODE[name])
    *imports, node = tree.body
    assert {one.module if isinstance(one, ast.ImportFrom) else "keras" for one in imports} == {
        "keras"
    }
    assert isinstance(node, ast.ClassDef | ast.FunctionDef)
    assert "->" in (ast.get_docstring(node) or ""), "say the shapes that come and go"


def test_make_installs_the_keras_that_the_extra_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    keras, _ = project["optional-dependencies"]["keras"]
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition(".installed-keras:")[2]
    assert recipe.splitlines()[1] == f"\t$(INSTALL) '{keras}'"
    assert not any("keras" in line for line in project["optional-dependencies"]["dev"])


@pytest.mark.xdist_group("site")
@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if "." not in page.stem], ids=lambda page: page.stem
)  # a translation, NAME.ja.md, is built elsewhere
def test_the_tabs_are_on_the_page(site: Path, page: Path) -> None:
    text = (site / "learn" / f"{page.stem}.html").read_text(encoding="utf-8")
    tabs = len(re.findall(r"<!-- code: ", page.read_text(encoding="utf-8")))
    assert text.count('class="tabbed-set') == tabs
    assert len(re.findall(r"<label[^>]*>Keras 3</label>", text)) == tabs
    assert "=== " not in re.sub(r"<pre>.*?</pre>", "", text, flags=re.DOTALL)


with_installed_keras = pytest.mark.skipif(
    find_spec("keras") is None,
    reason="Keras is not installed: make test SLOW=1 installs it",
)


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """How far Keras on torch is from our classes, case by case: in a process of its own."""
    import keras_cases

    file = tmp_path_factory.mktemp("keras") / "cases.npz"
    written = keras_cases.write(file)
    words = [sys.executable, str(Path(__file__).parent / "compare.py"), str(file)]
    chosen = {**os.environ, "KERAS_BACKEND": "torch", "KERAS_HOME": str(file.parent)}
    done = subprocess.run(words, capture_output=True, text=True, env=chosen)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == {*written, "hard drawn"}
    return found


@with_installed_keras
@pytest.mark.xdist_group("keras")
@pytest.mark.parametrize("name", CODE)
def test_a_snippet_gives_the_numbers_of_our_class(
    differences: dict[str, dict[str, float]], name: Any
) -> None:
    own = {key: dict(one) for key, one in differences.items() if key.split()[0] == name}
    assert own, f"tests/in_keras/keras_cases.py has no case for {name}"
    for key, one in own.items():
        allowed = one.pop("allowed")
        assert one
        assert all(value <= allowed for value in one.values()), f"{key}: {one}, above {allowed}"
