"""Muon for the matrices inside a network, AdamW or SGD for everything else."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import AdamW

from vision_attn.devices import native_precision

__all__ = ["Matrix", "MuonAdamW", "MuonSGD", "alike", "orthogonal"]

Matrix = Float[Tensor, "rows columns"] | Float[Tensor, "k rows columns"]

STEPS = 5  # of the iteration that makes a matrix orthogonal
SMALL = 2**18  # numbers of a matrix up to which those of one shape are worked on together


class MuonAdamW(AdamW):
    """Muon on the parameter groups marked `hidden`, AdamW on the others (see `parameter_groups`).

    Muon, Jordan 2024 (kellerjordan.github.io/posts/muon): with the momentum m <- mu m + g, W <- (1
    - lr wd) W - lr sqrt(max(1, rows / columns)) orthogonal(g + mu m). A convolution kernel is the
    matrix of out channels x everything else; `torch.optim.Muon` takes no kernels.

    Args:
        params: Parameters, or groups of them.
        lr: Muon's rate; schedules scale both.
        adam_lr: AdamW's rate.
        momentum: mu.
        betas: AdamW's.
        weight_decay: wd, of both.
        normed: Whether W is scaled to the norm sqrt(rows) before each step (Jordan's
            airbench94_muon), so that lr alone says how far a step goes: for matrices whose size
            means nothing, as a batch norm follows them.

    Raises:
        ValueError: A rate or a momentum is below 0.

    Examples:
        >>> from torch import nn
        >>> from vision_attn.training import MuonAdamW, parameter_groups
        >>> network = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 2))
        >>> muon = MuonAdamW(parameter_groups(network), lr=0.02, adam_lr=0.001)
        >>> [(group["hidden"], group["lr"]) for group in muon.param_groups]
        [(True, 0.02), (False, 0.001), (False, 0.001)]
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 0.02,
        adam_lr: float = 1e-3,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.01,
        normed: bool = False,
    ):
        _not_below_zero(lr=lr, momentum=momentum)
        super().__init__(params, lr=adam_lr, betas=betas, weight_decay=weight_decay)
        self.defaults["momentum"] = momentum
        self.normed = normed
        for group in self.param_groups:
            group["momentum"] = momentum
            if group.setdefault("hidden", False):
                group["lr"] = lr

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        with torch.enable_grad():
            loss = None if closure is None else closure()
        groups = self.param_groups
        for group in groups:
            if group["hidden"]:
                self._muon(group)
            elif group.get("sgd"):
                self._sgd(group)
        try:
            self.param_groups = [g for g in groups if not (g["hidden"] or g.get("sgd"))]
            super().step()
        finally:
            self.param_groups = groups
        return loss

    def _ahead(self, weight: Tensor, gradient: Tensor, momentum: float) -> Tensor:
        """Nesterov's g + mu m, after m <- mu m + g."""
        state = self.state[weight]
        if not state:
            state["step"] = torch.zeros(())  # AdamW expects one in every state it loads
            state["momentum"] = torch.zeros_like(weight)
        state["step"] += 1
        state["momentum"].mul_(momentum).add_(gradient)
        return gradient.add(state["momentum"], alpha=momentum)

    def _sgd(self, group: dict[str, Any]) -> None:
        for weight in group["params"]:
            if weight.grad is not None:
                gradient = weight.grad.add(weight, alpha=group["weight_decay"])
                ahead = self._ahead(weight, gradient, group["momentum"])
                weight.add_(ahead, alpha=-group["lr"])

    def _muon(self, group: dict[str, Any]) -> None:
        for weights in alike(group["params"]):
            momentum = group["momentum"]
            ahead = [
                self._ahead(w, w.grad, momentum).flatten(1) for w in weights if w.grad is not None
            ]
            for weight, direction in zip(weights, _orthogonal(ahead), strict=True):
                size = max(1, direction.shape[0] / direction.shape[1]) ** 0.5
                if self.normed:
                    weight.mul_(weight.shape[0] ** 0.5 / weight.norm().clamp(min=1e-7))
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(direction.view_as(weight), alpha=-group["lr"] * size)


