"""Planted strings and questions: targets are what is painted, answers tell nothing by themselves."""

from collections import Counter
from itertools import product
from math import pi
from typing import Any

import numpy as np
import pytest
import torch

from vision_attn.data.tensors import InOrder
from vision_attn.sequences import Pairs, PlantedQuestions, PlantedStrings
from vision_attn.sequences.data.objects import COLOUR_NAMES, SHAPE_NAMES, Scene
from vision_attn.sequences.data.pairs import SPECIAL, ExampleBatches
from vision_attn.sequences.data.questions import ANSWERS, ASK, REPLIES, WORDS, Questions
from vision_attn.sequences.data.strings import NAMES
from vision_attn.types import PAD, STOP


@pytest.fixture(scope="module")
def strings() -> Pairs:
    return PlantedStrings(most=5, train=60, val=1, test=1).examples("train")


def test_objects_stand_from_left_to_right_one_a_symbol(strings: Pairs) -> None:
    assert strings.source.shape == (60, 3, 24, 144)
    counts: Counter[int] = Counter()
    assert strings.objects is not None
    for objects, target in zip(strings.objects, strings.target, strict=True):
        named = int((target >= SPECIAL).sum())
        counts[named] += 1
        assert target[named] == STOP
        assert (target[named + 1 :] == PAD).all()
        assert objects.unique().tolist() == list(range(named + 1))
        middles = [(objects == t + 1).nonzero()[:, 1].float().mean() for t in range(named)]
        assert middles == sorted(middles)
        assert all(70 < (objects == t + 1).sum() < 180 for t in range(named))
    assert set(counts) == {1, 2, 3, 4, 5}


def test_objects_are_far_apart_by_turns(strings: Pairs) -> None:
    gaps = set()
    assert strings.objects is not None
    for objects, target in zip(strings.objects, strings.target, strict=True):
        if (target >= SPECIAL).sum() == 3:
            x = [(objects == t + 1).nonzero()[:, 1].float().mean().item() for t in range(3)]
            gaps |= {round(x[1] - x[0]), round(x[2] - x[1])}
    assert max(gaps) - min(gaps) > 6


def test_an_object_has_the_shape_and_the_texture_of_its_name(strings: Pairs) -> None:
    spread: dict[Any, Any]
    coherence: dict[Any, Any]
    spread, coherence = {}, {}  # of brightness, and of its gradient's direction
    assert strings.objects is not None
    for image, objects, row in zip(
        strings.source, strings.objects, NAMES.decode(strings.target), strict=True
    ):
        bright = image.float().mean(0)
        slope = torch.stack(torch.gradient(bright))
        for t, name in enumerate(row):
            texture, shape = name.split()
            inside = objects == t + 1
            places = inside.nonzero().double()
            reach = (places - places.mean(0)).norm(dim=1).max() + 0.5
            assert (len(places) / (pi * reach**2) > 0.75) == (shape == "disk")
            for shift in product((-1, 0, 1), repeat=2):
                inside = inside & (objects.roll(shift, (0, 1)) == t + 1)
            spread.setdefault(texture, []).append(bright[inside].std())
            if shape == "disk":
                low, high = torch.linalg.eigvalsh(slope[:, inside] @ slope[:, inside].T)
                coherence.setdefault(texture, []).append((high - low) / (high + low))
    assert set(spread) == {"striped", "dotted", "checked", "latticed", "plain"}
    assert max(spread.pop("plain")) < 8 < min(min(some) for some in spread.values())
    means = {texture: torch.stack(some).mean() for texture, some in coherence.items()}
    assert means.pop("striped") > 0.8
    assert all(means[texture] < 0.6 for texture in ("dotted", "checked", "latticed"))


def test_the_colour_says_nothing(strings: Pairs) -> None:
    """Plain objects, whose colour is whole, come in three hues or more of either shape."""
    seen: dict[Any, Any] = {}
    assert strings.objects is not None
    for image, objects, row in zip(
        strings.source, strings.objects, NAMES.decode(strings.target), strict=True
    ):
        for t, name in enumerate(row):
            if name.startswith("plain"):
                red, green, blue = image[:, objects == t + 1].float().mean(1).tolist()
                seen.setdefault(name, set()).add((red > green, green > blue, red > blue))
    assert {name: len(kinds) >= 3 for name, kinds in seen.items()} == {
        "plain disk": True,
        "plain cross": True,
    }


