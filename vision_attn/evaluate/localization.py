"""Localisation: does the map lie on the object? Maps against masks of what is evidence.

And, in a mosaic, does the map of a class lie on its photo? Maps against the cell of their class.

Masks are bool (b h w); `ignore`, of the same shape, marks pixels that count on neither side (the
border of a hand-drawn mask). Maps may have any size and are brought to that of the masks.

Axes: b batch, y, x of the map, h, w of the mask, p = h w pixels.
"""

from abc import abstractmethod
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from vision_attn.evaluate.per_image import ImageScore, at_size, check_maps

__all__ = [
    "AboveMean",
    "AveragePrecision",
    "EnergyPointingGame",
    "GridPointingGame",
    "Localization",
    "MeanIoU",
    "PixelAccuracy",
    "Pixels",
    "PointingGame",
]


class Pixels(NamedTuple):
    """The pixels of a batch in rows: the map's value, on the object or not, whether they count.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate.localization import Pixels
        >>> pixels = Pixels(torch.rand(2, 9), torch.rand(2, 9) > 0.5, torch.ones(2, 9).bool())
        >>> pixels.value.shape
        torch.Size([2, 9])
    """

    value: Float[Tensor, "b p"]
    inside: Bool[Tensor, "b p"]
    valid: Bool[Tensor, "b p"]


class Localization(ImageScore):
    """Base class: a score of maps against masks; large is good. A subclass gives it in `score`.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate.localization import Localization
        >>> class MeanInside(Localization):
        ...     def score(self, pixels):
        ...         return (pixels.value * pixels.inside).sum(1) / pixels.inside.sum(1)
        >>> metric = MeanInside()
        >>> metric.update(torch.full((2, 4, 4), 0.5), torch.ones(2, 8, 8).bool())
        >>> metric.compute()
        tensor(0.5000)
    """

    higher_is_better = True

    def update(self, maps: Tensor, masks: Tensor, ignore: Tensor | None = None) -> None:
        """Add a batch.

        Args:
            maps: Float, (b y x), of any size.
            masks: Bool, (b h w): what is evidence.
            ignore: Bool, (b h w): pixels that count on neither side.

        Raises:
            ValueError: These do not match, a map is not finite or an object is absent.
        """
        self.scores.append(self.score(comparable_pixels(maps, masks, ignore)).float())

    @abstractmethod
    def score(self, pixels: Pixels) -> Float[Tensor, " b"]:
        """Compute one number an image."""


class PointingGame(Localization):
    """Pointing game: 1 where the map's maximum lies on the object, else 0, Zhang et al. 2016.

    Several equal maxima share the point: a constant map scores the object's share of the image.

    Args:
        tolerance: Pixels beside the object that count as on it, 15 in the paper's photos; the
            object grows by a square, so diagonally by as many rows and columns (a circle reaches
            less far there).
        options: torchmetrics' own.

    Raises:
        ValueError: `tolerance` is below 0.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import PointingGame
        >>> masks = torch.zeros(2, 4, 4).bool()
        >>> masks[:, :2] = True  # the upper half
        >>> maps = torch.zeros(2, 4, 4)
        >>> maps[0, 1, 1], maps[1, 3, 3] = 1, 1  # one hit, one miss
        >>> metric = PointingGame()
        >>> metric.update(maps, masks)
        >>> metric.compute(), metric.per_image()
        (tensor(0.5000), tensor([1., 0.]))
    """

    def __init__(self, tolerance: int = 0, **options: Any):
        super().__init__(**options)
        if tolerance < 0:
            raise ValueError(f"tolerance must be at least 0 pixels, got {tolerance}")
        self.tolerance = tolerance

    def score(self, pixels: Pixels) -> Float[Tensor, " b"]:
        value = pixels.value.masked_fill(~pixels.valid, -torch.inf)
        top = value == value.amax(dim=1, keepdim=True)
        return (top & pixels.inside).float().sum(dim=1) / top.sum(dim=1)

    def update(self, maps: Tensor, masks: Tensor, ignore: Tensor | None = None) -> None:
        if self.tolerance and masks.dtype == torch.bool and masks.ndim == 3:
            size = 2 * self.tolerance + 1
            masks = F.max_pool2d(masks[:, None].float(), size, 1, self.tolerance)[:, 0] > 0
        super().update(maps, masks, ignore)


class EnergyPointingGame(Localization):
    """Energy-based pointing game: the share of the map's positive sum that lies on the object.

    A map without positive values scores as a constant one, the object's share of the image. Wang et
    al. 2020 (Score-CAM).

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import EnergyPointingGame
        >>> masks = torch.tensor([[[True, False]]])
        >>> metric = EnergyPointingGame()
        >>> metric.update(torch.tensor([[[3.0, 1.0]]]), masks)
        >>> metric.compute()
        tensor(0.7500)
    """

    def score(self, pixels: Pixels) -> Float[Tensor, " b"]:
        value = pixels.value.relu() * pixels.valid
        value = torch.where(value.any(dim=1, keepdim=True), value, pixels.valid.float())
        return (value * pixels.inside).sum(dim=1) / value.sum(dim=1)


