"""Residual networks with a gate at the end of every block: SE-ResNet and its relatives.

Axes: b batch, c channels, h height, w width, k classes. Parameters are named as in timm.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention import SqueezeExcite
from vision_attn.models.checkpoint import Rebuildable
from vision_attn.types import Images, Logits

__all__ = [
    "BasicBlock",
    "Bottleneck",
    "SEResNet",
    "seresnet18",
    "seresnet34",
    "seresnet50",
    "seresnet101",
    "seresnet152",
]

GateFactory = Callable[..., nn.Module]  # called as gate(channels=c)

TIMM_GATE = partial(SqueezeExcite, divisor=8)


def conv(c_in: int, c_out: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Make a convolution that keeps the size but for its stride; a batch norm brings the bias."""
    return nn.Conv2d(c_in, c_out, kernel, stride, padding=kernel // 2, bias=False)


def shortcut(c_in: int, c_out: int, stride: int, pooled: bool) -> nn.Module | None:
    """The way past a block: 1x1 convolution where the block changes the shape, else none.

    pooled: halve by means of 2x2 pixels, so that none is left out, instead of by the convolution.
    """
    if stride == 1 and c_in == c_out:
        return None
    if pooled:
        means = nn.AvgPool2d(stride, ceil_mode=True, count_include_pad=False)
        pool = means if stride > 1 else nn.Identity()
        return nn.Sequential(pool, conv(c_in, c_out, 1), nn.BatchNorm2d(c_out))
    return nn.Sequential(conv(c_in, c_out, 1, stride), nn.BatchNorm2d(c_out))


def deep_stem(width: int) -> nn.Sequential:
    """Three 3x3 convolutions, the first of stride 2, instead of one of 7x7."""
    half = width // 2
    return nn.Sequential(
        conv(3, half, 3, stride=2),
        nn.BatchNorm2d(half),
        nn.ReLU(inplace=True),
        conv(half, half, 3),
        nn.BatchNorm2d(half),
        nn.ReLU(inplace=True),
        conv(half, width, 3),
    )


class BasicBlock(nn.Module):
    """relu(gate(bn(conv(relu(bn(conv x))))) + x), He et al. 2016, the gate as Hu et al. 2018.

    Args:
        c_in: Channels of the block's input.
        width: Channels of the convolutions, and of the output.
        stride: By how much the first convolution and the shortcut shrink the feature map.
        gate: Called as `gate(channels=width)`.
        pooled: Whether the shortcut shrinks by means instead of leaving pixels out.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import SqueezeExcite
        >>> from vision_attn.models import BasicBlock
        >>> BasicBlock(16, 32, stride=2, gate=SqueezeExcite)(torch.randn(2, 16, 8, 8)).shape
        torch.Size([2, 32, 4, 4])
    """

    expansion = 1

    def __init__(self, c_in: int, width: int, stride: int, gate: GateFactory, pooled: bool = False):
        super().__init__()
        self.conv1 = conv(c_in, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.se = gate(channels=width)
        self.downsample = shortcut(c_in, width, stride, pooled)
        nn.init.zeros_(self.bn2.weight)  # a block starts as the identity

    def forward(self, x: Tensor) -> Tensor:
        past = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = self.bn2(self.conv2(x))
        return F.relu(self.se(x) + past, inplace=True)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions, the middle one narrow, then gate and shortcut.

    Args:
        c_in: Channels of the block's input.
        width: Channels of the first two convolutions; the output has `expansion` times as many.
        stride: By how much the 3x3 convolution and the shortcut shrink the feature map.
        gate: Called as `gate(channels=c)`, for the channels of the output.
        pooled: Whether the shortcut shrinks by means instead of leaving pixels out.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import SqueezeExcite
        >>> from vision_attn.models import Bottleneck
        >>> Bottleneck(16, 32, stride=1, gate=SqueezeExcite)(torch.randn(2, 16, 8, 8)).shape
        torch.Size([2, 128, 8, 8])
    """

    expansion = 4

    def __init__(self, c_in: int, width: int, stride: int, gate: GateFactory, pooled: bool = False):
        super().__init__()
        c_out = self.expansion * width
        self.conv1 = conv(c_in, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv(width, c_out, 1)
        self.bn3 = nn.BatchNorm2d(c_out)
        self.se = gate(channels=c_out)
        self.downsample = shortcut(c_in, c_out, stride, pooled)
        nn.init.zeros_(self.bn3.weight)

    def forward(self, x: Tensor) -> Tensor:
        past = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = F.relu(self.bn2(self.conv2(x)), inplace=True)
        x = self.bn3(self.conv3(x))
        return F.relu(self.se(x) + past, inplace=True)


STEMS: dict[str, Callable[[int], nn.Module]] = {
    "3x3": lambda width: conv(3, width, 3),
    "7x7": lambda width: conv(3, width, 7, stride=2),
    "deep": deep_stem,
}
Block = type[BasicBlock] | type[Bottleneck]


def stage(
    block: Block, depth: int, c_in: int, width: int, stride: int, gate: GateFactory, pooled: bool
) -> nn.Sequential:
    """`depth` blocks, the first of which changes resolution and channels."""
    rest = [block(block.expansion * width, width, 1, gate) for _ in range(depth - 1)]
    return nn.Sequential(block(c_in, width, stride, gate, pooled), *rest)


class SEResNet(Rebuildable):
    """A residual network in four stages, each but the first halving the feature map.

    Args:
        num_classes: How many classes.
        block: `BasicBlock` or `Bottleneck`.
        layers: Blocks of each stage.
        widths: Channels of each stage, before the block's expansion.
        stem: "3x3" keeps the resolution (32x32 images); "7x7" divides it by 4 (64x64 and larger);
            "deep" divides it by 4 too, by three 3x3 convolutions, and shortcuts halve by means
            instead of leaving pixels out (ResNet-D, He et al. 2019, arXiv:1812.01187; timm's
            `stem_type="deep", avg_down=True`).
        gate: Called as `gate(channels=c)`; timm's squeeze widths are those of
            `partial(SqueezeExcite, divisor=8)`, as in `seresnet18` and others.
        strides: By how much each stage shrinks the feature map; (1, 2, 2, 1) leaves the last one,
            and heatmaps of it, twice as fine.

    Examples:
        >>> import torch
        >>> from vision_attn.models import SEResNet
        >>> network = SEResNet(num_classes=3, layers=(1, 1, 1, 1), widths=(8, 8, 16, 16))
        >>> network(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        num_classes: int = 10,
        block: Block = BasicBlock,
        layers: tuple[int, int, int, int] = (2, 2, 2, 2),
        widths: tuple[int, int, int, int] = (64, 128, 256, 512),
        stem: Literal["3x3", "7x7", "deep"] = "3x3",
        gate: GateFactory = SqueezeExcite,
        strides: tuple[int, int, int, int] = (1, 2, 2, 2),
    ):
        super().__init__()
        self.conv1 = STEMS[stem](widths[0])
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.maxpool = nn.Identity() if stem == "3x3" else nn.MaxPool2d(3, stride=2, padding=1)
        starts = (widths[0], *(block.expansion * width for width in widths[:3]))
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            stage(block, depth, c_in, width, stride, gate, pooled=stem == "deep")
            for depth, c_in, width, stride in zip(layers, starts, widths, strides, strict=True)
        )
        self.fc = nn.Linear(block.expansion * widths[3], num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Images) -> Logits:
        x = self.maxpool(F.relu(self.bn1(self.conv1(images)), inplace=True))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def seresnet18(num_classes: int = 1000, gate: GateFactory = TIMM_GATE) -> SEResNet:
    """SE-ResNet-18 for 224x224: timm's `seresnet18` weights load strictly.

    Args:
        num_classes: How many logits.
        gate: Called as `gate(channels=c)`, once for each block.

    Returns:
        The network, with weights as they are drawn.
    """
    return SEResNet(num_classes, BasicBlock, (2, 2, 2, 2), stem="7x7", gate=gate)


def seresnet34(num_classes: int = 1000, gate: GateFactory = TIMM_GATE) -> SEResNet:
    """SE-ResNet-34 for 224x224: timm's `seresnet34` weights load strictly.

    Args:
        num_classes: How many logits.
        gate: Called as `gate(channels=c)`, once for each block.

    Returns:
        The network, with weights as they are drawn.
    """
    return SEResNet(num_classes, BasicBlock, (3, 4, 6, 3), stem="7x7", gate=gate)


def seresnet50(num_classes: int = 1000, gate: GateFactory = TIMM_GATE) -> SEResNet:
    """SE-ResNet-50 for 224x224: timm's `seresnet50` weights load strictly.

    Args:
        num_classes: How many logits.
        gate: Called as `gate(channels=c)`, once for each block.

    Returns:
        The network, with weights as they are drawn.
    """
    return SEResNet(num_classes, Bottleneck, (3, 4, 6, 3), stem="7x7", gate=gate)


def seresnet101(num_classes: int = 1000, gate: GateFactory = TIMM_GATE) -> SEResNet:
    """SE-ResNet-101 for 224x224: timm's `seresnet101` weights load strictly.

    Args:
        num_classes: How many logits.
        gate: Called as `gate(channels=c)`, once for each block.

    Returns:
        The network, with weights as they are drawn.
    """
    return SEResNet(num_classes, Bottleneck, (3, 4, 23, 3), stem="7x7", gate=gate)


def seresnet152(num_classes: int = 1000, gate: GateFactory = TIMM_GATE) -> SEResNet:
    """SE-ResNet-152 for 224x224: timm's `seresnet152` weights load strictly.

    Args:
        num_classes: How many logits.
        gate: Called as `gate(channels=c)`, once for each block.

    Returns:
        The network, with weights as they are drawn.
    """
    return SEResNet(num_classes, Bottleneck, (3, 8, 36, 3), stem="7x7", gate=gate)
