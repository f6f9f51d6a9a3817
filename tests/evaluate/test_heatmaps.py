"""Every metric takes Heatmaps where it takes maps, and uses their values as they are."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vision_attn import evaluate
from vision_attn.evaluate import (
    AverageDrop,
    AveragePrecision,
    Deletion,
    EnergyPointingGame,
    FilledCells,
    ImageScore,
    Insertion,
    MaxBoxIoU,
    MaxSensitivity,
    MeanIoU,
    ModelRandomisation,
    PointingGame,
    Sparseness,
)
from vision_attn.evaluate.per_image import at_size
from vision_attn.types import Heatmaps

NETWORK = nn.Sequential(nn.Flatten(), nn.Linear(3 * 10 * 14, 3)).eval()
REMOVAL = FilledCells(NETWORK, (5, 7))
IMAGES, TARGETS = torch.linspace(-1, 1, 2 * 3 * 10 * 14).view(2, 3, 10, 14), torch.tensor([0, 2])
MASKS = torch.zeros(2, 10, 14, dtype=torch.bool).index_fill(2, torch.arange(3, 9), True)
MAPS = torch.sin(torch.arange(70.0)).view(2, 5, 7) * 40  # negative and large values too


@pytest.mark.parametrize(
    ("make", "given"),
    [
        *((lambda kind=kind: kind(REMOVAL, steps=4), "walk") for kind in (Deletion, Insertion)),
        (lambda: AverageDrop(NETWORK), "walk"),
        *((kind, "mask") for kind in (PointingGame, EnergyPointingGame, AveragePrecision, MeanIoU)),
        (lambda: PointingGame(1), "mask"),
        (MaxBoxIoU, "box"),
        (Sparseness, "alone"),
    ],
)
def test_the_values_are_used(make: Callable[..., Any], given: str) -> None:
    def scored(maps: torch.Tensor | Heatmaps) -> torch.Tensor:
        metric: ImageScore = make()
        boxes = [torch.tensor([[3.0, 0, 9, 10]])] * 2, [(10, 14)] * 2
        arguments = {
            "walk": (IMAGES, maps, TARGETS),
            "mask": (maps, MASKS),
            "box": (maps, *boxes),
            "alone": (maps,),
        }
        metric.update(*arguments[given])
        return metric.per_image()

    assert torch.equal(scored(Heatmaps(MAPS, "A")), scored(MAPS))


def test_by_keyword_too() -> None:
    metric = Sparseness()
    metric.update(maps=Heatmaps(MAPS, "A"))  # type: ignore[arg-type]
    assert metric.compute() > 0


def test_an_explainer_is_what_the_sanity_checks_take() -> None:
    def explain(network: Any, images: torch.Tensor, targets: Any) -> Heatmaps:
        weights = network[1].weight[targets].view(-1, 3, 10, 14)
        return Heatmaps((images * weights).sum(1), "A")

    def values(network: Any, images: torch.Tensor, targets: Any) -> torch.Tensor:
        return explain(network, images, targets).values

    found = []
    for one in (explain, values):
        randomisation = ModelRandomisation(NETWORK, one)
        sensitivity = MaxSensitivity(partial(cast(Any, one), NETWORK), samples=2)
        for metric in (randomisation, sensitivity):
            metric.update(IMAGES, TARGETS)
            found.append(metric.per_image())
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])


@pytest.mark.parametrize(
    ("size", "mode"),
    [((3, 8), None), ((2, 8), "area"), ((6, 4), "bilinear"), ((5, 11), "bilinear")],
)
def test_maps_that_shrink_are_averaged_and_others_interpolated(
    size: tuple[int, int], mode: str | None
) -> None:
    maps = torch.rand(2, 3, 8)
    expected = maps if mode is None else F.interpolate(maps[:, None], size, mode=mode)[:, 0]
    torch.testing.assert_close(at_size(maps, size), expected)


def test_which_way_each_score_is_better() -> None:
    lower = {
        "Deletion",
        "PositivePerturbation",
        "AverageDrop",
        "MaxSensitivity",
        "ModelRandomisation",
    }
    scores = {
        name: score
        for name, score in vars(evaluate).items()
        if isinstance(score, type) and issubclass(score, evaluate.ImageScore)
    }
    assert {name for name, score in scores.items() if score.higher_is_better is False} == lower
    higher = {name for name, score in scores.items() if score.higher_is_better is True}
    assert higher == scores.keys() - lower - {"ImageScore"}
