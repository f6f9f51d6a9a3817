"""A gallery in a browser: a page of photos at a time, sorted, filtered, folded, by mouse and key."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page

from vision_attn.pages import Gallery, Row, Shot, write_page
from vision_attn.render import save

pytestmark = pytest.mark.browser

CLASSES = ("tench", "church", "golf ball")
METHODS = ("Rollout", "GradCAM", "EdgeMap")
EVIL = "<img src=x onerror=alert(1)>"


def rows(count: int) -> list[Row]:
    """Photo i is of class i % 3, taken for class i % 2, more surely from photo to photo."""
    made = []
    for i in range(count):
        shots = [
            Shot(f"{j}.png", f"{j}.png", (41, 31), caption, f"{i}, {caption}")
            for j, caption in enumerate(("photo", *METHODS))
        ]
        name = f"{i}.png" if i else f"0 {EVIL}.png"
        predicted, label = CLASSES[i % 2], CLASSES[i % 3]
        made.append(Row(name, f"{predicted} {i + 1}%", shots, predicted, label, (i + 1) / 100))
    return made


@pytest.fixture
def gallery(show: Any, tmp_path: Path) -> Callable[..., Page]:
    for j, grey in enumerate((40, 90, 140, 190)):
        save(np.full((31, 41, 3), grey, np.uint8), tmp_path / f"{j}.png")

    def open_gallery(count: int, **context: Any) -> Page:
        page = write_page(tmp_path, "Where it looks", [Gallery("Photos", rows(count))])
        return show(page.read_text(encoding="utf-8"), **context)

    return open_gallery


def names(page: Page) -> list[int]:
    """The photos' numbers in the order in which they stand on the page."""
    return [int(name.split()[0].split(".")[0]) for name in page.locator("h3").all_text_contents()]


def choose(page: Page, name: str, value: str) -> None:
    page.locator(f"select[name={name}]").select_option(value)


def test_pages_of_24_photos_are_turned(gallery: Callable[..., Page]) -> None:
    page = gallery(61)
    above = page.locator(".pager.above")
    assert names(page) == [*range(24)]
    assert above.locator(".range").inner_text() == "1–24 of 61"
    assert above.locator(".back").is_disabled()
    above.locator(".on").click()
    assert names(page) == [*range(24, 48)]
    page.locator(".pager.below .on").press("Enter")
    assert names(page) == [*range(48, 61)]
    assert above.locator(".range").inner_text() == "49–61 of 61"
    assert above.locator(".on").is_disabled()
    assert page.evaluate("document.activeElement.className") == "rows"
    assert page.evaluate("document.querySelector('.gallery').getBoundingClientRect().top") >= -1


