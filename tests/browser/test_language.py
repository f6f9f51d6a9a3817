"""The pages speak the browser's language, the one of the site around them, or the one that is chosen."""

import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from vision_attn.pages import Gallery, Row, Shot, Text, write_page
from vision_attn.pages.inspect import Inspection, Page, Prediction, ShownMap, Weights
from vision_attn.pages.language import translations

pytestmark = pytest.mark.browser

WIDE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")
PAGES = files("vision_attn.pages")
INTERFACE = translations()
PLACE = re.compile(r"\{(\w+)\}")


class Static(HTMLParser):
    """The texts of a template that are the same on each page."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: set[str] = set()
        self.inside: list[str] = []

    def handle_starttag(self, tag: Any, attrs: Any) -> None:
        self.inside.append(tag)
        self.texts |= {
            value for name, value in attrs if name in ("aria-label", "title", "placeholder")
        }

    def handle_endtag(self, tag: Any) -> None:
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data: Any) -> None:
        if self.inside and self.inside[-1] not in ("script", "style", "kbd", "h1"):
            self.texts.add(data.strip())


@pytest.mark.parametrize("name", ["inspect/inspect.html", "live/live.html"])
def test_every_text_of_a_template_is_in_three_languages(name: str) -> None:
    static = Static()
    static.feed((PAGES / name).read_text(encoding="utf-8"))
    texts = {text for text in static.texts if re.search("[A-Za-z]", text) and "$" not in text}
    assert len(texts) > 20
    assert texts <= set(INTERFACE)


def test_the_words_keep_their_places_and_are_translated() -> None:
    for english, words in INTERFACE.items():
        assert set(words) == {"ja", "zh"}
        for text in words.values():
            assert WIDE.search(text) or not re.search("[A-Za-z]{3}", PLACE.sub("", english)), (
                english
            )
            assert sorted(PLACE.findall(text)) == sorted(PLACE.findall(english))


def test_every_template_is_found_again_with_what_stands_in_it(
    visit: Callable[..., Any], tmp_path: Path
) -> None:
    """No other template fits better: numbers, words that are translated, and names are filled in."""
    lines = []
    for english, words in INTERFACE.items():
        values: dict[str, str] = {}
        local: dict[str, dict[str, str]] = {"ja": {}, "zh": {}}
        for at, name in enumerate(PLACE.findall(english)):
            values[name] = (
                "mean" if name[0] == "_" else f"xyz{at}" if name.islower() else f"{3 + at}.5"
            )
            for language, found in local.items():
                found[name] = INTERFACE["mean"][language] if name[0] == "_" else values[name]
        filled = {language: words[language].format(**found) for language, found in local.items()}
        lines.append((english.format(**values), filled))
    page = write_page(tmp_path, "Words", [Text("Words", [english for english, _ in lines])])
    for language in ("ja", "zh"):
        found = visit(page, language).locator("section p").all_text_contents()
        expected = [filled[language] for _, filled in lines]
        assert [*zip(expected, found, strict=True)] == [*zip(expected, expected, strict=True)]


@pytest.fixture
def visit(window: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Opens a page in a browser of a language; in the end nothing complained."""
    complaints = []

    def open_page(path: Path, locale: str) -> Any:
        page = window(locale=locale)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(error.message))
        page.goto(path.as_uri())
        return page

    yield open_page
    assert complaints == []


@pytest.fixture
def inspected(tmp_path: Path) -> Path:
    """A page of one photo whose class is called as a button is."""
    weights = np.random.default_rng(0).random((2, 15, 15), np.float32)
    one = Inspection(
        "a model",
        "Compare",
        np.zeros((60, 100, 3), np.uint8),
        predictions=[Prediction(0, "Close", 0.7)],
        grid=(3, 5),
        layers=[Weights("0", weights / weights.sum(-1, keepdims=True))],
        maps=[ShownMap("Rollout()", np.ones((3, 5), np.float32))],
    )
    return Page.of([one]).save(tmp_path / "page.html")


