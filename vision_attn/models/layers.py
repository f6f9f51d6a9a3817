"""Layers of Vision Transformers, named as in timm, whose import takes twice as long as torch's.

Axes: b batch, n tokens, d width of a token.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["DropPath", "LayerScale", "Mlp", "resampled_positions"]

Tokens = Float[Tensor, "*b n d"]


class Mlp(nn.Module):
    """fc2(GELU(fc1 x)), of as many features as it takes.

    Examples:
        >>> import torch
        >>> from vision_attn.models.layers import Mlp
        >>> Mlp(dim=3, hidden_dim=5)(torch.randn(2, 7, 3)).shape
        torch.Size([2, 7, 3])
    """

    def __init__(self, dim: int, hidden_dim: int):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dim, dim)

    def forward(self, x: Tokens) -> Tokens:
        return self.fc2(self.act(self.fc1(x)))


class LayerScale(nn.Module):
    """gamma * x, a learned factor for each feature that starts small. Touvron et al. 2021, CaiT.

    Examples:
        >>> import torch
        >>> from vision_attn.models.layers import LayerScale
        >>> LayerScale(dim=3, start=0.5)(torch.ones(1, 2, 3)).sum()
        tensor(3., grad_fn=<SumBackward0>)
    """

    def __init__(self, dim: int, start: float = 1e-5):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), start))

    def forward(self, x: Tokens) -> Tokens:
        return x * self.gamma


class DropPath(nn.Module):
    """In training, 0 in place of each sample with a probability; the others make up for the mean.

    Stochastic depth, Huang et al. 2016.

    Examples:
        >>> import torch
        >>> from vision_attn.models.layers import DropPath
        >>> DropPath(0.5).eval()(torch.ones(2, 1, 1)).sum()
        tensor(2.)
    """

    def __init__(self, drop_prob: float):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tokens) -> Tokens:
        if self.drop_prob == 0 or not self.training:
            return x
        keep_prob = 1 - self.drop_prob
        mask = x.new_empty((len(x), *[1] * (x.ndim - 1))).bernoulli_(keep_prob)
        return x * (mask.div_(keep_prob) if keep_prob > 0 else mask)

    def extra_repr(self) -> str:
        return f"{self.drop_prob:g}"


def resampled_positions(
    positions: Float[Tensor, "1 n d"],
    prefix: int,
    grid: tuple[int, int],
    wanted: tuple[int, int],
) -> Float[Tensor, "1 m d"]:
    """Resample learned positions of a grid (h, w) to another one; those of the prefix stay.

    Bicubic, with the low-pass filter that making an image smaller takes.

    Examples:
        >>> import torch
        >>> from vision_attn.models.layers import resampled_positions
        >>> resampled_positions(torch.zeros(1, 1 + 6, 5), 1, (2, 3), (4, 7)).shape
        torch.Size([1, 29, 5])
    """
    if grid == wanted:
        return positions
    image = positions[:, prefix:].unflatten(1, grid).permute(0, 3, 1, 2)
    resized = F.interpolate(image.float(), wanted, mode="bicubic", antialias=True)
    patches = resized.flatten(2).transpose(1, 2).to(positions.dtype)
    return torch.cat([positions[:, :prefix], patches], dim=1)
