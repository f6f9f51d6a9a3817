"""Writes docs/lab/diagnosis.md: does `diagnose` cry wolf on healthy networks, and find the others?

    python studies/healthy_twins.py [--twins outputs/twins] [--seeds 18] [--images 100]

Healthy twins are trainings of configs/vit_planted_fast.yaml that differ in their seed. Those that
are not yet in the folder are trained: DIR/seed_N, two to four minutes each on two cores. The
thresholds are chosen on the even seeds and on the ViTs of the package, by RULE; false alarms are
counted on the odd seeds. Then each fault is planted in the odd twins, in every layer. --quick
makes it small, to see that it runs.
"""

import argparse
import copy
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

import vision_attn
from vision_attn import Model, load_model
from vision_attn.evaluate import wilson
from vision_attn.render import markdown_table
from vision_attn.runs.diagnosis.results import Diagnosis, Finding
from vision_attn.runs.diagnosis.verdict import Thresholds
from vision_attn.runs.progress import Silent

ROOT = Path(__file__).parent.parent
CONFIG = "configs/vit_planted_fast.yaml"
START = Thresholds(outlier_photos=0.5)  # as they were set by eye, before the twins
SHELF = {  # the ViTs of the package, and the photos that they know
    "vision_attn:vit_planted": "planted",
    "vision_attn:compact_vit_imagenette": ".data/imagenette160/val",
    "vision_attn:compact_vit_cifar10": "cifar10",
}
PATCHES = 64
OUTLYING = 4.0  # norm of planted outliers, in medians of their photo

Places = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Limit:
    """A threshold of a fault: its field of Thresholds, and what of a diagnosis is held against it.

    extreme: the value of the fault itself; a network is healthy on the other side of the threshold.
    """

    kind: str
    field: str
    words: str
    value: Callable[[Diagnosis], float]
    extreme: float

    def beyond(self, value: float, threshold: float) -> bool:
        return value >= threshold if self.extreme == 1 else value < threshold

    def farthest(self, values: Sequence[float]) -> float:
        return max(values) if self.extreme == 1 else min(values)

    def chosen(self, values: Sequence[float]) -> float:
        """The threshold by RULE."""
        start: float = getattr(START, self.field)
        farthest = self.farthest(values)
        if not self.beyond(farthest, start):
            return start
        return round((farthest + self.extreme) / 2, 2)


def photos_with_outliers(found: Diagnosis) -> float:
    """The largest share of photos with outliers after a block that has few enough of them."""
    few = [b for b in found.blocks if b.outliers <= START.outlier_share * b.patches]
    return max((b.photos_with for b in few), default=0.0)


def correlation(found: Diagnosis) -> float:
    """The largest correlation of two heads, of those that are not uniform."""
    heads = [h for h in found.heads if h.entropy < START.uniform]
    return max(h.alike for h in heads if h.alike is not None)


LIMITS = [
    Limit("outliers", "outlier_photos",
          "share of photos with outlying patches, at most 15 % of the patches",
          photos_with_outliers, 1),
    Limit("dead head", "dead", "output of a head, 1 for the mean head of its layer",
          lambda found: min(h.output for h in found.heads if h.output is not None), 0),
    Limit("equal heads", "equal", "correlation of two heads", correlation, 1),
    Limit("uniform head", "uniform", "entropy of a head",
          lambda found: max(h.entropy for h in found.heads if h.distance is not None), 1),
    Limit("oversmoothing", "spread", "energy of the patches that is not their mean",
          lambda found: min(block.spread for block in found.blocks), 0),
]  # fmt: skip

RULE = """\
**The rule.** A threshold that was set by eye stands if no network of the even half is beyond
it. Else it moves to the middle between the network of the even half that goes farthest and the
fault itself (outliers in all photos, a correlation or an entropy of 1, an output or a spread of
0), and is rounded to two digits."""


# faults, planted


class ChangedBlock(nn.Module):
    """A block, and what is done to its output."""

    def __init__(self, block: nn.Module, change: Callable[[Tensor], Tensor]):
        super().__init__()
        self.block, self.change = block, change

    def forward(self, x: Tensor, *more: object) -> Tensor:
        return self.change(self.block(x, *more))


def enlarge(tokens: Sequence[int], times: float) -> Callable[[Tensor], Tensor]:
    """Give tokens so many times the median norm of their photo."""

    def change(y: Tensor) -> Tensor:
        norms = y.norm(dim=-1, keepdim=True)
        y = y.clone()
        y[:, tokens] *= times * norms.median(1, keepdim=True).values / norms[:, tokens]
        return y

    return change


def smooth(y: Tensor) -> Tensor:
    middle = y.mean(1, keepdim=True)
    return middle + 0.05 * (y - middle)


def rows_of(attention: nn.Module, head: int) -> slice:
    """The rows of a head's queries in the weights `qkv`."""
    width = attention.proj.in_features // attention.heads
    return slice(head * width, (head + 1) * width)


