"""Co-attention: two sequences, each weighted in the light of the other.

Axes: b batch, i tokens of the first sequence (queries), j tokens of the second (keys), d width,
a hidden width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vision_attn.attention.attend import Attend, weights_over
from vision_attn.attention.checks import at_least_one, not_empty
from vision_attn.attention.masks import check_exists
from vision_attn.attention.normalizers import Normalizer, Softmax
from vision_attn.attention.scores import (
    ActivatedGeneral,
    Additive,
    Dot,
    KeyOnly,
    Score,
)

__all__ = [
    "AlternatingCoAttention",
    "AttentionOverAttention",
    "CoAttention",
    "CoAttentionEnsemble",
    "InteractiveAttention",
    "MaxPoolCoAttention",
    "ParallelCoAttention",
]

Queries = Float[Tensor, "b i d"]
Keys = Float[Tensor, "b j d"]
QueryMask = Bool[Tensor, "b i"] | None
KeyMask = Bool[Tensor, "b j"] | None
Weights = tuple[Float[Tensor, "b *views i"], Float[Tensor, "b *views j"]]


class CoAttention(nn.Module, ABC):
    """Base class: one context of each of two sequences, (sum_i a_i q_i, sum_j b_j k_j).

    A subclass gives the weights a and b in `weigh`.

    Args:
        dim: The width of both sequences.
        normalizer: A factory (a class or a partial) of the normaliser of a and b.

    Raises:
        ValueError: `dim` is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import CoAttention
        >>> class Plain(CoAttention):
        ...     def weigh(self, queries, keys, query_mask, key_mask):
        ...         a = self.normalizer(queries.mean(-1), query_mask)
        ...         return a, self.normalizer(keys.mean(-1), key_mask)
        >>> query_context, key_context = Plain(dim=4)(torch.randn(2, 5, 4), torch.randn(2, 3, 4))
        >>> query_context.shape, key_context.shape
        (torch.Size([2, 4]), torch.Size([2, 4]))
    """

    def __init__(self, dim: int, normalizer: Callable[..., Normalizer] = Softmax):
        super().__init__()
        at_least_one(dim=dim)
        self.dim = dim
        self.normalizer = normalizer()

    @abstractmethod
    def weigh(
        self, queries: Queries, keys: Keys, query_mask: QueryMask, key_mask: KeyMask
    ) -> Weights:
        """Compute a over the queries and b over the keys; arguments as in `weights`, checked."""

    def weights(
        self,
        queries: Queries,
        keys: Keys,
        query_mask: QueryMask = None,
        key_mask: KeyMask = None,
    ) -> Weights:
        """Compute the weights of both sequences.

        Args:
            queries: The first sequence, (b i d).
            keys: The second sequence, (b j d).
            query_mask: Bool, (b i), True where a token exists; None: all do.
            key_mask: Bool, (b j), the same of the second sequence.

        Returns:
            a over the queries, (b i), and b over the keys, (b j).

        Raises:
            ValueError: A sequence is empty, or a mask has another shape or type.
        """
        not_empty(queries=queries, keys=keys)
        check_exists(queries, query_mask=query_mask)
        check_exists(keys, key_mask=key_mask)
        return self.weigh(queries, keys, query_mask, key_mask)

    def forward(
        self,
        queries: Queries,
        keys: Keys,
        query_mask: QueryMask = None,
        key_mask: KeyMask = None,
    ) -> tuple[Float[Tensor, "b q"], Float[Tensor, "b k"]]:
        """Compute the contexts of both sequences.

        Args:
            queries: The first sequence, (b i d).
            keys: The second sequence, (b j d).
            query_mask: As in `weights`.
            key_mask: As in `weights`.

        Returns:
            The context of the queries and that of the keys, (b d) each.

        Raises:
            ValueError: As in `weights`.
        """
        a, b = self.weights(queries, keys, query_mask, key_mask)
        return context(a, queries), context(b, keys)


@final
class AlternatingCoAttention(CoAttention):
    """Co-attention in turns: summarise the queries, weigh the keys by that, then the queries anew.

    Each step is additive attention. Lu et al. 2016, section 3.3.

    Args:
        dim: The width of both sequences.
        normalizer: A factory of the normaliser of all three steps.
        hidden_dim: Hidden units of each step's score.

    Raises:
        ValueError: A size is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import AlternatingCoAttention
        >>> question, image = torch.randn(2, 5, 8), torch.randn(2, 16, 8)
        >>> a, b = AlternatingCoAttention(dim=8).weights(question, image)
        >>> a.shape, b.shape
        (torch.Size([2, 5]), torch.Size([2, 16]))
    """

    def __init__(
        self,
        dim: int,
        normalizer: Callable[..., Normalizer] = Softmax,
        hidden_dim: int = 32,
    ):
        super().__init__(dim, normalizer)
        self.alone = Attend(KeyOnly(dim, hidden_dim=hidden_dim, bias=False), self.normalizer)
        self.over_keys = Attend(Additive(dim, hidden_dim=hidden_dim), self.normalizer)
        self.over_queries = Attend(Additive(dim, hidden_dim=hidden_dim), self.normalizer)

    def weigh(
        self, queries: Queries, keys: Keys, query_mask: QueryMask, key_mask: KeyMask
    ) -> Weights:
        alone = weights_over(self.alone, queries[:, :1], queries, query_mask)
        b = weights_over(self.over_keys, alone @ queries, keys, key_mask)
        a = weights_over(self.over_queries, b @ keys, queries, query_mask)
        return a[:, 0], b[:, 0]


@final
class InteractiveAttention(CoAttention):
    """Co-attention by means: the mean of each sequence is the query over the other.

    Ma et al. 2017 (IAN), section 2.2.

    Args:
        dim: The width of both sequences.
        normalizer: A factory of the normaliser.
        score: A factory, called as `score(head_dim=dim)`, once for each sequence.

    Raises:
        ValueError: `dim` is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import InteractiveAttention
        >>> a, b = InteractiveAttention(dim=8).weights(torch.randn(2, 5, 8), torch.randn(2, 16, 8))
        >>> a.shape, b.shape
        (torch.Size([2, 5]), torch.Size([2, 16]))
    """

    def __init__(
        self,
        dim: int,
        normalizer: Callable[..., Normalizer] = Softmax,
        score: Callable[..., Score] = ActivatedGeneral,
    ):
        super().__init__(dim, normalizer)
        self.over_queries = Attend(score(head_dim=dim), self.normalizer)
        self.over_keys = Attend(score(head_dim=dim), self.normalizer)

    def weigh(
        self, queries: Queries, keys: Keys, query_mask: QueryMask, key_mask: KeyMask
    ) -> Weights:
        a = weights_over(self.over_queries, mean(keys, key_mask), queries, query_mask)
        b = weights_over(self.over_keys, mean(queries, query_mask), keys, key_mask)
        return a[:, 0], b[:, 0]


@final
class ParallelCoAttention(CoAttention):
    """Co-attention by the affinity of all pairs, which carries each sequence over to the other.

    C = tanh(q' W k); H_k = tanh(W_k k + C' (W_q q)), H_q = tanh(W_q q + C (W_k k));
    a = normalise(w_q . H_q), b = normalise(w_k . H_k). Lu et al. 2016, section 3.3, equations 3
    and 4.

    Args:
        dim: The width of both sequences.
        normalizer: A factory of the normaliser.
        hidden_dim: The width of H.

    Raises:
        ValueError: A size is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import ParallelCoAttention
        >>> a, b = ParallelCoAttention(dim=8).weights(torch.randn(2, 5, 8), torch.randn(2, 16, 8))
        >>> a.shape, b.shape
        (torch.Size([2, 5]), torch.Size([2, 16]))
    """

    def __init__(
        self,
        dim: int,
        normalizer: Callable[..., Normalizer] = Softmax,
        hidden_dim: int = 32,
    ):
        super().__init__(dim, normalizer)
        at_least_one(hidden_dim=hidden_dim)
        self.affinity = nn.Linear(dim, dim, bias=False)
        self.query_proj = nn.Linear(dim, hidden_dim, bias=False)
        self.key_proj = nn.Linear(dim, hidden_dim, bias=False)
        self.query_energy = nn.Linear(hidden_dim, 1, bias=False)
        self.key_energy = nn.Linear(hidden_dim, 1, bias=False)

    def weigh(
        self, queries: Queries, keys: Keys, query_mask: QueryMask, key_mask: KeyMask
    ) -> Weights:
        affinity = (self.affinity(queries) @ keys.mT).tanh()  # b i j
        exist = pairs(queries, keys, query_mask, key_mask)
        affinity = affinity if exist is None else affinity.masked_fill(~exist, 0)
        q, k = self.query_proj(queries), self.key_proj(keys)
        a = self.query_energy((q + affinity @ k).tanh()).squeeze(-1)
        b = self.key_energy((k + affinity.mT @ q).tanh()).squeeze(-1)
        return self.normalizer(a, query_mask), self.normalizer(b, key_mask)


@final
class MaxPoolCoAttention(CoAttention):
    """Co-attention by each token's best pair: the row and column maxima of E = tanh(q' W k).

    Dos Santos et al. 2016, section 3.

    Args:
        dim: The width of both sequences.
        normalizer: A factory of the normaliser.

    Raises:
        ValueError: `dim` is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import MaxPoolCoAttention
        >>> a, b = MaxPoolCoAttention(dim=8).weights(torch.randn(2, 5, 8), torch.randn(2, 16, 8))
        >>> a.shape, b.shape
        (torch.Size([2, 5]), torch.Size([2, 16]))
    """

    def __init__(self, dim: int, normalizer: Callable[..., Normalizer] = Softmax):
        super().__init__(dim, normalizer)
        self.affinity = nn.Linear(dim, dim, bias=False)

    def weigh(
        self, queries: Queries, keys: Keys, query_mask: QueryMask, key_mask: KeyMask
    ) -> Weights:
        energy = (self.affinity(queries) @ keys.mT).tanh()
        exist = pairs(queries, keys, query_mask, key_mask)
        energy = energy if exist is None else energy.masked_fill(~exist, -1)  # tanh's least
        a, b = energy.amax(2), energy.amax(1)
        return self.normalizer(a, query_mask), self.normalizer(b, key_mask)


@final
class AttentionOverAttention(CoAttention):
    """Co-attention of each query's keys, weighted by how much that query is attended to.

    alpha = normalise_j(E), beta = normalise_i(E); a = mean_j beta_ij, b_j = sum_i a_i alpha_ij.
    Cui et al. 2017, section 3.

    Args:
        dim: The width of both sequences.
        normalizer: A factory of the normaliser.
        score: A factory of E, called as `score(head_dim=dim)`.

    Raises:
        ValueError: `dim` is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import AttentionOverAttention
        >>> a, b = AttentionOverAttention(dim=8).weights(torch.randn(2, 5, 8), torch.randn(2, 3, 8))
        >>> a.shape, b.shape
        (torch.Size([2, 5]), torch.Size([2, 3]))
    """

    def __init__(
        self,
        dim: int,
        normalizer: Callable[..., Normalizer] = Softmax,
        score: Callable[..., Score] = Dot,
    ):
        super().__init__(dim, normalizer)
        self.score = score(head_dim=dim)

    def weigh(
        self, queries: Queries, keys: Keys, query_mask: QueryMask, key_mask: KeyMask
    ) -> Weights:
        energy = self.score(queries[:, None], keys[:, None])[:, 0]
        exist = pairs(queries, keys, query_mask, key_mask)
        alpha = self.normalizer(energy, exist)  # b i j
        beta = self.normalizer(energy.mT, None if exist is None else exist.mT)  # b j i
        a = mean(beta, key_mask)
        return a[:, 0], (a @ alpha)[:, 0]


@final
class CoAttentionEnsemble(CoAttention):
    """Several co-attentions side by side, their contexts concatenated.

    `weights` are (b member i) and (b member j).

    Args:
        members: The co-attentions, at least one.

    Raises:
        ValueError: There are no members.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import (
        ...     CoAttentionEnsemble, InteractiveAttention, MaxPoolCoAttention
        ... )
        >>> both = CoAttentionEnsemble(InteractiveAttention(8), MaxPoolCoAttention(8))
        >>> query_context, key_context = both(torch.randn(2, 5, 8), torch.randn(2, 3, 8))
        >>> query_context.shape
        torch.Size([2, 16])
    """

    def __init__(self, *members: CoAttention):
        if not members:
            raise ValueError("members must hold at least one CoAttention, got none")
        super().__init__(members[0].dim)
        self.members = nn.ModuleList(members)

    def weigh(
        self, queries: Queries, keys: Keys, query_mask: QueryMask, key_mask: KeyMask
    ) -> Weights:
        each = [
            member.weights(queries, keys, query_mask, key_mask)
            for member in cast(list[CoAttention], self.members)
        ]
        a, b = (torch.stack(weights, dim=1) for weights in zip(*each, strict=True))
        return a, b


def context(
    weights: Float[Tensor, "b *views n"], tokens: Float[Tensor, "b n d"]
) -> Float[Tensor, "b views_d"]:
    """Sum the tokens by every set of weights, sum_n a_n x_n, and concatenate the sums."""
    return torch.einsum("b...n,bnd->b...d", weights, tokens).flatten(1)


def mean(
    tokens: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None
) -> Float[Tensor, "b 1 d"]:
    """Average the tokens that exist; zeros where none does."""
    if mask is None:
        return tokens.mean(1, keepdim=True)
    total = tokens.masked_fill(~mask[..., None], 0).sum(1, keepdim=True)
    return total / mask.sum(1)[:, None, None].clamp(min=1)


def pairs(
    queries: Queries, keys: Keys, query_mask: QueryMask, key_mask: KeyMask
) -> Bool[Tensor, "b i j"] | None:
    """Mark the pairs whose tokens both exist; None: all do."""
    if query_mask is None and key_mask is None:
        return None
    both = queries.new_ones(queries.size(0), queries.size(1), keys.size(1), dtype=torch.bool)
    if query_mask is not None:
        both = both & query_mask[:, :, None]
    return both if key_mask is None else both & key_mask[:, None]
