"""Scoring cut into tasks, done in this process or in several, kept as it is done.

    DIR/settings.json       what was asked; scores of other settings do not mix
    DIR/per_image/*.jsonl   a line for each method and image: what was done need not be done again

A task is one method on one batch of images. Processes, shards on other machines and a second run
after the first was stopped all meet in these lines.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import torch
from torch import nn

from vision_attn.commands import options
from vision_attn.data.images import ImageError
from vision_attn.devices import native_precision
from vision_attn.evaluate import DroppedTokens
from vision_attn.explain import (
    Attribution,
    Baseline,
    CentreGaussian,
    EdgeMap,
    Explainer,
    RandomMap,
    choose_methods,
    fitting_methods,
)
from vision_attn.reports import workers as pool
from vision_attn.reports.scoring.evidence import Sample, open_data
from vision_attn.reports.scoring.scorer import Batch, Record, Scorer, find_removal

IMAGES = 1000  # how many are scored by default
ALL_IMAGES, SANE = 500, 32  # and with all methods; of them, how many pass the slow checks
PROCESSES, A_PROCESS = 4, 500  # at most, by default; maps that are worth one of their own
FEW = 8  # images of a task that takes many maps an image
BASELINES: tuple[Explainer, ...] = (RandomMap(), CentreGaussian(), EdgeMap())

Key = tuple[str, str, str]  # kind, method, image


class Task(NamedTuple):
    kind: str
    method: str
    items: tuple[int, ...]


@dataclass(frozen=True)
class Answer:
    """A task's records, and a line for each image that could not be read."""

    task: Task
    records: list[Record]
    problems: list[str]


class Work:
    """What the command line asks for, loaded: model, images, methods, and how to measure them."""

    def __init__(self, args: argparse.Namespace):
        torch.manual_seed(args.seed)
        self.model = options.load(args)
        self.data = open_data(args.data, self.model, Path(args.root))
        self.explainers = {str(e): e for e in methods_for(args.method, self.model.network)}
        device = next(self.model.network.parameters()).device
        kind = "cpu" if device.type == "cpu" else "auto"
        self.scorer = Scorer(
            self.model,
            find_removal(self.model, args.removal, args.seed),
            args.steps,
            args.seed,
            by_label=args.target == "label",
            half=native_precision(kind) == "bf16-mixed",
        )
        everything = "all" in (args.method or ())
        self.asked = args.images or min(ALL_IMAGES if everything else IMAGES, len(self.data))
        self.chosen = self.data.chosen(self.asked, args.seed)
        usual = SANE if everything else 0
        self.sane = self.chosen[: usual if args.sanity is None else args.sanity]
        self.batch_size = args.batch_size
        self.settings = {
            "model": args.model,
            "weights": f"{checksum(self.model.network):08x}",
            "input_size": list(self.model.preprocess.input_size),
            "data": args.data,
            "target": args.target,
            "removal": removal_name(self.scorer),
            "steps": args.steps,
            "seed": args.seed,
            "precision": "bf16" if self.scorer.half else "fp32",
        }
        self._read: tuple[tuple[int, ...], Batch | None, list[str]] = ((), None, [])

    def tasks(self, done: set[Key], shard: int = 0, shards: int = 1) -> list[Task]:
        """What is left to do, image by image for all methods; of several shards, one's share."""
        names = self.data.names
        left = []
        few = min(self.batch_size, FEW)
        for kind, chosen, size in (
            ("maps", self.chosen, self.batch_size),
            ("sanity", self.sane, few),
        ):
            for start in range(0, len(chosen), size)[shard::shards]:
                batch = chosen[start : start + size]
                for method in self.explainers:
                    items = [i for i in batch if (kind, method, names[i]) not in done]
                    if items:
                        left.append(Task(kind, method, tuple(items)))
        return left

    def do(self, task: Task) -> Answer:
        """Raises ValueError where the network itself gives no numbers."""
        batch, problems = self.read(task.items)
        if batch is None:
            return Answer(task, [], problems)
        records = self.scorer.records(task.kind, self.explainers[task.method], batch)
        return Answer(task, records, problems)

    def read(self, items: tuple[int, ...]) -> tuple[Batch | None, list[str]]:
        """The images that can be read, None if there are none; a line for each of the others."""
        if self._read[0] != items:
            samples: list[Sample] = []
            problems = []
            for item in items:
                try:
                    samples.append(self.data[item])
                except ImageError as error:
                    problems.append(str(error))
            self._read = items, self.scorer.batch(samples) if samples else None, problems
        return self._read[1:]


