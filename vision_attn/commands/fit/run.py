"""fit, validate, test and predict: Lightning's command line around ImageClassifier and ImageData.

One command, one parser: Lightning's own subcommands are not used, so that a saved config.yaml can
be read again by every command and by `Run` itself. Wrong words raise ValueError.
"""

import argparse
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, WeightAveraging
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger, Logger
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from rich import print as rich_print

from vision_attn import models  # noqa: F401  so that a config may say ViT for vision_attn.models.ViT
from vision_attn.commands.fit.messages import check_yaml, readable
from vision_attn.commands.fit.words import values_of
from vision_attn.data import ImageData
from vision_attn.models.checkpoint import load_weights, read_file
from vision_attn.training import (
    BestCheckpoint,
    ConfusionMatrix,
    ImageClassifier,
    KeepMemory,
    LastCheckpoint,
    LeanLoop,
    LearningCurves,
    PortableWeights,
    Predictions,
    Summary,
    ThreadParallel,
    best_checkpoint,
    native_precision,
)

QUIET = (  # what Lightning and jsonargparse warn of and a user need not know
    r"\s*By default only one JsonargparseDeprecationWarning per type",
    r"\s*``instantiate_classes`` was deprecated",
    r".*isinstance\(treespec, LeafSpec\)",
    "The number of training batches .* is smaller than the logging interval",
    "Precision bf16-mixed is not supported by the model summary",
    "Total length of `list` across ranks is zero",  # no validation images
    "Be aware that when using `ckpt_path`, callbacks used to create the checkpoint need",
)


def main(command: str, words: list[str], kind: type["Run"]) -> int:
    try:
        return getattr(kind(command, words), command)() or 0
    except MisconfigurationException as error:
        raise ValueError(str(error)) from error