@torch.no_grad()
def planted(network: nn.Module, kind: str, place: tuple[int, ...]) -> tuple[nn.Module, Places]:
    """Plant a fault in a copy of a network: where, and the places that a diagnosis should name."""
    network = copy.deepcopy(network)
    block = network.blocks[place[0]]
    if kind in ("outliers", "oversmoothing"):
        random = torch.Generator().manual_seed(place[0])
        tokens = torch.randperm(PATCHES, generator=random)[:2].tolist()
        change = smooth if kind == "oversmoothing" else enlarge(tokens, OUTLYING)
        network.blocks[place[0]] = ChangedBlock(block, change)
        return network, (place,)
    rows = rows_of(block.attn, place[1])
    if kind == "dead head":
        block.attn.proj.weight[:, rows] = 0
        return network, (place,)
    parts = block.attn.qkv.weight, block.attn.qkv.bias
    if kind == "uniform head":
        for part in parts:
            part[rows] = 0
        return network, (place,)
    other = (place[1] + 1) % block.attn.heads  # equal heads
    there, width = rows_of(block.attn, other), block.attn.proj.in_features
    for part in parts:
        for first in (0, width):  # queries and keys
            part[first + there.start : first + there.stop] = part[
                first + rows.start : first + rows.stop
            ].clone()
    return network, tuple(sorted([place, (place[0], other)]))


def places_of(network: nn.Module, kind: str, seed: int) -> Iterator[tuple[int, ...]]:
    """A place of a fault in each layer: its block, or a head, another one with another seed."""
    for at, block in enumerate(network.blocks):
        if kind in ("outliers", "oversmoothing"):
            yield (at,)
        else:
            yield at, (at + seed // 2) % block.attn.heads


def found_at(faults: Sequence[Finding], kind: str, wanted: Places) -> tuple[bool, bool, bool]:
    """Whether a fault is found, whether its first place is right, and no other fault is named.

    After a block that oversmooths or has outliers, later blocks do too: the first counts.
    """
    same = [one for one in faults if one.kind == kind]
    if not same:
        return False, False, False
    places = same[0].places
    right = places[0] == wanted[0] if len(wanted[0]) == 1 else set(wanted) <= set(places)
    exact = right and (len(wanted[0]) == 1 or set(places) == set(wanted))
    return True, right, exact and len(faults) == 1


# the study


def study() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--twins", type=Path, default=Path("outputs/twins"), metavar="DIR")
    parser.add_argument("--seeds", type=int, default=18)
    parser.add_argument("--images", type=int, default=100, help="of a diagnosis")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/lab", metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="small, to see that it runs")
    args = parser.parse_args()
    if args.quick:
        args.seeds, args.images = 2, 6
    limit = args.images
    twins = {seed: load_model(trained(args.twins, seed)) for seed in range(args.seeds)}
    found = {seed: diagnose(model, "planted", limit) for seed, model in twins.items()}
    shelf = {}
    for spec, data in SHELF.items():
        model = load_model(spec)
        if data in ("planted", "cifar10") or Path(data).is_dir():
            shelf[spec] = diagnose(model, data, limit)
    even = [*(found[seed] for seed in found if seed % 2 == 0), *shelf.values()]
    odd = [found[seed] for seed in found if seed % 2]
    chosen = {one.field: one.chosen([one.value(each) for each in even]) for one in LIMITS}
    thresholds = replace(START, **chosen)
    counts = {
        one.kind: [
            found_at(diagnose(replace(model, network=changed), "planted", limit // 2,
                              thresholds).faults, one.kind, wanted)
            for seed, model in twins.items() if seed % 2
            for place in list(places_of(model.network, one.kind, seed))[: 1 if args.quick else None]
            for changed, wanted in [planted(model.network, one.kind, place)]
        ]
        for one in LIMITS
    }  # fmt: skip
    page = PAGE.format(
        seeds=args.seeds,
        last=args.seeds - 1,
        images=limit,
        half=limit // 2,
        accuracy=accuracies(list(found.values())),
        shelf=", ".join(f"`{spec}`" for spec in shelf),
        rule=RULE,
        thresholds=threshold_table(even, odd, thresholds),
        verdict=verdict(odd, thresholds),
        remarks=remarks(list(found.values()), thresholds),
        planted=planted_table(counts),
        outlying=OUTLYING,
        torch=torch.__version__.partition("+")[0],
        machine=f"{platform.machine()}, {torch.get_num_threads()} threads",
    )
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "diagnosis.md").write_text(page, encoding="utf-8")
    print(args.output / "diagnosis.md")
    if thresholds != Thresholds():
        print(f"the even half says {thresholds}, the package has {Thresholds()}")


def trained(folder: Path, seed: int) -> Path:
    """The checkpoint of a twin, trained if it is not there; a run that ended has a summary."""

    def ended() -> list[Path]:
        return sorted(folder.glob(f"seed_{seed}/*/version_*/summary.json"))

    if not ended():
        words = ["fit", "--config", str(ROOT / CONFIG), "--seed_everything", str(seed)]
        words += ["--output", str(folder / f"seed_{seed}")]
        subprocess.run([sys.executable, "-m", "vision_attn", *words], check=True, cwd=ROOT)
    return ended()[-1].parent / "best.ckpt"


