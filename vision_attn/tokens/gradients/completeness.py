"""How much of a score its shares and the additive constants account for.

Axes: b batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from vision_attn.compat.torch_private import whole_of
from vision_attn.tokens.gradients.constants import (
    AFFINE,
    BIASED,
    BIASES,
    WRITING,
    joined,
    with_weight_held,
)
from vision_attn.tokens.gradients.mode import HeldGradients, Mark, tensors_in
from vision_attn.tokens.gradients.rules import flows, functions

__all__ = ["Account", "CountedGradients", "Holders", "account_of"]

# What takes a value's shape, not the value.
SHAPES = functions(
    "new_zeros new_ones new_full new_empty new_tensor zeros_like ones_like full_like empty_like "
    "rand_like randn_like randint_like"
)


class Holders:
    """Which tensors depend on the image although no gradient flows through them, and why.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.gradients.completeness import Holders
        >>> holders, weights = Holders(), torch.ones(3)
        >>> holders.hold(weights, "softmax")
        >>> holders.of(weights)
        'softmax'
    """

    def __init__(self) -> None:
        self._names: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def hold(self, x: Tensor, name: str) -> None:
        """Remember a tensor, by the name of the function that held it."""
        self._names[x] = name

    def of(self, x: Tensor) -> str | None:
        """Return the function that held a tensor; None where it does not depend on the image."""
        name: str | None = self._names.get(x)
        return name

    def joining(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> dict[int, str]:
        """Name what held the tensors that join values without a gradient, by their `id`.

        A constant is held by what weighs it, too.
        """
        names = {}
        for x, weight in joined(func, args, kwargs):
            if flows(x) or not (x.is_floating_point() or x.is_complex()):
                continue
            name = self.of(x)
            if name is None and isinstance(weight, Tensor):
                name = func.__name__ if flows(weight) else self.of(weight)
            if name is not None:
                names[id(x)] = name
        return names

    def follow(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        operands: Sequence[Tensor],
        out: Any,
        flowing: bool,
    ) -> None:
        """Remember what a function makes of what is held, or holds itself."""
        names = (self.of(x) for x in operands)
        name = next((name for name in names if name is not None), None)
        if name is None and flowing:
            name = func.__name__
        if name is not None and func not in SHAPES:
            for x in [args[0]] if func is Tensor.__setitem__ else tensors_in((out,)):
                for written in (x, whole_of(x) if args and x is args[0] else x):
                    if not written.requires_grad:
                        self.hold(written, name)


class JoinedConstants(torch.autograd.Function):
    """A value as it is, whose gradient is also that of the constants in it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *constants: Tensor) -> Tensor:
        ctx.count = len(constants)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        count: int = ctx.count
        return (gradient,) * (1 + count)


