"""How many epochs fit into some minutes: beside a network that takes a known time for a step."""

from pathlib import Path
from time import sleep
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import yaml
from lightning.pytorch import LightningDataModule, LightningModule, Trainer

from vision_attn import fit
from vision_attn.cli import main
from vision_attn.data import ProgressiveResizing
from vision_attn.fitting.budget import Clock, Length, length_of, sizes
from vision_attn.fitting.fit import _word
from vision_attn.fitting.making import make_run
from vision_attn.models import ViT

STEP = 0.05  # seconds
STEPS = 3  # of an epoch
SMALL = {
    "data.source.train": 60,
    "data.source.val": 20,
    "data.source.test": 20,
    "data.batch_size": 20,
    "trainer.accelerator": "cpu",
    "trainer.enable_progress_bar": False,
    "trainer.callbacks": [],
    "probe": False,
}


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of training waits."""
    forward = ViT.forward

    def waiting(self: Any, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            sleep(STEP)
        return forward(self, images)

    monkeypatch.setattr(ViT, "forward", waiting)


def words(folder: Path, **changes: Any) -> list[Any]:
    options = SMALL | changes | {"trainer.default_root_dir": str(folder)}
    return [
        "--config",
        "vit_planted",
        *(f"--{name}={_word(value)}" for name, value in options.items()),
    ]


def test_a_length_is_whole_epochs_or_where_they_are_few_shorter_ones() -> None:
    assert Length.of(7.99, 10) == Length(7)
    assert Length.of(5.0, 10) == Length(5)
    assert Length.of(3.2, 10) == Length(4, 8)
    assert Length.of(2.0, 10) == Length(2, 10)
    assert Length.of(0.39, 10) == Length(1, 3)
    assert Length.of(0.001, 10) == Length(1, 1)
    lengths = [Length(7), Length(4, 8), Length(1, 3)]
    assert [str(one) for one in lengths] == [
        "7 epochs",
        "4 epochs of 8 batches",
        "1 epoch of 3 batches",
    ]


def test_images_grow_in_time() -> None:
    data = SimpleNamespace(augment=[ProgressiveResizing([8, 12, 16], [0, 4, 8])])
    assert sizes(data, 25) == [(0, 4 / 25), (4, 4 / 25), (8, 17 / 25)]
    assert sizes(data, 6) == [(0, 4 / 6), (4, 2 / 6)]
    assert sizes(SimpleNamespace(), 6) == [(0, 1.0)]
    values = SimpleNamespace(sizes=[8, 16], epochs=[0, 10])
    named = SimpleNamespace(class_path="vision_attn.data.ProgressiveResizing", init_args=values)
    trainer = SimpleNamespace(max_epochs=25, limit_train_batches=None)
    config = SimpleNamespace(trainer=trainer, data=SimpleNamespace(augment=[named]))
    Length(5).write(config)
    assert (trainer.max_epochs, trainer.limit_train_batches) == (5, None)
    assert values.epochs == [0, 2]
    Length(1, 7).write(config)
    assert (trainer.max_epochs, trainer.limit_train_batches) == (1, 7)


def test_an_epoch_is_its_steps_and_its_validation() -> None:
    """The first two steps make kernels; the median is not moved by one that had to wait."""
    ends = [0.0, 9.0, 13.0, 14.0, 15.0, 16.0, 30.0, 31.0]
    clock = Clock(1.0, ends, validated=[0.5, 0.25, 4.0], batches=100)
    assert clock.seconds(8) == 100 * 1.0 + 8 * 0.5
    assert Clock(1.0, [0.0, 3.0], batches=10).seconds(0) == 30.0


def test_what_comes_before_the_first_step_counts_among_the_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rehearse(clock: Any, epoch: Any, *_: Any) -> None:
        now = iter([100.0, 112.0])  # the fit starts, then its first step
        monkeypatch.setattr("vision_attn.fitting.budget.perf_counter", lambda: next(now))
        clock.on_fit_start(trainer, model)
        clock.on_train_start(trainer, model)
        clock.ends += [113.0, 114.0, 115.0, 116.0, 117.0]

    trainer, model, data = Mock(Trainer), Mock(LightningModule), Mock(LightningDataModule)
    trainer.num_training_batches, data.val_dataloader.return_value = 4, []
    monkeypatch.setattr("vision_attn.fitting.budget.rehearse", rehearse)
    found = length_of(1.0, model, data, [], Trainer, 5)
    assert found == Length(int(0.97 * (60 - 12) / 4))
    with pytest.raises(
        ValueError, match=r"--minutes 0\.1: .* took 0\.2 minutes: give more minutes"
    ):
        length_of(0.1, model, data, [], Trainer, 5)


@pytest.mark.parametrize("epochs", [5, 0.4])
def test_as_many_epochs_as_fit(epochs: float, slow: None, tmp_path: Path) -> None:
    """Each step waits, so that no more epochs fit than these; a slow machine may fit fewer."""
    minutes = 1.3 * epochs * STEPS * STEP / 60
    run = make_run("fit", words(tmp_path, minutes=minutes))
    saved = yaml.safe_load(run.config_text())
    steps = saved["trainer"]["max_epochs"] * (saved["trainer"]["limit_train_batches"] or STEPS)
    assert 1 <= steps <= max(1, 1.3 * epochs * STEPS)
    assert run.trainer.max_epochs == saved["trainer"]["max_epochs"]
    assert "minutes" not in saved


@pytest.mark.slow
def test_a_rehearsal_leaves_nothing(tmp_path: Path) -> None:
    """The run with minutes is, to the bit, the run of as many epochs."""
    run = fit("vit_planted", SMALL, minutes=0.03, output=tmp_path / "minutes")
    config = yaml.safe_load((run.folder / "config.yaml").read_text())["trainer"]
    again = {**SMALL, "trainer.limit_train_batches": config["limit_train_batches"]}
    if config["limit_train_batches"] is None:
        del again["trainer.limit_train_batches"]
    same = fit("vit_planted", again, max_epochs=config["max_epochs"], output=tmp_path / "epochs")
    assert same.metrics == run.metrics
    for (name, one), other in zip(
        run.model.network.state_dict().items(),
        same.model.network.state_dict().values(),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=0, msg=name)
    assert {path.name for path in run.folder.iterdir()} == {
        path.name for path in same.folder.iterdir()
    }


def test_a_rehearsal_of_callbacks_that_draw_or_log_leaves_no_files(tmp_path: Path) -> None:
    """Of the shipped config's heatmaps too; those of Lightning want a logger, or draw a bar."""
    given = words(tmp_path, minutes=0.01, **{"trainer.enable_progress_bar": True})
    given.remove("--trainer.callbacks=[]")
    for name in ("LearningRateMonitor", "TQDMProgressBar"):
        given.append(f"--trainer.callbacks+=lightning.pytorch.callbacks.{name}")
    run = make_run("fit", given)
    kinds = {type(callback).__name__ for callback in vars(run.trainer)["callbacks"]}
    assert {"WatchHeatmaps", "LearningRateMonitor", "TQDMProgressBar"} <= kinds
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_epochs_without_end_are_planned_as_lightnings_default(tmp_path: Path) -> None:
    resizing: dict[str, Any] = {"class_path": "vision_attn.data.ProgressiveResizing"}
    resizing["init_args"] = {"sizes": [32, 64], "epochs": [0, 500]}
    changes = {"trainer.max_epochs": -1, "data.augment": [resizing]}
    run = make_run("fit", words(tmp_path, minutes=0.01, **changes))
    assert run.trainer.max_epochs is not None
    assert run.trainer.max_epochs >= 1
    assert run.datamodule.augment[0].epochs == [0, round(500 * run.trainer.max_epochs / 1000)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--minutes", "1", "--ckpt_path", "auto"], "plans the epochs of a new fit"),
        (["--minutes", "1", "--trainer.devices", "2"], "measures training in one process"),
        (["--minutes", "0"], "--minutes 0: expected a number of minutes above 0"),
        (["--minutes", "soon"], "minutes: expected float, got soon"),
    ],
)
def test_minutes_are_refused_where_they_cannot_be_kept(
    given: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "vit_planted/version_0").mkdir(parents=True)
    (tmp_path / "vit_planted/version_0/last.ckpt").write_bytes(b"")
    assert main(["fit", *words(tmp_path), *given]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]
