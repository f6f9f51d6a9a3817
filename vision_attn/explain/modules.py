"""What explainers need of any network: its modules, where they can be seen."""

import torch
from torch import nn

OPERATOR = type(torch.ops.aten.add.Tensor)


def modules_of(network: nn.Module) -> dict[nn.Module, str]:
    """Every module once, in the order of `network.named_modules()`, and its name.

    Fast, as several walks are made a map: torch's own passes each module up through a generator
    for every level above it.
    """
    found: dict[nn.Module, str] = {}

    def visit(module: nn.Module, name: str) -> None:
        found[module] = name
        for own, child in module.named_children():
            if child not in found:
                visit(child, f"{name}.{own}" if name else own)

    visit(network, "")
    return found


def sealed(network: nn.Module) -> str | None:
    """Why nothing can be seen inside of the network, in one line; None where it can."""
    for module in modules_of(network):
        if isinstance(module, torch.jit.ScriptModule):
            return "TorchScript runs without its modules: explain the network that it was made from"
        if isinstance(module, torch.fx.GraphModule) and _of_operators(module.graph):
            return "torch.export left no modules in it: explain the network that it was made from"
    return None


def _of_operators(graph: torch.fx.Graph) -> bool:
    return any(isinstance(node.target, OPERATOR) for node in graph.nodes)
