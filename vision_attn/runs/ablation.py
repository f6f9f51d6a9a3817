"""What each head, MLP and block of a network is worth.

Axes: u units, n images, k classes.
"""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vision_attn.data.faults import ImageError, apart
from vision_attn.errors import quoted
from vision_attn.evaluate import paired_bootstrap, wilson
from vision_attn.files import write_text
from vision_attn.methods.targets import Class, Target, TargetLike, as_target, model_output
from vision_attn.runs.explain import Request
from vision_attn.runs.inputs import output_folder
from vision_attn.runs.interventions import changes_of
from vision_attn.runs.loop import Job, RunTask, TaskResult, results
from vision_attn.runs.progress import Silent
from vision_attn.runs.scoring.evidence import Sample, Samples
from vision_attn.tokens.activation import settled
from vision_attn.tokens.interventions.anatomy import Anatomy, anatomy_of
from vision_attn.tokens.interventions.editor import Changes
from vision_attn.tokens.interventions.resume import Resumable
from vision_attn.tokens.modules import why_opaque
from vision_attn.types import Head, Images, Model

__all__ = ["PARTS", "Ablation", "AblationJob", "Part", "Replacement", "Unit", "request_of"]

Part = Literal["heads", "mlps", "blocks"]
PARTS: tuple[Part, ...] = ("heads", "mlps", "blocks")
Replacement = Literal["zero", "mean", "uniform"]


class Unit(NamedTuple):
    """What is taken away: a head, an MLP or a block.

    Attributes:
        part: Which of the three.
        layer: The attention call that it belongs to, from 0.
        head: The head's number; None for the others.

    Examples:
        >>> from vision_attn.runs.ablation import Unit
        >>> str(Unit("heads", 7, 3)), str(Unit("mlps", 7))
        ('head 7.3', 'MLP 7')
    """

    part: Part
    layer: int
    head: int | None = None

    def __str__(self) -> str:
        words = {"heads": "head", "mlps": "MLP", "blocks": "block"}
        head = "" if self.head is None else f".{self.head}"
        return f"{words[self.part]} {self.layer}{head}"

    def changes(self, anatomy: Anatomy, replacement: Replacement) -> Changes:
        """What takes it away."""
        if self.part == "heads":
            return changes_of(anatomy, heads={(self.layer, self.head): replacement})
        if self.part == "mlps":
            return changes_of(anatomy, mlps=[self.layer])
        return changes_of(anatomy, blocks=[self.layer])


class Measured(NamedTuple):
    """What one run says of each image.

    Attributes:
        hits: Whether the class is right, (n).
        values: The target's number, (n).
    """

    hits: Bool[Tensor, " n"]
    values: Float[Tensor, " n"]


