"""Every score against its formula, pair by pair."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vision_attn.attention import (
    ActivatedGeneral,
    Additive,
    BiasedGeneral,
    Concat,
    CosineSimilarity,
    Deep,
    Dot,
    General,
    KeyOnly,
    Location,
    MultiDimAdditive,
    ScaledDot,
    Score,
)

Pair = Callable[[Any, int, Tensor, Tensor, int], Tensor]  # score, head, q_i, k_j, j

B, HEADS, I, J, D = 2, 3, 5, 7, 11


def similarity(s: CosineSimilarity, h: int, q: Tensor, k: Tensor, j: int) -> Tensor:
    return s.beta[h, 0, 0] * (q @ k) / (q.square().sum().sqrt() * k.square().sum().sqrt())


def general(s: General, h: int, q: Tensor, k: Tensor, j: int) -> Tensor:
    return q @ s.query_proj.weight[h] @ k


def biased_general(s: BiasedGeneral, h: int, q: Tensor, k: Tensor, j: int) -> Tensor:
    assert s.query_proj.bias is not None
    return k @ (s.query_proj.weight[h].T @ q + s.query_proj.bias[h, 0])


def activated_general(s: ActivatedGeneral, h: int, q: Tensor, k: Tensor, j: int) -> Tensor:
    return s.activation(q @ s.query_proj.weight[h] @ k + s.bias[h, 0, 0])


def concat(s: Concat, h: int, q: Tensor, k: Tensor, j: int) -> Tensor:
    hidden = s.pair_proj.weight[h].T @ torch.cat([k, q])
    if s.pair_proj.bias is not None:
        hidden = hidden + s.pair_proj.bias[h, 0]
    return s.energy.weight[h, :, 0] @ hidden.tanh()


def additive(s: Additive, h: int, q: Tensor, k: Tensor, j: int) -> Tensor:
    hidden = s.key_proj.weight[h].T @ k + s.query_proj.weight[h].T @ q
    if s.query_proj.bias is not None:
        hidden = hidden + s.query_proj.bias[h, 0]
    return s.energy.weight[h, :, 0] @ hidden.tanh()


def deep(s: Deep, h: int, q: Tensor, k: Tensor, j: int) -> Tensor:
    assert s.key_proj.bias is not None
    e = s.key_proj.weight[h].T @ k + s.query_proj.weight[h].T @ q + s.key_proj.bias[h, 0]
    e = s.activation(e)
    for layer in s.hidden:
        e = s.activation(layer.weight[h].T @ e + layer.bias[h, 0])
    assert s.energy.bias is not None
    return s.energy.weight[h, :, 0] @ e + s.energy.bias[h, 0, 0]


def location(s: Location, h: int, q: Tensor, k: Tensor, j: int) -> Tensor:
    return (s.query_proj.weight[h].T @ q)[j]


def key_only(s: KeyOnly, h: int, q: Tensor, k: Tensor, j: int) -> Tensor:
    hidden = s.key_proj.weight[h].T @ k
    if s.key_proj.bias is not None:
        hidden = hidden + s.key_proj.bias[h, 0]
    return s.energy.weight[h, :, 0] @ hidden.tanh()


FORMULAS: list[tuple[Callable[..., Score], Pair]] = [
    (partial(CosineSimilarity, beta=2.5), similarity),
    (Dot, lambda s, h, q, k, j: q @ k),
    (ScaledDot, lambda s, h, q, k, j: q @ k / D**0.5),
    (General, general),
    (BiasedGeneral, biased_general),
    (ActivatedGeneral, activated_general),
    (partial(ActivatedGeneral, activation=nn.ReLU), activated_general),
    (partial(Concat, hidden_dim=13), concat),
    (partial(Concat, hidden_dim=13, bias=True), concat),
    (partial(Additive, hidden_dim=13), additive),
    (partial(Additive, hidden_dim=13, bias=True), additive),
    (partial(Deep, hidden_dim=13), deep),
    (partial(Deep, hidden_dim=13, layers=3, activation=nn.GELU), deep),
    (partial(Location, positions=17), location),
    (partial(KeyOnly, hidden_dim=13), key_only),
    (partial(KeyOnly, hidden_dim=13, bias=False), key_only),
]


def randomized(module: nn.Module) -> nn.Module:
    """With biases and gains that are not at their neutral start values."""
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


@pytest.mark.parametrize(("make", "formula"), FORMULAS)
def test_score_is_the_formula_for_every_pair(make: Callable[..., Score], formula: Pair) -> None:
    score = randomized(make(head_dim=D, heads=HEADS))
    q, k = torch.randn(B, HEADS, I, D), torch.randn(B, HEADS, J, D)
    scores = score(q, k)
    assert scores.shape == (B, HEADS, I, J)
    for b, h, i, j in product(range(B), range(HEADS), range(I), range(J)):
        pair = formula(score, h, q[b, h, i], k[b, h, j], j)
        torch.testing.assert_close(scores[b, h, i, j], pair)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", [nn.Tanh, nn.Sigmoid])
def test_multidim_additive_has_a_score_for_every_view(
    activation: type[nn.Module], bias: bool
) -> None:
    score = MultiDimAdditive(D, heads=5, hidden_dim=13, bias=bias, activation=activation)
    randomized(score)
    q, k = torch.randn(B, 1, I, D), torch.randn(B, 1, J, D)
    scores = score(q, k)
    assert scores.shape == (B, 5, I, J)
    for b, i, j in product(range(B), range(I), range(J)):
        hidden = score.key_proj.weight[0].T @ k[b, 0, j] + score.query_proj.weight[0].T @ q[b, 0, i]
        own: Any = score.query_proj.bias
        hidden = activation()(hidden + (own[0, 0] if bias else 0))
        own = score.energy.bias
        views = score.energy.weight[0].T @ hidden + (own[0, 0] if bias else 0)
        torch.testing.assert_close(scores[b, :, i, j], views)


def test_multidim_additive_takes_the_activation_that_its_docstring_names() -> None:
    words = " ".join((MultiDimAdditive.__doc__ or "").split())
    assert "activation: A factory of act" in words
    assert "any activation, not the sigmoid; tanh by default" in words
    assert isinstance(MultiDimAdditive(D).activation, nn.Tanh)


def test_general_with_one_query_head_is_a_stack_of_bilinear_forms() -> None:
    score = General(D, heads=5)
    q, k = torch.randn(B, 1, I, D), torch.randn(B, 1, J, D)
    stack = torch.einsum("bid,vde,bje->bvij", q[:, 0], score.query_proj.weight, k[:, 0])
    torch.testing.assert_close(score(q, k), stack)


def test_one_set_of_parameters_serves_many_heads() -> None:
    score = Additive(head_dim=7, hidden_dim=11)
    q, k = torch.randn(2, 3, 5, 7), torch.randn(2, 3, 13, 7)
    pair = score.energy(torch.tanh(score.query_proj(q[1, 2, 4]) + score.key_proj(k[1, 2, 12])))
    torch.testing.assert_close(score(q, k)[1, 2, 4, 12], pair.squeeze())


@pytest.mark.slow
@pytest.mark.parametrize("make", [make for make, _ in FORMULAS])
def test_gradients(make: Callable[..., Score]) -> None:
    score = randomized(make(head_dim=3, heads=2))
    q, k = torch.randn(1, 2, 2, 3), torch.randn(1, 2, 3, 3)
    parameters = dict(score.named_parameters())

    def scores(q: Tensor, k: Tensor, *values: Tensor) -> Tensor:
        given = dict(zip(parameters, values, strict=True))
        return torch.func.functional_call(score, given, (q, k))

    inputs = [x.detach().requires_grad_() for x in (q, k, *parameters.values())]
    assert torch.autograd.gradcheck(scores, inputs)


def test_similarity_of_zero_vectors_is_zero_with_finite_gradients() -> None:
    q = torch.zeros(1, 1, 2, 3, requires_grad=True)
    scores = CosineSimilarity(3)(q, torch.randn(1, 1, 5, 3))
    scores.sum().backward()
    assert (scores == 0).all()
    assert q.grad.isfinite().all()


def test_similarity_takes_a_whole_beta() -> None:
    q, k = torch.randn(1, 2, 3, 5), torch.randn(1, 2, 7, 5)
    assert torch.equal(
        CosineSimilarity(5, heads=2, beta=3)(q, k), CosineSimilarity(5, heads=2, beta=3.0)(q, k)
    )


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="head_dim must be at least 1, got 0"):
        Dot(0)
    with pytest.raises(ValueError, match="heads must be at least 1, got -2"):
        ScaledDot(3, heads=-2)
    for make in (Additive, Concat, Deep, KeyOnly, MultiDimAdditive):
        with pytest.raises(ValueError, match="hidden_dim must be at least 1, got 0"):
            make(3, hidden_dim=0)
    with pytest.raises(ValueError, match="layers must be at least 1, got 0"):
        Deep(3, layers=0)
    with pytest.raises(ValueError, match="positions must be at least 1, got 0"):
        Location(3, positions=0)
    message = "Location was built for at most 5 positions, got a memory of 7"
    with pytest.raises(ValueError, match=message):
        Location(3, positions=5)(torch.randn(1, 1, 2, 3), torch.randn(1, 1, 7, 3))
