"""Gradient rules: what only normalises or gates is constant in the backward pass.

Each rule runs one of torch's functions to the value that it has, on a graph that is another: a
norm's divisor, weights of attention, gates and what makes an activation of its input are constants.
What is left is homogeneous of degree one in the values and the additive constants together, so
that sum x . g + sum b . g is the output (LibraGrad, Mehri et al., CVPR 2025, arXiv:2411.16760).

Axes: b batch, c channels, n tokens, d width of a token.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from vision_attn.attention.channels import channel_scale
from vision_attn.compat.torch_private import whole_of
from vision_attn.tokens.record.sdpa import SDPAInputs, multi_head_attention

__all__ = [
    "DIVIDE_AND_ADD",
    "HELD",
    "IN_PLACE",
    "MULTIPLY_AND_ADD",
    "NORM_RULES",
    "RULES",
    "Rule",
    "Tracking",
    "detached",
    "flows",
    "functions",
    "with_ends",
    "with_operands",
]


class Tracking(ABC):
    """What a rule needs from the mode that runs it.

    Examples:
        >>> from vision_attn.tokens.gradients.mode import HeldGradients
        >>> from vision_attn.tokens.gradients.rules import Tracking
        >>> issubclass(HeldGradients, Tracking)
        True
    """

    counts: ClassVar[bool] = False
    """Whether additive constants are counted."""

    @abstractmethod
    def strength(self, x: Tensor) -> int:
        """The strength of a value as a gate: 0 for values that are no gates."""

    @abstractmethod
    def mark(self, x: Any, strength: int) -> Any:
        """Return a value, marked as a gate of this strength."""

    @abstractmethod
    def unmark(self, x: Tensor) -> None:
        """Have a value that is written over be no gate any more."""

    @abstractmethod
    def join_images(self, x: Tensor) -> None:
        """Note that a value's first axis is normalised over: images may be joined."""

    @abstractmethod
    def miss(self, name: str) -> None:
        """Note a function whose result is held, and may join values: it may be in no share."""

    @abstractmethod
    def constant(self, value: Any, made_of: Sequence[Any] = ()) -> Any:
        """Return an additive constant, or its leaf in a mode that counts constants.

        made_of: what a rule has computed it from, which may depend on the image.
        """

    @abstractmethod
    def inside(self, run: Callable[[], Any]) -> Any:
        """Run other functions of torch, which are no calls of the network's, under their rules."""


Rule = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any], Tracking], Any]


def flows(x: Any) -> bool:
    """Whether a gradient flows through a value."""
    return isinstance(x, Tensor) and x.requires_grad


def detached(x: Any) -> Any:
    """Return a tensor held constant, anything else as it is."""
    return x.detach() if isinstance(x, Tensor) else x


def functions(names: str) -> set[Callable[..., Any]]:
    """Find torch's functions of these names: of torch, of tensors, in place, of `nn.functional`."""
    homes = (torch, Tensor, F, torch.special, torch.linalg)
    each = [form for name in names.split() for form in (name, f"{name}_", f"__{name}__")]
    candidates = (getattr(home, name, None) for home in homes for name in each)
    return {func for func in candidates if callable(func)}


# ---- norms: the divisor ----


