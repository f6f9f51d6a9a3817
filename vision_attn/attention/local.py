"""Windows of fixed shape: each query sees the keys near it, at a cost linear in the length.

The queries are cut into tiles, and each tile attends to the tile of keys that holds all their
neighbours. Prefix tokens (class token, registers) are nobody's neighbours: they see every token and
every token sees them.

Axes: b batch, head, n tokens of the grid, t tiles, m queries of a tile, s keys of a tile, d width;
Y and X rows and columns of tiles, y and x those inside a tile.
"""

from abc import abstractmethod
from math import ceil, inf
from typing import NamedTuple, final

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from vision_attn.attention.scores import Keys, Queries
from vision_attn.attention.windows import (
    Context,
    Dense,
    Values,
    Window,
    gathered,
    gathering_pays,
    positions_around,
)
from vision_attn.types import TokenLayout

__all__ = ["Axis", "Grid", "Local2d", "LocalMonotonic", "Near"]


class Axis(NamedTuple):
    """A line of tokens, each of which sees some to either side, cut into tiles.

    Attributes:
        size: How many tokens.
        reach: How many each sees to either side.
        tile: Queries of one tile.

    Examples:
        >>> from vision_attn.attention.local import Axis
        >>> axis = Axis.of(14, radius=3)
        >>> axis
        Axis(size=14, reach=3, tile=4)
        >>> axis.tiles, axis.seen, axis.beyond
        (4, 10, 2)
    """

    size: int
    reach: int
    tile: int

    @classmethod
    def of(cls, size: int, radius: int | float, least: int = 4) -> "Axis":
        """Cut the line into nearly equal tiles, about as long as the reach and at least `least`."""
        reach = int(min(radius, size - 1))
        return cls(size, reach, ceil(size / ceil(size / max(least, reach))))

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        return ceil(self.size / self.tile)

    @property
    def seen(self) -> int:
        """Number of keys that one tile sees."""
        return self.tile + 2 * self.reach

    @property
    def beyond(self) -> int:
        """Number of places of the last tile that lie beyond the end."""
        return self.tiles * self.tile - self.size


class Grid(NamedTuple):
    """Tokens in rows and columns, where each sees its neighbours.

    Attributes:
        rows: The axis from top to bottom.
        columns: The axis from left to right.

    Examples:
        >>> import torch
        >>> from vision_attn.attention.local import Axis, Grid
        >>> grid = Grid(Axis.of(2, radius=1), Axis.of(3, radius=1))
        >>> grid.near(torch.device("cpu"))[0].view(2, 3)  # what the top left token sees
        tensor([[ True,  True, False],
                [ True,  True, False]])
    """

    rows: Axis
    columns: Axis

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        return self.rows.tiles * self.columns.tiles

    @property
    def seen(self) -> int:
        """Number of keys that one tile sees."""
        return self.rows.seen * self.columns.seen

    @property
    def everything_is_near(self) -> bool:
        """Whether every token sees every other."""
        return all(axis.reach == axis.size - 1 for axis in self)

    def near(self, device: torch.device) -> Bool[Tensor, "n n"]:
        """Mark the pairs of tokens that see each other."""
        rows, columns = (
            band(axis.size, axis.size, 0, axis.reach, device) for axis in (self.rows, self.columns)
        )
        return product(rows, columns)

    def near_in_tiles(self, device: torch.device) -> Bool[Tensor, "t 1 m s"]:
        """Mark the pairs that see each other, tile by tile; no key lies beyond the edge."""
        rows, columns = (
            band(axis.tile, axis.seen, axis.reach, axis.reach, device)
            for axis in (self.rows, self.columns)
        )
        inside = torch.ones(1, 1, self.rows.size * self.columns.size, 1, device=device).bool()
        return product(rows, columns) & self.surround(inside).transpose(-2, -1)

    def split(self, queries: Tensor) -> Tensor:
        """Cut the queries into tiles, (b head n d) -> (b t) head m d."""
        queries = self._padded(queries, 0, 0)
        y, x = self.rows.tile, self.columns.tile
        return rearrange(queries, "b head (Y y) (X x) d -> (b Y X) head (y x) d", y=y, x=x)

    def surround(self, keys: Tensor) -> Tensor:
        """Cut out each tile's keys, (b head n d) -> (b t) head s d, zeros beyond the edge."""
        rows, columns = self.rows, self.columns
        keys = self._padded(keys, rows.reach, columns.reach)
        keys = keys.unfold(2, rows.seen, rows.tile).unfold(3, columns.seen, columns.tile)
        return rearrange(keys, "b head Y X d y x -> (b Y X) head (y x) d")

    def join(self, tiles: Tensor) -> Tensor:
        """Put the tiles together, (b t) head m d -> (b head n d): the inverse of `split`."""
        Y, X, y = self.rows.tiles, self.columns.tiles, self.rows.tile
        grid = rearrange(tiles, "(b Y X) head (y x) d -> b head (Y y) (X x) d", Y=Y, X=X, y=y)
        return grid[:, :, : self.rows.size, : self.columns.size].flatten(2, 3)

    def _padded(self, tokens: Tensor, above: int, left: int) -> Tensor:
        """Lay tokens on the grid with a margin, and fill up the tiles below and right."""
        below, right = above + self.rows.beyond, left + self.columns.beyond
        grid = tokens.unflatten(2, (self.rows.size, self.columns.size))
        return F.pad(grid, (0, 0, left, right, above, below))


