"""Makes the pictures of the README from the networks of `make demo`: run `make pictures`.

heatmaps.jpg   three planted images, their masks and their maps
forming.jpg    the ViT's attention epoch by epoch
inspect.jpg    the interactive page, where Chromium is installed

and, with `python docs/pictures/make.py cifar10`, from the newest runs of three of the configs:

cifar10.png    the learning curves and confusion matrix of each
"""

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from vision_attn import inspect, load_model, render
from vision_attn.commands.explained import Request
from vision_attn.data import planted
from vision_attn.explain import parse_method

HERE = Path(__file__).parent
OUTPUTS = HERE.parent.parent / "outputs"
DEMO = OUTPUTS / "demo"
SHOWN = (0, 6, 13)  # test images
CIFAR10 = ("vit_cifar10", "senet_cifar10_fast", "spatial_cnn_cifar10")
WIDTH = 1400  # pixels
MAPS = (
    ("ViT", "vit", "Rollout"),
    ("SENet", "senet", "GradCAM"),
    ("CNN", "spatial_cnn", "SpatialGates"),
)


def heatmaps(test: planted.PlantedImages) -> render.sheet.Picture:
    """A row an image: the image, its mask, a map of each network."""
    requests = [
        (title, Request(load_model(DEMO / name / "best.ckpt"), [parse_method(method)]))
        for title, name, method in MAPS
    ]
    style, panels = render.ColorMap(), []
    for at in SHOWN:
        photo = photo_of(test, at)
        large = render.enlarged(np.asarray(photo))
        mask = test.object_mask[at].numpy().astype(np.float32)
        covered = render.overlay(large, mask, style=render.Dim(), scale=render.Scale(1.0))
        panels.append(render.Panel(test.classes[int(test.labels[at])], large))
        panels.append(render.Panel("the object", covered))
        for title, request in requests:
            found = request.explain([photo])[0].maps[0]
            picture = render.overlay(large, found.values, style=style, scale=found.scale)
            name = f"{title}: {found.explainer}"
            panels.append(render.Panel(name, picture, "", found.scale, style))
    return render.heatmap_grid(panels, columns=2 + len(MAPS))


def interactive(test: planted.PlantedImages) -> Image.Image | None:
    """The page as Chromium shows it, with a patch of the object asked."""
    chromium = shutil.which("chromium")
    if chromium is None:
        print("no chromium here: inspect.jpg stays as it is", file=sys.stderr)
        return None
    from playwright.sync_api import sync_playwright

    page = inspect(load_model(DEMO / "vit" / "best.ckpt"), photo_of(test, SHOWN[1]))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as browsers:
        file = page.save(Path(folder) / "page.html")
        browser = browsers.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1200, "height": 800})
        tab.goto(file.as_uri())
        tab.screenshot(path=Path(folder) / "page.png")
        browser.close()
        with Image.open(Path(folder) / "page.png") as shot:
            return shot.convert("RGB")


def photo_of(test: planted.PlantedImages, at: int) -> Image.Image:
    return Image.fromarray(test.images[at].permute(1, 2, 0).numpy())


def cifar10() -> None:
    """How each learned, a row each; below, what they mix up."""
    strips: list[list[Image.Image]] = []
    matrices = []
    for config in CIFAR10:
        runs = sorted(OUTPUTS.glob(f"{config}/version_*/confusion_matrix.png"), key=age)
        if not runs:
            sys.exit(f"expected a run: vision-attn fit --config configs/{config}.yaml")
        curves = Image.open(runs[-1].with_name("learning_curves.png")).convert("RGB")
        strips += [[heading(config)], [scaled(curves, 270 / curves.height)]]
        matrix = Image.open(runs[-1]).convert("RGB")
        matrices.append(scaled(matrix, WIDTH / len(CIFAR10) / matrix.width))
    strips += [[heading(config, WIDTH // len(CIFAR10)) for config in CIFAR10], matrices]
    picture = Image.new("RGB", (WIDTH, sum(strip[0].height for strip in strips)), "white")
    top = 0
    for strip in strips:
        left = 0
        for part in strip:
            picture.paste(part, (left, top))
            left += part.width
        top += strip[0].height
    picture.save(HERE / "cifar10.png", optimize=True)
    print(HERE / "cifar10.png")


def heading(text: str, width: int = WIDTH) -> Image.Image:
    line = Image.new("RGB", (width, 40), "white")
    font = render.fonts.pil_font(text, 18, bold=True)
    ImageDraw.Draw(line).text((12, 12), text, "black", font)
    return line


def scaled(picture: Image.Image, factor: float) -> Image.Image:
    return picture.resize((round(picture.width * factor), round(picture.height * factor)))


def age(path: Path) -> float:
    return path.stat().st_mtime


def main() -> None:
    if sys.argv[1:] == ["cifar10"]:
        return cifar10()
    if not (DEMO / "vit" / "best.ckpt").is_file():
        sys.exit(f"expected the networks of `make demo` in {DEMO}: run it first")
    test = planted.paint(0, max(SHOWN) + 1, split="test")
    save(Image.fromarray(render.shrunk(heatmaps(test), 1400)), "heatmaps.jpg")
    with Image.open(DEMO / "vit" / "heatmaps.png") as forming:
        save(forming.convert("RGB"), "forming.jpg")
    if (page := interactive(test)) is not None:
        save(page, "inspect.jpg")


def save(picture: Image.Image, name: str) -> None:
    picture.thumbnail((1400, 1400))
    picture.save(HERE / name, quality=85)
    print(HERE / name)


if __name__ == "__main__":
    main()
