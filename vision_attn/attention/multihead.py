"""Multi-head attention: several attentions side by side, each on its own projection.

Axes: b batch, n tokens, j tokens of the memory, d width, head.
"""

from collections.abc import Callable

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention.attend import Attend
from vision_attn.attention.checks import divisible
from vision_attn.attention.normalizers import Normalizer, Softmax
from vision_attn.attention.scores import Keys, Queries, ScaledDot, Score
from vision_attn.attention.windows import Global, Window
from vision_attn.types import TokenLayout

__all__ = ["MultiHeadAttention"]


class MultiHeadAttention(nn.Module):
    """Multi-head attention: concat_h Attend(x Wq_h, memory Wk_h, memory Wv_h) Wo.

    Parameters are named as timm's `Attention`: `qkv` holds Wq, Wk and Wv in this order, `proj` is
    Wo. Vaswani et al. 2017, section 3.2.2. score, normalizer and window are factories (classes or
    partials), so that each block gets parameters of its own.

    Args:
        dim: The tokens' width, a multiple of `heads`.
        heads: How many heads.
        qkv_bias: Whether queries, keys and values get a bias.
        score: A factory, called as `score(head_dim=dim // heads, heads=heads)`.
        normalizer: A factory, called without arguments.
        window: A factory of the keys that each query sees, called as `score` is.
        dropout: The share of weights set to 0 in training.
        proj_dropout: The share of outputs set to 0 in training.

    Raises:
        ValueError: `dim` is no multiple of `heads`.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import MultiHeadAttention, Sparsemax
        >>> attention = MultiHeadAttention(dim=12, heads=3, normalizer=Sparsemax)
        >>> x, memory = torch.randn(2, 5, 12), torch.randn(2, 7, 12)
        >>> attention(x).shape, attention(x, memory).shape
        (torch.Size([2, 5, 12]), torch.Size([2, 5, 12]))
        >>> attention.weights(x, memory).shape
        torch.Size([2, 3, 5, 7])
    """

    def __init__(
        self,
        dim: int,
        heads: int = 8,
        *,
        qkv_bias: bool = True,
        score: Callable[..., Score] = ScaledDot,
        normalizer: Callable[[], Normalizer] = Softmax,
        window: Callable[..., Window] = Global,
        dropout: float = 0.0,
        proj_dropout: float = 0.0,
    ):
        super().__init__()
        divisible(dim, heads)
        self.dim = dim
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        width = self.scored_width(dim, heads)
        self.attend = Attend(
            score(head_dim=width, heads=heads),
            normalizer(),
            window(head_dim=width, heads=heads),
            dropout,
        )
        self.proj = nn.Linear(dim, dim)
        self.proj_dropout = nn.Dropout(proj_dropout)

    @staticmethod
    def scored_width(dim: int, heads: int) -> int:
        """Return how many features of a token one score sees: a head's slice."""
        return dim // heads

    def project(
        self,
        x: Float[Tensor, "b n d"],
        memory: Float[Tensor, "b j d"] | None = None,
        keys: Float[Tensor, "b j d"] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute queries of x, keys and values of the memory, cut among the heads.

        Args:
            x: Tokens, (b n d).
            memory: The tokens to attend to, (b j d); None: x itself.
            keys: What the keys are made of, where that is not the memory.

        Returns:
            Queries (b head n d/head), keys and values (b head j d/head).
        """
        if memory is None:
            q, k, v = self.qkv(x).chunk(3, dim=-1)
        else:
            weights, bias = self.qkv.weight.chunk(3), self.qkv.bias
            biases = (None, None, None) if bias is None else bias.chunk(3)
            q, k, v = map(F.linear, (x, memory if keys is None else keys, memory), weights, biases)
        return self._cut(q), self._cut(k), self._cut(v)

    def _cut(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b head n d_head"]:
        return rearrange(x, "b n (head d) -> b head n d", head=self.heads)

    def weights(
        self,
        x: Float[Tensor, "b n d"],
        memory: Float[Tensor, "b j d"] | None = None,
        mask: Tensor | None = None,
        layout: TokenLayout | None = None,
    ) -> Float[Tensor, "b head n j"]:
        """Compute the weight of every token for every token, head by head.

        Args:
            x: Tokens, (b n d).
            memory: The tokens to attend to, (b j d); None: x itself, which is self-attention.
            mask: Bool, True where a token may attend to another, broadcasting to (b head n j).
            layout: How the tokens lie on the image, for windows that need it.

        Returns:
            The weights, (b head n j).

        Raises:
            ValueError: Sizes do not match.
        """
        q, k, _ = self.project(x, memory)
        return self.attend.weights(*self.placed(q, k, layout), mask, layout)

    def placed(self, q: Queries, k: Keys, layout: TokenLayout | None) -> tuple[Queries, Keys]:
        """Queries and keys marked with the places of their tokens: unchanged but in a subclass.

        Args:
            q: Queries, (b head n d/head).
            k: Keys, (b head j d/head).
            layout: How the tokens lie on the image; None: not known.
        """
        return q, k

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        memory: Float[Tensor, "b j d"] | None = None,
        mask: Tensor | None = None,
        layout: TokenLayout | None = None,
    ) -> Float[Tensor, "b n d"]:
        """Compute the new tokens.

        Args:
            x: Tokens, (b n d).
            memory: The tokens to attend to, (b j d); None: x itself, which is self-attention.
            mask: Bool, True where a token may attend to another, broadcasting to (b head n j).
            layout: How the tokens lie on the image, for windows that need it.

        Returns:
            The new tokens, (b n d).

        Raises:
            ValueError: Sizes do not match.
        """
        q, k, v = self.project(x, memory)
        context = self.attend(*self.placed(q, k, layout), v, mask, layout)
        return self.proj_dropout(self.proj(context.transpose(1, 2).flatten(-2)))
