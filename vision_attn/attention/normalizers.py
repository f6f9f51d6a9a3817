"""Normalisers: from scores to weights over the last axis.

A masked key gets weight exactly 0; a row whose keys are all masked gets zeros and finite gradients.

Axes: b batch, head, i queries, j keys.
"""

from abc import ABC, abstractmethod
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.attention.checks import above_zero
from vision_attn.attention.masks import check_mask

TINY = torch.finfo(torch.float32).tiny


class Normalizer(nn.Module, ABC):
    """Weights from scores, over the last axis; mask: True where a query may attend."""

    def forward(
        self, scores: Float[Tensor, "*lead j"], mask: Tensor | None = None
    ) -> Float[Tensor, "*lead j"]:
        if scores.size(-1) == 0:
            raise ValueError(f"scores must not be empty, got shape {tuple(scores.shape)}")
        if mask is None:
            return self.normalize(scores)
        check_mask(mask, scores.shape)
        # The lowest number and not -inf: a row of -inf alone has no softmax, only NaN.
        lowest = torch.finfo(scores.dtype).min
        return self.normalize(scores.masked_fill(~mask, lowest)).masked_fill(~mask, 0)

    @abstractmethod
    def normalize(self, scores: Float[Tensor, "*lead j"]) -> Float[Tensor, "*lead j"]: ...


@final
class Softmax(Normalizer):
    """exp(e_i / T) / sum_j exp(e_j / T)."""

    def __init__(self, temperature: int | float = 1.0):
        super().__init__()
        above_zero(temperature=temperature)
        self.temperature = temperature

    def normalize(self, scores: Float[Tensor, "*lead j"]) -> Float[Tensor, "*lead j"]:
        return (scores if self.temperature == 1 else scores / self.temperature).softmax(-1)


@final
class Sigmoid(Normalizer):
    """1 / (1 + exp(-e_i)): every key by itself; the weights do not sum to 1."""

    def normalize(self, scores: Float[Tensor, "*lead j"]) -> Float[Tensor, "*lead j"]:
        return scores.sigmoid()


class Hard(Normalizer):
    """The best key alone: one-hot at argmax_i e_i, with the gradient of softmax(e / T).

    The straight-through estimator, Bengio et al. 2013. The best key may also be a sampled one,
    see `SampledHard`.
    """

    def __init__(self, temperature: int | float = 1.0):
        super().__init__()
        above_zero(temperature=temperature)
        self.temperature = temperature

    def normalize(self, scores: Float[Tensor, "*lead j"]) -> Float[Tensor, "*lead j"]:
        soft = (scores / self.temperature).softmax(-1)
        best = torch.zeros_like(soft).scatter_(-1, soft.argmax(-1, keepdim=True), 1.0)
        return best + (soft - soft.detach())  # the bracket is 0, and NaN where the scores are


@final
class SampledHard(Hard):
    """One key drawn with probability softmax(e)_i in training, the most probable one after it.

    Gumbel-softmax, straight-through, Jang et al. 2017: the gradient is that of
    softmax((e + g) / T) with Gumbel noise g. The idea, trained by REINFORCE, is Xu et al. 2015.

    expected: the share of a training batch that reads the expected value, softmax(e), instead of a
    draw (section 4.1 there): draws alone begin by reading anything, and may never learn.
    """

    def __init__(self, temperature: int | float = 1.0, expected: int | float = 0.0):
        super().__init__(temperature)
        if not 0 <= expected <= 1:
            raise ValueError(f"expected must be from 0 to 1, a share of a batch, got {expected}")
        self.expected = expected

    def normalize(self, scores: Float[Tensor, "*lead j"]) -> Float[Tensor, "*lead j"]:
        if self.training:
            noise = torch.empty_like(scores, dtype=torch.float32).exponential_()
            drawn = super().normalize(scores - noise.clamp(min=TINY).log())
            if self.expected == 0:
                return drawn
            one_an_image = scores.shape[:-1][:1] + (1,) * (scores.ndim - 1)
            soft = torch.rand(one_an_image or 1, device=scores.device) < self.expected
            return torch.where(soft, scores.softmax(-1), drawn)
        return super().normalize(scores)
