"""One attention call of a network, and its weights in tiles.

Axes: b batch (windows count as batch), head, i queries, j keys, d head width, e value width.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

ALL = slice(None)


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
        self, images: slice = ALL, heads: slice = ALL, rows: slice | Tensor = ALL
    ) -> Float[Tensor, "b head i j"]:
        """What the softmax is given, for a tile: some images, heads and queries, all keys."""

    @abstractmethod
    def weights(
        self, images: slice = ALL, heads: slice = ALL, rows: slice | Tensor = ALL
    ) -> Float[Tensor, "b head i j"]:
        """A, the attention weights, for a tile: some images, heads and queries, all keys."""

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
    """

    q: Tensor = field(repr=False)
    k: Tensor = field(repr=False)
    scale: float
    mask: Tensor | None = field(repr=False)
    causal: bool

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
        self, images: slice = ALL, heads: slice = ALL, rows: slice | Tensor = ALL
    ) -> Float[Tensor, "b head i j"]:
        q, k = self.q[images, heads][:, :, rows], self.k[images, heads]
        scores = (q.to(self.dtype) * self.scale) @ k.to(self.dtype).mT
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
        self, images: slice = ALL, heads: slice = ALL, rows: slice | Tensor = ALL
    ) -> Float[Tensor, "b head i j"]:
        scores = self.scores(images, heads, rows)
        weights = scores.softmax(-1)
        if self.mask is not None:  # a query that may attend to nothing has no weights
            weights.masked_fill_((scores == -torch.inf).all(-1, keepdim=True), 0)
        return weights


@dataclass(frozen=True, eq=False)
class WrittenOut(AttentionCall):
    """A as the network itself made it, in the open. given: what its softmax was given, if kept."""

    made: Tensor = field(repr=False)
    given: Tensor | None = field(repr=False)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads, queries, keys = self.made.shape
        return batch, heads, queries, keys

    @property
    def source(self) -> Tensor:
        return self.made

    @property
    def sums_to_one(self) -> bool:
        off = (self.made.sum(-1, dtype=self.dtype) - 1).abs().max()
        return bool(off < 1e-3) and bool(self.made.min() >= 0)

    def scores(
        self, images: slice = ALL, heads: slice = ALL, rows: slice | Tensor = ALL
    ) -> Float[Tensor, "b head i j"]:
        if self.given is None:
            raise ValueError(f"{self.module}: the scores before its softmax are not known")
        return self.given[images, heads][:, :, rows].to(self.dtype)

    def weights(
        self, images: slice = ALL, heads: slice = ALL, rows: slice | Tensor = ALL
    ) -> Float[Tensor, "b head i j"]:
        return self.made[images, heads][:, :, rows].to(self.dtype)
