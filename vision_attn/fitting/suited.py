"""Callbacks of Lightning that cannot do their work in a run of vision-attn, and what does it."""

from collections.abc import Iterable

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import BackboneFinetuning, LearningRateFinder, SpikeDetection

__all__ = ["check_suited"]

UNSUITED: dict[type[Callback], str] = {
    LearningRateFinder: "sets one rate for all weights, which the schedule sets anew in each step: "
    "vision_attn.training.LearningRateRangeTest suggests a factor for the rates of the config",
    BackboneFinetuning: "needs a module with a part named backbone: "
    "vision_attn.training.LinearProbe trains the classifier alone, --model.layer_decay 0.75 lets "
    "early layers change less",
    SpikeDetection: "cannot read its own state from a checkpoint: leave it out; a loss that is not "
    "finite ends a run in any case",
}


def check_suited(callbacks: Iterable[Callback]) -> None:
    """Raise ValueError for a callback that would fail or do nothing, with what to take instead."""
    for callback in callbacks:
        for kind, reason in UNSUITED.items():
            if isinstance(callback, kind):
                raise ValueError(f"trainer.callbacks: {kind.__name__} {reason}")
