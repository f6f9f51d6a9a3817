"""The graph of a run under the gradient rules, and what all of it goes through.

A value through which every path from the image to the logits goes is a cut: its shares of the
logits are all there are. The residual stream of a transformer is such a value between any two
blocks, and so are the features between two blocks of a convolutional network.

Axes: b batch, n tokens, d width of a token, c channels, h height, w width.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.weak import WeakIdKeyDictionary

from vision_attn.compat.torch_private import whole_of
from vision_attn.tokens.gradients.completeness import Holders
from vision_attn.tokens.gradients.constants import JOINS
from vision_attn.tokens.gradients.mode import HeldGradients, Mark, tensors_in
from vision_attn.tokens.gradients.rules import HELD, RULES, flows, functions
from vision_attn.tokens.gradients.windows import ImageWindow, ImageWindows

__all__ = ["COUNTED_NAMES", "GraphMode", "Value", "cuts_of", "order_of"]

WEIGHTED_SUMS = functions("matmul bmm baddbmm") | {torch.einsum}
ATTENTION = {F.scaled_dot_product_attention, F.multi_head_attention_forward}
# Of the functions that have a rule, or whose constants are counted.
COUNTED_NAMES = frozenset(func.__name__ for func in (*RULES, *JOINS))


@dataclass
class Value:
    """A value of a run: the number of the call that made it, and its mark.

    Attributes:
        single: Whether the call made no other.
        changed: Whether it is changed in place afterwards.
        window: What of the image it is of; None: all of it.

    Examples:
        >>> from vision_attn.tokens.gradients.graph import Value
        >>> from vision_attn.tokens.gradients.mode import Mark
        >>> Value(3, Mark("add", (1, 5, 12), 0)).on_a_grid
        True
    """

    call: int
    mark: Mark
    single: bool = True
    changed: bool = False
    window: ImageWindow | None = None

    @property
    def on_a_grid(self) -> bool:
        """Whether it may hold tokens or features: it has two axes or more of several elements."""
        return len(self.mark.shape) > 2 and sum(size > 1 for size in self.mark.shape) > 1


class GraphMode(HeldGradients):
    """Run under the rules, and note which node of the graph each value is.

    After a run: values, by their nodes; names, of the functions that made them, too;
    attention_calls, the numbers of the calls that weigh values by a softmax; calls, how many there
    were; held, the functions whose results are held and then join values, so that they are in no
    share.

    Args:
        size: (height, width) of the image in pixels.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.gradients.graph import GraphMode
        >>> x = torch.rand(1, 5, 12, requires_grad=True)
        >>> with GraphMode() as mode:
        ...     y = (x @ x.mT).softmax(-1) @ x
        >>> mode.attention_calls, mode.values[y.grad_fn].mark.function
        ([3], 'matmul')
    """

    def __init__(self, size: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.calls = 0
        self.values: dict[Any, Value] = {}
        self.names: dict[Any, str] = {}
        self.attention_calls: list[int] = []
        self.held: dict[str, None] = {}
        self._windows = ImageWindows((1, 1) if size is None else size)
        self._holders = Holders()
        self._weights: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._in_memory: dict[int, list[Value]] = {}
        self._before: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self._calls: Counter[str] = Counter()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        out = super().__torch_function__(func, types, args, dict(kwargs))  # rules take from it
        if self.in_scope and not self._depth:
            self._note(func, args, kwargs, out)
            self.calls += 1
        return out

    def hold(self, weights: Tensor) -> Tensor:
        """Return attention weights as constants, and remember that they are weights."""
        weights = weights.detach()
        self._weights[weights] = True
        self._holders.hold(weights, "attention weights")
        return weights

    def window(self, x: Any) -> ImageWindow | None:
        """Return what of the image a value is of; None: all of it, as far as is known."""
        return self._windows.of(x) if isinstance(x, Tensor) else None

    def _note(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        operands = [*tensors_in(args), *tensors_in(kwargs)]
        flowing = any(map(flows, operands))
        if flowing:
            self.held |= dict.fromkeys(self._holders.joining(func, args, kwargs).values())
        self._holders.follow(func, args, operands, out, flowing)
        weighs = any(x in self._weights for x in operands)
        weighted_sum = func in WEIGHTED_SUMS and weighs and flowing
        if func in ATTENTION or weighted_sum:
            self.attention_calls.append(self.calls)
        outs = list(tensors_in((out,)))
        first = args[0] if args and isinstance(args[0], Tensor) else None
        if first is not None and (out is first or func is Tensor.__setitem__):
            outs = [first]
            for changed in self._in_memory.get(address_of(first), ()):
                changed.changed = True
            if flows(whole := whole_of(first)):
                self.names.setdefault(whole.grad_fn, name_of(func))
        if flowing:
            self._windows.follow(func, args, kwargs, outs)
        for x in outs:
            mark = self._mark_of(func, x)
            if x.requires_grad:
                self.names.setdefault(x.grad_fn, name_of(func))  # a later one hands it on as it is
                single = out is x and len(outs) == 1
                value = Value(self.calls, mark, single, window=self._windows.of(x))
                self.values[x.grad_fn] = value
                address = address_of(x)
                if address not in map(address_of, operands):  # memory that others may have had
                    self._in_memory[address] = []
                self._in_memory.setdefault(address, []).append(value)
            elif x.is_floating_point() and (weighs or func in HELD["softmax weights"]):
                self._weights[x] = True
        for x in operands:
            if x.grad_fn is not None:  # no function of torch's gave it: it has no name
                self.names.setdefault(x.grad_fn, "")
        self._calls[func.__name__] += isinstance(out, Tensor)

    def miss(self, name: str) -> None:
        """Note a function whose result is held and may join values."""
        self.held[name] = None

    def _mark_of(self, func: Callable[..., Any], x: Tensor) -> Mark:
        name, shape = func.__name__, tuple(x.shape)
        before = sum(
            count
            for (other, size), count in self._before.items()
            if other == name and Mark(name, shape, 0).fits(size)
        )
        self._before[name, shape] += 1
        return Mark(name, shape, before, self._calls[name])


def address_of(x: Tensor) -> int:
    """Where a tensor's memory begins, which its views share."""
    return x.untyped_storage().data_ptr()


