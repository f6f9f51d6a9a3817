"""Figures of a run and of a network: learning curves, confusion matrix, channel gates.

Each returns a picture, for `picture.save`; matplotlib's global state is left alone.

Axes: H, W a picture's height and width, k classes.
"""

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from jaxtyping import Float, Shaped
from numpy import ndarray

from vision_attn.render.fonts import families, printable
from vision_attn.render.picture import Picture

if TYPE_CHECKING:  # which pictures of maps do not need, and which takes half a second
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "channel_gates",
    "confusion_matrix",
    "learning_curve_panels",
    "learning_curves",
    "show",
]

INK, QUIET, RULE = "#26262a", "#6e6e76", "#dedee3"
RED, BLUE = "#c2410c", "#1d4ed8"
COLOURS = {"train": RED, "val": BLUE}
NAMES = {"top1": "top-1 accuracy", "top5": "top-5 accuracy", "ece": "calibration error"}


def learning_curves(metrics: str | PathLike[str]) -> Picture:
    r"""Draw what a run logged, a panel a metric, train against val.

    Columns are `train/loss`, `val/top1` and the like; of a metric logged by step and by epoch the
    epochs are shown.

    Args:
        metrics: Lightning's metrics.csv.

    Returns:
        The picture, uint8 (h w 3).

    Raises:
        ValueError: The file holds no such column.

    Examples:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from vision_attn import render
        >>> with TemporaryDirectory() as folder:
        ...     metrics = Path(folder, "metrics.csv")
        ...     _ = metrics.write_text("epoch,train/loss\n0,2.3\n1,1.9\n")
        ...     picture = render.learning_curves(metrics)
        >>> picture.ndim, picture.dtype
        (3, dtype('uint8'))
    """
    curves = _read_curves(metrics)
    with _look():
        figure = _figure(4.2 * len(curves), 3.2)
        for place, (metric, stages) in enumerate(curves.items(), start=1):
            _draw_curve(figure.add_subplot(1, len(curves), place), metric, stages)
        return _drawn(figure)


def learning_curve_panels(metrics: str | PathLike[str]) -> dict[str, Picture]:
    r"""Draw the panels of `learning_curves` as a picture each.

    Side by side they fill a wide page, one below the other a narrow one.

    Args:
        metrics: As of `learning_curves`.

    Returns:
        The pictures by the metric's name.

    Examples:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from vision_attn import render
        >>> with TemporaryDirectory() as folder:
        ...     metrics = Path(folder, "metrics.csv")
        ...     _ = metrics.write_text("epoch,train/loss,val/top1\n0,2.3,0.1\n1,1.9,0.3\n")
        ...     list(render.learning_curve_panels(metrics))
        ['loss', 'top-1 accuracy']
    """
    panels = {}
    with _look():
        for metric, stages in _read_curves(metrics).items():
            figure = _figure(4.2, 3.2)
            _draw_curve(figure.add_subplot(), metric, stages)
            panels[NAMES.get(metric, metric)] = _drawn(figure)
    return panels


def _draw_curve(axes: "Axes", metric: str, stages: Mapping[str, Mapping[int, float]]) -> None:
    """Draw one metric over the epochs, a line a stage."""
    from matplotlib.ticker import MaxNLocator

    axes.set_title(printable(NAMES.get(metric, metric)))
    axes.grid(True)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    for stage, points in stages.items():
        epochs, values = zip(*sorted(points.items()), strict=True)
        dot = "o" if len(epochs) == 1 else "-"
        axes.plot(epochs, values, dot, label=stage, color=COLOURS[stage])
    axes.legend()


def _read_curves(path: str | PathLike[str]) -> dict[str, dict[str, dict[int, float]]]:
    """Read metric -> stage -> epoch -> the last value logged in it.

    ValueError where the file holds no such column.
    """
    curves: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            for column, text in row.items():
                stage, _, metric = (column or "").partition("/")
                if stage in COLOURS and metric and text and not metric.endswith("_step"):
                    epoch = int(float(row.get("epoch") or 0)) + 1
                    curves[metric.removesuffix("_epoch")][stage][epoch] = float(text)
    if not curves:
        raise ValueError(f"{path}: expected columns such as train/loss or val/top1, found none")
    return curves


