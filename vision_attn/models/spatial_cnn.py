"""The simplest attention in a CNN: every block says where to look, and keeps only that.

Axes: b batch, c channels, h height, w width, k classes.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention import SpatialMask
from vision_attn.attention.checks import at_least_one
from vision_attn.models.checkpoint import Rebuildable
from vision_attn.types import Images, Logits

__all__ = ["GatedConv", "SpatialCNN"]


class GatedConv(nn.Module):
    """A convolution and its gate: t = relu(bn(conv x)), then t * gate(t).

    Args:
        stride: Of the convolution.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import SpatialMask
        >>> from vision_attn.models.spatial_cnn import GatedConv
        >>> GatedConv(3, 8, SpatialMask)(torch.randn(2, 3, 16, 16)).shape
        torch.Size([2, 8, 16, 16])
    """

    def __init__(self, c_in: int, c_out: int, gate: Callable[..., nn.Module], stride: int = 1):
        super().__init__()
        self.conv = nn.Conv2d(c_in, c_out, 3, stride, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(c_out)
        self.gate = gate(channels=c_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.gate(F.relu(self.bn(self.conv(x)), inplace=True))


class SpatialCNN(Rebuildable):
    """Stages of gated convolutions, halved between stages; mean over places, linear.

    Args:
        num_classes: How many classes.
        widths: Channels of each stage.
        depth: Convolutions of each stage.
        gate: Called as `gate(channels=c)`.
        stride: Of the first convolution; 2 makes every feature map, and every mask, half as fine
            for about a fourth of the work.

    Raises:
        ValueError: `stride` is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.models import SpatialCNN
        >>> SpatialCNN(num_classes=3, widths=(8, 8))(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        num_classes: int = 10,
        widths: tuple[int, ...] = (32, 64, 128, 256),
        depth: int = 1,
        gate: Callable[..., nn.Module] = SpatialMask,
        stride: int = 1,
    ):
        super().__init__()
        at_least_one(stride=stride)
        stages: list[nn.Module] = []
        for c_in, c_out in zip((3, *widths), widths, strict=False):
            first = GatedConv(c_in, c_out, gate, 1 if stages else stride)
            rest = [GatedConv(c_out, c_out, gate) for _ in range(depth - 1)]
            stages.append(nn.Sequential(first, *rest))
        self.stages = nn.ModuleList(stages)
        self.fc = nn.Linear(widths[-1], num_classes)

    def forward(self, images: Images) -> Logits:
        x = images
        for i, stage in enumerate(self.stages):
            x = stage(F.max_pool2d(x, 2) if i > 0 else x)
        return self.fc(x.mean((2, 3)))
