"""How a run computes: by which plan, its own or the fastest here, and with how many threads.

A run begins with as many threads as have a core at that moment, and keeps them, whatever other
programs do later: so a run that is stopped and goes on ends with the same weights, to the bit.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, get_args

import torch
from lightning.pytorch import Callback, LightningDataModule
from torch import nn

from vision_attn.arguments import launched
from vision_attn.cores import WAITS, usable_cores, waits_are_set
from vision_attn.data import ImageData
from vision_attn.devices import Precision, native_precision
from vision_attn.models.checkpoint import read_file
from vision_attn.threads import threads_of_job
from vision_attn.training import (
    ChannelsLast,
    Compile,
    ImageClassifier,
    KeepThreads,
    Planned,
    ThreadParallel,
)
from vision_attn.training.cpu.plan import (
    MEMORY_FORMATS,
    ExecutionPlan,
    candidates,
    enough,
    fastest,
    recall,
    remember,
    remembered,
)
from vision_attn.training.cpu.threads import BATCH_NORMS, InParts
from vision_attn.training.flops import forward_flops

__all__ = ["Choice", "choose", "choose_threads", "computing", "is_alone"]

log = logging.getLogger(__name__)
WORTH = 5e12  # operations of a run that is worth measuring for: about half a minute


@dataclass(frozen=True)
class Choice:
    """A plan, and the images/s of all that were measured, none where nothing was.

    Examples:
        >>> from vision_attn.fitting.planning import Choice
        >>> from vision_attn.training import ExecutionPlan
        >>> half, whole = ExecutionPlan("bf16-mixed"), ExecutionPlan()
        >>> str(Choice(half, {half: 150.0, whole: 100.0})).partition("; ")[2]
        '1.50 times as fast as 32-true, contiguous, whole batches'
    """

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


def choose_threads(trainer: Any, config: int | None, checkpoint: str | None) -> int | None:
    """Find how many threads a run computes with; None where that is not to be chosen.

    That of the config, else of the checkpoint that the run goes on from, else as many as have a
    core now. On a GPU, and of several processes, it is left to torch and to Lightning. What slows
    the run down is logged: fewer threads than cores, and, once a process, threads that wait without
    sleeping. Raises ValueError for less than one.
    """
    if config is not None and config < 1:
        raise ValueError(f"--threads must be at least 1, got {config}")
    if config is None and not (is_alone(trainer) and _on_cpu(trainer)):
        return None
    kept = {"threads": config} if config else _state(checkpoint, KeepThreads)
    threads, cores = threads_of_job(kept), torch.get_num_threads()
    if threads < cores and kept != {"threads": threads}:
        log.warning(
            "other programs use this machine's cores: the run computes with %d of %d threads "
            "to its end, also if it is continued; --threads %d takes all",
            *(threads, cores, cores),
        )
    elif threads > max(cores, usable_cores()):
        log.warning(
            "%d threads, as the run began, on %d cores: --threads %d is faster, and rounds "
            "differently",
            *(threads, cores, cores),
        )
    if threads > 1 and not waits_are_set():
        _tell_of_waits()
    return threads


@cache
def _tell_of_waits() -> None:
    """Log it once a process: torch has read the environment, it cannot be changed any more."""
    log.warning(
        "beside other programs training is several times slower than it need be: torch's threads "
        "wait for each other without sleeping; set %s in the environment before Python starts",
        " ".join(f"{name}={value}" for name, value in WAITS.items()),
    )


def choose(
    model: Any,
    data: LightningDataModule,
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
    ThreadParallel): on a CPU, for a run of one process which is long enough to be worth it. Random
    numbers stay as they are.
    """
    if probe is False or precision not in (None, *get_args(Precision)):
        return None  # or a precision that is not measured
    known = probe if isinstance(probe, ExecutionPlan) else _of_checkpoint(checkpoint)
    if known is not None:
        return Choice(_as_given(known, callbacks, precision))
    if checkpoint is not None or not isinstance(data, ImageData):
        return None
    if not _is_measured(model, trainer, callbacks):
        return None
    try:
        with torch.random.fork_rng([]):
            return _measured(model.network, data, trainer, callbacks, precision)
    except Exception:  # of the data or the network: training meets it too, and says what it is
        return None


