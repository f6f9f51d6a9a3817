"""What explainers need of any network: its modules, where they can be seen."""

import re
from collections.abc import Sequence
from functools import cache
from itertools import compress

import torch
from torch import nn

from vision_attn.attention import Attend, Readout
from vision_attn.compat.torch_private import own_names
from vision_attn.errors import quoted
from vision_attn.inference import asked_once, modules_of
from vision_attn.types import Model

__all__ = [
    "LayerLike",
    "attending",
    "attends",
    "calls_attention",
    "calls_of_layer",
    "first_quantised",
    "module_name",
    "network_of",
    "why_no_gradient",
    "why_opaque",
]

LayerLike = str | nn.Module  # a module, or its name as people write it
# Modules of whole numbers; those of FLOAT_FUNCTIONS stand for float operations until they are made.
QUANTISED = ("torch.ao.nn.quantized.", "torch.ao.nn.intrinsic.quantized.")
FLOAT_FUNCTIONS = ("FloatFunctional", "FXFloatFunctional")

OPERATOR = type(torch.ops.aten.add.Tensor)

# What modules call their query and key projections: one name for both, or a pair.
PROJECTIONS: tuple[frozenset[str], ...] = tuple(
    frozenset(names.split())
    for names in (
        "qkv", "q k", "q kv", "qk", "q_proj k_proj", "q_proj kv_proj", "query key", "to_qkv",
        "to_q to_k", "to_q to_kv", "query_key_value", "Wqkv", "in_proj_weight", "q_lin k_lin",
        "in_proj attn_out_proj", "q_proj_weight k_proj_weight",
    )
)  # fmt: skip


def network_of(model: nn.Module | Model) -> nn.Module:
    """Return a model's network; a network is returned as it is."""
    return model.network if isinstance(model, Model) else model


def module_name(network: nn.Module, layer: LayerLike) -> str | None:
    """Find the full name of a layer, given as the module itself or by a name; None: there is none.

    A name may leave out what is wrapped around the network, and count children from the end: the
    shortest full name that fits is meant.

    Examples:
        >>> from torch import nn
        >>> from vision_attn.tokens.modules import module_name
        >>> network = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh(), nn.ELU()))
        >>> module_name(network, "1.-1"), module_name(network, network[1][0])
        ('1.1', '1.0')
    """
    names = modules_of(network)
    if isinstance(layer, nn.Module):
        return names.get(layer)
    modules = {name: module for module, name in names.items()}
    full_names = [_below(modules, root, layer.split(".")) for root in modules]
    return min((name for name in full_names if name is not None), key=len, default=None)


def _below(modules: dict[str, nn.Module], name: str, parts: Sequence[str]) -> str | None:
    """The name of a module below another, child by child, -1 the last child."""
    for part in parts:
        if re.fullmatch(r"-\d+", part):
            children = [child for child, _ in modules[name].named_children()]
            if int(part) < -len(children):
                return None
            part = children[int(part)]
        name = f"{name}.{part}" if name else part
        if name not in modules:
            return None
    return name


def calls_of_layer(
    network: nn.Module, callers: Sequence[str], layer: int | LayerLike
) -> Sequence[int]:
    """Find the attention calls of a layer among those whose modules have these names, in order.

    layer: the index of a call, -1 the last; or a module, or its name: the calls made in it. Raises
    ValueError where there is none.

    Examples:
        >>> from vision_attn.models import ViT
        >>> from vision_attn.tokens.modules import calls_of_layer
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> calls_of_layer(network, ["blocks.0.attn.attend", "blocks.1.attn.attend"], "blocks.-1")
        [1]
    """
    count = len(callers)
    if isinstance(layer, int):
        if not -count <= layer < count:
            raise ValueError(
                f"layer must be from {-count} to {count - 1}, as there are {count} attention "
                f"calls, got {layer}"
            )
        return [layer % count]
    name = module_name(network, layer)
    inside = [
        index
        for index, caller in enumerate(callers)
        if name is not None and f"{caller}.".startswith(f"{name}." if name else "")
    ]
    if not inside:
        what = layer if isinstance(layer, str) else name or type(layer).__name__
        missing = "no such layer" if name is None else "it makes no attention call"
        raise ValueError(
            f"layer {quoted(what)}: {missing}; expected an index from {-count} to {count - 1}, or "
            f"one of {_first(callers)}, or what contains it"
        )
    return inside


