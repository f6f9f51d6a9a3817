"""Score functions: how well key j answers query i.

Every score depends on query i and key j alone, never on the other keys or their number (Location
excepted). Learned scores hold parameters of their own for each head.

Axes: b batch, head, i queries, j keys, d head width, a hidden width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention.checks import at_least_one

__all__ = [
    "ActivatedGeneral",
    "Additive",
    "BiasedGeneral",
    "Concat",
    "CosineSimilarity",
    "Deep",
    "Dot",
    "DotProduct",
    "General",
    "HeadLinear",
    "KeyOnly",
    "Location",
    "MultiDimAdditive",
    "ScaledDot",
    "Score",
]

# One head may stand for all: of queries, of keys, of the score's own.
Queries = Float[Tensor, "b #head i d"]
Keys = Float[Tensor, "b #head j d"]
Scores = Float[Tensor, "b heads i j"]


class HeadLinear(nn.Module):
    """Linear map for each head: x W_h (+ b_h), (b head n in) -> (b head n out).

    Examples:
        >>> import torch
        >>> from vision_attn.attention.scores import HeadLinear
        >>> HeadLinear(heads=3, in_features=8, out_features=5)(torch.randn(2, 3, 7, 8)).shape
        torch.Size([2, 3, 7, 5])
    """

    def __init__(self, heads: int, in_features: int, out_features: int, bias: bool = False):
        super().__init__()
        bound = in_features**-0.5
        self.weight = nn.Parameter(
            torch.empty(heads, in_features, out_features).uniform_(-bound, bound)
        )
        self.bias = nn.Parameter(torch.zeros(heads, 1, out_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Map every head's vectors, (b head n out); one head of x may stand for all."""
        y = x @ self.weight
        return y if self.bias is None else y + self.bias


class Score(nn.Module, ABC):
    """Base class: how well key j answers query i; made as `Score(head_dim, heads, **options)`.

    Args:
        head_dim: The width of a head's queries and keys.
        heads: How many heads; a learned score has parameters of its own for each.

    Attributes:
        uses_query: False where the score is the same for every query.
        positional: True where the score of a key depends on its place in the memory.

    Raises:
        ValueError: A size is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import Score
        >>> class Distance(Score):
        ...     def forward(self, q, k):
        ...         return -torch.cdist(q, k)
        >>> Distance(head_dim=8)(torch.randn(2, 1, 5, 8), torch.randn(2, 1, 7, 8)).shape
        torch.Size([2, 1, 5, 7])
    """

    uses_query: ClassVar[bool] = True
    positional: ClassVar[bool] = False

    def __init__(self, head_dim: int, heads: int = 1):
        super().__init__()
        at_least_one(head_dim=head_dim, heads=heads)
        self.head_dim = head_dim
        self.heads = heads

    @abstractmethod
    def forward(self, q: Queries, k: Keys) -> Scores:
        """Compute the scores of all pairs.

        Args:
            q: Queries, (b head i d).
            k: Keys, (b head j d).

        Returns:
            The scores, (b head i j).
        """


class DotProduct(Score):
    """Base class: scale * f(q_i) . g(k_j), the scores that a fused attention kernel can compute.

    A subclass sets `scale`, and gives f and g in `transform`.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import DotProduct
        >>> class Positive(DotProduct):
        ...     def transform(self, q, k):
        ...         return q.relu(), k.relu()
        >>> scores = Positive(head_dim=8)(torch.randn(2, 1, 5, 8), torch.randn(2, 1, 7, 8))
        >>> bool((scores >= 0).all())
        True
    """

    scale: float = 1.0

    def transform(self, q: Queries, k: Keys) -> tuple[Tensor, Tensor]:
        """Compute f(q) and g(k).

        Args:
            q: Queries, (b head i d).
            k: Keys, (b head j d).
        """
        return q, k

    def forward(self, q: Queries, k: Keys) -> Scores:
        q, k = self.transform(q, k)
        return (q * self.scale) @ k.transpose(-2, -1)


@final
class Dot(DotProduct):
    """Dot product: q . k, Luong et al. 2015, section 3.1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import Dot
        >>> Dot(head_dim=4)(torch.ones(1, 1, 1, 4), torch.ones(1, 1, 2, 4))
        tensor([[[[4., 4.]]]])
    """


