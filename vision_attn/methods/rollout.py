"""Attention rollout: what share of each input token reaches the token that is classified.

With A_l the weights of layer l, heads fused to F_l, and alpha the share a token keeps for itself:

    r_L = what the classifier reads (class token, mean of the patches, attention pool)
    r_(l-1) = alpha r_l + (1 - alpha) F_l' r_l

so r_0 is the seed's row of the product of all alpha I + (1 - alpha) F_l (Abnar and Zuidema 2020)
without any n x n matrix: F_l' r is a sum over rows of F_l, made tile by tile (`apply_transpose`).
Order in a layer: fuse the heads, discard, make every row sum to 1, then mix in the residual.

Axes: b batch, s rows carried, n tokens, i queries, j keys, t rows of a tile, head, e value width.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.methods.attention_explainer import (
    ChainExplainer,
    PerHead,
    Trace,
    trace,
    trace_gradients,
)
from vision_attn.methods.targets import Target
from vision_attn.tokens.carry.tiles import FuseTile
from vision_attn.tokens.carry.transpose import apply_fused_transpose, apply_transpose
from vision_attn.tokens.path.chain import Patches, PropagationRule
from vision_attn.tokens.record.calls import AttentionCall, ExplicitWeights, Fusion, Tile, product
from vision_attn.types import Images, TokenLayout

__all__ = [
    "FUSIONS",
    "GradientRollout",
    "Rollout",
    "WeightedRollout",
    "weight_gradients",
    "weights_and_gradients",
]


FUSIONS = {
    "mean": Fusion(lambda weights: weights.mean(1), keeps_row_sums=True),
    "max": Fusion(lambda weights: weights.amax(1)),
    "min": Fusion(lambda weights: weights.amin(1)),
}
TOLERANCE = 1e-4  # how far the sum of rows that sum to 1 may be off


@dataclass(frozen=True)
class Rollout(ChainExplainer):
    """Shares of the input tokens, heads fused alike in every layer; the same for every class.

    Abnar and Zuidema 2020.

    Args:
        fusion: mean, max or min of the heads.
        discard: In each layer the entries of the fused map below this quantile of it become 0, in
            the columns of patches.
        residual: alpha, the share that a token keeps for itself.
        outliers: False takes the share of patches with outlying norms out of the map, where they
            are 0; `outlier_mass` has it, and the rest is not scaled up.

    Raises:
        ValueError: `discard` or `residual` lies outside [0, 1).

    Examples:
        >>> import torch
        >>> from vision_attn.methods import Rollout
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> maps = Rollout()(network, torch.rand(2, 3, 16, 16))
        >>> maps.values.shape
        torch.Size([2, 2, 2])
        >>> torch.allclose(maps.values.sum((1, 2)) + maps.prefix_mass, torch.ones(2))
        True
    """

    fusion: Literal["mean", "max", "min"] = "mean"
    discard: float = 0.0
    residual: float = 0.5
    outliers: bool = True

    class_specific = False
    total = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("residual", self.residual)
        check_share("discard", self.discard)

    def run(
        self,
        network: nn.Module,
        images: Images,
        target: Target,
        layout: TokenLayout | None,
    ) -> tuple[Trace, PropagationRule, None]:
        traced = trace(network, images, layout, (), FUSIONS[self.fusion])
        return traced, self.rule(), None

    def rule(self) -> PropagationRule:
        """Say what one attention call does to the rows that are carried."""
        return PropagationRule(self._step, residual=self.residual, attention=1 - self.residual)

    def _step(
        self, layer: int, call: AttentionCall, r: Tensor, windows: int, patches: Patches
    ) -> Tensor:
        if self.fusion == "mean" and not self.discard and call.sums_to_one:
            rows = apply_transpose(call, r)
            normalised = isinstance(call, ExplicitWeights) and call.normalized
            return rows if normalised else check_sums(rows, r, call)
        return apply_fused_transpose(
            call, r, heads_fused(FUSIONS[self.fusion]), self.discard, windows, patches
        )


@dataclass(frozen=True)
class WeightedRollout(ChainExplainer):
    """Rollout whose heads count by their importance for the target.

    Head h of a layer counts w_h = (sum_i dO_hi . O_hi)+, made to sum to 1 over the heads: O the
    heads' outputs, dO the gradient of the target, so that dO_hi . O_hi is also sum_j A_hij dA_hij,
    the importance of the head's weights. Fused kernels compute all of it. Where no head has a
    positive sum, all count alike.

    Args:
        residual: alpha, the share that a token keeps for itself.

    Raises:
        ValueError: `residual` lies outside [0, 1).

    Examples:
        >>> import torch
        >>> from vision_attn.methods import WeightedRollout
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> WeightedRollout()(network, torch.rand(2, 3, 16, 16), target=3).targets
        tensor([3, 3])
    """

    residual: float = 0.5

    class_specific = True
    needs_gradients = True
    total = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("residual", self.residual)

    def run(
        self,
        network: nn.Module,
        images: Images,
        target: Target,
        layout: TokenLayout | None,
    ) -> tuple[Trace, PropagationRule, Target]:
        traced, gradients, target = trace_gradients(network, images, target, layout)
        shares = [
            head_shares(call, gradient, len(images))
            for call, gradient in zip(traced.calls, gradients, strict=True)
        ]

        def step(
            layer: int, call: AttentionCall, r: Tensor, windows: int, patches: Patches
        ) -> Tensor:
            share = shares[layer].repeat_interleave(windows, 0)
            if call.sums_to_one:
                return check_sums(apply_transpose(call, r, share), r, call)

            def fuse(call: AttentionCall, tile: Tile) -> Tensor:
                weights, heads = call.tile_weights(tile), share[tile.images]
                return torch.einsum("bhtj,bh->btj", weights, heads).clamp_(min=0)

            return apply_fused_transpose(call, r, fuse)

        return (
            traced,
            PropagationRule(step, residual=self.residual, attention=1 - self.residual),
            target,
        )


@dataclass(frozen=True)
class GradientRollout(ChainExplainer):
    """Rollout of F = (mean_h A * dA)+, dA the gradient of the target by the weights.

    Each layer's weights meet their own gradients: dA_h = dO_h V_h', since O_h = A_h V_h. A query
    whose row is all 0 keeps its whole share.

    Args:
        discard: As for Rollout, before the rows are made to sum to 1.
        residual: alpha, the share that a token keeps for itself.

    Raises:
        ValueError: `discard` or `residual` lies outside [0, 1).

    Examples:
        >>> import torch
        >>> from vision_attn.methods import GradientRollout
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> maps = GradientRollout(discard=0.5)(network, torch.rand(1, 3, 16, 16), target=3)
        >>> maps.method
        'GradientRollout(discard=0.5)'
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

    def run(
        self,
        network: nn.Module,
        images: Images,
        target: Target,
        layout: TokenLayout | None,
    ) -> tuple[Trace, PropagationRule, Target]:
        traced, gradients, target = trace_gradients(network, images, target, layout)

        def step(
            layer: int, call: AttentionCall, r: Tensor, windows: int, patches: Patches
        ) -> Tensor:
            fuse = weights_and_gradients(gradients[layer], lambda both: both.mean(1).clamp_(min=0))
            return apply_fused_transpose(call, r, fuse, self.discard, windows, patches)

        return (
            traced,
            PropagationRule(step, residual=self.residual, attention=1 - self.residual),
            target,
        )


