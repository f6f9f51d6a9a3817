"""Temperature scaling against another way to the minimum, and on logits whose answer is known."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from vision_attn.training import calibrate
from vision_attn.types import Calibration


def drawn(
    sharpness: float, images: int = 2003, classes: int = 7
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits whose own softmax the labels are drawn from, then multiplied."""
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(images, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return sharpness * logits, labels


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 4.0])
def test_it_finds_what_the_logits_were_multiplied_by(sharpness: float) -> None:
    found = calibrate(*drawn(sharpness))
    assert found.temperature == pytest.approx(sharpness, rel=0.06)


def test_it_finds_the_minimum_that_lbfgs_finds() -> None:
    logits, labels = drawn(3.0)
    log_t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([log_t], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(logits / log_t.exp(), labels)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert calibrate(logits, labels).temperature == pytest.approx(log_t.exp().item(), rel=1e-5)


def test_the_threshold_leaves_one_in_twenty_below() -> None:
    logits, labels = drawn(2.0)
    found = calibrate(logits.float(), labels)
    surest = (logits / found.temperature).softmax(1).amax(1)
    assert found.threshold is not None
    assert (surest < found.threshold - 1e-6).double().mean() == pytest.approx(0.05, abs=1 / 2003)


def test_logits_that_are_always_right_get_the_least_temperature() -> None:
    logits = torch.eye(5).repeat(9, 1)
    assert calibrate(logits, torch.arange(45) % 5).temperature == pytest.approx(0.01, rel=1e-6)


def test_too_few_images_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 20 images to calibrate by, got 19"):
        calibrate(torch.zeros(19, 3), torch.zeros(19).long())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature must be above 0 and finite, got 0.0"),
        ({"temperature": float("nan")}, "temperature must be above 0"),
        ({"threshold": 1.5}, "threshold must be a probability or None, got 1.5"),
    ],
)
def test_a_calibration_checks_its_numbers(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Calibration(**options)


def test_a_photo_is_unlike_below_the_threshold_only() -> None:
    known = Calibration(2.0, 0.54)
    assert known.unlike(0.54) == Calibration().unlike(0.0) == ""
    assert known.unlike(0.3125) == (
        "Unlike the images that the network knows: the most probable class has 31.2%, where 95% of held-out images "
        "have at least 54.0%"
    )
