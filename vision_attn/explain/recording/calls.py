"""One attention call of a network, and its weights in tiles.

Axes: b batch (windows count as batch), head, i queries, j keys, d head width, e value width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import e, log2

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.explain.recording.workspace import Room, product

ALL = slice(None)
LOG2_E = log2(e)


@dataclass(frozen=True)
class Fusion:
    """How the weights of the heads (b head i j) become one map (b i j), in memory of its own.

    What one head's weights become is themselves. keeps_shares: whether rows of the map sum to 1
    where every head's do.
    """

    fuse: Callable[[Tensor], Tensor]
    keeps_shares: bool = False


@dataclass(frozen=True, eq=False)
class AttentionCall(ABC):
    """context = A v, as the network computed it in the module of this name.

    v: (b head j e). context: the output, on the autograd graph of the run. Both are None where the
    recorder was not asked to keep them, or where they are not known.
    """

    module: str
    v: Tensor | None = field(repr=False)
    context: Tensor | None = field(repr=False)

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys); the windows of all images count as batch."""

    @property
    @abstractmethod
    def source(self) -> Tensor:
        """What the weights come from: it has their device, and the dtype of the network."""

    @property
    @abstractmethod
    def sums_to_one(self) -> bool:
        """Whether the weights are shares: none below 0, and 1 together for each query."""

    @abstractmethod
    def scores(
        self,
        images: slice = ALL,
        heads: slice = ALL,
        rows: slice | Tensor = ALL,
        room: Room | None = None,
    ) -> Float[Tensor, "b head i j"]:
        """What the softmax is given, for a tile: some images, heads and queries, all keys."""

    @abstractmethod
    def weights(
        self,
        images: slice = ALL,
        heads: slice = ALL,
        rows: slice | Tensor = ALL,
        keys: slice = ALL,
        room: Room | None = None,
    ) -> Float[Tensor, "b head i j"]:
        """A, the attention weights, for a tile: some images, heads, queries and keys.

        room: where the tile may lie, until the next one takes its place.
        """

    @property
    @abstractmethod
    def whole_rows(self) -> bool:
        """Whether a part of a row costs as much as all of it, for a softmax needs all scores."""

    @property
    def whole(self) -> Float[Tensor, "b i j"] | None:
        """All its weights, where there is one head and they are at hand."""
        return None

    def full(self) -> "AttentionCall":
        """The same in the dtype of its weights, so that tiles need not convert."""
        if self.v is None or self.v.dtype == self.dtype:
            return self
        return replace(self, v=self.v.to(self.dtype))

    @property
    def batch(self) -> int:
        return self.shape[0]

    @property
    def heads(self) -> int:
        return self.shape[1]

    @property
    def queries(self) -> int:
        return self.shape[2]

    @property
    def keys(self) -> int:
        return self.shape[3]

    @property
    def device(self) -> torch.device:
        return self.source.device

    @property
    def dtype(self) -> torch.dtype:
        """What scores and weights are computed in: float32, or float64 if the network ran in it."""
        return torch.promote_types(self.source.dtype, torch.float32)


