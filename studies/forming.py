"""Writes docs/forming.md and its picture: how a ViT's heatmaps change as it learns.

    python studies/forming.py RUN [--data .data/imagenette160/val] [--images 100]

RUN is the folder of a run that kept a checkpoint of some epochs, epoch_4.ckpt and so on. These
options of `vision-attn fit` keep one every fourth:

    --trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint
    --trainer.callbacks.filename=epoch_{epoch} --trainer.callbacks.auto_insert_metric_name=false
    --trainer.callbacks.save_top_k=-1 --trainer.callbacks.every_n_epochs=4

Each checkpoint's maps are scored on the same photos, and on mosaics of those that the last one is
surest of. What is scored already is taken as it is. --quick makes it small, to see that it runs.
"""

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import vision_attn
from vision_attn import Model, load_model, render
from vision_attn.evaluate.bootstrap import bca
from vision_attn.methods import parse_method
from vision_attn.render import markdown_table
from vision_attn.runs.explain import Request
from vision_attn.runs.scoring import Scores
from vision_attn.runs.scoring.evidence import open_data
from vision_attn.runs.scoring.mosaics import Mosaic, MosaicSamples
from vision_attn.runs.scoring.scorer import GRIDS, Scorer, removal

DOCS = Path(__file__).parent.parent / "docs"
METHODS = "Rollout", "Relevance"
ASKED = "Relevance"  # a rollout is the same for every class
COLUMNS = 6  # epochs that are shown, the first and the last among them
SHOWN = 3  # photos of the picture
SIDE = 2  # photos a side of a mosaic

PAGE = """\
# Attention as it forms

A Vision Transformer learns the ten classes of Imagenette. After some of its epochs the same
{images} test photos were explained, each for its own class: by `Rollout`, which follows the
attention and is the same whatever class is asked for, and by `Relevance`, which weighs it by the
class's gradient.

![Photos, and their maps epoch by epoch](pictures/forming_photos.jpg)

One row for each photo and method; the maps of a row share their scale.

{table}
*Insertion - deletion* says how much more of the class's probability the map's first patches carry
than its last: about 0 for a random map. *In the mosaic*: the share of the map of a class that
lies on its photo among four, 0.25 by chance. Each number has its 95 % interval.

{verdict}

How this page was made: `python studies/forming.py`, on the checkpoints of one run,
[described in the journal](lab/journal/watched.md).
"""


@dataclass(frozen=True, eq=False)
class Epoch:
    """A network after so many epochs, its scores, and its shares in each mosaic."""

    number: int
    model: Model
    scores: Scores
    shares: list[float]

    def gap(self, method: str) -> torch.Tensor:
        """Insertion - deletion of each photo."""
        results = self.scores.results
        above, below = (results.numbers(name, method) for name in ("insertion", "deletion"))
        return torch.tensor([above[photo] - below[photo] for photo in above]).double()


def study() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run")
    parser.add_argument("--data", default=".data/imagenette160/val", metavar="FOLDER")
    parser.add_argument("--scores", type=Path, default=Path("outputs/forming"), metavar="DIR")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--output", type=Path, default=DOCS, help="where the page is written")
    parser.add_argument("--quick", action="store_true", help="small, to see that it runs")
    args = parser.parse_args()
    if args.quick:
        args.images = min(args.images, 4)
    files = checkpoints(args.run)
    if not files:
        parser.error(f"{args.run}: no epoch_N.ckpt in it: the first lines of this file say how")
    models = {number: load_model(file) for number, file in files.items()}
    named = naming(models[max(models)], args)
    epochs = [measured(number, model, named, args) for number, model in models.items()]
    (args.output / "pictures").mkdir(parents=True, exist_ok=True)
    render.save(picture(epochs, named, args.data), args.output / "pictures" / "forming_photos.jpg")
    page = PAGE.format(images=args.images, table=table(epochs), verdict=verdict(epochs))
    (args.output / "forming.md").write_text(page, encoding="utf-8")
    print(args.output / "forming.md")


def checkpoints(run: Path) -> dict[int, Path]:
    """The checkpoints to show, by the number of epochs that they have seen, evenly spread."""
    found = {}
    for file in run.rglob("epoch_*.ckpt"):
        if number := re.fullmatch(r"epoch_(\d+)", file.stem):
            found[int(number[1]) + 1] = file  # Lightning counts from 0
    every = sorted(found)
    places = np.linspace(0, len(every) - 1, min(len(every), COLUMNS)).round().astype(int)
    return {every[i]: found[every[i]] for i in places}


def naming(last: Model, args: argparse.Namespace) -> Scores:
    """Score the last network with mosaics: which photos it is surest of is kept with its scores."""
    return vision_attn.score(
        last, args.data, list(METHODS), limit=args.images, steps=2 if args.quick else 16,
        mosaic=SIDE, output=args.scores / "last", name="last",
    )  # fmt: skip


