"""What docs/howto/lightning.md says of each option of Lightning."""

import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch.callbacks import ModelPruning

from vision_attn.cli import main
from vision_attn.fitting.making import make_run

PAGE = Path(__file__).parents[2] / "docs/howto/lightning.md"
ALONE, TWO = (
    re.findall(r"^\| `(--trainer.*?)` \| (.*) \|$", part, re.MULTILINE)
    for part in PAGE.read_text(encoding="utf-8").split("## Two processes")
)
QUICK = ("bf16-true", "SingleDeviceStrategy")  # of those that train


def row(words: str, result: str) -> Any:
    slow = result.startswith("works") and not words.endswith(QUICK)
    return pytest.param(words, result, marks=[pytest.mark.slow] if slow else [])


def said(err: str) -> str:
    (line,) = [x for x in err.strip().splitlines() if x.startswith("vision-attn: error: ")]
    return line


@pytest.mark.parametrize(("words", "result"), [row(*each) for each in ALONE])
def test_each_option_does_what_the_page_says(
    words: Any,
    result: Any,
    here: Path,
    capsys: pytest.CaptureFixture[str],
    recwarn: pytest.WarningsRecorder,
) -> None:
    code = main(["fit", "--config", "tiny.yaml", *shlex.split(words)])
    if result.startswith("works"):
        assert code == 0
        assert Path("outputs/tiny/version_0/best.ckpt").is_file()
        return
    text = result.removeprefix("says: ")
    if (found := re.search(r"the package (\w+)", text)) and find_spec(found[1]):
        pytest.skip(f"{found[1]} is installed")
    assert code == 2
    assert text in said(capsys.readouterr().err)


@pytest.mark.parametrize(("words", "result"), [each for each in TWO if "says" in each[1]])
def test_a_strategy_that_cannot_work_says_so(
    words: Any, result: Any, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--config", "tiny.yaml", "--trainer.devices", "2", *shlex.split(words)]
    assert main(["fit", *words]) == 2
    assert result.removeprefix("says: ") in said(capsys.readouterr().err)


@pytest.mark.parametrize("words", [each[0] for each in TWO if "works" in each[1]])
@pytest.mark.slow
def test_two_processes_train_as_the_page_says(words: Any, here: Path) -> None:
    command = [sys.executable, "-m", "vision_attn", "fit", "--config", "tiny.yaml"]
    alone = {k: v for k, v in os.environ.items() if k not in ("LOCAL_RANK", "WORLD_SIZE")}
    command += ["--trainer.devices", "2", *shlex.split(words)]
    done = subprocess.run(command, env=alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Path("outputs/tiny/version_0/best.ckpt").is_file()
    assert len(list(Path("outputs/tiny").iterdir())) == 1


PRUNING = [
    *("--trainer.callbacks+=ModelPruning", "--trainer.callbacks.pruning_fn=l1_unstructured"),
    *("--trainer.callbacks.amount=0.25", "--trainer.callbacks.use_lottery_ticket_hypothesis=false"),
]


def test_every_layer_is_pruned_in_training_and_in_the_checkpoint(here: Path) -> None:
    """Of the first layer too, whose weights a matrix product takes."""
    words = ["--config", "tiny.yaml", *PRUNING, "--trainer.max_epochs=3"]
    run = make_run("fit", words)
    run.fit()
    assert run.folder is not None
    config = yaml.safe_load((run.folder / "config.yaml").read_text())
    (pruning,) = config["trainer"]["callbacks"]
    assert pruning["init_args"]["pruning_fn"] == "l1_unstructured"
    callbacks = vars(run.trainer)["callbacks"]
    assert any(isinstance(callback, ModelPruning) for callback in callbacks)
    weights = torch.load(run.folder / "last.ckpt", weights_only=True)["state_dict"]
    layers = [w for name, w in weights.items() if name.endswith(("weight", "bias"))]
    zeros = sum(int((w == 0).sum()) for w in layers)
    assert zeros / sum(w.numel() for w in layers) >= 0.25


def test_a_run_that_ends_before_it_is_validated_keeps_and_tests_its_weights(here: Path) -> None:
    words = ["--trainer.check_val_every_n_epoch=2", "--trainer.max_epochs"]
    run = make_run("fit", ["--config", "tiny.yaml", *words, "1"])
    run.fit()
    assert run.folder is not None
    best, last = (
        torch.load(run.folder / f"{name}.ckpt", weights_only=True)["state_dict"]
        for name in ("best", "last")
    )
    assert all(torch.equal(best[name], last[name]) for name in last)
    assert "test/top1" in (run.folder / "summary.json").read_text()
    start = ["--ckpt_path", str(run.folder / "last.ckpt")]
    run = make_run("fit", ["--config", "tiny.yaml", *words, "3", *start])
    run.fit()
    assert run.folder is not None
    assert torch.load(run.folder / "last.ckpt", weights_only=True)["global_step"] == 6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--trainer.max_epochs 0", "--trainer.max_epochs 0 trains nothing: give more than 0"),
        ("--trainer.limit_train_batches 0", "--trainer.limit_train_batches 0 trains nothing"),
        (
            "--model.schedule torch.optim.lr_scheduler.ReduceLROnPlateau",
            "ReduceLROnPlateau follows a metric, and schedules here follow steps",
        ),
        (
            "--model.optimizer torch.optim.SparseAdam",
            "SparseAdam does not support dense gradients",
        ),
        (
            "--trainer.callbacks+=EarlyStopping --trainer.callbacks.patience=x",
            "trainer.callbacks.patience: expected int, got x",
        ),
        ("--trainer.strategy single_xla", "single_xla runs on a TPU alone"),
        (
            "--trainer.strategy lightning.pytorch.strategies.DDPStrategy "
            "--trainer.strategy.start_method spawn",
            "take --trainer.strategy ddp",
        ),
    ],
)
def test_what_cannot_work_is_said_in_a_line(
    words: str, message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", "--config", "tiny.yaml", *shlex.split(words)]) == 2
    assert message in said(capsys.readouterr().err)
