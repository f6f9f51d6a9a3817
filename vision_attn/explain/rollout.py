"""Attention rollout: what share of each input token reaches the token that is classified.

With A_l the weights of layer l, heads fused to F_l, and alpha the share a token keeps for itself:

    r_L = what the classifier reads (class token, mean of the patches, attention pool)
    r_(l-1) = alpha r_l + (1 - alpha) F_l' r_l

so r_0 is the seed's row of the product of all alpha I + (1 - alpha) F_l (Abnar and Zuidema 2020)
without any n x n matrix: F_l' r is a sum over rows of F_l, made tile by tile (`pull`). Order in a
layer: fuse the heads, discard, make every row sum to 1, then mix in the residual.

Axes: b batch, s rows carried, n tokens, i queries, j keys, t rows of a tile, head, e value width.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vision_attn.explain.propagation.chain import Through
from vision_attn.explain.propagation.explainer import Chained
from vision_attn.explain.propagation.tiles import Fuse
from vision_attn.explain.propagation.trace import PerHead, Trace, trace, trace_gradients
from vision_attn.explain.propagation.transpose import pull, pull_fused
from vision_attn.explain.recording.calls import AttentionCall, Fusion
from vision_attn.explain.recording.workspace import Room, product
from vision_attn.types import Images, TokenLayout

FUSIONS = {
    "mean": Fusion(lambda weights: weights.mean(1), keeps_shares=True),
    "max": Fusion(lambda weights: weights.amax(1)),
    "min": Fusion(lambda weights: weights.amin(1)),
}
TOLERANCE = 1e-4  # how far the sum of rows that sum to 1 may be off


@dataclass(frozen=True)
class Rollout(Chained):
    """Shares of the input tokens, heads fused alike in every layer; the same for every class.

    fusion: mean, max or min of the heads. discard: in each layer the entries of the fused map below
    this quantile of it become 0, in the columns of patches. residual: alpha.
    """

    fusion: Literal["mean", "max", "min"] = "mean"
    discard: float = 0.0
    residual: float = 0.5

    class_specific = False
    total = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("residual", self.residual)
        check_share("discard", self.discard)

    def prepare(
        self,
        network: nn.Module,
        images: Images,
        targets: Int[Tensor, " b"] | None,
        layout: TokenLayout | None,
    ) -> tuple[Trace, Through, None]:
        traced = trace(network, images, layout, (), FUSIONS[self.fusion])
        return traced, Through(self._step, keep=self.residual, take=1 - self.residual), None

    def _step(
        self, layer: int, call: AttentionCall, r: Tensor, windows: int, spared: int
    ) -> Tensor:
        if self.fusion == "mean" and not self.discard and call.sums_to_one:
            return checked(pull(call, r), r, call)
        return pull_fused(call, r, heads_fused(FUSIONS[self.fusion]), self.discard, windows, spared)


@dataclass(frozen=True)
class WeightedRollout(Chained):
    """Rollout whose heads count by what they do for the class.

    Head h of a layer counts w_h = (sum_i dO_hi . O_hi)+, made to sum to 1 over the heads: O the
    heads' outputs, dO the gradient of the class's logit, so that dO_hi . O_hi is also
    sum_j A_hij dA_hij, the importance of the head's weights. Fused kernels compute all of it. Where
    no head has a positive sum, all count alike.
    """

    residual: float = 0.5

    class_specific = True
    needs_gradients = True
    total = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("residual", self.residual)

    def prepare(
        self,
        network: nn.Module,
        images: Images,
        targets: Int[Tensor, " b"] | None,
        layout: TokenLayout | None,
    ) -> tuple[Trace, Through, Int[Tensor, " b"]]:
        traced, gradients, targets = trace_gradients(network, images, targets, layout)
        shares = [
            head_shares(call, gradient, len(images))
            for call, gradient in zip(traced.calls, gradients, strict=True)
        ]

        def step(layer: int, call: AttentionCall, r: Tensor, windows: int, spared: int) -> Tensor:
            share = shares[layer].repeat_interleave(windows, 0)
            if call.sums_to_one:
                return checked(pull(call, r, share), r, call)

            def fuse(
                call: AttentionCall, image: slice, row: slice | Tensor, room: Room | None
            ) -> Tensor:
                weights = call.weights(image, rows=row, room=room)
                return torch.einsum("bhtj,bh->btj", weights, share[image]).clamp_(min=0)

            return pull_fused(call, r, fuse)

        return traced, Through(step, keep=self.residual, take=1 - self.residual), targets


@dataclass(frozen=True)
class GradientRollout(Chained):
    """Rollout of F = (mean_h A * dA)+, dA the gradient of the class's logit by the weights.

    Each layer's weights meet their own gradients: dA_h = dO_h V_h', since O_h = A_h V_h. discard:
    as for Rollout, before the rows are made to sum to 1. A token that nothing speaks for keeps its
    whole share.
    """

    discard: float = 0.0
    residual: float = 0.5

    class_specific = True
    needs_gradients = True
    total = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("residual", self.residual)
        check_share("discard", self.discard)

    def prepare(
        self,
        network: nn.Module,
        images: Images,
        targets: Int[Tensor, " b"] | None,
        layout: TokenLayout | None,
    ) -> tuple[Trace, Through, Int[Tensor, " b"]]:
        traced, gradients, targets = trace_gradients(network, images, targets, layout)

        def step(layer: int, call: AttentionCall, r: Tensor, windows: int, spared: int) -> Tensor:
            fuse = weights_and_gradients(gradients[layer], lambda both: both.mean(1).clamp_(min=0))
            return pull_fused(call, r, fuse, self.discard, windows, spared)

        return traced, Through(step, keep=self.residual, take=1 - self.residual), targets


def check_share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, got {value}")


def heads_fused(fusion: Fusion) -> Fuse:
    """Rows of the fused map. Weights below 0 (mixed heads) count as 0."""

    def fuse(call: AttentionCall, image: slice, row: slice | Tensor, room: Room | None) -> Tensor:
        return fusion.fuse(call.weights(image, rows=row, room=room)).clamp_(min=0)

    return fuse


def weights_and_gradients(gradient: PerHead, fusion: Callable[[Tensor], Tensor]) -> Fuse:
    """Rows of A * dA, heads fused: dA = dO V' for a tile, from the gradient dO of the context."""

    def fuse(call: AttentionCall, image: slice, row: slice | Tensor, room: Room | None) -> Tensor:
        both = weight_gradients(call, gradient, image, row, room)
        return fusion(both.mul_(call.weights(image, rows=row, room=room)))

    return fuse


