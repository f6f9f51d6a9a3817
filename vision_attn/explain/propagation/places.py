"""Where the first tokens of a path lie on the image, and the name of what is read of the last."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from torch import Tensor, nn

from vision_attn.explain.networks.layout import layout_of
from vision_attn.explain.propagation.chain import Attention, Link
from vision_attn.explain.propagation.traced import TracedRun
from vision_attn.types import Pool, TokenLayout

__all__ = ["Places", "grid_of", "layout_found", "places_of"]


@dataclass(frozen=True)
class Places:
    """Where the tokens of a layer's output lie: (b n d), or (n b d) where batch_axis is 1.

    order: the token in each place of the grid (h, w), row by row.

    Examples:
        >>> import torch
        >>> from vision_attn.explain.propagation.places import Places
        >>> x = torch.arange(5.0)[None, :, None]  # four patches, by columns
        >>> Places((2, 2), (1, 3, 2, 4)).to_map(x)[0, 0].tolist()
        [[1.0, 3.0], [2.0, 4.0]]
    """

    grid: tuple[int, int]
    order: tuple[int, ...]
    batch_axis: int = 0

    def to_map(self, x: Tensor) -> Tensor:
        """Lay a layer's output out as (b d h w)."""
        x = x.transpose(0, self.batch_axis)[:, list(self.order)]
        return x.mT.unflatten(-1, self.grid)


def places_of(run: TracedRun) -> Places | None:
    """Find where the tokens of the module that a run watched lie; None where nothing tells."""
    if run.watched is None or run.watched.ndim != 3:
        return None
    for batch_axis in (0, 1):
        ids = run.watched.transpose(0, batch_axis)
        ids = ids[..., :1] if ids.stride(-1) == 0 else ids
        boxes = run.origins.box[ids].amax(2)  # image n side
        apart = len(ids) == 2 and all(bool((boxes[at, :, 5 - at] < 0).all()) for at in (0, 1))
        if not apart:
            continue
        boxes = boxes[0, :, :4]  # -top, -left, bottom, right
        patches = [at for at, box in enumerate(boxes.tolist()) if box[2] >= 0]
        middle = (boxes[:, 2:] - boxes[:, :2]).tolist()
        patches.sort(key=lambda at: middle[at])
        grid = grid_of(boxes[patches])[0]
        return None if grid is None else Places(grid, tuple(patches), batch_axis)
    return None


def layout_found(
    network: nn.Module, size: tuple[int, int], links: Sequence[Link], boxes: Tensor,
    reads: Tensor | None,
) -> tuple[TokenLayout | None, tuple[int, int] | None]:  # fmt: skip
    """Find how the first tokens lie on the image, by the pixels that each was computed from.

    size: (height, width) of the image. boxes (n 4): those of `Origins.box`. reads: the share of
    each of the last tokens in the logits. Also returns the size of a patch; None for what is not
    known.
    """
    first = links[0].before
    boxes = boxes[:first]
    beside = [place for place, box in enumerate(boxes.tolist()) if box[2] < 0]
    patches = [place for place in range(first) if place not in set(beside)]
    grid, patch = grid_of(boxes[patches])
    hint: TokenLayout | None = None
    with suppress(ValueError):
        hint = layout_of(network, size)
    if hint is not None and hint.tokens != first:
        hint = None
    if grid is None:
        if hint is None or hint.beside != beside:
            return None, None
        grid = hint.grid
    prefix = next((at for at, place in enumerate(beside) if at != place), len(beside))
    pool, class_token = pool_read(links, reads, beside, patches, hint)
    return TokenLayout(prefix, grid, pool, class_token, tuple(beside[prefix:])), patch


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
    if attentions and attentions[-1].new is not None:
        return "attention", named
    if len(reads) != len(beside) + len(patches):
        return "mean", named
    read = [place for place, share in enumerate(reads.tolist()) if share]
    if read == [0] and beside[:1] == [0]:
        return "cls", True
    if read == [0, 1] and beside[:2] == [0, 1]:
        return "cls_dist", True
    if beside[:1] == [0] and read == [0, *patches] and abs(float(reads[0]) - 0.5) < 1e-6:
        return "cls_mean", True
    return "mean", named


def grid_of(boxes: Tensor) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """Find the grid (h, w) on which boxes (n 4) lie row by row, and their size in pixels."""
    rows = [tuple(box) for box in boxes[:, [0, 2]].tolist()]
    columns = [tuple(box) for box in boxes[:, [1, 3]].tolist()]
    tops, lefts = list(dict.fromkeys(rows)), list(dict.fromkeys(columns))
    if not rows or [(y, x) for y in tops for x in lefts] != list(zip(rows, columns, strict=True)):
        return None, None
    middle = boxes[len(boxes) // 2].tolist()
    size = (middle[0] + middle[2] + 1, middle[1] + middle[3] + 1)
    return (len(tops), len(lefts)), size
