"""Memory hops: look again, with what the last look gave.

Axes: b batch, i queries, j memory, d width, hop.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vision_attn.attention.attend import Attend
from vision_attn.attention.checks import at_least_one
from vision_attn.attention.normalizers import Normalizer, Softmax
from vision_attn.attention.pooling import Exists, Readout, Tokens
from vision_attn.attention.scores import Dot, Score
from vision_attn.types import TokenLayout

Queries = Float[Tensor, "b i d"]
Memory = Float[Tensor, "b j d"]


class Update(nn.Module, ABC):
    """The next query, from the last one and what it saw; made as `Update(dim)`."""

    @abstractmethod
    def forward(self, query: Queries, context: Queries) -> Queries: ...


@final
class SumUpdate(Update):
    """q + c, Sukhbaatar et al. 2015."""

    def __init__(self, dim: int):
        super().__init__()

    def forward(self, query: Queries, context: Queries) -> Queries:
        return query + context


@final
class LinearUpdate(Update):
    """W [q; c] + b."""

    def __init__(self, dim: int):
        super().__init__()
        self.proj = nn.Linear(2 * dim, dim)

    def forward(self, query: Queries, context: Queries) -> Queries:
        return self.proj(torch.cat([query, context], dim=-1))


@final
class GRUUpdate(Update):
    """A gated recurrent unit with state q and input c, Kumar et al. 2016."""

    def __init__(self, dim: int):
        super().__init__()
        self.cell = nn.GRUCell(dim, dim)

    def forward(self, query: Queries, context: Queries) -> Queries:
        return self.cell(context.flatten(0, 1), query.flatten(0, 1)).view_as(query)


class Hop(nn.Module):
    """One look: c = attention of q over W_k memory and W_v memory; then update(q, c)."""

    def __init__(self, dim: int, attend: Attend, update: Update):
        super().__init__()
        self.key_proj = nn.Linear(dim, dim, bias=False)
        self.value_proj = nn.Linear(dim, dim, bias=False)
        self.attend = attend
        self.update = update

    def weights(self, query: Queries, memory: Memory, mask: Tensor | None) -> Tensor:
        return self.attend.weights(query[:, None], self.key_proj(memory)[:, None], mask)[:, 0]

    def forward(self, query: Queries, memory: Memory, mask: Tensor | None) -> Queries:
        k, v = self.key_proj(memory), self.value_proj(memory)
        return self.update(query, self.attend(query[:, None], k[:, None], v[:, None], mask)[:, 0])


class MemoryHops(nn.Module):
    """q <- update(q, attention of q over the memory), `hops` times, Sukhbaatar et al. 2015.

    The last q is the result. shared: every hop has the same weights. score, normalizer, update:
    factories.
    """

    def __init__(
        self,
        dim: int,
        hops: int = 3,
        shared: bool = False,
        score: Callable[..., Score] = Dot,
        normalizer: Callable[..., Normalizer] = Softmax,
        update: Callable[..., Update] = SumUpdate,
    ):
        super().__init__()
        at_least_one(dim=dim, hops=hops)
        self.hops = hops
        self.looks = nn.ModuleList(
            Hop(dim, Attend(score(head_dim=dim), normalizer()), update(dim))
            for _ in range(1 if shared else hops)
        )

    def weights(
        self, query: Queries, memory: Memory, mask: Exists = None
    ) -> Float[Tensor, "b hop i j"]:
        """What each hop looks at."""
        mask, each = _for_all_queries(mask), []
        for hop in self._in_order():
            each.append(hop.weights(query, memory, mask))
            query = hop(query, memory, mask)
        return torch.stack(each, dim=1)

    def forward(self, query: Queries, memory: Memory, mask: Exists = None) -> Queries:
        mask = _for_all_queries(mask)
        for hop in self._in_order():
            query = hop(query, memory, mask)
        return query

    def _in_order(self) -> list[Hop]:
        return [cast(Hop, self.looks[i % len(self.looks)]) for i in range(self.hops)]


def _for_all_queries(mask: Exists) -> Bool[Tensor, "b 1 1 j"] | None:
    return None if mask is None else mask[:, None, None]


@final
class HopsPool(Readout):
    """Several looks at the tokens by a query that learns from each; the looks are the hops."""

    def __init__(
        self,
        dim: int,
        hops: int = 3,
        shared: bool = False,
        score: Callable[..., Score] = Dot,
        normalizer: Callable[..., Normalizer] = Softmax,
        update: Callable[..., Update] = SumUpdate,
    ):
        super().__init__(dim)
        self.memory = MemoryHops(dim, hops, shared, score, normalizer, update)
        self.query = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, dim), std=0.02))

    def forward(
        self, tokens: Tokens, layout: TokenLayout | None = None, mask: Exists = None
    ) -> Float[Tensor, "b out"]:
        return self.memory(self.query.expand(tokens.size(0), -1, -1), tokens, mask)[:, 0]

    def weights(
        self, tokens: Tokens, layout: TokenLayout | None = None, mask: Exists = None
    ) -> Float[Tensor, "b look n"]:
        query = self.query.expand(tokens.size(0), -1, -1)
        return self.memory.weights(query, tokens, mask)[:, :, 0]
