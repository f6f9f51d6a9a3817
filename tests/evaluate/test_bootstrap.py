"""Confidence intervals against scipy's, published numbers, and how often they hold the truth."""

from collections.abc import Callable
from math import sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score

from vision_attn.evaluate import auc, auc_interval, paired_bootstrap, wilson
from vision_attn.evaluate.bootstrap import bca, paired_wilson, t_quantile


def test_the_interval_is_the_normal_one_for_many_images() -> None:
    b = torch.randn(400) * 5
    a = b + 0.3 + torch.randn(400)
    difference = paired_bootstrap(a, b)
    error = (a - b).std().item() / 20
    assert difference.mean == pytest.approx((a - b).mean().item(), rel=1e-5)
    assert difference.low == pytest.approx(difference.mean - 1.96 * error, abs=0.15 * error)
    assert difference.high == pytest.approx(difference.mean + 1.96 * error, abs=0.15 * error)
    assert difference.significant
    assert not paired_bootstrap(a, a).significant


@pytest.mark.parametrize("n", [20, 40, 150])
@pytest.mark.parametrize("level", [0.8, 0.9])
def test_bca_is_scipys_at_the_level_for_few_values(n: int, level: float) -> None:
    values = torch.empty(n, dtype=torch.float64).exponential_() ** 1.3
    edge = sqrt(n / (n - 1)) * stats.t.ppf((1 + level) / 2, n - 1)
    theirs = stats.bootstrap(
        (values.numpy(),),
        np.mean,
        method="BCa",
        confidence_level=1 - 2 * stats.norm.cdf(-edge),
        n_resamples=60_000,
        rng=np.random.default_rng(0),
    ).confidence_interval
    error = float(values.std()) / sqrt(n)
    ours = bca(values, level, resamples=60_000)
    assert list(ours) == pytest.approx([theirs.low, theirs.high], abs=0.1 * error)
    assert ours.high - values.mean() > 1.05 * (values.mean() - ours.low)  # skewed, as the values


def test_the_interval_of_skewed_differences_is_scipys_bca() -> None:
    """Of 100 images; percentiles of the resampled means lie a third of an error lower."""
    values = torch.empty(100, dtype=torch.float64).exponential_() ** 1.3
    edge = sqrt(100 / 99) * stats.t.ppf(0.975, 99)
    theirs = stats.bootstrap(
        (values.numpy(),),
        np.mean,
        method="BCa",
        confidence_level=1 - 2 * stats.norm.cdf(-edge),
        n_resamples=60_000,
        rng=np.random.default_rng(0),
    ).confidence_interval
    found = paired_bootstrap(values + 0.5, torch.full((100,), 0.5), resamples=60_000)
    expected = pytest.approx([theirs.low, theirs.high], abs=float(values.std()) / 100)
    assert [found.low, found.high] == expected


@pytest.mark.parametrize(("hits", "n"), [(0, 7), (3, 11), (50, 100), (97, 100), (13, 13)])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_wilson_is_scipys(hits: int, n: int, level: float) -> None:
    theirs = stats.binomtest(hits, n).proportion_ci(level, method="wilson")
    ours = wilson((torch.arange(n) < hits).float(), level)
    assert list(ours) == pytest.approx([theirs.low, theirs.high], abs=1e-9)


def test_paired_hits_are_newcombes_example() -> None:
    """Both 36 times, only the first 12 times, only the second twice: 0.0569 to 0.3404."""
    a = torch.tensor([1.0] * 36 + [1.0] * 12 + [0.0] * 2)
    b = torch.tensor([1.0] * 36 + [0.0] * 12 + [1.0] * 2)
    assert list(paired_wilson(a, b)) == pytest.approx([0.0569, 0.3404], abs=5e-5)
    found = paired_bootstrap(a, b)
    assert list(found) == pytest.approx([0.2, 0.0569, 0.3404], abs=5e-5)
    mirrored = paired_bootstrap(b, a)
    assert list(mirrored) == pytest.approx([-0.2, -0.3404, -0.0569], abs=5e-5)
    assert paired_bootstrap(-1 * a, -1 * b) != found  # no hits: resampled