def name_of(func: Callable[..., Any]) -> str:
    """The name of a function; with its home, where another of that name has a rule."""
    name = func.__name__
    if name not in COUNTED_NAMES or func in RULES or func in JOINS:
        return name
    operator = str(func)  # such as aten.mul; of other functions, what they are and where
    return f"{func.__module__}.{name}" if " " in operator else operator


def order_of(roots: Iterable[Any]) -> list[Any]:
    """Sort the nodes of a graph so that each comes before what it was made of."""
    order: list[Any] = []
    seen: set[Any] = set()
    for root in roots:
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, iter(root.next_functions))]
        while stack:
            node, parts = stack[-1]
            for part, _ in parts:
                if part is not None and part not in seen:
                    seen.add(part)
                    stack.append((part, iter(part.next_functions)))
                    break
            else:
                order.append(node)
                stack.pop()
    return order[::-1]


def cuts_of(order: Sequence[Any], roots: Sequence[Any]) -> list[list[Any]]:
    """Find the nodes that all paths go through, from the image on, in runs.

    order: as of `order_of`, of these roots. In a run each node is made of the one before it alone:
    all of a run are one cut, such as tokens, their norm and its mean. A path that passes a node by
    is an edge from a node before it in the order to one after it.
    """
    position = {node: index for index, node in enumerate(order)}
    parts_of = {
        node: [part for part, _ in node.next_functions if part is not None] for node in order
    }
    farthest, cuts = max(position[root] for root in roots), []
    for index, node in enumerate(order):
        if farthest <= index:
            cuts.append(node)
        farthest = max([farthest, *(position[part] for part in parts_of[node])])
    runs: list[list[Any]] = []
    for node in reversed(cuts):
        if (
            runs
            and parts_of[node] == [runs[-1][-1]]
            and position[runs[-1][-1]] == position[node] + 1
        ):
            runs[-1].append(node)
        else:
            runs.append([node])
    return runs