class AveragePrecision(Localization):
    """Average precision: sum_t (recall_t - recall_(t-1)) precision_t over the map's values t.

    From the largest value down, as sklearn's: equal values are taken together, so that a constant
    map scores the object's share of the image, the expectation of a random one.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import AveragePrecision
        >>> metric = AveragePrecision()
        >>> metric.update(torch.tensor([[[0.9, 0.1, 0.5]]]), torch.tensor([[[True, True, False]]]))
        >>> metric.compute()
        tensor(0.8333)
    """

    def score(self, pixels: Pixels) -> Float[Tensor, " b"]:
        value, order = pixels.value.masked_fill(~pixels.valid, -torch.inf).sort(descending=True)
        inside = (pixels.inside & pixels.valid).gather(1, order)
        value, inside = value.cpu(), inside.cpu().double()  # Apple's GPUs have no float64
        precision = inside.cumsum(dim=1) / torch.arange(1, value.shape[1] + 1, device=value.device)
        # Where the run of values equal to this one ends: there its precision is read.
        positions = torch.arange(value.shape[1], device=value.device).expand_as(inside)
        ends = torch.ones_like(inside, dtype=torch.bool)
        ends[:, :-1] = value[:, :-1] != value[:, 1:]
        end = positions.masked_fill(~ends, value.shape[1]).flip(1).cummin(dim=1).values.flip(1)
        score = (inside * precision.gather(1, end)).sum(dim=1) / inside.sum(dim=1)
        return score.float().to(order.device)


class AboveMean(Localization):
    """Base class: the map as a segmentation, whose foreground exceeds the mean, Chefer et al. 2021.

    Each image counts the same, where Chefer et al. sum pixels over the whole set. A constant map
    has no such segmentation and scores as a random half of the pixels does.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate.localization import AboveMean
        >>> class Recall(AboveMean):
        ...     def agreement(self, above, below, inside, valid):
        ...         return (above * inside).sum(1) / inside.sum(1)
        >>> metric = Recall()
        >>> metric.update(torch.tensor([[[0.9, 0.1, 0.2]]]), torch.tensor([[[True, True, False]]]))
        >>> metric.compute()
        tensor(0.5000)
    """

    def score(self, pixels: Pixels) -> Float[Tensor, " b"]:
        valid = pixels.valid
        mean = (pixels.value * valid).sum(dim=1, keepdim=True) / valid.sum(dim=1, keepdim=True)
        above = (pixels.value > mean).float()
        highest = pixels.value.masked_fill(~valid, -torch.inf).amax(dim=1)
        lowest = pixels.value.masked_fill(~valid, torch.inf).amin(dim=1)
        above[highest == lowest] = 0.5
        return self.agreement(above * valid, (1 - above) * valid, pixels.inside & valid, valid)

    @abstractmethod
    def agreement(
        self,
        above: Float[Tensor, "b p"],
        below: Float[Tensor, "b p"],
        inside: Bool[Tensor, "b p"],
        valid: Bool[Tensor, "b p"],
    ) -> Float[Tensor, " b"]:
        """Score how well a foreground and a background fit the object, one number an image.

        Args:
            above: Each pixel's share in the foreground.
            below: Each pixel's share in the background.
            inside: The object.
            valid: Pixels that count.
        """


class PixelAccuracy(AboveMean):
    """Pixel accuracy: the share of pixels on the right side of the map's mean, Chefer et al. 2021.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import PixelAccuracy
        >>> metric = PixelAccuracy()
        >>> maps, masks = torch.tensor([[[0.9, 0.1, 0.2]]]), torch.tensor([[[True, True, False]]])
        >>> metric.update(maps, masks)
        >>> metric.compute()
        tensor(0.6667)
    """

    def agreement(self, above: Tensor, below: Tensor, inside: Tensor, valid: Tensor) -> Tensor:
        right = torch.where(inside, above, below).sum(dim=1)
        return right / valid.sum(dim=1)


class MeanIoU(AboveMean):
    """Mean of the intersection over union of the object and of the background, Chefer et al. 2021.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import MeanIoU
        >>> metric = MeanIoU()
        >>> maps, masks = torch.tensor([[[0.9, 0.1, 0.2]]]), torch.tensor([[[True, True, False]]])
        >>> metric.update(maps, masks)
        >>> metric.compute()
        tensor(0.5000)
    """

    def agreement(self, above: Tensor, below: Tensor, inside: Tensor, valid: Tensor) -> Tensor:
        ious = [
            (part * truth).sum(dim=1) / (part + truth - part * truth).sum(dim=1).clamp(min=1)
            for part, truth in ((above, inside.float()), (below, (valid & ~inside).float()))
        ]
        return (ious[0] + ious[1]) / 2