class HeldNorm(torch.autograd.Function):
    """A layer or group norm, (x - mean) * const(1 / deviation), as torch's kernel computes it.

    `run` gives (y, mean, 1 / deviation). view: the shape of x in which the axes that are normalised
    are the last `axes`. weight: broadcasts to x, or None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        run: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]],
        view: Sequence[int],
        axes: int,
        weight: Tensor | None,
    ) -> Tensor:
        y, _, inverse = run(x)
        ctx.view, ctx.axes, ctx.weight = view, axes, weight
        ctx.save_for_backward(inverse.reshape(*view[: len(view) - axes], *[1] * axes))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (inverse,) = ctx.saved_tensors
        shape, dims = gradient.shape, tuple(range(-ctx.axes, 0))
        if ctx.weight is not None:
            gradient = gradient * ctx.weight
        gradient = gradient.reshape(ctx.view)
        gradient = (gradient - gradient.mean(dims, keepdim=True)).mul_(inverse)
        return gradient.reshape(shape), None, None, None, None


def layer_norm(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tracking: Tracking
) -> Any:
    """y = (x - mean) * const(1 / deviation) * weight + bias."""

    def run(
        x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
        bias: Tensor | None = None, eps: int | float = 1e-5, *_: Any, **__: Any,
    ) -> Tensor:  # fmt: skip
        shape = [normalized_shape] if isinstance(normalized_shape, int) else [*normalized_shape]
        if not flows(x):
            plain: Tensor = func(*args, **kwargs)
            return plain
        own, bias = with_constant(bias, tracking)
        kernel = lambda x: torch.native_layer_norm(x, shape, weight, own, eps)  # noqa: E731
        out: Tensor = HeldNorm.apply(x, kernel, x.shape, len(shape), weight)
        return out if bias is None else out + bias

    return run(*args, **kwargs)


def group_norm(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tracking: Tracking
) -> Any:
    """y = (x - mean) * const(1 / deviation) * weight + bias, in each group of channels."""

    def run(
        x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
        eps: int | float = 1e-5, *_: Any, **__: Any,
    ) -> Tensor:  # fmt: skip
        if not flows(x):
            plain: Tensor = func(*args, **kwargs)
            return plain
        b, c, *space = x.shape
        own, bias = with_constant(bias, tracking)
        kernel = lambda x: torch.native_group_norm(  # noqa: E731
            x.contiguous(), weight, own, b, c, prod(space), num_groups, eps
        )
        view = (b, num_groups, c // num_groups * prod(space))
        scale = None if weight is None else weight.view(-1, *[1] * len(space))
        out: Tensor = HeldNorm.apply(x, kernel, view, 1, scale)
        return out if bias is None else out + bias.view(-1, *[1] * len(space))

    return run(*args, **kwargs)


def with_constant(bias: Tensor | None, tracking: Tracking) -> tuple[Tensor | None, Tensor | None]:
    """What a kernel adds, and what is added to its result so that it is counted: one is None."""
    if bias is None or not tracking.counts:
        return bias, None
    return None, tracking.constant(bias)


def instance_norm(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tracking: Tracking
) -> Any:
    """y = (x - mean) * const(1 / deviation) * weight + bias, in each channel of each image."""

    def run(
        x: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
        weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True,
        momentum: float = 0.1, eps: int | float = 1e-5, *_: Any,
    ) -> Tensor:  # fmt: skip
        if not flows(x):
            plain: Tensor = func(*args, **kwargs)
            return plain
        if use_input_stats or running_mean is None:
            out = written_norm(x, range(2, x.ndim), eps)
            return affine(out, weight, bias, tracking)
        return by_statistics(x, running_mean, running_var, weight, bias, eps, tracking)

    return run(*args, **kwargs)


def batch_norm(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tracking: Tracking
) -> Any:
    """y = (x - mean) / deviation * weight + bias: linear by what was learned, else a norm."""

    def run(
        x: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
        weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
        momentum: float = 0.1, eps: int | float = 1e-5, *_: Any,
    ) -> Tensor:  # fmt: skip
        if not flows(x):
            plain: Tensor = func(*args, **kwargs)
            return plain
        if training or running_mean is None:
            tracking.join_images(x)
            out = written_norm(x, [axis for axis in range(x.ndim) if axis != 1], eps)
            return affine(out, weight, bias, tracking)
        if tracking.counts or flows(running_mean) or flows(running_var):
            return by_statistics(x, running_mean, running_var, weight, bias, eps, tracking)
        scaled: Tensor = func(*args, **kwargs)
        return scaled

    return run(*args, **kwargs)


def affine_first(rule: Rule, func: Callable[..., Any]) -> Rule:
    """Make the rule of a norm that has weight and bias before its statistics, by that of `func`."""

    def reordered(
        _func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tracking: Tracking
    ) -> Any:
        def run(
            input: Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any,
            training: bool, momentum: float, eps: float, cudnn_enabled: bool = True,
        ) -> Any:  # fmt: skip
            statistics = (running_mean, running_var, weight, bias, training, momentum, eps)
            return rule(func, (input, *statistics), {}, tracking)

        return run(*args, **kwargs)

    return reordered


def by_statistics(
    x: Tensor, mean: Any, variance: Any, weight: Tensor | None, bias: Tensor | None,
    eps: int | float, tracking: Tracking,
) -> Tensor:  # fmt: skip
    """A batch norm by given statistics, as a scale and one additive constant a channel.

    A mean that depends on the image is subtracted; a variance is held, whatever it is made of.
    """
    around = [1] * (x.ndim - 2)
    if flows(mean):
        x, mean = x - mean.view(-1, *around), mean.new_zeros(mean.shape)
    scale = (detached(variance) + eps).rsqrt()
    scale = scale if weight is None else scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    scale, shift = (each.to(x.dtype).view(-1, *around) for each in (scale, shift))
    scaled: Tensor = x * scale + tracking.constant(shift, (mean, variance, weight, bias))
    return scaled


def written_norm(x: Tensor, dims: Sequence[int], eps: int | float) -> Tensor:
    """(x - mean) * const(1 / deviation) over these axes, written out."""
    centred = x - x.mean([*dims], keepdim=True)
    inverse = (centred.detach().square().mean([*dims], keepdim=True) + eps).rsqrt()
    return centred * inverse


def affine(out: Tensor, weight: Tensor | None, bias: Tensor | None, tracking: Tracking) -> Tensor:
    around = [1] * (out.ndim - 2)
    out = out if weight is None else out * weight.view(-1, *around)
    return out if bias is None else out + tracking.constant(bias).view(-1, *around)


def rms_norm(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tracking: Tracking
) -> Any:
    """y = x * const(1 / root mean square) * weight."""

    def run(
        x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
        eps: int | float | None = None,
    ) -> Tensor:  # fmt: skip
        shape = [normalized_shape] if isinstance(normalized_shape, int) else normalized_shape
        eps = torch.finfo(x.dtype).eps if eps is None else eps
        with torch.no_grad():
            wide = x.detach().to(torch.promote_types(x.dtype, torch.float32))
            mean = wide.square().mean([*range(-len(shape), 0)], keepdim=True)
            inverse = (mean + eps).rsqrt().to(x.dtype)
            gate = inverse if weight is None else inverse * weight.detach()
        return x * gate

    return run(*args, **kwargs)


def normalize(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tracking: Tracking
) -> Any:
    """y = x / const(max(norm, eps))."""

    def run(
        x: Tensor, p: int | float = 2.0, dim: int = 1, eps: int | float = 1e-12, out: Any = None
    ) -> Tensor:
        unit: Tensor = x / x.detach().norm(p, dim, keepdim=True).clamp_min(eps)
        return unit

    return run(*args, **kwargs)


# ---- quotients: the divisor ----


def quotient(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tracking: Tracking
) -> Any:
    """a / const(b). Sigmoids that are divided by their sum are gates still."""
    args = with_operands(args, kwargs)
    x, divisor, *rest = args
    strength = tracking.strength(x) if flows(x) else 0
    out = func(x, detached(divisor), *rest, **kwargs)
    if strength == SIGMOID or not flows(divisor):
        return tracking.mark(out, strength)
    if func in IN_PLACE:
        tracking.unmark(x)
    return out


def added_quotient(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tracking: Tracking
) -> Any:
    """a + value b / const(c)."""
    args = with_operands(args, kwargs)
    return func(*args[:2], detached(args[2]), **kwargs)


def local_response_norm(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tracking: Tracking
) -> Any:
    """x / const((k + alpha mean x^2)^beta)."""

    def run(
        x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
    ) -> Tensor:
        def kernel(x: Tensor) -> Tensor:
            normed: Tensor = func(x, size, alpha, beta, k)
            return normed

        gated: Tensor = Gated.apply(x, kernel, 0.0, k**-beta) if flows(x) else kernel(x)
        return gated

    return run(*args, **kwargs)


def held(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tracking: Tracking
) -> Any:
    """A value that only weighs or divides others: weights of a softmax, an inverse, a variance."""
    if func in OUT_OF_PLACE and flows(args[0]):
        return held_in_place(args[0], func, args, kwargs, tracking)
    with torch.no_grad():
        return func(*args, **kwargs)


def held_in_place(
    x: Tensor,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tracking: Tracking,
) -> Tensor:
    """Write over a value what only weighs or divides others, and take it off its graph."""
    with torch.no_grad():
        value = OUT_OF_PLACE[func](*args, **kwargs)
        if whole_of(x) is x:
            return x.copy_(value).detach_()
    tracking.miss(func.__name__)  # torch takes no view off a graph: the rest of it may flow
    return tracking.mark(x.copy_(value), SIGMOID)  # type: ignore[no-any-return]


def variance_and_mean(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tracking: Tracking
) -> Any:
    """The variance is held, the mean is not."""
    variance, _ = held(func, args, kwargs, tracking)
    return variance, func(*args, **kwargs)[1]


# ---- activations: f(x) = f(0) + x * const((f(x) - f(0)) / x) ----


class Gated(torch.autograd.Function):
    """f(x) whose gradient is the gate (f(x) - f(0)) / x, `slope` at x = 0."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, run: Callable[[Tensor], Tensor], at_zero: float, slope: float
    ) -> Tensor:
        y = run(x)
        gate = y / x if at_zero == 0 else (y - at_zero) / x
        ctx.save_for_backward(gate.nan_to_num_(nan=slope, posinf=slope, neginf=slope))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (gate,) = ctx.saved_tensors
        return gradient * gate, None, None, None


