"""Writes docs/real_data.md: every method's heatmaps on photos, by networks that know these photos.

    python studies/real_data.py [MODEL ...] [--data .data/imagenette160/val] [--images 300]

Scores the Imagenette networks of the package, or the models that are named, on photos of a folder
with a folder a class. Methods that need hundreds of passes for a map are asked about fewer photos:
MaskedRegression about as much as the quick ones, the others by deletion and insertion alone. What
is scored already is taken as it is, and a stopped run goes on. --quick makes it all small, to see
that it runs.
"""

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import nan
from pathlib import Path
from statistics import mean

import torch

import vision_attn
from vision_attn import list_models, load_model
from vision_attn.evaluate.bootstrap import bca
from vision_attn.methods import (
    Explainer,
    LeGrad,
    LibraGradient,
    MaskedRegression,
    Relevance,
    Rollout,
    fitting_methods,
)
from vision_attn.methods.attribution import Attribution
from vision_attn.render import markdown_table
from vision_attn.runs.scoring import MethodVerdict, Scores
from vision_attn.types import Model

DOCS = Path(__file__).parent.parent / "docs"
SHELF = tuple(
    f"vision_attn:{name}_imagenette"
    for name in ("compact_vit", "vit", "senet", "spatial_cnn")
    if f"{name}_imagenette" in {row["name"] for row in list_models()}
)
METRICS = {
    "deletion": "deletion ↓",
    "insertion": "insertion ↑",
    "grid_pointing_2x2": "mosaic 2x2 ↑",
    "grid_pointing_3x3": "mosaic 3x3 ↑",
    "randomisation": "randomisation ↓",
    "sensitivity": "sensitivity ↓",
}
# Beside the methods as they come: smoothing is a prior, so that a map is scored with and without.
OTHERWISE = (
    LibraGradient(smooth=0),
    *(method(smooth=1.0) for method in (LeGrad, Relevance, Rollout)),
)
RANKED = "deletion", "insertion", "grid_pointing_2x2"
FAMILIES = {True: "a Vision Transformer", False: "a CNN"}  # by whether it is made of tokens


@dataclass(frozen=True)
class Effort:
    """On how many photos methods are measured. sanity: those with lost weights and with noise."""

    images: int
    sanity: int
    mosaics: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Studied:
    """A network and the scores of its methods, part by part, those of the quick ones first."""

    spec: str
    model: Model
    parts: list[Scores]

    @property
    def quick(self) -> Scores:
        return self.parts[0]

    def scores(self, method: str) -> Scores:
        """The scores that a method is in; the baselines are in all, and taken with the quick."""
        return next(part for part in self.parts if method in part.methods)

    @property
    def methods(self) -> list[str]:
        """All methods, the baselines last."""
        names = [method for part in self.parts for method in part.methods]
        return sorted(dict.fromkeys(names), key=self.is_baseline)

    def is_baseline(self, method: str) -> bool:
        return method in self.quick.results.baselines

    def verdicts(self) -> dict[str, MethodVerdict]:
        """What the scores say of each method."""
        return {one.method: one for part in self.parts for one in part.verdict().methods}

    def verdict_lines(self) -> Iterator[str]:
        """For each part its methods, on how many photos, and what their scores say."""
        for part in self.parts:
            methods = [method for method in part.methods if not self.is_baseline(method)]
            *others, last = methods
            named = f"{', '.join(others)} and {last}" if others else last
            named = "Methods of a few passes" if part is self.quick else named
            photos = max(len(part.results.numbers("deletion", method)) for method in methods)
            yield f"*{named}, {photos} photos.* {part.verdict().what}\n"

    def mean(self, metric: str, method: str) -> float:
        """The mean of a method by a metric, NaN without one."""
        return self.scores(method).results.mean(metric, method).value

    def common_means(self, metric: str, methods: list[str]) -> dict[str, float]:
        """The methods' means over the photos, or parts of mosaics, that all were scored on."""
        numbers = {m: self.scores(m).results.numbers(metric, m) for m in methods}
        common = set.intersection(*(set(one) for one in numbers.values()))
        return {m: mean(one[i] for i in common) if common else nan for m, one in numbers.items()}


