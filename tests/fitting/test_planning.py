import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import Callback
from PIL import Image

from vision_attn import fit
from vision_attn.data import ImageData, ImageFolder, Planted
from vision_attn.fitting import planning
from vision_attn.fitting.making import make_run
from vision_attn.fitting.planning import choose, choose_threads, computing
from vision_attn.models import SpatialCNN, ViT
from vision_attn.training import (
    ChannelsLast,
    Compile,
    ExecutionPlan,
    ImageClassifier,
    KeepThreads,
    Planned,
    ThreadParallel,
)

OTHER = ExecutionPlan("32-true", "channels_last", parts=2)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[SimpleNamespace]:
    """What was measured, each time; the last plan is always the fastest, and any run worth it."""
    seen = []

    def last(
        network: Any, images: torch.Tensor, plans: Any, in_parts: Callable[..., Any]
    ) -> tuple[Any, dict[Any, float]]:
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
def data() -> ImageData:
    data = ImageData(Planted(size=16, train=40, val=8, test=8), batch_size=20)
    data.setup("fit")
    return data


def trainer(**changes: Any) -> SimpleNamespace:
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


def vit() -> ImageClassifier:
    return ImageClassifier(ViT(image_size=16, patch_size=8, dim=8, depth=1, heads=2))


def chosen(
    data: ImageData,
    *callbacks: Any,
    model: ImageClassifier | None = None,
    probe: bool | ExecutionPlan = True,
    precision: str | None = None,
    checkpoint: Any = None,
    **changes: Any,
) -> Any:
    return choose(
        model or vit(),
        data,
        trainer(**changes),
        callbacks,
        probe=probe,
        precision=precision,
        checkpoint=checkpoint,
    )


def test_all_that_is_left_open_is_measured_and_remembered(
    measured: list[SimpleNamespace], data: ImageData
) -> None:
    choice = chosen(data)
    assert [(p.precision, p.parts) for p in measured[0].plans] == [
        ("bf16-mixed", 2),
        ("bf16-mixed", 1),
        ("32-true", 2),
        ("32-true", 1),
    ]
    assert choice is not None
    assert choice.plan == ExecutionPlan("32-true", "contiguous", 1)
    assert measured[0].images.shape[1:] == (3, 16, 16)
    assert str(choice).startswith("32-true, contiguous, whole batches; 4.00 times as fast as bf16")
    again = chosen(data)
    assert len(measured) == 1
    assert again is not None
    assert again.plan == choice.plan
    assert again.speeds == {}


