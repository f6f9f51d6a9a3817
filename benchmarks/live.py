"""The page that runs a network, in a headless Chromium: its size and times, and how exact it is.

    python benchmarks/live.py vision_attn:senet_imagenette .data/imagenette160/val --images 200

Times are of the page itself: the first answer from the start of loading; a new photo from its file
to the answer, and a brush stroke from the cells to the answer, each without what the screen takes.
They stand beside torch's forward pass on one thread, which does not make maps. Differences from
Python are of logits, and of the first map (rollout or Grad-CAM) as a share of its maximum; photos
whose page decodes JPEG differently differ in both.
"""

import argparse
import base64
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
from vision_attn.explain import GradCAM, Rollout
from vision_attn.types import Model

NEW = """async ([data, type]) => {
  const file = blobOf({ type, text: data });
  const start = performance.now();
  const at = live.show("new", live.load(file));
  items[at] = await live.open(at);
  const took = performance.now() - start;
  const { logits, rollout, cams } = live.photos[at].pristine[0].answer;
  const map = rollout ?? cams[0];
  return { at, took, logits: [...logits], map: [...map.values], target: map.target ?? null };
}"""
STROKE = """async ([at, cells, fill]) => {
  const { cover } = live.photos[at];
  live.fill = fill;
  cover.begin(items[at].cells);
  for (const cell of cells) cover.cells.add(cell);
  const start = performance.now();
  items[at] = await live.open(at);
  return performance.now() - start;
}"""
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
    model = load_model(options.model)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = live(model).save(Path(folder) / "page.html")
        print(f"the file: {page_file.stat().st_size / 1e6:.1f} MB")
        path = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        start = time.perf_counter()
        page.goto(page_file.as_uri())
        while not page.evaluate(f"typeof live === 'object' && state.views.length > 0 && {READY}"):
            time.sleep(0.005)
        print(f"first answer: {time.perf_counter() - start:.2f} s")
        report(page, model, chosen)
        browser.close()


def report(page: Page, model: Model, files: list[Path]) -> None:
    """Ask the page and Python about each photo, and print how they compare."""
    found = []
    for number, file in enumerate(files):
        answer = ask(page, file)
        cells = random.Random(number).sample(range(answer["cells"]), 5)
        answer["strokes"] = [
            page.evaluate(STROKE, [answer["at"], cells, fill]) for fill in ("grey", "blur")
        ]
        found.append((answer, in_python(model, read_image(file), answer["target"])))
    times = [
        ("a new photo", [answer["took"] for answer, _ in found]),
        ("a grey stroke", [answer["strokes"][0] for answer, _ in found]),
        ("a blurred stroke", [answer["strokes"][1] for answer, _ in found]),
        ("torch, one thread", forward_times(model)),
    ]
    for name, values in times:
        low, middle, high = min(values), statistics.median(values), max(values)
        print(f"{name}: {low:.0f} / {middle:.0f} / {high:.0f} ms (min / median / max)")
    apart = [np.abs(np.array(a["logits"]) - p["logits"]).max() for a, p in found]
    agree = sum(np.argmax(a["logits"]) == np.argmax(p["logits"]) for a, p in found)
    maps = [np.abs(np.array(a["map"]) - p["map"]).max() / p["map"].max() for a, p in found]
    print(f"{len(found)} photos: the same class for {agree}")
    for name, values in (("logits", apart), ("map, of its maximum", maps)):
        print(f"{name}: {statistics.median(values):.1e} apart (median), {max(values):.1e} at most")


def ask(page: Page, file: Path) -> dict[str, Any]:
    """Give the page a photo: as PNG, so that both see the same pixels."""
    with tempfile.NamedTemporaryFile(suffix=".png") as png:
        read_image(file).save(png.name)
        data = base64.b64encode(Path(png.name).read_bytes()).decode()
    answer = page.evaluate(NEW, [data, "image/png"])
    grid = page.evaluate("live.networks[0].grid")
    return {**answer, "cells": grid[0] * grid[1]}


def in_python(model: Model, photo: Image.Image, target: int | None) -> dict[str, np.ndarray]:
    image = model.preprocess(photo)[None]
    with torch.no_grad():
        logits = model.network(image)[0].numpy()
    maps = (
        Rollout()(model.network, image) if model.layout else GradCAM()(model.network, image, target)
    )
    return {"logits": logits, "map": maps.values[0].flatten().numpy()}


def forward_times(model: Model, rounds: int = 21) -> list[float]:
    torch.set_num_threads(1)
    image = torch.zeros(1, 3, *model.preprocess.input_size)
    taken = []
    with torch.inference_mode():
        for _ in range(rounds):
            start = time.perf_counter()
            model.network(image)
            taken.append(1000 * (time.perf_counter() - start))
    return taken[1:]


if __name__ == "__main__":
    main()
