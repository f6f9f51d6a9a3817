"""How the tokens of a network lie on its image.

Axes: b batch, n tokens.
"""

import sys
from typing import Any

from torch import nn

from vision_attn.arguments import checked
from vision_attn.compat.torch_private import CHILDREN
from vision_attn.errors import quoted
from vision_attn.tokens.modules import network_of
from vision_attn.types import Model, Pool, TokenLayout

__all__ = ["coarser", "layout_of", "patch_at", "tokens_of_pool"]

Size = tuple[int, int]

TIMM_POOLS: dict[str, Pool] = {"token": "cls", "avg": "mean", "map": "attention"}

# Attributes without one of which no module is of a known kind.
TELLING = "layout", "patch_embed", "embeds", "stem", "conv_proj", "features", "config"

# Hugging Face's config.model_type: prefix tokens before the registers, what the classifier reads.
HUGGING_FACE: dict[str, tuple[int, Pool]] = {
    "vit": (1, "cls"),
    "deit": (2, "cls"),
    "dinov2": (1, "cls_mean"),
    "dinov2_with_registers": (1, "cls_mean"),
    "dinov3_vit": (1, "cls"),
    "beit": (1, "cls"),
    "siglip": (0, "mean"),
    "siglip_vision_model": (0, "attention"),
    "siglip2_vision_model": (0, "attention"),
    "clip": (1, "mean"),
    "clip_vision_model": (1, "cls"),
}


@checked()
def layout_of(network: nn.Module | Model, image_size: tuple[int, int]) -> TokenLayout:
    """Find how the tokens of an image lie on it in this network.

    Looks through wrappers: the outermost module that says how its tokens lie is taken. For networks
    that merge patches as they go (Swin, LeViT) it is the layout of the first layer.

    Args:
        network: A network of a known kind, or one that holds one.
        image_size: (height, width) of the input in pixels.

    Returns:
        The layout.

    Raises:
        ValueError: No module is of a known kind; then give the explainer `layout=`.

    Examples:
        >>> from vision_attn.tokens import layout_of
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> layout = layout_of(network, (16, 16))
        >>> layout.prefix, layout.grid, layout.pool
        (1, (2, 2), 'cls')
    """
    network = network_of(network)
    for module in filter(_may_tell, network.modules()):
        for finder in (_own, _timm, _timm_levit, _torchvision, _hugging_face):
            layout = finder(module, image_size)
            if layout is not None:
                return layout
    raise ValueError(
        f"how the tokens of {type(network).__name__} lie on the image is not known: give "
        "layout=TokenLayout(prefix=class and register tokens, grid=(rows, columns), pool=..., "
        "class_token=whether the first is one)"
    )


def coarser(layout: TokenLayout, tokens: int) -> tuple[int, int]:
    """Find the grid of `tokens` patches, the layout's halved and rounded up a few times.

    Raises ValueError where no such grid has so many.

    Examples:
        >>> from vision_attn.tokens.layout import coarser
        >>> from vision_attn.types import TokenLayout
        >>> coarser(TokenLayout(0, (7, 6), "mean"), tokens=12)
        (4, 3)
    """
    h, w = layout.grid
    while h * w > tokens:
        h, w = (h + 1) // 2, (w + 1) // 2
    if h * w != tokens:
        raise ValueError(
            f"{tokens} tokens are not a coarser grid of {layout.grid[0]}x{layout.grid[1]}"
        )
    return h, w


def _may_tell(module: nn.Module) -> bool:
    """Whether a module has a name that a finder asks for: to fail on a module takes torch long."""
    kind, own = type(module), vars(module)
    if kind.__getattr__ is not nn.Module.__getattr__:
        return True
    held = own.keys() | own[CHILDREN].keys()
    return not held.isdisjoint(TELLING) or any(hasattr(kind, name) for name in TELLING)


def _own(module: Any, image_size: Size) -> TokenLayout | None:
    layout = getattr(module, "layout", None)
    return layout(image_size) if callable(layout) else None


