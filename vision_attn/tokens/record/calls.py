"""One attention call of a network, and its weights in tiles.

Axes: b batch (windows count as batch), head, i queries, j keys, d head width, e value width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, e, log2, prod

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = [
    "CPU_TILE",
    "AttentionCall",
    "ExplicitWeights",
    "Fusion",
    "LazyWeights",
    "Tile",
    "Workspace",
    "cut_tiles",
    "evenly",
    "product",
]

ALL = slice(None)
LOG2_E = log2(e)

# Elements of a tile for each core of a CPU: so few that its cache has what one operation wrote for
# the next. Measured by benchmarks/rollout.py.
CPU_TILE = 3 * 2**18


class Workspace:
    """Memory that the tiles of a layer take turns in, by the name of what is in it.

    On a CPU a tile in fresh memory takes twice as long: the system hands it out page by page.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.record.calls import Workspace
        >>> workspace = Workspace()
        >>> first = workspace.buffer("weights", (2, 3), like=torch.zeros(1))
        >>> second = workspace.buffer("weights", (3,), like=torch.zeros(1))
        >>> first.data_ptr() == second.data_ptr()
        True
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def buffer(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return memory of this shape, of the dtype and on the device of `like`.

        What was in the last buffer of this name is lost.
        """
        size, buffer = prod(shape), self._buffers.get(name)
        if (
            buffer is None
            or buffer.numel() < size
            or buffer.dtype != like.dtype
            or (buffer.is_inference() and not torch.is_inference_mode_enabled())
        ):
            buffer = self._buffers[name] = like.new_empty(shape)
        return buffer if buffer.shape == shape else buffer.flatten()[:size].view(*shape)


@dataclass(frozen=True)
class Tile:
    """A part of an attention map (b head i j), and the memory to compute it in.

    Attributes:
        images: A slice of the axis b.
        heads: A slice of the axis head.
        rows: A slice or indices of the axis i.
        keys: A slice of the axis j.
        workspace: Where the tile may lie until the next one takes its place; None takes fresh
            memory.

    Examples:
        >>> from vision_attn.tokens.record.calls import Tile
        >>> Tile(rows=slice(0, 1)).keys
        slice(None, None, None)
    """

    images: slice = field(default_factory=lambda: ALL)  # Python 3.11 takes no slice for a default
    heads: slice = field(default_factory=lambda: ALL)
    rows: slice | Tensor = field(default_factory=lambda: ALL)
    keys: slice = field(default_factory=lambda: ALL)
    workspace: Workspace | None = None


def cut_tiles(batch: int, heads: int, rows: int, keys: int, limit: int) -> Iterator[Tile]:
    """Cut (batch, heads, rows) into nearly equal tiles of at most `limit` elements.

    Rows are cut first, then heads, then images; keys stay whole.

    Examples:
        >>> from vision_attn.tokens.record.calls import cut_tiles
        >>> [tile.rows for tile in cut_tiles(batch=1, heads=1, rows=4, keys=10, limit=20)]
        [slice(0, 2, None), slice(2, 4, None)]
    """
    if not rows:
        return
    t = evenly(rows, limit // keys)
    h = evenly(heads, limit // (rows * keys)) if t == rows else 1
    b = evenly(batch, limit // (heads * rows * keys)) if h == heads else 1
    for image in range(0, batch, b):
        for head in range(0, heads, h):
            for row in range(0, rows, t):
                images = slice(image, min(image + b, batch))
                yield Tile(images, slice(head, head + h), slice(row, row + t))


def evenly(size: int, most: int) -> int:
    """Return the length of few and nearly equal pieces of at most `most`; at least 1.

    Examples:
        >>> from vision_attn.tokens.record.calls import evenly
        >>> evenly(10, most=6)
        5
    """
    return ceil(size / ceil(size / max(1, most)))


def product(
    a: Float[Tensor, "b head i d"],
    b: Float[Tensor, "b head d j"],
    name: str,
    workspace: Workspace | None,
    alpha: float = 1.0,
    plus: Float[Tensor, "b head i 1"] | None = None,
    beta: float = 1.0,
) -> Float[Tensor, "b head i j"]:
    """Compute alpha a b + beta plus, in the workspace's buffer of this name if there is one."""
    shape = (*a.shape[:3], b.shape[3])
    out = None if workspace is None else workspace.buffer(name, shape, a).flatten(0, 1)
    if plus is None:
        plus, beta = a.new_empty(1, 1, 1, 1), 0.0
    a, b, plus = a.flatten(0, 1), b.flatten(0, 1), plus.flatten(0, 1)
    return torch.baddbmm(plus, a, b, beta=beta, alpha=alpha, out=out).view(shape)


@dataclass(frozen=True)
class Fusion:
    """How the weights of the heads (b head i j) become one map (b i j), in memory of its own.

    A single head's weights must come out as they are.

    Attributes:
        keeps_row_sums: Whether rows of the map sum to 1 where those of every head do.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.record.calls import Fusion
        >>> mean = Fusion(lambda weights: weights.mean(1), keeps_row_sums=True)
        >>> mean.fuse(torch.eye(2).expand(1, 3, 2, 2)).shape
        torch.Size([1, 2, 2])
    """

    fuse: Callable[[Tensor], Tensor]
    keeps_row_sums: bool = False


@dataclass(frozen=True, eq=False)
class AttentionCall(ABC):
    """One call of attention, context = A v, as a network computed it.

    v and context are None where the recorder was not asked to keep them, or where they are not
    known.

    Attributes:
        module: The name of the module that attended.
        v: The values, (b head j e).
        context: The output, (b head i e), on the autograd graph of the run.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens import record_attention
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> with record_attention(network) as record:
        ...     logits = network(torch.rand(2, 3, 16, 16))
        >>> call = record.calls[0]
        >>> call.module, call.shape
        ('blocks.0.attn.attend', (2, 3, 5, 5))
        >>> call.weights(rows=slice(0, 1)).sum(-1).allclose(torch.ones(2, 3, 1))
        True
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
        """The tensor that the weights come from, with their device and the network's dtype."""

    @property
    @abstractmethod
    def sums_to_one(self) -> bool:
        """Whether no weight is below 0 and those of each query sum to 1."""

    @abstractmethod
    def tile_scores(self, tile: Tile) -> Float[Tensor, "b head i j"]:
        """Compute the input of the softmax for a tile.

        Args:
            tile: Which images, heads and queries; its `keys` do not count: all are taken.

        Raises:
            ValueError: It is not known.
        """

    @abstractmethod
    def tile_weights(self, tile: Tile) -> Float[Tensor, "b head i j"]:
        """Compute A, the attention weights, for a tile.

        Args:
            tile: Which images, heads, queries and keys.
        """

    @property
    @abstractmethod
    def needs_full_rows(self) -> bool:
        """Whether part of a row costs as much as all of it, as a softmax needs all scores."""

    def scores(
        self, images: slice = ALL, heads: slice = ALL, rows: slice | Tensor = ALL
    ) -> Float[Tensor, "b head i j"]:
        """Compute the input of the softmax for some images, heads and queries.

        Args:
            images: Which of the batch, windows among them.
            heads: Which heads.
            rows: Which queries.

        Returns:
            The scores, (b head i j).

        Raises:
            ValueError: They are not known.
        """
        return self.tile_scores(Tile(images, heads, rows))

    def weights(
        self,
        images: slice = ALL,
        heads: slice = ALL,
        rows: slice | Tensor = ALL,
        keys: slice = ALL,
    ) -> Float[Tensor, "b head i j"]:
        """Compute A, the attention weights, for some images, heads, queries and keys.

        Args:
            images: Which of the batch, windows among them.
            heads: Which heads.
            rows: Which queries.
            keys: Which keys.

        Returns:
            The weights, (b head i j).
        """
        return self.tile_weights(Tile(images, heads, rows, keys))

    @property
    def single_head(self) -> Float[Tensor, "b i j"] | None:
        """All weights, if there is one head and they are at hand in their own dtype."""
        return None

    def upcast(self) -> "AttentionCall":
        """Return the same call in the dtype of its weights, so that tiles need not convert."""
        if self.v is None or self.v.dtype == self.dtype:
            return self
        return replace(self, v=self.v.to(self.dtype))

    @property
    def batch(self) -> int:
        """Number of images, times windows an image where attention is in windows."""
        return self.shape[0]

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.shape[1]

    @property
    def queries(self) -> int:
        """Number of queries."""
        return self.shape[2]

    @property
    def keys(self) -> int:
        """Number of keys."""
        return self.shape[3]

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.source.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of scores and weights: float32, or float64 if the network ran in it."""
        return torch.promote_types(self.source.dtype, torch.float32)


@dataclass(frozen=True, eq=False)
class LazyWeights(AttentionCall):
    """A = softmax(scale q k' + mask), from a fused kernel that kept no weights.

    Attributes:
        q: (b head i d), as the kernel got them.
        k: (b head j d), as the kernel got them.
        mask: True where i may attend to j, or a number added to the score; it broadcasts to (b head
            i j).
        causal: Whether i attends to j <= i only.
        lse: (b head i), log sum_j exp(score_ij), if the kernel returned it and nothing is masked:
            then A_ij = 2^((score_ij - lse_i) log2(e)), a tile of any shape by itself.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.record.calls import LazyWeights
        >>> q, k = torch.randn(2, 1, 3, 5, 8)
        >>> call = LazyWeights("", None, None, q=q, k=k, scale=1.0, mask=None, causal=True)
        >>> call.weights(rows=slice(0, 1))[0, 0].tolist()
        [[1.0, 0.0, 0.0, 0.0, 0.0]]
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
        visible = self.mask if self.mask.dtype == torch.bool else self.mask != -torch.inf
        return bool(visible.any(-1).all())

    def tile_scores(self, tile: Tile) -> Float[Tensor, "b head i j"]:
        images, heads, rows = tile.images, tile.heads, tile.rows
        q, k = self.q[images, heads, rows].to(self.dtype), self.k[images, heads].to(self.dtype)
        scores = product(q, k.mT, "weights", tile.workspace, self.scale)
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

    def tile_weights(self, tile: Tile) -> Float[Tensor, "b head i j"]:
        if self.lse is not None:
            q = self.q[tile.images, tile.heads, tile.rows]
            k = self.k[tile.images, tile.heads, tile.keys]
            lse = self.lse[tile.images, tile.heads, tile.rows, None]
            alpha = self.scale * LOG2_E
            return product(q, k.mT, "weights", tile.workspace, alpha, lse, -LOG2_E).exp2_()
        scores = self.tile_scores(tile)
        if scores.requires_grad:
            return self._weights_on_graph(scores)[..., tile.keys]
        if self.mask is None:
            return torch.softmax(scores, -1, out=scores)[..., tile.keys]
        blind = (scores == -torch.inf).all(-1, keepdim=True)  # such a query has no weights
        return torch.softmax(scores, -1, out=scores).masked_fill_(blind, 0)[..., tile.keys]

    def _weights_on_graph(self, scores: Tensor) -> Tensor:
        """Compute the softmax with its gradient; a query that sees nothing has neither."""
        if self.mask is None:
            return scores.softmax(-1)
        blind = (scores == -torch.inf).all(-1, keepdim=True)
        return scores.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0)

    @property
    def needs_full_rows(self) -> bool:
        return self.lse is None

    def upcast(self) -> "AttentionCall":
        if self.q.dtype == self.k.dtype == self.dtype:
            return super().upcast()
        v = None if self.v is None else self.v.to(self.dtype)
        return replace(self, v=v, q=self.q.to(self.dtype), k=self.k.to(self.dtype))


@dataclass(frozen=True, eq=False)
class ExplicitWeights(AttentionCall):
    """A as the network itself computed it.

    Attributes:
        all_weights: (b head i j).
        all_scores: The input of its softmax, of the same shape, if kept.
        normalized: Whether each row is known to sum to 1; False has the rows summed to find out.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.record.calls import ExplicitWeights
        >>> weights = torch.rand(1, 3, 5, 5).softmax(-1)
        >>> call = ExplicitWeights("", None, None, all_weights=weights, all_scores=None)
        >>> call.sums_to_one
        True
    """

    all_weights: Tensor = field(repr=False)
    all_scores: Tensor | None = field(repr=False)
    normalized: bool = False

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads, queries, keys = self.all_weights.shape
        return batch, heads, queries, keys

    @property
    def source(self) -> Tensor:
        return self.all_weights

    @property
    def sums_to_one(self) -> bool:
        if self.normalized:
            return True
        error = (self.all_weights.sum(-1, dtype=self.dtype) - 1).abs().max()
        return bool(error < 1e-3) and bool(self.all_weights.min() >= 0)

    def tile_scores(self, tile: Tile) -> Float[Tensor, "b head i j"]:
        if self.all_scores is None:
            raise ValueError(f"{self.module}: the scores before its softmax are not known")
        return self.all_scores[tile.images, tile.heads][:, :, tile.rows].to(self.dtype)

    def tile_weights(self, tile: Tile) -> Float[Tensor, "b head i j"]:
        weights = self.all_weights[tile.images, tile.heads][:, :, tile.rows, tile.keys]
        return weights.to(self.dtype)

    @property
    def needs_full_rows(self) -> bool:
        return False

    @property
    def single_head(self) -> Float[Tensor, "b i j"] | None:
        weights = self.all_weights
        return weights[:, 0] if weights.shape[1] == 1 and weights.dtype == self.dtype else None
