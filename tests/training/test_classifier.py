import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW
from torchmetrics.functional.classification import multiclass_calibration_error

from vision_attn.models import build
from vision_attn.training import ConstantRate, ImageClassifier, NonFiniteLoss


def test_a_run_learns_and_logs_loss_accuracy_and_calibration(
    trainer: Callable[..., Any], stripes: Callable[..., Any], small_vit: Callable[..., Any]
) -> None:
    model = ImageClassifier(small_vit(), partial(AdamW, lr=0.01))
    run = trainer(max_epochs=60)  # 13 of 16 starts learn; in 15 epochs at 0.02, four
    run.fit(model, datamodule=stripes())
    assert run.callback_metrics["val/top1"] > 0.9
    assert {"train/loss", "train/top1", "val/loss", "val/top1", "val/ece"} <= set(
        run.callback_metrics
    )


def test_metrics_are_those_of_the_formulas(
    trainer: Callable[..., Any], stripes: Callable[..., Any], small_vit: Callable[..., Any]
) -> None:
    model, data = ImageClassifier(small_vit(num_classes=7)), stripes(classes=7)
    (found,) = trainer().test(model, datamodule=data, verbose=False)
    with torch.inference_mode():
        logits = model.eval()(data.images[:17])
    labels, order = data.labels[:17], logits.argsort(1, descending=True)
    hit = order == labels[:, None]
    assert found["test/loss"] == pytest.approx(nn.functional.cross_entropy(logits, labels).item())
    assert found["test/top1"] == pytest.approx(hit[:, 0].float().mean().item())
    assert found["test/top5"] == pytest.approx(hit[:, :5].any(1).float().mean().item())
    assert found["test/ece"] == pytest.approx(
        multiclass_calibration_error(logits.softmax(1), labels, 7, n_bins=15).item(), abs=1e-6
    )


@pytest.mark.parametrize(("classes", "logged"), [(3, False), (5, False), (7, True)])
def test_top5_is_logged_of_more_than_five_classes(
    classes: int,
    logged: bool,
    trainer: Callable[..., Any],
    stripes: Callable[..., Any],
    small_vit: Callable[..., Any],
) -> None:
    model, data = ImageClassifier(small_vit(num_classes=classes)), stripes(classes=classes)
    (found,) = trainer().test(model, datamodule=data, verbose=False)
    assert "test/top1" in found
    assert ("test/top5" in found) == logged


