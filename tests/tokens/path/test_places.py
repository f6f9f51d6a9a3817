"""The grid on which tokens lie, found from the pixels that they were made of."""

import itertools
from typing import Any

import pytest
import torch

from vision_attn.tokens.path.places import grid_of, product_of, rows_apart

GRID = (5, 7)


def boxes_at(tops: list[int], lefts: list[int], size: int = 3) -> torch.Tensor:
    """Boxes (n 4) of patches whose rows and columns begin at these pixels, row by row."""
    each = [(-y, -x, y + size, x + size) for y, x in itertools.product(tops, lefts)]
    return torch.tensor(each)


def centres_at(rows: list[Any], columns: list[Any]) -> torch.Tensor:
    return torch.tensor(list(itertools.product(rows, columns)), dtype=torch.float64)


def whole_image(n: int) -> torch.Tensor:
    """Boxes of tokens that were each made of the whole image."""
    return torch.tensor([[0, 0, 34, 34]]).repeat(n, 1)


AS_THEY_CAME = list(range(35))
SORTED = [1, 0, *range(2, 35)]  # by their centres: two of them came in another order


def test_boxes_that_go_down_and_to_the_right_are_a_grid() -> None:
    boxes = boxes_at([0, 2, 7, 9, 11], [0, 5, 6, 8, 11, 13, 17])  # in whatever steps
    grid, patch = grid_of(boxes, torch.zeros(35, 2), SORTED)
    assert grid == GRID
    assert patch == (4, 4)
    boxes[:7, 0], boxes[-7:, 2] = -1, 13  # cut by the edge of the image
    assert grid_of(boxes, torch.zeros(35, 2), SORTED) == (GRID, (4, 4))
    boxes[14:21, 2] += 1  # a whole row inside is larger
    assert grid_of(boxes, torch.zeros(35, 2), SORTED) == (GRID, None)


@pytest.mark.parametrize("order", ["columns swapped", "rows swapped", "upside down"])
def test_boxes_in_another_order_are_none(order: str) -> None:
    tops, lefts = [0, 2, 7, 9, 11], [0, 5, 6, 8, 11, 13, 17]
    if order == "columns swapped":
        lefts[2:4] = 8, 6
    elif order == "rows swapped":
        tops[:2] = 2, 0
    else:
        tops.reverse()
    boxes = boxes_at(tops, lefts)
    assert grid_of(boxes, torch.zeros(35, 2), AS_THEY_CAME) == (None, None)


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_centres_of_wide_boxes_tell_where_they_are_in_even_steps(noise: float) -> None:
    torch.manual_seed(0)
    even = centres_at([3.0, 5, 8, 11, 13], [2.0, 4, 7, 10, 13, 16, 17.5])
    even += noise * torch.rand_like(even)
    assert grid_of(whole_image(35), even, SORTED) == (GRID, None)
    assert rows_apart(even) == (GRID, list(range(35)))


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize("axis", [0, 1])
def test_centres_that_almost_fall_together_tell_no_other_order(axis: int, noise: float) -> None:
    """As behind the windows of a halo network. Where the network's own order is the same, it counts."""
    torch.manual_seed(0)
    lines = [[3.0, 5, 8, 11, 13], [2.0, 4, 7, 10, 13, 16, 19]]
    lines[axis][2] = lines[axis][1] + 0.4  # the median of all steps is 2 in rows, 3 in columns
    near = centres_at(*lines)
    near += noise * torch.rand_like(near)
    assert grid_of(whole_image(35), near, AS_THEY_CAME) == (GRID, None)
    assert grid_of(whole_image(35), near, SORTED) == (None, None)


def product_by_lists(spots: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> Any:
    """How many rows and columns there are, by all pairs of those that occur."""
    tops, lefts = (list(dict.fromkeys(spot[axis] for spot in spots)) for axis in (0, 1))
    whole = spots and list(itertools.product(tops, lefts)) == spots
    return (len(tops), len(lefts)) if whole else None


@pytest.mark.parametrize("seed", range(7))
def test_a_product_is_all_pairs_of_rows_and_columns_in_order(seed: int) -> None:
    torch.manual_seed(seed)
    found = set()
    for h, w in ((1, 1), (1, 5), (5, 1), (2, 3), (3, 7)):
        tops, lefts = (torch.randperm(11)[:size].tolist() for size in (h, w))
        spots: list[Any] = [((y, y % 2), (x, 3)) for y, x in itertools.product(tops, lefts)]
        several = [spots, spots[::-1], spots[1:], spots[:1] * 6, spots + spots[:w], spots * 2]
        several += [[(x, y) for y, x in spots], sorted(spots), sorted(spots, key=lambda s: s[::-1])]
        swapped = list(spots)
        swapped[0], swapped[-1] = swapped[-1], swapped[0]
        repeated = [(spots[i // 2][0], spots[i % len(spots)][1]) for i in range(2 * len(spots))]
        for each in (*several, swapped, repeated):
            rows, columns = (
                torch.tensor([spot[axis] for spot in each]).view(-1, 2) for axis in (0, 1)
            )
            expected = product_by_lists(each)
            assert product_of(rows, columns) == expected
            found.add(expected is None)
    assert found == {True, False}
    assert product_of(torch.empty(0, 2), torch.empty(0, 2)) is None