class Run(LightningCLI):
    """A config and command-line words made into a network, data and a trainer with a run folder.

    any_model: the config names the model's class, one of `model_type`'s subclasses.
    """

    model_type: ClassVar[type[LightningModule]] = ImageClassifier
    data_type: ClassVar[type[LightningDataModule]] = ImageData
    summary_type: ClassVar[type[Summary]] = Summary
    any_model: ClassVar[bool] = False

    def __init__(self, command: str, words: list[str]):
        self.command = command
        logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
        logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
        for message in QUIET:
            warnings.filterwarnings("ignore", message)
        super().__init__(
            self.model_type,
            self.data_type,
            subclass_mode_model=self.any_model,
            save_config_callback=None,
            trainer_defaults={"default_root_dir": "outputs", "enable_model_summary": False},
            seed_everything_default=0,
            parser_kwargs={"prog": f"vision-attn {command}", "exit_on_error": False},
            args=words,
            run=False,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--name", type=str | None, help="of the run's folder")
        parser.add_argument("--ckpt_path", type=str | None, help="the checkpoint to start from")
        if self.command == "predict":
            parser.add_argument("--images", nargs="+", action="extend", help="files and folders")
            parser.add_argument("--output", type=str | None, help="the CSV file to write")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        for config in values_of(args, "-c", "--config"):
            check_yaml(config)
        try:
            self.config = parser.parse_args(args)
        except argparse.ArgumentError as error:
            raise ValueError(readable(str(error), parser)) from error

    def before_instantiate_classes(self) -> None:
        """Fill in what depends on the config's file and on the machine."""
        config = self.config
        config.name = config.name or Path(str((config.config or ["run"])[-1])).stem
        if config.trainer.precision is None:
            config.trainer.precision = native_precision(config.trainer.accelerator)
        if self.command == "predict":
            config.data.predict = config.images or config.data.predict
            if not config.data.predict:
                raise ValueError("no image to predict: --images FILE_OR_FOLDER ...")

    def instantiate_classes(self) -> None:
        """Options are judged by their classes here, in lists within jsonargparse's own words."""
        try:
            super().instantiate_classes()
        except ValueError as error:
            raise ValueError(readable(str(error), self.parser)) from error

    def instantiate_trainer(self, **changes: Any) -> Trainer:
        given = self.config_init.trainer
        if self.command != "fit":
            self.folder = Path(self.config.ckpt_path).parent
            self.summary = self.summary_type(self.folder)
            return self._measuring_trainer(logger=False)
        self.logger = CSVLogger(given.default_root_dir, self.config.name)
        self.folder = Path(self.logger.log_dir)
        self.summary = self.summary_type(self.folder)
        callbacks = _with_usual(given.callbacks)
        if not given.fast_dev_run:
            callbacks += [SavedConfig(self.folder, self.config_text()), self.summary]
            callbacks += [LearningCurves(self.folder), PortableWeights(self.folder)]
            if given.enable_checkpointing is not False:
                best = BestCheckpoint(self.folder, self.model.monitor)
                callbacks += [best, LastCheckpoint(self.folder)]
        loggers = [self.logger, *_listed(given.logger, Logger)]
        return super().instantiate_trainer(logger=loggers, callbacks=callbacks)

    def _measuring_trainer(self, logger: Logger | bool) -> Trainer:
        """A trainer that reads weights and writes none."""
        given = _with_usual(self.config_init.trainer.callbacks)
        kept = [c for c in given if not isinstance(c, (Checkpoint, WeightAveraging))]
        return super().instantiate_trainer(
            logger=logger,
            callbacks=[*kept, self.summary, *self.measures()],
            enable_checkpointing=False,
        )

    def measures(self) -> list[Callback]:
        """What is written of test images and predictions, besides the summary."""
        self.predictions = Predictions(self.config.get("output") or self.folder / "predictions.csv")
        return [ConfusionMatrix(self.folder), self.predictions]

    def config_text(self) -> str:
        """The config as it runs, every default written out, but for a checkpoint to start from."""
        config = self.config.clone()
        del config["ckpt_path"], config["config"]
        return self.parser.dump(config, skip_unset=False)

    def fit(self) -> None:
        start = self.config.ckpt_path
        if start:
            self._check_fits(start)
        network = type(self.model.network).__name__
        self._say(f"[bold]{self.folder}[/]: {network}, {self.config.trainer.precision}")
        try:
            self.trainer.fit(
                self.model, datamodule=self.datamodule, ckpt_path=start, weights_only=True
            )
        except SystemExit as stop:  # so Lightning ends a fit that Ctrl-C stopped
            last = self.folder / "last.ckpt"
            go_on = f"; go on with: vision-attn fit --ckpt_path {last}" if last.is_file() else ""
            raise KeyboardInterrupt(f" at step {self.trainer.global_step}{go_on}") from stop
        except ValueError:
            if self.folder.is_dir() and not any(self.folder.iterdir()):  # the data did not load
                self.folder.rmdir()
            raise
        best = best_checkpoint(self.trainer)
        if best is not None and len(self.datamodule.splits.test):
            trainer = self._measuring_trainer(self.logger)
            trainer.test(
                self.model,
                datamodule=self.datamodule,
                ckpt_path=best,
                verbose=False,
                weights_only=True,
            )
        self._say(self.summary.table())

    def validate(self) -> None:
        self._measure(self.trainer.validate)

    def test(self) -> None:
        self._measure(self.trainer.test)

    def _measure(self, measure: Callable[..., Any]) -> None:
        self._check_fits(self.config.ckpt_path)
        measure(
            self.model,
            datamodule=self.datamodule,
            ckpt_path=self.config.ckpt_path,
            verbose=False,
            weights_only=True,
        )
        self._say(self.summary.table())

    def predict(self) -> int:
        """Status 1 where an image could not be read; each such image has had its line."""
        self._check_fits(self.config.ckpt_path)
        self.trainer.predict(
            self.model,
            datamodule=self.datamodule,
            ckpt_path=self.config.ckpt_path,
            return_predictions=False,
            weights_only=True,
        )
        if self.trainer.is_global_zero:
            print(f"{len(self.predictions.rows)} predictions: {self.predictions.path}")
        files: Any = self.trainer.predict_dataloaders
        failed = self.trainer.strategy.reduce_boolean_decision(bool(files.failed), all=False)
        return 1 if failed else 0

    def _say(self, what: Any) -> None:
        """Of several processes, one speaks."""
        if self.trainer.is_global_zero:
            rich_print(what)

    def _check_fits(self, path: str) -> None:
        """Raises ModelError, in one line, where the checkpoint is damaged or of another network."""
        checkpoint = read_file(path)
        if "vision_attn" not in checkpoint:
            raise ValueError(f"{path}: expected a checkpoint of vision-attn fit, got another kind")
        load_weights(self.model, checkpoint["state_dict"], path)


class SavedConfig(Callback):
    """Writes the config that a run was made from as `folder`/config.yaml."""

    def __init__(self, folder: Path, text: str):
        self.path, self.text = folder / "config.yaml", text

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(self.text, encoding="utf-8")


def _with_usual(given: Any) -> list[Callback]:
    """The callbacks that were given, and those that make a run faster and change nothing else."""
    callbacks = _listed(given, Callback)
    told = any(isinstance(callback, ThreadParallel) for callback in callbacks)
    return [*callbacks, LeanLoop(), KeepMemory(), *([] if told else [ThreadParallel()])]


def _listed(given: Any, kind: type) -> list[Any]:
    """What a trainer option holds as a list: nothing, one, many, or true and false for defaults."""
    many = given if isinstance(given, list) else [given]
    return [item for item in many if isinstance(item, kind)]
