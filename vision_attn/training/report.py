"""Callbacks that write a run's files: summary, learning curves, confusion matrix, weights."""

import csv
import json
from collections import Counter
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from rich.console import Console
from rich.table import Table
from safetensors.torch import save as as_safetensors
from torch import distributed
from torchmetrics.classification import MulticlassConfusionMatrix

from vision_attn.files import replacing, write_text
from vision_attn.render import confusion_matrix, learning_curves, save
from vision_attn.training.callbacks import BestCheckpoint, LastCheckpoint, best_checkpoint
from vision_attn.training.cpu.memory import KeepMemory
from vision_attn.training.cpu.threads import ThreadParallel
from vision_attn.training.flops import forward_flops, peak_flops, training_flops
from vision_attn.training.lean import LeanLoop
from vision_attn.training.per_class import PerClass

__all__ = [
    "ConfusionMatrix",
    "EpochLines",
    "LearningCurves",
    "PortableWeights",
    "Predictions",
    "Summary",
    "faster",
    "run_callbacks",
]

PEAKS = 20.0  # seconds of training between two looks at what the machine reaches
METRICS = {
    "top1": "top-1",
    "top1_views": "top-1, mean over several views",
    "top5": "top-5",
    "ece": "calibration error",
    "map": "mean average precision",
    "map_views": "mean average precision, mean over several views",
    "f1": "mean F1",
    "exact": "all classes right",
    "loss": "loss",
}


class Summary(Callback):
    """The run's results as a table, `folder`/summary.txt, and as numbers, summary.json.

    The work in PFLOP (10^15 operations) is that of all forward and backward passes of this run,
    counted at the sizes that it trained at, a teacher's among them; test and validation are not in
    it. The speed in GF/s counts three forward passes an image, each at the size that it was trained
    at; the percentage is of what the machine reaches in a matrix product of the run's number
    format, at moments between the steps: other programs slow both down alike.

    A test or validation apart from training writes test.* or val.* instead.

    Args:
        folder: The run's folder.

    Examples:
        >>> from vision_attn.training import Summary
        >>> summary = Summary("outputs/run")
        >>> summary.rows["trained"] = "2 epochs, 80 steps"
        >>> summary.table().row_count
        1
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.rows: dict[str, str] = {}
        self.figures: dict[str, float] = {}
        self._began = self._validation_began = perf_counter()
        self._validating = 0.0
        self._images: Counter[torch.Size] = Counter()  # of each shape
        self._tested = 0  # images of this process, in the test or validation that runs
        self._peaks: list[float] = []  # what the machine reached, every `PEAKS` seconds
        self._compared = 0.0  # when it was measured last,
        self._comparing = 0.0  # and how long that took in all

    def table(self) -> Table:
        """The rows so far, as a table to print."""
        table = Table(str(self.folder), "")
        for row in self.rows.items():
            table.add_row(*row)
        return table

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._began, self._validating, self._images = perf_counter(), 0.0, Counter()
        self._peaks, self._comparing = [], 0.0
        self._compare(trainer)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if perf_counter() > self._compared + PEAKS:
            self._compare(trainer)
        self._images[batch[0].shape[1:]] += len(batch[0]) * trainer.world_size

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._compare(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validation_began, self._tested = perf_counter(), 0

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._tested = 0

    def on_validation_batch_end(self, *args: Any) -> None:
        self._tested += len(args[3][0])

    def on_test_batch_end(self, *args: Any) -> None:
        self._tested += len(args[3][0])

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit":
            self._validating += perf_counter() - self._validation_began
        elif trainer.state.fn == "validate":
            self._measured(trainer, "val")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        seconds = perf_counter() - self._began
        network = pl_module.network
        kind = getattr(network, "init_class", type(network))
        size = sum(p.numel() for p in pl_module.parameters()) / 1e6
        device = trainer.strategy.root_device.type  # the weights are on the CPU again
        self.rows |= {
            "network": f"{kind.__name__}, {size:.2f} M parameters",
            "trained": f"{trainer.current_epoch} epochs, {trainer.global_step} steps, "
            f"{seconds / 60:.1f} minutes, {trainer.precision} on {device}",
        }
        self._speed(trainer, pl_module, seconds - self._validating - self._comparing)
        self.figures |= {"parameters": size * 1e6, "epochs": trainer.current_epoch}
        self.figures["minutes"] = seconds / 60
        for best in trainer.checkpoint_callbacks:
            if isinstance(best, BestCheckpoint) and best.best_model_score is not None:
                self.rows[f"best {best.monitor}"] = f"{best.best_model_score.item():.4f}"
        self._write(trainer, "summary")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._measured(trainer, "test")

    def _compare(self, trainer: Trainer) -> None:
        """Measure what the machine reaches at this moment, of all processes' devices."""
        if isinstance(trainer.strategy, (FSDPStrategy, ModelParallelStrategy)):
            return
        device = trainer.strategy.root_device
        start = perf_counter()
        dtype = torch.bfloat16 if "bf16" in str(trainer.precision) else torch.float32
        self._peaks.append(peak_flops(device, dtype) * trainer.world_size)
        self._compared = perf_counter()
        self._comparing += self._compared - start

    def _speed(self, trainer: Trainer, pl_module: Any, seconds: float) -> None:
        """Add images a second, and the share of the peak of all processes' devices."""
        images = self._images.total() / seconds
        self.rows["speed"] = f"{images:.0f} images/s"
        self.figures["images/s"] = images
        if not self._images or isinstance(trainer.strategy, (FSDPStrategy, ModelParallelStrategy)):
            return  # a process that has but a part of the weights cannot count
        device = pl_module.device
        with trainer.precision_plugin.forward_context():
            flops, pairs = {}, {}
            for shape in self._images:
                pair = trainer.precision_plugin.convert_input(torch.zeros(2, *shape, device=device))
                flops[shape] = forward_flops(pl_module.network, pair[:1])
                pairs[shape] = training_flops(pl_module.network, pair)
        work = sum(pairs[shape] * count for shape, count in self._images.items()) / 2
        teacher = getattr(pl_module, "teacher_flops", 0) * trainer.world_size
        self.rows["work"] = f"{(work + teacher) / 1e15:.3g} PFLOP"
        self.figures["pflop"] = (work + teacher) / 1e15
        if teacher:
            self.rows["work"] += f", {teacher / 1e15:.3g} of it the teacher's"
            self.figures["pflop teacher"] = teacher / 1e15
        peak = fmean(self._peaks)
        rate = 3 * sum(flops[shape] * count for shape, count in self._images.items()) / seconds
        full = flops[max(self._images, key=torch.Size.numel)]
        self.rows["network"] += f", {full / 1e9:.3f} GFLOP an image"
        self.rows["speed"] += f", {rate / 1e9:.0f} GF/s, {rate / peak:.0%} of {peak / 1e9:.0f}"
        self.figures |= {"flops": full, "flops/s": rate, "peak flops/s": peak}

    def _measured(self, trainer: Trainer, stage: str) -> None:
        """Add what was measured; the first number says of how many images."""
        strategy = trainer.strategy
        tested = torch.tensor(self._tested, dtype=torch.float32, device=strategy.root_device)
        images = round(float(strategy.reduce(tested, reduce_op="sum")))
        of = f" of {images} image{'' if images == 1 else 's'}"
        for key, name in METRICS.items():
            if f"{stage}/{key}" in trainer.callback_metrics:
                value = trainer.callback_metrics[f"{stage}/{key}"].item()
                self.rows[f"{stage} {name}"] = f"{value:.4f}{of}"
                self.figures[f"{stage}/{key}"] = value
                of = ""
        self._write(trainer, "summary" if "trained" in self.rows else stage)

    def _write(self, trainer: Trainer, name: str) -> None:
        if trainer.is_global_zero:
            text = StringIO()
            # In a notebook, rich would show the table and leave the file empty.
            console = Console(file=text, width=100, markup=False, force_jupyter=False)
            console.print(self.table())
            write_text(self.folder / f"{name}.txt", text.getvalue())
            figures = json.dumps(self.figures, indent=2)
            write_text(self.folder / f"{name}.json", figures + "\n")