def _timm(module: Any, image_size: Size) -> TokenLayout | None:
    """ViT, DeiT, BEiT, EVA, FlexiViT, NaFlexViT, CaiT, Swin and all that embed patches so."""
    embed: Any = getattr(module, "patch_embed", None) or getattr(module, "embeds", None)
    pool = getattr(module, "global_pool", None)
    if not isinstance(pool, str) or not hasattr(embed, "patch_size"):
        return None
    if hasattr(embed, "dynamic_feat_size"):
        h, w = embed.dynamic_feat_size(image_size)
    else:
        side = embed.patch_size  # an int in XCiT
        sides = (side, side) if isinstance(side, int) else side
        h, w = (size // side for size, side in zip(image_size, sides, strict=True))
    # NaFlexViT keeps the token with its embedding
    class_token = any(getattr(part, "cls_token", None) is not None for part in (module, embed))
    prefix = getattr(module, "num_prefix_tokens", int(class_token))
    if pool not in TIMM_POOLS or (pool == "avg" and getattr(module, "pool_include_prefix", False)):
        included = ", prefix tokens included" if pool == "avg" else ""
        raise ValueError(
            f"{type(module).__name__} pools by {quoted(pool)}{included}, which no layout can say: "
            "give "
            f"layout=TokenLayout({prefix}, ({h}, {w}), pool='mean') for the nearest"
        )
    named_pool = TIMM_POOLS[pool]
    if named_pool == "cls" and hasattr(module, "dist_token"):
        named_pool = "cls_dist"
    return TokenLayout(prefix, (h, w), named_pool, class_token)


def _timm_levit(module: Any, image_size: Size) -> TokenLayout | None:
    if not type(module).__name__.startswith("Levit") or not hasattr(module, "stem"):
        return None
    h, w = (-(-size // module.stem.stride) for size in image_size)
    return TokenLayout(0, (h, w), "mean")


def _torchvision(module: Any, image_size: Size) -> TokenLayout | None:
    if "torchvision" not in sys.modules:
        return None
    from torchvision.models import SwinTransformer, VisionTransformer

    if isinstance(module, VisionTransformer):
        h, w = (size // module.patch_size for size in image_size)
        return TokenLayout(1, (h, w), "cls", class_token=True)
    if isinstance(module, SwinTransformer):
        strides = module.features[0][0].stride
        h, w = (size // stride for size, stride in zip(image_size, strides, strict=True))
        return TokenLayout(0, (h, w), "mean")
    return None


def _hugging_face(module: Any, image_size: Size) -> TokenLayout | None:
    config: Any = getattr(module, "config", None)
    kind = getattr(config, "model_type", None)
    if kind not in HUGGING_FACE:
        return None
    config = getattr(config, "vision_config", config)
    prefix, pool = HUGGING_FACE[kind]
    if "Teacher" in type(module).__name__:
        pool = "cls_dist"
    if getattr(config, "use_mean_pooling", False):
        pool = "mean"
    if pool == "attention" and not getattr(config, "vision_use_head", True):
        pool = "mean"
    size = config.patch_size
    h, w = (size, size) if isinstance(size, int) else size
    registers = getattr(config, "num_register_tokens", 0)
    grid = (image_size[0] // h, image_size[1] // w)
    return TokenLayout(prefix + registers, grid, pool, class_token=prefix > 0)


def tokens_of_pool(layout: TokenLayout, tokens: int) -> list[tuple[slice | list[int], float]]:
    """List the parts of the last layer's `tokens` that the classifier reads, with their shares.

    Examples:
        >>> from vision_attn.tokens.layout import tokens_of_pool
        >>> from vision_attn.types import TokenLayout
        >>> tokens_of_pool(TokenLayout(1, (2, 2), "cls_mean"), tokens=5)
        [(slice(0, 1, None), 0.5), (slice(1, 5, None), 0.5)]
    """
    whole = tokens == layout.tokens
    patches = layout.patches if whole and layout.registers else slice(layout.prefix, tokens)
    if layout.pool == "cls":
        return [(slice(0, 1), 1.0)]
    if layout.pool == "cls_dist":
        return [(slice(0, 2), 1.0)]
    if layout.pool == "cls_mean":
        return [(slice(0, 1), 0.5), (patches, 0.5)]
    if layout.pool == "mean":
        return [(patches, 1.0)]
    return [(slice(0, tokens), 1.0)]


def patch_at(
    where: tuple[int, int] | tuple[float, float], grid: tuple[int, int], image_size: tuple[int, int]
) -> int:
    """Find the patch under a place of the image, counted row by row.

    where: (x, y), x to the right and y down: two whole numbers are pixels of the network's input,
    two fractions are shares of its width and height, from 0.0 to 1.0. Raises ValueError outside.

    Examples:
        >>> from vision_attn.tokens.layout import patch_at
        >>> patch_at((12, 3), grid=(2, 2), image_size=(16, 16))
        1
    """
    (x, y), (h, w) = where, image_size
    if isinstance(x, int) != isinstance(y, int):
        raise ValueError(f"expected two pixels (whole numbers) or two fractions, got {where}")
    if isinstance(x, int):
        right, down = (x + 0.5) / w, (y + 0.5) / h
        if not (0 <= x < w and 0 <= y < h):
            raise ValueError(f"pixel (x, y) = {where} is outside the image of {w}x{h} (w x h)")
    else:
        right, down = x, y
        if not (0 <= x <= 1 and 0 <= y <= 1):
            raise ValueError(f"place (x, y) = {where} is outside the image: 0.0 to 1.0 each")
    row, column = (min(int(share * n), n - 1) for share, n in zip((down, right), grid, strict=True))
    return row * grid[1] + column
