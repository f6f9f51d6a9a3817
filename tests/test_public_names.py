"""Public names stay what they are, whatever was imported before: no submodule hides a function."""

import pkgutil
from importlib import import_module
from types import ModuleType

import pytest

import vision_attn


@pytest.fixture(scope="module")
def _every_submodule() -> None:
    for module in pkgutil.walk_packages(vision_attn.__path__, "vision_attn."):
        import_module(module.name)


@pytest.mark.usefixtures("_every_submodule")
@pytest.mark.parametrize("name", sorted(vision_attn.__all__))
def test_no_submodule_hides_a_public_name(name):
    value = getattr(vision_attn, name)
    is_part = f"vision_attn.{name}" in {
        module.name for module in pkgutil.iter_modules(vision_attn.__path__, "vision_attn.")
    }
    assert isinstance(value, ModuleType) == is_part
    assert is_part or name == "__version__" or callable(value)
