"""The command line as people type it, in process."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

from vision_attn.cli import main
from vision_attn.commands.fit.words import MISPLACED

CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.yaml"))
CONFIGS = [
    path for path in CONFIGS if "Learner" not in path.read_text()
]  # commands/test_sequences.py

TINY = """
seed_everything: 3
model:
  network:
    class_path: vision_attn.models.ViT
    init_args: {image_size: 16, patch_size: 8, num_classes: 10, dim: 8, depth: 1, heads: 2}
  optimizer:
    class_path: torch.optim.AdamW
    init_args: {lr: 0.01}
  schedule:
    class_path: vision_attn.training.CosineDecay
    init_args: {warmup: 0.2}
data:
  source:
    class_path: vision_attn.data.Planted
    init_args: {size: 16, train: 40, val: 20, test: 20}
  batch_size: 20
trainer:
  max_epochs: 1
  accelerator: cpu
  enable_progress_bar: false
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to work in, with configs/tiny.yaml."""
    monkeypatch.chdir(tmp_path)
    Path("configs").mkdir()
    Path("configs/tiny.yaml").write_text(TINY)
    return tmp_path


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """The run folder of one finished `fit` of the tiny config."""
    folder = tmp_path_factory.mktemp("fitted")
    config = folder / "tiny.yaml"
    config.write_text(TINY)
    assert main(["fit", "--config", str(config), "--trainer.default_root_dir", str(folder)]) == 0
    return folder / "tiny/version_0"


def fit(*words):
    return main(["fit", "--config", "configs/tiny.yaml", *words])


def complaint(capsys, status=2):
    """The one line on stderr."""
    lines = capsys.readouterr().err.strip().splitlines()
    lines = [line for line in lines if not line.startswith("Seed set")]
    assert len(lines) == 1, lines
    assert lines[0].startswith("vision-attn: error: ")
    return lines[0].removeprefix("vision-attn: error: ")


# light: neither torch nor Lightning


def test_help_and_version_load_no_torch():
    code = "import sys; from vision_attn.cli import main; "
    code += "main(['--help']); main(['--version']); main(['fit', '--help']); main(['fit']); "
    code += "print([m for m in ('torch', 'lightning', 'numpy', 'yaml') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "vision-attn 0." in done.stdout


def test_help_lists_the_commands(capsys):
    for words in ([], ["-h"], ["--help"]):
        assert main(words) == 0
        out = capsys.readouterr().out
        for command in ("fit", "validate", "test", "predict", "explain", "demo"):
            assert re.search(rf"^  {command} ", out, re.MULTILINE)


@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict"])
def test_help_of_training_commands_says_what_is_here(command, here, capsys):
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "configs/tiny.yaml" in out
    assert f"example: vision-attn {command}" in out


def test_help_all_lists_the_options_of_the_config_s_kind(capsys):
    for words, option in (
        ([], "--model.layer_decay"),
        (["--config", "additive_dates"], "--model CONFIG | CLASS_PATH"),
    ):
        assert main(["fit", *words, "--help-all"]) == 0
        assert option in capsys.readouterr().out


def test_unknown_command(capsys):
    assert main(["fitt"]) == 2
    assert complaint(capsys) == "unknown command 'fitt': did you mean fit?"


@pytest.mark.parametrize("name", MISPLACED)
def test_an_option_without_its_section_is_named_at_once(here, capsys, name):
    """Before torch is imported, and so before the config is looked for."""
    assert main(["fit", "--config", "configs/tinny.yaml", f"--{name}=3"]) == 2
    assert complaint(capsys) == f"unknown option --{name}: did you mean --{MISPLACED[name]}?"


def test_missing_config_names_the_nearest(here, capsys):
    assert main(["fit", "--config", "configs/tinny.yaml"]) == 2
    assert complaint(capsys) == (
        "no such config file: configs/tinny.yaml: did you mean configs/tiny.yaml?"
    )
    assert main(["fit"]) == 2
    assert complaint(capsys) == (
        "fit needs a config: --config FILE_OR_NAME (here: configs/tiny.yaml); "
        "vision-attn configs lists those of the package"
    )


def test_missing_checkpoint(here, capsys):
    assert main(["test", "--config", "configs/tiny.yaml"]) == 2
    assert "test needs a checkpoint: --ckpt_path" in complaint(capsys)
    assert fit("--ckpt_path=outputs/none.ckpt") == 2
    assert complaint(capsys) == "no such checkpoint file: outputs/none.ckpt"


# a run


def test_a_run_fills_its_folder(fitted):
    assert {path.name for path in fitted.iterdir()} == {
        "best.ckpt", "best.safetensors", "config.yaml", "confusion_matrix.png", "last.ckpt",
        "learning_curves.png", "metrics.csv", "per_class.csv", "summary.json", "summary.txt",
    }  # fmt: skip
    summary = (fitted / "summary.txt").read_text()
    assert "ViT, 0.00 M parameters" in summary
    assert "test top-1" in summary
    for name in ("best.ckpt", "last.ckpt"):
        torch.load(fitted / name, weights_only=True)


def test_runs_are_named_after_their_config_and_numbered(fitted, here, capsys):
    assert fit("--trainer.limit_train_batches", "1") == 0
    assert fit("--trainer.limit_train_batches=1", "--trainer.logger=false") == 0
    assert fit("--name", "mine", "--trainer.limit_train_batches", "1") == 0
    assert sorted(str(p) for p in Path("outputs").glob("*/*")) == [
        "outputs/mine/version_0", "outputs/tiny/version_0", "outputs/tiny/version_1"
    ]  # fmt: skip
    assert "outputs/tiny/version_1" in capsys.readouterr().out


def test_the_saved_config_is_complete_and_makes_the_same_run(fitted, here):
    saved = yaml.safe_load((fitted / "config.yaml").read_text())
    assert set(saved) == {"seed_everything", "trainer", "model", "data", "name", "probe"}
    assert saved["trainer"]["precision"] in ("bf16-mixed", "32-true")
    assert saved["model"]["optimizer"]["init_args"]["betas"] == [0.9, 0.999]
    again = ["fit", "--config", str(fitted / "config.yaml"), "--trainer.default_root_dir", "again"]
    assert main(again) == 0
    first, second = (
        torch.load(path / "last.ckpt", weights_only=True)["state_dict"]
        for path in (fitted, Path("again/tiny/version_0"))
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_resume_goes_on_in_a_fresh_folder(fitted, here, capsys):
    words = ["--trainer.max_epochs", "2", "--trainer.default_root_dir", "outputs"]
    words += ["--ckpt_path", str(fitted / "last.ckpt")]
    assert main(["fit", *words]) == 2
    own = fitted / "config.yaml"
    assert f"(that of the checkpoint's run is {own})" in complaint(capsys)
    assert main(["fit", "--config", str(own), *words]) == 0
    last = torch.load("outputs/tiny/version_0/last.ckpt", weights_only=True)
    assert (last["epoch"], last["global_step"]) == (1, 4)
    assert "ckpt_path" not in yaml.safe_load(Path("outputs/tiny/version_0/config.yaml").read_text())


def test_test_and_validate_write_beside_the_checkpoint(fitted, here, capsys):
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


def test_predict_names_the_class_of_files_and_folders(fitted, here, capsys):
    from PIL import Image

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


def test_predict_needs_images(fitted, capsys):
    assert main(["predict", "--ckpt_path", str(fitted / "best.ckpt")]) == 2
    assert complaint(capsys) == "no image to predict: --images FILE_OR_FOLDER ..."


def test_fast_dev_run_leaves_nothing_behind(here):
    assert fit("--trainer.fast_dev_run", "true") == 0
    assert not Path("outputs").exists()


def test_tensorboard_comes_beside_the_csv(here):
    logger = "lightning.pytorch.loggers.TensorBoardLogger"
    assert fit("--trainer.logger", logger, "--trainer.logger.save_dir", "board") == 0
    assert list(Path("board").rglob("events.out*"))
    assert Path("outputs/tiny/version_0/metrics.csv").is_file()


def test_early_stopping_accumulation_and_clipping_are_lightnings(here):
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
def test_a_run_has_one_way_to_use_its_cores(words, here):
    from vision_attn.reports.runs.run import make_run
    from vision_attn.training import ThreadParallel

    run = make_run("fit", ["--config", "configs/tiny.yaml", *words])
    (found,) = (c for c in run.trainer.callbacks if isinstance(c, ThreadParallel))
    assert (found.threads, found.least) == ((2, 0.0) if words else (None, 1e9))


def test_averaged_weights_are_tested_and_kept(here):
    words = ["--trainer.callbacks+=EMAWeightAveraging", "--trainer.callbacks.decay=0.5"]
    assert fit(*words) == 0
    run = Path("outputs/tiny/version_0")
    assert "current_model_state" in torch.load(run / "best.ckpt", weights_only=True)
    own = ["--config", str(run / "config.yaml")]
    assert main(["test", *own, "--ckpt_path", str(run / "best.ckpt")]) == 0
    after_fit, apart = (json.loads((run / f"{n}.json").read_text()) for n in ("summary", "test"))
    assert after_fit["test/loss"] == apart["test/loss"]


@pytest.mark.parametrize("options", [[], PARTS])
def test_ctrl_c_says_how_to_go_on_and_what_was_left_is_done_to_the_bit(
    options, fitted, here, capsys, monkeypatch
):
    from vision_attn.training import ImageClassifier

    assert fit(*options, "--name", "whole") == 0
    original = ImageClassifier.training_step

    def press(self, batch, batch_idx):
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


def damaged(name, change, run):
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
def test_a_damaged_training_state_is_one_line(name, fitted, here, capsys):
    path = damaged("bad.ckpt", DAMAGES[name], fitted)
    assert fit("--trainer.max_epochs", "2", "--ckpt_path", path) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("vision-attn: error: bad.ckpt: its training state is damaged")


def test_a_damaged_checkpoint_is_one_line_under_test_and_predict(fitted, here, capsys):
    damaged("bad.ckpt", DAMAGES["no version"], fitted)
    for words in (["test", "--config", "configs/tiny.yaml"], ["predict", "--images", str(here)]):
        from PIL import Image

        Image.new("RGB", (20, 20)).save(here / "a.png")
        assert main([*words, "--ckpt_path", "bad.ckpt"]) == 2
        line = capsys.readouterr().err.strip()
        assert line.startswith("vision-attn: error: bad.ckpt: its training state is damaged")
        assert "\n" not in line


def test_what_no_memory_holds_is_one_line(here, capsys):
    assert fit("--model.network.dim", str(10**12)) == 2
    line = capsys.readouterr().err.strip()
    assert line.startswith("vision-attn: error: not enough memory")
    assert line.endswith("make the network, its images or data.batch_size smaller")


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
def test_a_killed_run_is_taken_up_and_ends_as_if_it_had_not_been(here):
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


TWO = """
from vision_attn.cli import main
two = ["--trainer.strategy", STRATEGY, "--trainer.devices", "2"]
assert main(["fit", "--config", "configs/tiny.yaml", *WORDS, *two, "--data.batch_size", "10"]) == 0
best = "outputs/tiny/version_0/best.ckpt"
assert main(["predict", "--ckpt_path", best, "--images", "photos", "--output", "two.csv", *two]) == 1
"""


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
@pytest.mark.slow
def test_two_processes_learn_and_predict_what_one_does(here, strategy):
    from PIL import Image

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


# what Lightning's command line gets wrong when it is left alone


def test_another_class_keeps_the_options_that_it_knows(here, capsys):
    """Changing a class_path used to drop what the file says."""
    words = ["--model.optimizer", "torch.optim.SGD", "--model.schedule", "LinearDecay"]
    assert fit(*words, "--model.optimizer.momentum", "0.5", "--print_config") == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["model"]["optimizer"]["class_path"] == "torch.optim.SGD"
    assert config["model"]["optimizer"]["init_args"]["lr"] == 0.01
    assert config["model"]["optimizer"]["init_args"]["momentum"] == 0.5
    assert config["model"]["schedule"]["init_args"]["warmup"] == 0.2


def test_another_network_keeps_the_number_of_classes(here, capsys):
    assert fit("--model.network", "SEResNet", "--print_config") == 0
    network = yaml.safe_load(capsys.readouterr().out)["model"]["network"]
    assert network["init_args"]["num_classes"] == 10
    assert "dim" not in network["init_args"]


def test_parts_inside_a_network_are_chosen_by_class(here, capsys):
    attention = "--model.network.attention"
    words = [attention, "vision_attn.attention.MultiHeadAttention"]
    words += [f"{attention}.normalizer", "vision_attn.attention.Softmax"]
    words += [f"{attention}.normalizer.temperature", "2.5"]
    assert fit(*words) == 0
    last = torch.load("outputs/tiny/version_0/last.ckpt", weights_only=True)
    described = last["vision_attn"]["network"]["init_args"]["attention"]
    assert described["init_args"]["normalizer"]["init_args"] == {"temperature": 2.5}


@pytest.mark.parametrize("word", ["--lr_scheduler", "--optimizer"])
def test_options_that_would_be_ignored_in_silence_are_refused(word, here, capsys):
    assert fit(word, "torch.optim.SGD") == 2
    nearest = {"--lr_scheduler": "--model.schedule", "--optimizer": "--model.optimizer"}[word]
    assert complaint(capsys) == f"unknown option {word}: did you mean {nearest}?"


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
        ("--model.network SENet", "reduction: did you mean vision_attn.models.SEResNet?"),
        ("--name ../../x", "--name '../../x': expected the name of a folder, without a path"),
        ("--name ..", "--name '..': expected the name of a folder"),
        ("--trainer.devices -3", "--trainer.devices -3: "),
        ("--trainer.accelerator tpu", "--trainer.accelerator tpu, "),
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
def test_a_wrong_word_is_one_line(words, message, here, capsys):
    assert fit(*words.split()) == 2
    assert message in complaint(capsys)


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
def test_a_wrong_line_in_a_config_is_one_line(old, new, message, here, capsys):
    Path("configs/tiny.yaml").write_text(TINY.replace(old, new, 1))
    assert fit() == 2
    assert message in complaint(capsys)


def test_damaged_and_foreign_checkpoints(fitted, here, capsys):
    whole = (fitted / "best.ckpt").read_bytes()
    Path("cut.ckpt").write_bytes(whole[: len(whole) // 2])
    Path("text.ckpt").write_text("no checkpoint")
    torch.save({"state_dict": {}}, "foreign.ckpt")
    for name, words in (
        ("cut", "cut short"), ("text", "not a checkpoint"), ("foreign", "not a checkpoint of")
    ):  # fmt: skip
        assert main(["test", "--config=configs/tiny.yaml", "--ckpt_path", f"{name}.ckpt"]) == 2
        line = complaint(capsys)
        assert f"{name}.ckpt" in line
        assert words in line


def test_a_checkpoint_of_another_network_is_refused(fitted, here, capsys):
    words = ["--ckpt_path", str(fitted / "best.ckpt"), "--model.network.dim", "12"]
    for command in ("fit", "test"):
        assert main([command, "--config", "configs/tiny.yaml", *words]) == 2
        assert "best.ckpt" in complaint(capsys)


def test_data_that_do_not_load_leave_no_folder(here, capsys):
    source = "vision_attn.data.ImageFolder"
    Path("photos/cat").mkdir(parents=True)
    words = ["--data.root", ".", "--data.source", source, "--data.source.path", "photos"]
    assert fit(*words) == 2
    assert "at least two classes, got 1 (cat)" in capsys.readouterr().err
    assert not list(Path("outputs").rglob("version_*"))


def test_nan_is_one_line_that_names_the_step(here, capsys):
    assert fit("--model.optimizer.lr", "1e30", "--trainer.precision", "32-true") == 2
    assert re.match(r"(val )?loss is (nan|inf) at step \d", complaint(capsys))


def test_unexpected_errors_are_one_line_unless_asked(here, capsys, monkeypatch):
    from vision_attn.commands.fit import run as lightning

    def broken(command, words, allow):
        raise RuntimeError("a bug\nof ours")

    monkeypatch.setattr(lightning, "main", broken)
    assert fit() == 1
    line = complaint(capsys)
    assert line == "RuntimeError: a bug of ours (--traceback shows where)"
    with pytest.raises(RuntimeError, match="a bug"):
        fit("--traceback")


# the configs of the package


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_every_config_is_read_and_its_network_fits_its_images(config, tmp_path, capsys):
    from vision_attn.reports.runs.run import make_run

    words = ["--config", str(config), "--trainer.default_root_dir", str(tmp_path)]
    words += ["--probe", "false"]
    if "timm" in config.stem:
        words += ["--model.network.pretrained", "false", "--model.network.num_classes", "10"]
    if "shelf" in config.stem:
        for name in ("ant/1", "ant/2", "bee/1", "bee/2"):
            photo = tmp_path / "photos" / f"{name}.png"
            photo.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (70, 80)).save(photo)
        words += ["--model.weights", "vision_attn:vit_planted", "--data.root", str(tmp_path)]
        words += ["--data.source.size", "64"]
    run = make_run("fit", words)
    size = getattr(run.datamodule.source, "size", 32)
    size = (size, size) if isinstance(size, int) else size
    with torch.inference_mode():
        logits = run.model.eval()(torch.zeros(1, 3, *size))
    assert logits.shape[0] == 1
    text = config.read_text()
    assert f"vision-attn fit --config configs/{config.name}" in text
    assert "expected:" in text
