"""Makes the pictures of the README: run `make pictures`.

From the networks of the package that know photos:

photos.jpg     three photos, each by several methods

and from those of `make demo`, if it has been run:

heatmaps.jpg   three planted images, their masks and their maps
forming.jpg    the ViT's attention epoch by epoch
inspect.jpg    the interactive page, where Chromium is installed

with `python docs/pictures/make.py moving`, from a network of the package:

inspect.webp   the same page, asked patch by patch

with `python docs/pictures/make.py live`, ten seconds of the page that runs a network:

live.webp      a map that passed, its brightest places covered until the answer changes

and, with `python docs/pictures/make.py cifar10`, from the newest runs of three of the configs:

cifar10.png    the learning curves and confusion matrix of each

with `python docs/pictures/make.py work`, from docs/results.json:

work.png       accuracy on CIFAR-10 against the work of training, beside what others published
"""

import csv
import io
import json
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MaxNLocator
from PIL import Image

from vision_attn import inspect, list_models, live, load_model, render
from vision_attn.data import example_photos, planted, read_image

HERE = Path(__file__).parent
OUTPUTS = HERE.parent.parent / "outputs"
DEMO = OUTPUTS / "demo"
SHOWN = (0, 6, 13)  # test images
MOVING = "vision_attn:vit_planted"  # the network of inspect.webp
MOVING_PHOTO: str | None = None  # the name of an example photo; None takes a planted image
LIVE = "vision_attn:compact_vit_imagenette"  # the network of live.webp
LIVE_PHOTO = "church"
LIVE_BYTES = 400_000  # of live.webp, at most
DABS = 24  # of the brush, at most
WALK = [(0.3 + 0.4 * (i % 4) / 3, 0.3 + 0.4 * (i // 4) / 2) for i in range(12)]  # patches asked
CIFAR10 = ("compact_vit_cifar10", "senet_cifar10_fast", "spatial_cnn_cifar10")
NAMED = {  # of work.png
    "airbench94": ("center", (0, 13)),
    "CCT-6/3x1": ("right", (2, -13)),
    "spatial_cnn": ("right", (-7, -4)),
}
PHOTOS = ("springer_and_milk", "church", "parachute")
LOOK = {  # methods by network
    "compact_vit_imagenette": ("LibraGradient",),
    "senet_imagenette": ("GradCAM",),
    "spatial_cnn_imagenette": ("GradCAM",),
}
MAPS = (
    ("ViT", "vit", "LibraGradient"),
    ("SENet", "senet", "GradCAM"),
    ("CNN", "spatial_cnn", "SpatialGates"),
)


def photos() -> render.sheet.Picture:
    """A row a photo: the photo, and under the class that each network sees, its maps."""
    models = {
        name: load_model(f"vision_attn:{name}")
        for name in LOOK
        if any(row["name"] == name for row in list_models())
    }
    style, panels = render.ColorMap(), []
    for name in PHOTOS:
        photo = read_image(example_photos()[name])
        panels.append(render.Panel(name.replace("_", " "), render.enlarged(np.asarray(photo))))
        for network, model in models.items():
            found = model.explain(photo, LOOK[network])
            seen, probability = found.classes(1)[0]
            title = network.removesuffix("_imagenette")
            for drawn in found.panels(style)[1:]:
                method = drawn.title.partition("(")[0]
                words = f"{method}, {title}: {seen} {probability:.0%}"
                panels.append(replace(drawn, title=words))
    return render.heatmap_grid(panels, columns=len(panels) // len(PHOTOS))


def heatmaps(test: planted.PlantedImages) -> render.sheet.Picture:
    """A row an image: the image, its mask, a map of each network."""
    models = [
        (title, load_model(DEMO / name / "best.ckpt"), method) for title, name, method in MAPS
    ]
    style, panels = render.ColorMap(), []
    for at in SHOWN:
        photo = photo_of(test, at)
        large = render.enlarged(np.asarray(photo))
        mask = test.object_mask[at].numpy().astype(np.float32)
        covered = render.overlay(large, mask, style=render.Dim(), scale=render.Scale(1.0))
        panels.append(render.Panel(test.classes[int(test.labels[at])], large))
        panels.append(render.Panel("the object", covered))
        for title, model, method in models:
            drawn = model.explain(photo, method).panels(style)[1]
            panels.append(replace(drawn, title=f"{title}: {drawn.title}"))
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


def moving(test: planted.PlantedImages) -> list[Image.Image]:
    """The page of a network of the package, one frame for each patch that is asked."""
    from playwright.sync_api import sync_playwright

    photo = example_photos()[MOVING_PHOTO] if MOVING_PHOTO else photo_of(test, SHOWN[1])
    page, frames = inspect(load_model(MOVING), photo), []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as browsers:
        file = page.save(Path(folder) / "page.html")
        browser = browsers.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        tab = browser.new_page(viewport={"width": 1200, "height": 800})
        tab.goto(file.as_uri())
        tab.wait_for_selector("html[data-ready]")
        stage = tab.locator(".stage").first
        size = stage.bounding_box()
        assert size is not None
        for x, y in WALK:
            stage.click(position={"x": x * size["width"], "y": y * size["height"]})
            tab.wait_for_timeout(300)
            with Image.open(io.BytesIO(tab.screenshot())) as shot:
                frames.append(shot.convert("RGB").resize((900, 600), Image.Resampling.LANCZOS))
        browser.close()
    return frames


BRIGHTEST = """() => {  // of the cells that are not covered yet, where the map is largest
  const { map, item } = views[0].scene;
  const { grid, box } = item.cells;
  const values = onCells(map, grid);
  const left = [...values.keys()].filter((cell) => !photoNow().cover.cells.has(cell));
  const cell = left.reduce((best, one) => (values[one] > values[best] ? one : best));
  return centreOf({ ...item.cells, seen: box }, [Math.floor(cell / grid[1]), cell % grid[1]]);
}"""
SETTLED = "!live.busy && live.shown[state.views[0].item] === live.wanted(state.views[0].item)"
TURNED = "Boolean(document.querySelector('.predictions.turned'))"


# What the picture shows of the page, large enough to be read at 400 pixels: photo, answer, map.
LARGE = """
:root { color-scheme: light; --tint: #b6c9f8 !important; }
body { overflow: hidden; background: white; }
.toolbar, .live, .view > select, .hint, .bar, .tokens, .readout, .tabs, .attention, .options,
.methods .about, .notes, .curves, .predictions li:nth-child(n + 4) {
  display: none !important;
}
main { padding: 16px !important; margin: 0 !important; max-width: none !important; }
.view {
  display: grid !important;
  grid-template-columns: 448px 304px !important;
  gap: 16px !important;
}
.picture, .choices { display: block !important; margin: 0 !important; padding: 0 !important; }
.stage { width: 448px !important; height: 448px !important; }
.predictions { margin: 0 !important; }
.predictions h2 {
  min-height: 3.6em;
  margin: 0 0 8px !important;
  font-size: 27px !important;
  line-height: 1.2 !important;
}
.predictions li { margin: 0 0 8px !important; }
.predictions button {
  padding: 8px 10px !important;
  font-size: 25px !important;
  border-color: transparent !important;
}
.predictions .change { display: none; }
.cards { display: block !important; margin: 20px 0 0 !important; }
.cards canvas, .cards button[aria-pressed=false] { display: none !important; }
.cards button {
  display: flex !important;
  gap: 10px;
  align-items: center;
  padding: 0 !important;
  border: 0 !important;
  background: none !important;
  font-size: 25px !important;
}
.cards .badge {
  padding: 2px 12px !important;
  font-size: 22px !important;
  line-height: 30px !important;
}
"""


def recorded() -> list[tuple[Image.Image, int]]:
    """The page of a network: frames and their milliseconds, as the evidence is covered."""
    from playwright.sync_api import sync_playwright

    page, frames = live(load_model(LIVE), example_photos()[LIVE_PHOTO]), []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as browsers:
        file = page.save(Path(folder) / "page.html")
        browser = browsers.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        window = browser.new_context(viewport={"width": 800, "height": 480}, bypass_csp=True)
        tab = window.new_page()

        def shoot(milliseconds: int, opacity: float = 0.3) -> None:
            tab.evaluate(f"changeLook({{ opacity: {opacity} }})")
            while not tab.evaluate(SETTLED):
                tab.wait_for_timeout(20)
            tab.wait_for_timeout(150)  # until it is drawn
            with Image.open(io.BytesIO(tab.screenshot())) as shot:
                frames.append((shot.convert("RGB"), milliseconds))

        tab.goto(f"{file.as_uri()}#tab=methods")
        tab.wait_for_selector("html[data-ready]")
        tab.evaluate("setTool('cover')")
        tab.evaluate("live.brushSize = 1")
        tab.add_style_tag(content=LARGE)
        shoot(1200, 0)
        shoot(2200, 0.9)
        size = tab.locator(".stage").first.bounding_box()
        assert size is not None
        for _ in range(DABS):
            x, y = tab.evaluate(BRIGHTEST)
            tab.mouse.move(size["x"] + x * size["width"], size["y"] + y * size["height"])
            shoot(250)
            tab.mouse.down()
            tab.mouse.up()
            shoot(650)
            if tab.evaluate(TURNED):
                break
        print(tab.locator(".predictions h2").inner_text())
        frames[-1] = (frames[-1][0], 3500)
        browser.close()
    return frames


def photo_of(test: planted.PlantedImages, at: int) -> Image.Image:
    return Image.fromarray(test.images[at].permute(1, 2, 0).numpy())


def cifar10() -> None:
    """A column a config: how it learned, and what it mixes up."""
    figure, axes = plt.subplots(
        2, len(CIFAR10), figsize=(14, 6.6), dpi=100, height_ratios=(1, 2), layout="constrained"
    )
    for config, top, below in zip(CIFAR10, *axes, strict=True):
        runs = sorted(OUTPUTS.glob(f"{config}/version_*/confusion_matrix.png"), key=age)
        if not runs:
            sys.exit(f"expected a run: vision-attn fit --config configs/{config}.yaml")
        summary = json.loads(runs[-1].with_name("summary.json").read_text())
        with runs[-1].with_name("metrics.csv").open() as file:
            logged = list(csv.DictReader(file))
        for stage, style in (("train", "-"), ("val", "--")):
            shares = [float(row[f"{stage}/top1"]) for row in logged if row.get(f"{stage}/top1")]
            if shares:
                top.plot(range(1, len(shares) + 1), shares, style, label=stage)
        top.plot(summary["epochs"], summary["test/top1"], "k*", label="test", clip_on=False)
        top.set_title(f"{config}: {summary['minutes']:.0f} minutes", loc="left", weight="bold")
        top.set(xlabel="epoch", ylabel="top-1 accuracy", ylim=(0.3, 1))
        top.xaxis.set_major_locator(MaxNLocator(integer=True))
        top.grid(alpha=0.3)
        top.legend(frameon=False, loc="lower right")
        below.imshow(plt.imread(runs[-1]))
        below.set_axis_off()
    figure.savefig(HERE / "cifar10.png")
    print(HERE / "cifar10.png")


def work() -> None:
    """Accuracy on CIFAR-10 by PFLOP: ours and published, without views and with views."""
    known = json.loads((HERE.parent / "results.json").read_text(encoding="utf-8"))
    ours = [run for run in known["runs"] if run["data"] == "CIFAR-10"]
    figure, axes = plt.subplots(figsize=(9, 5.2), dpi=110, layout="constrained")
    for runs, colour, label in (
        (ours, "#2457c5", "vision_attn"),
        (known["published"], "#777777", "published"),
    ):
        for key, fill, words in (("top1", colour, "one view"), ("views", "white", "several views")):
            shown = [(training_work(run), run[key]) for run in runs if key in run]
            axes.plot(
                *zip(*shown, strict=True),
                "o",
                color=colour,
                markerfacecolor=fill,
                label=f"{label}, {words}",
            )
        for run in runs:
            name = run.get("name") or run["config"].partition("_cifar10")[0]
            side, shift = NAMED.get(name, ("left", (6, -11)))
            axes.annotate(
                name,
                (training_work(run), run.get("top1", run.get("views"))),
                shift,
                textcoords="offset points",
                ha=side,
                color=colour,
                fontsize=8,
            )
    axes.set(
        xscale="log",
        xlabel="work of training, PFLOP (forward and backward)",
        ylabel="CIFAR-10 test accuracy, %",
    )
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(HERE / "work.png")
    print(HERE / "work.png")


def training_work(run: dict[str, Any]) -> float:
    """PFLOP; from published operations an image, three times a forward pass for each of 50,000."""
    if "pflop" in run:
        return float(run["pflop"])
    return float(6 * run["gmac"] * run["epochs"] * 50_000 / 1e6)


def record() -> None:
    """Write live.webp: as sharp as its size allows."""
    frames = recorded()
    (first, _), *rest = frames
    for quality in (75, 60, 45, 30):
        first.save(
            HERE / "live.webp",
            append_images=[frame for frame, _ in rest],
            save_all=True,
            duration=[milliseconds for _, milliseconds in frames],
            loop=0,
            quality=quality,
            method=6,
        )
        if (HERE / "live.webp").stat().st_size <= LIVE_BYTES:
            break
    print(HERE / "live.webp", f"{sum(each for _, each in frames) / 1000:.1f} s")


def age(path: Path) -> float:
    return path.stat().st_mtime


def main() -> None:
    if sys.argv[1:] == ["cifar10"]:
        return cifar10()
    if sys.argv[1:] == ["work"]:
        return work()
    if sys.argv[1:] == ["live"]:
        return record()
    if sys.argv[1:] == ["moving"]:
        frames = moving(planted.paint(0, max(SHOWN) + 1, split="test"))
        first, *rest = frames
        first.save(
            HERE / "inspect.webp",
            append_images=rest,
            save_all=True,
            duration=900,
            loop=0,
            quality=70,
        )
        print(HERE / "inspect.webp")
        return None
    save(Image.fromarray(render.shrunk(photos(), 1400)), "photos.jpg")
    if not (DEMO / "vit" / "best.ckpt").is_file():
        sys.exit(f"for the other pictures run `make demo` first: no networks in {DEMO}")
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
