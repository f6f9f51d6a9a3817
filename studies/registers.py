"""What do registers, and patches dropped in training, do to a small ViT and to its maps?

    python studies/registers.py [--runs outputs/registers] [--seeds 0 1 2] [--data .data]

Trains configs/compact_vit_imagenette.yaml for SHORT on photos of 96 pixels, without its teacher:
with 0 and 4 registers, and with half of the patches dropped. Runs that are in the folder are taken
as they are. Then, on the test photos: accuracy, with the difference of each run from the plain one
of its seed, paired by photo; tokens of outlying norm; and Rollout's scores.
docs/lab/journal/registers.md says what came out.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from jaxtyping import Float
from outliers import BATCH, OUTLIER, images_of, norms_by_level
from torch import Tensor

import vision_attn
from vision_attn import load_model
from vision_attn.evaluate import paired_bootstrap
from vision_attn.inference import infer
from vision_attn.methods import Explainer, LibraGradient, Rollout
from vision_attn.render import markdown_table
from vision_attn.runs.scoring import Scores
from vision_attn.runs.scoring.evidence import open_data
from vision_attn.types import Model

CONFIG = Path(__file__).parent.parent / "configs/compact_vit_imagenette.yaml"
EPOCHS, SIZE, SHORTER_SIDE = 10, 96, 112  # pixels
KEPT_CALLBACKS = ("ChannelsLast",)
KEPT_AUGMENT = ("Flip", "TrivialAugment")
METHODS: tuple[Explainer, ...] = Rollout(), Rollout(smooth=1.0), LibraGradient()


@dataclass(frozen=True)
class Variant:
    """A way to train: options of the ViT, and how the tables name it."""

    name: str
    registers: int = 0
    patch_drop: float = 0.0


VARIANTS = (
    Variant("plain"),
    Variant("4 registers", registers=4),
    Variant("half of the patches dropped", patch_drop=0.5),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("outputs/registers"), metavar="DIR")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--dropped", type=int, nargs="*", default=[0], metavar="SEED")
    parser.add_argument("--data", type=Path, default=Path(".data"))
    parser.add_argument("--images", type=int, default=3000, help="for accuracy and norms")
    parser.add_argument(
        "--score", type=int, default=100, metavar="N", help="images to score maps on"
    )
    args = parser.parse_args()
    photos = str(args.data / "imagenette160/val")
    rows, scored = [], []
    for seed in args.seeds:
        hits: dict[str, Tensor] = {}
        for variant in VARIANTS:
            if variant.patch_drop and seed not in args.dropped:
                continue
            model = load_model(str(trained(variant, seed, args.runs, args.data)))
            hits[variant.name], norms = hits_and_norms(model, photos, args.images)
            rows.append([variant.name, str(seed), *figures(hits, variant.name, norms)])
            print(markdown_table(HEADER, rows[-1:]), flush=True)
            folder = args.runs / "scores" / slug(variant, seed)
            scores = vision_attn.score(
                model, photos, list(METHODS), limit=args.score, steps=8, output=folder
            )
            scored += [[variant.name, str(seed), *row] for row in rows_of(scores)]
    print(markdown_table(HEADER, rows))
    print(markdown_table(SCORES, scored))


def slug(variant: Variant, seed: int) -> str:
    return f"registers{variant.registers}_drop{variant.patch_drop}_seed{seed}"


def trained(variant: Variant, seed: int, runs: Path, data: Path) -> Path:
    """Train a variant, unless its run is there; return its best weights."""
    name = slug(variant, seed)
    for done in sorted(runs.glob(f"{name}/version_*/summary.json")):
        return done.with_name("best.ckpt")
    runs.mkdir(parents=True, exist_ok=True)
    config = runs / "short.yaml"
    config.write_text(yaml.safe_dump(short_config(), sort_keys=False), encoding="utf-8")
    options: dict[str, Any] = {
        "model.network.init_args.registers": variant.registers,
        "model.network.init_args.patch_drop": variant.patch_drop,
    }
    run = vision_attn.fit(config, options, seed=seed, data_root=data, output=runs, name=name)
    return run.best


def short_config() -> dict[str, Any]:
    """The recipe of the shelf's network, smaller: no teacher, ten epochs, 96 pixels."""
    config: dict[str, Any] = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    config["model"]["network"]["init_args"]["image_size"] = SIZE
    source = config["data"]["source"]["init_args"]
    source |= {"size": SIZE, "test_size": SIZE, "shorter_side": SHORTER_SIDE}
    config["data"]["augment"] = named(config["data"]["augment"], KEPT_AUGMENT)
    callbacks = named(config["trainer"]["callbacks"], KEPT_CALLBACKS)
    config["trainer"] = {"max_epochs": EPOCHS, "callbacks": callbacks}
    return config


def named(parts: list[dict[str, Any]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [part for part in parts if part["class_path"].rpartition(".")[2] in names]


def hits_and_norms(
    model: Model, photos: str, most: int
) -> tuple[Float[Tensor, " n"], Float[Tensor, "n level patch"]]:
    """Whether each photo's class is found (1 or 0), and the norms of its patches' tokens."""
    samples = open_data(photos, model, Path(".data"))
    items = samples.chosen(most)
    labels = torch.tensor([samples.sample(item).label for item in items])
    batches = images_of(model, photos, most).split(BATCH)
    found = torch.cat([infer(model.network, batch).argmax(dim=1) for batch in batches])
    norms = torch.cat([norms_by_level(model.network, batch) for batch in batches])
    return (found == labels).double(), norms


HEADER = (
    "training",
    "seed",
    "accuracy",
    "less the plain one's",
    "outliers after the last block",
    "largest norm of a photo, times the median",
)


def figures(hits: dict[str, Tensor], name: str, norms: Float[Tensor, "n level patch"]) -> list[str]:
    last = norms[:, -1]
    times = last / last.median(dim=1, keepdim=True).values
    paired = ""
    if name != "plain":
        lead = paired_bootstrap(hits[name], hits["plain"])
        paired = f"{100 * lead.mean:+.1f} [{100 * lead.low:+.1f}, {100 * lead.high:+.1f}] points"
    return [
        f"{hits[name].mean():.1%}",
        paired,
        f"{(times > OUTLIER).double().mean():.2%}",
        f"{times.amax(dim=1).mean():.2f}",
    ]


SCORES = ("training", "seed", "map", "deletion ↓", "insertion ↑", "verdict")


def rows_of(scores: Scores) -> list[list[str]]:
    """A row a map, those that know nothing of the network last."""
    results, trusted = scores.results, scores.trust().methods
    return [
        [
            f"*{method}*" if method in results.baselines else method,
            f"{results.mean('deletion', method).value:.3f}",
            f"{results.mean('insertion', method).value:.3f}",
            "trust" if method in trusted else "",
        ]
        for method in [*results.methods, *sorted(results.baselines)]
    ]


if __name__ == "__main__":
    main()
