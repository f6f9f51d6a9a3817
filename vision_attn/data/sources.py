"""Where images come from: the class a config names under `data.source`.

Axes: n images, h height, w width, k classes.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor

from vision_attn.data.draws import permutation
from vision_attn.data.ranges import ValueRange
from vision_attn.data.tensors import ImageSet, TensorSet

__all__ = ["CIFAR10", "CIFAR100", "DataError", "Source", "Splits", "hold_out"]


class DataError(ValueError):
    """Data that are missing or do not fit; the message says what was expected and what to do.

    Examples:
        >>> from vision_attn.data import DataError
        >>> issubclass(DataError, ValueError)
        True
    """


@dataclass(frozen=True, eq=False)
class Splits:
    """The parts of a data set: training, validation and test images.

    Attributes:
        train: Training images.
        val: Validation images.
        test: Test images.
        classes: The classes' names, in the order of the labels.
        crop_pct: The share of a photo's shorter side that the images show, for reading single files
            in the same way.
        value_range: Which of the photos' numbers are black and white, as in `read_image`.

    Examples:
        >>> from pathlib import Path
        >>> from vision_attn.data import Planted
        >>> splits = Planted(size=16, train=8, val=2, test=2).load(Path(), val_fraction=0.1, seed=0)
        >>> len(splits.val.labels), splits.crop_pct
        (2, 1.0)
    """

    train: ImageSet
    val: ImageSet
    test: ImageSet
    classes: list[str]
    crop_pct: float = 1.0
    value_range: ValueRange | None = None


class Source(ABC):
    """A data set. Its constructor takes plain values and touches no file.

    Examples:
        >>> import torch
        >>> from vision_attn.data import Source, Splits, TensorSet
        >>> class Squares(Source):
        ...     def load(self, root, val_fraction, seed):
        ...         images = torch.zeros(6, 3, 8, 8, dtype=torch.uint8)
        ...         parts = [TensorSet(images[i : i + 2], torch.tensor([0, 1])) for i in (0, 2, 4)]
        ...         return Splits(*parts, classes=["black", "white"])
        >>> Squares().load(None, 0.1, 0).classes
        ['black', 'white']
    """

    def prepare(self, root: Path) -> None:  # noqa: B027
        """Download the data if need be, in one process, before all processes load them.

        Args:
            root: The folder that holds the data sets.
        """

    @abstractmethod
    def load(self, root: Path, val_fraction: float, seed: int) -> Splits:
        """Load the splits.

        Args:
            root: The folder that holds the data sets.
            val_fraction: The share of the training part that becomes the validation part, where the
                data set has none.
            seed: Which part that is: the same for every run with the same seed.

        Raises:
            DataError: Data are missing.
        """


class CIFAR10(Source):
    """60,000 photos of 32 x 32 pixels in 10 classes (Krizhevsky 2009), checked by their md5.

    Expects `cifar-10-batches-py` in the root folder.

    Args:
        download: Whether to fetch it.

    Examples:
        >>> from vision_attn.data import CIFAR10, ImageData
        >>> data = ImageData(CIFAR10(download=True), root=".data")  # downloads nothing yet
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
                f"file's md5 is wrong: unpack {self.dataset.filename} in {root} (from "
                f"{self.dataset.url}), name the folder where it is unpacked, or fetch it with "
                "`download: true` in the config of a training"
            ) from error


class CIFAR100(CIFAR10):
    """60,000 photos of 32 x 32 pixels in 100 classes (Krizhevsky 2009), checked by their md5.

    Expects `cifar-100-python` in the root folder.

    Args:
        download: Whether to fetch it.

    Examples:
        >>> from vision_attn.data import CIFAR100, ImageData
        >>> data = ImageData(CIFAR100(), root=".data")  # reads nothing yet
    """

    @property
    def dataset(self) -> Any:
        from torchvision import datasets

        return datasets.CIFAR100


def hold_out(
    labels: Integer[np.ndarray, " n"] | Float[np.ndarray, "n k"], fraction: float, seed: int
) -> tuple[Integer[np.ndarray, " rest"], Integer[np.ndarray, " part"]]:
    """Split the samples: the places of those that stay, and of `fraction` of every class.

    At least one sample of a class stays; which ones go is a function of the seed alone. Samples
    with several labels (n k) are drawn as if of one class.
    """
    if labels.ndim == 2:
        labels = np.zeros(len(labels), int)
    part = []
    for label in np.unique(labels):
        indices = np.flatnonzero(labels == label)
        count = min(round(len(indices) * fraction), len(indices) - 1)
        part.append(indices[permutation((seed, int(label)), len(indices))[:count]])
    held_out = np.sort(np.concatenate(part))
    return np.setdiff1d(np.arange(len(labels)), held_out), held_out


def _tensors(dataset: Any) -> tuple[Tensor, Tensor]:
    """Images (n 3 h w) and labels (n) of a torchvision data set that lies in memory."""
    images = torch.from_numpy(dataset.data).permute(0, 3, 1, 2).contiguous()
    return images, torch.tensor(dataset.targets, dtype=torch.long, device="cpu")
