"""Tabs of features in a browser: what is shown is what Python computes, by mouse, key and link."""

from typing import Any

import numpy as np
import pytest
import torch
from axe_playwright_python.base import AXE_SCRIPT

from vision_attn.pages.inspect import Features, Inspection, ShownMap
from vision_attn.pages.inspect.encoding import with_components, with_nearest
from vision_attn.runs.patches import components_of
from vision_attn.runs.similarity import PhotoSimilarity

from .conftest import settle

pytestmark = pytest.mark.browser

RNG = np.random.default_rng(0)
PHOTO = RNG.integers(0, 256, size=(30, 40, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
GRIDS = (11, 13), (5, 7)
WIDTHS = 17, 19


def vectors(grid: tuple[int, int], width: int) -> np.ndarray:
    """Features with a direction that all share, and an object whose numbers vary more."""
    found = 1 + RNG.normal(size=(*grid, width))
    found[1:-2, 2:-1] += 3 + 2 * RNG.normal(size=(grid[0] - 3, grid[1] - 3, width))
    return found.astype("f4")


def inspection(image: str = "a.png", model: str = "an encoder", **parts: Any) -> Inspection:
    features = [
        Features(f"blocks.{at}", vectors(grid, width))
        for at, (grid, width) in enumerate(zip(GRIDS, WIDTHS, strict=True))
    ]
    return Inspection(
        **{
            **{"model": model, "image": image, "photo": PHOTO, "box": (0.1, 0.0, 0.9, 1.0)},
            **{"features": features, "no_click": "It has no attention"},
            **parts,
        }
    )


@pytest.fixture
def shown() -> list[Inspection]:
    return with_components([inspection(), inspection("b.png"), inspection("b.png", "another")])


def of_grid(features: Features) -> torch.Tensor:
    return torch.from_numpy(features.vectors).double().movedim(-1, 0)


def cosines(query: Features, row: int, column: int, keys: Any) -> np.ndarray:
    one, each = query.vectors[row, column].astype("f8"), keys.vectors.astype("f8")
    return each @ one / np.linalg.norm(each, axis=-1) / np.linalg.norm(one)


def map_of(page: Any, which: str) -> np.ndarray:
    values, grid = page.evaluate(f"[[...{which}.map.values], {which}.map.grid]")
    return np.reshape(values, grid)


def click_patch(page: Any, row: int, column: int, grid: tuple[int, int]) -> None:
    stage = page.locator(".stage").first
    size = stage.bounding_box()
    x, y = 0.1 + (column + 0.5) / grid[1] * 0.8, (row + 0.5) / grid[0]
    stage.click(position={"x": x * size["width"], "y": y * size["height"]})
    settle(page)


def test_a_click_shows_the_cosines_here_and_in_the_other_photo(
    show: Any, shown: list[Inspection]
) -> None:
    page = show(shown)
    assert page.locator("[role=tab]").all_inner_texts() == [
        *("Similarity", "Components", "Two photos")
    ]
    assert "Click the photo to see which places are like" in page.inner_text(".hint")
    first, second = (one.features[1] for one in shown[:2])
    click_patch(page, 3, 5, GRIDS[1])
    expected = cosines(first, 3, 5, first)
    np.testing.assert_allclose(map_of(page, "views[0].scene"), expected, atol=0.01)
    np.testing.assert_allclose(
        map_of(page, "views[0].there"), cosines(first, 3, 5, second), atol=0.01
    )
    assert page.evaluate("views[0].scene.place") == [3, 5]
    expected[3, 5] = -2
    best = np.unravel_index(expected.argmax(), expected.shape)
    assert f"row {best[0]}, column {best[1]}" in page.inner_text(".readout")
    assert page.locator(".other option").count() == 1  # the other model's photo is none
    page.locator(".strip button").first.click()
    settle(page)
    here = map_of(page, "views[0].scene")
    row, column = page.evaluate("views[0].scene.place")
    layer = shown[0].features[0]
    np.testing.assert_allclose(here, cosines(layer, row, column, layer), atol=0.01)
    assert "Layer blocks.0" in page.inner_text(".readout")


def test_two_photos_are_shared_out_and_a_click_shows_one_row(
    show: Any, shown: list[Inspection]
) -> None:
    page = show(shown, "tab=pair")
    for at in (1, 0):
        page.locator(".strip button").nth(at).click()
        page.get_by_role("button", name="All patches").click()
        settle(page)
        first, second = (one.features[at] for one in shown[:2])
        exact = PhotoSimilarity.of(of_grid(first), of_grid(second))
        for where, values in zip(("scene", "there"), exact.maps, strict=True):
            found = map_of(page, f"views[0].{where}")
            np.testing.assert_allclose(found, values, atol=0.01 * float(values.abs().max()))
        assert f"cosine {exact.cosine:.3g}"[:11] in page.inner_text(".readout")
        assert page.evaluate("views[0].scene.place") is None
        row, column = 2, 4
        click_patch(page, row, column, first.grid)
        place = ((column + 0.5) / first.grid[1], (row + 0.5) / first.grid[0])
        values = exact.row(place)
        np.testing.assert_allclose(
            map_of(page, "views[0].there"), values, atol=0.01 * float(values.abs().max())
        )
        assert page.evaluate("views[0].scene.place") == [row, column]
        pressed = page.get_by_role("button", name="The patch asked").get_attribute("aria-pressed")
        assert pressed == "true"
        total = map_of(page, "views[0].there").sum()
        assert total == pytest.approx(float(exact.maps[0][row, column]), abs=0.01)


def test_the_other_photos_are_listed_the_nearest_first(show: Any) -> None:
    names = ["a.png", "b.png", "c.png", "d.png"]
    shown = with_nearest([*map(inspection, names), inspection("e.png", "another")])
    page = show(shown, "tab=pair")
    for at in (0, 1):
        page.locator(".strip button").nth(at).click()
        settle(page)
        grids = [of_grid(one.features[at]) for one in shown[:4]]
        exact: dict[str, float] = {
            n: PhotoSimilarity.of(grids[0], g).cosine for n, g in zip(names, grids, strict=True)
        }
        order = sorted(names[1:], key=exact.__getitem__, reverse=True)
        said = page.locator(".other option").all_inner_texts()
        assert [line.partition(" ")[0] for line in said] == order
        found = [float(line.partition("(")[2].rstrip(")")) for line in said]
        np.testing.assert_allclose(found, [exact[name] for name in order], atol=1e-3)
    last: dict[str, float] = {
        n: PhotoSimilarity.of(grids[0], g).cosine for n, g in zip(names, grids, strict=True)
    }
    nearest = max(names[1:], key=last.__getitem__)
    assert page.inner_text(".other figcaption").startswith(f"{nearest}. ")


def test_components_are_the_colours_of_all_photos_together(
    show: Any, shown: list[Inspection]
) -> None:
    page = show(shown, "tab=components")
    for at, layer in enumerate(shown[0].features):
        features = torch.stack([of_grid(one.features[at]) for one in shown[:2]])
        found = components_of(features, split_background=True)
        rows, columns = layer.grid
        pixels = page.evaluate(
            f"""[...document.querySelectorAll(".strip canvas")[{at}].getContext("2d")
            .getImageData(0, 0, {columns}, {rows}).data]"""
        )
        pixels = np.reshape(pixels, (rows, columns, 4))
        np.testing.assert_array_equal(pixels[..., :3], np.rint(255 * found.colors()[0]))
        assert (pixels[..., 3] == 255).all()
    background = 1 - float(found.foreground[0].double().mean())
    assert f"{background:.0%}".replace("%", "\u00a0%") in page.inner_text(".readout")
    assert page.locator(".bar").is_hidden()
    assert not page.locator(".stage.asks").count()


def test_keys_and_links_lead_to_the_same(show: Any, shown: list[Inspection]) -> None:
    page = show(shown, "tab=similar&query=0.5,0.3")
    page.locator(".stage").focus()
    page.keyboard.press("ArrowDown")
    settle(page)
    row, column = page.evaluate("views[0].scene.place")
    layer = shown[0].features[1]
    expected = cosines(layer, row, column, layer)
    np.testing.assert_allclose(map_of(page, "views[0].scene"), expected, atol=0.01)
    page.keyboard.press("[")
    settle(page)
    assert "Layer blocks.0" in page.inner_text(".readout")
    page.keyboard.press("]")
    page.keyboard.press("]")
    for title in ("principal components", "what adds to", "cosine with"):
        page.keyboard.press("t")
        settle(page)
        assert title in page.inner_text(".readout strong")
    page.evaluate("changeView(0, { tab: 'pair', feature: 0, row: 1 })")
    settle(page)
    values = map_of(page, "views[0].there")
    link = page.evaluate("linkOf(state)")
    again = show(shown, link)
    np.testing.assert_array_equal(map_of(again, "views[0].there"), values)


def test_side_by_side_each_photo_is_the_others_other(show: Any, shown: list[Inspection]) -> None:
    page = show(shown, "tab=similar&item=0&item2=1&tab2=pair&row2=1&query=0.3,0.3")
    first, second = (one.features[1] for one in shown[:2])
    place = page.evaluate("views[0].scene.place")
    np.testing.assert_allclose(
        map_of(page, "views[0].there"), cosines(first, place[0], place[1], second), atol=0.01
    )
    row = PhotoSimilarity.of(of_grid(second), of_grid(first)).row(
        ((place[1] + 0.5) / 7, (place[0] + 0.5) / 5)
    )
    found = map_of(page, "views[1].there")
    np.testing.assert_allclose(found, row, atol=0.01 * float(row.abs().max()))


def test_tabs_are_there_where_they_apply(show: Any) -> None:
    heatmap = ShownMap("Rollout", RNG.random((4, 4)))
    page = show([inspection(features=[], maps=[heatmap])])
    assert page.locator(".tabs").is_hidden()
    assert "Nothing to click here. It has no attention." in page.inner_text(".hint")
    few = Features("pool", RNG.normal(size=(1, 3, 5)).astype("f4"))
    page = show(with_components([inspection(features=[few], maps=[heatmap])]))
    assert page.locator("[role=tab]").all_inner_texts() == ["Similarity", "Methods"]
    assert page.locator(".other").is_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_narrow_screen_and_can_be_read(
    show: Any, shown: list[Inspection], scheme: str
) -> None:
    page = show(shown, color_scheme=scheme, viewport={"width": 400, "height": 860})
    page.evaluate(AXE_SCRIPT)
    found = []
    for tab in ("similar", "components", "pair"):
        page.evaluate(f"changeView(0, {{ tab: '{tab}' }})")
        settle(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        found += [
            (tab, finding["id"], finding["nodes"][0]["failureSummary"])
            for finding in page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
            if finding["impact"] in ("serious", "critical")
        ]
    assert found == []
