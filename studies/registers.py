"""What do registers, dropped patches and other readouts do to a small ViT's maps?

    python studies/registers.py [compact_vit vit] [--runs outputs/registers] [--seeds 0 1 2]

Trains configs/compact_vit_imagenette.yaml and configs/vit_imagenette.yaml for ten epochs on photos
of 96 pixels, without a teacher, in the variants of VARIANTS. Runs that are in the folder are taken
as they are. Then, on the test photos: accuracy, with the difference of each run from the plain one
of its seed, paired by photo; tokens of outlying norm; and the maps' scores.
docs/lab/journal/registers.md says what came out.
"""

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from jaxtyping import Float
from outliers import BATCH, OUTLIER, ReadoutEvidence, images_of, norms_by_level
from torch import Tensor

import vision_attn
from vision_attn import load_model
from vision_attn.evaluate import paired_bootstrap
from vision_attn.inference import infer
from vision_attn.methods import Explainer, LibraGradient, Rollout
from vision_attn.models import ViT
from vision_attn.render import markdown_table
from vision_attn.runs.scoring import Scores
from vision_attn.runs.scoring.evidence import open_data
from vision_attn.types import Model

CONFIGS = Path(__file__).parent.parent / "configs"
EPOCHS, SIZE, SHORTER_SIDE = 10, 96, 112  # pixels
KEPT_CALLBACKS = ("ChannelsLast",)
KEPT_AUGMENT = ("Flip", "TrivialAugment")
METHODS: tuple[Explainer, ...] = (
    Rollout(),
    Rollout(smooth=1.0),
    LibraGradient(),
    ReadoutEvidence(smooth=1.0),
)


@dataclass(frozen=True)
class Variant:
    """A way to train: options of the ViT, and how the tables and the folders name it.

    Attributes:
        is_rare: Whether it is trained for the seeds of --rare alone.
    """

    name: str
    folder: str
    options: dict[str, Any] = field(default_factory=dict)
    is_rare: bool = False


PLAIN = Variant("plain", "plain")
REGISTERS = Variant("4 registers", "registers4", {"registers": 4})
DROPPED = Variant("half of the patches dropped", "dropped", {"patch_drop": 0.5}, is_rare=True)
POOL = Variant(
    "attention pool", "pool", {"pool": {"class_path": "vision_attn.attention.AttentionPool"}}, True
)
CLASS = Variant("class token", "class_token", {"pool": "cls", "class_token": True}, is_rare=True)
VARIANTS = {"compact_vit": (PLAIN, REGISTERS, DROPPED), "vit": (PLAIN, REGISTERS, POOL, CLASS)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=list(VARIANTS), help=", ".join(VARIANTS))
    parser.add_argument("--runs", type=Path, default=Path("outputs/registers"), metavar="DIR")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--rare", type=int, nargs="*", default=[0], metavar="SEED", help="of variants tried once"
    )
    parser.add_argument("--data", type=Path, default=Path(".data"))
    parser.add_argument("--images", type=int, default=3000, help="for accuracy and norms")
    parser.add_argument(
        "--score", type=int, default=100, metavar="N", help="images to score maps on"
    )
    args = parser.parse_args()
    for network in args.networks:
        compare(network, args)


def compare(network: str, args: argparse.Namespace) -> None:
    """Train and measure each variant of a network; print its two tables."""
    photos = str(args.data / "imagenette160/val")
    runs = args.runs / network
    rows, scored = [], []
    for seed in args.seeds:
        hits: dict[str, Tensor] = {}
        for variant in VARIANTS[network]:
            if variant.is_rare and seed not in args.rare:
                continue
            model = load_model(str(trained(network, variant, seed, runs, args.data)))
            hits[variant.name], norms = hits_and_norms(model, photos, args.images)
            rows.append([variant.name, str(seed), *figures(hits, variant.name, norms)])
            print(markdown_table(HEADER, rows[-1:]), flush=True)
            methods = [method for method in METHODS if method.refusal(model.network) is None]
            folder = runs / "scores" / slug(variant, seed)
            scores = vision_attn.score(
                model, photos, methods, limit=args.score, steps=8, output=folder
            )
            scored += [[variant.name, str(seed), *row] for row in rows_of(scores)]
    print(f"\n{network}\n\n{markdown_table(HEADER, rows)}")
    print(markdown_table(SCORES, scored), flush=True)


def slug(variant: Variant, seed: int) -> str:
    return f"{variant.folder}_seed{seed}"


def trained(network: str, variant: Variant, seed: int, runs: Path, data: Path) -> Path:
    """Train a variant, unless its run is there; return its best weights."""
    name = slug(variant, seed)
    for done in sorted(runs.glob(f"{name}/version_*/summary.json")):
        return done.with_name("best.ckpt")
    runs.mkdir(parents=True, exist_ok=True)
    config = runs / f"{name}.yaml"
    text = yaml.safe_dump(short_config(network, variant), sort_keys=False)
    config.write_text(text, encoding="utf-8")
    return vision_attn.fit(config, seed=seed, data_root=data, output=runs, name=name).best


def short_config(network: str, variant: Variant) -> dict[str, Any]:
    """The recipe of a config, smaller: no teacher, ten epochs, 96 pixels."""
    text = (CONFIGS / f"{network}_imagenette.yaml").read_text(encoding="utf-8")
    config: dict[str, Any] = yaml.safe_load(text)
    config["model"]["network"]["init_args"] |= {"image_size": SIZE} | variant.options
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
    network = model.network
    assert isinstance(network, ViT)
    samples = open_data(photos, model, Path(".data"))
    items = samples.chosen(most)
    labels = torch.tensor([samples.sample(item).label for item in items])
    batches = images_of(model, photos, most).split(BATCH)
    predicted = torch.cat([infer(network, batch).argmax(dim=1) for batch in batches])
    norms = torch.cat([norms_by_level(network, batch) for batch in batches])
    return (predicted == labels).double(), norms


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
