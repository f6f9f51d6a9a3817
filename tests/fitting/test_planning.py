from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch
import yaml
from PIL import Image

from vision_attn import fit
from vision_attn.data import ImageData, ImageFolder, Planted
from vision_attn.fitting import planning
from vision_attn.fitting.making import make_run
from vision_attn.fitting.planning import choose, computing
from vision_attn.models import SpatialCNN, ViT
from vision_attn.training import (
    ChannelsLast,
    Compile,
    ExecutionPlan,
    ImageClassifier,
    Planned,
    ThreadParallel,
)

OTHER = ExecutionPlan("32-true", "channels_last", threads=2)


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """What was measured, each time; the last plan is always the fastest, and any run worth it."""
    seen = []

    def last(network, images, plans, in_parts):
        seen.append(SimpleNamespace(plans=plans, images=images, in_parts=in_parts))
        return plans[-1], {plan: 10.0 * place for place, plan in enumerate(plans, start=1)}

    monkeypatch.setattr(planning, "fastest", last)
    monkeypatch.setattr(planning, "WORTH", 0.0)
    monkeypatch.setattr(planning, "native_precision", lambda accelerator: "bf16-mixed")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(
        "vision_attn.training.cpu.plan.user_cache_path", lambda name: tmp_path / name
    )
    return seen


@pytest.fixture
def data():
    data = ImageData(Planted(size=16, train=40, val=8, test=8), batch_size=20)
    data.setup("fit")
    return data


def trainer(**changes):
    usual = {
        "num_nodes": 1,
        "devices": "auto",
        "strategy": "auto",
        "accelerator": "cpu",
        "limit_train_batches": None,
        "max_epochs": 3,
        "max_steps": -1,
    }
    return SimpleNamespace(**usual | changes)


def vit():
    return ImageClassifier(ViT(image_size=16, patch_size=8, dim=8, depth=1, heads=2))


def chosen(data, *callbacks, model=None, probe=True, precision=None, checkpoint=None, **changes):
    return choose(
        model or vit(),
        data,
        trainer(**changes),
        callbacks,
        probe=probe,
        precision=precision,
        checkpoint=checkpoint,
    )


def test_all_that_is_left_open_is_measured_and_remembered(measured, data):
    choice = chosen(data)
    assert [(p.precision, p.threads) for p in measured[0].plans] == [
        ("bf16-mixed", 2),
        ("bf16-mixed", 1),
        ("32-true", 2),
        ("32-true", 1),
    ]
    assert choice.plan == ExecutionPlan("32-true", "contiguous", 1)
    assert measured[0].images.shape[1:] == (3, 16, 16)
    assert str(choice).startswith("32-true, contiguous, whole batches; 4.00 times as fast as bf16")
    again = chosen(data)
    assert len(measured) == 1
    assert again.plan == choice.plan
    assert again.speeds == {}


