"""The Transformer, encoder and decoder, Vaswani et al. 2017, with a cache for writing.

Axes: b batch, t steps of the target, p steps before them, n tokens of the memory, d width, head.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.attention import MultiHeadAttention, causal_mask
from vision_attn.models.layers import Mlp
from vision_attn.sequences.models.decoding import SequenceModel, State, Target, Written
from vision_attn.sequences.models.encoders import Encoder, SelfAttentionEncoder, SymbolEmbedding

__all__ = ["DecoderBlock", "Transformer"]

Steps = Float[Tensor, "b t d"]


class DecoderBlock(nn.Module):
    """x + self-attention(norm x), x + source-target attention(norm x), x + mlp(norm x).

    No step sees a later one. The block's keys and values of the steps before, and those of the
    memory, come in the state and go back to it: a step is computed once.

    Examples:
        >>> from vision_attn.sequences.models.transformer import DecoderBlock
        >>> block = DecoderBlock(number=0, dim=8, heads=2, mlp_ratio=2.0, dropout=0.0)
    """

    def __init__(self, number: int, dim: int, heads: int, mlp_ratio: float, dropout: float):
        super().__init__()
        self.name = f"block{number}."
        self.norm1 = nn.LayerNorm(dim)
        self.self_attn = MultiHeadAttention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.cross_attn = MultiHeadAttention(dim, heads)
        self.norm3 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, round(dim * mlp_ratio))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Steps, state: State) -> tuple[Steps, Float[Tensor, "b t n"], State]:
        x, state = self._attend_to_steps(x, state)
        x, weights, state = self._attend_to_source(x, state)
        return x + self.dropout(self.mlp(self.norm3(x))), weights, state

    def _attend_to_steps(self, x: Steps, state: State) -> tuple[Steps, State]:
        q, k, v = self.self_attn.project(self.norm1(x))
        own = {self.name + "k": k, self.name + "v": v}
        own = {n: torch.cat([state[n], new], 2) if n in state else new for n, new in own.items()}
        k, v = own.values()
        mask = causal_mask(k.size(2))[-q.size(2) :].to(x.device)  # t p+t
        context = self.self_attn.attend(q, k, v, mask)
        return x + self.dropout(joined(self.self_attn, context)), state | own

    def _attend_to_source(self, x: Steps, state: State) -> tuple[Steps, Tensor, State]:
        attention, names = self.cross_attn, (self.name + "source_k", self.name + "source_v")
        if names[0] in state:
            q = attention.project(self.norm2(x), x[:, :0])[0]  # no memory to project again
        else:
            q, *memory = attention.project(self.norm2(x), state["tokens"], state["keys"])
            state = state | dict(zip(names, memory, strict=True))
        k, v = (state[name] for name in names)
        weights = attention.attend.weights(q, k, state["exists"][:, None, None])
        x = x + self.dropout(joined(attention, weights.to(v.dtype) @ v))
        return x, weights.mean(1), state


def joined(
    attention: MultiHeadAttention, context: Float[Tensor, "b head t e"]
) -> Float[Tensor, "b t d"]:
    """The contexts of all heads, concatenated and mixed."""
    return attention.proj(context.transpose(1, 2).flatten(-2))


class Transformer(SequenceModel):
    """Encoder and decoder of attention alone, Vaswani et al. 2017, norms first (Xiong et al. 2020).

    Self-attention over the source; in the decoder causal self-attention over the target so far and
    source-target attention. The weights are means over heads and blocks of source-target attention.

    Args:
        symbols: Size of the target's vocabulary.
        encoder: A factory, called as `encoder(dim=dim)`.
        dim: The tokens' width.
        longest: Steps of the longest target, STOP included.
        depth: How many blocks of the decoder.
        heads: Heads of each block's attention.
        mlp_ratio: How many times wider than the tokens each block's MLP is inside.
        dropout: The share set to 0 in training.

    Examples:
        >>> import torch
        >>> from functools import partial
        >>> from vision_attn.sequences import SelfAttentionEncoder, Transformer
        >>> encoder = partial(SelfAttentionEncoder, symbols=11, depth=1, heads=2)
        >>> network = Transformer(symbols=7, encoder=encoder, dim=8, longest=4, depth=1, heads=2)
        >>> network(torch.tensor([[5, 6, 2]]), torch.tensor([[3, 4, 2]])).shape
        torch.Size([1, 3, 7])
    """

    def __init__(
        self,
        symbols: int,
        encoder: Callable[..., Encoder] = SelfAttentionEncoder,
        dim: int = 128,
        longest: int = 32,
        depth: int = 3,
        heads: int = 4,
        mlp_ratio: float = 2.0,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.symbols, self.longest = symbols, longest
        self.encoder = encoder(dim=dim)
        self.embed = SymbolEmbedding(symbols, dim, longest)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            DecoderBlock(i, dim, heads, mlp_ratio, dropout) for i in range(depth)
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, symbols)

    def read(self, source: Tensor) -> State:
        memory = self.encoder(source)
        return {"tokens": memory.tokens, "keys": memory.keys, "exists": memory.exists}

    def decode(self, state: State, symbols: Target, first: int = 0) -> Written:
        x, every = self.dropout(self.embed(symbols, first)), []
        for block in self.blocks:
            x, weights, state = block(x, state)
            every.append(weights)
        return self.head(self.norm(x)), torch.stack(every).mean(0), state
