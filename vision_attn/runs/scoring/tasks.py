"""Scoring cut into tasks, done in this process or in several, kept as it is done.

    DIR/settings.json          what is measured, and how; scores of other settings do not mix
    DIR/per_image/*.jsonl      a line for each method and image: what was done is not done again
    DIR/per_image/maps/*.npz   the maps that the pictures show, raw, each with its prefix mass

A task is one method on one batch of images. Processes, shards on other machines and a second run
after the first was stopped all meet in these files.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile
from zlib import crc32

import numpy as np
import torch
from torch import nn

from vision_attn.data.faults import ImageError
from vision_attn.devices import native_precision
from vision_attn.evaluate import DroppedTokens
from vision_attn.files import append_text, replacing, write_text
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
from vision_attn.methods.targets import TargetLike, has_classifier, no_classifier
from vision_attn.runs import workers
from vision_attn.runs.explain import Methods, Request
from vision_attn.runs.scoring.evidence import Data, Sample, data_name, open_data
from vision_attn.runs.scoring.mosaics import FRAMES, Mosaics, check_sides
from vision_attn.runs.scoring.scorer import Batch, Drawn, Record, Scorer, removal
from vision_attn.types import Head, Model

__all__ = ["BASELINES", "SCORED", "Key", "answers"]

IMAGES = 1000  # how many are scored by default
ALL_IMAGES, SANE = 500, 32  # and with all methods; of them, how many pass the slow checks
PROCESSES, A_PROCESS = 4, 500  # at most, by default; maps that are worth one of their own
FEW = 8  # images of a task that takes many maps an image
BASELINES: tuple[Explainer, ...] = (RandomMap(), CentreGaussian(), EdgeMap())
SCORED = "maps", "sanity", "mosaic"  # kinds of records whose maps were scored

Key = tuple[str, str, str]  # kind, method, image
Place = tuple[str, str]  # method, image


class Task(NamedTuple):
    """One method on some images, or mosaics.

    kind: `maps`, `sanity`, `mosaic`; `drawn`, the maps of pictures; or what mosaics take before any
    map, without a method: `named` of photos, `framed` of mosaics in a frame.
    """

    kind: str
    method: str
    items: tuple[int, ...]


class Share(NamedTuple):
    """The images that are to be scored, those that also pass the slow checks, and the mosaics."""

    chosen: list[int]
    sane: list[int]
    mosaics: Sequence[int] = ()


@dataclass(frozen=True)
class Answer:
    """A task's records and drawn maps, and a line for each image that could not be read."""

    task: Task
    records: list[Record] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    drawn: dict[Place, Drawn] = field(default_factory=dict)


