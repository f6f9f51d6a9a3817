"""A wide, shallow convolutional network for small images that learns in ten epochs, with gates.

Axes: b batch, c channels, h height, w width, n patches, a axes of a patch, k classes.
"""

from collections.abc import Callable
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention import SqueezeExcite
from vision_attn.models.checkpoint import Rebuildable
from vision_attn.types import Images, Logits

__all__ = ["FastCNN", "Whitening", "WideBlock", "WideEmbed"]


class Whitening(nn.Module):
    """The principal axes of a patch, each scaled to variance 1, and the same negated.

    W = [V; -V], V = diag(1 / sqrt(lambda + eps)) U' where U diag(lambda) U' is the covariance of
    all patches: `fit` computes it from images (Page 2018, Jordan 2024). W is never trained, only
    the bias is. Before `fit`, and without it, W is random.

    Args:
        channels: Channels of the images.
        kernel_size: Side of a patch in pixels.

    Examples:
        >>> import torch
        >>> from vision_attn.models import Whitening
        >>> layer = Whitening(channels=3, kernel_size=2)
        >>> layer.fit(torch.randn(50, 3, 8, 8))
        >>> layer(torch.randn(1, 3, 8, 8)).shape  # 2 x 12 axes of a 3 x 2 x 2 patch
        torch.Size([1, 24, 7, 7])
    """

    def __init__(self, channels: int = 3, kernel_size: int = 2):
        super().__init__()
        size = channels * kernel_size**2
        self.conv = nn.Conv2d(channels, 2 * size, kernel_size)
        self.conv.weight.requires_grad_(False)

    @torch.no_grad()
    def fit(self, images: Images, eps: float = 5e-4) -> None:
        """Whiten the patches of these images, which are as the network will get them.

        Args:
            images: (b c h w).
            eps: What is added to the variance of each axis.
        """
        columns = F.unfold(images.float(), self.conv.kernel_size)
        patches = rearrange(columns, "b size n -> (b n) size")
        values, axes = torch.linalg.eigh(patches.T.cov().double())
        whitening = (axes / (values + eps).sqrt()).T.to(self.conv.weight)
        self.conv.weight.copy_(torch.cat([whitening, -whitening]).view_as(self.conv.weight))
        self.conv.bias.zero_()  # type: ignore[union-attr]

    def forward(self, images: Images) -> Float[Tensor, "b a rows columns"]:
        return self.conv(images)


class WideBlock(nn.Module):
    """gelu(bn(pool(conv x))), gelu(bn(conv x)), then the gate; the image is halved.

    The first filters of each convolution pass their channels on as they are, to start with.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import SqueezeExcite
        >>> from vision_attn.models.fast_cnn import WideBlock
        >>> WideBlock(8, 16, SqueezeExcite, memory=0.6)(torch.randn(2, 8, 6, 6)).shape
        torch.Size([2, 16, 3, 3])
    """

    def __init__(self, c_in: int, c_out: int, gate: Callable[..., nn.Module], memory: float):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out, momentum=1 - memory)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out, momentum=1 - memory)
        module: Any = gate(channels=c_out)
        module.orthogonal = False  # Muon's steps are too large where no norm follows
        self.gate = module
        for convolution in (self.conv1, self.conv2):
            nn.init.dirac_(convolution.weight[: convolution.in_channels])
        for norm in (self.bn1, self.bn2):
            norm.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.bn1(F.max_pool2d(self.conv1(x), 2)))
        return self.gate(F.gelu(self.bn2(self.conv2(x))))


class WideEmbed(nn.Module):
    """Whitened patches and wide blocks instead of the patches of a ViT: a token is p pixels wide.

    The first blocks of `FastCNN` without gates, for `ViT(embed=WideEmbed)`: each halves the image,
    the last has `dim` channels. An alternative to `ConvEmbed` that learns faster. Call
    `whitening.fit` on training images first: `vision_attn.training.Whiten` does.

    Args:
        dim: The tokens' width.
        patch_size: p, 2 to the power of the number of blocks.
        widths: Channels of the blocks before the last.
        memory: How much of their running statistics the norms keep at each step.

    Raises:
        ValueError: `patch_size` does not fit the number of blocks.

    Examples:
        >>> import torch
        >>> from vision_attn.models import WideEmbed
        >>> WideEmbed(dim=12, patch_size=4, widths=(8,))(torch.randn(2, 3, 16, 24)).shape
        torch.Size([2, 24, 12])
    """

    def __init__(
        self,
        dim: int,
        patch_size: int = 4,
        widths: tuple[int, ...] = (64,),
        memory: float = 0.6,
    ):
        super().__init__()
        if patch_size != 2 ** (len(widths) + 1):
            raise ValueError(
                f"each block halves the image: expected patch_size {2 ** (len(widths) + 1)} with "
                f"widths {widths}, got {patch_size}"
            )
        self.whitening = Whitening()
        starts = (self.whitening.conv.out_channels, *widths)
        self.blocks = nn.ModuleList(
            WideBlock(c_in, c_out, nn.Identity, memory)
            for c_in, c_out in zip(starts, (*widths, dim), strict=True)
        )

    def forward(self, images: Images) -> Float[Tensor, "b n d"]:
        x = F.gelu(self.whitening(F.pad(images, (0, 1, 0, 1), mode="reflect")))
        for block in self.blocks:
            x = block(x)
        return rearrange(x, "b d h w -> b (h w) d")


class FastCNN(Rebuildable):
    """Whitened patches, wide blocks, the maximum over places, a linear classifier.

    The network of Jordan 2024 (arXiv:2404.00498), "94 % on CIFAR-10 in 3.29 seconds on a single
    GPU", with a gate, of channels or of places, at the end of each block, which starts as the
    identity where it can. Call `whitening.fit` on training images first:
    `vision_attn.training.Whiten` does.

    Args:
        num_classes: How many classes.
        widths: Channels of each block.
        gate: Called as `gate(channels=c)`.
        memory: How much of their running statistics the norms keep at each step.
        gain: What the logits are multiplied by.

    Examples:
        >>> import torch
        >>> from vision_attn.models import FastCNN
        >>> FastCNN(num_classes=3, widths=(8, 8, 8))(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        num_classes: int = 10,
        widths: tuple[int, ...] = (64, 256, 256),
        gate: Callable[..., nn.Module] = SqueezeExcite,
        memory: float = 0.6,
        gain: float = 1 / 9,
    ):
        super().__init__()
        self.gain = gain
        self.whitening = Whitening()
        starts = (self.whitening.conv.out_channels, *widths)
        self.blocks = nn.ModuleList(
            WideBlock(c_in, c_out, gate, memory)
            for c_in, c_out in zip(starts, widths, strict=False)
        )
        self.fc = nn.Linear(widths[-1], num_classes, bias=False)
        nn.init.normal_(self.fc.weight)
        for module in self.modules():
            if callable(neutralize := getattr(module, "neutralize", None)):
                neutralize()

    def forward(self, images: Images) -> Logits:
        x = F.gelu(self.whitening(images))
        for block in self.blocks:
            x = block(x)
        return self.gain * self.fc(x.amax((2, 3)))
