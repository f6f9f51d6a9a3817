"""torch's attention as the recorder calls it: with its log-sum-exp, or with its heads fused.

Axes: b batch, head, i queries, j keys, d width of a head, e value width.
"""

from types import FunctionType
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

from vision_attn.explain.recording.calls import CPU_TILE, Fusion, Workspace, cut_tiles, product

__all__ = [
    "SDPAInputs",
    "attention_and_lse",
    "detached",
    "is_matmul",
    "multi_head_body",
    "short_attention",
]

SMALL = 2**20  # bytes that are not worth a copy


class SDPAInputs(NamedTuple):
    """The arguments of torch's `scaled_dot_product_attention`, in its order.

    Examples:
        >>> import torch
        >>> from vision_attn.explain.recording.sdpa import SDPAInputs
        >>> inputs = SDPAInputs(*torch.rand(3, 1, 2, 5, 16))
        >>> inputs.alpha
        0.25
        >>> inputs.plain
        True
    """

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    @property
    def alpha(self) -> float:
        """Factor that products of queries and keys are multiplied by."""
        return self.query.shape[-1] ** -0.5 if self.scale is None else self.scale

    @property
    def plain(self) -> bool:
        """Whether every query (b head i d) sees every key, and the CPU computes exactly."""
        masked = self.attn_mask is not None or self.is_causal
        return not masked and not self.enable_gqa and self.query.ndim == 4 and _exact(self.query)

    @property
    def flash(self) -> bool:
        """Whether torch would choose its flash kernel, whose output has the strides of q."""
        chosen = torch._fused_sdp_choice(
            self.query, self.key, self.value, dropout_p=self.dropout_p, scale=self.scale
        )
        return chosen == SDPBackend.FLASH_ATTENTION.value


def attention_and_lse(inputs: SDPAInputs) -> tuple[Tensor, Tensor | None]:
    """Run torch's attention; also return log sum_j exp(score_ij) if its kernel computes it.

    It is the kernel that torch would choose: flash attention for float32 and float64 on a CPU. The
    second value (b head i) is what `LazyWeights.lse` takes; None from every other kernel.
    """
    if inputs.plain and inputs.flash:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            inputs.query, inputs.key, inputs.value, inputs.dropout_p, scale=inputs.scale
        )
    return F.scaled_dot_product_attention(**inputs._asdict()), None


def short_attention(
    inputs: SDPAInputs, fusion: Fusion, workspace: Workspace
) -> tuple[Float[Tensor, "b head i e"], Float[Tensor, "b i j"]] | None:
    """Run torch's attention in tiles and fuse its heads on the way; None where that is no gain.

    It is a gain where the fused map takes no more memory than the queries and keys, which would be
    kept in its place, and the network computes without gradients on a CPU, in float32 or float64.
    Returns the context, with the strides that torch's would have, and the fused map.
    """
    if not inputs.plain or inputs.dropout_p or torch.is_grad_enabled():
        return None
    query, key, value = inputs[:3]
    if not query.shape[:2] == key.shape[:2] == value.shape[:2]:
        return None
    (batch, heads, queries, width), keys = query.shape, key.shape[2]
    if not batch * keys or queries * keys > (queries + keys) * heads * width:
        return None
    if inputs.flash:
        context = torch.empty_like(query)
    else:
        context = query.new_empty(batch, heads, queries, value.shape[3])
    fused = query.new_empty(batch, queries, keys)
    limit = CPU_TILE * torch.get_num_threads()
    for tile in cut_tiles(batch, 1, queries, heads * keys, limit):
        image, row = tile.images, tile.rows
        scores = product(query[image, :, row], key[image].mT, "weights", workspace, inputs.alpha)
        weights = torch.softmax(scores, -1, out=scores)
        context[image, :, row] = weights @ value[image]
        fused[image, row] = fusion.fuse(weights)
    return context, fused


def _exact(x: Tensor) -> bool:
    """Whether products of it are computed on a CPU in full float32 or float64 precision."""
    exact = x.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return exact and x.device.type == "cpu"


def detached(tensor: Tensor) -> Tensor:
    """Take a tensor off the graph. A large view is copied: it would keep q, k and v alive."""
    small = tensor.nbytes <= SMALL or tensor.untyped_storage().nbytes() <= tensor.nbytes
    if tensor.requires_grad or small:
        return tensor.detach()
    return tensor.clone(memory_format=torch.contiguous_format)


def is_matmul(equation: Any) -> bool:
    """Whether an einsum of two tensors is `...ij,...jd->...id`.

    Examples:
        >>> from vision_attn.explain.recording.sdpa import is_matmul
        >>> is_matmul("bhij,bhjd->bhid"), is_matmul("bhid,bhjd->bhij")
        (True, False)
    """
    left, _, out = equation.replace(" ", "").partition("->")
    weights, _, v = left.partition(",")
    return (
        len(weights) == len(v) == len(out) > 2
        and weights[:-2] == v[:-2] == out[:-2]
        and weights[-2:] + v[-2:] == out[-2] + weights[-1] * 2 + out[-1]
    )


# torch's own code, but never handed back to the function mode that called it.
multi_head_body = FunctionType(
    F.multi_head_attention_forward.__code__,
    {**F.multi_head_attention_forward.__globals__, "has_torch_function": lambda _: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)
multi_head_body.__kwdefaults__ = F.multi_head_attention_forward.__kwdefaults__
