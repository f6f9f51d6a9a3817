"""What explainers need of any network: its modules, where they can be seen."""

from functools import cache

import torch
from torch import nn

from vision_attn.attention import Attend, Readout
from vision_attn.compat.torch_private import own_names
from vision_attn.inference import modules_of
from vision_attn.types import Model

__all__ = [
    "attends",
    "calls_attention",
    "network_of",
    "why_opaque",
]

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


def attends(module: nn.Module) -> bool:
    """Whether a module itself projects to queries and keys."""
    if isinstance(module, Attend | Readout):
        return getattr(module, "attends", True)
    return _projects(own_names(module))


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
    for module in modules_of(network):
        if isinstance(module, torch.jit.ScriptModule):
            return "TorchScript hides its modules: explain the network that it was made from"
        if isinstance(module, torch.fx.GraphModule) and _of_operators(module.graph):
            return "torch.export keeps no modules: explain the network that was exported"
    return None


def _of_operators(graph: torch.fx.Graph) -> bool:
    return any(isinstance(node.target, OPERATOR) for node in graph.nodes)
