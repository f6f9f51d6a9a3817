"""How fast training images come: ours against torchvision's pipeline, the same operations.

    python benchmarks/data.py [IMAGE_FOLDER]

Everything runs in one process on `--threads` threads, each pair in turns, `--rounds` times. Prints
images a second, medians, and the ratio: smallest, median, largest. The image folder holds one
folder a class (by default .data/imagenette/train); torchvision's DataLoader runs with as many
workers as there are threads, ours reads its cache, filled before the clock starts (the second epoch
on), in `kept_memory`, as in a fit, and a turn is five epochs.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from timing import Clock, Epoch, KeyRatio
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets
from torchvision.transforms import v2 as tv

from vision_attn.data import (
    ColorJitter,
    Cutout,
    Flip,
    ImageData,
    ImageFolder,
    Planted,
    RandomErasing,
    RandomResizedCrop,
    Splits,
    TensorSet,
    Translate,
    TrivialAugment,
)
from vision_attn.data.sources import Source
from vision_attn.training import kept_memory

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
TO_FLOAT = [tv.ToImage(), tv.ToDtype(torch.float32, scale=True)]
PIPELINES = {
    "flip, translate, cutout": (
        [Flip(), Translate(4), Cutout(8)],
        [
            tv.RandomHorizontalFlip(),
            tv.RandomCrop(32, padding=4, padding_mode="reflect"),
            *TO_FLOAT,
            tv.RandomErasing(1.0, (1 / 16, 1 / 16), (1.0, 1.0), 0.5),
        ],
    ),
    "resized crop, flip, jitter": (
        [RandomResizedCrop(), Flip(), ColorJitter()],
        [
            tv.RandomResizedCrop(32, (0.35, 1.0)),
            tv.RandomHorizontalFlip(),
            tv.ColorJitter(0.4, 0.4, 0.4),
            *TO_FLOAT,
        ],
    ),
    "trivial augment, erasing": (
        [TrivialAugment(), RandomErasing()],
        [tv.TrivialAugmentWide(), *TO_FLOAT, tv.RandomErasing(0.25, value=0.5)],
    ),
}


class InMemory(Source):
    """Random 32 x 32 images in the shape of CIFAR-10."""

    def load(self, root: Path, val_fraction: float, seed: int) -> Splits:
        images = torch.randint(0, 256, (10_000, 3, 32, 32), dtype=torch.uint8)
        part = TensorSet(images, torch.arange(10_000) % 10)
        return Splits(part, part, part, [str(i) for i in range(10)])


class OneByOne(Dataset[tuple[Tensor, int]]):
    """The same images as torchvision's CIFAR10 gives them: PIL images, transformed one by one."""

    def __init__(self, images: Tensor, transform: Callable[[Image.Image], Tensor]) -> None:
        self.images, self.transform = images.permute(0, 2, 3, 1).numpy(), transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.images[i])), 0


def rate(epoch: Epoch, epochs: int, now: Callable[[], float] = time.perf_counter) -> float:
    """Images a second of so many epochs, one after the other."""
    start, count = now(), 0
    for _ in range(epochs):
        for images, _ in epoch():
            count += len(images)
    return count / (now() - start)


def compare(
    name: str,
    ours: Epoch,
    theirs: Epoch,
    rounds: int,
    epochs: int = 1,
) -> None:
    """Rounds of so many epochs each, after one of each that does not count."""
    rate(ours, 1), rate(theirs, 1)
    pairs = np.array([(rate(ours, epochs), rate(theirs, epochs)) for _ in range(rounds)])
    ratios = pairs[:, 0] / pairs[:, 1]
    middle = np.median(pairs, axis=0)
    print(
        f"{name:34} {middle[0]:10,.0f} {middle[1]:12,.0f}"
        f" {ratios.min():8.1f} {np.median(ratios):6.1f} {ratios.max():6.1f}x"
    )


def both(name: str) -> tuple[Epoch, Epoch]:
    """Epochs of a pipeline: ours, and torchvision's of fewer images, as it takes longer."""
    augment, transforms = PIPELINES[name]
    data = ImageData(InMemory(), batch_size=500, augment=augment, mean=MEAN, std=STD)
    data.setup("fit")
    transform = tv.Compose([*transforms, tv.Normalize(MEAN, STD)])
    train = data.splits.train
    assert isinstance(train, TensorSet)
    peer = OneByOne(train.images[:2000], transform)
    return (
        lambda: map(data.for_training, data.train_dataloader()),
        lambda: DataLoader(peer, 500, shuffle=True),
    )


def in_memory(rounds: int) -> None:
    for name in PIPELINES:
        compare(name, *both(name), rounds)


def key_ratios(clock: Clock) -> Iterator[KeyRatio]:
    """An image of the first pipeline, which is that of CIFAR-10."""
    name = next(iter(PIPELINES))
    ours, theirs = (partial(rate, epoch, 1, clock.now) for epoch in both(name))
    yield clock.rates(f"{name} / by torchvision", ours, theirs)


def folder(path: Path, threads: int, rounds: int) -> None:
    transform = tv.Compose(
        [
            tv.RandomResizedCrop(128, (0.35, 1.0)),
            tv.RandomHorizontalFlip(),
            *TO_FLOAT,
            tv.Normalize(MEAN, STD),
        ]
    )
    peer = DataLoader(
        datasets.ImageFolder(path, transform), 100, shuffle=True,
        num_workers=threads, persistent_workers=True,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as cache:
        source = ImageFolder(str(path.resolve()), size=128, test_fraction=0.01, cache=cache)
        data = ImageData(source, ".", 100, [Flip()], val_fraction=0.0, mean=MEAN, std=STD)
        start = time.perf_counter()
        data.setup("fit")
        count = len(data.splits.train) + len(data.splits.test)
        print(f"{'decoding the folder once':34} {count / (time.perf_counter() - start):10,.0f}")
        with kept_memory():
            compare(
                "image folder at 128, later epochs",
                lambda: map(data.for_training, data.train_dataloader()),
                lambda: peer,
                rounds,
                epochs=5,  # one of ours takes less than a tenth of a second
            )


def planted() -> None:
    source = Planted(64, train=2000, val=1, test=1)
    source.images("val")
    start = time.perf_counter()
    source.images("train")
    print(f"{'planted, drawn at 64':34} {2000 / (time.perf_counter() - start):10,.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(".data/imagenette/train"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{'images a second':34} {'ours':>10} {'torchvision':>12} {'ratio':>8}")
    planted()
    in_memory(options.rounds)
    if options.folder.is_dir():
        folder(options.folder, options.threads, options.rounds)


if __name__ == "__main__":
    main()
