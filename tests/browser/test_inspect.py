"""The page in a browser: what is shown is what Python computes, by mouse, by key and by link."""

import base64
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from axe_playwright_python.base import AXE_SCRIPT
from PIL import Image

from vision_attn.pages.inspect import (
    Inspection,
    Prediction,
    QueryKeys,
    ShownChannelGate,
    ShownMap,
    ShownSpatialGate,
    Weights,
)
from vision_attn.render import ColorMap, Dim, overlay, times_uniform

from .conftest import link_of, settle

pytestmark = pytest.mark.browser

RNG = np.random.default_rng(0)
PHOTO = RNG.integers(0, 256, size=(30, 40, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
GRID, PREFIX = (5, 7), ["class token", "register 0"]
TOKENS = len(PREFIX) + GRID[0] * GRID[1]
EVIL = "</script><script>hacked = 1</script><img src=x onerror='hacked = 1'>"


def layers(
    count: int = 3, heads: int = 2, tokens: int = TOKENS, d: int = 64, sharp: float = 2.0
) -> list[QueryKeys]:
    return [
        QueryKeys(
            str(at), *(sharp**0.5 * d**-0.25 * RNG.normal(size=(2, heads, tokens, d))).astype("f4")
        )
        for at in range(count)
    ]


def inspection(**parts: Any) -> Inspection:
    """A photo of which a window is seen, with everything that a page can show."""
    h, w = GRID
    return Inspection(
        **{
            "model": "a model",
            "image": "a.png",
            "photo": PHOTO,
            "box": (0.1, 0.0, 0.9, 1.0),
            "predictions": [Prediction(3, "cat", 0.7), Prediction(5, "dog", 0.2)],
            "grid": GRID,
            "prefix": PREFIX,
            "layers": layers(),
            "maps": [
                ShownMap(
                    "Rollout",
                    RNG.random((h, w)) / h / w,
                    prefix_mass=0.5,
                    unit="× uniform",
                    factor=float(h * w),
                ),
                ShownMap("Rollout(fusion='max')", RNG.random((h, w)), scores={"deletion": 0.25}),
                *(ShownMap("GradCAM", RNG.normal(size=(4, 4)), target=target) for target in (3, 5)),
            ],
            "gates": [
                ShownChannelGate("se", RNG.random(16), where=RNG.normal(size=(3, 3))),
                ShownSpatialGate("mask", RNG.random((6, 6))),
            ],
            **parts,
        }
    )


def softmax(scores: Any) -> Any:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def weights_of(shown: Inspection, layer: int, head: int, token: int) -> np.ndarray:
    """The exact map of one head, and of all for head -1."""
    shown_layer = shown.layers[layer]
    assert isinstance(shown_layer, QueryKeys)
    q, k = (array.astype(np.float64) for array in (shown_layer.q, shown_layer.k))
    rows = [softmax(q[h, token] @ k[h].T) for h in range(len(q))]
    row = np.mean(rows, axis=0) if head < 0 else rows[head]
    return row[len(shown.prefix) :].reshape(shown.grid)


def shown_map(page: Any, view: int = 0) -> np.ndarray:
    """The values on the screen."""
    values, grid = page.evaluate(
        f"[[...views[{view}].scene.map.values], views[{view}].scene.map.grid]"
    )
    return np.reshape(values, grid)


def read(picture: bytes) -> Image.Image:
    return Image.open(io.BytesIO(picture))


def click_patch(
    page: Any,
    row: int,
    column: int,
    grid: tuple[int, int] = GRID,
    box: tuple[float, float, float, float] = (0.1, 0.0, 0.9, 1.0),
) -> None:
    stage = page.locator(".stage").first
    size = stage.bounding_box()
    x = box[0] + (column + 0.5) / grid[1] * (box[2] - box[0])
    y = box[1] + (row + 0.5) / grid[0] * (box[3] - box[1])
    stage.click(position={"x": x * size["width"], "y": y * size["height"]})
    settle(page)


def assert_shown(page: Any, shown: Inspection, layer: int, head: int, token: int) -> None:
    exact = weights_of(shown, layer, head, token)
    assert np.abs(shown_map(page) - exact).max() <= 0.01 * exact.max()


def test_a_click_shows_the_attention_of_that_patch(show: Any) -> None:
    shown = inspection()
    page = show([shown])
    for row, column in [(0, 0), (4, 6), (2, 3)]:
        click_patch(page, row, column)
        assert_shown(page, shown, 1, -1, 2 + row * 7 + column)
    assert "row 2, column 3" in page.inner_text(".readout")
    exact = weights_of(shown, 1, -1, 2 + 2 * 7 + 3)
    assert f"{exact.max() * 35:.3g} × uniform" in page.inner_text(".readout")


def test_dragging_follows_and_what_was_not_seen_cannot_be_asked(show: Any) -> None:
    shown = inspection()
    page = show([shown])
    click_patch(page, 2, 3)
    size = page.locator(".stage").bounding_box()
    page.mouse.move(size["x"] + size["width"] / 2, size["y"] + size["height"] / 2)
    page.mouse.down()
    page.mouse.move(size["x"] + size["width"] * 0.85, size["y"] + 10, steps=5)
    settle(page)
    assert_shown(page, shown, 1, -1, 2 + 6)
    page.mouse.move(size["x"] + size["width"] * 0.95, size["y"] + 200)
    page.mouse.up()
    settle(page)
    assert_shown(page, shown, 1, -1, 2 + 6)


def test_several_queries_are_held_at_once(show: Any) -> None:
    shown = inspection()
    page = show([shown])
    tokens = [2 + row * 7 + column for row, column in [(0, 0), (4, 6), (2, 3)]]
    mean = lambda: np.mean([weights_of(shown, 1, -1, token) for token in tokens], axis=0)  # noqa: E731
    click_patch(page, 0, 0)
    page.keyboard.down("Shift")
    click_patch(page, 4, 6)
    click_patch(page, 2, 3)
    page.keyboard.up("Shift")
    assert np.abs(shown_map(page) - mean()).max() <= 0.01 * mean().max()
    assert "row 2, column 3 · and 2 held, their mean" in page.inner_text(".readout")
    page.locator(".stage").focus()
    page.keyboard.press("h")
    page.keyboard.press("ArrowRight")
    settle(page)
    tokens.append(2 + 2 * 7 + 4)
    assert np.abs(shown_map(page) - mean()).max() <= 0.01 * mean().max()
    again = show([shown], link_of(page))
    np.testing.assert_allclose(shown_map(again), shown_map(page), rtol=1e-6)
    click_patch(page, 1, 1)
    assert_shown(page, shown, 1, -1, 2 + 8)


def test_touch_asks_too(show: Any) -> None:
    shown = inspection()
    page = show([shown], has_touch=True, viewport={"width": 390, "height": 844})
    stage = page.locator(".stage")
    size = stage.bounding_box()
    stage.tap(position={"x": size["width"] * 0.15, "y": size["height"] * 0.9})
    settle(page)
    assert_shown(page, shown, 1, -1, 2 + 4 * 7)


def test_layers_and_heads_by_mouse(show: Any) -> None:
    shown = inspection()
    page = show([shown])
    click_patch(page, 1, 1)
    page.locator("[role=gridcell][data-layer='2'][data-head='1']").click()
    settle(page)
    assert_shown(page, shown, 2, 1, 2 + 8)
    assert page.inner_text(".readout strong") == "Layer 2 · head 1"
    page.get_by_role("button", name="register 0").click()
    settle(page)
    assert_shown(page, shown, 2, 1, 1)
    page.get_by_role("button", name="Entropy").click()
    page.locator("circle.everywhere[data-layer='0'][data-head='0']").dispatch_event(
        "click", {"bubbles": True}
    )
    settle(page)
    assert_shown(page, shown, 0, 0, 1)


def test_everything_by_keyboard(show: Any) -> None:
    shown = inspection()
    page = show([shown])
    page.locator(".stage").focus()
    for key in ["ArrowUp", "ArrowUp", "ArrowRight"]:
        page.keyboard.press(key)
        settle(page)
    assert_shown(page, shown, 1, -1, 2 + 0 * 7 + 4)
    page.keyboard.press("]")
    settle(page)
    page.keyboard.press(".")
    settle(page)
    assert_shown(page, shown, 2, 0, 2 + 4)
    page.keyboard.press("m")
    page.keyboard.press("c")
    settle(page)
    assert_shown(page, shown, 2, -1, 0)
    page.locator("[role=gridcell][tabindex='0']").focus()
    page.keyboard.press("ArrowUp")
    settle(page)
    page.keyboard.press("ArrowRight")
    settle(page)
    assert_shown(page, shown, 1, 0, 0)
    page.locator("[name=layer]").focus()
    page.keyboard.press("Home")
    settle(page)
    assert_shown(page, shown, 0, 0, 0)
    page.get_by_role("tab", name="Attention").focus()
    page.keyboard.press("ArrowRight")
    settle(page)
    assert page.evaluate("document.activeElement.textContent") == "Methods"
    page.keyboard.press("?")
    assert page.locator("dialog").is_visible()
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="hidden")


def test_the_link_restores_what_was_seen(show: Any) -> None:
    shown = [inspection(image="a.png"), inspection(image="b.png")]
    page = show(shown)
    click_patch(page, 3, 5)
    page.locator("[role=gridcell][data-layer='2'][data-head='0']").click()
    page.select_option("[name=colours]", "viridis")
    page.select_option("[name=style]", "dim")
    page.select_option("[name=scale]", "fixed")
    page.uncheck("[name=smooth]")
    page.get_by_role("button", name="Compare").click()
    settle(page)
    page.locator(".view").nth(1).get_by_role("tab", name="Methods").click()
    page.locator(".view").nth(1).get_by_role("button", name="GradCAM").click()
    page.locator(".view").nth(1).get_by_role("button", name="dog").click()
    settle(page)
    before = page.evaluate("JSON.stringify(state)")
    link = link_of(page)
    again = show(shown, link)
    assert again.evaluate("JSON.stringify(state)") == before
    np.testing.assert_allclose(shown_map(again), shown_map(page))
    np.testing.assert_allclose(shown_map(again, 1), shown[1].maps[3].values, rtol=1e-6)


def test_a_wrong_link_does_no_harm(show: Any) -> None:
    link = "layer=99&head=foo&tab=nothing&method=%3Cimg%3E&class=-1&query=7,NaN&token=5&item=9"
    page = show(
        [inspection()], link + "&colours=x&item2=0&tab2=methods&top=x&opacity=1e9&chart=constructor"
    )
    assert page.locator(".view").count() == 2
    assert page.inner_text(".readout strong >> nth=0") == "Layer 2 · mean of heads"


def test_methods_classes_and_gates(show: Any) -> None:
    shown = inspection()
    page = show([shown])
    page.get_by_role("tab", name="Methods").click()
    settle(page)
    np.testing.assert_allclose(shown_map(page), shown.maps[0].values, rtol=1e-6)
    assert "off the photo 50\u00a0%" in page.inner_text(".readout")
    page.get_by_role("button", name="fusion='max'").click()
    settle(page)
    np.testing.assert_allclose(shown_map(page), shown.maps[1].values, rtol=1e-6)
    assert "deletion 0.25" in page.inner_text(".readout")
    page.get_by_role("button", name="GradCAM").click()
    settle(page)
    page.get_by_role("button", name="dog").click()
    settle(page)
    np.testing.assert_allclose(shown_map(page), shown.maps[3].values, rtol=1e-6)
    page.get_by_role("tab", name="Gates").click()
    settle(page)
    gate: Any = shown.gates[0]
    np.testing.assert_allclose(shown_map(page), gate.where, rtol=1e-6)
    order = np.argsort(-shown.gates[0].values)
    assert f"most open {', '.join(map(str, order[:5]))}" in page.inner_text(".readout")
    page.get_by_role("button", name="mask").click()
    settle(page)
    np.testing.assert_allclose(shown_map(page), shown.gates[1].values, rtol=1e-6)


def test_networks_without_attention_and_attention_without_a_formula(show: Any) -> None:
    weights = RNG.random((2, 12, 12)).astype(np.float32)
    rows = inspection(grid=(3, 4), prefix=(), layers=[Weights("0", weights)], maps=(), gates=())
    page = show([rows], "layer=0&head=1&query=0.15,0.1")
    assert np.abs(shown_map(page) - weights[1, 0].reshape(3, 4)).max() <= 0.005
    assert not page.locator(".tabs").is_visible()
    page = show([inspection(layers=(), prefix=(), grid=(1, 1))])
    assert page.locator("[role=tab]").all_inner_texts() == ["Methods", "Gates"]


@pytest.mark.parametrize("style", ["colour", "dim"])
def test_the_picture_is_the_one_that_render_paints(show: Any, style: str) -> None:
    photo = np.asarray(Image.fromarray(PHOTO).resize((60, 48)).resize((640, 480)))
    shown = inspection(photo=photo, box=(0.0, 0.0, 1.0, 1.0))
    page = show([shown], f"tab=methods&style={style}")
    png = page.evaluate(
        """() => {
          const canvas = make("canvas", { width: 640, height: 480 });
          drawPhoto(canvas.getContext("2d"), 640, 480, views[0].scene);
          return canvas.toDataURL().split(",")[1];
        }"""
    )
    drawn = np.asarray(read(base64.b64decode(png)).convert("RGB")).astype(int)
    values = shown.maps[0].values.astype(np.float32)
    how = ColorMap("inferno", 0.9) if style == "colour" else Dim(0.1)
    wanted = overlay(photo, values, style=how, scale=times_uniform(values)).astype(int)
    assert np.abs(drawn - wanted).mean() < 4  # of 255: the photo went through JPEG


def test_names_are_shown_as_they_are(show: Any) -> None:
    named = inspection(
        model=EVIL,
        image=EVIL,
        predictions=[Prediction(3, EVIL, 0.5)],
        prefix=[EVIL, EVIL],
        layers=[QueryKeys(EVIL, one.q, one.k) for one in layers()],
        maps=[
            ShownMap(EVIL, RNG.random((4, 4)), about=EVIL, unit=EVIL, scores={EVIL: 1.0}, target=3)
        ],
        gates=[ShownChannelGate(EVIL, RNG.random(3)), ShownSpatialGate(EVIL, RNG.random((3, 3)))],
        notes=[EVIL],
        unlike=EVIL,
    )
    page = show([named, named])
    for chart in ("maps", "entropy"):
        for tab in ("attention", "methods", "gates"):
            page.evaluate(
                f"change({{ chart: '{chart}' }}); changeView(0, {{ tab: '{tab}', gate: 1 }})"
            )
            settle(page)
            assert page.locator("img").count() == 0
            assert EVIL in page.inner_text(".predictions")
    assert page.inner_text("h1") == EVIL
    assert page.evaluate("typeof hacked") == "undefined"


@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_never_scrolls_sideways(show: Any, width: int) -> None:
    wide = inspection(layers=layers(12, 12), image="a-very-long-name-without-a-break" * 3 + ".png")
    page = show([wide, inspection()], viewport={"width": width, "height": 844})
    page.get_by_role("button", name="Compare").click()
    for chart in ("maps", "distance"):
        for tab in ("attention", "methods", "gates"):
            page.evaluate(f"change({{ chart: '{chart}' }}); changeView(0, {{ tab: '{tab}' }})")
            settle(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_view_is_saved_as_a_picture(show: Any) -> None:
    page = show([inspection(), inspection(image="b.png")])
    page.get_by_role("button", name="Compare").click()
    settle(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Save PNG").click()
    assert (
        download.value.suggested_filename
        == "a.png_Layer_1_mean_of_heads_and_b.png_Layer_1_mean_of_heads.png"
    )
    picture = read(download.value.path().read_bytes())
    assert picture.format == "PNG"
    assert picture.width > 2 * 1024


def test_large_attention_is_a_small_file_that_opens_and_answers_at_once(show: Any) -> None:
    box = (0.0, 0.0, 1.0, 1.0)
    shown = inspection(grid=(14, 14), prefix=["cls"], layers=layers(12, 12, 197), box=box)
    page = show([shown])
    assert len(page.content()) < 8e6
    seconds = cpu_seconds(page)
    page.reload()
    page.wait_for_selector("html[data-ready]")
    to_open = seconds()
    seconds = cpu_seconds(page, *OWN_WORK)
    before = seconds()
    for column in range(14):
        click_patch(page, 7, column, (14, 14), box)
    page.wait_for_timeout(300)  # until the link is written
    an_answer = (seconds() - before) / 14
    marks = "performance.getEntriesByName('render', 'measure').map((one) => one.duration)"
    best = min(page.evaluate(marks))
    print(
        f"{to_open:.2f} s of work to open, {1000 * an_answer:.1f} ms an answer, "
        f"the fastest in {best:.1f} ms"
    )
    assert to_open < 2
    assert an_answer < 0.05
    assert best < 50  # as others may use the machine too
    assert_shown(page, shown, 7, -1, 1 + 7 * 14 + 13)


# What the page itself computes, and lays out for that: all but the browser's painting.
OWN_WORK = "ScriptDuration", "LayoutDuration", "RecalcStyleDuration"


def cpu_seconds(page: Any, *kinds: str) -> Callable[[], float]:
    """What the page's thread has worked, however many others the machine works for.

    kinds: of work, all of it unless given.
    """
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})

    def read() -> float:
        metrics = devtools.send("Performance.getMetrics")["metrics"]
        kept = kinds or ("TaskDuration",)
        return sum(one["value"] for one in metrics if one["name"] in kept)

    return read


def test_the_scale_is_the_quantile_that_numpy_has(show: Any) -> None:
    page = show([inspection()])
    for count in (1, 2, 3, 7, 101, 196, 5003):
        drawn = RNG.normal(size=count).astype(np.float32)
        for values in (drawn, np.sort(drawn), -np.sort(np.abs(drawn)), np.round(drawn)):
            found = page.evaluate(
                "(values) => quantile(Float32Array.from(values), 0.99)", values.tolist()
            )
            wanted = np.quantile(np.abs(values).astype(np.float64), 0.99)
            assert found == pytest.approx(wanted, rel=1e-12)
    nothing = "{ values: new Float32Array(5), inside: new Uint8Array(5), factor: 0, unit: UNIFORM }"
    assert page.evaluate(f"scaleOf({nothing}).top") == 3  # where every patch was left out


def test_what_is_chosen_and_how_it_is_coloured_reach_the_small_maps(show: Any) -> None:
    page = show([inspection()])
    cells = "[...document.querySelectorAll('.overview canvas')].map((one) => one.toDataURL())"
    seen = [page.evaluate(cells)]
    for step, changes in [
        ("changeView(0, { layer: 2, head: 1 })", False),
        ("changeLook({ opacity: 0.5 })", False),
        ("changeLook({ colours: 'viridis' })", True),
        ("changeLook({ scale: 'fixed', top: 20 })", True),
        ("changeLook({ top: 50 })", True),
        ("changeQuery([0.2, 0.9])", True),
        ("hold()", False),
        ("changeQuery([0.7, 0.1], state.query.held)", True),
    ]:
        page.evaluate(step)
        settle(page)
        seen.append(page.evaluate(cells))
        assert (seen[-1] != seen[-2]) == changes, step
    chosen = page.locator(".overview [aria-selected=true]")
    assert chosen.count() == 1
    assert chosen.get_attribute("aria-label") == "layer 2, head 1"
    assert page.locator(".overview [tabindex='0']").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_finding_of_accessibility(show: Any, scheme: str) -> None:
    page = show([inspection(), inspection(image="b.png")], color_scheme=scheme)
    page.evaluate(AXE_SCRIPT)
    found = []
    for step in (
        "changeView(0, { tab: 'attention' })",
        "change({ chart: 'entropy' })",
        "changeView(0, { tab: 'methods', method: 'GradCAM' })",
        "changeView(0, { tab: 'gates' })",
        "compare()",
        "KEYS['?']()",
    ):
        page.evaluate(step)
        settle(page)
        found += [
            (
                step,
                finding["id"],
                finding["nodes"][0]["html"],
                finding["nodes"][0]["failureSummary"],
            )
            for finding in page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
            if finding["impact"] in ("serious", "critical")
        ]
    assert found == []


def test_in_a_notebook_it_is_a_frame_that_works(show: Any) -> None:
    from vision_attn.pages.inspect import Page

    shown = inspection()
    outer = show(f"<!DOCTYPE html><title>notebook</title>{Page.of([shown])._repr_html_()}")
    outer.wait_for_timeout(100)
    frame = outer.frames[1]
    frame.wait_for_selector("html[data-ready]")
    frame.get_by_role("tab", name="Methods").click()
    settle(frame)
    assert frame.evaluate("views[0].tab") == "methods"
    with outer.expect_download() as download:
        frame.get_by_role("button", name="Save PNG").click()
    picture = read(download.value.path().read_bytes())
    assert picture.format == "PNG"
    outer.wait_for_timeout(200)  # until the link would have been written


def test_a_baseline_is_marked_zero_has_no_sign_and_random_weights_are_named(show: Any) -> None:
    values = RNG.random(GRID).astype("f4")
    maps = [
        ShownMap("Rollout", values, prefix_mass=-1e-9),
        ShownMap("EdgeMap", values, baseline=True),
        ShownMap("LeGrad", values, passed=True, about="Passed."),
    ]
    page = show([inspection(maps=maps, warning="Random weights: untrained")], "tab=methods")
    assert page.inner_text("header .warning") == "Random weights: untrained"
    assert "off the photo 0.0\u00a0%" in page.inner_text(".readout")
    page.get_by_role("button", name="EdgeMap").click()
    settle(page)
    assert page.inner_text(".readout strong") == "EdgeMap (baseline)"
    cards = [text.replace("\u200b", "") for text in page.locator(".cards button").all_inner_texts()]
    assert cards == ["Rollout", "EdgeMap (baseline)", "LeGrad\npassed"]
    assert page.locator(".cards .badge").get_attribute("title") == "Passed."


def test_what_is_hidden_is_drawn_once_it_is_seen(show: Any) -> None:
    page = show([inspection(), inspection(image="b.png")])
    page.get_by_role("button", name="Compare").click()
    settle(page)
    picture = "document.querySelector('.stage canvas').toDataURL()"
    half = page.evaluate(picture)
    page.get_by_role("button", name="Compare").click()
    settle(page)
    assert page.locator(".view").count() == 1
    whole = page.evaluate(picture)
    assert whole != half
    page.evaluate("document.querySelector('main').hidden = true")
    settle(page)
    page.evaluate("changeQuery([0.2, 0.1])")
    settle(page)
    page.evaluate("document.querySelector('main').hidden = false")
    settle(page)
    assert page.evaluate(picture) not in (whole, half)
    page.evaluate(f"changeQuery({[0.5, 0.5]})")
    settle(page)
    assert page.evaluate(picture) == whole