def band(
    queries: int, keys: int, lead: int, reach: int, device: torch.device
) -> Bool[Tensor, "i j"]:
    """Mark the keys within reach of each query, where the keys start `lead` earlier."""
    away = torch.arange(queries, device=device)[:, None] - torch.arange(keys, device=device)
    return (away + lead).abs() <= reach


def product(rows: Bool[Tensor, "y z"], columns: Bool[Tensor, "x w"]) -> Bool[Tensor, "y*x z*w"]:
    """Mark pairs of cells that are paired in their rows and in their columns."""
    return (rows[:, None, :, None] & columns[:, None]).flatten(2, 3).flatten(0, 1)


def tiled(
    dense: Dense,
    grid: Grid,
    prefix: int,
    q: Queries,
    k: Keys,
    v: Values,
    mask: Tensor | None,
) -> Context:
    """Compute attention of each token over those near it, tile by tile, and over the prefix."""

    def seen(tokens: Tensor) -> Tensor:
        everywhere = tokens[:, :, :prefix].repeat_interleave(grid.tiles, dim=0)
        return torch.cat([everywhere, grid.surround(tokens[:, :, prefix:])], dim=2)

    visible = F.pad(grid.near_in_tiles(q.device), (prefix, 0), value=True)[None]  # b t 1 m s
    if mask is not None:
        positions = torch.arange(k.size(2), device=k.device)[None, None, :, None]
        visible = visible & mask_in_tiles(grid, prefix, mask, seen(positions)[:, 0, :, 0])
    visible = visible.expand(q.size(0), -1, -1, -1, -1).flatten(0, 1)
    context = grid.join(dense(grid.split(q[:, :, prefix:]), seen(k), seen(v), visible, None))
    if not prefix:
        return context
    rows = mask if mask is None or mask.size(-2) == 1 else mask[..., :prefix, :]
    return torch.cat([dense(q[:, :, :prefix], k, v, rows, None), context], dim=2)


def mask_in_tiles(
    grid: Grid, prefix: int, mask: Bool[Tensor, "b_ head_ i_ j_"], seen: Int[Tensor, "t s"]
) -> Bool[Tensor, "b_ t head_ m_ s_"]:
    """Cut out the part of a mask that each tile needs.

    seen: the places of the keys of each tile.
    """
    if mask.size(2) == 1:
        rows = mask[:, None].expand(-1, grid.tiles, -1, -1, -1)
    else:
        rows = grid.split(mask[:, :, prefix:]).unflatten(0, (mask.size(0), grid.tiles))
    if mask.size(3) == 1:
        return rows
    index = seen[:, None, None].expand(*rows.shape[:-1], -1)
    return rows.gather(-1, index)


class Near(Window):
    """Base class: each token sees those within `radius` of it on a grid.

    Prefix tokens see every token and every token sees them. A subclass lays the tokens on a grid in
    `grid`.

    Args:
        head_dim: The width of queries and keys; of no use here.
        heads: How many heads; of no use here.
        radius: A whole number of at least 0, or inf.

    Raises:
        ValueError: `radius` is another number.

    Examples:
        >>> import torch
        >>> from vision_attn.attention.local import Axis, Grid, Near
        >>> class InOneRow(Near):
        ...     def grid(self, tokens, layout):
        ...         return 0, Grid(Axis.of(1, 0), Axis.of(tokens, self.radius))
        >>> q = torch.randn(1, 1, 4, 8)
        >>> InOneRow(radius=1).terms(q, q, None)[0][0]
        tensor([ True,  True, False, False])
    """

    def __init__(self, head_dim: int | None = None, heads: int = 1, *, radius: int | float):
        super().__init__(head_dim, heads)
        if not radius >= 0 or (radius != inf and radius != int(radius)):
            raise ValueError(f"radius must be a whole number of at least 0, or inf, got {radius}")
        self.radius = radius

    @abstractmethod
    def grid(self, tokens: int, layout: TokenLayout | None) -> tuple[int, Grid]:
        """Return the number of prefix tokens, and the grid that the other tokens lie on."""

    def checked_grid(self, q: Tensor, k: Tensor, layout: TokenLayout | None) -> tuple[int, Grid]:
        """Return what `grid` does.

        Raises:
            ValueError: The layout has another number of tokens.
        """
        queries, keys = q.size(-2), k.size(-2)
        if layout is not None and not queries == keys == layout.tokens:
            raise ValueError(
                f"layout has {layout.tokens} tokens, got {queries} queries and {keys} keys"
            )
        return self.grid(keys, layout)

    def terms(
        self, q: Tensor, k: Tensor, layout: TokenLayout | None
    ) -> tuple[Tensor | None, Tensor | None]:
        prefix, grid = self.checked_grid(q, k, layout)
        if grid.everything_is_near:
            return None, None
        return F.pad(grid.near(q.device), (prefix, 0, prefix, 0), value=True), None

    def forward(
        self,
        dense: Dense,
        q: Queries,
        k: Keys,
        v: Values,
        mask: Tensor | None,
        layout: TokenLayout | None,
    ) -> Context:
        prefix, grid = self.checked_grid(q, k, layout)
        if 4 * (prefix + grid.seen) > k.size(-2):  # measured: the tiles would not save much
            return self.definition(dense, q, k, v, mask, layout)
        return tiled(dense, grid, prefix, q, k, v, mask)


