"""`vision_attn.fit`: what the command does, as values."""

import csv
import json
import signal
from pathlib import Path

import pytest
import torch

import vision_attn
from vision_attn.types import LoadedSequences, Model

SMALL = {
    "data.source.train": 40,
    "data.source.val": 20,
    "data.source.test": 20,
    "trainer.accelerator": "cpu",
    "trainer.enable_progress_bar": False,
    "model.network.dim": 12,
    "trainer.callbacks": None,
}


def test_a_run_is_its_folder_its_metrics_and_its_best_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = signal.getsignal(signal.SIGINT)
    run = vision_attn.fit("vit_planted", SMALL, max_epochs=2, output=tmp_path, name="mine", seed=7)
    assert capsys.readouterr().out == ""
    assert signal.getsignal(signal.SIGINT) is handler
    assert run.folder == tmp_path / "mine/version_0"
    assert run.best == run.folder / "best.ckpt"
    with (run.folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(run.metrics) == len(rows) == 5
    for found, row in zip(run.metrics, rows, strict=True):
        assert found == {name: float(value) for name, value in row.items() if value}
    assert run.summary == json.loads((run.folder / "summary.json").read_text())
    assert run.metrics[-1]["test/top1"] == run.summary["test/top1"]
    assert run.model.network.head.in_features == 12
    assert run.model is run.model
    assert isinstance(run.model, Model)
    assert len(run.model.classes) == 10
    saved = torch.load(run.best, weights_only=True)["state_dict"]
    assert torch.equal(run.model.network.head.weight, saved["network.head.weight"])
    again = vision_attn.fit(
        run.folder / "config.yaml", max_epochs=3, output=tmp_path, resume=run.folder / "last.ckpt"
    )
    assert again.folder == tmp_path / "mine/version_1"
    assert {row["epoch"] for row in again.metrics if "train/loss" in row} == {2}


def test_sequences_are_trained_too(tmp_path: Path) -> None:
    small = {k: v for k, v in SMALL.items() if not k.startswith("model")}
    small |= {
        "data.source.train": 8,
        "data.source.val": 4,
        "data.source.test": 4,
        "data.batch_size": 4,
    }
    run = vision_attn.fit("additive_dates", small, max_epochs=1, output=tmp_path)
    assert "test/exact" in run.summary
    assert isinstance(run.model, LoadedSequences)
    assert set(run.model.vocabularies) == {"source", "target"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"trainer.max_epocks": 2}, "unknown option --trainer.max_epocks: did you mean"),
        ({"model.network.dim": "wide"}, "model.network.dim: expected int, got wide"),
        ({"model.optimizer": "os.system"}, "os.system was not imported"),
        ({"trainer.fast_dev_run": True}, "a fast_dev_run writes no files"),
        ({"name": "../x"}, "expected the name of a folder"),
    ],
)
def test_a_wrong_value_is_one_line(
    overrides: dict[str, int | str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError) as caught:
        vision_attn.fit("vit_planted", {**SMALL, **overrides}, output=tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("*"))
