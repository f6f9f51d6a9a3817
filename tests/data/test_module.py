import copy
import itertools
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from PIL import Image
from torch.optim.sgd import SGD

from vision_attn.data import (
    CutMix,
    DataError,
    Flip,
    ImageData,
    ImageError,
    Mixup,
    Planted,
    TensorSet,
    Translate,
)
from vision_attn.data.draws import Draws
from vision_attn.data.module import channel_statistics
from vision_attn.data.tensors import Batch, Batches, InOrder


def planted(**options: Any) -> ImageData:
    source = Planted(16, train=60, val=20, test=20)
    return ImageData(source, batch_size=16, augment=[Flip(), Translate(2)], **options)


class Watcher(LightningModule):
    """A network of one weight that keeps what it is fed."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(3, 10)
        self.fed: list[tuple[str, torch.Tensor, torch.Tensor]] = []

    def loss(self, batch: Any, stage: str) -> torch.Tensor:
        images, labels = batch
        self.fed.append((stage, images, labels))
        return torch.nn.functional.cross_entropy(self.head(images.mean((2, 3))), labels)

    def training_step(self, batch: Any, index: Any) -> torch.Tensor:
        return self.loss(batch, "train")

    def validation_step(self, batch: Any, index: Any) -> None:
        self.loss(batch, "val")

    def test_step(self, batch: Any, index: Any) -> None:
        self.loss(batch, "test")

    def predict_step(self, batch: Any, index: Any) -> list[Any]:
        images, paths = batch
        return list(zip(paths, images, strict=True))

    def configure_optimizers(self) -> SGD:
        assert self.trainer.estimated_stepping_batches > 0  # as a schedule asks before it starts
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer(tmp_path: Path, **options: Any) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(
        default_root_dir=tmp_path, accelerator="cpu", num_sanity_val_steps=0, **(quiet | options)
    )


def test_fit_shows_every_training_image_once_an_epoch_augmented(tmp_path: Path) -> None:
    model, data = Watcher(), planted()
    trainer(tmp_path, max_epochs=2, enable_checkpointing=False).fit(model, data)
    train = [fed for fed in model.fed if fed[0] == "train"]
    val = [fed for fed in model.fed if fed[0] == "val"]
    assert [len(labels) for _, _, labels in train] == [15] * 8
    assert [len(labels) for _, _, labels in val] == [10] * 4
    for epoch in (train[:4], train[4:]):
        assert torch.cat([labels for _, _, labels in epoch]).bincount().tolist() == [6] * 10
    assert not torch.equal(train[0][1], train[4][1])
    shown = torch.cat([images for _, images, _ in val[:2]])
    torch.testing.assert_close(shown, torch.cat([images for _, images, _ in val[2:]]))
    mean, std = torch.tensor(data.mean)[:, None, None], torch.tensor(data.std)[:, None, None]
    held: Any = data.splits.val
    stored = held.images.float() / 255
    torch.testing.assert_close(shown * std + mean, stored, atol=1e-5, rtol=0)
    everything = torch.cat([images for _, images, _ in train])
    assert everything.mean((0, 2, 3)).abs().max() < 0.1
    assert (everything.std((0, 2, 3)) - 1).abs().max() < 0.1


def test_the_same_seed_gives_the_same_batches(tmp_path: Path) -> None:
    def fed(**options: Any) -> torch.Tensor:
        model = Watcher()
        trainer(tmp_path, max_epochs=1, enable_checkpointing=False).fit(model, planted(**options))
        return torch.cat([images for stage, images, _ in model.fed if stage == "train"])

    first = fed(seed=1)
    torch.rand(7)
    assert torch.equal(fed(seed=1), first)
    assert not torch.equal(fed(seed=2), first)


@pytest.mark.parametrize("steps", [2, 4, 6])
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_a_resumed_run_sees_what_the_whole_run_saw(tmp_path: Path, steps: int) -> None:
    """Stopped in the middle of an epoch and, after 4 steps, at the end of one."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    start = Watcher()
    whole = copy.deepcopy(start)

    def saver(folder: str) -> ModelCheckpoint:
        return ModelCheckpoint(tmp_path / folder, every_n_train_steps=steps, save_top_k=-1)

    trainer(tmp_path, max_epochs=3, callbacks=[saver("ckpt")]).fit(whole, planted())
    resumed = Watcher()
    trainer(tmp_path, max_epochs=3, callbacks=[saver("ckpt")]).fit(
        resumed,
        planted(),
        ckpt_path=tmp_path / "ckpt" / f"epoch={(steps - 1) // 4}-step={steps}.ckpt",
        weights_only=True,
    )
    seen = [images for stage, images, _ in resumed.fed if stage == "train"]
    expected = [images for stage, images, _ in whole.fed if stage == "train"][steps:]
    assert len(seen) == 12 - steps
    for one, other in zip(seen, expected, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(resumed.head.weight, whole.head.weight)


def test_mixing_makes_labels_shares(tmp_path: Path) -> None:
    model = Watcher()
    data = planted(mix=[Mixup(p=0.5), CutMix(p=0.5)])
    trainer(tmp_path, max_epochs=1, enable_checkpointing=False).fit(model, data)
    for stage, _, labels in model.fed:
        if stage == "train":
            assert labels.shape[1] == 10
            torch.testing.assert_close(labels.sum(1), torch.ones(len(labels)))
        else:
            assert labels.ndim == 1


def test_test_and_two_processes(tmp_path: Path) -> None:
    model, data = Watcher(), planted()
    trainer(tmp_path).test(model, data, verbose=False)
    assert torch.cat([labels for _, _, labels in model.fed]).tolist() == [*range(10), *range(10)]

    class Place:
        world_size, training = 2, True

        def __init__(self, rank: int) -> None:
            self.global_rank = rank
            self.strategy = type("Strategy", (), {"root_device": torch.device("cpu")})

    shares = []
    for rank in range(2):
        data = planted()
        data.setup("fit")
        data.trainer = cast(Any, Place(rank))
        shares.append([data.for_training(batch) for batch in data.train_dataloader()])
    data = ImageData(data.source, batch_size=32, augment=data.augment)
    data.setup("fit")
    for batch, *parts in zip(data.train_dataloader(), *shares, strict=True):
        images, labels = data.for_training(batch)
        torch.testing.assert_close(images, torch.cat([images for images, _ in parts]))
        assert torch.equal(labels, torch.cat([labels for _, labels in parts]))


@pytest.mark.parametrize("size", [(5, 7), (199, 251)])  # many, and two, to a part
def test_images_are_normalised_by_mean_and_std(size: tuple[int, int]) -> None:
    mean, std = (0.3, 0.4, 0.5), (0.1, 0.2, 0.3)
    data = ImageData(planted().source, mean=mean, std=std)
    data.setup("fit")
    pixels = torch.randint(0, 256, (5, 3, *size), dtype=torch.uint8)
    batch = Batch(pixels, torch.arange(5), Draws(0, 0, np.arange(5)))
    found, _ = data.for_evaluation(batch)
    given = torch.tensor([mean, std], dtype=torch.float64)[:, :, None, None]
    expected = (pixels.double() / 255 - given[0]) / given[1]
    torch.testing.assert_close(found, expected.float(), atol=3e-6, rtol=0)


def test_predict_reads_files_with_the_checkpoints_preprocessing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fitted = planted()
    run = trainer(tmp_path, max_epochs=1)
    run.fit(Watcher(), fitted)
    run.save_checkpoint(tmp_path / "run.ckpt")
    photos = tmp_path / "photos"
    photos.mkdir()
    for i in range(5):
        Image.new("RGB", (20 + i, 30), (i, 2 * i, 3 * i)).save(photos / f"{i}.png")
    (photos / "2.jpg").write_text("no image")

    class Missing(Planted):
        def load(self, root: Path, val_fraction: Any, seed: int) -> Any:
            raise AssertionError("prediction asked for the training data")

    data = ImageData(Missing(16), batch_size=2, predict=[str(photos)])
    out = trainer(tmp_path).predict(
        Watcher(), data, ckpt_path=tmp_path / "run.ckpt", weights_only=True
    )
    shown = dict(itertools.chain.from_iterable(cast(Any, out)))
    assert sorted(shown) == [str(photos / f"{i}.png") for i in range(5)]
    torch.testing.assert_close(shown[str(photos / "3.png")], fitted.preprocess(photos / "3.png"))
    assert f"{photos / '2.jpg'}: expected an image" in caplog.text
    assert data.classes == fitted.classes


def test_statistics_classes_and_weights() -> None:
    data = planted()
    data.setup("fit")
    train: Any = data.splits.train
    pixels = train.images.double() / 255
    torch.testing.assert_close(torch.tensor(data.mean).double(), pixels.mean((0, 2, 3)))
    std = pixels.std((0, 2, 3), correction=0)
    torch.testing.assert_close(torch.tensor(data.std).double(), std)
    assert data.input_size == (16, 16)
    assert len(data.classes) == 10
    torch.testing.assert_close(data.class_weights(), torch.ones(10))
    data.splits.train.labels = torch.tensor([0] * 50 + [1] * 10)
    assert data.class_weights()[:2].tolist() == pytest.approx([60 / 500, 60 / 100])
    images = torch.randint(0, 256, (1009, 3, 5, 7), dtype=torch.uint8)
    some, _ = channel_statistics(TensorSet(images, torch.zeros(1009).long()), most=100)
    assert some == pytest.approx([0.5] * 3, abs=0.05)
    given = planted(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    assert (given.mean, given.std) == ((0.5,) * 3, (0.25,) * 3)


@pytest.mark.parametrize("value", [0, 7, 29, 255])
def test_a_channel_that_is_the_same_everywhere_is_centred(value: int) -> None:
    """As in microscopy with two dyes; 7 and 29 are not exact as shares of 255."""
    pixels = torch.randint(0, 256, (60, 3, 16, 16), dtype=torch.uint8)
    pixels[:, 1] = value
    images = TensorSet(pixels, torch.zeros(60).long())
    mean, std = channel_statistics(images)
    floats = pixels.double() / 255
    torch.testing.assert_close(torch.tensor(mean).double(), floats.mean((0, 2, 3)))
    expected = floats.std((0, 2, 3), correction=0)
    expected[1] = 1
    torch.testing.assert_close(torch.tensor(std).double(), expected)
    assert std[1] == 1
    data = planted(mean=mean, std=std)
    data.setup("fit")
    batch = next(iter(Batches(images, InOrder(60, batch_size=60))))
    normalised, _ = data.for_evaluation(batch)
    assert normalised[:, 1].abs().max() < 1e-6
    assert normalised[:, 0].std() == pytest.approx(1, abs=1e-3)


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        ImageData(Planted(), batch_size=0)
    with pytest.raises(ValueError, match="val_fraction must be"):
        ImageData(Planted(), val_fraction=1.0)
    with pytest.raises(DataError, match="no image to predict"):
        planted().predict_dataloader()
    with pytest.raises(ImageError, match="no such file or folder"):
        planted(predict=[str(tmp_path / "gone")]).predict_dataloader()
    data = planted()
    data.setup("fit")
    with pytest.raises(DataError, match=r"trained on 2 classes \(ant, bee\), the data have 10"):
        data.load_state_dict({"classes": ["ant", "bee"], "preprocess": {}})


def test_a_config_names_its_parts_by_class_path() -> None:
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(ImageData, "data")
    source = {"class_path": "vision_attn.data.Planted", "init_args": {"size": [16, 24], "val": 7}}
    config = parser.parse_object(
        {
            "data": {
                "source": source,
                "augment": [{"class_path": "vision_attn.data.Flip", "init_args": {"p": 0.25}}],
                "mix": [{"class_path": "vision_attn.data.CutMix"}],
            }
        }
    )
    data = parser.instantiate_classes(config).data
    assert isinstance(data, ImageData)
    images: Any = data.source
    assert images.size == (16, 24)
    assert data.augment[0].p == 0.25
    assert isinstance(data.mix[0], CutMix)
    assert np.prod(images.size) == 384
