"""Encoders: from a source, text or image, to the memory that a decoder attends to.

Axes: b batch, s symbols of the source, n tokens of the memory, c channels, h height, w width,
d width of a token, t steps of the target.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import log
from typing import Literal, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from vision_attn.attention import MultiHeadAttention
from vision_attn.models.layers import Mlp
from vision_attn.models.vit import ViT
from vision_attn.types import PAD, Images

__all__ = [
    "ConvEncoder",
    "Encoder",
    "ImageEncoder",
    "Memory",
    "RecurrentEncoder",
    "SelfAttentionBlock",
    "SelfAttentionEncoder",
    "SymbolEmbedding",
    "ViTEncoder",
    "check_symbols",
    "sinusoids",
]

Symbols = Int[Tensor, "b s"]
Tokens = Float[Tensor, "b n d"]
CELLS: dict[str, type[nn.GRU] | type[nn.LSTM]] = {"gru": nn.GRU, "lstm": nn.LSTM}


class Memory(NamedTuple):
    """What an encoder keeps of a source.

    Attributes:
        tokens: What attention reads, (b n d).
        keys: What it finds them by, (b n d).
        exists: (b n), False where there is only padding, which comes last.
        summary: The source in one vector, (b d).

    Examples:
        >>> import torch
        >>> from vision_attn.sequences import RecurrentEncoder
        >>> memory = RecurrentEncoder(dim=8, symbols=11)(torch.tensor([[5, 6, 2], [7, 2, 0]]))
        >>> memory.tokens.shape, memory.summary.shape
        (torch.Size([2, 3, 8]), torch.Size([2, 8]))
        >>> memory.exists
        tensor([[ True,  True,  True],
                [ True,  True, False]])
    """

    tokens: Tensor
    keys: Tensor
    exists: Tensor
    summary: Tensor


class Encoder(nn.Module, ABC):
    """Base class: a source to a `Memory` of tokens `dim` wide; made as `Encoder(dim, **options)`.

    Examples:
        >>> import torch
        >>> from vision_attn.sequences import Encoder
        >>> from vision_attn.sequences.models.encoders import Memory
        >>> class Letters(Encoder):
        ...     def __init__(self, dim):
        ...         super().__init__()
        ...         self.embed = torch.nn.Embedding(11, dim)
        ...     def forward(self, source):
        ...         tokens = self.embed(source)
        ...         return Memory(tokens, tokens, source > 0, tokens.mean(1))
        >>> Letters(dim=8)(torch.tensor([[5, 6, 2]])).tokens.shape
        torch.Size([1, 3, 8])
    """

    @abstractmethod
    def forward(self, source: Tensor) -> Memory: ...


class ImageEncoder(Encoder):
    """Base class: encoder of images, whose tokens lie on a grid, column by column from the left.

    Examples:
        >>> import torch
        >>> from vision_attn.sequences import ConvEncoder
        >>> encoder = ConvEncoder(dim=8, widths=(4, 8, 8))
        >>> weights = torch.full((1, 2, 12), 1 / 12)  # of 2 steps over 12 tokens
        >>> encoder.grid((24, 32)), encoder.maps(weights, (24, 32)).shape
        ((3, 4), torch.Size([1, 2, 3, 4]))
    """

    @abstractmethod
    def grid(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """The rows and columns of tokens of an image.

        Args:
            image_size: (height, width) in pixels.
        """

    def maps(
        self, weights: Float[Tensor, "b t n"], image_size: tuple[int, int]
    ) -> Float[Tensor, "b t h w"]:
        """Lay weights over the tokens on their grid.

        Args:
            weights: (b t n).
            image_size: (height, width) of the images in pixels.

        Returns:
            The maps, (b t h w).
        """
        rows, _ = self.grid(image_size)
        return rearrange(weights, "b t (w h) -> b t h w", h=rows)

    def remembered(
        self, features: Float[Tensor, "b d h w"], keys: Float[Tensor, "b d h w"] | None = None
    ) -> Memory:
        """Make the memory of features.

        Args:
            features: The tokens on their grid, (b d h w).
            keys: What the tokens are found by, (b d h w); None: the features themselves.
        """
        tokens = rearrange(features, "b d h w -> b (w h) d")
        by = tokens if keys is None else rearrange(keys, "b d h w -> b (w h) d")
        return Memory(tokens, by, torch.ones_like(tokens[..., 0], dtype=torch.bool), by.mean(1))


def check_symbols(source: Symbols, symbols: int, longest: int) -> None:
    """Raise ValueError for an empty source, one too long, and numbers that stand for no symbol."""
    if source.size(1) == 0 or bool((source[:, 0] == PAD).any()):
        raise ValueError("expected at least one symbol in each source, got an empty one")
    if source.size(1) > longest:
        raise ValueError(
            f"expected sources of at most {longest} symbols, got {source.size(1)}: cut them, or "
            "build the network with a larger `longest`"
        )
    if int(source.max()) >= symbols or int(source.min()) < 0:
        raise ValueError(
            f"unknown symbol: expected numbers from 0 to {symbols - 1}, got {int(source.max())}; "
            "set the encoder's `symbols` to the size of the vocabulary"
        )


class RecurrentEncoder(Encoder):
    """A bidirectional recurrent network over the symbols, Bahdanau et al. 2015, section 3.2.

    Each token is [forward state; backward state], half of dim each; the summary is the last state
    of both.

    Args:
        dim: The tokens' width, even.
        symbols: Size of the vocabulary.
        longest: The longest source it takes.
        cell: The kind of network.
        dropout: The share of the embedded symbols' numbers set to 0 in training.

    Raises:
        ValueError: `dim` is odd or below 2.

    Examples:
        >>> import torch
        >>> from vision_attn.sequences import RecurrentEncoder
        >>> RecurrentEncoder(dim=8, symbols=11)(torch.tensor([[5, 6, 2]])).tokens.shape
        torch.Size([1, 3, 8])
    """

    def __init__(
        self,
        dim: int,
        symbols: int = 128,
        longest: int = 256,
        cell: Literal["gru", "lstm"] = "gru",
        dropout: float = 0.0,
    ):
        super().__init__()
        if dim < 2 or dim % 2:
            raise ValueError(f"dim must be even, one half a direction, got {dim}")
        self.symbols, self.longest = symbols, longest
        self.embed = nn.Embedding(symbols, dim, padding_idx=PAD)
        self.dropout = nn.Dropout(dropout)
        self.rnn = CELLS[cell](dim, dim // 2, batch_first=True, bidirectional=True)

    def forward(self, source: Symbols) -> Memory:
        check_symbols(source, self.symbols, self.longest)
        exists = source != PAD
        embedded = self.dropout(self.embed(source))
        lengths = exists.sum(1).cpu()
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        states, last = self.rnn(packed)
        tokens, _ = pad_packed_sequence(states, batch_first=True, total_length=source.size(1))
        ends = last[0] if isinstance(last, tuple) else last  # of an LSTM: (hidden, cell)
        return Memory(tokens, tokens, exists, torch.cat([ends[0], ends[1]], dim=1))


class SelfAttentionBlock(nn.Module):
    """x + attention(norm x), then x + mlp(norm x), where some tokens are only padding.

    Examples:
        >>> import torch
        >>> from vision_attn.sequences.models.encoders import SelfAttentionBlock
        >>> block, exists = SelfAttentionBlock(8, 2, 2.0, 0.0), torch.ones(1, 1, 1, 5).bool()
        >>> block(torch.randn(1, 5, 8), exists).shape
        torch.Size([1, 5, 8])
    """

    def __init__(self, dim: int, heads: int, mlp_ratio: float, dropout: float):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = MultiHeadAttention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, round(dim * mlp_ratio))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tokens, mask: Bool[Tensor, "b 1 1 n"]) -> Tokens:
        x = x + self.dropout(self.attn(self.norm1(x), mask=mask))
        return x + self.dropout(self.mlp(self.norm2(x)))


class SelfAttentionEncoder(Encoder):
    """The encoder of a Transformer (Vaswani et al. 2017), norms first: symbols, sinusoids, blocks.

    The summary is the mean of the tokens.

    Args:
        dim: The tokens' width.
        symbols: Size of the vocabulary.
        longest: The longest source it takes.
        depth: How many blocks.
        heads: Heads of each block's attention.
        mlp_ratio: How many times wider than the tokens each block's MLP is inside.
        dropout: The share set to 0 in training.

    Examples:
        >>> import torch
        >>> from vision_attn.sequences import SelfAttentionEncoder
        >>> encoder = SelfAttentionEncoder(dim=8, symbols=11, depth=1, heads=2)
        >>> encoder(torch.tensor([[5, 6, 2]])).tokens.shape
        torch.Size([1, 3, 8])
    """

    def __init__(
        self,
        dim: int,
        symbols: int = 128,
        longest: int = 256,
        depth: int = 3,
        heads: int = 4,
        mlp_ratio: float = 2.0,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.symbols, self.longest = symbols, longest
        self.embed = SymbolEmbedding(symbols, dim, longest)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            SelfAttentionBlock(dim, heads, mlp_ratio, dropout) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, source: Symbols) -> Memory:
        check_symbols(source, self.symbols, self.longest)
        exists = source != PAD
        x = self.dropout(self.embed(source))
        for block in self.blocks:
            x = block(x, exists[:, None, None])
        x = self.norm(x)
        total = x.masked_fill(~exists[..., None], 0).sum(1)
        return Memory(x, x, exists, total / exists.sum(1, keepdim=True))


class SymbolEmbedding(nn.Module):
    """A learned vector a symbol plus sinusoids of its place, Vaswani et al. 2017, section 3.5.

    Examples:
        >>> import torch
        >>> from vision_attn.sequences.models.encoders import SymbolEmbedding
        >>> SymbolEmbedding(symbols=11, dim=8, longest=16)(torch.tensor([[5, 6, 2]])).shape
        torch.Size([1, 3, 8])
    """

    places: Tensor

    def __init__(self, symbols: int, dim: int, longest: int):
        super().__init__()
        self.embed = nn.Embedding(symbols, dim, padding_idx=PAD)
        self.register_buffer("places", sinusoids(longest, dim), persistent=False)

    def forward(self, symbols: Symbols, first: int = 0) -> Float[Tensor, "b s d"]:
        """Make the vectors of symbols.

        Args:
            symbols: (b s).
            first: The place of the first symbol.
        """
        return self.embed(symbols) + self.places[first : first + symbols.size(1)]


def sinusoids(length: int, dim: int) -> Float[Tensor, "length d"]:
    """sin(p / 10000^(2i / d)) for the even features 2i, cos for the odd ones after them."""
    rates = torch.exp(torch.arange(0, dim, 2) * (-log(10_000) / dim))
    angles = torch.arange(length)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :dim]


class ConvEncoder(ImageEncoder):
    """Encoder by convolutions: a token is what they see at its place and just around it.

    The value is the token alone, so attention must look at the thing itself.

    Args:
        dim: The tokens' width, even; without context a multiple of 4.
        widths: Channels of each convolution.
        sizes: Of their kernels; an even one halves the image, an odd one keeps it as large. None: 4
            each.
        context: Whether the key of a token also holds the output of a bidirectional GRU along the
            columns, so that a thing can be found by its neighbours to the left and right. Without
            it the key is the token with sinusoids of its place, and it takes another look to find a
            neighbour.
        span: How many columns are one step of the GRU; within a step the keys differ by their
            tokens alone.

    Raises:
        ValueError: `dim` does not fit, `span` is below 1, or there is not a size of at least 1 for
            each width.

    Examples:
        >>> import torch
        >>> from vision_attn.sequences import ConvEncoder
        >>> ConvEncoder(dim=8, widths=(4, 8, 8))(torch.randn(1, 3, 24, 32)).tokens.shape
        torch.Size([1, 12, 8])
    """

    def __init__(
        self,
        dim: int,
        widths: tuple[int, ...] = (32, 64, 128),
        sizes: tuple[int, ...] | None = None,
        context: bool = True,
        span: int = 1,
    ):
        super().__init__()
        if span < 1:
            raise ValueError(f"span must be at least 1 column, got {span}")
        if context and (dim < 2 or dim % 2):
            raise ValueError(f"dim must be even, one half a direction, got {dim}")
        if not context and (dim < 4 or dim % 4):
            raise ValueError(f"dim must be a multiple of 4, two sinusoids an axis, got {dim}")
        sizes = sizes or (4,) * len(widths)
        if len(sizes) != len(widths) or min(sizes) < 1:
            raise ValueError(
                f"expected {len(widths)} sizes of at least 1, one for each width, got {sizes}"
            )
        layers: list[nn.Module] = []
        for c_in, c_out, size in zip((3, *widths), widths, sizes, strict=False):
            stride = 2 - size % 2
            conv = nn.Conv2d(c_in, c_out, size, stride, (size - 1) // 2, bias=False)
            layers += [conv, nn.BatchNorm2d(c_out), nn.ReLU(inplace=True)]
        self.convs = nn.Sequential(*layers)
        self.cell, self.span = 2 ** sum(size % 2 == 0 for size in sizes), span
        self.proj = nn.Conv2d(widths[-1], dim, 1)
        self.rnn = None
        if context:
            self.rnn = nn.GRU(dim, dim // 2, batch_first=True, bidirectional=True)
            self.key_norm = nn.LayerNorm(dim)
        self.norm = nn.LayerNorm(dim)

    def grid(self, image_size: tuple[int, int]) -> tuple[int, int]:
        return image_size[0] // self.cell, image_size[1] // self.cell

    def forward(self, source: Images) -> Memory:
        features = self.proj(self.convs(source))  # b d h w
        if self.rnn is None:
            from timm.layers.pos_embed_sincos import build_sincos2d_pos_embed

            h, w = features.shape[-2:]
            places = build_sincos2d_pos_embed([h, w], features.size(1), device=features.device)
            return self.remembered(_each(self.norm, features + places.T.unflatten(1, (h, w))))
        columns = features.mean(2)  # b d w
        context, _ = self.rnn(F.avg_pool1d(columns, self.span, ceil_mode=True).mT)
        around = context.mT.repeat_interleave(self.span, 2)[..., : columns.size(2)]
        keys = _each(self.key_norm, features + around[:, :, None])
        return self.remembered(_each(self.norm, features), keys)


def _each(norm: nn.Module, features: Float[Tensor, "b d h w"]) -> Float[Tensor, "b d h w"]:
    """The features of each place, normalised."""
    return norm(features.movedim(1, -1)).movedim(-1, 1)


class ViTEncoder(ImageEncoder):
    """The trunk of a ViT: its patch tokens after the last norm.

    Args:
        dim: The tokens' width.
        image_size: (h, w) of the learned positions, or one number for both.
        patch_size: Side of a patch in pixels.
        depth: How many blocks.
        heads: Heads of each block's attention.
        mlp_ratio: How many times wider than the tokens each block's MLP is inside.
        attention: A factory of each block's attention.

    Raises:
        ValueError: As of `ViT`.

    Examples:
        >>> import torch
        >>> from vision_attn.sequences import ViTEncoder
        >>> encoder = ViTEncoder(dim=8, image_size=24, patch_size=8, depth=1, heads=2)
        >>> encoder(torch.randn(1, 3, 24, 32)).tokens.shape
        torch.Size([1, 12, 8])
    """

    def __init__(
        self,
        dim: int,
        image_size: int | tuple[int, int] = 64,
        patch_size: int = 8,
        depth: int = 4,
        heads: int = 4,
        mlp_ratio: float = 2.0,
        attention: Callable[..., nn.Module] = MultiHeadAttention,
    ):
        super().__init__()
        self.vit = ViT(
            image_size,
            patch_size,
            num_classes=0,
            dim=dim,
            depth=depth,
            heads=heads,
            mlp_ratio=mlp_ratio,
            pool="mean",
            class_token=False,
            norm_after_pool=False,
            attention=attention,
        )

    def grid(self, image_size: tuple[int, int]) -> tuple[int, int]:
        return self.vit.layout(image_size).grid

    def forward(self, source: Images) -> Memory:
        layout = self.vit.layout((source.shape[-2], source.shape[-1]))
        x = self.vit.tokens(source, layout.grid, None)
        for block in self.vit.blocks:
            x = block(x, layout)
        return self.remembered(self.vit.norm(x).mT.unflatten(2, layout.grid))
