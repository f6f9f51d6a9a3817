"""One part removed at a time: SaCo and single deletion beside the formulas, pair by pair."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from vision_attn.evaluate import DroppedTokens, FilledCells, SaCo, SingleDeletion
from vision_attn.evaluate.single import SingleRemoval
from vision_attn.methods import Difference
from vision_attn.models import ViT


@pytest.fixture
def network() -> Callable[..., Any]:
    torch.manual_seed(1)
    weight = torch.randn(5, 3 * 14 * 22)
    return lambda images: images.flatten(1) @ weight.to(images).T / 9


IMAGES = torch.randn(3, 3, 14, 22, generator=torch.Generator().manual_seed(2))
MAPS = torch.randn(3, 7, 11, generator=torch.Generator().manual_seed(3))
CLASSES = torch.tensor([4, 0, 2])


def without(image: torch.Tensor, cells: Any) -> torch.Tensor:
    """The image with these cells of a grid of 7 x 11 painted over."""
    image = image.clone()
    for cell in cells:
        row, column = divmod(int(cell), 11)
        image[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2] = 0
    return image


def chance(network: Callable[..., Any], image: torch.Tensor, wanted: torch.Tensor) -> float:
    return float(network(image[None]).softmax(1)[0, wanted])


def test_saco_is_the_sum_over_pairs_of_groups(network: Callable[..., Any]) -> None:
    metric = SaCo(FilledCells(network, (7, 11)), groups=5)
    metric.update(IMAGES, MAPS, CLASSES)
    for at, found in enumerate(metric.per_image()):
        values, wanted = MAPS[at].flatten().double(), CLASSES[at]
        sorted_cells = values.argsort(descending=True)
        groups = [sorted_cells[(torch.arange(77) * 5 // 77) == g] for g in range(5)]
        assert {len(group) for group in groups} == {15, 16}
        whole = chance(network, IMAGES[at], wanted)
        drops = [(whole - chance(network, without(IMAGES[at], g), wanted)) / len(g) for g in groups]
        sums = [float(values[group].mean()) for group in groups]
        score = total = 0.0
        for i, j in combinations(range(5), 2):
            weight = sums[i] - sums[j]
            score += weight if drops[i] >= drops[j] else -weight
            total += abs(weight)
        assert float(found) == pytest.approx(score / total, abs=1e-5)


def test_single_deletion_is_the_rank_correlation_over_parts(network: Callable[..., Any]) -> None:
    metric = SingleDeletion(FilledCells(network, (7, 11)), parts_a_side=3)
    metric.update(IMAGES, MAPS, CLASSES)
    rows, columns = ([*map(len, np.array_split(range(n), 3))] for n in (7, 11))
    for at, found in enumerate(metric.per_image()):
        sums, drops = [], []
        logits = network(IMAGES[at][None])[0, CLASSES[at]]
        for row in range(3):
            for column in range(3):
                inside = [
                    11 * y + x
                    for y in range(7)
                    for x in range(11)
                    if y * 3 // 7 == row and x * 3 // 11 == column
                ]
                sums.append(float(MAPS[at].flatten()[inside].double().mean()))
                image = without(IMAGES[at], inside)
                drops.append(float(logits - network(image[None])[0, CLASSES[at]]) / len(inside))
        assert float(found) == pytest.approx(spearmanr(sums, drops).statistic, abs=1e-5)
    assert (sum(rows), sum(columns)) == (7, 11)


def test_the_right_map_has_one_and_its_opposite_minus_one(network: Callable[..., Any]) -> None:
    weights = torch.autograd.functional.jacobian(lambda x: network(x)[0, 1], IMAGES[:1])
    shares = (weights * IMAGES[:1]).sum(1).unfold(1, 2, 2).unfold(2, 2, 2).sum((-1, -2))
    for sign in (1, -1):
        metric = SingleDeletion(FilledCells(network, (7, 11)), 4)
        metric.update(IMAGES[:1], sign * shares, 1)
        assert metric.compute() == pytest.approx(sign)
        metric = SaCo(FilledCells(network, (7, 11)), groups=7, probabilities=lambda logits: logits)
        metric.update(IMAGES[:1], sign * shares, 1)
        assert metric.compute() == pytest.approx(sign)


def test_a_constant_map_has_none(network: Callable[..., Any]) -> None:
    for metric in (
        SaCo(FilledCells(network, (7, 11))),
        SingleDeletion(FilledCells(network, (7, 11))),
    ):
        metric.update(IMAGES, torch.ones(3, 7, 11), CLASSES)
        assert metric.per_image().tolist() == [0, 0, 0]


def test_tokens_can_be_dropped_and_any_number_explained() -> None:
    torch.manual_seed(4)
    vit = ViT((16, 24), 8, 5, 12, 2, 3, pool="mean", class_token=False).eval()
    images, maps = torch.randn(2, 3, 16, 24), torch.randn(2, 2, 3)
    removal = DroppedTokens(vit.forward_kept_tokens, (2, 3))
    metric = SaCo(removal, groups=6)
    metric.update(images, maps, Difference(3, 1))
    kept = [[at for at in range(6) if at != cell] for cell in range(6)]
    with torch.no_grad():
        logits = vit(images)
        order = maps[1].flatten().argsort(descending=True)
        for group, cell in enumerate(order.tolist()):
            without_it = vit.forward_kept_tokens(images[1:], torch.tensor([kept[cell]]))
            fell = (logits[1, 3] - logits[1, 1]) - (without_it[0, 3] - without_it[0, 1])
            assert float(metric.drops[0][1, group]) == pytest.approx(float(fell), abs=1e-4)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda removal: SaCo(removal, groups=1), "groups must be from 2 to 6, the cells, got 1"),
        (lambda removal: SaCo(removal, groups=7), "groups must be from 2 to 6, the cells, got 7"),
        (lambda removal: SingleDeletion(removal, 3), "parts_a_side must be from 1 to 2, the cells"),
    ],
)
def test_there_are_not_more_parts_than_cells(
    make: Callable[..., SingleRemoval], expected: str, network: Callable[..., Any]
) -> None:
    with pytest.raises(ValueError, match=expected):
        make(FilledCells(network, (2, 3)))


def test_one_cell_has_no_parts_to_compare(network: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"removal\.grid must have at least two cells"):
        SingleDeletion(FilledCells(network, (1, 1)), 1)


def test_targets_are_checked(network: Callable[..., Any]) -> None:
    metric = SaCo(FilledCells(network, (7, 11)))
    with pytest.raises(ValueError, match="target class 5 is out of range"):
        metric.update(IMAGES, MAPS, torch.tensor([0, 5, 1]))
    with pytest.raises(ValueError, match="expected a map for each of 3 images, got 2"):
        metric.update(IMAGES, MAPS[:2], CLASSES)