@final
class ScaledDot(DotProduct):
    """Scaled dot product: q . k / sqrt(d), Vaswani et al. 2017, section 3.2.1.

    Args:
        head_dim: d, the width of a head's queries and keys.
        heads: How many heads.

    Raises:
        ValueError: A size is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import ScaledDot
        >>> ScaledDot(head_dim=4)(torch.ones(1, 1, 1, 4), torch.ones(1, 1, 2, 4))
        tensor([[[[2., 2.]]]])
    """

    def __init__(self, head_dim: int, heads: int = 1):
        super().__init__(head_dim, heads)
        self.scale = head_dim**-0.5


@final
class CosineSimilarity(DotProduct):
    """Cosine similarity: beta cos(q, k), beta learned, one a head.

    Graves et al. 2014, section 3.3.1.

    Args:
        head_dim: The width of a head's queries and keys.
        heads: How many heads.
        beta: What beta starts from.

    Raises:
        ValueError: A size is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import CosineSimilarity
        >>> score = CosineSimilarity(head_dim=4, beta=5.0)
        >>> scores = score(torch.ones(1, 1, 1, 4), 3 * torch.ones(1, 1, 1, 4))
        >>> scores.detach().round(decimals=4)
        tensor([[[[5.]]]])
    """

    def __init__(self, head_dim: int, heads: int = 1, beta: int | float = 1.0):
        super().__init__(head_dim, heads)
        self.beta = nn.Parameter(torch.full((heads, 1, 1), float(beta)))

    def transform(self, q: Queries, k: Keys) -> tuple[Tensor, Tensor]:
        q, k = (F.normalize(x, dim=-1, eps=1e-6) for x in (q, k))
        return self.beta * q, k


@final
class General(DotProduct):
    """Bilinear score: q' W k, Luong et al. 2015, section 3.1.

    Args:
        head_dim: The width of a head's queries and keys.
        heads: How many heads, each with a W of its own.

    Raises:
        ValueError: A size is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import General
        >>> score = General(head_dim=8, heads=3)
        >>> score(torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8)).shape
        torch.Size([2, 3, 5, 7])
    """

    def __init__(self, head_dim: int, heads: int = 1):
        super().__init__(head_dim, heads)
        self.query_proj = HeadLinear(heads, head_dim, head_dim)

    def transform(self, q: Queries, k: Keys) -> tuple[Tensor, Tensor]:
        return self.query_proj(q), k


@final
class BiasedGeneral(DotProduct):
    """Bilinear score with a bias: k' (W q + b), Sordoni et al. 2016, section 3.2.

    Args:
        head_dim: The width of a head's queries and keys.
        heads: How many heads, each with a W and b of its own.

    Raises:
        ValueError: A size is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import BiasedGeneral
        >>> score = BiasedGeneral(head_dim=8, heads=3)
        >>> score(torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8)).shape
        torch.Size([2, 3, 5, 7])
    """

    def __init__(self, head_dim: int, heads: int = 1):
        super().__init__(head_dim, heads)
        self.query_proj = HeadLinear(heads, head_dim, head_dim, bias=True)

    def transform(self, q: Queries, k: Keys) -> tuple[Tensor, Tensor]:
        return self.query_proj(q), k


@final
class ActivatedGeneral(Score):
    """Bilinear score with an activation: act(q' W k + b), b a scalar.

    Ma et al. 2017, equation 5 (there act = tanh).

    Args:
        head_dim: The width of a head's queries and keys.
        heads: How many heads, each with a W and b of its own.
        activation: A factory of act.

    Raises:
        ValueError: A size is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import ActivatedGeneral
        >>> score = ActivatedGeneral(head_dim=8, heads=3)
        >>> score(torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8)).shape
        torch.Size([2, 3, 5, 7])
    """

    def __init__(
        self, head_dim: int, heads: int = 1, activation: Callable[[], nn.Module] = nn.Tanh
    ):
        super().__init__(head_dim, heads)
        self.query_proj = HeadLinear(heads, head_dim, head_dim)
        self.bias = nn.Parameter(torch.zeros(heads, 1, 1))
        self.activation = activation()

    def forward(self, q: Queries, k: Keys) -> Scores:
        return self.activation(self.query_proj(q) @ k.transpose(-2, -1) + self.bias)


def every_pair(queries: Tensor, keys: Tensor) -> Tensor:
    """Compute queries_i + keys_j for every pair: (b head i a), (b head j a) -> (b head i j a)."""
    return queries.unsqueeze(-2) + keys.unsqueeze(-3)


