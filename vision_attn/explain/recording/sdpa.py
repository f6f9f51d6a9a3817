"""torch's attention as the recorder calls it, so that what it knows is not lost.

Axes: b batch, head, i queries, j keys, d width.
"""

from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

SMALL = 2**20  # bytes that are not worth a copy


class Given(NamedTuple):
    """What torch's `scaled_dot_product_attention` is given."""

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
        """What products of queries and keys are multiplied by."""
        return self.query.shape[-1] ** -0.5 if self.scale is None else self.scale

    @property
    def plain(self) -> bool:
        """Whether every query (b head i d) sees every key, and the CPU computes exactly."""
        masked = self.attn_mask is not None or self.is_causal
        return not masked and not self.enable_gqa and self.query.ndim == 4 and _exact(self.query)

    @property
    def flash(self) -> bool:
        """Whether torch would choose its flash kernel. What that returns is laid out as q."""
        chosen = torch._fused_sdp_choice(
            self.query, self.key, self.value, dropout_p=self.dropout_p, scale=self.scale
        )
        return chosen == SDPBackend.FLASH_ATTENTION.value


def attention_and_lse(given: Given) -> tuple[Tensor, Tensor | None]:
    """torch's attention, and log sum_j exp(score_ij) where its kernel tells: see `Fused`.

    It is the kernel that torch would choose: flash attention for float32 and float64 on a CPU.
    """
    if given.plain and given.flash:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            given.query, given.key, given.value, given.dropout_p, scale=given.scale
        )
    return F.scaled_dot_product_attention(**given._asdict()), None


def _exact(x: Tensor) -> bool:
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
