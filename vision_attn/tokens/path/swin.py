"""Where Swin's windows lie, for its page: timm's and torchvision's, v1 and v2.

The places are found by doing to the tokens' numbers what the network does to the tokens.

Axes: h height, w width, n tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.inference import modules_of
from vision_attn.tokens.record.calls import AttentionCall
from vision_attn.types import TokenLayout

__all__ = ["LayerWindows", "SwinBlock", "layer_windows", "swin_plan"]

Pair = tuple[int, int]

SWINS = {"SwinTransformer", "SwinTransformerV2"}


@dataclass(frozen=True)
class SwinBlock:
    """A Swin block: its window (h, w), its shift (h, w), and whether it pads before it shifts.

    Examples:
        >>> from vision_attn.tokens.path.swin import SwinBlock, window_places
        >>> window_places(2, 4, SwinBlock(window=(2, 2), shift=(0, 0), pads_first=False)).tolist()
        [[0, 1, 4, 5], [2, 3, 6, 7]]
    """

    window: Pair
    shift: Pair
    pads_first: bool


@dataclass(frozen=True, eq=False)
class LayerWindows:
    """Where the tokens of one layer lie, and which of them meet.

    Attributes:
        grid: The layer's tokens, (h, w).
        merged: Each spans merged x merged patches.
        window: (h, w) of a window in tokens.
        shift: Of the windows in tokens, (h, w).
        places: The token in each place of each window, the number of tokens if none.
        regions: Two places of a window attend to each other if their numbers are equal; the mask of
            shifted windows keeps the others apart.

    Examples:
        >>> import torch
        >>> from timm.models.swin_transformer import SwinTransformer
        >>> from vision_attn.tokens import layout_of, record_attention
        >>> from vision_attn.tokens.path.swin import layer_windows
        >>> network = SwinTransformer(
        ...     img_size=32, window_size=4, embed_dim=6, depths=(2,), num_heads=(1,)
        ... ).eval()
        >>> with record_attention(network, keep=()) as record:
        ...     logits = network(torch.rand(1, 3, 32, 32))
        >>> shifted = layer_windows(network, record.calls, layout_of(network, (32, 32)))[1]
        >>> shifted.grid, shifted.shift, shifted.regions[3].unique().tolist()
        ((8, 8), (2, 2), [0, 1, 2, 3])
    """

    call: AttentionCall
    grid: Pair
    merged: int
    window: Pair
    shift: Pair
    places: Int[Tensor, "window place"]
    regions: Int[Tensor, "window place"]


def layer_windows(
    network: nn.Module, calls: Sequence[AttentionCall], layout: TokenLayout
) -> list[LayerWindows] | None:
    """List the windows of each attention call of a Swin that ran one image; None for others.

    Raises ValueError where the windows that ran are not those that the network's blocks describe.
    """
    plan = swin_plan(network)
    if plan is None:
        return None
    if (blocks := sum(block is not None for block in plan)) != len(calls):
        raise ValueError(f"expected {blocks} windowed attention calls, {len(calls)} were recorded")
    windows, (h, w), merged, remaining = [], layout.grid, 1, iter(calls)
    for block in plan:
        if block is None:
            h, w, merged = (h + 1) // 2, (w + 1) // 2, 2 * merged
            continue
        call, token_indices = next(remaining), window_places(h, w, block)
        if (call.batch, call.queries) != tuple(token_indices.shape):
            raise ValueError(
                f"{call.module} attended in {call.batch} windows of {call.queries} tokens, but a "
                f"grid of {h}x{w} has {len(token_indices)} of {token_indices.shape[1]}: give the "
                "layout of the first layer's patches"
            )
        windows.append(
            LayerWindows(
                *(call, (h, w), merged, block.window, _shift(h, w, block)),
                *(token_indices, window_regions(h, w, block)),
            )
        )
    return windows


def swin_plan(network: nn.Module) -> list[SwinBlock | None] | None:
    """List a Swin's blocks in order, None for a merging of patches; None for other networks."""
    for module in modules_of(network):
        if type(module).__name__ in SWINS:
            package = type(module).__module__.partition(".")[0]
            if package == "timm":
                return list(_timm(module))
            if package == "torchvision":
                return list(_torchvision(module))
    return None


def window_places(h: int, w: int, block: SwinBlock) -> Int[Tensor, "window place"]:
    """Find the token in each place of each window; h * w where there is padding."""
    numbers = torch.arange(h * w, device="cpu").view(h, w)
    padding, (down, right) = _padding(h, w, block), _shift(h, w, block)
    if block.pads_first:
        numbers = F.pad(numbers, padding, value=h * w).roll((-down, -right), (0, 1))
    else:
        numbers = F.pad(numbers.roll((-down, -right), (0, 1)), padding, value=h * w)
    return _partition(numbers, block)


def window_regions(h: int, w: int, block: SwinBlock) -> Int[Tensor, "window place"]:
    """Number the regions of each window that the mask of shifted windows keeps apart.

    The seam lies where a cyclic shift joins opposite edges: a shift's length before the end of the
    padded grid, also where timm, which shifts before it pads, has the edges meet elsewhere.
    """
    _, right, _, below = _padding(h, w, block)
    down, along = (
        torch.arange(side, device="cpu") >= (side - shift if shift else side)
        for side, shift in zip((h + below, w + right), _shift(h, w, block), strict=True)
    )
    return _partition(2 * down[:, None].long() + along.long(), block)


def _partition(numbers: Int[Tensor, "h w"], block: SwinBlock) -> Int[Tensor, "window place"]:
    rows, columns = block.window
    return rearrange(numbers, "(Y y) (X x) -> (Y X) (y x)", y=rows, x=columns)


def _padding(h: int, w: int, block: SwinBlock) -> tuple[int, int, int, int]:
    """Return what F.pad takes: left, right, above, below."""
    return (0, -w % block.window[1], 0, -h % block.window[0])


def _shift(h: int, w: int, block: SwinBlock) -> Pair:
    """Return the shift that is made: torchvision makes none along an axis of one window."""
    (rows, columns), (down, right) = block.window, block.shift
    if block.pads_first:
        _, beside, _, below = _padding(h, w, block)
        return down * (rows < h + below), right * (columns < w + beside)
    return down, right


def _timm(network: Any) -> Iterator[SwinBlock | None]:
    for stage in network.layers:
        if not isinstance(stage.downsample, nn.Identity):
            yield None
        for block in stage.blocks:
            yield SwinBlock(tuple(block.window_size), tuple(block.shift_size), pads_first=False)


def _torchvision(network: Any) -> Iterator[SwinBlock | None]:
    for stage in list(network.features)[1:]:
        if not isinstance(stage, nn.Sequential):
            yield None
            continue
        for block in stage:
            attn: Any = block.attn
            yield SwinBlock(tuple(attn.window_size), tuple(attn.shift_size), pads_first=True)
