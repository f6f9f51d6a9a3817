"""Deletion and insertion of any number that a network gives; targets that are none are refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from vision_attn.evaluate import (
    AverageDrop,
    AverageIncrease,
    Deletion,
    DroppedTokens,
    FilledCells,
    Insertion,
    NegativePerturbation,
    PositivePerturbation,
    Removal,
)
from vision_attn.evaluate.faithfulness import RemovalCurve
from vision_attn.methods import Difference, PerImage, Similarity
from vision_attn.models import ViT

IMAGES = torch.randn(2, 3, 8, 12)
MAPS = torch.rand(2, 2, 3)
CLASSES = 5


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 7, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(7, CLASSES)).eval()  # fmt: skip


def in_a_dict(images: Any) -> dict[Any, Any]:
    return {"aux": images.mean((2, 3)), "scores": network()(images)}


def by_hand(kind: Any, number: Callable[..., Any], steps: int) -> torch.Tensor:
    """The area under the number of each image as 4x4 cells become grey, cell by cell."""
    areas = []
    for image, values in zip(IMAGES, MAPS, strict=True):
        order = values.flatten().argsort(descending=True).tolist()
        curve = []
        for step in range(steps + 1):
            count = round(6 * step / steps)
            gone = order[:count] if kind is Deletion else order[count:]
            changed = image.clone()
            for cell in gone:
                row, column = divmod(cell, 3)
                changed[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 0
            curve.append(number(changed[None]))
        areas.append(torch.trapezoid(torch.cat(curve), dx=1 / steps))
    return torch.stack(areas)


@pytest.mark.parametrize("kind", [Deletion, Insertion])
def test_curves_follow_a_function_of_whatever_the_network_gives(
    kind: Callable[..., RemovalCurve],
) -> None:
    metric = kind(FilledCells(in_a_dict, grid=(2, 3), rows=5), steps=3)
    metric.update(IMAGES, MAPS, lambda output: output["scores"][:, 3] - output["aux"][:, 0])

    def number(images: Any) -> Any:
        output = in_a_dict(images)
        return output["scores"][:, 3] - output["aux"][:, 0]

    with torch.no_grad():
        torch.testing.assert_close(metric.per_image(), by_hand(kind, number, 3))


def test_each_image_has_a_target_of_its_own() -> None:
    targets = PerImage((Difference(3, 1), Similarity(torch.arange(1.0, 6.0))))
    metric = Deletion(FilledCells(network(), grid=(2, 3), rows=5), steps=3)
    metric.update(IMAGES, MAPS, targets)
    for i, target in enumerate(targets.targets):
        alone = Deletion(FilledCells(network(), grid=(2, 3)), steps=3)
        alone.update(IMAGES[i, None], MAPS[i, None], target)
        torch.testing.assert_close(metric.per_image()[i], alone.per_image()[0])


def test_numbers_of_dropped_tokens_and_of_a_removal_of_ones_own() -> None:
    torch.manual_seed(0)
    vit = ViT((8, 12), 4, CLASSES, 12, 1, 3).eval()
    removal = DroppedTokens(vit.forward_kept_tokens, (2, 3))
    order = torch.stack([torch.randperm(6), torch.randperm(6)])
    with torch.no_grad():
        logits = removal.logits(IMAGES, order, [1, 4])
        numbers = removal.numbers(IMAGES, order, [1, 4], Difference(2, 0))
    torch.testing.assert_close(numbers, logits[..., 2] - logits[..., 0])

    class Count(Removal):
        grid, least = (2, 3), 0

        def logits(self, images: torch.Tensor, order: Any, counts: Any) -> torch.Tensor:
            return torch.tensor(counts).float().view(1, -1, 1) * images.mean((2, 3))[:, None]

    numbers = Count().numbers(IMAGES, order, [0, 2], PerImage((Difference(2, 0), Difference(1, 0))))
    means = IMAGES.mean((2, 3))
    differences = torch.stack([means[0, 2] - means[0, 0], means[1, 1] - means[1, 0]])
    torch.testing.assert_close(numbers, torch.stack([0 * differences, 2 * differences], dim=1))


def test_probabilities_may_be_other_than_a_softmax() -> None:
    removal = FilledCells(network(), grid=(2, 3))
    metric = Deletion(removal, steps=3, probabilities=torch.sigmoid)
    metric.update(IMAGES, MAPS, 4)
    expected = by_hand(Deletion, lambda images: network()(images)[:, 4].sigmoid(), 3)
    torch.testing.assert_close(metric.per_image(), expected.detach())
    drop = AverageDrop(network(), probabilities=torch.sigmoid)
    drop.update(IMAGES, torch.ones(2, 2, 3), 4)
    half = network()(IMAGES / 2)[:, 4].sigmoid()  # a constant map keeps one half
    whole = network()(IMAGES)[:, 4].sigmoid()
    torch.testing.assert_close(drop.per_image(), ((whole - half) / whole).clamp(min=0).detach())


def metrics() -> list[Any]:
    removal = FilledCells(network(), grid=(2, 3))
    curves = Deletion, Insertion, PositivePerturbation, NegativePerturbation
    return [*(kind(removal, steps=2) for kind in curves),
            AverageDrop(network()), AverageIncrease(network())]  # fmt: skip


@pytest.mark.parametrize("metric", metrics(), ids=lambda metric: type(metric).__name__)
@pytest.mark.parametrize(
    ("target", "message"),
    [
        (5, "target class 5 is out of range: the network has 5 classes, 0 to 4"),
        ([0, -1], "target class -1 is out of range"),
        (torch.tensor([0.0, 1.0]), r"class indices \(whole numbers\), got torch.float32"),
        (torch.tensor([True, False]), r"class indices \(whole numbers\), got torch.bool"),
        ([1, 2, 3], r"target must be one class or 2 \(one an image\), got shape \(3,\)"),
        ("cat", "target must be class indices or a function, got str"),
        (None, "target must be class indices or a function, got NoneType"),
    ],
)
def test_targets_that_are_no_classes_are_refused(metric: Any, target: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        metric.update(IMAGES, MAPS, target)


@pytest.mark.parametrize("metric", metrics(), ids=lambda metric: type(metric).__name__)
def test_one_class_for_all_and_lists_are_targets(metric: Any) -> None:
    metric.update(IMAGES, MAPS, 3)
    metric.update(IMAGES, MAPS, [3, 3])
    metric.update(IMAGES, MAPS, torch.tensor([3, 3]))
    first, second, third = metric.per_image().view(3, 2)
    assert torch.equal(first, second)
    assert torch.equal(first, third)
    with pytest.raises(ValueError, match="expected a map for each of 2 images, got 1"):
        metric.update(IMAGES, MAPS[:1], 3)


def test_accuracy_is_of_classes_alone() -> None:
    for kind in (PositivePerturbation, NegativePerturbation):
        with pytest.raises(ValueError, match=f"{kind.__name__}: target must be class indices"):
            kind(FilledCells(network(), (2, 3))).update(IMAGES, MAPS, Difference(1, 0))