def weight_gradients(
    call: AttentionCall,
    gradient: PerHead,
    image: slice,
    row: slice | Tensor,
    room: Room | None = None,
) -> Float[Tensor, "images head t j"]:
    """dA = dO V', since O = A V."""
    if call.v is None:
        raise ValueError(
            f"{call.module}: there is no gradient by its weights, as it weighs its values by "
            "several looks at once: use a method without gradients, or WeightedRollout"
        )
    gradient, v = gradient[image][:, :, row].to(call.dtype), call.v[image].to(call.dtype)
    return product(gradient, v.mT, "gradients", room)


def head_shares(call: AttentionCall, gradient: PerHead, images: int) -> Float[Tensor, "b head"]:
    """(sum_i dO_hi . O_hi)+ over all windows of an image, summing to 1 over the heads."""
    context = torch.zeros_like(gradient) if call.context is None else call.context
    importance = (gradient.to(call.dtype) * context.to(call.dtype)).sum((2, 3))
    importance = importance.view(images, -1, call.heads).sum(1).clamp(min=0)
    total = importance.sum(1, keepdim=True)
    return torch.where(total > 0, importance / total, 1 / call.heads)


def checked(pulled: Tensor, r: Tensor, call: AttentionCall) -> Tensor:
    """The rows, with a warning where they do not sum to what went in."""
    off = torch.dist(pulled.sum(-1), r.sum(-1), inf).item()
    if off > TOLERANCE:
        warnings.warn(
            f"{call.module}: shares that should sum to 1 are off by {off:.1e}: its attention "
            "weights do not sum to 1, or are too coarse",
            RuntimeWarning,
            stacklevel=2,
        )
    return pulled