@dataclass(eq=False)
class Ablation:
    """What each unit is worth on some images; `ablate` makes it.

    Attributes:
        model: Its name.
        images: Their names.
        labels: The class of each, None where it is not known; a hit is then a prediction that stays
            what it was.
        classes: The model's classes.
        explained: What the numbers are of, in words.
        before: Hits and numbers of the whole network.
        after: The same without each unit.
        pruned: How many heads are gone, and the hits of the images that the order of the heads was
            not found on.
        order: The heads, in the order in which `pruned` takes them away.
        whole: Why each run was of the whole network; None where only what lies behind a unit was
            run again.
        problems: A line for what failed, each.

    Examples:
        >>> import vision_attn
        >>> model = vision_attn.load_model("timm:test_vit", pretrained=False, num_classes=10)
        >>> ablation = vision_attn.ablate(model, "planted", limit=4, prune=0)
        >>> row = ablation.table()[0]
        >>> row["unit"], row["n"], sorted(row)[:4]
        ('head 0.0', 4, ['head', 'hit_drop', 'hit_drop_high', 'hit_drop_low'])
    """

    model: str
    images: list[str]
    labels: list[int | None]
    classes: Sequence[str]
    explained: str
    before: Measured
    after: dict[Unit, Measured]
    pruned: dict[int, Bool[Tensor, " n"]]
    order: list[Unit]
    whole: str | None
    problems: list[str]

    @property
    def hit_word(self) -> str:
        """What a hit is: `accuracy` where classes are known, else `agreement`."""
        return "accuracy" if any(label is not None for label in self.labels) else "agreement"

    def table(self, label: str | int | None = None) -> list[dict[str, Any]]:
        """Rows of plain values, a unit each, for `pandas.DataFrame`.

        Keys: unit, part, layer, head; hit_drop and value_drop, by how much the share of hits and
        the mean number of the target fall without the unit, each with _low and _high, its 95 %
        interval over the same images (paired; see `evaluate.paired_bootstrap`); n.

        Args:
            label: Only images of that class, by name or index.

        Raises:
            ValueError: There are fewer than two images of it.
        """
        rows = self._rows(label)
        table = []
        for unit, after in self.after.items():
            hits = paired_bootstrap(self.before.hits[rows].double(), after.hits[rows].double())
            values = paired_bootstrap(self.before.values[rows], after.values[rows])
            row: dict[str, Any] = {
                "unit": str(unit),
                "part": unit.part,
                "layer": unit.layer,
                "head": unit.head,
                "n": len(rows),
            }
            for name, found in (("hit_drop", hits), ("value_drop", values)):
                row |= {name: found.mean, f"{name}_low": found.low, f"{name}_high": found.high}
            table.append(row)
        return table

    def _rows(self, label: str | int | None) -> Tensor:
        known = torch.arange(len(self.images), device="cpu")
        if label is not None:
            names = [name.split(",")[0] for name in self.classes]
            wanted = names.index(label) if label in names else label
            if not isinstance(wanted, int):
                raise ValueError(f"label: no class {quoted(label)} among those of the model")
            known = torch.tensor(
                [at for at, own in enumerate(self.labels) if own == wanted],
                dtype=torch.long,
                device="cpu",
            )
        if len(known) < 2:
            what = "" if label is None else f" of class {quoted(label)}"
            raise ValueError(f"expected at least 2 images{what}, got {len(known)}")
        return known

    def curve(self) -> list[dict[str, Any]]:
        """Rows of plain values: the share of hits without the k heads that are worth least.

        The order of the heads is found on every other image, the curve measured on the rest. Keys:
        heads, share, low and high (95 %, Wilson 1927), n.
        """
        rows = []
        for count, hits in self.pruned.items():
            low, high = wilson(hits.double())
            share = float(hits.double().mean())
            rows.append({"heads": count, "share": share, "low": low, "high": high, "n": len(hits)})
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Everything that ablation.json holds."""
        return {
            "model": self.model,
            "images": len(self.images),
            "hits": self.hit_word,
            "value": self.explained,
            "share_of_hits": float(self.before.hits.double().mean()),
            "whole_network_run_each_time": self.whole,
            "units": self.table(),
            "order_of_heads": [str(unit) for unit in self.order],
            "curve": self.curve(),
            "problems": self.problems,
        }

    def save(self, folder: str | Path) -> Path:
        """Write ablation.json, ablation.csv and ablation.md; return the folder."""
        folder = output_folder(folder)
        write_text(folder / "ablation.json", json.dumps(self.to_dict(), indent=1) + "\n")
        table, lines = self.table(), io.StringIO()
        writer = csv.DictWriter(lines, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
        write_text(folder / "ablation.csv", lines.getvalue())
        write_text(folder / "ablation.md", f"{self}\n")
        return folder

    def text_rows(
        self, table: Sequence[dict[str, Any]] | None = None
    ) -> tuple[list[str], list[list[str]]]:
        """The table as a header and rows of text, what is worth most first.

        Args:
            table: What `table` gave, where it was made already.
        """
        header = [
            "without",
            f"{self.hit_word} falls by",
            f"95 % of {self.hit_word}",
            f"{self.explained} falls by",
            "95 % of that",
        ]
        rows = []
        for row in sorted(table or self.table(), key=lambda row: -row["value_drop"]):
            hit = [row[f"hit_drop{end}"] for end in ("", "_low", "_high")]
            value = [row[f"value_drop{end}"] for end in ("", "_low", "_high")]
            rows.append(
                [
                    row["unit"],
                    f"{hit[0]:.1%}",
                    f"{hit[1]:.1%} to {hit[2]:.1%}",
                    f"{value[0]:.3g}",
                    f"{value[1]:.3g} to {value[2]:.3g}",
                ]
            )
        return header, rows

    @property
    def lead(self) -> str:
        """A sentence on what was measured."""
        how = "what lies behind each unit was run again"
        if self.whole is not None:
            how = f"the whole network was run for each unit: {self.whole}"
        share = float(self.before.hits.double().mean())
        return f"{self.model}: {len(self.images)} images, {self.hit_word} {share:.1%}; {how}."

    def __str__(self) -> str:
        header, rows = self.text_rows()
        lines = [self.lead, "", " | ".join(header), " | ".join("---" for _ in header)]
        lines += [" | ".join(row) for row in rows]
        curve = [f"{row['heads']} heads gone: {row['share']:.1%}" for row in self.curve()]
        return "\n".join([*lines, "", *([", ".join(curve)] if curve else [])])


class AblationJob(Job):
    """Runs a network with one unit less at a time, and then with more and more heads less.

    The arguments are those of `vision_attn.ablate`, data opened.

    Examples:
        >>> from vision_attn.runs.ablation import AblationJob
        >>> AblationJob.threads
        8
    """

    def __init__(
        self,
        model: Model,
        data: Samples,
        parts: Sequence[Part],
        target: TargetLike,
        contrast: TargetLike,
        head: Head | None,
        replacement: Replacement,
        prune: int,
    ):
        if reason := why_opaque(model.network):
            raise ValueError(f"{type(model.network).__name__} cannot be changed: {reason}")
        model = settled(model if head is None else replace(model, head=head))
        self.data, self.replacement, self.prune = data, replacement, prune
        self.request = request_of(model, target, contrast)
        self.anatomy = anatomy_of(model.network, blank_for(model))
        self.resumable = Resumable(model.network, self.anatomy)
        self.model = replace(model, network=self.resumable.network)
        self.units = list(units_of(self.anatomy, parts))
        if not self.units:
            raise ValueError(
                f"{type(model.network).__name__} has none of {', '.join(parts)} to take away: its "
                "branches are not added to one residual stream"
            )
        self.names: list[str] = []
        self.labels: list[int | None] = []
        self.measured: dict[Unit | None, list[Measured]] = {}
        self.pruned: dict[int, list[Tensor]] = {}
        self.order: list[Unit] = []
        self.stopped: str | None = None

    def read(self, sample: int) -> Sample | str:
        try:
            return self.data.sample(sample)
        except ImageError as error:
            return str(error)

    def do(self, task: RunTask, read: Sequence[Sample | str]) -> TaskResult:
        samples = [one for one in read if isinstance(one, Sample)]
        problems = [one for one in read if isinstance(one, str)]
        _, lines = apart(self._take, samples, lambda sample: sample.name)
        return TaskResult(len(read), problems=[*problems, *lines])

    def measure(self, chosen: Sequence[int], batch_size: int, progress: Silent) -> None:
        """Take away each unit, then prune; stop where the keyboard says so, and say it."""
        tasks = [
            RunTask(tuple(chosen[at : at + batch_size])) for at in range(0, len(chosen), batch_size)
        ]
        try:
            self._fill(f"{len(self.units)} units", tasks, progress)
            heads = [unit for unit in self.units if unit.part == "heads"]
            if self.prune and len(heads) > 1 and len(self.names) > 3:
                self.order = self._by_worth(heads)
                self._fill("pruning", tasks, progress)
        except KeyboardInterrupt:
            if len(self.names) < 2:
                raise
            progress.problem(f"stopped: measured on {len(self.names)} of {len(chosen)} images")

    def _fill(self, words: str, tasks: Sequence[RunTask], progress: Silent) -> None:
        progress.start(words, sum(len(task.samples) for task in tasks))
        for result in results(self, tasks, 1, progress.problem):
            for problem in result.problems:
                if problem not in progress.problems:
                    progress.problem(problem)
            progress.advance(result.count)

    def _by_worth(self, heads: Sequence[Unit]) -> list[Unit]:
        """Sort heads by what they are worth on every other image, the least first."""
        before = joined(self.measured[None]).values[::2]
        drops = {unit: (before - joined(self.measured[unit]).values[::2]).mean() for unit in heads}
        return sorted(heads, key=lambda unit: float(drops[unit]))

    def _take(self, samples: Sequence[Sample]) -> None:
        """Measure the images of a batch, or the curve on those of them that have no part in it."""
        if self.order:
            place = {name: at for at, name in enumerate(self.names)}
            samples = [one for one in samples if place.get(one.name, 0) % 2]
        if not samples:
            return
        images = torch.stack([one.image for one in samples])
        images = images.to(self.model.device, self.model.dtype)
        labels = [one.label for one in samples]

        def run() -> Any:
            return model_output(self.model, images)

        output = self.resumable.first(run)
        reader = Reader.of(self.request, labels, output)
        if self.order:
            hits = {}
            for count in steps_of(len(self.order), self.prune):
                heads = {(unit.layer, unit.head): self.replacement for unit in self.order[:count]}
                changed = self.resumable.again(changes_of(self.anatomy, heads=heads), run)
                hits[count] = reader(changed).hits
            for count, own in hits.items():
                self.pruned.setdefault(count, []).append(own)
            return
        if not self.names:
            self.resumable.prove(lambda: reader(run()).values, reader(output).values)
        found: dict[Unit | None, Measured] = {None: reader(output)}
        for unit in self.units:
            changes = unit.changes(self.anatomy, self.replacement)
            found[unit] = reader(self.resumable.again(changes, run))
        for key, measured in found.items():
            self.measured.setdefault(key, []).append(measured)
        self.names += [one.name for one in samples]
        self.labels += labels

    def _explained(self) -> str:
        """Say what number is followed."""
        words = self.request.words
        if not any(label is not None for label in self.labels):
            words = words.replace("the true class", "the predicted class")
        logit = self.request.by_label or isinstance(self.request.target, Class)
        plain = logit and self.request.contrast is None
        return f"the {'logit' if plain else 'number'} of {words}"

    def ablation(self, problems: list[str]) -> Ablation:
        """Put together what was measured."""
        if len(self.names) < 2:
            why = f": {problems[0]}" if problems else ""
            raise ValueError(f"expected at least 2 images that can be read, got fewer{why}")
        return Ablation(
            self.model.name or type(self.model.network).__name__,
            self.names,
            self.labels,
            self.model.classes,
            self._explained(),
            joined(self.measured[None]),
            {unit: joined(self.measured[unit]) for unit in self.units},
            {count: torch.cat(hits) for count, hits in self.pruned.items()},
            self.order,
            self.resumable.whole,
            problems,
        )


@dataclass
class Reader:
    """Reads hits and the target's number from outputs.

    Attributes:
        right: The class that counts as a hit.

    Examples:
        >>> from vision_attn.runs.ablation import Reader
        >>> Reader.__name__
        'Reader'
    """

    target: Target
    logits: Any
    right: Tensor | None

    @classmethod
    def of(cls, request: Request, labels: Sequence[int | None], output: Any) -> "Reader":
        """Decide by the unchanged network what each image is measured by."""
        model = request.model
        target = request.target_of(list(labels)).fixed(output)
        if not model.classes:
            return cls(target, None, None)
        logits = Class.of(model).logits
        predicted = logits(output).argmax(1)
        right = [
            int(own) if label is None else label
            for own, label in zip(predicted, labels, strict=True)
        ]
        return cls(target, logits, torch.tensor(right, dtype=torch.long, device=predicted.device))

    def __call__(self, output: Any) -> Measured:
        values = self.target(output).detach().double().cpu()
        if self.right is None:
            return Measured(torch.ones_like(values, dtype=torch.bool), values)
        return Measured((self.logits(output).argmax(1) == self.right).cpu(), values)


def joined(parts: Sequence[Measured]) -> Measured:
    """Put the batches together."""
    return Measured(torch.cat([p.hits for p in parts]), torch.cat([p.values for p in parts]))


def units_of(anatomy: Anatomy, parts: Sequence[Part]) -> Iterator[Unit]:
    """List what can be taken away."""
    for part in dict.fromkeys(parts):
        for at, layer in enumerate(anatomy.layers):
            if part == "heads" and layer.replaces:
                yield from (Unit("heads", at, head) for head in range(layer.heads))
            if part == "mlps" and layer.mlps:
                yield Unit("mlps", at)
            if part == "blocks" and layer.attention is not None:
                yield Unit("blocks", at)


def steps_of(count: int, steps: int) -> list[int]:
    """Choose so many numbers from 0 to count, evenly.

    Examples:
        >>> from vision_attn.runs.ablation import steps_of
        >>> steps_of(12, 3)
        [0, 4, 8, 12]
    """
    return sorted({round(count * step / steps) for step in range(steps + 1)})


def blank_for(model: Model) -> Images:
    """Make an image of the size that a model takes."""
    channels = len(model.preprocess.mean)
    size = model.preprocess.input_size
    return torch.zeros(1, channels, *size, dtype=model.dtype, device=model.device)


def request_of(model: Model, target: TargetLike, contrast: TargetLike) -> Request:
    """Say what number is followed: by default the logit of the class that an image shows."""
    by_label = target is None or (isinstance(target, str) and target.strip() == "label")
    request = Request(
        model,
        [],
        as_target(None if by_label else target, model),
        by_label,
        None if contrast is None else as_target(contrast, model),
    )
    request.check_same_for_all()
    if request.unasked:
        raise ValueError(
            f"{model.name or type(model.network).__name__} has no classes: give target=, a class, "
            "a vector or a function of the output"
        )
    return request