def test_an_image_depends_on_its_number_alone() -> None:
    source = PlantedStrings(most=4, train=9, val=1, test=1)
    whole = source.examples("train")
    part = source.paint(np.arange(4, 7), source.key("train"))
    for a, b in zip(whole, part, strict=True):
        assert a is not None
        assert b is not None
        assert torch.equal(a[4:7], b)
    assert not torch.equal(source.examples("val").source[0], whole.source[0])


@pytest.fixture(scope="module")
def asked() -> Questions:
    return PlantedQuestions(train=1500, val=1, test=1).examples("train")


def text(row: torch.Tensor) -> str:
    return " ".join(WORDS.decode(row[None])[0])


@pytest.mark.xdist_group("questions")
def test_answers_are_balanced_whatever_the_words_say(asked: Questions) -> None:
    replies = [REPLIES.symbols[int(a)] for a in asked.answer]
    first_words: Counter[Any] = Counter()
    for number, (kind, answers) in enumerate(ANSWERS.items()):
        of_kind = [r for r, k in zip(replies, asked.kind, strict=True) if k == number]
        counts = Counter(of_kind)
        assert set(counts) == set(answers)
        assert max(counts.values()) - min(counts.values()) <= 1, kind
        first_words[kind] = len(of_kind)
    assert set(first_words.values()) == {300}
    best: Counter[str] = Counter()  # how far the most frequent answer to each question goes
    by_question: dict[str, Counter[str]] = {}
    for row, reply in zip(asked.question, replies, strict=True):
        by_question.setdefault(text(row), Counter())[reply] += 1
    for counts in by_question.values():
        best["right"] += max(counts.values())
    assert best["right"] / 1500 < 0.55  # of a few questions a sentence, so by luck above 0.3


@pytest.mark.xdist_group("questions")
def test_the_answer_is_what_the_picture_shows(asked: Questions) -> None:
    """By another way: the board is read back from the colours on the image."""
    hues = torch.tensor([[1, 0, 0], [0.05, 0.2, 1], [1, 0.9, 0], [0, 1, 0.15]])
    for i in range(0, 300):
        kind = list(ANSWERS)[int(asked.kind[i])]
        if kind not in ("colour", "hops"):
            continue
        pixels = asked.image[i].float() / 255
        cells = {}
        for cell in range(9):
            y, x = (round(64 / 3 * (at + 0.5)) for at in divmod(cell, 3))
            inside = asked.evidence[i, y - 7 : y + 8, x - 7 : x + 8]
            if inside.sum() > 40:
                colour = pixels[:, y - 7 : y + 8, x - 7 : x + 8][:, inside].mean(1)
                cells[cell] = COLOUR_NAMES[int((hues - colour).square().sum(1).argmin())]
        assert len(cells) == (1 if kind == "colour" else 2)
        left = min(cells)
        assert cells[left] == REPLIES.symbols[int(asked.answer[i])], text(asked.question[i])


FULL = np.array([0, 4 + 1, 2, -1, 3 * 4 + 1, *[-1] * 4])


def test_questions_on_a_board() -> None:
    star, disk = SHAPE_NAMES.index("star"), SHAPE_NAMES.index("disk")
    red, blue = COLOUR_NAMES.index("red"), COLOUR_NAMES.index("blue")
    k = len(COLOUR_NAMES)
    board = np.array([star * k + red, disk * k + blue, -1, *[-1] * 6])
    said = {kind: {one.question: one.answer for one in ask(board)} for kind, ask in ASK.items()}
    assert said["colour"] == {"what colour is the star": "red", "what colour is the disk": "blue"}
    assert said["shape"]["what shape is the blue one"] == "disk"
    assert said["count"]["how many red ones are there"] == "one"
    assert said["count"]["how many green ones are there"] == "none"
    assert said["count"]["how many star ones are there"] == "one"
    assert said["left"]["is there a star left of the disk"] == "yes"
    assert said["left"]["is there a cross left of the disk"] == "no"
    assert said["hops"] == {"what colour is the one left of the disk": "red"}


@pytest.mark.xdist_group("questions")
def test_evidence_and_the_words_that_matter(asked: Questions) -> None:
    for i in range(0, 50):
        kind = list(ANSWERS)[int(asked.kind[i])]
        words = [w for w, m in zip(text(asked.question[i]).split(), asked.words[i].tolist(), strict=False) if m]  # fmt: skip
        assert words
        assert not set(words) & {"is", "the", "a", "there"}
        if kind != "count":
            assert asked.evidence[i].any()


