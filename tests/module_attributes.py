"""A plugin of mypy for tests and scripts: what torch does not type, is Any there.

To torch, an attribute of a module is a Tensor or a Module, and a gradient may be None. These look
into modules by the names of their parts, and at gradients behind a backward pass: a part that is not
there fails the test.
"""

from collections.abc import Callable

from mypy.plugin import AttributeContext, Plugin
from mypy.types import AnyType, Type, TypeOfAny

LOOSE = ("torch.nn.modules.module.Module.", "torch._C.TensorBase.grad")
FOLDERS = ("tests/", "benchmarks/", "studies/", "docs/")


def loosely(context: AttributeContext) -> Type:
    """Any, in a test or a script; elsewhere the type that torch gives."""
    if getattr(context.api, "path", "").startswith(FOLDERS):
        return AnyType(TypeOfAny.special_form)
    return context.default_attr_type


class ModuleAttributes(Plugin):
    """Attributes that torch.nn.Module looks up at run time, and gradients."""

    def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        return loosely if fullname.startswith(LOOSE) else None


def plugin(version: str) -> type[Plugin]:
    return ModuleAttributes