def study() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(SHELF), metavar="MODEL")
    parser.add_argument("--data", default=".data/imagenette160/val", metavar="FOLDER")
    parser.add_argument("--scores", type=Path, default=Path("outputs/real"), metavar="DIR")
    parser.add_argument("--images", type=int, default=300, help="photos for quick methods")
    parser.add_argument("--slow", type=int, default=32, help="photos for slow methods")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--output", type=Path, default=DOCS, help="where the page is written")
    parser.add_argument("--quick", action="store_true", help="small, to see that it runs")
    args = parser.parse_args()
    efforts = {
        "quick": Effort(args.images, 32, (2, 3)),
        "regression": Effort(args.slow, 20, (2,)),
        "slow": Effort(args.slow, 0, ()),
    }
    if args.quick:
        efforts = {
            "quick": Effort(4, 2, (2, 3)),
            "regression": Effort(2, 1, (2,)),
            "slow": Effort(2, 0, ()),
        }
    studied = [studied_network(spec, args, efforts) for spec in args.models]
    page = [
        PAGE.format(
            verdict=verdict(studied),
            rule=RULE,
            n=effort(efforts),
            images=args.images,
            data=args.data,
        ),
        markdown_table(["network", "classified right", "mosaics"], [about(one) for one in studied]),
    ]
    for one in studied:
        page += [
            f"\n## {one.spec}\n",
            *one.verdict_lines(),
            table(one),
        ]
    (args.output / "real_data.md").write_text("\n".join(page), encoding="utf-8")
    print(args.output / "real_data.md")


def studied_network(spec: str, args: argparse.Namespace, efforts: dict[str, Effort]) -> Studied:
    """Score a network, or take its scores as they are."""
    model = load_model(spec)
    name = spec.partition(":")[2] or Path(spec).resolve().parent.parent.name
    parts = []
    for part, effort in efforts.items():
        fitting = fitting_methods(model)
        fitting += [method for method in OTHERWISE if type(method) in set(map(type, fitting))]
        methods = [method for method in fitting if part_of(method) == part]
        parts.append(
            vision_attn.score(
                model,
                args.data,
                methods,
                limit=effort.images,
                sanity=effort.sanity,
                mosaic=effort.mosaics,
                steps=2 if args.quick else 16,
                processes=args.processes,
                output=args.scores / name / part,
                name=spec,
            )
        )
    return Studied(spec, model, parts)


def part_of(method: Explainer) -> str:
    if isinstance(method, MaskedRegression):
        return "regression"
    return "slow" if isinstance(method, Attribution) else "quick"


def effort(efforts: dict[str, Effort]) -> str:
    """On how many photos, in a sentence."""
    quick, regression, slow = (efforts[part] for part in ("quick", "regression", "slow"))
    return (
        f"Methods of a few passes a map on {quick.images} photos, drawn at random (randomisation "
        f"and sensitivity on {quick.sanity}); MaskedRegression, which takes 258, on "
        f"{regression.images} (randomisation and sensitivity on {regression.sanity}); "
        "IntegratedGradients, Occlusion and LIME, which take hundreds too, on "
        f"{slow.images}, by deletion and insertion alone. "
        "The last column says on how many photos and mosaics, and on how many photos with random "
        "weights, each number rests."
    )


def about(one: Studied) -> list[str]:
    """A network's row: its accuracy on what was scored, and what it makes of mosaics."""
    right = one.quick.results.accuracy()
    named = "" if right is None else f"{right[0]:.1%} of {right[1]} photos"
    sizes = {"full": "at its own size", "shrunk": "shrunk"}
    mosaics = "; ".join(
        f"{row.side}x{row.side}: {row.mosaics} mosaics, each photo {sizes[row.frame]}; "
        f"{row.named[row.frame]:.0%} of their classes are among the {row.side**2} most probable"
        for row in one.quick.results.mosaics
    )
    return [f"`{one.spec}`", named, mosaics]


def table(one: Studied) -> str:
    """A row a method, best deletion first, the baselines last; starred as the page says."""
    known = [m for m in METRICS if m in one.quick.metrics]
    methods = sorted(one.methods, key=lambda m: (one.is_baseline(m), one.mean("deletion", m)))
    rows = []
    for method in methods:
        results = one.scores(method).results
        counts = [
            str(results.mean(metric, method).n)
            for metric in ("deletion", "grid_pointing_2x2", "randomisation")
        ]
        name = f"*{method}*" if one.is_baseline(method) else method
        rows.append([name, *(cell(one, m, method) for m in known), " / ".join(counts)])
    return markdown_table(["method", *(METRICS[m] for m in known), "n"], rows)


