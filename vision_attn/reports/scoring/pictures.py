"""Pictures of scores: curves, the sanity check, the best and the worst images.

Axes: h, w the network's input.
"""

from pathlib import Path

import numpy as np
import torch

from vision_attn import render
from vision_attn.evaluate.sanity import layers_from_the_top
from vision_attn.render.picture import Picture
from vision_attn.render.scores import Curves, Ranked, best_and_worst, outlined, small_curves
from vision_attn.reports.scoring.evidence import Sample
from vision_attn.reports.scoring.results import METRICS, NAMES, Results, short
from vision_attn.reports.scoring.tasks import Work
from vision_attn.types import Preprocessing

SHOWN = 3  # best images of a method, and as many of the worst
OUTLINES = {"object": (255, 255, 255), "shortcut": (255, 214, 10)}


def curves(results: Results) -> Picture:
    """Deletion and insertion of each method, the best deletion first."""
    panels = {}
    for method, row in results.table.items():
        lines = {n: results.curve(n, method) for n in ("deletion", "insertion")}
        known = {n: line.numpy() for n, line in lines.items() if line is not None}
        if len(known) == 2:
            note = ", ".join(f"{n} {short(row[n]['mean'])}" for n in known)
            panels[method] = Curves(method, known, note)
    references = [panels[name] for name in NAMES if name in panels]
    return small_curves(
        list(panels.values()),
        references,
        "The probability of the class as the map's largest cells go first, or come first",
        "share of the image removed, or inserted",
    )


def sanity(results: Results, work: Work) -> Picture:
    """How like itself each map stays as the weights are lost; a useful one does not."""
    panels = []
    for method in results.table:
        lines = {n: results.curve(n, method) for n in ("rank correlation", "ssim")}
        known = {n: np.r_[1, line.numpy()] for n, line in lines.items() if line is not None}
        if len(known) == 2:
            note = f"mean |rank correlation| {short(results.mean('randomisation', method).value)}"
            panels.append(Curves(method, known, note))
    title = "How like itself a map stays as the weights are lost, from the top down: low is good"
    return small_curves(panels, [], title, "lost down to", ["intact", *layers(work)])


def layers(work: Work) -> list[str]:
    return [name for name, _ in layers_from_the_top(work.model.network)]


def ranked(results: Results, work: Work) -> Picture:
    """The images of each method that score best and worst."""
    metric, words = ranking_metric(results)
    places = {name: item for item, name in enumerate(work.data.names)}
    rows = []
    for method in results.table:
        numbers = results.numbers(metric, method)
        sign = 1 if METRICS[metric].higher_is_better else -1
        order = sorted(numbers, key=lambda image: -sign * numbers[image])
        count = min(SHOWN, len(order))
        if not count:
            continue
        images = order[:count] + order[-count:][::-1]
        task = tuple(dict.fromkeys(places[image] for image in images))
        batch, _ = work.read(task)
        if batch is None:
            continue
        maps = work.scorer.explain(
            work.explainers[method], work.model.network, batch.images, batch.targets
        )
        painted = {
            sample.name: paint(sample, maps[i], work.model.preprocess)
            for i, sample in enumerate(batch.samples)
        }
        shown = [
            (painted[image], f"{short(numbers[image])}  {Path(image).name}")
            for image in images
            if image in painted
        ]
        mean = results.table[method][metric]["mean"]
        rows.append(Ranked(method, f"mean {short(mean)}", shown[:count], shown[count:]))
    return best_and_worst(rows, f"Best and worst by {words}")


def ranking_metric(results: Results) -> tuple[str, str]:
    """By what images are ranked: as fine a measure of the truth as there is."""
    for metric, words in (
        ("average_precision", "average precision on the object"),
        ("energy_inside", "energy inside the box"),
    ):
        if metric in results.metrics:
            return metric, words
    return "insertion", "insertion"


def paint(sample: Sample, values: torch.Tensor, preprocess: Preprocessing) -> Picture:
    """The image as the network sees it under its map, with the outlines of what is known."""
    mean, std = (torch.tensor(v)[:, None, None] for v in (preprocess.mean, preprocess.std))
    pixels = ((sample.image * std + mean).clamp(0, 1) * 255).round().byte()
    photo = render.enlarged(pixels.permute(1, 2, 0).numpy())
    picture = render.overlay(photo, values, scale=render.natural(values.cpu().numpy()))
    for name, mask in sample.masks.items():
        picture = outlined(picture, mask.numpy(), OUTLINES[name])
    return picture
