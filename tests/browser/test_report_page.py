"""The demo's kind of page in a browser: nothing is cut, split or blown up, at any width."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vision_attn.pages import Commands, Figures, Gallery, Row, Shot, Table, write_page
from vision_attn.render import learning_curve_panels, save

pytestmark = pytest.mark.browser

COMMAND = "vision-attn explain outputs/demo/vit/best.ckpt photo.jpg --page --output outputs/look"


@pytest.fixture(params=[1300, 400])
def page(request: pytest.FixtureRequest, show: Any, tmp_path: Path) -> Any:
    save(np.full((64, 64, 3), 90, np.uint8), tmp_path / "map.png")
    metrics = tmp_path / "metrics.csv"
    metrics.write_text("epoch,train/loss,val/top1\n0,2.3,0.1\n1,1.9,0.3\n")
    curves = []
    for metric, picture in learning_curve_panels(metrics).items():
        save(picture, tmp_path / f"{metric}.png")
        size = picture.shape[1], picture.shape[0]
        curves.append(Shot(f"{metric}.png", f"{metric}.png", size, metric, metric))
    small = [Shot("map.png", "map.png", (64, 64), f"Method{i}", f"map {i}") for i in range(9)]
    groups = [("The image", 2), ("Vision Transformer: ✓ striped disk", 3), ("SENet", 2), ("CNN", 2)]
    hits = ", ".join(f"WeightedRollout{i} 100%" for i in range(4))
    header = ["network", "test accuracy", "minutes", "map: maximum inside the object"]
    sections = [
        Table("Results", header, [["Vision Transformer", "97.1%", "12.3", hits]]),
        Gallery("Where they look", [Row("striped disk", "", small, groups=groups)] * 3),
        Figures("How it learned", curves),
        Commands("What next", [("Look:", COMMAND)]),
    ]
    html = write_page(tmp_path, "Demo", sections).read_text(encoding="utf-8")
    return show(html, viewport={"width": request.param, "height": 900})


def boxes(page: Any, selector: str) -> list[dict[str, float]]:
    return [element.bounding_box() for element in page.locator(selector).all()]


def test_no_column_is_cut(page: Any) -> None:
    width = page.viewport_size["width"]
    cells = boxes(page, "td, tbody th")
    assert len(cells) == 4
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in cells)
    inside = "e => e.scrollWidth <= e.clientWidth"
    assert page.locator(".table").evaluate(inside)
    assert page.locator("html").evaluate(inside)


def test_the_maps_of_a_network_stand_on_one_line(page: Any) -> None:
    for group, count in zip(page.locator("article .group").all()[:4], (2, 3, 2, 2), strict=True):
        group.scroll_into_view_if_needed()
        places = [figure.bounding_box() for figure in group.locator("figure").all()]
        assert len(places) == count
        assert len({box["y"] for box in places}) == 1


def test_learning_curves_are_never_enlarged_and_stay_readable(page: Any) -> None:
    page.locator(".wide").scroll_into_view_if_needed()
    images = page.locator(".wide img")
    for i in range(2):
        shown = images.nth(i).bounding_box()["width"]
        drawn = int(images.nth(i).get_attribute("width"))
        assert 340 <= shown <= drawn  # 4.2 inches with text of 9 points


def test_a_command_is_whole_and_breaks_between_its_words(page: Any) -> None:
    command = page.locator("pre code")
    assert command.text_content() == COMMAND
    assert page.locator("pre").evaluate("e => e.scrollWidth <= e.clientWidth")
    assert all(word.bounding_box()["height"] < 30 for word in command.locator("span").all())
