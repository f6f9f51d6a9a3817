"""What a run of the training commands does and leaves: alone, and as two processes."""

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image

from vision_attn.cli import main


@pytest.mark.xdist_group("fitted")
def test_a_run_fills_its_folder(fitted: Path) -> None:
    assert {path.name for path in fitted.iterdir()} == {
        "best.ckpt", "best.safetensors", "config.yaml", "confusion_matrix.png", "last.ckpt",
        "learning_curves.png", "metrics.csv", "per_class.csv", "summary.json", "summary.txt",
    }  # fmt: skip
    summary = (fitted / "summary.txt").read_text()
    assert "ViT, 0.00 M parameters" in summary
    assert "test top-1" in summary
    for name in ("best.ckpt", "last.ckpt"):
        torch.load(fitted / name, weights_only=True)


@pytest.mark.slow
@pytest.mark.xdist_group("fitted")
def test_runs_are_named_after_their_config_and_numbered(
    fitted: Path, capsys: pytest.CaptureFixture[str], fit: Callable[..., int]
) -> None:
    assert fit("--trainer.limit_train_batches", "1") == 0
    assert fit("--trainer.limit_train_batches=1", "--trainer.logger=false") == 0
    assert fit("--name", "mine", "--trainer.limit_train_batches", "1") == 0
    assert sorted(str(p) for p in Path("outputs").glob("*/*")) == [
        "outputs/mine/version_0", "outputs/tiny/version_0", "outputs/tiny/version_1"
    ]  # fmt: skip
    assert "outputs/tiny/version_1" in capsys.readouterr().out


