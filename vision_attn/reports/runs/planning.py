"""By which plan a run computes: its config's, its checkpoint's, or the fastest on this machine."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import torch
from lightning.pytorch import Callback
from torch import Tensor, nn

from vision_attn.data import ImageData
from vision_attn.devices import Precision, native_precision
from vision_attn.models.checkpoint import read_file
from vision_attn.training import ChannelsLast, Compile, ImageClassifier, Planned, ThreadParallel
from vision_attn.training.flops import forward_flops
from vision_attn.training.plan import (
    MEMORY_FORMATS,
    ExecutionPlan,
    candidates,
    enough,
    fastest,
    recall,
    remember,
    remembered,
)
from vision_attn.training.threads import InParts
from vision_attn.types import Images

__all__ = ["Choice", "choose"]

WORTH = 5e12  # operations of a run that is worth measuring for: about half a minute


@dataclass(frozen=True)
class Choice:
    """A plan, and the images/s of all that were measured, none where nothing was."""

    plan: ExecutionPlan
    speeds: dict[ExecutionPlan, float] = field(default_factory=dict)

    def __str__(self) -> str:
        """The plan, and how many times as fast as each other it was."""
        others = [
            f"{self.speeds[self.plan] / speed:.2f} times as fast as {plan}"
            for plan, speed in self.speeds.items()
            if plan != self.plan
        ]
        return "; ".join([str(self.plan), *others])


def choose(
    model: Any,
    data: ImageData,
    trainer: Any,
    callbacks: Sequence[Callback],
    *,
    probe: bool | ExecutionPlan,
    precision: str | None,
    checkpoint: str | None,
) -> Choice | None:
    """Find the plan of a run; None where the usual rules are to hold.

    A plan that the config has is taken, and of a run that goes on that of its checkpoint. Else the
    plans are measured which the explicit options leave open (precision, ChannelsLast,
    ThreadParallel): on a CPU, for a run of one process which is long enough to be worth it.
    """
    known = probe if isinstance(probe, ExecutionPlan) else _of_checkpoint(checkpoint)
    if precision not in (None, *get_args(Precision)):
        return None  # one that is not measured
    if known is not None:
        return Choice(known if precision is None else replace(known, precision=precision))
    if not probe or checkpoint is not None or not _is_measured(model, trainer, callbacks):
        return None
    size = (3, *data.input_size)
    if _operations(model.network, data, trainer, size) < WORTH:
        return None
    plans, call = _open(model.network, callbacks, precision)
    if len(plans) == 1:
        return Choice(plans[0])
    file = remembered(model.network, size, data.batch_size, plans)
    if (earlier := recall(file)) in plans:
        return Choice(earlier)
    images = torch.rand(enough(model.network, size, data.batch_size), *size)
    choice = Choice(*fastest(model.network, images, plans, call=call))
    remember(file, choice.plan, choice.speeds)
    return choice


def _of_checkpoint(path: str | None) -> ExecutionPlan | None:
    if path is None:
        return None
    state = read_file(path).get("callbacks")
    kept = state.get(Planned.__qualname__) if isinstance(state, dict) else None
    try:
        return ExecutionPlan(**kept) if isinstance(kept, dict) else None
    except (TypeError, ValueError):
        return None


def _is_measured(model: Any, trainer: Any, callbacks: Sequence[Callback]) -> bool:
    """Whether this is one process that trains on a CPU, as the network is written."""
    alone = trainer.num_nodes == 1 and trainer.devices in ("auto", 1, "1", -1, "-1")
    alone &= trainer.strategy == "auto" and int(os.environ.get("WORLD_SIZE", 1)) == 1
    gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    on_cpu = trainer.accelerator == "cpu" or (trainer.accelerator == "auto" and not gpu)
    compiled = any(isinstance(callback, Compile) for callback in callbacks)
    return alone and on_cpu and not compiled and isinstance(model, ImageClassifier)


def _operations(network: nn.Module, data: ImageData, trainer: Any, size: Sequence[int]) -> float:
    """About how many operations the whole training takes."""
    images: float = len(data.splits.train)
    limit = trainer.limit_train_batches
    if isinstance(limit, float):
        images *= limit
    elif limit is not None:
        images = min(images, limit * data.batch_size)
    epochs = trainer.max_epochs if trainer.max_epochs is not None else 1000
    images = float("inf") if epochs < 0 else images * epochs
    if trainer.max_steps >= 0:
        images = min(images, trainer.max_steps * data.batch_size)
    return 3.0 * images * forward_flops(network, torch.zeros(1, *size)) if images else 0.0


def _open(
    network: nn.Module, callbacks: Sequence[Callback], precision: str | None
) -> tuple[list[ExecutionPlan], Callable[[nn.Module, Images], Tensor] | None]:
    """The plans that explicit options leave open, the usual one first, and how to call a network.

    None calls it as each plan says.
    """
    native = native_precision("cpu")
    precisions: list[Any] = [precision] if precision else list(dict.fromkeys([native, "32-true"]))
    formats: Sequence[str] = MEMORY_FORMATS
    if any(isinstance(callback, ChannelsLast) for callback in callbacks):
        formats = ("channels_last",)
    for given in callbacks:
        if isinstance(given, ThreadParallel):
            parts = given.threads or torch.get_num_threads()
            call = InParts(parts, given.batch_norms, given.least)
            plans = candidates(network, precisions, formats)
            return [replace(plan, threads=parts) for plan in plans], call
    threads = list(dict.fromkeys([torch.get_num_threads(), 1]))
    return candidates(network, precisions, formats, threads), None
