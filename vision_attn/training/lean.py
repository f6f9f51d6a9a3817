"""Lightning's loop without the work that serves nobody."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.profilers import PassThroughProfiler

NOTHING = nullcontext()
ASK_NVIDIA = "PYTORCH_NVML_BASED_CUDA_CHECK"

# What Lightning calls at every step, in each callback and in the module, whether or not it does
# anything there.
STEP_HOOKS = (
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
)


class NothingMeasured(PassThroughProfiler):
    """No profile. Lightning's own enters and leaves a generator for each of 150 actions a step."""

    def profile(self, action_name: str) -> AbstractContextManager[None]:  # type: ignore[override]
        return NOTHING


class LeanLoop(Callback):
    """A fit without Lightning's empty profiler, empty hooks, and look for GPUs at every step.

    Hooks: one that is None is passed over by Lightning; here those are of callbacks and the module
    that nobody has filled (`STEP_HOOKS`). After the fit all are as before.

    GPUs: Lightning has torch ask the NVIDIA library whether there is one, which spares processes
    that fork; the optimiser asks at every step. Where there is none, torch's own answer is as good
    and costs nothing. A profiler that was asked for stays. The command line always adds this.
    """

    def __init__(self) -> None:
        self._silenced = False
        self._emptied: list[tuple[object, str]] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        its: Any = trainer
        if type(its.profiler) is PassThroughProfiler:
            its.profiler = NothingMeasured()
        if os.environ.get(ASK_NVIDIA) == "1" and not torch.cuda.is_available():
            os.environ[ASK_NVIDIA], self._silenced = "0", True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._emptied = list(empty_hooks(trainer, pl_module))
        for owner, hook in self._emptied:
            setattr(owner, hook, None)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for owner, hook in self._emptied:
            if vars(owner).get(hook, ()) is None:
                delattr(owner, hook)
        self._emptied = []

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.on_train_end(trainer, pl_module)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.on_train_end(trainer, pl_module)
        if self._silenced:
            os.environ[ASK_NVIDIA], self._silenced = "1", False


def empty_hooks(trainer: Trainer, module: LightningModule) -> Iterator[tuple[object, str]]:
    """Each callback, or the module, with the name of a hook that it has only inherited."""
    owners = [(callback, Callback) for callback in trainer.callbacks]  # type: ignore[attr-defined]
    for owner, base in [*owners, (module, LightningModule)]:
        for hook in STEP_HOOKS:
            if getattr(getattr(owner, hook), "__func__", None) is getattr(base, hook):
                yield owner, hook
