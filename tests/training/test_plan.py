import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from vision_attn.models import SEResNet, ViT
from vision_attn.training import ExecutionPlan
from vision_attn.training.cpu import plan
from vision_attn.training.cpu.plan import (
    candidates,
    enough,
    fastest,
    in_channels_last,
    recall,
    remember,
    remembered,
)
from vision_attn.training.cpu.threads import InParts

USUAL = ExecutionPlan("32-true", "contiguous", 1)
LAST = ExecutionPlan("32-true", "channels_last", 1)
LOW = ExecutionPlan("bf16-mixed", "contiguous", 1)
IMAGES = torch.zeros(5, 3, 7, 7)


class Scripted:
    """Stands for a step: each plan takes the seconds that `script` has for it, over and over."""

    script: ClassVar[dict[str, Any]] = {}
    closed: ClassVar[list[Any]] = []

    def __init__(
        self, network: Any, images: torch.Tensor, plan: Any, in_parts: Callable[..., Any]
    ) -> None:
        self.times = list(self.script[plan])

    def __enter__(self) -> "Scripted":
        return self

    def __exit__(self, *error: Any) -> None:
        self.closed.append(self)

    def __call__(self) -> Any:
        self.times.append(seconds := self.times.pop(0))
        return seconds


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr(plan, "TimedPass", Scripted)
    return lambda seconds: monkeypatch.setattr(Scripted, "script", seconds)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    monkeypatch.setattr(plan, "user_cache_path", lambda name: tmp_path / name)
    return lambda *rest: remembered(*(rest or (nn.Linear(2, 3), (3, 7, 7), 5, [USUAL])))


def test_the_fastest_by_the_least_of_all_steps_but_the_first(script: Callable[..., Any]) -> None:
    script({USUAL: [9, 3, 4, 1], LAST: [0.1, 9, 2, 1], LOW: [1, 5, 7, 1]})
    best, speeds = fastest(nn.Conv2d(3, 5, 1), IMAGES, [USUAL, LAST, LOW], seconds=0.0)
    assert best == LAST  # two steps after the first; another program slowed one of LAST's down
    assert speeds == {USUAL: 5 / 3, LAST: 5 / 2, LOW: 1}


@pytest.mark.parametrize(("seconds", "taken"), [(0.96, USUAL), (0.94, LAST)])
def test_another_than_the_first_must_be_clearly_faster(
    script: Callable[..., Any], seconds: float, taken: ExecutionPlan
) -> None:
    script({USUAL: [1.0] * 3, LAST: [seconds] * 3})
    assert fastest(nn.Conv2d(3, 5, 1), IMAGES, [USUAL, LAST], seconds=0.0)[0] == taken


def test_nothing_to_time() -> None:
    with pytest.raises(ValueError, match="no plan to time: expected at least one ExecutionPlan"):
        fastest(nn.Conv2d(3, 5, 1), IMAGES, [])


class Seen(nn.Module):
    """Two convolutions and dropout, and what each call of it came with."""

    calls: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 5, 3), nn.Conv2d(5, 7, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.first(images)
        last = self.second.weight.is_contiguous(memory_format=torch.channels_last)
        self.calls.append((x.dtype, last, len(images), self.training))
        return nn.functional.dropout(self.second(x), 0.5).mean((2, 3))


def test_each_plan_is_timed_as_it_says_and_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Seen, "calls", [])
    network = Seen().eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    images, random = torch.rand(5, 3, 11, 11), torch.get_rng_state()
    fastest(network, images, [USUAL, LAST, LOW], seconds=0.0)
    timed = [call for call in Seen.calls if call[3]]  # the others count operations
    assert timed == 3 * [
        (torch.float32, False, 5, True),
        (torch.float32, True, 5, True),
        (torch.bfloat16, False, 5, True),
    ]
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert not network.training
    assert network.second.weight.is_contiguous()


class Sized(nn.Module):
    """A convolution and the sizes of the batches that it was called with."""

    sizes: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 1)

    def forward(self, images: torch.Tensor) -> Any:
        self.sizes.append(len(images))
        return self.conv(images).mean((2, 3))


