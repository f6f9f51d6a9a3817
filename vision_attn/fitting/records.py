"""What a run watches and writes of itself: its start, its config, its metrics."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor

from vision_attn.files import write_text

__all__ = ["Begun", "RunLogger", "SavedConfig"]

ELEMENTWISE = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg"}


class Begun(Callback):
    """Whether the trainer has read the checkpoint, and a batch has been done with it.

    Examples:
        >>> from vision_attn.fitting.records import Begun
        >>> Begun().begun
        False
    """

    def __init__(self) -> None:
        self.begun = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A fused optimizer writes beyond an average that is smaller than its weights."""
        for optimizer in trainer.optimizers:
            for weights, state in optimizer.state.items():
                for name, value in state.items():
                    if not isinstance(value, Tensor):
                        continue
                    if value.layout != torch.strided or value.is_meta:
                        raise TypeError(f"{name} of the optimizer is a sparse or empty tensor")
                    if name in ELEMENTWISE and value.shape != weights.shape:
                        shapes = f"{tuple(value.shape)} for weights of {tuple(weights.shape)}"
                        raise TypeError(f"{name} of the optimizer is of {shapes}")

    def on_train_batch_end(self, *args: Any) -> None:
        self.begun = True

    def on_test_start(self, *args: Any) -> None:
        self.begun = True

    def on_predict_start(self, *args: Any) -> None:
        self.begun = True

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.begun |= trainer.state.fn == "validate"


class SavedConfig(Callback):
    """The config that a run was made from, written as `folder`/config.yaml.

    Examples:
        >>> from pathlib import Path
        >>> from vision_attn.fitting.records import SavedConfig
        >>> SavedConfig(Path("run"), "seed_everything: 3").path.name
        'config.yaml'
    """

    def __init__(self, folder: Path, text: str):
        self.path, self.text = folder / "config.yaml", text

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path, self.text)


class RunLogger(CSVLogger):
    """`folder`/metrics.csv, in which a test has the epoch and step of the weights it measured.

    measured_at: that epoch and step; a trainer that only tests knows of none.

    Examples:
        >>> from pathlib import Path
        >>> from vision_attn.fitting.records import RunLogger
        >>> RunLogger(Path("outputs/vit/version_3")).version
        'version_3'
    """

    def __init__(self, folder: Path):
        version = folder.name
        super().__init__(folder.parent.parent, folder.parent.name, version)
        self.measured_at: tuple[int, int] | None = None

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        if self.measured_at and any(name.startswith("test/") for name in metrics):
            epoch, step = self.measured_at
            metrics = {**metrics, "epoch": epoch}
        super().log_metrics(metrics, step)
