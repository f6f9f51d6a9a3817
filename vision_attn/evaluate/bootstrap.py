"""Paired bootstrap: is one method better than another, or were the images kind to it?

Axes: n images, r resamples.
"""

from functools import lru_cache
from typing import NamedTuple
from warnings import warn

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["Difference", "paired_bootstrap"]


class Difference(NamedTuple):
    """Mean difference of two scores, with its confidence interval from `low` to `high`.

    Examples:
        >>> from vision_attn.evaluate import Difference
        >>> Difference(mean=0.1, low=0.02, high=0.2).significant
        True
    """

    mean: float
    low: float
    high: float

    @property
    def significant(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0

    @property
    def certain(self) -> bool:
        """Return `significant`; the old name, to be removed in 0.3."""
        warn("Difference.certain is now significant", DeprecationWarning, stacklevel=2)
        return self.significant


def paired_bootstrap(
    a: Tensor,
    b: Tensor,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Difference:
    """Estimate the mean of a - b and its percentile interval, Efron 1979.

    a, b: two scores (n) of the same n images, at least 2. level: the interval's confidence, between
    0 and 1. resamples: how often n images are drawn with replacement. The same images are drawn for
    both scores, so what is hard for both cancels. ValueError for other shapes or levels.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import paired_bootstrap
        >>> a = torch.linspace(0, 1, 50)
        >>> difference = paired_bootstrap(a + 0.1, a)
        >>> round(difference.mean, 4), difference.significant
        (0.1, True)
    """
    if a.shape != b.shape or a.ndim != 1 or len(a) < 2:
        raise ValueError(
            "expected two scores of the same images, at least 2, "
            f"got shapes {tuple(a.shape)} and {tuple(b.shape)}"
        )
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    difference = (a - b).double().cpu()
    means = resampled_shares(len(difference), resamples, seed) @ difference
    tail = (1 - level) / 2
    low, high = means.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return Difference(float(difference.mean()), low, high)


@lru_cache(maxsize=1)  # many differences of the same images are compared one after another
def resampled_shares(n: int, resamples: int, seed: int) -> Float[Tensor, "r n"]:
    """Count how often each image is drawn when n are drawn with replacement, over n."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(n, (resamples, n), generator=generator)
    counts = torch.zeros(resamples, n, dtype=torch.float64)
    return counts.scatter_add_(1, drawn, torch.ones_like(counts)) / n