class Activation(NamedTuple):
    """f(0), None where options decide; f'(0); how much of a gate f(x) is for another value."""

    at_zero: float | None
    slope: float
    strength: int


WEAK, BOUNDED, SIGMOID = 1, 2, 3
ACTIVATIONS = {
    "gelu": Activation(0.0, 0.5, WEAK),
    "silu": Activation(0.0, 0.5, WEAK),
    "mish": Activation(0.0, 0.6, WEAK),
    "hardswish": Activation(0.0, 0.5, WEAK),
    "elu": Activation(0.0, 1.0, WEAK),
    "selu": Activation(0.0, 1.0, WEAK),
    "celu": Activation(0.0, 1.0, WEAK),
    "softshrink": Activation(0.0, 0.0, WEAK),
    "hardshrink": Activation(0.0, 0.0, WEAK),
    "tanhshrink": Activation(0.0, 0.0, WEAK),
    "softplus": Activation(None, 0.5, BOUNDED),
    "logsigmoid": Activation(None, 0.5, WEAK),
    "softsign": Activation(0.0, 1.0, BOUNDED),
    "tanh": Activation(0.0, 1.0, BOUNDED),
    "erf": Activation(0.0, 1.128379, BOUNDED),
    "relu6": Activation(0.0, 0.0, BOUNDED),
    "hardtanh": Activation(None, 1.0, BOUNDED),
    "clamp": Activation(None, 1.0, BOUNDED),
    "clip": Activation(None, 1.0, BOUNDED),
    "clamp_max": Activation(None, 1.0, BOUNDED),
    "clamp_min": Activation(None, 1.0, BOUNDED),
    "sigmoid": Activation(0.5, 0.25, SIGMOID),
    "expit": Activation(0.5, 0.25, SIGMOID),
    "hardsigmoid": Activation(0.5, 1 / 6, SIGMOID),
    "square": Activation(0.0, 0.0, 0),
    "sqrt": Activation(0.0, 0.0, 0),
    "pow": Activation(0.0, 0.0, 0),
    "log1p": Activation(0.0, 1.0, 0),
    "expm1": Activation(0.0, 1.0, 0),
    "sin": Activation(0.0, 1.0, 0),
    "atan": Activation(0.0, 1.0, 0),
}
IN_PLACE_WORDS = ("inplace", "out")


