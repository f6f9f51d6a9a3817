"""The page as a browser would read it: every text is text, every link leads to a file beside it."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest

from vision_attn.pages import Figures, Gallery, Row, Shot, Table, Text, shot, write_page

EVIL = "\"'><img src=x onerror=alert(1)></style></script>&amp;"
PHOTO = np.random.default_rng(0).integers(0, 256, (700, 500, 3), dtype=np.uint8)


class Reader(HTMLParser):
    """Counts tags and keeps attributes and text."""

    def __init__(self, path: Path):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def page(tmp_path: Path) -> Reader:
    shots = [
        shot(PHOTO, tmp_path, "odd #?% 日本:1", EVIL, EVIL),
        shot(PHOTO, tmp_path, "map", "Rollout", "cat, Rollout", full="cat.Rollout(fusion=max).png"),
    ]
    (tmp_path / "cat.Rollout(fusion=max).png").touch()
    sections = [
        Text(EVIL, [EVIL]),
        Table("Accuracy", ["model", EVIL], [["ViT", EVIL], ["SENet", "97 %"]]),
        Gallery("Heatmaps", [Row(EVIL, EVIL, shots)] * 13),
        Figures("Training", shots[:1]),
    ]
    return Reader(write_page(tmp_path, EVIL, sections, lead=EVIL))


def test_every_text_stays_text(page: Reader) -> None:
    assert {tag for tag, attributes in page.tags if "onerror" in attributes} == set()
    assert page.text.count(EVIL) >= 8
    assert len(page.all("img")) == 13 * 2 + 1 + 1
    assert len(page.all("script")) == len(page.all("style")) == 1


def test_every_link_is_a_file_beside_the_page(page: Reader, tmp_path: Path) -> None:
    links = [a["href"] for a in page.all("a")]
    links += [image["src"] for image in page.all("img") if "src" in image]
    assert len(links) == 4 + 27 + 27
    for link in links:
        assert link is not None
        if not link.startswith("#part"):
            assert link.startswith("./")
            assert "#" not in link
            assert (tmp_path / unquote(link)).is_file()


def test_pictures_load_lazily_have_a_size_and_words_for_the_blind(page: Reader) -> None:
    pictures = [image for image in page.all("img") if "src" in image]
    assert all(image["loading"] == "lazy" and image["alt"] for image in pictures)
    sizes = {(image["width"], image["height"]) for image in pictures}
    assert sizes == {("457", "640"), ("286", "400")}  # by itself, and with a file to enlarge
    assert all(a.get("data-caption") or str(a["href"]).startswith("#") for a in page.all("a"))
    symbols = [button for button in page.all("button") if "type" not in button]
    assert all("aria-label" in button for button in symbols)


def test_nothing_is_fetched(page: Reader, tmp_path: Path) -> None:
    source = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "http:" not in source
    assert "https:" not in source
    assert page.all("link") == []


def test_few_rows_need_no_search_and_one_section_no_contents(tmp_path: Path) -> None:
    row = Row("a.png", "", [Shot("a.jpg", "a.png", (3, 5), "photo", "a")])
    few = Reader(write_page(tmp_path, "t", [Gallery("Heatmaps", [row] * 11)]))
    assert few.all("input") == few.all("nav") == []


def test_names_that_are_no_text_do_not_stop_the_page(tmp_path: Path) -> None:
    row = Row("a\udcff.png", "", [Shot("a\udcff.jpg", "a.png", (3, 5), "photo", "a")])
    page = Reader(write_page(tmp_path, "t", [Gallery("Heatmaps", [row])]))
    assert "a?.png" in page.text
    assert page.all("img")[0]["src"] == "./a%FF.jpg"


def test_a_heading_of_a_group_has_the_network_and_its_answer_on_lines_of_their_own() -> None:
    picture = Shot("a.jpg", "a.png", (3, 5), "Rollout", "a")
    html = Row("a.png", "", [picture], groups=[("vit: golf ball 97%", 1)]).html()
    assert "<h4><span>vit:</span> <span>golf ball 97%</span></h4>" in html
