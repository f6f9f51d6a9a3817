"""Adam's fused kernel on a CPU: one pass over memory for each parameter."""

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer


def fuse_on_cpu(optimizer: Optimizer) -> None:
    """Has an Adam go over its parameters on a CPU in one pass, which torch must be asked for.

    It takes 0.4 of the time. Groups stay as they are where the config has asked for a way (fused,
    foreach, differentiable), where a parameter is elsewhere, not a plain tensor (FSDP's shares) or
    has gaps in memory; so do other optimisers. To be called before a checkpoint is loaded: a run
    goes on in the way it began. `align_moments` belongs to it.
    """
    if not isinstance(optimizer, Adam):
        return
    for group in optimizer.param_groups:
        ways = group["fused"], group["foreach"], group["differentiable"] or None
        if ways == (None, None, None) and all(fusible(parameter) for parameter in group["params"]):
            group["fused"] = True


def fusible(parameter: Tensor) -> bool:
    dense = parameter.is_contiguous() or parameter.is_contiguous(memory_format=torch.channels_last)
    plain = type(parameter) in (Tensor, nn.Parameter) and parameter.is_floating_point()
    return dense and plain and parameter.device.type == "cpu"


def align_moments(optimizer: Optimizer) -> None:
    """Lays what a fused optimiser keeps out in memory as the parameters are.

    Its kernel takes the numbers as they lie there, and those of a checkpoint may lie otherwise: in
    channels-last order, say, from a machine where that is faster.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("fused") else ():
            kept = optimizer.state.get(parameter, {})
            for name, value in kept.items():
                same = isinstance(value, Tensor) and value.shape == parameter.shape
                if same and value.stride() != parameter.stride():
                    kept[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
