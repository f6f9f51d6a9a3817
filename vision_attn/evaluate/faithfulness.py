"""Faithfulness: take away what the map shows, or leave only that, and see what the network does.

Axes: b batch, c channels, h, w of the image, y, x of the map, n cells, s steps + 1, k classes,
N images in all.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics.utilities import dim_zero_cat

from vision_attn.evaluate.per_image import (
    ImageScore,
    Maps,
    at_size,
    check_count,
    check_maps,
    class_indices,
    from_0_to_1,
)
from vision_attn.evaluate.removal import Fill, MeanFill, Removal, softmax
from vision_attn.inference import infer
from vision_attn.types import Images

__all__ = [
    "AverageDrop",
    "AverageIncrease",
    "Deletion",
    "Insertion",
    "MaskedProbability",
    "NegativePerturbation",
    "Perturbation",
    "PositivePerturbation",
    "RemovalCurve",
    "target_numbers",
]


def target_numbers(
    removal: Removal,
    images: Images,
    order: Int[Tensor, "b n"],
    counts: Sequence[int],
    target: Any,
    of_logits: Callable[[Tensor], Tensor],
) -> tuple[Float[Tensor, "b s"], Float[Tensor, "b s"]]:
    """Compute the target's number where only some cells are kept, and whether it is predicted.

    Args:
        removal: How cells are taken away.
        images: Normalised, (b, c, h, w).
        order: The cells of each image, first to be kept first.
        counts: How many are kept, one a step.
        target: A class, one an image, or a function of the output.
        of_logits: What makes a class's number of the logits.

    Returns:
        The numbers; and 1 where the class is predicted, 0 where not, NaN of a function.
    """
    if callable(target):
        numbers = infer(removal.numbers, images, order, counts, target).float()
        return numbers, torch.full_like(numbers, torch.nan)
    logits = infer(removal.logits, images, order, counts).float()
    classes = class_indices(target, len(images), logits.shape[-1]).to(logits.device)
    repeated = classes[:, None, None].expand(-1, len(counts), 1)
    numbers = of_logits(logits).gather(2, repeated)[..., 0]
    return numbers, (logits.argmax(dim=-1) == classes[:, None]).float()


class RemovalCurve(ImageScore):
    """Base class: the target's curve as cells are removed or inserted in the map's order.

    Records, at each of `steps` + 1 equal fractions x from 0 to 1, the probability of the target
    class and whether it is the predicted one; of a target that is no class, the number itself.

    Metrics that take the same steps share the work in `MetricCollection(...,
    compute_groups=[["Deletion", "PositivePerturbation"], ...])`.

    Args:
        removal: How cells are taken away, `FilledCells` or `DroppedTokens`.
        steps: How many equal steps.
        seed: Of the random order of cells of equal value, so that a constant map scores as a random
            one.
        probabilities: What makes them of logits, a softmax unless given.
        options: torchmetrics' own.

    Raises:
        ValueError: `steps` is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import FilledCells
        >>> from vision_attn.evaluate.faithfulness import RemovalCurve
        >>> class LargestFirst(RemovalCurve):
        ...     best_first, higher_is_better = True, True
        >>> network = lambda images: images.mean((2, 3))  # three classes: red, green, blue
        >>> metric = LargestFirst(FilledCells(network, grid=(4, 4)), steps=4)
        >>> metric.update(torch.rand(2, 3, 8, 8), torch.rand(2, 4, 4), torch.tensor([0, 1]))
        >>> metric.curves().shape
        torch.Size([2, 5])
    """

    best_first: ClassVar[bool]
    """Whether the map's largest cells are the first to be kept (insertion) or the last."""
    of_classes: ClassVar[bool] = False
    """Whether the target must be a class."""

    states = ("numbers", "hits")
    numbers: list[Tensor]
    hits: list[Tensor]

    def __init__(
        self,
        removal: Removal,
        steps: int = 16,
        seed: int = 0,
        probabilities: Callable[[Tensor], Tensor] = softmax,
        **options: Any,
    ):
        super().__init__(**options)
        if steps < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        self.removal, self.steps, self.seed = removal, steps, seed
        self.of_logits = probabilities

    def update(self, images: Images, maps: Tensor, target: Any) -> None:
        """Add a batch.

        Args:
            images: Normalised, (b, c, h, w).
            maps: Float, (b, y, x), of any size.
            target: What the maps show: a class, one an image, or a function of the output that
                gives one number an image, such as a target of `vision_attn.methods`.

        Raises:
            ValueError: A map is not finite, there is not a map for each image, or the target is
                none for them.
        """
        check_maps(maps)
        check_count(maps, images)
        order = self.order(maps)
        cells = order.shape[1]
        counts = [max(round(cells * i / self.steps), self.removal.least) for i in self.kept()]
        if callable(target) and self.of_classes:
            raise ValueError(f"{type(self).__name__}: target must be class indices")
        numbers, hits = target_numbers(self.removal, images, order, counts, target, self.of_logits)
        self.numbers.append(numbers)
        self.hits.append(hits)

    def kept(self) -> list[int]:
        """Return how many steps' worth of cells are kept, as x goes from 0 to 1."""
        counts = list(range(self.steps + 1))
        return counts if self.best_first else counts[::-1]

    def order(self, maps: Maps) -> Int[Tensor, "b n"]:
        """Sort the cells of each image, first to be kept first."""
        values = at_size(maps, self.removal.grid).flatten(1)
        generator = torch.Generator("cpu").manual_seed(self.seed)
        shuffled = torch.randperm(values.shape[1], generator=generator, device="cpu").to(
            values.device
        )
        ranked = values[:, shuffled].argsort(dim=1, descending=self.best_first, stable=True)
        return shuffled[ranked]

    def fractions(self) -> Float[Tensor, " s"]:
        """Return x: the share of cells removed, or inserted."""
        return torch.linspace(0, 1, self.steps + 1, dtype=torch.float32, device="cpu")

    def curves(self) -> Float[Tensor, "N s"]:
        """Return y of every image at these fractions."""
        return dim_zero_cat(self.numbers).cpu()

    def per_image(self) -> Float[Tensor, " N"]:
        return torch.trapezoid(self.curves(), self.fractions(), dim=1)


