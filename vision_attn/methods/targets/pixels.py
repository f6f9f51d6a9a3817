"""The pixels of a class as a target, for segmentations.

Axes: b images, r of them, k classes, h height, w width of the output, H, W of the mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor
from torch.nn import functional as F

from vision_attn.arguments import argument
from vision_attn.errors import quoted
from vision_attn.methods.targets.classes import ClassIndex, name_of
from vision_attn.methods.targets.target import Target
from vision_attn.methods.targets.tensors import checksum, tensor_of
from vision_attn.tokens.outputs import only_tensor
from vision_attn.types import Model

__all__ = ["PixelsOf"]


@dataclass(frozen=True, eq=False)
class PixelsOf(Target):
    """The logit of a class summed over pixels, for a segmentation (b, k, h, w).

    Vinogradova et al. 2020 (Seg-Grad-CAM).

    Args:
        mask: Bool or 0 and 1, (H, W), or one an image (b, H, W), brought to the output's size by
            nearest pixels; None for the pixels that the network itself gives to the class.
        index: The class.

    Raises:
        ValueError: `index` is None or no class, or `mask` is no mask.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import PixelsOf
        >>> mask = torch.tensor([[True, False], [True, False]])
        >>> PixelsOf(mask, 1)(torch.arange(8.0).view(1, 2, 2, 2))
        tensor([10.])
    """

    mask: Tensor | ndarray | None
    index: ClassIndex

    def __post_init__(self) -> None:
        if self.index is None:
            raise ValueError("PixelsOf: expected a class, got None")
        object.__setattr__(self, "index", argument("PixelsOf: index", self.index, ClassIndex))
        if self.mask is None:
            return
        mask = tensor_of(self.mask, "PixelsOf", "a mask")
        if mask.ndim not in (2, 3) or (
            mask.is_floating_point() and not ((mask == 0) | (mask == 1)).all()
        ):
            raise ValueError(
                "PixelsOf: expected a mask of bool or 0 and 1, (H, W) or one an image (b, H, W), "
                f"got {mask.dtype} of shape {tuple(mask.shape)}"
            )
        object.__setattr__(self, "mask", mask != 0)

    def __call__(self, output: Any) -> Float[Tensor, " b"]:
        logits = self._logits(output)
        return (logits[:, cast(int, self.index)] * self._mask(logits)).sum(dim=(1, 2))

    def _logits(self, output: Any) -> Float[Tensor, "b k h w"]:
        logits = only_tensor(output)
        if logits is None or logits.ndim != 4:
            shape = "several parts" if logits is None else tuple(logits.shape)
            raise ValueError(
                f"PixelsOf: expected a segmentation (b, classes, h, w) of the network, got {shape}"
                f"{': give head=' if logits is None else ''}"
            )
        if not isinstance(self.index, int) or not 0 <= self.index < logits.shape[1]:
            raise ValueError(
                f"PixelsOf: class {quoted(self.index)} is out of range: the network has "
                f"{logits.shape[1]} classes, 0 to {logits.shape[1] - 1}"
            )
        return logits

    def _mask(self, logits: Float[Tensor, "b k h w"]) -> Bool[Tensor, "#b h w"]:
        if self.mask is None:
            return logits.argmax(dim=1).eq(cast(int, self.index))
        mask = cast(Tensor, self.mask).to(logits.device)
        self.check(len(logits))
        mask = mask[None] if mask.ndim == 2 else mask
        if mask.shape[1:] == logits.shape[2:]:
            return mask
        sized = F.interpolate(mask[:, None].float(), size=logits.shape[2:], mode="nearest-exact")
        return sized[:, 0] > 0

    def fixed(self, output: Any) -> "PixelsOf":
        if self.mask is not None:
            return self
        logits = self._logits(output)
        mask = self._mask(logits)
        if (absent := (~mask.flatten(1).any(dim=1)).nonzero()).numel():
            raise ValueError(
                f"PixelsOf: the network gives class {self.index} no pixel of image "
                f"{int(absent[0])}: give a mask"
            )
        return PixelsOf(mask, self.index)

    def at(self, images: Int[Tensor, " r"]) -> "PixelsOf":
        if self.mask is None or self.mask.ndim == 2:
            return self
        return PixelsOf(self.mask[images.to(cast(Tensor, self.mask).device)], self.index)

    def named(self, model: Model) -> "PixelsOf":
        return PixelsOf(self.mask, model.class_index(cast(int | str, self.index)))

    @property
    def count(self) -> int | None:
        return len(self.mask) if self.mask is not None and self.mask.ndim == 3 else None

    def key(self) -> str:
        mask = cast(Tensor | None, self.mask)
        return str(self) if mask is None else f"{self} {checksum(mask):08x}"

    def label(self, classes: Sequence[str] = ()) -> str:
        return f"pixels of {name_of(self.index, classes)}"

    def __str__(self) -> str:
        return f"PixelsOf({'None' if self.mask is None else 'mask'}, {self.index!r})"
