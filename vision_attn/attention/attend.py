"""Attention: score, normalise, weighted mean.

Axes: b batch, head, i queries, j keys, d head width, e value width.
"""

from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention.checks import not_empty
from vision_attn.attention.kernels import softmax_attention
from vision_attn.attention.masks import both, check_mask
from vision_attn.attention.normalizers import Normalizer, Softmax
from vision_attn.attention.scores import DotProduct, Keys, Queries, Score, Scores
from vision_attn.attention.windows import Context, Global, Window
from vision_attn.types import TokenLayout

__all__ = ["Attend", "weights_over"]

AnyValues = Float[Tensor, "b #view j_ e"]  # whose length is yet to be checked


class Attend(nn.Module):
    """Attention: a_ij = normalise_j(score(q_i, k_j)), c_i = sum_j a_ij v_j.

    j runs over the keys in the window of query i. Scores that are dot products are computed by the
    fastest kernel where softmax follows; the results are the same.

    Args:
        score: How well a key answers a query.
        normalizer: What makes weights of scores; None: `Softmax()`.
        window: The keys that each query sees; None: all of them, `Global()`.
        dropout: The share of weights set to 0 in training, in [0, 1).

    Raises:
        ValueError: `dropout` lies outside [0, 1).

    Examples:
        >>> import torch
        >>> from vision_attn.attention import Additive, Attend, Sparsemax
        >>> q, k, v = torch.randn(2, 1, 5, 8), torch.randn(2, 1, 7, 8), torch.randn(2, 1, 7, 8)
        >>> attend = Attend(Additive(head_dim=8), Sparsemax())
        >>> attend(q, k, v).shape  # (batch, head, query, width)
        torch.Size([2, 1, 5, 8])
        >>> attend.weights(q, k).shape
        torch.Size([2, 1, 5, 7])
    """

    def __init__(
        self,
        score: Score,
        normalizer: Normalizer | None = None,
        window: Window | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        self.score = score
        self.normalizer = Softmax() if normalizer is None else normalizer
        self.window = Global() if window is None else window
        self.dropout = dropout

    def weights(
        self,
        q: Queries,
        k: Keys,
        mask: Tensor | None = None,
        layout: TokenLayout | None = None,
    ) -> Scores:
        """Compute the weight of every key for every query, without dropout.

        Args:
            q: Queries, (b head i d).
            k: Keys, (b head j d); one head of either may stand for all.
            mask: Bool, True where query i may attend to key j, broadcasting to (b head i j).
            layout: How the tokens lie on the image, for windows that need it.

        Returns:
            The weights, (b head i j).

        Raises:
            ValueError: Sizes do not match, or there are no queries or no keys.
        """
        mask = self._checked(q, k, k, mask)
        own, gain = self.window.terms(q, k, layout)
        return self._weights(q, k, both(mask, own), gain)

    def forward(
        self,
        q: Queries,
        k: Keys,
        v: AnyValues,
        mask: Tensor | None = None,
        layout: TokenLayout | None = None,
    ) -> Context:
        """Compute the context of every query.

        Args:
            q: Queries, (b head i d).
            k: Keys, (b head j d).
            v: Values, (b head j e); one head of any of the three may stand for all.
            mask: As in `weights`.
            layout: As in `weights`.

        Returns:
            The contexts, (b head i e).

        Raises:
            ValueError: As in `weights`.
        """
        mask = self._checked(q, k, v, mask)
        # A score by position needs every key in its place: the window may not pick some out.
        window = self.window.definition if self.score.positional else self.window
        return window(self._context, q, k, v, mask, layout)

    def _weights(self, q: Tensor, k: Tensor, mask: Tensor | None, gain: Tensor | None) -> Tensor:
        weights = self.normalizer(self.score(q, k), mask)
        return weights if gain is None else weights * gain

    def _context(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, gain: Tensor | None
    ) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        score, normalizer = self.score, self.normalizer
        if isinstance(score, DotProduct) and isinstance(normalizer, Softmax) and gain is None:
            q, k = score.transform(q, k)
            return softmax_attention(q, k, v, mask, dropout, score.scale / normalizer.temperature)
        weights = F.dropout(self._weights(q, k, mask, gain), dropout)
        return weights.to(v.dtype) @ v

    def _checked(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return the mask with all its four axes; ValueError where the sizes do not match."""
        if q.size(-1) != self.score.head_dim or k.size(-1) != self.score.head_dim:
            raise ValueError(
                f"queries and keys must be {self.score.head_dim} wide (the score's head_dim), "
                f"got {q.size(-1)} and {k.size(-1)}"
            )
        if k.size(-2) != v.size(-2):
            raise ValueError(
                f"keys and values must have the same length, got {k.size(-2)} and {v.size(-2)}"
            )
        not_empty(queries=q, keys=k)
        if mask is None:
            return None
        heads = max(q.size(1), k.size(1), self.score.heads)
        check_mask(mask, (q.size(0), heads, q.size(-2), k.size(-2)))
        return mask[(None,) * (4 - mask.ndim)]


def weights_over(
    attend: Attend,
    queries: Float[Tensor, "b i d"],
    memory: Float[Tensor, "b n d"],
    exists: Bool[Tensor, "b n"] | None = None,
) -> Float[Tensor, "b i n"]:
    """Compute one head's weights for tokens without a head axis.

    exists: which tokens of the memory exist, all of them if None.
    """
    mask = None if exists is None else exists[:, None, None]
    return attend.weights(queries[:, None], memory[:, None], mask)[:, 0]
