"""Attention in levels: what one level finds is what the next one asks about, or asks with.

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

Groups = Float[Tensor, "b g m d"]
Queries = Float[Tensor, "b i d"]


class Hierarchical(nn.Module):
    """Attention inside each group gives it a vector; attention over the groups gives the context.

    Yang et al. 2016, section 2.2, without its recurrent encoders. A group without members counts
    for nothing. score, normalizer: factories, for both levels; a score that asks a query gets a
    learned one.
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
        """Of each member in its group, and of each group."""
        members, exist = groups.flatten(0, 1), None if mask is None else mask.flatten(0, 1)
        inside = self.inside.weights(members, mask=exist)[:, 0].unflatten(0, groups.shape[:2])
        vectors = self._vectors(groups, mask)
        across = self.across.weights(vectors, mask=None if mask is None else mask.any(-1))
        return inside, across[:, 0]

    def forward(
        self, groups: Groups, mask: Bool[Tensor, "b g m"] | None = None
    ) -> Float[Tensor, "b d"]:
        vectors = self._vectors(groups, mask)
        return self.across(vectors, mask=None if mask is None else mask.any(-1))

    def _vectors(
        self, groups: Groups, mask: Bool[Tensor, "b g m"] | None
    ) -> Float[Tensor, "b g d"]:
        exist = None if mask is None else mask.flatten(0, 1)
        return self.inside(groups.flatten(0, 1), mask=exist).unflatten(0, groups.shape[:2])


@final
class HierarchicalPool(Readout):
    """Patches to regions to the image: the grid in rows x columns of nearly equal regions.

    Sides of regions differ by one patch at most, the larger first; a grid with fewer rows or
    columns than regions is an error. Needs the layout; prefix tokens are not read. The looks are
    two: what each patch counts for, and what its region does, shared evenly among the region's
    patches.
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
        return self._ungrouped(looks, checked(layout, tokens))

    def _grouped(
        self, tokens: Tokens, layout: TokenLayout | None, mask: Exists
    ) -> tuple[Groups, Bool[Tensor, "b g m"]]:
        """The patches region by region, and which of them exist: some regions may be smaller."""
        layout = checked(layout, tokens)
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
        return [self.longest * part + at for part, n in enumerate(self.sizes) for at in range(n)]

    @property
    def members(self) -> list[int]:
        """The row of each member, part by part; `length` where a part has no more."""
        members = [self.length] * (self.longest * self.count)
        for row, place in enumerate(self.places):
            members[place] = row
        return members


def indices(values: list[int], like: Tensor) -> Int[Tensor, " n"]:
    return torch.tensor(values, device=like.device)


def checked(layout: TokenLayout | None, tokens: Tokens) -> TokenLayout:
    if layout is None:
        raise ValueError("HierarchicalPool needs to know the grid: give layout=TokenLayout(...)")
    if tokens.size(1) != layout.tokens:
        raise ValueError(f"layout has {layout.tokens} tokens, but there are {tokens.size(1)}")
    return layout


@final
class AttentionViaAttention(nn.Module):
    """Over the coarse memory first, c_w; then over the fine memory with [q; c_w] as the query.

    Zhao & Zhang 2018. Gives both contexts, coarse and fine. score, normalizer: factories, for both
    levels.
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
        over_coarse, over_fine = self.weights(query, coarse, fine, coarse_mask, fine_mask)
        return over_coarse @ coarse, over_fine @ fine


@final
class TargetGuided(nn.Module):
    """The target's own tokens give c_t; c_t is the query over the sentence, Ma et al. 2018.

    score: a factory for the second step; the first asks no query.
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
        _, over_sentence = self.weights(target, sentence, target_mask, sentence_mask)
        return (over_sentence[:, None] @ sentence)[:, 0]