@pytest.mark.parametrize("width", [1300, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_is_a_few_screens_and_no_wider_than_its_window(
    gallery: Callable[..., Page], width: int, scheme: str
) -> None:
    page = gallery(350, viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert len(names(page)) == {1300: 24, 400: 12}[width]
    size = page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
    )
    assert size[0] <= width
    assert size[1] < 6 * 900
    lazy = page.locator("article img")
    assert {lazy.nth(i).get_attribute("loading") for i in range(8)} == {"lazy"}


def test_sorting(gallery: Callable[..., Page]) -> None:
    page = gallery(30)
    choose(page, "sort", "most")
    assert names(page) == [*range(29, 5, -1)]
    choose(page, "sort", "least")
    assert names(page) == [*range(24)]
    choose(page, "sort", "label")
    assert names(page)[:12] == [*range(1, 30, 3), 2, 5]  # church, golf ball, tench
    choose(page, "sort", "predicted")
    assert names(page)[:16] == [*range(1, 30, 2), 0]
    choose(page, "sort", "wrong")
    wrong = [i for i in range(30) if CLASSES[i % 2] != CLASSES[i % 3]]
    assert names(page)[: len(wrong)] == wrong[::-1]  # the surest mistake first
    choose(page, "sort", "name")
    assert names(page) == [*range(24)]  # 2 before 10


def test_filters_go_together_and_reset(gallery: Callable[..., Page]) -> None:
    page = gallery(60)
    choose(page, "predicted", "church")
    assert names(page) == [*range(1, 48, 2)]
    choose(page, "label", "golf ball")
    assert names(page) == [i for i in range(60) if i % 2 == 1 and i % 3 == 2]
    assert page.locator(".above .range").inner_text() == "1–10 of 10 (60 in all)"
    choose(page, "verdict", "right")
    assert names(page) == []
    assert page.locator(".above .range").inner_text() == "None of 60 photos matches"
    page.locator("button[type=reset]").click()
    page.wait_for_function("document.querySelectorAll('article').length === 24", polling=20)
    choose(page, "verdict", "right")
    assert names(page) == [i for i in range(60) if CLASSES[i % 2] == CLASSES[i % 3]][:24]
    choose(page, "verdict", "")
    page.locator("input[type=search]").fill("tench 41%")
    assert names(page) == [40]


def test_counts_and_verdicts_are_written(gallery: Callable[..., Page]) -> None:
    page = gallery(30)
    texts = page.locator("select[name=label] option").all_inner_texts()
    assert texts == ["True class: any", "church (10)", "golf ball (10)", "tench (10)"]
    texts = page.locator("select[name=verdict] option").all_inner_texts()
    assert texts == ["right and wrong", "right (10)", "wrong (20)"]
    headers = page.locator("article header")
    assert headers.nth(1).locator(".right").text_content() == "✓ right"
    assert headers.nth(2).locator(".wrong").text_content() == "✗ true class: golf ball"


def test_a_card_shows_one_map_and_a_click_brings_all(gallery: Callable[..., Page]) -> None:
    page = gallery(30)
    card = page.locator("article").nth(1)

    def visible() -> list[str]:
        captions = card.locator("figcaption")
        return [text.inner_text() for text in captions.all() if text.is_visible()]

    assert visible() == ["photo", "Rollout"]
    summary = card.locator("summary")
    assert summary.inner_text() == "2 more"
    summary.press("Enter")
    assert visible() == ["photo", *METHODS]
    summary.click()
    choose(page, "map", "EdgeMap")
    assert visible() == ["photo", "EdgeMap"]
    choose(page, "map", "GradCAM")
    page.locator(".above .on").click()
    assert page.locator("article").first.locator("figcaption").nth(1).text_content() == "GradCAM"
    page.locator(".above .back").click()
    choose(page, "map", "Rollout")
    assert visible() == ["photo", "Rollout"]


def test_the_enlarged_picture_steps_through_folded_maps_and_hands_the_focus_back(
    gallery: Callable[..., Page],
) -> None:
    page = gallery(30)
    page.locator("article").nth(1).locator("a").nth(1).press("Enter")
    caption = page.locator("dialog p")
    assert caption.inner_text() == "1.png · Rollout"
    page.keyboard.press("ArrowRight")
    assert caption.inner_text() == "1.png · GradCAM"
    page.keyboard.press("ArrowDown")
    assert caption.inner_text() == "2.png · GradCAM"
    page.keyboard.press("Escape")
    page.wait_for_function(
        "document.activeElement.tagName === 'SUMMARY'", polling=20
    )  # close comes later
    card = "document.activeElement.closest('article')"
    assert page.evaluate(f"{card}.querySelector('h3').textContent") == "2.png"


def test_without_javascript_the_first_page_stands(gallery: Callable[..., Page]) -> None:
    page = gallery(61, java_script_enabled=False)
    assert len(page.locator("article").all()) == 24
    assert "The first 24 of 61 photos" in page.locator("noscript").inner_text()
    assert not page.locator(".tools").is_visible()
    assert page.locator("article").first.locator("summary").is_visible()


def test_names_stay_text(gallery: Callable[..., Page]) -> None:
    page = gallery(30)
    assert page.locator("h3").first.text_content() == f"0 {EVIL}.png"
    assert page.locator("img[src=x]").count() == 0


def test_few_photos_need_no_tools(gallery: Callable[..., Page]) -> None:
    page = gallery(11)
    assert page.locator(".tools").count() == page.locator(".pager").count() == 0
    assert len(names(page)) == 11
