"""Every normaliser against its formula, the entmax package, and the rules for masks."""

from collections.abc import Callable
from typing import Any

import entmax
import pytest
import torch
from torch import Tensor

from vision_attn.attention import (
    Entmax15,
    Hard,
    Normalizer,
    SampledHard,
    Sigmoid,
    Softmax,
    Sparsemax,
)
from vision_attn.attention.sparse import SparseNormalizer, entmax_threshold

ALL = [Softmax(), Softmax(0.3), Sigmoid(), Sparsemax(), Entmax15(), Hard(), SampledHard()]
SUM_TO_ONE = [n for n in ALL if not isinstance(n, Sigmoid)]
SHAPE = (2, 3, 5, 7)


def test_softmax_and_sigmoid_are_the_formula_for_every_element() -> None:
    scores = torch.randn(3, 7)
    for row in range(3):
        total = sum(torch.exp(e / 0.3) for e in scores[row])
        for j in range(7):
            e = scores[row, j]
            torch.testing.assert_close(Softmax(0.3)(scores)[row, j], torch.exp(e / 0.3) / total)
            torch.testing.assert_close(Sigmoid()(scores)[row, j], 1 / (1 + torch.exp(-e)))


def sparsemax_by_sorting(z: Tensor) -> Tensor:
    """Martins & Astudillo 2016, algorithm 1, for one row."""
    ordered = z.sort(descending=True).values
    support = [k for k in range(1, len(z) + 1) if 1 + k * ordered[k - 1] > ordered[:k].sum()]
    threshold = (ordered[: support[-1]].sum() - 1) / support[-1]
    return (z - threshold).clamp(min=0)


def entmax15_by_bisection(z: Tensor) -> Tensor:
    """The t with sum relu(z / 2 - t)^2 = 1, for one row."""
    low, high = z.max() / 2 - 1, z.max() / 2
    for _ in range(80):
        t = (low + high) / 2
        low, high = (t, high) if ((z / 2 - t).clamp(min=0) ** 2).sum() > 1 else (low, t)
    return (z / 2 - t).clamp(min=0) ** 2


@pytest.mark.parametrize("spread", [1e-3, 0.3, 1.0, 5.0, 1e3])
@pytest.mark.parametrize(
    ("ours", "rowwise", "package"),
    [
        (Sparsemax(), sparsemax_by_sorting, entmax.sparsemax),
        (Entmax15(), entmax15_by_bisection, entmax.entmax15),
    ],
)
def test_sparse_normalizers_are_exact(
    ours: SparseNormalizer, rowwise: Callable[..., Tensor], package: Any, spread: float
) -> None:
    scores = spread * torch.randn(31, 23)
    weights = ours(scores)
    torch.testing.assert_close(weights, torch.stack([rowwise(row) for row in scores]))
    torch.testing.assert_close(weights, package(scores, dim=-1))
    torch.testing.assert_close(weights.sum(-1), torch.ones(31))
    if spread >= 1:
        assert (weights == 0).any()

    grad = torch.randn(31, 23)
    (ours_grad,) = torch.autograd.grad(ours(scores.requires_grad_()), scores, grad)
    (package_grad,) = torch.autograd.grad(package(scores, dim=-1), scores, grad)
    torch.testing.assert_close(ours_grad, package_grad)


@pytest.mark.parametrize("ours", [Sparsemax(), Entmax15()])
def test_sparse_gradients(ours: Normalizer) -> None:
    scores = torch.randn(5, 7, requires_grad=True)
    assert torch.autograd.gradcheck(ours, (scores,))


@pytest.mark.parametrize("ours", [Sparsemax(), Entmax15()])
def test_sparse_search_ends_on_hard_rows(ours: Normalizer) -> None:
    """Scores that fall exponentially, where Newton's method drops few keys at a step."""
    rows = torch.stack([-torch.logspace(-9, 3, 997, base=base) for base in (2, 3, 10)])
    torch.testing.assert_close(ours(rows).sum(-1), torch.ones(3))
    ties = torch.zeros(2, 997)
    torch.testing.assert_close(ours(ties), ties + 1 / 997)


