"""Losses that torch does not have.

Axes: b batch, k classes.
"""

from typing import Literal

from torch import nn

__all__ = ["BalancedCrossEntropy", "MultiLabelCrossEntropy"]


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


class MultiLabelCrossEntropy(nn.BCEWithLogitsLoss):
    """Binary cross-entropy of each class by itself, for images of any number of classes.

    Labels are 0 and 1 (b k). balanced: an image that has a class weighs as much for it as all that
    have it not, n_without / n_with of the training images (at most `most`): `ImageClassifier` sets
    these weights from its data. They are of the data, not of the network: no checkpoint has them.

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
        self.register_buffer("pos_weight", None, persistent=False)