def confusion_matrix(counts: Shaped[ndarray, "k k"], classes: Sequence[str]) -> Picture:
    """Draw a confusion matrix, coloured by each row's shares.

    Up to 20 classes the counts are written in, up to 40 the classes named.

    Args:
        counts: [i, j]: images of class i predicted as j.
        classes: Their names.

    Returns:
        The picture, uint8 (h w 3).

    Raises:
        ValueError: The counts are not square, a row for each class.

    Examples:
        >>> import numpy as np
        >>> from vision_attn import render
        >>> picture = render.confusion_matrix(np.array([[9, 1], [2, 8]]), ["cat", "dog"])
        >>> picture.ndim, picture.dtype
        (3, dtype('uint8'))
    """
    k = len(classes)
    if counts.shape != (k, k):
        raise ValueError(f"expected {k} x {k} counts for {k} classes, got {counts.shape}")
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    correct = np.trace(counts) / max(counts.sum(), 1)
    side = min(max(4.5, 0.5 * k + 2), 12.0)
    with _look():
        figure = _figure(side, 0.94 * side)
        axes = figure.add_subplot()
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(f"{correct:.1%} of {int(counts.sum())} correct")
        axes.set(xlabel="predicted", ylabel="true")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        if k <= 40:
            names = [printable(name, 24) for name in classes]
            axes.set_xticks(range(k), names, rotation=45, ha="right", rotation_mode="anchor")
            axes.set_yticks(range(k), names)
        if k <= 20:
            for i, j in zip(*np.nonzero(counts), strict=True):
                ink = "white" if shares[i, j] > 0.55 else INK
                axes.text(j, i, f"{int(counts[i, j])}", ha="center", va="center", size=8, color=ink)
        return _drawn(figure)


def channel_gates(gates: Mapping[str, Float[ndarray, " _"]], title: str = "") -> Picture:
    """Draw how far each channel's gate is open, 0 to 1: a row of bars a layer, and their mean.

    Args:
        gates: By the layer's name its gates.
        title: Above the picture.

    Returns:
        The picture, uint8 (h w 3).

    Raises:
        ValueError: There is no layer.

    Examples:
        >>> import numpy as np
        >>> from vision_attn import render
        >>> picture = render.channel_gates({"layer1": np.linspace(0, 1, 8)})
        >>> picture.ndim, picture.dtype
        (3, dtype('uint8'))
    """
    if not gates:
        raise ValueError("expected the gates of at least one layer, got none")
    with _look():
        figure = _figure(9.0, 0.6 * len(gates) + 1.1)
        figure.suptitle(printable(title), x=0.01, ha="left", size=13)
        for place, (layer, values) in enumerate(gates.items(), start=1):
            axes = figure.add_subplot(len(gates), 1, place)
            c, mean = len(values), values.mean()
            axes.vlines(np.arange(c) + 0.5, 0, values, color=BLUE, linewidth=0.7 * 470 / c)
            axes.axhline(mean, color=RED, linewidth=1)
            axes.set(ylim=(0, 1), xlim=(0, c), yticks=(0, 1), xticks=())
            label = f"{printable(layer, 28)}\n{c} channels, mean {mean:.2f}"
            axes.set_ylabel(label, rotation=0, ha="right", va="center", size=9)
            axes.yaxis.set_ticks_position("right")
            axes.spines["left"].set_visible(False)
        return _drawn(figure)


def _figure(width: float, height: float) -> "Figure":
    """Make an empty figure of that many inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def _drawn(figure: "Figure") -> Picture:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _look() -> AbstractContextManager[None]:
    """Set matplotlib's defaults while a figure is drawn; the caller's own come back after."""
    return matplotlib.rc_context(
        {
            "font.family": families(),
            "text.parse_math": False,
            "text.color": INK,
            "axes.edgecolor": RULE,
            "axes.labelcolor": QUIET,
            "axes.titlesize": 12,
            "axes.titlelocation": "left",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "axes.grid.axis": "y",
            "grid.color": RULE,
            "xtick.color": RULE,
            "ytick.color": RULE,
            "xtick.labelcolor": QUIET,
            "ytick.labelcolor": QUIET,
            "xtick.labelsize": 9,
            "ytick.labelsize": 9,
            "legend.frameon": False,
            "figure.facecolor": "white",
            "lines.linewidth": 2,
        }
    )


def show(picture: Picture, dpi: float = 100.0) -> "Figure":
    """Show a picture as a matplotlib figure: in a window where the backend has windows.

    Args:
        picture: Uint8 (h w 3).
        dpi: Pixels an inch.

    Returns:
        The figure, which a notebook shows as the last line of a cell and `savefig` writes.

    Examples:
        >>> import numpy as np
        >>> from vision_attn import render
        >>> render.show(np.zeros((30, 50, 3), np.uint8)).get_size_inches().round(6)
        array([0.5, 0.3])
    """
    from matplotlib import pyplot

    height, width = picture.shape[:2]
    above = 1e-6  # of a pixel: matplotlib 3.9 cuts what the division rounds down
    figure = pyplot.figure(figsize=((width + above) / dpi, (height + above) / dpi), dpi=dpi)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(picture)
    axes.set_axis_off()
    if figure.canvas.required_interactive_framework:
        pyplot.show()
    else:
        pyplot.close(figure)  # a notebook would show it twice
    return figure
