"""Figures of a diagnosis: a number of each head, curves over blocks, places of the grid.

Axes: l layers, head, h, w a grid.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from vision_attn.render.figures import BLUE, INK, QUIET, RED, _drawn, _figure, _look
from vision_attn.render.fonts import printable
from vision_attn.render.picture import Picture

__all__ = ["block_curves", "number_grid"]

COLOURS = RED, BLUE, "#4d7c0f", QUIET
MOST_NUMBERS = 200  # written into the cells of a grid


def number_grid(
    values: Float[ndarray, "l head"],
    title: str,
    *,
    x: str = "head",
    y: str = "layer",
    unit: str = "",
    low: float | None = 0.0,
    high: float | None = None,
) -> Picture:
    """Draw numbers as a grid of colours, each with its number where there is room; NaN stays empty.

    low, high: the values of the first and last colour; None takes the least and the largest.

    Examples:
        >>> import numpy as np
        >>> from vision_attn import render
        >>> render.number_grid(np.eye(3), "Entropy", high=1.0).dtype
        dtype('uint8')
    """
    rows, columns = values.shape
    known = values[np.isfinite(values)]
    top = high if high is not None else float(known.max(initial=0.0))
    least = low if low is not None else float(known.min(initial=top))
    top = top if top > least else least + 1.0
    with _look():
        figure = _figure(max(3.2, 0.5 * columns + 1.7), max(1.9, 0.36 * rows + 1.2))
        axes = figure.add_subplot()
        axes.set_title(printable(title, 60), size=11)
        shown = axes.imshow(values, cmap="viridis", vmin=least, vmax=top, aspect="auto")
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        for count, axis in ((columns, axes.xaxis), (rows, axes.yaxis)):
            axis.set_ticks(range(0, count, -(-count // 16)))
        axes.spines[:].set_visible(False)
        if values.size <= MOST_NUMBERS:
            for (row, column), value in np.ndenumerate(values):
                if np.isfinite(value):
                    light = (value - least) / (top - least) > 0.6
                    axes.text(
                        column, row, _short(value), ha="center", va="center", size=7.5,
                        color=INK if light else "white",
                    )  # fmt: skip
        bar = figure.colorbar(shown, ax=axes, pad=0.02)
        bar.outline.set_visible(False)
        bar.ax.set_title(unit, size=8, color=QUIET)
        return _drawn(figure)


def _short(value: float) -> str:
    """Write a number in at most four signs."""
    if abs(value) >= 9.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 0.995 else f"{value:.2f}".replace("0.", ".")


def block_curves(
    lines: Mapping[str, Sequence[float | None]], title: str, *, low: float | None = 0.0
) -> Picture:
    """Draw numbers of each block as lines over the blocks; None leaves a gap.

    low: where the axis begins; None leaves it to the numbers.

    Examples:
        >>> from vision_attn import render
        >>> render.block_curves({"median": [1.0, 2.0], "largest": [2.0, 9.0]}, "Norms").ndim
        3
    """
    with _look():
        figure = _figure(4.4, 2.9)
        axes = figure.add_subplot()
        axes.set_title(printable(title, 60), size=11)
        axes.grid(True)
        for colour, (name, values) in zip(COLOURS, lines.items(), strict=False):
            numbers = [float("nan") if value is None else value for value in values]
            axes.plot(range(len(numbers)), numbers, color=colour, label=name, marker="o", ms=3)
        axes.set_xlabel("block")
        count = max(map(len, lines.values()))
        axes.set_xticks(range(0, count, -(-count // 16)))
        if low is not None:
            axes.set_ylim(bottom=low)
        if len(lines) > 1:
            axes.legend(fontsize=8)
        return _drawn(figure)
