"""Windows: which keys a query may see, and how much of its weight a key keeps.

Axes: b batch, head, i queries, j keys, s keys seen by one query, d key width, e value width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention.checks import at_least_one
from vision_attn.attention.masks import both
from vision_attn.attention.scores import HeadLinear, Keys, Queries
from vision_attn.types import TokenLayout

__all__ = ["Global", "LocalPredictive", "Window"]

Values = Float[Tensor, "b #view j e"]
Context = Float[Tensor, "b views i e"]

# One attention of every query over every key the mask allows: (q, k, v, mask, gain) -> context.
Dense = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | None], Tensor]


class Window(nn.Module, ABC):
    """Base class: the keys that a query sees; made as `Window(head_dim, heads, **options)`.

    Defined by `terms`, a mask and a gain on the normalised weights for every pair. `forward` gives
    the context, and may compute it without all the pairs, by cutting the attention into small ones.

    Args:
        head_dim: The width of a head's queries and keys, for windows with parameters.
        heads: How many heads, for windows with parameters.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import Attend, ScaledDot, Window
        >>> class NotItself(Window):
        ...     def terms(self, q, k, layout):
        ...         return ~torch.eye(q.size(-2), k.size(-2), dtype=torch.bool), None
        >>> q = torch.randn(1, 1, 3, 8)
        >>> Attend(ScaledDot(head_dim=8), window=NotItself()).weights(q, q)[0, 0].diagonal()
        tensor([0., 0., 0.])
    """

    def __init__(self, head_dim: int | None = None, heads: int = 1):
        super().__init__()

    @abstractmethod
    def terms(
        self, q: Tensor, k: Tensor, layout: TokenLayout | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return (mask, gain), each broadcasting to (b head i j).

        Args:
            q: Queries, (b head i d).
            k: Keys, (b head j d).
            layout: How the tokens lie on the image, None where that is not known.

        Returns:
            The mask, None where nothing is hidden, and the gain, None where nothing is scaled.
        """

    def definition(
        self,
        dense: Dense,
        q: Queries,
        k: Keys,
        v: Values,
        mask: Tensor | None,
        layout: TokenLayout | None,
    ) -> Context:
        """Compute the context by all the pairs; arguments as in `forward`.

        Returns:
            The context, (b head i e).
        """
        own, gain = self.terms(q, k, layout)
        return dense(q, k, v, both(mask, own), gain)

    def forward(
        self,
        dense: Dense,
        q: Queries,
        k: Keys,
        v: Values,
        mask: Tensor | None,
        layout: TokenLayout | None,
    ) -> Context:
        """Compute the context, (b head i e), by the cheapest way that gives what `definition` does.

        Args:
            dense: Attention of every query over every key that a mask allows, called as
                `dense(q, k, v, mask, gain)`.
            q: Queries, (b head i d).
            k: Keys, (b head j d).
            v: Values, (b head j e).
            mask: True where a query may attend to a key; None: everywhere.
            layout: How the tokens lie on the image, None where that is not known.

        Returns:
            The context.
        """
        return self.definition(dense, q, k, v, mask, layout)


@final
class Global(Window):
    """Window over every position, Luong et al. 2015, section 3.1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import Global
        >>> q = torch.randn(1, 1, 3, 8)
        >>> Global().terms(q, q, None)
        (None, None)
    """

    def terms(self, q: Tensor, k: Tensor, layout: TokenLayout | None) -> tuple[None, None]:
        return None, None


