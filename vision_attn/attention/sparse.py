"""Sparse normalisers: some weights exactly 0, the rest soft.

Both are p = relu(z / r - t)^r with the one threshold t that makes the weights sum to 1: Sparsemax
with power r = 1, Entmax15 with r = 2 (alpha = 1 + 1/r in the papers).

Axes: b batch, head, i queries, j keys.
"""

from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.attention.normalizers import Normalizer

__all__ = ["Entmax15", "SparseNormalizer", "Sparsemax"]

BLOCK = 1 << 18  # numbers searched at a time: they and the scratch beside them stay in cache


@torch.library.custom_op("vision_attn::entmax_threshold", mutates_args=())
def entmax_threshold(z: Tensor, power: int) -> Tensor:
    """Solve sum_j relu(z_j - t)^power = 1 for t, in rows whose largest z is 0; (n j) -> (n 1).

    Newton's method from t = -1. The sum is convex and falls in t, so every step stays below the
    solution and the last one reaches it: exactly for power 1, where the steps end as soon as the
    support is right, and to rounding for power 2. No sorting.
    """
    t = z.new_full((len(z), 1), -1.0)
    rows = max(1, BLOCK // z.size(-1)) if z.device.type == "cpu" else len(z)
    for z_block, t_block in zip(z.split(rows), t.split(rows), strict=True):
        above = torch.empty_like(z_block)
        for _ in range(100):  # at most about 2 log2(n) + 24 are needed, 5 to 8 are usual
            torch.sub(z_block, t_block, out=above).clamp_(min=0)
            if power == 1:
                total, slope = above.sum(-1, keepdim=True), above.sign_().sum(-1, keepdim=True)
            else:
                slope = 2 * above.sum(-1, keepdim=True)
                total = above.square_().sum(-1, keepdim=True)
            step = (total - 1) / slope
            t_block += step
            if not (step > 4 * torch.finfo(z.dtype).eps).any():
                break
    return t


@entmax_threshold.register_fake
def _(z: Tensor, power: int) -> Tensor:
    return z.new_empty(z.size(0), 1)


class Entmax(torch.autograd.Function):
    """p = relu(z / r - t)^r; dz = s (dp - sum(s dp) / sum(s)) with s = p^(1 - 1/r) on the support.

    Martins & Astudillo 2016, proposition 1 and equation 9; Peters et al. 2019, section 3.2.
    """

    @staticmethod
    def forward(scores: Tensor, power: int) -> Tensor:
        z = scores.to(torch.promote_types(scores.dtype, torch.float32))
        z = (z - z.amax(-1, keepdim=True)).reshape(-1, z.size(-1))
        z = z if power == 1 else z / power
        p = z.sub(entmax_threshold(z, power)).clamp(min=0)
        p = p if power == 1 else p.square()
        return p.view(scores.shape).to(scores.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.power = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (p,) = ctx.saved_tensors
        s = p.sign() if ctx.power == 1 else p.sqrt()
        mean = (s * grad).sum(-1, keepdim=True) / s.sum(-1, keepdim=True)
        return s * (grad - mean), None


class SparseNormalizer(Normalizer):
    """Base class of sparse normalisers: p = relu(z / r - t)^r, r the class's `power`, 1 or 2.

    Examples:
        >>> import torch
        >>> from vision_attn.attention.sparse import SparseNormalizer
        >>> class Entmax(SparseNormalizer):
        ...     power = 2
        >>> Entmax()(torch.tensor([[1.0, 0.0, -2.0]])).count_nonzero()
        tensor(2)
    """

    power: ClassVar[int]

    def normalize(self, scores: Float[Tensor, "*lead j"]) -> Float[Tensor, "*lead j"]:
        return Entmax.apply(scores, self.power)


@final
class Sparsemax(SparseNormalizer):
    """Sparsemax: the weights closest to the scores, argmin_p |p - e|^2, many of them exactly 0.

    Martins & Astudillo 2016.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import Sparsemax
        >>> Sparsemax()(torch.tensor([[1.0, 0.5, -1.0]]))
        tensor([[0.7500, 0.2500, 0.0000]])
    """

    power = 1


@final
class Entmax15(SparseNormalizer):
    """Entmax with alpha = 1.5, half way from softmax to sparsemax, Peters et al. 2019.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import Entmax15
        >>> Entmax15()(torch.tensor([[1.0, 0.5, -2.0]]))
        tensor([[0.6740, 0.3260, 0.0000]])
    """

    power = 2
