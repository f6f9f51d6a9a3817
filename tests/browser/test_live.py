"""The page that runs networks, in a browser: what it shows is what Python computes."""

import io
import shutil
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from axe_playwright_python.base import AXE_SCRIPT
from PIL import Image
from playwright.sync_api import Browser, Page
from torch import nn

from vision_attn.data import Preprocess
from vision_attn.evaluate import BlurFill, Deletion, FilledCells, Insertion, MeanFill
from vision_attn.methods import GradCAM, LeGrad, QueryKey, Rollout
from vision_attn.models import SEResNet, ViT
from vision_attn.pages.live.report import live
from vision_attn.types import Calibration, Model, Trust

from . import conftest
from .conftest import until

pytestmark = pytest.mark.browser

RNG = np.random.default_rng(0)
MEAN, STD = (0.5, 0.45, 0.4), (0.25, 0.25, 0.25)
PHOTO = Image.fromarray(RNG.integers(0, 256, (5, 9, 3), dtype=np.uint8)).resize((180, 100))
OTHER = Image.fromarray(RNG.integers(0, 256, (7, 4, 3), dtype=np.uint8)).resize((80, 140))


def sharp(network: nn.Module, size: tuple[int, int], tokens: bool) -> Model:
    """A network with opinions, and attention that differs from even."""
    torch.manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            fan_in = module.weight[0].numel()
            module.weight.data = 1.5 * torch.randn_like(module.weight) * fan_in**-0.5
        if isinstance(module, nn.BatchNorm2d):
            module.weight.data.uniform_(0.5, 1.5)
    classes = [f"class {letter}" for letter in "abcdefg"]
    layout = network.layout(size) if tokens else None
    return Model(network.eval(), Preprocess(size, MEAN, STD, crop_pct=0.9), classes, layout)


def vit(**options: Any) -> Model:
    usual = {
        "image_size": (32, 48),
        "patch_size": 8,
        "num_classes": 7,
        "dim": 24,
        "depth": 3,
        "heads": 2,
    }
    return sharp(ViT(**{**usual, **options}), (32, 48), tokens=True)


def senet() -> Model:
    network = SEResNet(7, widths=(8, 8, 16, 16), layers=(1, 1, 1, 1))
    return sharp(network, (40, 40), tokens=False)


PIXELS = """async (photo) => {
  const { shown } = await live.photos[photo].loaded;
  const { width, height } = shown;
  const canvas = make("canvas", { width, height });
  const context = canvas.getContext("2d");
  context.drawImage(shown, 0, 0);
  const { data } = context.getImageData(0, 0, width, height);
  const text = Array.from(data, (byte) => String.fromCharCode(byte)).join("");
  return { width, height, pixels: btoa(text) };
}"""


def pixels(page: Page, photo: int) -> np.ndarray:
    """What the page made of a photo, h w 3: as text, since a list of numbers takes seconds."""
    seen = page.evaluate(PIXELS, photo)
    shape = seen["height"], seen["width"], 4
    return np.frombuffer(b64decode(seen["pixels"]), np.uint8).reshape(shape)[..., :3]


def chances(page: Page, view: int = 0) -> dict[str, float]:
    """The classes on the screen with their probabilities."""
    found = page.evaluate(
        f"views[{view}].item.predictions.map(({{ name, probability }}) => [name, probability])"
    )
    return dict(found)


def assert_chances(page: Page, model: Model, logits: torch.Tensor, tolerance: float = 2e-3) -> None:
    wanted = dict(zip(model.classes, logits.softmax(0).tolist(), strict=True))
    shown = chances(page)
    assert max(shown, key=shown.__getitem__) == max(wanted, key=wanted.__getitem__)
    for name, chance in shown.items():
        assert chance == pytest.approx(wanted[name], abs=tolerance)


def settle(page: Page) -> None:
    """Until all that was asked for is on the screen."""
    until(
        page,
        "!live.busy && state.views.every(({ item }) => live.shown[item] === live.wanted(item))",
    )
    conftest.settle(page)


