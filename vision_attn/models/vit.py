"""The Vision Transformer, Dosovitskiy et al. 2021, with a slot for any attention and any readout.

Axes: b batch, c channels, h height, w width, n tokens, m kept patches, d width of a token,
k classes. Parameters are named as in timm, so timm's weights load with strict=True.
"""

from collections.abc import Callable
from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention import ClassToken, MeanPool, MultiHeadAttention, Readout
from vision_attn.attention.checks import at_least_one
from vision_attn.errors import quoted
from vision_attn.models.checkpoint import Rebuildable
from vision_attn.models.layers import DropPath, LayerScale, Mlp, resampled_positions
from vision_attn.types import Images, Logits, Pool, TokenLayout

__all__ = ["Block", "ConvEmbed", "PatchEmbed", "ViT"]

DEEPEST = 10_000  # blocks: more are a slip, and take memory without an end

Tokens = Float[Tensor, "b n d"]
Attention = Callable[..., nn.Module]  # attention(dim=d, heads=h), then (tokens, layout=layout)
Embed = Callable[..., nn.Module]  # embed(dim=d, patch_size=p), then images -> (b n d)
POOLS: dict[Literal["cls", "mean"], type[Readout]] = {"cls": ClassToken, "mean": MeanPool}


class PatchConv(nn.Conv2d):
    """A convolution whose stride is its size, as one matrix product.

    On a CPU that is several times faster where patches are small.

    Examples:
        >>> import torch
        >>> from vision_attn.models.vit import PatchConv
        >>> PatchConv(3, 12, kernel_size=8, stride=8)(torch.randn(2, 3, 16, 24)).shape
        torch.Size([2, 12, 2, 3])
    """

    def forward(self, images: Images) -> Float[Tensor, "b d y x"]:
        p, q = self.kernel_size
        patches = rearrange(images, "b c (y p) (x q) -> b y x (c p q)", p=p, q=q)
        return F.linear(patches, self.weight.flatten(1), self.bias).movedim(-1, 1)


class PatchEmbed(nn.Module):
    """One token for each patch of the image: a convolution whose stride is its size.

    Args:
        dim: The tokens' width.
        patch_size: Side of a patch in pixels.

    Examples:
        >>> import torch
        >>> from vision_attn.models import PatchEmbed
        >>> PatchEmbed(dim=12, patch_size=8)(torch.randn(2, 3, 16, 24)).shape  # 2 x 3 patches
        torch.Size([2, 6, 12])
    """

    def __init__(self, dim: int, patch_size: int = 4):
        super().__init__()
        self.proj = PatchConv(3, dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, images: Images) -> Tokens:
        return self.proj(images).flatten(2).mT


class ConvEmbed(nn.Module):
    """Convolutions and pooling instead of patches: relu(conv x), halved, until a token is p pixels.

    Hassani et al. 2021, Compact Convolutional Transformers (arXiv:2104.05704). Its tokens overlap,
    and a small set of small images teaches it more than it does bare patches. `dim` channels come
    out of the last convolution, half as many out of those one halving before, and so on.

    Args:
        dim: The tokens' width.
        patch_size: p, a power of 2.
        depth: Convolutions a halving, which comes after the first.
        norm: Whether each has a batch norm.
        strided: Whether the first convolution of each halving has stride 2, without pooling: a
            fourth of its work (Xiao et al. 2021, Early Convolutions Help Transformers See Better,
            arXiv:2106.14881).

    Raises:
        ValueError: `patch_size` is no power of 2, or `depth` is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.models import ConvEmbed
        >>> ConvEmbed(dim=12, patch_size=4)(torch.randn(2, 3, 16, 24)).shape  # 4 x 6 places
        torch.Size([2, 24, 12])
    """

    def __init__(
        self,
        dim: int,
        patch_size: int = 4,
        depth: int = 1,
        norm: bool = False,
        strided: bool = False,
    ):
        super().__init__()
        halvings = patch_size.bit_length() - 1
        if patch_size != 2**halvings or patch_size < 2:
            raise ValueError(f"patch_size must be a power of 2, at least 2, got {patch_size}")
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}")
        self.depth, self.strided = depth, strided
        widths = [max(1, dim >> i) for i in range(halvings) for _ in range(depth)][::-1]
        stride = 2 if strided else 1
        convs = [
            nn.Conv2d(c_in, c_out, 3, 1 if i % depth else stride, padding=1, bias=False)
            for i, (c_in, c_out) in enumerate(zip([3, *widths], widths, strict=False))
        ]
        for conv in convs:
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
        self.convs = nn.ModuleList(convs)
        self.norms = nn.ModuleList(nn.BatchNorm2d(c) if norm else nn.Identity() for c in widths)

    def forward(self, images: Images) -> Tokens:
        x = images
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = conv(x)
            if not self.strided and i % self.depth == 0:  # first, as the rest has less to do then
                x = F.max_pool2d(x, 3, stride=2, padding=1)
            x = F.relu(norm(x))
        return rearrange(x, "b d h w -> b (h w) d")


