"""Lightning's fit, with everything that `vision-attn fit` adds, beside loops written by hand.

Network, data and augmentation are the same; the number format is the CPU's native one. One loop
has AdamW as torch makes it by default; the other has it `fused`, as `fit` does on a CPU. Each turn
gives the time of its median step.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from statistics import median

import data as data_benchmark
import timing
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from timing import KeyRatio, milliseconds
from torch.nn import functional as F
from torch.optim import AdamW

from vision_attn.data import Flip, ImageData, Translate
from vision_attn.devices import native_precision
from vision_attn.models import ViT
from vision_attn.training import CosineDecay, ImageClassifier, parameter_groups, run_callbacks

PRECISION = native_precision("cpu")
small_vit = partial(ViT, 32, 8, 10, dim=64, depth=2, heads=2, pool="mean", class_token=False)


class Clock(Callback):
    """When each step of training began, by a clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now, self.began = now, list[float]()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        self.began.append(self.now())

    def seconds(self) -> float:
        """Of the median step, from its batch on the way to the next one's, the first left out."""
        return median(after - before for before, after in pairwise(self.began[1:]))


def images() -> ImageData:
    return ImageData(data_benchmark.InMemory(), batch_size=32, augment=[Flip(), Translate(4)])


def raw(
    steps: int, now: Callable[[], float] = time.perf_counter, fused: bool | None = None
) -> float:
    """A loop written by hand; fused: as AdamW takes it."""
    source = images()
    source.setup("fit")
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "0"  # as where nobody imported Lightning
    network = small_vit().train()
    optimizer = AdamW(parameter_groups(network), lr=1e-3, fused=fused)
    loader = source.train_dataloader()
    schedule = CosineDecay(optimizer, len(loader))
    clock = Clock(now)
    for one, _ in zip(loader, range(steps), strict=False):
        clock.began.append(now())
        pixels, labels = source.for_training(one)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=PRECISION == "bf16-mixed"):
            loss = F.cross_entropy(network(pixels).float(), labels)
        loss.backward()
        optimizer.step()
        schedule.step()
    return clock.seconds()


def lightnings(steps: int, now: Callable[[], float] = time.perf_counter) -> float:
    clock = Clock(now)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="cpu", max_epochs=1, limit_train_batches=steps, limit_val_batches=1,
            num_sanity_val_steps=0, precision=PRECISION, enable_progress_bar=False,
            enable_model_summary=False, callbacks=[clock, *run_callbacks(folder)],
            logger=CSVLogger(folder),
        )  # fmt: skip
        classifier = ImageClassifier(small_vit(), partial(AdamW, lr=1e-3))
        trainer.fit(classifier, datamodule=images())
    return clock.seconds()


def key_ratios(clock: timing.Clock) -> Iterator[KeyRatio]:
    """`fit` beside the loop whose AdamW is fused, as `fit` has it."""
    yield clock.rates(
        "step of fit / of a raw loop",
        lambda: 1 / lightnings(100, clock.now),
        lambda: 1 / raw(100, clock.now, fused=True),
    )


def compare(options: argparse.Namespace) -> None:
    """Least, median and largest of all turns; ratios of the times of one turn."""
    print("fit against a raw loop")
    steps = options.fit_steps
    ways: dict[str, Callable[[], float]] = {
        "fit": lambda: lightnings(steps),
        "a raw loop": lambda: raw(steps),
        "a raw loop, its AdamW fused": lambda: raw(steps, fused=True),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(options.rounds):
        for name in list(ways)[:: -1 if turn % 2 else 1]:
            times[name].append(ways[name]())
    for name, seen in times.items():
        ratios = [ours / theirs for ours, theirs in zip(times["fit"], seen, strict=True)]
        least, middle, most = min(ratios), median(ratios), max(ratios)
        beside = "" if name == "fit" else f"  fit takes {least:.2f} {middle:.2f} {most:.2f} of it"
        print(f"  {name:46} {milliseconds(seen)}{beside}")