def opened(
    show: Any, models: Model | tuple[Model, Model], images: list[Any], link: str = ""
) -> Any:
    page = show(live(models, images).html, link)
    page.wait_for_selector("html[data-ready]")
    page.wait_for_selector(".photos button")
    return page


def logits_of(model: Model, image: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.network(image[None])[0]


def shown_map(page: Any, view: int = 0) -> np.ndarray:
    values, grid = page.evaluate(
        f"[[...views[{view}].scene.map.values], views[{view}].scene.map.grid]"
    )
    return np.reshape(values, grid)


def stroke(page: Any, *cells: tuple[int, int]) -> None:
    """Draws with what is in the hand over these cells of the first view."""
    box, grid = page.evaluate("[views[0].item.cells.box, views[0].item.cells.grid]")
    size = page.locator(".stage").first.bounding_box()
    for at, (row, column) in enumerate(cells):
        x = box[0] + (column + 0.5) / grid[1] * (box[2] - box[0])
        y = box[1] + (row + 0.5) / grid[0] * (box[3] - box[1])
        page.mouse.move(size["x"] + x * size["width"], size["y"] + y * size["height"])
        if at == 0:
            page.mouse.down()
    page.mouse.up()
    settle(page)


def covered(
    model: Model,
    image: torch.Tensor,
    cells: list[int],
    fill: MeanFill | BlurFill,
    grid: tuple[int, int],
) -> torch.Tensor:
    """The logits in Python, with cells removed as the scores do it."""
    kept = [cell for cell in range(grid[0] * grid[1]) if cell not in cells]
    removal = FilledCells(model.network, grid, fill)
    with torch.no_grad():
        return removal.logits(image[None], torch.tensor([kept + cells]), [len(kept)])[0, 0]


def test_a_photo_is_seen_as_in_python(show: Any) -> None:
    model = vit()
    page = opened(show, model, [PHOTO])
    image = model.preprocess(PHOTO)
    assert_chances(page, model, logits_of(model, image))
    assert page.evaluate("live.opened") == "WasmKernels"
    query = QueryKey(query=(0.5 / 6, 0.5 / 4), layer=1)
    page.evaluate("changeQuery([views[0].item.box[0] + 0.001, views[0].item.box[1] + 0.001])")
    page.evaluate("changeView(0, { layer: 1 })")
    settle(page)
    wanted = query(model.network, image[None]).values[0].numpy()
    assert np.abs(shown_map(page) - wanted).max() <= 0.02 * wanted.max()
    page.get_by_role("tab", name="Methods").click()
    settle(page)
    wanted = Rollout()(model.network, image[None])
    assert np.abs(shown_map(page) - wanted.values[0].numpy()).max() <= 0.02 * wanted.values.max()


@pytest.mark.parametrize("fill", ["grey", "blur", "drop"])
def test_a_covered_photo_is_pythons(show: Any, fill: str) -> None:
    model = vit()
    page = opened(show, model, [PHOTO])
    image, cells = model.preprocess(PHOTO), [7, 8, 9]
    page.select_option("[name=fill]", fill)
    page.get_by_role("button", name="Cover", exact=True).click()
    stroke(page, (1, 1), (1, 2), (1, 3))
    if fill == "drop":
        kept = torch.tensor([[cell for cell in range(24) if cell not in cells]])
        with torch.no_grad():
            wanted = model.network.forward_kept_tokens(image[None], kept)[0]
    else:
        wanted = covered(model, image, cells, MeanFill() if fill == "grey" else BlurFill(), (4, 6))
    assert_chances(page, model, wanted)
    assert float((wanted - logits_of(model, image)).abs().max()) > 0.05
    before = dict(
        page.evaluate("views[0].item.predictions.map(({ name, before }) => [name, before])")
    )
    real = logits_of(model, image).softmax(0)
    for name, chance in before.items():
        assert chance == pytest.approx(float(real[model.classes.index(name)]), abs=2e-3)
    assert page.inner_text(".facts") == "3 cells covered"


def test_covering_erasing_undoing_by_mouse_and_by_key(show: Any) -> None:
    model = vit()
    page = opened(show, model, [PHOTO])
    now = lambda: sorted(page.evaluate("[...live.photos[0].cover.cells]"))  # noqa: E731
    page.get_by_role("button", name="Cover", exact=True).click()
    stroke(page, (0, 0), (0, 1))
    stroke(page, (3, 5))
    assert now() == [0, 1, 23]
    page.get_by_role("button", name="Uncover").click()
    stroke(page, (0, 1))
    assert now() == [0, 23]
    page.get_by_role("button", name="Undo").click()
    page.keyboard.press("z")
    settle(page)
    assert now() == [0, 1]
    page.get_by_role("button", name="Ask").click()
    page.locator(".stage").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("x")
    settle(page)
    row, column = page.evaluate("cellAt(views[0].item.box, [4, 6], state.query.point)")
    assert now() == sorted([0, 1, row * 6 + column])
    page.get_by_role("button", name="Clear").click()
    settle(page)
    assert now() == []
    assert_chances(page, model, logits_of(model, model.preprocess(PHOTO)))


def test_a_head_switched_off(show: Any) -> None:
    model = vit()
    page = opened(show, model, [PHOTO], "layer=2&head=1")
    page.locator("[name=ablate]").click()
    settle(page)

    def silence(_module: Any, inputs: Any) -> tuple[Any]:
        return (inputs[0] * torch.tensor([1.0, 0.0]).repeat_interleave(12),)

    hook = model.network.blocks[2].attn.proj.register_forward_pre_hook(silence)
    wanted = logits_of(model, model.preprocess(PHOTO))
    hook.remove()
    assert_chances(page, model, wanted)
    assert page.inner_text(".facts") == "heads off: 2.1"


def test_a_cnn_with_its_map_and_gates(show: Any) -> None:
    model = senet()
    page = opened(show, model, [PHOTO])
    image = model.preprocess(PHOTO)
    assert_chances(page, model, logits_of(model, image))
    assert page.locator("[role=tab]").all_inner_texts() == ["Methods", "Gates"]
    target = int(logits_of(model, image).argmax())
    wanted = GradCAM()(model.network, image[None], target).values[0].numpy()
    assert np.abs(shown_map(page) - wanted).max() <= 0.02 * wanted.max()
    page.get_by_role("button", name="Cover", exact=True).click()
    stroke(page, (6, 6), (7, 7))
    cells = [6 * 14 + 6, 7 * 14 + 7]
    assert_chances(page, model, covered(model, image, cells, MeanFill(), (14, 14)))


@pytest.mark.parametrize(
    ("trust", "said"),
    [
        (None, "Not scored on this network."),
        (
            Trust(("Rollout",), 32, "photos"),
            "Passed on this network (at least 32 images of photos).",
        ),
        (
            Trust(("LeGrad",), 31, ".data/birds/val"),
            "Did not pass on this network (at least 31 images of birds/val): LeGrad did.",
        ),
        (Trust((), 1030), "Did not pass on this network (at least 1,030 images)."),
    ],
)
def test_a_map_says_whether_its_method_passed(show: Any, trust: Trust | None, said: str) -> None:
    page = opened(show, replace(vit(), trust=trust), [PHOTO], "tab=methods&method=Rollout")
    about = page.inner_text(".methods .about")
    assert about.startswith("How tokens mix")
    assert about.endswith(f"It is the same for every class. {said}")
    passed = trust is not None and trust.methods == ("Rollout",)
    badges = page.locator(".cards button", has_text="Rollout").locator(".badge")
    assert badges.all_inner_texts() == ["passed"] * passed


def test_it_opens_at_a_map_that_can_be_trusted(show: Any) -> None:
    """Which the page cannot compute: Python recorded it, for the photos that it has."""
    model = replace(vit(), trust=Trust(("LeGrad",), 31, "photos"))
    page = opened(show, model, [PHOTO])
    image = model.preprocess(PHOTO)
    target = int(logits_of(model, image).argmax())
    wanted = LeGrad()(model.network, image[None], target).values[0].numpy()
    assert page.get_by_role("tab", selected=True).inner_text() == "Methods"
    np.testing.assert_allclose(shown_map(page), wanted, rtol=1e-5, atol=1e-7)
    cards = page.locator(".cards button").all_inner_texts()
    assert [card.split() for card in cards] == [["Le\u200bGrad", "passed"], ["Rollout"]]
    about = page.inner_text(".methods .about")
    assert (
        "Passed on this network (at least 31 images of photos). It was computed in Python" in about
    )
    page.get_by_role("button", name="Cover", exact=True).click()
    stroke(page, (1, 1), (1, 2))
    np.testing.assert_allclose(shown_map(page), wanted, rtol=1e-5, atol=1e-7)
    page.get_by_role("button", name="Ask").click()
    stroke(page, (2, 2))
    assert page.get_by_role("tab", selected=True).inner_text() == "Attention"
    file = io.BytesIO()
    OTHER.save(file, "PNG")
    picture = {"name": "other.png", "mimeType": "image/png", "buffer": file.getvalue()}
    page.set_input_files("[name=files]", [picture])
    until(page, "views[0]?.item.image === 'other.png'")
    page.get_by_role("tab", name="Methods").click()
    settle(page)
    assert page.locator(".cards button").all_inner_texts() == ["Rollout"]


@pytest.mark.parametrize("make", [vit, senet])
def test_all_of_a_photo_can_be_shown_to_the_network(show: Any, make: Callable[..., Model]) -> None:
    model: Any = make()
    page = opened(show, model, [PHOTO])
    page.get_by_label("Whole photo").check()
    settle(page)
    whole = replace(model, preprocess=model.preprocess.whole())
    image = whole.preprocess(PHOTO)
    assert_chances(page, whole, logits_of(whole, image))
    assert float((image - model.preprocess(PHOTO)).abs().max()) > 0.5
    assert page.evaluate("views[0].item.box") == [0, 0, 1, 1]
    page.get_by_label("Whole photo").uncheck()
    settle(page)
    assert_chances(page, model, logits_of(model, model.preprocess(PHOTO)))


def test_a_brush_does_not_ask_and_changes_are_in_points(show: Any) -> None:
    page = opened(show, vit(), [PHOTO])
    assert page.inner_text(".hint").startswith("Click the photo")
    page.get_by_role("button", name="Cover", exact=True).click()
    assert not page.locator(".hint").is_visible()
    assert "Click" not in page.get_attribute(".stage", "aria-label")
    stroke(page, (1, 1), (1, 2), (2, 2))
    changes = [text for text in page.locator(".change").all_inner_texts() if text]
    assert changes
    now = page.evaluate("views[0].item.predictions.map((p) => 100 * (p.probability - p.before))")
    shown = [float(text.replace("\u2212", "-").removesuffix("\u00a0points")) for text in changes]
    wanted = [change for change in now if abs(change) >= 0.05]
    np.testing.assert_allclose(shown, wanted, atol=0.51)


def test_photos_are_dropped_and_compared(show: Any) -> None:
    first, second = vit(), senet()
    page = opened(show, (replace(first, name="a vit"), replace(second, name="a senet")), [PHOTO])
    file = io.BytesIO()
    OTHER.save(file, "PNG")
    files = {"name": "other.png", "mimeType": "image/png", "buffer": file.getvalue()}
    page.set_input_files("[name=files]", [files])
    until(page, "live.photos.length === 2 && views[0]?.item.image === 'other.png'")
    settle(page)
    assert_chances(page, first, logits_of(first, first.preprocess(OTHER)))
    page.get_by_role("button", name="Compare").click()
    until(page, "views.length === 2 && views[1].item?.model === 'a senet'")
    wanted = logits_of(second, second.preprocess(OTHER)).softmax(0)
    for name, chance in chances(page, 1).items():
        assert chance == pytest.approx(float(wanted[second.classes.index(name)]), abs=2e-3)
    page.set_input_files(
        "[name=files]", [{"name": "x.png", "mimeType": "image/png", "buffer": b"no"}]
    )
    until(page, "document.querySelector('.note').textContent.includes('x.png cannot be read')")


def test_curves_are_those_of_the_scores(show: Any) -> None:
    model = vit()
    page = opened(show, model, [PHOTO], "tab=methods")
    image = model.preprocess(PHOTO)
    target = int(logits_of(model, image).argmax())
    page.get_by_role("button", name="Deletion and insertion").click()
    until(page, "document.querySelectorAll('.curves .point').length === 34")
    values = torch.from_numpy(shown_map(page)).float()[None]
    removal = FilledCells(model.network, (4, 6))
    shown = page.evaluate("views[0].curves.points")
    for name, metric in (("deletion", Deletion(removal)), ("insertion", Insertion(removal))):
        metric.update(image[None], values, torch.tensor([target]))
        wanted = metric.curves()[0].numpy()
        np.testing.assert_allclose([point[name] for point in shown], wanted, atol=3e-3)


def test_a_jpeg_is_decoded_as_by_pillow(show: Any) -> None:
    model = vit()
    file = io.BytesIO()
    PHOTO.save(file, "JPEG", quality=85)
    page = opened(show, model, [PHOTO])
    picture = {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": file.getvalue()}
    page.set_input_files("[name=files]", [picture])
    until(page, "live.photos.length === 2 && views[0]?.item.image === 'a.jpg'")
    shown = pixels(page, 1)
    assert shown.shape == (*PHOTO.size[::-1], 3)
    with Image.open(file) as image:
        assert np.abs(shown - np.asarray(image).astype(int)).mean() <= 0.5
        assert_chances(page, model, logits_of(model, model.preprocess(image)), tolerance=0.02)


def test_probabilities_are_calibrated(show: Any) -> None:
    model = replace(vit(), calibration=Calibration(temperature=3.0, threshold=0.99))
    page = opened(show, model, [PHOTO], "tab=methods")
    assert_chances(page, model, logits_of(model, model.preprocess(PHOTO)) / 3)
    assert "Unlike the images that the network knows" in page.inner_text(".unlike")


def test_classes_that_are_there_or_not_by_themselves(show: Any) -> None:
    """Each class has its own probability, in the list, in the note and in the curves."""
    known = Calibration(temperature=2.0, threshold=0.999, activation="sigmoid")
    model = replace(vit(), calibration=known)
    page = opened(show, model, [PHOTO], "tab=methods")
    image = model.preprocess(PHOTO)
    wanted = known.probabilities(logits_of(model, image)[None])[0]
    shown = chances(page)
    for name, chance in shown.items():
        assert chance == pytest.approx(float(wanted[model.classes.index(name)]), abs=2e-3)
    assert sum(shown.values()) > 1.1
    surest = page.evaluate(f"percent({float(wanted.max())})")
    assert f"the most probable class has {surest}" in page.inner_text(".unlike")
    page.get_by_role("button", name="Deletion and insertion").click()
    until(page, "document.querySelectorAll('.curves .point').length === 34")
    first = page.evaluate("views[0].curves.points[0].deletion")
    assert first == pytest.approx(float(wanted.max()), abs=2e-3)


@pytest.mark.parametrize("make", [vit, senet])
def test_the_tour_in_the_language_of_the_page(show: Any, make: Callable[..., Model]) -> None:
    page = opened(show, make(), [PHOTO])
    page.get_by_role("button", name="Show me how").click()
    box = page.locator(".tour")
    for step in range(1, 6):
        assert box.inner_text().startswith(f"{step}/5")
        until(page, "document.querySelectorAll('.toured').length === 1")
        if step == 3:
            page.get_by_label("Language").select_option("zh")
            until(page, "/[网类]/.test(document.querySelector('.tour p').textContent)")
            assert box.get_by_role("button").all_inner_texts() == ["下一步", "跳过"]
        page.locator("[name=next]").click()
    assert not box.is_visible()
    assert page.evaluate("document.activeElement.name") == "tour"
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    box.wait_for(state="hidden")
    assert page.locator(".toured").count() == 0


def turning(model: Model, image: torch.Tensor) -> tuple[list[int], str, str]:
    """The first cells, row by row, that change the class when they turn grey; and both classes."""
    name = lambda logits: model.classes[int(logits.argmax())]  # noqa: E731
    before = name(logits_of(model, image))
    for count in range(1, 24):
        cells = list(range(count))
        after = name(covered(model, image, cells, MeanFill(), (4, 6)))
        if after != before:
            return cells, before, after
    raise AssertionError("this network never changes its mind")


def test_it_says_whether_the_answer_turned(show: Any) -> None:
    model = vit()
    page = opened(show, model, [PHOTO])
    title = page.locator(".predictions h2")
    assert title.inner_text() == "Predicted"
    cells, before, after = turning(model, model.preprocess(PHOTO))
    page.get_by_role("button", name="Cover", exact=True).click()
    for cell in cells:
        stroke(page, (cell // 6, cell % 6))
    assert title.inner_text() == f"It changed its mind: {before} → {after}"
    until(page, "document.querySelector('[role=status]').textContent.includes('changed its mind')")
    page.get_by_role("button", name="Undo").click()
    settle(page)
    assert title.inner_text() == (f"Still {before}" if len(cells) > 1 else "Predicted")
    page.get_by_role("button", name="Clear").click()
    settle(page)
    assert title.inner_text() == "Predicted"


def test_on_a_phone_the_answer_is_right_under_the_photo(show: Any) -> None:
    page = show(live(vit(), [PHOTO]).html, viewport={"width": 400, "height": 860})
    page.wait_for_selector("html[data-ready]")
    photo, answer = (page.locator(each).bounding_box() for each in (".stage", ".predictions"))
    assert 0 < answer["y"] - photo["y"] - photo["height"] < 30


def test_queries_held_by_the_button(show: Any) -> None:
    model = vit()
    page = opened(show, model, [PHOTO], "layer=1")
    image = model.preprocess(PHOTO)
    click = lambda row, column: stroke(page, (row, column))  # noqa: E731
    click(0, 1)
    page.get_by_role("button", name="Hold").click()
    click(2, 2)
    click(3, 5)
    rows = [
        QueryKey(query=((column + 0.5) / 6, (row + 0.5) / 4), layer=1)(model.network, image[None])
        for row, column in ((0, 1), (2, 2), (3, 5))
    ]
    wanted = torch.stack([row.values[0] for row in rows]).sum(0).numpy() / 3
    assert np.abs(shown_map(page) - wanted).max() <= 0.02 * wanted.max()
    page.get_by_role("button", name="Hold").click()
    click(3, 5)
    wanted = rows[2].values[0].numpy()
    assert np.abs(shown_map(page) - wanted).max() <= 0.02 * wanted.max()


def test_the_brush_shows_what_it_would_cover(show: Any) -> None:
    page = opened(show, vit(), [PHOTO])
    mark = page.locator(".stage .brush")
    stage = page.locator(".stage").bounding_box()
    middle = stage["x"] + 0.51 * stage["width"], stage["y"] + 0.51 * stage["height"]
    page.mouse.move(*middle)
    assert not mark.is_visible()
    page.get_by_role("button", name="Cover", exact=True).click()
    page.mouse.move(*middle)
    box = page.evaluate("views[0].item.cells.box")
    assert mark.bounding_box()["width"] == pytest.approx(
        stage["width"] * (box[2] - box[0]) / 6, abs=2
    )


CAMERA = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
WATCH = """
window.streams = [];
const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
navigator.mediaDevices.getUserMedia = async (what) => {
  const stream = await ask(what);
  window.streams.push(stream);
  return stream;
};
"""


def test_the_camera_runs_from_a_click_until_a_photo_is_taken(
    browser: Browser, tmp_path: Path
) -> None:
    model = vit()
    file = live(model, [PHOTO]).save(tmp_path / "page.html")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with browser.browser_type.launch(executable_path=path, args=CAMERA) as chromium:
        page = chromium.new_page()
        page.add_init_script(WATCH)
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready]")
        page.wait_for_timeout(300)
        assert page.evaluate("streams.length") == 0
        page.get_by_role("button", name="Camera", exact=True).click()
        until(page, "document.querySelector('video').videoWidth > 0")
        page.get_by_role("button", name="Take a photo").click()
        until(page, "live.photos.length === 2 && views[0]?.item.image === 'camera.png'")
        settle(page)
        states = "streams.flatMap((one) => one.getTracks().map(({ readyState }) => readyState))"
        assert page.evaluate(states) == ["ended"]
        image = model.preprocess(Image.fromarray(pixels(page, 1)))
        assert_chances(page, model, logits_of(model, image), tolerance=0.02)
        page.get_by_role("button", name="Camera", exact=True).click()
        until(page, "document.querySelector('video').videoWidth > 0")
        page.get_by_role("button", name="Close").last.click()
        until(page, f"{states}.join() === 'ended,ended'")


def test_it_runs_in_a_notebook(show: Any) -> None:
    model = vit()
    outer = show(f"<!DOCTYPE html><title>notebook</title>{live(model, [PHOTO])._repr_html_()}")
    (frame,) = (one for one in outer.frames if one != outer.main_frame)
    frame.wait_for_selector("html[data-ready]")
    assert_chances(frame, model, logits_of(model, model.preprocess(PHOTO)))
    frame.locator(".stage").focus()
    outer.keyboard.press("x")
    until(frame, "!live.busy && views[0].item.predictions[0].before !== undefined")
    row, column = frame.evaluate("cellAt(views[0].item.box, [4, 6], state.query.point)")
    image = model.preprocess(PHOTO)
    wanted = covered(model, image, [row * 6 + column], MeanFill(), (4, 6))
    assert_chances(frame, model, wanted)


def large_photo() -> Image.Image:
    """20 megapixels, smooth with fine grain, as cameras make them."""
    coarse = RNG.integers(0, 256, (54, 72, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((5184, 3888), Image.Resampling.BICUBIC))
    grain = RNG.integers(-4, 5, (486, 648, 1), dtype=np.int16).repeat(8, 0).repeat(8, 1)
    return Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8))


def test_20_megapixels_are_scaled_as_in_python(show: Any) -> None:
    model = vit()
    page = opened(show, model, [PHOTO])
    large = large_photo()
    for number, (kind, options) in enumerate(
        {"PNG": {"compress_level": 1}, "JPEG": {"quality": 90}}.items(), start=1
    ):
        file = io.BytesIO()
        large.save(file, kind, **options)
        name = f"large.{kind.lower()}"
        picture = {"name": name, "mimeType": f"image/{kind.lower()}", "buffer": file.getvalue()}
        page.set_input_files("[name=files]", [picture])
        until(page, f"live.photos.length === {number + 1} && views[0]?.item.image === '{name}'")
        worker = page.workers[0]
        id_ = page.evaluate(f"live.photos[{number}].loaded.then(({{ id }}) => id)")
        shown = torch.tensor(worker.evaluate(f"[...photos.get({id_}).inputs[0].image]"))
        with Image.open(file) as image:
            wanted = model.preprocess(image).permute(1, 2, 0)
        levels = (shown.view_as(wanted) - wanted).abs() * torch.tensor(STD) * 255
        if kind == "PNG":
            assert levels.max() < 1e-3
        else:
            assert levels.mean() <= 0.5
        assert wanted.std() > 0.3


@pytest.mark.parametrize("width", [320, 1280])
def test_it_fits_and_nothing_serious_is_found(show: Any, width: int) -> None:
    page = show(
        live((replace(vit(), name="a vit"), replace(senet(), name="a senet")), [PHOTO, OTHER]).html,
        viewport={"width": width, "height": 844},
    )
    page.wait_for_selector("html[data-ready]")
    page.get_by_role("button", name="Cover", exact=True).click()
    stroke(page, (1, 1), (1, 2))
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate(AXE_SCRIPT)
    found = [
        (one["id"], one["nodes"][0]["html"], one["nodes"][0]["failureSummary"])
        for one in page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
        if one["impact"] in ("serious", "critical")
    ]
    assert found == []