def activation_rule(activation: Activation) -> Rule:
    """Make the rule of an activation: its gate is constant."""

    def rule(
        func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tracking: Tracking
    ) -> Any:
        name = func.__name__
        x, args, in_place = unplaced(func, args, kwargs)
        args = tuple(map(detached, args))
        kwargs = {
            key: detached(value) for key, value in kwargs.items() if key not in ("input", "inplace")
        }
        free = OUT_OF_PLACE.get(func, func)
        run: Callable[[Tensor], Tensor] = lambda x: free(x, *args, **kwargs)  # noqa: E731
        at_zero = activation.at_zero
        if name.startswith(("pow", "__pow__")) and not _is_power(args, kwargs):
            return held(func, (x, *args), kwargs, tracking)
        if name.startswith(("clamp", "clip")) and is_relu(*bounds_of(func, (x, *args), kwargs)[1:]):
            return func(x, *args, **kwargs)
        if at_zero is None:
            at_zero = float(run(torch.zeros(1, dtype=torch.float64, device="cpu")).reshape(-1)[0])
        out = Gated.apply(x, run, at_zero, activation.slope)
        if at_zero and tracking.counts:
            out = out - at_zero + tracking.constant(at_zero).to(out.dtype)
        if in_place:
            out = x.copy_(out)
            tracking.unmark(out)
        return tracking.mark(out, activation.strength)

    def only_what_flows(
        func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tracking: Tracking
    ) -> Any:
        x = args[0] if args else kwargs["input"]
        return (rule if flows(x) else native)(func, args, kwargs, tracking)

    return only_what_flows


