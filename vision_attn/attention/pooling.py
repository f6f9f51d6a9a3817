"""Readouts: from all tokens of an image to the one vector that a classifier reads.

Axes: b batch, n tokens, d width of a token, look: one of several sets of weights over the tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

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

Tokens = Float[Tensor, "b n d"]
Exists = Bool[Tensor, "b n"] | None


class Readout(nn.Module, ABC):
    """Tokens to one vector, `out_dim` wide; made as `Readout(dim)`. mask: which tokens exist."""

    def __init__(self, dim: int, out_dim: int | None = None):
        super().__init__()
        at_least_one(dim=dim)
        self.dim = dim
        self.out_dim = dim if out_dim is None else out_dim

    @abstractmethod
    def forward(
        self, tokens: Tokens, layout: TokenLayout | None = None, mask: Exists = None
    ) -> Float[Tensor, "b out"]: ...

    @abstractmethod
    def weights(
        self, tokens: Tokens, layout: TokenLayout | None = None, mask: Exists = None
    ) -> Float[Tensor, "b look n"]:
        """What each token counts for, at every look that the readout takes at the image."""


@final
class ClassToken(Readout):
    """The first token."""

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
    """The mean of the patch tokens (of all tokens, where no layout tells which are patches)."""

    def forward(
        self, tokens: Tokens, layout: TokenLayout | None = None, mask: Exists = None
    ) -> Float[Tensor, "b out"]:
        return (self.weights(tokens, layout, mask) @ tokens)[:, 0]

    def weights(
        self, tokens: Tokens, layout: TokenLayout | None = None, mask: Exists = None
    ) -> Float[Tensor, "b look n"]:
        not_empty(tokens=tokens)
        check_exists(tokens, mask=mask)
        counted = torch.ones_like(tokens[..., 0]) if mask is None else mask.to(tokens.dtype)
        if layout is not None:
            counted[:, : layout.prefix] = 0
        return (counted / counted.sum(1, keepdim=True).clamp(min=1))[:, None]


class LearnedQuery(Readout):
    """Attention over all tokens by one learned query; the context of each head, concatenated.

    The looks are the heads of the score. Scores that ask no query have none.
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
    def keys(self, tokens: Tokens) -> Float[Tensor, "b head n d_k"]: ...

    @abstractmethod
    def values(self, tokens: Tokens) -> Float[Tensor, "b view n d_v"]: ...

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
    """Each head weighs its own slice of the tokens.

    score: `Additive` (by a learned query), `KeyOnly` (by none), or any other. normalizer: `Hard`
    reads out one token a head.
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
    """Several views of the whole, each with weights of its own, concatenated, Lin et al. 2017."""

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
    """Every feature weighs the tokens for itself, Shen et al. 2018 (source2token)."""

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
