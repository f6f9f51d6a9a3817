"""The grid pointing game: an independent count, closed forms, and what cannot be scored."""

import re

import pytest
import torch
from torch.nn import functional as F

from vision_attn.evaluate import GridPointingGame
from vision_attn.types import Heatmaps


def scores(maps: torch.Tensor, cells: torch.Tensor, grid: int | tuple[int, int]) -> torch.Tensor:
    metric = GridPointingGame(grid)
    metric.update(maps, cells)
    torch.testing.assert_close(metric.compute(), metric.per_image().mean())
    return metric.per_image()


@pytest.mark.parametrize(("size", "grid"), [((5, 7), (2, 3)), ((11, 3), (3, 2)), ((2, 2), (3, 5))])
def test_it_is_the_count_of_a_map_repeated_until_cells_divide_it(
    size: tuple[int, int], grid: tuple[int, int]
) -> None:
    """Independent: repeat each value until every cell is a whole number of pixels, then count."""
    maps = torch.randn(13, *size)
    maps[:, 0, 1] = 0.3  # none without a positive value
    cells = torch.arange(13) % (grid[0] * grid[1])
    want = []
    for one, cell in zip(maps.tolist(), cells.tolist(), strict=True):
        row, column = divmod(cell, grid[1])
        total, inside = 0.0, 0.0
        for y in range(size[0] * grid[0]):  # pixels of a finer map: each value grid times over
            for x in range(size[1] * grid[1]):
                value = max(one[y // grid[0]][x // grid[1]], 0.0)
                total += value
                inside += value * (y // size[0] == row and x // size[1] == column)
        want.append(inside / total)
    torch.testing.assert_close(scores(maps, cells, grid), torch.tensor(want))


def test_an_oracle_scores_one_and_a_uniform_map_the_share_of_a_cell() -> None:
    cells = torch.arange(9)
    oracle = F.one_hot(cells).float().view(9, 3, 3)
    torch.testing.assert_close(scores(oracle, cells, 3), torch.ones(9))
    enlarged = oracle.repeat_interleave(7, 1).repeat_interleave(5, 2)
    torch.testing.assert_close(scores(enlarged, cells, 3), torch.ones(9))
    for value in (2.0, 0.0, -2.0):
        flat = torch.full((9, 16, 11), value)
        torch.testing.assert_close(scores(flat, cells, 3), torch.full((9,), 1 / 9))


@pytest.mark.parametrize("grid", [2, 3])
def test_a_map_that_is_blind_to_the_class_averages_the_share_of_a_cell(grid: int) -> None:
    cells = torch.arange(grid**2)
    blind = torch.randn(1, 16, 13).expand(grid**2, -1, -1)
    mean = scores(blind, cells, grid).double().mean()
    torch.testing.assert_close(mean, torch.tensor(1 / grid**2).double(), rtol=0, atol=1e-7)


def test_negative_values_count_nothing_and_scale_does_not_matter() -> None:
    maps, cells = torch.randn(5, 7, 7), torch.tensor([0, 1, 2, 3, 0])
    assert torch.equal(scores(maps, cells, 2), scores(maps.relu(), cells, 2))
    torch.testing.assert_close(scores(1e-30 * maps, cells, 2), scores(maps, cells, 2))


def test_batches_and_heatmaps() -> None:
    maps, cells = torch.rand(5, 4, 6), torch.tensor([3, 1, 2, 0, 0])
    metric = GridPointingGame()
    metric.update(Heatmaps(maps[:2], "map"), cells[:2])  # type: ignore[arg-type]
    metric.update(maps[2:], cells[2:].int())
    torch.testing.assert_close(metric.per_image(), scores(maps, cells, (2, 2)))
    torch.testing.assert_close(metric.shares(maps).sum(1), torch.ones(5).double())


@pytest.mark.parametrize(
    ("maps", "cells", "words"),
    [
        (torch.rand(2, 4), torch.tensor([0, 1]), "maps must be floats (batch, height, width), got"),
        (
            torch.full((2, 4, 4), torch.nan),
            torch.tensor([0, 1]),
            "2 of 2 maps hold NaN or infinity",
        ),
        (
            torch.rand(2, 4, 4),
            torch.tensor([0]),
            "expected one cell per map, whole numbers (2,), got",
        ),
        (torch.rand(2, 4, 4), torch.tensor([0.0, 1]), "got torch.float32 of shape (2,)"),
        (torch.rand(2, 4, 4), torch.tensor([0, 4]), "cells must be 0 to 3, got 0 to 4"),
        (torch.rand(2, 4, 4), torch.tensor([-1, 3]), "cells must be 0 to 3, got -1 to 3"),
    ],
)
def test_what_cannot_be_scored_is_said(maps: torch.Tensor, cells: torch.Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        GridPointingGame(2).update(maps, cells)


def test_a_grid_without_cells_is_refused() -> None:
    with pytest.raises(ValueError, match="grid must be at least 1 row and 1 column, got 0"):
        GridPointingGame(0)
