"""The data of a run on sequences or questions, for Lightning."""

from typing import Any, NamedTuple

from lightning.pytorch import LightningDataModule

from vision_attn.data.sources import DataError
from vision_attn.data.tensors import InOrder, Shuffled
from vision_attn.sequences.data.pairs import ExampleBatches, ExampleSource, Split

__all__ = ["ExampleData", "SequenceSplits"]


class SequenceSplits(NamedTuple):
    """The examples of a run: for training, validation and test.

    Examples:
        >>> from vision_attn.sequences.data.module import SequenceSplits
        >>> SequenceSplits(train=[1, 2], val=[3], test=[4]).val
        [3]
    """

    train: Any
    val: Any
    test: Any


class ExampleData(LightningDataModule):
    """Batches of the named tuples that a source makes, in an order that is a function of `seed`.

    Args:
        source: What makes the examples.
        batch_size: Examples a process.
        seed: Of the order.

    Raises:
        ValueError: `batch_size` is below 1.

    Examples:
        >>> from vision_attn.sequences import Dates, ExampleData
        >>> data = ExampleData(Dates(train=8, val=2, test=2), batch_size=4)
        >>> pairs = next(iter(data.in_order("val")))
        >>> len(pairs.source), len(pairs.target)
        (2, 2)
    """

    def __init__(self, source: ExampleSource, batch_size: int = 64, seed: int = 0) -> None:
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.source = source
        self.batch_size = batch_size
        self.seed = seed
        self._examples: dict[Split, Any] = {}
        self._batches: ExampleBatches | None = None
        self._resume: dict[str, int] | None = None

    def examples(self, split: Split) -> Any:
        """Return all examples of a split, made on first use."""
        if split not in self._examples:
            self._examples[split] = self.source.examples(split)
        return self._examples[split]

    @property
    def splits(self) -> SequenceSplits:
        return SequenceSplits(self.examples("train"), self.examples("val"), self.examples("test"))

    @property
    def about(self) -> dict[str, Any]:
        """Plain values for a checkpoint: vocabularies and preprocessing."""
        return self.source.about

    def train_dataloader(self) -> ExampleBatches:
        rank, world = self._place()
        examples = self.examples("train")
        order = Shuffled(len(examples[0]), self.batch_size, rank, world, self.seed)
        self._batches = ExampleBatches(examples, order, self.source.preprocess)
        if self._resume:
            self._batches.load_state_dict(self._resume)
            self._resume = None
        return self._batches

    def val_dataloader(self) -> ExampleBatches:
        return self.in_order("val")

    def test_dataloader(self) -> ExampleBatches:
        return self.in_order("test")

    def in_order(self, split: Split) -> ExampleBatches:
        examples = self.examples(split)
        order = InOrder(len(examples[0]), self.batch_size, *self._place())
        return ExampleBatches(examples, order, self.source.preprocess)

    def _place(self) -> tuple[int, int]:
        """This process's number and how many there are."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def state_dict(self) -> dict[str, Any]:
        return {**self.about, "place": self._batches.state_dict() if self._batches else None}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict.get("vocabularies") != self.about["vocabularies"]:
            raise DataError("the checkpoint was trained on other symbols: use its own data source")
        self._resume = state_dict["place"]
