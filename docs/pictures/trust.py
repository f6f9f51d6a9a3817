"""A map to trust and one not to trust, each with what is left when it covers the photo.

python docs/pictures/trust.py    docs/pictures/trusted.jpg
"""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

import vision_attn
from vision_attn import render
from vision_attn.evaluate import FilledCells

HERE = Path(__file__).parent
NETWORK, PHOTO = "vision_attn:compact_vit_imagenette", "church"
METHODS = "LibraGradient(smooth=1.0)", "Rollout"
SHARE = 1 / 3  # of the cells that are covered, the brightest first


def main() -> None:
    model = vision_attn.load_model(NETWORK)
    assert model.trust is not None  # the network of the package was scored
    photo = vision_attn.sample(PHOTO)
    found = model.explain(photo, METHODS)
    (name, before), *_ = found.classes(1)
    large = render.enlarged(np.asarray(found.photo))
    print(name, f"{before:.0%}")
    panels = []
    for method, panel in zip(METHODS, found.panels()[1:], strict=True):
        verdict = "passed" if method in model.trust.methods else "did not pass"
        panels.append(render.Panel(f"{method.partition('(')[0]}: {verdict}", panel.picture))
        cells = brightest(found[method].values)
        after = probability(model, photo, cells)
        words = f"a third covered: {name} {after:.0%}"
        panels.append(render.Panel(words, covered(model, large, cells)))
    sheet = Image.fromarray(render.heatmap_grid(panels, columns=2))
    sheet.thumbnail((840, 1400))
    sheet.save(HERE / "trusted.jpg", quality=85)
    print(HERE / "trusted.jpg")
    for panel in panels:
        print(panel.title)


def brightest(values: np.ndarray) -> np.ndarray:
    """Whether each cell is among the brightest third, (h w)."""
    order = np.argsort(-values.ravel(), kind="stable")
    chosen = np.zeros(values.size, bool)
    chosen[order[: round(SHARE * values.size)]] = True
    return chosen.reshape(values.shape)


def probability(model: vision_attn.Model, photo: Image.Image, cells: np.ndarray) -> float:
    """Probability of the photo's class with these cells grey, as the scores hide them."""
    index = model.classes.index(PHOTO)
    chosen = torch.from_numpy(cells.ravel())
    order = torch.cat([(~chosen).nonzero()[:, 0], chosen.nonzero()[:, 0]])[None]
    removal = FilledCells(model.network, cells.shape)
    with torch.no_grad():
        logits = removal.logits(model.preprocess(photo)[None], order, [int((~chosen).sum())])[0]
    return float(model.calibration.probabilities(logits)[0, index])


def covered(model: vision_attn.Model, photo: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """The photo with these cells in the mean colour."""
    size = photo.shape[1], photo.shape[0]
    left, top, right, bottom = map(round, model.preprocess.box(size))
    shown = photo.copy()
    seen = shown[top:bottom, left:right]
    rows, columns = (np.arange(n) * c // n for n, c in zip(seen.shape, cells.shape, strict=False))
    seen[cells[rows[:, None], columns]] = np.rint(255 * np.array(model.preprocess.mean))
    return shown


if __name__ == "__main__":
    main()
