"""Networks that write a sequence symbol by symbol, and two ways to let them write.

Axes: b batch, t steps of the target, n tokens of the memory, k symbols, w hypotheses of a beam.
"""

from abc import ABC, abstractmethod
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from vision_attn.inference import infer
from vision_attn.models.checkpoint import Rebuildable
from vision_attn.sequences.models.encoders import Encoder
from vision_attn.types import PAD, START, STOP

__all__ = ["SequenceModel", "beam", "greedy"]

Target = Int[Tensor, "b t"]
State = dict[str, Tensor]  # what a decoder knows so far: row i of each tensor is of example i
Written = tuple[Float[Tensor, "b t k"], Float[Tensor, "b t n"], State]


class SequenceModel(Rebuildable, ABC):
    """Base class: a network that writes a target, each symbol predicted from those before it.

    Attributes:
        encoder: From the source to the memory.
        symbols: Size of the target's vocabulary.
        longest: Steps of the longest target, STOP included.

    Examples:
        >>> import torch
        >>> from vision_attn.sequences import Seq2Seq, greedy
        >>> network = Seq2Seq(symbols=7, dim=8, longest=4).eval()
        >>> source, target = torch.tensor([[5, 6, 2]]), torch.tensor([[3, 4, 2]])
        >>> network(source, target).shape  # logits of each symbol
        torch.Size([1, 3, 7])
        >>> network.weights(source, target).shape  # where each step looks
        torch.Size([1, 3, 3])
        >>> greedy(network, source).size(0)
        1
    """

    encoder: Encoder
    symbols: int
    longest: int

    @abstractmethod
    def read(self, source: Tensor) -> State:
        """Encode the source, before the first symbol is written.

        Args:
            source: What the encoder reads.
        """

    @abstractmethod
    def decode(self, state: State, symbols: Target, first: int = 0) -> Written:
        """Predict the symbols that follow these.

        Args:
            state: The source as `read` gives it, or what an earlier call returned.
            symbols: The target's from number `first` on, (b t); START is number 0.
            first: The number of the first of them.

        Returns:
            The logits, the weights over the memory at each step, and the state after them.
        """

    def forward(self, source: Tensor, target: Target) -> Float[Tensor, "b t k"]:
        """Compute the logits of each symbol of the target, given the source and those before it.

        Args:
            source: What the encoder reads.
            target: Symbols, (b t).

        Returns:
            The logits, (b t k).
        """
        return self.decode(self.read(source), self.shifted(target))[0]

    def weights(self, source: Tensor, target: Target) -> Float[Tensor, "b t n"]:
        """The weight of each token of the source's memory as each symbol is written.

        Args:
            source: What the encoder reads.
            target: Symbols, (b t).

        Returns:
            The weights, (b t n).

        Raises:
            ValueError: The network has no attention.
        """
        return self.decode(self.read(source), self.shifted(target))[1]

    def shifted(self, target: Target) -> Target:
        """START, then all but the last: what stands before each symbol of the target."""
        if target.size(1) > self.longest:
            raise ValueError(
                f"expected targets of at most {self.longest} symbols, got {target.size(1)}: build "
                "the network with a larger `longest`"
            )
        return F.pad(target[:, :-1], (1, 0), value=START)


def greedy(network: SequenceModel, source: Tensor) -> Target:
    """Take the most probable symbol at every step, up to STOP, or to the longest target; then PAD.

    In eval mode, and without gradients.

    Args:
        network: A network of sequences.
        source: As the network takes it, of b examples.

    Returns:
        Symbols of each example.
    """
    return infer(partial(_greedy, network), source)


def _greedy(network: SequenceModel, source: Tensor) -> Target:
    state = network.read(source)
    symbols = torch.full((len(source),), START, dtype=torch.long, device=source.device)
    steps: list[Tensor] = []
    for step in range(network.longest):
        logits, _, state = network.decode(state, symbols[:, None], step)
        ended = torch.zeros_like(symbols, dtype=torch.bool) if not steps else is_over(symbols)
        symbols = writable(logits[:, -1]).argmax(1).masked_fill(ended, PAD)
        steps.append(symbols)
        if bool(is_over(symbols).all()):
            break
    return torch.stack(steps, dim=1)


def beam(network: SequenceModel, source: Tensor, width: int = 4) -> Target:
    """Search the most probable of the targets when `width` beginnings are kept at every step.

    Probabilities are those of the whole target, its STOP included. A width of 1 is `greedy`.

    Args:
        network: A network of sequences.
        source: As the network takes it, of b examples.
        width: How many beginnings are kept.

    Returns:
        Symbols of each example, up to STOP; then PAD.
    """
    if width < 1:
        raise ValueError(f"width must be at least 1, got {width}")
    return infer(partial(_beam, network), source, width)


def _beam(network: SequenceModel, source: Tensor, width: int) -> Target:
    b, device = len(source), source.device
    state = {k: v.repeat_interleave(width, dim=0) for k, v in network.read(source).items()}
    symbols = torch.full((b * width,), START, dtype=torch.long, device=device)
    ended = torch.zeros(b * width, dtype=torch.bool, device=device)
    written = torch.empty(b * width, 0, dtype=torch.long, device=device)
    total = torch.full((b, width), -torch.inf, dtype=torch.float32, device=device)
    total[:, 0] = 0  # all hypotheses begin alike: one of them is enough
    start = torch.arange(b, device=device)[:, None] * width
    for step in range(network.longest):
        logits, _, state = network.decode(state, symbols[:, None], step)
        gain = writable(logits[:, -1].float()).log_softmax(1)  # b*w k
        only_pad = F.one_hot(torch.full_like(symbols, PAD), network.symbols).float().log()
        gain = torch.where(ended[:, None], only_pad, gain)
        sums = (total[..., None] + gain.unflatten(0, (b, width))).flatten(1)
        total, best = sums.topk(width, dim=1)
        rows = (start + best // network.symbols).flatten()
        symbols = (best % network.symbols).flatten()
        state = {k: v[rows] for k, v in state.items()}
        written = torch.cat([written[rows], symbols[:, None]], dim=1)
        ended = is_over(symbols)
        if bool(ended.all()):
            break
    best_row = start[:, 0] + total.argmax(1)
    found = written[best_row]
    return found[:, : int((found != PAD).sum(1).max())]


def writable(logits: Float[Tensor, "b k"]) -> Float[Tensor, "b k"]:
    """Without PAD and START, which no target holds."""
    barred = torch.zeros_like(logits[0], dtype=torch.bool)
    barred[[PAD, START]] = True
    return logits.masked_fill(barred, -torch.inf)


def is_over(symbols: Int[Tensor, " b"]) -> Tensor:
    """Mark the symbols after which nothing is written: STOP and PAD."""
    return (symbols == STOP) | (symbols == PAD)
