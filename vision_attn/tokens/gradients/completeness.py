"""How much of a score its shares and the additive constants account for.

Axes: b batch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from vision_attn.tokens.gradients.mode import HeldGradients, Mark, tensors_in
from vision_attn.tokens.gradients.rules import flows, functions

__all__ = ["Account", "CountedGradients", "Holders", "account_of", "joined"]

SUMS = functions("add sub subtract rsub radd iadd isub")  # which take numbers, too
# Where a constant may join values: at these places among the arguments, None at all of them.
JOINS: dict[Callable[..., Any], tuple[int, ...] | None] = {
    **dict.fromkeys(
        SUMS
        | functions(
            "cat concat concatenate stack hstack vstack dstack column_stack maximum minimum max "
            "min fmax fmin where masked_fill masked_scatter scatter scatter_add index_put "
            "index_add index_copy setitem"
        ),
        None,
    ),
    **dict.fromkeys(functions("addmm addbmm addmv addr baddbmm addcmul addcdiv"), (0,)),
    **dict.fromkeys(functions("lerp"), (0, 1)),
    **dict.fromkeys(functions("linear conv1d conv2d conv3d"), (2,)),
    **dict.fromkeys(functions("conv_transpose1d conv_transpose2d conv_transpose3d"), (2,)),
}
NAMED = ("bias", "other", "input", "value", "source", "src")  # the same, given by name
# What takes a value's shape, not the value.
SHAPES = functions(
    "new_zeros new_ones new_full new_empty new_tensor zeros_like ones_like full_like empty_like "
    "rand_like randn_like randint_like"
)
# Numbers that join values as tensors do, by their positions among the arguments.
NUMBERS: dict[Callable[..., Any], tuple[int, ...]] = {
    **dict.fromkeys(SUMS, (0, 1)),
    torch.where: (1, 2),
    Tensor.where: (0, 2),
    **dict.fromkeys(functions("masked_fill setitem"), (2,)),
}


def joined(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[Tensor]:
    """List the tensors among the arguments that join values, if the function joins any."""
    if func in JOINS:
        positions = JOINS[func]
        yield from tensors_in(
            args if positions is None else [args[i] for i in positions if i < len(args)]
        )
        yield from tensors_in([kwargs[name] for name in NAMED if name in kwargs])


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
                if not x.requires_grad:
                    self.hold(x, name)


class CountedGradients(HeldGradients):
    """The gradient rules, with a leaf in the place of each constant that joins values.

    After a run `constants` holds the leaves of what does not depend on the image, and `held` those
    of what does although no gradient flows through it, each with the name of the function that held
    it: what joins values so is in no share.

    Args:
        image: What the run is given.
        levels: As of `HeldGradients`.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.gradients.completeness import CountedGradients
        >>> x = torch.tensor([1.0, 3.0], requires_grad=True)
        >>> with CountedGradients(x) as counted:
        ...     y = 2 * x + 5
        >>> [leaf.item() for leaf in counted.constants]
        [5.0]
    """

    counts = True

    def __init__(self, image: Tensor, levels: Sequence[tuple[Mark, bool]] = ()):
        super().__init__(levels)
        self.constants: list[Tensor] = []
        self.held: list[tuple[str, Tensor]] = []
        self._holders = Holders()
        if not image.requires_grad:
            self._holders.hold(image, "what goes past the first level")

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function by its rule, with leaves for the constants that it adds."""
        operands = [*tensors_in(args), *tensors_in(kwargs)]
        flowing = [x for x in operands if flows(x)]
        if flowing and func in JOINS:
            args, kwargs = self._with_leaves(func, args, kwargs, flowing[0].dtype)
        out = super().run(func, args, kwargs)
        self._holders.follow(func, args, operands, out, bool(flowing))
        return out

    def hold(self, weights: Tensor) -> Tensor:
        """Return weights of attention as constants that depend on the image."""
        weights = weights.detach()
        self._holders.hold(weights, "attention weights")
        return weights

    def constant(self, value: Any) -> Any:
        """Return a leaf in the place of a constant; values and what is no number as they are."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = torch.tensor(float(value), dtype=torch.float64, device="cpu")
        if not isinstance(value, Tensor) or not value.is_floating_point() or flows(value):
            return value
        holder = self._holders.of(value)
        leaf = value.detach().requires_grad_()
        if holder is None:
            self.constants.append(leaf)
        else:
            self.held.append((holder, leaf))
        return leaf

    def _with_leaves(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        dtype: torch.dtype,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        joins, numbers = JOINS[func], NUMBERS.get(func, ())

        def leaf(x: Any, number: bool = False) -> Any:
            if isinstance(x, list | tuple):
                return type(x)(map(leaf, x))
            if isinstance(x, Tensor) and x.is_floating_point() and self._holders.of(x) is None:
                x = x.to(torch.promote_types(x.dtype, dtype)) if x.ndim else x
            return self.constant(x) if isinstance(x, Tensor) or number else x

        written = func.__name__.endswith("_")  # over the first, which cannot become a leaf
        args = tuple(
            leaf(x, index in numbers)
            if (joins is None or index in joins) and not (written and index == 0)
            else x
            for index, x in enumerate(args)
        )
        return args, {
            name: leaf(x, bool(numbers)) if name in NAMED else x for name, x in kwargs.items()
        }


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
        else (value.detach().double() * gradient.double()).where(
            gradient != 0, 0
        )  # of infinity too
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
