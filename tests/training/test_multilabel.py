"""Images of any number of classes, and classes of uneven size: loss, metrics, files."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from sklearn.metrics import average_precision_score, f1_score, precision_recall_fscore_support
from torch import nn

from vision_attn.data import ImageData, Source, Splits, TensorSet
from vision_attn.methods import GradCAM
from vision_attn.models import ViT
from vision_attn.training import (
    ImageClassifier,
    MultiLabelCrossEntropy,
    PerClass,
    Summary,
    TestTimeAugmentation,
    WatchHeatmaps,
)


class Marks(Source):
    """Coloured quarters: class c is there where quarter c is bright.

    noise: of as many levels; without, images of the same labels are equal, and so are their scores.
    """

    def __init__(self, several: bool = True, noise: int = 1):
        self.several, self.noise = several, noise

    def load(self, root: Path, val_fraction: Any, seed: int) -> Splits:
        rng = np.random.default_rng(0)
        parts = []
        for count in (41, 23, 29):
            labels = (rng.random((count, 3)) < (0.5, 0.2, 0.7)).astype(np.float32)
            images = torch.zeros(count, 3, 8, 8, dtype=torch.uint8)
            for c in range(3):
                where = slice(4 * (c // 2), 4 * (c // 2) + 4), slice(4 * (c % 2), 4 * (c % 2) + 4)
                images[:, :, where[0], where[1]] = torch.from_numpy(
                    (labels[:, c, None, None, None] * 200).astype(np.uint8)
                )
            if self.noise > 1:
                images += torch.from_numpy(
                    rng.integers(self.noise, size=images.shape, dtype=np.uint8)
                )
            tensor = torch.from_numpy(labels)
            parts.append(TensorSet(images, tensor if self.several else tensor.argmax(1)))
        train, val, test = parts
        return Splits(train, val, test, classes=["one", "two", "three"])


def fitted(
    tmp_path: Path, loss: MultiLabelCrossEntropy | None, several: bool = True
) -> tuple[ImageClassifier, ImageData, Mapping[str, float], Any]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(12, 3))
    module = ImageClassifier(network, lambda groups: torch.optim.Adam(groups, lr=0.05), loss=loss)
    data = ImageData(Marks(several), batch_size=16)
    trainer = Trainer(
        max_epochs=4,
        logger=False,
        accelerator="cpu",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[PerClass(tmp_path)],
    )
    trainer.fit(module, data)
    (measured,) = trainer.test(module, data, verbose=False)
    images, _ = data.examples(29, data.splits.test)
    with torch.no_grad():
        logits = module.network(images)
    return module, data, measured, logits


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*log_every_n_steps")
def test_metrics_are_those_of_scikit_learn(tmp_path: Path) -> None:
    module, data, measured, logits = fitted(tmp_path, MultiLabelCrossEntropy())
    truth, chances = data.splits.test.labels.numpy(), logits.sigmoid().numpy()
    assert module.monitor == "val/map"
    assert measured["test/map"] == pytest.approx(average_precision_score(truth, chances), abs=1e-5)
    assert measured["test/f1"] == pytest.approx(
        f1_score(truth, chances >= 0.5, average="macro"), abs=1e-5
    )
    exact = ((chances >= 0.5) == truth).all(1).mean()
    assert measured["test/exact"] == pytest.approx(exact, abs=1e-5)
    assert measured["test/loss"] == pytest.approx(
        nn.functional.binary_cross_entropy_with_logits(logits, data.splits.test.labels).item(),
        abs=1e-5,
    )
    with (tmp_path / "per_class.csv").open() as file:
        rows = list(csv.DictReader(file))
    precision, recall, f1, count = precision_recall_fscore_support(
        truth, chances >= 0.5, zero_division=0
    )
    each = average_precision_score(truth, chances, average=None)
    assert [row["class"] for row in rows] == ["one", "two", "three", "mean"]
    for i, row in enumerate(rows[:3]):
        assert int(row["images"]) == count[i]
        numbers = [float(row[name]) for name in ("precision", "recall", "f1", "average precision")]
        assert numbers == pytest.approx([precision[i], recall[i], f1[i], each[i]], abs=1e-4)
    assert float(rows[3]["average precision"]) == pytest.approx(each.mean(), abs=1e-4)
    np.testing.assert_allclose(module.calibration.probabilities(logits).numpy(), chances, atol=1e-6)
    checkpoint: dict[str, Any] = {}
    module.on_save_checkpoint(checkpoint)
    assert checkpoint["vision_attn"]["calibration"]["activation"] == "sigmoid"


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*log_every_n_steps")
def test_each_class_of_one_class_a_photo(tmp_path: Path) -> None:
    _, data, _, logits = fitted(tmp_path, None, several=False)
    truth, found = data.splits.test.labels.numpy(), logits.argmax(1).numpy()
    precision, recall, f1, count = precision_recall_fscore_support(
        truth, found, zero_division=0, labels=range(3)
    )
    with (tmp_path / "per_class.csv").open() as file:
        rows = list(csv.DictReader(file))
    for i, row in enumerate(rows[:3]):
        assert int(row["images"]) == count[i]
        numbers = [float(row[name]) for name in ("precision", "recall", "f1")]
        assert numbers == pytest.approx([precision[i], recall[i], f1[i]], abs=1e-4)
    assert float(rows[3]["recall"]) == pytest.approx(recall[count > 0].mean(), abs=1e-4)


def test_balanced_weights_are_those_of_the_training_images() -> None:
    module = ImageClassifier(nn.Linear(1, 3), loss=MultiLabelCrossEntropy(balanced=True, most=2.0))
    data = ImageData(Marks(), batch_size=16)
    module._trainer = type("Stub", (), {"datamodule": data, "training": True})()
    module.setup("fit")
    labels = data.splits.train.labels
    expected = ((1 - labels).sum(0) / labels.sum(0)).clamp(max=2.0)
    torch.testing.assert_close(module.loss.pos_weight, expected)
    assert 2.0 in expected


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*log_every_n_steps")
@pytest.mark.parametrize(
    ("loss", "several", "message"),
    [
        (
            MultiLabelCrossEntropy(),
            False,
            "expected labels of 0 and 1 for each class, got one class",
        ),
        (None, True, "these images have any number of classes: the loss must be"),
    ],
)
def test_labels_of_another_kind_are_said(
    tmp_path: Path, loss: MultiLabelCrossEntropy | None, several: bool, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fitted(Path(tmp_path), loss, several)


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_views_of_several_classes_have_a_mean_average_precision(tmp_path: Path) -> None:
    network = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(48, 3))
    module = ImageClassifier(network, loss=MultiLabelCrossEntropy())
    data, views = ImageData(Marks(noise=50), batch_size=16), TestTimeAugmentation()
    trainer = Trainer(logger=False, accelerator="cpu", callbacks=[views, Summary(tmp_path)])
    (measured,) = trainer.test(module, data, verbose=False)
    images, labels = data.examples(29, data.splits.test)
    with torch.no_grad():
        plain = network(images)
        mean = views.logits(network, images, plain)
    expected = average_precision_score(labels.numpy(), mean.numpy())
    assert measured["test/map_views"] == pytest.approx(expected, abs=1e-5)
    assert expected != pytest.approx(average_precision_score(labels.numpy(), plain.numpy()))
    assert "test mean average precision, mean over" in (tmp_path / "test.txt").read_text()


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*log_every_n_steps")
def test_photos_of_several_classes_are_watched(tmp_path: Path) -> None:
    """The first class of each is what is explained, and all are named."""
    network = ViT(image_size=8, patch_size=4, num_classes=3, dim=8, depth=1, heads=2)
    data, watch = ImageData(Marks(), batch_size=16), WatchHeatmaps(GradCAM(), images=23)
    Trainer(
        max_epochs=1,
        logger=False,
        accelerator="cpu",
        default_root_dir=tmp_path,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[watch],
    ).fit(ImageClassifier(network, loss=MultiLabelCrossEntropy()), data)
    present = [row.nonzero().flatten().tolist() for row in data.splits.val.labels]
    assert {len(some) for some in present} == {0, 1, 2}
    named = [", ".join(data.classes[i] for i in some) or "no class" for some in present]
    assert watch.names == named
    assert watch.labels.tolist() == [some[0] if some else 0 for some in present]
    assert (tmp_path / "heatmaps/epoch_1.png").is_file()
