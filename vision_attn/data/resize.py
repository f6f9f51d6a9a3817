"""Smaller images in the first epochs, which are faster and teach nearly as much.

Axes: b batch, c channels, h height, w width.
"""

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from vision_attn.data.augment import Augment, Pixels, as_float
from vision_attn.data.draws import Draws

__all__ = ["ProgressiveResizing"]


class ProgressiveResizing(Augment):
    """Training images that are smaller in the first epochs.

    Put it last among the augmentations. Validation and test are done at the data's own size,
    whatever the last one is here. A ViT resamples its positions: sizes are multiples of its patch
    size. Progressive resizing: Howard 2018 (DAWNBench), Tan & Le 2021 (EfficientNetV2).

    Args:
        sizes: Height and width in pixels, one number for both.
        epochs: From which epoch on each size holds, rising from 0.

    Raises:
        ValueError: There is not an epoch for each size, they do not rise from 0, or a size is below
            1.

    Examples:
        >>> import numpy as np
        >>> import torch
        >>> from vision_attn.data import ProgressiveResizing
        >>> from vision_attn.data.draws import Draws
        >>> resize, images = ProgressiveResizing([16, 32], epochs=[0, 10]), torch.rand(2, 3, 32, 32)
        >>> [resize(images, Draws(0, epoch, np.arange(2))).shape[2] for epoch in (0, 9, 10)]
        [16, 16, 32]
    """

    def __init__(self, sizes: list[int], epochs: list[int]) -> None:
        super().__init__()
        if not sizes or len(sizes) != len(epochs) or epochs != sorted(epochs) or epochs[0] != 0:
            raise ValueError(
                "expected one epoch for each size, rising from 0, "
                f"got sizes {sizes} and epochs {epochs}"
            )
        if min(sizes) < 1:
            raise ValueError(f"sizes must be at least 1 pixel, got {sizes}")
        self.sizes, self.epochs = sizes, epochs

    def forward(self, images: Pixels, draws: Draws) -> Float[Tensor, "b c height width"] | Pixels:
        size = [s for s, e in zip(self.sizes, self.epochs, strict=True) if e <= draws.epoch][-1]
        if tuple(images.shape[2:]) == (size, size):
            return images
        return F.interpolate(as_float(images), (size, size), mode="bilinear", antialias=True)
