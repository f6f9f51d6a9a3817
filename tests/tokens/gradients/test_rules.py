"""Each gradient rule beside finite differences of the function that it stands for, written out.

What a rule holds is computed at x0 and stays there while x moves: `held(x, x0)` is the function whose
derivative at x = x0 the rule must give. In float64, sizes all different.

Axes: b batch, n tokens, d width, c channels, h height, w width.
"""

import math
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vision_attn.attention import SqueezeExcite
from vision_attn.tokens.gradients.completeness import CountedGradients
from vision_attn.tokens.gradients.mode import HeldGradients
from vision_attn.tokens.gradients.rules import HELD, RULES

TOKENS, MAP = (2, 5, 7), (2, 6, 3, 5)
STEP = 1e-6


def drawn(*shape: Any, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


W, B, WIDE = drawn(7, seed=1), drawn(7, seed=2), drawn(11, 7, seed=3)
CW, CB = drawn(6, seed=4), drawn(6, seed=5)
MEAN, VAR = drawn(6, seed=6), drawn(6, seed=7).abs() + 0.3
Q, K = drawn(7, 7, seed=8), drawn(7, 7, seed=9)
SQUEEZE = SqueezeExcite(6, hidden=3).double().requires_grad_(False)


def standard(x: Any, x0: Any, dims: int | tuple[int, ...], eps: float) -> Any:
    return (x - x.mean(dims, keepdim=True)) / (
        x0.var(dims, correction=0, keepdim=True) + eps
    ).sqrt()


def channel(v: torch.Tensor) -> torch.Tensor:
    return v[:, None, None]


def grouped(x: Any, x0: Any) -> Any:
    return standard(
        x.view(2, 3, -1), x0.view(2, 3, -1), -1, 1e-5
    ).view(MAP) * channel(CW) + channel(CB)  # fmt: skip


def secant(f: Callable[..., Any], at_zero: float = 0.0) -> Callable[..., Any]:
    return lambda x, x0: at_zero + x * ((f(x0) - at_zero) / x0)


def weights(x: Any) -> Any:
    return ((x @ Q) @ (x @ K).mT / math.sqrt(7)).softmax(-1)


def silu(x: torch.Tensor) -> torch.Tensor:
    return x / (1 + (-x).exp())


def mha(x: Any) -> Any:
    torch.manual_seed(3)
    module = nn.MultiheadAttention(7, 1, batch_first=True).double().eval().requires_grad_(False)
    return module(x, x, x, need_weights=False)[0]


def mha_held(x: Any, x0: Any) -> Any:
    torch.manual_seed(3)
    module = nn.MultiheadAttention(7, 1, batch_first=True).double().eval()
    wq, wk, wv = module.in_proj_weight.detach().chunk(3)
    a = (x0 @ wq.T @ (x0 @ wk.T).mT / math.sqrt(7)).softmax(-1)
    return a @ (x @ wv.T) @ module.out_proj.weight.detach().T + module.out_proj.bias.detach()


def linear_attention(x: Any) -> Any:
    return (x @ Q).relu() @ ((x @ K).relu().mT @ x)


def linear_attention_held(x: Any, x0: Any) -> Any:
    """Halves of halves: of the keys and values a quarter each, of the queries a half."""

    def of(x: Any) -> tuple[Any, Any, Any]:
        return (x @ Q).relu(), (x @ K).relu(), x

    (q, k, v), (q0, k0, v0) = of(x), of(x0)
    memory = 0.5 * (k.mT @ v0 + k0.mT @ v)
    return 0.5 * (q @ (k0.mT @ v0) + q0 @ memory)


def geglu(x: Any) -> Any:
    return F.gelu(x @ Q) * (x @ K)


def rotated(x: Any) -> torch.Tensor:
    return torch.view_as_real(
        torch.view_as_complex(x[..., :6].reshape(2, 5, 3, 2).contiguous()) * 1j
    ).flatten(2)


CASES = {
    # norms: the divisor
    "layer norm": (lambda x: F.layer_norm(x, (7,), W, B), lambda x, x0: standard(x, x0, -1, 1e-5) * W + B),
    "layer norm of two axes": (lambda x: F.layer_norm(x, (5, 7)), lambda x, x0: standard(x, x0, (-2, -1), 1e-5)),
    "layer norm without bias": (lambda x: F.layer_norm(x, [7], W, None, 1e-3), lambda x, x0: standard(x, x0, -1, 1e-3) * W),
    "group norm": (lambda x: F.group_norm(x, 3, CW, CB), grouped, MAP),
    "instance norm": (lambda x: F.instance_norm(x, None, None, CW, CB), lambda x, x0: standard(x, x0, (2, 3), 1e-5) * channel(CW) + channel(CB), MAP),
    "batch norm by its own batch": (lambda x: F.batch_norm(x, None, None, CW, CB, True), lambda x, x0: standard(x, x0, (0, 2, 3), 1e-5) * channel(CW) + channel(CB), MAP),
    "batch norm in eval": (lambda x: F.batch_norm(x, MEAN, VAR, CW, CB), lambda x, x0: (x - channel(MEAN)) / (channel(VAR) + 1e-5).sqrt() * channel(CW) + channel(CB), MAP),
    "rms norm": (lambda x: F.rms_norm(x, (7,), W, 1e-6), lambda x, x0: x / (x0.square().mean(-1, keepdim=True) + 1e-6).sqrt() * W),
    "rms norm written out": (lambda x: W * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)), lambda x, x0: x / (x0.square().mean(-1, keepdim=True) + 1e-6).sqrt() * W),
    "layer norm written out": (lambda x: (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, correction=0) + 1e-5), lambda x, x0: standard(x, x0, -1, 1e-5)),
    "layer norm by var_mean": (lambda x: (x - torch.var_mean(x, -1, keepdim=True, correction=0)[1]) * (torch.var_mean(x, -1, keepdim=True, correction=0)[0] + 1e-5).pow(-0.5), lambda x, x0: standard(x, x0, -1, 1e-5)),
    "normalize": (lambda x: F.normalize(x, dim=-1), lambda x, x0: x / x0.norm(dim=-1, keepdim=True)),
    "local response norm": (lambda x: F.local_response_norm(x, 3, 0.1, 0.7, 2.0), lambda x, x0: x * (F.local_response_norm(x0, 3, 0.1, 0.7, 2.0) / x0), MAP),
    "quotient": (lambda x: (x @ Q) / (2 + x.norm(dim=-1, keepdim=True)), lambda x, x0: (x @ Q) / (2 + x0.norm(dim=-1, keepdim=True))),
    "addcdiv": (lambda x: torch.addcdiv(x, x, 2 + x.abs(), value=0.3), lambda x, x0: x + 0.3 * x / (2 + x0.abs())),
    # attention: the weights
    "attention written out": (lambda x: weights(x) @ x, lambda x, x0: weights(x0) @ x),
    "attention by torch": (lambda x: F.scaled_dot_product_attention(x @ Q, x @ K, x), lambda x, x0: weights(x0) @ x),
    "attention with a mask and a scale": (lambda x: F.scaled_dot_product_attention(x @ Q, x @ K, x, x @ x.mT, scale=0.3), lambda x, x0: (0.3 * (x0 @ Q) @ (x0 @ K).mT + x0 @ x0.mT).softmax(-1) @ x),
    "nn.MultiheadAttention": (mha, mha_held),
    "softmax by exponentials": (lambda x: (s := (x @ Q @ x.mT).exp()) / s.sum(-1, keepdim=True) @ x, lambda x, x0: (x0 @ Q @ x0.mT).softmax(-1) @ x),
    "heads mixed after the softmax": (lambda x: (weights(x) * 0.7 + 0.1) @ x, lambda x, x0: (weights(x0) * 0.7 + 0.1) @ x),
    "attention pool": (lambda x: torch.einsum("bn,bnd->bd", (x @ W).softmax(-1), x), lambda x, x0: torch.einsum("bn,bnd->bd", (x0 @ W).softmax(-1), x)),
    # activations: the gate f(x) / x
    "gelu": (F.gelu, secant(lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))))),
    "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), secant(lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))),
    "gelu written out": (lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))), secant(lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))))),
    "gelu by tanh written out": (lambda x: 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.04 * x**3))), secant(lambda x: 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.04 * x**3))))),
    "quick gelu": (lambda x: x * torch.sigmoid(1.702 * x), secant(lambda x: x / (1 + (-1.702 * x).exp()))),
    "silu": (F.silu, secant(silu)),
    "silu in place": (lambda x: F.silu(x * 1, inplace=True), secant(silu)),
    "mish": (F.mish, secant(lambda x: x * torch.tanh(torch.log1p(x.exp())))),
    "hardswish": (F.hardswish, secant(lambda x: x * (x + 3).clamp(0, 6) / 6)),
    "hardswish written out": (lambda x: x * F.relu6(x + 3) / 6, secant(lambda x: x * (x + 3).clamp(0, 6) / 6)),
    "elu": (F.elu, secant(lambda x: torch.where(x > 0, x, x.exp() - 1))),
    "relu6": (lambda x: F.relu6(9 * x), secant(lambda x: (9 * x).clamp(0, 6))),
    "tanh": (torch.tanh, secant(torch.tanh)),
    "sigmoid that gates nothing": (torch.sigmoid, secant(torch.sigmoid, 0.5)),
    "softplus": (F.softplus, secant(lambda x: torch.log1p(x.exp()), math.log(2))),
    "square": (lambda x: x.square(), secant(lambda x: x * x)),
    "cube": (lambda x: x**3, secant(lambda x: x * x * x)),
    "powers, each channel its own": (lambda x: x.abs().pow(W.abs() + 0.5), lambda x, x0: x.abs() * x0.abs().pow(W.abs() - 0.5)),
    "squared relu": (lambda x: F.relu(x).square(), lambda x, x0: x.relu() * x0.relu()),
    # gates: the factor
    "sigmoid gate": (lambda x: x * (x @ Q).sigmoid(), lambda x, x0: x * (x0 @ Q).sigmoid()),
    "sigmoid gate, resized": (lambda x: x * F.interpolate(x[:, :1, ::3, ::5].sigmoid(), (3, 5)), lambda x, x0: x * F.interpolate(x0[:, :1, ::3, ::5].sigmoid(), (3, 5)), MAP),
    "hard sigmoid gate": (lambda x: F.hardsigmoid(x @ Q) * x, lambda x, x0: ((x0 @ Q) / 6 + 0.5).clamp(0, 1) * x),
    "gate in place": (lambda x: (x * 1).mul_((x @ Q).sigmoid()), lambda x, x0: x * (x0 @ Q).sigmoid()),
    "gate of an activation": (lambda x: F.silu(x) * (x @ Q).sigmoid(), lambda x, x0: x * (silu(x0) / x0) * (x0 @ Q).sigmoid()),
    "squeeze and excitation": (SQUEEZE, lambda x, x0: x * SQUEEZE.gate(x0), MAP),
    "swiglu": (lambda x: F.silu(x @ Q) * (x @ K), lambda x, x0: silu(x0 @ Q) * (x @ K)),
    "swiglu the other way round": (lambda x: (x @ K) * F.silu(x @ Q), lambda x, x0: silu(x0 @ Q) * (x @ K)),
    "geglu": (geglu, lambda x, x0: F.gelu(x0 @ Q) * (x @ K)),
    "glu": (lambda x: F.glu(x[..., :6]), lambda x, x0: x[..., :3] * x0[..., 3:6].sigmoid()),
    "lerp": (lambda x: torch.lerp(x, x @ Q, x.sigmoid()), lambda x, x0: x + x0.sigmoid() * (x @ Q - x)),
    # products of values without a gate: halves
    "product": (lambda x: (x @ Q) * (x @ K), lambda x, x0: 0.5 * ((x @ Q) * (x0 @ K) + (x0 @ Q) * (x @ K))),
    "product of a value with itself": (lambda x: x * x, lambda x, x0: x * x0),
    "product in place": (lambda x: (x @ Q).mul_(x @ K), lambda x, x0: 0.5 * ((x @ Q) * (x0 @ K) + (x0 @ Q) * (x @ K))),
    "relu times a value": (lambda x: (x @ Q).relu() * x, lambda x, x0: 0.5 * ((x @ Q).relu() * x0 + (x0 @ Q).relu() * x)),
    "matrix product": (lambda x: x @ x.mT, lambda x, x0: 0.5 * (x @ x0.mT + x0 @ x.mT)),
    "einsum of three": (lambda x: torch.einsum("bnd,bmd,bme->bne", x, x @ Q, x @ K), lambda x, x0: (torch.einsum("bnd,bmd,bme->bne", x, x0 @ Q, x0 @ K) + torch.einsum("bnd,bmd,bme->bne", x0, x @ Q, x0 @ K) + torch.einsum("bnd,bmd,bme->bne", x0, x0 @ Q, x @ K)) / 3),
    "addcmul": (lambda x: torch.addcmul(B, x @ Q, x @ K, value=0.3), lambda x, x0: B + 0.15 * ((x @ Q) * (x0 @ K) + (x0 @ Q) * (x @ K))),
    "addmm by name": (lambda x: torch.addmm(input=B, mat1=x[0] @ Q, mat2=Q * x[1, :1]), lambda x, x0: B + 0.5 * (x[0] @ Q @ (Q * x0[1, :1]) + x0[0] @ Q @ (Q * x[1, :1]))),
    "weights of a network, by name": (lambda x: F.linear(x[0], weight=x[1]), lambda x, x0: 0.5 * (x[0] @ x0[1].T + x0[0] @ x[1].T)),
    "linear attention": (linear_attention, linear_attention_held),
    # nothing held
    "linear": (lambda x: F.linear(x, WIDE), lambda x, x0: x @ WIDE.T),
    "relu": (F.relu, lambda x, x0: x.clamp(min=0)),
    "relu by clamp": (lambda x: x.clamp(min=0), lambda x, x0: x.relu()),
    "layer scale": (lambda x: x + W * x, lambda x, x0: x * (1 + W)),
    "max pool": (lambda x: F.max_pool2d(x, 2), lambda x, x0: F.max_pool2d(x, 2), MAP),
    "rotation of complex pairs": (rotated, lambda x, x0: rotated(x)),
}  # fmt: skip


