"""A learning rate range test before a run."""

from copy import deepcopy
from itertools import islice, pairwise
from math import isfinite
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from vision_attn.training.module import at_least_float32
from vision_attn.training.parameters import parameter_groups

__all__ = ["LearningRateRangeTest"]


class LearningRateRangeTest(Callback):
    """A printed suggestion by what factor to multiply the learning rates; then training as usual.

    A copy of the network is trained at rising multiples of the rates of the config, in equal
    ratios, all groups together, so that Muon's and AdamW's keep their proportion. The suggestion is
    where the smoothed loss falls fastest for a step in ratio (Smith 2017, as fastai has it).
    Lightning's LearningRateFinder gives every group one rate, and a schedule that is stepped with
    the batches undoes what it found.

    Args:
        steps: How many steps the copy is trained.
        low: The multiple of the first step.
        high: The multiple of the last step.

    Raises:
        ValueError: There are less than 10 steps, or the bounds do not rise from above 0.

    Examples:
        >>> from vision_attn.training import LearningRateRangeTest
        >>> test = LearningRateRangeTest(steps=61, low=1e-3, high=1e3)
        >>> [round(test.factor(step), 3) for step in (0, 20, 30, 60)]
        [0.001, 0.1, 1.0, 1000.0]
    """

    def __init__(self, steps: int = 60, low: float = 1e-3, high: float = 30.0) -> None:
        if steps < 10 or not 0 < low < high:
            raise ValueError(
                f"expected at least 10 steps and 0 < low < high, got {steps} steps, {low}, {high}"
            )
        self.steps, self.low, self.high = steps, low, high
        self.suggestion: float | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        random = torch.get_rng_state()
        self.suggestion = self._best(self._losses(trainer, pl_module))
        torch.set_rng_state(random)
        if trainer.is_global_zero:
            factor = "the loss never fell" if self.suggestion is None else f"{self.suggestion:.2g}"
            print(f"learning rates: suggested factor {factor}")

    def factor(self, step: int) -> float:
        """The factor of all rates at a step.

        Args:
            step: From 0 to `steps` - 1.
        """
        return self.low * (self.high / self.low) ** (step / (self.steps - 1))

    def _losses(self, trainer: Trainer, pl_module: Any) -> list[float]:
        """The loss before each step, until it is four times the least one."""
        network = deepcopy(pl_module.network).train()
        optimizer = pl_module.optimizer(parameter_groups(network, pl_module.layer_decay))
        rates = [group["lr"] * group.get("lr_scale", 1.0) for group in optimizer.param_groups]
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        loader = data.batches_apart()
        losses: list[float] = []
        while len(losses) < self.steps:
            for batch in islice(loader, self.steps - len(losses)):
                images, labels = data.for_training(batch.to(pl_module.device))
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * self.factor(len(losses))
                optimizer.zero_grad()
                precision = trainer.precision_plugin
                with precision.forward_context():
                    logits = at_least_float32(network(precision.convert_input(images)))
                    loss = pl_module.loss(logits, labels)
                losses.append(loss.item())
                if not isfinite(losses[-1]) or losses[-1] > 4 * min(losses):
                    return losses
                loss.backward()
                optimizer.step()
        return losses

    def _best(self, losses: list[float]) -> float | None:
        """Where the loss, averaged over 5 steps, falls most."""
        means = [sum(losses[i : i + 5]) / 5 for i in range(len(losses) - 4)]
        falls = [later - sooner for sooner, later in pairwise(means)]
        if not falls or not min(falls) < 0:
            return None
        return self.factor(falls.index(min(falls)) + 2)
