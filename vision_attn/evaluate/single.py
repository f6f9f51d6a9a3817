"""Faithfulness without a curve: remove one part of an image at a time, the rest stays.

Axes: b batch, y, x of a map, h x w = n cells of the removal, p parts, k classes.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics.utilities import dim_zero_cat

from vision_attn.evaluate.faithfulness import target_numbers
from vision_attn.evaluate.per_image import ImageScore, at_size, check_count, check_maps
from vision_attn.evaluate.removal import Removal, softmax, unchanged
from vision_attn.evaluate.sanity import spearman
from vision_attn.types import Images

__all__ = ["SaCo", "SingleDeletion", "SingleRemoval"]


class SingleRemoval(ImageScore):
    """Base class: each part of an image is removed alone, and the target's drop compared with it.

    Records the sum of the map over each part, and by how much the target falls without it, both
    divided by the part's cells, as not all parts may have as many. A subclass refuses, by
    ValueError, a removal of fewer cells than there are parts.

    Args:
        removal: How cells are taken away, `FilledCells` or `DroppedTokens`.
        probabilities: What makes the target's number of the logits, a softmax unless given.
        options: torchmetrics' own.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import FilledCells
        >>> from vision_attn.evaluate.single import SingleRemoval
        >>> class Halves(SingleRemoval):
        ...     def parts(self, values):
        ...         return torch.tensor([[0, 1]]).expand(len(values), -1), 2
        ...     def per_image(self):
        ...         return torch.cat(self.drops)[:, 0]
        >>> metric = Halves(FilledCells(lambda images: images.mean((2, 3)), grid=(1, 2)))
        >>> metric.update(torch.ones(1, 3, 4, 8), torch.rand(1, 1, 2), torch.tensor([0]))
        >>> metric.sums[0].shape
        torch.Size([1, 2])
    """

    states = ("sums", "drops")
    sums: list[Tensor]
    drops: list[Tensor]
    higher_is_better = True

    def __init__(
        self,
        removal: Removal,
        probabilities: Callable[[Tensor], Tensor] = softmax,
        **options: Any,
    ):
        super().__init__(**options)
        self.removal, self.of_logits = removal, probabilities

    @abstractmethod
    def parts(self, values: Float[Tensor, "b n"]) -> tuple[Int[Tensor, "b n"], int]:
        """Return the number of the part that each cell is in, and how many parts there are."""

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
        values = at_size(maps, self.removal.grid).flatten(1)
        parts, count = self.parts(values)
        whole = self._numbers(images, torch.zeros_like(parts), 0, target)
        drops, sums = [], []
        for part in range(count):
            inside = parts == part
            size = int(inside[0].sum())
            drops.append((whole - self._numbers(images, inside, size, target)) / size)
            sums.append((values * inside).sum(1) / size)
        self.sums.append(torch.stack(sums, 1).float())
        self.drops.append(torch.stack(drops, 1).float())

    def _numbers(
        self, images: Images, removed: Tensor, size: int, target: Any
    ) -> Float[Tensor, " b"]:
        """The target's number without some cells, as many in each image."""
        order = removed.to(torch.uint8).argsort(dim=1, stable=True)
        counts = [max(order.shape[1] - size, self.removal.least)]
        numbers, _ = target_numbers(self.removal, images, order, counts, target, self.of_logits)
        return numbers[:, 0]


