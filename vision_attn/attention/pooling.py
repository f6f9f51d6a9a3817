"""Readouts: from all tokens of an image to the one vector that a classifier reads.

Axes: b batch, n tokens, d width of a token, look: one of several sets of weights over the tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, final

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vision_attn.attention.attend import Attend
from vision_attn.attention.checks import at_least_one, divisible, not_empty
from vision_attn.attention.masks import check_exists
from vision_attn.attention.normalizers import Normalizer, Softmax
from vision_attn.attention.scores import Additive, MultiDimAdditive, Score
from vision_attn.types import TokenLayout

__all__ = [
    "AttentionPool",
    "ClassToken",
    "FeatureWisePool",
    "LearnedQuery",
    "MeanPool",
    "MultiDimPool",
    "Readout",
]

Tokens = Float[Tensor, "b n d"]
Exists = Bool[Tensor, "b n"] | None


class Readout(nn.Module, ABC):
    """Base class: tokens to one vector.

    A subclass gives the vector in `forward` and the tokens' weights in `weights`. Its `attends`
    tells whether the weights depend on the tokens: then explainers record them.

    Args:
        dim: The tokens' width.
        out_dim: The vector's width; None: `dim`.

    Raises:
        ValueError: `dim` is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import Readout
        >>> class LastToken(Readout):
        ...     def forward(self, tokens, layout=None, mask=None):
        ...         return tokens[:, -1]
        ...     def weights(self, tokens, layout=None, mask=None):
        ...         return torch.eye(tokens.size(1))[-1:].expand(len(tokens), 1, -1)
        >>> LastToken(dim=8)(torch.randn(2, 5, 8)).shape
        torch.Size([2, 8])
    """

    attends: ClassVar[bool] = True

    def __init__(self, dim: int, out_dim: int | None = None):
        super().__init__()
        at_least_one(dim=dim)
        self.dim = dim
        self.out_dim = dim if out_dim is None else out_dim

    @abstractmethod
    def forward(
        self, tokens: Tokens, layout: TokenLayout | None = None, mask: Exists = None
    ) -> Float[Tensor, "b out"]:
        """Compute the vector.

        Args:
            tokens: (b n d).
            layout: How the tokens lie on the image, for readouts that need it.
            mask: True where a token exists; None: all do.

        Returns:
            The vector, (b out).
        """

    @abstractmethod
    def weights(
        self, tokens: Tokens, layout: TokenLayout | None = None, mask: Exists = None
    ) -> Float[Tensor, "b look n"]:
        """Compute the weight of each token; arguments as in `forward`.

        Returns:
            The weights, (b look n), for each of the readout's sets of weights.
        """


@final
class ClassToken(Readout):
    """Readout of the class token: the first token.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import ClassToken
        >>> tokens = torch.arange(6.0).view(1, 3, 2)
        >>> ClassToken(dim=2)(tokens)
        tensor([[0., 1.]])
    """

    attends = False

    def forward(
        self, tokens: Tokens, layout: TokenLayout | None = None, mask: Exists = None
    ) -> Float[Tensor, "b out"]:
        not_empty(tokens=tokens)
        return tokens[:, 0]

    def weights(
        self, tokens: Tokens, layout: TokenLayout | None = None, mask: Exists = None
    ) -> Float[Tensor, "b look n"]:
        first = torch.zeros_like(tokens[:, None, :, 0])
        first[..., 0] = 1
        return first


@final
class MeanPool(Readout):
    """Readout by the mean of the patch tokens.

    Args:
        dim: The tokens' width.
        prefix: Tokens before the patches, where no layout is given to count them.

    Raises:
        ValueError: `dim` is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import MeanPool
        >>> from vision_attn.types import TokenLayout
        >>> tokens = torch.arange(6.0).view(1, 3, 2)
        >>> MeanPool(dim=2)(tokens)
        tensor([[2., 3.]])
        >>> MeanPool(dim=2)(tokens, TokenLayout(prefix=1, grid=(1, 2)))
        tensor([[3., 4.]])
    """

    attends = False

    def __init__(self, dim: int, prefix: int = 0):
        super().__init__(dim)
        self.prefix = prefix

    def forward(
        self, tokens: Tokens, layout: TokenLayout | None = None, mask: Exists = None
    ) -> Float[Tensor, "b out"]:
        if mask is None:
            not_empty(tokens=tokens)
            return tokens[:, self._prefix(layout) :].mean(dim=1)
        return (self.weights(tokens, layout, mask) @ tokens)[:, 0]

    def weights(
        self, tokens: Tokens, layout: TokenLayout | None = None, mask: Exists = None
    ) -> Float[Tensor, "b look n"]:
        not_empty(tokens=tokens)
        check_exists(tokens, mask=mask)
        counted = torch.ones_like(tokens[..., 0]) if mask is None else mask.to(tokens.dtype)
        counted[:, : self._prefix(layout)] = 0
        return (counted / counted.sum(1, keepdim=True).clamp(min=1))[:, None]

    def _prefix(self, layout: TokenLayout | None) -> int:
        return self.prefix if layout is None else layout.prefix


class LearnedQuery(Readout):
    """Base class: attention over all tokens by a learned query, each head's context concatenated.

    The sets of weights are the heads of the score.

    Args:
        dim: The tokens' width.
        out_dim: The vector's width.
        heads: How many queries are learned; none for a score that takes no query.
        score: How well a token answers a query.
        normalizer: What makes weights of scores.

    Raises:
        ValueError: `dim` is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import KeyOnly, Softmax
        >>> from vision_attn.attention.pooling import LearnedQuery
        >>> class Plain(LearnedQuery):
        ...     def keys(self, tokens):
        ...         return tokens[:, None]
        ...     values = keys
        >>> pool = Plain(8, 8, 1, KeyOnly(head_dim=8), Softmax())
        >>> pool(torch.randn(2, 5, 8)).shape
        torch.Size([2, 8])
    """

    def __init__(self, dim: int, out_dim: int, heads: int, score: Score, normalizer: Normalizer):
        super().__init__(dim, out_dim)
        self.attend = Attend(score, normalizer)
        query = torch.empty(1, heads, 1, score.head_dim)
        if score.uses_query:
            self.query = nn.Parameter(nn.init.trunc_normal_(query, std=0.02))
        else:
            self.register_buffer("query", query.zero_(), persistent=False)

    @abstractmethod
    def keys(self, tokens: Tokens) -> Float[Tensor, "b head n d_k"]:
        """Make the keys from the tokens."""

    @abstractmethod
    def values(self, tokens: Tokens) -> Float[Tensor, "b view n d_v"]:
        """Make the values from the tokens."""

    def forward(
        self, tokens: Tokens, layout: TokenLayout | None = None, mask: Exists = None
    ) -> Float[Tensor, "b out"]:
        query, mask = self._queries(tokens), None if mask is None else mask[:, None, None]
        return self.attend(query, self.keys(tokens), self.values(tokens), mask).flatten(1)

    def weights(
        self, tokens: Tokens, layout: TokenLayout | None = None, mask: Exists = None
    ) -> Float[Tensor, "b look n"]:
        query, mask = self._queries(tokens), None if mask is None else mask[:, None, None]
        return self.attend.weights(query, self.keys(tokens), mask)[:, :, 0]

    def _queries(self, tokens: Tokens) -> Float[Tensor, "b head 1 d_k"]:
        return self.query.expand(tokens.size(0), -1, -1, -1)


@final
class AttentionPool(LearnedQuery):
    """Readout by attention with a learned query; each head weighs its own slice of the tokens.

    Args:
        dim: The tokens' width, a multiple of `heads`.
        heads: How many heads.
        score: A factory of `Additive` (by a learned query), `KeyOnly` (by none), or any other.
        normalizer: A factory; `Hard` reads out one token a head.

    Raises:
        ValueError: `dim` is no multiple of `heads`.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import AttentionPool
        >>> pool, tokens = AttentionPool(dim=8, heads=2), torch.randn(2, 5, 8)
        >>> pool(tokens).shape, pool.weights(tokens).shape
        (torch.Size([2, 8]), torch.Size([2, 2, 5]))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        score: Callable[..., Score] = Additive,
        normalizer: Callable[..., Normalizer] = Softmax,
    ):
        divisible(dim, heads)
        super().__init__(dim, dim, heads, score(head_dim=dim // heads, heads=heads), normalizer())

    def keys(self, tokens: Tokens) -> Float[Tensor, "b head n d_k"]:
        return rearrange(tokens, "b n (head d) -> b head n d", d=self.attend.score.head_dim)

    def values(self, tokens: Tokens) -> Float[Tensor, "b view n d_v"]:
        return self.keys(tokens)


@final
class MultiDimPool(LearnedQuery):
    """Readout by several views of all features, each with weights of its own, concatenated.

    Lin et al. 2017.

    Args:
        dim: The tokens' width.
        views: How many, so that the vector is views x dim wide.
        score: A factory, called as `score(head_dim=dim, heads=views)`.
        normalizer: A factory.

    Raises:
        ValueError: A size is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import MultiDimPool
        >>> pool, tokens = MultiDimPool(dim=8, views=3), torch.randn(2, 5, 8)
        >>> pool(tokens).shape, pool.weights(tokens).shape
        (torch.Size([2, 24]), torch.Size([2, 3, 5]))
    """

    def __init__(
        self,
        dim: int,
        views: int = 4,
        score: Callable[..., Score] = MultiDimAdditive,
        normalizer: Callable[..., Normalizer] = Softmax,
    ):
        at_least_one(views=views)
        super().__init__(dim, views * dim, 1, score(head_dim=dim, heads=views), normalizer())

    def keys(self, tokens: Tokens) -> Float[Tensor, "b head n d_k"]:
        return tokens[:, None]

    def values(self, tokens: Tokens) -> Float[Tensor, "b view n d_v"]:
        return tokens[:, None]


@final
class FeatureWisePool(LearnedQuery):
    """Readout where every feature has weights of its own, Shen et al. 2018 (source2token).

    Args:
        dim: The tokens' width.
        score: A factory, called as `score(head_dim=dim, heads=dim)`.
        normalizer: A factory.

    Raises:
        ValueError: `dim` is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import FeatureWisePool
        >>> pool, tokens = FeatureWisePool(dim=8), torch.randn(2, 5, 8)
        >>> pool(tokens).shape, pool.weights(tokens).shape
        (torch.Size([2, 8]), torch.Size([2, 8, 5]))
    """

    def __init__(
        self,
        dim: int,
        score: Callable[..., Score] = MultiDimAdditive,
        normalizer: Callable[..., Normalizer] = Softmax,
    ):
        super().__init__(dim, dim, 1, score(head_dim=dim, heads=dim), normalizer())

    def keys(self, tokens: Tokens) -> Float[Tensor, "b head n d_k"]:
        return tokens[:, None]

    def values(self, tokens: Tokens) -> Float[Tensor, "b view n d_v"]:
        return tokens.mT[..., None]
