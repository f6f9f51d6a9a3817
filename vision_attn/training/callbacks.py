"""What a run keeps while it goes: best.ckpt and last.ckpt, also when it is stopped or resumed."""

import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any, BinaryIO

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from vision_attn.files import replacing
from vision_attn.training.cpu.plan import in_channels_last

__all__ = ["BestCheckpoint", "ChannelsLast", "LastCheckpoint", "WholeFiles", "best_checkpoint"]


class WholeFiles(TorchCheckpointIO):
    """Checkpoints that are written beside their place, then moved there when they are whole.

    A kill or a full disk leaves the earlier checkpoint as it was. Lightning's own way moves the
    file out of the folder for temporary files, which from another disk is a copy. A file that
    cannot be written raises OSError, with the path.

    Examples:
        >>> import tempfile, torch
        >>> from vision_attn.training import WholeFiles
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     WholeFiles().save_checkpoint({"step": 3}, f"{folder}/last.ckpt")
        ...     torch.load(f"{folder}/last.ckpt")
        {'step': 3}
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        if "://" in str(path):  # a bucket, where a file appears whole or not at all
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        try:
            with replacing(path) as part, part.open("wb") as file:
                _save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OSError(
                f"{error}; the checkpoint before it is intact: continue from it with --ckpt_path"
            ) from error


def _save(checkpoint: dict[str, Any], file: BinaryIO) -> None:
    try:
        torch.save(checkpoint, file)
    except RuntimeError as error:  # torch's words for what the disk said
        raise OSError(str(error).splitlines()[0]) from error


class BestCheckpoint(ModelCheckpoint):
    """`folder`/best.ckpt: the weights with the best `monitor` so far.

    Without validation there is nothing to compare, and the best is the newest; of a run that ends
    before its first validation too.

    Args:
        folder: The run's folder.
        monitor: The name of a logged metric.
        mode: "max" where more is better, "min" where less is.

    Examples:
        >>> from vision_attn.training import BestCheckpoint
        >>> best = BestCheckpoint("outputs/run", monitor="val/loss", mode="min")
        >>> best.monitor, best.filename
        ('val/loss', 'best')
    """

    def __init__(self, folder: str | Path, monitor: str = "val/top1", mode: str = "max"):
        super().__init__(folder, "best", monitor=monitor, mode=mode, enable_version_counter=False)
        self._resumed: str | Path | None = None  # the checkpoint that the run goes on from

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        if not trainer.enable_validation or not sum(trainer.num_val_batches):
            self.monitor = None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        if trainer.global_step and not self.best_model_path:
            self.best_model_path = str(Path(self.dirpath or ".") / "best.ckpt")
            trainer.save_checkpoint(self.best_model_path)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        super().on_load_checkpoint(trainer, pl_module, checkpoint)
        self._resumed = trainer.ckpt_path

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the best checkpoint of the run that is resumed, into this run's folder.

        Where that run's folder was moved, it is the one beside the checkpoint that is resumed.
        """
        earlier = Path(state_dict["best_model_path"])
        score = state_dict["best_model_score"]
        if self._resumed is not None and not earlier.is_file():
            earlier = Path(self._resumed).with_name("best.ckpt")
        if score is None or not earlier.is_file():
            return
        best = str(Path(self.dirpath or ".") / "best.ckpt")
        if not Path(best).exists():
            Path(best).parent.mkdir(parents=True, exist_ok=True)
            with replacing(best) as copy:
                shutil.copyfile(earlier, copy)
        self.best_model_path = self.kth_best_model_path = best
        self.best_model_score = self.kth_value = score
        self.best_k_models = {best: score}


def best_checkpoint(trainer: Trainer) -> Path | None:
    """Find the file with the best weights of this run.

    Args:
        trainer: Lightning's.

    Returns:
        The file; None before there is one.
    """
    paths = [
        c.best_model_path for c in trainer.checkpoint_callbacks if isinstance(c, BestCheckpoint)
    ]
    return Path(paths[0]) if paths and paths[0] else None


class LastCheckpoint(ModelCheckpoint):
    """`folder`/last.ckpt: the state of the run after every epoch, and when Ctrl-C stops it.

    Ctrl-C takes effect after the step, so that what is saved is a whole number of steps; a second
    Ctrl-C stops at once and saves nothing. The state of torch's random numbers is saved too, so
    that a resumed run (of one process) goes on to the bit as if it had not been stopped, or killed.
    With it all checkpoints of the run are written as `WholeFiles`.

    Args:
        folder: Where the file lies; None: in the run's folder.
        every: Save after so many steps too, where an epoch is long.

    Raises:
        ValueError: `every` is below 1.

    Examples:
        >>> from lightning.pytorch import Trainer
        >>> from vision_attn.training import LastCheckpoint
        >>> trainer = Trainer(callbacks=[LastCheckpoint("outputs/run")], logger=False)
        >>> trainer.checkpoint_callbacks[0].filename
        'last'
    """

    def __init__(self, folder: str | Path | None = None, every: int | None = None):
        super().__init__(folder, "last", enable_version_counter=False)
        if every is not None and every < 1:
            raise ValueError(f"every must be at least 1 step, got {every}")
        self.every, self._saved = every, 0
        self._asked_to_stop = False
        self._handler: Any = None
        self._random: dict[str, Any] | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = WholeFiles()

    def state_dict(self) -> dict[str, Any]:
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return {"random": {"cpu": torch.get_rng_state(), "cuda": cuda}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._random = state_dict["random"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._saved = trainer.global_step
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGINT, self._ask_to_stop)
        if self._random is not None and trainer.world_size == 1:
            torch.set_rng_state(self._random["cpu"])
            if torch.cuda.is_available():  # with fewer GPUs, maybe, than where it was saved
                torch.cuda.set_rng_state_all(self._random["cuda"][: torch.cuda.device_count()])

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        stops = trainer.strategy.reduce_boolean_decision(self._asked_to_stop, all=False)
        accumulated = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if stops and (accumulated or trainer.is_last_batch):
            trainer.save_checkpoint(str(Path(self.dirpath or ".") / "last.ckpt"))
            raise KeyboardInterrupt
        if self.every and trainer.global_step >= self._saved + self.every:
            self._saved = trainer.global_step
            trainer.save_checkpoint(str(Path(self.dirpath or ".") / "last.ckpt"))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        validated_every = trainer.check_val_every_n_epoch
        if validated_every and (trainer.current_epoch + 1) % validated_every:  # not yet saved
            trainer.save_checkpoint(str(Path(self.dirpath or ".") / "last.ckpt"))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            self._handler = None

    def _ask_to_stop(self, signum: int, frame: Any) -> None:
        if self._asked_to_stop:
            raise KeyboardInterrupt
        self._asked_to_stop = True
        print("\nstopping after this step (Ctrl-C again: at once, without saving)")


class ChannelsLast(Callback):
    """Kernels in channels-last memory format.

    Convolutions then run channels-last from the first layer on: faster on most CPUs, and on GPUs in
    bfloat16. Without it `vision-attn fit` measures which format is faster (see `ExecutionPlan`).

    Examples:
        >>> from lightning.pytorch import Trainer
        >>> from vision_attn.training import ChannelsLast
        >>> trainer = Trainer(callbacks=[ChannelsLast()], logger=False)
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        in_channels_last(pl_module)
