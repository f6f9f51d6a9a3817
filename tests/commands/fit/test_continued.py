"""A run that was stopped or killed goes on; a checkpoint that cannot be used is named."""

import os
import signal
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
def test_resume_goes_on_in_a_fresh_folder(
    fitted: Path, here: Path, complaint: Callable[..., Any]
) -> None:
    words = ["--trainer.max_epochs", "2", "--trainer.default_root_dir", "outputs"]
    words += ["--ckpt_path", str(fitted / "last.ckpt")]
    assert main(["fit", *words]) == 2
    own = fitted / "config.yaml"
    assert f"(that of the checkpoint's run is {own})" in complaint()
    assert main(["fit", "--config", str(own), *words]) == 0
    last = torch.load("outputs/tiny/version_0/last.ckpt", weights_only=True)
    assert (last["epoch"], last["global_step"]) == (1, 4)
    assert "ckpt_path" not in yaml.safe_load(Path("outputs/tiny/version_0/config.yaml").read_text())


PARTS = [
    "--trainer.callbacks+=vision_attn.training.ThreadParallel",
    *("--trainer.callbacks.threads", "2", "--trainer.callbacks.least", "0.0"),
]


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], PARTS])
@pytest.mark.xdist_group("fitted")
def test_ctrl_c_says_how_to_go_on_and_what_was_left_is_done_to_the_bit(
    options: list[str],
    fitted: Path,
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fit: Callable[..., int],
) -> None:
    from vision_attn.training import ImageClassifier

    assert fit(*options, "--name", "whole") == 0
    original = ImageClassifier.training_step

    def press(self: Any, batch: Any, batch_idx: Any) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGINT)
        return original(self, batch, batch_idx)

    monkeypatch.setattr(ImageClassifier, "training_step", press)
    assert fit(*options) == 130
    monkeypatch.undo()
    monkeypatch.chdir(here)
    line = capsys.readouterr().err.strip().splitlines()[-1]
    run = "outputs/tiny/version_0"
    words = f"vision-attn fit --config {run}/config.yaml --ckpt_path {run}/last.ckpt"
    assert line == f"vision-attn: stopped at step 1; continue with: {words}"
    assert main(words.split()[1:]) == 0
    usual, whole, resumed = (
        torch.load(path / "last.ckpt", weights_only=True)["state_dict"]
        for path in (fitted, Path("outputs/whole/version_0"), Path("outputs/tiny/version_1"))
    )
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    torch.testing.assert_close(resumed, usual, rtol=0, atol=1e-3)  # bfloat16


KILLED = """
import os, signal
from vision_attn.cli import main
from vision_attn.training import ImageClassifier

def in_a_step(self, batch, batch_idx, original=ImageClassifier.training_step):
    if self.global_step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, batch, batch_idx)

def while_a_checkpoint_is_written(file, original=os.fsync, calls=[]):
    calls.append(file)
    if len(calls) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(file)

for name in ("step", "write"):
    if not os.fork():
        if name == "step":
            ImageClassifier.training_step = in_a_step
        else:
            os.fsync = while_a_checkpoint_is_written
        os._exit(main(["fit", "--config", "configs/tiny.yaml", *WORDS, "--name", name]))
    print("signal", os.WTERMSIG(os.wait()[1]), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process")
@pytest.mark.slow
def test_a_killed_run_is_taken_up_and_ends_as_if_it_had_not_been(fit: Callable[..., int]) -> None:
    """To the bit, averaged weights and all; killed within an epoch, and within a checkpoint."""
    words = ["--trainer.max_epochs", "3", "--trainer.callbacks+=EMAWeightAveraging"]
    words += ["--trainer.callbacks.decay=0.5", "--model.network.patch_drop", "0.5"]
    script = f"WORDS = {words}\n{KILLED}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.count("signal 9") == 2, done
    assert fit(*words) == 0
    whole = torch.load("outputs/tiny/version_0/last.ckpt", weights_only=True)
    for name in ("step", "write"):
        last = f"outputs/{name}/version_0/last.ckpt"
        assert torch.load(last, weights_only=True)["global_step"] in (2, 4)  # a whole epoch
        own = str(Path(last).with_name("config.yaml"))
        assert main(["fit", "--config", own, "--ckpt_path", last]) == 0
        resumed = torch.load(f"outputs/{name}/version_1/last.ckpt", weights_only=True)
        for weights in ("state_dict", "current_model_state"):
            assert all(
                torch.equal(whole[weights][key], value) for key, value in resumed[weights].items()
            )


def damaged(name: str, change: Callable[..., Any], run: Path) -> str:
    """A copy of the run's last checkpoint with one thing changed."""
    contents = torch.load(run / "last.ckpt", weights_only=True)
    change(contents)
    torch.save(contents, name)
    return name


