"""Labels: an origin for each element of a tensor, stored once where many are equal.

Along an axis of stride 0 all are equal: `compact` keeps one of them, `tight` finds such axes. A
`View` says how a tensor looks into another, and so where origins go that are written into either.

Axes: none.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import ref

import torch
from torch import Tensor
from torch.nn import functional as F

from vision_attn.tokens.trace.origins import NOTHING

__all__ = [
    "AS_STRIDED",
    "BEYOND",
    "ByTensor",
    "Label",
    "View",
    "compact",
    "joined_axes",
    "padded",
    "reshaped",
    "tight",
    "tighter",
]

AS_STRIDED = torch.ops.aten.as_strided.default
BEYOND = -1  # of memory that no tensor of the run is known to hold: it makes a result a mixture
Value = TypeVar("Value")


class Label(NamedTuple):
    """The origins of a tensor's elements, in its shape; of a product, those of both factors.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.trace.labels import Label
        >>> rows, columns = torch.tensor([[2], [3]]), torch.tensor([[5, 7]])
        >>> label = Label(rows.expand(2, 2), columns.expand(2, 2))
        >>> label.moved(lambda ids: ids[1]).columns.tolist()
        [5, 7]
    """

    ids: Tensor
    columns: Tensor | None = None

    def moved(self, move: Callable[[Tensor], Tensor]) -> "Label":
        return Label(move(self.ids), None if self.columns is None else move(self.columns))


class View(NamedTuple):
    """How a tensor looks into the memory of another: the result of that number of an operation.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.trace.labels import View
        >>> first_row = View(torch.zeros(2, 3), torch.ops.aten.select.int, (0, 0), {}, 0)
        >>> ids = torch.tensor([[2, 3, 5], [7, 11, 13]])
        >>> first_row.of(ids).tolist()
        [2, 3, 5]
        >>> first_row.written(ids, torch.tensor([17, 19, 23])).tolist()
        [[17, 19, 23], [7, 11, 13]]
    """

    base: Tensor
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    number: int

    def of(self, whole: Tensor) -> Tensor:
        """The part of other values in the shape of the base."""
        return self._look(self._laid(whole) if self.func is AS_STRIDED else whole)

    def written(self, whole: Tensor, part: Tensor) -> Tensor:
        """Values in the shape of the base, with a part written into them."""
        strided = self.func is AS_STRIDED
        ids = self._laid(whole) if strided else whole.clone(memory_format=torch.contiguous_format)
        self._look(ids).copy_(part)
        return tight(ids)

    def _look(self, whole: Tensor) -> Tensor:
        part = self.func(whole, *self.args, **self.kwargs)
        return part if isinstance(part, Tensor) else part[self.number]

    def _laid(self, whole: Tensor) -> Tensor:
        """A copy that lies in memory as the base does, beside which all is BEYOND."""
        size, stride, offset = self.args
        end = max(past_last(size, stride, offset), past_last(*layout(self.base)))
        memory = torch.full((end,), BEYOND, dtype=torch.long, device="cpu")
        laid = memory.as_strided(*layout(self.base))
        laid.copy_(whole)
        return laid


class ByTensor(Generic[Value]):
    """A dictionary by the identity of tensors, ten times as fast as torch's own.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.trace.labels import ByTensor
        >>> x, names = torch.zeros(2), ByTensor()
        >>> names[x] = "x"
        >>> names.get(x), names.get(torch.zeros(2))
        ('x', None)
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[ref[Tensor], Value]] = {}

    def get(self, x: Tensor) -> Value | None:
        entry = self._known.get(id(x))
        return entry[1] if entry is not None and entry[0]() is x else None

    def items(self) -> list[tuple[Tensor, Value]]:
        """List the tensors that live, each with its value."""
        pairs = [(own(), value) for own, value in self._known.values()]
        return [(x, value) for x, value in pairs if x is not None]

    def __setitem__(self, x: Tensor, value: Value) -> None:
        entries, key = self._known, id(x)

        def forget(gone: ref[Tensor]) -> None:
            if key in entries and entries[key][0] is gone:
                del entries[key]

        entries[key] = ref(x, forget), value


