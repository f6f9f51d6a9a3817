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
from vision_attn.attention.scores import ScaledDot, Score
from vision_attn.attention.windows import Global, Window
from vision_attn.types import TokenLayout


class MultiHeadAttention(nn.Module):
    """concat_h Attend(x Wq_h, memory Wk_h, memory Wv_h) Wo, Vaswani et al. 2017, section 3.2.2.

    Self-attention where no memory is given. Parameters are named as timm's `Attention`: `qkv`
    holds Wq, Wk and Wv in this order, `proj` is Wo. score, normalizer and window are factories
    (classes or partials), so that each block gets parameters of its own.
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
        """How much of a token one score sees: a head's slice."""
        return dim // heads

    def project(
        self,
        x: Float[Tensor, "b n d"],
        memory: Float[Tensor, "b j d"] | None = None,
        keys: Float[Tensor, "b j d"] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x, keys and values of the memory: (b head n d/head) each. keys: what the
        keys are made of, where that is not the memory."""
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
        """The weight of every token for every token, head by head."""
        q, k, _ = self.project(x, memory)
        return self.attend.weights(q, k, mask, layout)

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        memory: Float[Tensor, "b j d"] | None = None,
        mask: Tensor | None = None,
        layout: TokenLayout | None = None,
    ) -> Float[Tensor, "b n d"]:
        context = self.attend(*self.project(x, memory), mask, layout)
        return self.proj_dropout(self.proj(context.transpose(1, 2).flatten(-2)))
