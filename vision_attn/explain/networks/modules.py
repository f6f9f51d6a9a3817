"""What explainers need of any network: its modules, and its code run as it is written."""

import sys
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn


def uncompiled() -> AbstractContextManager:
    """What `torch.compile` made runs as it is written, so that hooks and modes see all of it."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and its import takes a second
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def modules_of(network: nn.Module) -> dict[nn.Module, str]:
    """Every module once, in the order of `network.named_modules()`, and its name.

    Fast, as several walks are made a map: torch's own passes each module up through a generator
    for every level above it.
    """
    found: dict[nn.Module, str] = {}

    def visit(module: nn.Module, name: str) -> None:
        found[module] = name
        for own, child in module._modules.items():
            if child is not None and child not in found:
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
    return any(isinstance(node.target, torch._ops.OpOverload) for node in graph.nodes)
