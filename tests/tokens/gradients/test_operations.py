"""What shares out less than it gives is named, whatever it is made of inside."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vision_attn.methods import LibraGradient
from vision_attn.tokens.gradients.completeness import CountedGradients, account_of
from vision_attn.tokens.gradients.graph import GraphMode, order_of
from vision_attn.tokens.gradients.mode import HeldGradients
from vision_attn.tokens.gradients.operations import unknown_operations


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Clamp(torch.autograd.Function):
    """A function of somebody's own, of the name of a node of torch's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(-0.1, 0.1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def with_part_held(x: torch.Tensor) -> torch.Tensor:
    x = x * 1
    x[:, :3].exp_()
    return x


X, Q = drawn(2, 5, 7, seed=0), drawn(7, 7, seed=1)
BREAKING = {
    "no rule": (lambda x: x.cos(), "cos"),
    "a kernel of torch's own": (lambda x: torch.native_layer_norm(x, (7,), None, None, 1e-5)[0], "native_layer_norm"),
    "a quotient within a function": (lambda x: F.cosine_similarity(x @ Q, x, dim=-1), "cosine_similarity"),
    "products within a function": (lambda x: torch.linalg.multi_dot([x[0], Q, x[1].mT]), "linalg_multi_dot"),
    "a threshold with another value": (lambda x: F.threshold(x, 0.1, 0.3), "_threshold"),
    "a deviation beside a mean": (lambda x: torch.cat([x.mean(1), x.std(1)], -1), "std"),
    "an exponential of what is added": (lambda x: x + (x @ Q).exp().mean(-1, keepdim=True), "exp"),
    "weights that are added": (lambda x: x + x.softmax(-1), "softmax"),
    "what the network itself holds": (lambda x: x + (x @ Q).detach(), "detach"),
    "a distance from a constant": (lambda x: F.pairwise_distance(x[0], Q[:5]), "pairwise_distance"),
    "a difference from one, by size": (lambda x: F.l1_loss(x[0], Q[:5], reduction="none"), "l1_loss"),
    "a batch norm of torch's own": (lambda x: torch.native_batch_norm(x, Q[0, :5], Q[1, :5], Q[2, :5], Q[3, :5].abs(), False, 0.1, 1e-5)[0], "native_batch_norm"),
    "padded as a sequence": (lambda x: nn.utils.rnn.pad_sequence([x[0], x[0, :3]], padding_value=0.7), "pad_sequence"),
    "places of a map": (lambda x: F.grid_sample(x[None], x[:1, None, :, :2].tanh(), align_corners=False), "grid_sample"),
    "over what is held": (lambda x: torch.addcdiv(x, Q[:5], 1 + x.abs()), "addcdiv"),
    "times what is held": (lambda x: torch.addcmul(x, Q[:5], x.softmax(-1)), "softmax"),
    "a function of its own": (Clamp.apply, "Clamp"),
    "an operator of torch's": (lambda x: torch.ops.aten.mul(x @ Q, x), "aten.mul"),
    "an attention operator": (lambda x: torch.ops.aten.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]), "aten.scaled_dot_product_attention"),
    "a quotient rounded down": (lambda x: torch.div(x, 0.25, rounding_mode="floor"), "div"),
    "slopes that are values": (lambda x: F.prelu(x.mT, (x @ Q).mean((0, 1))), "prelu"),
    "a part of a value, held in place": (with_part_held, "exp_"),
    "an inverse that takes a place": (lambda x: torch.where(x > 0, x, (2 + x.abs()).reciprocal()), "reciprocal"),
}  # fmt: skip
WHOLE = {
    "attention": lambda x: (x @ Q @ x.mT).softmax(-1) @ x + x,
    "heads mixed": lambda x: ((x @ Q @ x.mT).softmax(-1) * 0.7 + 0.1) @ x,
    "a norm written out": lambda x: (x - x.mean(-1, keepdim=True)) * (x.var(-1, keepdim=True) + 1).rsqrt(),
    "a gate and the rest of it": lambda x: x * (g := (x @ Q).sigmoid()) + (1 - g) * (x @ Q),
    "a product": lambda x: (x @ Q) * x + 3,
    "a mask by a value": lambda x: x.masked_fill(x < x.detach().mean(), 0.0),
    "a constant": lambda x: torch.cat([x, Q[None].expand(2, 7, 7)], 1),
}  # fmt: skip


