"""Learning rates over a run: a linear warm-up, then a decay to `final`, one value a step.

A schedule is called as `schedule(optimizer, steps)` with the number of optimiser steps of the whole
run; `warmup` and `final` are shares, so the same config fits a run of any length.
"""

from collections.abc import Callable
from math import cos, pi

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

__all__ = ["ConstantRate", "CosineDecay", "LinearDecay", "Warmup"]


class Warmup(LambdaLR):
    """lr * t / T, t < T = warmup * steps; then lr * (final + (1 - final) * shape(u)).

    u runs from 0 at the end of the warm-up to 1 at the last step. The first step already moves: t
    counts from 1 in the warm-up.

    Args:
        optimizer: Whose rates are scaled.
        steps: Optimiser steps of the whole run.
        shape: From u to a number that falls from 1 to 0.
        warmup: The share of the steps in which the rate rises.
        final: The share of the full rate that is reached in the end.

    Raises:
        ValueError: There is no step, or a share is not from 0 to 1.

    Examples:
        >>> import torch
        >>> from vision_attn.training.schedules import Warmup
        >>> sgd = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        >>> root = Warmup(sgd, steps=4, shape=lambda u: (1 - u) ** 0.5, warmup=0.25)
        >>> root.get_last_lr()  # half of the rate: the first of one step of warm-up
        [0.5]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        steps: int,
        shape: Callable[[float], float],
        warmup: float = 0.05,
        final: float = 0.0,
    ):
        if steps < 1:
            raise ValueError(f"a schedule needs at least 1 step, got {steps}")
        for name, share in (("warmup", warmup), ("final", final)):
            if share is None or not 0 <= share <= 1:
                raise ValueError(f"{name} must be a share of the run, from 0 to 1, got {share}")
        warmup_steps = round(warmup * steps)

        def factor(step: int) -> float:
            if step < warmup_steps:
                return (step + 1) / (warmup_steps + 1)
            done = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
            return final + (1 - final) * shape(done)

        super().__init__(optimizer, factor)


class CosineDecay(Warmup):
    """Half a cosine from the full rate to `final` of it, Loshchilov & Hutter 2017 (no restarts).

    Args:
        optimizer: Whose rates are scaled.
        steps: Optimiser steps of the whole run.
        warmup: The share of the steps in which the rate rises from near 0.
        final: The share of the full rate that is reached in the end.

    Raises:
        ValueError: There is no step, or a share is not from 0 to 1.

    Examples:
        >>> import torch
        >>> from vision_attn.training import CosineDecay
        >>> sgd = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        >>> schedule, rates = CosineDecay(sgd, steps=4, warmup=0.0), []
        >>> for _ in range(4):
        ...     rates += [round(rate, 3) for rate in schedule.get_last_lr()]
        ...     sgd.step()
        ...     schedule.step()
        >>> rates
        [1.0, 0.854, 0.5, 0.146]
    """

    def __init__(self, optimizer: Optimizer, steps: int, warmup: float = 0.05, final: float = 0.0):
        super().__init__(optimizer, steps, lambda u: (1 + cos(pi * u)) / 2, warmup, final)


class LinearDecay(Warmup):
    """A straight line from the full rate to `final` of it.

    Args:
        optimizer: Whose rates are scaled.
        steps: Optimiser steps of the whole run.
        warmup: The share of the steps in which the rate rises from near 0.
        final: The share of the full rate that is reached in the end.

    Raises:
        ValueError: There is no step, or a share is not from 0 to 1.

    Examples:
        >>> import torch
        >>> from vision_attn.training import LinearDecay
        >>> sgd = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        >>> schedule, rates = LinearDecay(sgd, steps=4, warmup=0.0, final=0.2), []
        >>> for _ in range(4):
        ...     rates += [round(rate, 3) for rate in schedule.get_last_lr()]
        ...     sgd.step()
        ...     schedule.step()
        >>> rates
        [1.0, 0.8, 0.6, 0.4]
    """

    def __init__(self, optimizer: Optimizer, steps: int, warmup: float = 0.05, final: float = 0.0):
        super().__init__(optimizer, steps, lambda u: 1 - u, warmup, final)


class ConstantRate(Warmup):
    """The full rate to the end, after the warm-up.

    Args:
        optimizer: Whose rates are scaled.
        steps: Optimiser steps of the whole run.
        warmup: The share of the steps in which the rate rises from near 0.

    Raises:
        ValueError: There is no step, or `warmup` is not from 0 to 1.

    Examples:
        >>> import torch
        >>> from vision_attn.training import ConstantRate
        >>> sgd = torch.optim.SGD([torch.zeros(1)], lr=0.3)
        >>> ConstantRate(sgd, steps=4).get_last_lr()
        [0.3]
    """

    def __init__(self, optimizer: Optimizer, steps: int, warmup: float = 0.0):
        super().__init__(optimizer, steps, lambda u: 1.0, warmup)
