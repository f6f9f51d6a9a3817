"""Attend: score, normalise, weighted mean, by whichever kernel."""

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vision_attn.attention import (
    Additive,
    Attend,
    BiasedGeneral,
    CosineSimilarity,
    Dot,
    Entmax15,
    General,
    Global,
    Hard,
    KeyOnly,
    LocalMonotonic,
    LocalPredictive,
    Location,
    Normalizer,
    ScaledDot,
    Score,
    Sigmoid,
    Softmax,
    Sparsemax,
    Window,
    causal_mask,
    padding_mask,
)
from vision_attn.attention.kernels import (
    by_masked_products,
    by_products,
    fused,
    masked_products_are_faster,
    products_are_faster,
)

B, HEADS, I, J, D, E = 2, 3, 5, 7, 11, 13


def qkv(i: int = I, j: int = J) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(B, HEADS, i, D), torch.randn(B, HEADS, j, D), torch.randn(B, HEADS, j, E)


def test_attention_is_the_formula_for_every_element() -> None:
    attend = Attend(ScaledDot(D))
    q, k, v = qkv()
    context = attend(q, k, v)
    for b, h, i in product(range(B), range(HEADS), range(I)):
        scores = [torch.exp(q[b, h, i] @ k[b, h, j] / D**0.5) for j in range(J)]
        weights = [score / sum(scores) for score in scores]
        mean = sum(weight * v[b, h, j] for j, weight in enumerate(weights))
        torch.testing.assert_close(context[b, h, i], mean)
        torch.testing.assert_close(attend.weights(q, k)[b, h, i], torch.stack(weights))


DOT_PRODUCTS = [ScaledDot, Dot, General, BiasedGeneral, partial(CosineSimilarity, beta=3.0)]
MASKS = {
    "none": None,
    "causal": causal_mask(I, J),
    "padding": padding_mask(torch.tensor([3, 7]), J),
    "random": torch.rand(B, HEADS, I, J, generator=torch.Generator().manual_seed(1)) > 0.5,
    "of queries": torch.tensor([True, False, True, True, False])[:, None],
    "nothing": torch.zeros(1, 1, 1, 1, dtype=torch.bool),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("score", DOT_PRODUCTS)
def test_the_fused_path_gives_what_the_definition_gives(
    score: Callable[..., Score], mask: Tensor | None
) -> None:
    attend = Attend(score(head_dim=D, heads=HEADS), Softmax(0.7))
    q, k, v = (x.requires_grad_() for x in qkv())
    fast, plain = attend(q, k, v, mask), attend.weights(q, k, mask) @ v
    torch.testing.assert_close(fast, plain)
    grad = torch.randn_like(fast)
    inputs = (q, k, v, *attend.parameters())
    for a, b in zip(
        torch.autograd.grad(fast, inputs, grad, allow_unused=True),
        torch.autograd.grad(plain, inputs, grad, allow_unused=True),
        strict=True,
    ):
        torch.testing.assert_close(a, b)
        assert a.isfinite().all()


@pytest.mark.parametrize("score", DOT_PRODUCTS)
def test_every_dot_product_reaches_the_fused_kernel(
    score: Callable[..., Score],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    kernel = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda *a, **o: calls.append(1) or kernel(*a, **o)
    )
    Attend(score(head_dim=D, heads=HEADS))(*qkv())
    assert calls


@pytest.mark.parametrize("part", [1, 100, 1 << 20])
def test_both_kernels_give_the_same(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vision_attn.attention.kernels.PART", part)
    q, k, v = (x.requires_grad_() for x in qkv())
    a, b = by_products(q, k, v, 0.0, 0.3), fused(q, k, v, None, 0.0, 0.3)
    torch.testing.assert_close(a, b)
    grad = torch.randn_like(a)
    for x, y in zip(
        torch.autograd.grad(a, (q, k, v), grad),
        torch.autograd.grad(b, (q, k, v), grad),
        strict=True,
    ):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("mask", [m for m in MASKS.values() if m is not None])
def test_masked_kernels_give_the_same(mask: Tensor) -> None:
    q, k, v = (x.requires_grad_() for x in qkv())
    mask = mask[(None,) * (4 - mask.ndim)]
    results = [way(q, k, v, mask, 0.0, 0.3) for way in (by_masked_products, fused)]
    torch.testing.assert_close(*results)
    grad = torch.randn_like(results[0])
    grads = [torch.autograd.grad(result, (q, k, v), grad) for result in results]
    torch.testing.assert_close(*grads)
    assert (results[0][~mask.any(-1).expand(B, HEADS, I)] == 0).all()


def test_kernels_spread_one_head_over_many() -> None:
    q, k, v = torch.randn(B, HEADS, I, D), torch.randn(B, 1, J, D), torch.randn(B, 1, J, E)
    expected = ((0.3 * q) @ k.mT).softmax(-1) @ v
    torch.testing.assert_close(by_products(q, k, v, 0.0, 0.3), expected)
    torch.testing.assert_close(fused(q, k, v, None, 0.0, 0.3), expected)


def test_bfloat16_takes_products_on_a_cpu_unless_the_memory_is_long() -> None:
    q = torch.randn(1, 1, 5, D, dtype=torch.bfloat16)
    long = torch.empty(1, 1, 4097, D, dtype=torch.bfloat16)
    assert products_are_faster(q, q)
    assert not products_are_faster(q, long)
    assert not products_are_faster(q.float(), q.float())
    with torch.no_grad():
        assert products_are_faster(q, long)
    tall = torch.empty(1, 1, 16, D, dtype=torch.bfloat16)
    assert masked_products_are_faster(tall, tall)
    assert not masked_products_are_faster(q, tall)
    attend = Attend(ScaledDot(D))
    q, k, v = qkv(17, 17)
    for mask in (None, causal_mask(17)):
        exact = attend(q, k, v, mask)
        rounded = attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), mask)
        torch.testing.assert_close(rounded.double(), exact, atol=0.05, rtol=0.05)