def test_what_is_measured_has_the_size_of_training_images(measured, tmp_path):
    for name in ("ant", "bee"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(20):
            Image.new("RGB", (31, 29), (9 * i, 40 + i, 90 - i)).save(
                tmp_path / "set" / name / f"{i}.png"
            )
    photos = ImageFolder("set", size=16, test_size=24)
    chosen(ImageData(photos, root=str(tmp_path), batch_size=8))
    assert measured[0].images.shape[1:] == (3, 16, 16)


def test_explicit_options_are_not_measured(measured, data):
    model = ImageClassifier(SpatialCNN(num_classes=10, widths=(8, 8)))
    chosen(data, ChannelsLast(), model=model, precision="32-true")
    assert measured == []  # batch norms: nothing is left open
    chosen(data, ChannelsLast(), model=model)
    assert {p.memory_format for p in measured[0].plans} == {"channels_last"}
    parts = ThreadParallel(threads=2, batch_norms=True, least=0.0)
    assert chosen(data, parts, model=model).plan.threads == 2
    divided = measured[1].in_parts(2)
    assert (divided.threads, divided.batch_norms, divided.least) == (2, True, 0.0)
    assert len(measured[1].plans) == 4
    chosen(data, precision="32-true")
    assert {p.precision for p in measured[2].plans} == {"32-true"}


@pytest.mark.parametrize(
    "changes",
    [
        {"probe": False},
        {"precision": "16-mixed"},
        {"accelerator": "gpu"},
        {"devices": 2},
        {"num_nodes": 2},
        {"strategy": "ddp"},
        {"model": torch.nn.Linear(2, 3)},
    ],
)
def test_the_usual_rules_hold_elsewhere(measured, data, changes):
    assert chosen(data, **changes) is None
    assert measured == []


def test_nor_is_one_of_several_processes_measured_or_what_is_compiled(measured, data, monkeypatch):
    assert chosen(data, Compile()) is None
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert chosen(data) is None
    assert measured == []


@pytest.mark.parametrize(
    ("changes", "images"),
    [
        ({}, 120),
        ({"limit_train_batches": 0.5}, 60),
        ({"limit_train_batches": 1}, 60),
        ({"max_steps": 2}, 40),
        ({"max_epochs": None}, 40_000),
        ({"max_epochs": -1}, float("inf")),
        ({"max_epochs": 0}, 0),
    ],
)
def test_a_run_must_be_long_enough(measured, data, monkeypatch, changes, images):
    monkeypatch.setattr(planning, "forward_flops", lambda network, image: 7)
    monkeypatch.setattr(planning, "WORTH", 3 * images * 7)
    assert chosen(data, **changes) is not None
    if 0 < images < float("inf"):
        monkeypatch.setattr(planning, "WORTH", 3 * images * 7 + 1)
        assert chosen(data, **changes) is None


def test_a_plan_of_the_config_is_taken_but_for_explicit_options(measured, data):
    assert chosen(data, probe=OTHER).plan == OTHER
    low = chosen(data, probe=OTHER, precision="bf16-mixed").plan
    assert low == replace(OTHER, precision="bf16-mixed")
    plain = ExecutionPlan("32-true", "contiguous", 1)
    given = chosen(data, ChannelsLast(), ThreadParallel(3), probe=plain).plan
    assert given == ExecutionPlan("32-true", "channels_last", 3)
    assert measured == []


def test_random_numbers_stay_as_they_are(measured, data):
    model, before = vit(), torch.get_rng_state()
    chosen(data, model=model)
    assert len(measured) == 1
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_wrong_with_a_network_is_left_for_training_to_say(measured, data):
    assert chosen(data, model=ImageClassifier(torch.nn.Linear(7, 10))) is None
    assert measured == []


def test_batch_norms_leave_the_usual_parts_for_evaluation():
    kinds = [type(callback) for callback in computing(OTHER, vit(), [])]
    assert kinds == [Planned, ThreadParallel]
    assert [type(c) for c in computing(OTHER, vit(), [ThreadParallel(3)])] == [Planned]
    normed = ImageClassifier(SpatialCNN(num_classes=10, widths=(8, 8)))
    assert [type(c) for c in computing(OTHER, normed, [])] == [Planned]


def test_a_run_computes_as_it_chose_and_goes_on_so(measured, here, tiny):
    run = fit("tiny.yaml", output="runs")
    saved = yaml.safe_load((run.folder / "config.yaml").read_text())
    plan = ExecutionPlan("32-true", "contiguous", 1)
    assert saved["probe"] == asdict(plan)
    assert saved["trainer"]["precision"] == "32-true"
    state = torch.load(run.folder / "last.ckpt", weights_only=True)["callbacks"]["Planned"]
    assert ExecutionPlan(**state) == plan
    summary = " ".join((run.folder / "summary.txt").read_text().split())
    assert "computed" in summary
    assert "32-true, contiguous, whole batches; 4.00 times as fast as" in summary

    # The checkpoint says how, even where another plan were the fastest now.
    for file in (here / "vision_attn" / "plans").iterdir():
        file.unlink()
    words = ["--config", "tiny.yaml", "--trainer.max_epochs", "2"]
    words += ["--trainer.default_root_dir", "runs"]
    went_on = make_run("fit", [*words, "--ckpt_path", str(run.folder / "last.ckpt")])
    assert len(measured) == 1
    assert went_on.choice.plan == plan
    assert went_on.trainer.precision == "32-true"
    assert "32-true, contiguous, whole batches" in went_on.heading()
    assert [c.threads for c in went_on.trainer.callbacks if isinstance(c, ThreadParallel)] == [1]
    unplanned = make_run(
        "fit", [*words, "--ckpt_path", str(run.folder / "last.ckpt"), "--probe=false"]
    )
    assert unplanned.choice is None
    by_config = make_run("fit", ["--config", str(run.folder / "config.yaml")])
    assert by_config.choice.plan == plan
    assert len(measured) == 1


def test_a_run_without_the_probe(measured, here):
    run = make_run("fit", ["--config", "tiny.yaml", "--probe", "false"])
    assert measured == []
    assert run.choice is None
    assert not any(isinstance(callback, Planned) for callback in run.trainer.callbacks)


def test_a_checkpoint_without_a_plan_is_gone_on_from_by_the_usual_rules(measured, here):
    before = fit("tiny.yaml", {"probe": False}, output="runs")
    run = make_run(
        "fit", ["--config", "tiny.yaml", "--ckpt_path", str(before.folder / "last.ckpt")]
    )
    assert run.choice is None
    assert measured == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("maybe", "probe: expected bool, got maybe"),
        ('{"precision": "8-bit"}', "precision must be one of bf16-mixed, 32-true, got '8-bit'"),
        ('{"parts": 2}', "parts"),
    ],
)
def test_no_such_probe(here, value, message):
    with pytest.raises(ValueError, match=message):
        make_run("fit", ["--config", "tiny.yaml", "--probe", value])