class GridPointingGame(ImageScore):
    """Grid pointing game: the share of a map's positive sum in the cell of its class.

    The image is a mosaic of cells of equal size, each a photo of another class, and the map is of
    the class of one of them, Böhle, Fritz and Schiele 2021 (CoDA-Nets), after the pointing game of
    Zhang et al. 2016. A map's pixel that lies in several cells counts in each by its area there, so
    that a map of any size is scored as it is. A map without positive values scores as a constant
    one, 1 / cells; so does, over all cells of a mosaic together, a map that is the same for every
    class.

    Args:
        grid: Rows and columns of cells, or one number for both.
        options: torchmetrics' own.

    Raises:
        ValueError: `grid` is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import GridPointingGame
        >>> metric = GridPointingGame(grid=2)
        >>> maps = torch.tensor([[[6.0, 2.0], [-5.0, 0.0]], [[0.0, 0.0], [0.0, -1.0]]])
        >>> metric.update(maps, cells=torch.tensor([0, 3]))
        >>> metric.per_image()
        tensor([0.7500, 0.2500])
    """

    higher_is_better = True

    def __init__(self, grid: int | tuple[int, int] = 2, **options: Any):
        super().__init__(**options)
        self.grid = (grid, grid) if isinstance(grid, int) else grid
        if min(self.grid) < 1:
            raise ValueError(f"grid must be at least 1 row and 1 column, got {grid}")

    def update(self, maps: Tensor, cells: Tensor) -> None:
        """Add a batch.

        Args:
            maps: Float, (b y x).
            cells: The cell of each map's class, (b), counted row by row from 0.

        Raises:
            ValueError: These do not match or a map is not finite.
        """
        check_maps(maps)
        rows, columns = self.grid
        if cells.is_floating_point() or cells.dtype == torch.bool or cells.shape != maps.shape[:1]:
            raise ValueError(
                f"expected one cell per map, whole numbers ({len(maps)},), got {cells.dtype} of "
                f"shape {tuple(cells.shape)}"
            )
        if ((cells < 0) | (cells >= rows * columns)).any():
            raise ValueError(
                f"cells must be 0 to {rows * columns - 1}, got {cells.min()} to {cells.max()}"
            )
        shares = self.shares(maps).gather(1, cells[:, None].cpu().long())[:, 0]
        self.scores.append(shares.float().to(maps.device))

    def shares(self, maps: Float[Tensor, "b y x"]) -> Float[Tensor, "b cells"]:
        """Share out each map's positive sum among the cells.

        In float64 on the CPU: Apple's GPUs have none.

        Args:
            maps: (b y x).

        Returns:
            The shares, (b cells), row by row; they sum to 1.
        """
        energy = maps.cpu().double().relu()
        energy = torch.where(energy.flatten(1).any(dim=1)[:, None, None], energy, 1.0)
        down, across = (
            overlaps(pixels, cells) for pixels, cells in zip(maps.shape[1:], self.grid, strict=True)
        )
        inside = (down @ energy @ across.T).flatten(1)
        return inside / inside.sum(dim=1, keepdim=True)


def overlaps(pixels: int, cells: int) -> Float[Tensor, "cells pixels"]:
    """Compute the share of each of `pixels` that lies in each of `cells`, both in equal parts."""
    edges = torch.arange(pixels + 1, dtype=torch.float64, device="cpu") / pixels
    bounds = torch.arange(cells + 1, dtype=torch.float64, device="cpu")[:, None] / cells
    start = torch.maximum(edges[:-1], bounds[:-1])
    stop = torch.minimum(edges[1:], bounds[1:])
    return (stop - start).clamp(min=0) * pixels


def comparable_pixels(maps: Tensor, masks: Tensor, ignore: Tensor | None) -> Pixels:
    """Check maps and masks and return the pixels to compare; ValueError where they do not match."""
    check_maps(maps)
    for name, mask in (("masks", masks), ("ignore", ignore)):
        if mask is not None and mask.dtype != torch.bool:
            values = [] if mask.is_complex() else mask.unique()[:5].tolist()
            raise ValueError(f"{name} must be bool, got {mask.dtype} with values {values}")
    if masks.ndim != 3 or len(masks) != len(maps):
        raise ValueError(
            f"expected {len(maps)} masks (batch, height, width), got shape {tuple(masks.shape)}"
        )
    if ignore is not None and ignore.shape != masks.shape:
        raise ValueError(
            f"ignore must be of the masks' shape {tuple(masks.shape)}, got {tuple(ignore.shape)}"
        )
    valid = torch.ones_like(masks) if ignore is None else ~ignore
    absent = ~(masks & valid).flatten(1).any(dim=1)
    if absent.any():
        first = int(absent.nonzero()[0])
        raise ValueError(
            f"the object is absent: {int(absent.sum())} of {len(masks)} masks are empty, "
            f"first mask {first}"
        )
    value = at_size(maps.float(), (masks.shape[1], masks.shape[2]))
    return Pixels(value.flatten(1), (masks & valid).flatten(1), valid.flatten(1))
