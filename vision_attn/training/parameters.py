"""Which parameters decay, and how fast each layer learns: a network sorted for its optimiser."""

import re
from collections.abc import Sequence
from typing import Any

from torch import nn

__all__ = ["layer_numbers", "parameter_groups"]


def parameter_groups(network: nn.Module, layer_decay: float = 1.0) -> list[dict[str, Any]]:
    """Sort a network's parameters into groups for its optimiser.

    Weight matrices and kernels decay; biases, norms, tokens and positions do not. A parameter
    decays if it is named `weight` and has two axes or more: linear maps, convolutions and
    embeddings. Tokens and position tables are bare parameters, norms have one axis. The first and
    the last of these weights (stem and head) have a group apart, since optimisers for hidden
    matrices such as Muon leave these out: `hidden` says which group is which. A module with
    `orthogonal = False` has groups of its own, marked `apart`. Frozen parameters are left out.

    Args:
        network: The network to train.
        layer_decay: Below 1 each layer has groups of its own, whose `lr_scale` is layer_decay to
            the power of the layers above it: 1 at the head (Bao et al. 2022, BEiT, for
            fine-tuning).

    Returns:
        Groups as optimisers of torch take them.

    Raises:
        ValueError: Nothing is left to train.

    Examples:
        >>> from vision_attn.models import ViT
        >>> from vision_attn.training import parameter_groups
        >>> vit = ViT(image_size=32, patch_size=8, dim=24, depth=1, heads=2, num_classes=10)
        >>> for group in parameter_groups(vit):
        ...     hidden, decay = group.get("hidden", False), group.get("weight_decay", "default")
        ...     print(len(group["params"]), "parameters; hidden:", hidden, "decay:", decay)
        4 parameters; hidden: True decay: default
        2 parameters; hidden: False decay: default
        14 parameters; hidden: False decay: 0.0
    """
    if not 0 < layer_decay <= 1:
        raise ValueError(f"layer_decay must be above 0 and at most 1, got {layer_decay}")
    named = dict(network.named_parameters())
    layers = dict(zip(named, layer_numbers(list(named)), strict=True))
    top = max(layers.values(), default=0)
    weights = [n for n, p in named.items() if p.ndim >= 2 and n.split(".")[-1] == "weight"]
    ends = {*weights[:1], *weights[-1:]}
    apart = {
        f"{path}.{name}"
        for path, module in network.named_modules()
        if getattr(module, "orthogonal", True) is False
        for name, _ in module.named_parameters()
    }
    rest = [name for name in named if name not in weights]
    kinds: tuple[tuple[list[str], dict[str, Any]], ...] = (
        ([name for name in weights if name not in ends | apart], {"hidden": True}),
        ([name for name in weights if name in ends - apart], {}),
        ([name for name in weights if name in apart], {"apart": True}),
        ([name for name in rest if name not in apart], {"weight_decay": 0.0}),
        ([name for name in rest if name in apart], {"weight_decay": 0.0, "apart": True}),
    )
    groups: list[dict[str, Any]] = []
    for names, options in kinds:
        sorted_in: dict[float, dict[str, Any]] = {}
        for name in names:
            if named[name].requires_grad:
                scale = layer_decay ** (top - layers[name])
                group = sorted_in.setdefault(scale, {"params": [], **options})
                group["params"].append(named[name])
        if layer_decay < 1:
            for scale, group in sorted_in.items():
                group["lr_scale"] = scale
        groups += sorted_in.values()
    if not groups:
        raise ValueError("the network has no parameter to train: all of them are frozen")
    return groups


def layer_numbers(names: Sequence[str]) -> list[int]:
    """Number the layer of each parameter: 0 the stem, then one a numbered block, the last the head.

    The block of `layers.3.blocks.1.weight` is `layers.3`: the first number of a name counts.

    Examples:
        >>> from vision_attn.training.parameters import layer_numbers
        >>> layer_numbers(["stem.weight", "blocks.0.a.weight", "blocks.1.a.weight", "head.bias"])
        [0, 1, 2, 3]
    """
    blocks: dict[str, int] = {}
    numbers = []
    for name in names:
        if block := re.match(r"((?:[^.]+\.)*?\d+)\.", name):
            numbers.append(blocks.setdefault(block[1], len(blocks) + 1))
        else:
            numbers.append(0 if not blocks else -1)
    return [len(blocks) + 1 if layer < 0 else layer for layer in numbers]
