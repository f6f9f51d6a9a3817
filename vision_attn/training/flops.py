"""How much a network computes, and how much this machine could.

A multiplication and an addition are two operations.
"""

from copy import deepcopy
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from vision_attn.compat.torch_private import FLASH_KERNEL, without_hooks
from vision_attn.types import Images

__all__ = ["forward_flops", "peak_flops", "training_flops"]


@torch.no_grad()
def forward_flops(network: nn.Module, images: Images) -> int:
    """Count the operations of matrix products, convolutions and attention in one forward pass.

    Norms, activations and gates' products are left out, as everywhere. Training takes about three
    times as many. The network stays as it is.

    Examples:
        >>> import torch
        >>> from vision_attn.training.flops import forward_flops
        >>> kernel = torch.nn.Conv2d(3, 5, kernel_size=1, bias=False)
        >>> forward_flops(kernel, torch.zeros(2, 3, 7, 7))  # 2 operations x 2 x 7 x 7 x 3 x 5
        2940
    """
    # The counter hooks what has gradients.
    frozen = deepcopy(network, without_hooks(network)).eval().requires_grad_(False)
    with _counter() as counter:
        frozen(images)
    return counter.get_total_flops()


def training_flops(network: nn.Module, images: Images) -> int:
    """Count the operations of a forward and a backward pass, as `forward_flops` counts them.

    About three times as many as forward: fewer for what is frozen, for the first layer, whose
    images need no gradient, and where training drops tokens. The network stays as it is.

    Examples:
        >>> import torch
        >>> from vision_attn.training.flops import training_flops
        >>> kernel = torch.nn.Conv2d(3, 5, kernel_size=1, bias=False)
        >>> training_flops(kernel, torch.zeros(2, 3, 7, 7))  # forward, and the kernel's gradient
        5880
    """
    copy = deepcopy(network, without_hooks(network)).train()
    with (
        torch.random.fork_rng([images.device] if images.is_cuda else []),
        torch.enable_grad(),
        _counter() as counter,
    ):
        copy(images).float().sum().backward()
    return counter.get_total_flops()


def _counter() -> FlopCounterMode:
    """torch's counter, and with it fused attention on CPUs, which torch 2.11 does not count."""

    def forward(*q_k_v_and_more: Any, **_: Any) -> int:
        return sdpa_flop_count(*q_k_v_and_more[:3])

    def backward(*gradient_q_k_v_and_more: Any, **_: Any) -> int:
        return sdpa_backward_flop_count(*gradient_q_k_v_and_more[:4])

    names = {FLASH_KERNEL: forward, f"{FLASH_KERNEL}_backward": backward}
    aten = torch.ops.aten
    counts = {getattr(aten, name): count for name, count in names.items() if hasattr(aten, name)}
    return FlopCounterMode(display=False, custom_mapping=counts)


def peak_flops(
    device: torch.device, dtype: torch.dtype, size: int = 1024, rounds: int = 3
) -> float:
    """Measure what the machine reaches now: operations a second of a square matrix product.

    The mean of some products, so beside other programs it is less than on a quiet machine. No
    random numbers are drawn. size: the side of the matrix on a CPU, an eighth of it on a GPU.
    rounds: how many products, after a first one.
    """
    size = 8 * size if device.type == "cuda" else size
    a = torch.linspace(-1, 1, size * size, device=device).view(size, size).to(dtype)
    start = 0.0
    for turn in range(1 + rounds):
        if turn == 1:
            start = perf_counter()
        (a @ a)[0, 0].item()  # waits for the device
    return 2 * size**3 * rounds / (perf_counter() - start)
