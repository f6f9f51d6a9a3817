"""Where images come from: the class a config names under `data.source`.

Axes: n images, h height, w width.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Integer
from torch import Tensor

from vision_attn.data.draws import permutation
from vision_attn.data.tensors import ImageSet, TensorSet


class DataError(ValueError):
    """Data that are missing or do not fit; the message says what was expected and what to do."""


@dataclass(frozen=True, eq=False)
class Splits:
    """train to learn from, val to choose by, test to be looked at once, at the end.

    crop_pct: the share of a photo's shorter side that the images show, for reading single files in
    the same way.
    """

    train: ImageSet
    val: ImageSet
    test: ImageSet
    classes: list[str]
    crop_pct: float = 1.0


class Source(ABC):
    """A data set. Its constructor takes plain values and touches no file."""

    def prepare(self, root: Path) -> None:  # noqa: B027
        """What one process does before all of them load: a download."""

    @abstractmethod
    def load(self, root: Path, val_fraction: float, seed: int) -> Splits:
        """The splits, from the folder `root`.

        Where the data set has no validation part, `val_fraction` of the training part becomes it,
        the same for every run with the same seed. Raises DataError where data are missing.
        """


class CIFAR10(Source):
    """60,000 photos of 32 x 32 pixels in 10 classes (Krizhevsky 2009), checked by their md5.

    Expects `cifar-10-batches-py` in the root folder; `download` fetches it.
    """

    def __init__(self, download: bool = False) -> None:
        self.download = download

    @property
    def dataset(self) -> Any:
        """torchvision's class, imported when it is used: torchvision takes seconds to import."""
        from torchvision import datasets

        return datasets.CIFAR10

    def prepare(self, root: Path) -> None:
        if not self.download:
            return
        try:
            self.dataset(str(root), download=True)
        except (OSError, RuntimeError) as error:  # no network, a full disk, a wrong md5
            raise DataError(
                f"{self.dataset.__name__} could not be downloaded to {root} ({error}): "
                f"fetch {self.dataset.url} elsewhere and unpack it there"
            ) from error

    def load(self, root: Path, val_fraction: float, seed: int) -> Splits:
        train, test = self._open(root, train=True), self._open(root, train=False)
        images, labels = _tensors(train)
        rest, held_out = hold_out(labels.numpy(), val_fraction, seed)
        return Splits(
            train=TensorSet(images[rest], labels[rest]),
            val=TensorSet(images[held_out], labels[held_out]),
            test=TensorSet(*_tensors(test)),
            classes=list(train.classes),
        )

    def _open(self, root: Path, train: bool) -> Any:
        try:
            return self.dataset(str(root), train=train)
        except RuntimeError as error:
            raise DataError(
                f"{root / self.dataset.base_folder}: {self.dataset.__name__} is not there or a "
                f"file's md5 is wrong: unpack {self.dataset.filename} in {root}, or set "
                "`download: true` for this source"
            ) from error


class CIFAR100(CIFAR10):
    """60,000 photos of 32 x 32 pixels in 100 classes (Krizhevsky 2009), checked by their md5.

    Expects `cifar-100-python` in the root folder; `download` fetches it.
    """

    @property
    def dataset(self) -> Any:
        from torchvision import datasets

        return datasets.CIFAR100


def hold_out(
    labels: Integer[np.ndarray, " n"], fraction: float, seed: int
) -> tuple[Integer[np.ndarray, " rest"], Integer[np.ndarray, " part"]]:
    """Places of the samples that stay, and of `fraction` of every class, both in order.

    At least one sample of a class stays; which ones go is a function of the seed alone.
    """
    part = []
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        count = min(round(len(places) * fraction), len(places) - 1)
        part.append(places[permutation((seed, int(label)), len(places))[:count]])
    held_out = np.sort(np.concatenate(part))
    return np.setdiff1d(np.arange(len(labels)), held_out), held_out


def _tensors(dataset: Any) -> tuple[Tensor, Tensor]:
    """Images (n 3 h w) and labels (n) of a torchvision data set that lies in memory."""
    images = torch.from_numpy(dataset.data).permute(0, 3, 1, 2).contiguous()
    return images, torch.tensor(dataset.targets)