@pytest.mark.parametrize(("least", "divided"), [(1e9, False), (0.0, True)])
def test_parts_are_timed_as_training_divides_a_batch(
    monkeypatch: pytest.MonkeyPatch, least: float, divided: bool
) -> None:
    monkeypatch.setattr(Sized, "sizes", [])
    in_parts = partial(InParts, least=least)
    plans = [ExecutionPlan(parts=2)]
    fastest(Sized(), torch.zeros(6, 3, 7, 7), plans, seconds=0.0, in_parts=in_parts)
    assert Sized.sizes.count(3) == divided * (3 * 2 + 1)  # three steps, and whether it can be
    assert Sized.sizes.count(6) == (not divided) * 3


def test_candidates_of_each_kind_of_network() -> None:
    precisions = ["bf16-mixed", "32-true"]
    plain = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Conv2d(5, 7, 3))
    every = candidates(plain, precisions, parts=(2, 1))
    assert len(every) == len(set(every)) == 8
    assert every[0] == ExecutionPlan("bf16-mixed", "contiguous", 2)
    vit = ViT(image_size=16, patch_size=8, dim=8, depth=1, heads=2)
    assert {one.memory_format for one in candidates(vit, precisions)} == {"contiguous"}
    normed = candidates(SEResNet(widths=(4, 4, 4, 4)), precisions, parts=(2, 1))
    assert {one.parts for one in normed} == {1}


def test_a_timed_step_is_of_enough_images_and_not_more_than_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network, size = nn.Conv2d(3, 5, 1, bias=False), (3, 7, 7)
    image = 3 * 2 * 3 * 5 * 7 * 7
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for operations, images in ((0, 2), (image * 11, 11), (image * 1000, 32)):
        monkeypatch.setattr(plan, "WORK", operations / 3)
        assert enough(network, size, 32) == images
    assert enough(network, size, 1) == 1


def test_a_measurement_is_remembered(file: Callable[..., Path]) -> None:
    remember(file(), LAST, {USUAL: 10.04, LAST: 20.0})
    assert recall(file()) == LAST
    kept = json.loads(file().read_text())
    assert kept["images/s"] == {str(USUAL): 10.0, str(LAST): 20.0}
    assert kept["machine"][-1] == torch.__version__


def test_it_is_of_this_machine_network_size_batch_and_plans(
    file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    network, size = nn.Linear(2, 3), (3, 7, 7)
    files = {
        file(network, size, 5, [USUAL]),
        file(nn.Linear(2, 5), size, 5, [USUAL]),
        file(network, (3, 7, 11), 5, [USUAL]),
        file(network, size, 7, [USUAL]),
        file(network, size, 5, [USUAL, LAST]),
    }
    monkeypatch.setattr(torch, "get_num_threads", lambda: 97)
    files.add(file(network, size, 5, [USUAL]))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    files.add(file(network, size, 5, [USUAL]))
    assert len(files) == 7


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"plan": {"precision": "8-bit"}}', "\0", '{"plan": 3}']
)
def test_a_damaged_memory_is_none(file: Callable[..., Path], text: str) -> None:
    file().parent.mkdir(parents=True)
    file().write_text(text)
    assert recall(file()) is None


def test_where_nothing_can_be_kept_nothing_is_said(file: Callable[..., Path]) -> None:
    file().parent.parent.mkdir(parents=True)
    file().parent.write_text("a file where the folder should be")
    remember(file(), USUAL, {})
    assert recall(file()) is None


def test_kernels_in_channels_last() -> None:
    network = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Linear(2, 3))
    in_channels_last(network)
    assert network[0].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "16-true"}, "precision must be one of bf16-mixed, 32-true, got '16-true'"),
        (
            {"memory_format": "rows"},
            "memory_format must be one of contiguous, channels_last, got 'rows'",
        ),
        ({"parts": 0}, "parts must be at least 1, got 0"),
    ],
)
def test_no_such_plan(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExecutionPlan(**options)
