"""Every page in Japanese and Chinese: what stays English are names, code and errors alone."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from axe_playwright_python.base import AXE_SCRIPT
from PIL import Image
from torch import nn

import vision_attn
from vision_attn import methods
from vision_attn.data import Preprocess
from vision_attn.models import SEResNet, ViT
from vision_attn.pages import write_page
from vision_attn.pages.demo.page import write_first_page
from vision_attn.pages.diagnosis.page import VerdictSection
from vision_attn.pages.live.report import live
from vision_attn.runs.diagnosis.results import (
    BlockValues,
    Chances,
    Diagnosis,
    HeadValues,
    Outliers,
)
from vision_attn.runs.diagnosis.verdict import judge
from vision_attn.runs.progress import Silent
from vision_attn.types import Calibration, Model, Trust

pytestmark = pytest.mark.browser

SIZE = (32, 48)
CLASSES = ["Katze", "Hund", "Fuchs"]
TRUST = Trust(("Rollout",), 1234, "Wiesen/Bilder")
# Names, and words that the other languages write so, too.
METHODS = "|".join(sorted(methods.__all__, key=len, reverse=True))
NAMES = (
    r"Language · 言語 · 语言|FOLDER --class|\w+=\S+|\b\w+(\.\w+)*\([^()]*\)|vision-attn \w+|vision_attn\.\w+|"
    rf"\b({METHODS}|"
    r"Katze|Hund|Fuchs|Wiesen/Bilder|ViT|SEResNet|MLP|CNN|SIMD|WebAssembly|JavaScript|logit|Sobel|"
    r"Meng|Guo|Darcet|Dosovitskiy|Kobayashi|Gong|Dong|Wilson|Newcombe|et al|Chefer|CVPR|X?Grad-CAM|"
    r"PNG|Python|Shift|mean_h|log|inferno|magma|viridis|cividis|English|top-1|norm)\b|"
    r"[\w/]*\w+\.(png|jpg|ckpt|html|jsonl)|blocks?\.\d+[.\w]*|\w+\d+\.[.\w]+"
)

# What can be seen or heard: texts and attributes of elements that are there, names apart.
LEFT = """() => {
  const NEVER = "script, style, noscript, code, kbd, template, [translate=no], .item, .predictions .name";
  const found = [document.title];
  for (const element of document.querySelectorAll("body, body *")) {
    if (element.closest("script, style, noscript, template")) continue;
    for (const name of ["aria-label", "title", "placeholder", "alt", "aria-valuetext", "data-column"])
      found.push(element.getAttribute(name) ?? "");
    if (element.closest(NEVER)) continue;
    for (const child of element.childNodes) if (child.nodeType === Node.TEXT_NODE) found.push(child.data);
  }
  return [...new Set(found.map((text) => text.trim()))];
}"""


def model_of(network: nn.Module, name: str, trust: Trust | None = None, **options: Any) -> Model:
    """A network with opinions that classes and layouts are known of."""
    torch.manual_seed(1)
    for weight in network.parameters():
        if weight.ndim > 1:
            weight.data = 1.5 * torch.randn_like(weight) * weight[0].numel() ** -0.5
    layout = network.layout(SIZE) if isinstance(network, ViT) else None
    preprocess = Preprocess(SIZE, (0.5,) * 3, (0.25,) * 3, crop_pct=0.9)
    known = {"calibration": Calibration(activation="softmax", threshold=0.9999)}
    return Model(
        network.eval(), preprocess, CLASSES, layout, name=name, trust=trust, **(known | options)
    )


def vit(name: str = "ViT", depth: int = 3, **options: Any) -> Model:
    network = ViT(
        image_size=SIZE, patch_size=8, num_classes=3, dim=24, depth=depth, heads=3, registers=1
    )
    return model_of(network, name, **options)


def cnn(**options: Any) -> Model:
    network = SEResNet(3, widths=(8, 8, 16, 16), layers=(1, 1, 1, 1))
    return model_of(network, "SEResNet", **options)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    for name in CLASSES[:2]:
        (folder / name).mkdir()
        for at in range(7):
            noise = generator.integers(0, 256, (5, 7, 3), dtype=np.uint8)
            Image.fromarray(noise).resize((70, 50)).save(folder / name / f"{at}.png")
    return folder


def gallery(photos: Path, folder: Path) -> Path:
    masks = folder / "masks"
    for file in photos.rglob("*.png"):
        (masks / file.parent.name).mkdir(parents=True, exist_ok=True)
        with Image.open(file) as photo:
            Image.new("L", photo.size, 255).save(masks / file.parent.name / file.name)
    chosen = ["Rollout", "GradCAM", "CentreGaussian"]
    model = vit(trust=TRUST)
    found = vision_attn.gallery(
        model, photos, chosen, masks=masks, output=folder / "out", progress=Silent()
    )
    assert (found.explained, found.problems) == (14, [])
    return folder / "out/index.html"


def few(photos: Path, folder: Path) -> Path:
    """A gallery by a network of random weights, painted in another style, one class explained."""
    model = replace(vit(), weights="random")
    files = sorted(photos.rglob("*.png"))[:2]
    style = vision_attn.render.Dim()
    vision_attn.gallery(
        model, files, ["Rollout", "LIME"], target=1, style=style, output=folder, progress=Silent()
    )
    return folder / "index.html"


def records(photos: Path, folder: Path) -> Path:
    vision_attn.gallery(vit(), photos, ["Rollout"], save="maps", output=folder, progress=Silent())
    return folder / "index.html"


def inspection(photos: Path, folder: Path) -> Path:
    files = [photos / name / "0.png" for name in CLASSES[:2]]
    page = vision_attn.inspect(vit(trust=TRUST), files, "all", score=True, progress=Silent())
    return page.save(folder / "inspect.html")


def inspected_cnn(photos: Path, folder: Path) -> Path:
    model = cnn(weights="random classifier")
    page = vision_attn.inspect(model, photos / "Hund/1.png", progress=Silent())
    return page.save(folder / "inspect.html")


def running(photos: Path, folder: Path) -> Path:
    models = vit(trust=TRUST), cnn()
    return live(models, [photos / "Hund/1.png"], progress=Silent()).save(folder / "live.html")


def diagnosis(photos: Path, folder: Path) -> Path:
    vision_attn.diagnose(vit(), photos, output=folder, progress=Silent())
    return folder / "index.html"


def without_attention(photos: Path, folder: Path) -> Path:
    vision_attn.diagnose(cnn(), photos, output=folder, progress=Silent())
    return folder / "index.html"


def verdicts(_photos: Path, folder: Path) -> Path:
    """Every finding of a diagnosis, in one and in several heads."""
    findings: list[dict[str, Any]] = [
        {"output": 0.01, "distance": 5.0, "sink": 0.4, "sink_token": "the class token"},
        {"output": 0.02, "distance": 6.0, "moving": 0.5, "nearest": 0, "alike": 0.991},
        {"output": 1.5, "sink": 0.5, "sink_token": "patch (1, 2)"},
        {"output": 1.2, "sink": 0.5, "sink_token": "token 2 (no patch)"},
    ]
    heads = [
        HeadValues(layer, "attn", head, 0.5 + 0.4999 * (layer == 1), **values)
        for layer in (0, 1, 3)
        for head, values in enumerate(findings)
    ]
    blocks = [BlockValues(2, "blocks.2", 24, 3.0, 4.0, 0.0, 0.0, 0.99, 0.01, 2.0)]
    chances = Chances(500, 0.5, 0.9, 0.41)
    usual = Outliers(3.0, 121, 1.0, 5, "blocks.5", 4, 0.3, 0.4, ())
    kinds = [
        replace(usual, photos_with=0.2), replace(usual, count=60.0), usual,
        replace(usual, attention=0.01, rollout=None),
    ]  # fmt: skip
    one = Diagnosis("ViT", 50, 60, heads[:1], blocks, usual, chances=replace(chances, accuracy=1.0))
    found = [one, Diagnosis("SEResNet", 1, 1, chances=chances)]
    found += [Diagnosis("ViT", 50, 50, heads, blocks, kind, chances=chances) for kind in kinds]
    sections = [VerdictSection("Verdict", judge(each)) for each in found]
    return write_page(
        folder, "Where networks look", sections, warning=vit(weights="random").warning
    )


def ablation(photos: Path, folder: Path) -> Path:
    vision_attn.ablate(vit(), photos, output=folder, prune=3, progress=Silent())
    return folder / "index.html"


def patching(photos: Path, folder: Path) -> Path:
    both = (photos / name / "1.png" for name in CLASSES[:2])
    vision_attn.patch_states(
        vit(), *both, target="Hund", contrast="Fuchs", output=folder, progress=Silent()
    )
    return folder / "index.html"


def comparison(photos: Path, folder: Path) -> Path:
    models = vit("ViT a"), vit("ViT b", depth=2)
    vision_attn.compare(models, photos, ["Rollout"], output=folder, progress=Silent())
    return folder / "index.html"


def demo(_photos: Path, folder: Path) -> Path:
    return write_first_page(folder, [])


PAGES = (
    *(gallery, few, records, inspection, inspected_cnn, running, diagnosis, without_attention),
    *(verdicts, ablation, patching, comparison, demo),
)


def explore(page: Any) -> list[str]:
    """Everything that a page says, in every tab and after its buttons were pressed."""
    found = page.evaluate(LEFT)

    def add() -> None:
        page.wait_for_timeout(150)
        found.extend(page.evaluate(LEFT))

    for at in range(page.get_by_role("tab").count()):
        page.get_by_role("tab").nth(at).click()
        page.locator(".stage").first.click()
        add()
        cards = page.locator(".view:first-child .cards:visible button")
        for card in range(cards.count()):
            cards.nth(card).click()
            add()
        for chart in page.locator(".view:first-child .attention .kinds:visible button").all():
            chart.click()
            add()
    return found


@pytest.fixture(scope="module", params=PAGES, ids=lambda make: make.__name__)
def written(
    request: pytest.FixtureRequest, photos: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return request.param(photos, tmp_path_factory.mktemp("pages"))


@pytest.mark.parametrize("locale", ["ja", "zh"])
def test_nothing_stays_english(window: Callable[..., Any], written: Path, locale: str) -> None:
    page = window(locale=locale)
    complaints = []
    page.on("pageerror", lambda error: complaints.append(error.message))
    page.goto(written.as_uri())
    if "dataset.ready" in page.content():
        page.wait_for_selector("html[data-ready]")
    if page.locator(".classes a").count():
        page.locator(".classes a").first.click()
    for part in page.locator("details").all():
        part.evaluate("e => e.open = true")
    if page.locator("[name=tour]").count():
        page.locator("[name=tour]").click()
    found = explore(page)
    assert page.evaluate("document.documentElement.lang") == locale
    left = [
        text
        for text in found
        if re.search("[A-Za-z]{3}", re.sub(NAMES, "", text.replace("\u200b", "")))
    ]
    assert not left, "\n".join(sorted(set(left)))
    page.evaluate(AXE_SCRIPT)
    report = page.evaluate("axe.run({preload: false, resultTypes: ['violations']})")
    assert [finding["id"] for finding in report["violations"]] == []
    assert complaints == []
    page.context.close()
