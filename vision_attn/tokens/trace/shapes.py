"""What operations give of an image, by shape and strides alone, without its values.

Where values come from does not depend on what they are, so a run that is followed for its origins
need not compute them. What does not depend on the image (weights, tables of positions) has values.

Axes: none.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vision_attn.compat.torch_private import written_arguments
from vision_attn.tokens.trace.geometry import ViewGeometry, geometry_of, whole
from vision_attn.tokens.trace.operations import AXES_IN_PLACE, BATCH_NORM, FRESH

__all__ = ["NeedsValuesError", "Shapes", "tensors_in"]

# Operations that choose a kernel by shapes, and give a number for it.
CHOICES = frozenset({"aten::_fused_sdp_choice"})
# Operations that put a tensor's memory or size in another's place.
REPLACING = frozenset({"aten::set_", "aten::resize_", "aten::resize_as_", "aten::_resize_output_"})
READING = frozenset({"aten::equal", "aten::is_nonzero", "aten::_local_scalar_dense", "aten::item"})
UNKNOWN = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
FIXED_NORM = frozenset(
    {"aten::_native_batch_norm_legit_no_training", "aten::_batch_norm_no_update"}
)
PLAIN = (Tensor, nn.Parameter, nn.Buffer)
LEAST = 2**20  # bytes
NO_TENSOR = frozenset({bool, int, float, str, type(None)})
OWN = vars(nn.Module()).keys() - {"_parameters", "_buffers"}  # what a module keeps for torch


class NeedsValuesError(Exception):
    """A run reads a value, or does something that cannot be followed without values.

    Examples:
        >>> from vision_attn.tokens.trace.shapes import NeedsValuesError
        >>> str(NeedsValuesError("aten::nonzero"))
        'aten::nonzero'
    """


class Shapes:
    """Give operations on blank tensors blank results: shape and strides, without values.

    A blank tensor lies in memory that all of them share. asked: the first operation, if any, that
    needed values: then what was run is of no use, even if the network has gone on.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.trace.shapes import Shapes
        >>> shapes = Shapes()
        >>> x = shapes.blank(torch.rand(2, 3))
        >>> y = shapes.run(torch.ops.aten.mm.default, (x, torch.rand(3, 5)), {})
        >>> y.shape, shapes.is_blank(y)
        (torch.Size([2, 5]), True)
    """

    def __init__(self) -> None:
        self.asked: str | None = None
        self.device = torch.device("cpu")
        self._memory: torch.UntypedStorage | None = None
        self._held: dict[int, Any] = {}  # blank memory by its address, which nothing else gets
        self._made: dict[int, Any] = {}  # memory that the run itself has made, and with values
        self._known: dict[Any, Any] = {}  # geometries by operation and arguments
        self._ways: dict[Any, str] = {}  # how to run an operation

    def blank(self, x: Tensor) -> Tensor:
        """Make a blank tensor of the same shape, strides and dtype."""
        self.device = x.device
        return self._make(ViewGeometry.of(x))

    def context(self, query: Tensor, value: Tensor) -> Tensor:
        """Make the blank context of an attention by products: (b head i d), (b head j e)."""
        return self._make(whole((*query.shape[:-1], value.shape[-1]), query.dtype))

    def is_blank(self, x: Tensor) -> bool:
        """Whether a tensor's values were not computed."""
        return x.untyped_storage().data_ptr() in self._held

    def left_in(self, modules: Iterable[nn.Module]) -> bool:
        """Whether one of these modules has kept a blank tensor."""
        return any(
            self._holds([value for name, value in vars(module).items() if name not in OWN], 3)
            for module in modules
        )

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation, without values if an argument is blank.

        Raises:
            NeedsValuesError: Values would decide, or that is not known.
        """
        operands = tensors_in(args)
        if kwargs:
            operands += tensors_in(kwargs.values())
        if not any(map(self.is_blank, operands)):
            return self._with_values(func, args, kwargs)
        way = self._ways.get(func)
        if way is None:
            way = self._ways[func] = way_of(func)
        if way == "compute":
            return self._without_values(func, args, kwargs, operands)
        if way == "run":
            out = func(*args, **kwargs)
            parts = out if isinstance(out, tuple | list) else (out,)
            if all(self.is_blank(x) or not x.numel() for x in parts if isinstance(x, Tensor)):
                return out
            raise self._need(func.name())
        if way == "fresh" and not any(map(self.is_blank, operands[1:])):
            return self._with_values(func, args, kwargs)
        if way == "write":
            return self._write(func, args, operands)
        raise self._need(func.name())

    def read(self, x: Tensor, func: Any) -> None:
        """Raise NeedsValuesError where a function reads the memory of a blank tensor."""
        if self.is_blank(x):
            raise self._need(func.__name__)

    def _with_values(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if not func.is_view and not func.name().partition(".")[0].endswith("_"):
            for x in out if isinstance(out, tuple | list) else (out,):
                if type(x) is Tensor:
                    memory = x.untyped_storage()
                    self._made[memory.data_ptr()] = memory
        return out

    def _without_values(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        operands: Sequence[Tensor],
    ) -> Any:
        key = func, *described(args), *described(sorted(kwargs.items()) if kwargs else ())
        geometry = self._known.get(key)
        if geometry is None:
            geometry = self._known[key] = self._geometry(func, args, kwargs, operands)
        if isinstance(geometry, ViewGeometry):
            return self._make(geometry)
        return tuple([None if part is None else self._make(part) for part in geometry])

    def _geometry(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], operands: Sequence[Tensor]
    ) -> Any:
        """Find the geometry of an operation's result: by a rule, or by a run on these arguments."""
        name = func.name().partition(".")[0]
        updates = name in BATCH_NORM and name not in FIXED_NORM and args[3] is not None and args[5]
        indexed = torch.Tag.pointwise not in func.tags and any(
            self.is_blank(x) and not (x.is_floating_point() or x.is_complex()) for x in operands[1:]
        )
        elsewhere = kwargs.get("device") not in (None, self.device) or any(
            x.device != self.device for x in operands if x.ndim
        )
        if updates or indexed or elsewhere or not all(map(is_plain, operands)):
            raise self._need(func.name())
        if (geometry := geometry_of(func, args, kwargs)) is not None:
            return geometry
        out = func(*args, **kwargs)
        parts = out if isinstance(out, tuple | list) else (out,)
        if not all(x is None or (isinstance(x, Tensor) and is_plain(x)) for x in parts):
            raise self._need(func.name())
        if any(x is not None and self.is_blank(x) for x in parts):
            raise self._need(func.name())  # no result of its own
        if isinstance(out, Tensor):
            return ViewGeometry.of(out)
        return tuple([None if x is None else ViewGeometry.of(x) for x in out])

    def _write(self, func: Any, args: tuple[Any, ...], operands: Sequence[Tensor]) -> Tensor:
        """Make a tensor blank that is written into, if the run made it."""
        into: Tensor = args[0]
        address = into.untyped_storage().data_ptr()
        if address not in self._held:
            if address not in self._made or into.device != self.device or not is_plain(into):
                raise self._need(func.name())  # a weight, or what the network keeps
            self._held[address] = self._made.pop(address)
        return into

    def _make(self, of: ViewGeometry) -> Tensor:
        if self._memory is None or self._memory.nbytes() < of.nbytes:
            self._memory = zeros(max(LEAST, 2 * of.nbytes), self.device)
            self._held[self._memory.data_ptr()] = self._memory
        empty = torch.empty(0, dtype=of.dtype, device=self.device)
        return empty.set_(self._memory, 0, of.shape, of.stride)

    def _need(self, what: str) -> NeedsValuesError:
        self.asked = self.asked or what
        return NeedsValuesError(what)

    def _holds(self, values: Iterable[Any], depth: int) -> bool:
        for value in values:
            kind = type(value)
            if kind in NO_TENSOR:
                continue
            if isinstance(value, Tensor):
                if self.is_blank(value):
                    return True
            elif depth and isinstance(value, dict | list | tuple | set):
                inner = value.values() if isinstance(value, dict) else value
                if value and self._holds(inner, depth - 1):
                    return True
        return False


