"""Paired bootstrap: is one method better than another, or is it chance?

Axes: n images, r resamples.
"""

from functools import lru_cache
from math import sqrt
from statistics import NormalDist
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.arguments import checked

__all__ = [
    "Interval",
    "PairedDifference",
    "auc",
    "auc_interval",
    "bca",
    "paired_bootstrap",
    "paired_wilson",
    "wilson",
]

NORMAL = NormalDist()


class PairedDifference(NamedTuple):
    """Mean difference of two scores, with its confidence interval.

    Attributes:
        mean: The mean over images.
        low: Where the interval begins.
        high: Where it ends.

    Examples:
        >>> from vision_attn.evaluate import PairedDifference
        >>> PairedDifference(mean=0.1, low=0.02, high=0.2).significant
        True
    """

    mean: float
    low: float
    high: float

    @property
    def significant(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0


class Interval(NamedTuple):
    """Both ends of a confidence interval.

    Attributes:
        low: Where it begins.
        high: Where it ends.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import wilson
        >>> interval = wilson(torch.tensor([1, 1, 1, 0]))
        >>> round(interval.low, 2), round(interval.high, 2)
        (0.3, 0.95)
    """

    low: float
    high: float


@checked(resamples=1)
def paired_bootstrap(
    a: Tensor,
    b: Tensor,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> PairedDifference:
    """Estimate the mean of a - b with a confidence interval.

    The same images are drawn for both scores, so what is hard for both cancels. The interval is
    `bca`; where all scores are hits and misses (1 and 0) it is `paired_wilson`, without resampling.
    In a simulation the 95 % intervals of 100 images held the true mean in 94.7 to 95.8 % of 4000
    cases: of uniform and exponential differences, and of hits in shares of 0.2 to 0.8.

    Args:
        a: A score (n) of n images, at least 2.
        b: Another score (n) of the same images.
        level: The interval's confidence, between 0 and 1.
        resamples: How often n images are drawn with replacement.
        seed: Of the draws.

    Returns:
        The mean difference, and the interval's ends.

    Raises:
        ValueError: The shapes or the level are others.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import paired_bootstrap
        >>> a = torch.linspace(0, 1, 50)
        >>> difference = paired_bootstrap(a + 0.1, a)
        >>> round(difference.mean, 4), difference.significant
        (0.1, True)
    """
    _check_paired(a, b)
    _check(level)
    difference = (a - b).cpu().double()  # in this order: Apple's GPUs have no float64
    if all(((scores == 0) | (scores == 1)).all() for scores in (a, b)):
        interval = paired_wilson(a, b, level)
    else:
        interval = bca(difference, level, resamples, seed)
    return PairedDifference(float(difference.mean()), *interval)


def bca(
    values: Float[Tensor, " n"], level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Compute the bias-corrected and accelerated bootstrap interval of the mean, Efron 1987.

    At the level that makes up for the narrowness of bootstrap intervals of few values: the normal
    quantile z becomes sqrt(n / (n - 1)) t, t of n - 1 degrees of freedom (Hesterberg 2015, 3.4).
    """
    _check(level)
    values = values.cpu().double()
    n, mean = len(values), values.mean()
    deviations = values - mean  # in proportion to the jackknife's
    spread = deviations.square().sum()
    if spread == 0:
        return Interval(float(mean), float(mean))
    acceleration = float((deviations**3).sum() / (6 * spread**1.5))
    means = resampled_shares(n, resamples, seed) @ values
    above = (means - mean) / spread.sqrt()
    rounding = 1e-12  # the mean itself, added up in another order
    below = float((above < -rounding).sum() + (above <= rounding).sum()) / (2 * resamples)
    bias = NORMAL.inv_cdf(min(max(below, 0.5 / resamples), 1 - 0.5 / resamples))
    edge = sqrt(n / (n - 1)) * t_quantile((1 + level) / 2, n - 1)
    shares = []
    for z in (bias - edge, bias + edge):
        shares.append(NORMAL.cdf(bias + z / max(1 - acceleration * z, 1e-9)))
    low, high = means.quantile(
        torch.tensor(shares, dtype=torch.float64, device=means.device)
    ).tolist()
    return Interval(low, high)


@checked()
def wilson(hits: Tensor, level: float = 0.95) -> Interval:
    """Compute the score interval of a share of hits, Wilson 1927.

    Args:
        hits: (n) of 1 and 0.
        level: The interval's confidence, between 0 and 1.

    Returns:
        The interval's ends, from 0 to 1.
    """
    _check(level)
    n, share = len(hits), float(hits.cpu().double().mean())
    z = NORMAL.inv_cdf((1 + level) / 2)
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    width = z * sqrt(share * (1 - share) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    return Interval(centre - width, centre + width)


def paired_wilson(a: Tensor, b: Tensor, level: float = 0.95) -> Interval:
    """Combine the Wilson intervals of two shares of hits (n) of the same images: mean(a) - mean(b).

    Newcombe 1998 (Statistics in Medicine 17, 2635), method 10.
    """
    p, q = float(a.cpu().double().mean()), float(b.cpu().double().mean())
    (p_low, p_high), (q_low, q_high) = wilson(a, level), wilson(b, level)
    n, both = len(a), float((a * b).cpu().double().sum())
    margins = p * (1 - p) * q * (1 - q)
    agreement = n * (both - n * p * q)  # both hit x none hits - only a hits x only b hits
    if agreement > 0:
        agreement = max(agreement - n / 2, 0.0)
    phi = agreement / (n**2 * sqrt(margins)) if margins > 0 else 0.0

    def apart(x: float, y: float) -> float:
        return sqrt(max(x**2 - 2 * phi * x * y + y**2, 0.0))

    return Interval(p - q - apart(p - p_low, q_high - q), p - q + apart(p_high - p, q - q_low))


@checked()
def auc(a: Tensor, b: Tensor) -> float:
    """Compute the area under the ROC curve: the share of pairs with a above b, ties counting half.

    Args:
        a: Scores (n) of one kind.
        b: Scores (m) of the other.

    Returns:
        1 where the scores separate the kinds, 1/2 where they do not, 0 with the sign reversed.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import auc
        >>> auc(torch.tensor([3.0, 2.0]), torch.tensor([2.0, 1.0]))
        0.875
    """
    return float(_above(a, b).mean())


@checked(resamples=1)
def auc_interval(
    a: Tensor, b: Tensor, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Estimate a confidence interval of `auc`, by the percentiles of a paired bootstrap.

    Args:
        a: A score (n) of n images, at least 2.
        b: Another score (n) of the same images, which are drawn for both.
        level: The interval's confidence, between 0 and 1.
        resamples: How often n images are drawn with replacement.
        seed: Of the draws.

    Returns:
        The interval; a point where every a is above every b.

    Raises:
        ValueError: The shapes or the level are others.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import auc_interval
        >>> interval = auc_interval(torch.linspace(0, 2, 50), torch.linspace(0, 1, 50))
        >>> 0.5 < interval.low < 0.75 < interval.high < 0.9
        True
    """
    _check_paired(a, b)
    _check(level)
    shares = resampled_shares(len(a), resamples, seed)
    areas = ((shares @ _above(a, b)) * shares).sum(dim=1)
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64, device="cpu")
    return Interval(*areas.quantile(ends).tolist())


def _above(a: Tensor, b: Tensor) -> Float[Tensor, "n m"]:
    """1 where a is above b, 1/2 where they are equal."""
    return ((a[:, None] > b).cpu().double() + (a[:, None] >= b).cpu().double()) / 2


def t_quantile(share: float, freedom: int) -> float:
    """Compute a quantile of Student's t, above the median.

    Exact for 1 and 2 degrees of freedom, then to 1 %: the expansion in 1 / freedom of Abramowitz
    and Stegun 1964, 26.7.5.
    """
    if freedom == 1:
        return float(
            torch.tan(torch.tensor(torch.pi * (share - 0.5), dtype=torch.float64, device="cpu"))
        )
    if freedom == 2:
        return (2 * share - 1) / sqrt(2 * share * (1 - share))
    z = NORMAL.inv_cdf(share)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom ** (order + 1) for order, term in enumerate(terms))


def _check_paired(a: Tensor, b: Tensor) -> None:
    if a.shape != b.shape or a.ndim != 1 or len(a) < 2:
        raise ValueError(
            "expected two scores of the same images, at least 2, "
            f"got shapes {tuple(a.shape)} and {tuple(b.shape)}"
        )


def _check(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")


@lru_cache(maxsize=1)  # many differences of the same images are compared one after another
def resampled_shares(n: int, resamples: int, seed: int) -> Float[Tensor, "r n"]:
    """Count how often each image is drawn when n are drawn with replacement, over n."""
    generator = torch.Generator("cpu").manual_seed(seed)
    drawn = torch.randint(n, (resamples, n), generator=generator, device="cpu")
    counts = torch.zeros(resamples, n, dtype=torch.float64, device="cpu")
    return counts.scatter_add_(1, drawn, torch.ones_like(counts)) / n
