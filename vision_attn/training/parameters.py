"""Which parameters decay: one place that sorts a network's parameters for its optimiser."""

from typing import Any

from torch import nn


def parameter_groups(network: nn.Module) -> list[dict[str, Any]]:
    """Optimiser groups: weight matrices and kernels decay; biases, norms, tokens and positions not.

    A parameter decays if it is named `weight` and has two axes or more: linear maps, convolutions
    and embeddings. Tokens and position tables are bare parameters, norms have one axis. The first
    and the last of the decaying weights (stem and head) have a group apart, since optimisers for
    hidden matrices such as Muon leave these out: `hidden` says which group is which.
    Frozen parameters are left out. Raises ValueError where nothing is left to train.
    """
    trained = [(name, p) for name, p in network.named_parameters() if p.requires_grad]
    if not trained:
        raise ValueError("the network has no parameter to train: all of them are frozen")
    weights = [p for name, p in trained if p.ndim >= 2 and name.split(".")[-1] == "weight"]
    ends = {id(p) for p in (*weights[:1], *weights[-1:])}
    decaying = {id(p) for p in weights}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in weights if id(p) not in ends], "hidden": True},
        {"params": [p for p in weights if id(p) in ends]},
        {"params": [p for _, p in trained if id(p) not in decaying], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
