"""fit, validate and test for sequences and questions: the same command line, another kind of run.

A config whose model has a class_path names a `Learner`; one without is of an image classifier.
"""

import logging
import warnings
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, WeightAveraging
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.loggers import CSVLogger, Logger
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from vision_attn.commands import lightning
from vision_attn.commands.lightning import Run, SavedConfig
from vision_attn.commands.training import values_of
from vision_attn.data import ExampleData
from vision_attn.training import (
    BestCheckpoint,
    LastCheckpoint,
    Learner,
    LearningCurves,
    PortableWeights,
    Summary,
)


def main(command: str, words: list[str]) -> int:
    if not names_a_learner(words):
        return lightning.main(command, words)
    try:
        return getattr(ExampleRun(command, words), command)() or 0
    except MisconfigurationException as error:
        raise ValueError(str(error)) from error


def names_a_learner(words: list[str]) -> bool:
    """Whether the config's model is a class of its own; a broken file is somebody else's error."""
    for path in values_of(words, "-c", "--config"):
        try:
            config = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError):
            return False
        if isinstance(config, dict) and "class_path" in (config.get("model") or {}):
            return True
    return False


class ExampleRun(Run):
    """A config made into a `Learner`, `ExampleData` and a trainer with a run folder."""

    model: Learner

    def __init__(self, command: str, words: list[str]):
        if command == "predict":
            raise ValueError(
                "predict names the class of images: the config is of sequences or questions"
            )
        self.command = command
        for name in ("lightning.pytorch", "lightning.fabric"):
            logging.getLogger(name).setLevel(logging.WARNING)
        for message in lightning.QUIET:
            warnings.filterwarnings("ignore", message)
        LightningCLI.__init__(
            self,
            Learner,
            ExampleData,
            subclass_mode_model=True,
            save_config_callback=None,
            trainer_defaults={"default_root_dir": "outputs", "enable_model_summary": False},
            seed_everything_default=0,
            parser_kwargs={"prog": f"vision-attn {command}", "exit_on_error": False},
            args=words,
            run=False,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
        )

    def instantiate_trainer(self, **changes: Any) -> Trainer:
        given = self.config_init.trainer
        if self.command != "fit":
            self.folder = Path(self.config.ckpt_path).parent
            self.summary = ExampleSummary(self.folder)
            return self._measuring_trainer(logger=False)
        self.logger = CSVLogger(given.default_root_dir, self.config.name)
        self.folder = Path(self.logger.log_dir)
        self.summary = ExampleSummary(self.folder)
        callbacks = lightning._listed(given.callbacks, Callback)
        if not given.fast_dev_run:
            callbacks += [SavedConfig(self.folder, self.config_text()), self.summary]
            callbacks += [LearningCurves(self.folder), PortableWeights(self.folder)]
            if given.enable_checkpointing is not False:
                best = BestCheckpoint(self.folder, self.model.monitor)
                callbacks += [best, LastCheckpoint(self.folder)]
        loggers = [self.logger, *lightning._listed(given.logger, Logger)]
        return LightningCLI.instantiate_trainer(self, logger=loggers, callbacks=callbacks)

    def _measuring_trainer(self, logger: Logger | bool) -> Trainer:
        """A trainer that reads weights and writes none."""
        given = lightning._listed(self.config_init.trainer.callbacks, Callback)
        kept = [c for c in given if not isinstance(c, (Checkpoint, WeightAveraging))]
        return LightningCLI.instantiate_trainer(
            self, logger=logger, callbacks=[*kept, self.summary], enable_checkpointing=False
        )


class ExampleSummary(Summary):
    """What came out, with every metric that a learner logs."""

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._images += len(batch[0]) * trainer.world_size

    def _speed(self, trainer: Trainer, pl_module: Any, images: float) -> None:
        self.rows["speed"] = f"{images:.0f} examples/s"
        self.figures["examples/s"] = images

    def _measured(self, trainer: Trainer, stage: str) -> None:
        for key, value in sorted(trainer.callback_metrics.items()):
            if key.startswith(f"{stage}/"):
                self.rows[key.replace("/", " ")] = f"{value.item():.4f}"
                self.figures[key] = value.item()
        self._write(trainer, "summary" if "trained" in self.rows else stage)
