"""Options as people type them: what they change, and one line for what is wrong with them."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml


def test_another_class_keeps_the_options_that_it_knows(
    capsys: pytest.CaptureFixture[str], fit: Callable[..., int]
) -> None:
    """Changing a class_path used to drop what the file says."""
    words = ["--model.optimizer", "torch.optim.SGD", "--model.schedule", "LinearDecay"]
    assert fit(*words, "--model.optimizer.momentum", "0.5", "--print_config") == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["model"]["optimizer"]["class_path"] == "torch.optim.SGD"
    assert config["model"]["optimizer"]["init_args"]["lr"] == 0.01
    assert config["model"]["optimizer"]["init_args"]["momentum"] == 0.5
    assert config["model"]["schedule"]["init_args"]["warmup"] == 0.2


def test_another_network_keeps_the_number_of_classes(
    capsys: pytest.CaptureFixture[str], fit: Callable[..., int]
) -> None:
    assert fit("--model.network", "SEResNet", "--print_config") == 0
    network = yaml.safe_load(capsys.readouterr().out)["model"]["network"]
    assert network["init_args"]["num_classes"] == 10
    assert "dim" not in network["init_args"]


def test_parts_inside_a_network_are_chosen_by_class(
    capsys: pytest.CaptureFixture[str], fit: Callable[..., int]
) -> None:
    attention = "--model.network.attention"
    words = [attention, "vision_attn.attention.MultiHeadAttention"]
    words += [f"{attention}.normalizer", "vision_attn.attention.Softmax"]
    words += [f"{attention}.normalizer.temperature", "2.5"]
    assert fit(*words) == 0
    last = torch.load("outputs/tiny/version_0/last.ckpt", weights_only=True)
    described = last["vision_attn"]["network"]["init_args"]["attention"]
    assert described["init_args"]["normalizer"]["init_args"] == {"temperature": 2.5}


@pytest.mark.parametrize("word", ["--lr_scheduler", "--optimizer"])
def test_options_that_would_be_ignored_in_silence_are_refused(
    word: str, fit: Callable[..., int], complaint: Callable[..., Any]
) -> None:
    assert fit(word, "torch.optim.SGD") == 2
    nearest = {"--lr_scheduler": "--model.schedule", "--optimizer": "--model.optimizer"}[word]
    assert complaint() == f"unknown option {word}: did you mean {nearest}?"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--data.bach_size 3", "unknown option --data.bach_size: did you mean --data.batch_size?"),
        ("--max_epochs 3", "unknown option --max_epochs: did you mean --trainer.max_epochs?"),
        ("--model.network.dimm 3", "model.network: ViT has no option 'dimm': did you mean dim?"),
        ("--trainer.max_epochs two", "trainer.max_epochs: expected int, got two"),
        (
            "--trainer.callbacks+=vision_attn.training.TestTimeAugmentation --trainer.callbacks.shift=-1",
            "shift must be at least 0 pixels, got -1",
        ),
        (
            "--trainer.callbacks+=vision_attn.training.TestTimeAugmentatio",
            "no class 'vision_attn.training.TestTimeAugmentatio': did you mean",
        ),
        (
            "--data.augment+=vision_attn.data.Translate --data.augment.pixels=-1",
            "pixels must be at least 0, got -1",
        ),
        ("--data.batch_size many", "data.batch_size: expected int, got many"),
        ("--model.network.dim x", "model.network.dim: expected int, got x"),
        ("--model.optimizer.lr high", "model.optimizer.lr: expected float, got high"),
        ("--model.network Vit", "no class 'Vit': did you mean vision_attn.models.ViT"),
        ("--model.network vision_attn.models.SEResNt", "mean vision_attn.models.SEResNet?"),
        ("--model.network nowhere.ViT", "model.network: nowhere.ViT was not imported: a config"),
        ("--model.network vision_attn.nowhere.ViT", "no class 'vision_attn.nowhere"),
        ("--model.network SENet", "did you mean vision_attn.models.SEResNet?"),
        ("--name ../../x", "--name '../../x': expected the name of a folder, without a path"),
        ("--name ..", "--name '..': expected the name of a folder"),
        ("--trainer.devices -3", "--trainer.devices -3: "),
        ("--trainer.accelerator tpu", "needs the package torch_xla: pip install"),
        ("--ckpt_path last", "no such checkpoint file: outputs/tiny/version_N/last.ckpt"),
        ("--allow not-a-name", "--allow not-a-name: expected the name of a package"),
        ("--model.network torch.optim.SGD", "torch.optim.SGD is not a Module"),
        ("stray", "unexpected word 'stray': an option looks like --trainer.max_epochs 2"),
        ("--trainer.accelerator gpuu", "invalid accelerator name"),
        ("--model.network.patch_size 7", "sides are multiples of the patch size 7, got 16x16"),
        ("--model.network.num_classes 7", "the data has 10: --model.network.num_classes 10 makes"),
        ("--data.source.size 8", "at least 16 x 16 pixels"),
        ("--trainer.max_epochs -1", "how long the run is: give trainer.max_epochs"),
    ],
)
def test_a_wrong_word_is_one_line(
    words: str, message: str, fit: Callable[..., int], complaint: Callable[..., Any]
) -> None:
    assert fit(*words.split()) == 2
    assert message in complaint()


def test_a_class_of_that_name_in_a_loaded_library_is_not_meant(
    fit: Callable[..., int], complaint: Callable[..., Any]
) -> None:
    assert importlib.import_module("timm.models.senet").SENet
    assert fit("--model.network", "SENet") == 2
    assert "reduction: did you mean vision_attn.models.SEResNet?" in complaint()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("batch_size", "bach_size", "unknown option data.bach_size: did you mean data.batch_size?"),
        (
            "trainer:",
            "traner:",
            "unknown option traner.max_epochs: did you mean trainer.max_epochs",
        ),
        ("max_epochs", "max_epoch", "unknown option trainer.max_epoch: did you mean trainer.max_"),
        ("  optimizer:", "  optimiser:", "option model.optimiser: did you mean model.optimizer?"),
        ("patch_size", "patchsize", "ViT has no option 'patchsize': did you mean patch_size?"),
        ("warmup", "warm_up", "CosineDecay has no option 'warm_up': did you mean warmup?"),
        (
            "models.ViT",
            "models.VIT",
            "no class 'vision_attn.models.VIT': did you mean vision_attn.",
        ),
        ("depth: 1", "depth: one", "model.network.depth: expected int, got one"),
        ("data:", "data: [", "configs/tiny.yaml is not YAML: line"),
        (
            "init_args: {size",
            "init_arg: {size",
            "tiny.yaml: data.source: unknown key 'init_arg': did you mean init_args?",
        ),
    ],
)
def test_a_wrong_line_in_a_config_is_one_line(
    old: str, new: str, message: str, fit: Callable[..., int], complaint: Callable[..., Any]
) -> None:
    Path("configs/tiny.yaml").write_text(Path("configs/tiny.yaml").read_text().replace(old, new, 1))
    assert fit() == 2
    assert message in complaint()


def test_data_that_do_not_load_leave_no_folder(
    capsys: pytest.CaptureFixture[str], fit: Callable[..., int]
) -> None:
    source = "vision_attn.data.ImageFolder"
    Path("photos/cat").mkdir(parents=True)
    words = ["--data.root", ".", "--data.source", source, "--data.source.path", "photos"]
    assert fit(*words) == 2
    assert "at least two classes, got 1 (cat)" in capsys.readouterr().err
    assert not list(Path("outputs").rglob("version_*"))


def test_what_no_memory_holds_is_one_line(
    capsys: pytest.CaptureFixture[str], fit: Callable[..., int]
) -> None:
    assert fit("--model.network.dim", str(10**12)) == 2
    line = capsys.readouterr().err.strip()
    assert line.startswith("vision-attn: error: not enough memory")
    assert line.endswith("make the network, its images or data.batch_size smaller")


def test_nan_is_one_line_that_names_the_step(
    fit: Callable[..., int], complaint: Callable[..., Any]
) -> None:
    assert fit("--model.optimizer.lr", "1e30", "--trainer.precision", "32-true") == 2
    assert re.match(r"(val )?loss is (nan|inf) at step \d", complaint())


def test_unexpected_errors_are_one_line_unless_asked(
    monkeypatch: pytest.MonkeyPatch, fit: Callable[..., int], complaint: Callable[..., Any]
) -> None:
    from vision_attn.commands.fit import run as lightning

    def broken(command: str, words: Any, allow: Any) -> None:
        raise RuntimeError("a bug\nof ours")

    monkeypatch.setattr(lightning, "main", broken)
    assert fit() == 1
    line = complaint()
    assert line == "RuntimeError: a bug of ours (--traceback shows where)"
    with pytest.raises(RuntimeError, match="a bug"):
        fit("--traceback")