def test_soft_labels_train_as_their_cross_entropy(small_vit: Callable[..., Any]) -> None:
    model: Any = ImageClassifier(small_vit())
    images, shares = torch.randn(5, 3, 8, 8), torch.rand(5, 3).softmax(1)
    model.log_mean = lambda *args: None
    loss = model.training_step((images, shares), 0)
    expected = -(shares * model(images).log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(loss, expected)


def test_the_schedule_spans_the_run_and_the_optimiser_has_its_groups(
    trainer: Callable[..., Any], stripes: Callable[..., Any], small_vit: Callable[..., Any]
) -> None:
    seen = []

    def schedule(optimizer: Any, steps: int) -> ConstantRate:
        seen.append((type(optimizer), steps, len(optimizer.param_groups)))
        return ConstantRate(optimizer, steps)

    model = ImageClassifier(small_vit(), partial(SGD, lr=0.1), schedule)
    trainer(max_epochs=3, accumulate_grad_batches=3).fit(model, datamodule=stripes())
    assert seen == [(SGD, 3, 3)]


def test_a_run_without_an_end_has_no_schedule(
    trainer: Callable[..., Any], stripes: Callable[..., Any], small_vit: Callable[..., Any]
) -> None:
    with pytest.raises(ValueError, match=r"how long the run is: give trainer\.max_epochs"):
        trainer(max_epochs=-1).fit(ImageClassifier(small_vit()), datamodule=stripes())


def test_a_network_with_another_number_of_classes_is_refused(
    trainer: Callable[..., Any], stripes: Callable[..., Any], small_vit: Callable[..., Any]
) -> None:
    model = ImageClassifier(small_vit(num_classes=5))
    with pytest.raises(
        ValueError, match=r"gives 5 classes, the data has 3: --model\.network\.num_classes 3"
    ):
        trainer().fit(model, datamodule=stripes())


def test_checkpoints_are_plain_and_tell_all_that_a_network_needs(
    trainer: Callable[..., Any],
    tmp_path: Path,
    stripes: Callable[..., Any],
    small_vit: Callable[..., Any],
) -> None:
    model = ImageClassifier(small_vit(pool="mean", registers=1))
    run = trainer()
    run.fit(model, datamodule=stripes())
    for name in ("best.ckpt", "last.ckpt"):
        checkpoint = torch.load(tmp_path / "run" / name, weights_only=True)
        about = checkpoint["vision_attn"]
        assert about["format"] == 1
        assert about["classes"] == ["row 0", "row 1", "row 2"]
        assert about["preprocess"]["input_size"] == (8, 8)
        assert about["preprocess"]["std"] == (0.25,) * 3
        network = build(about["network"])
        weights = {k.removeprefix("network."): v for k, v in checkpoint["state_dict"].items()}
        network.load_state_dict(weights, strict=True)
    images = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(network.eval()(images), model.eval()(images))


def test_a_network_from_elsewhere_trains_and_resumes(
    trainer: Callable[..., Any], tmp_path: Path, stripes: Callable[..., Any]
) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    trainer().fit(ImageClassifier(network), datamodule=stripes())
    checkpoint = torch.load(tmp_path / "run/last.ckpt", weights_only=True)
    assert checkpoint["vision_attn"]["network"] is None
    run = trainer("again", max_epochs=3)
    run.fit(ImageClassifier(network), datamodule=stripes(), ckpt_path=tmp_path / "run/last.ckpt")
    assert run.current_epoch == 3


def test_nan_stops_before_the_weights_change_and_names_step_and_checkpoint(
    trainer: Callable[..., Any],
    tmp_path: Path,
    stripes: Callable[..., Any],
    small_vit: Callable[..., Any],
) -> None:
    model = ImageClassifier(small_vit())
    first = trainer(max_epochs=1)
    first.fit(model, datamodule=stripes())
    good = torch.load(tmp_path / "run/last.ckpt", weights_only=True)["state_dict"]
    data = stripes(poisoned=40)
    with pytest.raises(
        NonFiniteLoss, match=r"loss is nan at step [345], epoch 1; .*again/best\.ckpt"
    ):
        trainer("again", max_epochs=2).fit(
            model, datamodule=data, ckpt_path=tmp_path / "run/last.ckpt"
        )
    kept = torch.load(tmp_path / "run/last.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(good[name], kept[name]) for name in good)
    assert all(value.isfinite().all() for value in model.state_dict().values())


def test_a_loss_that_is_infinite_in_validation_never_reaches_a_checkpoint(
    trainer: Callable[..., Any],
    tmp_path: Path,
    stripes: Callable[..., Any],
    small_vit: Callable[..., Any],
) -> None:
    model = ImageClassifier(small_vit())
    data = stripes()
    data.val_dataloader = stripes(poisoned=3).val_dataloader
    with pytest.raises(NonFiniteLoss, match=r"val loss is nan at step 3.*no checkpoint was made"):
        trainer(num_sanity_val_steps=0).fit(model, datamodule=data)
    assert not (tmp_path / "run/last.ckpt").exists()


def test_predict_gives_probabilities(
    trainer: Callable[..., Any], stripes: Callable[..., Any], small_vit: Callable[..., Any]
) -> None:
    data = stripes()
    model = ImageClassifier(small_vit())
    batches = trainer().predict(model, data.val_dataloader())
    assert torch.cat(batches).sum(1).tolist() == pytest.approx([1.0] * 17)
    assert math.isclose(batches[0].min(), batches[0].min().clamp(0, 1))