DAMAGES = {
    "no loops": lambda c: c.pop("loops"),
    "loops without fit": lambda c: c["loops"].pop("fit_loop"),
    "loops are a number": lambda c: c.update(loops=3),
    "no version": lambda c: c.pop("pytorch-lightning_version"),
    "a sparse average": lambda c: c["optimizer_states"][0]["state"][0].update(
        exp_avg=c["optimizer_states"][0]["state"][0]["exp_avg"].to_sparse()
    ),
    "an average of another shape": lambda c: c["optimizer_states"][0]["state"][0].update(
        exp_avg=torch.zeros(3, 7, 2)
    ),
}


@pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants")
@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.xdist_group("fitted")
def test_a_damaged_training_state_is_one_line(
    name: str, fitted: Path, capsys: pytest.CaptureFixture[str], fit: Callable[..., int]
) -> None:
    path = damaged("bad.ckpt", DAMAGES[name], fitted)
    assert fit("--trainer.max_epochs", "2", "--ckpt_path", path) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("vision-attn: error: bad.ckpt: its training state is damaged")


@pytest.mark.xdist_group("fitted")
def test_a_damaged_checkpoint_is_one_line_under_test_and_predict(
    fitted: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged("bad.ckpt", DAMAGES["no version"], fitted)
    for words in (["test", "--config", "configs/tiny.yaml"], ["predict", "--images", str(here)]):
        Image.new("RGB", (20, 20)).save(here / "a.png")
        assert main([*words, "--ckpt_path", "bad.ckpt"]) == 2
        line = capsys.readouterr().err.strip()
        assert line.startswith("vision-attn: error: bad.ckpt: its training state is damaged")
        assert "\n" not in line


@pytest.mark.xdist_group("fitted")
def test_damaged_and_foreign_checkpoints(
    fitted: Path, here: Path, complaint: Callable[..., Any]
) -> None:
    whole = (fitted / "best.ckpt").read_bytes()
    Path("cut.ckpt").write_bytes(whole[: len(whole) // 2])
    Path("text.ckpt").write_text("no checkpoint")
    torch.save({"state_dict": {}}, "foreign.ckpt")
    for name, words in (
        ("cut", "cut short"), ("text", "not a checkpoint"), ("foreign", "not a checkpoint of")
    ):  # fmt: skip
        assert main(["test", "--config=configs/tiny.yaml", "--ckpt_path", f"{name}.ckpt"]) == 2
        line = complaint()
        assert f"{name}.ckpt" in line
        assert words in line


@pytest.mark.xdist_group("fitted")
def test_a_checkpoint_of_another_network_is_refused(
    fitted: Path, here: Path, complaint: Callable[..., Any]
) -> None:
    words = ["--ckpt_path", str(fitted / "best.ckpt"), "--model.network.dim", "12"]
    for command in ("fit", "test"):
        assert main([command, "--config", "configs/tiny.yaml", *words]) == 2
        assert "best.ckpt" in complaint()
