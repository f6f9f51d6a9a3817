"""Makes the pictures of the README from the networks of `make demo`: run `make pictures`.

heatmaps.jpg   three planted images, their masks and their maps
forming.jpg    the ViT's attention epoch by epoch
inspect.jpg    the interactive page, where Chromium is installed
"""

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from vision_attn import inspect, load_model, render
from vision_attn.commands.explained import Request
from vision_attn.data import planted
from vision_attn.explain import parse_method

HERE = Path(__file__).parent
DEMO = HERE.parent.parent / "outputs" / "demo"
SHOWN = (0, 6, 13)  # test images
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


def main() -> None:
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
