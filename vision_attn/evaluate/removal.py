"""Taking evidence away: how a network's logits change as cells of the image are kept or removed.

Axes: b batch, c channels, H height, W width, h x w = n cells, m cells kept, s steps, k classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms.functional import gaussian_blur

from vision_attn.types import Images, Logits

Fill = Callable[[Tensor], Tensor]  # images -> what stands in the place of removed pixels


@dataclass(frozen=True)
class MeanFill:
    """The mean colour of the data: 0, as images are normalised."""

    def __call__(self, images: Images) -> Images:
        return torch.zeros_like(images)


@dataclass(frozen=True)
class BlurFill:
    """The image blurred by a Gaussian of `sigma` pixels: no sharp border gives the removal away."""

    sigma: float = 5.0

    def __call__(self, images: Images) -> Images:
        side = min(2 * int(2 * self.sigma) + 1, 2 * min(images.shape[2:]) - 1)
        return gaussian_blur(images, [side, side], [self.sigma, self.sigma])


@dataclass(frozen=True)
class NoiseFill:
    """Gaussian noise with each image's own mean and deviation; the same draw for every image."""

    seed: int = 0

    def __call__(self, images: Images) -> Images:
        generator = torch.Generator().manual_seed(self.seed)
        noise = torch.randn(images.shape[1:], generator=generator).to(images)
        mean, std = (stat(images, dim=(2, 3), keepdim=True) for stat in (torch.mean, torch.std))
        return mean + std * noise


class Removal(ABC):
    """A way to take cells of a grid over the image away from a network."""

    grid: tuple[int, int]
    least: int
    """The fewest cells that can be kept."""

    @abstractmethod
    def logits(
        self, images: Images, order: Int[Tensor, "b n"], counts: Sequence[int]
    ) -> Float[Tensor, "b s k"]:
        """The logits where only the first `count` cells of each image's `order` are kept."""


@dataclass(frozen=True)
class FilledCells(Removal):
    """Removed cells show the fill instead of the image, whatever the network.

    forward: images -> logits. rows: images a forward pass at most, steps and images together.
    """

    forward: Callable[[Tensor], Tensor]
    grid: tuple[int, int]
    fill: Fill = field(default_factory=MeanFill)
    rows: int = 256
    least = 0

    def logits(
        self, images: Images, order: Int[Tensor, "b n"], counts: Sequence[int]
    ) -> Float[Tensor, "b s k"]:
        fill = self.fill(images)
        rank = order.argsort(dim=1).view(-1, 1, *self.grid)
        rank = F.interpolate(rank.float(), size=images.shape[2:], mode="nearest-exact")
        kept = torch.tensor(counts, device=images.device).repeat(len(images))
        which = torch.arange(len(images), device=images.device).repeat_interleave(len(counts))
        logits = [
            self.forward(torch.where(rank[i] < count.view(-1, 1, 1, 1), images[i], fill[i]))
            for i, count in zip(which.split(self.rows), kept.split(self.rows), strict=True)
        ]
        return torch.cat(logits).unflatten(0, (len(images), len(counts)))


@dataclass(frozen=True)
class DroppedTokens(Removal):
    """The removed patches' tokens do not exist: a shorter sequence, and no fill to be fooled by.

    The same logits as masking them out of every attention. forward_kept_tokens: (images, indices
    of the patches kept (b m)) -> logits. At least one patch stays.
    """

    forward_kept_tokens: Callable[[Tensor, Tensor], Tensor]
    grid: tuple[int, int]
    least = 1

    def logits(
        self, images: Images, order: Int[Tensor, "b n"], counts: Sequence[int]
    ) -> Float[Tensor, "b s k"]:
        return torch.stack(
            [self.forward_kept_tokens(images, order[:, :count]) for count in counts], dim=1
        )


def probability(logits: Logits, targets: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
    """softmax(logits) of each image's target."""
    return logits.float().softmax(dim=-1).gather(1, targets[:, None])[:, 0]