@pytest.mark.parametrize("share", [0.9, 0.95, 0.975, 0.995])
def test_student_quantiles(share: float) -> None:
    for freedom in (1, 2, 3, 4, 7, 30, 99):
        expected = stats.t.ppf(share, freedom)
        error = 0.01 if freedom < 30 else 2e-7  # where each term of the expansion counts
        assert t_quantile(share, freedom) == pytest.approx(expected, rel=error)


def continuous(draw: Callable[..., torch.Tensor]) -> Callable[..., tuple[Any, torch.Tensor]]:
    return lambda: (draw(), torch.zeros(100))


def hits(p: float, q: float, linked: float) -> Callable[..., Any]:
    """Hits of two methods on 100 images, on a share of which they depend on the same number."""

    def draw() -> tuple[Any, Any]:
        one, other = torch.rand(100), torch.rand(100)
        return (one < p).float(), (torch.where(torch.rand(100) < linked, one, other) < q).float()

    return draw


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draw", "truth"),
    [
        (continuous(lambda: torch.rand(100) - 0.4), 0.1),
        (continuous(lambda: torch.empty(100).exponential_()), 1.0),
        (hits(0.5, 0.3, 0.7), 0.2),
        (hits(0.8, 0.7, 0.5), 0.1),
    ],
    ids=["uniform", "exponential", "hits", "many hits"],
)
def test_95_percent_intervals_of_100_images_hold_the_truth_in_94_to_96_percent(
    draw: Callable[..., Any], truth: float
) -> None:
    found = [paired_bootstrap(*draw()) for _ in range(2000)]
    assert 0.94 <= np.mean([one.low < truth < one.high for one in found]) <= 0.96


def test_few_and_equal_values() -> None:
    assert list(bca(torch.full((5,), 0.3, dtype=torch.float64))) == pytest.approx([0.3, 0.3])
    for n in (2, 3, 4, 5):
        for _ in range(20):
            values = torch.randn(n).double()
            low, high = bca(values)
            assert values.min() - 1e-9 <= low <= values.mean() <= high <= values.max() + 1e-9


def test_wrong_arguments_are_refused() -> None:
    a, b = torch.rand(5), torch.rand(5)
    with pytest.raises(ValueError, match="two scores of the same images, at least 2"):
        paired_bootstrap(a, b[:3])
    for call in (paired_bootstrap, paired_wilson):
        with pytest.raises(ValueError, match=r"level must be between 0 and 1, got 95.0"):
            call(a.round(), b.round(), level=95.0)
    with pytest.raises(ValueError, match=r"level must be between 0 and 1, got 0"):
        bca(a, level=0.0)


def test_auc_is_sklearns_with_ties() -> None:
    a, b = torch.randint(7, (31,)).float() + 1, torch.randint(7, (23,)).float()
    known = torch.cat([torch.ones(31), torch.zeros(23)])
    assert auc(a, b) == pytest.approx(roc_auc_score(known, torch.cat([a, b])))
    assert auc(a, b) + auc(b, a) == pytest.approx(1)
    assert auc(a, a) == 0.5


def test_the_interval_of_an_auc_holds_it_as_often_as_it_says() -> None:
    """Of normal scores one deviation apart, alike by 0.6: AUC = Phi(1 / sqrt 2)."""
    truth, inside = NormalDist().cdf(0.5**0.5), 0
    for seed in range(300):
        generator = torch.Generator().manual_seed(seed)
        common, one, two = torch.randn(3, 60, generator=generator)
        a, b = (0.6**0.5 * common + 0.4**0.5 * own for own in (one, two))
        low, high = auc_interval(a + 1, b, resamples=400)
        inside += low <= truth <= high
    assert 0.91 <= inside / 300 <= 0.98
    assert auc_interval(torch.rand(20) + 2, torch.rand(20)) == pytest.approx((1, 1))
    with pytest.raises(ValueError, match="expected two scores of the same images, at least 2, got"):
        auc_interval(torch.rand(3), torch.rand(4))
    for interval in (auc_interval, paired_bootstrap):
        with pytest.raises(ValueError, match="resamples must be at least 1, got 0"):
            interval(torch.rand(3), torch.rand(3), resamples=0)