class CountedGradients(HeldGradients):
    """The gradient rules, with a leaf for all constants that join values, function by function.

    After a run `constants` holds the leaves of what does not depend on the image, and `held` those
    of what does although no gradient flows through it, each with the name of the function that held
    it: what joins values so is in no share. A function that is linear but for constants has what it
    gives at 0 as its leaf; a bias or another bound is a leaf itself.

    Args:
        image: What the run is given.
        levels: As of `HeldGradients`.
        batch: How many images the network runs on.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.gradients.completeness import CountedGradients
        >>> x = torch.tensor([1.0, 3.0], requires_grad=True)
        >>> with CountedGradients(x) as counted:
        ...     y = 2 * x + 5
        >>> [leaf.tolist() for leaf in counted.constants]
        [[5.0, 5.0]]
    """

    counts = True

    def __init__(self, image: Tensor, levels: Sequence[tuple[Mark, bool]] = (), batch: int = 1):
        super().__init__(levels, batch=batch)
        self.constants: list[Tensor] = []
        self.held: list[tuple[str, Tensor]] = []
        self._holders = Holders()
        if not image.requires_grad:
            self._holders.hold(image, "what goes past the first level")

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function by its rule, with leaves for the constants that it adds."""
        operands = [*tensors_in(args), *tensors_in(kwargs)]
        flowing = [x for x in operands if flows(x)]
        leaves: list[Tensor] = []
        if flowing and func in AFFINE:
            self._begin_writing(func, args)
            if not all(map(flows, (*args, *kwargs.values()))):  # values alone give 0 at 0
                leaves = self._at_zero(func, args, kwargs)
        elif flowing and func in BIASED:
            args, kwargs = self._with_leaves(func, args, kwargs, flowing[0].dtype)
        out = super().run(func, args, kwargs)
        if leaves and func in WRITING:
            args[0].copy_(JoinedConstants.apply(args[0], *leaves))
        elif leaves:
            out = self.mark(JoinedConstants.apply(out, *leaves), self.strength(out))
        self._holders.follow(func, args, operands, out, bool(flowing))
        return out

    def hold(self, weights: Tensor) -> Tensor:
        """Return weights of attention as constants that depend on the image."""
        weights = weights.detach()
        self._holders.hold(weights, "attention weights")
        return weights

    def constant(self, value: Any, made_of: Sequence[Any] = ()) -> Any:
        """Return a leaf in the place of a constant; values and what is no number as they are."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = torch.tensor(float(value), dtype=torch.float64, device="cpu")
        if not isinstance(value, Tensor) or not value.is_floating_point() or flows(value):
            return value
        holders = (self._holders.of(x) for x in (value, *made_of) if isinstance(x, Tensor))
        return self._leaf(value, next(filter(None, holders), None))

    def _leaf(self, value: Tensor, holder: str | None) -> Tensor:
        leaf = value.detach().requires_grad_()
        if holder is None:
            self.constants.append(leaf)
        else:
            self.held.append((holder, leaf))
        return leaf

    def _begin_writing(self, func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Have a constant, into which values are about to be written, flow as a copy of a leaf."""
        if func in WRITING and not flows(args[0]):
            whole = whole_of(args[0])
            holder = self._holders.of(whole) or self._holders.of(args[0])
            whole.copy_(self._leaf(whole.clone(), holder))
            _ = args[0].grad_fn  # torch learns here that the part was written, too

    def _at_zero(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Tensor]:
        """Make leaves of what a function gives where its values are 0: one for each holder."""
        names = self._holders.joining(func, args, kwargs)
        args, kwargs = with_weight_held(func, args, kwargs)

        def at_zero(*without: str) -> Tensor:
            def zero(x: Any) -> Any:
                if isinstance(x, list | tuple):
                    return tuple(map(zero, x)) if isinstance(x, tuple) else [*map(zero, x)]
                if not isinstance(x, Tensor):
                    return x
                zeroed = flows(x) or names.get(id(x)) in without
                return torch.zeros_like(x) if zeroed else x

            zeros = tuple(map(zero, args))
            out = func(*zeros, **{key: zero(x) for key, x in kwargs.items()})
            result: Tensor = zeros[0] if func in WRITING else out
            return result

        holders = list(dict.fromkeys(names.values()))
        leaves = []
        with torch.no_grad():
            rest = at_zero(*holders)
            if rest.any():
                leaves.append(self._leaf(rest, None))
            for count, holder in enumerate(holders):
                more = at_zero(*holders[count + 1 :])
                part = (more - rest).where(more != rest, 0)  # of infinity too
                leaves.append(self._leaf(part, holder))
                rest = more
        return leaves

    def _with_leaves(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        dtype: torch.dtype,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        positions = BIASED[func]

        def leaf(x: Any) -> Any:
            if not isinstance(x, Tensor) or flows(x):
                return x
            name = self._holders.of(x)
            return self._leaf(x.to(torch.promote_types(x.dtype, dtype) if x.ndim else dtype), name)

        args = tuple(
            leaf(x) if positions is None or index in positions else x
            for index, x in enumerate(args)
        )
        return args, {name: leaf(x) if name in BIASES else x for name, x in kwargs.items()}


@dataclass(frozen=True)
class Account:
    """The terms that add up to the score of one image.

    Attributes:
        shares: Sum x . g over what it was differentiated by.
        size: The sum of the sizes of these products, one a token.
        constants: Sum b . g.
        held: The same of what is held although it depends on the image, by the function that held
            it.

    Examples:
        >>> from vision_attn.tokens.gradients.completeness import Account
        >>> Account(score=3.0, shares=2.0, size=4.0, constants=0.5, held={"exp": 0.5}).gap
        0.125
    """

    score: float
    shares: float
    size: float
    constants: float
    held: dict[str, float]

    @property
    def gap(self) -> float:
        """Compute |s - sum x . g - sum b . g| / max(|s|, sum |x . g|)."""
        return abs(self.score - self.shares - self.constants) / max(
            abs(self.score), self.size, 1e-300
        )


def account_of(score: Tensor, level: Tensor, channels: int, counted: CountedGradients) -> Account:
    """Account for the score of one image.

    level: what it is shared out over, a value of the run. channels: its axis of channels.
    """
    leaves = [*counted.constants, *(leaf for _, leaf in counted.held)]
    gradients = torch.autograd.grad(score, [level, *leaves], allow_unused=True)
    products = [
        torch.zeros(1, dtype=torch.float64, device="cpu")
        if gradient is None
        else product_of(value.detach(), gradient)
        for value, gradient in zip([level, *leaves], gradients, strict=True)
    ]
    shares, *parts = products
    size = shares if gradients[0] is None else shares.sum(channels)
    count, held = len(counted.constants), dict[str, float]()
    for (name, _), part in zip(counted.held, parts[count:], strict=True):
        held[name] = held.get(name, 0.0) + float(part.sum())
    return Account(
        float(score.detach()),
        float(shares.sum()),
        float(size.abs().sum()),
        sum((float(part.sum()) for part in parts[:count]), 0.0),
        held,
    )


def product_of(value: Tensor, gradient: Tensor) -> Tensor:
    """Multiply a value and its gradient in float64; 0 where the gradient is, of infinity too.

    Of complex numbers the parts are multiplied, and added in their last axis.
    """
    if value.is_complex():
        value, gradient = torch.view_as_real(value), torch.view_as_real(gradient)
        return product_of(value, gradient).sum(-1)
    return (value.double() * gradient.double()).where(gradient != 0, 0)
