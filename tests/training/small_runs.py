"""A data set and a network so small that a whole run takes a second."""

from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

from vision_attn.data import Preprocess
from vision_attn.models import ViT
from vision_attn.training import BestCheckpoint, LastCheckpoint


class _Shuffled:
    """Batches in an order of the epoch's, which go on in its middle where they are told to."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, start: int) -> None:
        self.images, self.labels, self.sampler = images, labels, self
        self.epoch, self.given, self.start = 0, start, start

    def set_epoch(self, epoch: Any) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.labels) // 16

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        generator = torch.Generator().manual_seed(self.epoch)
        batches = torch.randperm(len(self.labels), generator=generator).split(16)
        self.given, self.start = self.start, 0
        for batch in batches[self.given :]:
            self.given += 1
            yield self.images[batch], self.labels[batch]

    def state_dict(self) -> dict[Any, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: Any) -> None:
        """Lightning asks for it, and never calls it where the length of a run was asked first."""


class Stripes(LightningDataModule):
    """Noise with one bright row; the class is which."""

    def __init__(self, images: int = 48, classes: int = 3, poisoned: Any = None) -> None:
        super().__init__()
        self.start = 0
        self.classes = [f"row {i}" for i in range(classes)]
        self.preprocess = Preprocess((8, 8), (0.5,) * 3, (0.25,) * 3)
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.arange(images) % classes
        self.images = torch.randn(images, 3, 8, 8, generator=generator) / 4
        self.images[torch.arange(images), :, self.labels * (8 // classes)] += 2
        if poisoned is not None:
            self.images[poisoned] = torch.nan

    def train_dataloader(self) -> _Shuffled:
        self.loader = _Shuffled(self.images, self.labels, self.start)
        return self.loader

    def state_dict(self) -> dict[Any, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.start = state["given"] % 3

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(self.images[:17], self.labels[:17]), batch_size=7)

    test_dataloader = val_dataloader


def small_vit(**options: Any) -> ViT:
    torch.manual_seed(0)
    return ViT(
        **{"image_size": 8, "patch_size": 2, "num_classes": 3, "dim": 12, "depth": 1, **options}
    )


def make_trainer(
    place: Any, name: str = "run", callbacks: tuple[Any, ...] = (), **options: Any
) -> Trainer:
    """Make a trainer that keeps its checkpoints in place/name."""
    folder = place / name
    return Trainer(
        **{
            "accelerator": "cpu",
            "max_epochs": 2,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "log_every_n_steps": 1,
            "logger": CSVLogger(place, name="", version=name),
            "callbacks": [*callbacks, BestCheckpoint(folder), LastCheckpoint(folder)],
            **options,
        }
    )
