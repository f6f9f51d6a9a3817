"""Memory hops: attend again, with a query that the last context has changed.

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

__all__ = ["GRUUpdate", "Hop", "HopsPool", "LinearUpdate", "MemoryHops", "SumUpdate", "Update"]

Queries = Float[Tensor, "b i d"]
Memory = Float[Tensor, "b j d"]


class Update(nn.Module, ABC):
    """Base class: the next query from the last one and its context; made as `Update(dim)`.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import Update
        >>> class Average(Update):
        ...     def __init__(self, dim):
        ...         super().__init__()
        ...     def forward(self, query, context):
        ...         return (query + context) / 2
        >>> Average(dim=4)(torch.zeros(1, 1, 4), torch.ones(1, 1, 4))
        tensor([[[0.5000, 0.5000, 0.5000, 0.5000]]])
    """

    @abstractmethod
    def forward(self, query: Queries, context: Queries) -> Queries:
        """Compute the next query.

        Args:
            query: The last query, (b i d).
            context: What attention gave for it, (b i d).

        Returns:
            The next query, (b i d).
        """


@final
class SumUpdate(Update):
    """Next query by a sum: q + c, Sukhbaatar et al. 2015.

    Args:
        dim: The width of queries and contexts; a sum has no use for it.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import SumUpdate
        >>> SumUpdate(dim=2)(torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[3.0, 4.0]]]))
        tensor([[[4., 6.]]])
    """

    def __init__(self, dim: int):
        super().__init__()

    def forward(self, query: Queries, context: Queries) -> Queries:
        return query + context


@final
class LinearUpdate(Update):
    """Next query by a linear map: W [q; c] + b.

    Args:
        dim: The width of queries and contexts.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import LinearUpdate
        >>> LinearUpdate(dim=4)(torch.randn(2, 3, 4), torch.randn(2, 3, 4)).shape
        torch.Size([2, 3, 4])
    """

    def __init__(self, dim: int):
        super().__init__()
        self.proj = nn.Linear(2 * dim, dim)

    def forward(self, query: Queries, context: Queries) -> Queries:
        return self.proj(torch.cat([query, context], dim=-1))


@final
class GRUUpdate(Update):
    """Next query by a gated recurrent unit with state q and input c, Kumar et al. 2016.

    Args:
        dim: The width of queries and contexts.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import GRUUpdate
        >>> GRUUpdate(dim=4)(torch.randn(2, 3, 4), torch.randn(2, 3, 4)).shape
        torch.Size([2, 3, 4])
    """

    def __init__(self, dim: int):
        super().__init__()
        self.cell = nn.GRUCell(dim, dim)

    def forward(self, query: Queries, context: Queries) -> Queries:
        return self.cell(context.flatten(0, 1), query.flatten(0, 1)).view_as(query)


class Hop(nn.Module):
    """One hop: c = attention of q over W_k memory and W_v memory, then update(q, c).

    Examples:
        >>> import torch
        >>> from vision_attn.attention import Attend, Dot, SumUpdate
        >>> from vision_attn.attention.hops import Hop
        >>> hop = Hop(4, Attend(Dot(head_dim=4)), SumUpdate(4))
        >>> hop(torch.randn(2, 1, 4), torch.randn(2, 5, 4), None).shape
        torch.Size([2, 1, 4])
    """

    def __init__(self, dim: int, attend: Attend, update: Update):
        super().__init__()
        self.key_proj = nn.Linear(dim, dim, bias=False)
        self.value_proj = nn.Linear(dim, dim, bias=False)
        self.attend = attend
        self.update = update

    def weights(self, query: Queries, memory: Memory, mask: Tensor | None) -> Tensor:
        """Compute the weights of the memory, (b i j).

        Args:
            query: The queries, (b i d).
            memory: What is attended to, (b j d).
            mask: As in `Attend.weights`.
        """
        return self.attend.weights(query[:, None], self.key_proj(memory)[:, None], mask)[:, 0]

    def forward(self, query: Queries, memory: Memory, mask: Tensor | None) -> Queries:
        """Compute the next query, (b i d).

        Args:
            mask: As in `Attend.weights`.
        """
        k, v = self.key_proj(memory), self.value_proj(memory)
        return self.update(query, self.attend(query[:, None], k[:, None], v[:, None], mask)[:, 0])


class MemoryHops(nn.Module):
    """Attention in hops: q <- update(q, attention of q over the memory), `hops` times.

    The last q is the result. Sukhbaatar et al. 2015.

    Args:
        dim: The width of queries and memory.
        hops: How many times the memory is attended to.
        shared: Whether every hop has the same parameters.
        score: A factory, called as `score(head_dim=dim)`.
        normalizer: A factory.
        update: A factory of the next query, called as `update(dim)`.

    Raises:
        ValueError: A size is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import MemoryHops
        >>> query, memory = torch.randn(2, 1, 8), torch.randn(2, 5, 8)
        >>> hops = MemoryHops(dim=8, hops=3)
        >>> hops(query, memory).shape, hops.weights(query, memory).shape
        (torch.Size([2, 1, 8]), torch.Size([2, 3, 1, 5]))
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
        """Compute the weights of the memory at each hop.

        Args:
            query: The queries, (b i d).
            memory: What is attended to, (b j d).
            mask: True where a token of the memory exists; None: all do.

        Returns:
            The weights, (b hop i j).
        """
        mask, weights = _for_all_queries(mask), []
        for hop in self._in_order():
            weights.append(hop.weights(query, memory, mask))
            query = hop(query, memory, mask)
        return torch.stack(weights, dim=1)

    def forward(self, query: Queries, memory: Memory, mask: Exists = None) -> Queries:
        """Compute the last query; arguments as in `weights`.

        Returns:
            The query, (b i d).
        """
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
    """Readout by memory hops: a learned query that attends to the tokens `hops` times.

    Each hop is a set of weights.

    Args:
        dim: The tokens' width.
        hops: As in `MemoryHops`, and so are the others.
        shared: Whether every hop has the same parameters.
        score: A factory, called as `score(head_dim=dim)`.
        normalizer: A factory.
        update: A factory of the next query, called as `update(dim)`.

    Raises:
        ValueError: A size is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import HopsPool
        >>> pool, tokens = HopsPool(dim=8, hops=2), torch.randn(2, 5, 8)
        >>> pool(tokens).shape, pool.weights(tokens).shape
        (torch.Size([2, 8]), torch.Size([2, 2, 5]))
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
