"""Removal curves on networks whose true attribution is known."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from pytorch_grad_cam.metrics.cam_mult_image import DropInConfidence, IncreaseInConfidence
from pytorch_grad_cam.utils.model_targets import ClassifierOutputSoftmaxTarget
from torch import nn
from torchmetrics import MetricCollection

from vision_attn.evaluate import (
    AverageDrop,
    AverageIncrease,
    Deletion,
    FilledCells,
    Insertion,
    NegativePerturbation,
    PositivePerturbation,
)
from vision_attn.evaluate.faithfulness import Perturbation, RemovalCurve

IMAGES = torch.ones(6, 1, 10, 10)
TARGETS = torch.ones(6, dtype=torch.long)
EVIDENCE = torch.rand(10, 10, generator=torch.Generator().manual_seed(3))


def additive(images: torch.Tensor) -> torch.Tensor:
    """Two classes; the evidence of class 1 is the sum over pixels of what each is worth."""
    worth = (images[:, 0] * EVIDENCE).sum((1, 2)) / EVIDENCE.sum()
    return torch.stack([torch.zeros_like(worth), 8 * worth - 4], dim=1)


REMOVAL = FilledCells(additive, grid=(10, 10))


def area(metric: RemovalCurve, maps: torch.Tensor) -> torch.Tensor:
    metric.update(IMAGES, maps, TARGETS)
    return metric.compute()


def test_curves_are_their_definition() -> None:
    """Every point by hand, on a random map."""
    maps = torch.rand(6, 10, 10)
    deletion = Deletion(REMOVAL, steps=7)
    deletion.update(IMAGES, maps, TARGETS)
    order = maps[2].flatten().argsort(descending=True)
    for step in range(8):
        image = IMAGES[2:3].clone().flatten()
        image[order[: 100 - round(100 * (7 - step) / 7)]] = 0
        expected = additive(image.view(1, 1, 10, 10)).softmax(1)[0, 1]
        torch.testing.assert_close(deletion.curves()[2, step], expected)
    x, y = deletion.fractions(), deletion.curves()
    torch.testing.assert_close(x, torch.arange(8) / 7)
    torch.testing.assert_close(deletion.compute(), torch.trapezoid(y, x).mean())
    insertion = Insertion(REMOVAL, steps=7)
    insertion.update(IMAGES, -maps, TARGETS)  # the last come first: deletion run backwards
    torch.testing.assert_close(insertion.curves().flip(1), deletion.curves())


def test_the_true_attribution_is_best_and_its_negative_worst() -> None:
    truth = EVIDENCE.expand(6, 10, 10)
    random = torch.rand(6, 10, 10)
    for metric, sign in [(Deletion, 1), (Insertion, -1)]:
        right, chance, wrong = (
            sign * area(metric(REMOVAL, steps=20), maps) for maps in (truth, random, -truth)
        )
        assert right < chance - 0.02 < chance + 0.02 < wrong
    assert area(PositivePerturbation(REMOVAL, steps=10), truth) < 0.4
    assert area(NegativePerturbation(REMOVAL, steps=10), truth) > 0.6


def test_random_and_constant_maps_give_the_expectation() -> None:
    """With an additive network and equal evidence the curve is sigmoid(4 - 8 x), of area 1/2."""

    def equal(images: torch.Tensor) -> torch.Tensor:
        return torch.stack([images.new_zeros(len(images)), 8 * images.mean((1, 2, 3)) - 4], dim=1)

    removal = FilledCells(equal, grid=(10, 10))
    for maps in [torch.rand(6, 10, 10), torch.full((6, 10, 10), 0.3)]:
        for metric in [Deletion(removal, steps=50), Insertion(removal, steps=50)]:
            torch.testing.assert_close(area(metric, maps), torch.tensor(0.5), rtol=0, atol=1e-3)


def test_a_constant_map_is_a_random_order_not_the_rows() -> None:
    deletion = Deletion(REMOVAL)
    order = deletion.order(torch.zeros(2, 10, 10))
    assert not torch.equal(order[0], torch.arange(100))
    assert not torch.equal(order[0], torch.arange(100).flip(0))
    torch.testing.assert_close(order[0].sort().values, torch.arange(100))
    # Where values differ they decide, and ties stay in the random order among themselves.
    maps = torch.zeros(1, 10, 10)
    maps[0, 5, 5] = 1
    assert Insertion(REMOVAL).order(maps)[0, 0] == 55
    assert deletion.order(maps)[0, -1] == 55


def test_perturbation_is_the_mean_accuracy_up_to_ninety_percent() -> None:
    """Class 1 wins while more than half of the evidence is left: removed in order of evidence."""
    positive = PositivePerturbation(REMOVAL, steps=10)
    torch.testing.assert_close(
        area(positive, EVIDENCE.expand(6, 10, 10)), positive.per_image().mean()
    )
    torch.testing.assert_close(positive.fractions(), torch.arange(10) / 10)
    ordered = EVIDENCE.flatten().sort(descending=True).values
    hits = [float(ordered[10 * i :].sum() > EVIDENCE.sum() / 2) for i in range(10)]
    torch.testing.assert_close(positive.curves()[0], torch.tensor(hits))
    expected = torch.trapezoid(torch.tensor(hits), dx=0.1) / 0.9
    torch.testing.assert_close(positive.compute(), expected)
    negative = NegativePerturbation(REMOVAL, steps=10)
    area(negative, -EVIDENCE.expand(6, 10, 10))  # smallest of the negative first: the same walk
    torch.testing.assert_close(negative.curves(), positive.curves())


@pytest.mark.parametrize("steps", [1, 7, 10, 16, 33])
@pytest.mark.parametrize("kind", [PositivePerturbation, NegativePerturbation])
def test_perturbation_ends_at_ninety_percent_whatever_the_steps(
    kind: Callable[..., Perturbation], steps: int
) -> None:
    metric = kind(REMOVAL, steps=steps)
    area(metric, EVIDENCE.expand(6, 10, 10))
    whole = metric.hits[0].flip(1) if metric.best_first else metric.hits[0]
    at = np.linspace(0, 0.9, 90_001)  # the polygon through the steps, integrated finely
    polygon = np.interp(at, np.arange(steps + 1) / steps, whole[0].numpy())
    assert metric.fractions()[-1] == 0.9
    assert metric.curves().shape == (6, len(metric.fractions()))
    assert (metric.fractions().diff() > 0).all()
    np.testing.assert_allclose(metric.compute(), polygon.mean(), atol=1e-4)


def test_metrics_that_walk_the_same_way_share_the_work() -> None:
    calls = []

    def counted(images: torch.Tensor) -> torch.Tensor:
        calls.append(len(images))
        return additive(images)

    removal = FilledCells(counted, grid=(10, 10))
    metrics = [Deletion, PositivePerturbation, Insertion, NegativePerturbation]
    together = MetricCollection(
        [metric(removal, steps=10) for metric in metrics],
        compute_groups=[
            ["Deletion", "PositivePerturbation"],
            ["Insertion", "NegativePerturbation"],
        ],
    )
    maps = torch.rand(6, 10, 10)
    together.update(IMAGES, maps, TARGETS)
    assert sum(calls) == 2 * 6 * 11
    for metric in metrics:
        torch.testing.assert_close(
            together.compute()[metric.__name__], area(metric(REMOVAL, steps=10), maps)
        )


def test_batches_and_reset() -> None:
    maps = torch.rand(6, 10, 10)
    at_once, in_parts = Deletion(REMOVAL), Deletion(REMOVAL)
    at_once.update(IMAGES, maps, TARGETS)
    for part in (slice(0, 1), slice(1, 6)):
        in_parts.update(IMAGES[part], maps[part], TARGETS[part])
    torch.testing.assert_close(at_once.per_image(), in_parts.per_image())
    torch.testing.assert_close(at_once.standard_error(), at_once.per_image().std() / 6**0.5)
    before = at_once.compute()
    at_once.reset()
    torch.testing.assert_close(area(at_once, maps), before)


@pytest.fixture
def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 8 * 8, 4)
    ).eval()


def test_drop_and_increase_against_the_package(network: nn.Sequential) -> None:
    """The package gives p - p_masked, not its share of p."""
    images, targets = torch.randn(9, 3, 10, 10), torch.randint(4, (9,))
    maps = torch.rand(9, 10, 10)
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    scaled = ((maps - low) / (high - low)).numpy()
    questions = [ClassifierOutputSoftmaxTarget(int(target)) for target in targets]
    drop, increase = AverageDrop(network), AverageIncrease(network)
    drop.update(images, maps, targets)
    increase.update(images, maps, targets)
    p = network(images).softmax(1).gather(1, targets[:, None])[:, 0]
    expected = torch.from_numpy(DropInConfidence()(images, scaled, questions, network))
    torch.testing.assert_close(drop.per_image() * p, expected, rtol=1e-4, atol=1e-6)
    expected = torch.from_numpy(IncreaseInConfidence()(images, scaled, questions, network))
    torch.testing.assert_close(increase.per_image(), expected)
    assert not list(drop.children())


def test_a_constant_map_is_half_a_picture(network: nn.Sequential) -> None:
    images, targets = torch.randn(2, 3, 10, 10), torch.tensor([1, 2])
    drop = AverageDrop(network)
    drop.update(images, torch.full((2, 5, 5), 7.0), targets)
    p, half = (network(x).softmax(1)[[0, 1], [1, 2]] for x in (images, images / 2))
    torch.testing.assert_close(drop.per_image(), ((p - half) / p).relu())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_network_of_half_precision_takes_maps_of_float32(
    network: nn.Sequential, dtype: torch.dtype
) -> None:
    images, targets = torch.randn(5, 3, 10, 10), torch.randint(4, (5,))
    maps, half = torch.rand(5, 5, 5), copy.deepcopy(network).to(dtype)
    for made in (AverageDrop, AverageIncrease):
        metric, whole = made(half), made(network)
        metric.update(images.to(dtype), maps, targets)
        whole.update(images, maps, targets)
        masked = zip(metric.whole + metric.masked, whole.whole + whole.masked, strict=True)
        for one, other in masked:
            torch.testing.assert_close(one, other, rtol=0, atol=0.02)


def test_wrong_arguments_are_refused() -> None:
    maps = torch.rand(6, 10, 10)
    maps[4, 2, 2] = torch.nan
    with pytest.raises(ValueError, match="1 of 6 maps hold NaN or infinity, first map 4"):
        Deletion(REMOVAL).update(IMAGES, maps, TARGETS)
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        Insertion(REMOVAL, steps=0)
