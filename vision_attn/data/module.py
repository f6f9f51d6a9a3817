"""The data of a run, for Lightning: any source, split, augmented and normalised in batches.

Axes: b batch, h height, w width, k classes.
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.nn import functional as F

from vision_attn.data.augment import Augment, Pixels, as_float
from vision_attn.data.draws import Draws
from vision_attn.data.files import ImageFiles
from vision_attn.data.images import find_images
from vision_attn.data.mix import Mix
from vision_attn.data.preprocess import Preprocess
from vision_attn.data.ranges import ValueRange, checked_value_range
from vision_attn.data.sources import DataError, Source, Splits
from vision_attn.data.tensors import Batch, Batches, ImageSet, InOrder, Shuffled, TensorSet

__all__ = ["ImageData", "channel_statistics"]

RESIDENT = 4 * 2**30  # bytes of images that may lie on the training device
IN_CACHE = 2**18  # values that stay in the cache from one operation to the next


class ImageData(LightningDataModule):
    """Batches of (images, labels) from a source.

    Images are float32 (b 3 h w), less the mean and divided by the std of the training images, or
    those given. Training batches pass through `augment` in order, then `mix`, after which labels
    are shares (b k) instead of indices (b). Everything random is a function of `seed`, the epoch
    and the image: the same on any number of processes.

    After `setup`: `classes`, `preprocess` (input size, mean and std among it) and `splits`. A
    checkpoint keeps the first two, so `predict` needs no data set.

    Args:
        source: Where the images come from.
        root: The folder that holds the data sets.
        batch_size: Images a process.
        augment: Random changes of the training images.
        mix: Mixtures of training images, and of their labels.
        val_fraction: Share of the training images to choose by, where the source has no validation
            part.
        seed: Of everything random.
        mean: Of each channel, in 0..1, as a pretrained network has it; None: of the training
            images.
        std: The same of the standard deviation.
        predict: Files and folders for `predict`, which gives (images, paths).
        value_range: The numbers that are black and white in those files; None: as in the photos of
            the training.

    Attributes:
        targets: Shares (n k) that training learns instead of the labels of its n images; None:
            labels.

    Raises:
        ValueError: `batch_size` is below 1, or `val_fraction` outside [0, 1).

    Examples:
        >>> from vision_attn.data import ImageData, Planted
        >>> data = ImageData(Planted(size=16, train=20, val=5, test=5), batch_size=4)
        >>> data.setup("fit")
        >>> images, labels = data.for_evaluation(next(iter(data.val_dataloader())))
        >>> images.shape[1:], data.input_size, len(data.classes)
        (torch.Size([3, 16, 16]), (16, 16), 10)
    """

    def __init__(
        self,
        source: Source,
        root: str = ".data",
        batch_size: int = 128,
        augment: list[Augment] | None = None,
        mix: list[Mix] | None = None,
        val_fraction: float = 0.1,
        seed: int = 0,
        mean: tuple[float, float, float] | None = None,
        std: tuple[float, float, float] | None = None,
        predict: list[str] | None = None,
        value_range: ValueRange | None = None,
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if not 0 <= val_fraction < 1:
            raise ValueError(f"val_fraction must be at least 0 and below 1, got {val_fraction}")
        self.source = source
        self.root = Path(root)
        self.batch_size = batch_size
        self.augment = augment or []
        self.mix = mix or []
        self.val_fraction = val_fraction
        self.seed = seed
        self.predict = predict or []
        self._given_mean, self._given_std = mean, std
        self._value_range = checked_value_range(value_range)
        self._splits: Splits | None = None
        self._classes: list[str] = []
        self._preprocess: Preprocess | None = None
        self._batches: Batches | None = None
        self._resume: dict[str, int] | None = None
        self.targets: Float[Tensor, "n k"] | None = None

    def prepare_data(self) -> None:
        self.source.prepare(self.root)

    def setup(self, stage: str) -> None:
        if stage != "predict" and self._splits is None:  # a checkpoint is read after this
            self._load()

    def _load(self) -> None:
        self._splits = splits = self.source.load(self.root, self.val_fraction, self.seed)
        self._classes = splits.classes
        mean, std = self._given_mean, self._given_std
        if mean is None or std is None:
            mean, std = channel_statistics(splits.train)
        self._preprocess = Preprocess(
            splits.test.size, mean, std, splits.crop_pct, value_range=splits.value_range
        )

    @property
    def splits(self) -> Splits:
        if self._splits is None:
            self._load()
        assert self._splits is not None
        return self._splits

    @property
    def classes(self) -> list[str]:
        return self._classes or self.splits.classes

    @property
    def preprocess(self) -> Preprocess:
        """The preprocessing of single files, to what batches of test images hold."""
        if self._preprocess is None:
            self._load()
        assert self._preprocess is not None
        return self._preprocess

    @property
    def input_size(self) -> tuple[int, int]:
        return self.preprocess.input_size

    @property
    def mean(self) -> tuple[float, ...]:
        return self.preprocess.mean

    @property
    def std(self) -> tuple[float, ...]:
        return self.preprocess.std

    def examples(self, count: int, images: ImageSet | None = None) -> tuple[Tensor, Tensor]:
        """Images of a set as a network sees them, and their labels: always the same ones.

        Args:
            count: How many, spread evenly over the set; of a smaller set all there are.
            images: The set; None: the validation images.

        Returns:
            Images (b c h w) and labels (b).
        """
        images = self.splits.val if images is None else images
        indices = np.linspace(0, len(images) - 1, min(count, len(images))).round().astype(int)
        fetched = images.fetch(indices, Draws(self.seed, 0, indices))
        return self._normalised(fetched), images.labels[torch.from_numpy(indices)]

    def class_weights(self) -> Float[Tensor, " k"]:
        """Weights for the loss under which every class counts alike: n / (k * its images)."""
        labels = self.splits.train.labels
        if labels.ndim == 2:
            raise DataError(
                "class weights need one class per image, these have several: use "
                "vision_attn.training.MultiLabelCrossEntropy(balanced=True)"
            )
        counts = torch.bincount(labels, minlength=len(self.classes))
        return counts.sum() / (len(self.classes) * counts.clamp_min(1).float())

    def train_dataloader(self) -> Batches:
        self._batches = self.batches_apart()
        if self._resume:
            self._batches.load_state_dict(self._resume)
            self._resume = None
        return self._batches

    def batches_apart(self) -> Batches:
        """The training batches of the first epoch, without moving this run's place in it."""
        images = self.splits.train
        order = Shuffled(len(images), self.batch_size, *self._place(), self.seed, images.blocks)
        return Batches(self._resident(images), order, self.seed)

    def val_dataloader(self) -> Batches | list[Batches]:
        return self._in_order(self.splits.val) if len(self.splits.val) else []

    def test_dataloader(self) -> Batches:
        return self._in_order(self.splits.test)

    def predict_dataloader(self) -> ImageFiles:
        if not self.predict:
            raise DataError("no image to predict: name files or folders with --data.predict")
        paths = find_images(self.predict)
        preprocess = self.preprocess
        if self._value_range is not None:
            preprocess = replace(preprocess, value_range=self._value_range)
        return ImageFiles(paths, preprocess, InOrder(len(paths), self.batch_size, *self._place()))

    def _in_order(self, images: ImageSet) -> Batches:
        order = InOrder(len(images), self.batch_size, *self._place())
        return Batches(self._resident(images), order, self.seed)

    def _place(self) -> tuple[int, int]:
        """This process's number and how many there are."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def _resident(self, images: ImageSet) -> ImageSet:
        """Small sets move to the training device and stay there."""
        if self.trainer and isinstance(images, TensorSet) and images.images.nbytes <= RESIDENT:
            return images.to(self.trainer.strategy.root_device)
        return images

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        if not isinstance(batch, Batch):
            return batch
        training = self.trainer is not None and self.trainer.training
        images, labels = self.for_training(batch) if training else self.for_evaluation(batch)
        if self.trainer is not None:  # in the numbers that the network computes with
            images = self.trainer.precision_plugin.convert_input(images)
        return images, labels

    def for_training(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Change, mix and normalise a batch.

        Args:
            batch: Images as they are stored.

        Returns:
            Images (b 3 h w), and labels (b), or (b k) where mixed.
        """
        images, labels = batch.images, batch.labels
        if self.targets is not None:
            labels = self.targets[torch.from_numpy(batch.draws.items)].to(images.device)
        for augment in self.augment:
            images = augment(images, batch.draws)
        if self.mix and labels.ndim == 1:
            labels = F.one_hot(labels, len(self.classes)).float()
        for mix in self.mix:
            images, labels = mix(as_float(images), labels, batch.draws)
        return self._normalised(images), labels

    def for_evaluation(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Normalise a batch.

        Args:
            batch: Images as they are stored.

        Returns:
            Images (b 3 h w) and their labels, (b) or (b k).
        """
        return self._normalised(batch.images), batch.labels

    def _normalised(self, images: Pixels) -> Float[Tensor, "b 3 h w"]:
        numbers = torch.tensor([self.mean, self.std], dtype=torch.float32, device=images.device)
        mean, std = numbers.view(2, 3, 1, 1)
        if images.dtype == torch.uint8:
            normalised: Tensor = _room(images)
            scale, shift = 1 / (std * 255), mean / std
            some = max(1, IN_CACHE // images[:1].numel()) if images.is_cpu else len(images) or 1
            for start in range(0, len(images), some):
                floats = normalised[start : start + some]
                floats.copy_(images[start : start + some]).mul_(scale).sub_(shift)
            return normalised
        return images.float().mul_(1 / std).sub_(mean / std)

    def state_dict(self) -> dict[str, Any]:
        """Plain values: the classes, the preprocessing, and how far the epoch is.

        The last is here because Lightning skips a loader's own state once anyone asked it for the
        number of steps.
        """
        position = self._batches.state_dict() if self._batches else None
        return {"classes": self.classes, "preprocess": asdict(self.preprocess), "place": position}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        classes = state_dict["classes"]
        if self._classes and self._classes != classes:
            raise DataError(
                f"the checkpoint was trained on {_listed(classes)}, the data have "
                f"{_listed(self._classes)}: use the data set it was trained on"
            )
        self._classes = classes
        self._preprocess = Preprocess(**state_dict["preprocess"])
        self._resume = state_dict["place"]


def _room(images: Tensor) -> Float[Tensor, "b c h w"]:
    """Make room for floats of that shape: on a CPU in NumPy's large pages, which cost little."""
    if images.device.type == "cpu":
        return torch.from_numpy(np.empty(images.shape, np.float32))
    return torch.empty_like(images, dtype=torch.float32)


def channel_statistics(
    images: ImageSet, most: int = 10_000
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Mean and standard deviation of each channel, on a scale of 0..1.

    A channel that is the same everywhere, such as an empty one, is only centred: its deviation
    counts as 1. Of at most `most` images, spread evenly over the set, or of as many in whole blocks
    where images are read so; exact sums of integers.
    """
    items = np.unique(np.linspace(0, len(images) - 1, min(len(images), most)).round().astype(int))
    items = images.blocks.spread(most) if images.blocks else items
    sums = np.zeros((2, 3), np.int64)
    pixels = 0
    for chunk in np.array_split(items, -(-len(items) // 256)):
        values = images.fetch(chunk, Draws(0, 0, chunk)).int()
        sums += torch.stack([values, values * values]).sum((1, 3, 4)).cpu().numpy()
        pixels += values[:, 0].numel()
    totals, squares = sums.astype(object)  # Python's integers, which have no end
    whole = 255 * pixels
    std = np.sqrt(((pixels * squares - totals**2) / whole**2).astype(float))
    std[std == 0] = 1
    return tuple((totals / whole).tolist()), tuple(std.tolist())


def _listed(classes: list[str]) -> str:
    more = ", ..." if len(classes) > 5 else ""
    return f"{len(classes)} classes ({', '.join(classes[:5])}{more})"
