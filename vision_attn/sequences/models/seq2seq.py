"""The recurrent encoder-decoder, with attention and without.

Axes: b batch, t steps of the target, n tokens of the memory, d width, k symbols.
"""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention import (
    Additive,
    Attend,
    Global,
    Normalizer,
    Score,
    Softmax,
    Window,
)
from vision_attn.attention.attend import weights_over
from vision_attn.sequences.models.decoding import SequenceModel, State, Target, Written
from vision_attn.sequences.models.encoders import CELLS, Encoder, RecurrentEncoder
from vision_attn.types import PAD

__all__ = ["Seq2Seq", "SourceAttention"]

Steps = Float[Tensor, "b t d"]
Tokens = Float[Tensor, "b n d"]


class SourceAttention(nn.Module):
    """Attention of each step of the target over the source.

    A window goes by positions: step i of the target is position i out of `steps`, and the source
    is as long as it is without its padding.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import Attend, ScaledDot, Softmax
        >>> from vision_attn.sequences.models.seq2seq import SourceAttention
        >>> attention = SourceAttention(Attend(ScaledDot(head_dim=8), Softmax()), steps=4)
        >>> exists = torch.tensor([[True, True, False]])
        >>> weights = attention.weights(torch.randn(1, 4, 8), torch.randn(1, 3, 8), exists)
        >>> weights.shape, weights[..., 2].sum().item()  # nothing goes to padding
        (torch.Size([1, 4, 3]), 0.0)
    """

    def __init__(self, attend: Attend, steps: int):
        super().__init__()
        self.attend = attend
        self.steps = steps

    def weights(
        self, queries: Steps, keys: Tokens, exists: Bool[Tensor, "b n"], first: int = 0
    ) -> Float[Tensor, "b t n"]:
        """Compute the weights of the source's tokens at steps of the target.

        Args:
            queries: The steps, (b t d).
            keys: The source's tokens, (b n d).
            exists: False where there is only padding, (b n).
            first: The number of the first step.

        Returns:
            The weights, (b t n).
        """
        if isinstance(self.attend.window, Global):
            return weights_over(self.attend, queries, keys, exists)
        t, lengths = queries.size(1), exists.sum(1)
        weights = queries.new_zeros(len(queries), t, keys.size(1))
        for length in lengths.unique().tolist():
            rows = lengths == length
            placed = F.pad(queries[rows], (0, 0, first, self.steps - first - t))
            found = weights_over(self.attend, placed, keys[rows, :length])
            found = F.pad(found[:, first : first + t], (0, keys.size(1) - length))
            weights[rows] = found.to(weights.dtype)
        return weights


class Seq2Seq(SequenceModel):
    """Encoder and recurrent decoder with attention over the encoder's memory.

    s_t = RNN(y_(t-1), s_(t-1)); c_t = sum_j a_tj m_j; y_t ~ softmax(W tanh(W_c [c_t; s_t])). Luong
    et al. 2015, section 3; a_t are the weights of s_t over the memory m of the encoder, which ends
    with the vector that s_0 is made of.

    Args:
        symbols: Size of the target's vocabulary.
        encoder: A factory, called as `encoder(dim=dim)`.
        dim: The width of states and tokens.
        longest: Steps of the longest target, STOP included.
        cell: The kind of recurrent network.
        score: A factory; None: no attention, so that the vector that s_0 is made of is all the
            decoder knows of the source, Sutskever et al. 2014.
        normalizer: A factory.
        window: A factory.
        input_feeding: Whether tanh(W_c [c; s]) of the last step is an input of the next, section
            3.3; steps then run one by one in training too.
        dropout: The share set to 0 in training.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import General
        >>> from vision_attn.sequences import Seq2Seq
        >>> network = Seq2Seq(symbols=7, dim=8, longest=4, score=General)
        >>> source, target = torch.tensor([[5, 6, 2]]), torch.tensor([[3, 4, 2]])
        >>> network.weights(source, target).shape  # of each step over the source
        torch.Size([1, 3, 3])
    """

    def __init__(
        self,
        symbols: int,
        encoder: Callable[..., Encoder] = RecurrentEncoder,
        dim: int = 128,
        longest: int = 32,
        cell: Literal["gru", "lstm"] = "gru",
        score: Callable[..., Score] | None = Additive,
        normalizer: Callable[..., Normalizer] = Softmax,
        window: Callable[..., Window] = Global,
        input_feeding: bool = False,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.symbols, self.longest, self.input_feeding = symbols, longest, input_feeding
        self.encoder = encoder(dim=dim)
        self.parts = ("h", "c") if cell == "lstm" else ("h",)  # of the decoder's state
        self.bridge = nn.Linear(dim, dim * len(self.parts))
        self.embed = nn.Embedding(symbols, dim, padding_idx=PAD)
        self.dropout = nn.Dropout(dropout)
        self.rnn = CELLS[cell](dim * (1 + input_feeding), dim, batch_first=True)
        self.attention = None
        if score is not None:
            attend = Attend(score(head_dim=dim), normalizer(), window(head_dim=dim))
            self.attention = SourceAttention(attend, longest)
        self.combine = nn.Linear(dim if score is None else 2 * dim, dim)
        self.head = nn.Linear(dim, symbols)

    def read(self, source: Tensor) -> State:
        memory = self.encoder(source)
        begin = self.bridge(memory.summary).tanh().chunk(len(self.parts), dim=1)
        state = {"tokens": memory.tokens, "keys": memory.keys, "exists": memory.exists}
        state |= dict(zip(self.parts, begin, strict=True))
        return state | {"fed": torch.zeros_like(begin[0])}

    def decode(self, state: State, symbols: Target, first: int = 0) -> Written:
        embedded = self.dropout(self.embed(symbols))
        if not self.input_feeding:
            seen, weights, state = self._look(state, embedded, first)
            return self.head(seen), weights, state
        every_seen, every_weights = [], []
        for i in range(symbols.size(1)):
            inputs = torch.cat([embedded[:, i], state["fed"]], dim=1)[:, None]
            seen, weights, state = self._look(state, inputs, first + i)
            every_seen.append(seen)
            every_weights.append(weights)
        return self.head(torch.cat(every_seen, dim=1)), torch.cat(every_weights, dim=1), state

    def weights(self, source: Tensor, target: Target) -> Float[Tensor, "b t n"]:
        if self.attention is None:
            raise ValueError("this Seq2Seq was built without attention: it has no weights")
        return super().weights(source, target)

    def _look(
        self, state: State, inputs: Float[Tensor, "b t e"], first: int
    ) -> tuple[Steps, Tensor, State]:
        """tanh(W_c [c_t; s_t]) and a_t for each input, and the state after them."""
        before = tuple(state[part][None] for part in self.parts)
        states, after = self.rnn(inputs, before if len(before) > 1 else before[0])
        ends = [part[0] for part in (after if isinstance(after, tuple) else (after,))]
        tokens = state["tokens"]
        if self.attention is None:
            weights = states.new_zeros(*states.shape[:2], tokens.size(1))
            known = states
        else:
            weights = self.attention.weights(states, state["keys"], state["exists"], first)
            known = torch.cat([weights.to(tokens.dtype) @ tokens, states], dim=-1)
        seen = self.dropout(self.combine(known).tanh())
        state = state | dict(zip(self.parts, ends, strict=True)) | {"fed": seen[:, -1]}
        return seen, weights, state