class SaCo(SingleRemoval):
    """Salience-guided faithfulness coefficient, from -1 to 1: large is good.

    Wu et al., CVPR 2024 (arXiv:2404.01415), algorithm 1. The cells are sorted by the map and cut
    into groups of equal size, each removed alone. A pair of groups counts for the map by the
    difference of their sums where the group with the larger one has at least the larger drop of the
    target's probability, and against it where not. A constant map has 0.

    Args:
        removal: How cells are taken away, `FilledCells` or `DroppedTokens`.
        groups: How many.
        seed: Of the order of equal cells.
        probabilities: What makes them of logits, a softmax unless given.
        options: torchmetrics' own.

    Raises:
        ValueError: There are fewer than 2 groups, or more than cells.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import FilledCells, SaCo
        >>> network = lambda images: 9 * images.mean((2, 3))  # three classes: red, green, blue
        >>> images = torch.zeros(1, 3, 8, 8)
        >>> images[:, 0] = torch.arange(64.0).view(8, 8) / 64  # ever more red
        >>> metric = SaCo(FilledCells(network, grid=(4, 4)), groups=4)
        >>> metric.update(images, images[:, 0], 0)
        >>> metric.compute()
        tensor(1.)
    """

    GROUPS: ClassVar[int] = 10

    def __init__(
        self,
        removal: Removal,
        groups: int = GROUPS,
        seed: int = 0,
        probabilities: Callable[[Tensor], Tensor] = softmax,
        **options: Any,
    ):
        super().__init__(removal, probabilities, **options)
        cells = removal.grid[0] * removal.grid[1]
        if not 2 <= groups <= cells:
            raise ValueError(f"groups must be from 2 to {cells}, the cells, got {groups}")
        self.groups, self.seed = groups, seed

    def parts(self, values: Float[Tensor, "b n"]) -> tuple[Int[Tensor, "b n"], int]:
        n = values.shape[1]
        generator = torch.Generator("cpu").manual_seed(self.seed)
        shuffled = torch.randperm(n, generator=generator, device="cpu").to(values.device)
        order = shuffled[values[:, shuffled].argsort(dim=1, descending=True, stable=True)]
        numbers = torch.arange(n, device=values.device) * self.groups // n
        return torch.empty_like(order).scatter_(1, order, numbers.expand_as(order)), self.groups

    def per_image(self) -> Float[Tensor, " n"]:
        sums, drops = dim_zero_cat(self.sums).double(), dim_zero_cat(self.drops)
        first, second = torch.triu_indices(self.groups, self.groups, 1, device=sums.device)
        weights = sums[:, first] - sums[:, second]
        signs = torch.where(drops[:, first] >= drops[:, second], 1.0, -1.0)
        total = weights.abs().sum(1)
        score = (weights * signs).sum(1) / total.where(total > 0, 1)
        return score.float()


class SingleDeletion(SingleRemoval):
    """Rank correlation of a map with the drop of the logit when a part of the image is removed.

    The single-deletion score of Hesse et al., NeurIPS 2024 (arXiv:2407.11910): the image is cut
    into parts, each removed alone, and Spearman's correlation is taken between the sums of the map
    and the drops of the target's logit. From -1 to 1: large is good. It is the paper's in-domain
    score where the network has learned with parts removed in the same way, as with
    `ViT(patch_drop=...)` and `DroppedTokens`; for others a removed part is a foreign input. A
    constant map has 0.

    Args:
        removal: How cells are taken away, `FilledCells` or `DroppedTokens`.
        parts_a_side: Rows of parts, and columns.
        options: torchmetrics' own.

    Raises:
        ValueError: `parts_a_side` is below 1, or above the removal's rows or columns of cells, or
            there is one cell alone.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import FilledCells, SingleDeletion
        >>> network = lambda images: images.mean((2, 3))  # three classes: red, green, blue
        >>> metric = SingleDeletion(FilledCells(network, grid=(8, 8)))
        >>> images = torch.rand(2, 3, 8, 8)
        >>> metric.update(images, images[:, 0], 0)
        >>> metric.compute()
        tensor(1.)
    """

    PARTS: ClassVar[int] = 4

    def __init__(self, removal: Removal, parts_a_side: int = PARTS, **options: Any):
        super().__init__(removal, unchanged, **options)
        most = min(removal.grid)
        if removal.grid == (1, 1):
            raise ValueError("removal.grid must have at least two cells, to compare, got (1, 1)")
        if not 1 <= parts_a_side <= most:
            raise ValueError(
                f"parts_a_side must be from 1 to {most}, the cells a side, got {parts_a_side}"
            )
        self.parts_a_side = parts_a_side

    def parts(self, values: Float[Tensor, "b n"]) -> tuple[Int[Tensor, "b n"], int]:
        side = self.parts_a_side
        rows, columns = (
            torch.arange(cells, device=values.device) * side // cells for cells in self.removal.grid
        )
        numbers = (rows[:, None] * side + columns).flatten()
        return numbers.expand(len(values), -1), side * side

    def per_image(self) -> Float[Tensor, " n"]:
        return spearman(dim_zero_cat(self.sums)[:, None], dim_zero_cat(self.drops)[:, None])
