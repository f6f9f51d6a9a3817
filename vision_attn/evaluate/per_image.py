"""Base class of the scores: one number an image, kept, so that methods can be compared by image.

Axes: b batch, n images in all, y, x rows and columns of a map, h, w of another size.
"""

from collections.abc import Callable
from functools import wraps
from math import prod
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from vision_attn.arguments import checked
from vision_attn.types import Heatmaps

__all__ = [
    "ImageScore",
    "at_size",
    "check_count",
    "check_maps",
    "class_indices",
    "from_0_to_1",
    "raw",
    "taking_heatmaps",
]

Maps = Float[Tensor, "b y x"]


class ImageScore(Metric):
    """Base class: the mean over images of one number an image.

    `states` names the lists that `update` appends to, a tensor with one row an image at a time;
    they are concatenated across processes. A subclass with states other than `scores` computes the
    number in `per_image`.

    Args:
        options: torchmetrics' own.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import ImageScore
        >>> class Peak(ImageScore):
        ...     def update(self, maps):
        ...         self.scores.append(maps.flatten(1).amax(dim=1))
        >>> metric = Peak()
        >>> metric.update(torch.tensor([[[1.0, 2.0]], [[5.0, 4.0]]]))
        >>> metric.compute(), metric.per_image()
        (tensor(3.5000), tensor([2., 5.]))
    """

    states: ClassVar[tuple[str, ...]] = ("scores",)
    full_state_update = False
    is_differentiable = False
    scores: list[Tensor]

    def __init_subclass__(cls, **options: Any) -> None:
        """Let `update` take Heatmaps where it takes maps; check arguments by their annotations."""
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = checked()(cls.__init__)  # type: ignore[method-assign]
        if "update" in vars(cls):
            cls.update = taking_heatmaps(cls.update)  # type: ignore[method-assign]

    def __init__(self, **options: Any):
        super().__init__(**options)
        for name in self.states:
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def per_image(self) -> Float[Tensor, " n"]:
        """Return the number of every image, in the order of the updates."""
        return dim_zero_cat(self.scores)

    def compute(self) -> Float[Tensor, ""]:
        """Compute the mean over all images."""
        return self.per_image().mean()

    def standard_error(self) -> Float[Tensor, ""]:
        """Compute the standard error of the mean, s / sqrt(n)."""
        numbers = self.per_image()
        return numbers.std() / len(numbers) ** 0.5


def raw(maps: Any) -> Any:
    """The values of Heatmaps, never normalised; anything else as it is."""
    return maps.values if isinstance(maps, Heatmaps) else maps


def taking_heatmaps(update: Callable[..., None]) -> Callable[..., None]:
    """The same method, with each argument passed through `raw` and checked to be a tensor.

    Raises ValueError for what is none where its annotation says that it is.
    """
    update_of_tensors = checked()(update)

    @wraps(update)
    def taking(self: ImageScore, *maps: Any, **named: Any) -> None:
        update_of_tensors(
            self, *map(raw, maps), **{name: raw(value) for name, value in named.items()}
        )

    return taking


def check_maps(maps: Tensor) -> None:
    """Raise ValueError unless maps are (b h w) floats, all finite."""
    if maps.ndim != 3 or not maps.is_floating_point() or 0 in maps.shape:
        raise ValueError(
            f"maps must be floats (batch, height, width), got {maps.dtype} of {tuple(maps.shape)}"
        )
    broken = (~maps.isfinite()).flatten(1).any(dim=1)
    if broken.any():
        first = int(broken.nonzero()[0])
        raise ValueError(
            f"{int(broken.sum())} of {len(maps)} maps hold NaN or infinity, first map {first}"
        )


def check_count(maps: Tensor, images: Tensor) -> None:
    """Raise ValueError unless there is a map for each image."""
    if len(maps) != len(images):
        raise ValueError(f"expected a map for each of {len(images)} images, got {len(maps)}")


def class_indices(target: Any, images: int, classes: int) -> Int[Tensor, " b"]:
    """Make one class index an image of one for all, or one an image.

    Raises:
        ValueError: They are not whole numbers, not as many as images, or no classes.

    Examples:
        >>> from vision_attn.evaluate.per_image import class_indices
        >>> class_indices([3, 0], images=2, classes=5)
        tensor([3, 0])
    """
    try:
        indices = torch.as_tensor(target, device=getattr(target, "device", "cpu"))
    except (TypeError, ValueError, RuntimeError):
        kind = type(target).__name__
        raise ValueError(f"target must be class indices or a function, got {kind}") from None
    if indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool:
        raise ValueError(f"target must be class indices (whole numbers), got {indices.dtype}")
    if indices.ndim == 0:
        indices = indices.expand(images)
    if indices.shape != (images,):
        raise ValueError(
            f"target must be one class or {images} (one an image), got shape {tuple(indices.shape)}"
        )
    wrong = indices[(indices < 0) | (indices >= classes)]
    if len(wrong):
        raise ValueError(
            f"target class {int(wrong[0])} is out of range: the network has {classes} classes, 0 "
            f"to {classes - 1}"
        )
    return indices.long()


def at_size(maps: Maps, size: tuple[int, int]) -> Float[Tensor, "b h w"]:
    """Resize maps: bilinear where they grow, the mean of each cell where they shrink.

    Rounding never leaves the map's own range, so that equal values stay equal.
    """
    if maps.shape[1:] == size:
        return maps
    shrinks = prod(size) < maps.shape[1:].numel()
    resized = F.interpolate(maps[:, None], size=size, mode="area" if shrinks else "bilinear")[:, 0]
    return resized.clamp(lowest(maps), highest(maps))


def lowest(maps: Maps) -> Float[Tensor, "b 1 1"]:
    """Return the smallest value of each map."""
    return maps.amin(dim=(1, 2), keepdim=True)


def highest(maps: Maps) -> Float[Tensor, "b 1 1"]:
    """Return the largest value of each map."""
    return maps.amax(dim=(1, 2), keepdim=True)


def from_0_to_1(maps: Maps) -> Maps:
    """Scale each map to (map - min) / (max - min); 1/2 everywhere for a constant map."""
    low, high = lowest(maps), highest(maps)
    return torch.where(high > low, (maps - low) / (high - low).clamp(min=1e-30), 0.5)
