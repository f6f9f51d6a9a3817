"""Training on mixtures of two images: their labels are mixed in the same shares.

Every Mix pairs neighbours in the batch, which is in random order; the last of an odd batch stays.

Axes: b batch, c channels, h height, w width, k classes, p pairs.
"""

from abc import ABC, abstractmethod

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.data.augment import inside
from vision_attn.data.draws import Draws

__all__ = ["CutMix", "Mix", "Mixup"]

Pixels = Float[Tensor, "b c h w"]
Targets = Float[Tensor, "b k"]


class Mix(nn.Module, ABC):
    """Base class: pairs of images, mixed in shares from Beta(alpha, alpha).

    Args:
        alpha: Of the distribution: near 0 one image has nearly all, 1 is uniform.
        p: The probability that a pair is mixed.

    Raises:
        ValueError: `alpha` is not above 0, or `p` not from 0 to 1.

    Examples:
        >>> from vision_attn.data import Mix
        >>> sorted(Mix.__abstractmethods__)  # what a subclass has to say
        ['weights']
    """

    def __init__(self, alpha: float = 1.0, p: float = 1.0) -> None:
        super().__init__()
        if alpha <= 0 or not 0 <= p <= 1:
            raise ValueError(f"alpha must be positive and p in 0..1, got alpha {alpha} and p {p}")
        self.alpha, self.p = alpha, p
        shares = np.random.default_rng(0).beta(alpha, alpha, 2**14)
        self.quantiles = torch.from_numpy(np.sort(shares)).float()  # of Beta, by sampling

    def forward(self, images: Pixels, targets: Targets, draws: Draws) -> tuple[Pixels, Targets]:
        pairs = len(images) // 2
        if not pairs:
            return images, targets
        u = draws.uniform(4)[: 2 * pairs : 2]
        share = self.quantiles.to(u.device)[(u[:, 0] * len(self.quantiles)).long()]
        share = torch.where(u[:, 1] < self.p, share, 1)
        shares = self.weights(share, u[:, 2:], (images.shape[2], images.shape[3]))
        return _mixed(images, shares), _mixed(targets, shares.mean((1, 2, 3)))

    @abstractmethod
    def weights(
        self, share: Float[Tensor, " p"], u: Float[Tensor, "p 2"], size: tuple[int, int]
    ) -> Float[Tensor, "p 1 #h #w"]:
        """The weight of an image's own pixels in the mixture, about `share` of the whole.

        Args:
            share: What each image of a pair keeps, (p).
            u: Two random numbers in [0, 1) a pair, (p 2).
            size: (h, w) of the images in pixels.
        """


class Mixup(Mix):
    """Images mixed as share * image + (1 - share) * partner (Zhang 2018, arXiv:1710.09412).

    Examples:
        >>> import numpy as np
        >>> import torch
        >>> from vision_attn.data import Mixup
        >>> from vision_attn.data.draws import Draws
        >>> images, targets = torch.rand(4, 3, 8, 8), torch.eye(3)[[0, 1, 2, 0]]
        >>> mixed, shares = Mixup(alpha=0.8)(images, targets, Draws(0, 0, np.arange(4)))
        >>> mixed.shape, shares.sum(1)
        (torch.Size([4, 3, 8, 8]), tensor([1., 1., 1., 1.]))
    """

    def weights(
        self, share: Float[Tensor, " p"], u: Float[Tensor, "p 2"], size: tuple[int, int]
    ) -> Float[Tensor, "p 1 #h #w"]:
        return rearrange(share, "p -> p 1 1 1")


class CutMix(Mix):
    """A box of the partner, 1 - share of the area, pasted over the image (Yun 2019, 1905.04899).

    The box may hang over the image's border; the labels are mixed by what is really covered.

    Examples:
        >>> import numpy as np
        >>> import torch
        >>> from vision_attn.data import CutMix
        >>> from vision_attn.data.draws import Draws
        >>> images, targets = torch.rand(4, 3, 8, 8), torch.eye(3)[[0, 1, 2, 0]]
        >>> mixed, shares = CutMix()(images, targets, Draws(0, 0, np.arange(4)))
        >>> mixed.shape, shares.shape
        (torch.Size([4, 3, 8, 8]), torch.Size([4, 3]))
    """

    def weights(
        self, share: Float[Tensor, " p"], u: Float[Tensor, "p 2"], size: tuple[int, int]
    ) -> Float[Tensor, "p 1 #h #w"]:
        pixels = torch.tensor(size, dtype=torch.long, device=share.device)
        extent = ((1 - share).sqrt()[:, None] * pixels).long()
        first = (u * pixels).long() - extent // 2
        box = torch.cat([first, first + extent], 1)
        return (~inside(box, *size)).float()


def _mixed(
    values: Float[Tensor, "b ..."], shares: Float[Tensor, "p ..."]
) -> Float[Tensor, "b ..."]:
    """kept * own + (1 - kept) * partner's, for both of every pair."""
    pairs = values[: 2 * len(shares)].unflatten(0, (len(shares), 2))
    shares = shares.view(len(shares), 1, *shares.shape[1:], *[1] * (values.ndim - shares.ndim))
    mixed = shares * pairs + (1 - shares) * pairs.flip(1)
    return torch.cat([mixed.flatten(0, 1), values[2 * len(shares) :]])
