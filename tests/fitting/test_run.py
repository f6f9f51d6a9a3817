"""Runs: what a config can make happen, and what is left on the disk."""

import csv
import json
import shutil
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from vision_attn.cli import main
from vision_attn.fitting.folders import claimed
from vision_attn.fitting.making import make_run
from vision_attn.hub import load_model

CALLED = "init_args: {command: touch called}"


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().err.strip().splitlines()
    lines = [line for line in lines if not line.startswith("Seed set")]
    assert len(lines) == 1, lines
    return lines[0].removeprefix("vision-attn: error: ")


def refused(content: dict[Any, Any], capsys: pytest.CaptureFixture[str]) -> str:
    Path("tiny.yaml").write_text(yaml.safe_dump(content))
    assert main(["fit", "--config", "tiny.yaml"]) == 2
    assert not Path("called").exists()
    assert not list(Path().glob("outputs/*/*"))
    return complaint(capsys)


# what a config may name


PLACES = (
    "model.optimizer",
    "model.schedule",
    "model.loss",
    "model.network",
    "model.network.init_args.attention",
    "model.network.init_args.embed",
    "data.source",
)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "path", ["os.system", "subprocess.Popen", "timm.models._helpers.os.system", "builtins.exec"]
)
@pytest.mark.parametrize("short", [True, False])
def test_no_config_runs_a_program(
    place: str, path: str, short: bool, here: Path, tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = yaml.safe_load(tiny)
    *outer, last = place.split(".")
    section = content
    for key in outer:
        section = section[key]
    section[last] = (
        path if short else {"class_path": path, "init_args": {"command": "touch called"}}
    )
    line = refused(content, capsys)
    assert "was not imported: a config can name only classes of vision_attn, torch" in line


@pytest.fixture
def package(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package that leaves a file behind when it is imported."""
    monkeypatch.syspath_prepend(str(here))
    (here / "stranger").mkdir()
    text = "from pathlib import Path\nfrom vision_attn.models import ViT\nPath('called').touch()\n"
    (here / "stranger/__init__.py").write_text(text + "class Net(ViT):\n    pass\n")
    yield "stranger"
    sys.modules.pop("stranger", None)


def test_only_what_is_allowed_is_imported(
    package: str, here: Path, tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("tiny.yaml").write_text(tiny.replace("vision_attn.models.ViT", "stranger.Net"))
    assert main(["fit", "--config", "tiny.yaml"]) == 2
    assert "--allow stranger lets it run the code of stranger too" in complaint(capsys)
    assert "stranger" not in sys.modules
    assert not Path("called").exists()
    assert main(["fit", "--config", "tiny.yaml", "--allow", "stranger"]) == 0
    assert Path("called").exists()
    assert Path("outputs/tiny/version_0/best.ckpt").is_file()


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("stranger", {"trust_remote_code": True}, "'trust_remote_code' would run code"),
        ("stranger", {}, "hf:stranger cannot be built"),
        ("vit", {"attn_implementation": "someone/kernel"}, "is a repository of code"),
    ],
)
def test_no_code_beside_a_networks_weights_is_run(
    kind: str,
    options: dict[str, bool | str],
    message: str,
    here: Path,
    tiny: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("transformers")
    Path("stranger").mkdir()
    places = {"model_type": "stranger", "auto_map": {"AutoConfig": "code.Config"}}
    Path("stranger/config.json").write_text(json.dumps(places))
    text = f"from pathlib import Path\nPath({str(here / 'called')!r}).touch()\n"
    Path("stranger/code.py").write_text(f"{text}from transformers import ViTConfig as Config\n")
    path = "vision_attn.models.huggingface_model.HuggingFaceModel"
    network = {"class_path": path, "init_args": {"name": kind, "model_args": options}}
    content = yaml.safe_load(tiny)
    content["model"]["network"] = network
    assert message in refused(content, capsys)


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("model.network", "torchvision.models.resnet18"),
        ("model.network", "timm.create_model"),
        ("model.optimizer", "timm.optim.create_optimizer_v2"),
        ("trainer.callbacks", "lightning.pytorch.callbacks.LambdaCallback"),
    ],
)
def test_a_class_path_leads_to_a_class(
    place: str, path: str, here: Path, tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = yaml.safe_load(tiny)
    section, key = place.split(".")
    content[section][key] = {"class_path": path}
    if path.endswith("LambdaCallback"):
        content[section][key]["init_args"] = {"on_fit_start": "torch.hub.load"}
        content[section][key] = [content[section][key]]
    if path.endswith("create_model"):
        content[section][key]["init_args"] = {"model_name": "test_vit"}
    line = refused(content, capsys)
    assert "class" in line
    assert place in line


def test_a_class_of_another_kind_is_refused(
    here: Path, tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = yaml.safe_load(tiny)
    for place in ("optimizer", "schedule", "loss", "network"):
        changed = {
            **content,
            "model": {**content["model"], place: {"class_path": "timm.data.Mixup"}},
        }
        assert f"model.{place}" in refused(changed, capsys)


def test_the_config_beside_a_checkpoint_is_not_read_unless_it_is_named(
    fitted: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(fitted, "run")
    Path("run/config.yaml").write_text("a: &a [*a]")
    words = ["--ckpt_path", f"{run}/best.ckpt"]
    for command in ("validate", "test"):
        assert main([command, *words]) == 2
        line = complaint(capsys)
        needs = f"{command} needs the data: --config FILE_OR_NAME (that of the checkpoint's"
        assert line.startswith(needs)
    source = ["--data.source", "Planted", "--data.source.size", "16", "--data.source.test", "20"]
    source += ["--data.source.train", "40", "--data.source.val", "20"]
    assert main(["test", *words, *source, "--trainer.accelerator=cpu"]) == 0
    found, expected = (
        json.loads(Path(p).read_text()) for p in ("run/test.json", fitted / "summary.json")
    )
    assert found["test/top1"] == expected["test/top1"]
    assert found["test/loss"] == pytest.approx(expected["test/loss"], rel=1e-5)
    assert main(["test", *words, "--config", "run/config.yaml"]) == 2
    assert "*a inside its own anchor &a never ends" in complaint(capsys)


def test_predict_needs_no_more_than_a_checkpoint(fitted: Path, here: Path) -> None:
    from PIL import Image

    Path("run").mkdir()
    shutil.copy(fitted / "best.ckpt", "run/best.ckpt")
    Path("run/config.yaml").write_text("a: &a [*a]")  # is not read
    Image.new("RGB", (20, 30), "red").save("a.png")
    words = ["predict", "--ckpt_path", "run/best.ckpt", "--images", "a.png"]
    assert main([*words, "--trainer.accelerator", "cpu"]) == 0
    assert Path("run/predictions.csv").read_text().splitlines()[1].startswith("a.png,")


@pytest.mark.parametrize("name", ["vit", "senet"])
def test_the_network_of_a_checkpoint_needs_no_config(
    name: str, models: Callable[[str], str], here: Path
) -> None:
    """Also one that takes classes, such as its block, as options."""
    saved = load_model(models(name)).network
    network = make_run("predict", ["--ckpt_path", models(name), "--images", "."]).model.network
    assert type(network) is type(saved)
    network.load_state_dict(saved.state_dict())


@pytest.mark.parametrize("command", ["fit", "test"])
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("patch_size=-1", "patch_size must be at least 1, got -1"),
        ("dim=-1", "dim must be at least 1, got -1"),
        ("registers=-1", "ViT cannot be made with these options: RuntimeError: "),
        ("embed=ConvEmbed --model.network.embed.depth=-1", "depth must be at least 1, got -1"),
        ("stem=3x3 --model.network.widths=[8,0,8,8]", "a layer would have no weights: a size is 0"),
    ],
)
def test_options_that_make_no_network_are_one_line(
    command: str,
    option: str,
    message: str,
    fitted: Path,
    here: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    network = ["--model.network=SEResNet"] if "stem" in option else []
    words = [command, "--config", "tiny.yaml", *network, *f"--model.network.{option}".split()]
    words += [] if command == "fit" else ["--ckpt_path", str(fitted / "best.ckpt")]
    assert main(words) == 2
    assert message in complaint(capsys)


@pytest.mark.parametrize("network", [None, 3, {"class_path": "os.system", "init_args": {}}, {1: 2}])
def test_a_damaged_description_is_one_line(
    network: int | dict[str | int, Collection[str] | int] | None,
    fitted: Path,
    here: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    saved = torch.load(fitted / "best.ckpt", weights_only=True)
    saved["vision_attn"]["network"] = network
    torch.save(saved, "a.ckpt")
    assert main(["predict", "--ckpt_path", "a.ckpt", "--images", "tiny.yaml"]) == 2
    assert complaint(capsys).startswith("a.ckpt: its network cannot be rebuilt: ")


# what is left on the disk


def test_every_run_has_a_folder_of_its_own(tmp_path: Path) -> None:
    ready = threading.Barrier(8)
    found: list[Any] = []

    def claim() -> None:
        ready.wait()
        found.extend(claimed(tmp_path / "runs") for _ in range(5))

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(tmp_path / f"runs/version_{i}" for i in range(40))


def test_two_runs_made_before_either_starts_have_two_folders(here: Path) -> None:
    runs = [make_run("fit", ["--config", "tiny.yaml"]) for _ in range(2)]
    assert [run.folder and run.folder.name for run in runs] == ["version_0", "version_1"]


def test_a_folder_that_another_run_makes_in_between_is_not_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version_0").mkdir()
    exists, answers = Path.exists, iter([False])  # not there at the first look
    monkeypatch.setattr(Path, "exists", lambda path: next(answers, exists(path)))
    assert claimed(tmp_path) == tmp_path / "version_1"


def test_a_run_that_fails_leaves_no_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["--model.network.num_classes", "7"],
        ["--model.optimizer.lr", "1e30", "--trainer.precision", "32-true"],
        ["--trainer.accelerator", "tpu"],
        ["--ckpt_path", "tiny.yaml"],
    ):
        assert main(["fit", "--config", "tiny.yaml", *words]) == 2
        left = list(Path("outputs").rglob("version_*"))
        assert not [path for path in left if {f.name for f in path.iterdir()} <= {"config.yaml"}]
        complaint(capsys)


def test_a_fast_dev_run_leaves_no_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(here.rglob("*"))
    assert main(["fit", "--config", "tiny.yaml", "--trainer.fast_dev_run", "true"]) == 0
    assert set(here.rglob("*")) == before
    out = capsys.readouterr().out
    assert "fast_dev_run, which leaves no files: ViT" in out
    assert "version_" not in out


def test_names_stay_inside_the_output_folder(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("../../x", "/tmp/x", "a/b", "a\\b", "..", ".", "a\x1b[31m"):
        assert main(["fit", "--config", "tiny.yaml", f"--name={name}"]) == 2
        assert complaint(capsys).startswith("--name ")
        assert {path.name for path in here.iterdir()} == {"tiny.yaml"}


@pytest.mark.slow
def test_last_and_best_are_those_of_the_newest_run(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--config", "tiny.yaml", "--trainer.max_epochs"]
    assert main(["test", *words[:2], "--ckpt_path", "best"]) == 2
    assert "no such checkpoint file: outputs/tiny/version_N/best.ckpt" in complaint(capsys)
    assert main(["fit", *words, "1"]) == 0
    Path("outputs/tiny/version_9").mkdir()  # has none
    assert main(["fit", *words, "2", "--ckpt_path", "last"]) == 0
    last = torch.load("outputs/tiny/version_1/last.ckpt", weights_only=True)
    assert (last["epoch"], last["global_step"]) == (1, 4)
    assert main(["test", "--config", "tiny.yaml", "--ckpt_path=best"]) == 0
    assert Path("outputs/tiny/version_1/test.json").is_file()


def test_the_test_has_the_epoch_and_step_of_the_weights_it_measured(here: Path) -> None:
    best = "--trainer.max_epochs=3", "--model.optimizer.lr=0.003"
    assert main(["fit", "--config", "tiny.yaml", *best]) == 0
    folder = Path("outputs/tiny/version_0")
    saved = torch.load(folder / "best.ckpt", weights_only=True)
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    (test,) = [row for row in rows if row["test/top1"]]
    (chosen,) = [r for r in rows if r["val/top1"] and int(r["epoch"]) == saved["epoch"]]
    assert (test["epoch"], test["step"]) == (chosen["epoch"], chosen["step"])


def test_portable_weights_can_be_read_by_whoever_may_read_the_checkpoint(fitted: Path) -> None:
    modes = {(fitted / name).stat().st_mode for name in ("best.ckpt", "best.safetensors")}
    assert len(modes) == 1
    assert not list(fitted.glob("*.part"))


def test_a_line_an_epoch_stays_on_the_screen(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--trainer.max_epochs", "2"]
    for bar in ("true", "false"):
        words += ["--trainer.enable_progress_bar", bar]
        assert main(["fit", "--config", "tiny.yaml", *words]) == 0
        shown = capsys.readouterr()
        for epoch in (1, 2):
            (line,) = [x for x in shown.out.splitlines() if f"epoch {epoch} of 2: " in x]
            assert "val/top1 0." in line
            assert "train/loss " in line


def test_the_callbacks_of_a_run_are_those_of_run_callbacks(here: Path) -> None:
    from vision_attn.training import run_callbacks

    words = ["--trainer.callbacks+=vision_attn.training.ThreadParallel"]
    words += ["--trainer.callbacks.threads", "2"]
    run = make_run("fit", ["--config", "tiny.yaml", *words])
    callbacks = vars(run.trainer)["callbacks"]
    found = [type(callback) for callback in callbacks]
    for callback in run_callbacks("folder"):
        assert found.count(type(callback)) == 1
    (threads,) = [c for c in callbacks if type(c).__name__ == "ThreadParallel"]
    assert threads.threads == 2  # the one that was given


# how many classes


def test_the_number_of_classes_is_that_of_the_data(here: Path, tiny: str) -> None:
    Path("tiny.yaml").write_text(tiny.replace("num_classes: 10, ", ""))
    run = make_run("fit", ["--config", "tiny.yaml", "--name", "ten"])
    assert run.model.network.head.out_features == 10
    from PIL import Image

    for name in ("cat", "dog", "hen"):
        Path("photos", name).mkdir(parents=True)
        for i in range(8):
            Image.new("RGB", (16, 16), (30 * i, 90 + 9 * i, 250 - 20 * i)).save(
                f"photos/{name}/{i}.png"
            )
    words = ["--data.source", "ImageFolder", "--data.source.path", "photos", "--data.root", "."]
    words += ["--data.source.size", "16", "--data.batch_size", "4"]
    assert main(["fit", "--config", "tiny.yaml", *words]) == 0
    saved = torch.load("outputs/tiny/version_0/best.ckpt", weights_only=True)["vision_attn"]
    assert saved["network"]["init_args"]["num_classes"] == 3
    config = yaml.safe_load(Path("outputs/tiny/version_0/config.yaml").read_text())
    assert config["model"]["network"]["init_args"]["num_classes"] == 3
    best = ["--ckpt_path", "outputs/tiny/version_0/best.ckpt", "--trainer.accelerator", "cpu"]
    assert main(["predict", "--config", "tiny.yaml", *best, "--images", "photos"]) == 0


# damaged weights


def test_weights_that_are_no_numbers_are_not_the_learning_rates_fault(
    fitted: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = torch.load(fitted / "best.ckpt", weights_only=True)
    saved["state_dict"]["network.head.weight"][0, 0] = torch.nan
    torch.save(saved, "nan.ckpt")
    assert main(["test", "--config", "tiny.yaml", "--ckpt_path", "nan.ckpt"]) == 2
    line = complaint(capsys)
    assert "nan.ckpt: damaged: its weights 'network.head.weight' hold NaN" in line
    assert "learning rate" not in line
    saved["state_dict"]["network.head.weight"][0, 0] = torch.inf
    torch.save(saved, "inf.ckpt")
    assert main(["test", "--config", "tiny.yaml", "--ckpt_path", "inf.ckpt"]) == 2
    line = complaint(capsys)
    assert "test loss is" in line
    assert "learning rate" not in line


def test_a_config_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="no such config file: nowhere"):
        make_run("fit", ["--config", "nowhere"])
    with pytest.raises(ValueError, match="fit needs a config: --config FILE_OR_NAME"):
        make_run("fit", [])
