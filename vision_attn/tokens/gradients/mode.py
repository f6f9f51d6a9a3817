"""The function mode that runs a network under the gradient rules.

Axes: b batch, n tokens, d width of a token, c channels, h height, w width.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from vision_attn.attention import Normalizer
from vision_attn.hooks import Hooks, current_scope
from vision_attn.tokens.gradients.rules import (
    IN_PLACE,
    RULES,
    Rule,
    Tracking,
    flows,
    functions,
)

__all__ = ["CallCounter", "HeldGradients", "Mark", "own_weights_held", "tensors_in"]

# What moves a value, shifts it by a constant, or gives it another size: a gate stays a gate.
MOVED = functions(
    "view reshape flatten unflatten expand expand_as permute transpose swapaxes movedim squeeze "
    "unsqueeze chunk split unbind getitem contiguous clone to float half double bfloat16 type_as "
    "add sub rsub radd neg interpolate upsample repeat repeat_interleave dropout view_as "
    "reshape_as narrow select broadcast_to swapdims roll flip index_select tile"
) | {Tensor.mT.__get__, Tensor.T.__get__}  # type: ignore[attr-defined]
# Of these the second argument gives a shape or a type alone.
LIKE = functions("expand_as view_as reshape_as type_as")


class Mark(NamedTuple):
    """Which call of a run makes a value: the function, the value's shape, and how many came before.

    An axis that is 1 in `shape` may have any length, since marks are found with one image.

    Attributes:
        before: How many values of this shape the function made before.
        calls: How many calls of the function that made a tensor came before; -1: not known.

    Examples:
        >>> from vision_attn.tokens.gradients.mode import Mark
        >>> Mark("add", (1, 5, 12), before=2).fits((7, 5, 12))
        True
    """

    function: str
    shape: tuple[int, ...]
    before: int
    calls: int = -1

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether a value of this shape is of the same kind."""
        pairs = zip(self.shape, shape, strict=False)
        return len(self.shape) == len(shape) and all(own in (1, size) for own, size in pairs)


class CallCounter:
    """Recognise marked calls while a network runs.

    Args:
        marks: As a run of one image has them.
        batch: How many images the network runs on.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.gradients.mode import CallCounter, Mark
        >>> counter = CallCounter([Mark("relu", (1, 5), before=1)])
        >>> x = torch.zeros(3, 5)
        >>> counter.index("relu", x), counter.index("relu", x)
        (None, 0)
    """

    def __init__(self, marks: Sequence[Mark], batch: int = 1):
        self._marks: dict[str, list[tuple[int, Mark]]] = {}
        for number, mark in enumerate(marks):
            self._marks.setdefault(mark.function, []).append((number, mark))
        self._seen = [0] * len(marks)
        self._calls: Counter[str] = Counter()
        # With as many images as tokens, shapes do not tell which axis is which.
        self._by_calls = batch > 1 and any(batch in mark.shape for mark in marks)

    def index(self, function: str, out: Any) -> int | None:
        """Return the number of the mark that this call matches; None: it matches none."""
        if function not in self._marks or not isinstance(out, Tensor):
            return None
        matching = None
        for number, mark in self._marks[function]:
            if not mark.fits(out.shape):
                continue
            is_mark = (
                self._calls[function] == mark.calls
                if self._by_calls
                else self._seen[number] == mark.before
            )
            matching = number if is_mark else matching
            self._seen[number] += 1
        self._calls[function] += 1
        return matching


