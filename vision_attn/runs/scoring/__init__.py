"""Scores of heatmaps: which methods to trust for a model, measured beside three baselines."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

from vision_attn import render
from vision_attn.arguments import checked
from vision_attn.files import claimed, write_text
from vision_attn.methods.targets import TargetLike
from vision_attn.runs.explain import Methods
from vision_attn.runs.inputs import check_apart, check_file, check_shard, output_folder
from vision_attn.runs.loop import fill
from vision_attn.runs.progress import Bar, Silent
from vision_attn.runs.scoring import pictures, tables
from vision_attn.runs.scoring.evidence import (
    Data,
    Files,
    PhotoSamples,
    Samples,
    as_data,
    check_data,
)
from vision_attn.runs.scoring.ranking import trust_of
from vision_attn.runs.scoring.results import Results
from vision_attn.runs.scoring.scorer import KeptMap, removal
from vision_attn.runs.scoring.tasks import (
    SCORED,
    ScoreFolder,
    Work,
    drawn_of,
    records_of,
    seeded,
)
from vision_attn.runs.scoring.verdict import MethodVerdict, Verdict, judge
from vision_attn.runs.shard import RowKeeper
from vision_attn.runs.store import MemoryStore
from vision_attn.threads import computing_with, threads_of_job
from vision_attn.types import Head, Model, Trust

__all__ = ["MethodVerdict", "Scores", "Verdict", "removal", "score"]


class Scores:
    """Scores of methods on images, as tables, pictures and plain values; `score` makes them.

    In a notebook it shows its tables.

    Args:
        results: The numbers behind them.
        data: The samples that were scored.
        drawn: Maps of some of them, to draw the best and the worst.
        problems: A line for each image that could not be read and each method that failed on
            images.

    Examples:
        >>> import vision_attn
        >>> from vision_attn.data import Preprocess
        >>> from vision_attn.models import ViT
        >>> from vision_attn.types import Head, Model
        >>> vit = ViT(image_size=16, patch_size=8, dim=12, depth=1, heads=2, num_classes=10).eval()
        >>> preprocess = Preprocess((16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
        >>> model = Model(vit, preprocess, [f"class {i}" for i in range(10)], vit.layout((16, 16)))
        >>> scores = vision_attn.score(model, "planted", ["Rollout"], limit=3, steps=2, sanity=0)
        >>> scores.methods
        ['Rollout', 'RandomMap', 'CentreGaussian', 'EdgeMap']
        >>> rows = [row for row in scores.table() if row["method"] == "Rollout"]
        >>> sorted({row["metric"] for row in rows} & {"deletion", "insertion"})
        ['deletion', 'insertion']
    """

    def __init__(
        self,
        results: Results,
        data: Samples,
        drawn: Mapping[tuple[str, str], KeptMap],
        problems: list[str],
    ):
        self.results = results
        self.problems = problems
        self._data = data
        self._drawn = drawn

    @property
    def methods(self) -> list[str]:
        """The methods in their order, and then the three baselines."""
        return list(self.results.table)

    @property
    def metrics(self) -> list[str]:
        """The metrics that anything was scored by."""
        return self.results.metrics

    def verdict(self) -> Verdict:
        """Say which methods to trust here, which not, and why, from the scores and their intervals.

        `verdict().text` is two lines, `.methods` and `.rows()` have each method's reasons. The rule
        is in `vision_attn.runs.scoring.verdict`, and in scores.md.
        """
        return judge(self.results)

    def trust(self) -> Trust:
        """Return the methods to trust here, the best mean rank first, as `Model.trust` keeps them.

        `dataclasses.replace(model, trust=scores.trust())` is the same model with the best of them
        that takes one pass or two as its usual method.
        """
        return trust_of(self.results)

    def table(self) -> list[dict[str, Any]]:
        """Rows of plain values, one for each method and metric, for `pandas.DataFrame`.

        Keys: method, metric, higher_is_better, mean, standard_error, n, and for each baseline
        ahead_of_NAME, ahead_of_NAME_low and _high: by how much the method is better, whichever way
        the metric runs, and the 95 % interval of that. None where a value is unknown.
        """
        return tables.rows(self.results)

    def to_dict(self) -> dict[str, Any]:
        """Everything that scores.json holds: settings, and scores and curves by method."""
        return tables.as_json(self.results)

    def best(self, metric: str = "deletion") -> str:
        """Name the method with the best mean by a metric.

        Args:
            metric: One of `metrics`.

        Raises:
            ValueError: The metric has no scores.
        """
        return self.results.best(metric)

    def better_than_baselines(self, metric: str = "deletion") -> list[str]:
        """The methods that are better than each baseline by the 95 % interval of the difference."""
        self.results.best(metric)
        return [m for m in self.results.methods if self.results.beats_all(metric, m)]

    def save(self, folder: str | Path) -> Path:
        """Write scores.json, scores.csv, scores.md and the pictures; return the folder.

        curves.png shows deletion and insertion, sanity.png (if measured) how maps change as the
        weights are randomised, best_and_worst.png the images that score best and worst.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        results = self.results
        write_text(folder / "scores.json", json.dumps(self.to_dict(), indent=1) + "\n")
        write_text(folder / "scores.csv", tables.as_csv(results))
        write_text(folder / "scores.md", tables.as_markdown(results))
        drawn = {"curves": pictures.curves(results)}
        if "randomisation" in results.metrics:
            drawn["sanity"] = pictures.sanity(results)
        ranked = pictures.ranked(results, self._data, self._drawn)
        if ranked is not None:
            drawn["best_and_worst"] = ranked
        for name, picture in drawn.items():
            marked = render.with_caption(picture, results.warning, size=20)
            render.save(marked, folder / f"{name}.png")
        return folder

    def __str__(self) -> str:
        return tables.as_text(self.results)

    def _repr_html_(self) -> str:
        return tables.as_html(self.results)


@checked(limit=1, steps=1, sanity=0, processes=1, batch_size=1)
def score(
    model: Model,
    images: Data,
    methods: Methods | None = None,
    *,
    target: TargetLike = None,
    contrast: TargetLike = None,
    limit: int | None = None,
    output: str | Path | None = None,
    head: Head | None = None,
    steps: int = 16,
    removal: str = "auto",
    sanity: int | None = None,
    mosaic: int | Sequence[int] | None = None,
    processes: int | None = 1,
    shard: tuple[int, int] = (1, 1),
    batch_size: int = 50,
    seed: int = 0,
    root: str | Path = ".data",
    name: str | None = None,
    progress: Silent | None = None,
) -> Scores:
    """Measure which heatmaps of a model to trust, beside three maps that know nothing of it.

    Of a target that is no class, deletion and insertion follow its number, in units of its mean
    change from whole images to none of them.

    Args:
        model: A model of `load_model` or `wrap`.
        images: planted (with masks), planted:shortcut, planted:contradict, cifar10 or cifar100
            (below `root`), a folder of images, one with boxes.json, or one with images/ and masks/;
            or a list of image files and PIL images.
        methods: Names or explainers; None takes those that fit and are quick, "all" the slow ones
            too.
        target: What is explained, as `explain` takes it, the same for all images; None takes the
            class that an image shows where that is known ("label"), else the predicted one
            ("predicted").
        contrast: What is subtracted from it.
        limit: At most so many images, drawn evenly (None: 96 of the planted ones, else 1000, with
            "all" 500).
        output: A folder in which the work is kept as it is done, so that a stopped call, or shards,
            can be continued by the same call; it also receives the files of `Scores.save`.
        head: Which part of the network's output is meant.
        steps: Of deletion and insertion.
        removal: See `vision_attn.removal`.
        sanity: On how many images the weights are randomised and noise is added (None: 32 with
            "all", else 0).
        mosaic: Photos a side, 2 to 4, one number or several, of mosaics in which each method
            explains the class of each photo; needs images with labels; at most `limit` (with "all"
            32) of each side, and no more than 400 photos fill.
        processes: How many at once; None takes as many as pay. Above one, a script needs its
            `if __name__ == "__main__":`.
        shard: (number, of how many) measures that part of the images.
        batch_size: Images at once.
        seed: Of what is drawn.
        root: The folder of CIFAR.
        name: What the tables call the model.
        progress: None shows a bar where there is a terminal.

    Returns:
        The scores of each method, and a verdict; what goes wrong with single images is in
        `Scores.problems`.

    Raises:
        ValueError: A method, data or setting does not fit, or nothing could be scored.

    Examples:
        >>> import vision_attn
        >>> model = vision_attn.load_model(
        ...     "timm:vit_tiny_patch16_224", pretrained=False, image_size=64, depth=2
        ... )
        >>> scores = vision_attn.score(model, "planted", ["Rollout"], limit=3, steps=2)
        >>> scores.methods
        ['Rollout', 'RandomMap', 'CentreGaussian', 'EdgeMap']
        >>> scores.table()[0]["metric"]
        'deletion'
    """
    images = as_data(images)
    check_shard(shard)
    number, shards = shard
    with seeded(seed, model.device):
        work = Work(
            model, images, methods, target=target, contrast=contrast, limit=limit, head=head,
            steps=steps, how=removal, sanity=sanity, mosaic=mosaic, batch_size=batch_size,
            seed=seed, root=root, name=name,
        )  # fmt: skip
        if output is not None:
            _check_apart(Path(output), images, work.data)
        progress = progress or Bar()
        problems: list[str] = []

        def say(problem: str) -> None:
            if problem not in problems:
                problems.append(problem)
                progress.problem(problem)

        with progress, contextlib.ExitStack() as stack:
            kept: RowKeeper = MemoryStore()
            threads: int | None = None
            if output is not None:
                folder = output_folder(output)
                stack.enter_context(claimed(folder, shard))
                scored = stack.enter_context(ScoreFolder(folder, work, shard))
                kept, threads = scored, scored.threads
                stack.enter_context(saying_what_is_kept(kept, folder))
            if model.device.type == "cpu":
                stack.enter_context(computing_with(threads or threads_of_job(None)))
            for words, tasks in work.stages(kept, shard):
                total = sum(len(task.samples) for task in tasks)
                progress.start(words, total, work.pilot(tasks))
                count = processes or work.usual_processes(tasks)
                fill(kept, work, tasks, count if tasks else 1, progress, say)
            share = None if shards == 1 else work.share(number, shards)
            results = Results(work, records_of(kept, work.columns), share, problems)
            for problem in results.problems():
                say(problem)
            if shards == 1:
                wanted = {m: dict.fromkeys(chain(*results.extremes(m))) for m in results.table}
                tasks = work.drawings(kept, wanted)
                fill(kept, work, tasks, 1, Silent(), lambda problem: None)
            if isinstance(kept, ScoreFolder):
                kept.list_samples(work)
            drawn = drawn_of(kept, work.columns)
        scores = Scores(results, work.data, drawn, problems)
        if output is not None and shards == 1:
            scores.save(output)
        return scores


def _check_apart(output: Path, data: Data, samples: Samples) -> None:
    """Raise ValueError where the results would lie among the photos, or replace one of them."""
    if isinstance(samples, Files):
        files = list(samples.files)
        check_apart(output, files, [data if isinstance(data, str | PathLike) else samples.folder])
    elif isinstance(samples, PhotoSamples):
        files = [Path(photo) for photo in samples.photos if isinstance(photo, str | PathLike)]
    else:
        return
    for name in ("curves", "sanity", "best_and_worst"):
        check_file(output / f"{name}.png", files)


@contextlib.contextmanager
def saying_what_is_kept(kept: RowKeeper, folder: Path) -> Iterator[None]:
    """Say in a KeyboardInterrupt how much is kept and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        count = sum(kind in SCORED for kind, *_ in records_of(kept))
        raise KeyboardInterrupt(
            f"{count} scored maps are kept in {folder}: the same command or call continues there"
        ) from None