def of_pairs(linear: nn.Module, hidden: Tensor) -> Tensor:
    """Map each pair's hidden vector by a linear layer: (b head i j a) -> (b head i j out)."""
    return linear(hidden.flatten(-3, -2)).unflatten(-2, hidden.shape[-3:-1])


@final
class Additive(Score):
    """Additive score: v . tanh(W1 k + W2 q (+ b)), Bahdanau et al. 2015, appendix A.1.2.

    Args:
        head_dim: The width of a head's queries and keys.
        heads: How many heads, each with parameters of its own.
        hidden_dim: The length of v.
        bias: Whether there is a b.

    Raises:
        ValueError: A size is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import Additive
        >>> score = Additive(head_dim=8, heads=3)
        >>> score(torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8)).shape
        torch.Size([2, 3, 5, 7])
    """

    def __init__(self, head_dim: int, heads: int = 1, hidden_dim: int = 32, bias: bool = False):
        super().__init__(head_dim, heads)
        at_least_one(hidden_dim=hidden_dim)
        self.query_proj = HeadLinear(heads, head_dim, hidden_dim, bias=bias)
        self.key_proj = HeadLinear(heads, head_dim, hidden_dim)
        self.energy = HeadLinear(heads, hidden_dim, 1)

    def forward(self, q: Queries, k: Keys) -> Scores:
        hidden = every_pair(self.query_proj(q), self.key_proj(k))
        return of_pairs(self.energy, hidden.tanh()).squeeze(-1)


@final
class Concat(Score):
    """Concatenation score: v . tanh(W [k; q] (+ b)), Luong et al. 2015, section 3.1.

    W [k; q] is computed as W_k k + W_q q, W cut in two: no pair is ever concatenated.

    Args:
        head_dim: The width of a head's queries and keys.
        heads: How many heads, each with parameters of its own.
        hidden_dim: The length of v.
        bias: Whether there is a b.

    Raises:
        ValueError: A size is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import Concat
        >>> score = Concat(head_dim=8, heads=3)
        >>> score(torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8)).shape
        torch.Size([2, 3, 5, 7])
    """

    def __init__(self, head_dim: int, heads: int = 1, hidden_dim: int = 32, bias: bool = False):
        super().__init__(head_dim, heads)
        at_least_one(hidden_dim=hidden_dim)
        self.pair_proj = HeadLinear(heads, 2 * head_dim, hidden_dim, bias)
        self.energy = HeadLinear(heads, hidden_dim, 1)

    def forward(self, q: Queries, k: Keys) -> Scores:
        key_weight, query_weight = self.pair_proj.weight.chunk(2, dim=1)
        hidden = every_pair(q @ query_weight, k @ key_weight)
        if self.pair_proj.bias is not None:
            hidden = hidden + self.pair_proj.bias.unsqueeze(-2)
        return of_pairs(self.energy, hidden.tanh()).squeeze(-1)


@final
class Deep(Score):
    """Multi-layer perceptron on each pair, Pavlopoulos et al. 2017.

    E_1 = act(W_1 k + W_0 q + b_1), E_l = act(W_l E_(l-1) + b_l), e = v . E_L + b.

    Args:
        head_dim: The width of a head's queries and keys.
        heads: How many heads, each with parameters of its own.
        hidden_dim: The length of v.
        layers: L.
        activation: A factory of act.

    Raises:
        ValueError: A size is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import Deep
        >>> score = Deep(head_dim=8, heads=3, layers=2)
        >>> score(torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8)).shape
        torch.Size([2, 3, 5, 7])
    """

    def __init__(
        self,
        head_dim: int,
        heads: int = 1,
        hidden_dim: int = 32,
        layers: int = 2,
        activation: Callable[[], nn.Module] = nn.ReLU,
    ):
        super().__init__(head_dim, heads)
        at_least_one(hidden_dim=hidden_dim, layers=layers)
        self.query_proj = HeadLinear(heads, head_dim, hidden_dim)
        self.key_proj = HeadLinear(heads, head_dim, hidden_dim, bias=True)
        self.hidden = nn.ModuleList(
            HeadLinear(heads, hidden_dim, hidden_dim, bias=True) for _ in range(layers - 1)
        )
        self.energy = HeadLinear(heads, hidden_dim, 1, bias=True)
        self.activation = activation()

    def forward(self, q: Queries, k: Keys) -> Scores:
        hidden = self.activation(every_pair(self.query_proj(q), self.key_proj(k)))
        for layer in self.hidden:
            hidden = self.activation(of_pairs(layer, hidden))
        return of_pairs(self.energy, hidden).squeeze(-1)


