"""Overlays and scales against the formula, pixel by pixel.

Axes: H, W the photo's height and width, h, w the map's.
"""

import tracemalloc
from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from vision_attn.render import ColorMap, Dim, Scale, Style, colored, fit, overlay, times_uniform

rng = np.random.default_rng(0)
PHOTO = rng.integers(0, 256, (31, 47, 3), dtype=np.uint8)
STYLES = (ColorMap(), ColorMap("viridis", 0.5), Dim(), Dim(0.0))


def fitted(
    photo: np.ndarray | Image.Image | np.ndarray, heatmap: Any, style: Style | None = None
) -> np.ndarray:
    """The overlay in the map's own scale."""
    values = heatmap.detach().float().numpy() if isinstance(heatmap, torch.Tensor) else heatmap
    return overlay(photo, heatmap, style=style, scale=fit(values))


def ramp(low: float, high: float) -> np.ndarray:
    return np.linspace(low, high, 31 * 47, dtype=np.float32).reshape(31, 47)


def test_color_map_is_the_formula_per_pixel() -> None:
    heat = ramp(0, 1)
    got = overlay(PHOTO, heat, style=ColorMap("magma", 0.8), scale=Scale(1.0))
    for y, x in ((0, 0), (7, 13), (19, 5), (30, 46)):
        t = heat[y, x]
        colour = 255 * np.array(matplotlib.colormaps["magma"](round(float(t) * 255) / 255)[:3])
        want = PHOTO[y, x] + 0.8 * t * (colour - PHOTO[y, x])
        assert np.abs(got[y, x] - want).max() <= 0.501


def test_dim_is_the_formula_per_pixel() -> None:
    heat = ramp(0, 1)
    got = overlay(PHOTO, heat, style=Dim(0.3), scale=Scale(1.0))
    assert np.abs(got - PHOTO * (0.3 + 0.7 * heat[..., None])).max() <= 0.501


def test_the_photo_is_untouched_where_nothing_is_to_be_shown() -> None:
    assert (fitted(PHOTO, np.zeros((3, 5), np.float32)) == PHOTO).all()
    half = np.zeros((31, 47), np.float32)
    half[:, 23:] = 1
    got = fitted(PHOTO, half, style=ColorMap())
    assert (got[:, :23] == PHOTO[:, :23]).all()
    assert (got[:, 23:] != PHOTO[:, 23:]).any()
    assert (fitted(PHOTO, half, style=Dim())[:, 23:] == PHOTO[:, 23:]).all()


def test_full_color_is_exactly_at_the_top_of_the_scale() -> None:
    white = np.full((1, 4, 3), 255, np.uint8)
    got = overlay(
        white, np.array([[0.0, 1.0, 2.0, 9.0]], np.float32), style=ColorMap("inferno", 1.0),
        scale=Scale(2.0),
    )  # fmt: skip
    full = np.rint(255 * np.array(matplotlib.colormaps["inferno"](1.0)[:3]))
    assert (got[0, 0] == 255).all()
    assert (got[0, 2] == full).all()
    assert (got[0, 3] == full).all()
    assert (got[0, 1] != full).any()


def test_negative_values_are_blue_and_need_a_signed_scale() -> None:
    values = np.array([[-1.0, 0.0, 1.0]], np.float32)
    grey = np.full((1, 3, 3), 128, np.uint8)
    red, green, blue = fitted(grey, values, style=ColorMap(opacity=1.0))[0, 0]
    assert blue > 200
    assert max(red, green) < 100
    assert (fitted(grey, values)[0, 1] == 128).all()
    assert (overlay(grey, values, scale=Scale(1.0))[0, 0] == 128).all()
    assert (fitted(grey, values, style=Dim(0.5))[0] == [[64], [64], [128]]).all()


@pytest.mark.parametrize("style", STYLES)
def test_a_constant_map_is_flat(style: Style) -> None:
    for value in (1e-9, 0.2, 37.0):
        grey = np.full((31, 47, 3), 90, np.uint8)
        jitter = rng.normal(0, value * 1e-4, (7, 11))
        got = fitted(grey, (value + jitter).astype(np.float32), style=style)
        assert np.ptp(got.reshape(-1, 3).astype(int), axis=0).max() <= 1


def test_even_attention_stays_pale() -> None:
    even = np.full((7, 11), 1 / 77, np.float32) * rng.uniform(0.9, 1.1, (7, 11)).astype(np.float32)
    heat = times_uniform(even).heat(even)
    assert 0.29 < heat.min() < heat.max() < 0.37


