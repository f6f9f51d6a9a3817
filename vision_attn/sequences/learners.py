"""Learning to write sequences and to answer questions: loss, metrics, optimiser and checkpoint.

Axes: b batch, t steps of the target, n tokens of the memory, h and w of the grid, H and W of the
image, k symbols or answers.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from vision_attn.models.checkpoint import ENTRY, pack
from vision_attn.sequences.models.decoding import SequenceModel, greedy
from vision_attn.sequences.models.encoders import ImageEncoder
from vision_attn.sequences.models.questions import QuestionAnswerer
from vision_attn.training.module import TrainingModule, at_least_float32
from vision_attn.training.schedules import CosineDecay
from vision_attn.types import PAD, STOP

__all__ = ["Learner", "QuestionLearner", "SequenceLearner", "same", "top_cells"]


class Learner(TrainingModule, ABC):
    """A network that learns from the named tuples of a data module: base of the two below.

    The data module's `about` (vocabularies, preprocessing) goes into the checkpoint beside the
    network's description, as plain values. A run raises ValueError where the network was built for
    other vocabularies than the data's.

    Args:
        network: What learns.
        optimizer: Called with the parameter groups (see `parameter_groups`), any torch optimiser.
        schedule: Called with the optimiser and the number of steps of the run; stepped every step.

    Examples:
        >>> from vision_attn.sequences import Learner
        >>> sorted(Learner.__abstractmethods__)  # what a subclass has to say
        ['measure', 'sizes']
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: Callable[[list[dict[str, Any]]], Optimizer] = AdamW,
        schedule: Callable[[Optimizer, int], LRScheduler] = CosineDecay,
    ):
        super().__init__(network, optimizer, schedule)
        self.about: dict[str, Any] = {}

    @abstractmethod
    def measure(self, batch: Any, stage: str) -> dict[str, tuple[Tensor, int]]:
        """Compute the metrics of a batch.

        Args:
            batch: A named tuple of the data module.
            stage: train, val or test.

        Returns:
            name -> (mean, number of things it is the mean of); one of them is `loss`.
        """

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """The number of symbols of each vocabulary that the network was built for."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self._logged(batch, "train")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._logged(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self._logged(batch, "test")

    def _logged(self, batch: Any, stage: str) -> Tensor:
        measured = self.measure(batch, stage)
        for name, (value, count) in measured.items():
            if count and stage == "train":
                self.log_mean(name, value, count)
            elif count:
                shown = f"{stage}/{name}" == self.monitor
                self.log(f"{stage}/{name}", value, prog_bar=shown, batch_size=count, sync_dist=True)
        return self.finite(measured["loss"][0], f"{stage} loss")

    def setup(self, stage: str) -> None:
        data: Any = getattr(self.trainer, "datamodule", None)
        if data is None:
            return
        self.about = data.about
        built, found = self.sizes(), {k: len(v) for k, v in data.source.vocabularies.items()}
        for name in found:
            if built.get(name) != found[name]:
                raise ValueError(
                    f"the network was built for {built.get(name)} symbols of the {name}, the data "
                    f"have {found[name]}: set the network's sizes to those of the data"
                )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add, as plain values, what it takes to use the network without its config."""
        checkpoint[ENTRY] = pack(self.network, self.about)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        about = checkpoint.get("vision_attn", {})
        if "vocabularies" not in about:
            raise ValueError(
                "expected a checkpoint of sequences or questions, got one of another kind"
            )


