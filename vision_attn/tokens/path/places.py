"""Where the first tokens of a path lie on the image, and the name of what is read of the last."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vision_attn.tokens.layout import layout_of
from vision_attn.tokens.path.cells import KeptCells, kept_cells_of
from vision_attn.tokens.path.chain import Attention, Link
from vision_attn.tokens.trace.origins import Origins
from vision_attn.types import Pool, TokenLayout

__all__ = [
    "Places",
    "grid_of",
    "in_order",
    "in_steps",
    "layout_found",
    "places_of",
    "rounded",
    "rows_apart",
    "tokens_in",
]


@dataclass(frozen=True)
class Places:
    """Where the tokens of a layer's output lie: (b n d), or (n b d) where batch_axis is 1.

    Attributes:
        order: The token in each place of the grid (h, w), row by row.
        part: Where the grid lies, if it is not all of the image.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.path.places import Places
        >>> x = torch.arange(5.0)[None, :, None]  # four patches, by columns
        >>> Places((2, 2), (1, 3, 2, 4)).to_map(x)[0, 0].tolist()
        [[1.0, 3.0], [2.0, 4.0]]
    """

    grid: tuple[int, int]
    order: tuple[int, ...]
    batch_axis: int = 0
    part: KeptCells | None = None

    def to_map(self, x: Tensor) -> Tensor:
        """Lay a layer's output out as (b d h w)."""
        x = x.transpose(0, self.batch_axis)[:, list(self.order)]
        grid: Tensor = x.mT.unflatten(-1, self.grid)
        return grid


def tokens_in(ids: Tensor) -> tuple[Tensor, int] | None:
    """Lay the origins of a value out as tokens (b n d), by its axis of channels.

    Also returns that axis; None where there is none.
    """
    channels = next(
        (
            axis
            for axis in range(ids.ndim - 1, 0, -1)
            if ids.shape[axis] > 1 and bool((ids == ids.narrow(axis, 0, 1)).all())
        ),
        None,
    )
    if channels is None:
        return None
    tokens = ids.narrow(channels, 0, 1).movedim(channels, -1)
    return (tokens.flatten(1, -2) if ids.ndim > 3 else tokens), channels


def places_of(origins: Origins, of_tokens: Tensor, size: tuple[int, int]) -> Places | None:
    """Find where tokens (b n d) or (n b d) lie, by the origins of their elements.

    size: (height, width) of the image. None where nothing tells.
    """
    if of_tokens.ndim != 3:
        return None
    for batch_axis in (0, 1):
        ids = of_tokens.transpose(0, batch_axis)
        ids = ids[..., :1] if ids.stride(-1) == 0 else ids
        boxes = origins.box[ids].amax(2)  # image n side
        apart = len(ids) == 2 and all(
            bool((boxes[token, :, 5 - token] < 0).all()) for token in (0, 1)
        )
        if not apart:
            continue
        boxes, centres = boxes[0, :, :4], origins.centres(ids[0]).mean(1)
        on_image = (boxes[:, 2] >= 0).tolist()
        patches = [token for token in in_order(centres) if on_image[token]]
        boxes, centres = boxes[patches], centres[patches]
        grid = grid_of(boxes, centres, patches)[0]
        if grid is None:
            return None
        part = kept_cells_of(boxes, grid, size)
        return Places(grid, tuple(patches), batch_axis, part)
    return None


