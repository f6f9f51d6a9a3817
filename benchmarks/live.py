"""The page that runs a network, in a headless Chromium: its size and times, and how exact it is.

    python benchmarks/live.py vision_attn:senet_imagenette .data/imagenette160/val --images 200

Times are of the page itself, until the answer is drawn: the first answer from the start of loading;
a new photo from its file; a brush stroke from its cells. For each photo they are taken one after
the other, with torch's forward pass on one thread between them, which makes no maps; so a ratio of
two of them holds on a machine that has other work too. Differences from Python are of logits, and
of the first map (rollout or Grad-CAM) as a share of its maximum. Photos go into the page as PNG,
for both to see the same pixels. What misses an aim is marked.
"""

import argparse
import base64
import math
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from vision_attn import live, load_model
from vision_attn.data import read_image
from vision_attn.methods import GradCAM, Rollout
from vision_attn.types import Model

AIMS = {
    "the file": (12, "MB"),
    "first answer": (2000, "ms"),
    "new photo": (300, "ms"),
    "grey stroke": (150, "ms"),
    "blurred stroke": (150, "ms"),
    "dropped patches": (150, "ms"),
    "logits": (1e-2, "apart"),
    "map": (2e-2, "of its maximum apart"),
}
LAUNCHES = 3  # of the browser, for the first answer
SHOW = """
  const show = async (at) => {
    items[at] = await live.open(at);
    state = { ...state, views: [{ ...state.views[0], item: at }] };
    await render();
  };
"""
NEW = f"""async ([data, type]) => {{
  {SHOW}
  const file = blobOf({{ type, text: data }});
  const start = performance.now();
  const at = live.show("new", () => live.load(file));
  await show(at);
  const took = performance.now() - start;
  const {{ logits, rollout, cams }} = live.photos[at].pristine[0].answer;
  const map = rollout ?? cams[0];
  return {{ at, took, logits: [...logits], map: [...map.values], target: map.target ?? null }};
}}"""
STROKE = f"""async ([at, cells, fill]) => {{
  {SHOW}
  const {{ cover }} = live.photos[at];
  live.fill = fill;
  const start = performance.now();
  cover.begin(items[at].cells);
  for (const cell of cells) cover.cells.add(cell);
  await show(at);
  return performance.now() - start;
}}"""
READY = "!live.busy && state.views.every(({ item }) => live.shown[item] === live.wanted(item))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("folder", type=Path, help="photos, PNG or JPEG, in any depth")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    files = [f for f in sorted(options.folder.rglob("*")) if f.suffix in (".jpg", ".JPEG", ".png")]
    chosen = random.Random(options.seed).sample(files, min(options.images, len(files)))
    torch.set_num_threads(1)
    measure(load_model(options.model), chosen)


def measure(model: Model, files: list[Path]) -> None:
    """Open the model's page, ask it and Python about each photo, print how they compare."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = live(model).save(Path(folder) / "page.html")
        say("the file", [file.stat().st_size / 1e6])
        first = []
        for _ in range(LAUNCHES):
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium") or shutil.which("google-chrome"),
                args=["--no-sandbox"],
            )
            page = browser.new_page(viewport={"width": 1280, "height": 860})
            page.set_default_timeout(0)
            first.append(1000 * opening(page, file))
            if len(first) < LAUNCHES:
                browser.close()
        say("first answer", first)
        report(page, model, files)
        browser.close()


def opening(page: Page, file: Path) -> float:
    """Seconds from the start of loading to the first answer on the screen."""
    start = time.perf_counter()
    page.goto(file.as_uri())
    while not page.evaluate(f"typeof live === 'object' && state.views.length > 0 && {READY}"):
        time.sleep(0.005)
    return time.perf_counter() - start


def say(name: str, values: list[float]) -> None:
    """Print a line: least, median and most, or the one value, and the aim where it is missed."""
    aim, unit = AIMS.get(name, (math.inf, "ms"))
    numbers = [min(values), statistics.median(values), max(values)] if len(values) > 1 else values
    marks = " / ".join(f"{value:.3g}" for value in numbers)
    worst = numbers[-1] if unit.endswith("apart") else statistics.median(values)
    missed = f"  MISSES its aim, {aim:g} {unit}" if worst > aim else ""
    print(f"{name}: {marks} {unit}{missed}", flush=True)


def report(page: Page, model: Model, files: list[Path]) -> None:
    """Ask the page and Python about each photo, and print how they compare."""
    fills = {"grey stroke": "grey", "blurred stroke": "blur"}
    if model.layout:
        fills["dropped patches"] = "drop"
    taken: dict[str, list[float]] = {name: [] for name in ("new photo", *fills, "torch")}
    agree, logits, maps = 0, [], []
    for number, file in enumerate(files):
        answer = ask(page, file)
        taken["new photo"].append(answer["took"])
        cells = random.Random(number).sample(range(answer["cells"]), 5)
        for name, fill in fills.items():
            taken[name].append(page.evaluate(STROKE, [answer["at"], cells, fill]))
        wanted = in_python(model, read_image(file), answer["target"])
        taken["torch"].append(wanted["took"])
        agree += np.argmax(answer["logits"]) == np.argmax(wanted["logits"])
        logits.append(np.abs(np.array(answer["logits"]) - wanted["logits"]).max())
        maps.append(np.abs(np.array(answer["map"]) - wanted["map"]).max() / wanted["map"].max())
    for name, values in taken.items():
        say(name, values)
    for name in fills:
        pairs = zip(taken[name], taken["torch"], strict=True)
        ratios = [stroke / forward for stroke, forward in pairs]
        print(f"{name}, in forward passes of torch: {statistics.median(ratios):.1f}")
    print(f"{len(files)} photos: the same class for {agree}")
    say("logits", logits)
    say("map", maps)


def ask(page: Page, file: Path) -> dict[str, Any]:
    """Give the page a photo: as PNG, so that both see the same pixels."""
    with tempfile.NamedTemporaryFile(suffix=".png") as png:
        read_image(file).save(png.name)
        data = base64.b64encode(Path(png.name).read_bytes()).decode()
    answer = page.evaluate(NEW, [data, "image/png"])
    grid = page.evaluate("live.networks[0].grid")
    return {**answer, "cells": grid[0] * grid[1]}


def in_python(model: Model, photo: Image.Image, target: int | None) -> dict[str, Any]:
    image = model.preprocess(photo)[None]
    start = time.perf_counter()
    with torch.inference_mode():
        logits = model.network(image)[0].numpy()
    took = 1000 * (time.perf_counter() - start)
    maps = (
        Rollout()(model.network, image) if model.layout else GradCAM()(model.network, image, target)
    )
    return {"took": took, "logits": logits, "map": maps.values[0].flatten().numpy()}


if __name__ == "__main__":
    main()