COMPOSED = {
    "✗ Layer 3 heads 0, 1; layer 5 head 2 are dead: each adds less than 5 % of what the mean head "
    "of its layer adds.": "✗ 第 3 层的头 0, 1；第 5 层的头 2 不起作用：每个头加入的量不到所在层平均头的 5 %。",
    "One state of the other photo brings at most this share of the way: patch (1, 4) in layer 0 "
    "(73%); the class token in layer 2 (18%).": "另一张照片的一个状态所带来的进程份额，最多为："
    "第 0 层的图像块（1, 4）（73%）；第 2 层的类别词元（18%）。",
    "Of 9 heads these are worth most, by the logit of window: head 0.1 (1.17; 0.128 to 2.39), head "
    "2.1 (0.2; -0.1 to 0.3).": "9 个头中，按“window”的 logit 值衡量最有价值的：头 0.1（1.17，区间 "
    "0.128–2.39），头 2.1（0.2，区间 -0.1–0.3）。",
    "Rollout: 89.8% (88.3% to 90.9%) of a photo's two maps lies in the same place; of the maps of "
    "two different photos, 75.5%.": "Rollout：同一照片的两张图有 89.8%（88.3%–90.9%）落在相同位置；"
    "两张不同照片的图则为 75.5%。",
    "Llamas are counted. Passed on this network (at least 1,200 images of a/b).": "Llamas are "
    "counted. 在此网络上通过（a/b 的至少 1,200 张图像）。",
    "Fly to the window, right or wrong": "Fly to the window, right or wrong",
    "Entropy of llamas": "Entropy of llamas",
}


def test_sentences_are_put_together_and_names_in_them_stay(
    visit: Callable[..., Any], tmp_path: Path
) -> None:
    page = visit(write_page(tmp_path, "Words", [Text("Words", [*COMPOSED])]), "zh")
    assert page.locator("section p").all_text_contents() == [*COMPOSED.values()]


def test_the_inspector_speaks_the_browsers_language_and_names_stay(
    visit: Callable[..., Any], inspected: Path
) -> None:
    page = visit(inspected, "ja-JP")
    assert page.evaluate("document.documentElement.lang") == "ja"
    assert page.get_by_role("button", name="比べる", exact=True).is_visible()
    assert page.get_by_role("tab").all_inner_texts() == ["注意", "手法"]
    assert page.locator(".predictions h2").inner_text() == "予測"
    assert page.locator(".predictions .name").inner_text() == "Close"
    assert page.locator("h1").inner_text() == "Compare"
    page.locator("[name=head]").press("ArrowRight")
    assert "層 0 · ヘッド 0" in page.locator(".readout").inner_text()
    page.get_by_label("Language").select_option("zh")
    assert page.get_by_role("tab").all_inner_texts() == ["注意力", "方法"]
    assert "第 0 层 · 头 0" in page.locator(".readout").inner_text()
    page.get_by_label("Language").select_option("en")
    assert page.get_by_role("tab").all_inner_texts() == ["Attention", "Methods"]
    assert "Layer 0 · head 0" in page.locator(".readout").inner_text()


def test_in_english_nothing_is_changed_and_the_site_around_a_frame_decides(
    visit: Callable[..., Any], inspected: Path, tmp_path: Path
) -> None:
    page = visit(inspected, "en-US")
    assert page.get_by_role("button", name="Compare", exact=True).is_visible()
    site = tmp_path / "site.html"
    site.write_text(f'<iframe name="zh" src="{inspected.name}" width="1200" height="800"></iframe>')
    frame = visit(site, "en-US").frame_locator("iframe")
    frame.get_by_role("button", name="比较", exact=True).wait_for()


def test_a_gallery_is_searched_and_sorted_in_japanese(
    visit: Callable[..., Any], tmp_path: Path
) -> None:
    shots = [
        Shot("page/a.jpg", "a.png", (40, 30), name, name) for name in ("photo", "Rollout", "mask")
    ]
    rows = [Row(f"{at}.png", "cat 70 %", shots, "cat", "dog", 0.7) for at in range(40)]
    (tmp_path / "page").mkdir()
    for name in ("page/a.jpg", "a.png"):
        Image.new("RGB", (40, 30)).save(tmp_path / name)
    page = visit(write_page(tmp_path, "Heatmaps", [Gallery("Photos", rows)]), "ja")
    expect(page.locator(".range").first).to_have_text("40 枚中 1–24")
    assert page.get_by_role("combobox", name="並べ替え").is_visible()
    page.get_by_role("button", name="次へ ›").first.click()
    expect(page.locator(".range").first).to_have_text("40 枚中 25–40")
    expect(page.locator("article h3").first).to_have_text("24.png")
    expect(page.locator("article").first).to_contain_text("✗ 正解は dog")
    for shown in ("Rollout", "マスク", "Rollout"):
        page.get_by_role("combobox", name="表示するマップ").select_option(label=shown)
        expect(page.locator("article figcaption").nth(1)).to_have_text(shown)
