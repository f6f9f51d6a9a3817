"""What the pages of Learn compute in the browser is what the classes compute in float64."""

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, Page
from torch import Tensor

from vision_attn import attention as attn
from vision_attn import methods
from vision_attn.evaluate import Deletion, FilledCells, MeanFill

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("play")]

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT = (DOCS / "assets/play.js").read_text(encoding="utf-8")
WIDGETS = [
    "additive",
    "scores",
    "window",
    "normaliser",
    "hops",
    "hierarchy",
    "coattention",
    "matrix",
    "selfattention",
    "heads",
    "gates",
    "patches",
    "rollout",
    "sinks",
    "lies",
]
ASK = """<div class="ask" data-right="2"><ul><li>a sixth</li><li>half</li></ul>
<details><summary>Why</summary>Because.</details></div>"""
RNG = np.random.default_rng(0)


@cache
def story() -> ModuleType:
    """docs/story.py as a module."""
    spec = importlib.util.spec_from_file_location("story", DOCS / "story.py")
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["story"] = module
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


@cache
def told() -> dict[str, Any]:
    return json.loads(story().script().partition("=")[2].rstrip(";\n"))


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    """A page with every widget, and nothing that complains."""
    boards = "".join(f'<div class="play" data-play="{name}"></div>' for name in WIDGETS)
    complaints: list[str] = []
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(error.message))
    style = (DOCS / "assets/site.css").read_text(encoding="utf-8")
    page.set_content(
        f'<html lang="en"><title>t</title><style>{style}</style><main><h1>h</h1>{ASK}{boards}</main>'
    )
    page.add_script_tag(content=story().script())
    page.add_script_tag(content=SCRIPT)
    yield page
    context.close()
    assert complaints == []


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(found: Any, wanted: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(tensor(found), wanted.detach().double(), rtol=0, atol=atol)


def numbers(*shape: int) -> list[Any]:
    return RNG.normal(size=shape).tolist()


@pytest.mark.parametrize("temperature", [0.5, 1, 3])
@pytest.mark.parametrize("name", ["Softmax", "Entmax15", "Sparsemax", "Hard", "Sigmoid"])
def test_a_normaliser_is_the_class(page: Page, name: str, temperature: float) -> None:
    scores = numbers(11)
    found = page.evaluate("a => play.normalise(...a)", [name, scores, temperature])
    given = tensor(scores) / temperature
    close(found, getattr(attn, name)()(given))
    if name == "Softmax":
        close(found, attn.Softmax(temperature)(tensor(scores)))


def learned(name: str) -> attn.Score:
    """The class with the weights of the story."""
    own = told()
    options = {"Location": {"positions": 6}, "Additive": {"hidden_dim": 8, "bias": True}}
    options["KeyOnly"] = {"hidden_dim": 4}
    module = getattr(attn, name)(head_dim=4, **options.get(name, {})).double()
    weights = {
        "General": {"query_proj.weight": [own["general"]]},
        "Location": {"query_proj.weight": [np.transpose(own["location"])]},
        "Additive": {
            "query_proj.weight": [np.transpose(own["additive"]["query"])],
            "query_proj.bias": [[own["additive"]["bias"]]],
            "key_proj.weight": [np.transpose(own["additive"]["key"])],
            "energy.weight": np.array(own["additive"]["energy"])[None, :, None],
        },
        "KeyOnly": {
            "key_proj.weight": [np.eye(4)],
            "key_proj.bias": np.zeros((1, 1, 4)),
            "energy.weight": np.array([1, 1, 1, 2])[None, :, None],
        },
    }
    named: Any = weights.get(name, {})
    state = {key: tensor(np.array(value)) for key, value in named.items()}
    if state:
        module.load_state_dict(state)
    return module


@pytest.mark.parametrize(
    "name", ["Dot", "ScaledDot", "CosineSimilarity", "General", "Additive", "Location", "KeyOnly"]
)
def test_a_score_is_the_class(page: Page, name: str) -> None:
    q, k = numbers(4), numbers(6, 4)
    given = {**told(), "keyOnly": {"energy": [1, 1, 1, 2]}}
    found = page.evaluate("a => play.score(...a)", [name, q, k, given])
    close(found, learned(name)(tensor(q)[None, None, None], tensor(k)[None, None])[0, 0, 0])


def test_a_last_state_is_the_recurrence(page: Page) -> None:
    found = page.evaluate("play.lastState(7, 0.3)")
    inputs = torch.eye(7, dtype=torch.float64)
    state = torch.zeros(7, dtype=torch.float64)
    for x in inputs:
        state = 0.3 * state + 0.7 * x
    close(found, state)


@pytest.mark.parametrize("radius", [1, 2, 5])
def test_a_window_is_the_class(page: Page, radius: int) -> None:
    q, k = tensor(numbers(1, 1, 1, 4)), tensor(numbers(1, 1, 11, 4))
    score = attn.ScaledDot(head_dim=4)
    window = attn.LocalPredictive(head_dim=4, radius=radius).double()
    centre = float(window.centre(q, 11).detach())
    scores = score(q, k)[0, 0, 0].tolist()
    found = page.evaluate("a => play.windowed(...a)", [scores, centre, radius, radius / 2])
    close(found, attn.Attend(score, window=window).weights(q, k)[0, 0, 0])
    queries = tensor(numbers(1, 1, 11, 4))
    monotonic = attn.Attend(score, window=attn.LocalMonotonic(radius=radius))
    scores = score(queries, k)[0, 0, 3].tolist()
    found = page.evaluate("a => play.windowed(...a)", [scores, 3, radius])
    close(found, monotonic.weights(queries, k)[0, 0, 3])


@pytest.mark.parametrize("update", ["sum", "context"])
def test_hops_are_the_class(page: Page, update: str) -> None:
    facts, q = numbers(5, 4), numbers(4)
    found = page.evaluate("a => play.hops(...a)", [q, facts, facts, 3, update])
    kind = attn.SumUpdate if update == "sum" else attn.LinearUpdate
    hops = attn.MemoryHops(dim=4, hops=3, score=attn.ScaledDot, update=kind).double()
    for name, parameter in hops.named_parameters():
        if name.endswith("proj.weight") and parameter.shape == (4, 4):
            parameter.data = torch.eye(4, dtype=torch.float64)
        elif name.endswith("bias"):
            parameter.data.zero_()
        else:
            parameter.data = torch.eye(4, 8, dtype=torch.float64).roll(4, 1)
    wanted = hops.weights(tensor(q)[None, None], tensor(facts)[None])[0, :, 0]
    close([look["weights"] for look in found], wanted)


def test_a_hierarchy_is_the_class(page: Page) -> None:
    groups, energy = numbers(3, 2, 4), numbers(4)
    found = page.evaluate("a => play.hierarchy(...a)", [groups, energy])
    module = attn.Hierarchical(dim=4).double()
    for pool in (module.inside, module.across):
        score = next(part for part in pool.modules() if isinstance(part, attn.KeyOnly))
        score.key_proj.weight.data = torch.eye(4, dtype=torch.float64)[None]
        assert score.key_proj.bias is not None
        score.key_proj.bias.data = torch.zeros(1, 1, 4, dtype=torch.float64)
        score.energy.weight.data = tensor(energy)[None, :, None]
    inside, across = module.weights(tensor(groups)[None])
    close(found["inside"], inside[0])
    close(found["across"], across[0])


@pytest.mark.parametrize(
    "name", ["MaxPoolCoAttention", "AttentionOverAttention", "InteractiveAttention"]
)
def test_a_co_attention_is_the_class(page: Page, name: str) -> None:
    q, k = numbers(3, 4), numbers(7, 4)
    found = page.evaluate("a => play.coAttention(...a)", [name, q, k])
    options = {} if name == "MaxPoolCoAttention" else {"score": attn.ScaledDot}
    module = getattr(attn, name)(4, **options).double()
    if not options:
        module.affinity.weight.data = torch.eye(4, dtype=torch.float64) / 2
    for side, wanted in zip(found, module.weights(tensor(q)[None], tensor(k)[None]), strict=True):
        close(side, wanted[0])


@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_is_the_class(page: Page, causal: bool) -> None:
    x = numbers(7, 4)
    found = page.evaluate("a => play.selfAttention(...a)", [x, {"causal": causal}])
    mask = attn.causal_mask(7)[None, None] if causal else None
    given = tensor(x)[None, None]
    close(found, attn.Attend(attn.ScaledDot(head_dim=4)).weights(given, given, mask)[0, 0])


@pytest.mark.parametrize("reduction", [1, 3])
@pytest.mark.parametrize("name", ["squeezeExcite", "channelGate"])
def test_a_channel_gate_is_the_class(page: Page, name: str, reduction: int) -> None:
    x, mlp = numbers(3, 35), told()["squeeze"][str(reduction)]
    found = page.evaluate(f"a => play.{name}(...a)", [x, mlp])
    kind = attn.SqueezeExcite if name == "squeezeExcite" else attn.ChannelGate
    gate = kind(3, reduction=reduction).double()
    for layer, weight in ((gate.fc1, mlp["fc1"]), (gate.fc2, mlp["fc2"])):
        layer.weight.data = tensor(weight)[..., None, None]
        if layer.bias is not None:
            layer.bias.data.zero_()
    close(found, gate.gate(tensor(x).view(1, 3, 5, 7))[0, :, 0, 0])


def test_a_spatial_gate_is_the_class(page: Page) -> None:
    x, kernel = numbers(3, 35), numbers(2, 3, 3)
    found = page.evaluate("a => play.spatialGate(...a)", [x, kernel, 7])
    gate = attn.SpatialGate(3, kernel_size=3).double()
    gate.conv.weight.data = tensor(kernel)[None]
    close(found, gate.gate(tensor(x).view(1, 3, 5, 7))[0, 0].flatten())


def test_a_register_is_one_more_key(page: Page) -> None:
    scores = numbers(5)
    close(
        page.evaluate("a => play.withRegister(a, 1.5)", scores), tensor([*scores, 1.5]).softmax(0)
    )


@pytest.mark.parametrize("alpha", [0.0, 0.35, 0.5, 0.95])
def test_rollout_is_the_method(page: Page, alpha: float) -> None:
    """A byte a weight: the map moves by less than a hundredth of its largest value."""
    found = page.evaluate(
        """alpha => {
             const n = story.grid[0] * story.grid[1];
             return play.rollout(play.rowsOf(story.readout, n)[0],
               story.layers.map((text) => play.rowsOf(text, n)), alpha);
           }""",
        alpha,
    )
    method = methods.Rollout(residual=alpha)
    wanted = tensor(story().model().explain(story().photo(), method)[0].values).flatten()
    close(found, wanted, atol=float(wanted.max()) / 100)


def test_a_head_is_the_networks_own(page: Page) -> None:
    """The layer whose heads the page has is the third, and its bytes are its weights."""
    found = page.evaluate("play.rowsOf(story.heads[4], 121)")
    wanted = story().attention()[2][4]
    torch.testing.assert_close(tensor(found), wanted, rtol=0, atol=float(wanted.max()) / 20)


@pytest.mark.parametrize("at", range(4))
def test_covering_the_photo_is_deletion(at: int) -> None:
    """The area under a map's shares is the metric's, by the same eleven steps."""
    own, model = told()["maps"][at], story().model()
    metric = Deletion(
        FilledCells(model.network, grid=tuple(told()["grid"]), fill=MeanFill()),
        steps=11,
        probabilities=model.calibration.probabilities,
    )
    ranks = torch.empty(121)
    ranks[own["order"]] = torch.arange(121.0, 0, -1)
    target = model.classes.index("church")
    metric.update(model.preprocess(story().photo())[None], ranks.view(1, 11, 11), target)
    torch.testing.assert_close(
        tensor(own["shares"]), metric.curves()[0].double(), rtol=0, atol=1e-3
    )


def test_what_the_pages_say_of_the_four_maps_is_so() -> None:
    """With a third covered by A, B or D the class has less than 0.05, by C 0.38, as by chance."""
    maps = told()["maps"]
    assert [one["name"] for one in maps] == ["LeGrad", "LibraGradient", "Rollout", "Relevance"]
    left = [one["shares"][4] for one in maps]
    assert all(share < 0.05 for share in left[:2] + left[3:])
    assert round(left[2], 2) == 0.38
    model, generator = story().model(), np.random.default_rng(0)
    pixels, target = model.preprocess(story().photo()), model.classes.index("church")
    chance = [
        story().one_covered("chance", values, pixels, target)["shares"]
        for values in generator.random((8, 11, 11))
    ]
    areas = [np.trapezoid(one["shares"]) for one in maps]
    assert areas[2] > np.mean([np.trapezoid(shares) for shares in chance])
    assert np.mean([np.trapezoid(shares) for shares in chance]) > max(areas[:2] + areas[3:])


def shown(page: Page, name: str, title: str) -> list[float]:
    """The numbers beside the bars of one chart."""
    chart = page.locator(f'[data-play="{name}"] .chart', has_text=title)
    return [float(text) for text in chart.locator(".number").all_inner_texts()]


def test_what_is_shown_follows_what_is_dragged(page: Page) -> None:
    board = page.locator('[data-play="normaliser"]')
    board.get_by_role("button", name="Sparsemax").click()
    board.get_by_role("button", name="grass").click()
    slider = board.get_by_role("slider", name="Temperature")
    slider.focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext") == "3.0"
    words = tensor(list(story().WORDS.values()))
    scores = (words @ words[3]) / 2 / 3
    wanted = attn.Sparsemax()(scores)
    close(shown(page, "normaliser", "asks the sentence"), wanted, atol=0.005)


def test_the_query_on_the_photo_moves_by_mouse_and_keys(page: Page) -> None:
    photo = page.locator('[data-play="selfattention"] button.photo')
    box = photo.bounding_box()
    assert box is not None
    photo.click(position={"x": box["width"] * 3.5 / 11, "y": box["height"] * 7.5 / 11})
    assert "Row 8, column 4." in (photo.get_attribute("aria-label") or "")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    assert "Row 7, column 5." in (photo.get_attribute("aria-label") or "")
    row = story().attention()[1].mean(0)[6 * 11 + 4]
    said = page.locator('[data-play="selfattention"] .said').inner_text()
    held = float(said.partition("hold ")[2].partition(" of")[0])
    assert held == pytest.approx(float(row.topk(10).values.sum()), abs=0.02)


def test_the_last_head_stays_on(page: Page) -> None:
    thumbs = page.locator('[data-play="heads"] .thumb')
    for at in range(6):
        thumbs.nth(at).click()
    on = [thumbs.nth(at).get_attribute("aria-pressed") for at in range(6)]
    assert on == ["false"] * 5 + ["true"]
    assert "1 of 6 heads on" in page.locator('[data-play="heads"] .said').inner_text()


def test_moving_the_radius_moves_sigma_and_not_the_other_way(page: Page) -> None:
    board = page.locator('[data-play="window"]')
    board.get_by_role("slider", name="D", exact=True).focus()
    page.keyboard.press("ArrowRight")
    sigma = board.get_by_role("slider", name="σ")
    assert sigma.input_value() == "1.5"
    sigma.focus()
    page.keyboard.press("ArrowRight")
    assert sigma.input_value() == "1.75"
    assert board.get_by_role("slider", name="D", exact=True).input_value() == "3"


def test_a_question_says_whether_the_answer_is_right_and_then_why(page: Page) -> None:
    ask = page.locator(".ask")
    assert not ask.locator("details").evaluate("one => one.open")
    ask.get_by_role("button", name="a sixth").click()
    assert ask.get_by_role("status").all_inner_texts() == ["Not this one.", ""]
    assert not ask.locator("details").evaluate("one => one.open")
    ask.get_by_role("button", name="half").press("Enter")
    assert ask.get_by_role("status").all_inner_texts() == ["Not this one.", "Yes."]
    assert ask.locator("details").evaluate("one => one.open")


def test_the_photo_is_covered_in_the_order_of_the_map_that_was_chosen(page: Page) -> None:
    board = page.locator('[data-play="lies"]')
    board.get_by_role("button", name="C", exact=True).click()
    board.get_by_role("slider", name="Covered").focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    assert "44 of 121 cells covered" in board.locator(".said").inner_text()
    assert "with 0.38." in board.locator(".said").inner_text()
    hidden = board.locator(".cover").evaluate_all(
        "cells => cells.flatMap((cell, i) => cell.getAttribute('fill-opacity') === '1' ? [i] : [])"
    )
    assert hidden == sorted(told()["maps"][2]["order"][:44])
    assert shown(page, "lies", "left with") == [
        round(one["shares"][4], 2) for one in told()["maps"]
    ]


@pytest.mark.parametrize("language", ["ja", "zh"])
def test_no_word_of_a_widget_is_missing_in_another_language(
    browser: Browser, language: str
) -> None:
    """Every button is pressed once, every slider moved: nothing falls back to English."""
    boards = "".join(f'<div class="play" data-play="{name}"></div>' for name in WIDGETS)
    words = (DOCS / f"words_{language}.json").read_text(encoding="utf-8")
    page = browser.new_context(reduced_motion="reduce").new_page()
    page.set_content(f'<html lang="{language}"><main>{ASK}{boards}</main>')
    page.add_script_tag(content=story().script())
    page.evaluate(
        """words => {
             globalThis.missing = [];
             globalThis.words = new Proxy(words, { get: (all, key) => all[key] ?? void missing.push(key) });
           }""",
        json.loads(words),
    )
    page.add_script_tag(content=SCRIPT)
    assert page.locator("[data-ready]").count() == len(WIDGETS)
    page.evaluate(
        """() => {
             for (const button of document.querySelectorAll("button")) button.click();
             for (const box of document.querySelectorAll("input[type=checkbox]")) box.click();
             for (const input of document.querySelectorAll("input[type=range]")) {
               input.value = input.max;
               input.dispatchEvent(new Event("input"));
             }
           }"""
    )
    assert page.evaluate("missing") == []
    said = page.locator(".said, .title, .choice > .label").all_inner_texts()
    assert [text for text in said if not re.search(r"[\u3040-\u9fff]", text)] == []
    page.context.close()


def test_every_widget_of_the_script_is_here_and_axe_finds_nothing_serious(page: Page) -> None:
    ready = page.locator("[data-ready]")
    assert ready.count() == len(WIDGETS)
    assert sorted(WIDGETS) == sorted(
        line.strip().partition("(")[0]
        for line in SCRIPT.splitlines()
        if line.startswith("    ") and line.endswith("(board) {")
    )
    page.evaluate(AXE_SCRIPT)
    report = page.evaluate("axe.run({preload: false, resultTypes: ['violations']})")
    found = [
        (finding["id"], finding["nodes"][0]["html"])
        for finding in report["violations"]
        if finding["impact"] in ("serious", "critical")
    ]
    assert found == []
