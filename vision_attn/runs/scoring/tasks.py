"""Scoring as work for the loop of a run: what to measure of which samples, kept in a store.

    DIR/per_image/store/   a row for each method and sample: what was done is not done again
    DIR/per_image/maps/    the maps that the pictures show, raw

A task is one method on one batch of samples, which are images or mosaics of them. Processes, shards
on other machines and a second run after the first was stopped all meet in these files.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from vision_attn.data.faults import ImageError, sample_errors
from vision_attn.devices import native_precision
from vision_attn.evaluate import DroppedTokens
from vision_attn.methods import (
    Attribution,
    Baseline,
    CentreGaussian,
    Class,
    EdgeMap,
    Explainer,
    RandomMap,
    choose_methods,
    fitting_methods,
)
from vision_attn.methods.by_name import method_list
from vision_attn.methods.targets import TargetLike, has_classifier, no_classifier
from vision_attn.runs.database import DamagedError
from vision_attn.runs.explain import Methods, Request
from vision_attn.runs.keys import content_number, model_settings, sample_numbers
from vision_attn.runs.loop import Job, RunTask, TaskResult
from vision_attn.runs.progress import Pilot
from vision_attn.runs.runfile import RunFile, read_run, write_run
from vision_attn.runs.scoring.evidence import (
    Data,
    PlantedSamples,
    Sample,
    Samples,
    data_name,
    open_data,
)
from vision_attn.runs.scoring.mosaics import FRAMES, Mosaics, check_sides
from vision_attn.runs.scoring.scorer import KeptMap, Record, SampleBatch, Scorer, removal
from vision_attn.runs.shard import Column, RowKeeper, ShardFile, StoreRow
from vision_attn.runs.store import Store
from vision_attn.threads import threads_of_job
from vision_attn.tokens.modules import first_quantised
from vision_attn.types import Head, Model

__all__ = ["BASELINES", "SCORED", "Key", "ScoreFolder", "Share", "Work"]

IMAGES = 1000  # how many are scored by default
PLANTED_IMAGES = 96  # of the planted ones, whose masks are exact
ALL_IMAGES, SANE = 500, 32  # and with all methods; of them, how many pass the slow checks
PROCESSES, A_PROCESS = 4, 500  # at most, by default; maps that are worth one of their own
FEW = 8  # images of a task that takes many maps an image
BASELINES: tuple[Explainer, ...] = (RandomMap(), CentreGaussian(), EdgeMap())
SCORED = "maps", "sanity", "mosaic"  # kinds of records whose maps were scored

Key = tuple[str, str, str]  # kind, method, image
Place = tuple[str, str]  # method, image
ReadSample = tuple[Sample, int] | str  # with the number of its content; or why it cannot be read


class Share(NamedTuple):
    """The images that are to be scored, those that also pass the slow checks, and the mosaics.

    Examples:
        >>> from vision_attn.runs.scoring.tasks import Share
        >>> Share([0, 2], [2]).mosaics
        ()
    """

    chosen: list[int]
    sane: list[int]
    mosaics: Sequence[int] = ()


class Work(Job):
    """A model, images and methods, and how they are measured; see `vision_attn.score`.

    It can be sent to other processes if the model and the methods can. Its samples are images of
    the data, and mosaics of them in the frames that a network may see: ("data", 7), ("full", 0).

    Examples:
        >>> from vision_attn.data import Preprocess
        >>> from vision_attn.models import SEResNet
        >>> from vision_attn.runs.scoring.tasks import Work
        >>> from vision_attn.types import Model
        >>> network = SEResNet(10, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4)).eval()
        >>> preprocess = Preprocess((32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)
        >>> model = Model(network, preprocess, [f"class {i}" for i in range(10)], None)
        >>> list(Work(model, "planted", ["GradCAM"], limit=2).explainers)[0]
        'GradCAM'
    """

    threads = 0  # samples of others may not be read in threads

    def __init__(
        self,
        model: Model,
        data: Data,
        methods: Methods | None = None,
        *,
        target: TargetLike = None,
        contrast: TargetLike = None,
        limit: int | None = None,
        head: Head | None = None,
        steps: int = 16,
        how: str = "auto",
        sanity: int | None = None,
        mosaic: int | Sequence[int] | None = None,
        batch_size: int = 50,
        seed: int = 0,
        root: str | Path = ".data",
        name: str | None = None,
    ):
        if target is None and has_classifier(model):
            target = "label"
        request = Request.of(model, BASELINES, target, contrast, head)
        request.check_same_for_all()
        if request.unasked:
            raise ValueError(no_classifier(model))
        self.model = model = request.model
        self.request = request
        self.data = open_data(data, model, Path(root))
        words = method_list(methods)
        self.explainers = {str(e): e for e in methods_for(words, model)}
        kind = "cpu" if model.device.type == "cpu" else "auto"
        self.scorer = Scorer(
            request,
            removal(model, how, seed),
            steps,
            seed,
            half=(
                native_precision(kind) == "bf16-mixed"
                and model.dtype == torch.float32
                and not first_quantised(model.network)  # such layers take float32 alone
            ),
        )
        everything = "all" in words
        usual = ALL_IMAGES if everything else IMAGES
        usual = PLANTED_IMAGES if isinstance(self.data, PlantedSamples) else usual
        self.requested = limit or min(usual, len(self.data))
        chosen = self.data.chosen(self.requested, seed)
        sane = (SANE if everything else 0) if sanity is None else sanity
        self.all = Share(chosen, chosen[:sane])
        self.batch_size = batch_size
        most = min(self.requested, SANE) if everything else self.requested
        sides = check_sides(mosaic)
        self.mosaics = Mosaics(data_name(data), model, self.data, sides, most, seed)
        if sides:
            self.mosaics.check()
        self._of_model = model_settings(model)
        self.settings = {
            "model": name or type(model.network).__name__,
            "weights": self._of_model["weights"],
            "input_size": list(model.preprocess.input_size),
            "data": data_name(data),
            "target": request.key(),
            "removal": removal_name(self.scorer),
            "steps": steps,
            "seed": seed,
            "precision": "bf16" if self.scorer.half else "fp32",
        }
        self.columns: list[Column] = []
        self._batch: tuple[Sequence[ReadSample], SampleBatch | None, list[str]] = ((), None, [])

    @property
    def of_classes(self) -> bool:
        """Whether a class is explained, which has a probability."""
        return isinstance(self.request.target, Class) and self.request.contrast is None

    def share(self, number: int, shards: int) -> Share:
        """The images of one shard of several, by batches; `number` runs from 1."""

        def mine(batches: Sequence[Sequence[int]]) -> list[int]:
            return [item for batch in batches[number - 1 :: shards] for item in batch]

        chosen, sane, mosaics = self.all
        few = min(self.batch_size, FEW)
        return Share(
            mine(batches(chosen, self.batch_size)),
            mine(batches(sane, few)),
            mine(self._of_one_side(mosaics)),
        )

    def stages(
        self, kept: RowKeeper, shard: tuple[int, int] = (1, 1)
    ) -> Iterator[tuple[str, list[RunTask]]]:
        """Yield what is left to do, in words and tasks, stage by stage.

        Args:
            kept: What is done, which the next stage may need.

        Raises:
            ValueError: No mosaic can be made.
        """
        if self.mosaics.sides:
            photos = batches(self.mosaics.candidates(), self.batch_size)
            yield "naming photos", self._left(kept, "named", [""], "data", photos)
            self.mosaics.compose(records_of(kept, self.columns))
            every = range(len(self.mosaics.made))
            cut = self._of_one_side(every)
            framed = [self._left(kept, "framed", [""], frame, cut) for frame in FRAMES]
            yield "naming mosaics", [task for tasks in framed for task in tasks]
            self.mosaics.choose_frames(records_of(kept, self.columns))
            self.all = self.all._replace(mosaics=every)
        yield "scoring", self.tasks(kept, self.share(*shard))

    def tasks(self, kept: RowKeeper, share: Share | None = None) -> list[RunTask]:
        """What is left to measure, image by image for all methods."""
        chosen, sane, mosaics = share or self.all
        methods, few = list(self.explainers), min(self.batch_size, FEW)
        first, rest = chosen[:few], chosen[few:]  # by which the time of all is told
        tasks = self._left(kept, "maps", methods, "data", [first, *batches(rest, self.batch_size)])
        tasks += self._left(kept, "sanity", methods, "data", batches(sane, few))
        for side, frame in self.mosaics.frames.items():
            mine = [number for number in mosaics if self.mosaics.made[number].side == side]
            tasks += self._left(kept, "mosaic", methods, frame, self._of_one_side(mine))
        return tasks

    def pilot(self, tasks: Sequence[RunTask]) -> Pilot | None:
        """The first images, by all methods, whose time tells that of all; None without maps."""
        maps = [t for t in tasks if self.columns[t.columns[0]].kind == "maps"]
        if not maps:
            return None
        steps = sum(task.samples == maps[0].samples for task in maps)
        of = round(sum(len(task.samples) for task in maps) / steps)
        return Pilot(FEW, of, steps)

    def _left(
        self,
        kept: RowKeeper,
        kind: str,
        methods: Iterable[str],
        source: str,
        cut: Iterable[Sequence[int]],
    ) -> list[RunTask]:
        """What is left to do of each batch for each method: what has no row of its content."""
        samples = self.samples(source)
        numbers = [self.column(kind, method) for method in methods]
        tasks = []
        for batch in cut:
            names = sample_numbers([samples.names[item] for item in batch])
            stamps: dict[int, int] = {}
            for number in numbers:
                ids, contents = kept.find(self.columns[number], names)
                left, stale = [], []
                for place, item in enumerate(batch):
                    if ids[place] >= 0:
                        stamps.setdefault(item, content_number(samples.stamp(item)))
                        if stamps[item] == contents[place]:
                            continue
                        stale.append(place)
                    left.append((source, item))
                if stale:
                    kept.forget(self.columns[number], names[stale])
                if left:
                    tasks.append(RunTask(tuple(left), (number,)))
        return tasks

    def samples(self, source: str) -> Samples:
        """The images of the data, or the mosaics in a frame."""
        return self.data if source == "data" else self.mosaics.samples(source)

    def column(self, kind: str, method: str) -> int:
        """The number, in `columns`, of what a method gives of a kind."""
        explainer = self.explainers.get(method)
        settings: dict[str, Any] = {k: v for k, v in self.settings.items() if k != "model"}
        settings |= self._of_model
        if explainer is not None:
            settings["class"] = f"{type(explainer).__module__}.{type(explainer).__qualname__}"
            settings["options"] = asdict(explainer)
        column = Column(kind, method, settings)
        if column not in self.columns:
            self.columns.append(column)
        return self.columns.index(column)

    def _of_one_side(self, numbers: Sequence[int]) -> list[Sequence[int]]:
        """Cut mosaics into batches of one side, with about as many photos as a batch of images."""
        return [
            batch
            for side in self.mosaics.sides
            for batch in batches(
                [i for i in numbers if self.mosaics.made[i].side == side],
                max(1, self.batch_size // side**2),
            )
        ]

    def drawings(self, kept: RowKeeper, wanted: Mapping[str, Iterable[str]]) -> list[RunTask]:
        """The maps that are wanted for pictures, by method, and not kept yet."""
        places = {name: item for item, name in enumerate(self.data.names)}
        return [
            task
            for method, images in wanted.items()
            for task in self._left(
                kept, "drawn", [method], "data", [[places[image] for image in images]]
            )
        ]

    def read(self, sample: tuple[str, int]) -> ReadSample:
        """Read a sample, or say in a line why it cannot be read."""
        source, item = sample
        samples = self.samples(source)
        try:
            with sample_errors(samples.names[item]):
                content = content_number(samples.stamp(item))
                return samples[item], content
        except ImageError as error:
            return str(error)

    def do(self, task: RunTask, read: Sequence[ReadSample]) -> TaskResult:
        """Do one task; a sample that cannot be used costs itself and a line."""
        batch, problems = self.batch(read)
        result = TaskResult(len(read), problems=list(problems))
        if batch is None:
            return result
        column = self.columns[task.columns[0]]
        contents = {one[0].name: one[1] for one in read if not isinstance(one, str)}
        explainer = self.explainers.get(column.method)
        if column.kind == "drawn":
            assert explainer is not None
            for name, drawn in self.scorer.drawn(explainer, batch).items():
                record: Record = {"kind": "drawn", "method": column.method, "image": name}
                record["prefix_mass"] = drawn.prefix_mass
                result.rows.append(StoreRow(column, name, record, contents[name], drawn.values))
            return result
        for record in self.scorer.records(column.kind, explainer, batch):
            name = record["image"]
            result.rows.append(StoreRow(column, name, record, contents[name]))
        return result

    def batch(self, read: Sequence[ReadSample]) -> tuple[SampleBatch | None, list[str]]:
        """Make the batch of the samples that can be used, None if none can.

        The second value is a line for each of the others.
        """
        if self._batch[0] is not read or not read:
            samples = [one[0] for one in read if not isinstance(one, str)]
            batch, lines = self.scorer.batches(samples)
            unread = [one for one in read if isinstance(one, str)]
            self._batch = read, batch, unread + lines
        return self._batch[1:]

    def usual_processes(self, tasks: Sequence[RunTask]) -> int:
        """One a CPU core up to four, as far as there is work: a small network leaves cores idle."""
        if self.model.device.type != "cpu":
            return 1
        maps = sum(len(task.samples) for task in tasks)
        return max(1, min(torch.get_num_threads(), PROCESSES, maps // A_PROCESS))


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the random numbers of torch, and at the end go on with the caller's own.

    device: the model's. CUDA's are seeded once it runs: to ask for them would start it.
    """
    of_cuda = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    of_apple = torch.mps.get_rng_state() if device.type == "mps" else None
    with torch.random.fork_rng(of_cuda):
        torch.default_generator.manual_seed(seed)
        if of_cuda:
            torch.cuda.manual_seed_all(seed)
        if of_apple is not None:
            torch.mps.manual_seed(seed)
        try:
            yield
        finally:
            if of_apple is not None:
                torch.mps.set_rng_state(of_apple)


def batches(items: Sequence[int], size: int) -> list[Sequence[int]]:
    """Cut items into batches of that size, the last of what is left."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def methods_for(
    words: Sequence[str | Explainer] | None, model: nn.Module | Model
) -> list[Explainer]:
    """The methods that are named, else those that fit and are quick; the baselines always."""
    if words:
        chosen = choose_methods(words, model)
    else:
        chosen = [m for m in fitting_methods(model) if not isinstance(m, Attribution | Baseline)]
    return [method for method in chosen if method not in BASELINES] + list(BASELINES)


def removal_name(scorer: Scorer) -> str:
    """The word for the scorer's removal: tokens, mean, blur or noise."""
    if isinstance(scorer.removal, DroppedTokens):
        return "tokens"
    fill = type(getattr(scorer.removal, "fill", None)).__name__
    return fill.removesuffix("Fill").lower()


class ScoreFolder:
    """The rows of a folder: those that this process writes, and those of shards.

    threads: of torch, with which the work began.

    Raises:
        ValueError: The folder cannot be written, or holds scores of other settings.

    Examples:
        >>> from vision_attn.runs.scoring.tasks import ScoreFolder
        >>> ScoreFolder.__init__.__annotations__["shard"]
        tuple[int, int]
    """

    def __init__(self, folder: Path, work: Work, shard: tuple[int, int] = (1, 1)):
        self.folder = folder / "per_image"
        self.own: Store | None = None
        self.others: list[ShardFile] = []
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.threads = self._check(folder, work.settings)
            self.list_samples(work)
            self.own = Store(self.folder, shard, keeps_others=True, half=False)
            for path in sorted((self.folder / "store").glob("*-of-*.sqlite")):
                if path != self.own.path:
                    self._open(path)
        except OSError as error:
            self.close()
            reason = error.strerror or str(error)
            raise ValueError(
                f"{folder}: cannot write there ({reason}): name another folder"
            ) from None
        except BaseException:
            self.close()
            raise

    def _check(self, folder: Path, settings: Record) -> int:
        """Compare the settings; return how many threads the work began with."""
        try:
            known = read_run(self.folder)
        except DamagedError:
            known = None  # written anew: rows know themselves what they are of
        before = None if known is None else known.about.get("settings")
        if known is None or not isinstance(before, dict):
            return threads_of_job(None)
        now = json.loads(json.dumps(settings))
        differ = [name for name in now if name != "model" and before.get(name) != now[name]]
        if differ:
            was = ", ".join(f"{name} {before.get(name)}, now {now[name]}" for name in differ)
            raise ValueError(
                f"{folder}: it holds scores of other settings ({was}): name another folder"
            )
        return threads_of_job(known.about)

    def _open(self, path: Path) -> None:
        number, _, shards = path.stem.partition("-of-")
        try:
            shard = ShardFile(self.folder, (int(number), int(shards)))
        except (DamagedError, FileNotFoundError):
            return  # what it holds is scored again
        shard.sift()
        self.others.append(shard)

    def list_samples(self, work: Work) -> None:
        """Write what the folder is of, with all samples that are known by now."""
        names = [work.data.names[item] for item in work.all.chosen]
        if work.mosaics.made:
            names += [work.data.names[item] for item in work.mosaics.candidates()]
            names += [name for frame in FRAMES for name in work.mosaics.samples(frame).names]
        about = {"what": "score", "settings": work.settings, "threads": self.threads}
        write_run(self.folder, RunFile(about, list(dict.fromkeys(names))))

    def add(self, rows: Sequence[StoreRow]) -> None:
        """Keep rows; see `Store.add`."""
        assert self.own is not None
        self.own.add(rows)

    def commit(self) -> None:
        """Bring what was added to the disk."""
        assert self.own is not None
        self.own.commit()

    def find(self, column: Column, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find the rows of samples, in this process's file or in others."""
        assert self.own is not None
        ids, contents = self.own.find(column, samples)
        for shard in self.others:
            theirs, known = shard.find(column, samples)
            new = (ids < 0) & (theirs >= 0)
            ids[new], contents[new] = theirs[new], known[new]
        return ids, contents

    def forget(self, column: Column, samples: np.ndarray) -> None:
        """Remove the rows of samples that are others by now; those of shards are passed over."""
        assert self.own is not None
        self.own.forget(column, samples)
        for shard in self.others:
            shard.leave_out(shard.find(column, samples)[0])

    def kept(self, columns: Sequence[Column] | None = None) -> Iterator[StoreRow]:
        """Yield every row of these columns, of all where they are None; the later ones count."""
        for shard in [*self.others, *([self.own] if self.own else [])]:
            yield from shard.kept(columns)

    def close(self) -> None:
        """Close the files; what was added is committed."""
        for shard in [*self.others, *([self.own] if self.own else [])]:
            shard.close()

    def __enter__(self) -> "ScoreFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def records_of(kept: RowKeeper, columns: Sequence[Column] | None = None) -> dict[Key, Record]:
    """The records of all rows but of drawn maps, by kind, method and sample.

    columns: those whose rows count; rows of others may be of another model or target.
    """
    records = [dict(row.record) for row in kept.kept(columns) if row.column.kind != "drawn"]
    return {(one["kind"], one["method"], one["image"]): one for one in records}


def drawn_of(kept: RowKeeper, columns: Sequence[Column] | None = None) -> dict[Place, KeptMap]:
    """The maps of pictures that are kept, by method and image."""
    return {
        (row.column.method, row.record["image"]): KeptMap(row.map, row.record["prefix_mass"])
        for row in kept.kept(columns)
        if row.map is not None
    }