def computing(plan: ExecutionPlan, model: nn.Module, given: Sequence[Callback]) -> list[Callback]:
    """List the callbacks by which a run computes as planned, but for kinds given.

    Batch norms keep training batches whole in any case: only evaluation is divided then, as usual.
    """
    normed = any(isinstance(module, BATCH_NORMS) for module in model.modules())
    if normed or any(isinstance(callback, ThreadParallel) for callback in given):
        return [Planned(plan)]
    return [Planned(plan), ThreadParallel(plan.parts)]


def _as_given(
    plan: ExecutionPlan, callbacks: Sequence[Callback], precision: str | None
) -> ExecutionPlan:
    """The plan, but for what the explicit options say."""
    changes: dict[str, Any] = {} if precision is None else {"precision": precision}
    for given in callbacks:
        if isinstance(given, ChannelsLast):
            changes["memory_format"] = "channels_last"
        if isinstance(given, ThreadParallel):
            changes["parts"] = given.threads or torch.get_num_threads()
    return replace(plan, **changes)


def _measured(
    network: nn.Module,
    data: ImageData,
    trainer: Any,
    callbacks: Sequence[Callback],
    precision: str | None,
) -> Choice | None:
    """The fastest plan, measured now or earlier; None for a run that is too short."""
    data.prepare_data()
    size = (3, *data.splits.train.size)
    if _operations(network, data, trainer, size) < WORTH:
        return None
    plans, in_parts = _open(network, callbacks, precision)
    if len(plans) == 1:
        return Choice(plans[0])
    file = remembered(network, size, data.batch_size, plans)
    if (earlier := recall(file)) in plans:
        return Choice(earlier)
    count = enough(network, size, data.batch_size)
    images = torch.rand(count, *size, dtype=torch.float32, device="cpu")
    choice = Choice(*fastest(network, images, plans, in_parts=in_parts))
    remember(file, choice.plan, choice.speeds)
    return choice


def _of_checkpoint(path: str | None) -> ExecutionPlan | None:
    kept = _state(path, Planned)
    try:
        return ExecutionPlan(**kept) if isinstance(kept, dict) else None
    except (TypeError, ValueError):
        return None


def _state(path: str | None, callback: type[Callback]) -> Any:
    """What a callback has left in a checkpoint; None without either."""
    states = None if path is None else read_file(path).get("callbacks")
    return states.get(callback.__qualname__) if isinstance(states, dict) else None


def is_alone(trainer: Any) -> bool:
    """Whether these options of a trainer make one process."""
    gpus = torch.cuda.device_count() if trainer.accelerator in ("auto", "gpu", "cuda") else 0
    devices = max(1, gpus) if trainer.devices in ("auto", -1, "-1") else trainer.devices
    alone = trainer.num_nodes == 1 and devices in (1, "1") and trainer.strategy == "auto"
    return alone and launched()[1] == 1


def _is_measured(model: Any, trainer: Any, callbacks: Sequence[Callback]) -> bool:
    """Whether this is one process that trains on a CPU, as the network is written."""
    compiled = any(isinstance(callback, Compile) for callback in callbacks)
    return (
        is_alone(trainer)
        and _on_cpu(trainer)
        and not compiled
        and isinstance(model, ImageClassifier)
    )


def _on_cpu(trainer: Any) -> bool:
    gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    return trainer.accelerator == "cpu" or (trainer.accelerator == "auto" and not gpu)


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
    return (
        3.0
        * images
        * forward_flops(network, torch.zeros(1, *size, dtype=torch.float32, device="cpu"))
        if images
        else 0.0
    )


def _open(
    network: nn.Module, callbacks: Sequence[Callback], precision: str | None
) -> tuple[list[ExecutionPlan], Callable[[int], InParts]]:
    """The plans that explicit options leave open, the usual one first; how to divide a batch."""
    native = native_precision("cpu")
    precisions: list[Any] = [precision] if precision else list(dict.fromkeys([native, "32-true"]))
    formats: Sequence[str] = MEMORY_FORMATS
    if any(isinstance(callback, ChannelsLast) for callback in callbacks):
        formats = ("channels_last",)
    for given in callbacks:
        if isinstance(given, ThreadParallel):
            plans = candidates(network, precisions, formats)
            parts = given.threads or torch.get_num_threads()
            divide = partial(InParts, batch_norms=given.batch_norms, least=given.least)
            return [replace(plan, parts=parts) for plan in plans], divide
    counts = list(dict.fromkeys([torch.get_num_threads(), 1]))
    return candidates(network, precisions, formats, counts), InParts
