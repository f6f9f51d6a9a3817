"""Sparseness: how few places a map points at.

Axes: b batch, y, x of the map, n = y x.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.evaluate.per_image import ImageScore, Maps, check_maps

__all__ = ["Sparseness", "gini"]


class Sparseness(ImageScore):
    """Gini index of the values' sizes: 0 all equal, 1 - 1/n all in one place; noise gives 1/3.

    1 - 2 sum_k a_k / |a|_1 (n - k + 1/2) / n with a_1 <= ... <= a_n, Hurley and Rickard 2009,
    Chalasani et al. 2020. It says how readable a map is, not whether it is right.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import Sparseness
        >>> metric = Sparseness()
        >>> metric.update(torch.tensor([[[0.0, 0.0], [0.0, 8.0]]]))
        >>> metric.compute()
        tensor(0.7500)
    """

    higher_is_better = True

    def update(self, maps: Maps) -> None:
        """Add a batch of maps.

        Args:
            maps: Float, (b y x), at their own size, as enlarging changes the index.

        Raises:
            ValueError: A map is not finite.
        """
        check_maps(maps)
        self.scores.append(gini(maps.flatten(1).abs()).float().to(maps.device))


def gini(values: Float[Tensor, "b n"]) -> Float[Tensor, " b"]:
    """Compute the Gini index of rows of values that are at least 0; 0 where all are 0.

    In float64 on the CPU: Apple's GPUs have none.
    """
    values, n = values.cpu(), values.shape[1]
    rank = torch.arange(1, n + 1, dtype=torch.float64, device="cpu")
    share = values.double().sort(dim=1).values / values.sum(dim=1, keepdim=True).clamp(min=1e-30)
    index = 1 - 2 * (share * (n - rank + 0.5) / n).sum(dim=1)
    return torch.where(values.any(dim=1), index, 0.0)
