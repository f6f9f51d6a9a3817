"""Maps against bounding boxes.

Axes: b batch, y, x of the map, t thresholds, n images in all.
"""

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics.utilities import dim_zero_cat
from torchvision.ops import box_iou

from vision_attn.evaluate.per_image import ImageScore, Maps, at_size, check_maps

__all__ = ["MaxBoxIoU"]


class MaxBoxIoU(ImageScore):
    """IoU of the object's box and the box around the largest part of the map above a threshold.

    The threshold, of equal steps between the map's minimum and maximum, is the best one for the
    whole set, as no method says where its maps should be cut: Choe et al. 2020 (MaxBoxAcc), with
    the IoU itself in the place of the share above 0.5. With several boxes in an image the nearest
    counts. A constant map gives the box of the whole image. Large is good.

    Args:
        thresholds: How many steps.
        options: torchmetrics' own.

    Raises:
        ValueError: `thresholds` is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.evaluate import MaxBoxIoU
        >>> maps = torch.zeros(1, 8, 8)
        >>> maps[0, 2:6, 1:5] = 1
        >>> metric = MaxBoxIoU()
        >>> metric.update(maps, [torch.tensor([[1, 2, 5, 6]])], sizes=[(8, 8)])
        >>> metric.compute()
        tensor(1.)
    """

    states = ("ious",)
    higher_is_better = True
    ious: list[Tensor]

    def __init__(self, thresholds: int = 20, **options: Any):
        super().__init__(**options)
        if thresholds < 1:
            raise ValueError(f"thresholds must be at least 1, got {thresholds}")
        self.thresholds = thresholds

    def update(self, maps: Maps, boxes: Sequence[Tensor], sizes: Sequence[tuple[int, int]]) -> None:
        """Add a batch of maps with their boxes.

        Args:
            maps: Float, (b y x).
            boxes: For each image (k, 4) left, top, right, bottom in pixels, k at least 1.
            sizes: (height, width) of the image that these pixels are of.

        Raises:
            ValueError: These do not match.
        """
        check_maps(maps)
        if not len(maps) == len(boxes) == len(sizes):
            raise ValueError(
                f"expected boxes and sizes of {len(maps)} images, got {len(boxes)} and {len(sizes)}"
            )
        for index, (box, size) in enumerate(zip(boxes, sizes, strict=True)):
            if box.ndim != 2 or box.shape[0] < 1 or box.shape[1] != 4:
                raise ValueError(
                    f"image {index} needs boxes (count, 4), at least one, got {tuple(box.shape)}"
                )
            enlarged = at_size(maps[index : index + 1].float(), size)[0]
            estimates = self.boxes(enlarged.cpu().numpy())
            self.ious.append(box_iou(estimates, box.cpu().float()).amax(dim=1)[None])

    def boxes(self, heatmap: np.ndarray) -> Float[Tensor, "t 4"]:
        """Find the box around the largest part of a map, for each threshold.

        Args:
            heatmap: (y x).

        Returns:
            Left, top, right, bottom in places of the map, (t 4).
        """
        low, high = heatmap.min(), heatmap.max()
        boxes = []
        for cut in low + (high - low) * np.arange(self.thresholds) / self.thresholds:
            above = (heatmap >= cut).astype(np.uint8)
            _, _, stats, _ = cv2.connectedComponentsWithStats(above)
            left, top, width, height, _ = max(stats[1:], key=lambda part: part[cv2.CC_STAT_AREA])
            boxes.append([left, top, left + width, top + height])
        return torch.tensor(boxes, dtype=torch.float32, device="cpu")

    def threshold(self) -> float:
        """Return the whole set's best threshold, from 0 (a map's minimum) to 1 (its maximum)."""
        return int(dim_zero_cat(self.ious).mean(dim=0).argmax()) / self.thresholds

    def per_image(self) -> Float[Tensor, " n"]:
        ious = dim_zero_cat(self.ious)
        return ious[:, ious.mean(dim=0).argmax()]
