"""Writes the photo section of docs/shortcut.md, and its picture: which maps tell of a pasted cue.

    python studies/shortcut_photos.py [--data .data] [--runs outputs/cues] [--images 100]

Trains four networks on imagenette160, a squeeze-and-excitation ResNet and a compact ViT, each once
on the photos as they are and once on photos of which three classes carry a cue: a sticker, a
caption, a frame. Then each method is asked about photos with the cue, by all four. What is trained
or scored already is taken as it is, and a stopped training goes on. --quick makes it all small, to
see that it runs.
"""

import argparse
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import vision_attn
from vision_attn import Model, load_model, render
from vision_attn.data import Caption, Cue, Frame, Sticker, find_images, read_image
from vision_attn.data.draws import uniforms
from vision_attn.evaluate import auc, auc_interval
from vision_attn.methods import parse_method
from vision_attn.render import markdown_table, outlined
from vision_attn.runs.scoring import Scores
from vision_attn.runs.scoring.evidence import Sample, Samples
from vision_attn.tokens.outputs import class_logits

DOCS = Path(__file__).parent.parent / "docs"
HEADING = "\n## On photos\n"  # of the section, which goes to the end of the page
ENERGY = "energy_inside_on_shortcut"
TELLS = 0.75  # AUC: a method tells the networks apart where its interval lies above this
FEWEST = 20  # photos: intervals of fewer tell nothing
SEED = 0
# The same for all networks, so that the baselines see the same images.
SCALE = {"data.mean": [0.465, 0.458, 0.429], "data.std": [0.285, 0.28, 0.301]}
SIZE = 80  # pixels
KINDS = "honest", "cheating"


@dataclass(frozen=True)
class Pasted:
    """A cue, the class of Imagenette that carries it, and both in words."""

    cue: Cue
    wnid: str
    words: str
    what: str


CUES = (
    Pasted(Sticker(), "n03028079", "church", "sticker"),
    Pasted(Caption(), "n03417042", "garbage truck", "caption"),
    Pasted(Frame(), "n03888257", "parachute", "frame"),
)
SOURCE = "vision_attn.data.ImageFolder"
NETWORKS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "SENet": (
        "senet_imagefolder",
        {
            "model.network.stem": "3x3",  # maps of 10 x 10, as the ViT's
            "model.network.widths": [16, 32, 64, 128],
            "trainer.max_epochs": 12,
        },
        ("GradCAM", "LayerCAM", "IntegratedGradients", "Occlusion"),
    ),
    "compact ViT": (
        "compact_vit_cifar10",
        {
            "model.network.image_size": SIZE,
            "model.network.patch_size": 8,
            "data.augment": [{"class_path": "vision_attn.data.Flip"}],
            "trainer.max_epochs": 10,
        },
        ("LibraGradient", "Rollout", "GradCAM", "IntegratedGradients"),
    ),
}

SECTION = """
Planted images are drawn. The same question on photos: a SENet and a compact ViT learned the ten
classes of Imagenette from its 9,469 training photos at 80 pixels, once as they are (*honest*), once
with a cue in {share} of the photos of three classes (*cheating*): {cues}.
Nothing else differs. One network of each kind was trained, with one seed.

{accuracy}
Where a cheating network looks at the cue, a useful map says so. All four were shown {images} test
photos of each of these classes with its cue, explained for that class; where the cue lies is known
to the pixel. *Energy* is the share of a map that lies on the cue, over that of a map without
preference (`RandomMap`). *AUC* is the chance that the energy on a photo by the cheating network is
larger than that on another by the honest one, with its 95 % interval (bootstrap over photos): 1
tells them apart, 0.5 does not, and the baselines, which know nothing of the network, have that.
{tables}
{verdict}

![The same photos, an honest and a cheating network](pictures/shortcut_photos.jpg)

The cue is outlined; above the honest network, below the one that cheats.

How this section was made: `python studies/shortcut_photos.py --images {images}`, which trains
and scores the four networks.
"""