def native(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tracking: Tracking
) -> Any:
    """Run the function unchanged."""
    return func(*args, **kwargs)


def unplaced(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, tuple[Any, ...], bool]:
    """The input of an activation, its other arguments, and whether it is written over."""
    x, *rest = args if args else (kwargs["input"],)
    in_place = kwargs.get("inplace", False) or func in OUT_OF_PLACE
    flag_index = INPLACE_AT.get(func.__name__)
    if flag_index is not None and len(rest) > flag_index:
        in_place |= bool(rest[flag_index])
        rest[flag_index] = False
    return x, tuple(rest), in_place


INPLACE_AT = {  # where `inplace` stands among the arguments after the input
    **dict.fromkeys(("silu", "mish", "hardswish", "selu", "relu6", "hardsigmoid"), 0),
    **dict.fromkeys(("elu", "celu"), 1),
    "hardtanh": 2,
}


def _is_power(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an exponent, or each of several, is above 0; others make an inverse: it is held."""
    exponent = args[0] if args else kwargs.get("exponent")
    if isinstance(exponent, Tensor):
        exponent = float(exponent.detach().min())
    return isinstance(exponent, int | float) and exponent > 0


def clamped(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tracking: Tracking
) -> Any:
    """min(max(x, least), most) by bounds that are tensors; an activation's gate by numbers."""
    x, least, most = bounds_of(func, args, kwargs)
    if not (isinstance(least, Tensor) or isinstance(most, Tensor)):
        return CLAMPS[func](func, args, kwargs, tracking)
    out = x if least is None else torch.maximum(x, least)
    out = out if most is None else torch.minimum(out, most)
    if func in OUT_OF_PLACE:
        out = x.copy_(out)
    return tracking.mark(out, BOUNDED)


def bounds_of(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, Any, Any]:
    """What a clamp is of, the least and the most that it gives; None is no bound."""
    only_most = func.__name__.startswith("clamp_max")
    by_name = dict(
        zip(("input", "max") if only_most else ("input", "min", "max"), args, strict=False)
    )
    by_name |= kwargs
    return by_name["input"], by_name.get("min"), by_name.get("max")


def is_relu(least: Any, most: Any) -> bool:
    """Whether a clamp is a ReLU, which is homogeneous."""
    return not isinstance(least, Tensor) and least == 0 and most is None


# ---- products: the gate, or else halves ----


def product_rule(*factors: int) -> Rule:
    """Make the rule of a product whose factors are these arguments."""

    def rule(
        func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tracking: Tracking
    ) -> Any:
        args = with_operands(args, kwargs)
        values = [args[index] for index in factors if index < len(args)]
        if sum(map(flows, values)) < 2:
            return tracking.mark(func(*args, **kwargs), kept_strength(values, tracking))
        in_place = func in OUT_OF_PLACE
        shared, strength = shared_out(values, tracking, copied=in_place)
        parts = list(args)
        for index, value in zip(factors, shared, strict=False):
            parts[index] = value
        if in_place:
            out = args[0].copy_(OUT_OF_PLACE[func](*parts, **kwargs))
            tracking.unmark(out)
        else:
            out = func(*parts, **kwargs)
        return tracking.mark(out, strength)

    return rule


FACTORS = (  # by name, each before what follows it among the arguments
    *("mat", "mat1", "batch1", "tensor1", "vec1"),
    *("other", "mat2", "batch2", "tensor2", "vec2", "vec", "weight"),
)


def with_operands(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Move the factors of a product that are given by name to where they belong."""
    if "input" in kwargs:
        args = (kwargs.pop("input"), *args)
    for name in FACTORS:
        if name in kwargs:
            args = (*args, kwargs.pop(name))
    return args


def kept_strength(values: Sequence[Any], tracking: Tracking) -> int:
    """A gate times a number or a constant is a gate still."""
    return max((tracking.strength(x) for x in values if flows(x)), default=0)


def shared_out(
    values: Sequence[Any], tracking: Tracking, copied: bool = False
) -> tuple[list[Any], int]:
    """The factors of a product: the gates held; equal parts of the gradient for the others."""
    strength = {index: tracking.strength(x) for index, x in enumerate(values) if flows(x)}
    shared, left = list(values), 0
    while len(set(strength.values())) > 1:
        most = max(strength.values())
        for index in [index for index, each in strength.items() if each == most]:
            shared[index] = values[index].detach().clone() if copied else values[index].detach()
            del strength[index]
    left = len(strength)
    for index in strength:
        shared[index] = part_of(values[index].clone() if copied else values[index], 1 / left)
    return shared, max(strength.values()) if left > 1 else 0


def part_of(x: Tensor, part: float) -> Tensor:
    """Return the same value, whose gradient is multiplied by `part`."""
    if part == 1:
        return x
    x = x.view_as(x)
    x.register_hook(lambda gradient: gradient * part)
    return x


def einsum(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tracking: Tracking
) -> Any:
    """A product of operands."""
    equation, *operands = args
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = [*operands[0]]
    if not isinstance(equation, str) or sum(map(flows, operands)) < 2:
        return func(*args, **kwargs)
    return func(equation, *shared_out(operands, tracking)[0], **kwargs)


def gated_half(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tracking: Tracking
) -> Any:
    """GLU: one half of the channels times const(sigmoid of the other)."""

    def run(x: Tensor, dim: int = -1) -> Tensor:
        value, gate = x.chunk(2, dim)
        return value * gate.detach().sigmoid()

    return run(*args, **kwargs)


def interpolated(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tracking: Tracking
) -> Any:
    """a + const(weight) (b - a)."""
    start, end, weight = with_ends(args, kwargs)
    return func(start, end, detached(weight))


def with_ends(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """The start, the end and the weight between them, by place or by name."""
    names = ("input", "end", "weight")
    by_name = dict(kwargs) | dict(zip(names, args, strict=False))
    return by_name["input"], by_name["end"], by_name["weight"]


# ---- attention: the weights ----


def attention(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tracking: Tracking
) -> Any:
    """const(softmax(scale q k' + mask)) v, by torch's fused kernels."""
    inputs = SDPAInputs(*args, **kwargs)
    inputs = inputs._replace(
        query=detached(inputs.query), key=detached(inputs.key), attn_mask=detached(inputs.attn_mask)
    )
    return func(**inputs._asdict())


def multi_head(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tracking: Tracking
) -> Any:
    """`nn.MultiheadAttention`, by the parts that it is made of."""
    out = tracking.inside(lambda: multi_head_attention(*args, **kwargs))
    weights = None
    if kwargs.get("need_weights", True):
        weights = held(func, args, kwargs, tracking)[1]
    return out, weights


HELD = {
    "softmax weights": functions("softmax softmin gumbel_softmax exp exp2"),
    "divisor": functions("rsqrt reciprocal var std rdiv rtruediv"),
    "divisor and mean": functions("var_mean std_mean"),
}
MULTIPLY = functions("mul multiply rmul imul matmul rmatmul mm bmm mv dot inner outer ger vdot")
MULTIPLY |= functions("tensordot kron linear conv1d conv2d conv3d vecdot bilinear")
MULTIPLY |= functions("conv_transpose1d conv_transpose2d conv_transpose3d")
MULTIPLY_AND_ADD = functions("addmm addbmm addmv addr baddbmm addcmul")
DIVIDE_AND_ADD = functions("addcdiv")
DIVIDE = functions("div divide true_divide truediv itruediv idiv")

# What writes over its first argument.
IN_PLACE = frozenset(
    {
        getattr(home, name)
        for home in (Tensor, torch, F)
        for name in dir(home)
        if name.endswith("_") and not name.startswith("_")
    }
    | functions("setitem iadd isub imul ipow itruediv idiv ifloordiv imod")
)
OUT_OF_PLACE: dict[Callable[..., Any], Callable[..., Any]] = {
    getattr(home, name): getattr(home, name.rstrip("_"))
    for home in (Tensor, torch, F)
    for name in dir(home)
    if name.endswith("_") and not name.startswith("_") and hasattr(home, name.rstrip("_"))
}
OUT_OF_PLACE |= {Tensor.__imul__: Tensor.mul, Tensor.__ipow__: Tensor.pow}

CLAMPS = {
    func: activation_rule(ACTIVATIONS[name])
    for name in ("clamp", "clip", "clamp_max", "clamp_min")
    for func in functions(name)
}
NORM_RULES: dict[Callable[..., Any], Rule] = {
    **dict.fromkeys(functions("layer_norm"), layer_norm),
    **dict.fromkeys(functions("group_norm"), group_norm),
    F.instance_norm: instance_norm,
    F.batch_norm: batch_norm,
    torch.instance_norm: affine_first(instance_norm, F.instance_norm),
    torch.batch_norm: affine_first(batch_norm, F.batch_norm),
    **dict.fromkeys(functions("rms_norm"), rms_norm),
    F.normalize: normalize,
    F.local_response_norm: local_response_norm,
}
RULES: dict[Callable[..., Any], Rule] = {
    **NORM_RULES,
    **{
        func: activation_rule(activation)
        for name, activation in ACTIVATIONS.items()
        for func in functions(name)
    },
    Tensor.__ipow__: activation_rule(ACTIVATIONS["pow"]),
    **dict.fromkeys(CLAMPS, clamped),
    **dict.fromkeys(DIVIDE, quotient),
    **dict.fromkeys(DIVIDE_AND_ADD, added_quotient),
    **dict.fromkeys(HELD["softmax weights"] | HELD["divisor"], held),
    **dict.fromkeys(HELD["divisor and mean"], variance_and_mean),
    **dict.fromkeys(MULTIPLY, product_rule(0, 1)),
    **dict.fromkeys(MULTIPLY_AND_ADD, product_rule(1, 2)),
    torch.einsum: einsum,
    F.glu: gated_half,
    **dict.fromkeys(functions("lerp"), interpolated),
    F.scaled_dot_product_attention: attention,
    F.multi_head_attention_forward: multi_head,
    channel_scale: product_rule(0, 1),
}