@final
class Location(Score):
    """Location score: (W q)_j, from the query alone, one output a position.

    Luong et al. 2015, equation 8. A longer memory than `positions` raises ValueError.

    Args:
        head_dim: The width of a head's queries.
        heads: How many heads, each with a W of its own.
        positions: The longest memory that it can score.

    Raises:
        ValueError: A size is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import Location
        >>> score = Location(head_dim=8, positions=10)
        >>> score(torch.randn(2, 1, 5, 8), torch.randn(2, 1, 7, 8)).shape
        torch.Size([2, 1, 5, 7])
    """

    positional = True

    def __init__(self, head_dim: int, heads: int = 1, *, positions: int):
        super().__init__(head_dim, heads)
        at_least_one(positions=positions)
        self.query_proj = HeadLinear(heads, head_dim, positions)

    def forward(self, q: Queries, k: Keys) -> Scores:
        longest = self.query_proj.weight.size(-1)
        if k.size(-2) > longest:
            raise ValueError(
                f"Location was built for at most {longest} positions, got a memory of {k.size(-2)}"
            )
        return self.query_proj(q)[..., : k.size(-2)]


@final
class KeyOnly(Score):
    """Score without a query: v . tanh(W k + b), Yang et al. 2016, equations 5 and 6.

    Args:
        head_dim: The width of a head's keys.
        heads: How many heads, each with parameters of its own.
        hidden_dim: The length of v.
        bias: Whether there is a b.

    Raises:
        ValueError: A size is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import KeyOnly
        >>> scores = KeyOnly(head_dim=8)(torch.randn(2, 1, 5, 8), torch.randn(2, 1, 7, 8))
        >>> bool((scores[:, :, 0] == scores[:, :, 4]).all())
        True
    """

    uses_query = False

    def __init__(self, head_dim: int, heads: int = 1, hidden_dim: int = 32, bias: bool = True):
        super().__init__(head_dim, heads)
        at_least_one(hidden_dim=hidden_dim)
        self.key_proj = HeadLinear(heads, head_dim, hidden_dim, bias=bias)
        self.energy = HeadLinear(heads, hidden_dim, 1)

    def forward(self, q: Queries, k: Keys) -> Scores:
        scores = self.energy(self.key_proj(k).tanh()).transpose(-2, -1)
        return scores.expand(-1, -1, q.size(-2), -1)


@final
class MultiDimAdditive(Score):
    """Additive score with a matrix V: V' act(W1 k + W2 q (+ b)), a score for every view.

    The views share W1 and W2 and stand on the head axis: queries and keys come in as one head. The
    bilinear counterpart, a stack of matrices W, is `General(head_dim, heads=views)`. Shen et al.
    2018, whose sigma is any activation, not the sigmoid; tanh by default here. Lin et al. 2017
    without query.

    Args:
        head_dim: The width of queries and keys.
        heads: The number of views.
        hidden_dim: The length of each column of V.
        bias: Whether there is a b, and one after V.
        activation: A factory of act.

    Raises:
        ValueError: A size is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import MultiDimAdditive
        >>> score = MultiDimAdditive(head_dim=8, heads=3)  # three views
        >>> score(torch.randn(2, 1, 5, 8), torch.randn(2, 1, 7, 8)).shape
        torch.Size([2, 3, 5, 7])
    """

    def __init__(
        self,
        head_dim: int,
        heads: int = 1,
        hidden_dim: int = 32,
        bias: bool = False,
        activation: Callable[[], nn.Module] = nn.Tanh,
    ):
        super().__init__(head_dim, heads)
        at_least_one(hidden_dim=hidden_dim)
        self.query_proj = HeadLinear(1, head_dim, hidden_dim, bias)
        self.key_proj = HeadLinear(1, head_dim, hidden_dim)
        self.energy = HeadLinear(1, hidden_dim, heads, bias)
        self.activation = activation()

    def forward(
        self, q: Float[Tensor, "b 1 i d"], k: Float[Tensor, "b 1 j d"]
    ) -> Float[Tensor, "b views i j"]:
        hidden = self.activation(every_pair(self.query_proj(q), self.key_proj(k)))
        return of_pairs(self.energy, hidden).squeeze(1).movedim(-1, 1)
