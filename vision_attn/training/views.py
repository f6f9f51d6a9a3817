"""Test-time augmentation, measured beside the plain accuracy and never instead of it.

Axes: b batch, c channels, h height, w width, k classes.
"""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.nn import functional as F
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy, MultilabelAveragePrecision

from vision_attn.training.module import at_least_float32
from vision_attn.types import Images, Logits

__all__ = ["TestTimeAugmentation"]


class TestTimeAugmentation(Callback):
    """Top-1 of the mean logits over views of each image, logged as `test/top1_views`.

    The views are the image and its mirror image, and both of these moved; the unmoved ones count as
    much as all moved ones together (Jordan 2024, arXiv:2404.00498, section 3.5). Where images have
    any number of classes, the mean average precision, as `test/map_views`. Measured by `test` and
    `validate`, not while a fit validates.

    Args:
        shift: How many pixels up and left, and down and right, the moved ones are off, the border
            reflected; 0: there are none.

    Raises:
        ValueError: `shift` is below 0.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> from vision_attn.training import TestTimeAugmentation
        >>> views = TestTimeAugmentation(shift=0)  # the image and its mirror image
        >>> images = torch.tensor([0.0, 0.0, 6.0]).expand(1, 1, 3, 3)
        >>> left = nn.Sequential(nn.Flatten(), nn.Linear(9, 1, bias=False))
        >>> _ = nn.init.constant_(left[1].weight, 0.0)
        >>> left[1].weight.data[0, 2] = 1.0  # reads the upper right pixel
        >>> views.logits(left, images, plain=left(images)).item()
        3.0
    """

    __test__ = False  # its name begins with Test, and it is no test case of pytest's

    def __init__(self, shift: int = 1) -> None:
        if shift < 0:
            raise ValueError(f"shift must be at least 0 pixels, got {shift}")
        self.shift = shift
        self.name = ""  # of the metric
        self.metric: Metric | None = None

    def logits(self, network: nn.Module, images: Images, plain: Logits) -> Logits:
        """The mean logits over the views.

        Args:
            network: The network.
            images: (b c h w), as it takes them.
            plain: Its logits of the images themselves, (b k).

        Returns:
            The logits, (b k).
        """
        unmoved = (plain + at_least_float32(network(images.flip(3)))) / 2
        if not self.shift:
            return unmoved
        height, width = images.shape[2:]
        framed = F.pad(images, [self.shift] * 4, mode="reflect")
        moved = [
            framed[:, :, offset : offset + height, offset : offset + width]
            for offset in (0, 2 * self.shift)
        ]
        every = [view for image in moved for view in (image, image.flip(3))]
        return (
            unmoved + torch.stack([at_least_float32(network(view)) for view in every]).mean(0)
        ) / 2

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        images, labels = batch
        with trainer.precision_plugin.forward_context():
            logits = self.logits(pl_module, images, outputs)
        several, classes = labels.ndim == 2, logits.shape[1]
        if self.metric is None:
            self.name, self.metric = (
                ("map", MultilabelAveragePrecision(classes))
                if several
                else ("top1", MulticlassAccuracy(classes, average="micro"))
            )
            self.metric.to(logits.device)
        if several:
            logits, labels = logits.sigmoid(), labels.int()
        self.metric.update(logits, labels)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._log("test", pl_module)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if trainer.state.fn == "validate":
            self.on_test_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._log("val", pl_module)

    def _log(self, stage: str, pl_module: LightningModule) -> None:
        """Log the measure over all processes."""
        if self.metric is not None:
            pl_module.log(f"{stage}/{self.name}_views", self.metric.compute(), sync_dist=True)
            self.metric = None
