"""Networks made of attention: Vision Transformer, SE-ResNet, spatial-attention CNN, timm's.

Names load on first use: a network of the package needs neither timm nor torchvision.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vision_attn.errors import ModelError

if TYPE_CHECKING:
    from vision_attn.models.checkpoint import build, describe
    from vision_attn.models.fast_cnn import FastCNN, Whitening, WideEmbed
    from vision_attn.models.pooled_cnn import PooledCNN
    from vision_attn.models.senet import (
        BasicBlock,
        Bottleneck,
        SEResNet,
        seresnet18,
        seresnet34,
        seresnet50,
        seresnet101,
        seresnet152,
    )
    from vision_attn.models.spatial_cnn import SpatialCNN
    from vision_attn.models.timm_model import TimmModel, vit_from_timm
    from vision_attn.models.vit import ConvEmbed, PatchEmbed, ViT

_HOMES = {
    "BasicBlock": "senet",
    "Bottleneck": "senet",
    "ConvEmbed": "vit",
    "FastCNN": "fast_cnn",
    "PatchEmbed": "vit",
    "PooledCNN": "pooled_cnn",
    "SEResNet": "senet",
    "SpatialCNN": "spatial_cnn",
    "TimmModel": "timm_model",
    "ViT": "vit",
    "Whitening": "fast_cnn",
    "WideEmbed": "fast_cnn",
    "build": "checkpoint",
    "describe": "checkpoint",
    "seresnet101": "senet",
    "seresnet152": "senet",
    "seresnet18": "senet",
    "seresnet34": "senet",
    "seresnet50": "senet",
    "vit_from_timm": "timm_model",
}

__all__ = [
    "BasicBlock",
    "Bottleneck",
    "ConvEmbed",
    "FastCNN",
    "ModelError",
    "PatchEmbed",
    "PooledCNN",
    "SEResNet",
    "SpatialCNN",
    "TimmModel",
    "ViT",
    "Whitening",
    "WideEmbed",
    "build",
    "describe",
    "seresnet18",
    "seresnet34",
    "seresnet50",
    "seresnet101",
    "seresnet152",
    "vit_from_timm",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
