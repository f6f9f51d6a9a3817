"""Which methods to trust for a model, in words: a rule over the scores and their intervals.

A method is trusted where it beats each baseline by deletion and by insertion: the 95 % interval of
the paired difference lies above 0, and the lead is at least LEAST_LEAD. It is not trusted where it
is worse than a baseline by either, or no better (the interval ends below MATTERS) by both; where it
is better by one and no better by the other, the measures disagree, which more images may not
settle. Whatever its scores, a map is not trusted that stays the same when all weights are
randomised: the interval of the mean |rank correlation| with the intact map lies above ALIKE. All
else remains open; fewer than FEWEST images give no verdict. Localisation and sensitivity are
remarks: they do not measure what the network uses. So are mosaics, of the smallest side that was
scored: they say which maps answer for one class rather than another, compared with the baselines in
the same way.

A method that is no better than one of the baselines passes by chance in at most 2.5 % of cases, as
it must beat all of them (an intersection-union test: Berger 1982); methods are not corrected for
their number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

from vision_attn.evaluate import PairedDifference
from vision_attn.evaluate.bootstrap import Interval, bca
from vision_attn.runs.scoring.results import NAMES, Results, short, signed
from vision_attn.runs.scoring.scorer import GRIDS

__all__ = ["ALIKE", "FEWEST", "LEAST_LEAD", "MATTERS", "MethodVerdict", "Verdict", "judge"]

FEWEST = 20  # images: intervals of fewer are not to be relied on
MATTERS = 0.05  # of scores from 0 to 1: a lead that is certainly smaller is not worth having
LEAST_LEAD = 0.005  # a smaller one is none, however certain
ALIKE = 0.5  # |rank correlation|: maps that are more alike than this are the same map
FAITHFUL = "deletion", "insertion"
SINGLE = {"saco": "SaCo", "single_deletion": "single deletion"}  # of parts removed alone

Trust = Literal["yes", "no", "unknown"]
Standing = Literal["better", "worse", "no better", "open"]
Pointing = Literal["points", "class-blind", "does not", "open"]


class Compared(NamedTuple):
    """A method beside the baselines by one metric.

    Attributes:
        standing: `better` than every baseline, `worse` or `no better` than one, or `open`.
        baseline: The one that decides.
        images: How many both were scored on.
        difference: None where these are fewer than two.
    """

    standing: Standing
    baseline: str
    images: int
    difference: PairedDifference | None


@dataclass(frozen=True)
class MethodVerdict:
    """What the scores say of one method.

    Attributes:
        method: As it is written on the command line.
        trust: `yes`, `no` or `unknown`.
        reason: Why, in words.
        images: How many it rests on.
        deletion: `better` than every baseline, `worse` or `no better` than one, or `open`.
        insertion: The same by insertion.
        randomisation: Whether the map `changes` as the weights are randomised, is `unchanged`, or
            that is `open`; None where it was not measured.
        remarks: What else is known, and decides nothing.
        pointing: Whether it `points` at the photo of its class in a mosaic, is `class-blind`, `does
            not`, or that is `open`; None where it was not measured.
        disputed: Whether SaCo or single deletion, which remove one part of an image at a time, say
            the opposite.

    Examples:
        >>> from vision_attn.runs.scoring import MethodVerdict
        >>> one = MethodVerdict("Rollout", "no", "worse than EdgeMap", 200, "worse", "open", None)
        >>> one.trust, one.reason
        ('no', 'worse than EdgeMap')
    """

    method: str
    trust: Trust
    reason: str
    images: int
    deletion: Standing
    insertion: Standing
    randomisation: Literal["changes", "unchanged", "open"] | None
    remarks: tuple[str, ...] = ()
    pointing: Pointing | None = None
    disputed: bool = False


@dataclass(frozen=True)
class Verdict:
    """Which methods to trust for one model on some images, and why.

    Attributes:
        methods: One each, in the order of the tables, without the baselines.
        images: How many the comparison with the baselines rests on, at most.
        randomised: How many the check by lost weights rests on; 0 where it was not made.
        warning: Where the model has random weights.
        mosaics: Photos a side of the mosaics that were scored, 0 without any, and how many there
            were.

    Examples:
        >>> from vision_attn.runs.scoring import MethodVerdict, Verdict
        >>> one = MethodVerdict("Rollout", "no", "worse than EdgeMap", 200, "worse", "open", None)
        >>> Verdict((one,), images=200, randomised=0).of("no")
        ['Rollout']
    """

    methods: tuple[MethodVerdict, ...]
    images: int
    randomised: int
    warning: str = ""
    mosaics: tuple[int, int] = (0, 0)

    def of(self, trust: Trust) -> list[str]:
        """List the methods with this trust: `yes`, `no` or `unknown`."""
        return [one.method for one in self.methods if one.trust == trust]

    def rows(self) -> list[dict[str, Any]]:
        """List plain values of each method, ready for `pandas.DataFrame`."""
        return [vars(one) | {"remarks": "; ".join(one.remarks)} for one in self.methods]

    @property
    def text(self) -> str:
        """Two lines: what to trust, and on what that rests; and one on mosaics, where there are."""
        return "\n".join(filter(None, (self.what, self.basis, self.pointing)))

    @property
    def what(self) -> str:
        """Which methods to trust, which not, and which remain open."""
        if not self.methods:
            return "No method was scored."
        trusted, rejected, unknown = self.of("yes"), self.of("no"), self.of("unknown")
        # A disagreement of measures is no lack of images.
        split = [one.method for one in self.methods if one.trust == "unknown" and disagree(one)]
        unknown = [method for method in unknown if method not in split]
        parts = [f"{self.warning}."] if self.warning else []
        if trusted:
            limit = "" if self.randomised else ", as far as deletion and insertion go"
            parts.append(f"Trust here{limit}: {', '.join(trusted)}.")
        elif len(rejected) == len(self.methods):
            parts.append(f"Trust none of these methods here: {', '.join(rejected)}.")
        else:
            parts.append("No method has shown here that it can be trusted.")
        if 0 < len(rejected) < len(self.methods):
            parts.append(f"Do not trust: {', '.join(rejected)}.")
        if split:
            parts.append(f"Deletion and insertion disagree on {', '.join(split)}.")
        opposed = ", ".join(one.method for one in self.methods if one.disputed)
        if opposed:
            parts.append(f"Removing one part of an image at a time says the opposite of {opposed}.")
        if unknown:
            parts.append(f"Cannot tell from {counted(self.images)}: {', '.join(unknown)}.")
            if self.images < FEWEST:
                parts.append(f"A verdict needs at least {FEWEST} images.")
        return " ".join(parts)

    @property
    def basis(self) -> str:
        """What the verdict rests on."""
        rests = (
            f"This rests on deletion and insertion, on {counted(self.images)}, each method beside "
            f"{', '.join(NAMES[:-1])} and {NAMES[-1]} (95 % intervals of the paired differences)"
        )
        if self.randomised:
            return f"{rests}, and on {counted(self.randomised)} with the weights randomised."
        return f"{rests}; whether the maps depend on the weights was not measured."

    @property
    def pointing(self) -> str:
        """Which methods answer for one class rather than another; empty without mosaics."""
        side, count = self.mosaics
        if not side:
            return ""
        words = {
            "points": "these lie on its photo more than every baseline's map",
            "does not": "these do not",
            "class-blind": "these cannot, being the same for every class",
            "open": f"cannot tell from {count} mosaic{'' if count == 1 else 's'}",
        }
        found = {
            phrase: [one.method for one in self.methods if one.pointing == pointing]
            for pointing, phrase in words.items()
        }
        parts = [f"{phrase}: {', '.join(names)}" for phrase, names in found.items() if names]
        return f"Asked for one class of a {side}x{side} mosaic, {'; '.join(parts)}."

    def __str__(self) -> str:
        return self.text


def judge(results: Results) -> Verdict:
    """Apply the rule to each method that is no baseline."""
    methods = [m for m in results.methods if m not in results.baselines]
    every = tuple(judge_method(results, method) for method in methods)
    randomised = max((len(ends_alike(results, method)) for method in methods), default=0)
    images = max((one.images for one in every), default=0)
    side = min((row.side for row in results.mosaics), default=0)
    count = max((results.mean(GRIDS[side], m).n for m in methods), default=0) if side else 0
    return Verdict(every, images, randomised, results.warning, (side, count))


def judge_method(results: Results, method: str) -> MethodVerdict:
    """Apply the rule to one method."""
    found = {metric: compare(results, metric, method) for metric in FAITHFUL}
    images = min(one.images for one in found.values())
    standings = [one.standing for one in found.values()]
    alike = ends_alike(results, method)
    lost = interval_of(alike)
    dependence: Literal["changes", "unchanged", "open"] | None = None
    if alike:
        dependence = "open"
        if lost is not None:
            mean = sum(alike) / len(alike)
            dependence = (
                "unchanged" if lost.low > ALIKE else "changes" if lost.high < ALIKE else "open"
            )
            range_ = f"{short(mean)} [{short(lost.low)}, {short(lost.high)}]"
    because = "; ".join(in_words(metric, one) for metric, one in found.items())
    trust: Trust = "unknown"
    if dependence == "unchanged":
        trust = "no"
        reason = (
            "its map does not depend on the weights: with all of them randomised the rank "
            f"correlation with the intact map is still {range_}"
        )
    elif images < FEWEST:
        reason = f"cannot tell from {counted(images)}: at least {FEWEST} are needed"
    elif "worse" in standings or set(standings) == {"no better"}:
        trust, reason = "no", because
    elif disagree_on(standings):
        reason = f"its measures disagree: {because}"
    elif "open" in standings or "no better" in standings:
        reason = f"cannot tell from {counted(images)}: {because}"
    elif dependence == "open":
        reason = f"cannot tell from {counted(len(alike))} whether it depends on the weights"
        reason += f"; {because}"
    else:
        trust, reason = "yes", because
    return MethodVerdict(
        method, trust, reason, images, standings[0], standings[1], dependence,
        tuple(remarks(results, method)), pointing(results, method),
        disputed(results, method, trust),
    )  # fmt: skip


def disputed(results: Results, method: str, trust: Trust) -> bool:
    """Whether what removes one part at a time contradicts a judgement, for certain."""
    opposite = {"yes": "worse", "no": "better"}.get(trust)
    known = [compare(results, metric, method) for metric in SINGLE if metric in results.metrics]
    standings = [one.standing for one in known if one.images >= FEWEST]
    if trust == "no":
        return bool(standings) and set(standings) == {opposite}
    return opposite in standings


def pointing(results: Results, method: str) -> Pointing | None:
    """Say whether maps point at the photo of their class, in mosaics of the smallest side."""
    metric = next((name for name in GRIDS.values() if name in results.metrics), None)
    if metric is None:
        return None
    if method in results.blind:
        return "class-blind"
    found = compare(results, metric, method)
    if found.images < FEWEST or found.standing == "open":
        return "open"
    return "points" if found.standing == "better" else "does not"


def compare(results: Results, metric: str, method: str) -> Compared:
    """Compare a method with each baseline by a metric."""
    ahead = results.table[method][metric]["better_than"]
    images = min(len(results.paired(metric, method, name)) for name in NAMES)
    known = {
        name: PairedDifference(one["mean"], one["low"], one["high"])
        for name, one in ahead.items()
        if one is not None
    }
    if len(known) < len(NAMES):
        return Compared("open", NAMES[0], images, None)
    hardest = min(known, key=lambda name: known[name].low)
    closest = min(known, key=lambda name: known[name].high)
    if known[hardest].low > 0 and min(one.mean for one in known.values()) >= LEAST_LEAD:
        return Compared("better", hardest, images, known[hardest])
    if known[closest].high < 0 and known[closest].mean <= -LEAST_LEAD:
        return Compared("worse", closest, images, known[closest])
    if known[closest].high < MATTERS:
        return Compared("no better", closest, images, known[closest])
    return Compared("open", hardest, images, known[hardest])


def in_words(metric: str, found: Compared, name: str = "") -> str:
    """Say how a method stands beside the baselines by a metric, called so."""
    by, one = name or metric, found.difference
    if one is None:
        return f"{by} has too few images"
    lead = f"{signed(one.mean)} [{signed(one.low)}, {signed(one.high)}]"
    return {
        "better": f"better than every baseline by {by} (beside {found.baseline} {lead})",
        "worse": f"worse than {found.baseline} by {by} ({lead})",
        "no better": f"no better than {found.baseline} by {by} ({lead})",
        "open": f"not shown to be better than {found.baseline} by {by} ({lead})",
    }[found.standing]


def disagree(one: MethodVerdict) -> bool:
    return one.images >= FEWEST and disagree_on((one.deletion, one.insertion))


def disagree_on(standings: Sequence[str]) -> bool:
    return set(standings) == {"better", "no better"}


def ends_alike(results: Results, method: str) -> list[float]:
    """Measure, by image, |rank correlation| with the map of all weights randomised."""
    lines = [r["rank correlation"] for r in results.by_method["sanity", method] if "scores" in r]
    return [abs(line[-1]) for line in lines if line[-1] == line[-1]]


def interval_of(values: Sequence[float]) -> Interval | None:
    """Compute the 95 % interval of the mean; None of fewer than FEWEST values."""
    return (
        bca(torch.tensor(values, dtype=torch.float64, device="cpu"))
        if len(values) >= FEWEST
        else None
    )


def remarks(results: Results, method: str) -> list[str]:
    """Say what else is known of a method: where it lies, and how it bears noise."""
    lines = []
    for side, metric in GRIDS.items():
        if metric in results.metrics and method not in results.blind:
            mean = results.mean(metric, method)
            inside = interval_of(list(results.numbers(metric, method).values()))
            range_ = f" [{short(inside.low)}, {short(inside.high)}]" if inside else ""
            lines.append(
                f"in mosaics of {side}x{side}, {short(mean.value)}{range_} of it lies on the photo "
                f"of its class, {short(1 / side**2)} by chance"
            )
    if "energy_inside" in results.metrics:
        found = compare(results, "energy_inside", method)
        if found.images >= FEWEST:
            words = {
                "better": "it lies on the object more than every baseline's map does",
                "worse": f"it lies on the object less than {found.baseline} does",
                "no better": f"it lies on the object no more than {found.baseline} does",
                "open": f"cannot tell whether it lies on the object more than {found.baseline}",
            }
            lines.append(words[found.standing])
    for metric, name in SINGLE.items():
        if metric in results.metrics:
            found = compare(results, metric, method)
            if found.images >= FEWEST and found.standing in ("better", "worse"):
                lines.append(f"with one part removed at a time, {in_words(metric, found, name)}")
    moved = interval_of(list(results.numbers("sensitivity", method).values()))
    if moved is not None and moved.low > 1:
        lines.append("a little noise in the image changes it by more than its own size")
    return lines


def counted(images: int) -> str:
    """So many images, in words."""
    return f"{images} image{'' if images == 1 else 's'}"