@final
class LocalPredictive(Window):
    """Window around a predicted position: p = S sigmoid(v . tanh(W q)), Luong et al. 2015, local-p.

    S is the length of the memory, its positions are 0 to S - 1, and those within p +- radius are
    seen. The normalised weights are scaled by exp(-(j - p)^2 / (2 sigma^2)), sigma = radius / 2,
    and not normalised again: this is how p learns.

    Args:
        head_dim: The width of a head's queries.
        heads: How many heads, each with parameters of its own.
        radius: At least 1.

    Raises:
        ValueError: A size is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import Attend, LocalPredictive, ScaledDot
        >>> attend = Attend(ScaledDot(head_dim=8), window=LocalPredictive(head_dim=8, radius=2))
        >>> weights = attend.weights(torch.randn(1, 1, 1, 8), torch.randn(1, 1, 20, 8))
        >>> int((weights > 0).sum()) <= 5
        True
    """

    def __init__(self, head_dim: int, heads: int = 1, *, radius: int):
        super().__init__(head_dim, heads)
        at_least_one(radius=radius)
        self.radius = radius
        self.hidden = HeadLinear(heads, head_dim, head_dim)
        self.position = HeadLinear(heads, head_dim, 1)

    def centre(self, q: Queries, length: int) -> Float[Tensor, "b head i 1"]:
        """Predict p, the position that each query attends to.

        Args:
            q: Queries, (b head i d).
            length: That of the memory.

        Returns:
            The positions, (b head i 1), from 0 to `length`.
        """
        logit = self.position(self.hidden(q).tanh())
        logit = logit.to(torch.promote_types(logit.dtype, torch.float32))  # bf16 counts to 256
        return length * logit.sigmoid()

    def terms(self, q: Tensor, k: Tensor, layout: TokenLayout | None) -> tuple[Tensor, Tensor]:
        position = torch.arange(k.size(-2), device=k.device)
        return self._around(self.centre(q, k.size(-2)), position, q.dtype)

    def forward(
        self,
        dense: Dense,
        q: Queries,
        k: Keys,
        v: Values,
        mask: Tensor | None,
        layout: TokenLayout | None,
    ) -> Context:
        if not gathering_pays(self.radius, k):
            return self.definition(dense, q, k, v, mask, layout)
        centre = self.centre(q, k.size(-2))
        seen = positions_around(centre, self.radius)
        return gathered(dense, q, k, v, mask, seen, *self._around(centre, seen, q.dtype))

    def _around(
        self, centre: Tensor, position: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        away = position - centre
        gain = (-2 * (away / self.radius).square()).exp()
        return away.abs() <= self.radius, gain.to(dtype)


def positions_around(centre: Float[Tensor, "*b i 1"], radius: int) -> Int[Tensor, "*b i s"]:
    """List the 2 radius + 1 whole positions from the first at or above centre - radius on."""
    return (centre - radius).ceil().long() + torch.arange(2 * radius + 1, device=centre.device)


def gathering_pays(radius: int | float, k: Tensor) -> bool:
    """Whether to copy out each query's own keys: one copied costs as much as a dozen scores."""
    return k.size(-2) > 12 * (2 * radius + 1)


def gathered(
    dense: Dense,
    q: Queries,
    k: Keys,
    v: Values,
    mask: Tensor | None,
    seen: Int[Tensor, "#b #head i s"],
    visible: Tensor,
    gain: Tensor | None,
) -> Context:
    """Compute attention of each query over the keys at its own positions, one at a time.

    seen: the positions, visible and gain their terms. Cost and memory grow as i s, not i j.
    """
    b, i = q.size(0), q.size(-2)
    visible = visible & (seen >= 0) & (seen < k.size(-2))
    seen = seen.clamp(0, k.size(-2) - 1)
    if mask is not None:
        heads = max(mask.size(1), seen.size(1))
        mask = mask.expand(b, heads, i, k.size(-2))
        visible = visible & mask.gather(-1, seen.expand(b, heads, -1, -1))

    def fold(x: Tensor) -> Tensor:
        return x.expand(b, -1, -1, -1).transpose(1, 2).flatten(0, 1).unsqueeze(-2)

    context = dense(
        fold(q),
        keys_at(k, seen),
        keys_at(v, seen),
        fold(visible),
        None if gain is None else fold(gain),
    )
    return context.squeeze(-2).unflatten(0, (b, i)).transpose(1, 2)


def keys_at(x: Keys, seen: Int[Tensor, "#b #head i s"]) -> Float[Tensor, "b_i head s d"]:
    """Copy out the rows of x at each query's positions, the queries folded into the batch."""
    b, own_heads, j, _ = x.shape
    head = torch.arange(own_heads, device=x.device)
    row = (torch.arange(b, device=x.device)[:, None] * own_heads + head) * j  # b own_heads
    index = row[:, :, None, None] + seen  # b head i s
    return F.embedding(index.transpose(1, 2).flatten(0, 1), x.flatten(0, 2))
