"""Pictures, sheets and figures: what must be exact is checked on pixels, the rest is looked at."""

import warnings
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from PIL import Image, ImageDraw

from vision_attn.render import (
    ColorMap,
    Dim,
    Panel,
    Scale,
    channel_gates,
    confusion_matrix,
    enlarged,
    heads_overview,
    heatmap_grid,
    learning_curve_panels,
    learning_curves,
    mark,
    save,
    shrunk,
    with_caption,
    with_colorbar,
)
from vision_attn.render.fonts import fitted, pil_font, printable
from vision_attn.render.picture import _number, bar, ticks
from vision_attn.types import Calibration

rng = np.random.default_rng(0)
PHOTO = rng.integers(0, 256, (331, 473, 3), dtype=np.uint8)
NASTY = "日本語 $x^2$ \\frac{ \n\t \x00 <b> 🦊 \udcff" + "long " * 40


def test_small_photos_are_enlarged_by_a_whole_factor() -> None:
    tiny = PHOTO[:32, :64]
    assert (enlarged(tiny)[::5, ::5] == tiny).all()
    assert enlarged(tiny).shape == (160, 320, 3)
    assert enlarged(PHOTO).shape == PHOTO.shape
    assert enlarged(PHOTO[:1, :1]).shape == (320, 320, 3)


@pytest.mark.parametrize("shape", [(331, 473), (1, 40), (7, 470), (320, 60), (1200, 300)])
def test_a_caption_stands_below_the_picture(shape: tuple[int, int]) -> None:
    picture = rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
    whole = with_caption(picture, "Random weights: this model has not been trained")
    assert (whole[: shape[0]] == picture).all()
    assert whole.shape[1] == shape[1]
    strip = whole[shape[0] :]
    assert strip.shape[0] > 12
    assert (strip == (180, 60, 9)).all(axis=2).any()
    assert (strip[:, 0] == 255).all()
    assert (strip[-1] == 255).all()
    assert with_caption(picture, "") is picture


def test_a_narrow_picture_has_its_caption_on_several_lines() -> None:
    wide, narrow = (with_caption(PHOTO[:, :width], "some words to read") for width in (473, 90))
    assert narrow.shape[0] > wide.shape[0]


def test_ticks_have_no_minus_zero() -> None:
    assert [_number(value) for value in (-0.0, 0.0, -0.25)] == ["0", "0", "\N{MINUS SIGN}0.25"]


@pytest.mark.parametrize("shape", [(331, 473), (1, 1), (7, 470), (320, 3), (1200, 300)])
def test_the_colorbar_stands_beside_the_picture(shape: tuple[int, int]) -> None:
    picture = rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
    whole = with_colorbar(picture, ColorMap(), Scale(4.3, "× uniform"))
    assert (whole[: shape[0], : shape[1]] == picture).all()
    assert whole.shape[1] > shape[1]
    assert (whole[0, shape[1] :] == 255).all()


def test_the_bar_runs_from_low_to_top() -> None:
    ends = bar(ColorMap(opacity=1.0), Scale(3.0), 101, 2)[0][[0, 100]]
    assert (ends[0] == 112).all()
    assert (ends[1] == np.rint(255 * np.array(matplotlib.colormaps["inferno"](1.0)[:3]))).all()
    signed = bar(Dim(0.0), Scale(3.0, signed=True), 101, 1)[0]
    assert (signed[:51] == 0).all()
    assert (signed[100] == 112).all()


def test_ticks_are_round_and_inside() -> None:
    assert [text for _, text in ticks(Scale(4.3))] == ["0", "1", "2", "3", "4"]
    assert [text for _, text in ticks(Scale(2.0, signed=True))] == ["−2", "−1", "0", "1", "2"]
    assert ticks(Scale(6e-7))[-1][1] == "6e−7"
    assert all(abs(value) <= 3.1e8 for value, _ in ticks(Scale(3e8, signed=True)))


def test_a_mark_is_where_the_query_is() -> None:
    marked = mark(PHOTO, 0.25, 0.5)
    ys, xs = np.nonzero((marked != PHOTO).any(-1))
    assert abs(xs.mean() - 0.25 * 473) < 1
    assert abs(ys.mean() - 0.5 * 331) < 1
    assert np.ptp(ys) < 40
    for x, y in ((0.0, 0.0), (1.0, 1.0)):
        assert mark(PHOTO[:1, :1], x, y).shape == (1, 1, 3)