class Deletion(RemovalCurve):
    """Area under the target's probability, the map's largest cells removed first: small is good.

    Petsiuk et al. 2018 (RISE), section 4.2. Arguments: as in `RemovalCurve`.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import Deletion, FilledCells
        >>> network = lambda images: images.mean((2, 3))  # three classes: red, green, blue
        >>> metric = Deletion(FilledCells(network, grid=(4, 4)))
        >>> images = torch.rand(2, 3, 8, 8)
        >>> metric.update(images, maps=images[:, 0], target=0)
        >>> metric.per_image().shape, bool(metric.compute() < 1)
        (torch.Size([2]), True)
    """

    best_first = False
    higher_is_better = False


class Insertion(RemovalCurve):
    """Area under the target's probability, the map's largest cells inserted first: large is good.

    Petsiuk et al. 2018 (RISE), section 4.2. Arguments: as in `RemovalCurve`.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import BlurFill, FilledCells, Insertion
        >>> network = lambda images: images.mean((2, 3))  # three classes: red, green, blue
        >>> metric = Insertion(FilledCells(network, grid=(4, 4), fill=BlurFill(sigma=2.0)))
        >>> metric.update(torch.rand(2, 3, 8, 8), torch.rand(2, 4, 4), torch.tensor([0, 2]))
        >>> metric.per_image().shape
        torch.Size([2])
    """

    best_first = True
    higher_is_better = True


class Perturbation(RemovalCurve):
    """Base class: mean accuracy while 0 to 90 % of the cells are removed.

    The area under the curve over its width, 0.9; with steps = 10 at exactly the fractions of Chefer
    et al. 2021, section 4. Where 0.9 lies between two steps, the curve ends on the straight line
    between them. Arguments: as in `RemovalCurve`; the target must be a class.

    Examples:
        >>> from vision_attn.evaluate import FilledCells
        >>> from vision_attn.evaluate.faithfulness import Perturbation
        >>> metric = Perturbation(FilledCells(lambda images: images.mean((2, 3)), (4, 4)), steps=4)
        >>> metric.fractions()
        tensor([0.0000, 0.2500, 0.5000, 0.7500, 0.9000])
    """

    of_classes = True

    def fractions(self) -> Float[Tensor, " s"]:
        below = super().fractions()[: self._below()]
        return torch.cat([below, below.new_tensor([0.9])])

    def curves(self) -> Float[Tensor, "N s"]:
        hits = dim_zero_cat(self.hits).cpu()
        removed = hits.flip(1) if self.best_first else hits
        below = self._below()
        share = 0.9 * self.steps - (
            below - 1
        )  # of the way from the last step below 0.9 to the next
        last = removed[:, below - 1].lerp(removed[:, below], share)
        return torch.cat([removed[:, :below], last[:, None]], dim=1)

    def per_image(self) -> Float[Tensor, " N"]:
        return torch.trapezoid(self.curves(), self.fractions(), dim=1) / 0.9

    def _below(self) -> int:
        """Count the fractions below 0.9."""
        return ceil(0.9 * self.steps - 1e-9)


