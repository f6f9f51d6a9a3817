"""Pages about a network in a browser: a diagnosis with faults, an ablation, patched states."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from axe_playwright_python.base import AXE_SCRIPT
from PIL import Image

import vision_attn
from vision_attn.data import Preprocess
from vision_attn.models import ViT
from vision_attn.runs.progress import Silent
from vision_attn.types import Calibration, Model

pytestmark = pytest.mark.browser


@torch.no_grad()
def faulty() -> Model:
    """A ViT with a dead head, a uniform one and two that are the same."""
    torch.manual_seed(2)
    network = ViT(image_size=32, patch_size=8, num_classes=3, dim=24, depth=3, heads=3).eval()
    for weight in network.parameters():
        weight.add_(0.2 * torch.randn_like(weight))
    dead, equal, uniform = (block.attn for block in network.blocks)
    dead.proj.weight[:, 8:16] = 0
    uniform.qkv.weight[:8] = uniform.qkv.bias[:8] = 0
    for part in (equal.qkv.weight, equal.qkv.bias):
        for first in (0, 24):
            part[first + 16 : first + 24] = part[first : first + 8].clone()
    preprocess = Preprocess((32, 32), (0.5,) * 3, (0.25,) * 3)
    return Model(
        network, preprocess, ["cat", "dog", "fox"], network.layout((32, 32)),
        calibration=Calibration(activation="softmax"), name="a/long/path/to/vit/best.ckpt",
    )  # fmt: skip


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for name in ("cat", "dog"):
        (folder / name).mkdir()
        for at in range(3):
            noise = Image.effect_noise((40, 30), 30 + 20 * at).convert("RGB")
            noise.save(folder / name / f"{at}.png")
    return folder


def diagnosis(photos: Path, folder: Path) -> None:
    (photos / "dog/broken.png").write_bytes(b"no image")
    vision_attn.diagnose(faulty(), photos, output=folder, progress=Silent())


def ablation(photos: Path, folder: Path) -> None:
    vision_attn.ablate(faulty(), photos, output=folder, prune=3, progress=Silent())


def patching(photos: Path, folder: Path) -> None:
    both = (photos / f"{name}/1.png" for name in ("cat", "dog"))
    vision_attn.patch_states(
        faulty(), *both, target=0, contrast=1, output=folder, progress=Silent()
    )


PAGES = {"diagnosis": diagnosis, "ablation": ablation, "patching": patching}


@pytest.fixture
def opened(show: Any, photos: Path, tmp_path: Path) -> Callable[..., Any]:
    def open_page(name: str, **context: Any) -> Any:
        PAGES[name](photos, tmp_path)
        return show((tmp_path / "index.html").read_text(encoding="utf-8"), **context)

    return open_page


@pytest.mark.parametrize(("width", "scheme"), [(1300, "light"), (400, "dark")])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_its_window_and_axe_finds_nothing(
    opened: Callable[..., Any], name: str, width: int, scheme: str
) -> None:
    page = opened(name, viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    images = page.locator("main img")
    assert images.count() >= 4
    for image in images.all():
        image.scroll_into_view_if_needed()
        shown = image.bounding_box()["width"]
        assert 150 < shown <= int(image.get_attribute("width")) + 1  # readable, never enlarged
        assert image.evaluate("e => e.decode().then(() => e.naturalWidth)") > 0
    page.add_script_tag(content=AXE_SCRIPT)
    report = page.evaluate("axe.run({preload: false, resultTypes: ['violations']})")
    assert [(one["id"], one["nodes"][0]["html"]) for one in report["violations"]] == []


@pytest.mark.parametrize("name", PAGES)
def test_pictures_are_enlarged_and_turned_with_the_keyboard(
    opened: Callable[..., Any], name: str
) -> None:
    page = opened(name)
    first, second = (page.locator("main figure a").nth(at) for at in (0, 1))
    first.focus()
    page.keyboard.press("Enter")
    dialog = page.locator("dialog")
    assert dialog.is_visible()
    assert dialog.locator("p").inner_text() == first.get_attribute("data-caption")
    page.keyboard.press("ArrowRight")
    assert dialog.locator("p").inner_text() == second.get_attribute("data-caption")
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    assert page.evaluate("document.activeElement.closest('figure') !== null")


def test_faults_stand_first_and_are_marked_with_their_places(opened: Callable[..., Any]) -> None:
    page = opened("diagnosis")
    lines = page.locator("#part0 p")
    faults = page.locator("#part0 p.wrong")
    assert faults.all_inner_texts() == lines.all_inner_texts()[: faults.count()]
    said = " ".join(faults.all_inner_texts())
    for words in (
        "Layer 0 head 1 is dead",
        "layer 1 head 0 (like head 2",
        "Layer 2 head 0 attends",
    ):
        assert words in said
    assert "broken.png" in page.locator("main").inner_text()
    row = page.locator("tr", has=page.locator("th", has_text="layer 0")).nth(1)
    assert row.locator("[data-column=output]").inner_text() == "0"


def test_the_table_of_an_ablation_has_what_the_values_say(
    opened: Callable[..., Any], photos: Path
) -> None:
    page = opened("ablation")
    found = vision_attn.ablate(faulty(), photos, prune=3, progress=Silent())
    rows = sorted(found.table(), key=lambda row: -row["value_drop"])
    assert page.locator("tbody th").all_inner_texts() == [row["unit"] for row in rows]
    cells = page.locator("tbody tr").first.locator("td").all_inner_texts()
    assert cells[2] == f"{rows[0]['value_drop']:.3g}"
    text = page.locator("#part0").inner_text()
    heads = [row for row in rows if row["part"] == "heads"]
    assert (
        f"Of 9 heads these are worth most, by the logit of the true class: {heads[0]['unit']}"
        in text
    )
    assert "With all 9 heads the accuracy is" in text


def test_patched_states_are_shown_layer_by_layer(opened: Callable[..., Any], photos: Path) -> None:
    page = opened("patching")
    both = (photos / f"{name}/1.png" for name in ("cat", "dog"))
    found = vision_attn.patch_states(faulty(), *both, target=0, contrast=1, progress=Silent())
    captions = page.locator("article").nth(1).locator("figcaption").all_inner_texts()
    assert found.layout is not None
    patches = found.recovered[:, found.layout.patches]
    assert captions == [
        f"layer {at}: at most {float(row.max()):.0%}" for at, row in enumerate(patches)
    ]
    assert f"({float(found.recovered.max()):.0%})" in page.locator("#part0").inner_text()
