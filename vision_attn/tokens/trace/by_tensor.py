"""Values by tensor, which live as long as the tensor does.

Axes: none.
"""

from typing import Generic, TypeVar
from weakref import ref

from torch import Tensor

__all__ = ["ByTensor"]

Value = TypeVar("Value")


class ByTensor(Generic[Value]):
    """A dictionary by the identity of tensors: torch's own takes ten times as long to ask.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.trace.by_tensor import ByTensor
        >>> x, names = torch.zeros(2), ByTensor()
        >>> names[x] = "x"
        >>> names.get(x), names.get(torch.zeros(2))
        ('x', None)
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[ref[Tensor], Value]] = {}

    def get(self, x: Tensor) -> Value | None:
        found = self._known.get(id(x))
        return found[1] if found is not None and found[0]() is x else None

    def __setitem__(self, x: Tensor, value: Value) -> None:
        known, at = self._known, id(x)

        def forget(gone: ref[Tensor]) -> None:
            if at in known and known[at][0] is gone:
                del known[at]

        known[at] = ref(x, forget), value
