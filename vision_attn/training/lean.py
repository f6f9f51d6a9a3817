"""Lightning's loop without the work that serves nobody."""

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.profilers import PassThroughProfiler

__all__ = ["LeanLoop"]

NOTHING = nullcontext()
ASK_NVIDIA = "PYTORCH_NVML_BASED_CUDA_CHECK"


class NothingMeasured(PassThroughProfiler):
    """No profile, at no cost: Lightning's own opens a generator for each of 150 actions a step."""

    def profile(self, action_name: str) -> AbstractContextManager[None]:  # type: ignore[override]
        return NOTHING


class LeanLoop(Callback):
    """Training without Lightning's empty profiler and without a look for GPUs at every step.

    Lightning has torch query the NVIDIA library for a GPU, which spares processes that fork; the
    optimiser repeats that at every step. Where there is none, torch's own answer is as good and
    costs nothing. A profiler that the user chose stays. The command line always adds this.

    Examples:
        >>> from lightning.pytorch import Trainer
        >>> from vision_attn.training import LeanLoop
        >>> trainer = Trainer(callbacks=[LeanLoop()], logger=False)
    """

    def __init__(self) -> None:
        self._silenced = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        its: Any = trainer  # mypy does not see what the trainer's parts set on it
        if type(its.profiler) is PassThroughProfiler:
            its.profiler = NothingMeasured()
        if os.environ.get(ASK_NVIDIA) == "1" and not torch.cuda.is_available():
            os.environ[ASK_NVIDIA], self._silenced = "0", True

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._silenced:
            os.environ[ASK_NVIDIA], self._silenced = "1", False

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.teardown(trainer, pl_module, "")
