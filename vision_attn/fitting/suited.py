"""Options of Lightning that cannot do their work in a run of vision-attn, and what does it."""

import re
from collections.abc import Iterable
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BaseFinetuning,
    LearningRateFinder,
    SpikeDetection,
    StochasticWeightAveraging,
)
from lightning.pytorch.plugins import DeepSpeedPrecision
from lightning.pytorch.strategies import ModelParallelStrategy, StrategyRegistry
from torch.optim.lr_scheduler import ReduceLROnPlateau

from vision_attn.errors import quoted
from vision_attn.fitting.kinds import names_kind
from vision_attn.fitting.messages import nearest

__all__ = ["check_options", "check_suited"]

UNSUITED: dict[type[Callback], str] = {
    LearningRateFinder: "sets one rate for all weights, which the schedule sets anew in each step: "
    "vision_attn.training.LearningRateRangeTest suggests a factor for the rates of the config",
    BackboneFinetuning: "needs a module with a part named backbone: "
    "vision_attn.training.LinearProbe trains the classifier alone, --model.layer_decay 0.75 lets "
    "early layers change less",
    BaseFinetuning: "does not say what it trains: vision_attn.training.LinearProbe trains the "
    "classifier alone",
    StochasticWeightAveraging: "averages when the last checkpoint is written, so that best.ckpt "
    "never has the average: --trainer.callbacks+=EMAWeightAveraging",
    SpikeDetection: "cannot read its own state from a checkpoint: leave it out; a loss that is not "
    "finite ends a run in any case",
}


def check_suited(callbacks: Iterable[Callback]) -> None:
    """Raise ValueError for a callback that would fail or do nothing, with what to take instead."""
    for callback in callbacks:
        for kind, reason in UNSUITED.items():
            bare = kind is not BaseFinetuning or type(callback) is kind
            if bare and isinstance(callback, kind):
                raise ValueError(f"trainer.callbacks: {kind.__name__} {reason}")


def check_options(command: str, config: Any) -> None:
    """Raise ValueError for options of a config that Lightning fails on, or passes over."""
    trainer = config.trainer
    if names_kind(config.get("model.schedule"), ReduceLROnPlateau):
        raise ValueError(
            "model.schedule: ReduceLROnPlateau follows a metric, and schedules here follow steps: "
            "take vision_attn.training.CosineDecay"
        )
    if (steps := trainer.accumulate_grad_batches) < 1:
        raise ValueError(f"--trainer.accumulate_grad_batches must be at least 1, got {steps}")
    nothing = [name for name in ("max_epochs", "limit_train_batches") if trainer[name] == 0]
    if command == "fit" and nothing:
        raise ValueError(f"--trainer.{nothing[0]} 0 trains nothing: give more than 0")
    _check_strategy(trainer.strategy, trainer.devices)
    if names_kind(trainer.plugins, DeepSpeedPrecision) and "deepspeed" not in str(trainer.strategy):
        raise ValueError(
            "trainer.plugins: DeepSpeedPrecision goes with --trainer.strategy deepspeed: give "
            "--trainer.precision alone"
        )


def _check_strategy(strategy: Any, devices: Any) -> None:
    names = ["auto", *StrategyRegistry.available_strategies()]
    if isinstance(strategy, str) and strategy not in names:
        raise ValueError(
            f"--trainer.strategy {quoted(strategy)}: there is no such strategy"
            f"{nearest(strategy, names) or ': for several processes take ddp or fsdp2'}"
        )
    started = (getattr(strategy, "init_args", None) or {}).get("start_method", "popen")
    if started != "popen" or re.search("spawn|fork|notebook", str(strategy)):
        raise ValueError(
            "trainer.strategy: a run's figures would end with processes that are spawned or forked "
            "(ddp_spawn, ddp_fork, ddp_notebook): take --trainer.strategy ddp"
        )
    if strategy == "single_xla":
        raise ValueError("--trainer.strategy single_xla runs on a TPU alone: leave it out")
    if strategy == "single_device" and devices not in ("auto", 1, "1"):
        raise ValueError(
            f"--trainer.strategy single_device takes one device, --trainer.devices is {devices}: "
            "give ddp, or 1"
        )
    if getattr(strategy, "class_path", "").endswith(f".{ModelParallelStrategy.__name__}"):
        raise ValueError(
            "trainer.strategy: ModelParallelStrategy does not say how weights are divided: "
            "--trainer.strategy fsdp2 is one that does"
        )
