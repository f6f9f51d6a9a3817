"""A config made into a network, data and a trainer: Lightning's command line, called from Python.

One parser for every command: Lightning's own subcommands are not used, so that a saved config.yaml
can be read again by each of them. Nothing here prints; what a user got wrong raises ValueError.
"""

import argparse
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

import torch
from jsonargparse import ArgumentParser, Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, WeightAveraging
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins import Precision as PrecisionPlugin
from lightning.pytorch.strategies import Strategy
from rich.table import Table

from vision_attn.compat.jsonargparse_private import classes_first, whole_numbers_first
from vision_attn.data import ImageData
from vision_attn.errors import ModelError
from vision_attn.fitting.budget import check_minutes, length_of
from vision_attn.fitting.configs import NEWEST, without
from vision_attn.fitting.failures import instantiated, made, needs_package, one_line
from vision_attn.fitting.finished import finished
from vision_attn.fitting.folders import (
    checked_name,
    claimed,
    leave_nothing,
    newest,
    versions,
    writes_files,
)
from vision_attn.fitting.kinds import check_classes, check_files, names_kind
from vision_attn.fitting.messages import readable
from vision_attn.fitting.planning import Choice, choose, choose_threads, computing
from vision_attn.fitting.records import Begun, RunLogger, SavedConfig
from vision_attn.fitting.suited import check_options, check_suited
from vision_attn.models.checkpoint import ENTRY, load_weights, read_file, unpack
from vision_attn.models.checkpoint import Checkpoint as Saved
from vision_attn.models.shelf import is_shelved, shelved
from vision_attn.threads import computing_with
from vision_attn.training import (
    ConfusionMatrix,
    ExecutionPlan,
    ImageClassifier,
    KeepThreads,
    LastCheckpoint,
    PerClass,
    Predictions,
    Summary,
    best_checkpoint,
    faster,
    native_precision,
    run_callbacks,
)
from vision_attn.training.cpu.threads import BATCH_NORMS

__all__ = ["TrainingRun"]

UNTOLD = "Unable to serialize instance "  # so jsonargparse begins what it writes out as text
QUIET = (  # what Lightning and jsonargparse warn of and a user need not know
    r"\s*By default only one JsonargparseDeprecationWarning per type",
    r".*isinstance\(treespec, LeafSpec\)",
    "The number of training batches .* is smaller than the logging interval",
    "Precision bf16-mixed is not supported by the model summary",
    "Total length of `list` across ranks is zero",  # no validation images
    "Be aware that when using `ckpt_path`, callbacks used to create the checkpoint need",
)


