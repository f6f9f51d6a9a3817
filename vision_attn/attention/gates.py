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

__all__ = [
    "CBAM",
    "ChannelGate",
    "ChannelMLP",
    "Gate",
    "NoGate",
    "SpatialGate",
    "SpatialMask",
    "SqueezeExcite",
]


class Gate(nn.Module, ABC):
    """Base class: a feature map times its gate, x * gate(x), the gate in [0, 1].

    A subclass computes the gate in `gate`, and names in `last` the layer before its sigmoid, so
    that `neutralize` can make it start as the identity.

    Args:
        channels: Channels of the feature map.

    Raises:
        ValueError: `channels` is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import Gate
        >>> class Bright(Gate):
        ...     def gate(self, x):
        ...         return x.mean(1, keepdim=True).sigmoid()
        >>> Bright(channels=3)(torch.zeros(2, 3, 4, 4)).shape
        torch.Size([2, 3, 4, 4])
    """

    def __init__(self, channels: int):
        super().__init__()
        at_least_one(channels=channels)
        self.channels = channels
        self.gain = 1.0

    @abstractmethod
    def gate(self, x: Images) -> Tensor:
        """Compute what passes, in [0, 1].

        Args:
            x: The feature map, (b c h w).

        Returns:
            (b c 1 1) for channels, (b 1 h w) for places.
        """

    def forward(self, x: Images) -> Images:
        """Multiply the feature map by its gate.

        Args:
            x: The feature map, (b c h w).

        Returns:
            The same shape.
        """
        return x * (self.gain * self.gate(x))

    def neutralize(self) -> None:
        """Start as the identity: zero the layer before the sigmoid and double its 1/2.

        Without such a layer (`last` is None) nothing changes.
        """
        last = self.last()
        if last is not None:
            for parameter in last.parameters():
                nn.init.zeros_(parameter)
            self.gain = 2.0

    def last(self) -> nn.Module | None:
        """Return the layer before the sigmoid; None: there is no such layer."""
        return None


@final
class NoGate(Gate):
    """Identity gate: everything passes.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import NoGate
        >>> x = torch.randn(2, 3, 4, 4)
        >>> NoGate(channels=3)(x) is x
        True
    """

    def gate(self, x: Images) -> Float[Tensor, "b 1 1 1"]:
        return x.new_ones(x.size(0), 1, 1, 1)

    def forward(self, x: Images) -> Images:
        return x


class ChannelMLP(Gate):
    """Base class of channel gates by fc2(relu(fc1(s))), s one number a channel.

    The layers are 1x1 convolutions, named as timm's.

    Args:
        channels: Channels of the feature map.
        reduction: How many times narrower than the channels the width between the layers is.
        hidden: The width between the layers; None: max(1, channels // reduction).
        bias: Whether the layers have biases.

    Raises:
        ValueError: A size is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention.gates import ChannelMLP
        >>> class ByMaximum(ChannelMLP):
        ...     def gate(self, x):
        ...         return self.excite(x.amax((2, 3), keepdim=True)).sigmoid()
        >>> gate = ByMaximum(channels=8, reduction=4, hidden=None, bias=True)
        >>> gate(torch.randn(2, 8, 4, 4)).shape
        torch.Size([2, 8, 4, 4])
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
        """Compute fc2(relu(fc1(squeezed))), a number a channel, (b c 1 1) before the sigmoid."""
        hidden = F.linear(squeezed.flatten(1), self.fc1.weight.flatten(1), self.fc1.bias).relu()
        excited = F.linear(hidden, self.fc2.weight.flatten(1), self.fc2.bias)
        return excited[..., None, None]

    def forward(self, x: Images) -> Images:
        return channel_scale(x, self.gain * self.gate(x))

    def last(self) -> nn.Module:
        return self.fc2


@final
class SqueezeExcite(ChannelMLP):
    """Squeeze-and-excitation: channels gated by sigmoid(W2 relu(W1 mean_hw(x) + b1) + b2).

    Hu et al. 2018.

    Args:
        channels: Channels of the feature map.
        reduction: How many times narrower than the channels W1's output is.
        hidden: The width of W1's output; None: channels // reduction, rounded to a multiple of
            `divisor`, at least one.
        divisor: See `hidden`; timm's is 8.

    Raises:
        ValueError: A size is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import SqueezeExcite
        >>> squeeze_excite = SqueezeExcite(channels=32)
        >>> squeeze_excite(torch.randn(2, 32, 4, 4)).shape
        torch.Size([2, 32, 4, 4])
        >>> squeeze_excite.gate(torch.randn(2, 32, 4, 4)).shape
        torch.Size([2, 32, 1, 1])
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
    """Channel gate of CBAM: sigmoid(mlp(mean_hw(x)) + mlp(max_hw(x))), one MLP for both.

    Woo et al. 2018, section 3.

    Args:
        channels: Channels of the feature map.
        reduction: How many times narrower than the channels the MLP is inside.
        hidden: The width inside the MLP; None: max(1, channels // reduction).

    Raises:
        ValueError: A size is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import ChannelGate
        >>> ChannelGate(channels=32).gate(torch.randn(2, 32, 4, 4)).shape
        torch.Size([2, 32, 1, 1])
    """

    def __init__(self, channels: int, reduction: int = 16, hidden: int | None = None):
        super().__init__(channels, reduction, hidden, bias=False)

    def gate(self, x: Images) -> Float[Tensor, "b c 1 1"]:
        peak = x.amax((2, 3), keepdim=True)
        return (self.excite(channel_mean(x)) + self.excite(peak)).sigmoid()


@final
class SpatialGate(Gate):
    """Spatial gate of CBAM: sigmoid(conv([mean_c(x); max_c(x)])).

    Woo et al. 2018, section 3.

    Args:
        channels: Channels of the feature map.
        kernel_size: Side of the convolution's kernel, odd.

    Raises:
        ValueError: `channels` is below 1, or `kernel_size` is even or below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import SpatialGate
        >>> SpatialGate(channels=32).gate(torch.randn(2, 32, 4, 5)).shape
        torch.Size([2, 1, 4, 5])
    """

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
    """Spatial mask: sigmoid(conv(relu(conv x))), the simplest attention in a CNN.

    Args:
        channels: Channels of the feature map.
        hidden: Channels between the two convolutions; None: max(1, channels // 4).
        kernel_size: Side of the first convolution's kernel, odd; the second's is 1.

    Raises:
        ValueError: A size is below 1, or `kernel_size` is even.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import SpatialMask
        >>> SpatialMask(channels=32).gate(torch.randn(2, 32, 4, 5)).shape
        torch.Size([2, 1, 4, 5])
    """

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
    """Convolutional block attention module: a channel gate, then a spatial gate.

    Woo et al. 2018.

    Args:
        channels: Channels of the feature map.
        reduction: How many times narrower than the channels the channel gate's MLP is inside.
        kernel_size: Side of the spatial gate's kernel, odd.

    Raises:
        ValueError: A size is below 1, or `kernel_size` is even.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import CBAM
        >>> CBAM(channels=32)(torch.randn(2, 32, 4, 4)).shape
        torch.Size([2, 32, 4, 4])
    """

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
        """Start both gates as the identity, as `Gate.neutralize` does."""
        self.channel.neutralize()
        self.spatial.neutralize()
