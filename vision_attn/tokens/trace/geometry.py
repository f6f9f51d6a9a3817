"""What torch's larger operations give, by shape, strides and type: found without running them.

The strides are those of torch's kernels on a CPU. Those of other kernels may differ, which shows in
no origin.

Axes: b batch, c channels, head, i queries, j keys, n rows, d and e widths.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vision_attn.attention.shapes import broadcast_shape

__all__ = ["ViewGeometry", "geometry_of", "whole"]


class ViewGeometry(NamedTuple):
    """The shape, strides and type of a tensor.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.trace.geometry import ViewGeometry
        >>> ViewGeometry.of(torch.zeros(2, 3)).stride
        (3, 1)
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, x: Tensor) -> "ViewGeometry":
        return cls(tuple(x.shape), x.stride(), x.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of memory from the first element to the last."""
        last = sum([(n - 1) * step for n, step in zip(self.shape, self.stride, strict=True)])
        return self.dtype.itemsize * (last + 1)


Found = tuple[ViewGeometry, ...] | None


def geometry_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ViewGeometry | Found:
    """Find the geometry of an operation's result, a tensor or a tuple; None: it has to run.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.trace.geometry import geometry_of
        >>> geometry_of(torch.ops.aten.mm.default, (torch.rand(2, 3), torch.rand(3, 5)), {}).shape
        (2, 5)
    """
    name = func.name().partition(".")[0]
    if name in RULES:
        geometry: ViewGeometry | Found = RULES[name](*args, **kwargs)
        return geometry
    if torch.Tag.pointwise in func.tags or name in POINTWISE:
        alike = pointwise(args)
        return None if alike is None else alike._replace(dtype=dtype_of(func, args, kwargs))
    return None


def dtype_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype:
    """The type of a pointwise operation's result: it runs on one element of each tensor."""
    small = [x.new_zeros([1] * x.ndim) if isinstance(x, Tensor) else x for x in args]
    out: Tensor = func(*small, **kwargs)
    return out.dtype


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor of this shape whose last axis lies together.

    Examples:
        >>> from vision_attn.tokens.trace.geometry import row_major
        >>> row_major((2, 3, 5))
        (15, 5, 1)
    """
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def whole(shape: Sequence[int], dtype: torch.dtype) -> ViewGeometry:
    """A contiguous tensor of this shape.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.trace.geometry import whole
        >>> whole((2, 3, 5), torch.float64).stride
        (15, 5, 1)
    """
    return ViewGeometry(tuple(shape), row_major(shape), dtype)


def pointwise(args: tuple[Any, ...]) -> ViewGeometry | None:
    """One tensor of a floating type, with others of that type that broadcast to its shape."""
    operands = [x for x in args if isinstance(x, Tensor)]
    if any(isinstance(x, list | tuple) for x in args) or not operands:
        return None
    first = max(operands, key=Tensor.numel)
    shape, stride = first.shape, first.stride()
    if not first.is_floating_point():
        return None
    if not is_dense(first):
        return without_gaps(first) if len(operands) == 1 else None
    for x in operands:
        small = x.ndim < first.ndim or x.numel() < first.numel()
        if x.dtype != first.dtype or (not small and (x.shape != shape or x.stride() != stride)):
            return None
    if broadcast_shape(*[x.shape for x in operands]) != shape:
        return None
    return ViewGeometry(tuple(shape), stride, first.dtype)


def without_gaps(x: Tensor) -> ViewGeometry | None:
    """A tensor of its own without gaps, whose axes lie in the order of another's."""
    steps = [step for step, n in zip(x.stride(), x.shape, strict=True) if n > 1]
    if 0 in steps or len({*steps}) < len(steps) or not x.numel():
        return None
    axes = sorted(range(x.ndim), key=x.stride, reverse=True)
    strides = dict(zip(axes, row_major([x.shape[axis] for axis in axes]), strict=True))
    return ViewGeometry(tuple(x.shape), tuple([strides[axis] for axis in range(x.ndim)]), x.dtype)


def is_dense(x: Tensor) -> bool:
    """Whether a tensor is contiguous, in the order of its axes or with the channels last."""
    return x.is_contiguous() or (x.ndim == 4 and x.is_contiguous(memory_format=CHANNELS_LAST))


def product(left: Tensor, right: Tensor, *_: Any, **__: Any) -> ViewGeometry | None:
    if left.shape[-1] != right.shape[-2]:
        return None  # torch says what is wrong with them
    return whole((*left.shape[:-1], right.shape[-1]), left.dtype)


def sum_and_product(
    _: Tensor, left: Tensor, right: Tensor, *__: Any, **___: Any
) -> ViewGeometry | None:
    return product(left, right)


def layer_norm(x: Tensor, axes: Sequence[int], *_: Any, **__: Any) -> Found:
    if x.dtype != torch.float32:
        return None  # in half precision the statistics have a type of their own
    lead = x.shape[: x.ndim - len(axes)]
    statistics = whole((*lead, *[1] * len(axes)), x.dtype)
    return whole(x.shape, x.dtype), statistics, statistics


def convolution(
    x: Tensor, weight: Tensor, bias: Any, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, _: Any, groups: int,
) -> ViewGeometry | None:  # fmt: skip
    if transposed or x.ndim != 4 or x.shape[1] != groups * weight.shape[1]:
        return None
    stride, padding, dilation = (
        list(each) * (2 if len(each) == 1 else 1) for each in (stride, padding, dilation)
    )
    sides = [
        (n + 2 * pad - step * (side - 1) - 1) // each + 1
        for n, side, each, pad, step in zip(
            x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True
        )
    ]
    shape = (len(x), len(weight), *sides)
    if min(shape) < 1:
        return None
    return laid_out(shape, x.dtype, [x, weight])


def laid_out(shape: tuple[int, ...], dtype: torch.dtype, like: Sequence[Tensor]) -> ViewGeometry:
    """A map (b c h w), channels last if the only layout of one of these tensors is that."""
    if any(x.is_contiguous(memory_format=CHANNELS_LAST) and not x.is_contiguous() for x in like):
        _, c, h, w = shape
        return ViewGeometry(shape, (h * w * c, 1, w * c, c), dtype)
    return whole(shape, dtype)


def softmax(x: Tensor, axis: int, half_to_float: bool) -> ViewGeometry | None:
    return None if half_to_float else whole(x.shape, x.dtype)


def flash_attention(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Found:
    """Of torch's kernel on a CPU: the context (b head i e) and its log-sum-exp (b head i)."""
    b, head, i, e = *q.shape[:3], v.shape[-1]
    sums = torch.float64 if q.dtype == torch.float64 else torch.float32
    context = ViewGeometry((b, head, i, e), (i * head * e, e, head * e, 1), q.dtype)
    return context, ViewGeometry((b, head, i), (i * head, 1, head), sums)


def same(x: Tensor) -> ViewGeometry | None:
    """A tensor of its own in the order of another, which has no gaps."""
    return ViewGeometry.of(x) if is_dense(x) else None


def clone(x: Tensor, memory_format: torch.memory_format | None = None) -> ViewGeometry | None:
    if memory_format is torch.contiguous_format:
        return whole(x.shape, x.dtype)
    return same(x) if memory_format in (None, torch.preserve_format) else None


def roll(x: Tensor, *_: Any) -> ViewGeometry | None:
    return same(x) if x.is_contiguous() else None


def safe_softmax(x: Tensor, _: int, dtype: torch.dtype | None = None) -> ViewGeometry | None:
    return same(x) if x.is_contiguous() and dtype in (None, x.dtype) else None


def batch_norm(
    x: Tensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, *_: Any
) -> Found:
    if training or x.dtype != torch.float32 or (out := same(x)) is None:
        return None
    return out, whole((0,), x.dtype), whole((0,), x.dtype)


def padded(x: Tensor, around: Sequence[int], _: Any = 0) -> ViewGeometry | None:
    fits = 0 < len(around) <= 2 * x.ndim and len(around) % 2 == 0
    if not fits or min(around) < 0 or not is_dense(x):
        return None
    if not any(around):
        return same(x)
    shape = list(x.shape)
    for axis in range(len(around) // 2):
        shape[-1 - axis] += around[2 * axis] + around[2 * axis + 1]
    return laid_out(tuple(shape), x.dtype, [x]) if x.ndim == 4 else whole(shape, x.dtype)


def mean_pool(
    x: Tensor, size: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    rounds_up: bool = False, *_: Any,
) -> ViewGeometry | None:  # fmt: skip
    if rounds_up or x.ndim != 4 or not is_dense(x):
        return None
    size, stride, padding = (
        list(each) * (2 if len(each) == 1 else 1) for each in (size, stride or size, padding)
    )
    sides = [
        (n + 2 * pad - side) // step + 1
        for n, side, step, pad in zip(x.shape[2:], size, stride, padding, strict=True)
    ]
    shape = (*x.shape[:2], *sides)
    return laid_out(shape, x.dtype, [x]) if min(shape) > 0 else None


def mean(
    x: Tensor, axes: int | Sequence[int] | None = None, keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> ViewGeometry | None:  # fmt: skip
    if not (x.is_contiguous() and x.is_floating_point() and dtype in (None, x.dtype)):
        return None
    axes = [axes] if isinstance(axes, int) else axes or range(x.ndim)
    if not all(-x.ndim <= axis < x.ndim for axis in axes):
        return None  # torch says what is wrong with them
    gone = {axis % x.ndim for axis in axes}
    if len(gone) < len(axes):
        return None
    rest = [1 if axis in gone else n for axis, n in enumerate(x.shape)]
    shape = rest if keepdim else [n for axis, n in enumerate(rest) if axis not in gone]
    return whole(shape, x.dtype)


CHANNELS_LAST = torch.channels_last
POINTWISE = frozenset(
    {"aten::gelu", "aten::silu", "aten::hardswish", "aten::relu", "aten::sigmoid"}
)
RULES: dict[str, Callable[..., Any]] = {
    "aten::mm": product,
    "aten::bmm": product,
    "aten::addmm": sum_and_product,
    "aten::baddbmm": sum_and_product,
    "aten::native_layer_norm": layer_norm,
    "aten::convolution": convolution,
    "aten::clone": clone,
    "aten::roll": roll,
    "aten::constant_pad_nd": padded,
    "aten::avg_pool2d": mean_pool,
    "aten::native_batch_norm": batch_norm,
    "aten::mean": mean,
    "aten::_softmax": softmax,
    "aten::_safe_softmax": safe_softmax,
    "aten::_scaled_dot_product_flash_attention_for_cpu": flash_attention,
}
