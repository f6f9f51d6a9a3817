"""Figures of a diagnosis or an ablation: a number of each head, curves over blocks, intervals.

Axes: l layers, head, h, w a grid.
"""

from collections.abc import Mapping, Sequence
from textwrap import wrap

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from vision_attn.render.figures import BLUE, INK, QUIET, RED, _drawn, _figure, _look
from vision_attn.render.fonts import printable
from vision_attn.render.picture import Picture

__all__ = ["block_curves", "interval_curves", "number_grid"]

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
    ends: tuple[Float[ndarray, "l head"], Float[ndarray, "l head"]] | None = None,
) -> Picture:
    """Draw numbers as a grid of colours, each with its number where there is room; NaN stays empty.

    Args:
        values: (l head), or other rows and columns.
        title: Above the picture.
        x: Name of the columns.
        y: Name of the rows.
        unit: Of the numbers, beside the colour bar.
        low: The value of the first colour; None takes the least.
        high: The value of the last colour; None takes the largest.
        ends: Of each number's interval, written below it. Then what is above 0 is red, what
            is below it blue, and what has 0 in its interval white; low and high do not count, and
            the colour is full for the largest twentieth.

    Returns:
        The picture, uint8 (h w 3).

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
    beyond, values_shown = "neither", values
    if ends is not None:
        values_shown = np.where((ends[0] <= 0) & (ends[1] >= 0), 0 * values, values)
        sizes = np.abs(values_shown[values_shown != 0])
        sizes = sizes[np.isfinite(sizes)]
        top = float(np.quantile(sizes, 0.95)) if sizes.size else 1.0
        least, beyond = -top, "both" if (sizes > top).any() else "neither"
    top = top if top > least else least + 1.0
    across, down = (0.5, 0.36) if ends is None else (0.78, 0.46)
    with _look():
        width = max(3.2, across * columns + 1.7)
        figure = _figure(width, max(1.9, down * rows + 1.2))
        axes = figure.add_subplot()
        axes.set_title(_within(title, width - 1.1), size=11)
        colours = "viridis" if ends is None else "RdBu_r"
        shown = axes.imshow(values_shown, cmap=colours, vmin=least, vmax=top, aspect="auto")
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        for count, axis in ((columns, axes.xaxis), (rows, axes.yaxis)):
            axis.set_ticks(range(0, count, -(-count // 16)))
        axes.spines[:].set_visible(False)
        if values.size <= MOST_NUMBERS:
            for (row, column), value in np.ndenumerate(values):
                if np.isfinite(value):
                    share = (values_shown[row, column] - least) / (top - least)
                    light = share > 0.6 if ends is None else 0.2 < share < 0.8
                    ink, higher = INK if light else "white", 0.0 if ends is None else 0.14
                    axes.text(
                        column, row - higher, _short(value), ha="center", va="center", size=7.5,
                        color=ink,
                    )  # fmt: skip
                    if ends is not None:
                        low_end, high_end = (_short(float(end[row, column])) for end in ends)
                        axes.text(
                            column, row + 0.24, f"{low_end} to {high_end}", ha="center",
                            va="center", size=5.5, color=ink,
                        )  # fmt: skip
        bar = figure.colorbar(shown, ax=axes, pad=0.02, extend=beyond)
        bar.outline.set_visible(False)
        bar.set_label(unit, size=8, color=QUIET)
        return _drawn(figure)


def _within(title: str, width: float) -> str:
    """Break a title into lines of so many inches."""
    return "\n".join(wrap(printable(title, 120), int(12 * width)))


def _short(value: float) -> str:
    """Write a number in at most four signs."""
    if abs(value) >= 9.95:
        return f"{value:.0f}"
    if 0 < abs(value) < 0.005:
        return f"{value:.0e}".replace("e-0", "e-")
    return f"{value:.1f}" if abs(value) >= 0.995 else f"{value:.2f}".replace("0.", ".")


def block_curves(
    lines: Mapping[str, Sequence[float | None]],
    title: str,
    *,
    low: float | None = 0.0,
    x: str = "block",
    places: Sequence[int] | None = None,
) -> Picture:
    """Draw numbers of each block as lines over the blocks; None leaves a gap.

    Args:
        lines: The numbers by the line's name.
        title: Above the picture.
        low: Where the axis begins; None leaves it to the numbers.
        x: What the blocks are called.
        places: Their numbers; None: from 0.

    Returns:
        The picture, uint8 (h w 3).

    Examples:
        >>> from vision_attn import render
        >>> render.block_curves({"median": [1.0, 2.0], "largest": [2.0, 9.0]}, "Norms").ndim
        3
    """
    with _look():
        figure = _figure(4.4, 2.9)
        axes = figure.add_subplot()
        axes.set_title(_within(title, 4.0), size=11)
        axes.grid(True)
        for colour, (name, values) in zip(COLOURS, lines.items(), strict=False):
            numbers = [float("nan") if value is None else value for value in values]
            axes.plot(
                places or range(len(numbers)), numbers, color=colour, label=name, marker="o", ms=3
            )
        axes.set_xlabel(x)
        ticks = places or range(max(map(len, lines.values())))
        axes.set_xticks(ticks[:: -(-len(ticks) // 16)])
        if low is not None:
            axes.set_ylim(bottom=low)
        if len(lines) > 1:
            axes.legend(fontsize=8)
        return _drawn(figure)


def interval_curves(
    places: Sequence[int],
    lines: Mapping[str, Sequence[tuple[float, float, float] | None]],
    title: str,
    *,
    x: str = "layer",
) -> Picture:
    """Draw numbers with intervals as lines over whole numbers; None leaves a gap.

    Args:
        places: Where each number stands.
        lines: The numbers by the line's name, each with its lower and upper end.
        title: Above the picture.
        x: What the places are.

    Returns:
        The picture, uint8 (h w 3).

    Examples:
        >>> from vision_attn import render
        >>> line = [(0.5, 0.4, 0.6), None, (0.1, -0.1, 0.2)]
        >>> render.interval_curves([0, 1, 2], {"MLPs": line}, "Worth").ndim
        3
    """
    with _look():
        figure = _figure(4.4, 2.9)
        axes = figure.add_subplot()
        axes.set_title(_within(title, 4.0), size=11)
        axes.grid(True)
        for number, (colour, (name, values)) in enumerate(
            zip(COLOURS, lines.items(), strict=False)
        ):
            known = [one or (float("nan"),) * 3 for one in values]
            middle, low, high = (np.array(part) for part in zip(*known, strict=True))
            aside = 0.06 * (number - (len(lines) - 1) / 2)
            axes.errorbar(
                np.array(places) + aside, middle,
                yerr=np.maximum((middle - low, high - middle), 0), color=colour,
                label=name, marker="o", ms=3, capsize=2, elinewidth=1, lw=1.2,
            )  # fmt: skip
        low_end, high_end = axes.get_ylim()
        if low_end < 0 < high_end:
            axes.axhline(0, color=QUIET, lw=0.8)
        axes.set_xlabel(x)
        axes.set_xticks(list(places)[:: -(-len(places) // 12)])
        if len(lines) > 1:
            axes.legend(fontsize=8)
        return _drawn(figure)
