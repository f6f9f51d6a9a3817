"""Answers from an image and a question: every way of looking, padding, looks, rebuilding."""

from functools import partial
from typing import Any

import pytest
import torch

from vision_attn import attention as att
from vision_attn.models import build, describe
from vision_attn.sequences import ConvEncoder, QuestionAnswerer, RecurrentEncoder

COATTENTIONS = [
    att.AlternatingCoAttention,
    att.InteractiveAttention,
    att.ParallelCoAttention,
    att.MaxPoolCoAttention,
    att.AttentionOverAttention,
]
HOPS = partial(att.MemoryHops, hops=3, update=att.GRUUpdate)
WAYS: dict[str, dict[str, Any]] = {
    **{make.__name__: {"coattention": [make]} for make in COATTENTIONS},
    "ensemble": {"coattention": COATTENTIONS[:3]},
    "hops": {"hops": HOPS},
    "both": {"coattention": COATTENTIONS[2:3], "hops": HOPS},
    "neither": {},
}


def network(way: str) -> QuestionAnswerer:
    encoders = partial(ConvEncoder, widths=(4, 6)), partial(RecurrentEncoder, symbols=17)
    return QuestionAnswerer(7, *encoders, dim=12, **WAYS[way]).eval()


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    question = torch.randint(3, 17, (2, 11))
    question[1, 5:] = 0
    return torch.randn(2, 3, 12, 20), question


@pytest.mark.parametrize("way", WAYS)
def test_every_way_answers_learns_and_is_rebuilt(way: str) -> None:
    answerer, (image, question) = network(way), inputs()
    logits = answerer(image, question)
    assert logits.shape == (2, 7)
    torch.testing.assert_close(answerer(image[1:], question[1:, :5]), logits[1:])
    again = build(describe(answerer))
    again.load_state_dict(answerer.state_dict())
    torch.testing.assert_close(again.eval()(image, question), logits)
    answerer.train()(image, question).square().sum().backward()
    assert answerer.question_encoder.embed.weight.grad.any()
    assert answerer.image_encoder.proj.weight.grad.any()


@pytest.mark.parametrize(
    ("way", "words", "maps"),
    [
        ("ParallelCoAttention", 1, 1),
        ("ensemble", 3, 3),
        ("hops", 0, 3),
        ("both", 1, 4),
        ("neither", 0, 0),
    ],
)
def test_looks(way: str, words: int, maps: int) -> None:
    looks = network(way).looks(*inputs())
    assert looks.words.shape == (2, words, 11)
    assert looks.maps.shape == (2, maps, 3, 5)
    torch.testing.assert_close(looks.words.sum(2), torch.ones(2, words))
    torch.testing.assert_close(looks.maps.sum((2, 3)), torch.ones(2, maps))
    assert (looks.words[1, :, 5:] == 0).all()


def test_the_last_hop_is_what_the_memory_looks_at_last() -> None:
    answerer, (image, question) = network("hops"), inputs()
    words, seen = answerer.question_encoder(question), answerer.image_encoder(image)
    assert answerer.hops is not None
    assert answerer.query is not None
    weights = answerer.hops.weights(answerer.query(words.summary)[:, None], seen.keys)
    maps = answerer.looks(image, question).maps
    assert maps[1, 2, 2, 4] == weights[1, 2, 0, 4 * 3 + 2]


def test_bad_questions() -> None:
    image, question = inputs()
    with pytest.raises(ValueError, match="at least one symbol"):
        network("hops")(image, torch.zeros_like(question))
    with pytest.raises(ValueError, match="expected numbers from 0 to 16, got 17"):
        network("hops")(image, question.clamp(min=17))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("way", ["ParallelCoAttention", "both", "hops", "neither"])
def test_several_questions_about_an_image_are_answered_as_one_by_one(
    way: str, dropout: float
) -> None:
    answerer = network(way).double()
    answerer.question_encoder.dropout.p = dropout  # of which each question has its own in training
    image, question = torch.randn(2, 3, 12, 20).double(), torch.randint(3, 17, (6, 11))
    question[4] = question[1]
    question[2:4, 7:] = 0
    repeated = image.repeat_interleave(3, 0)
    answers, one_by_one = answerer(image, question), answerer(repeated, question)
    torch.testing.assert_close(answers, one_by_one)
    found, expected = answerer.looks(image, question), answerer.looks(repeated, question)
    torch.testing.assert_close(found.maps, expected.maps)
    torch.testing.assert_close(found.words, expected.words)
    upstream = torch.randn_like(answers)
    pairs = zip(
        torch.autograd.grad(
            (answers * upstream).sum(), [*answerer.parameters()], materialize_grads=True
        ),
        torch.autograd.grad(
            (one_by_one * upstream).sum(), [*answerer.parameters()], materialize_grads=True
        ),
        strict=True,
    )
    for mine, other in pairs:
        torch.testing.assert_close(mine, other)
    reads = answerer.question_encoder.embed.register_forward_hook(
        lambda _module, args, _out: rows.append(len(args[0]))
    )
    rows: list[int] = []
    answerer(image, question)
    answerer.train()(image, question)
    reads.remove()
    assert rows == [5, 6 if dropout else 5]


def test_unequally_many_questions_about_images() -> None:
    with pytest.raises(ValueError, match="got 5 questions about 2 images"):
        network("hops")(torch.randn(2, 3, 12, 20), torch.randint(3, 17, (5, 11)))
