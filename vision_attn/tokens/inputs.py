"""Images that a network does not take: what is wrong with them, in one line.

Axes: b batch, c channels, h height, w width.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vision_attn.inference import infer

__all__ = ["declared_size", "images_in_words", "own_dtype"]

# What networks raise for images that they do not take; memory that is too small is told as it is.
ERRORS = RuntimeError, TypeError, AssertionError, IndexError, AttributeError


@contextmanager
def images_in_words(network: nn.Module, images: Tensor) -> Iterator[None]:
    """Raise ValueError, one line, where a network fails on images that it does not take.

    An error while this is open counts as theirs if the network alone fails on them, too.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except ERRORS as error:
        if isinstance(error, NotImplementedError) or (cause := why_not(network, images)) is None:
            raise
        raise ValueError(cause) from error


def why_not(network: nn.Module, images: Tensor) -> str | None:
    """Say why a network fails on images, by trying others; None: it does not fail.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.inputs import why_not
        >>> why_not(torch.nn.Conv2d(3, 5, 3), torch.rand(2, 1, 8, 8))
        'Conv2d takes images of 3 channels, got 1'
    """
    reason = failure(network, images)
    if reason is None:
        return None
    name, (count, channels, height, width) = type(network).__name__, images.shape
    dtype = own_dtype(network)
    if dtype != images.dtype and failure(network, images.to(dtype)) is None:
        return (
            f"{name} takes images of {dtype}, as its weights are, got {images.dtype}: give "
            f"images.to({dtype})"
        )
    for takes in channels_of(network):
        if takes != channels:
            other = images[:, :1].expand(-1, takes, -1, -1)
            if failure(network, other.to(dtype)) is None:
                return f"{name} takes images of {takes} channels, got {channels}"
    size = declared_size(network)
    if size is not None and size != (height, width):
        other = images.new_zeros(count, channels, *size)
        if failure(network, other.to(dtype)) is None:
            return f"{name} takes images of {size[0]}x{size[1]}, got {height}x{width}"
    return f"{name} fails on images of shape {tuple(images.shape)} and {images.dtype}: {reason}"


def failure(network: nn.Module, images: Tensor) -> str | None:
    """Return the first line of what a network raises for images; None where it runs."""
    try:
        infer(network, images)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # the network's own code
        return str(error).strip().partition("\n")[0] or type(error).__name__
    return None


def own_dtype(network: nn.Module) -> torch.dtype:
    """Return the floating dtype of a network's weights; float32 without any."""
    floats = (weight.dtype for weight in network.parameters() if weight.is_floating_point())
    return next(floats, torch.float32)


def channels_of(network: nn.Module) -> list[int]:
    """List how many channels the first convolutions take, each number once."""
    convs = [module.in_channels for module in network.modules() if isinstance(module, nn.Conv2d)]
    return list(dict.fromkeys(convs[:3]))


def declared_size(network: nn.Module) -> tuple[int, int] | None:
    """Return the height and width that a network says it takes; None where it says nothing."""
    for module in network.modules():
        config: Any = getattr(module, "pretrained_cfg", None) or getattr(module, "config", None)
        declared = config.get("input_size") if isinstance(config, dict) else None
        own: Any = getattr(getattr(module, "patch_embed", None), "img_size", None)
        if own is None and declared is not None:
            own = declared[1:]
        if own is None:
            own = getattr(config, "image_size", None) or getattr(module, "image_size", None)
        if isinstance(own, int):
            return own, own
        if isinstance(own, list | tuple) and len(own) >= 2:
            return int(own[-2]), int(own[-1])
    return None
