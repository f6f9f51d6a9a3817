"""How many epochs of training fit into some minutes, measured in a rehearsal of a few seconds.

The rehearsal is the training itself, on copies: the network, its batches and their augmentation,
its callbacks, computed as the run will be. It leaves no files, and random numbers stay as they are.
"""

from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ProgressBar
from lightning.pytorch.loggers.logger import DummyLogger

from vision_attn.data import ProgressiveResizing
from vision_attn.fitting.planning import is_alone

__all__ = ["Length", "check_minutes", "length_of"]

MANY = 5  # epochs, of which the part of one more is left out
FIRST = 2  # steps that make kernels and room, and are not counted
LEAST = 3  # steps that are
SECONDS = 5.0  # of steps with images of each size, or less,
PART = 0.1  # of the minutes
VALIDATED = 4  # batches
TRAINING = 0.97  # of the minutes; the rest is for what comes between epochs


@dataclass(frozen=True)
class Length:
    """How long a training is: some epochs.

    Attributes:
        batches: Of each, where these are not all there are.

    Examples:
        >>> from vision_attn.fitting.budget import Length
        >>> print(Length.of(epochs=7.9, batches=100))
        7 epochs
        >>> print(Length.of(epochs=1.5, batches=100))
        2 epochs of 75 batches
    """

    epochs: int
    batches: int | None = None

    @classmethod
    def of(cls, epochs: float, batches: int) -> "Length":
        """Fill so many epochs: with whole ones, or where they are few with shorter ones."""
        if epochs >= MANY:
            return cls(int(epochs))
        whole = ceil(epochs)
        return cls(whole, max(1, int(batches * epochs / whole)))

    def __str__(self) -> str:
        epochs = f"{self.epochs} epoch{'s' if self.epochs > 1 else ''}"
        return epochs if self.batches is None else f"{epochs} of {self.batches} batches"

    def write(self, config: Any) -> None:
        """Write it into a run's config, before or after its classes are made."""
        before = config.trainer.max_epochs
        config.trainer.max_epochs = self.epochs
        if self.batches is not None:
            config.trainer.limit_train_batches = self.batches
        for resizing in resizings(config.data):
            resizing.epochs = [round(one * self.epochs / before) for one in resizing.epochs]


@dataclass
class Clock(Callback):
    """Ends a training after some seconds, and knows how long its steps took."""

    limit: float  # seconds
    ends: list[float] = field(default_factory=list)  # of training steps, the start first
    validated: list[float] = field(default_factory=list)  # seconds of each batch
    batches: int = 0  # of an epoch
    begun: float = 0.0
    prepared: float = 0.0  # seconds before the first step: a teacher's answers

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.begun = perf_counter()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.batches = int(trainer.num_training_batches)
        self.ends.append(perf_counter())
        self.prepared = self.ends[0] - self.begun

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self.ends.append(perf_counter())
        counted = self.ends[FIRST:]
        if len(counted) > LEAST and counted[-1] - counted[0] > self.limit:
            trainer.should_stop = True

    def on_validation_batch_start(self, *_: Any) -> None:
        self.begun = perf_counter()

    def on_validation_batch_end(self, *_: Any) -> None:
        self.validated.append(perf_counter() - self.begun)

    def seconds(self, validated: int) -> float:
        """How long an epoch takes that ends with so many batches of validation."""
        ends = self.ends[FIRST:] if len(self.ends) > FIRST + 1 else self.ends
        step = median(after - before for before, after in pairwise(ends))
        return step * self.batches + validated * (median(self.validated) if self.validated else 0)


def check_minutes(command: str, config: Any) -> None:
    """Raise ValueError if a run's length cannot be measured."""
    if config.minutes <= 0:
        raise ValueError(f"--minutes {config.minutes:g}: expected a number of minutes above 0")
    if command != "fit" or config.ckpt_path is not None:
        raise ValueError(
            "--minutes plans the epochs of a new fit: leave it out of a run that continues, and of "
            "every other command"
        )
    if not is_alone(config.trainer):
        raise ValueError(
            "--minutes measures training in one process: give --trainer.max_epochs instead, or "
            "--trainer.devices 1"
        )


def length_of(
    minutes: float,
    model: LightningModule,
    data: LightningDataModule,
    callbacks: Sequence[Callback],
    trainer: Callable[..., Trainer],
    epochs: int,
) -> Length:
    """Find how long a training takes about so many minutes.

    trainer: makes one with the run's options and those that it is given. epochs: of the config,
    which says when images grow. What a callback prepares in a rehearsal and keeps for the run, such
    as a teacher's fixed answers, counts among the minutes; ValueError where it takes them all.
    """
    data.prepare_data()
    data.setup("fit")
    seconds = prepared = 0.0
    for epoch, share in sizes(data, epochs):
        clock = Clock(min(SECONDS, PART * 60 * minutes))
        with torch.random.fork_rng([]):
            rehearse(clock, epoch, model, data, callbacks, trainer)
        seconds += share * clock.seconds(len(data.val_dataloader()))
        prepared += clock.prepared if clock.prepared > SECONDS else 0
    left = 60 * minutes - prepared
    if left <= 0:
        raise ValueError(
            f"--minutes {minutes:g}: what comes before the first step (a teacher's answers) took "
            f"{prepared / 60:.2g} minutes: give more minutes, or --trainer.max_epochs instead"
        )
    return Length.of(TRAINING * left / seconds, clock.batches)


def rehearse(
    clock: Clock,
    epoch: int,
    model: LightningModule,
    data: LightningDataModule,
    callbacks: Sequence[Callback],
    trainer: Callable[..., Trainer],
) -> None:
    """Train a copy as in this epoch, until the clock ends it.

    What callbacks write goes into a folder that is removed, or to a logger that writes nothing.
    """
    left_out = (Checkpoint, ProgressBar)
    copies = [deepcopy(one) for one in callbacks if not isinstance(one, left_out)]
    with TemporaryDirectory() as folder:
        made = trainer(
            callbacks=[*copies, clock],
            logger=DummyLogger(),
            default_root_dir=folder,
            enable_checkpointing=False,
            enable_progress_bar=False,
            num_sanity_val_steps=0,
            limit_val_batches=VALIDATED,
            max_epochs=epoch + 1,
            min_epochs=None,
        )
        begun: Any = made.fit_loop.epoch_progress.current
        begun.processed = begun.completed = epoch
        made.fit(deepcopy(model), datamodule=copy(data))


def sizes(data: Any, epochs: int) -> list[tuple[int, float]]:
    """The first epoch with images of each size, and the share of the epochs that have it."""
    for resizing in resizings(data):
        starts = [start for start in resizing.epochs if start < epochs]
        ends = [*starts[1:], epochs]
        return [(a, (b - a) / epochs) for a, b in zip(starts, ends, strict=True) if b > a]
    return [(0, 1.0)]


def resizings(data: Any) -> list[Any]:
    """Find what holds the epochs at which images grow: objects, or their values in a config."""
    found = []
    for augment in getattr(data, "augment", None) or []:
        if isinstance(augment, ProgressiveResizing):
            found.append(augment)
        elif getattr(augment, "class_path", "").endswith(f".{ProgressiveResizing.__name__}"):
            found.append(augment.init_args)
    return found
