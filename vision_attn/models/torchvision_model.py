"""torchvision's classifiers by name; it is imported where it is needed, which takes seconds."""

from typing import Any

from torch import nn

from vision_attn.errors import ModelError, did_you_mean, quoted
from vision_attn.models.checkpoint import load_weights, read_weights, without_prefix
from vision_attn.models.errors import library_errors

__all__ = ["create_torchvision"]


def create_torchvision(
    name: str,
    *,
    pretrained: bool = False,
    weights: str | None = None,
    image_size: tuple[int, int] | None = None,
    **model_args: Any,
) -> nn.Module:
    """torchvision.models.get_model for a classifier; ModelError says what is wrong.

    The start is random, or torchvision's own weights (`pretrained`), or those in the file
    `weights`. image_size: (h, w), for the ViTs, which are built for one size; others take any.
    """
    from torchvision import models
    from torchvision.models.vision_transformer import interpolate_embeddings

    names = models.list_models(module=models)
    if name not in names:
        raise ModelError(f"torchvision has no classifier {quoted(name)}{did_you_mean(name, names)}")
    is_vit = name.startswith("vit_")
    if image_size is not None and is_vit:
        if image_size[0] != image_size[1]:
            raise ModelError(f"torchvision:{name} takes square images only, got {image_size}")
        model_args["image_size"] = image_size[0]
    with library_errors(f"torchvision:{name}"):
        own = models.get_model_weights(name).DEFAULT if pretrained and weights is None else None
        network: Any = models.get_model(name, weights=None if is_vit else own, **model_args)
        if weights is not None:
            state = without_prefix(read_weights(weights), network.state_dict())
        elif is_vit and own is not None:
            state = own.get_state_dict(check_hash=True)
        else:
            return network
        if is_vit:
            state = interpolate_embeddings(network.image_size, network.patch_size, state)
    load_weights(network, state, weights or f"torchvision:{name}")
    return network