class TrainingRun(LightningCLI):
    """A config and command-line words made into a network, data and a trainer with a run folder.

    Made by `make_run`.

    Attributes:
        folder: Where the run's files go; None for a fast_dev_run, which has none.
        threads: How many torch computes with; None leaves that to torch.
        any_model: Whether the config names the model's class, one of `model_type`'s subclasses.

    Examples:
        >>> import tempfile
        >>> from vision_attn.fitting.making import make_run
        >>> words = ["--config", "vit_planted", "--data.source.train=40"]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = make_run("fit", [*words, f"--trainer.default_root_dir={folder}"])
        ...     type(run.model.network).__name__, run.trainer.max_epochs > 0
        ('ViT', True)
    """

    model_type: ClassVar[type[LightningModule]] = ImageClassifier
    data_type: ClassVar[type[LightningDataModule]] = ImageData
    summary_type: ClassVar[type[Summary]] = Summary
    any_model: ClassVar[bool] = False

    def __init__(
        self,
        command: str,
        words: list[str],
        *,
        infer_classes: bool = False,
        show: Sequence[Callback] = (),
        allow: Sequence[str] = (),
    ):
        self.command = command
        self.begun = Begun()
        self.folder: Path | None = None
        self.show = list(show)
        self.allow = allow
        self.infer_classes = infer_classes
        self.choice: Choice | None = None
        self.threads: int | None = None
        self.notes: list[str] = []  # what a person should know of the run before it starts
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
        whole_numbers_first(parser)
        classes_first(parser, "trainer.strategy", "trainer.accelerator")
        parser.add_argument("--name", type=str | None, help="of the run's folder")
        parser.add_argument("--ckpt_path", type=str | None, help="the checkpoint to start from")
        parser.add_argument(
            "--probe",
            type=bool | ExecutionPlan,
            default=True,
            help="measure first which number format, memory format and division of batches trains "
            "fastest on this CPU; false: take the usual ones",
        )
        parser.add_argument(
            "--threads",
            type=int | None,
            help="how many threads compute on a CPU (default: those of the run that is continued, "
            "else as many as other programs leave cores for at the start)",
        )
        parser.add_argument(
            "--minutes",
            type=float | None,
            help="train for about so many minutes, in place of trainer.max_epochs: the first steps "
            "are timed, and as many epochs are planned as fit into the time",
        )
        if self.command == "predict":
            parser.add_argument("--images", nargs="+", action="extend", help="files and folders")
            parser.add_argument("-o", "--output", type=str | None, help="the CSV file to write")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        try:
            self.config = parser.parse_args(args)
        except argparse.ArgumentError as error:
            raise ValueError(readable(str(error), parser)) from error
        except RecursionError:
            raise ValueError("a value is nested too deeply, or contains itself") from None
        check_classes(self.config, parser, self.allow)
        check_files(self.config, without(args))

    def before_instantiate_classes(self) -> None:
        """Fill in what depends on the config's file, on the machine and on the data."""
        config = self.config
        config.name = checked_name(config.name or Path(str((config.config or ["run"])[-1])).stem)
        config.trainer.accelerator = _by_name(config.trainer.accelerator)
        check_options(self.command, config)
        self.given_precision = config.trainer.precision
        if names_kind(config.trainer.plugins, PrecisionPlugin):
            self.given_precision = "a plugin's"
        elif config.trainer.precision is None:
            accelerator = config.trainer.accelerator
            name = accelerator if isinstance(accelerator, str) else "auto"
            config.trainer.precision = native_precision(name)
        given_path = config.ckpt_path
        if config.ckpt_path == "auto":
            config.ckpt_path = self._last_or_none()
        if config.ckpt_path in NEWEST:
            config.ckpt_path = str(newest(self._runs, f"{config.ckpt_path}.ckpt"))
        if config.minutes is not None:
            check_minutes(self.command, config)
        if self.command == "fit" and config.ckpt_path and not is_shelved(config.ckpt_path):
            self._note_finished(config, restarted=given_path == "auto")
        if self.command == "fit" and is_shelved(config.ckpt_path):
            raise ValueError(
                f"--ckpt_path {config.ckpt_path}: it has no training state to continue from: start "
                f"from its weights with --model.weights {config.ckpt_path}"
            )
        if self.command == "predict":
            config.data.predict = config.images or config.data.predict
            if not config.data.predict:
                raise ValueError("no image to predict: --images FILE_OR_FOLDER ...")
            if lost := [path for path in config.data.predict if not Path(path).exists()]:
                raise ValueError(f"--images {lost[0]}: no such file or folder: check the path")
        if self.infer_classes:
            self._infer_classes()
        start = config.ckpt_path if self.command == "fit" else None
        self.threads = config.threads = choose_threads(config.trainer, config.threads, start)

    def _note_finished(self, config: Namespace, restarted: bool) -> None:
        """Raise ValueError where nothing is left to train; in a restarted job, note it."""
        if not (done := finished(config.ckpt_path, config.trainer)):
            return
        if not restarted:
            raise ValueError(f"--ckpt_path {config.ckpt_path}: {done}")
        self.notes.append(f"{config.ckpt_path}: {done}; it is tested once more")

    def _infer_classes(self) -> None:
        """Give the network as many classes as the data have; left out of the config, it has none.

        A checkpoint says how many without them.
        """
        network = self.config.get("model.network")
        options = getattr(network, "init_args", None)
        if self.any_model or options is None or "num_classes" not in options:
            return
        if self.command != "fit":
            classes = unpack(self.config.ckpt_path).about.get("classes")
            options.num_classes = len(classes) if isinstance(classes, list) else 0
            return
        parser = ArgumentParser(exit_on_error=False)
        parser.add_class_arguments(self.data_type, "data")
        data = instantiated(parser, Namespace(data=self.config.data)).data
        if writes_files():
            data.prepare_data()
        options.num_classes = len(data.classes)

    @property
    def _runs(self) -> Path:
        """Where the runs of this name have their version folders."""
        name: str = self.config.name
        return Path(self.config.trainer.default_root_dir or "outputs") / name

    def _last_or_none(self) -> str | None:
        """The newest last.ckpt, for a job that is started again and again until it is done."""
        if self.command != "fit":
            raise ValueError(f"--ckpt_path auto goes with fit: {self.command} needs best or last")
        found = versions(self._runs, "last.ckpt")
        return str(found[-1]) if found else None

    def instantiate_classes(self) -> None:
        """Make the objects.

        Raises:
            ValueError: A class refuses its options; one line, with what it says of them.
        """
        with computing_with(self.threads):
            self.config_init = instantiated(self.parser, self.config)
            self.datamodule, self.model = self.config_init.data, self.config_init.model
            with made():
                self.trainer = self.instantiate_trainer()

    def instantiate_trainer(self, **changes: Any) -> Trainer:
        given = self.config_init.trainer
        if self.command != "fit":
            self.folder = self._measured_folder()
            self.summary = self.summary_type(self.folder)
            return self._measuring_trainer(logger=False)
        check_suited(_listed(given.callbacks, Callback))
        if given.fast_dev_run:
            callbacks = [*_listed(given.callbacks, Callback), *self.show]
            return self._trainer(callbacks=[*callbacks, *faster(callbacks)])
        self.folder = claimed(self._runs)
        try:
            return self._fitting_trainer(given)
        except BaseException:
            leave_nothing(self.folder)
            raise

    def _measured_folder(self) -> Path:
        """Beside the checkpoint; what is measured of the shelf goes where runs go."""
        path = self.config.ckpt_path
        if not is_shelved(path):
            return Path(path).parent
        folder = Path(self.config.trainer.default_root_dir) / shelved(path).name
        if writes_files():
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _fitting_trainer(self, given: Any) -> Trainer:
        assert self.folder is not None
        self.logger = RunLogger(self.folder)
        self.summary = self.summary_type(self.folder)
        callbacks = [*_listed(given.callbacks, Callback), *self.show]
        if given.barebones:
            raise ValueError(
                "trainer.barebones: a run logs and keeps checkpoints, which barebones forbids: "
                "leave it out, or try the network with --trainer.fast_dev_run true"
            )
        self._note_batch_norms()
        callbacks += self._planned(callbacks)
        if self.config.minutes is not None:
            self._set_length(self.config.minutes, callbacks)
        callbacks += [] if self.threads is None else [KeepThreads(self.threads)]
        callbacks += [SavedConfig(self.folder, self.config_text())]
        for callback in callbacks:
            if isinstance(callback, LastCheckpoint) and callback.dirpath is None:
                callback.dirpath = str(self.folder)
        usual = run_callbacks(self.folder, self.model.monitor, self.summary, callbacks)
        if given.enable_checkpointing is False:
            usual = [c for c in usual if not isinstance(c, Checkpoint)]
        loggers = [self.logger, *_listed(given.logger, Logger)]
        return self._trainer(logger=loggers, callbacks=[*callbacks, *usual])

    def _planned(self, callbacks: Sequence[Callback]) -> list[Callback]:
        """Choose how to compute, write it into the config, and return the callbacks that do it."""
        config = self.config
        self.choice = choose(
            self.model,
            self.datamodule,
            config.trainer,
            callbacks,
            probe=self.config_init.probe,
            precision=self.given_precision,
            checkpoint=config.ckpt_path,
        )
        if self.choice is None:
            return []
        plan = self.choice.plan
        config.probe = Namespace(asdict(plan))
        config.trainer.precision = self.config_init.trainer.precision = plan.precision
        self.summary.rows["computed"] = str(self.choice)
        return computing(plan, self.model, callbacks)

    def _note_batch_norms(self) -> None:
        normed = any(isinstance(module, BATCH_NORMS) for module in self.model.modules())
        if normed and self.datamodule.batch_size == 1:
            self.notes.append(
                "data.batch_size 1: in training each batch norm takes one image's own means, in "
                "evaluation running ones, which differ: 8 or more images a batch are usual"
            )

    def _set_length(self, minutes: float, callbacks: Sequence[Callback]) -> None:
        """Measure how many epochs fit into the minutes, and write them into the config."""
        shown = self.config_init.trainer
        given = shown.max_epochs or 0  # -1: without end, which counts as Lightning's default does
        shown.max_epochs = self.config.trainer.max_epochs = given if given > 0 else 1000
        kept = [callback for callback in callbacks if callback not in self.show]
        length = length_of(
            minutes,
            self.model,
            self.datamodule,
            [*kept, *faster(kept)],
            self._trainer,
            shown.max_epochs,
        )
        length.write(self.config)
        length.write(self.config_init)
        self.config.minutes = None
        self.summary.rows["planned"] = f"{length}, for {minutes:g} min"

    def _trainer(self, **changes: Any) -> Trainer:
        """Lightning's trainer; ValueError, with the options, for a device that is not there."""
        changes["callbacks"] = [*(changes.get("callbacks") or []), self.begun]
        if isinstance(strategy := self.config_init.trainer.strategy, Strategy):
            changes["strategy"] = deepcopy(strategy)  # which its trainer writes to
        try:
            return super().instantiate_trainer(**changes)
        except ValueError:
            raise
        except Exception as error:
            given = self.config.trainer
            if needed := needs_package(error):
                raise ValueError(f"an option of the trainer {needed}") from error
            message = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(
                f"--trainer.accelerator {given.accelerator}, --trainer.devices {given.devices}: "
                f"{message}"
            ) from error

    def _measuring_trainer(self, logger: Logger | bool) -> Trainer:
        """A trainer that reads weights and writes none."""
        given = _listed(self.config_init.trainer.callbacks, Callback)
        kept = [c for c in given if not isinstance(c, (Checkpoint, WeightAveraging))]
        return self._trainer(
            logger=logger,
            callbacks=[*kept, *faster(kept), self.summary, *self.measures()],
            enable_checkpointing=False,
        )

    def measures(self) -> list[Callback]:
        """What is written of test images and predictions, besides the summary."""
        assert self.folder is not None
        self.predictions = Predictions(self.config.get("output") or self.folder / "predictions.csv")
        return [ConfusionMatrix(self.folder), PerClass(self.folder), self.predictions]

    def config_text(self) -> str:
        """Write out the config as it runs, with every default, but no checkpoint to start from."""
        config = self.config.clone()
        del config["ckpt_path"], config["config"], config["minutes"]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", rf"\s*{UNTOLD}")
            text: str = self.parser.dump(_without_enums(config), skip_unset=False)
        return text.replace(UNTOLD, "")  # of a value that also may be a class, such as a device

    def heading(self) -> str:
        """Say in a line where the run goes, which network it is of, and in which number format."""
        where = str(self.folder or "fast_dev_run, which leaves no files")
        how = self.choice.plan if self.choice else self.trainer.precision
        on = "" if self.threads is None else f", threads: {self.threads}"
        return f"{where}: {type(self.model.network).__name__}, {how}{on}"

    def table(self) -> Table | None:
        """The summary as a table; None for a run that has none."""
        return self.summary.table() if self.folder else None

    def fit(self) -> None:
        """Train the network, and test its best weights once at the end.

        KeyboardInterrupt says how to go on; a run that fails before it has written anything but its
        config leaves no folder.
        """
        with computing_with(self.threads):
            self._fit(self.config.ckpt_path)
            self._test_best()

    def _fit(self, start: str | None) -> None:
        try:
            with one_line():
                if start:
                    self._check_fits(start)
                    self._check_resumes(start)
                with self._restoring(start):
                    self.trainer.fit(
                        self.model, datamodule=self.datamodule, ckpt_path=start, weights_only=True
                    )
        except SystemExit as stop:  # so Lightning ends a fit that Ctrl-C stopped
            raise KeyboardInterrupt(self._go_on()) from stop
        except BaseException:
            leave_nothing(self.folder)
            raise

    def _test_best(self) -> None:
        best = best_checkpoint(self.trainer)
        if best is not None and len(self.datamodule.splits.test):
            self.logger.measured_at = _epoch_and_step(best)
            self._measuring_trainer(self.logger).test(
                self.model,
                datamodule=self.datamodule,
                ckpt_path=best,
                verbose=False,
                weights_only=True,
            )

    def _go_on(self) -> str:
        """Where training stopped, and the command that goes on from there."""
        stopped = f" at step {self.trainer.global_step}"
        if self.folder is None or not (self.folder / "last.ckpt").is_file():
            leave_nothing(self.folder)
            return stopped
        words = f"--config {self.folder / 'config.yaml'} --ckpt_path {self.folder / 'last.ckpt'}"
        return f"{stopped}; continue with: vision-attn fit {words}"

    def validate(self) -> None:
        """Measure the checkpoint on the validation images."""
        self._measure(self.trainer.validate)

    def test(self) -> None:
        """Measure the checkpoint on the test images."""
        self._measure(self.trainer.test)

    def _measure(self, measure: Callable[..., Any]) -> None:
        with one_line(), computing_with(self.threads):
            start = self._restored()
            with self._restoring(start):
                measure(
                    self.model,
                    datamodule=self.datamodule,
                    ckpt_path=start,
                    verbose=False,
                    weights_only=True,
                )

    def predict(self) -> bool:
        """Name the class of each image; return whether all could be read."""
        with one_line(), computing_with(self.threads):
            start = self._restored()
            with self._restoring(start):
                self.trainer.predict(
                    self.model,
                    datamodule=self.datamodule,
                    ckpt_path=start,
                    return_predictions=False,
                    weights_only=True,
                )
        files: Any = self.trainer.predict_dataloaders
        return not self.trainer.strategy.reduce_boolean_decision(bool(files.failed), all=False)

    @contextmanager
    def _restoring(self, path: str | None) -> Iterator[None]:
        """Until the first batch is done, an error is the checkpoint's: a ModelError in one line."""
        try:
            yield
        except (ValueError, OSError, MemoryError, MisconfigurationException):
            raise
        except Exception as error:
            if path is None or self.begun.begun or "allocate" in str(error):
                raise
            message = " ".join(f"{type(error).__name__}: {error}".split())
            raise ModelError(
                f"{path}: its training state is damaged, or was written by another version of "
                f"Lightning ({message}): take an earlier checkpoint"
            ) from error

    @staticmethod
    def _check_resumes(path: str) -> None:
        """Raises ModelError where a checkpoint lacks what a run needs to go on."""
        kinds = {"epoch": int, "global_step": int, "loops": dict}
        contents = read_file(path)
        kinds |= {"optimizer_states": list, "lr_schedulers": list}
        for name, kind in kinds.items():
            if not isinstance(contents.get(name), kind):
                raise ModelError(
                    f"{path}: its training state is damaged: {name} is not a {kind.__name__}; "
                    "take an earlier checkpoint"
                )

    def _check_fits(self, path: str) -> Saved:
        """Raises ModelError, in one line, where the checkpoint is damaged or of another network."""
        saved = unpack(path)
        module: Any = self.model
        load_weights(module.network if is_shelved(path) else module, saved.weights, path)
        return saved

    def _restored(self) -> str | None:
        """Load the checkpoint's weights; return the file for Lightning to read the rest from.

        None for a network of the shelf, which has no such file: here is all that there is of it.
        """
        path: str = self.config.ckpt_path
        saved = self._check_fits(path)
        if not is_shelved(path):
            return path
        if self.command != "predict":
            self.datamodule.prepare_data()
            self.datamodule.setup(self.command)
        classes = shelved(path).values["data"].get("classes", saved.about["classes"])
        state = {"classes": classes, "preprocess": saved.about["preprocess"], "place": None}
        self.datamodule.load_state_dict(state)
        self.model.on_load_checkpoint({ENTRY: saved.about})
        return None


def _epoch_and_step(path: Path) -> tuple[int, int]:
    """When a checkpoint was written, as the rows of metrics.csv count: from 0."""
    saved = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return saved["epoch"], saved["global_step"] - 1


def _without_enums(config: Any) -> Any:
    """The config with the text of what Lightning has as both text and a member of an enum."""
    if isinstance(config, Namespace):
        for name, value in vars(config).items():
            vars(config)[name] = _without_enums(value)
    elif isinstance(config, list):
        return [_without_enums(item) for item in config]
    elif isinstance(config, str) and isinstance(config, Enum):
        return config.value
    return config


def _by_name(accelerator: Any) -> Any:
    """One of Lightning's accelerators by its name, where it is named by its class."""
    path = getattr(accelerator, "class_path", "").rpartition(".")[2]
    names = {"CPUAccelerator": "cpu", "CUDAAccelerator": "cuda", "MPSAccelerator": "mps"}
    return names.get(path, accelerator)


def _listed(given: Any, kind: type) -> list[Any]:
    """What a trainer option holds as a list: nothing, one, many, or true and false for defaults."""
    many = given if isinstance(given, list) else [given]
    return [item for item in many if isinstance(item, kind)]
