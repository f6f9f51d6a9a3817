"""A teacher that answers once: targets worked out by hand, runs that go on, and refusals."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

from tests.training.test_distillation import Counted, as_model
from vision_attn import fit
from vision_attn.data import CutMix, Flip, ImageData, ImageFolder, Planted, Preprocess
from vision_attn.distillation import Distillation
from vision_attn.models import ViT
from vision_attn.training import ImageClassifier, Summary
from vision_attn.types import Model

TRAIN = 23


def planted(**options: Any) -> ImageData:
    return ImageData(Planted(size=16, train=TRAIN, val=5, test=5), batch_size=8, **options)


def classifier(**options: Any) -> ImageClassifier:
    torch.manual_seed(0)
    return ImageClassifier(ViT(16, 8, 10, dim=12, depth=1, heads=2), **options)


def teacher_of(
    data: ImageData,
    mean: tuple[float, float, float] = (0.1, 0.2, 0.7),
    std: tuple[float, float, float] = (0.3, 0.5, 0.2),
) -> Model:
    data.setup("fit")
    return Model(
        Counted(10).eval(), Preprocess((16, 16), mean, std), data.classes, None, "the teacher"
    )


def by_hand(model: Model, data: ImageData, share: float, hard: bool) -> torch.Tensor:
    """The targets in float64, from the stored pixels."""
    train: Any = data.splits.train
    stored = torch.stack([train.images[i] for i in range(TRAIN)]).double() / 255
    mean, std = (
        torch.tensor(n).double()[:, None, None] for n in ((0.1, 0.2, 0.7), (0.3, 0.5, 0.2))
    )
    network = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), model.network.fc).double()
    with torch.no_grad():
        logits = sum(network((view - mean) / std) for view in (stored, stored.flip(3))) / 2
    model.network.fc.float()
    learnt = F.one_hot(logits.argmax(1), 10).double() if hard else logits.softmax(1)
    return (1 - share) * torch.eye(10).double()[train.labels] + share * learnt


class Seen(Summary):
    """Notes the batches and the data's targets of a run."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.batches: list[Any] = []
        self.targets: list[Any] = []

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: Any
    ) -> None:
        self.batches.append(batch)
        self.targets.append(trainer.datamodule.targets)


@pytest.mark.parametrize("hard", [False, True])
def test_every_view_of_an_image_learns_from_one_answer(
    hard: bool, trainer: Callable[..., Any], tmp_path: Path
) -> None:
    data = planted(augment=[Flip(p=1.0)])
    model = teacher_of(data)
    expected = by_hand(model, data, 0.3, hard)
    seen = Seen(tmp_path)
    run = trainer(
        callbacks=[Distillation(model, share=0.3, hard=hard, fixed=True), seen], max_epochs=2
    )
    run.fit(classifier(), datamodule=data)
    torch.testing.assert_close(seen.targets[0].double(), expected, rtol=0, atol=2e-3)  # float16
    mirrored = data.examples(TRAIN, data.splits.train)[0].flip(3)
    for images, labels in seen.batches:
        for image, label in zip(images, labels, strict=True):
            (place,) = (i for i in range(TRAIN) if torch.equal(mirrored[i], image))
            torch.testing.assert_close(label.double(), expected[place], rtol=0, atol=2e-3)
    assert sum(len(images) for images, _ in seen.batches) == 2 * TRAIN
    assert data.targets is None  # afterwards labels are labels again


def test_a_mixture_of_images_learns_the_mixture_of_their_answers(
    trainer: Callable[..., Any], tmp_path: Path
) -> None:
    data = planted(mix=[CutMix(p=1.0)])
    model = teacher_of(data)
    expected = by_hand(model, data, 1.0, hard=False)
    seen = Seen(tmp_path)
    run = trainer(callbacks=[Distillation(model, share=1.0, fixed=True), seen], max_epochs=1)
    run.fit(classifier(), datamodule=data)
    mixed = torch.cat([labels for _, labels in seen.batches]).double()
    torch.testing.assert_close(mixed.sum(1), torch.ones(TRAIN).double(), rtol=0, atol=1e-5)
    pairs = [(i, j) for i in range(TRAIN) for j in range(TRAIN) if i != j]
    for label in mixed:  # the nearest point between the answers of two images is the label
        distances = [_distance(label, expected[i], expected[j]) for i, j in pairs]
        assert min(distances) < 5e-3
    assert (mixed[:, None] - expected).norm(dim=2).amin(1).max() > 0.02  # not the answers as such