class HeldGradients(TorchFunctionMode, Tracking):
    """Run torch's functions under the gradient rules, and keep the values that are marked.

    After a run `kept` holds the values by the numbers of their marks. What a hook runs apart, such
    as another explanation, is left alone.

    Args:
        levels: The marks, each with whether the value is changed in place afterwards. The first of
            them becomes a leaf.
        rules: By function; all of them, unless given.
        batch: How many images the network runs on.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.gradients.mode import HeldGradients
        >>> x = torch.tensor([1.0, 3.0], requires_grad=True)
        >>> with HeldGradients():
        ...     y = torch.nn.functional.silu(x)
        >>> torch.allclose((x * torch.autograd.grad(y.sum(), x)[0]).sum(), y.sum())
        True
    """

    def __init__(
        self,
        levels: Sequence[tuple[Mark, bool]] = (),
        rules: Mapping[Callable[..., Any], Rule] | None = None,
        batch: int = 1,
    ):
        super().__init__()
        self.kept: dict[int, Tensor] = {}
        self._rules = RULES if rules is None else rules
        self.closed = not levels
        self._changed = [changed for _, changed in levels]
        self._batch = batch
        self._counter = CallCounter([mark for mark, _ in levels], batch)
        self._depth = 0
        self._scope: object = None
        self._strengths: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def __enter__(self) -> Any:
        self._scope = current_scope()
        super().__enter__()  # type: ignore[no-untyped-call]  # torch's own has no types
        return self

    @property
    def in_scope(self) -> bool:
        """Whether what runs now is what this mode was opened for."""
        return self._scope is current_scope()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if not self.in_scope:
            return func(*args, **(kwargs or {}))
        out = self.run(func, args, {} if kwargs is None else kwargs)
        if self.closed or self._depth:
            return out
        level = self._counter.index(func.__name__, out)
        return out if level is None else self._keep(level, out, args)

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function by its rule, or as it is."""
        rule = self._rules.get(func)
        if rule is not None:
            return rule(func, args, kwargs, self)
        out = func(*args, **kwargs)
        if self._strengths.data:
            self._pass_on(func, args, kwargs, out)
        return out

    def strength(self, x: Tensor) -> int:
        """The strength of a value as a gate: 0 for values that are no gates."""
        return self._strengths.get(x, 0) if self._strengths.data else 0

    def mark(self, x: Any, strength: int) -> Any:
        """Return a value, marked as a gate of this strength."""
        if strength and isinstance(x, Tensor):
            self._strengths[x] = strength
        return x

    def unmark(self, x: Tensor) -> None:
        """Have a value that is written over be no gate any more."""
        if self._strengths.data:
            self._strengths.pop(x, None)

    def join_images(self, x: Tensor) -> None:
        """Refuse a norm over several images, whose logits then depend on each other's pixels.

        Raises:
            ValueError: The first axis is that of several images.
        """
        if 1 < self._batch == len(x):
            raise ValueError(
                "the network normalises over the images of a batch (a batch norm without running "
                "statistics), so that one image's map depends on the others: give one image a call"
            )

    def miss(self, name: str) -> None:
        """Note nothing: this mode runs what another has looked through."""

    def constant(self, value: Any, made_of: Sequence[Any] = ()) -> Any:
        """Return an additive constant unchanged: this mode counts none."""
        return value

    def hold(self, weights: Tensor) -> Tensor:
        """Return weights of attention as constants."""
        return weights.detach()

    def inside(self, run: Callable[[], Any]) -> Any:
        """Run other functions of torch, which are no calls of the network's, under their rules."""
        self._depth += 1
        try:
            with self:
                return run()
        finally:
            self._depth -= 1

    def _pass_on(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        """Let what is made of a gate alone be a gate; what is written over is none any more."""
        strength = 0
        if func in MOVED:
            operands = args or tuple(kwargs.values())
            flowing = list(filter(flows, operands[:1] if func in LIKE else operands))
            strength = self.strength(flowing[0]) if len(flowing) == 1 else 0
        if strength:
            for x in out if isinstance(out, tuple | list) else (out,):
                self.mark(x, strength)
        elif func in IN_PLACE:
            self.unmark(args[0] if func is Tensor.__setitem__ else out)

    def _keep(self, level: int, out: Tensor, args: tuple[Any, ...]) -> Tensor:
        """Keep a value, so that what is done to it in place afterwards does not change it."""
        in_place = bool(args) and out is args[0]
        changed = self._changed[level]
        if self.kept:
            value = out.clone() if changed else out
        else:
            value = (out.detach().clone() if in_place else out.detach()).requires_grad_()
        self.kept[level] = value
        if value is out:
            return out
        if in_place:
            return out.copy_(value)
        return value.clone() if changed else value


def tensors_in(values: Any) -> Iterator[Tensor]:
    """List the tensors among the arguments or results of a function."""
    for x in values.values() if isinstance(values, dict) else values:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, list | tuple | dict):
            yield from tensors_in(x)


@contextmanager
def own_weights_held(network: nn.Module, hold: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Hold the weights of this package's own attention, whatever its normaliser is made of."""
    with Hooks() as hooks:
        for module in network.modules():
            if isinstance(module, Normalizer):
                hooks.after(module, lambda _module, _inputs, weights: hold(weights))
        yield