class LearningCurves(Callback):
    """`folder`/learning_curves.png, drawn from the metrics.csv there when training ends.

    Args:
        folder: The run's folder.

    Examples:
        >>> from lightning.pytorch import Trainer
        >>> from vision_attn.training import LearningCurves
        >>> trainer = Trainer(callbacks=[LearningCurves("outputs/run")], logger=False)
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for logger in trainer.loggers:
            logger.save()
        metrics = self.folder / "metrics.csv"
        if trainer.is_global_zero and metrics.is_file():
            save(learning_curves(metrics), self.folder / "learning_curves.png")


class ConfusionMatrix(Callback):
    """`folder`/confusion_matrix.png, drawn from the predictions for the test images.

    Images that have any number of classes have none.

    Args:
        folder: The run's folder.

    Examples:
        >>> from lightning.pytorch import Trainer
        >>> from vision_attn.training import ConfusionMatrix
        >>> trainer = Trainer(callbacks=[ConfusionMatrix("outputs/run")], logger=False)
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.counts: MulticlassConfusionMatrix | None = None

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if batch[1].ndim == 2:
            return  # images of several classes: `PerClass` has them
        if self.counts is None:
            self.counts = MulticlassConfusionMatrix(outputs.shape[1]).to(outputs.device)
        self.counts.update(outputs, batch[1])

    def on_test_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        if self.counts is None:
            return
        counts = self.counts.compute().cpu().numpy()  # of all processes
        self.counts = None
        if trainer.is_global_zero:
            classes = pl_module.classes or [str(i) for i in range(len(counts))]
            save(confusion_matrix(counts, classes), self.folder / "confusion_matrix.png")