def test_what_is_measured_has_the_size_of_training_images(
    measured: list[SimpleNamespace], tmp_path: Path
) -> None:
    for name in ("ant", "bee"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(20):
            Image.new("RGB", (31, 29), (9 * i, 40 + i, 90 - i)).save(
                tmp_path / "set" / name / f"{i}.png"
            )
    photos = ImageFolder("set", size=16, test_size=24)
    chosen(ImageData(photos, root=str(tmp_path), batch_size=8))
    assert measured[0].images.shape[1:] == (3, 16, 16)


def test_explicit_options_are_not_measured(
    measured: list[SimpleNamespace], data: ImageData
) -> None:
    model = ImageClassifier(SpatialCNN(num_classes=10, widths=(8, 8)))
    chosen(data, ChannelsLast(), model=model, precision="32-true")
    assert measured == []  # batch norms: nothing is left open
    chosen(data, ChannelsLast(), model=model)
    assert {p.memory_format for p in measured[0].plans} == {"channels_last"}
    parts = ThreadParallel(threads=2, batch_norms=True, least=0.0)
    assert chosen(data, parts, model=model).plan.parts == 2
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
def test_the_usual_rules_hold_elsewhere(
    measured: list[SimpleNamespace],
    data: ImageData,
    changes: dict[str, Any],
) -> None:
    assert chosen(data, **changes) is None
    assert measured == []


def test_nor_is_one_of_several_processes_measured_or_what_is_compiled(
    measured: list[SimpleNamespace], data: ImageData, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_a_run_must_be_long_enough(
    measured: list[SimpleNamespace],
    data: ImageData,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    images: float,
) -> None:
    monkeypatch.setattr(planning, "forward_flops", lambda network, image: 7)
    monkeypatch.setattr(planning, "WORTH", 3 * images * 7)
    assert chosen(data, **changes) is not None
    if 0 < images < float("inf"):
        monkeypatch.setattr(planning, "WORTH", 3 * images * 7 + 1)
        assert chosen(data, **changes) is None


def test_a_plan_of_the_config_is_taken_but_for_explicit_options(
    measured: list[SimpleNamespace], data: ImageData
) -> None:
    assert chosen(data, probe=OTHER).plan == OTHER
    low = chosen(data, probe=OTHER, precision="bf16-mixed").plan
    assert low == replace(OTHER, precision="bf16-mixed")
    plain = ExecutionPlan("32-true", "contiguous", 1)
    given = chosen(data, ChannelsLast(), ThreadParallel(3), probe=plain).plan
    assert given == ExecutionPlan("32-true", "channels_last", 3)
    assert measured == []


def test_random_numbers_stay_as_they_are(measured: list[SimpleNamespace], data: ImageData) -> None:
    model, before = vit(), torch.get_rng_state()
    chosen(data, model=model)
    assert len(measured) == 1
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_wrong_with_a_network_is_left_for_training_to_say(
    measured: list[SimpleNamespace], data: ImageData
) -> None:
    assert chosen(data, model=ImageClassifier(torch.nn.Linear(7, 10))) is None
    assert measured == []


def test_batch_norms_leave_the_usual_parts_for_evaluation() -> None:
    kinds = [type(callback) for callback in computing(OTHER, vit(), [])]
    assert kinds == [Planned, ThreadParallel]
    assert [type(c) for c in computing(OTHER, vit(), [ThreadParallel(3)])] == [Planned]
    normed = ImageClassifier(SpatialCNN(num_classes=10, widths=(8, 8)))
    assert [type(c) for c in computing(OTHER, normed, [])] == [Planned]


def test_a_run_computes_as_it_chose_and_goes_on_so(
    measured: list[SimpleNamespace], here: Path, tiny: str
) -> None:
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
    assert went_on.choice is not None
    assert went_on.choice.plan == plan
    assert went_on.trainer.precision == "32-true"
    assert "32-true, contiguous, whole batches" in went_on.heading()
    callbacks: Any = vars(went_on.trainer)["callbacks"]
    assert [c.threads for c in callbacks if isinstance(c, ThreadParallel)] == [1]
    unplanned = make_run(
        "fit", [*words, "--ckpt_path", str(run.folder / "last.ckpt"), "--probe=false"]
    )
    assert unplanned.choice is None
    by_config = make_run("fit", ["--config", str(run.folder / "config.yaml")])
    assert by_config.choice is not None
    assert by_config.choice.plan == plan
    assert len(measured) == 1


def test_a_run_without_the_probe(measured: list[SimpleNamespace], here: Path) -> None:
    run = make_run("fit", ["--config", "tiny.yaml", "--probe", "false"])
    assert measured == []
    assert run.choice is None
    callbacks = vars(run.trainer)["callbacks"]
    assert not any(isinstance(callback, Planned) for callback in callbacks)


def test_a_checkpoint_without_a_plan_is_gone_on_from_by_the_usual_rules(
    measured: list[SimpleNamespace], here: Path
) -> None:
    before = fit("tiny.yaml", {"probe": False}, output="runs")
    words = ["--config", "tiny.yaml", "--ckpt_path", str(before.folder / "last.ckpt")]
    run = make_run("fit", [*words, "--trainer.max_epochs", "9"])
    assert run.choice is None
    assert measured == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("maybe", "probe: expected bool, got maybe"),
        ('{"precision": "8-bit"}', "precision must be one of bf16-mixed, 32-true, got '8-bit'"),
        ('{"threads": 2}', "threads"),
    ],
)
def test_no_such_probe(here: Path, value: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_run("fit", ["--config", "tiny.yaml", "--probe", value])


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[..., Any]:
    """A machine of 4 cores; call it with how many of them other programs leave."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(planning, "usable_cores", lambda: 4)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    planning._tell_of_waits.cache_clear()
    caplog.set_level(logging.INFO, logger="vision_attn")
    return lambda cores: monkeypatch.setattr("vision_attn.cores.available_cores", lambda: cores)


def saved(tmp_path: Path, threads: Any) -> str:
    path = tmp_path / "last.ckpt"
    torch.save({"callbacks": {"KeepThreads": {"threads": threads}}}, path)
    return str(path)


def test_a_run_has_as_many_threads_as_have_cores(
    load: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    load(3.9)
    assert choose_threads(trainer(), None, None) == 4
    assert caplog.messages == []
    load(2.6)
    assert choose_threads(trainer(), None, None) == 2
    assert caplog.messages == [
        "other programs use this machine's cores: the run computes with 2 of 4 threads to its end, "
        "also if it is continued; --threads 4 takes all"
    ]


def test_the_config_and_the_checkpoint_say_how_many_threads(
    load: Callable[..., Any], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    load(1.0)
    assert choose_threads(trainer(), None, saved(tmp_path, 3)) == 3
    assert choose_threads(trainer(), 2, saved(tmp_path, 3)) == 2
    assert caplog.messages == []
    assert choose_threads(trainer(), None, saved(tmp_path, 7)) == 7
    assert caplog.messages == [
        "7 threads, as the run began, on 4 cores: --threads 4 is faster, and rounds differently"
    ]
    with pytest.raises(ValueError, match="--threads must be at least 1, got 0"):
        choose_threads(trainer(), 0, None)


@pytest.mark.parametrize("damaged", [0, -2, True, "2", 1.5, None, [3]])
def test_a_checkpoint_that_says_nothing_of_threads(
    load: Callable[..., Any], tmp_path: Path, damaged: str | float | list[int] | None
) -> None:
    load(3.0)
    assert choose_threads(trainer(), None, saved(tmp_path, damaged)) == 3
    torch.save({"callbacks": [1]}, tmp_path / "other.ckpt")
    assert choose_threads(trainer(), None, str(tmp_path / "other.ckpt")) == 3


@pytest.mark.parametrize("changes", [{"accelerator": "gpu"}, {"devices": 2}, {"strategy": "ddp"}])
def test_threads_are_torchs_and_lightnings_elsewhere(
    load: Callable[..., Any], changes: dict[str, str | int]
) -> None:
    load(1.0)
    assert choose_threads(trainer(**changes), None, None) is None
    assert choose_threads(trainer(**changes), 3, None) == 3


def test_threads_that_wait_without_sleeping_are_told_of_once(
    load: Callable[..., Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(4.0)
    monkeypatch.setattr(planning, "waits_are_set", lambda: False)
    assert choose_threads(trainer(), 1, None) == 1
    assert caplog.messages == []  # one thread waits for none
    for _ in range(3):
        choose_threads(trainer(), None, None)
    assert caplog.messages == [
        "beside other programs training is several times slower than it need be: torch's threads "
        "wait for each other without sleeping; set GOMP_SPINCOUNT=2000 KMP_BLOCKTIME=1 in the "
        "environment before Python starts"
    ]


class Counted(Callback):
    """The number of threads of each training step; ends a run after so many epochs."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self.threads: list[int] = []

    def on_train_batch_end(self, *_: Any) -> None:
        self.threads.append(torch.get_num_threads())

    def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
        trainer.should_stop = trainer.current_epoch == self.epochs - 1


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 2)])
def test_a_run_goes_on_to_the_bit_whatever_the_load(
    here: Path, tiny: str, two_threads: None, monkeypatch: pytest.MonkeyPatch, first: int, then: int
) -> None:
    def trained(load: int, epochs: int, *words: Any) -> Path:
        monkeypatch.setattr("vision_attn.threads.threads_to_use", lambda most: load)
        counted = Counted(epochs)
        every = ["--config", "tiny.yaml", "--trainer.max_epochs", "2"]
        run = make_run("fit", [*every, *words], show=[counted])
        assert torch.get_num_threads() == 2
        run.fit()
        assert set(counted.threads) == {first}
        assert torch.get_num_threads() == 2
        assert run.heading().endswith(f", threads: {first}")
        assert run.folder is not None
        return run.folder

    unbroken = trained(first, 2)
    begun = trained(first, 1)
    assert begun is not None
    assert yaml.safe_load((begun / "config.yaml").read_text())["threads"] == first
    ended = trained(then, 2, "--ckpt_path", str(begun / "last.ckpt"))
    assert unbroken is not None
    by_config = trained(then, 2, "--config", str(unbroken / "config.yaml"))
    weights = [
        torch.load(folder / "last.ckpt", weights_only=True)["state_dict"]
        for folder in (unbroken, ended, by_config)
    ]
    for name, expected in weights[0].items():
        assert torch.equal(weights[1][name], expected)
        assert torch.equal(weights[2][name], expected)


def test_other_commands_choose_anew(
    here: Path, tiny: str, two_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vision_attn.threads.threads_to_use", lambda most: 1)
    folder = fit("tiny.yaml", output="runs").folder
    state = torch.load(folder / "last.ckpt", weights_only=True)["callbacks"]
    assert state["KeepThreads"] == KeepThreads(1).state_dict() == {"threads": 1}
    monkeypatch.setattr("vision_attn.threads.threads_to_use", lambda most: 2)
    words = ["--config", "tiny.yaml", "--ckpt_path", str(folder / "best.ckpt")]
    assert make_run("test", words).threads == 2
    assert make_run("test", [*words, "--threads", "1"]).threads == 1