def diagnose(
    model: Model, data: str, limit: int, thresholds: Thresholds | None = None
) -> Diagnosis:
    print(".", end="", flush=True, file=sys.stderr)
    return vision_attn.diagnose(model, data, limit=limit, thresholds=thresholds, progress=Silent())


def alarms(found: Sequence[Diagnosis], one: Limit, thresholds: Thresholds) -> int:
    threshold = getattr(thresholds, one.field)
    return sum(one.beyond(one.value(each), threshold) for each in found)


def threshold_table(
    even: Sequence[Diagnosis], odd: Sequence[Diagnosis], thresholds: Thresholds
) -> str:
    rows = []
    for one in LIMITS:
        start, now = getattr(START, one.field), getattr(thresholds, one.field)
        count = alarms(even, one, START)
        sign = "at least" if one.extreme == 1 else "below"
        values = ([one.value(each) for each in half] for half in (even, odd))
        rows.append(
            [
                one.kind,
                f"{one.words}: {sign}",
                f"{start:g}",
                f"{count} of {len(even)}",
                *(f"{one.farthest(half):.3g}" for half in values),
                f"{now:g}" if now != start else f"{now:g}, as it was",
                f"{alarms(odd, one, thresholds)} of {len(odd)}",
            ]
        )
    header = [
        *("fault", "number", "by eye", "even half: beyond it", "even half: farthest"),
        *("odd half: farthest", "threshold", "odd half: false alarms"),
    ]
    return markdown_table(header, rows)


def verdict(odd: Sequence[Diagnosis], thresholds: Thresholds) -> str:
    wrong = [any(alarms([each], one, thresholds) for one in LIMITS) for each in odd]
    before = sum(any(alarms([each], one, START) for one in LIMITS) for each in odd)
    low, high = wilson(torch.tensor(wrong).double())
    return (
        f"{sum(wrong)} of {len(odd)} odd twins raise a false alarm (95 %: {max(low, 0):.0%} to "
        f"{high:.0%}, Wilson 1927); with the thresholds set by eye it was {before}."
    )


def remarks(found: Sequence[Diagnosis], thresholds: Thresholds) -> str:
    """How often the thresholds of remarks, which are no faults, are passed."""
    sinks = sum(any(one.kind == "sink" for one in each.findings) for each in found)
    unsure = sum(
        any("the network is" in one.text for one in each.findings if one.kind == "calibration")
        for each in found
    )
    favoured = sum(
        each.outliers is not None
        and bool(each.outliers.count)
        and (each.outliers.attention or 0) >= thresholds.register_attention * each.outliers.share
        for each in found
    )
    return (
        f"Of all {len(found)} twins {sinks} have a sink ({thresholds.sink:.0%} of a head's "
        f"attention), {unsure} are too sure or not sure enough by more than {thresholds.gap:.0%}, "
        f"and in {favoured} outlying patches receive at least {thresholds.register_attention:g} "
        "times their share of attention, which would make them registers in disguise."
    )


def planted_table(counts: dict[str, list[tuple[bool, bool, bool]]]) -> str:
    rows = []
    for kind, cases in counts.items():
        found, right, alone = (sum(case[at] for case in cases) for at in range(3))
        n = len(cases)
        rows.append([kind, str(n), *(f"{one} ({one / n:.0%})" for one in (found, right, alone))])
    return markdown_table(["fault", "planted", "found", "with its place", "and nothing else"], rows)


def accuracies(found: Sequence[Diagnosis]) -> str:
    known = [each.chances.accuracy for each in found if each.chances is not None]
    return f"{min(known):.0%} to {max(known):.0%}"


PAGE = """\
# Diagnosis: false alarms and faults that are found

`diagnose` on {seeds} healthy twins: trainings of `configs/vit_planted_fast.yaml` with the seeds
0 to {last} (4 blocks, 3 heads, 64 patches), {accuracy} right on {images} drawn images of the
test split, on which each is diagnosed. The thresholds are chosen on the even half: the twins of
even seeds and the ViTs of the package on {images} of their own photos ({shelf}). False alarms
are counted on the twins of odd seeds, which nothing was chosen on.

{rule}

## Thresholds and false alarms

{verdict}

{thresholds}
{remarks}

## Planted faults

Each fault in each odd twin, in every layer, one at a time, diagnosed on {half} images; heads
take turns. Outliers: two patches get {outlying:g} times the median norm of their photo after a
block. Dead head: its part of the projection is 0. Equal heads: queries and keys of one are
those of another. Uniform head: its queries are 0. Oversmoothing: after a block 5 % of what
differs from the mean patch is left. *With its place*: the block or the heads that are named are
those where it was planted. *And nothing else*: there is no other fault.

{planted}
Outliers and oversmoothing go on in later blocks, so the first block that is named counts. Where it
is wrong for outliers, a later block was named in the case that was looked at: norms that follow the
photo add outliers there. After a block that oversmooths, all keys are alike, so later heads are
named as uniform, too.

Measured with torch {torch} on a CPU ({machine}). This page is written by
`python studies/healthy_twins.py --images {images}`.
"""

if __name__ == "__main__":
    study()