@pytest.mark.xdist_group("fitted")
def test_the_saved_config_is_complete_and_makes_the_same_run(fitted: Path, here: Path) -> None:
    saved = yaml.safe_load((fitted / "config.yaml").read_text())
    assert set(saved) == {
        *("seed_everything", "trainer", "model", "data", "name", "probe", "threads"),
    }
    assert saved["trainer"]["precision"] in ("bf16-mixed", "32-true")
    assert saved["model"]["optimizer"]["init_args"]["betas"] == [0.9, 0.999]
    again = ["fit", "--config", str(fitted / "config.yaml"), "--trainer.default_root_dir", "again"]
    assert main(again) == 0
    first, second = (
        torch.load(path / "last.ckpt", weights_only=True)["state_dict"]
        for path in (fitted, Path("again/tiny/version_0"))
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.xdist_group("fitted")
def test_test_and_validate_write_beside_the_checkpoint(
    fitted: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(fitted, "run")
    os.remove("run/confusion_matrix.png")
    words = ["--config", "run/config.yaml", "--ckpt_path", "run/best.ckpt"]
    assert main(["test", *words]) == 0
    assert "test top-1" in capsys.readouterr().out
    assert main(["validate", "--config", "configs/tiny.yaml", "--ckpt_path=run/best.ckpt"]) == 0
    assert "val calibration error" in capsys.readouterr().out
    added = {path.name for path in Path(run).iterdir()} - {p.name for p in fitted.iterdir()}
    assert added == {"test.json", "test.txt", "val.json", "val.txt"}
    assert Path("run/confusion_matrix.png").is_file()
    assert Path("run/summary.txt").read_bytes() == (fitted / "summary.txt").read_bytes()


@pytest.mark.xdist_group("fitted")
def test_predict_names_the_class_of_files_and_folders(
    fitted: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("photos").mkdir()
    for name, colour in (("photos/a.png", "red"), ("photos/b.jpg", "blue"), ("c.png", "green")):
        Image.new("RGB", (40, 23), colour).save(name)
    Path("photos/broken.jpg").write_text("no photo")
    words = ["predict", "--ckpt_path", str(fitted / "best.ckpt"), "--images", "photos", "c.png"]
    assert main([*words, "--output", "found.csv", "--images", "photos/a.png"]) == 1
    assert "3 predictions: found.csv" in capsys.readouterr().out
    with open("found.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == ["photos/a.png", "photos/b.jpg", "c.png"]
    classes = torch.load(fitted / "best.ckpt", weights_only=True)["vision_attn"]["classes"]
    assert all(row["class"] in classes and 0.1 <= float(row["probability"]) <= 1 for row in rows)


@pytest.mark.xdist_group("fitted")
def test_predict_needs_images(fitted: Path, complaint: Callable[..., Any]) -> None:
    assert main(["predict", "--ckpt_path", str(fitted / "best.ckpt")]) == 2
    assert complaint() == "no image to predict: --images FILE_OR_FOLDER ..."


def test_fast_dev_run_leaves_nothing_behind(fit: Callable[..., int]) -> None:
    assert fit("--trainer.fast_dev_run", "true") == 0
    assert not Path("outputs").exists()


def test_tensorboard_comes_beside_the_csv(fit: Callable[..., int]) -> None:
    logger = "lightning.pytorch.loggers.TensorBoardLogger"
    assert fit("--trainer.logger", logger, "--trainer.logger.save_dir", "board") == 0
    assert list(Path("board").rglob("events.out*"))
    assert Path("outputs/tiny/version_0/metrics.csv").is_file()


def test_early_stopping_accumulation_and_clipping_are_lightnings(fit: Callable[..., int]) -> None:
    words = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/loss"]
    words += ["--trainer.callbacks.patience=1", "--trainer.callbacks.min_delta=9"]
    words += ["--trainer.accumulate_grad_batches", "2", "--trainer.gradient_clip_val", "1"]
    assert fit(*words, "--trainer.max_epochs", "9") == 0
    last = torch.load("outputs/tiny/version_0/last.ckpt", weights_only=True)
    assert (last["epoch"], last["global_step"]) == (1, 2)


PARTS = [
    "--trainer.callbacks+=vision_attn.training.ThreadParallel",
    *("--trainer.callbacks.threads", "2", "--trainer.callbacks.least", "0.0"),
]


@pytest.mark.parametrize("words", [[], PARTS])
def test_a_run_has_one_way_to_use_its_cores(words: list[str], here: Path) -> None:
    from vision_attn.fitting.making import make_run
    from vision_attn.training import ThreadParallel

    run = make_run("fit", ["--config", "configs/tiny.yaml", *words])
    trainer: Any = run.trainer
    (found,) = (c for c in trainer.callbacks if isinstance(c, ThreadParallel))
    assert (found.threads, found.least) == ((2, 0.0) if words else (None, 1e9))


def test_averaged_weights_are_tested_and_kept(fit: Callable[..., int]) -> None:
    words = ["--trainer.callbacks+=EMAWeightAveraging", "--trainer.callbacks.decay=0.5"]
    assert fit(*words) == 0
    run = Path("outputs/tiny/version_0")
    assert "current_model_state" in torch.load(run / "best.ckpt", weights_only=True)
    own = ["--config", str(run / "config.yaml")]
    assert main(["test", *own, "--ckpt_path", str(run / "best.ckpt")]) == 0
    after_fit, apart = (json.loads((run / f"{n}.json").read_text()) for n in ("summary", "test"))
    assert after_fit["test/loss"] == apart["test/loss"]


TWO = """
from vision_attn.cli import main
two = ["--trainer.strategy", STRATEGY, "--trainer.devices", "2"]
assert main(["fit", "--config", "configs/tiny.yaml", *WORDS, *two, "--data.batch_size", "10"]) == 0
best = "outputs/tiny/version_0/best.ckpt"
assert main(["predict", "--ckpt_path", best, "--images", "photos", "--output", "two.csv", *two]) == 1
"""


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
@pytest.mark.slow
def test_two_processes_learn_and_predict_what_one_does(
    strategy: str, fit: Callable[..., int]
) -> None:
    Path("photos").mkdir()
    for i in range(5):
        Image.new("RGB", (40, 23), (50 * i, 90, 10)).save(f"photos/{i}.png")
    Path("photos/3.png").write_text("no photo")
    words = ["--trainer.max_epochs", "2", "--model.optimizer", "torch.optim.SGD"]
    words += ["--model.optimizer.lr", "0.1", "--trainer.precision", "32-true"]
    Path("two.py").write_text(f"WORDS, STRATEGY = {words}, {strategy!r}\n{TWO}")
    alone = {k: v for k, v in os.environ.items() if k not in ("LOCAL_RANK", "WORLD_SIZE")}
    done = subprocess.run([sys.executable, "two.py"], env=alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("4 predictions: two.csv") == 1
    assert fit(*words, "--name", "one") == 0
    one, two = Path("outputs/one/version_0"), Path("outputs/tiny/version_0")
    assert main(["predict", "--ckpt_path", f"{one}/best.ckpt", "--images", "photos"]) == 1
    assert {path.name for path in two.iterdir()} == {path.name for path in one.iterdir()} - {
        "predictions.csv"
    }
    expected, found = (torch.load(run / "last.ckpt", weights_only=True) for run in (one, two))
    assert found["global_step"] == 4
    for name, value in expected["state_dict"].items():
        torch.testing.assert_close(found["state_dict"][name], value, atol=1e-6, rtol=1e-4)
    expected, found = (json.loads((run / "summary.json").read_text()) for run in (one, two))
    assert found["test/top1"] == expected["test/top1"]
    assert found["test/loss"] == pytest.approx(expected["test/loss"], rel=1e-4)
    assert Path("two.csv").read_text() == (one / "predictions.csv").read_text()