def layout_found(
    network: nn.Module, size: tuple[int, int], links: Sequence[Link], boxes: Tensor,
    centres: Tensor, ranks: Sequence[int], reads: Tensor | None,
) -> tuple[TokenLayout | None, tuple[int, int] | None, KeptCells | None]:  # fmt: skip
    """Find how the first tokens lie on the image, by the pixels that each was computed from.

    size: (height, width) of the image. boxes (n 4), centres (n 2): those of `Origins`. ranks (n,):
    the index of each token in the network's own order. reads: the share of each of the last tokens
    in the logits. Also returns the size of a patch, and where the grid lies if it is not all of
    the image; None for what is not known.
    """
    first = links[0].before
    boxes = boxes[:first]
    on_image = boxes[:, 2] >= 0
    patches, beside = (each.nonzero()[:, 0].tolist() for each in (on_image, ~on_image))
    of_patches = boxes[on_image]
    ranks = [ranks[token] for token in patches]
    grid, patch = grid_of(of_patches, centres[: len(boxes)][on_image], ranks)
    hint: TokenLayout | None = None
    with suppress(ValueError):
        hint = layout_of(network, size)
    if hint is not None and hint.tokens != first:
        hint = None
    if grid is None:
        if hint is None or hint.beside != beside:
            return None, None, None
        grid = hint.grid
    part = kept_cells_of(of_patches, grid, size)
    prefix = next((count for count, token in enumerate(beside) if count != token), len(beside))
    pool, class_token = pool_read(links, reads, beside, patches, hint)
    return TokenLayout(prefix, grid, pool, class_token, tuple(beside[prefix:])), patch, part


def pool_read(
    links: Sequence[Link], reads: Tensor | None, beside: list[int], patches: list[int],
    hint: TokenLayout | None,
) -> tuple[Pool, bool]:  # fmt: skip
    """Name what the classifier reads, by the nearest pool there is; and whether the first token is
    a class token.
    """
    named = hint is not None and bool(hint.class_token)
    if reads is None:
        return (hint.pool, named) if hint else ("mean", named)
    attentions = [link for link in links if isinstance(link, Attention)]
    if attentions and (new := attentions[-1].new) is not None:
        last = attentions[-1]
        every = new.numel() > 1 and bool((last.queries < last.before).all())
        return "mean" if last.kept or every else "attention", named
    if len(reads) != len(beside) + len(patches):
        return "mean", named
    read = [token for token, share in enumerate(reads.tolist()) if share]
    if read == [0] and beside[:1] == [0]:
        return "cls", True
    if read == [0, 1] and beside[:2] == [0, 1]:
        return "cls_dist", True
    if beside[:1] == [0] and read == [0, *patches] and abs(float(reads[0]) - 0.5) < 1e-6:
        return "cls_mean", True
    return "mean", named


def grid_of(
    boxes: Tensor, centres: Tensor, ranks: Sequence[int]
) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """Find the grid (h, w) on which tokens lie row by row, and the size in pixels that each has.

    boxes (n 4): the pixels that each was made of. Where they are the whole image, as after many
    convolutions, the order of the centres (n 2) tells; then no token has a size. At the edges of a
    map centres are a little off: rows and columns must lie farther apart than they are wide. ranks
    (n,): the index of each token in the network's own order; if that order is another one, so that
    only centres tell, they must lie in even steps. Boxes that do not go down and to the right
    are no grid.
    """
    grid = product_of(boxes[:, [0, 2]], boxes[:, [1, 3]])
    if grid is None:
        spots = _billionths(centres)
        grid = product_of(spots[:, :1], spots[:, 1:])
        about = rows_apart(centres) if grid is None else None
        if about is not None and about[1] == list(range(len(centres))):
            grid = about[0]
        if grid is not None and ranks != sorted(ranks) and not in_steps(centres, grid):
            return None, None
        return grid, None
    boxes = boxes.view(*grid, 4)
    edges = boxes * boxes.new_tensor([-1, -1, 1, 1])
    down, right = edges[..., [0, 2]].diff(dim=0), edges[..., [1, 3]].diff(dim=1)
    if (down < 0).any() or (right < 0).any():
        return None, None
    return grid, patch_of(boxes)


def patch_of(boxes: Tensor) -> tuple[int, int] | None:
    """The size (height, width) of the boxes (h w 4) of a grid; None: they are not of one size.

    The edge of the image may cut those of the first and last rows and columns.
    """
    inside = boxes
    for axis in (0, 1):
        if boxes.shape[axis] > 2:
            inside = inside.narrow(axis, 1, boxes.shape[axis] - 2)
    sizes = inside[..., :2] + inside[..., 2:] + 1
    h, w = sizes[0, 0].tolist()
    return (h, w) if bool((sizes == sizes[0, 0]).all()) else None


