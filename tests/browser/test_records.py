"""The page of very many photos in a browser: classes, their photos, search, right and wrong."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from playwright.sync_api import expect

from vision_attn.pages import write_page
from vision_attn.pages.gallery.records import Records, Thumb, write_records
from vision_attn.render import save

pytestmark = pytest.mark.browser

CLASSES = ["tench, Tinca tinca", "church", "<img src=x onerror=alert(1)>"]


@pytest.fixture
def page(show: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """60 photos: number i is of class i % 3, taken for class i % 2; in files of 25."""
    monkeypatch.setattr("vision_attn.pages.gallery.records.PER_FILE", 25)
    save(np.full((31, 41, 3), 90, np.uint8), tmp_path / "a.png")
    photos = []
    for i in range(60):
        (tmp_path / f"photo {i}.png").write_bytes((tmp_path / "a.png").read_bytes())
        link = quote(f"photo {i}.png")
        photos.append((i % 3, Thumb(link, i % 2, i % 3, i / 60, ["a.png"] if i == 4 else [])))
    classes = write_records(tmp_path, CLASSES, sorted(photos, key=lambda one: one[0]))
    written = write_page(tmp_path, "Photos", [Records("Photos", CLASSES, classes)])
    assert len(list((tmp_path / "page").glob("records-*.js"))) == 3
    return show(written.read_text(encoding="utf-8"))


def test_a_class_shows_its_photos_a_page_at_a_time(page: Any) -> None:
    assert page.locator("tbody tr").all_text_contents()[:2] == ["tench2050.0 %", "church2050.0 %"]
    page.get_by_text("church", exact=True).click()
    expect(page.locator(".chosen")).to_have_text("church")
    expect(page.locator("article")).to_have_count(20)
    assert page.locator("h3:not(.chosen)").first.text_content() == "photo 1.png"
    page.get_by_label("Right or wrong").select_option("wrong")
    expect(page.locator("article")).to_have_count(10)
    assert page.locator("article").first.text_content().count("✗ true class: church") == 1
    expect(page.locator(".hint")).to_contain_text('pictures FOLDER --class "church"')


def test_search_finds_photos_of_every_file(page: Any) -> None:
    page.locator("input").fill("photo 4")
    expect(page.locator("tbody tr")).to_have_count(0)
    page.get_by_text("Search all photos").click()
    expect(page.locator("article")).to_have_count(15)  # every number with a 4
    expect(page.locator(".range")).to_have_text("1–15 of 15")
    drawn = page.locator("article", has=page.get_by_text("photo 4.png", exact=True))
    expect(drawn.locator("figure")).to_have_count(2)
    page.locator("input").fill("")
    page.get_by_text("Search all photos").click()
    expect(page.locator(".range")).to_have_text("1–24 of 60")
    page.locator(".pager .on").click()
    expect(page.locator(".range")).to_have_text("25–48 of 60")
    page.locator("article img").first.click()
    expect(page.locator("dialog")).to_be_visible()