def cell(one: Studied, metric: str, method: str) -> str:
    """A mean with its 95 % interval, and a star where it is better than every baseline."""
    scores = one.scores(method)
    values = torch.tensor(list(scores.results.numbers(metric, method).values())).double()
    if not len(values):
        return ""
    if scores.results.is_blind(metric, method):
        return f"{values.mean():.3f} class-blind"
    star = " ★" if scores.results.beats_all(metric, method) else ""
    if len(values) < 2:
        return f"{values.mean():.3f}"
    low, high = bca(values)
    digits = ".3f" if values.mean() < 100 else ".0e"  # of a map that is next to nothing
    return f"{values.mean():{digits}} [{low:{digits}}, {high:{digits}}]{star}"


def verdict(studied: list[Studied]) -> str:
    """What the numbers say of each family, by RULE."""
    parts = []
    for tokens, family in FAMILIES.items():
        mine = [one for one in studied if (one.model.layout is not None) == tokens]
        if mine:
            parts.append(f"**For {family}** ({counted(mine)}): {of_family(mine)}")
    return "\n\n".join(parts)


def of_family(mine: list[Studied]) -> str:
    """Which methods pass, which are not to be trusted, and which cannot answer for a class."""
    verdicts = [one.verdicts() for one in mine]
    common = [m for m in verdicts[0] if all(m in one for one in verdicts)]
    trusted = [m for m in common if all(one[m].trust == "yes" for one in verdicts)]
    refused = [m for m in common if any(one[m].trust == "no" for one in verdicts)]
    pointing = [m for m in trusted if all(one[m].pointing == "points" for one in verdicts)]
    blind = [m for m in common if all(one[m].pointing == "class-blind" for one in verdicts)]
    ranks = {m: mean_rank(m, mine, pointing) for m in pointing}
    ranked = sorted(pointing, key=lambda m: ranks[m])
    first = [m for m in ranked if ranks[m] == ranks[ranked[0]]]
    rest = [m for m in common if m not in (*ranked, *refused) and not (m in trusted and m in blind)]
    alike = f" ({listed(first[1:])}: the same rank)" if first[1:] else ""
    sentences = [f"use {ranked[0]}{alike}." if ranked else "no method passes."]
    for what, methods in (
        ("Next to it, in this order", ranked[len(first) :]),
        ("For where it looks, whatever the class", [m for m in trusted if m in blind]),
        ("Do not trust", refused),
        ("The same map for every class", blind),
        ("Undecided", rest),
    ):
        if methods:
            sentences.append(f"{what}: {listed(methods)}.")
    return " ".join(sentences)


def mean_rank(method: str, mine: list[Studied], among: list[str]) -> float:
    """The mean place of a method among others, over RANKED and networks; 0 is always first.

    Means that are equal to three digits share a place.
    """
    places = []
    for one in mine:
        for metric in RANKED:
            sign = 1 if metric == "deletion" else -1
            means = one.common_means(metric, among)
            costs = {m: sign * round(means[m], 3) for m in among}
            places.append(sum(costs[other] < costs[method] for other in among))
    return sum(places) / len(places)


def listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def counted(mine: list[Studied]) -> str:
    return listed(f"`{one.spec}`" for one in mine)


RULE = """\
The rule. A method passes if three things hold for every network of the kind. By deletion
and by insertion it is better than each of three maps that know nothing of the network (the 95 %
interval of the paired difference lies above 0, and the lead is at least 0.005). Its map changes
when the weights are randomised. In mosaics, more of it lies on the photo of the target class than
of these maps. Methods that pass are ordered by their mean rank in deletion, insertion and mosaics
of 2x2, on what all of them were scored on. A method is not trusted if, for one network, it is
worse than one of these maps, no better by both measures, or the same with random weights. A
class-blind map is the same for every class.
`vision-attn score` gives such a verdict for your model, without the mosaics."""

PAGE = """\
# Heatmaps on photos, scored

{verdict}

{rule}

**How to read the tables.** Each number has its 95 % interval; ★: better than each of the maps that
know nothing of the network (in italics). *Deletion* and *insertion*: the mean probability of the
class while a map's first cells are removed, or inserted. *Mosaic*: photos of different classes,
those that the network is most certain of, are joined; the number is the share of a class's map that
lies on its photo, 1/4 and 1/9 by chance. *Randomisation*: the rank correlation with the map of the
same network with random weights. *Sensitivity*: how much a little noise changes the map, beside the
size of the map; it is huge where a map is almost zero.

{n} The photos are those of `{data}`, which no network was trained on.

This page is written by `python studies/real_data.py --images {images}`.
"""

if __name__ == "__main__":
    study()
