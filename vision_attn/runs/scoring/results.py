"""Scores of single images put together: means, their errors, what is better than the baselines.

Axes: n images, s steps + 1, l layers.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.errors import quoted
from vision_attn.evaluate import MaxBoxIoU, PairedDifference, paired_bootstrap
from vision_attn.evaluate.sanity import layers_from_the_top
from vision_attn.methods import Baseline
from vision_attn.runs.scoring.scorer import GRIDS, GROUPS, Record
from vision_attn.runs.scoring.tasks import BASELINES, Key, Share, Work

__all__ = ["KIND", "METRICS", "NAMES", "Mean", "short", "signed"]

NAMES = [str(baseline) for baseline in BASELINES]
METRICS = {name: kind for group in GROUPS.values() for name, kind in group.items()}
RANKINGS = {
    "average_precision": "average precision on the object",
    "energy_inside": "energy inside the box",
}
REASONS = 3  # that are said where nothing could be scored
SHOWN = 3  # best images of a method, and as many of the worst
KIND = dict.fromkeys(  # all others: maps
    ("randomisation", "sensitivity", "saco", "single_deletion"), "sanity"
)
KIND |= dict.fromkeys(GRIDS.values(), "mosaic")


class Mean(NamedTuple):
    """Of n images; NaN where there are too few.

    Examples:
        >>> from vision_attn.runs.scoring.results import Mean
        >>> Mean(value=0.25, error=0.02, n=40).n
        40
    """

    value: float
    error: float
    n: int


class Results:
    """What is known of each method, of the images of a share; all of the work's if None.

    Args:
        work: What was to be scored.
        records: What was measured.
        share: The numbers of the images; None: all of the work's.
        problems: A line for each image that could not be used.

    Raises:
        ValueError: Nothing was scored; the message has the reasons.
    """

    def __init__(
        self,
        work: Work,
        records: dict[Key, Record],
        share: Share | None = None,
        problems: Sequence[str] = (),
    ):
        self.settings = work.settings
        self.weights, self.warning = work.model.weights, work.model.warning
        names = work.data.names
        chosen, sane, mosaics = share or work.all
        self.images = [names[item] for item in chosen]
        wanted = {"maps": set(self.images), "sanity": {names[item] for item in sane}}
        if mosaics:
            made = work.mosaics.names()
            wanted["mosaic"] = {made[number] for number in mosaics}
        self.records = {
            key: record
            for key, record in records.items()
            if key[1] in work.explainers and key[2] in wanted.get(key[0], ())
        }
        self.mosaics = work.mosaics.known
        add_box_ious(self.records.values(), list(work.explainers))
        self.explained = work.request.words
        self.unit = None if work.of_classes else scaled_curves(self.records.values())
        if share is None and not any("scores" in record for record in self.records.values()):
            why = dict.fromkeys(record["problem"] for record in self.records.values())
            reasons = list(why) or list(problems) or ["no image can be used"]
            more = f" (and {len(reasons) - REASONS} more)" if len(reasons) > REASONS else ""
            raise ValueError(
                f"{work.settings['data']}: nothing could be scored: "
                f"{'; '.join(reasons[:REASONS])}{more}"
            )
        self.layers = [name for name, _ in layers_from_the_top(work.model.network)]
        self.short = self._short_of(work, chosen)
        self.by_method: dict[tuple[str, str], list[Record]] = defaultdict(list)
        for (kind, method, _), record in self.records.items():
            self.by_method[kind, method].append(record)
        self.methods = [method for method in work.explainers if method not in NAMES]
        self.baselines = {m for m, one in work.explainers.items() if isinstance(one, Baseline)}
        self.blind = {m for m, one in work.explainers.items() if not one.class_specific}

    def titled(self, method: str) -> str:
        """The method's name, marked where it is a baseline."""
        return f"{method} (baseline)" if method in self.baselines else method

    @cached_property
    def metrics(self) -> list[str]:
        """Those that anything was scored by, in the order of GROUPS."""
        found = {name for record in self.records.values() for name in record.get("scores", ())}
        return [name for name in METRICS if name in found]

    def numbers(self, metric: str, method: str) -> dict[str, float]:
        """By image."""
        return {
            record["image"]: record["scores"][metric]
            for record in self.by_method[KIND.get(metric, "maps"), method]
            if metric in record.get("scores", ())
        }

    def mean(self, metric: str, method: str) -> Mean:
        """The mean score of a method over images, and its standard error."""
        numbers = list(self.numbers(metric, method).values())
        values = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        n = len(values)
        error = float(values.std()) / math.sqrt(n) if n > 1 else math.nan
        return Mean(float(values.mean()) if n else math.nan, error, n)

    def ahead(self, metric: str, method: str, baseline: str) -> PairedDifference | None:
        """By how much the method is better, whichever way the metric runs; above 0 is better.

        Of the images that both have a score of; None where these are fewer than two.
        """
        both = self.paired(metric, method, baseline)
        if len(both) < 2:
            return None
        sign = 1 if METRICS[metric].higher_is_better else -1
        a, b = torch.tensor(both, dtype=torch.float32, device="cpu").T
        return paired_bootstrap(sign * a, sign * b)

    def paired(self, metric: str, method: str, baseline: str) -> list[tuple[float, float]]:
        """Both scores of each image that has both."""
        ours, theirs = self.numbers(metric, method), self.numbers(metric, baseline)
        return [(ours[image], theirs[image]) for image in ours if image in theirs]

    @cached_property
    def table(self) -> dict[str, dict[str, dict[str, Any]]]:
        """method -> metric -> mean, standard_error, n, and for each baseline what `ahead` says."""
        return {method: self._row(method) for method in [*self.methods, *NAMES]}

    def _row(self, method: str) -> dict[str, dict[str, Any]]:
        row: dict[str, dict[str, Any]] = {}
        for metric in self.metrics:
            mean = self.mean(metric, method)
            row[metric] = {
                "mean": finite(mean.value),
                "standard_error": finite(mean.error),
                "n": mean.n,
            }
            if method not in NAMES:
                ahead = {name: self.ahead(metric, method, name) for name in NAMES}
                row[metric]["better_than"] = {
                    name: one and {**one._asdict(), "certain": one.low > 0}
                    for name, one in ahead.items()
                }
        return row

    def beats_all(self, metric: str, method: str) -> bool:
        """Better than each baseline, 0 being outside of the interval of the difference."""
        if method in NAMES:
            return False
        ahead = self.table[method][metric]["better_than"].values()
        return all(one and one["certain"] for one in ahead)

    def best(self, metric: str) -> str:
        """Name the method, baselines among them, with the best mean.

        Raises:
            ValueError: The metric is unknown.
        """
        if metric not in self.metrics:
            raise ValueError(
                f"no scores by {quoted(metric)}: expected one of {', '.join(self.metrics)}"
            )
        sign = 1 if METRICS[metric].higher_is_better else -1
        means = {m: row[metric]["mean"] for m, row in self.table.items()}
        return max(
            (m for m, mean in means.items() if mean is not None), key=lambda m: sign * means[m]
        )

    def curve(self, name: str, method: str) -> Float[Tensor, " s"] | None:
        """The mean over images of what was recorded under this name; None if nothing was."""
        kinds = ("maps", "sanity")
        lines = [r[name] for kind in kinds for r in self.by_method[kind, method] if name in r]
        curves = torch.tensor(lines, dtype=torch.float32, device="cpu")
        return curves.mean(dim=0) if lines else None

    def accuracy(self) -> tuple[float, int] | None:
        """The share of images with a known label that are classified right, and how many."""
        right = {
            r["image"]: r["label"] == r["predicted"]
            for r in self.records.values()
            if r.get("label") is not None and r.get("predicted") is not None
        }
        return (sum(right.values()) / len(right), len(right)) if right else None

    def extremes(self, method: str) -> tuple[list[str], list[str]]:
        """The images of a method that score best and worst, by `ranking`, each the extreme first.

        No image is both: where there are few, fewer are taken.
        """
        metric, _ = self.ranking
        numbers = self.numbers(metric, method)
        sign = 1 if METRICS[metric].higher_is_better else -1
        order = sorted(numbers, key=lambda image: -sign * numbers[image])
        best = min(SHOWN, -(-len(order) // 2))
        return order[:best], order[max(best, len(order) - SHOWN) :][::-1]

    @cached_property
    def ranking(self) -> tuple[str, str]:
        """By what images are ranked, and its name: as fine a measure of the truth as there is."""
        for metric, words in RANKINGS.items():
            if metric in self.metrics:
                return metric, words
        return "insertion", "insertion"

    def is_blind(self, metric: str, method: str) -> bool:
        """Whether a score is what it is because the method's map is the same for every class."""
        return metric in GRIDS.values() and method in self.blind

    def _short_of(self, work: Work, chosen: list[int]) -> str:
        scored = len({image for kind, _, image in self.records if kind == "maps"})
        if scored == len(chosen) and work.requested <= len(work.data):
            return ""
        there = len(work.data)
        return f"{work.requested} images requested, {there} found, {scored} could be read"

    def notes(self) -> list[str]:
        """What to know before the numbers are believed."""
        lines = [self.short] if self.short else []
        lines += [str(row) for row in self.mosaics]
        for method in [*self.methods, *NAMES]:
            mine = self.by_method["maps", method]
            constant = sum(r.get("constant", False) for r in mine)
            if constant:
                lines.append(
                    f"{method}: {constant} of {len(mine)} maps are constant, and score as random"
                )
        return lines

    def problems(self) -> list[str]:
        """A line for each method that failed on images, with the first reason."""
        lines = []
        for (kind, method), records in self.by_method.items():
            reasons = [record["problem"] for record in records if "problem" in record]
            if reasons:
                lines.append(
                    f"{method} ({kind}) failed on {len(reasons)} of {len(records)} images, "
                    f"first: {reasons[0]}"
                )
        return lines


def add_box_ious(records: Iterable[Record], methods: Iterable[str]) -> None:
    """box_iou of each record: the threshold is the best one of all the images of its method."""
    for method in methods:
        mine = [r for r in records if r["method"] == method and "box_ious" in r]
        if mine:
            metric = MaxBoxIoU()
            ious = [r["box_ious"] for r in mine]
            metric.ious.append(torch.tensor(ious, dtype=torch.float32, device="cpu"))
            for record, iou in zip(mine, metric.per_image().tolist(), strict=True):
                record["scores"]["box_iou"] = iou


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def short(value: float) -> str:
    """In three decimals, without the 0 before the point."""
    text = f"{value:z.3f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 and not text.endswith("1.000") else text


def signed(value: float) -> str:
    """In three decimals with the sign, 0 as +0."""
    return f"{value:+z.3f}"


def scaled_curves(records: Iterable[Record]) -> float:
    """Divide curves and areas of a number by its mean change from whole images to none of them.

    Returns that change. Where it is 0 nothing is divided.
    """
    scored = [record for record in records if "deletion" in record]
    changes = {r["image"]: abs(r["deletion"][0] - r["deletion"][-1]) for r in scored}
    unit = sum(changes.values()) / len(changes) if changes else 0.0
    for record in scored if unit else []:
        for name in ("deletion", "insertion"):
            record[name] = [value / unit for value in record[name]]
        areas = {name: record["scores"][name] / unit for name in ("deletion", "insertion")}
        record["scores"] = record["scores"] | areas
    return unit
