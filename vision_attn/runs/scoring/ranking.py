"""The order of methods that are trusted: by their mean rank in what they were scored by."""

from collections.abc import Sequence
from statistics import fmean

from vision_attn.runs.scoring.results import Results
from vision_attn.runs.scoring.scorer import GRIDS
from vision_attn.runs.scoring.verdict import judge
from vision_attn.types import Trust

__all__ = ["mean_ranks", "trust_of"]

DIGITS = 3  # means that are equal to so many share a rank


def trust_of(results: Results) -> Trust:
    """Make what a model keeps of its scores: the methods to trust, the best mean rank first."""
    verdict = judge(results)
    ranks = mean_ranks(results, verdict.of("yes"))
    ordered = sorted(ranks, key=lambda method: ranks[method])
    images = min((one.images for one in verdict.methods), default=0)
    return Trust(tuple(ordered), images, str(results.settings["data"]))


def mean_ranks(results: Results, methods: Sequence[str]) -> dict[str, float]:
    """Compute each method's mean rank among these, by deletion, insertion and mosaics; 0 is best.

    Mosaics of the smallest side count, where there are any. A mean is over the images that all of
    the methods have a score of.
    """
    grids = [name for name in GRIDS.values() if name in results.metrics][:1]
    ranks: dict[str, list[int]] = {method: [] for method in methods}
    for metric in ("deletion", "insertion", *grids):
        sign = 1 if metric == "deletion" else -1
        numbers = {method: results.numbers(metric, method) for method in methods}
        common = set.intersection(*map(set, numbers.values())) if numbers else set()
        if not common:
            continue
        costs = {m: sign * round(fmean(by[i] for i in common), DIGITS) for m, by in numbers.items()}
        for method, cost in costs.items():
            ranks[method].append(sum(other < cost for other in costs.values()))
    return {method: fmean(places) if places else 0.0 for method, places in ranks.items()}
