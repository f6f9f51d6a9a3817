"""Losses that torch does not have.

Axes: b batch, k classes.
"""

from typing import Literal

from torch import nn

__all__ = ["BalancedCrossEntropy"]


class BalancedCrossEntropy(nn.CrossEntropyLoss):
    """Cross-entropy under which every class counts alike, however many images it has.

    Class c weighs n / (k n_c), with n_c of the n training images in it: `ImageClassifier` sets
    these weights from its data. They are of the data, not of the network: no checkpoint has them.

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
        self.register_buffer("weight", None, persistent=False)
