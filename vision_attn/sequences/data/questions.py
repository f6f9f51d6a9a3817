"""Planted questions: an image of objects on a 3 x 3 board, and a question about it.

Axes: n examples, i words, h height, w width, cell: of the board, row by row.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vision_attn.data.draws import Items, bits, uniforms
from vision_attn.data.planted import CHUNK
from vision_attn.data.preprocess import Preprocess
from vision_attn.sequences.data.objects import COLOUR_NAMES, SHAPE_NAMES, Scene
from vision_attn.sequences.data.pairs import SPECIAL, ExampleSource, Split, Vocabulary

__all__ = ["REPLIES", "WORDS", "PlantedQuestions", "Questions"]

SIZE, BOARD = 64, 3
SCALE = 11.5, 13.0  # root of an object's area, in pixels
LEAN = 1 / 12  # of a turn: what a few thousand questions about shapes can teach
OCCUPIED = 0.6  # share of the cells
COUNTS = ["none", "one", "two", "three"]
ANSWERS = {
    "colour": COLOUR_NAMES,  # what colour is the star
    "shape": SHAPE_NAMES,  # what shape is the red one
    "count": COUNTS,  # how many red ones are there
    "left": ["yes", "no"],  # is there a star left of the cross
    "hops": COLOUR_NAMES,  # what colour is the one left of the cross
}
PLAIN = "what colour shape is the one how many ones are there a left of"
WORDS = Vocabulary([*PLAIN.split(), *SHAPE_NAMES, *COLOUR_NAMES])
REPLIES = Vocabulary(COLOUR_NAMES + SHAPE_NAMES + COUNTS + ["yes", "no"])


class Questions(NamedTuple):
    """Images, questions about them, and the answers.

    Where there are m questions about each image, all but the images are m n, image by image.

    Attributes:
        image: (n 3 h w).
        question: Its words, (n i).
        answer: (n), from 0.
        kind: Of the question, (n).
        evidence: The pixels of the objects that the answer rests on, (n h w).
        words: Those of the question that matter, (n i).

    Examples:
        >>> from vision_attn.sequences import PlantedQuestions
        >>> questions = PlantedQuestions(train=1, val=1, test=2).examples("test")
        >>> questions.image.shape[0], questions.answer.shape
        (2, torch.Size([2]))
    """

    image: Tensor
    question: Tensor
    answer: Tensor
    kind: Tensor
    evidence: Tensor
    words: Tensor


class Answered(NamedTuple):
    """A question in words, its answer, the cells of its evidence and the words that matter."""

    question: str
    answer: str
    cells: tuple[int, ...]
    words: tuple[str, ...]


class PlantedQuestions(ExampleSource):
    """Boards of coloured shapes and questions about them, of five kinds (see `ANSWERS`).

    Every answer to a kind of question is as frequent as every other, and no word of the question
    tells which it is. `hops` cannot be answered in one look: what is asked about is found by what
    stands beside it. Example i is a function of (seed, split, i), the kinds and asked.

    Args:
        train: How many training images.
        val: How many validation images.
        test: How many test images.
        kinds: Which kinds to ask; None: all.
        blind: Whether all images are the same grey, to see how far the question alone goes.
        asked: Questions about each training image. Those after the first are what the same board
            has to offer, not quite balanced, and repeat where it offers no more.
        seed: Another seed, other examples.

    Raises:
        ValueError: A number is below 1, or a kind unknown.

    Examples:
        >>> from vision_attn.sequences import PlantedQuestions
        >>> source = PlantedQuestions(train=1, val=1, test=2)
        >>> questions = source.examples("test")
        >>> words = source.vocabularies["question"].decode(questions.question)
        >>> len(words)
        2
    """

    def __init__(
        self,
        train: int = 30_000,
        val: int = 1_000,
        test: int = 2_000,
        kinds: list[str] | None = None,
        blind: bool = False,
        asked: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__(train, val, test, seed)
        if asked < 1:
            raise ValueError(f"asked must be at least 1 question per image, got {asked}")
        self.kinds = list(ANSWERS) if kinds is None else kinds
        unknown = set(self.kinds) - set(ANSWERS)
        if unknown or not self.kinds:
            raise ValueError(f"kinds must be some of {', '.join(ANSWERS)}, got {self.kinds}")
        self.blind = blind
        self.asked = asked

    @property
    def vocabularies(self) -> dict[str, Vocabulary]:
        return {"question": WORDS, "answer": REPLIES}

    @property
    def preprocess(self) -> Preprocess:
        return Preprocess((SIZE, SIZE), (0.4, 0.4, 0.4), (0.25, 0.25, 0.25))

    @property
    def about(self) -> dict[str, Any]:
        return {**super().about, "kinds": self.kinds}

    def examples(self, split: Split) -> Questions:
        count, asked = self.counts[split], self.asked if split == "train" else 1
        parts = [
            self.paint(np.arange(first, min(first + CHUNK, count)), self.key(split), asked)
            for first in range(0, count, CHUNK)
        ]
        longest = max(part.question.size(1) for part in parts)

        def joined(name: str) -> Tensor:
            tensors = [getattr(part, name) for part in parts]
            if name in ("question", "words"):
                tensors = [F.pad(x, (0, longest - x.size(1))) for x in tensors]
            return torch.cat(tensors)

        return Questions(*map(joined, Questions._fields))

    def paint(self, items: Items, key: tuple[int, int], asked: int = 1) -> Questions:
        """Paint images, with questions about each.

        Args:
            items: The images' numbers in their split.
            key: The split's key of random numbers.
            asked: How many questions about each.
        """
        boards, questions = self._scenes(items, key, asked)
        n, cells = len(items), BOARD**2
        board = torch.from_numpy(boards)  # n cell: -1 empty, else shape * colours + colour
        scene = Scene(items, (SIZE, SIZE), key, 4 * cells, LEAN)
        free = uniforms((*key, 2), items, 3 * cells).view(n, cells, 3)
        scale = SCALE[0] + (SCALE[1] - SCALE[0]) * free[..., 0]
        side = SIZE / BOARD
        for cell in range(cells):
            y, x = (side * (at + 0.5) for at in divmod(cell, BOARD))
            kind = board[:, cell].clamp(min=0)
            scene.put(
                cell + 1,
                board[:, cell] >= 0,
                y + 2 * (free[:, cell, 1] - 0.5),
                x + 2 * (free[:, cell, 2] - 0.5),
                scale[:, cell],
                kind // len(COLOUR_NAMES),
                kind % len(COLOUR_NAMES),
            )
        sentences = [one.question.split() for _, one in questions]
        question = WORDS.encode(sentences)
        words = torch.zeros_like(question, dtype=torch.bool)
        evidence = torch.zeros_like(scene.owner, dtype=torch.bool).repeat_interleave(asked, 0)
        for i, (_, one) in enumerate(questions):
            words[i, [j for j, word in enumerate(sentences[i]) if word in one.words]] = True
            for cell in one.cells:
                evidence[i] |= scene.owner[i // asked] == cell + 1
        answer = REPLIES.encode([[one.answer] for _, one in questions])[:, 0] - SPECIAL
        kind = torch.tensor([kind for kind, _ in questions], dtype=torch.long, device="cpu")
        images = scene.images()
        images = torch.full_like(images, 102) if self.blind else images
        return Questions(images, question, answer, kind, evidence, words)

    def _scenes(
        self, items: Items, key: tuple[int, int], asked: int
    ) -> tuple[np.ndarray, list[tuple[int, Answered]]]:
        """Boards, and questions about each with their kinds. Kind and answer of the first come
        before the board, which is one where some question of that kind has that answer."""
        boards = np.full((len(items), BOARD**2), -1)
        questions: dict[int, list[tuple[int, Answered]]] = {}
        attempt = 0
        while len(questions) < len(items):
            left = np.array([i for i in range(len(items)) if i not in questions])
            words = bits((*key, 3, attempt), items[left], 2 * BOARD**2 + 1) >> np.uint64(20)
            for i, row in zip(left.tolist(), words.astype(np.int64), strict=True):
                board, item, chance = self._board(row), int(items[i]), int(row[-1])
                kind = item % len(self.kinds)
                answers = ANSWERS[self.kinds[kind]]
                wanted = answers[item // len(self.kinds) % len(answers)]
                offered = ASK[self.kinds[kind]](board)
                if fitting := [one for one in offered if one.answer == wanted]:
                    boards[i] = board
                    questions[i] = [(kind, fitting[chance % len(fitting)])]
                    self._ask_on(questions[i], board, asked, chance)
            attempt += 1
        return boards, [one for i in range(len(items)) for one in questions[i]]

    def _ask_on(
        self,
        questions: list[tuple[int, Answered]],
        board: np.ndarray,
        asked: int,
        chance: int,
    ) -> None:
        """Further questions about a board: of the kinds in turn, of no answer more than need be."""
        offered = [list(ASK[kind](board)) for kind in self.kinds] if asked > 1 else []
        first = questions[0][0]
        for number in range(1, asked):
            for step in range(len(offered)):
                kind = (first + number + step) % len(offered)
                new = [one for one in offered[kind] if (kind, one) not in questions]
                if new:
                    answers = sorted({one.answer for one in new})
                    wanted = answers[(chance + number) % len(answers)]
                    fitting = [one for one in new if one.answer == wanted]
                    questions.append((kind, fitting[chance // 7 % len(fitting)]))
                    break
            else:
                questions.append(questions[number % len(questions)])

    @staticmethod
    def _board(words: np.ndarray) -> np.ndarray:
        filled, kinds = words[: BOARD**2], words[BOARD**2 : -1]
        return np.where(
            filled % 1000 < 1000 * OCCUPIED, kinds % (len(SHAPE_NAMES) * len(COLOUR_NAMES)), -1
        )


def shapes_and_colours(board: np.ndarray) -> tuple[list[str | None], list[str | None]]:
    """The names of what is in each cell, None where it is empty."""
    k = len(COLOUR_NAMES)
    shapes = [SHAPE_NAMES[kind // k] if kind >= 0 else None for kind in board.tolist()]
    colours = [COLOUR_NAMES[kind % k] if kind >= 0 else None for kind in board.tolist()]
    return shapes, colours


def ask_colour(board: np.ndarray) -> Iterator[Answered]:
    shapes, colours = shapes_and_colours(board)
    for cell, (shape, colour) in enumerate(zip(shapes, colours, strict=True)):
        if shape and colour and shapes.count(shape) == 1:
            yield Answered(f"what colour is the {shape}", colour, (cell,), ("colour", shape))


def ask_shape(board: np.ndarray) -> Iterator[Answered]:
    shapes, colours = shapes_and_colours(board)
    for cell, (shape, colour) in enumerate(zip(shapes, colours, strict=True)):
        if shape and colour and colours.count(colour) == 1:
            yield Answered(f"what shape is the {colour} one", shape, (cell,), ("shape", colour))


def ask_count(board: np.ndarray) -> Iterator[Answered]:
    """Of colours and of shapes."""
    shapes, colours = shapes_and_colours(board)
    for names, known in ((colours, COLOUR_NAMES), (shapes, SHAPE_NAMES)):
        for name in known:
            cells = tuple(cell for cell, own in enumerate(names) if own == name)
            if len(cells) < len(COUNTS):
                question = f"how many {name} ones are there"
                yield Answered(question, COUNTS[len(cells)], cells, ("how", "many", name))


def ask_left(board: np.ndarray) -> Iterator[Answered]:
    """Of every other shape, so that yes and no are asked in the same words."""
    shapes, _ = shapes_and_colours(board)
    for cell, shape in enumerate(shapes):
        if shape and shapes.count(shape) == 1 and cell % BOARD:
            for other in SHAPE_NAMES:
                if other != shape:
                    cells = (cell, cell - 1) if shapes[cell - 1] else (cell,)
                    answer = "yes" if shapes[cell - 1] == other else "no"
                    question = f"is there a {other} left of the {shape}"
                    yield Answered(question, answer, cells, (other, "left", shape))


def ask_hops(board: np.ndarray) -> Iterator[Answered]:
    shapes, colours = shapes_and_colours(board)
    for cell, shape in enumerate(shapes):
        if shape and shapes.count(shape) == 1 and cell % BOARD:
            colour = colours[cell - 1]
            if colour:
                question = f"what colour is the one left of the {shape}"
                yield Answered(question, colour, (cell, cell - 1), ("colour", "left", shape))


ASK = {
    "colour": ask_colour,
    "shape": ask_shape,
    "count": ask_count,
    "left": ask_left,
    "hops": ask_hops,
}
