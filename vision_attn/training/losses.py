"""Losses that torch does not have.

Axes: b batch, k classes.
"""

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["BalancedCrossEntropy", "MultiLabelCrossEntropy"]


class BalancedCrossEntropy(nn.CrossEntropyLoss):
    """Cross-entropy under which every class counts alike, however many images it has.

    Class c weighs n / (k n_c), with n_c of the n training images in it: `ImageClassifier` sets
    these weights from its data. They are of the data, not of the network: no checkpoint has them.

    Args:
        label_smoothing: The share of each label that is spread evenly over the classes, from 0 to
            1.
        reduction: "mean" or "sum" over the batch, as of torch's.

    Examples:
        >>> import torch
        >>> from vision_attn.training import BalancedCrossEntropy
        >>> loss = BalancedCrossEntropy()
        >>> loss.weight = torch.tensor([0.625, 2.5])  # 8 images of class 0, 2 of class 1
        >>> loss(torch.zeros(10, 2), torch.tensor([0] * 8 + [1] * 2))
        tensor(0.6931)
    """

    def __init__(
        self, label_smoothing: float = 0.0, reduction: Literal["mean", "sum"] = "mean"
    ) -> None:
        super().__init__(label_smoothing=label_smoothing, reduction=reduction)
        del self.weight
        self.weight: Tensor | None = None  # no buffer, which a precision would round

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(
            input,
            target,
            None if self.weight is None else self.weight.to(input),
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class MultiLabelCrossEntropy(nn.BCEWithLogitsLoss):
    """Binary cross-entropy of each class by itself, for images of any number of classes.

    Labels are 0 and 1 (b k).

    Args:
        balanced: Whether an image that has a class weighs as much for it as all that have it not,
            n_without / n_with of the training images: `ImageClassifier` sets these weights from its
            data. They are of the data, not of the network: no checkpoint has them.
        most: The largest such weight.

    Raises:
        ValueError: `most` is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.training import MultiLabelCrossEntropy
        >>> MultiLabelCrossEntropy()(torch.zeros(1, 3), torch.tensor([[1.0, 0.0, 1.0]]))
        tensor(0.6931)
    """

    def __init__(self, balanced: bool = False, most: float = 100.0) -> None:
        super().__init__()
        if most < 1:
            raise ValueError(f"most must be at least 1, got {most}")
        self.balanced, self.most = balanced, most
        del self.pos_weight
        self.pos_weight: Tensor | None = None  # no buffer, which a precision would round

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        weight = None if self.pos_weight is None else self.pos_weight.to(input)
        return F.binary_cross_entropy_with_logits(input, target, pos_weight=weight)
