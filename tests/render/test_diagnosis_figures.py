"""Figures of a diagnosis or an ablation: colours say what intervals allow, nothing is cut."""

from typing import Any

import numpy as np
import pytest

from vision_attn import render


def colours_inside(picture: np.ndarray) -> np.ndarray:
    """The colours of the picture that are no shade of grey, (n 3)."""
    pixels = picture.reshape(-1, 3).astype(int)
    return pixels[np.ptp(pixels, axis=1) > 40]


def grid_of(values: list[Any], low: list[Any], high: list[Any]) -> np.ndarray:
    """The cells' half of the picture, left of the colour bar."""
    picture = render.number_grid(np.array(values), "Worth", ends=(np.array(low), np.array(high)))
    return picture[:, : int(0.7 * picture.shape[1])]


def test_only_numbers_whose_interval_leaves_0_out_have_a_colour() -> None:
    nothing = grid_of([[0.4, -0.3]], [[-0.1, -0.5]], [[0.9, 0.1]])
    assert len(colours_inside(nothing)) == 0
    red = colours_inside(grid_of([[0.4, -0.3]], [[0.1, -0.5]], [[0.9, 0.1]]))
    assert (red[:, 0] > red[:, 2]).mean() > 0.95
    blue = colours_inside(grid_of([[0.4, -0.3]], [[-0.1, -0.5]], [[0.9, -0.1]]))
    assert (blue[:, 0] < blue[:, 2]).mean() > 0.95


@pytest.mark.parametrize("columns", [1, 3, 12])
def test_a_long_title_is_broken_into_lines_and_not_cut(columns: int) -> None:
    title = "Attention on patches with outlying norms, a title that is far too long for it"
    with_title = render.number_grid(np.ones((2, columns)), title)
    edge = with_title[:, -4:]
    assert (edge == 255).all()
    shorter = render.number_grid(np.ones((2, columns)), "Short")
    assert with_title.shape[1] == shorter.shape[1]


def test_intervals_that_end_at_the_number_are_drawn() -> None:
    """Rounding puts an end of Wilson's interval a hair inside of the share 1."""
    line = [(1.0, 0.8, 1.0 - 1e-16), None, (0.0, 1e-17, 0.2)]
    assert render.interval_curves([0, 3, 7], {"a": line, "b": line}, "Accuracy").ndim == 3
