"""Dates: every written form is read back, the same example in any batch, rows of symbols."""

import re
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from vision_attn.data import DataError
from vision_attn.data.tensors import InOrder, Shuffled
from vision_attn.sequences import Dates, Vocabulary
from vision_attn.sequences.data.dates import (
    DAYS,
    FIRST,
    FORMS,
    INTERVALS,
    ISO,
    MONTHS,
    WRITTEN,
    suffix,
    written,
)
from vision_attn.sequences.data.pairs import ExampleBatches, Pairs
from vision_attn.types import PAD, STOP

CONFIGS = Path(__file__).parent.parent.parent / "configs"


def read(text: str) -> date:
    """A reader of its own: what a date means, found by its separators."""
    if "/" in text:
        month, day, year = text.split("/")
    elif text.count(".") == 2:
        day, month, year = text.split(".")
    elif re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        year, month, day = text.split("-")
    else:
        name = re.search("|".join(m[:3] for m in MONTHS), text.split(", ", text.count("day, "))[-1])
        assert name is not None
        month = str([m[:3] for m in MONTHS].index(name.group()) + 1)
        day, year = re.findall(r"\d+", text)
    century = {2: 1900 if int(year) >= 50 else 2000, 4: 0}[len(year)]
    return date(int(year) + century, int(month), int(day))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("day", [date(1950, 1, 1), date(2004, 2, 29), date(1999, 11, 23)])
def test_every_form_says_the_date(form: str, day: date) -> None:
    assert read(written(day, form)) == day


@pytest.mark.parametrize(
    ("number", "end"),
    [(1, "st"), (2, "nd"), (3, "rd"), (4, "th"), (11, "th"), (12, "th"), (23, "rd")],
)
def test_ordinals(number: int, end: str) -> None:
    assert suffix(number) == end


@pytest.mark.slow
def test_configs_take_the_longest_source() -> None:
    days = [FIRST + timedelta(days=day) for day in range(DAYS)]
    lengths = {len(written(day, form)) for day in days for form in FORMS}
    assert min(lengths) == 6
    longest = max(len(words.format("", "")) for words in INTERVALS) + 2 * max(lengths)
    assert longest == 87
    for config in CONFIGS.glob("*_dates.yaml"):
        network = yaml.safe_load(config.read_text())["model"]["init_args"]["network"]
        assert network["init_args"]["encoder"]["init_args"]["longest"] == longest, config.name


def test_targets_are_what_the_sources_say() -> None:
    intervals = 0
    for source, target in Dates().texts("test", 0, 300):
        parts = re.split(
            " to | and | until ", source.removeprefix("from ").removeprefix("between ")
        )
        assert "/".join(read(part).isoformat() for part in parts) == target
        intervals += len(parts) == 2
        assert 6 <= len(source) <= 87
    assert 120 < intervals < 180


def test_an_example_depends_on_its_number_seed_and_split_alone() -> None:
    assert Dates().texts("train", 7, 9) == Dates(train=5).texts("train", 0, 20)[7:9]
    first = Dates().texts("train", 0, 3)
    assert first != Dates().texts("val", 0, 3) != Dates(seed=1).texts("val", 0, 3)


def test_every_day_and_form_comes_up() -> None:
    pairs = Dates(intervals=0.0).texts("train", 0, 2000)
    assert {target[5:7] for _, target in pairs} == {f"{m:02}" for m in range(1, 13)}
    assert {target[:2] for _, target in pairs} == {"19", "20"}
    assert len(INTERVALS) == 4
    assert not any("/" in target for _, target in pairs)


def test_examples_are_padded_rows_of_symbols() -> None:
    pairs = Dates(train=50).examples("train")
    texts = Dates(train=50).texts("train", 0, 50)
    assert ["".join(row) for row in WRITTEN.decode(pairs.source)] == [s for s, _ in texts]
    assert ["".join(row) for row in ISO.decode(pairs.target)] == [t for _, t in texts]
    ends = (pairs.target == STOP).int().argmax(1)
    assert ends.tolist() == [len(t) for _, t in texts]


def test_a_batch_is_as_long_as_its_longest() -> None:
    pairs = Dates(train=64).examples("train")
    batches = ExampleBatches(pairs, InOrder(64, 10), None)
    assert len(batches) == 7
    for batch in batches:
        assert isinstance(batch, Pairs)
        assert (batch.source[:, -1] != PAD).any()
        assert (batch.target[:, -1] == STOP).any()
        assert batch.objects is None


def test_batches_go_on_where_they_were_left() -> None:
    pairs = Dates(train=64).examples("train")
    make = lambda: ExampleBatches(pairs, Shuffled(64, 10, seed=3), None)  # noqa: E731
    first = iter(make())
    whole = list(make())
    begun = make()
    taken = iter(begun)
    next(taken), next(taken)
    again = make()
    again.load_state_dict(begun.state_dict())
    rest = list(again)
    assert len(rest) == 5
    for a, b in zip(rest, whole[2:], strict=True):
        assert torch.equal(a.source, b.source)
    assert torch.equal(next(first).target, whole[0].target)


def test_vocabulary_there_and_back() -> None:
    words = Vocabulary(["yes", "no"])
    rows = words.encode([["no"], ["yes", "yes", "no"]], stop=True)
    assert rows.tolist() == [[4, STOP, PAD, PAD], [3, 3, 4, STOP]]
    assert words.decode(rows) == [["no"], ["yes", "yes", "no"]]
    assert len(words) == 5


@pytest.mark.parametrize("rows", [["12", ""], [""]])
def test_an_empty_source(rows: list[str]) -> None:
    with pytest.raises(DataError, match="expected at least one symbol, got an empty source"):
        ISO.encode(rows)


def test_an_unknown_symbol() -> None:
    with pytest.raises(DataError, match=r"unknown symbol 'ü' in '1\. für 2': expected only"):
        WRITTEN.encode(["1. für 2"])


def test_bad_options() -> None:
    with pytest.raises(ValueError, match="twice in the vocabulary"):
        Vocabulary("aba")
    with pytest.raises(ValueError, match="at least 1, got"):
        Dates(val=0)
    with pytest.raises(ValueError, match="share from 0 to 1, got 2"):
        Dates(intervals=2.0)


def test_batch_takes_any_items() -> None:
    pairs = Dates(train=20).examples("train")
    batch = ExampleBatches(pairs, InOrder(20, 5), None).batch(np.array([19, 3]))
    assert torch.equal(batch.target[1], pairs.target[3, : batch.target.size(1)])