def _distance(point: Any, start: torch.Tensor, end: torch.Tensor) -> float:
    way = end - start
    share = ((point - start) @ way / (way @ way).clamp_min(1e-12)).clamp(0, 1)
    return (point - start - share * way).norm().item()


def test_the_teacher_answers_twice_for_each_image_in_the_whole_run(
    trainer: Callable[..., Any], tmp_path: Path
) -> None:
    data, summary = planted(), Summary(tmp_path)
    model = teacher_of(data)
    run = trainer(callbacks=[Distillation(model, fixed=True), summary], max_epochs=3)
    run.fit(classifier(), datamodule=data)
    answered = [images for images in model.network.given if len(images) > 1]  # 1: work is counted
    assert sum(map(len, answered)) == 2 * TRAIN
    work = 2 * TRAIN * 2 * 48 * 10 / 1e15  # a linear map of 48 means to 10 classes
    assert summary.figures["pflop teacher"] == pytest.approx(work, rel=1e-12)


def stopped_run(trainer: Callable[..., Any], folder: Path) -> Path:
    """The checkpoint of a run of one epoch."""
    data = planted()
    run = trainer("first", callbacks=[Distillation(teacher_of(data), fixed=True)], max_epochs=1)
    run.fit(classifier(), datamodule=data)
    run.save_checkpoint(folder / "last.ckpt")
    return folder / "last.ckpt"


def test_a_run_that_goes_on_has_its_answers(trainer: Callable[..., Any], tmp_path: Path) -> None:
    stopped = stopped_run(trainer, tmp_path)
    data = planted()
    model = teacher_of(data)
    second = Distillation(model, fixed=True)
    run = trainer("second", callbacks=[second], max_epochs=2)
    run.fit(classifier(), datamodule=data, ckpt_path=stopped, weights_only=True)
    assert model.network.given == []
    assert run.current_epoch == 2


@pytest.mark.parametrize("changed", ["teacher", "images"])
def test_a_run_that_goes_on_with_something_else_asks_anew(
    changed: str, trainer: Callable[..., Any], tmp_path: Path
) -> None:
    stopped = stopped_run(trainer, tmp_path)
    data = planted()
    model = teacher_of(data)
    if changed == "images":
        train: Any = data.splits.train
        train.images = 255 - train.images  # with the same labels
    if changed == "teacher":
        model.network.fc.weight.data[3] += 1
    expected = by_hand(model, data, 0.3, hard=False)
    seen = Seen(tmp_path)
    run = trainer(
        "second", callbacks=[Distillation(model, share=0.3, fixed=True), seen], max_epochs=2
    )
    run.fit(classifier(), datamodule=data, ckpt_path=stopped, weights_only=True)
    torch.testing.assert_close(seen.targets[0].double(), expected, rtol=0, atol=2e-3)


def test_large_logits_keep_their_differences(trainer: Callable[..., Any], tmp_path: Path) -> None:
    data = planted()
    model = teacher_of(data)
    expected = by_hand(model, data, 1.0, hard=False)
    model.network.fc.bias.data += 5000  # the same for all classes, and the same answers
    seen = Seen(tmp_path)
    run = trainer(callbacks=[Distillation(model, share=1.0, fixed=True), seen], max_epochs=1)
    run.fit(classifier(), datamodule=data)
    torch.testing.assert_close(seen.targets[0].double(), expected, rtol=0, atol=4e-3)


def test_the_teacher_answers_for_no_more_images_at_once_than_a_batch(
    trainer: Callable[..., Any],
) -> None:
    data = planted()
    model = teacher_of(data)
    run = trainer(callbacks=[Distillation(model, fixed=True)], max_epochs=1)
    run.fit(classifier(), datamodule=data)
    assert max(map(len, model.network.given)) == 8


