"""Heatmaps of validation images while a network trains."""

from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.optim import SGD
from torch.utils.data import DataLoader

from vision_attn.data import ImageData, Planted
from vision_attn.methods import GradCAM, Rollout
from vision_attn.models import ViT
from vision_attn.training import ConstantRate, ImageClassifier, WatchHeatmaps


def data() -> LightningDataModule:
    return ImageData(Planted(size=16, train=20, val=7, test=3), batch_size=10)


def train(
    callback: WatchHeatmaps,
    folder: Path,
    epochs: int = 3,
    loggers: tuple[Any, ...] | list[Any] = (),
    **given: Any,
) -> ImageClassifier:
    network = ViT(image_size=16, patch_size=8, num_classes=10, dim=8, depth=1, heads=2)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        logger=[CSVLogger(folder, "run"), *loggers],
        callbacks=[callback],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )
    model = ImageClassifier(network, partial(SGD, lr=0.05), ConstantRate)
    trainer.fit(model, **(given or {"datamodule": data()}))
    return model


def test_every_epoch_is_drawn_and_the_maps_are_the_networks(tmp_path: Path) -> None:
    module: Any = data()
    watch = WatchHeatmaps(GradCAM(), images=3)
    model = train(watch, tmp_path, datamodule=module)
    folder = tmp_path / "run/version_0"
    drawn = {path.name for path in (folder / "heatmaps").iterdir()}
    assert drawn == {f"epoch_{epoch}.png" for epoch in range(4)}
    assert (folder / "heatmaps.png").is_file()
    images, labels = module.examples(3)
    want = GradCAM()(model.network, images, labels).values
    torch.testing.assert_close(watch.found[3].values, want)
    assert not torch.equal(watch.found[0].values, want)


def test_the_photos_are_the_validation_images(tmp_path: Path) -> None:
    module: Any = data()
    watch = WatchHeatmaps(Rollout(), images=2)
    train(watch, tmp_path, epochs=1, datamodule=module)
    stored = module.splits.val
    places = [0, len(stored) - 1]
    assert [module.classes[stored.labels[i]] for i in places] == watch.names
    for photo, place in zip(watch.photos, places, strict=True):
        raw = stored.images[place].permute(1, 2, 0).numpy()
        np.testing.assert_array_equal(photo[::20, ::20], raw)  # enlarged by a whole factor


def test_a_logger_that_keeps_pictures_gets_them(tmp_path: Path) -> None:
    board = TensorBoardLogger(tmp_path, "board")
    train(WatchHeatmaps(Rollout(), images=1), tmp_path, epochs=2, loggers=[board])
    events = EventAccumulator(board.log_dir)
    events.Reload()
    assert [event.step for event in events.Images("heatmaps")] == [0, 2, 4]
    with Image.open(tmp_path / "run/version_0/heatmaps/epoch_2.png") as drawn:
        last = events.Images("heatmaps")[-1]
        assert (last.width, last.height) == drawn.size


class SecondProcess(Trainer):
    """A trainer as any process but the first has it; it counts how often it is asked for a folder."""

    named = 0
    is_global_zero = False

    @property
    def log_dir(self) -> str:
        self.named += 1  # Lightning's sends the first process's name to the others, who must listen
        return "never"


def test_every_process_hears_the_folders_name_and_the_first_alone_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = WatchHeatmaps(Rollout(), images=1)
    model = train(watch, tmp_path, epochs=1)
    monkeypatch.chdir(tmp_path)
    second = SecondProcess(accelerator="cpu", logger=False)
    watch.on_train_epoch_end(second, model)
    assert second.named == 1
    assert not (tmp_path / "never").exists()


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_what_cannot_be_watched_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="images must be at least 1, got 0"):
        WatchHeatmaps(Rollout(), images=0)
    with pytest.raises(ValueError, match="watched on validation images: expected a data module"):
        train(
            WatchHeatmaps(Rollout()),
            tmp_path,
            train_dataloaders=DataLoader(cast(Any, torch.zeros(2, 1))),
        )
