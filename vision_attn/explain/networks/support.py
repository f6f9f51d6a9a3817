"""Which networks attend from token to token, and why the others do not."""

import re

from torch import nn

from vision_attn.attention.gates import Gate
from vision_attn.explain.networks.layout import layout_of
from vision_attn.explain.networks.modules import attends, calls_attention, modules_of, why_opaque

__all__ = ["refusal_of"]

CHANNELS = "attends from channel to channel, so it has no weights from token to token"
POOLED = "pools its keys, so the tokens of one layer are not those of the next"
MIXED = "attends in windows between convolutions, whose paths no rollout follows"

# The class of a module, and why its attention makes no chain of maps from token to token.
UNFIT: dict[str, str] = {
    **dict.fromkeys(
        ["XCA", "CrossCovarianceAttn", "ChannelAttention", "FactorAttnConvRelPosEnc"], CHANNELS
    ),
    **dict.fromkeys(["MultiScaleVit", "PyramidVisionTransformerV2", "Twins", "Hiera"], POOLED),
    **dict.fromkeys(["MaxxVit", "GlobalContextVit", "VOLO"], MIXED),
    "ParallelThingsBlock": "has several attention branches side by side in a layer",
    "VisionTransformerSAM": "has windows whose places are not known",
    "LiteMLA": "attends without a softmax, by a kernel of its own",
}


def refusal_of(network: nn.Module) -> str | None:
    """Say in one line why no map can be made of this network's attention; None where it can.

    Its modules decide, without a run.

    Examples:
        >>> from torch import nn
        >>> from vision_attn.explain.networks.support import refusal_of
        >>> refusal_of(nn.Linear(2, 3))
        'it has no attention: none of its modules projects to queries and keys'
    """
    if reason := why_opaque(network):
        return reason
    modules = modules_of(network)
    for module in modules:
        if reason := UNFIT.get(type(module).__name__):
            return f"its {type(module).__name__} {reason}"
    if not any(attends(module) or _seems_to_attend(module) for module in modules):
        return "it has no attention: none of its modules projects to queries and keys"
    for module in modules:
        if callable(getattr(module, "layout", None)):
            break
        if type(module).__module__.startswith("timm.models."):
            try:
                layout_of(module, (224, 224))
            except ValueError as error:
                return str(error)
            break
    return None


def _seems_to_attend(module: nn.Module) -> bool:
    """Whether it has a layout of tokens, calls torch's attention, or has attention for a name.

    A gate on features that is named attention has convolutions, and no linear layer.
    """
    if callable(getattr(module, "layout", None)) or calls_attention(module):
        return True
    named = re.search("attention|attn|transformer", type(module).__name__.lower())
    if named is None or isinstance(module, Gate):
        return False
    return any(isinstance(part, nn.Linear) for part in module.modules())
