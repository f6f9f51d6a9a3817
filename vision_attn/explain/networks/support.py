"""Which networks attend from token to token, and why the others do not."""

from typing import Any

import torch
from torch import Tensor, nn

from vision_attn.explain.networks.modules import modules_of, why_opaque
from vision_attn.explain.propagation.path import find_path
from vision_attn.types import Images

__all__ = ["blank_image", "refusal_of"]

USUAL = 224  # height and width of images where a network tells nothing


def refusal_of(network: nn.Module, images: Images | None = None) -> str | None:
    """Say in one line why no map can be made of this network's attention; None where it can.

    A run decides: on an image of the size of `images`, or of the network's own size. None also
    where it cannot run on such an image.

    Examples:
        >>> from torch import nn
        >>> from vision_attn.explain.networks.support import refusal_of
        >>> refusal_of(nn.Conv2d(3, 5, 3))
        'it has no attention: no softmax of scores weighs its values'
    """
    if reason := why_opaque(network):
        return reason
    if images is not None:
        return find_path(network, images).refusal
    try:
        return find_path(network, blank_image(network)).refusal
    except Exception:  # its own code, on an image that may be of the wrong kind
        return None


def blank_image(network: nn.Module) -> Tensor:
    """Make an image (1 c h w) of the size that the network says it takes, or of the usual one."""
    weight = next((x for x in network.parameters() if x.is_floating_point()), torch.zeros(()))
    channels, height, width = 3, USUAL, USUAL
    for module in modules_of(network):
        config: Any = getattr(module, "pretrained_cfg", None) or getattr(module, "config", None)
        size = config.get("input_size") if isinstance(config, dict) else None
        if size is not None:
            embed = getattr(module, "patch_embed", None)
            own = getattr(embed, "img_size", None)
            channels, height, width = (size[0], *own) if isinstance(own, tuple) else size
            break
        size = getattr(config, "image_size", None) or getattr(module, "image_size", None)
        if isinstance(size, int | list | tuple):
            height, width = (size, size) if isinstance(size, int) else size[-2:]
            break
    for module in modules_of(network):
        if isinstance(module, nn.Conv2d):
            channels = module.in_channels
            break
    return torch.zeros(1, channels, height, width, dtype=weight.dtype, device=weight.device)