@pytest.mark.parametrize("ours", [Sparsemax(), Entmax15()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sparse_normalizers_keep_the_type(ours: Normalizer, dtype: torch.dtype) -> None:
    scores = torch.randn(3, 700, dtype=dtype)  # several blocks of the search
    weights = ours(scores)
    assert weights.dtype == dtype
    exact = ours(scores.double())
    torch.testing.assert_close(
        weights.double(), exact, rtol=0, atol=4 * torch.finfo(dtype).eps * exact.max().item()
    )


@pytest.mark.parametrize("power", [1, 2])
def test_threshold_operator_is_well_formed(power: int) -> None:
    z = torch.randn(5, 7)
    torch.library.opcheck(entmax_threshold, (z - z.amax(-1, keepdim=True), power))


def test_hard_is_one_hot_with_the_gradient_of_softmax() -> None:
    scores = torch.randn(SHAPE, requires_grad=True)
    weights = Hard(0.7)(scores)
    assert set(weights.unique().tolist()) == {0.0, 1.0}
    assert (weights.argmax(-1) == scores.argmax(-1)).all()
    grad = torch.randn(SHAPE)
    (hard,) = torch.autograd.grad(weights, scores, grad)
    (soft,) = torch.autograd.grad(Softmax(0.7)(scores), scores, grad)
    torch.testing.assert_close(hard, soft)


def test_sampled_hard_draws_by_softmax_in_training_and_takes_the_best_after_it() -> None:
    row = torch.tensor([1.0, -0.5, 0.3, 2.0])
    normalizer = SampledHard(0.5)
    draws = normalizer(row.expand(20_000, 4))
    assert (draws.sum(-1) == 1).all()
    torch.testing.assert_close(draws.mean(0), row.softmax(-1), rtol=0, atol=0.02)
    assert (normalizer.eval()(row.expand(7, 4)).argmax(-1) == 3).all()


def test_sampled_hard_reads_the_expected_value_for_a_share_of_the_images() -> None:
    scores = torch.randn(5003, 3, 7)
    weights = SampledHard(expected=0.3)(scores)
    drawn = (weights.amax(-1) == 1).all(-1)
    assert abs((~drawn).float().mean() - 0.3) < 0.03
    torch.testing.assert_close(weights[~drawn], scores[~drawn].softmax(-1))
    assert (SampledHard(expected=1.0)(scores[0, 0]) == scores[0, 0].softmax(-1)).all()
    with pytest.raises(
        ValueError, match="expected must be from 0 to 1, a share of each batch, got 2"
    ):
        SampledHard(expected=2)


def test_sampled_hard_has_a_gradient() -> None:
    scores = torch.randn(SHAPE, requires_grad=True)
    (SampledHard()(scores) * torch.randn(SHAPE)).sum().backward()
    assert scores.grad.abs().sum() > 0


@pytest.mark.parametrize("normalizer", ALL, ids=str)
def test_masked_keys_have_weight_0_and_rows_without_keys_too(normalizer: Normalizer) -> None:
    scores = (10 * torch.randn(SHAPE)).requires_grad_()
    mask = torch.rand(2, 1, 5, 7) > 0.4
    mask[0, 0, 1] = False
    mask[..., 1:, 3] = mask[..., 1:, 3].clone()
    weights = normalizer(scores, mask)
    assert (weights[~mask.expand(SHAPE)] == 0).all()
    assert (weights >= 0).all()
    (weights * torch.randn(SHAPE)).sum().backward()
    assert scores.grad.isfinite().all()
    assert (scores.grad[~mask.expand(SHAPE)] == 0).all()
    if normalizer in SUM_TO_ONE:
        torch.testing.assert_close(weights.sum(-1), mask.any(-1).double().expand(SHAPE[:3]))


@pytest.mark.parametrize("normalizer", [n for n in ALL if type(n) is not SampledHard], ids=str)
def test_a_mask_is_the_same_as_leaving_the_keys_out(normalizer: Normalizer) -> None:
    scores, keep = torch.randn(SHAPE), torch.tensor([0, 2, 3, 6])
    mask = torch.zeros(7, dtype=torch.bool)
    mask[keep] = True
    torch.testing.assert_close(normalizer(scores, mask)[..., keep], normalizer(scores[..., keep]))


@pytest.mark.parametrize("normalizer", [n for n in ALL if type(n) is not SampledHard], ids=str)
def test_rows_may_come_alone_and_in_any_order_of_memory(normalizer: Normalizer) -> None:
    scores = torch.randn(SHAPE).transpose(0, 2)
    weights = normalizer(scores)
    torch.testing.assert_close(normalizer(scores[1, 2, 0]), weights[1, 2, 0])
    torch.testing.assert_close(normalizer(scores.contiguous()), weights)


@pytest.mark.parametrize("normalizer", ALL, ids=str)
def test_nan_goes_in_and_comes_out(normalizer: Normalizer) -> None:
    scores = torch.randn(SHAPE)
    scores[1, 2, 3, 4] = torch.nan
    weights = normalizer(scores)
    assert weights[1, 2, 3, 4].isnan()
    assert weights[0].isfinite().all()
    assert normalizer(scores, torch.ones(7, dtype=torch.bool))[1, 2, 3, 4].isnan()


def test_bad_input_is_refused() -> None:
    for make in (Softmax, Hard, SampledHard):
        for temperature in (0, -1.5, float("nan")):
            with pytest.raises(ValueError, match=f"temperature must be above 0, got {temperature}"):
                make(temperature)
    with pytest.raises(ValueError, match=r"mask must be bool \(True = may attend\), got torch.f"):
        Softmax()(torch.randn(SHAPE), torch.ones(7))
    with pytest.raises(ValueError, match=r"mask must broadcast to \(2, 3, 5, 7\).*got \(6,\)"):
        Softmax()(torch.randn(SHAPE), torch.ones(6, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"mask must broadcast to \(5, 7\).*got \(2, 5, 7\)"):
        Softmax()(torch.randn(5, 7), torch.ones(2, 5, 7, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"scores must not be empty, got shape \(3, 0\)"):
        Softmax()(torch.randn(3, 0))