@pytest.mark.parametrize("style", STYLES)
def test_unknown_pixels_are_grey_and_the_others_as_without_them(style: Style) -> None:
    heat = ramp(0, 1)
    gaps = heat.copy()
    gaps[:, :9], gaps[3, 20], gaps[4, 20] = np.nan, np.inf, -np.inf
    got, whole = (overlay(PHOTO, m, style=style, scale=Scale(1.0)) for m in (gaps, heat))
    known = np.isfinite(gaps)
    assert (got[known] == whole[known]).all()
    assert (got[~known] == got[~known][:, :1]).all()
    assert (fitted(PHOTO, np.full((5, 3), np.nan, np.float32), style=style)[0, 0, 0]) > 60


def test_a_map_is_resized_as_heatmaps_are() -> None:
    small = torch.rand(1, 1, 5, 7)
    large = F.interpolate(small, size=(31, 47), mode="bilinear", align_corners=False)
    scale = Scale(1.0)
    ours, theirs = (overlay(PHOTO, m[0, 0], scale=scale) for m in (small, large))
    assert np.abs(ours.astype(int) - theirs).max() <= 1


def test_a_photo_may_be_a_pil_image_and_a_map_any_float() -> None:
    image = Image.fromarray(PHOTO).convert("RGBA")
    heat = ramp(0, 1)
    want = fitted(PHOTO, heat)
    for same in (heat.astype(np.float64), torch.from_numpy(heat)):
        assert (fitted(image, same) == want).all()
    half = fitted(image, torch.from_numpy(heat).bfloat16().requires_grad_())
    assert np.abs(half.astype(int) - want).max() <= 6


def test_one_pixel_and_more_map_than_photo() -> None:
    assert fitted(PHOTO[:1, :1], np.ones((1, 1), np.float32)).shape == (1, 1, 3)
    assert fitted(PHOTO, rng.random((100, 200)).astype(np.float32)).shape == PHOTO.shape


def test_twenty_megapixels_take_little_memory() -> None:
    photo = np.zeros((4000, 5000, 3), np.uint8)
    heat = rng.random((14, 14)).astype(np.float32)
    tracemalloc.start()
    fitted(photo, heat)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 400e6


def test_a_scale_must_be_given() -> None:
    with pytest.raises(TypeError, match="scale"):
        overlay(PHOTO, ramp(0, 1))  # type: ignore[call-arg]


def test_fit_is_the_99th_percentile_and_starts_at_zero() -> None:
    values = np.arange(1, 102, dtype=np.float32).reshape(1, 101)
    assert fit(values) == Scale(top=100.0)
    assert fit(-values) == Scale(top=100.0, signed=True)
    assert fit(-values).low == -100
    assert fit(values).low == 0
    values[0, 0] = np.nan
    assert np.isfinite(fit(values).top)


def test_fit_of_nothing() -> None:
    assert fit(np.zeros((3, 5), np.float32)) == Scale(1.0)
    assert fit(np.full((3, 5), np.nan, np.float32)) == Scale(1.0)
    lonely = np.zeros((40, 40), np.float32)
    lonely[3, 5] = 2.0
    assert fit(lonely) == Scale(2.0)


def test_times_uniform_counts_cells() -> None:
    attention = np.zeros((7, 11), np.float32)
    attention[2] = 1 / 11
    scale = times_uniform(attention)
    assert scale.factor == 77
    assert scale.unit == "× uniform"
    assert scale.top == pytest.approx(7)
    assert scale.heat(attention).max() == pytest.approx(1)
    assert times_uniform(np.full((7, 11), 1 / 77, np.float32)).top == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Scale(0.0), "top must be a finite number above 0, got 0.0"),
        (lambda: Scale(float("nan")), "finite"),
        (lambda: ColorMap("infern"), "unknown colour map 'infern'.*inferno"),
        (lambda: ColorMap(opacity=0.0), "opacity must be above 0 and at most 1, got 0.0"),
        (lambda: Dim(1.0), "floor must be at least 0 and below 1, got 1.0"),
        (lambda: fitted(PHOTO, np.zeros((0, 5), np.float32)), r"empty.*\(0, 5\)"),
    ],
)
def test_errors(make: Callable[..., Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_colours_of_their_own_are_laid_over_and_what_is_unseen_is_grey() -> None:
    rng = np.random.default_rng(0)
    photo = rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    colors = rng.random((5, 7, 3))
    colors[2, 3, 1] = np.nan
    painted = colored(photo, colors)
    expected = 0.15 * photo + 0.85 * 255 * colors
    rest = np.isfinite(colors).all(-1)
    np.testing.assert_allclose(painted[rest], expected[rest], atol=0.5001)
    assert len(set(painted[2, 3].tolist())) == 1