class PositivePerturbation(Perturbation):
    """Mean accuracy as the map's largest cells are removed first: small is good.

    Chefer et al. 2021, section 4. Arguments: as in `RemovalCurve`.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import FilledCells, PositivePerturbation
        >>> metric = PositivePerturbation(FilledCells(lambda images: images.mean((2, 3)), (4, 4)))
        >>> metric.update(torch.rand(2, 3, 8, 8), torch.rand(2, 4, 4), torch.tensor([0, 2]))
        >>> metric.per_image().shape
        torch.Size([2])
    """

    best_first = False
    higher_is_better = False


class NegativePerturbation(Perturbation):
    """Mean accuracy as the map's smallest cells are removed first: large is good.

    Chefer et al. 2021, section 4. Arguments: as in `RemovalCurve`.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import FilledCells, NegativePerturbation
        >>> metric = NegativePerturbation(FilledCells(lambda images: images.mean((2, 3)), (4, 4)))
        >>> metric.update(torch.rand(2, 3, 8, 8), torch.rand(2, 4, 4), torch.tensor([0, 2]))
        >>> metric.per_image().shape
        torch.Size([2])
    """

    best_first = True
    higher_is_better = True


class MaskedProbability(ImageScore):
    """Base class: the target's probability for the image, and for what a map lets through of it.

    The map, scaled from 0 to 1 and enlarged, mixes the image with the fill. Chattopadhyay et al.
    2018 (Grad-CAM++), section 4.1.

    Args:
        forward: images -> logits.
        fill: What stands where the map lets nothing through; None: `MeanFill()`.
        probabilities: What makes them of logits, a softmax unless given.
        options: torchmetrics' own.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate.faithfulness import MaskedProbability
        >>> class Kept(MaskedProbability):
        ...     def per_image(self):
        ...         return torch.cat(self.masked) / torch.cat(self.whole)
        >>> metric = Kept(lambda images: images.mean((2, 3)))
        >>> metric.update(torch.ones(1, 3, 8, 8), torch.rand(1, 4, 4), torch.tensor([0]))
        >>> metric.compute()  # a grey image: every class keeps its third
        tensor(1.)
    """

    states = ("whole", "masked")
    whole: list[Tensor]
    masked: list[Tensor]

    def __init__(
        self,
        forward: Callable[[Tensor], Tensor],
        fill: Fill | None = None,
        probabilities: Callable[[Tensor], Tensor] = softmax,
        **options: Any,
    ):
        super().__init__(**options)
        self.network = partial(forward)  # no submodule: the metric does not own the network
        self.fill = fill or MeanFill()
        self.of_logits = probabilities

    def update(self, images: Images, maps: Tensor, target: Any) -> None:
        """Add a batch.

        Args:
            images: Normalised, (b, c, h, w).
            maps: Float, (b, y, x), of any size.
            target: The class whose evidence the maps show, or one an image.

        Raises:
            ValueError: A map is not finite, there is not a map for each image, or the target is no
                class.
        """
        check_maps(maps)
        check_count(maps, images)
        size = images.shape[2], images.shape[3]
        share = from_0_to_1(at_size(maps, size))[:, None].to(images.dtype)
        mixed = share * images + (1 - share) * self.fill(images)
        for numbers, inputs in ((self.whole, images), (self.masked, mixed)):
            logits = infer(self.network, inputs).float()
            classes = class_indices(target, len(images), logits.shape[1]).to(logits.device)
            numbers.append(self.of_logits(logits).gather(1, classes[:, None])[:, 0])


class AverageDrop(MaskedProbability):
    """Average drop: mean max(0, p - p_masked) / p, small is good.

    Chattopadhyay et al. 2018, section 4.1. Arguments: as in `MaskedProbability`.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import AverageDrop
        >>> metric = AverageDrop(lambda images: images.mean((2, 3)))
        >>> metric.update(torch.ones(1, 3, 8, 8), torch.rand(1, 4, 4), torch.tensor([0]))
        >>> metric.compute()
        tensor(0.)
    """

    higher_is_better = False

    def per_image(self) -> Float[Tensor, " N"]:
        whole, masked = dim_zero_cat(self.whole), dim_zero_cat(self.masked)
        return (whole - masked).relu() / whole.clamp(min=1e-12)


class AverageIncrease(MaskedProbability):
    """Average increase: the share of images with p_masked > p, large is good.

    Chattopadhyay et al. 2018, section 4.1. Arguments: as in `MaskedProbability`.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import AverageIncrease
        >>> red_corner = torch.zeros(1, 3, 8, 8)
        >>> red_corner[0, 0, :4, :4], red_corner[0, 1, 4:, 4:] = 1, 1
        >>> metric = AverageIncrease(lambda images: images.mean((2, 3)))
        >>> metric.update(red_corner, red_corner[:, 0], torch.tensor([0]))
        >>> metric.compute()
        tensor(1.)
    """

    higher_is_better = True

    def per_image(self) -> Float[Tensor, " N"]:
        return (dim_zero_cat(self.masked) > dim_zero_cat(self.whole)).float()
