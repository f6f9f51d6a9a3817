from collections.abc import Callable
from math import cos, pi
from typing import Any

import pytest
import torch
from torch.optim import SGD

from vision_attn.training import ConstantRate, CosineDecay, LinearDecay
from vision_attn.training.schedules import Warmup


def rates(schedule: Callable[..., Warmup], steps: int, **options: Any) -> tuple[list[Any], Any]:
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule = schedule(optimizer, steps, **options)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found, optimizer.param_groups[0]["lr"]


def test_cosine_warms_up_and_ends_at_its_final_share() -> None:
    found, last = rates(CosineDecay, 100, warmup=0.1, final=0.05)
    assert found[:10] == pytest.approx([2 * (t + 1) / 11 for t in range(10)])
    for t in range(10, 100):
        u = (t - 10) / 90
        assert found[t] == pytest.approx(2 * (0.05 + 0.95 * (1 + cos(pi * u)) / 2))
    assert last == pytest.approx(0.1)


def test_linear_falls_by_the_same_amount_every_step() -> None:
    found, last = rates(LinearDecay, 50, warmup=0.0)
    assert found == pytest.approx([2 * (1 - t / 50) for t in range(50)])
    assert last == 0


def test_constant_stays() -> None:
    found, last = rates(ConstantRate, 7, warmup=2 / 7)
    assert found == pytest.approx([2 / 3, 4 / 3, *[2.0] * 5])
    assert last == 2


@pytest.mark.parametrize("schedule", [CosineDecay, LinearDecay, ConstantRate])
def test_steps_after_the_end_stay_at_the_end(schedule: Callable[..., Warmup]) -> None:
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = schedule(optimizer, 3, warmup=0.0)
    for _ in range(5):
        optimizer.step()
        schedule.step()
    assert optimizer.param_groups[0]["lr"] == (1.0 if isinstance(schedule, ConstantRate) else 0.0)


def test_its_state_is_plain_and_a_longer_run_takes_its_own_length() -> None:
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    state = LinearDecay(optimizer, 10, warmup=0.0).state_dict()
    torch.save(state, buffer := __import__("io").BytesIO())
    buffer.seek(0)
    longer = LinearDecay(optimizer, 20, warmup=0.0)
    longer.load_state_dict(torch.load(buffer, weights_only=True))
    for _ in range(10):
        optimizer.step()
        longer.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "at least 1 step, got 0"),
        ({"steps": 5, "warmup": 5.0}, "warmup must be a share of the run, from 0 to 1, got 5.0"),
        ({"steps": 5, "final": -1.0}, "final must be a share of the run"),
    ],
)
def test_refuses_what_makes_no_sense(options: dict[str, Any], message: str) -> None:
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    with pytest.raises(ValueError, match=message):
        CosineDecay(optimizer, **options)