def _first(names: Sequence[str], most: int = 4) -> str:
    """The first of some names, each once."""
    each = list(dict.fromkeys(filter(None, names)))
    return ", ".join(each[:most] + ["..."] * (len(each) > most))


def attends(module: nn.Module) -> bool:
    """Whether a module itself projects to queries and keys."""
    if isinstance(module, Attend | Readout):
        return getattr(module, "attends", True)
    return _projects(own_names(module))


def attending(network: nn.Module) -> dict[nn.Module, str]:
    """Name the modules that themselves project to queries and keys.

    Examples:
        >>> from vision_attn.models import ViT
        >>> from vision_attn.tokens.modules import attending
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=1, heads=3)
        >>> list(attending(network).values())
        ['blocks.0.attn', 'blocks.0.attn.attend']
    """
    chosen = asked_once(network, _attending)
    return dict(compress(modules_of(network).items(), chosen))


def _attending(network: nn.Module) -> list[bool]:
    return [attends(module) for module in modules_of(network)]


@cache
def _projects(names: tuple[str, ...]) -> bool:
    return any(projections.issubset(names) for projections in PROJECTIONS)


def calls_attention(module: nn.Module) -> bool:
    """Whether the module's own code names torch's attention."""
    code = getattr(type(module).forward, "__code__", None)
    return code is not None and "scaled_dot_product_attention" in code.co_names


def why_opaque(network: nn.Module) -> str | None:
    """Say in one line why a network's modules cannot be seen; None where they can.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.modules import why_opaque
        >>> why_opaque(torch.nn.Linear(2, 3)) is None
        True
    """
    return asked_once(network, _why_opaque)


def _why_opaque(network: nn.Module) -> str | None:
    for module in modules_of(network):
        if isinstance(module, torch.jit.ScriptModule):
            return "TorchScript hides its modules: explain the network that it was made from"
        if isinstance(module, torch.fx.GraphModule) and _of_operators(module.graph):
            return "torch.export keeps no modules: explain the network that was exported"
    return None


def first_quantised(network: nn.Module) -> str | None:
    """Name the first layer of whole numbers that torch.ao made, with its class; None without one.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> from torch.ao.nn.quantized import Quantize
        >>> from vision_attn.tokens.modules import first_quantised
        >>> first_quantised(nn.Sequential(nn.ReLU(), Quantize(0.1, 0, torch.quint8)))
        '1 (Quantize)'
    """
    return asked_once(network, _first_quantised)


def _first_quantised(network: nn.Module) -> str | None:
    for module, name in modules_of(network).items():
        kind = type(module)
        if (
            f"{kind.__module__}.".startswith(QUANTISED)
            and ".reference." not in kind.__module__
            and kind.__name__ not in FLOAT_FUNCTIONS
        ):
            return f"{name} ({kind.__name__})".strip()
    return None


def why_no_gradient(network: nn.Module) -> str | None:
    """Say in one line why no gradient passes through a network of whole numbers; None otherwise."""
    layer = first_quantised(network)
    return layer and (
        f"no gradient passes through its quantised layers, of which {layer} is the first; "
        "Occlusion and MaskedRegression need none, nor do Rollout and RawAttention where there is "
        "attention"
    )


def _of_operators(graph: torch.fx.Graph) -> bool:
    return any(isinstance(node.target, OPERATOR) for node in graph.nodes)