class MuonSGD(MuonAdamW):
    """Muon on hidden matrices, AdamW on modules that keep apart, Nesterov SGD on all else.

    The optimiser of Jordan's airbench94_muon, for networks of batch norms with gates: classifier
    and biases go by SGD, m <- mu m + g + wd w, w <- w - lr (g + wd w + mu m), the gates, which have
    `orthogonal = False`, by AdamW without decay.

    Args:
        params: Parameters, or groups of them.
        lr: Muon's rate, see `MuonAdamW`; its matrices do not decay.
        sgd_lr: SGD's rate, of biases too. With a loss that is a mean, it is the batch size times
            what it would be for a sum.
        head_lr: SGD's rate for weights, the classifier's, whose decay is smaller by as much, so
            that all shrink alike; None is sgd_lr.
        adam_lr: AdamW's rate.
        momentum: Muon's.
        sgd_momentum: SGD's mu.
        weight_decay: SGD's wd, of biases too, or these grow at such rates.
        normed: As of `MuonAdamW`.

    Raises:
        ValueError: A rate, a momentum or the decay is below 0.

    Examples:
        >>> from torch import nn
        >>> from vision_attn.training import MuonSGD, parameter_groups
        >>> network = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 2))
        >>> groups = MuonSGD(parameter_groups(network), lr=0.24, sgd_lr=0.05).param_groups
        >>> [(group["hidden"], group["sgd"], group["lr"]) for group in groups]
        [(True, False, 0.24), (False, True, 0.05), (False, True, 0.05)]
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 0.24,
        sgd_lr: float = 0.05,
        head_lr: float | None = None,
        adam_lr: float = 0.01,
        momentum: float = 0.6,
        sgd_momentum: float = 0.85,
        weight_decay: float = 0.0,
        normed: bool = True,
    ):
        _not_below_zero(
            sgd_lr=sgd_lr, head_lr=head_lr, sgd_momentum=sgd_momentum, weight_decay=weight_decay
        )
        super().__init__(params, lr, adam_lr, momentum, weight_decay=0.0, normed=normed)
        for group in self.param_groups:
            group["sgd"] = not (group["hidden"] or group.get("apart", False))
            if group["sgd"]:
                weights = all(parameter.ndim >= 2 for parameter in group["params"])
                group["lr"] = sgd_lr if head_lr is None or not weights else head_lr
                group["momentum"] = sgd_momentum
                group["weight_decay"] = weight_decay * sgd_lr / group["lr"] if group["lr"] else 0.0


def _not_below_zero(**options: float | None) -> None:
    for name, value in options.items():
        if value is not None and not value >= 0:
            raise ValueError(f"{name} must be at least 0, got {value}")


def alike(weights: Iterable[Tensor]) -> list[list[Tensor]]:
    """Sort the weights that have gradients: those together whose matrices make one stack.

    Those are small and of one shape: on two cores five of 128 x 128 take 1.4 ms instead of 3.7.
    Large ones keep the cores busy alone, and their products would leave the cache.
    """
    groups: dict[object, list[Tensor]] = {}
    for index, weight in enumerate(weights):
        if weight.grad is None:
            continue
        kind = weight.shape[0], weight.numel(), weight.dtype, weight.device, type(weight)
        groups.setdefault(kind if weight.numel() <= SMALL else index, []).append(weight)
    return list(groups.values())


def _orthogonal(matrices: Sequence[Tensor]) -> Sequence[Tensor]:
    """Of matrices of one shape. Of those in shares, each process works all of them out, and keeps
    its own share."""
    whole = [m.full_tensor() if isinstance(m, DTensor) else m for m in matrices]
    updates = orthogonal(torch.stack(whole)).unbind() if len(whole) > 1 else [orthogonal(whole[0])]
    return [
        distribute_tensor(update, m.device_mesh, m.placements, src_data_rank=None)
        if isinstance(m, DTensor)
        else update
        for update, m in zip(updates, matrices, strict=True)
    ]


def orthogonal(matrix: Matrix) -> Matrix:
    """Move the singular values of a matrix near 1: about U V' of its decomposition U S V'.

    Newton-Schulz iteration X <- Q X with Q = a + b A + c A A and A = X X', in bfloat16 where that
    is native; the coefficients maximise the slope at 0. After 5 steps values of at least 0.0015 of
    the matrix's Frobenius norm lie between 0.68 and 1.21. Smaller ones, which square matrices
    usually have, grow 485-fold at most and may stay near 0; in bfloat16 the rounding of the matrix
    grows alike, which adds up to 0.25 to them. Of one matrix, or of each in a stack of them.

    In float32, matrices of at least twice as many columns as rows, or rows as columns, are spared
    most products by their long side: A becomes Q A Q, and X is multiplied by all Q at the end.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    native = native_precision(matrix.device.type) == "bf16-mixed"
    x = matrix.to(torch.bfloat16 if native else torch.float32)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    plus_product = torch.addmm if x.ndim == 2 else torch.baddbmm

    def polynomial(gram: Tensor) -> Tensor:
        return plus_product(gram, gram, gram, beta=b, alpha=c)

    if native or x.shape[-1] < 2 * x.shape[-2]:
        for _ in range(STEPS):
            x = plus_product(x, polynomial(x @ x.mT), x, beta=a)
    else:
        identity = a * torch.eye(x.shape[-2], device=x.device)
        gram = x @ x.mT
        factor = product = polynomial(gram) + identity
        for _ in range(STEPS - 1):
            gram = factor @ gram @ factor
            factor = polynomial(gram) + identity
            product = factor @ product
        x = product @ x
    return (x.mT if tall else x).to(matrix.dtype)