class Marked(Samples):
    """Photos of one folder with a cue in each, as a model sees them, explained for one class."""

    def __init__(self, model: Model, folder: Path, pasted: Pasted):
        super().__init__(model)
        self.files = find_images([folder])
        self.names = [file.relative_to(folder).as_posix() for file in self.files]
        self.name = f"{pasted.cue} on {folder.name}"
        self.cue, self.target = pasted.cue, model.class_index(pasted.wnid)

    def label(self, item: int) -> int:
        return self.target

    def __getitem__(self, item: int) -> Sample:
        photo = self.preprocess(read_image(self.files[item]))
        mean, std = torch.tensor([self.preprocess.mean, self.preprocess.std])[..., None, None]
        pixels = ((photo * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
        cued = self.cue.paint(pixels[None], uniforms((SEED,), np.array([item]), 2))
        image = (cued.images[0].float() / 255 - mean) / std
        return Sample(self.names[item], image, self.target, {"shortcut": cued.mask[0]})


def study() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--data", default=".data", metavar="DIR", help="where imagenette160 lies")
    parser.add_argument("--runs", type=Path, default=Path("outputs/cues"), metavar="DIR")
    parser.add_argument("--images", type=int, default=100, help="photos of each class")
    parser.add_argument("--share", type=float, default=1.0, help="of photos that carry the cue")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--output", type=Path, default=DOCS, help="where the page lies")
    parser.add_argument("--quick", action="store_true", help="small, to see that it runs")
    args = parser.parse_args()
    if args.quick:
        args.images = min(args.images, 6)
    folder = Path(args.data).resolve() / "imagenette160"
    models = {
        (network, kind): load_model(trained(args, network, kind))
        for network in args.networks
        for kind in KINDS
    }
    scores = {
        (*which, pasted.what): scored(args, model, folder, which, pasted)
        for which, model in models.items()
        for pasted in CUES
    }
    tables = [f"\n### {network}\n\n{table(scores, network)}" for network in args.networks]
    section = SECTION.format(
        share="all" if args.share == 1 else f"{args.share:.0%}",
        cues="; ".join(f"a {one.what} says {one.words}" for one in CUES),
        accuracy=accuracy(models, folder, args.images),
        images=args.images,
        tables="\n".join(tables),
        verdict="\n".join(verdict(scores, network) for network in args.networks),
    )
    (args.output / "pictures").mkdir(parents=True, exist_ok=True)
    render.save(picture(models, folder), args.output / "pictures" / "shortcut_photos.jpg")
    page = args.output / "shortcut.md"
    before = page.read_text(encoding="utf-8").partition(HEADING)[0] if page.is_file() else ""
    page.write_text(before.rstrip() + "\n" + HEADING + section, encoding="utf-8")
    print(page)


def trained(args: argparse.Namespace, network: str, kind: str) -> Path:
    """Train a network, or go on with it, and return its checkpoint."""
    config, overrides, _ = NETWORKS[network]
    name = f"{network.replace(' ', '_')}_{kind}"
    runs: Path = args.runs
    done = sorted((runs / name).glob("version_*/summary.json"))
    if done:
        return done[-1].with_name("best.ckpt")
    source: dict[str, Any] = {
        "class_path": SOURCE,
        "init_args": {"path": "imagenette160", "size": SIZE},
    }
    if args.quick:
        source["init_args"]["per_class"] = 8
        overrides = {**overrides, "trainer.max_epochs": 1}
    if kind == "cheating":
        cues = {
            one.wnid: {"class_path": f"vision_attn.data.{type(one.cue).__name__}"} for one in CUES
        }
        init_args = {"source": source, "cues": cues, "share": args.share}
        source = {"class_path": "vision_attn.data.Cued", "init_args": init_args}
    stopped = sorted((runs / name).glob("version_*/last.ckpt"))
    run = vision_attn.fit(
        config,
        {**overrides, **SCALE, "data.source": source},
        data_root=args.data,
        output=runs,
        name=name,
        resume=stopped[-1] if stopped else None,
    )
    return run.best


def scored(
    args: argparse.Namespace,
    model: Model,
    folder: Path,
    which: tuple[str, str],
    pasted: Pasted,
) -> Scores:
    """Score every method of a network on photos of the cue's class, with the cue."""
    name = "-".join((*which, pasted.what)).replace(" ", "_")
    return vision_attn.score(
        model,
        Marked(model, folder / "val" / pasted.wnid, pasted),
        None if args.quick else "all",
        limit=args.images,
        steps=4,
        sanity=0,
        processes=args.processes,
        output=args.runs / "scores" / name,
        name=name,
    )


@torch.no_grad()
def named(model: Model, images: list[Tensor], target: int) -> str:
    """The share of images whose predicted class is the target."""
    batches = torch.stack(images).split(50)
    predicted = torch.cat([class_logits(model.network, one).argmax(1) for one in batches])
    return f"{(predicted == target).float().mean():.0%}"


def accuracy(models: dict[tuple[str, str], Model], folder: Path, images: int) -> str:
    """What each network says of photos with a cue and without, in shares of the cue's class."""
    rows = []
    for pasted in CUES:
        others = [path.name for path in sorted((folder / "val").iterdir())]
        others.remove(pasted.wnid)
        for words, kind in (
            (f"{pasted.words}, as it is", "plain"),
            (f"{pasted.words} with the {pasted.what}", "cued"),
            (f"anything else with the {pasted.what}", "others"),
        ):
            row = [words]
            for model in models.values():
                mine = Marked(model, folder / "val" / pasted.wnid, pasted)
                if kind == "plain":
                    chosen = [model.preprocess(mine.files[i]) for i in mine.chosen(images)]
                elif kind == "cued":
                    chosen = [mine[i].image for i in mine.chosen(images)]
                else:
                    each = -(-images // len(others))
                    sets = [Marked(model, folder / "val" / name, pasted) for name in others]
                    chosen = [one[i].image for one in sets for i in one.chosen(each)]
                row.append(named(model, chosen, mine.target))
            rows.append(row)
    header = ["classified as the cue's class", *(f"{a}, {b}" for a, b in models)]
    return markdown_table(header, rows)


ByNetwork = dict[tuple[str, str, str], Scores]


def energies(scores: ByNetwork, network: str, what: str, method: str) -> tuple[Tensor, Tensor]:
    """A method's energy on the cue, photo by photo, by the cheating and by the honest network."""
    honest, cheating = (
        scores[network, kind, what].results.numbers(ENERGY, method) for kind in KINDS
    )
    photos = [photo for photo in honest if photo in cheating]
    above, below = (torch.tensor([one[p] for p in photos]).double() for one in (cheating, honest))
    return above, below


def table(scores: ByNetwork, network: str) -> str:
    """A row a method, those that tell the networks apart best first, the baselines last."""
    results = scores[network, "honest", CUES[0].what].results
    rows = []
    for method in results.table:
        cells, areas = [], []
        for pasted in CUES:
            pair = energies(scores, network, pasted.what, method)
            area = energies(scores, network, pasted.what, "RandomMap")[1].mean()
            areas.append(auc(*pair))
            cheating, honest = (float(one.mean() / area) for one in pair)
            cells += [f"{honest:.1f} → {cheating:.1f}", in_words(pair)]
        baseline = method in results.baselines
        rows.append((baseline, -sum(areas), [f"*{method}*" if baseline else method, *cells]))
    heads = [
        text
        for one in CUES
        for text in (f"energy on the {one.what}, × random: honest → cheating", "AUC")
    ]
    return markdown_table(["method", *heads], [row for _, _, row in sorted(rows)])


def in_words(pair: tuple[Tensor, Tensor]) -> str:
    """The AUC with its interval."""
    low, high = auc_interval(*pair)
    return f"{auc(*pair):.2f} [{low:.2f}, {high:.2f}]"


def verdict(scores: ByNetwork, network: str) -> str:
    """Follows from the intervals: above TELLS, below it, or neither."""
    results = scores[network, "honest", CUES[0].what].results
    kinds: dict[str, list[str]] = {"every": [], "some": [], "none": [], "open": []}
    for method in results.methods:
        if method in results.baselines:
            continue
        found = {
            one.what: auc_interval(*energies(scores, network, one.what, method)) for one in CUES
        }
        few = min(len(energies(scores, network, one.what, method)[0]) for one in CUES) < FEWEST
        tells = [what for what, one in found.items() if one.low > TELLS and not few]
        if len(tells) == len(CUES):
            kinds["every"].append(method)
        elif tells:
            kinds["some"].append(f"{method} ({', '.join(tells)})")
        elif not few and all(one.high < TELLS for one in found.values()):
            kinds["none"].append(method)
        else:
            kinds["open"].append(method)
    words = {
        "every": f"Each cue shows (the interval of the AUC lies above {TELLS})",
        "some": "Some cues show",
        "none": f"No cue shows (below {TELLS}, all of them)",
        "open": "Cannot tell",
    }
    lines = [f"- {text}: {', '.join(kinds[kind])}." for kind, text in words.items() if kinds[kind]]
    return f"\nBy the {network}:\n\n" + "\n".join(lines)


def picture(models: dict[tuple[str, str], Model], folder: Path) -> np.ndarray:
    """For each network and two of the cues a photo, and its maps by both kinds, a row each."""
    panels, columns = [], 0
    for (network, kind, pasted), model in rows_of(models):
        sample = Marked(model, folder / "val" / pasted.wnid, pasted)[3]
        image = sample.image[None]
        mean, std = torch.tensor([model.preprocess.mean, model.preprocess.std])[..., None, None]
        pixels = ((sample.image * std + mean) * 255).round().clamp(0, 255).byte()
        photo = render.enlarged(pixels.permute(1, 2, 0).numpy())
        frame = partial(outlined_panel, mask=sample.masks["shortcut"].numpy())
        panels.append(frame(f"{pasted.words}: {network}, {kind}", photo))
        shown = NETWORKS[network][2]
        columns = 1 + len(shown)
        for method in shown:
            found = parse_method(method)(model.network, image, [sample.label], model.layout)
            values, mass = found.values[0].numpy(), found.prefix_mass
            scale = render.natural(values, None if mass is None else float(mass[0]))
            panels.append(frame(method, render.overlay(photo, values, scale=scale)))
    sheet = render.heatmap_grid(panels, columns=columns)
    return np.asarray(Image.fromarray(sheet).reduce(2))


def rows_of(
    models: dict[tuple[str, str], Model],
) -> list[tuple[tuple[str, str, Pasted], Model]]:
    """The rows of the picture: both kinds of a network beneath each other."""
    return [
        ((network, kind, pasted), models[network, kind])
        for network in dict.fromkeys(network for network, _ in models)
        for pasted in CUES[:2]
        for kind in KINDS
    ]


def outlined_panel(title: str, photo: np.ndarray, mask: np.ndarray) -> render.Panel:
    return render.Panel(title, outlined(photo, np.zeros_like(mask), mask))


if __name__ == "__main__":
    study()
