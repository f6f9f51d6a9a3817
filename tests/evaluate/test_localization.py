"""Maps against masks and boxes: closed forms, sklearn, and what chance scores."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sklearn.metrics import average_precision_score
from torchvision.ops import box_iou

from vision_attn.evaluate import (
    AveragePrecision,
    EnergyPointingGame,
    ImageScore,
    MaxBoxIoU,
    MeanIoU,
    PixelAccuracy,
    PointingGame,
    Sparseness,
)
from vision_attn.evaluate.localization import Localization

ALL = [PointingGame, EnergyPointingGame, AveragePrecision, MeanIoU, PixelAccuracy]
MASKS = torch.zeros(3, 12, 20, dtype=torch.bool)
MASKS[0, 2:5, 3:9] = True
MASKS[1, 6:12, 10:20] = True
MASKS[2, 0, 0] = True
AREA = MASKS.float().mean((1, 2))


def scores(metric: Callable[..., ImageScore], *args: Any) -> torch.Tensor:
    metric = metric()
    metric.update(*args)
    torch.testing.assert_close(metric.compute(), metric.per_image().mean())
    return metric.per_image()


@pytest.mark.parametrize("metric", ALL)
def test_a_perfect_map_scores_one(metric: Callable[..., Localization]) -> None:
    torch.testing.assert_close(scores(metric, MASKS.float(), MASKS), torch.ones(3))


@pytest.mark.parametrize("metric", [PointingGame, EnergyPointingGame, AveragePrecision])
def test_a_constant_map_scores_the_objects_share(metric: Callable[..., Localization]) -> None:
    for value in (0.0, 3.0, -3.0):
        torch.testing.assert_close(scores(metric, torch.full((3, 4, 5), value), MASKS), AREA)


def test_a_constant_map_has_half_of_the_pixels_above_its_mean() -> None:
    flat = torch.zeros(3, 4, 5)
    torch.testing.assert_close(scores(PixelAccuracy, flat, MASKS), torch.full((3,), 0.5))
    a, b = AREA, 1 - AREA
    expected = ((a / 2) / (1 / 2 + a / 2) + (b / 2) / (1 / 2 + b / 2)) / 2
    torch.testing.assert_close(scores(MeanIoU, flat, MASKS), expected)


@pytest.mark.parametrize("metric", ALL)
def test_a_random_map_scores_as_a_constant_one(metric: Callable[..., Localization]) -> None:
    masks = MASKS[1:2].expand(2000, 12, 20)
    chance = scores(metric, torch.rand(2000, 12, 20), masks).mean()
    torch.testing.assert_close(
        chance, scores(metric, torch.zeros(1, 12, 20), masks[:1])[0], rtol=0, atol=0.03
    )


def test_average_precision_is_sklearns_with_ties() -> None:
    maps = torch.randint(5, (3, 12, 20)).float()
    expected = [
        average_precision_score(mask.flatten(), values.flatten())
        for mask, values in zip(MASKS.numpy(), maps.numpy(), strict=True)
    ]
    torch.testing.assert_close(
        scores(AveragePrecision, maps, MASKS), torch.tensor(expected).float()
    )


def test_each_by_hand() -> None:
    maps = torch.tensor([[[4.0, 1, 0], [4, -2, 1]]])
    masks = torch.tensor([[[True, True, False], [False, False, False]]])
    assert scores(PointingGame, maps, masks).item() == 0.5
    assert scores(EnergyPointingGame, maps, masks).item() == 0.5
    # mean 4/3: above are the two fours
    torch.testing.assert_close(scores(PixelAccuracy, maps, masks), torch.tensor([4 / 6]))
    torch.testing.assert_close(scores(MeanIoU, maps, masks), torch.tensor([(1 / 3 + 3 / 5) / 2]))
    ignore = torch.tensor([[[False, False, False], [True, False, False]]])
    assert scores(PointingGame, maps, masks, ignore).item() == 1
    torch.testing.assert_close(
        scores(EnergyPointingGame, maps, masks, ignore), torch.tensor([5 / 6])
    )
    torch.testing.assert_close(scores(PixelAccuracy, maps, masks, ignore), torch.tensor([4 / 5]))
    torch.testing.assert_close(
        scores(AveragePrecision, maps, masks, ignore), torch.tensor([(1 + 2 / 3) / 2])
    )


@pytest.mark.parametrize("metric", ALL)
def test_ignored_pixels_change_nothing(metric: Callable[..., Localization]) -> None:
    maps, ignore = torch.rand(3, 12, 20), torch.rand(3, 12, 20) < 0.3
    ignore[:, :3, :9] = False
    before = scores(metric, maps, MASKS, ignore)
    masks = MASKS ^ ignore
    if metric in (PointingGame, EnergyPointingGame, AveragePrecision, MeanIoU, PixelAccuracy):
        maps = torch.where(ignore, torch.rand(3, 12, 20) * 9, maps)
    torch.testing.assert_close(scores(metric, maps, masks, ignore), before)


@pytest.mark.parametrize("metric", ALL)
def test_a_map_that_is_constant_where_pixels_count_is_a_constant_map(
    metric: Callable[..., Localization],
) -> None:
    ignore = torch.zeros_like(MASKS)
    ignore[:, 11, :9] = True
    for value in (0.1, 0.0, -3.0):
        flat = torch.full((3, 12, 20), value)
        expected = scores(metric, flat, MASKS, ignore)
        for other in (7.0, -7.0):
            maps = flat.masked_fill(ignore, other)
            torch.testing.assert_close(scores(metric, maps, MASKS, ignore), expected)


def test_maps_come_at_any_size() -> None:
    maps = torch.zeros(1, 3, 5)
    maps[0, 1, 2] = 1
    masks = torch.zeros(1, 12, 20, dtype=torch.bool)
    masks[0, 4:8, 8:12] = True
    assert scores(PointingGame, maps, masks).item() == 1
    fine = masks.float()
    torch.testing.assert_close(scores(EnergyPointingGame, fine, masks[:, ::4, ::4]), torch.ones(1))


def test_localization_errors() -> None:
    maps = torch.rand(3, 4, 5)
    for masks, message in [
        (MASKS.byte(), r"masks must be bool, got torch.uint8 with values \[0, 1\]"),
        (MASKS[:2], r"expected 3 masks \(batch, height, width\), got shape \(2, 12, 20\)"),
        (MASKS & False, "the object is absent: 3 of 3 masks are empty, first mask 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            PointingGame().update(maps, masks)
    with pytest.raises(ValueError, match=r"ignore must be of the masks' shape \(3, 12, 20\)"):
        PointingGame().update(maps, MASKS, MASKS[:, :5])
    with pytest.raises(ValueError, match="3 of 3 maps hold NaN"):
        EnergyPointingGame().update(maps * torch.nan, MASKS)


def test_max_box_iou() -> None:
    """The box of a bright block is found at the thresholds below it, whatever else is dim."""
    maps = torch.zeros(2, 40, 60)
    maps[0, 10:20, 15:35] = 1.0
    maps[0, 30:33, 50:53] = 0.9  # smaller
    maps[1, 5:25, 5:15] = 0.5
    maps[1, 5:15, 5:15] = 1.0
    boxes = [torch.tensor([[15.0, 10, 35, 20]]), torch.tensor([[5.0, 5, 15, 25], [0, 0, 2, 2]])]
    metric = MaxBoxIoU(thresholds=10)
    metric.update(maps, boxes, [(40, 60), (40, 60)])
    torch.testing.assert_close(metric.per_image(), torch.ones(2))
    assert metric.threshold() == 0.1
    shifted = [box + 5 for box in boxes]
    metric = MaxBoxIoU(thresholds=10)
    metric.update(maps, shifted, [(40, 60), (40, 60)])
    best = torch.stack([box_iou(boxes[i][:1], shifted[i][:1])[0, 0] for i in range(2)])
    torch.testing.assert_close(metric.per_image(), best)


def test_a_constant_map_boxes_the_whole_image() -> None:
    metric = MaxBoxIoU()
    metric.update(torch.ones(1, 3, 3), [torch.tensor([[0.0, 0, 20, 12]])], [(24, 40)])
    assert metric.compute().item() == pytest.approx(0.25)
    with pytest.raises(ValueError, match=r"image 0 needs boxes \(count, 4\), at least one, got"):
        metric.update(torch.ones(1, 3, 3), [torch.zeros(0, 4)], [(24, 40)])
    with pytest.raises(ValueError, match="expected boxes and sizes of 1 images, got 1 and 2"):
        metric.update(torch.ones(1, 3, 3), [torch.zeros(1, 4)], [(24, 40)] * 2)
    with pytest.raises(ValueError, match="thresholds must be at least 1"):
        MaxBoxIoU(thresholds=0)


def test_sparseness() -> None:
    one = torch.zeros(1, 10, 10)
    one[0, 3, 4] = -2
    assert scores(Sparseness, one).item() == pytest.approx(0.99)
    assert scores(Sparseness, torch.ones(1, 10, 10)).item() == pytest.approx(0, abs=1e-6)
    assert scores(Sparseness, torch.zeros(1, 10, 10)).item() == 0
    assert scores(Sparseness, torch.rand(1, 200, 200)).item() == pytest.approx(1 / 3, abs=0.01)
    values = torch.rand(1, 3, 7)
    v = values.flatten().double()
    pairs = (v[:, None] - v[None]).abs().sum() / (2 * len(v) * v.sum())
    assert scores(Sparseness, values).item() == pytest.approx(pairs.item())


def test_the_tolerance_grows_the_object_by_the_shape_that_its_docstring_names() -> None:
    assert PointingGame.__doc__ is not None
    assert "the object grows by a square" in " ".join(PointingGame.__doc__.split())
    masks = torch.zeros(11 * 13, 11, 13, dtype=torch.bool)
    masks[:, 5, 6] = True
    metric = PointingGame(tolerance=3)
    metric.update(torch.eye(11 * 13).view(-1, 11, 13), masks)  # the maximum at every place
    square = torch.zeros(11, 13)
    square[2:9, 3:10] = 1
    torch.testing.assert_close(metric.per_image().view(11, 13), square)


def test_a_maximum_beside_the_object_counts_within_the_tolerance() -> None:
    maps, masks = torch.zeros(5, 20, 20), torch.zeros(5, 20, 20, dtype=torch.bool)
    masks[:, 8:11, 8:11] = True
    for i, (y, x) in enumerate([(9, 9), (9, 13), (9, 14), (5, 13), (0, 0)]):
        maps[i, y, x] = 1
    metric = PointingGame(tolerance=3)
    metric.update(maps, masks)
    assert metric.per_image().tolist() == [1, 1, 0, 1, 0]
    with pytest.raises(ValueError, match="the object is absent"):
        metric.update(maps, torch.zeros_like(masks))
    with pytest.raises(ValueError, match="tolerance must be at least 0 pixels, got -1"):
        PointingGame(tolerance=-1)
