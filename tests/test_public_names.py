"""Public names stay what they are, whatever was imported before: no submodule hides a function."""

import pkgutil
import re
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import vision_attn

sys.path.insert(0, str(Path(__file__).parent))
from public_signatures import FILE, lines, signature


@pytest.fixture(scope="module")
def _every_submodule() -> None:
    for module in pkgutil.walk_packages(vision_attn.__path__, "vision_attn."):
        import_module(module.name)


@pytest.mark.usefixtures("_every_submodule")
@pytest.mark.parametrize("name", sorted(vision_attn.__all__))
def test_no_submodule_hides_a_public_name(name: str) -> None:
    value = getattr(vision_attn, name)
    is_part = f"vision_attn.{name}" in {
        module.name for module in pkgutil.iter_modules(vision_attn.__path__, "vision_attn.")
    }
    assert isinstance(value, ModuleType) == is_part
    assert is_part or name == "__version__" or callable(value)


@pytest.mark.usefixtures("_every_submodule")
def test_public_signatures_are_those_that_are_written_down() -> None:
    """A change of one belongs in CHANGELOG.md; `python tests/public_signatures.py` writes them."""
    known, now = FILE.read_text(encoding="utf-8").splitlines(), lines()
    gone = [f"- {line}" for line in known if line not in set(now)]
    new = [f"+ {line}" for line in now if line not in set(known)]
    changed = "\n".join([*gone, *new])
    assert not changed, f"name it in CHANGELOG.md, then run tests/public_signatures.py:\n{changed}"


def test_a_changed_default_is_seen() -> None:
    def before(images: torch.Tensor, *, limit: Any = 8) -> None: ...
    def after(images: torch.Tensor, *, limit: int = 9) -> None: ...

    assert signature(before) == "(images, *, limit=8)"
    assert signature(before) != signature(after)
    assert signature(partial(before, limit=torch.nn.Linear)) == "(images, *, limit=Linear)"


def test_the_page_of_what_is_public_names_every_public_module() -> None:
    page = (FILE.parents[1] / "docs/reference/public.md").read_text(encoding="utf-8")
    listed = page.partition("modules among them:")[2].partition(". Each")[0]
    modules = {
        name for name in vision_attn.__all__ if isinstance(getattr(vision_attn, name), ModuleType)
    }
    assert set(re.findall(r"`(\w+)`", listed)) == modules
