"""A network that learns to name images: loss, metrics, optimiser and schedule around any nn.Module.

Axes: b batch, c channels, h height, w width, k classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassCalibrationError,
    MultilabelAveragePrecision,
    MultilabelExactMatch,
    MultilabelF1Score,
)

from vision_attn.models.checkpoint import ENTRY, pack
from vision_attn.training.finetuning import start_from
from vision_attn.training.losses import BalancedCrossEntropy, MultiLabelCrossEntropy
from vision_attn.training.module import TrainingModule, at_least_float32
from vision_attn.training.schedules import CosineDecay
from vision_attn.types import Calibration, Images, Logits

__all__ = ["ImageClassifier", "metrics", "multilabel_metrics"]

Labels = Int[Tensor, " b"] | Float[Tensor, "b k"]
Batch = Sequence[Tensor]  # images and labels


class ImageClassifier(TrainingModule):
    """A network that learns to name images: (b, c, h, w) -> logits (b, k).

    Classes and preprocessing (input_size, mean, std ...) come from the data module, and go into the
    checkpoint with the network's description.

    Logged: loss, top-1, top-5 (if k is above 5), expected calibration error (15 bins, Guo 2017).
    With `MultiLabelCrossEntropy` labels are 0 and 1 (b, k), any number of classes an image; logged
    are then the mean average precision over the classes (`map`, by which the best checkpoint is
    chosen), the mean F1 and the share of images of which every class is right (`exact`).

    Args:
        network: What learns.
        optimizer: Called with the parameter groups (see `parameter_groups`), any torch optimiser.
        schedule: Called with the optimiser and the number of steps of the run; stepped every step.
        loss: Of logits (b, k) and labels, either class indices (b,) or, with mixup, shares (b, k).
            None is cross-entropy.
        layer_decay: How much slower each layer learns than the one above it, 1: as fast.
        weights: What the network starts from, a checkpoint or vision_attn:NAME; the classifier
            starts anew where the number of classes differs.

    Attributes:
        start: A line that says what the network starts from; "" without `weights`.
        run: How the network is called, as run(network, images).
        teaching: What a training step makes of its loss, as teaching(loss, logits, images); None
            leaves it as it is.
        teacher_flops: The operations that a teacher has spent in this process, which count as work
            of the run.
        classes: The classes' names.
        preprocess: What `Preprocess` takes, as plain values.

    Examples:
        >>> import torch
        >>> from vision_attn.models import ViT
        >>> from vision_attn.training import ImageClassifier
        >>> vit = ViT(image_size=32, patch_size=8, dim=24, depth=1, heads=2, num_classes=10)
        >>> module = ImageClassifier(vit)
        >>> module(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])
        >>> probabilities = module.predict_step(torch.randn(2, 3, 32, 32), 0)
        >>> torch.allclose(probabilities.sum(1), torch.ones(2))
        True
    """

    monitor: ClassVar[str] = "val/top1"

    def __init__(
        self,
        network: nn.Module,
        optimizer: Callable[[list[dict[str, Any]]], Optimizer] = AdamW,
        schedule: Callable[[Optimizer, int], LRScheduler] = CosineDecay,
        loss: nn.Module | None = None,
        layer_decay: float = 1.0,
        weights: str | None = None,
    ):
        super().__init__(network, optimizer, schedule, layer_decay)
        self.start = "" if weights is None else start_from(network, weights)
        self.loss = nn.CrossEntropyLoss() if loss is None else loss
        self.run: Callable[[nn.Module, Images], Logits] = as_it_is
        self.teaching: Callable[[Tensor, Logits, Images], Tensor] | None = None
        self.teacher_flops = 0
        self.metrics = nn.ModuleDict()
        self.classes: Sequence[str] = ()
        self.preprocess: dict[str, Any] = {}
        self.calibration = Calibration(activation="sigmoid" if self.multilabel else "softmax")
        if self.multilabel:
            self.monitor = "val/map"  # type: ignore[misc]

    @property
    def multilabel(self) -> bool:
        """Whether an image may have any number of classes, as the loss says."""
        return isinstance(self.loss, MultiLabelCrossEntropy)

    def forward(self, images: Images) -> Logits:
        return self.run(self.network, images)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        images, labels = batch
        logits = at_least_float32(self(images))
        self._check_classes(logits)
        self._check_labels(labels, mixed=True)
        loss = self.loss(logits, labels.to(logits) if labels.is_floating_point() else labels)
        if self.teaching is not None:
            loss = self.teaching(loss, logits, images)
        loss = self.finite(loss, "loss")
        self.log_mean("loss", loss, len(images))
        if not self.multilabel:
            hard = labels.argmax(1) if labels.ndim == 2 else labels
            top1 = (logits.argmax(1) == hard).float().mean()
            self.log_mean("top1", top1, len(images))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> Logits:
        return self._evaluate("val", batch)

    def test_step(self, batch: Batch, batch_idx: int) -> Logits:
        return self._evaluate("test", batch)

    def predict_step(self, batch: Any, batch_idx: int) -> Float[Tensor, "b k"]:
        """Compute the class probabilities of a batch.

        Args:
            batch: Images, alone or first in a sequence.
            batch_idx: The batch's number; of no use here.

        Returns:
            The probabilities, (b k).
        """
        images = batch if isinstance(batch, Tensor) else batch[0]
        return self.calibration.probabilities(at_least_float32(self(images)))

    def setup(self, stage: str) -> None:
        data: Any = getattr(self.trainer, "datamodule", None)
        if data is not None and stage != "predict":  # which asks for no data set
            self.classes = list(data.classes)
            self.preprocess = asdict(data.preprocess)
            if isinstance(self.loss, BalancedCrossEntropy):
                self.loss.weight = data.class_weights()
            if isinstance(self.loss, MultiLabelCrossEntropy) and self.loss.balanced:
                labels = data.splits.train.labels
                self._check_labels(labels)
                having = labels.sum(0)
                weights = (len(labels) - having) / having.clamp_min(1)
                self.loss.pos_weight = weights.clamp(max=self.loss.most)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add, as plain values, what it takes to use the network without its config."""
        about = {"classes": list(self.classes), "preprocess": self.preprocess}
        if self.multilabel:
            about["calibration"] = asdict(self.calibration)
        checkpoint[ENTRY] = pack(self.network, about)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take over the class names and the calibration, for predictions without their data set."""
        about = checkpoint.get(ENTRY, {})
        self.classes = self.classes or about.get("classes", ())
        self.calibration = Calibration(**about.get("calibration") or {})

    def _evaluate(self, stage: str, batch: Batch) -> Logits:
        images, labels = batch
        logits = at_least_float32(self(images))
        self._check_classes(logits)
        self._check_labels(labels)
        labels = labels.to(logits) if labels.is_floating_point() else labels
        loss = self.finite(self.loss(logits, labels), f"{stage} loss")
        if stage not in self.metrics:
            factory = multilabel_metrics if self.multilabel else metrics
            self.metrics[stage] = factory(logits.shape[1], prefix=f"{stage}/").to(self.device)
        measured: Any = self.metrics[stage]
        truth = labels.int() if self.multilabel else labels
        measured.update(self.calibration.probabilities(logits), truth)
        self.log(f"{stage}/loss", loss, batch_size=len(labels), sync_dist=True)
        for name, metric in measured.items():
            self.log(name, metric, prog_bar=name.endswith(("top1", "map")))
        return logits

    def _check_labels(self, labels: Labels, mixed: bool = False) -> None:
        """Raise ValueError for labels of another kind than the loss takes; mixed: they may be."""
        if self.multilabel and labels.ndim == 1:
            raise ValueError(
                "MultiLabelCrossEntropy: expected labels of 0 and 1 for each class, got one class "
                "an image: another source, or torch.nn.CrossEntropyLoss"
            )
        if not self.multilabel and labels.ndim == 2 and not mixed:
            raise ValueError(
                "these images have any number of classes: the loss must be "
                "vision_attn.training.MultiLabelCrossEntropy (--model.loss)"
            )

    def _check_classes(self, logits: Logits) -> None:
        if self.classes and logits.shape[1] != len(self.classes):
            raise ValueError(
                f"the network gives {logits.shape[1]} classes, the data has {len(self.classes)}: "
                f"--model.network.num_classes {len(self.classes)} makes them fit"
            )


def as_it_is(network: nn.Module, images: Images) -> Logits:
    """Call the network on whole batches; `ThreadParallel` calls it in parts."""
    return network(images)


def metrics(classes: int, prefix: str) -> MetricCollection:
    """Make the metrics of probabilities: top-1, top-5 (of more than 5 classes), calibration."""
    every: dict[str, Metric] = {
        "top1": MulticlassAccuracy(classes, average="micro"),
        "ece": MulticlassCalibrationError(classes, n_bins=15),
    }
    if classes > 5:
        every["top5"] = MulticlassAccuracy(classes, top_k=5, average="micro")
    return MetricCollection(dict(every), prefix=prefix)


def multilabel_metrics(classes: int, prefix: str) -> MetricCollection:
    """Make the metrics of images with any number of classes: mean AP, mean F1, all right."""
    every: dict[str, Metric] = {
        "map": MultilabelAveragePrecision(classes),
        "f1": MultilabelF1Score(classes),
        "exact": MultilabelExactMatch(classes),
    }
    return MetricCollection(dict(every), prefix=prefix, compute_groups=False)
