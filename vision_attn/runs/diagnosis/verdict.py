"""The verdict of a diagnosis in words, by thresholds that are stated.

A fault is

- outliers: after some block at least 75 % of the photos have patches with a norm above twice the
  median, and these are at most 15 % of the patches; more follow what the photo shows. They are
  registers in disguise where they receive at least 3 times the attention of as many patches.
- a dead head: it adds less than 5 % of what the mean head of its layer adds.
- equal heads: the correlation of their weights, beyond uniform attention, is at least 0.98.
- a uniform head: its entropy is at least 99.5 % of the largest; a pool of one query does not count.
- oversmoothing: less than 2 % of the patches' energy is not their mean.

Remarks, which are no faults: a token or patch that receives at least 30 % of a head's attention (a
sink: Gu et al. 2025, arXiv:2410.10781), rarer or more outliers, and probabilities that differ from
the accuracy by more than 5 % and two standard errors.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from vision_attn.runs.diagnosis.results import BlockValues, Diagnosis, Finding, HeadValues
from vision_attn.runs.diagnosis.stream import MOST, OFTEN

__all__ = ["Thresholds", "judge"]

SHOWN = 6  # places that a sentence names


@dataclass(frozen=True)
class Thresholds:
    """What counts as unusual; the defaults are those of this module's list.

    Examples:
        >>> from vision_attn.runs.diagnosis.verdict import Thresholds
        >>> Thresholds(dead=0.01).equal
        0.98
    """

    outlier_photos: float = OFTEN
    outlier_share: float = MOST
    register_attention: float = 3.0
    dead: float = 0.05
    uniform: float = 0.995
    equal: float = 0.98
    spread: float = 0.02
    sink: float = 0.3
    gap: float = 0.05


def judge(found: Diagnosis, thresholds: Thresholds | None = None) -> Diagnosis:
    """Return the diagnosis with its findings, faults first, in the order of this module's list.

    Examples:
        >>> from vision_attn.runs.diagnosis.results import Diagnosis, HeadValues
        >>> from vision_attn.runs.diagnosis.verdict import judge
        >>> heads = [HeadValues(0, "attn", at, entropy=0.5, output=float(at)) for at in range(3)]
        >>> print(judge(Diagnosis("a ViT", 50, 50, heads)))
        a ViT, 50 photos: 1 fault
        ! Layer 0 head 0 is dead: it adds less than 5 % of what the mean head of its layer adds.
    """
    limits = thresholds or Thresholds()
    findings = [
        *_outliers(found, limits),
        *_dead(found.heads, limits),
        *_equal(found.heads, limits),
        *_uniform(found.heads, limits),
        *_smooth(found.blocks, limits),
        *_sinks(found.heads, limits),
        *_chances(found, limits),
    ]
    if not found.heads:
        findings.insert(0, _no_attention(found))
    if found.stopped:
        text = f"Measured on {found.photos} of {found.asked} photos."
        findings.append(Finding("stopped", False, text))
    return replace(found, findings=sorted(findings, key=lambda one: not one.fault))


def _no_attention(found: Diagnosis) -> Finding:
    text = (
        f"{found.model} has no attention between tokens: there are no heads, norms of tokens or "
        "shares of Rollout to diagnose, only its accuracy and calibration."
    )
    return Finding("no attention", False, text)


def _outliers(found: Diagnosis, limits: Thresholds) -> Iterator[Finding]:
    out = found.outliers
    if out is None or not out.count:
        return
    many = (
        f"{number(out.count)} of {out.patches} patches have outlying norms (above twice the median "
        f"of their photo) from block {out.first} on, in {percent(out.photos_with)} of the photos"
    )
    held = "" if out.rollout is None else f"; {percent(out.rollout)} of Rollout lies on them"
    if out.photos_with < limits.outlier_photos:
        rare = f"a fault is at least {percent(limits.outlier_photos)} of the photos"
        yield Finding("outliers", False, f"{many}: {rare}.", ((out.first,),))
        return
    if out.share > limits.outlier_share:
        more = f"more than {percent(limits.outlier_share)} of the patches, so they are no registers"
        text = f"{many}{held}: {more}; their norms follow what the photo shows."
        yield Finding("outliers", False, text, ((out.first,),))
        return
    advice = "use LibraGradient, or registers at test time (vision_attn.add_registers)"
    if out.attention is not None and out.attention >= limits.register_attention * out.share:
        text = (
            f"{number(out.count)} of {out.patches} patches are registers in disguise from block "
            f"{out.first} on (norms above twice the median in {percent(out.photos_with)} of the "
            f"photos, {percent(out.attention)} of attention)"
        )
        text += f"{held}: {advice}."
    else:
        text = (
            f"{many}, though attention does not favour them (less than "
            f"{limits.register_attention:g} times their number){held}: {advice}."
        )
    yield Finding("outliers", True, text, ((out.first,),))


def _dead(heads: Sequence[HeadValues], limits: Thresholds) -> Iterator[Finding]:
    dead = [head for head in heads if head.output is not None and head.output < limits.dead]
    if dead:
        less = f"less than {percent(limits.dead)} of what the mean head of its layer adds"
        text = f"{named(dead)} {'is' if len(dead) == 1 else 'are'} dead: {each(dead)} adds {less}."
        yield Finding("dead head", True, text, places(dead))


def _equal(heads: Sequence[HeadValues], limits: Thresholds) -> Iterator[Finding]:
    alike = [
        head for head in heads
        if head.alike is not None and head.alike >= limits.equal and head.entropy < limits.uniform
    ]  # fmt: skip
    if alike:
        pairs = [f"{head.place} (like head {head.nearest}: {head.alike:.3f})" for head in alike]
        text = (
            f"Equal heads, whose weights correlate by at least {limits.equal:g}: {listed(pairs)}."
        )
        yield Finding("equal heads", True, text, places(alike))


def _uniform(heads: Sequence[HeadValues], limits: Thresholds) -> Iterator[Finding]:
    flat = [head for head in heads if head.entropy >= limits.uniform and head.distance is not None]
    if flat:
        text = (
            f"{named(flat)} attend{'s' if len(flat) == 1 else ''} to all tokens alike: entropy at "
            f"least {100 * limits.uniform:.3g} % of the largest."
        )
        yield Finding("uniform head", True, text, places(flat))


def _smooth(blocks: Sequence[BlockValues], limits: Thresholds) -> Iterator[Finding]:
    flat = [block for block in blocks if block.patches > 1 and block.spread < limits.spread]
    if flat:
        first = flat[0]
        text = (
            f"Block {first.block} oversmooths ({first.name}): after it {100 * first.spread:.2g} % "
            f"of the patches' energy is not their mean, below {percent(limits.spread)}, and two "
            f"patches have a cosine of {first.alike:.3f}."
        )
        yield Finding("oversmoothing", True, text, tuple((one.block,) for one in flat))


def _sinks(heads: Sequence[HeadValues], limits: Thresholds) -> Iterator[Finding]:
    fixed: dict[str, list[HeadValues]] = defaultdict(list)
    moving = []
    for head in heads:
        if head.sink is not None and head.sink >= limits.sink:
            fixed[head.sink_token].append(head)
        elif head.moving is not None and head.moving >= limits.sink:
            moving.append(head)
    least = f"at least {percent(limits.sink)} of the attention"
    for token, of in fixed.items():
        text = f"Sink: {token} receives {least} of {named(of, start=False)}."
        yield Finding("sink", False, text, places(of))
    if moving:
        text = (
            f"Sink: in each photo one patch, not always the same, receives {least} of "
            f"{named(moving, start=False)}."
        )
        yield Finding("sink", False, text, places(moving))


def _chances(found: Diagnosis, limits: Thresholds) -> Iterator[Finding]:
    chances = found.chances
    if chances is None:
        return
    gap = abs(chances.gap)
    text = (
        f"Accuracy {percent(chances.accuracy)}, mean confidence {percent(chances.confidence)}, "
        f"calibration error {percent(chances.error)} ({chances.photos} photos with a known class)"
    )
    if gap > max(limits.gap, chances.uncertainty):
        sure = "too sure" if chances.gap > 0 else "not sure enough"
        text += f": the network is {sure}, by more than {percent(limits.gap)}"
    yield Finding("calibration", False, f"{text}.")


def named(heads: Sequence[HeadValues], start: bool = True) -> str:
    """Name heads by layer: `Layer 3 heads 0, 1; layer 5 head 2`."""
    by_layer: dict[int, list[int]] = defaultdict(list)
    for head in heads:
        by_layer[head.layer].append(head.head)
    parts = [
        f"layer {layer} head{'s' if len(of) > 1 else ''} {', '.join(map(str, of))}"
        for layer, of in by_layer.items()
    ]
    text = listed(parts, "; ")
    return text[0].upper() + text[1:] if start else text


def each(heads: Sequence[HeadValues]) -> str:
    return "it" if len(heads) == 1 else "each"


def places(heads: Sequence[HeadValues]) -> tuple[tuple[int, int], ...]:
    return tuple((head.layer, head.head) for head in heads)


def listed(parts: Sequence[str], between: str = ", ") -> str:
    """Join the first of some parts, and say how many more there are."""
    more = len(parts) - SHOWN
    return between.join(parts[:SHOWN]) + (f"{between}and {more} more" if more > 0 else "")


def number(value: float) -> str:
    """Write a number of patches: whole from 10 on, with two digits below 1."""
    if value >= 9.95 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 0.995 else f"{value:.2g}"


def percent(share: float) -> str:
    """Write a share, with a digit after the point below 10 %."""
    value = 100 * share
    return f"{value:.0f} %" if value >= 9.95 or value == round(value) else f"{value:.1f} %"