def zeros(count: int, device: torch.device) -> torch.UntypedStorage:
    """So many bytes of 0; on a CPU, memory that nobody reads takes no time to clear."""
    if device.type == "cpu":
        return torch.from_numpy(np.zeros(count, np.uint8)).untyped_storage()
    return torch.zeros(count, dtype=torch.uint8, device=device).untyped_storage()


def way_of(func: Any) -> str:
    """Choose how to run an operation on blank tensors: "ask" if it may depend on values."""
    name = func.name().partition(".")[0]
    if name in CHOICES or name in AXES_IN_PLACE:
        return "run"
    understood = not any(tag in func.tags for tag in UNKNOWN) or name == "aten::index"
    if func.namespace != "aten" or not understood or name in READING or name in REPLACING:
        return "ask"
    if name in FRESH:
        return "fresh"
    written = written_arguments(func)
    if torch.Tag.nondeterministic_seeded in func.tags and not name.startswith("aten::_scaled_dot"):
        return "ask"  # numbers drawn for nothing are not drawn again
    if written is None:
        return "ask"
    if name.endswith("_") and not name.endswith("__"):
        return "write" if written == [0] else "ask"
    if written:
        return "ask"
    return "run" if func.is_view or name == "aten::_unsafe_view" else "compute"


def is_plain(x: Tensor) -> bool:
    """Whether shape, strides and dtype describe a tensor, apart from its values."""
    lazy = x.is_quantized or x.is_conj() or x.is_neg()
    return type(x) in PLAIN and x.layout is torch.strided and not lazy


def tensors_in(args: Iterable[Any]) -> list[Tensor]:
    """List the tensors among arguments, those in lists included.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.trace.shapes import tensors_in
        >>> len(tensors_in((torch.zeros(2), 3, [torch.zeros(5), None])))
        2
    """
    listed: list[Tensor] = []
    for argument in args:
        if isinstance(argument, Tensor):
            listed.append(argument)
        elif isinstance(argument, list | tuple):
            listed += tensors_in(argument)
    return listed


def described(args: Iterable[Any]) -> list[Any]:
    """Describe arguments by what a result's shape depends on."""
    key: list[Any] = []
    for argument in args:
        if isinstance(argument, Tensor):
            key += (argument.dtype, argument.shape, argument.stride())
        elif isinstance(argument, list | tuple):
            key.append(len(argument))
            key += described(argument)
        else:
            key += (type(argument), argument)
    return key
