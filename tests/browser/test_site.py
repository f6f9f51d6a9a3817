"""The documentation from the disk in a browser: search, colours, narrow screens, no request."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.xdist_group("site")]

PAGES = [
    "index.html",
    "start/first-photo.html",
    "howto/explain.html",
    "howto/index.html",
    "large_data.html",
    "learn/02-scores.html",
    "reference/commands.html",
    "reference/evaluate.html",
    "reference/methods.html",
    "reference/methods/Rollout.html",
    "reference/functions/explain.html",
    "results.html",
    "models.html",
    "lab/journal.html",
    "lab/journal/rollout_time.html",
    "learn/04-first-heatmap.html",
    "learn/07-self-attention.html",
    "learn/08-heads.html",
    "howto/methods.html",
    "howto/recipes.html",
    "learn/10-vit.html",
    "learn/12-which-map.html",
    "notebooks/03_scores_and_normalisers.html",
    "notebooks/06_which_heatmap_to_trust.html",
    "ja/index.html",
    "ja/learn/04-first-heatmap.html",
    "ja/glossary.html",
    "ja/howto/explain.html",
    "zh/learn/09-gates.html",
    "zh/trust.html",
]


@pytest.fixture
def visit(browser: Browser, site: Path) -> Iterator[Callable[..., Any]]:
    """Opens a page of the site; in the end there was no complaint and no request to elsewhere."""
    contexts, complaints, requests = [], [], []

    def open_page(name: str, width: int = 1300, scheme: str = "light") -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=cast(Any, scheme),
            reduced_motion="reduce",
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"{error.message} {error.stack}"))
        page.on("request", lambda request: requests.append(request.url))
        page.goto((site / name).as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file://", "data:", "blob:"))] == []


def test_search_works_from_the_disk(visit: Callable[..., Any]) -> None:
    page = visit("index.html")
    page.get_by_role("textbox", name="Search").first.click()
    page.keyboard.type("sparsemax")
    first = page.locator(".md-search-result__link").first
    first.wait_for(timeout=20_000)
    assert "sparsemax" in page.locator(".md-search-result__list").inner_text().lower()
    first.click()
    page.wait_for_load_state()
    assert not page.url.endswith("index.html")


@pytest.mark.parametrize(
    ("language", "word", "page"),
    [("ja", "自己注意", "07-self"), ("ja", "レジスター", "12-which"), ("zh", "归一化", "04-first")],
)
def test_search_finds_words_of_another_language(
    visit: Callable[..., Any], language: str, word: str, page: Page
) -> None:
    shown = visit(f"{language}/index.html")
    shown.locator("input.md-search__input").click()
    shown.keyboard.insert_text(word)
    shown.keyboard.press("End")  # the theme listens to keys
    shown.locator(".md-search-result__link").first.wait_for(timeout=20_000)
    links = shown.locator(".md-search-result__link").evaluate_all("all => all.map(a => a.href)")
    assert any(f"/{language}/learn/{page}" in link for link in links)
    assert not any("/ja/howto/" in link or "/zh/howto/" in link for link in links)


def test_the_language_is_switched_on_the_page_and_a_page_without_translation_says_so(
    visit: Callable[..., Any],
) -> None:
    page = visit("learn/05-memory.html")
    page.locator(".md-header__option .md-icon").last.hover()
    page.locator(".md-select__link", has_text="日本語").click()
    page.wait_for_url("**/ja/learn/05-memory.html")
    assert page.locator("html").get_attribute("lang") == "ja"
    assert page.locator("#ask-again").inner_text().startswith("もう一度尋ねる")
    assert page.locator('[data-play="hops"] .slider label').first.inner_text() == "見る回数"
    english = visit("zh/howto/explain.html")
    assert english.locator("article").get_attribute("lang") == "en"
    assert english.locator("p.only").inner_text() == "本页为英文。"


def test_of_an_example_with_prompts_what_is_typed_is_copied(visit: Callable[..., Any]) -> None:
    page = visit("reference/methods/Rollout.html")
    example = page.locator("pre", has_text=">>> import torch").locator("code")
    assert "torch.Size([2, 2, 2])" in example.inner_text()
    copied = example.evaluate(
        "code => { code.setAttribute('data-md-copying', ''); return code.innerText }"
    )
    assert copied.startswith("import torch\nfrom vision_attn.methods import Rollout\n")
    assert ">>>" not in copied
    assert "torch.Size" not in copied


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_its_screen_with_its_pictures_and_axe_finds_nothing_serious(
    visit: Callable[..., Any], name: str, scheme: str
) -> None:
    width = {"light": 1300, "dark": 400}[scheme]
    page = visit(name, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    broken = "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
    assert page.evaluate(broken) == []
    slate = page.evaluate("document.body.getAttribute('data-md-color-scheme')")
    assert slate == {"light": "default", "dark": "slate"}[scheme]
    page.evaluate(AXE_SCRIPT)
    # Pages in frames have tests of their own; axe cannot speak with them from the disk.
    report = page.evaluate("axe.run({preload: false, iframes: false, resultTypes: ['violations']})")
    found = [
        (finding["id"], finding["nodes"][0]["html"], finding["nodes"][0]["failureSummary"])
        for finding in report["violations"]
        if finding["impact"] in ("serious", "critical")
    ]
    assert found == []


def test_keras_is_chosen_once_for_all_code_and_axe_finds_nothing_serious_in_it(
    visit: Callable[..., Any],
) -> None:
    page = visit("learn/02-scores.html", 400)
    assert page.get_by_text("layers.Dense(dim, use_bias=False)").count() == 1
    assert not page.get_by_text("def dot_product").is_visible()
    page.locator("label", has_text="Keras 3").first.click()
    page.locator("summary", has_text="Concat").click()  # of the second block: it has changed, too
    assert page.get_by_text("def dot_product").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.evaluate(AXE_SCRIPT)
    report = page.evaluate("axe.run({preload: false, iframes: false, resultTypes: ['violations']})")
    serious = [one for one in report["violations"] if one["impact"] in ("serious", "critical")]
    assert serious == []
