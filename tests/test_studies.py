"""Studies that rank methods: by what all of them were scored on, ties as ties."""

import importlib.util
import sys
from math import isnan
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def study():
    """studies/real_data.py as a module."""
    path = ROOT / "studies/real_data.py"
    spec = importlib.util.spec_from_file_location("real_data", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks its module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def part(**numbers):
    """A part of a network's scores: by method, its number on each photo, by every metric."""
    found = SimpleNamespace(numbers=lambda metric, method: numbers[method])
    return SimpleNamespace(methods=list(numbers), results=found)


@pytest.fixture
def network(study):
    quick = part(A={"1": 0.2, "2": 0.4, "3": 9.0}, B={"1": 0.2, "2": 0.4001, "3": 9.0})
    return study.Studied("network", None, [quick, part(C={"1": 0.1, "2": 0.3})])


def test_methods_are_compared_on_the_photos_that_all_have(network):
    means = network.common_means("insertion", ["A", "C"])
    assert means == pytest.approx({"A": 0.3, "C": 0.2})


def test_without_a_common_photo_there_is_no_mean(study):
    apart = study.Studied("network", None, [part(A={"1": 0.2}), part(C={"2": 0.3})])
    assert all(isnan(value) for value in apart.common_means("insertion", ["A", "C"]).values())


def test_the_place_is_the_mean_number_of_better_methods(study, network):
    """By deletion, where less is better, C is first; by insertion and in mosaics it is last."""
    places = {m: study.mean_rank(m, [network], ["A", "B", "C"]) for m in "ABC"}
    assert places == pytest.approx({"A": 1 / 3, "B": 1 / 3, "C": 4 / 3})
