"""`vision-attn fit`, `test` and `validate` on sequences and questions."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from vision_attn.cli import main

CONFIGS = [
    path
    for path in sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
    if "Learner" in path.read_text()
]
SMALL = [
    "--trainer.max_epochs=1",
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
    "--data.source.train=8",
    "--data.source.val=4",
    "--data.source.test=4",
    "--data.batch_size=4",
]


def test_there_are_configs() -> None:
    assert len(CONFIGS) == 18


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_every_config_s_network_fits_its_data(config: Path, tmp_path: Path) -> None:
    from vision_attn.fitting.making import make_run

    words = ["--config", str(config), *SMALL, "--trainer.default_root_dir", str(tmp_path)]
    run = make_run("fit", words)
    built = run.model.sizes()
    found = {k: len(v) for k, v in run.datamodule.source.vocabularies.items()}
    assert {name: built[name] for name in found} == found
    batch = next(iter(run.datamodule.test_dataloader()))
    with torch.inference_mode():
        assert run.model.eval().measure(batch, "test")["loss"][0].isfinite()
    text = config.read_text()
    assert f"vision-attn fit --config configs/{config.name}" in text
    assert "expected:" in text


@pytest.mark.parametrize("name", ["additive_dates", "hops_questions"])
def test_fit_then_test_from_the_checkpoint(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (config,) = [path for path in CONFIGS if path.stem == name]
    words = ["--config", str(config), *SMALL, "--trainer.default_root_dir", str(tmp_path)]
    assert main(["fit", *words]) == 0
    folder = tmp_path / name / "version_0"
    made = {path.name for path in folder.iterdir()}
    assert made >= {"best.ckpt", "last.ckpt", "config.yaml", "summary.txt", "learning_curves.png"}
    figures = json.loads((folder / "summary.json").read_text())
    metric = "test/exact" if "dates" in name else "test/top1"
    assert metric in figures
    spent = 60 * figures["minutes"]  # on validation too, which the speed leaves out
    assert figures["examples/s"] > 8 * figures["epochs"] / spent > 0
    assert "class_path" in yaml.safe_load((folder / "config.yaml").read_text())["model"]
    own = ["--config", str(folder / "config.yaml")]
    assert main(["test", *own, "--ckpt_path", str(folder / "best.ckpt")]) == 0
    again = json.loads((folder / "test.json").read_text())
    assert again[metric] == figures[metric]
    source = yaml.safe_load((folder / "config.yaml").read_text())["data"]["source"]
    words = ["--data.source", source["class_path"], "--data.source.test", "4"]
    words += ["--ckpt_path", str(folder / "best.ckpt"), "--trainer.accelerator", "cpu"]
    assert main(["test", *words, "--data.batch_size", "4"]) == 0  # the network of the checkpoint
    assert json.loads((folder / "test.json").read_text())[metric] == figures[metric]
    capsys.readouterr()
    assert main(["predict", "--ckpt_path", str(folder / "best.ckpt"), "--images", "x.png"]) == 2
    assert "the config is of sequences or questions" in capsys.readouterr().err


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., str]:
    """Saves a small untrained network of a config as a checkpoint, and gives its path."""
    from vision_attn.fitting.making import make_run

    def save(name: str) -> str:
        (config,) = [path for path in CONFIGS if path.stem == name]
        words = ["--config", str(config), *SMALL, "--trainer.default_root_dir", str(tmp_path)]
        run = make_run("fit", words)
        run.model.about = run.datamodule.about
        checkpoint = {"state_dict": run.model.state_dict()}
        run.model.on_save_checkpoint(checkpoint)
        torch.save(checkpoint, tmp_path / f"{name}.ckpt")
        return str(tmp_path / f"{name}.ckpt")

    return save


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_file()}


def test_explain_aligns_texts(
    saved: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "explain",
        saved("additive_dates"),
        "March 3, 1998",
        "3.3.1998",
        "-o",
        str(tmp_path / "o"),
    ]
    assert main([*words, "--page"]) == 0
    assert files(tmp_path / "o") >= {"001.alignment.png", "002.alignment.png", "index.html"}
    assert "March 3, 1998: " in capsys.readouterr().out
    lines = (tmp_path / "o/results.jsonl").read_text().splitlines()
    assert [json.loads(line)["source"] for line in lines] == ["March 3, 1998", "3.3.1998"]


def test_explain_names_what_it_cannot_read(
    saved: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "explain",
        saved("general_dates"),
        "März 3, 1998",
        "1.2.2003",
        "-o",
        str(tmp_path / "o"),
    ]
    assert main(words) == 1
    assert "unknown symbol 'ä'" in capsys.readouterr().err
    assert main([words[0], words[1], "1" * 88, "-o", words[-1]]) == 1
    assert "sources of at most 87 symbols, got 88" in capsys.readouterr().err
    assert main([*words[:2], "", "-o", words[-1]]) == 1
    assert "got an empty source" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["global_strings", "vit_strings"])
def test_explain_overlays_every_written_symbol(
    name: str, saved: Callable[..., str], tmp_path: Path
) -> None:
    import PIL.Image

    PIL.Image.new("RGB", (312, 24), (90, 80, 70)).save(tmp_path / "row.png")
    words = ["explain", saved(name), str(tmp_path / "row.png"), "-o", str(tmp_path / "o")]
    assert main(words) == 0
    assert files(tmp_path / "o") == {"row.steps.png", "results.jsonl"}


def test_explain_shows_words_and_image(
    saved: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import PIL.Image

    PIL.Image.new("RGB", (80, 64), (90, 80, 70)).save(tmp_path / "board.png")
    ask = [str(tmp_path / "board.png"), "-o", str(tmp_path / "o"), "--question"]
    model = saved("parallel_questions")
    assert main(["explain", model, *ask, "What colour is the star?"]) == 0
    assert files(tmp_path / "o") == {"board.looks.png", "board.words.png", "results.jsonl"}
    assert main(["explain", saved("hops_questions"), *ask, "what colour is the star"]) == 0
    capsys.readouterr()
    assert main(["explain", model, *ask[:-1]]) == 2
    assert "ask one with --question 'TEXT'" in capsys.readouterr().err
    assert main(["explain", model, *ask, "what is the weather"]) == 1
    assert "unknown symbol 'weather'" in capsys.readouterr().err


def test_checkpoints_of_the_other_kind(saved: Callable[..., str], tmp_path: Path) -> None:
    from vision_attn.hub import load_model, load_sequences

    with pytest.raises(
        ValueError, match="it is a model of sequences or questions, not an image classifier"
    ):
        load_model(saved("additive_dates"))
    torch.save(
        {"state_dict": {"a": torch.ones(1)}, "vision_attn": {"format": 1}},
        tmp_path / "classes.ckpt",
    )
    with pytest.raises(
        ValueError, match="expected a model of sequences or questions, got an image"
    ):
        load_sequences(tmp_path / "classes.ckpt")