@final
class Local2d(Near):
    """Neighbourhood of a patch on the image: rows and columns at most `radius` patches away.

    For self-attention, and needs the layout of the tokens: a call without raises ValueError.

    Args:
        head_dim: The width of queries and keys; of no use here.
        heads: How many heads; of no use here.
        radius: In patches: a whole number of at least 0, or inf.

    Raises:
        ValueError: `radius` is another number.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import Attend, Local2d, ScaledDot
        >>> from vision_attn.types import TokenLayout
        >>> layout = TokenLayout(prefix=1, grid=(3, 3))
        >>> attend = Attend(ScaledDot(head_dim=8), window=Local2d(radius=1))
        >>> q = torch.randn(1, 1, 10, 8)
        >>> attend.weights(q, q, layout=layout)[0, 0, 1, 1:].view(3, 3) > 0  # of the top left patch
        tensor([[ True,  True, False],
                [ True,  True, False],
                [False, False, False]])
    """

    def grid(self, tokens: int, layout: TokenLayout | None) -> tuple[int, Grid]:
        if layout is None:
            raise ValueError("Local2d needs to know the grid: give layout=TokenLayout(...)")
        rows, columns = layout.grid
        return layout.prefix, Grid(Axis.of(rows, self.radius), Axis.of(columns, self.radius))


@final
class LocalMonotonic(Near):
    """Positions p - radius to p + radius, where p = t for query t, Luong et al. 2015, local-m.

    Where the memory has another length S than the T queries, p = t S / T, and there is no prefix.

    Args:
        head_dim: The width of queries and keys; of no use here.
        heads: How many heads; of no use here.
        radius: In positions: a whole number of at least 0, or inf.

    Raises:
        ValueError: `radius` is another number.

    Examples:
        >>> import torch
        >>> from vision_attn.attention import Attend, LocalMonotonic, ScaledDot
        >>> attend = Attend(ScaledDot(head_dim=8), window=LocalMonotonic(radius=1))
        >>> q, k = torch.randn(1, 1, 3, 8), torch.randn(1, 1, 6, 8)
        >>> attend.weights(q, k)[0, 0, 1] > 0
        tensor([False,  True,  True,  True, False, False])
    """

    def grid(self, tokens: int, layout: TokenLayout | None) -> tuple[int, Grid]:
        prefix = 0 if layout is None else layout.prefix
        return prefix, Grid(Axis.of(tokens - prefix, self.radius, least=16), Axis.of(1, 0))

    def terms(
        self, q: Tensor, k: Tensor, layout: TokenLayout | None
    ) -> tuple[Tensor | None, Tensor | None]:
        if q.size(-2) == k.size(-2):
            return super().terms(q, k, layout)
        away = torch.arange(k.size(-2), device=k.device) - scaled_positions(q, k)
        return away.abs() <= self.radius, None

    def forward(
        self,
        dense: Dense,
        q: Queries,
        k: Keys,
        v: Values,
        mask: Tensor | None,
        layout: TokenLayout | None,
    ) -> Context:
        if q.size(-2) == k.size(-2):
            return super().forward(dense, q, k, v, mask, layout)
        if not gathering_pays(self.radius, k):
            return self.definition(dense, q, k, v, mask, layout)
        centre = scaled_positions(q, k)[None, None]
        seen = positions_around(centre, int(self.radius))
        visible = (seen - centre).abs() <= self.radius
        return gathered(dense, q, k, v, mask, seen, visible, None)


def scaled_positions(q: Tensor, k: Tensor) -> Float[Tensor, "i 1"]:
    """Place each query in the memory as if both were spread over the same stretch."""
    return torch.arange(q.size(-2), device=q.device)[:, None] * (k.size(-2) / q.size(-2))
