"""Gates: how much of each channel or place of a feature map passes, 0 to 1.

Axes: b batch, c channels, h height, w width, a hidden channels.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention.channels import channel_mean, channel_scale
from vision_attn.attention.checks import at_least_one, odd
from vision_attn.types import Images


class Gate(nn.Module, ABC):
    """x * gate(x); made as `Gate(channels)`.

    `neutralize` makes it start as the identity, where it can: gate(x) = 1/2 everywhere, times a
    gain of 2 (else the gain is 1).
    """

    def __init__(self, channels: int):
        super().__init__()
        at_least_one(channels=channels)
        self.channels = channels
        self.gain = 1.0

    @abstractmethod
    def gate(self, x: Images) -> Tensor:
        """What passes, in [0, 1]: (b c 1 1) of channels, (b 1 h w) of places."""

    def forward(self, x: Images) -> Images:
        return x * (self.gain * self.gate(x))

    def neutralize(self) -> None:
        """Let everything pass until training changes that."""
        last = self.last()
        if last is not None:
            for parameter in last.parameters():
                nn.init.zeros_(parameter)
            self.gain = 2.0

    def last(self) -> nn.Module | None:
        """The layer before the sigmoid; None: there is no such layer."""
        return None


@final
class NoGate(Gate):
    """Everything passes."""

    def gate(self, x: Images) -> Float[Tensor, "b 1 1 1"]:
        return x.new_ones(x.size(0), 1, 1, 1)

    def forward(self, x: Images) -> Images:
        return x


class ChannelMLP(Gate):
    """A gate of channels by fc2(relu(fc1(s))), s one number a channel; 1x1 convolutions as in timm.

    hidden: the width between them, channels / reduction where it is not given.
    """

    def __init__(self, channels: int, reduction: int, hidden: int | None, bias: bool):
        super().__init__(channels)
        at_least_one(reduction=reduction)
        hidden = max(1, channels // reduction) if hidden is None else hidden
        at_least_one(hidden=hidden)
        self.fc1 = nn.Conv2d(channels, hidden, 1, bias=bias)
        self.fc2 = nn.Conv2d(hidden, channels, 1, bias=bias)

    def excite(self, squeezed: Float[Tensor, "b c 1 1"]) -> Float[Tensor, "b c 1 1"]:
        # As matrix products: of 1x1 maps torch's convolutions take several times as long.
        hidden = F.linear(squeezed.flatten(1), self.fc1.weight.flatten(1), self.fc1.bias).relu()
        excited = F.linear(hidden, self.fc2.weight.flatten(1), self.fc2.bias)
        return excited[..., None, None]

    def forward(self, x: Images) -> Images:
        return channel_scale(x, self.gain * self.gate(x))

    def last(self) -> nn.Module:
        return self.fc2


@final
class SqueezeExcite(ChannelMLP):
    """sigmoid(W2 relu(W1 mean_hw(x) + b1) + b2), Hu et al. 2018.

    divisor: channels / reduction is rounded to a multiple of it, at least one; timm's is 8.
    """

    def __init__(
        self, channels: int, reduction: int = 16, hidden: int | None = None, divisor: int = 1
    ):
        at_least_one(reduction=reduction, divisor=divisor)
        if hidden is None:
            hidden = max(1, (channels // reduction + divisor // 2) // divisor) * divisor
        super().__init__(channels, reduction, hidden, bias=True)

    def gate(self, x: Images) -> Float[Tensor, "b c 1 1"]:
        return self.excite(channel_mean(x)).sigmoid()


@final
class ChannelGate(ChannelMLP):
    """sigmoid(mlp(mean_hw(x)) + mlp(max_hw(x))), one MLP for both, Woo et al. 2018, section 3."""

    def __init__(self, channels: int, reduction: int = 16, hidden: int | None = None):
        super().__init__(channels, reduction, hidden, bias=False)

    def gate(self, x: Images) -> Float[Tensor, "b c 1 1"]:
        peak = x.amax((2, 3), keepdim=True)
        return (self.excite(channel_mean(x)) + self.excite(peak)).sigmoid()


@final
class SpatialGate(Gate):
    """sigmoid(conv([mean_c(x); max_c(x)])), Woo et al. 2018, section 3."""

    def __init__(self, channels: int, kernel_size: int = 7):
        super().__init__(channels)
        odd(kernel_size=kernel_size)
        self.conv = nn.Conv2d(2, 1, kernel_size, padding=kernel_size // 2, bias=False)

    def gate(self, x: Images) -> Float[Tensor, "b 1 h w"]:
        return self.conv(torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)).sigmoid()

    def last(self) -> nn.Module:
        return self.conv


@final
class SpatialMask(Gate):
    """sigmoid(conv(relu(conv x))): the simplest attention in a CNN."""

    def __init__(self, channels: int, hidden: int | None = None, kernel_size: int = 3):
        super().__init__(channels)
        hidden = max(1, channels // 4) if hidden is None else hidden
        at_least_one(hidden=hidden)
        odd(kernel_size=kernel_size)
        self.conv1 = nn.Conv2d(channels, hidden, kernel_size, padding=kernel_size // 2)
        self.conv2 = nn.Conv2d(hidden, 1, 1)

    def gate(self, x: Images) -> Float[Tensor, "b 1 h w"]:
        return self.conv2(self.conv1(x).relu()).sigmoid()

    def last(self) -> nn.Module:
        return self.conv2


@final
class CBAM(nn.Sequential):
    """A channel gate, then a spatial gate, Woo et al. 2018."""

    channel: ChannelGate
    spatial: SpatialGate

    def __init__(self, channels: int, reduction: int = 16, kernel_size: int = 7):
        super().__init__(
            OrderedDict(
                channel=ChannelGate(channels, reduction),
                spatial=SpatialGate(channels, kernel_size),
            )
        )

    def neutralize(self) -> None:
        """Let everything pass until training changes that."""
        self.channel.neutralize()
        self.spatial.neutralize()