class Work:
    """A model, images and methods, and how they are measured; see `vision_attn.score`.

    It can be sent to other processes if the model and the methods can.
    """

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
        at_least_one(limit=limit, steps=steps, batch_size=batch_size)
        if sanity is not None and sanity < 0:
            raise ValueError(f"sanity must be at least 0 images, got {sanity}")
        if target is None and has_classifier(model):
            target = "label"
        request = Request.of(model, BASELINES, target, contrast, head)
        request.check_same_for_all()
        if request.unasked:
            raise ValueError(no_classifier(model))
        self.model = model = request.model
        self.request = request
        self.data = open_data(data, model, Path(root))
        words = [methods] if isinstance(methods, str | Explainer) else methods
        self.explainers = {str(e): e for e in methods_for(words, model)}
        kind = "cpu" if model.device.type == "cpu" else "auto"
        self.scorer = Scorer(
            request,
            removal(model, how, seed),
            steps,
            seed,
            half=native_precision(kind) == "bf16-mixed",
        )
        everything = words is not None and "all" in words
        self.requested = limit or min(ALL_IMAGES if everything else IMAGES, len(self.data))
        chosen = self.data.chosen(self.requested, seed)
        usual = SANE if everything else 0
        self.all = Share(chosen, chosen[: usual if sanity is None else sanity])
        self.batch_size = batch_size
        most = min(self.requested, SANE) if everything else self.requested
        sides = check_sides(mosaic)
        self.mosaics = Mosaics(data_name(data), model, self.data, sides, most, seed)
        if sides:
            self.mosaics.check()
        self.settings = {
            "model": name or type(model.network).__name__,
            "weights": f"{workers.checksum(model.network):08x}",
            "input_size": list(model.preprocess.input_size),
            "data": data_name(data),
            "target": request.key(),
            "removal": removal_name(self.scorer),
            "steps": steps,
            "seed": seed,
            "precision": "bf16" if self.scorer.half else "fp32",
        }
        self._read: tuple[tuple[int, ...], Batch | None, list[str]] = ((), None, [])

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
        self, records: Callable[[], dict[Key, Record]], shard: tuple[int, int] = (1, 1)
    ) -> Iterator[tuple[str, list[Task]]]:
        """Yield what is left to do, in words and tasks, stage by stage.

        records: gives what is known by then, which the next stage may need. Raises
        ValueError where no mosaic can be made.
        """
        if self.mosaics.sides:
            photos = batches(self.mosaics.candidates(), self.batch_size)
            yield "naming photos", left("named", [""], photos, self.data.names, set(records()))
            self.mosaics.compose(records())
            every = range(len(self.mosaics.made))
            names, cut = [one.name for one in self.mosaics.made], self._of_one_side(every)
            yield "naming mosaics", left("framed", FRAMES, cut, names, set(records()))
            self.mosaics.choose_frames(records())
            self.all = self.all._replace(mosaics=every)
        yield "scoring", self.tasks(set(records()), self.share(*shard))

    def tasks(self, done: set[Key], share: Share | None = None) -> list[Task]:
        """What is left to measure, image by image for all methods."""
        chosen, sane, mosaics = share or self.all
        names, methods, few = self.data.names, list(self.explainers), min(self.batch_size, FEW)
        tasks = left("maps", methods, batches(chosen, self.batch_size), names, done)
        tasks += left("sanity", methods, batches(sane, few), names, done)
        if mosaics:
            cut = self._of_one_side(mosaics)
            tasks += left("mosaic", methods, cut, self.mosaics.names(), done)
        return tasks

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

    def drawings(self, wanted: Mapping[str, Iterable[str]], done: set[Place]) -> list[Task]:
        """The maps that are wanted for pictures, by method, and not kept yet."""
        places = {name: item for item, name in enumerate(self.data.names)}
        tasks = [
            Task("drawn", method, tuple(places[i] for i in images if (method, i) not in done))
            for method, images in wanted.items()
        ]
        return [task for task in tasks if task.items]

    def do(self, task: Task) -> Answer:
        """Do one task. Raises ValueError where the network itself gives no numbers."""
        if task.kind == "named":
            return Answer(task, *self.mosaics.named(task.items))
        if task.kind == "framed":
            return Answer(task, *self.mosaics.framed(task.method, task.items))
        if task.kind == "mosaic":
            return Answer(task, *self.mosaics.pointed(self.explainers[task.method], task.items))
        batch, problems = self.read(task.items)
        if batch is None:
            return Answer(task, problems=problems)
        explainer = self.explainers[task.method]
        if task.kind == "drawn":
            drawn = self.scorer.drawn(explainer, batch)
            return Answer(task, drawn={(task.method, name): one for name, one in drawn.items()})
        return Answer(task, self.scorer.records(task.kind, explainer, batch), problems)

    def read(self, items: tuple[int, ...]) -> tuple[Batch | None, list[str]]:
        """Read the images that can be read, None if none can; and a line for each of the others."""
        if self._read[0] != items:
            samples: list[Sample] = []
            problems = []
            for item in items:
                try:
                    samples.append(self.data.sample(item))
                except ImageError as error:
                    problems.append(str(error))
            batch, lines = self.scorer.batches(samples)
            self._read = items, batch, problems + lines
        return self._read[1:]

    def usual_processes(self, tasks: Sequence[Task]) -> int:
        """One a CPU core up to four, as far as there is work: a small network leaves cores idle."""
        if self.model.device.type != "cpu":
            return 1
        maps = sum(len(task.items) for task in tasks)
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


def left(
    kind: str,
    methods: Iterable[str],
    cut: Iterable[Sequence[int]],
    names: Sequence[str],
    done: set[Key],
) -> list[Task]:
    """What is left to do of each batch for each method."""
    tasks = [
        Task(kind, method, tuple(i for i in batch if (kind, method, names[i]) not in done))
        for batch in cut
        for method in methods
    ]
    return [task for task in tasks if task.items]


def at_least_one(**given: int | None) -> None:
    """ValueError for a number below 1; None passes."""
    for name, value in given.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


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


class Memory:
    """Records and drawn maps, kept while this process runs."""

    def __init__(self) -> None:
        self._records: dict[Key, Record] = {}
        self.drawn: dict[Place, Drawn] = {}

    def records(self) -> dict[Key, Record]:
        """All records that are known."""
        return dict(self._records)

    def add(self, answer: Answer) -> None:
        """Keep an answer's records and maps."""
        for record in answer.records:
            self._records[record["kind"], record["method"], record["image"]] = record
        self.drawn |= answer.drawn


