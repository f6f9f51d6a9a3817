"""Hops, hierarchies and co-attention, each against its formula in plain loops."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vision_attn.attention import (
    Additive,
    AlternatingCoAttention,
    AttentionOverAttention,
    AttentionViaAttention,
    CoAttention,
    CoAttentionEnsemble,
    GRUUpdate,
    Hierarchical,
    InteractiveAttention,
    LinearUpdate,
    MaxPoolCoAttention,
    MemoryHops,
    ParallelCoAttention,
    SumUpdate,
    TargetGuided,
)

B, I, J, F, D = 2, 5, 7, 11, 3


def mean(weights: list[Tensor], values: Tensor) -> Tensor:
    return sum(weight * value for weight, value in zip(weights, values, strict=True))


def softmax(scores: list[Tensor]) -> list[Tensor]:
    total = sum(torch.exp(score) for score in scores)
    return [torch.exp(score) / total for score in scores]


def additive(score: Any, q: Tensor, keys: Tensor) -> list[Tensor]:
    """The weights of one query over the keys."""
    w_q, w_k, v = score.query_proj.weight[0], score.key_proj.weight[0], score.energy.weight[0, :, 0]
    return softmax([v @ torch.tanh(q @ w_q + k @ w_k) for k in keys])


def key_only(score: nn.Module, keys: Tensor) -> list[Tensor]:
    w, v = score.key_proj.weight[0], score.energy.weight[0, :, 0]
    b = 0 if score.key_proj.bias is None else score.key_proj.bias[0, 0]
    return softmax([v @ torch.tanh(k @ w + b) for k in keys])


def randomized(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("update", [SumUpdate, LinearUpdate, GRUUpdate])
def test_memory_hops(update: type, shared: bool) -> None:
    hops = randomized(MemoryHops(D, hops=3, shared=shared, update=update))
    queries, memory = torch.randn(B, I, D), torch.randn(B, J, D)
    assert len(hops.looks) == (1 if shared else 3)
    for b in range(B):
        for i in range(I):
            q = queries[b, i]
            for h in range(3):
                hop = hops.looks[0 if shared else h]
                keys, values = (
                    memory[b] @ hop.key_proj.weight.T,
                    memory[b] @ hop.value_proj.weight.T,
                )
                weights = softmax([q @ k for k in keys])
                given = hops.weights(queries, memory)[b, h, i]
                torch.testing.assert_close(given, torch.stack(weights))
                c = mean(weights, values)
                if update is SumUpdate:
                    q = q + c
                elif update is LinearUpdate:
                    q = hop.update.proj.weight @ torch.cat([q, c]) + hop.update.proj.bias
                else:
                    q = hop.update.cell(c[None], q[None])[0]
            torch.testing.assert_close(hops(queries, memory)[b, i], q)


def test_memory_hops_leaves_out_what_does_not_exist() -> None:
    hops = MemoryHops(D)
    query, memory = torch.randn(B, I, D), torch.randn(B, J, D)
    exists = torch.tensor([True, True, False, True, False, False, True]).expand(B, J)
    kept = memory[:, exists[0]]
    torch.testing.assert_close(hops(query, memory, exists), hops(query, kept))
    assert (hops.weights(query, memory, exists)[..., ~exists[0]] == 0).all()


def test_hierarchical() -> None:
    attention = randomized(Hierarchical(D))
    groups = torch.randn(B, 5, 7, D)
    inside, across = attention.weights(groups)
    for b in range(B):
        vectors = []
        for g in range(5):
            weights = key_only(attention.inside.attend.score, groups[b, g])
            torch.testing.assert_close(inside[b, g], torch.stack(weights))
            vectors.append(mean(weights, groups[b, g]))
        weights = key_only(attention.across.attend.score, torch.stack(vectors))
        torch.testing.assert_close(across[b], torch.stack(weights))
        torch.testing.assert_close(attention(groups)[b], mean(weights, torch.stack(vectors)))


def test_hierarchical_leaves_out_missing_members_and_empty_groups() -> None:
    attention = Hierarchical(D, score=Additive)
    groups = torch.randn(B, 3, 5, D)
    mask = torch.ones(B, 3, 5, dtype=torch.bool)
    mask[:, 1] = False
    mask[:, :, 3:] = False
    kept = groups[:, [0, 2], :3]
    torch.testing.assert_close(attention(groups, mask), attention(kept))
    inside, across = attention.weights(groups, mask)
    assert (inside[:, 1] == 0).all()
    assert (across[:, 1] == 0).all()


def test_attention_via_attention() -> None:
    attention = randomized(AttentionViaAttention(D))
    query, coarse, fine = torch.randn(B, I, D), torch.randn(B, J, D), torch.randn(B, F, D)
    over_coarse, over_fine = attention.weights(query, coarse, fine)
    contexts = attention(query, coarse, fine)
    for b in range(B):
        for i in range(I):
            weights = additive(attention.over_coarse.score, query[b, i], coarse[b])
            torch.testing.assert_close(over_coarse[b, i], torch.stack(weights))
            c_w = mean(weights, coarse[b])
            torch.testing.assert_close(contexts[0][b, i], c_w)
            second = attention.query_proj.weight @ torch.cat([query[b, i], c_w])
            weights = additive(attention.over_fine.score, second, fine[b])
            torch.testing.assert_close(over_fine[b, i], torch.stack(weights))
            torch.testing.assert_close(contexts[1][b, i], mean(weights, fine[b]))


def test_target_guided() -> None:
    attention = randomized(TargetGuided(D))
    target, sentence = torch.randn(B, I, D), torch.randn(B, J, D)
    over_target, over_sentence = attention.weights(target, sentence)
    for b in range(B):
        weights = key_only(attention.over_target.attend.score, target[b])
        torch.testing.assert_close(over_target[b], torch.stack(weights))
        c_t = mean(weights, target[b])
        weights = additive(attention.over_sentence.score, c_t, sentence[b])
        torch.testing.assert_close(over_sentence[b], torch.stack(weights))
        torch.testing.assert_close(attention(target, sentence)[b], mean(weights, sentence[b]))


def alternating(m: AlternatingCoAttention, q: Tensor, k: Tensor) -> tuple[list[Any], list[Any]]:
    summary = mean(key_only(m.alone.score, q), q)
    b = additive(m.over_keys.score, summary, k)
    return additive(m.over_queries.score, mean(b, k), q), b


def interactive(m: InteractiveAttention, q: Tensor, k: Tensor) -> tuple[list[Any], list[Any]]:
    def weights(score: nn.Module, query: Any, keys: Tensor) -> list[Tensor]:
        w, bias = score.query_proj.weight[0], score.bias[0, 0, 0]
        return softmax([torch.tanh(query @ w @ key + bias) for key in keys])

    mean_q, mean_k = sum(q) / len(q), sum(k) / len(k)
    return weights(m.over_queries.score, mean_k, q), weights(m.over_keys.score, mean_q, k)


def parallel(m: ParallelCoAttention, q: Tensor, k: Tensor) -> tuple[list[Any], list[Any]]:
    affinity = [[torch.tanh((m.affinity.weight @ x) @ y) for y in k] for x in q]
    w_q, w_k = m.query_proj.weight, m.key_proj.weight
    a, b = [], []
    for i, x in enumerate(q):
        carried = sum(affinity[i][j] * (w_k @ y) for j, y in enumerate(k))
        a.append(m.query_energy.weight[0] @ torch.tanh(w_q @ x + carried))
    for j, y in enumerate(k):
        carried = sum(affinity[i][j] * (w_q @ x) for i, x in enumerate(q))
        b.append(m.key_energy.weight[0] @ torch.tanh(w_k @ y + carried))
    return softmax(a), softmax(b)


def max_pool(m: MaxPoolCoAttention, q: Tensor, k: Tensor) -> tuple[list[Any], list[Any]]:
    energy = [[torch.tanh((m.affinity.weight @ x) @ y) for y in k] for x in q]
    a = [max(row) for row in energy]
    b = [max(row[j] for row in energy) for j in range(len(k))]
    return softmax(a), softmax(b)


def over_attention(m: AttentionOverAttention, q: Tensor, k: Tensor) -> tuple[list[Any], list[Any]]:
    alpha = [softmax([x @ y for y in k]) for x in q]
    beta = [softmax([x @ y for x in q]) for y in k]
    a = [sum(row[i] for row in beta) / len(k) for i in range(len(q))]
    return a, [sum(a[i] * alpha[i][j] for i in range(len(q))) for j in range(len(k))]


FORMULAS: list[tuple[Callable[..., nn.Module], Callable[..., tuple[list[Any], list[Any]]]]] = [
    (partial(AlternatingCoAttention, hidden_dim=13), alternating),
    (InteractiveAttention, interactive),
    (partial(ParallelCoAttention, hidden_dim=13), parallel),
    (MaxPoolCoAttention, max_pool),
    (AttentionOverAttention, over_attention),
]


@pytest.mark.parametrize(("make", "formula"), FORMULAS)
def test_co_attention(
    make: Callable[..., nn.Module],
    formula: Callable[..., tuple[list[Any], list[Any]]],
) -> None:
    attention = randomized(make(D))
    queries, keys = torch.randn(B, I, D), torch.randn(B, J, D)
    a, b = attention.weights(queries, keys)
    of_queries, of_keys = attention(queries, keys)
    for n in range(B):
        expected_a, expected_b = formula(attention, queries[n], keys[n])
        torch.testing.assert_close(a[n], torch.stack(expected_a))
        torch.testing.assert_close(b[n], torch.stack(expected_b))
        torch.testing.assert_close(of_queries[n], mean(expected_a, queries[n]))
        torch.testing.assert_close(of_keys[n], mean(expected_b, keys[n]))


@pytest.mark.parametrize("make", [make for make, _ in FORMULAS])
def test_co_attention_leaves_out_what_does_not_exist(make: Any) -> None:
    attention: CoAttention = make(D)
    queries, keys = torch.randn(B, I, D, requires_grad=True), torch.randn(B, J, D)
    query_mask = torch.tensor([True, False, True, True, False]).expand(B, I)
    key_mask = torch.tensor([False, True, True, True, False, False, True]).expand(B, J)
    masked = attention.weights(queries, keys, query_mask, key_mask)
    kept = attention.weights(queries[:, query_mask[0]], keys[:, key_mask[0]])
    torch.testing.assert_close(masked[0][:, query_mask[0]], kept[0])
    torch.testing.assert_close(masked[1][:, key_mask[0]], kept[1])
    assert (masked[0][~query_mask] == 0).all()
    assert (masked[1][~key_mask] == 0).all()

    for query_mask_alone, key_mask_alone in ((query_mask, None), (None, key_mask)):
        masked = attention.weights(queries, keys, query_mask_alone, key_mask_alone)
        i = slice(None) if query_mask_alone is None else query_mask[0]
        j = slice(None) if key_mask_alone is None else key_mask[0]
        kept = attention.weights(queries[:, i], keys[:, j])
        torch.testing.assert_close((masked[0][:, i], masked[1][:, j]), kept)

    nothing = torch.zeros(B, I, dtype=torch.bool)
    contexts = attention(queries, keys, nothing, key_mask)
    assert (contexts[0] == 0).all()
    sum(context.sum() for context in contexts).backward()
    assert queries.grad.isfinite().all()


def test_ensemble_concatenates_the_contexts() -> None:
    members: list[Any] = [make(D) for make, _ in FORMULAS]
    ensemble = CoAttentionEnsemble(*members)
    queries, keys = torch.randn(B, I, D), torch.randn(B, J, D)
    of_queries, of_keys = ensemble(queries, keys)
    each = [member(queries, keys) for member in members]
    torch.testing.assert_close(of_queries, torch.cat([context[0] for context in each], dim=1))
    torch.testing.assert_close(of_keys, torch.cat([context[1] for context in each], dim=1))
    a, b = ensemble.weights(queries, keys)
    assert a.shape == (B, 5, I)
    assert b.shape == (B, 5, J)


@pytest.mark.parametrize("make", [make for make, _ in FORMULAS])
def test_co_attention_gradients(make: Any) -> None:
    attention = make(2)
    queries, keys = torch.randn(1, 2, 2), torch.randn(1, 3, 2)
    inputs = (queries.requires_grad_(), keys.requires_grad_())
    assert torch.autograd.gradcheck(attention, inputs)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="hops must be at least 1, got 0"):
        MemoryHops(D, hops=0)
    with pytest.raises(ValueError, match="dim must be at least 1, got 0"):
        MaxPoolCoAttention(0)
    with pytest.raises(ValueError, match="hidden_dim must be at least 1, got 0"):
        ParallelCoAttention(D, hidden_dim=0)
    with pytest.raises(ValueError, match="members must hold at least one CoAttention, got none"):
        CoAttentionEnsemble()
    for make, _ in FORMULAS:
        with pytest.raises(ValueError, match=r"keys must not be empty, got shape \(2, 0, 3\)"):
            make(D)(torch.randn(B, I, D), torch.randn(B, 0, D))
    with pytest.raises(ValueError, match="keys must not be empty"):
        MemoryHops(D)(torch.randn(B, I, D), torch.randn(B, 0, D))
    with pytest.raises(ValueError, match="keys must not be empty"):
        Hierarchical(D)(torch.randn(B, 3, 0, D))
    with pytest.raises(ValueError, match="keys must not be empty"):
        TargetGuided(D)(torch.randn(B, 0, D), torch.randn(B, J, D))
    query, coarse = torch.randn(B, I, D), torch.randn(B, J, D)
    with pytest.raises(ValueError, match="keys must not be empty"):
        AttentionViaAttention(D)(query, coarse, torch.randn(B, 0, D))
