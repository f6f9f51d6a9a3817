"""Pictures of scores: curves, the sanity check, the best and the worst images.

All are drawn from numbers and maps that are kept; no network runs here. Axes: h, w the network's
input, y, x a map.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from vision_attn import render
from vision_attn.data.faults import ImageError
from vision_attn.render.picture import Picture
from vision_attn.render.scores import Curves, Ranked, best_and_worst, outlined, small_curves
from vision_attn.runs.scoring.evidence import Sample, Samples
from vision_attn.runs.scoring.results import NAMES, Results, short
from vision_attn.runs.scoring.scorer import KeptMap
from vision_attn.types import Preprocessing

__all__ = ["curves", "paint", "ranked", "sanity"]


def curves(results: Results) -> Picture:
    """Deletion and insertion of each method."""
    panels = {}
    for method, row in results.table.items():
        lines = {n: results.curve(n, method) for n in ("deletion", "insertion")}
        known = {n: line.numpy() for n, line in lines.items() if line is not None}
        if len(known) == 2:
            note = ", ".join(f"{n} {short(row[n]['mean'])}" for n in known)
            panels[method] = Curves(results.titled(method), known, note)
    references = [panels[name] for name in NAMES if name in panels]
    of = "The class's probability" if results.unit is None else capital(results.explained)
    return small_curves(
        list(panels.values()),
        references,
        f"{of} as the map's largest cells are removed first, or inserted first",
        "share of the image removed, or inserted",
    )


def capital(text: str) -> str:
    """Begin a text with a capital letter."""
    return text[:1].upper() + text[1:]


def sanity(results: Results) -> Picture:
    """How similar each map stays as the weights are randomised; a useful one changes."""
    panels = []
    for method in results.table:
        lines = {n: results.curve(n, method) for n in ("rank correlation", "ssim")}
        known = {n: np.r_[1, line.numpy()] for n, line in lines.items() if line is not None}
        if len(known) == 2:
            note = f"mean |rank correlation| {short(results.mean('randomisation', method).value)}"
            panels.append(Curves(results.titled(method), known, note))
    title = "How similar a map stays as the weights are randomised from the top down: low is good"
    return small_curves(panels, [], title, "randomised down to", ["intact", *results.layers])


def ranked(
    results: Results, data: Samples, drawn: Mapping[tuple[str, str], KeptMap]
) -> Picture | None:
    """The images of each method that score best and worst; None if the map of none is kept.

    drawn: the maps by method and image; an image without one, or that cannot be read again, is
    left out.
    """
    metric, words = results.ranking
    places = {name: item for item, name in enumerate(data.names)}
    rows = []
    for method in results.table:
        numbers = results.numbers(metric, method)
        sides: list[list[tuple[Picture, str]]] = []
        for images in results.extremes(method):
            sides.append([])
            for image in images:
                try:
                    if one := drawn.get((method, image)):
                        picture = paint(data.sample(places[image]), one, data.preprocess)
                        note = f"{short(numbers[image])}  {Path(image).name}"
                        sides[-1].append((picture, note))
                except ImageError:
                    continue
        if sides[0] or sides[1]:
            mean = results.table[method][metric]["mean"]
            kind = "baseline, " if method in results.baselines else ""
            rows.append(Ranked(method, f"{kind}mean {short(mean)}", *sides))
    return best_and_worst(rows, f"Best and worst by {words}") if rows else None


def paint(sample: Sample, drawn: KeptMap, preprocess: Preprocessing) -> Picture:
    """The image as the network sees it under its map, with the outlines of what is known."""
    mean, std = (
        torch.tensor(v, dtype=torch.float32, device="cpu")[:, None, None]
        for v in (preprocess.mean, preprocess.std)
    )
    pixels = ((sample.image * std + mean).clamp(0, 1) * 255).round().byte()
    pixels = pixels[:3] if len(pixels) >= 3 else pixels[:1].expand(3, -1, -1)
    photo = render.enlarged(pixels.permute(1, 2, 0).numpy())
    scale = render.natural(drawn.values, drawn.prefix_mass)
    picture = render.overlay(photo, drawn.values, scale=scale)
    masks = [sample.masks[name].numpy() for name in ("object", "shortcut") if name in sample.masks]
    return outlined(picture, *masks)
