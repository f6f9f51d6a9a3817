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

__all__ = ["Hard", "Normalizer", "SampledHard", "Sigmoid", "Softmax"]

TINY = torch.finfo(torch.float32).tiny


class Normalizer(nn.Module, ABC):
    """Base class: weights from scores, over the last axis. A subclass gives them in `normalize`.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import Normalizer
        >>> class Linear(Normalizer):
        ...     def normalize(self, scores):
        ...         return scores.relu() / scores.relu().sum(-1, keepdim=True).clamp(min=1e-6)
        >>> Linear()(torch.tensor([[3.0, 1.0, -2.0]]))
        tensor([[0.7500, 0.2500, 0.0000]])
    """

    def forward(
        self, scores: Float[Tensor, "*lead j"], mask: Tensor | None = None
    ) -> Float[Tensor, "*lead j"]:
        """Compute the weights over the last axis.

        Args:
            scores: The scores, (... j).
            mask: Bool, True where a query may attend, broadcasting to the scores. Masked keys get
                weight 0.

        Returns:
            The weights, of the scores' shape.

        Raises:
            ValueError: There are no keys, or the mask has another type or shape.
        """
        if scores.size(-1) == 0:
            raise ValueError(f"scores must not be empty, got shape {tuple(scores.shape)}")
        if mask is None:
            return self.normalize(scores)
        check_mask(mask, scores.shape)
        # The lowest number and not -inf: a row of -inf alone has no softmax, only NaN.
        lowest = torch.finfo(scores.dtype).min
        return self.normalize(scores.masked_fill(~mask, lowest)).masked_fill(~mask, 0)

    @abstractmethod
    def normalize(self, scores: Float[Tensor, "*lead j"]) -> Float[Tensor, "*lead j"]:
        """Compute the weights of scores that are not masked.

        Args:
            scores: The scores, (... j).
        """


@final
class Softmax(Normalizer):
    """Softmax: exp(e_i / T) / sum_j exp(e_j / T).

    Args:
        temperature: T, above 0.

    Raises:
        ValueError: `temperature` is not above 0.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import Softmax
        >>> scores, mask = torch.zeros(1, 4), torch.tensor([[True, True, True, False]])
        >>> Softmax()(scores, mask)
        tensor([[0.3333, 0.3333, 0.3333, 0.0000]])
    """

    def __init__(self, temperature: int | float = 1.0):
        super().__init__()
        above_zero(temperature=temperature)
        self.temperature = temperature

    def normalize(self, scores: Float[Tensor, "*lead j"]) -> Float[Tensor, "*lead j"]:
        return (scores if self.temperature == 1 else scores / self.temperature).softmax(-1)


@final
class Sigmoid(Normalizer):
    """Sigmoid: 1 / (1 + exp(-e_i)), every key by itself; the weights do not sum to 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import Sigmoid
        >>> Sigmoid()(torch.tensor([[0.0, 0.0, 0.0]]))
        tensor([[0.5000, 0.5000, 0.5000]])
    """

    def normalize(self, scores: Float[Tensor, "*lead j"]) -> Float[Tensor, "*lead j"]:
        return scores.sigmoid()


class Hard(Normalizer):
    """Hard attention: one-hot at argmax_i e_i, with the gradient of softmax(e / T).

    The straight-through estimator, Bengio et al. 2013. `SampledHard` draws the key instead.

    Args:
        temperature: T of the gradient, above 0.

    Raises:
        ValueError: `temperature` is not above 0.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import Hard
        >>> Hard()(torch.tensor([[0.5, 2.0, 1.0]]))
        tensor([[0., 1., 0.]])
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
    """Sampled hard attention: one key, drawn with probability softmax(e)_i in training.

    In eval mode the likeliest key. Gumbel-softmax, straight-through, Jang et al. 2017: the gradient
    is that of softmax((e + g) / T) with Gumbel noise g. The idea, trained by REINFORCE, is Xu et
    al. 2015.

    Args:
        temperature: T, above 0.
        expected: The share of a training batch, from 0 to 1, that gets the expected value,
            softmax(e), instead of a draw (section 4.1 there): with draws alone training may never
            start.

    Raises:
        ValueError: `temperature` is not above 0, or `expected` is not from 0 to 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import SampledHard
        >>> SampledHard()(torch.zeros(5, 3)).sum(-1)
        tensor([1., 1., 1., 1., 1.])
        >>> SampledHard().eval()(torch.tensor([[0.5, 2.0, 1.0]]))
        tensor([[0., 1., 0.]])
    """

    def __init__(self, temperature: int | float = 1.0, expected: int | float = 0.0):
        super().__init__(temperature)
        if not 0 <= expected <= 1:
            raise ValueError(f"expected must be from 0 to 1, a share of each batch, got {expected}")
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
