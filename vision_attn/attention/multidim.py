"""Multi-dimensional attention: several scores for a pair of tokens, each on the whole of both.

Axes: b batch, n tokens, j tokens of the memory, d width, view.
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from vision_attn.attention.multihead import MultiHeadAttention
from vision_attn.attention.normalizers import Normalizer, Softmax
from vision_attn.attention.scores import MultiDimAdditive, Score
from vision_attn.attention.windows import Global, Window

__all__ = ["MultiDimAttention"]


class MultiDimAttention(MultiHeadAttention):
    """Multi-dimensional attention: concat_v sum_j a_vij v_vj, weights of its own for every view.

    Where a head scores its own slice of queries and keys, a view scores all of them; the values
    are cut as among heads. Shen et al. 2018 (DiSAN).

    Args:
        dim: The tokens' width, a multiple of `heads`.
        heads: The number of views: with heads = dim every feature has weights of its own.
        qkv_bias: Whether queries, keys and values get a bias.
        score: A factory, called with the whole width as head_dim and the views as heads:
            `MultiDimAdditive` (tanh; sigmoid by its `activation`), or `General` for the bilinear
            form.
        normalizer: A factory.
        window: A factory of the keys that each query sees.
        dropout: The share of weights set to 0 in training.
        proj_dropout: The share of outputs set to 0 in training.

    Raises:
        ValueError: `dim` is no multiple of `heads`, or the score has no parameters, so that it
            cannot tell views apart.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import MultiDimAttention
        >>> attention, x = MultiDimAttention(dim=12, heads=3), torch.randn(2, 5, 12)
        >>> attention(x).shape, attention.weights(x).shape
        (torch.Size([2, 5, 12]), torch.Size([2, 3, 5, 5]))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 8,
        *,
        qkv_bias: bool = True,
        score: Callable[..., Score] = MultiDimAdditive,
        normalizer: Callable[..., Normalizer] = Softmax,
        window: Callable[..., Window] = Global,
        dropout: float = 0.0,
        proj_dropout: float = 0.0,
    ):
        super().__init__(
            dim,
            heads,
            qkv_bias=qkv_bias,
            score=score,
            normalizer=normalizer,
            window=window,
            dropout=dropout,
            proj_dropout=proj_dropout,
        )
        if not any(True for _ in self.attend.score.parameters()):
            raise ValueError(
                "score must be one with parameters for each view (MultiDimAdditive, "
                f"General), got {type(self.attend.score).__name__}"
            )

    @staticmethod
    def scored_width(dim: int, heads: int) -> int:
        """Return how many features of a token one score sees: all of them."""
        return dim

    def project(
        self,
        x: Float[Tensor, "b n d"],
        memory: Float[Tensor, "b j d"] | None = None,
        keys: Float[Tensor, "b j d"] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute queries and keys as one head, values cut among the views.

        Arguments: as in `MultiHeadAttention.project`.

        Returns:
            Queries (b 1 n d), keys (b 1 j d) and values (b view j d/view).
        """
        q, k, v = super().project(x, memory, keys)
        q, k = (heads.transpose(1, 2).flatten(2)[:, None] for heads in (q, k))
        return q, k, v
