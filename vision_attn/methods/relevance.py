"""Class-specific maps from attention and its gradient together.

A_h the weights of head h in a layer, dA_h = dO_h V_h' the gradient of the target by them, as
O_h = A_h V_h: with the gradient dO of the heads' outputs, which fused attention gives, any tile of
dA is a small product.

Axes: b batch, s rows carried, n tokens, i queries, j keys, head, d width of a token, k classes,
l layers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vision_attn.methods.attention_explainer import (
    AttentionExplainer,
    ChainExplainer,
    Trace,
    full_precision,
    trace_gradients,
)
from vision_attn.methods.raw_attention import AttentionLayer, layer_index
from vision_attn.methods.rollout import weight_gradients, weights_and_gradients
from vision_attn.methods.targets import Target
from vision_attn.tokens.carry.transpose import apply_raw_transpose, apply_transpose
from vision_attn.tokens.path.branches import of_one_call
from vision_attn.tokens.path.chain import Patches, PropagationRule
from vision_attn.tokens.record.calls import AttentionCall, Tile
from vision_attn.types import Heatmaps, Images, TokenLayout

__all__ = ["AttentionGradCAM", "Relevance"]


@dataclass(frozen=True)
class Relevance(ChainExplainer):
    """Relevance of the input tokens, by attention weights times their positive gradients.

    R <- R + C R from the identity, C = mean_h (A * dA)+, Chefer et al., ICCV 2021, section 3.1. No
    residual share and no row is normalised. As a row: r <- r + C' r from the last layer. The map is
    what attention brought, R less the identity: the same for a class token, and for a mean over
    patches without the equal share of each patch that the mean itself puts there. Calls side by
    side count as one with all their heads.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import Relevance
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> maps = Relevance()(network, torch.rand(1, 3, 16, 16), target=3)
        >>> bool((maps.values >= 0).all())
        True
    """

    class_specific = True
    needs_gradients = True
    keeps_seed = False
    why_empty = "no attention weight raises the target"

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
            fuse = weights_and_gradients(gradients[layer], lambda both: both.clamp_(min=0).mean(1))
            return apply_raw_transpose(call, r, fuse)

        return traced, PropagationRule(step, residual=1.0, attention=1.0), target


@dataclass(frozen=True)
class AttentionGradCAM(AttentionExplainer):
    """Grad-CAM with heads for channels, as Chefer et al., CVPR 2021, compare with.

    (mean_h w_h A_h)+ in the rows that the classifier reads, w_h the mean of dA_h over patches: the
    seed's mean gradient by the weights it gives to patches.

    Args:
        layer: In the order they ran, -1 the last, where a class token's gradient is; or as
            RawAttention takes it.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import AttentionGradCAM
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> AttentionGradCAM()(network, torch.rand(1, 3, 16, 16), target=3).values.shape
        torch.Size([1, 2, 2])
    """

    layer: AttentionLayer = -1

    class_specific = True
    needs_gradients = True
    why_empty = "the heads together do not raise the target in this layer"

    def explain(
        self,
        network: nn.Module,
        images: Images,
        target: Target,
        layout: TokenLayout | None,
    ) -> Heatmaps:
        traced, gradients, target = trace_gradients(network, images, target, layout)
        index = layer_index(traced.chain, self.layer, network)

        def step(
            layer: int, call: AttentionCall, r: Tensor, windows: int, patches: Patches
        ) -> Tensor:
            if layer != index:
                return apply_transpose(call, r)
            rows = torch.einsum("bsi,bhie->bhse", r, gradients[layer].to(call.dtype)).sum(2, True)
            gradient = weight_gradients(call, rows, Tile())[..., patches or slice(None)]
            share = gradient.mean((2, 3)).view(-1, windows, call.heads).mean(1)
            return apply_transpose(call, r, share.repeat_interleave(windows, 0) / call.heads)

        with full_precision(images):
            rule = PropagationRule(step, residual=0.0, attention=1.0)
            chain = of_one_call(traced.chain, index)
            shares = chain.back(traced.seed(chain), rule, [index])
            return traced.heatmaps(shares[:, 0].clamp(min=0), self, target.classes(images))
