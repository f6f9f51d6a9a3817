"""Gates of a run, found by what is multiplied: features times numbers that a sigmoid bounds.

A gate is what a sigmoid gives, or a softmax over branches, however it is moved, expanded or scaled
afterwards, where it multiplies a feature map that has at least four axes. It is none where it is
made of the same features place by place (x sigmoid(x) is an activation), or of weights alone.

Axes: b batch, c channels, h height, w width.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from vision_attn.attention.gates import Gate, NoGate
from vision_attn.hooks import Hooks, current_scope
from vision_attn.inference import modules_of
from vision_attn.tokens.gradients.mode import MOVED, tensors_in
from vision_attn.tokens.gradients.rules import functions

__all__ = ["GateCall", "Gating"]

Read = Callable[[Tensor, Tensor], Tensor]  # (x, g) -> what to keep of them

TIMES = functions("mul multiply imul rmul")
OVER = functions("div divide true_divide itruediv truediv")
SIGMOID = functions("sigmoid hardsigmoid")
SOFTMAX = functions("softmax")
CLIPPED = functions("relu6 hardtanh clamp clip")
SCALING = TIMES | OVER
KEEPING = MOVED | SCALING
AS_ANOTHER = functions("expand_as view_as reshape_as type_as to")  # whose shape, not its values
IN_PLACE = {Tensor.mul_, Tensor.multiply_, Tensor.__imul__}


@dataclass
class Bounded:
    """A value that a function bounds; views and moved copies of the value share this record.

    Attributes:
        by: How large it may be; a gate is at most 1.
        time: How many products were before it.
        root: The features that it is a function of, place by place.
        branches: Whether it is a softmax.
        maker: The outermost module that gives it and has weights.
    """

    by: float
    time: int
    root: Tensor
    branches: bool = False
    maker: str = ""


@dataclass
class GateCall:
    """A gate and what it multiplied in one run.

    Attributes:
        name: The module that was given the features and gated them, else the one that made the
            gate.
        spatial: Whether it has one number a place, rather than one a channel.
        value: What was read.

    Examples:
        >>> from vision_attn.tokens.gates import GateCall
        >>> GateCall("layer1.0.se", spatial=False, value=None).spatial
        False
    """

    name: str
    spatial: bool
    value: Any


@dataclass
class _Running:
    name: str
    module: nn.Module
    inputs: tuple[Any, ...]
    pending: "list[_Product]" = field(default_factory=list)


@dataclass
class _Product:
    """Features times a gate; gates made of the features before they were gated count as one."""

    features: Tensor | None
    gate: Tensor | None
    time: int
    inside: str
    is_input: bool
    maker: str
    spatial: bool = False
    value: Any = None


class Gating(TorchFunctionMode):
    """Follow the gates of a network while it runs.

    read(x, g): what to keep of the features (b c h w) and the gate (b c 1 1), (b c h w) or
    (b 1 h w). `calls` lists the gates in the order they ran.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> from vision_attn.tokens.gates import Gating
        >>> class Gated(nn.Module):
        ...     def forward(self, x):
        ...         return x * torch.sigmoid(x.mean((2, 3), keepdim=True))
        >>> with Gating(network := nn.Sequential(Gated()), lambda x, g: g.shape) as gating:
        ...     _ = network(torch.rand(2, 3, 5, 7))
        >>> gating.calls
        [GateCall(name='0', spatial=False, value=torch.Size([2, 3, 1, 1]))]
    """

    def __init__(self, network: nn.Module, read: Read):
        super().__init__()
        self._network, self._read, self._scope = network, read, current_scope()
        self._hooks = Hooks()
        self._running: list[_Running] = []
        self._products: list[_Product] = []
        self._product_of: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._bounded: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._roots: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._constants: WeakIdKeyDictionary = WeakIdKeyDictionary()
        for weight in [*network.parameters(), *network.buffers()]:
            self._constants[weight] = True

    @property
    def calls(self) -> list[GateCall]:
        """The gates so far."""
        inside = Counter(product.inside for product in self._products)
        seen: Counter[str] = Counter()
        calls = []
        for product in self._products:
            alone = product.is_input and inside[product.inside] == 1
            name = (
                (product.inside if alone else product.maker or product.inside)
                or product.maker
                or "gate"
            )
            seen[name] += 1
            name = name if seen[name] == 1 else f"{name}:{seen[name]}"
            calls.append(GateCall(name, product.spatial, product.value))
        return calls

    def __enter__(self) -> "Gating":
        self._hooks.__enter__()
        for module, name in modules_of(self._network).items():
            self._hooks.before(module, self._enter(name))
            self._hooks.after(module, self._leave(name), always_call=True)
        super().__enter__()  # type: ignore[no-untyped-call]  # torch's own has no types
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch's own has no types
        self._hooks.__exit__(*error)

    def _enter(self, name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            self._running.append(_Running(name, module, inputs))

        return hook

    def _leave(self, name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], out: Any) -> None:
            if not self._running or self._running[-1].name != name:
                return
            run = self._running.pop()
            own = isinstance(module, Gate) and not isinstance(module, NoGate)
            if own and inputs and isinstance(out, Tensor):
                gate: Any = module
                with torch.no_grad():
                    product = _Product(inputs[0], gate.gate(inputs[0]), 0, name, True, "")
                self._keep(product)
                self._products.append(product)
                run.pending.append(product)
            for product in run.pending:  # so that what is kept is what was read
                product.features = product.gate = None
            bounded = self._bounded.get(out) if isinstance(out, Tensor) else None
            if bounded is not None and any(True for _ in module.parameters()):
                bounded.maker = name

        return hook

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._scope is not current_scope() or any(
            isinstance(run.module, Gate) for run in self._running
        ):
            return func(*args, **kwargs)
        factors = self._factors(args, kwargs) if func in TIMES else None
        if factors is not None and func in IN_PLACE and factors[0] is args[0]:
            factors = (factors[0].clone(), *factors[1:])  # the product overwrites them
            self._roots[factors[0]] = self._root(args[0])
            if args[0] in self._product_of:
                self._product_of[factors[0]] = self._product_of[args[0]]
        out = func(*args, **kwargs)
        if factors is not None and isinstance(out, Tensor) and out.shape == factors[0].shape:
            self._multiplied(*factors, out)
        else:
            self._follow(func, args, kwargs, out)
        return out

    def _factors(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Tensor, Tensor, Bounded] | None:
        """The features, the gate and what it is; None for any other product."""
        if kwargs or len(args) != 2 or not all(isinstance(x, Tensor) for x in args):
            return None
        for x, gate in (args, args[::-1]):
            bounded = self._bounded.get(gate)
            if bounded is None or bounded.by != 1 or x in self._constants:
                continue
            if x in self._bounded and self._bounded[x].by == 1:  # a product of gates is one
                continue
            if x.ndim < 4 or gate.ndim != x.ndim or self._root(x) is bounded.root:
                continue
            shape = _narrowed(gate).shape
            if shape[1:].numel() == 1 and x.shape[1:].numel() > 1:  # one number an image
                continue
            if bounded.branches and (x.ndim != 5 or shape[3:].numel() > 1 or shape[1] == 1):
                continue  # not a gate among the branches of axis 1
            if x.ndim == 4 or bounded.branches:
                return x, gate, bounded
        return None

    def _multiplied(self, x: Tensor, gate: Tensor, bounded: Bounded, out: Tensor) -> None:
        run = self._running[-1] if self._running else _Running("", self._network, ())
        previous = self._product_of.get(x)
        if previous is not None and previous.gate is not None and bounded.time <= previous.time:
            previous.gate = previous.gate * gate
            product = previous
        else:
            is_input = any(value is x or value is self._root(x) for value in run.inputs)
            time = len(self._products)
            product = _Product(x, gate, time, run.name, is_input, bounded.maker)
            self._products.append(product)
            run.pending.append(product)
        self._keep(product)
        self._product_of[out] = product

    def _keep(self, product: _Product) -> None:
        assert product.features is not None
        assert product.gate is not None
        x, gate = product.features, _narrowed(product.gate)
        if x.ndim == 5:  # the branches lie side by side: b branch c h w
            x, gate = x.flatten(1, 2), gate.expand(*x.shape[:3], 1, 1).flatten(1, 2)
        x, gate = _channels_second(x, gate)
        product.spatial = gate.shape[1] == 1 and (gate.shape[2:].numel() > 1 or x.shape[1] > 1)
        product.value = self._read(x.detach(), gate.detach())

    def _follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Note what a function gives: a bounded value, one that was moved, a constant."""
        inputs, outputs = list(tensors_in([*args, *kwargs.values()])), list(tensors_in([out]))
        if not inputs or not outputs:
            return
        if all(x in self._constants for x in inputs):
            for x in outputs:
                self._constants[x] = True
            return
        inputs = [tensor for tensor in inputs if tensor not in self._constants]
        inputs = inputs[:1] if func in AS_ANOTHER else inputs
        x, others = inputs[0], [tensor for tensor in inputs[1:] if tensor.numel() > 1]
        by = _largest(func, args, kwargs)
        if by is not None:
            softmax = func in SOFTMAX
            self._bounded[outputs[0]] = Bounded(by, len(self._products), self._root(x), softmax)
        elif func in KEEPING:
            marks = [mark for tensor in inputs if (mark := self._bounded.get(tensor)) is not None]
            if marks and len(marks) == len(inputs):
                mark = max(marks, key=lambda mark: mark.time)
                if mark.by == 6 and func in SCALING:
                    if not _is_sixth(func, args):
                        return
                    mark = Bounded(1.0, mark.time, mark.root)
                for tensor in outputs:
                    self._bounded[tensor] = mark
            elif not marks and not others and outputs[0].shape == x.shape:
                self._roots[outputs[0]] = self._root(x)

    def _root(self, x: Tensor) -> Tensor:
        """The features of which a value is an element-wise function."""
        root: Tensor = self._roots.get(x, x)
        return root