def test_a_run_planned_by_minutes_has_the_teacher_answer_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the rehearsal of the first image size; its work is work of the run."""
    model = teacher_of(planted())
    monkeypatch.setattr("vision_attn.distillation.load_model", lambda _: model)
    options = {
        "model.network.image_size": 16,
        "model.network.dim": 12,
        "model.network.depth": 1,
        "data.source.size": 16,
        "data.source.train": TRAIN,
        "data.source.val": 5,
        "data.source.test": 5,
        "data.batch_size": 8,
        "data.augment": [
            {
                "class_path": "vision_attn.data.ProgressiveResizing",
                "init_args": {"sizes": [8, 16], "epochs": [0, 2]},
            }
        ],
        "trainer.accelerator": "cpu",
        "trainer.callbacks": [
            {
                "class_path": "vision_attn.distillation.Distillation",
                "init_args": {"teacher": "the teacher", "fixed": True},
            }
        ],
        "probe": False,
    }
    run = fit("vit_planted", options, minutes=0.002, output=tmp_path)
    answered = [images for images in model.network.given if len(images) > 1]
    assert sum(map(len, answered)) == 2 * TRAIN
    work = 2 * TRAIN * 2 * 48 * 10 / 1e15
    assert run.summary["pflop teacher"] == pytest.approx(work, rel=1e-12)


def test_fixed_answers_need_a_temperature_of_one() -> None:
    with pytest.raises(ValueError, match=r"fixed answers need a temperature of 1, got 2\.0"):
        Distillation("timm:resnet18", temperature=2.0, fixed=True)


def test_fixed_answers_need_a_loss_of_shares(trainer: Callable[..., Any]) -> None:
    data = planted()
    model = teacher_of(data)
    run = trainer(callbacks=[Distillation(model, fixed=True)], max_epochs=1)
    with pytest.raises(ValueError, match=r"shares of the classes .* got MultiMarginLoss: fixed="):
        run.fit(classifier(loss=nn.MultiMarginLoss()), datamodule=data)
    assert model.network.given == []


def test_fixed_answers_need_image_data(
    trainer: Callable[..., Any], stripes: Callable[..., Any], small_vit: Callable[..., Any]
) -> None:
    teacher = as_model(Counted())
    run = trainer(callbacks=[Distillation(teacher, fixed=True)], max_epochs=1)
    with pytest.raises(ValueError, match=r"need the images of a vision_attn\.data\.ImageData, got"):
        run.fit(ImageClassifier(small_vit()), datamodule=stripes())


def test_fixed_answers_need_one_class_an_image(trainer: Callable[..., Any]) -> None:
    data = planted()
    model = teacher_of(data)
    labels = data.splits.train.labels
    data.splits.train.labels = F.one_hot(labels, 10).float()
    run = trainer(callbacks=[Distillation(model, fixed=True)], max_epochs=1)
    with pytest.raises(ValueError, match="one class per image, these have several: fixed=False"):
        run.fit(classifier(), datamodule=data)


def test_fixed_answers_refuse_photos_that_are_cropped_at_random(
    trainer: Callable[..., Any], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for name in ("a", "b"):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for i in range(5):
                pixels = rng.integers(0, 256, (37, 41, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    data = ImageData(
        ImageFolder("photos", size=16, shorter_side=31), root=str(tmp_path), batch_size=3
    )
    data.setup("fit")
    model = Model(
        Counted(2).eval(), Preprocess((16, 16), (0.5,) * 3, (0.2,) * 3), data.classes, None, "it"
    )
    torch.manual_seed(0)
    network = ViT(16, 8, 2, dim=12, depth=1, heads=2)
    run = trainer(callbacks=[Distillation(model, fixed=True)], max_epochs=1, limit_val_batches=0)
    with pytest.raises(ValueError, match="cropped at random as they are read; fixed=False"):
        run.fit(ImageClassifier(network), datamodule=data)