class PortableWeights(Callback):
    """The best weights as `folder`/best.safetensors, written when training ends.

    Names are the network's own; the checkpoint's entry "vision_attn" (classes, preprocessing) is in
    the metadata, as JSON.

    Args:
        folder: The run's folder.

    Examples:
        >>> from lightning.pytorch import Trainer
        >>> from vision_attn.training import BestCheckpoint, PortableWeights
        >>> callbacks = [BestCheckpoint("outputs/run"), PortableWeights("outputs/run")]
        >>> trainer = Trainer(callbacks=callbacks, logger=False)
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        best = best_checkpoint(trainer)
        if best is None or not trainer.is_global_zero:
            return
        checkpoint = torch.load(best, map_location="cpu", weights_only=True)
        weights = {
            name.removeprefix("network."): value.clone(memory_format=torch.contiguous_format)
            for name, value in checkpoint["state_dict"].items()
            if name.startswith("network.")
        }
        metadata = {"vision_attn": json.dumps(checkpoint["vision_attn"])}
        with replacing(self.folder / "best.safetensors") as file:
            file.write_bytes(as_safetensors(weights, metadata))  # save_file hides a full disk


class Predictions(Callback):
    """A CSV of file, most probable class and its probability; batches are (images, files).

    Args:
        path: The CSV file.

    Attributes:
        rows: Those of all processes, in the order of the loader's paths.

    Examples:
        >>> from lightning.pytorch import Trainer
        >>> from vision_attn.training import Predictions
        >>> trainer = Trainer(callbacks=[Predictions("predictions.csv")], logger=False)
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.rows: list[tuple[str, str, str]] = []

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        best = outputs.max(dim=1)
        names = [pl_module.classes[index] for index in best.indices.tolist()]
        probabilities = [f"{p:.4f}" for p in best.values.tolist()]
        self.rows += zip(batch[1], names, probabilities, strict=True)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.world_size > 1:
            shares: list[Any] = [None] * trainer.world_size
            distributed.all_gather_object(shares, self.rows)
            files: Any = trainer.predict_dataloaders
            order = {str(path): index for index, path in enumerate(files.paths)}
            rows = [row for share in shares for row in share]
            self.rows = sorted(rows, key=lambda row: order[row[0]])
        if not trainer.is_global_zero:
            return
        with (
            replacing(self.path) as part,
            part.open("w", newline="", encoding="utf-8", errors="replace") as file,
        ):
            csv.writer(file).writerows([("file", "class", "probability"), *self.rows])


class EpochLines(Callback):
    """A line of metrics an epoch, which stays on the screen.

    Examples:
        >>> from lightning.pytorch import Trainer
        >>> from vision_attn.training import EpochLines
        >>> trainer = Trainer(callbacks=[EpochLines()], logger=False)
    """

    def __init__(self) -> None:
        self._began = perf_counter()
        self._epoch: int | None = None  # the one whose line is still to come

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._print(trainer)  # only now has the epoch before been logged as a whole
        self._began, self._epoch = perf_counter(), trainer.current_epoch

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._print(trainer)

    def _print(self, trainer: Trainer) -> None:
        if self._epoch is None or not trainer.is_global_zero:
            return
        named = sorted(trainer.callback_metrics.items())
        shown = [
            f"{name} {value.item():.4f}"
            for name, value in named
            if name.partition("/")[2] in ("loss", "top1", "map", "exact", "token")
        ]
        of = f" of {trainer.max_epochs}" if (trainer.max_epochs or 0) > 0 else ""
        seconds = perf_counter() - self._began
        line = f"epoch {self._epoch + 1}{of}: {', '.join(shown)} ({seconds:.0f} s)"
        bar = trainer.progress_bar_callback
        if bar is not None and getattr(bar, "is_enabled", False):
            bar.print(line)
        else:
            print(line, flush=True)
        self._epoch = None


def faster(callbacks: Sequence[Callback] = ()) -> list[Callback]:
    """List the callbacks that make a run faster and change nothing else.

    Args:
        callbacks: The trainer's own; of a kind that is among them none is added.

    Returns:
        Those to add.
    """
    return _but_for(callbacks, [LeanLoop(), KeepMemory(), ThreadParallel()])


def run_callbacks(
    folder: str | Path,
    monitor: str = "val/top1",
    summary: Summary | None = None,
    callbacks: Sequence[Callback] = (),
) -> list[Callback]:
    """List what `vision-attn fit` adds to a trainer: checkpoints, pictures, summary in `folder`.

    Args:
        folder: The run's.
        monitor: The metric by which the best checkpoint is chosen.
        summary: Another than the usual.
        callbacks: The trainer's other callbacks; of a kind that is among them none is added.

    Returns:
        Those to add.
    """
    return [
        *faster(callbacks),
        *_but_for(
            callbacks,
            [
                summary or Summary(folder),
                LearningCurves(folder),
                ConfusionMatrix(folder),
                PerClass(folder),
                PortableWeights(folder),
                BestCheckpoint(folder, monitor),
                LastCheckpoint(folder),
            ],
        ),
    ]


def _but_for(callbacks: Sequence[Callback], usual: list[Callback]) -> list[Callback]:
    kinds = {type(callback) for callback in callbacks}
    return [callback for callback in usual if type(callback) not in kinds]
