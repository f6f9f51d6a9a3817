"""The order of trusted methods: their mean rank, on the images that all of them were scored on."""

from typing import Any

import pytest

from vision_attn.runs.scoring.ranking import mean_ranks
from vision_attn.runs.scoring.results import METRICS, Results
from vision_attn.runs.scoring.tables import ABOUT

NUMBERS: dict[str, dict[str, tuple[float, ...]]] = {
    "deletion": {"A": (0.2, 0.4), "B": (0.1, 0.3), "C": (0.3, 0.5)},
    "insertion": {"A": (0.9, 0.7), "B": (0.5, 0.7), "C": (0.50001, 0.7)},
    "grid_pointing_2x2": {"A": (0.6,), "B": (0.7,), "C": (0.8,)},
    "grid_pointing_3x3": {"A": (0.9,), "B": (0.1,), "C": (0.1,)},
}


class Scored(Results):
    """Scores by NUMBERS, of images 0, 1 ...; more: a method's numbers by image, by deletion."""

    def __init__(self, *metrics: Any, **more: Any) -> None:
        self.metrics, self.more = list(metrics), more

    def numbers(self, metric: Any, method: Any) -> Any:
        if metric == "deletion" and method in self.more:
            return self.more[method]
        return {str(at): number for at, number in enumerate(NUMBERS[metric][method])}


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (("deletion", "insertion"), {"A": 0.5, "B": 0.5, "C": 1.5}),  # insertion: B and C alike
        (
            ("deletion", "insertion", "grid_pointing_2x2", "grid_pointing_3x3"),
            {"A": 1, "B": 2 / 3, "C": 1},
        ),
    ],
)
def test_ranks_by_each_measure_are_averaged(
    metrics: tuple[str, ...], expected: dict[str, float]
) -> None:
    assert mean_ranks(Scored(*metrics), list("ABC")) == pytest.approx(expected)


def test_only_images_that_all_have_count() -> None:
    short = Scored("deletion", "insertion", A={"0": 0.05, "7": 0.9})  # best on image 0 alone
    assert mean_ranks(short, ["A", "B"]) == {"A": 0.0, "B": 1.0}


def test_there_may_be_none() -> None:
    assert mean_ranks(Scored("deletion", "insertion"), []) == {}


def test_each_score_says_under_its_table_what_it_measures() -> None:
    assert set(ABOUT) == set(METRICS)
