"""How much a network computes, and how much this machine could.

A multiplication and an addition are two operations.
"""

from copy import deepcopy
from time import perf_counter

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vision_attn.compat.torch_private import without_hooks
from vision_attn.types import Images


@torch.no_grad()
def forward_flops(network: nn.Module, images: Images) -> int:
    """Operations of matrix products, convolutions and attention in one forward pass.

    Norms, activations and gates' products are left out, as everywhere. Training takes about three
    times as many. The network stays as it is.
    """
    # The counter hooks what has gradients.
    frozen = deepcopy(network, without_hooks(network)).eval().requires_grad_(False)
    with FlopCounterMode(display=False) as counter:
        frozen(images)
    return counter.get_total_flops()


def peak_flops(
    device: torch.device, dtype: torch.dtype, size: int = 1024, rounds: int = 8
) -> float:
    """Operations a second of a square matrix product, the best of some: what the machine can do."""
    size = 8 * size if device.type == "cuda" else size
    a = torch.randn(size, size, device=device).to(dtype)
    best = float("inf")
    for _ in range(rounds):
        start = perf_counter()
        (a @ a)[0, 0].item()  # waits for the device
        best = min(best, perf_counter() - start)
    return 2 * size**3 / best