class SequenceLearner(Learner):
    """A network that learns to write the target of each source; batches are `Pairs`.

    Logged: loss (nats a symbol), token (share of symbols right, given those before them), and,
    outside training, exact (share of targets that greedy writing gets right from end to end). Of
    images with known objects also pointing and touching: the share of steps t where the map's
    largest cell has its middle in object t, and where it covers any of it.

    Examples:
        >>> from functools import partial
        >>> from vision_attn.sequences import RecurrentEncoder, Seq2Seq
        >>> from vision_attn.sequences import SequenceLearner
        >>> network = Seq2Seq(symbols=7, encoder=partial(RecurrentEncoder, symbols=11), dim=8)
        >>> learner = SequenceLearner(network)
        >>> learner.sizes()
        {'target': 7, 'source': 11}
    """

    monitor = "val/exact"
    network: SequenceModel

    def forward(self, source: Tensor) -> Int[Tensor, "b t"]:
        """Write the symbols by greedy decoding.

        Args:
            source: What the network's encoder reads.

        Returns:
            The symbols, (b t).
        """
        return greedy(self.network, source)

    def measure(self, batch: Any, stage: str) -> dict[str, tuple[Tensor, int]]:
        source, target, objects = batch
        logits = at_least_float32(self.network(source, target))
        there = target != PAD
        right = (logits.argmax(-1) == target) & there
        count = int(there.sum())
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD)
        measured = {"loss": (loss, count), "token": (right.sum() / count, count)}
        if stage == "train":
            return measured
        exact = same(greedy(self.network, source), target)
        measured["exact"] = exact.float().mean(), len(target)
        encoder = self.network.encoder
        if objects is not None and isinstance(encoder, ImageEncoder):
            size = (objects.shape[-2], objects.shape[-1])
            maps = encoder.maps(self.network.weights(source, target), size)
            steps = there & (target != STOP)
            for name, found in zip(("pointing", "touching"), top_cells(maps, objects), strict=True):
                measured[name] = found[steps].float().mean(), int(steps.sum())
        return measured

    def sizes(self) -> dict[str, int]:
        reads = getattr(self.network.encoder, "symbols", None)
        return {"target": self.network.symbols} | ({"source": reads} if reads else {})


def same(written: Int[Tensor, "b t"], target: Int[Tensor, "b s"]) -> Bool[Tensor, " b"]:
    """Mark the targets that were written in full, with nothing after them.

    Examples:
        >>> import torch
        >>> from vision_attn.sequences.learners import same
        >>> same(torch.tensor([[5, 2, 0], [5, 6, 2]]), torch.tensor([[5, 2], [5, 2]]))
        tensor([ True, False])
    """
    longest = max(written.size(1), target.size(1))
    written, target = (F.pad(x, (0, longest - x.size(1)), value=PAD) for x in (written, target))
    return (written == target).all(1)


def top_cells(
    maps: Float[Tensor, "b t h w"], objects: Integer[Tensor, "b H W"]
) -> tuple[Bool[Tensor, "b t"], Bool[Tensor, "b t"]]:
    """Mark the steps whose map points at its object.

    Returned: whether the largest cell of map t has its middle in object t + 1, and whether it
    covers any pixel of it.
    """
    (h, w), (height, width) = maps.shape[2:], objects.shape[1:]
    best = maps.flatten(2).argmax(2)
    rows = ((best // w + 0.5) * (height / h)).long()
    columns = ((best % w + 0.5) * (width / w)).long()
    example = torch.arange(len(maps), device=maps.device)[:, None]
    numbers = torch.arange(1, maps.size(1) + 1, device=maps.device)
    shares = F.adaptive_max_pool2d((objects[:, None] == numbers[:, None, None]).float(), (h, w))
    touching = shares.flatten(2).gather(2, best[..., None])[..., 0] > 0
    return objects[example, rows, columns] == numbers, touching


class QuestionLearner(Learner):
    """A network that learns to answer questions about images; batches are `Questions`.

    Logged: loss, top1 and, outside training, the top1 of every kind of question by itself.

    Examples:
        >>> from vision_attn.sequences import QuestionLearner
        >>> QuestionLearner.monitor
        'val/top1'
    """

    monitor = "val/top1"
    network: QuestionAnswerer

    def forward(self, image: Tensor, question: Tensor) -> Float[Tensor, "b k"]:
        return self.network(image, question)

    def measure(self, batch: Any, stage: str) -> dict[str, tuple[Tensor, int]]:
        logits = at_least_float32(self(batch.image, batch.question))
        right = (logits.argmax(1) == batch.answer).float()
        loss = F.cross_entropy(logits, batch.answer)
        measured = {"loss": (loss, len(right)), "top1": (right.mean(), len(right))}
        if stage != "train":
            for number, kind in enumerate(self.about.get("kinds", ())):
                of_kind = right[batch.kind == number]
                measured[f"top1_{kind}"] = of_kind.mean(), len(of_kind)
        return measured

    def sizes(self) -> dict[str, int]:
        return {
            "question": self.network.question_encoder.symbols,
            "answer": self.network.answers + 3,
        }
