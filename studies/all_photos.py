"""Scores methods of one pass on all photos but those that chose their options.

    python studies/all_photos.py [MODEL ...] [--data .data/imagenette160/val] [--images 2952]

LibraGradient's rules, levels and smoothing were chosen on the photos at places 300 to 347 of the
permutation that `score` draws with seed 0. These are left out; the others are scored by deletion
and insertion, those first that docs/real_data.md does not show (places from 348), its 300 last.
What is scored already is taken as it is, so that a stopped run goes on, and a larger `--images`
only adds. Writes the table of docs/libra_gradient.md.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch

import vision_attn
from vision_attn import load_model
from vision_attn.data.images import find_images
from vision_attn.evaluate.bootstrap import bca
from vision_attn.methods import Explainer, GradCAM, HiResCAM, LeGrad, LibraGradient, Relevance
from vision_attn.render import markdown_table
from vision_attn.runs.scoring.evidence import Files
from vision_attn.runs.scoring.results import Results
from vision_attn.types import Model

PAGE = Path(__file__).parent.parent / "docs/libra_gradient.md"
BEGIN, END = "<!-- study: all_photos -->", "<!-- end of study -->"
SHELF = tuple(f"vision_attn:{name}_imagenette" for name in ("compact_vit", "senet", "spatial_cnn"))
CHOSE = range(300, 348)  # places of the permutation
TOKENS: tuple[Explainer, ...] = (
    LibraGradient(),
    LibraGradient(smooth=0),
    Relevance(smooth=1.0),
    LeGrad(smooth=1.0),
    HiResCAM("norm", smooth=1.0),
)
FEATURES: tuple[Explainer, ...] = GradCAM(), LibraGradient()


class Others(Files):
    """The photos of a folder that chose nothing, those first that no other table shows."""

    def __init__(self, model: Model, folder: Path):
        super().__init__(model, folder, find_images([folder]))
        self.name = f"{folder} without places {CHOSE.start} to {CHOSE.stop - 1}"

    def chosen(self, most: int, seed: int = 0) -> list[int]:
        items = super().chosen(len(self), seed)
        return [*items[CHOSE.stop :], *items[: CHOSE.start]][:most]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(SHELF), metavar="MODEL")
    parser.add_argument("--data", type=Path, default=Path(".data/imagenette160/val"))
    parser.add_argument("--images", type=int, default=3000 - len(CHOSE), metavar="N")
    parser.add_argument("--steps", type=int, default=8, help="of deletion and insertion")
    parser.add_argument("--scores", type=Path, default=Path("outputs/all_photos"), metavar="DIR")
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args()
    rows = []
    for spec in args.models:
        model = load_model(spec)
        scores = vision_attn.score(
            model,
            Others(model, args.data),
            list(FEATURES if model.layout is None else TOKENS),
            limit=args.images,
            steps=args.steps,
            output=args.scores / spec.partition(":")[2],
            name=spec,
        )
        rows += list(rows_of(spec, scores.results))
    header = ["network", "map", "deletion ↓", "insertion ↑"]
    header += ["lead by deletion", "lead by insertion", "photos"]
    before, rest = args.page.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    table = f"{BEGIN}\n{markdown_table(header, rows)}{END}"
    args.page.write_text(f"{before}{table}{after}", encoding="utf-8")
    print(args.page)


def rows_of(spec: str, results: Results) -> Iterator[list[str]]:
    """A row a map; its lead is the least of those on the maps that know nothing of the network."""
    for method in [*results.methods, *sorted(results.baselines)]:
        is_baseline = method in results.baselines
        row = [f"`{spec.partition(':')[2]}`", f"*{method}*" if is_baseline else method]
        for metric in ("deletion", "insertion"):
            row.append(interval(list(results.numbers(metric, method).values())))
        for metric in ("deletion", "insertion"):
            row.append("" if is_baseline else least_lead(results, metric, method))
        yield [*row, str(results.mean("deletion", method).n)]


def interval(numbers: list[float]) -> str:
    """The mean with its 95 % interval."""
    values = torch.tensor(numbers, dtype=torch.float64)
    low, high = bca(values)
    return f"{values.mean():.3f} [{low:.3f}, {high:.3f}]"


def least_lead(results: Results, metric: str, method: str) -> str:
    """By how much a map is better than the best of the baselines, paired, with that one's name."""
    leads = {name: results.ahead(metric, method, name) for name in sorted(results.baselines)}
    name, lead = min(leads.items(), key=lambda item: item[1].mean if item[1] else 0.0)
    return "" if lead is None else f"{lead.mean:.3f} [{lead.low:.3f}, {lead.high:.3f}] on {name}"


if __name__ == "__main__":
    main()
