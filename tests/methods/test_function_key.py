"""The key of a function of the output: another for one that computes something else."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from vision_attn.methods import Function
from vision_attn.methods.function_key import function_key
from vision_attn.models import SEResNet

LIMIT = 3


def closure(value: SEResNet) -> Callable[..., Any]:
    return lambda output: output[:, 0] * value


def default(value: Any) -> Callable[..., Any]:
    def scaled(output: Any, by: Any = value) -> Any:
        return output[:, 0] * by

    return scaled


def of_partial(value: Any) -> Callable[..., Any]:
    return partial(torch.add, alpha=value)


class Scaled:
    def __init__(self, by: Any) -> None:
        self.by = by

    def __call__(self, output: Any) -> Any:
        return output[:, 0] * self.by

    def method(self, output: Any) -> Any:
        return self(output)


def of_method(value: Any) -> Callable[..., Any]:
    return Scaled(value).method


def nested(value: Any) -> Callable[..., Any]:
    inner = closure(value)
    return lambda output: sum(inner(output) for _ in range(2))


VALUES = [
    (2, 3),
    (torch.ones(3), torch.tensor([1.0, 1.0, 2.0])),
    ([1, 2], [2, 1]),
    ({1, 2}, {1, 3}),
]


@pytest.mark.parametrize("make", [closure, default, of_partial, Scaled, of_method, nested])
@pytest.mark.parametrize(("one", "other"), VALUES)
def test_what_a_function_refers_to_is_in_its_key(
    make: Callable[..., Any], one: int | torch.Tensor | list[int], other: int
) -> None:
    assert Function(make(one)).key() == Function(make(one)).key()
    assert Function(make(one)).key() != Function(make(other)).key()


def test_a_global_that_changes_is_another_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def limited(output: Any) -> Any:
        return output[:, 0].clamp(max=LIMIT)

    before = function_key(limited)
    assert function_key(limited) == before
    monkeypatch.setitem(globals(), "LIMIT", 5)
    assert function_key(limited) != before


def test_what_a_library_keeps_in_its_globals_is_not_in_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def limited(output: Any) -> Any:
        return output[:, 0].clamp(max=LIMIT)

    limited.__module__ = "torch.nn.functional"
    before = function_key(limited)
    monkeypatch.setitem(globals(), "LIMIT", 5)
    assert function_key(limited) == before


def test_a_name_that_has_no_value_yet() -> None:
    def scaled(output: Any) -> Any:
        return output[:, 0] * later

    before = function_key(scaled)
    later = 3
    assert function_key(scaled) != before


def test_the_weights_of_a_network_in_a_function_count() -> None:
    network = SEResNet(2, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4))
    before = function_key(closure(network))
    assert function_key(closure(network)) == before
    with torch.no_grad():
        next(network.parameters()).add_(1)
    assert function_key(closure(network)) != before


def test_the_key_is_the_same_in_another_process() -> None:
    code = (
        "import torch; from vision_attn.methods import Function\n"
        "weights = torch.arange(3.0)\n"
        "def double(x): return 2 * x\n"
        "f = lambda output: double(output @ weights) + (lambda x: x.mean())(output)\n"
        "print(Function(f).key())"
    )
    words = [sys.executable, "-c", code]
    keys = {subprocess.run(words, capture_output=True, text=True, check=True).stdout for _ in "ab"}
    assert len(keys) == 1
    assert "0x" not in keys.pop()