def _largest(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
    """The upper bound of a function's result, 1 or 6, if its lower bound is 0; else None."""
    if func in SIGMOID or func in SOFTMAX:
        return 1.0
    if func not in CLIPPED:
        return None
    if func is F.relu6:
        return 6.0
    low, high = (*args[1:], None, None)[:2]
    low = kwargs.get("min", kwargs.get("min_val", low))
    high = kwargs.get("max", kwargs.get("max_val", high))
    return float(high) if low == 0 and high in (1, 6) else None


def _is_sixth(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether a product or quotient is with 1/6: the last step of a hard sigmoid by hand."""
    scale = next((argument for argument in args if isinstance(argument, int | float)), 0.0)
    return abs(scale - (6 if func in OVER else 1 / 6)) < 1e-3


def _narrowed(gate: Tensor) -> Tensor:
    """Undo an expansion: keep one element of each axis of stride 0."""
    for axis, stride in enumerate(gate.stride()):
        if stride == 0 and axis:
            gate = gate.narrow(axis, 0, 1)
    return gate


def _channels_second(x: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    """Turn features (b h w c) whose gate is (b 1 1 c)."""
    if gate.shape[1:3].numel() == 1 and gate.shape[3] == x.shape[3] > 1:
        return x.movedim(3, 1), gate.movedim(3, 1)
    return x, gate