@dataclass(frozen=True, eq=False)
class Fused(AttentionCall):
    """A = softmax(scale q k' + mask), made by a fused kernel, which kept no weights.

    q, k: (b head i d), (b head j d), as the kernel got them. mask: True where i may attend to j, or
    a number added to the score; it broadcasts to (b head i j). causal: i attends to j <= i only.
    lse: (b head i), log sum_j exp(score_ij), where the kernel told and nothing is masked: then
    A_ij = 2^((score_ij - lse_i) log2(e)), a tile of any shape by itself.
    """

    q: Tensor = field(repr=False)
    k: Tensor = field(repr=False)
    scale: float
    mask: Tensor | None = field(repr=False)
    causal: bool
    lse: Tensor | None = field(default=None, repr=False)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads, queries, _ = self.q.shape
        return batch, heads, queries, self.k.shape[2]

    @property
    def source(self) -> Tensor:
        return self.q

    @property
    def sums_to_one(self) -> bool:
        if self.mask is None:
            return True
        seen = self.mask if self.mask.dtype == torch.bool else self.mask != -torch.inf
        return bool(seen.any(-1).all())

    def scores(
        self,
        images: slice = ALL,
        heads: slice = ALL,
        rows: slice | Tensor = ALL,
        room: Room | None = None,
    ) -> Float[Tensor, "b head i j"]:
        q, k = self.q[images, heads, rows].to(self.dtype), self.k[images, heads].to(self.dtype)
        scores = product(q, k.mT, "weights", room, self.scale)
        if self.mask is not None:
            mask = self.mask.expand(self.batch, self.heads, *self.mask.shape[-2:])[images, heads]
            mask = mask[:, :, rows] if mask.shape[2] > 1 else mask
            if mask.dtype == torch.bool:
                scores.masked_fill_(~mask, -torch.inf)
            else:
                scores += mask
        if self.causal:
            query = torch.arange(self.queries, device=self.device)[rows, None]
            scores.masked_fill_(query < torch.arange(self.keys, device=self.device), -torch.inf)
        return scores

    def weights(
        self,
        images: slice = ALL,
        heads: slice = ALL,
        rows: slice | Tensor = ALL,
        keys: slice = ALL,
        room: Room | None = None,
    ) -> Float[Tensor, "b head i j"]:
        if self.lse is not None:
            q, k = self.q[images, heads, rows], self.k[images, heads, keys]
            lse, alpha = self.lse[images, heads, rows, None], self.scale * LOG2_E
            return product(q, k.mT, "weights", room, alpha, lse, -LOG2_E).exp2_()
        scores = self.scores(images, heads, rows, room)
        if self.mask is None:
            return torch.softmax(scores, -1, out=scores)[..., keys]
        blind = (scores == -torch.inf).all(-1, keepdim=True)  # such a query has no weights
        return torch.softmax(scores, -1, out=scores).masked_fill_(blind, 0)[..., keys]

    @property
    def whole_rows(self) -> bool:
        return self.lse is None

    def full(self) -> "AttentionCall":
        if self.q.dtype == self.k.dtype == self.dtype:
            return super().full()
        v = None if self.v is None else self.v.to(self.dtype)
        return replace(self, v=v, q=self.q.to(self.dtype), k=self.k.to(self.dtype))


@dataclass(frozen=True, eq=False)
class WrittenOut(AttentionCall):
    """A as the network itself made it, in the open. given: what its softmax was given, if kept.

    known_shares: whether its rows are known to sum to 1, without a look.
    """

    made: Tensor = field(repr=False)
    given: Tensor | None = field(repr=False)
    known_shares: bool = False

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads, queries, keys = self.made.shape
        return batch, heads, queries, keys

    @property
    def source(self) -> Tensor:
        return self.made

    @property
    def sums_to_one(self) -> bool:
        if self.known_shares:
            return True
        off = (self.made.sum(-1, dtype=self.dtype) - 1).abs().max()
        return bool(off < 1e-3) and bool(self.made.min() >= 0)

    def scores(
        self,
        images: slice = ALL,
        heads: slice = ALL,
        rows: slice | Tensor = ALL,
        room: Room | None = None,
    ) -> Float[Tensor, "b head i j"]:
        if self.given is None:
            raise ValueError(f"{self.module}: the scores before its softmax are not known")
        return self.given[images, heads][:, :, rows].to(self.dtype)

    def weights(
        self,
        images: slice = ALL,
        heads: slice = ALL,
        rows: slice | Tensor = ALL,
        keys: slice = ALL,
        room: Room | None = None,
    ) -> Float[Tensor, "b head i j"]:
        return self.made[images, heads][:, :, rows, keys].to(self.dtype)

    @property
    def whole_rows(self) -> bool:
        return False

    @property
    def whole(self) -> Float[Tensor, "b i j"] | None:
        return self.made[:, 0] if self.heads == 1 and self.made.dtype == self.dtype else None
