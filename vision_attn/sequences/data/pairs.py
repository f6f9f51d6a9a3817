"""Sequences of symbols in batches: vocabularies, padding, and examples that have them.

A row of symbols is whole numbers: PAD after its end, STOP as its last symbol where it is a target,
and 3, 4, ... for the symbols of a vocabulary.

Axes: n examples, s or t symbols of a row, b batch, h height, w width.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from vision_attn.data.preprocess import Preprocess
from vision_attn.data.sources import DataError
from vision_attn.data.tensors import InOrder
from vision_attn.errors import quoted
from vision_attn.types import PAD, STOP

__all__ = ["ExampleBatches", "ExampleSource", "Pairs", "Vocabulary"]

Split = Literal["train", "val", "test"]
SPECIAL = 3  # PAD, START and STOP come before the symbols


class Vocabulary:
    """The symbols of a language: characters, words, or the classes of objects.

    Args:
        symbols: Each once; the first is number 3, after PAD, START and STOP.

    Raises:
        ValueError: A symbol occurs twice.

    Examples:
        >>> from vision_attn.sequences import Vocabulary
        >>> letters = Vocabulary("abc")
        >>> rows = letters.encode(["ab", "c"], stop=True)
        >>> rows  # 0 pads, 2 stops
        tensor([[3, 4, 2],
                [5, 2, 0]])
        >>> letters.decode(rows)
        [['a', 'b'], ['c']]
    """

    def __init__(self, symbols: Iterable[str]) -> None:
        self.symbols = list(symbols)
        self._numbers = {symbol: i for i, symbol in enumerate(self.symbols, SPECIAL)}
        if len(self._numbers) != len(self.symbols):
            raise ValueError(f"a symbol occurs twice in the vocabulary {self.symbols}")

    def __len__(self) -> int:
        return SPECIAL + len(self.symbols)

    def encode(self, rows: Sequence[Sequence[str]], stop: bool = False) -> Int[Tensor, "n s"]:
        """Encode each row's symbols, then STOP if requested, then PAD up to the longest row.

        Args:
            rows: The symbols of each row.
            stop: Whether each row ends with STOP, as a target does.

        Returns:
            The numbers, (n s).

        Raises:
            DataError: A row is empty, or has a symbol that the vocabulary does not have.
        """
        end = [STOP] if stop else []
        numbers = [[*self._row(row), *end] for row in rows]
        length = max(map(len, numbers), default=0)
        padded = [row + [PAD] * (length - len(row)) for row in numbers]
        return torch.tensor(padded, dtype=torch.long, device="cpu").view(len(rows), length)

    def _row(self, row: Sequence[str]) -> list[int]:
        if len(row) == 0:
            raise DataError("expected at least one symbol, got an empty source")
        unknown = sorted(set(row) - self._numbers.keys())
        if unknown:
            raise DataError(
                f"unknown symbol {quoted(unknown[0])} in {quoted(row)}: expected only "
                f"{' '.join(map(repr, self.symbols[:80]))}"
            )
        return [self._numbers[symbol] for symbol in row]

    def decode(self, rows: Int[Tensor, "n s"]) -> list[list[str]]:
        """The symbols of each row up to its first STOP or PAD.

        Args:
            rows: Numbers, (n s).
        """
        decoded = []
        for row in rows.tolist():
            end = next((i for i, number in enumerate(row) if number in (PAD, STOP)), len(row))
            decoded.append([self.symbols[i - SPECIAL] if i >= SPECIAL else "?" for i in row[:end]])
        return decoded


class Pairs(NamedTuple):
    """Sources and their targets.

    Attributes:
        source: Symbols, (n s), or images, (n 3 h w).
        target: Symbols, (n t).
        objects: Of images, which object a pixel belongs to, (n h w), counted from 1 in the order of
            the target; 0 is the ground.

    Examples:
        >>> import torch
        >>> from vision_attn.sequences import Pairs
        >>> Pairs(source=torch.tensor([[3, 2]]), target=torch.tensor([[4, 2]])).objects is None
        True
    """

    source: Tensor
    target: Tensor
    objects: Tensor | None = None


class ExampleSource(ABC):
    """Examples that the package makes itself: what a config names under `data.source`.

    Args:
        train: How many training examples.
        val: How many validation examples.
        test: How many test examples.
        seed: Another seed, other examples.

    Raises:
        ValueError: A number of examples is below 1.

    Examples:
        >>> from vision_attn.sequences import ExampleSource
        >>> sorted(ExampleSource.__abstractmethods__)  # what a subclass has to say
        ['examples', 'vocabularies']
    """

    def __init__(self, train: int, val: int, test: int, seed: int) -> None:
        self.counts: dict[Split, int] = {"train": train, "val": val, "test": test}
        if min(self.counts.values()) < 1:
            raise ValueError(f"train, val and test must be at least 1, got {self.counts}")
        self.seed = seed

    @property
    @abstractmethod
    def vocabularies(self) -> dict[str, Vocabulary]:
        """The vocabulary of each field that holds symbols."""

    @property
    def preprocess(self) -> Preprocess | None:
        """What makes a photo into what the batches hold; None where no image comes in."""
        return None

    @property
    def about(self) -> dict[str, Any]:
        """Plain values for a checkpoint: what it takes to use a network on new inputs."""
        preprocess = self.preprocess
        return {
            "vocabularies": {name: v.symbols for name, v in self.vocabularies.items()},
            "preprocess": None if preprocess is None else asdict(preprocess),
        }

    @abstractmethod
    def examples(self, split: Split) -> Any:
        """A named tuple of tensors, one row an example."""

    def key(self, split: Split) -> tuple[int, int]:
        """Of the random numbers of a split."""
        return self.seed, ("train", "val", "test").index(split)


class ExampleBatches:
    """The batches of an epoch. `state_dict` holds the place in it, `load_state_dict` returns there.

    Args:
        examples: A named tuple of tensors, one row an example.
        order: Which examples each batch has.
        preprocess: What normalises images; None where there are none.

    Examples:
        >>> from vision_attn.sequences import Dates
        >>> from vision_attn.sequences.data.pairs import ExampleBatches
        >>> from vision_attn.data.tensors import InOrder
        >>> dates = Dates(train=1, val=5, test=1)
        >>> batches = ExampleBatches(dates.examples("val"), InOrder(5, batch_size=2), None)
        >>> [len(pairs.source) for pairs in batches]
        [2, 2, 1]
    """

    batch_sampler = None  # Lightning asks for it where there is a sampler

    def __init__(self, examples: Any, order: InOrder, preprocess: Preprocess | None) -> None:
        self.examples = examples
        self.sampler = order
        self.preprocess = preprocess
        self._given = 0
        self._resume: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        epoch, first = self._resume or (0, 0)
        self._resume = None
        self._given = first if epoch == self.sampler.epoch else 0
        for items in self.sampler.batches(self._given):
            self._given += 1
            yield self.batch(items)

    def batch(self, items: np.ndarray) -> Any:
        """Make the batch of these examples: images normalised, rows cut to the longest.

        Of a part with several rows an example, all of them.
        """
        rows, n = torch.from_numpy(items), len(self.examples[0])
        parts = [
            None if part is None else self._ready(part.unflatten(0, (n, -1))[rows].flatten(0, 1))
            for part in self.examples
        ]
        return type(self.examples)(*parts)

    def _ready(self, part: Tensor) -> Tensor:
        if part.dtype == torch.uint8 and part.ndim == 4 and self.preprocess is not None:
            numbers = [self.preprocess.mean, self.preprocess.std]
            colours = torch.tensor(numbers, dtype=torch.float32, device="cpu")
            mean, std = colours.view(2, 3, 1, 1)
            return part.float().mul_(1 / (std * 255)).sub_(mean / std)
        if part.dtype == torch.long and part.ndim == 2:
            return part[:, : int((part != PAD).sum(1).max())]
        return part

    def state_dict(self) -> dict[str, int]:
        """The place in the epoch, as plain values."""
        return {"epoch": self.sampler.epoch, "batches": self._given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from this place, a `state_dict`."""
        self._resume = state["epoch"], state["batches"]