class Block(nn.Module):
    """x + attention(norm x), then x + mlp(norm x).

    Examples:
        >>> import torch
        >>> from vision_attn.attention import MultiHeadAttention
        >>> from vision_attn.models.vit import Block
        >>> block = Block(12, 3, 2.0, MultiHeadAttention, layer_scale=None, drop_path=0.0)
        >>> block(torch.randn(2, 5, 12)).shape
        torch.Size([2, 5, 12])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        mlp_ratio: float,
        attention: Attention,
        layer_scale: float | None,
        drop_path: float,
    ):
        super().__init__()
        scale = (lambda: LayerScale(dim, layer_scale)) if layer_scale else nn.Identity
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = attention(dim=dim, heads=heads)
        self.ls1 = scale()
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim, round(dim * mlp_ratio))
        self.ls2 = scale()
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tokens, layout: TokenLayout | None = None) -> Tokens:
        x = x + self.drop_path(self.ls1(self.attn(self.norm1(x), layout=layout)))
        return x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))


class ViT(Rebuildable):
    """Vision Transformer: patches to tokens, blocks of attention, a readout, a linear classifier.

    Args:
        image_size: (h, w) of the learned positions, or one number for both; any other size whose
            sides are multiples of patch_size works too, with the positions resampled.
        patch_size: Side of a patch in pixels.
        num_classes: How many classes; 0: no classifier, the output is what the readout gives.
        dim: The tokens' width.
        depth: How many blocks.
        heads: Heads of each block's attention.
        mlp_ratio: How many times wider than the tokens each block's MLP is inside.
        pool: A factory of a readout, called as pool(dim=dim), then (tokens, layout=layout) ->
            vector; "cls" is `ClassToken`, "mean" `MeanPool`.
        class_token: Whether there is a class token.
        registers: How many more learned tokens there are beside the class token.
        embed_prefix: Whether class token and registers have positions too.
        norm_after_pool: Whether the last norm comes after the readout; None: where the mean is
            pooled.
        attention: A factory of each block's attention, called as `attention(dim=dim, heads=heads)`.
        layer_scale: Start value of a learned scale on each branch (Touvron 2021); None: there is
            none.
        drop_path: Share of branches dropped in the last block, rising from 0 in the first.
        patch_drop: Share of patches dropped in training, in [0, 1).
        embed: What makes tokens of the image, called as `embed(dim=dim, patch_size=patch_size)`.

    Raises:
        ValueError: A number is out of range, the sides of the image are no multiples of
            `patch_size`, or `pool` is unknown or reads a class token that is not there.

    Examples:
        >>> import torch
        >>> from vision_attn.models import ViT
        >>> vit = ViT(image_size=16, patch_size=8, num_classes=3, dim=12, depth=2, heads=2)
        >>> vit(torch.randn(2, 3, 16, 16)).shape
        torch.Size([2, 3])
        >>> vit.layout((16, 24))  # another size: the positions are resampled
        TokenLayout(prefix=1, grid=(2, 3), pool='cls', class_token=True, registers=())
    """

    def __init__(
        self,
        image_size: int | tuple[int, int] = 64,
        patch_size: int = 8,
        num_classes: int = 10,
        dim: int = 192,
        depth: int = 6,
        heads: int = 3,
        mlp_ratio: float = 4.0,
        pool: Literal["cls", "mean"] | Callable[..., nn.Module] = "cls",
        class_token: bool = True,
        registers: int = 0,
        embed_prefix: bool = True,
        norm_after_pool: bool | None = None,
        attention: Attention = MultiHeadAttention,
        layer_scale: float | None = None,
        drop_path: float = 0.0,
        patch_drop: float = 0.0,
        embed: Embed = PatchEmbed,
    ):
        super().__init__()
        at_least_one(patch_size=patch_size, dim=dim)
        if depth > DEEPEST:
            raise ValueError(f"depth must be at most {DEEPEST}, got {depth}")
        if not 0 <= patch_drop < 1:
            raise ValueError(f"patch_drop must be at least 0 and below 1, got {patch_drop}")
        if isinstance(pool, str) and pool not in POOLS:
            raise ValueError(
                f"pool must be cls, mean or the factory of a readout, got {quoted(pool)}"
            )
        self.patch_size, self.patch_drop = patch_size, patch_drop
        self.class_token, self.prefix = class_token, int(class_token) + registers
        height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
        self.grid = self._grid(height, width)
        positions = self.grid[0] * self.grid[1] + (self.prefix if embed_prefix else 0)

        self.patch_embed = embed(dim=dim, patch_size=patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim)) if class_token else None
        self.reg_token = nn.Parameter(torch.zeros(1, registers, dim)) if registers else None
        self.pos_embed = nn.Parameter(torch.zeros(1, positions, dim))
        self.blocks = nn.ModuleList(
            Block(dim, heads, mlp_ratio, attention, layer_scale, drop_path * i / max(depth - 1, 1))
            for i in range(depth)
        )
        readout = POOLS[pool](dim) if isinstance(pool, str) else pool(dim=dim)
        if isinstance(readout, MeanPool):
            readout.prefix = self.prefix  # also where patches are left out, and there is no layout
        names: dict[type, Pool] = {kind: name for name, kind in POOLS.items()}
        self.pool = names.get(type(readout), "attention")
        if self.pool == "cls" and not class_token:
            raise ValueError("pool='cls' reads the class token, but class_token is False")
        if norm_after_pool is None:
            norm_after_pool = self.pool == "mean"
        self.norm = nn.Identity() if norm_after_pool else nn.LayerNorm(dim, eps=1e-6)
        self.readout = readout
        dim = getattr(self.readout, "out_dim", dim)
        self.fc_norm = nn.LayerNorm(dim, eps=1e-6) if norm_after_pool else nn.Identity()
        self.head = nn.Linear(dim, num_classes) if num_classes > 0 else nn.Identity()
        self.init_weights()

    def layout(self, image_size: tuple[int, int]) -> TokenLayout:
        """How the tokens of an image lie.

        Args:
            image_size: (height, width) in pixels.

        Raises:
            ValueError: A side is no multiple of the patch size.
        """
        return TokenLayout(self.prefix, self._grid(*image_size), self.pool, self.class_token)

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        if height % self.patch_size or width % self.patch_size or min(height, width) < 1:
            raise ValueError(
                f"expected an image whose sides are multiples of the patch size {self.patch_size}, "
                f"got {height}x{width} (height x width)"
            )
        return height // self.patch_size, width // self.patch_size

    def forward(self, images: Images) -> Logits:
        keep = None
        if self.training and self.patch_drop > 0:
            patches = images[0, 0].numel() // self.patch_size**2
            order = torch.rand(len(images), patches, device=images.device).argsort(dim=1)
            keep = order[:, : max(1, round(patches * (1 - self.patch_drop)))]
        return self.forward_kept_tokens(images, keep)

    def forward_kept_tokens(self, images: Images, keep: Int[Tensor, "b m"] | None) -> Logits:
        """Compute the logits where only some of the patches exist.

        Args:
            images: (b 3 h w).
            keep: The indices of each image's patches, row by row from 0; None: all of them.

        Raises:
            ValueError: A side is no multiple of the patch size, or no patch is kept and the readout
                reads the patches.
        """
        if keep is not None and keep.shape[1] == 0 and self.pool != "cls":
            raise ValueError(f"keep at least one patch: pool={quoted(self.pool)} reads the patches")
        whole = self.layout((images.shape[-2], images.shape[-1]))
        layout = whole if keep is None else None  # patches with gaps are no grid
        x = self.tokens(images, whole.grid, keep)
        for block in self.blocks:
            x = block(x, layout)
        return self.head(self.fc_norm(self.readout(self.norm(x), layout=layout)))

    def tokens(
        self, images: Images, grid: tuple[int, int], keep: Int[Tensor, "b m"] | None
    ) -> Tokens:
        """Make the tokens with positions: class token, registers, the kept patches in order.

        Args:
            images: (b 3 h w).
            grid: Rows and columns of patches.
            keep: The indices of each image's patches, row by row from 0; None: all of them.

        Returns:
            The tokens, (b n d).
        """
        embedded = self.pos_embed.shape[1] - self.grid[0] * self.grid[1]
        positions = resampled_positions(self.pos_embed, embedded, self.grid, grid)
        patches = self.patch_embed(images) + positions[:, embedded:]
        if keep is not None:
            patches = patches.take_along_dim(keep[..., None], dim=1)
        prefix: list[Tensor] = [t for t in (self.cls_token, self.reg_token) if t is not None]
        if not prefix:
            return patches
        first = torch.cat(prefix, dim=1)
        first = first + positions[:, :embedded] if embedded else first
        return torch.cat([first.expand(images.shape[0], -1, -1), patches], dim=1)

    def init_weights(self) -> None:
        """Draw the weights as timm does: deviation 0.02, positions too, prefix tokens near 0."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        for token in (self.cls_token, self.reg_token):
            if token is not None:
                nn.init.normal_(token, std=1e-6)
