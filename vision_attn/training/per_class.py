"""What a run reaches on each class by itself: where classes are uneven, a mean hides the rare ones.

Axes: b batch, k classes.
"""

import csv
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import (
    MulticlassStatScores,
    MultilabelAveragePrecision,
    MultilabelStatScores,
)

from vision_attn.files import replacing

__all__ = ["PerClass"]

COLUMNS = "class", "images", "precision", "recall", "f1"


class PerClass(Callback):
    """`folder`/per_class.csv: images, precision, recall and F1 of each class of the test images.

    Where images have any number of classes, with the average precision too; a class then counts as
    present from a probability of 0.5 on. The last row is the mean over the classes that have an
    image.

    Args:
        folder: The run's folder.

    Examples:
        >>> from lightning.pytorch import Trainer
        >>> from vision_attn.training import PerClass
        >>> trainer = Trainer(callbacks=[PerClass("outputs/run")], logger=False)
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.counts: Metric | None = None
        self.ranking: Metric | None = None

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if outputs is None:
            return  # of a network that names no classes
        labels, classes = batch[1], outputs.shape[1]
        several = labels.ndim == 2
        if self.counts is None:
            metric = MultilabelStatScores if several else MulticlassStatScores
            self.counts = metric(classes, average=None).to(outputs.device)
            if several:
                self.ranking = MultilabelAveragePrecision(classes, average=None)
                self.ranking.to(outputs.device)
        if several:
            labels = labels.int()
            outputs = outputs.sigmoid()
        self.counts.update(outputs, labels)
        if self.ranking is not None:
            self.ranking.update(outputs, labels)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        if self.counts is None:
            return
        counts = self.counts.compute().cpu()  # of all processes
        ranking = None if self.ranking is None else self.ranking.compute().cpu()
        self.counts = self.ranking = None
        if trainer.is_global_zero:
            names = list(pl_module.classes) or [str(i) for i in range(len(counts))]
            self._write(names, counts, ranking)

    def _write(self, names: list[str], counts: Tensor, ranking: Tensor | None) -> None:
        right, false, _, missed, images = counts.double().unbind(1)
        scores = [
            right / (right + false).clamp_min(1),
            right / (right + missed).clamp_min(1),
            2 * right / (2 * right + false + missed).clamp_min(1),
        ]
        columns = list(COLUMNS)
        if ranking is not None:
            scores.append(ranking.double())
            columns.append("average precision")
        table = torch.stack(scores, 1)
        means = table[images > 0].mean(0)
        rows = [
            (name, int(count), *(f"{value:.4f}" for value in row))
            for name, count, row in zip(names, images.tolist(), table.tolist(), strict=True)
        ]
        rows.append(("mean", int(images.sum()), *(f"{value:.4f}" for value in means.tolist())))
        path = self.folder / "per_class.csv"
        with (
            replacing(path) as part,
            part.open("w", newline="", encoding="utf-8", errors="replace") as file,
        ):
            csv.writer(file).writerows([columns, *rows])
