"""Mean and scaling of whole channels, in few passes over memory.

A channel gate is nearly all memory traffic: its cost is how often it reads or writes a whole map.

Axes: b batch, c channels, h height, w width.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from vision_attn.types import Images

__all__ = ["channel_mean", "channel_scale"]

CHUNK = 1 << 18  # numbers multiplied at a time in backward: the product stays in cache


def channel_mean(x: Images) -> Float[Tensor, "b c 1 1"]:
    """Average each channel over its places: mean_hw(x).

    By a sum: torch's mean of bfloat16 takes ten times as long, and its backward writes a map.
    """
    if x.dtype == torch.float16:  # whose sum may overflow
        return x.mean((2, 3), keepdim=True)
    return x.sum((2, 3), keepdim=True) / (x.size(2) * x.size(3))


def channel_scale(x: Images, scale: Float[Tensor, "b c 1 1"]) -> Images:
    """Multiply each channel by its scale, without writing a map of x * grad in backward.

    A function mode of torch sees it as a function of torch's.
    """
    if has_torch_function((x, scale)):
        return handle_torch_function(channel_scale, (x, scale), x, scale)
    return ChannelScale.apply(x, scale.to(x.dtype))


class ChannelScale(torch.autograd.Function):
    """Product y = x s with dx = s dy and ds = sum_hw(x dy), summed a few images at a time."""

    @staticmethod
    def forward(x: Tensor, scale: Tensor) -> Tensor:
        return x * scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, scale = ctx.saved_tensors
        images = max(1, CHUNK // x[0].numel()) if x.device.type == "cpu" else len(x)
        sums = [
            (part * part_grad).sum((2, 3), keepdim=True)
            for part, part_grad in zip(x.split(images), grad.split(images), strict=True)
        ]
        return grad * scale, torch.cat(sums)
