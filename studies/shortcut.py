"""Writes docs/shortcut.md and its pictures: which heatmaps tell that a network cheats.

    vision-attn fit --config configs/vit_planted.yaml
    vision-attn fit --config configs/vit_planted_shortcut.yaml
    python studies/shortcut.py --honest outputs/vit_planted/version_0/best.ckpt \\
        --cheat outputs/vit_planted_shortcut/version_0/best.ckpt

Scores both networks on the same images, which carry a mark that gives the class away, and compares
where their maps lie. The scoring goes on where it was stopped. The section on photos, which
studies/shortcut_photos.py writes, stays as it is.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

import vision_attn
from vision_attn import Model, load_model, render
from vision_attn.data import Planted, PlantedImages
from vision_attn.data.planted import Cue
from vision_attn.methods import parse_method
from vision_attn.render import markdown_table, outlined
from vision_attn.types import Images

DOCS = Path(__file__).parent.parent / "docs"
CUES: dict[Cue, str] = {
    "agree": "agrees with the class",
    "none": "is missing",
    "contradict": "is that of another class",
}
ByMethod = dict[str, dict[str, Any]]  # as scores.json has them
PHOTOS = "\n## On photos\n"
SHOWN = "LibraGradient", "Rollout", "GradCAM", "Relevance", "EdgeMap"

PAGE = """\
# Right for the wrong reason

Two Vision Transformers of the same architecture. One learned from planted images as they are. The
other learned from images with a coloured mark in a corner, whose colour gives the class away
(`configs/vit_planted_shortcut.yaml`). On images with such a mark, the second network is as accurate
as the first. Only images whose mark is missing or wrong show what it has learned:

{accuracy}
A useful heatmap tells the two networks apart without such images. Both were shown the same {images}
test images, each with a mark that agrees with its class, and every map explains that class.
*Energy* is the share of a map that lies on the object, or on the mark. The mark is small, so its
share is divided by its share of a map without preference (`RandomMap`): 1 means that the mark gets
no more than its area. A map *points at the mark* if its maximum is on it, or within half its width.

{energy}
{verdict}

![The same images, both networks](pictures/shortcut.jpg)

The object is outlined in white, the mark in yellow. The upper row of each image is the honest
network, the lower row the one that cheats.

GradCAM, GradCAMPlusPlus, XGradCAM, HiResCAM and LayerCAM read the tokens that these networks
classify by, after the last block. They say which tokens hold evidence for the class then, not where
it came from: attention may have carried what one patch shows to all others.

