"""Is one method better than another, or were the images kind to it?

Axes: n images, r resamples.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Difference(NamedTuple):
    """mean(a - b) and the interval that holds it."""

    mean: float
    low: float
    high: float

    @property
    def certain(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0


def paired_bootstrap(
    a: Tensor,
    b: Tensor,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Difference:
    """The mean of a - b, scores (n) of the same images, with its percentile interval, Efron 1979.

    The same images are drawn for both methods, so what is hard for both cancels.
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


@lru_cache(maxsize=1)  # many differences of the same images are asked for one after another
def resampled_shares(n: int, resamples: int, seed: int) -> Float[Tensor, "r n"]:
    """How often each image is drawn when n are drawn with replacement, over n."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(n, (resamples, n), generator=generator)
    counts = torch.zeros(resamples, n, dtype=torch.float64)
    return counts.scatter_add_(1, drawn, torch.ones_like(counts)) / n