def named(function: Callable[[Any], Any]) -> list[str]:
    x = X.clone().requires_grad_()
    with GraphMode() as mode:
        y = function(x)
    return unknown_operations(order_of([y.grad_fn]), mode)


def gap(function: Callable[[Any], Any]) -> float:
    x = X.clone().requires_grad_()
    with CountedGradients(x) as counted:
        y = function(x)
    return account_of((y * drawn(*y.shape, seed=2)).sum(), x, -1, counted).gap


@pytest.mark.parametrize("case", BREAKING)
def test_what_breaks_the_sum_is_named(case: str) -> None:
    function, name = BREAKING[case]
    assert named(function) == [name]
    assert gap(function) > 1e-3


@pytest.mark.parametrize("case", WHOLE)
def test_what_keeps_the_sum_is_not_named(case: str) -> None:
    assert named(WHOLE[case]) == []
    assert gap(WHOLE[case]) < 1e-14


def test_statistics_that_are_made_of_the_image_are_no_constants() -> None:
    def statistics(x: Any) -> tuple[Any, Any]:
        return x.detach().mean((0, 2)) / 2, x.detach().var((0, 2)) + 0.5

    def by_torch(x: Any) -> Any:
        return F.batch_norm(x @ Q, *statistics(x @ Q))

    def written_out(x: Any) -> Any:
        mean, variance = statistics(x @ Q)
        return (x @ Q - mean[:, None]) / (variance[:, None] + 1e-5).sqrt()

    assert gap(by_torch) == pytest.approx(gap(written_out))
    assert gap(by_torch) > 1e-3


def test_a_networks_map_is_made_with_its_gap_and_a_warning() -> None:
    """The deviation over the grid is held, although the classifier reads it beside the mean."""

    class Statistics(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.stem, self.head = nn.Conv2d(3, 4, 3, 2), nn.Linear(8, 5)

        def forward(self, images: torch.Tensor) -> Any:
            x = self.stem(images).flatten(2)
            return self.head(torch.cat([x.mean(2), x.std(2)], 1))

    network, images = Statistics(), torch.rand(2, 3, 15, 19)
    with pytest.warns(UserWarning, match=r"Statistics has no rule for std: up to \d+\.\d%"):
        maps = LibraGradient(smooth=0)(network, images, 2)
    features = network.stem(images).flatten(2)
    weight = network.head.weight[2].detach()
    parts = weight[:4] * features.mean(2), weight[4:] * features.std(2)
    shares, held = (part.sum(1) for part in parts)
    torch.testing.assert_close(maps.values.sum((1, 2)), shares.detach())
    size = (weight[:4, None] * features / features.shape[2]).sum(1).abs().sum(1)
    logit = network(images)[:, 2]
    expected = held.abs() / torch.maximum(logit.abs(), size)
    assert maps.completeness_gap is not None
    torch.testing.assert_close(maps.completeness_gap, expected.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("function", [torch.relu_, torch.nan_to_num_, torch.neg_])
def test_an_in_place_function_takes_its_argument_by_name(function: Callable[..., Any]) -> None:
    def gradient(change: Callable[[torch.Tensor], Any]) -> torch.Tensor:
        x = X.clone().requires_grad_()
        with HeldGradients():
            gate = torch.sigmoid(x @ Q)
            change(gate)
            out = (x * gate).sum()
        return torch.autograd.grad(out, x)[0]

    by_name = gradient(lambda gate: function(input=gate))
    torch.testing.assert_close(by_name, gradient(function), rtol=0, atol=0)