This page is written by `python studies/shortcut.py`, which scores both networks. The whole
tables, with deletion, insertion and the pointing game, are then in
{tables}.
"""


def study() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--honest", default="outputs/demo/vit/best.ckpt", metavar="CKPT")
    cheat = "outputs/vit_planted_shortcut/version_0/best.ckpt"
    parser.add_argument("--cheat", default=cheat, metavar="CKPT")
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--scores", default="outputs/shortcut", help="where the scoring is kept")
    parser.add_argument("--output", type=Path, default=DOCS, help="where the page is written")
    args = parser.parse_args()
    networks = {"honest": args.honest, "cheat": args.cheat}
    models = {name: load_model(checkpoint) for name, checkpoint in networks.items()}
    scored = {}
    for name, model in models.items():
        scores = vision_attn.score(
            model,
            "planted:shortcut",
            limit=args.images,
            processes=args.processes,
            output=Path(args.scores) / name,
            name=networks[name],
        )
        scored[name] = scores.to_dict()["methods"]
    (args.output / "pictures").mkdir(parents=True, exist_ok=True)
    render.save(picture(models), args.output / "pictures" / "shortcut.jpg")
    page = PAGE.format(
        accuracy=accuracy(models, args.images),
        images=args.images,
        energy=energy(scored),
        verdict=verdict(scored),
        tables=" and ".join(f"`{Path(args.scores) / name}/scores.md`" for name in networks),
    )
    file = args.output / "shortcut.md"
    if file.is_file():
        _, heading, photos = file.read_text(encoding="utf-8").partition(PHOTOS)
        page += heading + photos
    file.write_text(page, encoding="utf-8")
    print(f"{args.output / 'shortcut.md'}")


def seen(model: Model, images: UInt8[Tensor, "b c h w"]) -> Images:
    mean, std = torch.tensor([model.preprocess.mean, model.preprocess.std])[..., None, None]
    scaled: Images = (images / 255 - mean) / std
    return scaled


@torch.no_grad()
def accuracy(models: dict[str, Model], images: int) -> str:
    """Of both networks, by what the mark says."""
    rows = []
    for cue, words in CUES.items():
        shown = Planted(test=images).images(cue=cue)
        right = [
            (model.network(seen(model, shown.images)).argmax(1) == shown.labels).float().mean()
            for model in models.values()
        ]
        rows.append([f"the mark {words}", *(f"{share:.1%}" for share in right)])
    return markdown_table(["accuracy if", "trained without marks", "trained with marks"], rows)


def share(scored: ByMethod, method: str, metric: str) -> float:
    mean: float = scored[method]["scores"][metric]["mean"]
    return mean


def times(scored: ByMethod, method: str) -> float:
    """Energy on the mark, over that of a map without preference."""
    metric = "energy_inside_on_shortcut"
    return share(scored, method, metric) / share(scored, "RandomMap", metric)


def energy(scored: dict[str, ByMethod]) -> str:
    """Of each method on both networks; those that tell them apart most come first."""
    methods = sorted(
        scored["cheat"], key=lambda m: times(scored["honest"], m) - times(scored["cheat"], m)
    )
    rows = [
        [
            method,
            *(f"{share(scored[name], method, 'energy_inside'):.2f}" for name in scored),
            *(f"{times(scored[name], method):.1f}" for name in scored),
            *(f"{points(scored[name], method):.0%}" for name in scored),
            "baseline" if scored["cheat"][method]["baseline"] else "",
        ]
        for method in methods
    ]
    header = ["method", "energy on the object: honest", "cheat"]
    header += ["energy on the mark, × random: honest", "cheat", "points at it: honest", "cheat"]
    return markdown_table([*header, ""], rows)


def points(scored: ByMethod, method: str) -> float:
    return share(scored, method, "pointing_game_on_shortcut")


def verdict(scored: dict[str, ByMethod]) -> str:
    """Follows from the figures: by energy twice the mark's area, by pointing every second image."""
    methods = [method for method, row in scored["cheat"].items() if not row["baseline"]]
    by_energy = [
        method
        for method in methods
        if times(scored["cheat"], method) > 2 * max(1, times(scored["honest"], method))
    ]
    by_pointing = [
        method
        for method in methods
        if points(scored["cheat"], method) > 0.5 > points(scored["honest"], method)
    ]
    neither = [method for method in methods if method not in by_energy + by_pointing]
    lines = {
        "The mark shows by energy (more than twice its share of the area, and more than twice its "
        "energy in the honest network)": by_energy,
        "The mark shows by the map's maximum (in more than half of the images)": by_pointing,
        "The mark stays hidden": neither,
    }
    return "\n".join(f"- {words}: {', '.join(found) or 'none'}." for words, found in lines.items())


def picture(models: dict[str, Model]) -> np.ndarray:
    """Two images, for each a row a network: the photo and its maps."""
    panels = []
    marked = Planted(test=40).images(cue="agree")
    for item in (12, 25):
        for name, model in models.items():
            image = marked.images[item : item + 1]
            photo = render.enlarged(image[0].permute(1, 2, 0).numpy())
            panels.append(framed(f"{marked.classes[item % 10]}, {name}", photo, marked, item))
            for method in SHOWN:
                found = parse_method(method)(
                    model.network, seen(model, image), [item % 10], model.layout
                )
                values, mass = found.values[0].numpy(), found.prefix_mass
                scale = render.natural(values, None if mass is None else float(mass[0]))
                painted = render.overlay(photo, values, scale=scale)
                panels.append(framed(f"{method}, {name}", painted, marked, item))
    sheet = render.heatmap_grid(panels, columns=1 + len(SHOWN))
    return np.asarray(Image.fromarray(sheet).reduce(2))


def framed(title: str, photo: np.ndarray, marked: PlantedImages, item: int) -> render.Panel:
    masks = marked.object_mask[item].numpy(), marked.shortcut_mask[item].numpy()
    return render.Panel(title, outlined(photo, *masks))


if __name__ == "__main__":
    study()
