"""Readouts: from tokens to one vector, and what each token counted for."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from vision_attn.attention import (
    Additive,
    AttentionPool,
    ClassToken,
    FeatureWisePool,
    GRUUpdate,
    Hard,
    HierarchicalPool,
    HopsPool,
    KeyOnly,
    MeanPool,
    MultiDimPool,
    Readout,
    ScaledDot,
    Score,
    Softmax,
    Sparsemax,
)
from vision_attn.types import TokenLayout

B, DIM = 2, 6
LAYOUT = TokenLayout(2, (5, 7))
N = LAYOUT.tokens

READOUTS: list[Callable[..., nn.Module]] = [
    ClassToken,
    MeanPool,
    AttentionPool,
    partial(AttentionPool, heads=3, score=KeyOnly),
    partial(AttentionPool, heads=2, score=ScaledDot, normalizer=Sparsemax),
    partial(AttentionPool, normalizer=Hard),
    partial(MultiDimPool, views=5),
    FeatureWisePool,
    HopsPool,
    partial(HopsPool, hops=2, shared=True, update=GRUUpdate),
    HierarchicalPool,
    partial(HierarchicalPool, regions=(3, 4), score=Additive),
]


@pytest.mark.parametrize("make", READOUTS)
def test_every_readout_gives_one_vector_and_its_weights(make: Any) -> None:
    readout: Readout = make(dim=DIM)
    tokens = torch.randn(B, N, DIM, requires_grad=True)
    vector = readout(tokens, layout=LAYOUT)
    assert vector.shape == (B, readout.out_dim)
    weights = readout.weights(tokens, LAYOUT)
    assert weights.shape[0] == B
    assert weights.shape[2] == N
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))
    assert (weights >= 0).all()
    vector.sum().backward()
    assert tokens.grad.abs().sum() > 0
    unused = [name for name, p in readout.named_parameters() if p.grad is None]
    assert not unused


@pytest.mark.parametrize("make", READOUTS[1:])
def test_tokens_that_do_not_exist_count_for_nothing(make: Any) -> None:
    readout: Readout = make(dim=DIM)
    tokens = torch.randn(B, N, DIM)
    exists = torch.rand(B, N) > 0.4
    weights = readout.weights(tokens, LAYOUT, exists)
    assert (weights.transpose(1, 2)[~exists] == 0).all()
    other = torch.where(exists[..., None], tokens, torch.randn(B, N, DIM))
    torch.testing.assert_close(readout(tokens, LAYOUT, exists), readout(other, LAYOUT, exists))


def test_class_token_and_mean() -> None:
    tokens = torch.randn(B, N, DIM)
    assert torch.equal(ClassToken(DIM)(tokens), tokens[:, 0])
    torch.testing.assert_close(MeanPool(DIM)(tokens, LAYOUT), tokens[:, 2:].mean(1))
    torch.testing.assert_close(MeanPool(DIM)(tokens), tokens.mean(1))


def test_attention_pool_is_the_formula() -> None:
    pool = AttentionPool(DIM, heads=2, score=partial(Additive, hidden_dim=5))
    score, tokens = pool.attend.score, torch.randn(B, N, DIM)
    for b in range(B):
        for h in range(2):
            slices = tokens[b, :, 3 * h : 3 * h + 3]
            hidden = pool.query[0, h, 0] @ score.query_proj.weight[h]
            energies = torch.stack(
                [
                    score.energy.weight[h, :, 0] @ torch.tanh(hidden + x @ score.key_proj.weight[h])
                    for x in slices
                ]
            )
            weights = energies.softmax(0)
            torch.testing.assert_close(pool.weights(tokens)[b, h], weights)
            torch.testing.assert_close(pool(tokens)[b, 3 * h : 3 * h + 3], weights @ slices)


def test_multidim_pools_are_the_formula() -> None:
    tokens = torch.randn(B, N, DIM)
    for pool in (MultiDimPool(DIM, views=4), FeatureWisePool(DIM)):
        nn.init.normal_(pool.query)
        score = pool.attend.score
        hidden = pool.query[0, 0] @ score.query_proj.weight[0] + tokens @ score.key_proj.weight[0]
        weights = (hidden.tanh() @ score.energy.weight[0]).softmax(1)  # b n view
        torch.testing.assert_close(pool.weights(tokens), weights.mT)
        if isinstance(pool, MultiDimPool):
            expected = torch.cat([(weights[..., [v]] * tokens).sum(1) for v in range(4)], dim=1)
        else:
            expected = (weights * tokens).sum(1)
        torch.testing.assert_close(pool(tokens), expected)


def test_hard_pool_reads_out_one_token() -> None:
    pool = AttentionPool(DIM, normalizer=Hard)
    tokens = torch.randn(B, N, DIM)
    best = pool.weights(tokens)[:, 0].argmax(1)
    torch.testing.assert_close(pool(tokens), tokens[torch.arange(B), best])


def test_hops_pool_looks_with_a_query_that_changes() -> None:
    pool = HopsPool(DIM, hops=3)
    tokens = torch.randn(B, N, DIM)
    looks = pool.weights(tokens)
    assert looks.shape == (B, 3, N)
    assert not torch.allclose(looks[:, 0], looks[:, 2])
    expected = pool.memory(pool.query.expand(B, 1, DIM), tokens)[:, 0]
    torch.testing.assert_close(pool(tokens), expected)


def test_hierarchical_pool_attends_in_regions_then_over_them() -> None:
    pool = HierarchicalPool(DIM, regions=(2, 3))
    tokens = torch.randn(B, N, DIM)
    grid = tokens[:, 2:].unflatten(1, (5, 7))
    columns = slice(0, 3), slice(3, 5), slice(5, 7)
    spans = [(y, x) for y in (slice(0, 3), slice(3, 5)) for x in columns]
    inside, across = pool.levels.inside, pool.levels.across
    members = [inside.weights(grid[:, y, x].flatten(1, 2))[:, 0] for y, x in spans]
    vectors = torch.stack([inside(grid[:, y, x].flatten(1, 2)) for y, x in spans], dim=1)
    regions = across.weights(vectors)[:, 0]
    torch.testing.assert_close(pool(tokens, LAYOUT), across(vectors))

    patches, shares = pool.weights(tokens, LAYOUT).unbind(1)
    assert (patches[:, :2] == 0).all()
    for r, (y, x) in enumerate(spans):
        of_region = LAYOUT.to_map(patches)[:, y, x].flatten(1)
        torch.testing.assert_close(of_region, members[r] * regions[:, [r]])
        share = LAYOUT.to_map(shares)[:, y, x].flatten(1)
        torch.testing.assert_close(share.sum(1), regions[:, r])
    torch.testing.assert_close(patches[:, 2:, None].mul(tokens[:, 2:]).sum(1), pool(tokens, LAYOUT))


@pytest.mark.parametrize("regions", [(4, 4), (1, 7), (5, 7), (3, 5), (2, 6)])
def test_hierarchical_regions_are_nearly_equal_and_none_is_empty(regions: tuple[int, int]) -> None:
    pool = HierarchicalPool(DIM, regions)
    with torch.no_grad():
        for parameter in pool.parameters():
            parameter.zero_()  # every patch of a region counts alike, and every region
    shares = pool.weights(torch.randn(1, N, DIM), LAYOUT)[0, 0]
    rows, columns = (np.array_split(range(n), m) for n, m in zip((5, 7), regions, strict=True))
    expected = torch.zeros(5, 7)
    for down in rows:
        for across in columns:
            size = len(down) * len(across) * len(rows) * len(columns)
            expected[down[0] : down[-1] + 1, across[0] : across[-1] + 1] = 1 / size
    torch.testing.assert_close(LAYOUT.to_map(shares), expected)


def test_hierarchical_pool_refuses_regions_without_patches() -> None:
    for regions in ((6, 2), (2, 8)):
        with pytest.raises(ValueError, match="of a grid of 5x7 patches would leave some empty"):
            HierarchicalPool(DIM, regions)(torch.randn(B, N, DIM), LAYOUT)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="dim must be a multiple of heads, got dim=6 and heads=4"):
        AttentionPool(DIM, heads=4)
    with pytest.raises(ValueError, match="views must be at least 1, got 0"):
        MultiDimPool(DIM, views=0)
    with pytest.raises(ValueError, match="columns must be at least 1, got 0"):
        HierarchicalPool(DIM, regions=(2, 0))
    with pytest.raises(ValueError, match="HierarchicalPool needs to know the grid: give layout="):
        HierarchicalPool(DIM)(torch.randn(B, N, DIM))
    with pytest.raises(ValueError, match="layout has 37 tokens, but there are 36"):
        HierarchicalPool(DIM)(torch.randn(B, N - 1, DIM), LAYOUT)
    for make in READOUTS[:-2]:
        with pytest.raises(ValueError, match="must not be empty"):
            make(dim=DIM)(torch.randn(B, 0, DIM))
    assert isinstance(AttentionPool(DIM).attend.normalizer, Softmax)


@pytest.mark.parametrize(("score", "learned"), [(KeyOnly, False), (Additive, True)])
def test_a_score_without_a_query_has_none_to_learn(
    score: Callable[..., Score], learned: bool
) -> None:
    pool = AttentionPool(DIM, score=score)
    assert ("query" in dict(pool.named_parameters())) == learned
    assert ("query" in pool.state_dict()) == learned
