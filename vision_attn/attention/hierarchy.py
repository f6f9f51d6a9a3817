"""Attention in levels: the context of one level is the memory or the query of the next.

Axes: b batch, g groups, m members of a group, n tokens, i queries, j coarse memory, f fine memory,
t tokens of the target, d width; Y and X rows and columns of regions, y and x those inside one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import final

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention.attend import Attend, weights_over
from vision_attn.attention.checks import at_least_one
from vision_attn.attention.masks import check_exists
from vision_attn.attention.normalizers import Normalizer, Softmax
from vision_attn.attention.pooling import AttentionPool, Exists, Readout, Tokens
from vision_attn.attention.scores import Additive, KeyOnly, Score
from vision_attn.types import TokenLayout

__all__ = ["AttentionViaAttention", "Hierarchical", "HierarchicalPool", "TargetGuided"]

Groups = Float[Tensor, "b g m d"]
Queries = Float[Tensor, "b i d"]


class Hierarchical(nn.Module):
    """Hierarchical attention: inside each group for a vector a group, then over the groups.

    Yang et al. 2016, section 2.2, without its recurrent encoders. A group without members counts
    for nothing.

    Args:
        dim: The width of the members.
        score: A factory, for both levels; a score that takes a query gets a learned one.
        normalizer: A factory, for both levels.

    Raises:
        ValueError: `dim` is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import Hierarchical
        >>> sentences = torch.randn(2, 3, 5, 8)  # batch, sentence, word, width
        >>> levels = Hierarchical(dim=8)
        >>> levels(sentences).shape
        torch.Size([2, 8])
        >>> words, groups = levels.weights(sentences)
        >>> words.shape, groups.shape
        (torch.Size([2, 3, 5]), torch.Size([2, 3]))
    """

    def __init__(
        self,
        dim: int,
        score: Callable[..., Score] = KeyOnly,
        normalizer: Callable[..., Normalizer] = Softmax,
    ):
        super().__init__()
        self.inside = AttentionPool(dim, score=score, normalizer=normalizer)
        self.across = AttentionPool(dim, score=score, normalizer=normalizer)

    def weights(
        self, groups: Groups, mask: Bool[Tensor, "b g m"] | None = None
    ) -> tuple[Float[Tensor, "b g m"], Float[Tensor, "b g"]]:
        """Compute the weight of each member in its group, and of each group.

        Args:
            groups: The members, (b g m d).
            mask: True where a member exists; None: all do.

        Returns:
            The members' weights, (b g m), and the groups', (b g).
        """
        members, exist = groups.flatten(0, 1), None if mask is None else mask.flatten(0, 1)
        inside = self.inside.weights(members, mask=exist)[:, 0].unflatten(0, groups.shape[:2])
        vectors = self._vectors(groups, mask)
        across = self.across.weights(vectors, mask=None if mask is None else mask.any(-1))
        return inside, across[:, 0]

    def forward(
        self, groups: Groups, mask: Bool[Tensor, "b g m"] | None = None
    ) -> Float[Tensor, "b d"]:
        """Compute the context of all groups.

        Args:
            groups: The members, (b g m d).
            mask: As in `weights`.

        Returns:
            The context, (b d).
        """
        vectors = self._vectors(groups, mask)
        return self.across(vectors, mask=None if mask is None else mask.any(-1))

    def _vectors(
        self, groups: Groups, mask: Bool[Tensor, "b g m"] | None
    ) -> Float[Tensor, "b g d"]:
        exist = None if mask is None else mask.flatten(0, 1)
        return self.inside(groups.flatten(0, 1), mask=exist).unflatten(0, groups.shape[:2])


@final
class HierarchicalPool(Readout):
    """Readout in two levels: patches to regions, regions to the image.

    Needs the layout; prefix tokens are not read. `weights` are two sets: what each patch counts
    for, and what its region does, shared evenly among the region's patches. Calls raise ValueError
    without a layout, and for a grid with fewer rows or columns than regions.

    Args:
        dim: The tokens' width.
        regions: Rows and columns of nearly equal regions that the grid is cut into; their sides
            differ by one patch at most, the larger first.
        score: A factory, for both levels; a score that takes a query gets a learned one.
        normalizer: A factory, for both levels.

    Raises:
        ValueError: A size is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import HierarchicalPool
        >>> from vision_attn.types import TokenLayout
        >>> layout = TokenLayout(prefix=1, grid=(4, 6))
        >>> tokens = torch.randn(2, 25, 8)
        >>> pool = HierarchicalPool(dim=8, regions=(2, 3))
        >>> pool(tokens, layout).shape, pool.weights(tokens, layout).shape
        (torch.Size([2, 8]), torch.Size([2, 2, 25]))
    """

    def __init__(
        self,
        dim: int,
        regions: tuple[int, int] = (2, 2),
        score: Callable[..., Score] = KeyOnly,
        normalizer: Callable[..., Normalizer] = Softmax,
    ):
        super().__init__(dim)
        at_least_one(rows=regions[0], columns=regions[1])
        self.regions = regions
        self.levels = Hierarchical(dim, score, normalizer)

    def forward(
        self, tokens: Tokens, layout: TokenLayout | None = None, mask: Exists = None
    ) -> Float[Tensor, "b out"]:
        return self.levels(*self._grouped(tokens, layout, mask))

    def weights(
        self, tokens: Tokens, layout: TokenLayout | None = None, mask: Exists = None
    ) -> Float[Tensor, "b look n"]:
        groups, exist = self._grouped(tokens, layout, mask)
        inside, across = self.levels.weights(groups, exist)
        share = exist / exist.sum(-1, keepdim=True).clamp(min=1)
        looks = torch.stack([inside, share], dim=1) * across[:, None, :, None]
        return self._ungrouped(looks, checked_layout(layout, tokens))

    def _grouped(
        self, tokens: Tokens, layout: TokenLayout | None, mask: Exists
    ) -> tuple[Groups, Bool[Tensor, "b g m"]]:
        """Cut the patches into regions, and mark those that exist: some regions may be smaller."""
        layout = checked_layout(layout, tokens)
        check_exists(tokens, mask=mask)
        if any(side < parts for side, parts in zip(layout.grid, self.regions, strict=True)):
            raise ValueError(
                f"regions={self.regions} of a grid of {layout.grid[0]}x{layout.grid[1]} patches "
                "would leave some empty: give at most as many rows and columns as the grid has"
            )
        if mask is None:
            mask = tokens.new_ones(tokens.shape[:2], dtype=torch.bool)
        (rows, columns), (Y, X) = layout.grid, self.regions
        down = indices(Parts(rows, Y).members, tokens)
        across = indices(Parts(columns, X).members, tokens)

        def regions(grid: Tensor) -> Tensor:
            grid = F.pad(grid, (0, 0, 0, 1, 0, 1))  # what the members that do not exist show
            grid = grid.index_select(1, down).index_select(2, across)
            return rearrange(grid, "b (Y y) (X x) d -> b (Y X) (y x) d", Y=Y, X=X)

        patches = tokens[:, layout.prefix :].unflatten(1, layout.grid)
        exist = mask[:, layout.prefix :].unflatten(1, layout.grid)
        return regions(patches), regions(exist.unsqueeze(-1)).squeeze(-1)

    def _ungrouped(
        self, looks: Float[Tensor, "b look g m"], layout: TokenLayout
    ) -> Float[Tensor, "b look n"]:
        (rows, columns), (Y, X) = layout.grid, self.regions
        down, across = Parts(rows, Y), Parts(columns, X)
        grid = rearrange(looks, "b look (Y X) (y x) -> b look (Y y) (X x)", Y=Y, y=down.longest)
        grid = grid.index_select(2, indices(down.places, looks))
        grid = grid.index_select(3, indices(across.places, looks))
        return F.pad(grid.flatten(2), (layout.prefix, 0))


@dataclass(frozen=True)
class Parts:
    """`length` rows in `count` parts whose sizes differ by one at most, the larger first."""

    length: int
    count: int

    @property
    def longest(self) -> int:
        return ceil(self.length / self.count)

    @property
    def sizes(self) -> list[int]:
        size, larger = divmod(self.length, self.count)
        return [size + (part < larger) for part in range(self.count)]

    @property
    def places(self) -> list[int]:
        """Where each row stands among the members of all parts."""
        return [
            self.longest * part + offset for part, n in enumerate(self.sizes) for offset in range(n)
        ]

    @property
    def members(self) -> list[int]:
        """The row of each member, part by part; `length` where a part has no more."""
        members = [self.length] * (self.longest * self.count)
        for row, index in enumerate(self.places):
            members[index] = row
        return members


def indices(values: list[int], like: Tensor) -> Int[Tensor, " n"]:
    return torch.tensor(values, device=like.device)


def checked_layout(layout: TokenLayout | None, tokens: Tokens) -> TokenLayout:
    """Return the layout; ValueError without one or for another number of tokens."""
    if layout is None:
        raise ValueError("HierarchicalPool needs to know the grid: give layout=TokenLayout(...)")
    if tokens.size(1) != layout.tokens:
        raise ValueError(f"layout has {layout.tokens} tokens, but there are {tokens.size(1)}")
    return layout


@final
class AttentionViaAttention(nn.Module):
    """Attention via attention: over the coarse memory, then over the fine one with that context.

    c_w = attention of q over the coarse memory; the query over the fine memory is a linear map of
    [q; c_w]. Zhao & Zhang 2018.

    Args:
        dim: The width of the queries and of both memories.
        score: A factory, for both levels.
        normalizer: A factory, for both levels.

    Raises:
        ValueError: `dim` is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import AttentionViaAttention
        >>> words, letters = torch.randn(2, 4, 8), torch.randn(2, 20, 8)
        >>> over_words, over_letters = AttentionViaAttention(dim=8)(
        ...     torch.randn(2, 3, 8), words, letters
        ... )
        >>> over_words.shape, over_letters.shape
        (torch.Size([2, 3, 8]), torch.Size([2, 3, 8]))
    """

    def __init__(
        self,
        dim: int,
        score: Callable[..., Score] = Additive,
        normalizer: Callable[..., Normalizer] = Softmax,
    ):
        super().__init__()
        at_least_one(dim=dim)
        self.over_coarse = Attend(score(head_dim=dim), normalizer())
        self.over_fine = Attend(score(head_dim=dim), normalizer())
        self.query_proj = nn.Linear(2 * dim, dim, bias=False)

    def weights(
        self,
        query: Queries,
        coarse: Float[Tensor, "b j d"],
        fine: Float[Tensor, "b f d"],
        coarse_mask: Bool[Tensor, "b j"] | None = None,
        fine_mask: Bool[Tensor, "b f"] | None = None,
    ) -> tuple[Float[Tensor, "b i j"], Float[Tensor, "b i f"]]:
        """Compute the weights over the coarse and over the fine memory.

        Args:
            query: The queries, (b i d).
            coarse: The coarse memory, (b j d).
            fine: The fine memory, (b f d).
            coarse_mask: True where a token of the coarse memory exists; None: all do.
            fine_mask: The same of the fine memory.

        Returns:
            The weights over the coarse memory, (b i j), and over the fine one, (b i f).
        """
        over_coarse = weights_over(self.over_coarse, query, coarse, coarse_mask)
        context = torch.cat([query, over_coarse @ coarse], dim=-1)
        over_fine = weights_over(self.over_fine, self.query_proj(context), fine, fine_mask)
        return over_coarse, over_fine

    def forward(
        self,
        query: Queries,
        coarse: Float[Tensor, "b j d"],
        fine: Float[Tensor, "b f d"],
        coarse_mask: Bool[Tensor, "b j"] | None = None,
        fine_mask: Bool[Tensor, "b f"] | None = None,
    ) -> tuple[Queries, Queries]:
        """Compute both contexts; arguments as in `weights`.

        Returns:
            The contexts of the coarse and of the fine memory, (b i d) each.
        """
        over_coarse, over_fine = self.weights(query, coarse, fine, coarse_mask, fine_mask)
        return over_coarse @ coarse, over_fine @ fine


@final
class TargetGuided(nn.Module):
    """Target-guided attention: the target's own tokens give the query over the sentence.

    Ma et al. 2018.

    Args:
        dim: The width of the tokens.
        score: A factory for the step over the sentence; the one over the target is `KeyOnly`.
        normalizer: A factory, for both steps.

    Raises:
        ValueError: `dim` is below 1.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import TargetGuided
        >>> target, sentence = torch.randn(2, 3, 8), torch.randn(2, 7, 8)
        >>> TargetGuided(dim=8)(target, sentence).shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        dim: int,
        score: Callable[..., Score] = Additive,
        normalizer: Callable[..., Normalizer] = Softmax,
    ):
        super().__init__()
        self.over_target = AttentionPool(dim, score=KeyOnly, normalizer=normalizer)
        self.over_sentence = Attend(score(head_dim=dim), normalizer())

    def weights(
        self,
        target: Float[Tensor, "b t d"],
        sentence: Float[Tensor, "b n d"],
        target_mask: Bool[Tensor, "b t"] | None = None,
        sentence_mask: Bool[Tensor, "b n"] | None = None,
    ) -> tuple[Float[Tensor, "b t"], Float[Tensor, "b n"]]:
        """Compute the weights over the target and over the sentence.

        Args:
            target: The target's tokens, (b t d).
            sentence: The sentence's tokens, (b n d).
            target_mask: True where a token of the target exists; None: all do.
            sentence_mask: The same of the sentence.

        Returns:
            The weights over the target, (b t), and over the sentence, (b n).
        """
        over_target = self.over_target.weights(target, mask=target_mask)  # b 1 t
        query = over_target @ target
        over_sentence = weights_over(self.over_sentence, query, sentence, sentence_mask)
        return over_target[:, 0], over_sentence[:, 0]

    def forward(
        self,
        target: Float[Tensor, "b t d"],
        sentence: Float[Tensor, "b n d"],
        target_mask: Bool[Tensor, "b t"] | None = None,
        sentence_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b d"]:
        """Compute the context of the sentence; arguments as in `weights`.

        Returns:
            The context, (b d).
        """
        _, over_sentence = self.weights(target, sentence, target_mask, sentence_mask)
        return (over_sentence[:, None] @ sentence)[:, 0]
