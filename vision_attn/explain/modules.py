"""The modules of a network, found fast: explainers look through them several times a map."""

from torch import nn


def modules_of(network: nn.Module) -> dict[nn.Module, str]:
    """Every module once, in the order of `network.named_modules()`, and its name.

    torch's own walk passes each module up through a generator for every level above it.
    """
    found: dict[nn.Module, str] = {}

    def visit(module: nn.Module, name: str) -> None:
        found[module] = name
        for own, child in module._modules.items():
            if child is not None and child not in found:
                visit(child, f"{name}.{own}" if name else own)

    visit(network, "")
    return found
