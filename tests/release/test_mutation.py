"""The faults that a mutation run puts into a file: where they are, that each is off until it is on."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from mutation import mutants_of, with_mutants

SOURCE = '''"""A module: 1 + 1."""

LIMIT = 3


def clipped(x: int | float, low=0) -> int | None:
    """Clip x to LIMIT - 1."""
    if x < low:
        raise ValueError(f"x must be at least {low + 1}, got {x - 1}")
    total = 0
    total += min(x, LIMIT)
    return total if not x == 7 and x != 8 else -total


class Words:
    def __repr__(self):
        return "a" * 3
'''
CHANGES = {
    3: ["3 + 1", "3 - 1"],
    6: ["0 + 1", "0 - 1"],
    8: ["Lt to LtE", "Lt to GtE"],
    10: ["0 + 1", "0 - 1"],
    11: ["Add to Sub in place", "first arguments swapped"],
    12: [
        *("return None", "And to Or", "Not left out", "Eq to NotEq", "7 + 1", "7 - 1"),
        *("NotEq to Eq", "8 + 1", "8 - 1", "USub left out"),
    ],
}


def run(source: str, active: int, monkeypatch: Any) -> ModuleType:
    on = SimpleNamespace(on=lambda number: number == active, reach=lambda numbers: None)
    monkeypatch.setitem(sys.modules, "mutants_on", on)
    module = ModuleType("mutated")
    exec(source, vars(module))
    return module


def answers(module: ModuleType) -> list[Any]:
    found = []
    for x in (-1, 0, 1, 2, 3, 4, 7, 8, 9):
        try:
            found.append(module.clipped(x))
        except ValueError as error:
            found.append(str(error))
    return [*found, repr(module.Words())]


def test_messages_texts_types_and_spellings_are_left_out() -> None:
    found: dict[int, list[str]] = {}
    for mutant in mutants_of("a.py", SOURCE):
        found.setdefault(mutant.line, []).append(mutant.change)
    assert found == CHANGES
    at_import = {mutant.line for mutant in mutants_of("a.py", SOURCE) if mutant.at_import}
    assert at_import == {3, 6}


def test_each_mutant_acts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    mutants = mutants_of("a.py", SOURCE)
    source = with_mutants("a.py", SOURCE, {mutant: n for n, mutant in enumerate(mutants)})
    usual = answers(run(SOURCE, -1, monkeypatch))
    assert answers(run(source, -1, monkeypatch)) == usual
    same = [
        f"{mutant.line} {mutant.change}"
        for number, mutant in enumerate(mutants)
        if answers(run(source, number, monkeypatch)) == usual
    ]
    # The order of the arguments of min does not matter: an equivalent mutant.
    assert same == ["11 first arguments swapped"]


@pytest.mark.parametrize("first", ['"""Text."""\nfrom __future__ import annotations\n', ""])
def test_what_must_come_first_comes_first(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = first + "LIMIT = 3\n"
    (mutant, _) = mutants_of("a.py", source)
    assert run(with_mutants("a.py", source, {mutant: 0}), 0, monkeypatch).LIMIT == 4
