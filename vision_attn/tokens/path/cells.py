"""Which cells of an image the tokens of a network are, where it leaves some out on its way.

Axes: b batch, n tokens, h height, w width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor

from vision_attn.tokens.layout import patch_at

__all__ = ["KeptCells", "cells_of", "in_words", "kept_cells_of"]

EVEN = 1.5  # times the least: steps between rows are the same


@dataclass(frozen=True)
class KeptCells:
    """Which cells of the image a grid of tokens is, where the network leaves the others out.

    Attributes:
        grid: (rows, columns) of cells of the whole image.
        rows: The row of the image in which each row of tokens lies.
        columns: The same of columns.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.path.cells import KeptCells
        >>> part = KeptCells((2, 3), rows=(1,), columns=(0, 2))
        >>> part.lay(torch.tensor([[5.0, 7.0]])).tolist(), part.left_out("cpu").sum().item()
        ([[0.0, 0.0, 0.0], [5.0, 0.0, 7.0]], 4)
    """

    grid: tuple[int, int]
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def lay(self, values: Shaped[Tensor, "*b h w"]) -> Shaped[Tensor, "*b rows columns"]:
        """Lay values of the tokens over the image: 0 where there is none."""
        whole = values.new_zeros(*values.shape[:-2], *self.grid)
        rows, columns = (
            torch.tensor(indices, dtype=torch.long, device=values.device)
            for indices in (self.rows, self.columns)
        )
        whole[..., rows[:, None], columns] = values
        return whole

    def left_out(self, device: torch.device | str) -> Bool[Tensor, "rows columns"]:
        """Say which cells of the image have no token."""
        shape = (len(self.rows), len(self.columns))
        return self.lay(torch.ones(shape, dtype=torch.float32, device=device)) == 0

    def place_among(
        self, where: tuple[int, int] | tuple[float, float], image_size: tuple[int, int]
    ) -> tuple[float, float]:
        """Find where a place (x, y) of the image lies among the tokens, in shares of their grid.

        Raises:
            ValueError: It lies outside the image, or in a cell that has no token.
        """
        row, column = divmod(patch_at(where, self.grid, image_size), self.grid[1])
        if row not in self.rows or column not in self.columns:
            raise ValueError(
                f"place (x, y) = {where} is in row {row} and column {column} of the image, and the "
                f"network takes {self} alone: give a place in these"
            )
        x, y = self.columns.index(column), self.rows.index(row)
        return (x + 0.5) / len(self.columns), (y + 0.5) / len(self.rows)

    def __str__(self) -> str:
        rows, columns = in_words(self.rows), in_words(self.columns)
        return f"rows {rows} and columns {columns} of {self.grid[0]}x{self.grid[1]} cells"


def in_words(indices: Sequence[int]) -> str:
    """Say some numbers, those in a row by their first and last.

    Examples:
        >>> from vision_attn.tokens.path.cells import in_words
        >>> in_words([1, 2, 3]), in_words([0, 2, 4])
        ('1 to 3', '0, 2, 4')
    """
    first, last = indices[0], indices[-1]
    in_a_row = len(indices) > 2 and last - first + 1 == len(indices)
    return f"{first} to {last}" if in_a_row else ", ".join(map(str, indices))


def kept_cells_of(
    boxes: Tensor,
    grid: tuple[int, int],
    size: tuple[int, int],
) -> KeptCells | None:
    """Find which cells of the image a grid of tokens (h, w) is; None: all of them.

    boxes (n 4): those of `Origins`, row by row. size: (height, width) of the image.
    Boxes that overlap tell where there are none on some of the image.
    """
    boxes = boxes.view(*grid, 4)
    starts, ends = -boxes[..., :2], boxes[..., 2:]
    rows, columns = (
        cells_of(
            starts[..., axis].amin(1 - axis),
            ends[..., axis].amax(1 - axis),
            size[axis],
        )
        for axis in (0, 1)
    )
    whole = (rows[1], columns[1])
    return None if whole == grid else KeptCells(whole, rows[0], columns[0])


def cells_of(starts: Tensor, ends: Tensor, pixels: int) -> tuple[tuple[int, ...], int]:
    """Find the cell of each row (n), and how many there are on all the pixels of the image.

    A cell is as high as a row whose boxes do not overlap others', or as far as rows are apart.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.path.cells import cells_of
        >>> starts = torch.tensor([8, 24])
        >>> cells_of(starts, starts + 7, pixels=32)
        ((1, 3), 4)
    """
    n, side = len(starts), int((ends - starts).max()) + 1
    every = tuple(range(n)), n
    apart = side < pixels and bool((starts[1:] > ends[:-1]).all())
    if n == 1 and not apart:
        return every
    # The edge of the image cuts boxes on one side of it alone.
    cell = max(step_of(starts), step_of(ends)) if n > 1 else float(side)
    cell /= max(1, cell // side) if apart else 1
    if cell <= 0:
        return every
    steps = torch.maximum(starts.diff(), ends.diff()).cumsum(0) / cell
    before, after = int(starts[0]) / cell, (pixels - 1 - int(ends[-1])) / cell
    if not apart:  # the middle of a box is that of its cell, or where this begins
        middle, last = ((int(starts[i]) + int(ends[i])) / 2 for i in (0, -1))
        before = max(1, middle / cell + 0.25) if before > 0 else 0
        after = (pixels - 1 - last) / cell - 0.25 if after >= 1 else 0
    cells = [int(before) + int(step) for step in (0, *steps.round().long().tolist())]
    if len(set(cells)) < n:
        return every
    return tuple(cells), cells[-1] + 1 + int(after)


def step_of(edges: Tensor) -> float:
    """Find how far rows are apart: the median, or the least where they are not evenly so.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.path.cells import step_of
        >>> step_of(torch.tensor([1.0, 9, 16, 24])), step_of(torch.tensor([1.0, 9, 25]))
        (8.0, 8.0)
    """
    steps = edges.diff().double()
    even = bool(steps.max() < EVEN * steps.min())
    return float(steps.median() if even else steps.min())
