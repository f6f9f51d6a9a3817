"""The base of all training modules: optimiser, schedule, epoch means, a check of the loss."""

from collections.abc import Callable
from math import isfinite
from time import perf_counter
from typing import Any, ClassVar

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from vision_attn.training.cpu.fused import align_moments, fuse_on_cpu
from vision_attn.training.parameters import parameter_groups
from vision_attn.training.schedules import CosineDecay

__all__ = ["NonFiniteLoss", "TrainingModule", "at_least_float32"]


def at_least_float32(logits: Tensor) -> Tensor:
    """Widen a network's half-precision outputs, in which a loss would be coarse.

    Examples:
        >>> import torch
        >>> from vision_attn.training.module import at_least_float32
        >>> [at_least_float32(torch.ones(1, dtype=d)).dtype for d in (torch.half, torch.double)]
        [torch.float32, torch.float64]
    """
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


class NonFiniteLoss(ValueError):
    """A loss that is nan or infinite; raised before the weights change.

    Examples:
        >>> from vision_attn.training import NonFiniteLoss
        >>> issubclass(NonFiniteLoss, ValueError)
        True
    """


class TrainingModule(LightningModule):
    """A network, its optimiser and its schedule: the base of `ImageClassifier` and `Learner`.

    A subclass has a `training_step`. `log_mean` logs a metric once an epoch; `finite` checks a
    loss.

    Args:
        network: What learns.
        optimizer: Called with the parameter groups (see `parameter_groups`), any torch optimiser.
        schedule: Called with the optimiser and the number of steps of the run; stepped every step.
        layer_decay: How much slower each layer learns than the one above it, 1: as fast.

    Attributes:
        monitor: The metric by which the best checkpoint is chosen.

    Examples:
        >>> from torch import nn
        >>> from vision_attn.training import TrainingModule
        >>> class Reconstruction(TrainingModule):
        ...     def training_step(self, images, batch_idx):
        ...         loss = nn.functional.mse_loss(self.network(images), images)
        ...         self.log_mean("loss", loss, len(images))
        ...         return self.finite(loss, "loss")
        >>> Reconstruction(nn.Conv2d(3, 3, 1)).layer_decay
        1.0
    """

    monitor: ClassVar[str]

    def __init__(
        self,
        network: nn.Module,
        optimizer: Callable[[list[dict[str, Any]]], Optimizer] = AdamW,
        schedule: Callable[[Optimizer, int], LRScheduler] = CosineDecay,
        layer_decay: float = 1.0,
    ):
        super().__init__()
        self.network = network
        self.optimizer = optimizer
        self.schedule = schedule
        self.layer_decay = layer_decay
        self._sums: dict[str, tuple[Tensor | float, int]] = {}  # sums over the epoch, and of what
        self._shown = 0.0  # when the progress bar last got a loss

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        steps = self.trainer.estimated_stepping_batches
        if steps == float("inf"):
            raise ValueError(
                "a schedule needs to know how long the run is: give trainer.max_epochs or "
                "trainer.max_steps (a time limit alone does not say how many steps fit in)"
            )
        optimizer = self.optimizer(parameter_groups(self.network, self.layer_decay))
        for group in optimizer.param_groups:
            group["lr"] *= group.get("lr_scale", 1.0)
        fuse_on_cpu(optimizer)
        schedule = self.schedule(optimizer, int(steps))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def log_mean(self, name: str, mean: Tensor, count: int) -> None:
        """Add to a training metric's mean over the epoch, which is logged as train/name.

        The loss of a step, in this process, is logged as train/loss_step where the logger writes
        it, and twice a second for the progress bar: not in every step, as Lightning's `log` takes
        0.4 ms, which a small step feels.

        Args:
            name: Of the metric.
            mean: Its mean in this step.
            count: Of how many things that is the mean.
        """
        total, counted = self._sums.get(name, (0.0, 0))
        self._sums[name] = (total + mean.detach() * count, counted + count)
        if name == "loss":
            trainer, now = self.trainer, perf_counter()
            every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
            written = every and (self.global_step + 1) % every == 0
            if written or now - self._shown > 0.5:
                self._shown = now
                self.log("train/loss_step", mean, prog_bar=True, on_epoch=False, batch_size=count)

    def on_train_start(self) -> None:
        for optimizer in self.trainer.optimizers:
            align_moments(optimizer)

    def on_train_epoch_start(self) -> None:
        self._sums, self._shown = {}, 0.0

    def on_train_epoch_end(self) -> None:
        for name, (total, count) in self._sums.items():
            shown = f"train/{name}" in (self.monitor, "train/loss")
            mean = total / count
            self.log(f"train/{name}", mean, prog_bar=shown, batch_size=count, sync_dist=True)

    def finite(self, loss: Tensor, name: str) -> Tensor:
        """Return the loss if it is finite.

        Args:
            loss: One number.
            name: What the message calls it.

        Raises:
            NonFiniteLoss: It is nan or infinite; the message says what to do.
        """
        if isfinite(loss.item()):
            return loss
        if self.trainer.state.fn != "fit":
            raise NonFiniteLoss(
                f"{name} is {loss.item()}: the checkpoint's weights, or the images, give numbers "
                "that are not finite; --trainer.precision 32-true has the widest range"
            )
        savers = [c for c in self.trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint)]
        checkpoints = [saver.best_model_path for saver in savers if saver.best_model_path]
        raise NonFiniteLoss(
            f"{name} is {loss.item()} at step {self.global_step}, epoch {self.current_epoch}; "
            + (
                f"the last good checkpoint is {checkpoints[-1]}"
                if checkpoints
                else "no checkpoint was made yet"
            )
            + ". Lower the learning rate, warm up for longer, or clip gradients "
            "(--trainer.gradient_clip_val 1)"
        )