@pytest.mark.xdist_group("questions")
def test_further_questions_about_a_board(asked: Questions) -> None:
    several = PlantedQuestions(train=1500, val=20, test=1, asked=4)
    assert len(several.examples("val").question) == 20
    found = several.examples("train")
    assert torch.equal(found.image, asked.image)
    grouped = Questions(found.image, *(part.unflatten(0, (1500, 4)) for part in found[1:]))
    assert torch.equal(grouped.answer[:, 0], asked.answer)
    assert torch.equal(grouped.kind[:, 0], asked.kind)
    once, starts = 0, {k: next(ask(FULL)).question.split()[:2] for k, ask in ASK.items()}
    for i in range(300):
        said = [text(row) for row in grouped.question[i]]
        once += len(set(said)) == 4
        for question, kind in zip(said, grouped.kind[i].tolist(), strict=True):
            assert question.split()[:2] == starts[list(ANSWERS)[kind]]
    assert once > 290
    by_question: dict[tuple[int, str], set[int]] = {}  # asked again, the answer is the same
    for i in range(1500):
        for row, answer in zip(grouped.question[i], grouped.answer[i].tolist(), strict=True):
            by_question.setdefault((i, text(row)), set()).add(answer)
    assert all(len(answers) == 1 for answers in by_question.values())
    where = list(ANSWERS).index("count")
    share = (grouped.kind == where).float().mean()
    assert 0.15 < share < 0.25


def test_a_board_with_little_to_ask_is_asked_again() -> None:
    source = PlantedQuestions(train=30, val=1, test=1, kinds=["hops"], asked=20)
    questions = source.examples("train").question.unflatten(0, (30, 20))
    for rows in questions:
        said = [text(row) for row in rows]
        assert len(set(said)) < 20
        assert set(said[1:]) <= set(said)


def test_objects_that_do_not_lean_stand_upright() -> None:
    items, one = np.arange(5), torch.ones(5)
    scene = Scene(items, (32, 32), (0, 0), 4, lean=0.0)
    square = torch.full((5,), SHAPE_NAMES.index("square"))
    scene.put(1, one > 0, 16 * one, 16 * one, 12 * one, square, square * 0)
    expected = torch.zeros(32, 32, dtype=torch.uint8)
    expected[10:22, 10:22] = 1
    assert (scene.owner == expected).all()


def test_blind_images_are_all_alike_and_only_the_kinds_asked_for_come() -> None:
    source = PlantedQuestions(train=20, val=1, test=1, kinds=["hops"], blind=True)
    questions = source.examples("train")
    assert questions.image.unique().tolist() == [102]
    assert all(text(row).startswith("what colour is the one left") for row in questions.question)
    assert source.about["kinds"] == ["hops"]


def test_a_batch_has_all_questions_about_its_images() -> None:
    source = PlantedQuestions(train=6, val=1, test=1, asked=3)
    examples = source.examples("train")
    batch = ExampleBatches(examples, InOrder(6, 2), source.preprocess).batch(np.array([4, 1]))
    rows = [12, 13, 14, 3, 4, 5]
    assert batch.image.shape[0] == 2
    assert torch.equal(batch.answer, examples.answer[rows])
    assert torch.equal(batch.evidence, examples.evidence[rows])
    assert torch.equal(batch.question, examples.question[rows][:, : batch.question.shape[1]])


def test_batches_of_questions_are_normalised_and_cut() -> None:
    source = PlantedQuestions(train=12, val=1, test=1, kinds=["colour"])
    batch = ExampleBatches(source.examples("train"), InOrder(12, 4), source.preprocess).batch(
        np.arange(4)
    )
    assert batch.image.dtype == torch.float32
    assert batch.image.abs().max() < 3
    assert batch.question.shape == (4, 5)


def test_bad_options() -> None:
    with pytest.raises(ValueError, match="most must be from 1 to 64 objects, got 0"):
        PlantedStrings(most=0)
    with pytest.raises(ValueError, match="kinds must be some of colour, shape"):
        PlantedQuestions(kinds=["weather"])
    with pytest.raises(ValueError, match="asked must be at least 1 question per image, got 0"):
        PlantedQuestions(asked=0)
