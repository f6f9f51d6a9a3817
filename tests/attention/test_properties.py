"""What holds for all scores, normalisers and windows, on inputs that hypothesis draws."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject
from torch import Tensor

from vision_attn.attention import (
    ActivatedGeneral,
    Additive,
    Attend,
    AttentionOverAttention,
    BiasedGeneral,
    Concat,
    CosineSimilarity,
    Deep,
    Dot,
    Entmax15,
    General,
    Global,
    Hard,
    KeyOnly,
    Local2d,
    LocalMonotonic,
    LocalPredictive,
    Location,
    MultiDimAdditive,
    Normalizer,
    ScaledDot,
    Score,
    Sigmoid,
    Softmax,
    Sparsemax,
    padding_mask,
)
from vision_attn.types import TokenLayout

D = 3
RELATIVE = [
    CosineSimilarity,
    Dot,
    ScaledDot,
    General,
    BiasedGeneral,
    ActivatedGeneral,
    Concat,
    Additive,
    Deep,
    KeyOnly,
    MultiDimAdditive,
]
SUM_TO_ONE = [Softmax, Sparsemax, Entmax15, Hard]
few = settings(max_examples=15, deadline=None, derandomize=True)
seeds = st.integers(0, 2**16)
lengths = st.integers(1, 12)
spreads = st.sampled_from([1e-3, 1.0, 30.0])


def tokens(seed: int, n: int, spread: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(2, 1, n, D, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("normalizer", SUM_TO_ONE)
@few
@given(seed=seeds, n=lengths, spread=spreads, data=st.data())
def test_weights_sum_to_one(
    normalizer: Callable[..., Normalizer], seed: int, n: int, spread: float, data: DataObject
) -> None:
    exist = data.draw(st.lists(st.integers(0, n), min_size=2, max_size=2))
    mask = padding_mask(torch.tensor(exist), n)
    weights = Attend(Dot(D), normalizer()).weights(
        tokens(seed, 5), tokens(seed + 1, n, spread), mask
    )
    assert (weights >= 0).all()
    expected = mask.any(-1).double().expand(weights.shape[:-1])
    torch.testing.assert_close(weights.sum(-1), expected)


@pytest.mark.parametrize("score", RELATIVE)
@few
@given(seed=seeds, n=st.integers(2, 12), data=st.data())
def test_the_score_of_a_key_depends_on_no_other_key(
    score: Callable[..., Score], seed: int, n: int, data: DataObject
) -> None:
    i = data.draw(st.integers(0, n - 1))
    score, q, k = score(D), tokens(seed, 5), tokens(seed + 1, n)
    other = tokens(seed + 2, n + 3)
    other[:, :, i] = k[:, :, i]
    torch.testing.assert_close(score(q, k)[..., i], score(q, other)[..., i])


@pytest.mark.parametrize("score", RELATIVE)
@pytest.mark.parametrize("normalizer", [*SUM_TO_ONE, Sigmoid])
@settings(few, max_examples=5)
@given(seed=seeds, n=lengths)
def test_the_order_of_the_memory_does_not_matter(
    score: Callable[..., Score], normalizer: Any, seed: int, n: int
) -> None:
    attend = Attend(score(D), normalizer())
    q, k, v = tokens(seed, 5), tokens(seed + 1, n), tokens(seed + 2, n)
    order = torch.randperm(n)
    torch.testing.assert_close(attend(q, k[:, :, order], v[:, :, order]), attend(q, k, v))


def test_the_order_matters_to_locations_and_windows() -> None:
    q, k, v = tokens(0, 9), tokens(1, 9), tokens(2, 9)
    for attend in (
        Attend(Location(D, positions=9)),
        Attend(Dot(D), window=LocalMonotonic(radius=1)),
        Attend(Dot(D), window=LocalPredictive(D, radius=1)),
    ):
        assert not torch.allclose(attend(q, k.flip(2), v.flip(2)), attend(q, k, v))


@few
@given(seed=seeds, n=lengths)
def test_hard_is_the_limit_of_softmax(seed: int, n: int) -> None:
    scores = tokens(seed, n)[..., 0]
    torch.testing.assert_close(Hard()(scores), Softmax(1e-6)(scores), atol=1e-3, rtol=0)


@few
@given(seed=seeds, n=lengths, spread=spreads)
def test_entmax_lies_between_softmax_and_sparsemax(seed: int, n: int, spread: float) -> None:
    scores = tokens(seed, n, spread)[..., 0]
    sparse, between = Sparsemax()(scores) > 0, Entmax15()(scores) > 0
    assert (sparse <= between).all()
    assert (sparse.sum(-1) >= 1).all()


@few
@given(seed=seeds, rows=st.integers(1, 7), columns=st.integers(1, 7), prefix=st.integers(0, 2))
def test_an_endless_neighbourhood_is_global(
    seed: int, rows: int, columns: int, prefix: int
) -> None:
    layout = TokenLayout(prefix, (rows, columns), "mean")
    q, k, v = (tokens(seed + i, layout.tokens) for i in range(3))
    for make in (Local2d, LocalMonotonic):
        local = Attend(ScaledDot(D), window=make(radius=float("inf")))
        whole = Attend(ScaledDot(D), window=Global())
        assert torch.equal(local(q, k, v, layout=layout), whole(q, k, v))
        assert torch.equal(local.weights(q, k, layout=layout), whole.weights(q, k))


@few
@given(seed=seeds, n=lengths, radius=st.integers(1, 5))
def test_local_predictive_only_takes_away(seed: int, n: int, radius: int) -> None:
    attend = Attend(ScaledDot(D), window=LocalPredictive(D, radius=radius))
    weights = attend.weights(tokens(seed, 5), tokens(seed + 1, n))
    assert (weights >= 0).all()
    assert (weights.sum(-1) <= 1 + 1e-9).all()


@pytest.mark.parametrize("score", [Dot, partial(Additive, hidden_dim=5)])
@few
@given(seed=seeds, i=lengths, j=lengths, spread=spreads)
def test_attention_over_attention_sums_to_one(
    score: Callable[..., Score], seed: int, i: int, j: int, spread: float
) -> None:
    attention = AttentionOverAttention(D, score=score)
    a, b = attention.weights(tokens(seed, i, spread)[:, 0], tokens(seed + 1, j)[:, 0])
    torch.testing.assert_close(a.sum(-1), torch.ones(2))
    torch.testing.assert_close(b.sum(-1), torch.ones(2))