class Folder(Memory):
    """Records and drawn maps in a folder, of all processes that write there.

    part: the name of the file that new records go to, one for each process that writes. Raises
    ValueError for a folder that cannot be written or that holds scores of other settings.
    """

    def __init__(self, folder: Path, settings: Record, part: str = "all"):
        super().__init__()
        self.folder = folder / "per_image"
        self.file = self.folder / f"{part}.jsonl"
        try:
            (self.folder / "maps").mkdir(parents=True, exist_ok=True)
            self._check(folder, settings)
        except OSError as error:
            raise ValueError(
                f"{folder}: cannot write there ({error.strerror}): name another folder"
            ) from None
        for file in (self.folder / "maps").glob("*.npz"):
            try:
                with file.open("rb") as opened, np.load(opened) as kept:
                    place = str(kept["method"]), str(kept["image"])
                    mass = float(kept["prefix_mass"])
                    self.drawn[place] = Drawn(kept["values"], None if np.isnan(mass) else mass)
            except (OSError, ValueError, KeyError, EOFError, BadZipFile):
                continue  # cut short: drawn again

    @staticmethod
    def _check(folder: Path, settings: Record) -> None:
        about = folder / "settings.json"
        if about.is_file():
            try:
                before = dict(json.loads(about.read_bytes()))
            except (ValueError, TypeError, RecursionError):
                raise ValueError(
                    f"{about}: damaged: the settings of its scores are unknown; name another folder"
                ) from None
            differ = [
                name for name in settings if name != "model" and before.get(name) != settings[name]
            ]
            if differ:
                was = ", ".join(
                    f"{name} {before.get(name)}, now {settings[name]}" for name in differ
                )
                raise ValueError(
                    f"{folder}: it holds scores of other settings ({was}): name another folder"
                )
        write_text(about, json.dumps(settings, indent=1))

    def records(self) -> dict[Key, Record]:
        """Read what all processes have written; a line that was cut short or damaged is not there,
        so its image is scored again."""
        found: dict[Key, Record] = {}
        for file in sorted(self.folder.glob("*.jsonl")):
            for line in file.read_bytes().split(b"\n"):
                try:
                    record = json.loads(line)
                    if record.pop("checksum") == _checksum(record):
                        found[record["kind"], record["method"], record["image"]] = record
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    continue
        return found

    def add(self, answer: Answer) -> None:
        """Write an answer's records and maps at once."""
        records = [{**record, "checksum": _checksum(record)} for record in answer.records]
        if text := "".join(json.dumps(record) + "\n" for record in records):
            append_text(self.file, "\n" + text if self._cut_short() else text)
        for (method, image), one in answer.drawn.items():
            mass = np.nan if one.prefix_mass is None else one.prefix_mass
            path = self.folder / "maps" / f"{file_name(method, image)}.npz"
            kept = {"method": method, "image": image, "values": one.values, "prefix_mass": mass}
            with replacing(path) as file:
                np.savez(file, **kept)  # type: ignore[arg-type]
        self.drawn |= answer.drawn

    def _cut_short(self) -> bool:
        """Whether a process was killed while it wrote the file's last line."""
        if not self.file.is_file() or not self.file.stat().st_size:
            return False
        with self.file.open("rb") as file:
            file.seek(-1, 2)
            return file.read(1) != b"\n"


def _checksum(record: Record) -> int:
    """CRC-32 of a record as it is written."""
    return crc32(json.dumps(record).encode())


def file_name(method: str, image: str) -> str:
    """A name for the map of an image, unlike that of any other."""
    plain = re.sub(r"[^\w.=-]+", "-", f"{method}.{image}")[-80:]
    return f"{plain}.{crc32(repr((method, image)).encode()):08x}"


def answers(
    work: Work, tasks: Sequence[Task], processes: int | None, say: Callable[[str], None]
) -> Iterator[Answer]:
    """Yield the tasks' answers as they come, from so many processes; None: as many as pay.

    Work that cannot be sent to other processes is done in this one; `say` gets a line
    about it.
    """
    count = processes or work.usual_processes(tasks)
    if count > 1 and len(tasks) > 0:
        try:
            yield from workers.answers(worker, work, tasks, count)
            return
        except workers.Unpicklable as error:
            say(f"{error}; so one process does it all")
    yield from map(work.do, tasks)


def worker(work: Work) -> Callable[[Task], Answer]:
    """What does the tasks in another process."""
    return work.do