def check_share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, got {value}")


def heads_fused(fusion: Fusion) -> FuseTile:
    """Fuse the heads' weights of a tile. Weights below 0 (mixed heads) count as 0."""

    def fuse(call: AttentionCall, tile: Tile) -> Tensor:
        return fusion.fuse(call.tile_weights(tile)).clamp_(min=0)

    return fuse


def weights_and_gradients(gradient: PerHead, fusion: Callable[[Tensor], Tensor]) -> FuseTile:
    """Fuse the heads of A * dA in a tile: dA = dO V', from the gradient dO of the context."""

    def fuse(call: AttentionCall, tile: Tile) -> Tensor:
        both = weight_gradients(call, gradient, tile)
        return fusion(both.mul_(call.tile_weights(tile)))

    return fuse


def weight_gradients(
    call: AttentionCall, gradient: PerHead, tile: Tile
) -> Float[Tensor, "images head t j"]:
    """Compute dA = dO V' for a tile's images and rows, since O = A V.

    gradient: dO. Raises ValueError where the call's values are not known.
    """
    if call.v is None:
        raise ValueError(
            f"{call.module}: it has no gradient with respect to its weights, since it weighs its "
            "values by several maps at once: use a method without gradients, or WeightedRollout"
        )
    gradient = gradient[tile.images][:, :, tile.rows].to(call.dtype)
    v = call.v[tile.images].to(call.dtype)
    return product(gradient, v.mT, "gradients", tile.workspace)


def head_shares(call: AttentionCall, gradient: PerHead, images: int) -> Float[Tensor, "b head"]:
    """Compute (sum_i dO_hi . O_hi)+ over the windows of each image, made to sum to 1 over heads."""
    context = torch.zeros_like(gradient) if call.context is None else call.context
    importance = (gradient.to(call.dtype) * context.to(call.dtype)).sum((2, 3))
    importance = importance.view(images, -1, call.heads).sum(1).clamp(min=0)
    total = importance.sum(1, keepdim=True)
    return torch.where(total > 0, importance / total, 1 / call.heads)


def check_sums(rows: Tensor, r: Tensor, call: AttentionCall) -> Tensor:
    """Return the rows, with a warning where they do not sum to what went in, r."""
    error = torch.dist(rows.sum(-1), r.sum(-1), inf).item()
    if error > TOLERANCE:
        warnings.warn(
            f"{call.module}: shares that should sum to 1 are off by {error:.1e}: its attention "
            "weights do not sum to 1, or their precision is too low",
            RuntimeWarning,
            stacklevel=2,
        )
    return rows