WINDOWS = [Global, partial(LocalMonotonic, radius=1), partial(LocalPredictive, radius=2)]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(
    "normalizer", [Softmax(), Sigmoid(), Sparsemax(), Entmax15(), Hard()], ids=str
)
@pytest.mark.parametrize("score", [ScaledDot, Additive, KeyOnly, partial(Location, positions=J)])
def test_any_parts_go_together(
    score: Callable[..., Score], normalizer: Normalizer, window: Callable[..., Window]
) -> None:
    attend = Attend(score(D), normalizer, window(D))
    q, k, v = (x.requires_grad_() for x in qkv())
    mask = MASKS["random"]
    weights = attend.weights(q, k, mask)
    assert weights.shape == (B, HEADS, I, J)
    assert mask is not None
    assert (weights[~mask] == 0).all()
    context = attend(q, k, v, mask)
    torch.testing.assert_close(context, weights @ v)
    context.sum().backward()
    assert v.grad.isfinite().all()
    assert k.grad is None or k.grad.isfinite().all()


@pytest.mark.parametrize("make", [ScaledDot, Additive])
def test_nan_goes_in_and_comes_out(make: Callable[..., Score]) -> None:
    score = make(D)
    q, k, v = qkv()
    k[0, 0, 0, 0] = torch.nan
    context = Attend(score)(q, k, v)
    assert context[0, 0].isnan().all()
    assert context[1].isfinite().all()
    assert Attend(score)(q, k, v, MASKS["padding"])[0, 0].isnan().all()


def test_dropout_drops_weights_in_training_only() -> None:
    for score in (ScaledDot(D), Additive(D)):
        attend = Attend(score, dropout=0.5)
        q, k, v = qkv()
        assert not torch.equal(attend(q, k, v), attend(q, k, v))
        attend.eval()
        torch.testing.assert_close(attend(q, k, v), attend.weights(q, k) @ v)


def test_bad_input_is_refused() -> None:
    attend = Attend(ScaledDot(D))
    q, k, v = qkv()
    with pytest.raises(ValueError, match=r"11 wide \(the score's head_dim\), got 13 and 13"):
        attend(v, v, v)
    with pytest.raises(ValueError, match="keys and values must have the same length, got 7 and 6"):
        attend(q, k, v[:, :, :6])
    with pytest.raises(ValueError, match=r"keys must not be empty, got shape \(2, 3, 0, 11\)"):
        attend(q, k[:, :, :0], v[:, :, :0])
    with pytest.raises(ValueError, match=r"queries must not be empty, got shape \(2, 3, 0, 11\)"):
        attend(q[:, :, :0], k, v)
    with pytest.raises(ValueError, match="mask must be bool"):
        attend(q, k, v, torch.ones(I, J))
    with pytest.raises(ValueError, match=r"broadcast to \(2, 3, 5, 7\).*got \(7, 5\)"):
        attend(q, k, v, torch.ones(J, I, dtype=torch.bool))
    for dropout in (-0.1, 1.0):
        with pytest.raises(ValueError, match=rf"dropout must be in \[0, 1\), got {dropout}"):
            Attend(ScaledDot(D), dropout=dropout)


def test_masks() -> None:
    assert causal_mask(3).tolist() == [[True, False, False], [True, True, False], [True] * 3]
    padding = padding_mask(torch.tensor([0, 2]), 3)
    assert padding.shape == (2, 1, 1, 3)
    assert padding[:, 0, 0].tolist() == [[False] * 3, [True, True, False]]