def measured(number: int, model: Model, named: Scores, args: argparse.Namespace) -> Epoch:
    """Score one network, on the same photos and mosaics as the last."""
    folder = args.scores / f"epoch_{number}"
    scores = vision_attn.score(
        model, args.data, list(METHODS), limit=args.images, steps=2 if args.quick else 16,
        output=folder, name=f"epoch {number}",
    )  # fmt: skip
    kept = folder / "mosaics.json"
    if not kept.is_file():
        shares = in_mosaics(model, named, args.data)
        kept.write_text(json.dumps(shares))
    return Epoch(number, model, scores, json.loads(kept.read_text()))


def in_mosaics(model: Model, named: Scores, data: str) -> list[float]:
    """The mean share of a map on the photo asked for, of each of the last network's mosaics."""
    samples = open_data(data, model, Path())
    places = {name: item for item, name in enumerate(samples.names)}
    mosaics = []
    for one in named.results.by_method["mosaic", ASKED]:
        items = tuple(places[photo] for photo in one["photos"])
        labels = [samples.label(item) for item in items]
        classes = tuple(label for label in labels if label is not None)  # each has one
        mosaics.append(Mosaic(one["image"], SIDE, items, classes))
    framed = MosaicSamples(model, samples, mosaics, named.results.mosaics[0].frame)
    scorer = Scorer(Request(model, []), removal(model))
    records = [
        scorer.records("mosaic", parse_method(ASKED), scorer.batch([framed[i]]))
        for i in range(len(mosaics))
    ]
    return [one["scores"][GRIDS[SIDE]] for found in records for one in found if "scores" in one]


def table(epochs: list[Epoch]) -> str:
    rows = []
    for one in epochs:
        right = one.scores.results.accuracy()
        cells = [in_words(one.gap(method)) for method in METHODS]
        shares = in_words(torch.tensor(one.shares).double())
        rows.append([str(one.number), f"{right[0]:.0%}" if right else "", *cells, shares])
    heads = [f"{method}: insertion - deletion" for method in METHODS]
    return markdown_table(["epochs", "named right", *heads, f"{ASKED} in the mosaic"], rows)


def in_words(values: torch.Tensor) -> str:
    """A mean with its 95 % interval."""
    if len(values) < 2:
        return ""
    low, high = bca(values)
    return f"{values.mean():.3f} [{low:.3f}, {high:.3f}]"


def verdict(epochs: list[Epoch]) -> str:
    """When each method's gap first leaves 0 out for good, and how far it has come by the end."""
    sentences = []
    for method in METHODS:
        gaps = [bca(one.gap(method)) for one in epochs]
        late = [i for i, gap in enumerate(gaps) if gap.low <= 0]
        first = late[-1] + 1 if late else 0
        if first == len(epochs):
            sentences.append(f"`{method}` never shows more than a random map.")
        else:
            at_the_end = epochs[-1].gap(method).mean()
            sentences.append(
                f"`{method}` is better than a random map from {epochs[first].number} epochs on "
                "(the interval lies above 0); insertion minus deletion is "
                f"{at_the_end:.3f} at the end."
            )
    return " ".join(sentences)


def picture(epochs: list[Epoch], named: Scores, data: str) -> np.ndarray:
    """For each photo a row a method: the photo, and its maps epoch by epoch in one scale.

    The photos are those of the first mosaic, of which the last network is surest.
    """
    last = epochs[-1].model
    samples = open_data(data, last, Path())
    places = {name: item for item, name in enumerate(samples.names)}
    panels = []
    for name in named.results.by_method["mosaic", ASKED][0]["photos"][:SHOWN]:
        sample = samples[places[name]]
        assert sample.label is not None  # mosaics are of photos that are named right
        mean, std = torch.tensor([last.preprocess.mean, last.preprocess.std])[..., None, None]
        pixels = ((sample.image * std + mean) * 255).round().clamp(0, 255).byte()
        photo = render.enlarged(pixels.permute(1, 2, 0).numpy())
        for method in METHODS:
            explainer = parse_method(method)
            found = [
                explainer(one.model.network, sample.image[None], [sample.label], one.model.layout)
                for one in epochs
            ]
            masses = [one.prefix_mass for one in found]
            known = [float(mass[0]) for mass in masses if mass is not None]
            values = np.stack([one.values[0].numpy() for one in found])
            scale = render.natural(values, np.array(known) if known else None)
            panels.append(render.Panel(f"{last.classes[sample.label]}: {method}", photo))
            for one, each in zip(epochs, values, strict=True):
                painted = render.overlay(photo, each, scale=scale)
                panels.append(render.Panel(f"{one.number} epochs", painted))
    sheet = render.heatmap_grid(panels, columns=1 + len(epochs))
    return np.asarray(Image.fromarray(sheet).reduce(2))


if __name__ == "__main__":
    study()
