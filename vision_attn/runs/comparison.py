"""Two checkpoints on the same photos: where they agree, and where their maps differ.

Axes: y, x a grid over the photo.
"""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from PIL.Image import Image

from vision_attn.data.faults import ImageError, apart, sample_errors
from vision_attn.errors import quoted
from vision_attn.evaluate import paired_bootstrap, wilson
from vision_attn.evaluate.bootstrap import bca
from vision_attn.files import write_text
from vision_attn.methods import Class
from vision_attn.methods.targets import TargetLike
from vision_attn.runs.explain import Methods, Request
from vision_attn.runs.explanation import Explanation
from vision_attn.runs.inputs import output_folder
from vision_attn.runs.labels import label_of
from vision_attn.runs.loop import Job, RunTask, TaskResult, results
from vision_attn.runs.progress import Silent
from vision_attn.types import Head, Model

__all__ = [
    "ComparedPhoto",
    "Comparison",
    "PairOfModels",
    "jackknife",
    "overlap",
    "overlaps_without",
]

SIDE = 48  # cells of the grid on which maps are compared, of each side of the photo
PARTS = 6  # of each side of the grid: an interval leaves out one of the PARTS x PARTS at a time
LONGEST = 96  # pixels of the longer side of the photo that they are laid on first


@dataclass
class ComparedPhoto:
    """What two models say of one photo.

    Attributes:
        file: The photo.
        label: Its class, None where that is not known.
        predicted: The class that each model predicts.
        probability: What each model gives that class.
        overlaps: By method, the share of the map that lies in the same place in both.
        apart: The same of the first model's map and the second's of another photo.
        interval: Of the mean overlap, 95 %, over parts of the photo (`jackknife`); None where it is
            not known.

    Examples:
        >>> from vision_attn.runs.comparison import ComparedPhoto
        >>> ComparedPhoto("a.png", 1, (1, 0), (0.9, 0.6), {"Rollout": 0.8}).agree
        False
    """

    file: str
    label: int | None
    predicted: tuple[int, int]
    probability: tuple[float, float]
    overlaps: dict[str, float]
    apart: dict[str, float] = field(default_factory=dict)
    interval: tuple[float, float] | None = None

    @property
    def agree(self) -> bool:
        """Whether both predict the same class."""
        return self.predicted[0] == self.predicted[1]

    @property
    def overlap(self) -> float:
        """The mean over the methods."""
        return sum(self.overlaps.values()) / len(self.overlaps)