def layout(x: Tensor) -> tuple[torch.Size, tuple[int, ...], int]:
    """How a tensor lies in memory: its shape, strides and first element."""
    return x.shape, x.stride(), int(x.storage_offset())


def past_last(size: Sequence[int], stride: Sequence[int], offset: int) -> int:
    """The number of elements of memory up to a tensor's last."""
    return offset + 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))


def compact(ids: Tensor) -> Tensor:
    """Keep one element of each axis of stride 0."""
    steps = ids.stride()
    if 0 not in steps:
        return ids
    shape = [size if step else min(size, 1) for size, step in zip(ids.shape, steps, strict=True)]
    return ids.as_strided(shape, steps)


def padded(ids: Tensor, around: Sequence[int]) -> Tensor:
    """Pad with no origin; axes of stride 0 that are not padded keep it."""
    sides = [around[index : index + 2] for index in range(0, len(around), 2)][::-1]
    sides = [[0, 0]] * (ids.ndim - len(sides)) + sides
    is_shared = [step == 0 and not any(pad) for step, pad in zip(ids.stride(), sides, strict=True)]
    small = ids[tuple(slice(0, 1) if keep else slice(None) for keep in is_shared)]
    small = tight(F.pad(small, list(around), value=NOTHING))
    both = zip(ids.shape, small.shape, is_shared, strict=True)
    return small.expand([size if keep else padded for size, padded, keep in both])


def reshaped(ids: Tensor, shape: Sequence[int]) -> Tensor:
    """Reshape origins; axes of stride 0 keep it if they join only such axes."""
    small = compact(ids).contiguous()
    if not ids.numel():
        return small.expand(ids.shape).reshape(shape)
    old, new = list(ids.shape), list(shape)
    for before, after in joined_axes(tuple(ids.shape), tuple(shape)):
        if all(size == 1 for size in small.shape[before]):
            old[before] = [1] * len(old[before])
            new[after] = [1] * len(new[after])
    return tight(small.expand(old).reshape(new), small).expand(shape)


@lru_cache(1024)
def joined_axes(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[tuple[slice, slice], ...]:
    """Divide the axes of two shapes of as many elements: those that become each other.

    Examples:
        >>> from vision_attn.tokens.trace.labels import joined_axes
        >>> [(x.stop, y.stop) for x, y in joined_axes((2, 3, 5), (6, 5))]
        [(2, 1), (3, 2)]
    """
    i = j = 0
    pairs = []
    while i < len(before) or j < len(after):
        first, many, product = (i, j), 1, 1
        if i < len(before):
            many, i = before[i], i + 1
        if j < len(after):
            product, j = after[j], j + 1
        while many != product:
            if many < product:
                many, i = many * before[i], i + 1
            else:
                product, j = product * after[j], j + 1
        pairs.append((slice(first[0], i), slice(first[1], j)))
    return tuple(pairs)


def tighter(ids: Tensor) -> Tensor:
    """Keep one element of each axis along which all are equal."""
    return compact(tight(compact(ids)))


def tight(ids: Tensor, base: Tensor | None = None) -> Tensor:
    """Find the axes along which all elements are equal, and give them stride 0.

    base: what `ids` may be a view of; then there is nothing to find.
    """
    if base is not None and ids.untyped_storage().data_ptr() == base.untyped_storage().data_ptr():
        return ids
    small = compact(ids)
    values, corner, count = small.numpy(), (0,) * ids.ndim, small.numel()
    for dim, n in enumerate(small.shape):
        if n < 2 or not count:
            continue
        beside = (*corner[:dim], 1, *corner[dim + 1 :])
        if values[corner] != values[beside]:  # then there is no need to compare all
            continue
        first = small.narrow(dim, 0, 1)
        if torch.equal(small, first.expand_as(small)):
            small = first
    if small.numel() == count:
        return ids
    small = small.clone(memory_format=torch.contiguous_format)  # the rest need not live on
    return small.expand(ids.shape)
