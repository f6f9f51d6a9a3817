"""Writes docs/real_data.md: every method's heatmaps on photos, by networks trained on few of them.

    python docs/real_data_study.py [--runs outputs] [--scores outputs/real] [--images 100]

Scores the networks of configs/{vit,senet,spatial_cnn}_{cifar10,imagefolder}.yaml, as they lie in
the folder of runs after `vision-attn fit`. What is scored already is taken as it is.
"""

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import vision_attn
from vision_attn.render import markdown_table

HERE = Path(__file__).parent
NETWORKS = ("vit", "senet", "spatial_cnn")
METRICS = {
    "deletion": "deletion",
    "insertion": "insertion",
    "pointing_game": "pointing game",
    "energy_inside": "energy inside",
    "box_iou": "box IoU",
    "randomisation": "randomisation",
    "sensitivity": "sensitivity",
}


class Study(NamedTuple):
    """Networks of configs/NAME_`config`.yaml on DATA, and what the page says of it."""

    title: str
    config: str
    data: str
    images: int
    options: dict[str, Any]
    about: str


def studies(root: str, images: int) -> list[Study]:
    everything = {"methods": "all", "sanity": 8}
    return [
        Study(
            "CIFAR-10", "cifar10", "cifar10", images, {**everything, "root": root},
            "No masks: only what the network itself says, and the sanity check.",
        ),
        Study(
            "Imagenette, held-out photos", "imagefolder", f"{root}/imagenette", images, everything,
            "Likewise.",
        ),
        Study(
            "ImageNet photos with boxes", "imagefolder", f"{root}/imagenet_boxes", images, {},
            "Photos of a thousand classes, most of which the network does not know: its predicted "
            "class is explained, and the question is whether it looks at the object at all.",
        ),
        Study(
            "Pets with masks", "imagefolder", f"{root}/pet_masks", images, {},
            "26 photos of cats and dogs.",
        ),
    ]  # fmt: skip


def study() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("outputs"), metavar="DIR")
    parser.add_argument("--scores", type=Path, default=Path("outputs/real"), metavar="DIR")
    parser.add_argument("--data", default=".data", metavar="DIR", help="where the data sets lie")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--output", type=Path, default=HERE, help="where the page is written")
    args = parser.parse_args()
    page = [PAGE, markdown_table(["network", "trained for", "test top-1"], trained(args.runs))]
    all_told: list[dict[str, Any]] = []
    for each in studies(args.data, args.images):
        page.append(f"\n## {each.title}\n\n{each.about}\n")
        for network in NETWORKS:
            run = args.runs / f"{network}_{each.config}" / "version_0"
            folder = args.scores / f"{network}-{each.config}-{Path(each.data).name}"
            if not (folder / "scores.json").is_file():
                checkpoint = run / "best.ckpt"
                vision_attn.score(
                    vision_attn.load_model(checkpoint),
                    each.data,
                    images=each.images,
                    processes=args.processes,
                    output=folder,
                    name=str(checkpoint),
                    **each.options,
                )
            told = json.loads((folder / "scores.json").read_text())
            all_told.append(told["methods"])
            page.append(f"\n### {network}\n\n{table(told['methods'])}")
    page.append(f"\n## In how many of these tables\n\n{IN_ALL}\n\n{in_all(all_told)}")
    (args.output / "real_data.md").write_text("\n".join(page), encoding="utf-8")
    print(args.output / "real_data.md")


def trained(runs: Path) -> list[list[str]]:
    rows = []
    for config in ("cifar10", "imagefolder"):
        for network in NETWORKS:
            folder = runs / f"{network}_{config}" / "version_0"
            told = json.loads((folder / "summary.json").read_text())
            rows.append(
                [
                    f"`{network}_{config}`",
                    f"{told['epochs']} epochs, {told['minutes']:.1f} minutes",
                    f"{told['test/top1']:.1%}",
                ]
            )
    return rows


def table(methods: dict[str, Any]) -> str:
    """A row a method, best deletion first, the baselines last; starred as the page says."""
    known = [m for m in METRICS if any(m in row["scores"] for row in methods.values())]
    rows = [
        [f"*{name}*" if row["baseline"] else name, *(cell(row["scores"].get(m)) for m in known)]
        for name, row in sorted(methods.items(), key=by_deletion)
    ]
    return markdown_table(["method", *(METRICS[m] for m in known)], rows)


def by_deletion(method: tuple[str, dict[str, Any]]) -> tuple[bool, float]:
    """The methods by their deletion, those without one behind them, the baselines last."""
    mean = method[1]["scores"].get("deletion", {}).get("mean")
    return method[1]["baseline"], float("inf") if mean is None else mean


def starred(score: dict[str, Any] | None) -> bool | None:
    """Whether better than every baseline with certainty; None where it was not measured."""
    if score is None or score["mean"] is None:
        return None
    ahead = (score.get("better_than") or {}).values()
    return bool(ahead) and all(one and one["certain"] for one in ahead)


def in_all(told: list[dict[str, Any]]) -> str:
    """Of the tables a method is in, how many have its star."""
    names = {name for methods in told for name, row in methods.items() if not row["baseline"]}
    rows = []
    for name in names:
        cells, stars = [], 0
        for metric in ("deletion", "insertion", "pointing_game", "energy_inside", "box_iou"):
            found = [starred(m[name]["scores"].get(metric)) for m in told if name in m]
            known = [star for star in found if star is not None]
            cells.append(f"{sum(known)} of {len(known)}" if known else "")
            stars += sum(known)
        rows.append((-stars, [name, *cells]))
    head = ["method", "deletion", "insertion", "pointing game", "energy inside", "box IoU"]
    return markdown_table(head, [row for _, row in sorted(rows)])


def cell(score: dict[str, Any] | None) -> str:
    if score is None or score["mean"] is None:
        return ""
    star = " ★" if starred(score) else ""
    error = "" if score["standard_error"] is None else f" ± {score['standard_error']:.3f}"
    return f"{score['mean']:.3f}{error}{star}"


PAGE = """\
# Heatmaps on photos, scored

Small networks that were trained on little, and every method that fits them. ★: better than each of
the three maps that know nothing of the network (in italics) by the 95 % paired bootstrap interval.
Deletion is better low, as is sensitivity; randomisation is the rank correlation of a map with that
of the same network whose weights were lost, and should be near 0; all else is better high. A method
that is best by one measure is often not by another: read a column for the question you have.

How this page was made: `python docs/real_data_study.py`, after the six `vision-attn fit` of the
configs named here, on two CPU cores.
"""

IN_ALL = """\
How many of the tables above have a method's star, of those that it is in. What follows is said in
[what was measured](results.md)."""

if __name__ == "__main__":
    study()