def case(
    name: str,
) -> tuple[Callable[..., Any], Callable[..., Any], Any]:
    function, held, *shape = cast("tuple[Any, ...]", CASES[name])
    return function, held, drawn(*(shape[0] if shape else TOKENS), seed=11)


@pytest.mark.parametrize("name", CASES)
def test_a_rule_is_the_derivative_of_the_function_with_what_it_holds_constant(name: str) -> None:
    function, held, x0 = case(name)
    x = x0.clone().requires_grad_()
    with HeldGradients():
        y = function(x)
    torch.testing.assert_close(y.detach(), held(x0, x0))  # a different way to the same value
    weight = drawn(*y.shape, seed=12)
    (found,) = torch.autograd.grad(y, x, weight)
    for seed in range(3):
        step = STEP * drawn(*x0.shape, seed=20 + seed)
        slope = ((held(x0 + step, x0) - held(x0 - step, x0)) * weight).sum() / 2
        torch.testing.assert_close((found * step).sum(), slope, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_the_value_is_torchs_own_and_what_is_shared_out_adds_up_to_it(name: str) -> None:
    function, _, x0 = case(name)
    x = x0.clone().requires_grad_()
    with CountedGradients(x) as counted:
        y = function(x)
    torch.testing.assert_close(y.detach(), function(x0), rtol=1e-14, atol=1e-14)
    weight = drawn(*y.shape, seed=12)
    leaves = [x, *counted.constants]
    gradients = torch.autograd.grad(y, leaves, weight, allow_unused=True)
    shared = sum(
        (leaf * gradient).sum()
        for leaf, gradient in zip(leaves, gradients, strict=True)
        if gradient is not None
    )
    torch.testing.assert_close(shared.detach(), (y * weight).sum().detach())


def test_an_activation_has_a_slope_at_zero() -> None:
    x = torch.zeros(3, requires_grad=True)
    for function, slope in ((F.gelu, 0.5), (F.silu, 0.5), (torch.tanh, 1.0), (torch.square, 0.0)):
        with HeldGradients():
            (found,) = torch.autograd.grad(function(x).sum(), x)
        assert found.tolist() == [slope] * 3


def test_a_value_that_is_written_over_is_so_for_all_who_hold_it() -> None:
    x = drawn(*TOKENS).requires_grad_()
    with HeldGradients():
        held = x * 1
        alias = held
        F.silu(held, inplace=True)
        y = alias + 0
    torch.testing.assert_close(y.detach(), silu(x.detach()))
    (found,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(found, silu(x.detach()) / x.detach())


def gradient_under_rules(function: Callable[[Any], Any]) -> torch.Tensor:
    x = drawn(*TOKENS).requires_grad_()
    with HeldGradients():
        y = function(x)
    (gradient,) = torch.autograd.grad((y * drawn(*y.shape, seed=12)).sum(), x)
    return gradient


def written(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Let a function write over a copy of what it is given."""

    def run(x: Any) -> Any:
        copy = x * 1
        function(copy)
        return copy

    return run


IN_PLACE = {
    "exp": (lambda x: x.exp_(), lambda x: x.exp()),
    "reciprocal": (lambda x: x.reciprocal_(), lambda x: x.reciprocal()),
    "a power below 0": (lambda x: x.pow_(-2), lambda x: x.pow(-2)),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_what_is_held_is_held_in_place_too(name: str) -> None:
    in_place, apart = IN_PLACE[name]
    expected = gradient_under_rules(lambda x: x * apart(x @ Q))
    found = gradient_under_rules(lambda x: x * written(in_place)(x @ Q))
    torch.testing.assert_close(found, expected)


def test_a_power_by_an_assignment_has_the_rule_of_a_power() -> None:
    def assigned(x: Any) -> Any:
        y = x @ Q
        y **= 3
        return y

    torch.testing.assert_close(
        gradient_under_rules(assigned), gradient_under_rules(lambda x: (x @ Q) ** 3)
    )


def gate(x: Any) -> Any:
    return (x.mean(1, keepdim=True) @ Q).sigmoid()


MOVES = {
    "expanded like the value": lambda x: gate(x).expand_as(x),
    "broadcast": lambda x: gate(x).broadcast_to(x.shape),
    "viewed like a value": lambda x: gate(x).view_as(x[:, :1]),
    "by name": lambda x: torch.reshape(input=gate(x), shape=(2, 1, 7)),
    "turned twice": lambda x: gate(x).mT.mT,
    "tiled": lambda x: gate(x).tile(1, 5, 1),
}


@pytest.mark.parametrize("name", MOVES)
def test_a_gate_that_is_moved_is_a_gate(name: str) -> None:
    expected = gradient_under_rules(lambda x: x * gate(x).detach())
    torch.testing.assert_close(gradient_under_rules(lambda x: x * MOVES[name](x)), expected)


def test_sigmoids_that_are_divided_by_their_sum_are_weights() -> None:
    def weights(x: Any) -> Any:
        gates = (x @ Q @ x.mT).sigmoid()
        return gates / gates.sum(-1, keepdim=True)

    expected = gradient_under_rules(lambda x: weights(x).detach() @ x)
    torch.testing.assert_close(gradient_under_rules(lambda x: weights(x) @ x), expected)


def test_what_is_written_over_a_gate_is_no_gate() -> None:
    def add(x: Any) -> Any:
        y = F.silu(x @ Q)
        y += x
        return y * (x @ K)

    def multiply(x: Any) -> Any:
        y = gate(x) * torch.ones_like(x)
        y.copy_(x)
        return y * (x @ K)

    torch.testing.assert_close(
        gradient_under_rules(add), gradient_under_rules(lambda x: (F.silu(x @ Q) + x) * (x @ K))
    )
    torch.testing.assert_close(
        gradient_under_rules(multiply), gradient_under_rules(lambda x: (x * 1) * (x @ K))
    )


def test_weights_that_are_asked_for_come_with_the_output() -> None:
    module = nn.MultiheadAttention(6, 3, batch_first=True).eval().requires_grad_(False)
    x = torch.randn(2, 5, 6)
    expected, weights = module(x, x, x)
    x.requires_grad_()
    with HeldGradients():
        found, held = module(x, x, x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(held, weights)
    assert found.requires_grad
    assert not held.requires_grad


# what is held, row by row of the table in docs/libra_gradient.md

ROWS = {
    "norms": "batch_norm group_norm instance_norm layer_norm local_response_norm normalize rms_norm",
    "divisors": "__div__ __idiv__ __itruediv__ __rdiv__ __truediv__ addcdiv addcdiv_ div div_ divide divide_ reciprocal "
    "reciprocal_ rsqrt rsqrt_ std std_mean true_divide true_divide_ var var_mean",
    "weights": "exp exp2 exp2_ exp_ gumbel_softmax multi_head_attention_forward "
    "scaled_dot_product_attention softmax softmin special_exp2 special_softmax",
    "activations": "atan atan_ celu celu_ clamp clamp_ clamp_max clamp_max_ clamp_min clamp_min_ clip "
    "clip_ elu elu_ erf erf_ expm1 expm1_ gelu hardshrink hardsigmoid hardswish hardtanh hardtanh_ "
    "log1p log1p_ log_sigmoid logsigmoid mish pow pow_ relu6 selu selu_ sigmoid sigmoid_ silu sin sin_ softplus "
    "softshrink softsign special_erf special_expit special_expm1 special_log1p sqrt sqrt_ square "
    "square_ tanh tanh_ tanhshrink",
    "gates and products": "__imul__ __matmul__ __mul__ __rmatmul__ __rmul__ addbmm addbmm_ addcmul "
    "addcmul_ addmm addmm_ addmv addmv_ addr addr_ baddbmm baddbmm_ bilinear bmm channel_scale conv1d "
    "conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d dot einsum ger glu inner kron "
    "lerp lerp_ linalg_matmul linalg_vecdot linear matmul mm mul mul_ multiply multiply_ mv outer "
    "tensordot vdot",
}  # fmt: skip


def test_no_other_function_has_a_rule() -> None:
    known = {name for row in ROWS.values() for name in row.split()}
    found = {func.__name__ for func in RULES}
    assert found <= known, f"rules for {sorted(found - known)}: no row of the table holds them"
    assert {func.__name__ for functions in HELD.values() for func in functions} <= known
