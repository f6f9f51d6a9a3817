"""Learners of sequences and questions: metrics, checkpoints, and that they learn."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer, seed_everything
from torch.optim import AdamW

from vision_attn import attention as att
from vision_attn.models import build
from vision_attn.sequences import (
    ConvEncoder,
    Dates,
    ExampleData,
    PlantedQuestions,
    PlantedStrings,
    QuestionAnswerer,
    QuestionLearner,
    RecurrentEncoder,
    SelfAttentionEncoder,
    Seq2Seq,
    SequenceLearner,
    Transformer,
    ViTEncoder,
)
from vision_attn.sequences.learners import same, top_cells

CHARACTERS = partial(RecurrentEncoder, symbols=71, longest=87)


def trainer(**options: Any) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(accelerator="cpu", **{"enable_checkpointing": False, **quiet, **options})


def test_same_is_from_end_to_end() -> None:
    target = torch.tensor([[4, 5, 2, 0], [4, 2, 0, 0], [4, 5, 6, 2]])
    assert same(torch.tensor([[4, 5, 2], [4, 2, 0], [4, 5, 6]]), target).tolist() == [
        True,
        True,
        False,
    ]
    assert same(torch.tensor([[4, 5, 2, 0, 0], [4, 2, 5, 0, 0], [4, 5, 6, 2, 0]]), target).tolist() == [True, False, True]  # fmt: skip


def test_top_cells_point_at_the_object_of_the_step_or_touch_it() -> None:
    objects = torch.zeros(1, 6, 15, dtype=torch.uint8)
    objects[0, 1:6, 0:4], objects[0, 0:3, 9:12], objects[0, 3, 8] = 1, 2, 4
    maps = torch.zeros(1, 4, 2, 5)  # cells of 3 x 3 pixels
    maps[0, 0, 0, 0] = maps[0, 1, 0, 3] = maps[0, 2, 1, 4] = maps[0, 3, 1, 2] = 1
    pointing, touching = top_cells(maps, objects)
    assert pointing.tolist() == [[True, True, False, False]]
    assert touching.tolist() == [[True, True, False, True]]


NETWORKS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "dates": (Seq2Seq, Dates, {"encoder": CHARACTERS, "symbols": 15, "longest": 22}),
    "strings": (
        Transformer,
        PlantedStrings,
        {
            "encoder": partial(ViTEncoder, image_size=(24, 312), depth=1, heads=2),
            "symbols": 13,
            "longest": 13,
            "depth": 1,
        },
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_run_logs_and_its_checkpoint_is_plain(name: str, tmp_path: Path) -> None:
    make, source, options = NETWORKS[name]
    learner = SequenceLearner(make(dim=8, **options))
    data = ExampleData(source(train=12, val=6, test=6), batch_size=6)
    fitted = trainer(max_epochs=1)
    fitted.fit(learner, datamodule=data)
    assert {"train/loss", "train/token", "val/loss", "val/token", "val/exact"} <= set(
        fitted.callback_metrics
    )
    assert ("val/pointing" in fitted.callback_metrics) == (name == "strings")
    path = tmp_path / "run.ckpt"
    fitted.save_checkpoint(path)
    saved = torch.load(path, weights_only=True)
    network = build(saved["vision_attn"]["network"])
    weights = {k.removeprefix("network."): v for k, v in saved["state_dict"].items()}
    network.load_state_dict(weights)
    assert saved["vision_attn"]["vocabularies"] == data.about["vocabularies"]
    assert (saved["vision_attn"]["preprocess"] is None) == (name == "dates")


def test_questions_log_every_kind() -> None:
    network = QuestionAnswerer(
        15,
        partial(ConvEncoder, widths=(4, 4, 4)),
        partial(RecurrentEncoder, symbols=26),
        dim=8,
        coattention=[att.ParallelCoAttention],
    )
    fitted = trainer(max_epochs=1)
    data = ExampleData(PlantedQuestions(train=20, val=10, test=5), batch_size=10)
    fitted.fit(QuestionLearner(network), datamodule=data)
    kinds = {f"val/top1_{kind}" for kind in ("colour", "shape", "count", "left", "hops")}
    assert {"val/top1", "val/loss", *kinds} <= set(fitted.callback_metrics)


def test_a_network_of_another_size_than_the_data() -> None:
    network = Seq2Seq(14, CHARACTERS, dim=8)
    data = ExampleData(Dates(train=2, val=1, test=1))
    with pytest.raises(ValueError, match="built for 14 symbols of the target, the data have 15"):
        trainer(max_epochs=1).fit(SequenceLearner(network), datamodule=data)


def test_a_checkpoint_of_another_kind() -> None:
    with pytest.raises(ValueError, match="a checkpoint of sequences or questions, got one of anot"):
        SequenceLearner(Seq2Seq(15, CHARACTERS)).on_load_checkpoint({"vision_attn": {}})


def test_an_infinite_loss_stops_the_run() -> None:
    learner = SequenceLearner(Seq2Seq(15, CHARACTERS, dim=8, longest=22))
    torch.nn.init.constant_(learner.network.head.bias, torch.nan)
    data = ExampleData(Dates(train=4, val=1, test=1))
    with pytest.raises(
        ValueError, match=r"train loss is nan at step 0, epoch 0; no checkpoint .*Lower"
    ):
        trainer(max_epochs=1, num_sanity_val_steps=0).fit(learner, datamodule=data)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["seq2seq", "transformer"])
def test_a_slice_of_dates_is_learned(kind: str) -> None:
    """ISO dates alone are copied: the loss of guessing is log 12 = 2.5 nats a symbol."""
    seed_everything(0, verbose=False)
    encoder = partial(SelfAttentionEncoder, symbols=71, longest=87, depth=1)
    makers: dict[str, Any] = {
        "seq2seq": partial(Seq2Seq, 15, CHARACTERS, score=att.Additive),
        "transformer": partial(Transformer, 15, encoder, depth=1),
    }
    network = makers[kind](dim=64, longest=22)
    data = ExampleData(Dates(train=2560, val=100, test=1, intervals=0.0), batch_size=32)
    fitted = trainer(max_epochs=2, gradient_clip_val=1.0)
    fitted.fit(SequenceLearner(network, partial(AdamW, lr=0.004)), datamodule=data)
    assert fitted.callback_metrics["val/loss"] < 1.1
    assert fitted.callback_metrics["val/token"] > 0.6