@dataclass(eq=False)
class Comparison:
    """Two models on some photos, as plain values; `compare` makes it.

    Attributes:
        models: Their names.
        classes: Of both.
        methods: Whose maps are compared.
        photos: Those whose maps differ most first.
        problems: A line for what failed, each.

    Examples:
        >>> from vision_attn.runs.comparison import ComparedPhoto, Comparison
        >>> photos = [
        ...     ComparedPhoto(f"{i}.png", 0, (0, i % 2), (0.9, 0.6), {"Rollout": 1 - i / 10})
        ...     for i in range(4)
        ... ]
        >>> comparison = Comparison(("a", "b"), ["cat", "dog"], ["Rollout"], photos, [])
        >>> [row["file"] for row in comparison.table()][:2], comparison.agreement()["share"]
        (['3.png', '2.png'], 0.5)
    """

    models: tuple[str, str]
    classes: list[str]
    methods: list[str]
    photos: list[ComparedPhoto]
    problems: list[str]

    def __post_init__(self) -> None:
        self.photos = sorted(self.photos, key=lambda photo: photo.overlap)

    def table(self) -> list[dict[str, Any]]:
        """Rows of plain values, a photo each, those whose maps differ most first.

        Keys: file, label, predicted_a, predicted_b, probability_a, probability_b, agree, overlap
        (0 to 1, the mean over methods) with overlap_low and overlap_high (95 %, over parts of the
        photo: `jackknife`), overlap_METHOD, rank (1: the most different), and rank_low to
        rank_high, the ranks that the intervals allow: 1 and the photos whose interval lies below,
        and all but those whose interval lies above.
        """
        ranks = self._ranks()
        return [
            {
                "file": photo.file,
                "label": None if photo.label is None else self.classes[photo.label],
                "predicted_a": self.classes[photo.predicted[0]],
                "predicted_b": self.classes[photo.predicted[1]],
                "probability_a": photo.probability[0],
                "probability_b": photo.probability[1],
                "agree": photo.agree,
                "overlap": photo.overlap,
                "overlap_low": photo.interval and photo.interval[0],
                "overlap_high": photo.interval and photo.interval[1],
                **{f"overlap_{name}": value for name, value in photo.overlaps.items()},
                "rank": at + 1,
                "rank_low": low,
                "rank_high": high,
            }
            for at, (photo, (low, high)) in enumerate(zip(self.photos, ranks, strict=True))
        ]

    def _ranks(self) -> list[tuple[int, int]]:
        """The lowest and highest rank of each photo that the intervals allow."""
        ends = np.array([photo.interval or (0.0, 1.0) for photo in self.photos]).round(6)
        lows, highs = np.sort(ends, axis=0).T
        return [
            (
                1 + int(np.searchsorted(highs, low, "left")),
                int(np.searchsorted(lows, high, "right")),
            )
            for low, high in ends
        ]

    def agreement(self) -> dict[str, Any]:
        """The share of photos for which both predict the same class: share, low, high, n."""
        hits = _numbers([photo.agree for photo in self.photos])
        return _share(hits)

    def accuracy(self) -> dict[str, Any] | None:
        """The accuracy of both and by how much the second's is higher; None without labels.

        Keys: a, b, difference, low and high (95 %, paired), n.
        """
        return _accuracy([photo for photo in self.photos if photo.label is not None])

    def overlap(self, method: str | None = None) -> dict[str, Any]:
        """The mean overlap of the maps: mean, low and high (95 %), n; and `apart`, of other photos.

        Args:
            method: Of that one; None: the mean over all.

        Raises:
            ValueError: There is no such method.
        """
        if method is not None and method not in self.methods:
            raise ValueError(
                f"method: expected one of {', '.join(self.methods)}, got {quoted(method)}"
            )
        names = self.methods if method is None else [method]
        found = _mean([_over(photo.overlaps, names) for photo in self.photos])
        others = [_over(photo.apart, names) for photo in self.photos if photo.apart]
        return found | {"apart": float(np.mean(others)) if others else None}

    def by_class(self) -> list[dict[str, Any]]:
        """Rows of plain values, a class each, the one whose maps differ most first.

        A photo counts to its own class where that is known, else to the one that the first model
        predicts. Keys: class, n, agreement, accuracy_a, accuracy_b (None without labels), overlap
        with overlap_low and overlap_high (95 %; None for a single photo).
        """
        groups: dict[int, list[ComparedPhoto]] = {}
        for photo in self.photos:
            own = photo.predicted[0] if photo.label is None else photo.label
            groups.setdefault(own, []).append(photo)
        rows = []
        for index, photos in groups.items():
            mean = _mean([photo.overlap for photo in photos])
            right = _accuracy([photo for photo in photos if photo.label is not None])
            rows.append(
                {
                    "class": self.classes[index],
                    "n": len(photos),
                    "agreement": sum(photo.agree for photo in photos) / len(photos),
                    "accuracy_a": right and right["a"],
                    "accuracy_b": right and right["b"],
                    "overlap": mean["mean"],
                    "overlap_low": mean["low"],
                    "overlap_high": mean["high"],
                }
            )
        return sorted(rows, key=lambda row: row["overlap"])

    def to_dict(self) -> dict[str, Any]:
        """Everything that comparison.json holds."""
        return {
            "models": list(self.models),
            "methods": self.methods,
            "agreement": self.agreement(),
            "accuracy": self.accuracy(),
            "overlap": {name: self.overlap(name) for name in self.methods},
            "classes": self.by_class(),
            "photos": self.table(),
            "problems": self.problems,
        }

    def save(self, folder: str | Path) -> Path:
        """Write comparison.json and comparison.csv; return the folder."""
        folder = output_folder(folder)
        write_text(folder / "comparison.json", json.dumps(self.to_dict(), indent=1) + "\n")
        lines, table = io.StringIO(), self.table()
        writer = csv.DictWriter(lines, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
        write_text(folder / "comparison.csv", lines.getvalue())
        return folder

    def sentences(self) -> list[str]:
        """What was found, in words."""
        same, a, b = self.agreement(), *self.models
        lines = [
            f"{a} and {b} predict the same class for {same['share']:.1%} of {same['n']} "
            f"photo{'s' * (same['n'] != 1)} (95 %: {same['low']:.1%} to {same['high']:.1%})."
        ]
        if right := self.accuracy():
            lines.append(
                f"Accuracy {right['a']:.1%} and {right['b']:.1%}: the second less the first is "
                f"{right['difference']:.1%}{_ends(right)}."
            )
        for name in self.methods:
            found = self.overlap(name)
            of_others = ""
            if found["apart"] is not None:
                of_others = f"; of the maps of two different photos, {found['apart']:.1%}"
            lines.append(
                f"{name}: {found['mean']:.1%}{_ends(found)} of a photo's two maps lies in the same "
                f"place{of_others}."
            )
        return lines

    def __str__(self) -> str:
        return "\n".join(self.sentences())


def _ends(interval: dict[str, Any]) -> str:
    """The ends of an interval in words; none of a single photo, which has no interval."""
    if interval["low"] is None:
        return ""
    return f" ({interval['low']:.1%} to {interval['high']:.1%})"


def _numbers(values: Sequence[float | bool]) -> torch.Tensor:
    return torch.tensor([float(value) for value in values], dtype=torch.float64, device="cpu")


def _over(overlaps: dict[str, float], names: Sequence[str]) -> float:
    return sum(overlaps[name] for name in names) / len(names)


def _share(hits: torch.Tensor) -> dict[str, Any]:
    low, high = wilson(hits)
    return {"share": float(hits.mean()), "low": low, "high": high, "n": len(hits)}


def _mean(values: Sequence[float]) -> dict[str, Any]:
    numbers = _numbers(values)
    low, high = bca(numbers) if len(numbers) > 1 else (None, None)
    return {"mean": float(numbers.mean()), "low": low, "high": high, "n": len(numbers)}


def _accuracy(photos: Sequence[ComparedPhoto]) -> dict[str, Any] | None:
    if not photos:
        return None
    a, b = (_numbers([one.predicted[at] == one.label for one in photos]) for at in (0, 1))
    found: dict[str, Any] = {"a": float(a.mean()), "b": float(b.mean()), "n": len(photos)}
    low, high = None, None
    if len(photos) > 1:
        _, low, high = paired_bootstrap(b, a)
    return found | {"difference": found["b"] - found["a"], "low": low, "high": high}


def overlap(a: Float[ndarray, "y x"], b: Float[ndarray, "y x"]) -> float:
    """Compute which share of a map lies in the same place in another: sum of min(a, b).

    Each is first made to sum to 1, what is below 0 being 0, over the places that both have; NaN
    where one has none. 1 for the same maps, 0 for maps with nothing in common (it is 1 less the
    distance in total variation).

    Examples:
        >>> import numpy as np
        >>> from vision_attn.runs.comparison import overlap
        >>> overlap(np.array([[1.0, 3.0]]), np.array([[2.0, 2.0]]))
        0.75
    """
    seen = ~(np.isnan(a) | np.isnan(b))
    shares = []
    for values in (a, b):
        positive = np.clip(values[seen].astype(np.float64), 0, None)
        total = positive.sum()
        if not total > 0:
            return float("nan")
        shares.append(positive / total)
    return float(np.minimum(*shares).sum())


def jackknife(
    overlaps: Sequence[float], without: Float[ndarray, "part method"]
) -> tuple[float, float] | None:
    """Compute the 95 % interval of the mean overlap of one photo's maps, over parts of the photo.

    With o the mean overlap and o_k the same without part k of n (Tukey 1958; Kunsch 1989 of blocks)

        o +- 1.96 sqrt((n - 1) / n sum_k (o_k - mean o)^2),   cut at 0 and 1

    It says how much the number hangs on single places: maps that differ in one place alone have a
    wide one. It does not say what another photo, or another training, would give.

    Args:
        overlaps: Of each method.
        without: `overlaps_without` of each; NaN where a map lies in one part alone: then nothing is
            known, and the interval is 0 to 1.

    Returns:
        Both ends; None where fewer than two parts of the photo are seen.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.runs.comparison import jackknife
        >>> [round(end, 2) for end in jackknife([0.5], np.array([[0.4], [0.5], [0.6]]))]
        [0.27, 0.73]
    """
    values = without.mean(1)
    n, value = len(values), sum(overlaps) / len(overlaps)
    if n < 2:
        return None
    if np.isnan(values).any():
        return 0.0, 1.0
    half = 1.96 * float(np.sqrt((n - 1) / n * np.square(values - values.mean()).sum()))
    return max(value - half, 0.0), min(value + half, 1.0)


def overlaps_without(a: Float[ndarray, "y x"], b: Float[ndarray, "y x"]) -> Float[ndarray, " part"]:
    """Compute the `overlap` without each part of the grid that both maps see, row by row.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.runs.comparison import overlaps_without
        >>> overlaps_without(np.ones((12, 12)), np.ones((12, 12))).shape
        (36,)
    """
    seen = ~(np.isnan(a) | np.isnan(b))
    rows, columns = (np.arange(side) * PARTS // side for side in a.shape)
    parts = rows[:, None] * PARTS + columns
    return np.array(
        [overlap(np.where(parts == part, np.nan, a), b) for part in np.unique(parts[seen])]
    )


def on_grid(explanation: Explanation, method: str) -> Float[ndarray, "y x"]:
    """Lay a map on a grid over the whole photo, whatever the network sees of it."""
    width, height = explanation.photo.size
    shrunk = min(1.0, LONGEST / max(width, height))
    size = max(1, round(width * shrunk)), max(1, round(height * shrunk))
    laid = explanation.model.preprocess.to_original(explanation[method].values, size)
    rows, columns = (((np.arange(SIDE) + 0.5) * side / SIDE).astype(int) for side in size[::-1])
    return laid[rows][:, columns]


@dataclass
class PairOfModels(Job):
    """Explains photos by two models, in the same class.

    Attributes:
        keep: Is given both explanations of each photo, where that is wanted.

    Examples:
        >>> from vision_attn.runs.comparison import PairOfModels
        >>> PairOfModels.threads
        8
    """

    requests: tuple[Request, Request]
    by_first: bool
    keep: Callable[[Explanation, Explanation], None] | None = None

    def __post_init__(self) -> None:
        self.photos: list[ComparedPhoto] = []
        self.methods = [str(one) for one in self.requests[0].explainers]

    @classmethod
    def of(
        cls,
        models: tuple[Model, Model],
        methods: Methods | None,
        target: TargetLike,
        contrast: TargetLike,
        head: Head | None,
    ) -> "PairOfModels":
        """Look up methods and classes.

        Raises:
            ValueError: They do not fit both models.
        """
        a, b = models
        if not a.classes or list(a.classes) != list(b.classes):
            counts = " and ".join(str(len(one.classes)) for one in models)
            raise ValueError(
                f"expected two models of the same classes, got {counts} classes, or other names"
            )
        by_first = target is None or (isinstance(target, str) and target.strip() == "label")
        asked = None if by_first else target
        first = Request.of(a, methods, asked, contrast, head)
        second = Request.of(b, first.explainers, asked, contrast, head)
        common = [one for one in first.explainers if one in second.explainers]
        for request in (first, second):
            request.check_same_for_all()
            if request.refused:
                raise ValueError(f"methods: {request.refused[0]}")
        return cls(
            (replace(first, explainers=common), replace(second, explainers=common)), by_first
        )

    def read(self, sample: str) -> Image | str:
        try:
            with sample_errors(sample):
                return self.requests[0].model.preprocess.read(sample)
        except ImageError as error:
            return str(error)

    def do(self, task: RunTask, read: Sequence[Image | str]) -> TaskResult:
        result = TaskResult(len(read))
        photos = []
        for sample, photo in zip(task.samples, read, strict=True):
            if isinstance(photo, str):
                result.problems.append(photo)
            else:
                photos.append((sample, photo))
        _, lines = apart(lambda some: self._add(some, result), photos, lambda named: named[0])
        result.problems += lines
        return result

    def explained(
        self, photos: Sequence[tuple[str, Image]]
    ) -> list[tuple[Explanation, Explanation]]:
        """Explain photos by both models: the class that is known, or that the first predicts."""
        first, second = self.requests
        classes = first.model.classes
        labels = [label_of(name, classes) for name, _ in photos]
        if self.by_first:
            first = replace(first, target=Class.of(first.model, tuple(labels)))
        by_a = first.explain(photos)
        if self.by_first:
            same = tuple(
                one.predicted if label is None else label
                for one, label in zip(by_a, labels, strict=True)
            )
            second = replace(second, target=Class.of(second.model, same))
        return list(zip(by_a, second.explain(photos), strict=True))

    def _add(self, photos: Sequence[tuple[str, Image]], result: TaskResult) -> None:
        maps: list[dict[str, tuple[ndarray, ndarray]]] = []
        found: list[ComparedPhoto] = []
        for a, b in self.explained(photos):
            failed = [*a.problems, *b.problems]
            if failed:
                result.problems.append(f"{a.name}: {failed[0]}")
                continue
            laid = {name: (on_grid(a, name), on_grid(b, name)) for name in self.methods}
            shares = {name: overlap(*both) for name, both in laid.items()}
            if any(np.isnan(value) for value in shares.values()):
                result.problems.append(f"{a.name}: left out, as one of its maps is empty")
                continue
            assert a.predicted is not None
            assert b.predicted is not None
            chances = (float(a.probabilities.max()), float(b.probabilities.max()))
            label = label_of(a.name, a.model.classes)
            predicted = (a.predicted, b.predicted)
            without = np.stack([overlaps_without(*both) for both in laid.values()], 1)
            found.append(
                ComparedPhoto(
                    a.name, label, predicted, chances, shares,
                    interval=jackknife(list(shares.values()), without),
                )
            )  # fmt: skip
            maps.append(laid)
            if self.keep is not None:
                self.keep(a, b)
        for at, photo in enumerate(found):
            if len(found) > 1:
                other = maps[(at + 1) % len(found)]
                pairs = {name: overlap(own[0], other[name][1]) for name, own in maps[at].items()}
                photo.apart = {name: x for name, x in pairs.items() if not np.isnan(x)}
                if len(photo.apart) < len(pairs):
                    photo.apart = {}
        self.photos += found

    def measure(self, files: Sequence[str], batch_size: int, progress: Silent) -> None:
        """Compare on all files; stop where the keyboard says so, and say it."""
        tasks = [
            RunTask(tuple(files[at : at + batch_size])) for at in range(0, len(files), batch_size)
        ]
        progress.start("comparing", len(files))
        try:
            for result in results(self, tasks, 1, progress.problem):
                for problem in result.problems:
                    progress.problem(problem)
                progress.advance(result.count)
        except KeyboardInterrupt:
            if not self.photos:
                raise
            progress.problem(f"stopped: compared on {len(self.photos)} of {len(files)} photos")