def methods_for(words: Sequence[str] | None, network: nn.Module) -> list[Explainer]:
    """The methods asked for, else those that fit and are quick; the baselines always."""
    if words:
        chosen = choose_methods(words, network)
    else:
        chosen = [m for m in fitting_methods(network) if not isinstance(m, Attribution | Baseline)]
    return [method for method in chosen if method not in BASELINES] + list(BASELINES)


def removal_name(scorer: Scorer) -> str:
    if isinstance(scorer.removal, DroppedTokens):
        return "tokens"
    fill = type(getattr(scorer.removal, "fill", None)).__name__
    return fill.removesuffix("Fill").lower()


def checksum(network: nn.Module) -> int:
    """Of all weights: another network, another number."""
    total = 0
    for weight in network.state_dict().values():
        total = crc32(weight.detach().cpu().flatten().view(torch.uint8).numpy(), total)
    return total


class Store:
    """The lines of a folder. part: the file that new ones go to, one a process that writes."""

    def __init__(self, folder: Path, settings: Record, part: str = "all"):
        self.folder = folder / "per_image"
        self.file = self.folder / f"{part}.jsonl"
        self.folder.mkdir(exist_ok=True)
        about = folder / "settings.json"
        if about.is_file():
            before = json.loads(about.read_text(encoding="utf-8"))
            differ = [name for name in settings if before.get(name) != settings[name]]
            if differ:
                was = ", ".join(
                    f"{name} {before.get(name)}, now {settings[name]}" for name in differ
                )
                raise ValueError(
                    f"--output {folder}: it holds scores of other settings ({was}): "
                    "name another folder"
                )
        about.write_text(json.dumps(settings, indent=1), encoding="utf-8")

    def records(self) -> dict[Key, Record]:
        """What all processes have written; a line that was cut short is not there."""
        found: dict[Key, Record] = {}
        for file in sorted(self.folder.glob("*.jsonl")):
            for line in file.read_text(encoding="utf-8").splitlines():
                try:
                    record = json.loads(line)
                    found[record["kind"], record["method"], record["image"]] = record
                except (ValueError, KeyError, TypeError):
                    continue
        return found

    def add(self, records: Iterable[Record]) -> None:
        text = "".join(json.dumps(record) + "\n" for record in records)
        with self.file.open("a+b") as file:
            if file.tell():
                file.seek(-1, 2)
                if file.read(1) != b"\n":  # the line that a killed process was writing
                    text = "\n" + text
            file.write(text.encode())


def usual_processes(device: torch.device, tasks: Sequence[Task]) -> int:
    """One a CPU core up to four, as far as there is work: a small network leaves cores idle."""
    if device.type != "cpu":
        return 1
    maps = sum(len(task.items) for task in tasks)
    return max(1, min(torch.get_num_threads(), PROCESSES, maps // A_PROCESS))


def answers(args: argparse.Namespace, work: Work, tasks: Sequence[Task]) -> Iterator[Answer]:
    """The tasks' answers as they come, from as many processes as are asked for."""
    device = next(work.model.network.parameters()).device
    processes = args.processes or usual_processes(device, tasks)
    if processes == 1 or not tasks:
        yield from map(work.do, tasks)
    else:
        yield from pool.answers(worker, args, tasks, processes)


def worker(args: argparse.Namespace) -> Callable[[Task], Answer]:
    """What does the tasks in another process."""
    return Work(args).do