def test_pictures_come_back_from_the_disk(tmp_path: Path) -> None:
    save(PHOTO, tmp_path / "a.png")
    assert (np.asarray(Image.open(tmp_path / "a.png")) == PHOTO).all()
    assert shrunk(PHOTO, 100).shape == (70, 100, 3)
    assert shrunk(PHOTO, 1000) is PHOTO
    assert shrunk(PHOTO[:, :1], 10).shape == (10, 1, 3)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_grid_holds_every_panel(count: int) -> None:
    colours = [(40 * n + 5, 7, 9) for n in range(count)]
    scales: list[Any] = [(), (Scale(2.0), ColorMap())] * count
    panels = [
        Panel(f"p{n}", np.full((90, 150, 3), colour, np.uint8), "note", *scale)
        for n, (colour, scale) in enumerate(zip(colours, scales, strict=False))
    ]
    sheet = heatmap_grid(panels, title="a photo.png")
    for colour in colours:
        assert (sheet == colour).all(-1).sum() == 400 * 240
    assert sheet.shape[1] == 24 + min(count, 5) * 424


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_grid_shows_every_word_of_its_warning(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    draws = ImageDraw.ImageDraw.text
    monkeypatch.setattr(
        ImageDraw.ImageDraw,
        "text",
        lambda self, at, text, *rest, **more: (
            drawn.append((*at, text)),
            draws(self, at, text, *rest, **more),
        ),
    )
    warning = Calibration(threshold=0.6621).unlike(0.5437)
    sheet = heatmap_grid([Panel("photo", PHOTO)] * count, "photo.jpg", warning=warning)
    lines = [(x, y, text) for x, y, text in drawn if text not in ("photo", "photo.jpg", "")]
    assert " ".join(text for *_, text in lines) == warning
    room = sheet.shape[1] - 24
    assert all(x + pil_font(t, 16, True).getlength(t) <= room for x, _, t in lines)
    panel = next(y for _, y, text in drawn if text == "photo")
    assert max(y for _, y, _ in lines) + 16 < panel


def test_heads_share_a_scale() -> None:
    maps = np.full((2, 3, 5, 7), 1 / 35, np.float32)
    maps[1, 2, 4, 6] = 0.5
    sheet = heads_overview(maps, PHOTO, "ViT, photo.png")
    plain = heads_overview(maps)
    assert sheet.shape == plain.shape
    tiles = plain[120 : 120 + 86, 72 : 72 + 120], plain[120 : 120 + 86, 198 : 198 + 120]
    assert (tiles[0] == tiles[1]).all()


def test_any_text_is_drawn_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        heatmap_grid([Panel(NASTY, PHOTO, NASTY)], title=NASTY)
        confusion_matrix(np.eye(2, dtype=int), [NASTY, "b"])
        channel_gates({NASTY: np.ones(3, np.float32)}, NASTY)
    assert "\n" not in printable(NASTY)
    assert len(printable(NASTY, 30)) == 30
    assert pil_font(fitted(NASTY, 16, 200), 16).getlength(fitted(NASTY, 16, 200)) <= 200
    assert fitted("short", 16, 200) == "short"


CSV = """epoch,step,train/loss_step,train/loss_epoch,val/loss,val/top1,test/top1,lr-AdamW
0,3,2.5,,,,,0.1
0,7,,2.1,1.9,0.25,,
1,11,,1.5,1.2,0.5,,
1,12,,,,,0.45,
"""


def test_learning_curves_read_what_lightning_writes(tmp_path: Path) -> None:
    from vision_attn.render.figures import _read_curves

    path = tmp_path / "metrics.csv"
    path.write_text(CSV)
    assert _read_curves(path) == {
        "loss": {"train": {1: 2.1, 2: 1.5}, "val": {1: 1.9, 2: 1.2}},
        "top1": {"val": {1: 0.25, 2: 0.5}},
    }
    assert learning_curves(path).shape[1] > 1000
    panels = learning_curve_panels(path)
    assert list(panels) == ["loss", "top-1 accuracy"]
    assert {picture.shape for picture in panels.values()} == {(480, 630, 3)}
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"metrics\.csv: expected columns such as train/loss"):
        learning_curves(path)
    with pytest.raises(ValueError, match=r"metrics\.csv: expected columns such as train/loss"):
        learning_curve_panels(path)


def test_figures_leave_matplotlib_as_it_was() -> None:
    before = dict(matplotlib.rcParams)
    assert confusion_matrix(rng.integers(0, 9, (100, 100)), [str(n) for n in range(100)]).ndim == 3
    assert confusion_matrix(np.zeros((1, 1), int), ["none"]).ndim == 3
    assert channel_gates({"a": rng.random(2048).astype(np.float32)}).dtype == np.uint8
    assert dict(matplotlib.rcParams) == before


def test_figure_errors() -> None:
    with pytest.raises(ValueError, match="expected 3 x 3 counts for 3 classes, got \\(2, 2\\)"):
        confusion_matrix(np.eye(2, dtype=int), ["a", "b", "c"])
    with pytest.raises(ValueError, match="at least one layer"):
        channel_gates({})
    with pytest.raises(ValueError, match="at least one panel"):
        heatmap_grid([])
