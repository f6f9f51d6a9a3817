"""Removal of evidence: how a network's logits change as cells of the image are kept or removed.

Axes: b batch, c channels, H height, W width, h x w = n cells, m cells kept, s steps, k classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms.functional import gaussian_blur

from vision_attn.arguments import check_fields
from vision_attn.inference import infer
from vision_attn.types import Images

__all__ = [
    "BlurFill",
    "DroppedTokens",
    "FilledCells",
    "MeanFill",
    "NoiseFill",
    "Removal",
    "softmax",
]

Fill = Callable[[Tensor], Tensor]  # images -> what stands in the place of removed pixels
PIXELS = 2**20  # of a forward pass on a CPU, at most: its features then fit the caches better


def unchanged(output: Tensor) -> Tensor:
    """Return logits as they are."""
    return output


@dataclass(frozen=True)
class MeanFill:
    """Fill of the data's mean colour: 0, as images are normalised.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import MeanFill
        >>> bool((MeanFill()(torch.rand(2, 3, 4, 4)) == 0).all())
        True
    """

    def __call__(self, images: Images) -> Images:
        return torch.zeros_like(images)


@dataclass(frozen=True)
class BlurFill:
    """Fill of the image itself, blurred by a Gaussian, whose border shows no sharp edge.

    Args:
        sigma: The Gaussian's standard deviation in pixels.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import BlurFill
        >>> BlurFill(sigma=2.0)(torch.rand(2, 3, 8, 8)).shape
        torch.Size([2, 3, 8, 8])
    """

    sigma: float = 5.0

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, images: Images) -> Images:
        side = min(2 * int(2 * self.sigma) + 1, 2 * min(images.shape[2:]) - 1)
        return gaussian_blur(images, [side, side], [self.sigma, self.sigma])


@dataclass(frozen=True)
class NoiseFill:
    """Fill of Gaussian noise with each image's own mean and deviation.

    Args:
        seed: Of the noise, which is drawn once for all images.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import NoiseFill
        >>> images = torch.rand(2, 3, 8, 8)
        >>> bool((NoiseFill(seed=1)(images) == NoiseFill(seed=1)(images)).all())
        True
    """

    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, images: Images) -> Images:
        generator = torch.Generator("cpu").manual_seed(self.seed)
        noise = torch.randn(
            images.shape[1:], generator=generator, dtype=torch.float32, device="cpu"
        ).to(images)
        mean, std = (stat(images, dim=(2, 3), keepdim=True) for stat in (torch.mean, torch.std))
        return mean + std * noise


class Removal(ABC):
    """Base class: a way to take cells of a grid over the image away from a network.

    Attributes:
        grid: Rows and columns of cells.
        least: The fewest cells that can be kept.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import Deletion, Removal
        >>> class CountCells(Removal):
        ...     grid, least = (2, 2), 0
        ...     def logits(self, images, order, counts):
        ...         kept = torch.tensor(counts).float()
        ...         return torch.stack([kept, -kept], dim=1).expand(len(images), -1, -1)
        >>> metric = Deletion(CountCells(), steps=4)
        >>> metric.update(torch.rand(1, 3, 8, 8), torch.rand(1, 2, 2), torch.tensor([0]))
        >>> metric.curves()[0, -1]  # nothing left: one class is as likely as the other
        tensor(0.5000)
    """

    grid: tuple[int, int]
    least: int
    """The fewest cells that can be kept."""

    @abstractmethod
    def logits(
        self, images: Images, order: Int[Tensor, "b n"], counts: Sequence[int]
    ) -> Float[Tensor, "b s k"]:
        """Compute the logits where only the first cells of each image's order are kept.

        Args:
            images: Normalised, (b c h w).
            order: Cell numbers, row by row, (b n), first to be kept first.
            counts: How many cells are kept, one number a step.

        Returns:
            The logits, (b s k).
        """

    def numbers(
        self,
        images: Images,
        order: Int[Tensor, "b n"],
        counts: Sequence[int],
        target: Callable[[Any], Tensor],
    ) -> Float[Tensor, "b s"]:
        """Compute what a function makes of the output, in the place of the logits.

        Args:
            images: As in `logits`.
            order: As in `logits`.
            counts: As in `logits`.
            target: From the output for any images to one number an image. If it has a method `at`,
                it is called as target.at(numbers of the images)(output).

        Returns:
            The numbers, (b s).
        """
        logits = self.logits(images, order, counts)
        which = torch.arange(len(images), device=images.device).repeat_interleave(len(counts))
        return of_images(target, which)(logits.flatten(0, 1)).unflatten(0, logits.shape[:2])


def check_removal(removal: Removal) -> None:
    """Check the fields of a removal; ValueError for a grid without cells."""
    check_fields(removal)
    if min(removal.grid) < 1:
        raise ValueError(f"grid must be (rows, columns), each at least 1, got {removal.grid}")


@dataclass(frozen=True)
class FilledCells(Removal):
    """Removal by a fill, whatever the network: removed cells show it instead of the image.

    Args:
        forward: images -> logits, or whatever else `read` makes logits of.
        grid: Rows and columns of cells.
        fill: images -> images, `MeanFill()` unless given.
        rows: Images a forward pass at most, steps and images together; on a CPU fewer where they
            are large.
        memory_format: In which the network gets the images.
        read: What makes logits of the output; unless given it is the logits.

    Raises:
        ValueError: The grid has no cells.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import FilledCells, MeanFill
        >>> network = lambda images: images.sum((2, 3))  # three classes: red, green, blue
        >>> removal = FilledCells(network, grid=(2, 2), fill=MeanFill())
        >>> order = torch.tensor([[3, 2, 1, 0]])
        >>> removal.logits(torch.ones(1, 3, 4, 4), order, counts=[0, 1, 4])[0, :, 0]
        tensor([ 0.,  4., 16.])
    """

    forward: Callable[[Tensor], Any]
    grid: tuple[int, int]
    fill: Fill = field(default_factory=MeanFill)
    rows: int = 256
    memory_format: torch.memory_format = torch.contiguous_format
    read: Callable[[Any], Tensor] = unchanged
    least = 0

    def __post_init__(self) -> None:
        check_removal(self)

    def logits(
        self, images: Images, order: Int[Tensor, "b n"], counts: Sequence[int]
    ) -> Float[Tensor, "b s k"]:
        logits = [self.read(output) for _, output in self._outputs(images, order, counts)]
        return torch.cat(logits).unflatten(0, (len(images), len(counts)))

    def numbers(
        self,
        images: Images,
        order: Int[Tensor, "b n"],
        counts: Sequence[int],
        target: Callable[[Any], Tensor],
    ) -> Float[Tensor, "b s"]:
        """Compute what a function makes of whatever `forward` gives; see `Removal`."""
        outputs = self._outputs(images, order, counts)
        numbers = [of_images(target, which)(output) for which, output in outputs]
        return torch.cat(numbers).unflatten(0, (len(images), len(counts)))

    def _outputs(
        self, images: Images, order: Int[Tensor, "b n"], counts: Sequence[int]
    ) -> Iterator[tuple[Int[Tensor, " r"], Any]]:
        """Yield the numbers of images, and the output for them, some steps at a time."""
        fill = self.fill(images)
        rank = order.argsort(dim=1).view(-1, 1, *self.grid)
        rank = F.interpolate(rank.float(), size=images.shape[2:], mode="nearest-exact")
        budgets = torch.tensor(counts, dtype=torch.long, device=images.device).repeat(len(images))
        which = torch.arange(len(images), device=images.device).repeat_interleave(len(counts))
        rows = self.rows
        if images.device.type == "cpu":
            rows = max(1, min(rows, PIXELS // images.shape[2:].numel()))
        for i, count in zip(which.split(rows), budgets.split(rows), strict=True):
            shown = torch.where(rank[i] < count.view(-1, 1, 1, 1), images[i], fill[i])
            yield i, infer(self.forward, shown.contiguous(memory_format=self.memory_format))


@dataclass(frozen=True)
class DroppedTokens(Removal):
    """Removal of the patches' tokens: a shorter sequence, and no fill to mislead the network.

    The same logits as masking them out of every attention. At least one patch stays.

    Args:
        forward_kept_tokens: (images, indices of the patches kept (b m)) -> logits, or whatever else
            `read` makes logits of, such as a `ViT`'s method of that name.
        grid: Rows and columns of patches.
        read: What makes logits of the output; unless given it is the logits.

    Raises:
        ValueError: The grid has no cells.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import DroppedTokens
        >>> def forward_kept_tokens(images, kept):  # two classes: few patches, many patches
        ...     patches = kept.shape[1] * torch.ones(len(images), 1)
        ...     return torch.cat([4 - patches, patches], dim=1)
        >>> removal = DroppedTokens(forward_kept_tokens, grid=(2, 2))
        >>> order = torch.tensor([[3, 2, 1, 0]])
        >>> removal.logits(torch.rand(1, 3, 8, 8), order, counts=[1, 4])
        tensor([[[3., 1.],
                 [0., 4.]]])
    """

    forward_kept_tokens: Callable[[Tensor, Tensor], Tensor]
    grid: tuple[int, int]
    read: Callable[[Any], Tensor] = unchanged
    least = 1

    def __post_init__(self) -> None:
        check_removal(self)

    def outputs(
        self, images: Images, order: Int[Tensor, "b n"], counts: Sequence[int]
    ) -> list[Any]:
        """Run the network with some of the tokens; arguments as in `logits`.

        Returns:
            What it gives for each number of kept tokens.
        """
        return [infer(self.forward_kept_tokens, images, order[:, :count]) for count in counts]

    def logits(
        self, images: Images, order: Int[Tensor, "b n"], counts: Sequence[int]
    ) -> Float[Tensor, "b s k"]:
        outputs = self.outputs(images, order, counts)
        return torch.stack(list(map(self.read, outputs)), dim=1)

    def numbers(
        self,
        images: Images,
        order: Int[Tensor, "b n"],
        counts: Sequence[int],
        target: Callable[[Any], Tensor],
    ) -> Float[Tensor, "b s"]:
        """Compute what a function makes of whatever the network gives; see `Removal`."""
        outputs = self.outputs(images, order, counts)
        return torch.stack(list(map(target, outputs)), dim=1)


def softmax(logits: Float[Tensor, "*b k"]) -> Float[Tensor, "*b k"]:
    """Make probabilities of logits of classes of which one is there."""
    return logits.softmax(dim=-1)


def of_images(target: Callable[[Any], Tensor], which: Int[Tensor, " r"]) -> Callable[[Any], Tensor]:
    """Return the function for these images, where it is another for each."""
    select = getattr(target, "at", None)
    return target if select is None else select(which)
