"""Figures of scores: what must be exact is checked on pixels, the rest is looked at."""

import numpy as np
import pytest

from vision_attn.render.figures import BLUE, RED
from vision_attn.render.scores import Curves, Ranked, best_and_worst, outlined, small_curves

PHOTO = np.full((64, 96, 3), 120, np.uint8)


def panel(title: str, height: float) -> Curves:
    return Curves(title, {"deletion": np.full(5, height), "insertion": np.full(5, 1 - height)}, "n")


def of_colour(picture: np.ndarray, colour: str) -> np.ndarray:
    rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return (picture == rgb).all(-1)


def test_every_method_has_a_small_figure_on_one_scale() -> None:
    panels = [panel(f"Method{i} $x^2$", 0.2) for i in range(5)]
    picture = small_curves(panels, panels[:1], "Title", "share")
    height, width = picture.shape[:2]
    for column in range(4):
        part = picture[: height // 2, column * width // 4 : (column + 1) * width // 4]
        assert of_colour(part, RED).any()
        assert of_colour(part, BLUE).any()
        red, blue = (np.nonzero(of_colour(part, c))[0].mean() for c in (RED, BLUE))
        assert red > blue  # 0.2 lies below 0.8
    named = small_curves(panels[:1], [], "Title", "", ["intact", "head", "b.1", "b.0", "stem"])
    assert named.shape[0] > 300
    with pytest.raises(ValueError, match="at least one method, got none"):
        small_curves([], [], "Title", "x")


def test_best_and_worst_hold_the_pictures_side_by_side() -> None:
    good, bad = PHOTO.copy(), PHOTO.copy()
    good[:], bad[:] = (0, 255, 0), (255, 0, 255)
    rows = [Ranked(f"Method{i}", "mean .5", [(good, "a")] * 3, [(bad, "b")] * 3) for i in range(2)]
    sheet = best_and_worst(rows, "Title", side=96)
    for colour in ((0, 255, 0), (255, 0, 255)):
        assert (sheet == colour).all(-1).sum() == 2 * 3 * 64 * 96
    greens, magentas = (
        np.nonzero((sheet == colour).all(-1))[1] for colour in ((0, 255, 0), (255, 0, 255))
    )
    assert greens.max() < magentas.min()
    with pytest.raises(ValueError, match="at least one method, got none"):
        best_and_worst([], "Title")


def test_an_outline_follows_the_mask() -> None:
    mask = np.zeros((8, 12), bool)
    mask[2:6, 3:9] = True
    drawn = outlined(PHOTO, mask, colours=[(255, 0, 0)])
    changed = (drawn != PHOTO).any(-1)
    ys, xs = np.nonzero(changed)
    assert abs(ys.min() - 16) <= 3
    assert abs(ys.max() - 47) <= 3
    assert abs(xs.min() - 24) <= 3
    assert abs(xs.max() - 71) <= 3
    assert not changed[24:40, 32:64].any()
    assert (PHOTO == 120).all()
    assert (outlined(PHOTO, np.zeros((8, 12), bool)) == PHOTO).all()
