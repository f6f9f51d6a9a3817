"""Rotary positions: queries and keys are turned by angles that grow with their tokens' places.

Axes: b batch, n tokens, head, d_head width of a head, pairs of its features.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.attention.multihead import MultiHeadAttention
from vision_attn.types import TokenLayout

__all__ = ["RotaryAttention"]

PerHead = Float[Tensor, "b head n d_head"]


class RotaryAttention(MultiHeadAttention):
    """Multi-head self-attention with rotary positions: scores know how far apart two patches are.

    Each pair of a query's features is turned by the angle f y or f x, where y is the row and x the
    column of its patch, and so is each pair of a key's. A score that is their product then depends
    on where one lies as seen from the other. The frequencies f fall from 1 to about 1 / base; half
    of the pairs are for rows and half for columns. Class token and registers are not turned. RoPE:
    Su et al. 2021 (arXiv:2104.09864); with two axes and a base of 100: Heo et al. 2024
    (arXiv:2403.13298). A call without a layout raises ValueError: the places are not known.

    Args:
        dim: The tokens' width; dim / heads is a multiple of 4.
        heads: How many heads.
        base: What the lowest frequency is 1 / base of, about; above 1.
        options: Those of `MultiHeadAttention`.

    Raises:
        ValueError: `dim` does not fit the heads, or `base` is not above 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import RotaryAttention
        >>> from vision_attn.types import TokenLayout
        >>> attention = RotaryAttention(dim=16, heads=2)
        >>> layout = TokenLayout(prefix=1, grid=(2, 3), pool="cls", class_token=True)
        >>> attention(torch.randn(5, 7, 16), layout=layout).shape
        torch.Size([5, 7, 16])
    """

    def __init__(self, dim: int, heads: int = 8, *, base: float = 100.0, **options: Any):
        super().__init__(dim, heads, **options)
        width = dim // heads
        if width % 4:
            raise ValueError(
                "rotary positions turn two pairs of features at once: expected dim / heads to be a "
                f"multiple of 4, got {dim} / {heads}"
            )
        if not base > 1:
            raise ValueError(f"base must be above 1, got {base}")
        self.base, self.width = base, width

    def placed(self, q: PerHead, k: PerHead, layout: TokenLayout | None) -> tuple[PerHead, PerHead]:
        """Turn queries and keys by the places of their patches.

        Args:
            q: Queries, (b head n d/head).
            k: Keys, of the same tokens.
            layout: How the tokens lie on the image.

        Raises:
            ValueError: There is no layout, or it has another number of tokens.
        """
        if layout is None:
            raise ValueError(
                "rotary positions need the places of the tokens: give attention(tokens, "
                "layout=TokenLayout(...)); a ViT that leaves patches out has none: patch_drop=0"
            )
        if not q.shape[2] == k.shape[2] == layout.prefix + layout.grid[0] * layout.grid[1]:
            raise ValueError(
                f"expected the {layout.prefix} + {layout.grid[0]} x {layout.grid[1]} tokens of the "
                f"layout as queries and as keys, got {q.shape[2]} and {k.shape[2]}"
            )
        angles = self.angles(layout, torch.promote_types(q.dtype, torch.float32), q.device)
        cosine, sine = angles.cos().to(q.dtype), angles.sin().to(q.dtype)
        return _turned(q, cosine, sine), _turned(k, cosine, sine)

    def angles(
        self,
        layout: TokenLayout,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> Float[Tensor, "n pairs"]:
        """The angle of each token for each pair of features, in radians: 0 for no patch.

        Computed anew in each call: frequencies kept as a buffer would lose digits with the weights
        of a network in bfloat16.

        Args:
            layout: How the tokens lie on the image.
            dtype: Of the angles.
            device: Where they are made; None: torch's default.

        Returns:
            The angles, (n pairs).
        """
        options: Any = {"dtype": dtype, "device": device}
        frequencies = self.base ** (-torch.arange(0, self.width, 4, **options) / self.width)
        rows, columns = (torch.arange(side, **options) for side in layout.grid)
        positions = torch.cartesian_prod(rows, columns)
        angles = (positions[:, :, None] * frequencies).flatten(1)
        return torch.cat([angles.new_zeros(layout.prefix, angles.shape[1]), angles])


def _turned(
    x: PerHead, cosine: Float[Tensor, "n pairs"], sine: Float[Tensor, "n pairs"]
) -> PerHead:
    """Feature i and feature i + d_head / 2 are a pair."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)
