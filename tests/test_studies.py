"""Studies: methods ranked by what all of them were scored on; thresholds chosen on one half."""

import importlib.util
import sys
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from vision_attn.attention import AttentionPool
from vision_attn.data.draws import permutation
from vision_attn.models import ViT
from vision_attn.runs.diagnosis.results import Finding
from vision_attn.tokens import record_attention

ROOT = Path(__file__).parents[1]


def loaded(name: str) -> Iterator[ModuleType]:
    """A file of studies/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"studies/{name}.py")
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks its module up
    assert spec.loader is not None
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def study() -> Iterator[Any]:
    yield from loaded("real_data")


@pytest.fixture(scope="module")
def twins() -> Iterator[Any]:
    yield from loaded("healthy_twins")


@pytest.fixture(scope="module")
def all_photos() -> Iterator[Any]:
    yield from loaded("all_photos")


@pytest.fixture(scope="module")
def outliers() -> Iterator[Any]:
    yield from loaded("outliers")


def part(**numbers: Any) -> SimpleNamespace:
    """A part of a network's scores: by method, its number on each photo, by every metric."""
    found = SimpleNamespace(numbers=lambda metric, method: numbers[method])
    return SimpleNamespace(methods=list(numbers), results=found)


@pytest.fixture
def network(study: Any) -> Any:
    quick = part(A={"1": 0.2, "2": 0.4, "3": 9.0}, B={"1": 0.2, "2": 0.4001, "3": 9.0})
    return study.Studied("network", None, [quick, part(C={"1": 0.1, "2": 0.3})])


def test_methods_are_compared_on_the_photos_that_all_have(network: Any) -> None:
    means = network.common_means("insertion", ["A", "C"])
    assert means == pytest.approx({"A": 0.3, "C": 0.2})


def test_without_a_common_photo_there_is_no_mean(study: Any) -> None:
    apart = study.Studied("network", None, [part(A={"1": 0.2}), part(C={"2": 0.3})])
    assert all(isnan(value) for value in apart.common_means("insertion", ["A", "C"]).values())


def test_the_place_is_the_mean_number_of_better_methods(study: Any, network: Any) -> None:
    """By deletion, where less is better, C is first; by insertion and in mosaics it is last."""
    places = {m: study.mean_rank(m, [network], ["A", "B", "C"]) for m in "ABC"}
    assert places == pytest.approx({"A": 1 / 3, "B": 1 / 3, "C": 4 / 3})


def test_photos_that_chose_are_left_out_and_those_of_other_tables_come_last(
    all_photos: Any,
) -> None:
    samples = object.__new__(all_photos.Others)
    samples.names = [str(item) for item in range(353)]
    drawn = permutation((0,), 353).tolist()
    assert samples.chosen(7) == [*drawn[348:], *drawn[:2]]
    assert sorted(samples.chosen(353)) == sorted(drawn[:300] + drawn[348:])


def test_the_evidence_of_a_readout_sums_to_the_logit(outliers: Any) -> None:
    pooled = ViT((16, 24), 8, 7, 12, 2, 3, pool=AttentionPool, class_token=False).double().eval()
    images = torch.randn(2, 3, 16, 24, dtype=torch.float64)
    maps = outliers.ReadoutEvidence()(pooled, images, 5, pooled.layout((16, 24)))
    torch.testing.assert_close(maps.values.sum(dim=(1, 2)), pooled(images)[:, 5].detach().float())


def test_a_network_that_reads_a_class_token_has_no_such_evidence(outliers: Any) -> None:
    assert outliers.ReadoutEvidence().refusal(ViT(16, 8, 7, 12, 2, 3)) is not None


def test_norms_of_a_level_are_those_of_its_tokens(outliers: Any) -> None:
    network = ViT((16, 24), 8, 7, 12, 2, 3, registers=1).eval()
    images = torch.randn(2, 3, 16, 24)
    norms = outliers.norms_by_level(network, images)
    with torch.no_grad():
        tokens = network.tokens(images, (2, 3), None)
        after = network.blocks[0](tokens)
    assert norms.shape == (2, 3, 6)
    torch.testing.assert_close(norms[:, 0], tokens[:, 2:].norm(dim=-1))
    torch.testing.assert_close(norms[:, 1], after[:, 2:].norm(dim=-1))


def test_outliers_are_counted_by_their_photo(outliers: Any) -> None:
    """Of two photos one has one patch of three times the median, at the border."""
    norms = torch.full((2, 9), 2.0)
    norms[1, 3] = 6.0
    assert outliers.row(norms, 4) == ["4", "2.0", "2.00", "5.56%", "50%", "100%"]


def test_a_threshold_stands_or_moves_half_way_to_the_fault(twins: Any) -> None:
    outliers, dead, *_ = twins.LIMITS
    assert outliers.chosen([0.1, 0.49]) == 0.5
    assert outliers.chosen([0.1, 0.6, 0.5]) == 0.8
    assert dead.chosen([0.3, 0.05]) == 0.05
    assert dead.chosen([0.3, 0.04]) == 0.02


def test_a_fault_is_found_where_it_was_planted_or_elsewhere(twins: Any) -> None:
    equal = Finding("equal heads", True, "", ((1, 0), (1, 2), (2, 0)))
    other = Finding("dead head", True, "", ((0, 1),))
    wanted = ((1, 0), (1, 2))
    assert twins.found_at([equal], "equal heads", wanted) == (True, True, False)
    assert twins.found_at([other], "equal heads", wanted) == (False, False, False)
    assert twins.found_at([other], "dead head", ((0, 1),)) == (True, True, True)
    assert twins.found_at([other, equal], "dead head", ((0, 1),)) == (True, True, False)
    late = Finding("oversmoothing", True, "", ((2,), (3,)))
    assert twins.found_at([late], "oversmoothing", ((2,),)) == (True, True, True)
    assert twins.found_at([late], "oversmoothing", ((3,),)) == (True, False, False)


@torch.no_grad()
def test_faults_are_planted_in_a_copy_at_their_place(twins: Any) -> None:
    torch.manual_seed(0)
    network = ViT(image_size=16, patch_size=2, num_classes=5, dim=21, depth=2, heads=3).eval()
    images, kept = (
        torch.randn(2, 3, 16, 16),
        {k: v.clone() for k, v in network.state_dict().items()},
    )

    def call(kind: str, place: tuple[int, int]) -> tuple[Any, Any]:
        changed, places = twins.planted(network, kind, place)
        assert place in places
        with record_attention(changed, keep=("context",)) as record:
            changed(images)
        return changed, record.calls[place[0]]

    uniform = call("uniform head", (1, 2))[1].weights()[:, 2]
    torch.testing.assert_close(uniform, torch.full((2, 65, 65), 1 / 65))
    weights = call("equal heads", (1, 2))[1].weights()
    assert torch.equal(weights[:, 0], weights[:, 2])
    assert not torch.equal(weights[:, 1], weights[:, 2])
    changed, _ = call("dead head", (0, 1))
    assert not changed.blocks[0].attn.proj.weight[:, 7:14].any()
    y = torch.randn(2, 65, 21)
    norms = twins.enlarge([3, 60], 4.0)(y).norm(dim=-1)
    medians = y.norm(dim=-1).median(1).values
    torch.testing.assert_close(norms[:, [3, 60]], 4 * medians[:, None].expand(-1, 2))
    assert list(twins.places_of(network, "outliers", 3)) == [(0,), (1,)]
    assert list(twins.places_of(network, "dead head", 3)) == [(0, 1), (1, 2)]
    assert all(torch.equal(value, kept[name]) for name, value in network.state_dict().items())
