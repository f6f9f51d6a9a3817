"""What every network trained here has: an optimiser, a schedule, a loss that is watched."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from vision_attn.training.parameters import parameter_groups
from vision_attn.training.schedules import CosineDecay


class NonFiniteLoss(ValueError):
    """The loss is no longer a number; raised before the weights change."""


class Trained(LightningModule):
    """A network, its optimiser and its schedule; see `ImageClassifier` and `Learner`.

    optimizer: called with the parameter groups (see `parameter_groups`), any torch optimiser.
    schedule: called with the optimiser and the number of steps of the run; stepped every step.
    layer_decay: how much slower each layer learns than the one above it, 1: as fast.

    monitor: the metric that the best checkpoint has most of.
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
        schedule = self.schedule(optimizer, int(steps))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def finite(self, loss: Tensor, name: str) -> Tensor:
        """The loss; NonFiniteLoss, with what to do, where it is nan or infinite."""
        if torch.isfinite(loss):
            return loss
        savers = [c for c in self.trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint)]
        kept = [saver.best_model_path for saver in savers if saver.best_model_path]
        raise NonFiniteLoss(
            f"{name} is {loss.item()} at step {self.global_step}, epoch {self.current_epoch}; "
            + (f"the last good checkpoint is {kept[-1]}" if kept else "no checkpoint was made yet")
            + ". Lower the learning rate, warm up for longer, or clip gradients "
            "(--trainer.gradient_clip_val 1)"
        )
