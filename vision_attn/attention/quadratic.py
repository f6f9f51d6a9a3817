"""Attention by relative position alone, which is what a convolution computes.

Axes: b batch, c channels, h height, w width, head, i queries (pixels), j keys (pixels).
"""

from typing import final

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention.checks import above_zero, at_least_one
from vision_attn.attention.normalizers import Softmax

__all__ = ["QuadraticAttention"]

Pixels = Float[Tensor, "b c h w"]


@final
class QuadraticAttention(nn.Module):
    """Multi-head self-attention of pixels with the quadratic encoding, Cordonnier et al. 2020.

    Head h attends from pixel i to around p_i + d_h: e_ij = -alpha_h |p_j - p_i - d_h|^2, softmax
    over all pixels j; the heads' contexts, concatenated, pass through a linear map. d_h (rows,
    columns) and alpha_h are learned.

    Args:
        dim: Channels of the image.
        out_dim: Channels of the result.
        heads: How many heads.
        margin: Rows and columns of zeros around the image, which are keys too.

    Raises:
        ValueError: A size is below 1, or `margin` below 0.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> from vision_attn.attention import QuadraticAttention
        >>> conv, image = nn.Conv2d(3, 4, 3, padding=1), torch.randn(1, 3, 5, 6)
        >>> attention = QuadraticAttention.from_conv(conv)
        >>> torch.allclose(attention(image), conv(image), atol=1e-5)
        True
    """

    def __init__(self, dim: int, out_dim: int, heads: int = 9, margin: int = 1):
        super().__init__()
        at_least_one(dim=dim, out_dim=out_dim, heads=heads)
        if margin < 0:
            raise ValueError(f"margin must be at least 0, got {margin}")
        self.margin = margin
        self.shift = nn.Parameter(torch.randn(heads, 2))
        self.locality = nn.Parameter(torch.ones(heads))
        self.normalizer = Softmax()
        self.proj = nn.Linear(heads * dim, out_dim)

    @classmethod
    def from_conv(cls, conv: nn.Conv2d, locality: int | float = 40.0) -> "QuadraticAttention":
        """Build the attention that computes what `conv` does: one head a place of the kernel.

        Args:
            conv: A convolution with an odd square kernel that keeps the image's size, without
                strides, gaps or groups.
            locality: alpha, above 0. Exact as it grows: the weight that misses its pixel is about 4
                exp(-alpha).

        Returns:
            The attention, with the dtype and on the device of `conv`.

        Raises:
            ValueError: `conv` is another convolution, or `locality` is not above 0.
        """
        above_zero(locality=locality)
        rows, columns = conv.kernel_size
        options = (conv.stride, conv.dilation, conv.groups, conv.padding_mode, conv.padding)
        supported = ((1, 1), (1, 1), 1, "zeros", (rows // 2, rows // 2))
        if rows != columns or rows % 2 == 0 or options != supported:
            raise ValueError(
                "expected an odd, square kernel, stride 1, no dilation, no groups, and zero "
                f"padding that keeps the image's size, got {conv}"
            )
        attention = cls(conv.in_channels, conv.out_channels, rows * columns, rows // 2)
        away = torch.arange(rows) - rows // 2
        with torch.no_grad():
            attention.shift.copy_(torch.cartesian_prod(away, away))
            attention.locality.fill_(locality)
            attention.proj.weight.copy_(rearrange(conv.weight, "o c y x -> o (y x c)"))
            attention.proj.bias.zero_()
            if conv.bias is not None:
                attention.proj.bias.copy_(conv.bias)
        return attention.to(conv.weight)

    def weights(self, size: tuple[int, int]) -> Float[Tensor, "head i j"]:
        """Compute the weights of all pixels, the margin's too, for every pixel.

        Args:
            size: The image's (h, w), without the margin.

        Returns:
            The weights, (head i j).
        """
        inside, around = self._places(size, 0), self._places(size, self.margin)
        away = around - inside[:, None] - self.shift[:, None, None]  # head i j 2
        return self.normalizer(-self.locality[:, None, None] * away.square().sum(-1))

    def forward(self, pixels: Pixels) -> Float[Tensor, "b out h w"]:
        """Compute the new pixels.

        Args:
            pixels: The image, (b c h w).

        Returns:
            The new image, (b out h w).
        """
        height, width = pixels.shape[2:]
        values = F.pad(pixels, (self.margin,) * 4).flatten(2).mT  # b j c
        contexts = self.weights((height, width)) @ values[:, None]  # b head i c
        joined = self.proj(rearrange(contexts, "b head i c -> b i (head c)"))
        return rearrange(joined, "b (h w) c -> b c h w", h=height)

    def _places(self, size: tuple[int, int], margin: int) -> Float[Tensor, "n 2"]:
        """Return row and column of each pixel, the margin's too."""
        rows, columns = (
            torch.arange(-margin, side + margin, device=self.shift.device, dtype=self.shift.dtype)
            for side in size
        )
        return torch.cartesian_prod(rows, columns)
