"""What a diagnosis found, as plain values: of each head, each block, the tokens and the chances."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from html import escape
from typing import Any, Literal

from vision_attn.types import Calibration, TokenLayout

__all__ = ["BlockValues", "Chances", "Diagnosis", "Finding", "HeadValues", "Outliers", "short"]


@dataclass(frozen=True)
class HeadValues:
    """One head, the mean over photos; the formulas stand in `vision_attn.runs.diagnosis.heads`.

    None: not known, or there is no such token.

    Attributes:
        layer: The attention call, counted from 0 as `probe` does.
        module: The name of the module that attends.
        head: Its number in the layer.
        entropy: Of its weights, 0 for one key a query, 1 for uniform ones.
        distance: Mean attention distance of patches, in pixels of the network's input.
        class_token: The share of all queries' attention that falls on the class token.
        registers: The share that falls on registers.
        outliers: The share that falls on patches with outlying norms.
        sink: The largest share that one place of the sequence receives in the mean over photos.
        sink_token: Which place that is.
        moving: The mean of the largest share that a patch receives, wherever that is.
        output: What it adds to the stream, 1 for the mean head of its layer.
        nearest: The head of the layer whose weights are most like its own.
        alike: The correlation with that head's.

    Examples:
        >>> from vision_attn.runs.diagnosis.results import HeadValues
        >>> HeadValues(0, "blocks.0.attn", 2, entropy=0.5).place
        'layer 0 head 2'
    """

    layer: int
    module: str
    head: int
    entropy: float
    distance: float | None = None
    class_token: float | None = None
    registers: float | None = None
    outliers: float | None = None
    sink: float | None = None
    sink_token: str = ""
    moving: float | None = None
    output: float | None = None
    nearest: int | None = None
    alike: float | None = None

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return f"layer {self.layer} head {self.head}"


@dataclass(frozen=True)
class BlockValues:
    """The stream after one block, the mean over photos; formulas: `...runs.diagnosis.stream`.

    Shares are None where the block does not normalise first and then add.

    Attributes:
        block: Its number, from 0.
        name: The module's.
        patches: How many there are.
        norm: The median norm of the patches.
        largest: Their largest norm.
        outliers: How many patches of a photo have a norm above twice the median.
        photos_with: The share of photos that have any.
        alike: The mean cosine of two patches.
        spread: The share of the patches' energy that is not their mean.
        rank: How many directions they spread over.
        residual: The share of the residual in the block's output.
        attention: The share of the attention in it.
        mlp: The share of the MLP in it.

    Examples:
        >>> from vision_attn.runs.diagnosis.results import BlockValues
        >>> BlockValues(0, "blocks.0", 121, 3.0, 4.0, 0.0, 0.0, 0.5, 0.4, 11.0).mlp is None
        True
    """

    block: int
    name: str
    patches: int
    norm: float
    largest: float
    outliers: float
    photos_with: float
    alike: float
    spread: float
    rank: float
    residual: float | None = None
    attention: float | None = None
    mlp: float | None = None


@dataclass(frozen=True)
class Outliers:
    """Patches with outlying norms, where they are most.

    Attributes:
        count: How many in the mean photo.
        patches: Of how many.
        photos_with: The share of photos that have any.
        block: The block after which the mean photo has the most of them, of the blocks after which
            75 % of the photos have some and 15 % of the patches at most; else of all.
        name: That block's name.
        first: The block from which on there are at least half as many.
        attention: The share of attention on each photo's own outliers in the mean head of the
            layers after that.
        rollout: The share of Rollout on them; None where there is no Rollout.
        where: How often each place of the grid is one in `block`, row by row.

    Examples:
        >>> from vision_attn.runs.diagnosis.results import Outliers
        >>> Outliers(3.0, 121, 1.0, 5, "blocks.5", 4, 0.3, 0.4, ()).share.__round__(3)
        0.025
    """

    count: float
    patches: int
    photos_with: float
    block: int
    name: str
    first: int
    attention: float | None
    rollout: float | None
    where: tuple[tuple[float, ...], ...]

    @property
    def share(self) -> float:
        """The share of all patches."""
        return self.count / self.patches


@dataclass(frozen=True)
class Chances:
    """Accuracy and calibration, of photos whose class is known.

    Attributes:
        photos: How many these are.
        accuracy: The share whose most probable class is the true one.
        confidence: The mean probability of that class.
        error: The expected calibration error, the mean of |accuracy - confidence| over 15 bins of
            confidence weighted by their photos (Guo et al. 2017, arXiv:1706.04599); with few photos
            it is above 0 for a calibrated network too.

    Examples:
        >>> from vision_attn.runs.diagnosis.results import Chances
        >>> Chances(50, 0.75, 0.9, 0.16).gap.__round__(2)
        0.15
    """

    photos: int
    accuracy: float
    confidence: float
    error: float

    @property
    def gap(self) -> float:
        """By how much it is too sure."""
        return self.confidence - self.accuracy

    @property
    def uncertainty(self) -> float:
        """Two standard errors of the accuracy."""
        return 2 * (self.accuracy * (1 - self.accuracy) / self.photos) ** 0.5


Kind = Literal[
    "outliers",
    "dead head",
    "equal heads",
    "uniform head",
    "oversmoothing",
    "sink",
    "calibration",
    "no attention",
    "stopped",
]


@dataclass(frozen=True)
class Finding:
    """One sentence of the verdict.

    Attributes:
        kind: What it is about.
        fault: Whether something is likely to be wrong; else it is a remark.
        text: The sentence, with its threshold.
        places: (layer, head) or (block,) that it names.

    Examples:
        >>> from vision_attn.runs.diagnosis.results import Finding
        >>> Finding("dead head", True, "Layer 3 head 1 adds nothing.", ((3, 1),)).places
        ((3, 1),)
    """

    kind: Kind
    fault: bool
    text: str
    places: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What is unusual in a network, measured over photos; `vision_attn.diagnose` makes it.

    Printed, it is the verdict.

    Attributes:
        model: Its name.
        photos: How many were measured, fewer than asked for where it was stopped.
        asked: How many were to be measured.
        heads: Of all layers.
        blocks: The stream after each block.
        outliers: Patches with outlying norms; None where the patches are not known.
        similarity: The mean cosine of a token with itself after two blocks, a row a block; None
            where tokens change on the way.
        chances: Accuracy and calibration; None where no classes are known.
        findings: The verdict, faults first.
        problems: A line for each photo that could not be read.
        layout: How the tokens lie.
        calibration: Of the model that was measured.
        warning: As of `Model`.

    Examples:
        >>> from vision_attn.runs.diagnosis.results import Diagnosis, Finding
        >>> finding = Finding("dead head", True, "Layer 3 head 1 adds nothing.", ((3, 1),))
        >>> print(Diagnosis("a ViT", 50, 50, findings=(finding,)))
        a ViT, 50 photos: 1 fault
        ! Layer 3 head 1 adds nothing.
    """

    model: str
    photos: int
    asked: int
    heads: Sequence[HeadValues] = ()
    blocks: Sequence[BlockValues] = ()
    outliers: Outliers | None = None
    similarity: tuple[tuple[float, ...], ...] | None = None
    chances: Chances | None = None
    findings: Sequence[Finding] = ()
    problems: Sequence[str] = ()
    layout: TokenLayout | None = None
    calibration: Calibration = field(default_factory=Calibration)
    warning: str = ""

    @property
    def faults(self) -> list[Finding]:
        """The findings that say that something is likely to be wrong."""
        return [finding for finding in self.findings if finding.fault]

    @property
    def stopped(self) -> bool:
        """Whether the run ended before all photos were measured."""
        return self.photos < self.asked

    @property
    def title(self) -> str:
        """The model, the photos and the number of faults, in a line."""
        count = len(self.faults)
        faults = "no fault found" if not count else f"{count} fault{'s' if count > 1 else ''}"
        of = f" of {self.asked}" if self.stopped else ""
        photos = "1 photo" if self.photos == 1 and not of else f"{self.photos}{of} photos"
        return f"{self.model}, {photos}: {faults}"

    def verdict(self) -> str:
        """Say what was found, a line a finding; faults are marked with an exclamation mark."""
        lines = [f"{'!' if one.fault else '-'} {one.text}" for one in self.findings]
        return "\n".join([self.title, *lines])

    def table(self) -> list[dict[str, Any]]:
        """Rows of plain values, one a head, for `pandas.DataFrame`."""
        return [asdict(head) for head in self.heads]

    def block_table(self) -> list[dict[str, Any]]:
        """Rows of plain values, one a block, for `pandas.DataFrame`."""
        return [asdict(block) for block in self.blocks]

    def layer_table(self) -> tuple[list[str], list[list[str]]]:
        """Write a short table, a row a layer: its heads' means and its block; header and rows."""
        header = [
            *("layer", "heads", "entropy", "distance", "on outliers", "largest patch"),
            *("norm", "outliers", "alike", "spread", "rank", "residual", "attention", "MLP"),
        ]
        rows = []
        blocks = {block.name: block for block in self.blocks}
        for layer in sorted({head.layer for head in self.heads}):
            heads = [head for head in self.heads if head.layer == layer]
            names = ("entropy", "distance", "outliers", "moving")
            means = [mean_of([getattr(head, name) for head in heads]) for name in names]
            inside = [
                b for name, b in blocks.items() if f"{heads[0].module}.".startswith(f"{name}.")
            ]
            after = ("norm", "outliers", "alike", "spread", "rank", "residual", "attention", "mlp")
            of_block = [getattr(inside[0], name) if inside else None for name in after]
            numbers = map(short, [*means, *of_block])
            rows.append([str(layer), str(len(heads)), *numbers])
        return header, rows

    def changes(self, after: "Diagnosis") -> list[tuple[str, float | None, float | None]]:
        """List what another diagnosis of the same photos changes: what, here and there.

        Accuracy, confidence, outliers in the mean photo, the share of Rollout on them, the mean
        share of attention that the most attended patch of a photo receives, and the mean entropy.
        """

        def values(one: Diagnosis) -> list[float | None]:
            out, chances = one.outliers, one.chances
            return [
                None if chances is None else chances.accuracy,
                None if chances is None else chances.confidence,
                None if out is None else out.count,
                None if out is None else out.rollout,
                mean_of([head.moving for head in one.heads]),
                mean_of([head.entropy for head in one.heads]),
            ]

        names = (
            *("accuracy", "confidence", "outlying patches", "Rollout on them"),
            *("attention on the most attended patch", "entropy"),
        )
        return list(zip(names, values(self), values(after), strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain values that JSON can hold."""
        return {one.name: _plain(getattr(self, one.name)) for one in fields(self)}

    def __str__(self) -> str:
        return self.verdict()

    def _repr_html_(self) -> str:
        lines = "".join(
            f"<li>{'<b>' if one.fault else ''}{escape(one.text)}{'</b>' if one.fault else ''}</li>"
            for one in self.findings
        )
        return f"<p>{escape(self.title)}</p><ul>{lines}</ul>"


def mean_of(values: Sequence[float | None]) -> float | None:
    """Take the mean of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def short(value: float | None) -> str:
    """Write a number with three digits, a dash for none.

    Examples:
        >>> from vision_attn.runs.diagnosis.results import short
        >>> short(0.12345), short(None)
        ('0.123', '–')
    """
    if value is None:
        return "–"
    return f"{value:.0f}" if abs(value) >= 99.5 else f"{value:.3g}"


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value
