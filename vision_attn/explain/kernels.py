"""torch's attention as the recorder calls it, so that what it knows is not lost.

Axes: b batch, head, i queries, j keys, d width.
"""

from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

SMALL = 2**20  # bytes that are not worth a copy


def attention_and_lse(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """torch's attention, and log sum_j exp(score_ij) where its kernel tells: see `Fused`.

    It is the kernel that torch would choose: flash attention for float32 and float64 on a CPU.
    """
    plain = attn_mask is None and not is_causal and not enable_gqa and query.ndim == 4
    if plain and computes_exactly(query) and takes_flash(query, key, value, dropout_p, scale):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, dropout_p, scale=scale
        )
    context = F.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return context, None


def takes_flash(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float, scale: float | None
) -> bool:
    """Whether torch would choose its flash kernel. What that returns is laid out as the query."""
    chosen = torch._fused_sdp_choice(query, key, value, dropout_p=dropout_p, scale=scale)
    return chosen == SDPBackend.FLASH_ATTENTION.value


def computes_exactly(x: Tensor) -> bool:
    """Whether products of it are made on a CPU in the full precision of float32 or float64."""
    exact = x.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return exact and x.device.type == "cpu"


def off(tensor: Tensor) -> Tensor:
    """Off the graph. A large view is copied, or it would keep q, k and v alive, as graphs do."""
    small = tensor.nbytes <= SMALL or tensor.untyped_storage().nbytes() <= tensor.nbytes
    if tensor.requires_grad or small:
        return tensor.detach()
    return tensor.clone(memory_format=torch.contiguous_format)


def is_matmul(equation: Any) -> bool:
    """Whether an einsum of two tensors is `...ij,...jd->...id`."""
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
