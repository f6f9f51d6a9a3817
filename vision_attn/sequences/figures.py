"""Figures of attention between two sequences, and over the words of one.

Axes: t written symbols, s symbols of the source, look: one of several sets of weights.
"""

from collections.abc import Sequence

from jaxtyping import Float
from numpy import ndarray

from vision_attn.render.figures import INK, _drawn, _figure, _look
from vision_attn.render.fonts import printable
from vision_attn.render.picture import Picture

__all__ = ["alignment", "word_weights"]


def alignment(
    weights: Float[ndarray, "t s"], written: Sequence[str], source: Sequence[str], title: str = ""
) -> Picture:
    """Draw how much each symbol of the source counted when each symbol was written.

    Args:
        weights: From 0, white, to 1, black; a row for each written symbol, a column for each of the
            source.
        written: Names of the rows.
        source: Names of the columns.
        title: Above the picture.

    Returns:
        The figure.

    Raises:
        ValueError: The names are not as many.

    Examples:
        >>> import numpy as np
        >>> from vision_attn import sequences
        >>> picture = sequences.alignment(np.eye(2, dtype=np.float32), ["a", "b"], ["x", "y"])
        >>> picture.ndim, picture.dtype
        (3, dtype('uint8'))
    """
    if weights.shape != (len(written), len(source)):
        raise ValueError(
            f"expected weights of shape ({len(written)}, {len(source)}), a row for each written "
            f"symbol and a column for each of the source, got {weights.shape}"
        )
    with _look():
        figure = _figure(0.2 * len(source) + 1.2, 0.2 * len(written) + 1.2)
        axes = figure.add_subplot()
        axes.imshow(weights, cmap="Greys", vmin=0, vmax=1, interpolation="nearest", aspect="equal")
        axes.set_title(printable(title))
        axes.set_xticks(range(len(source)), [_shown(name) for name in source])
        axes.set_yticks(range(len(written)), [_shown(name) for name in written])
        axes.xaxis.tick_top()
        axes.tick_params(length=0, labelcolor=INK)
        if max(map(len, source), default=0) > 1:
            axes.tick_params(axis="x", rotation=90)
        return _drawn(figure)


def word_weights(
    weights: Float[ndarray, "look i"], words: Sequence[str], names: Sequence[str]
) -> Picture:
    """Draw the words once for each set of weights, on a ground as dark as the weight is large.

    Args:
        weights: From 0 to 1, a row for each set, a column for each word.
        words: Names of the columns.
        names: Names of the rows.

    Returns:
        The figure.

    Raises:
        ValueError: `names` and `words` are not as many.

    Examples:
        >>> import numpy as np
        >>> from vision_attn import sequences
        >>> weights = np.array([[0.1, 0.9]], np.float32)
        >>> picture = sequences.word_weights(weights, ["the", "star"], ["hop 1"])
        >>> picture.ndim, picture.dtype
        (3, dtype('uint8'))
    """
    if weights.shape != (len(names), len(words)):
        raise ValueError(
            f"expected weights of shape ({len(names)}, {len(words)}), a row for each look and a "
            f"column for each word, got {weights.shape}"
        )
    with _look():
        figure = _figure(0.85 * len(words) + 1.6, 0.4 * len(names) + 0.3)
        axes = figure.add_subplot()
        axes.imshow(weights, cmap="Oranges", vmin=0, vmax=1, aspect="auto")
        axes.set_xticks(())
        axes.set_yticks(range(len(names)), [printable(name) for name in names])
        axes.tick_params(length=0, labelcolor=INK)
        axes.spines[:].set_visible(False)
        for row in range(len(names)):
            for column, word in enumerate(words):
                ink = "white" if weights[row, column] > 0.7 else INK
                text = printable(word)
                axes.text(column, row, text, ha="center", va="center", size=10, color=ink)
        return _drawn(figure)


def _shown(name: str) -> str:
    """Name a symbol so that a blank is seen."""
    return "\N{OPEN BOX}" if name == " " else printable(name)
