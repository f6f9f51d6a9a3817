"""Which arguments of a function join its values: terms of a sum, tokens beside others, a bias."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from vision_attn.tokens.gradients.mode import tensors_in
from vision_attn.tokens.gradients.rules import (
    DIVIDE_AND_ADD,
    MULTIPLY_AND_ADD,
    detached,
    flows,
    functions,
    with_ends,
    with_operands,
)

__all__ = [
    "AFFINE",
    "BIASED",
    "BIASES",
    "JOINS",
    "WRITING",
    "Joined",
    "joined",
    "with_weight_held",
]

INTERPOLATE = functions("lerp")
# What these give is linear in their values, each alone, but for what they give at 0.
AFFINE: frozenset[Callable[..., Any]] = frozenset(
    functions(
        "add sub subtract rsub radd iadd isub diff where masked_fill masked_scatter scatter "
        "scatter_add index_put index_add index_copy index_fill setitem put fill zero copy "
        "fill_diagonal slice_scatter select_scatter diagonal_scatter as_strided_scatter pad "
        "constant_pad_nd cat concat concatenate stack hstack vstack dstack row_stack column_stack "
        "block_diag cartesian_prod complex"
    )
    | MULTIPLY_AND_ADD
    | DIVIDE_AND_ADD
    | INTERPOLATE
)
# Which of them write over their first argument.
WRITING = {
    func
    for func in AFFINE
    if (func.__name__.endswith("_") and not func.__name__.endswith("__"))
    or func.__name__ in ("__iadd__", "__isub__", "__setitem__")
}
# What joins here has a place of its own, after the values and weights; None: any place.
BIASED: dict[Callable[..., Any], tuple[int, ...] | None] = {
    **dict.fromkeys(functions("maximum minimum max min fmax fmin"), None),
    **dict.fromkeys(functions("clamp clip clamp_min clamp_max"), (1, 2)),  # by tensors
    **dict.fromkeys(functions("linear conv1d conv2d conv3d convolution conv_tbc"), (2,)),
    **dict.fromkeys(functions("conv_transpose1d conv_transpose2d conv_transpose3d"), (2,)),
    **dict.fromkeys(functions("bilinear"), (3,)),
}
BIASES = ("bias", "other", "input", "min", "max")  # the same, given by name
JOINS = AFFINE | BIASED.keys()


class Joined(NamedTuple):
    """A tensor that joins values, and what weighs it, if something does.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.gradients.constants import joined
        >>> x, bias = torch.ones(5, requires_grad=True), torch.ones(5)
        >>> [each.x is bias for each in joined(torch.add, (x, bias), {})]
        [False, True]
    """

    x: Tensor
    weight: Any = None


def joined(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[Joined]:
    """List the tensors among the arguments that join values, if the function joins any.

    A product of constants that is added joins, one of values and constants does not.
    """
    if func in BIASED:
        positions = BIASED[func]
        indices = range(len(args)) if positions is None else positions
        yield from map(Joined, tensors_in([args[i] for i in indices if i < len(args)]))
        yield from map(Joined, tensors_in([kwargs[name] for name in BIASES if name in kwargs]))
    elif func in INTERPOLATE:
        start, end, weight = with_ends(args, kwargs)
        yield from (Joined(x, weight) for x in tensors_in((start, end)))
    elif func in MULTIPLY_AND_ADD | DIVIDE_AND_ADD:
        term, factor, other = with_operands(args, dict(kwargs))[:3]
        yield from map(Joined, tensors_in((term,)))
        if not flows(factor) and (func in DIVIDE_AND_ADD or not flows(other)):
            yield from (Joined(x, other) for x in tensors_in((factor,)))
    elif func in AFFINE:
        yield from map(Joined, tensors_in(args))
        yield from map(Joined, tensors_in(kwargs))


def with_weight_held(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a function with its divisor or weight, if it has one, held."""
    if func in INTERPOLATE:
        args, kwargs = with_ends(args, kwargs), {}
    elif func in DIVIDE_AND_ADD:
        kwargs = dict(kwargs)
        args = with_operands(args, kwargs)
    else:
        return args, kwargs
    return (*args[:2], detached(args[2]), *args[3:]), kwargs