def product_of(rows: Tensor, columns: Tensor) -> tuple[int, int] | None:
    """Find how many rows and columns there are, if each row has all columns, in one order.

    rows, columns (n k): the numbers that say in which row and column each token lies.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.path.places import product_of
        >>> y, x = torch.tensor([[0], [0], [0], [5], [5], [5]]), torch.tensor([[1], [2], [3]] * 2)
        >>> product_of(y, x)
        (2, 3)
        >>> product_of(x, y) is None
        True
    """
    n = len(rows)
    if not n:
        return None
    others = (rows != rows[0]).any(1).nonzero()
    w = int(others[0]) if len(others) else n
    if n % w:
        return None
    rows, columns = rows.view(n // w, w, -1), columns.view(n // w, w, -1)
    if (rows != rows[:, :1]).any() or (columns != columns[:1]).any():
        return None
    apart = len(rows[:, 0].unique(dim=0)) == n // w and len(columns[0].unique(dim=0)) == w
    return (n // w, w) if apart else None


def in_steps(centres: Tensor, grid: tuple[int, int]) -> bool:
    """Whether rows and columns of centres follow in even steps, none below a quarter of the median.

    centres (n 2): row by row of a grid (h, w). Behind convolutions over windows that are cut from a
    map, centres may come in another order than their tokens. Some of them then lie close together.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.path.places import in_steps
        >>> y = torch.zeros(4)
        >>> in_steps(torch.stack([y, torch.tensor([52.0, 80, 112, 144])], 1), (1, 4))
        True
        >>> in_steps(torch.stack([y, torch.tensor([52.0, 80, 82, 112])], 1), (1, 4))
        False
    """
    y, x = centres.view(*grid, 2).unbind(-1)
    for steps in (y.mean(1).diff(), x.mean(0).diff()):
        if len(steps) and not (steps.min() > 0 and steps.min() >= steps.median() / 4):
            return False
    return True


def rows_apart(centres: Tensor) -> tuple[tuple[int, int], list[int]] | None:
    """Find the grid (h, w) of places (n 2) and their order row by row, where they lie about on one.

    None where on no grid all rows and columns are apart by more than twice what each is wide.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.path.places import rows_apart
        >>> rows_apart(torch.tensor([[0.1, 9.0], [0.0, 0.2], [8.0, 0.0], [8.1, 9.1]]))
        ((2, 2), [1, 0, 2, 3])
    """
    n = len(centres)
    if not n or bool(centres.isnan().any()):
        return None
    for h in range(1, n + 1):
        if n % h:
            continue
        order = centres[:, 0].argsort(stable=True).view(h, -1)
        order = order.gather(1, centres[order, 1].argsort(dim=1, stable=True))
        y, x = centres[order].unbind(-1)
        wide = max((y.amax(1) - y.amin(1)).max(), (x.amax(0) - x.amin(0)).max())
        apart = [y.amin(1)[1:] - y.amax(1)[:-1], x.amin(0)[1:] - x.amax(0)[:-1]]
        if bool((torch.cat(apart) > max(2 * float(wide), 1e-9)).all()):
            return (h, n // h), order.flatten().tolist()
    return None


def rounded(centres: Tensor) -> list[tuple[int, int]]:
    """Round places (n 2) to billionths of a pixel, in which equal ones are equal; -1: nowhere."""
    return [(y, x) for y, x in _billionths(centres).tolist()]


def in_order(centres: Tensor) -> list[int]:
    """Sort places (n 2) by rows, then columns; equal ones, when rounded, stay in their order.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.path.places import in_order
        >>> in_order(torch.tensor([[1.0, 0.5], [0.5, 2.0], [1.0, 0.5], [0.5, 1.0]]))
        [3, 1, 0, 2]
    """
    y, x = _billionths(centres).unbind(1)
    order = x.argsort(stable=True)
    by_rows: list[int] = order[y[order].argsort(stable=True)].tolist()
    return by_rows


def _billionths(centres: Tensor) -> Tensor:
    return (1e9 * centres).nan_to_num(-1).round().long()
