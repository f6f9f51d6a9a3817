"""An order for images that are read together, as the photos of a row group of Parquet are.

To read one of a block is to read the block. So an epoch goes from block to block, in a new order
each time, and mixes the images of those that follow one another.

Axes: n images, m of them.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Integer

from vision_attn.data.draws import permutation, uniforms

__all__ = ["Blocks"]


@dataclass(frozen=True, eq=False)
class Blocks:
    """Which images are read together, and how far an epoch may carry them from one another.

    Attributes:
        numbers: The block of each image.
        window: How many images are mixed, beyond those of a block.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.data.blocks import Blocks
        >>> blocks = Blocks(np.array([0, 0, 0, 1, 1, 1]), window=0)
        >>> blocks.numbers[blocks.permutation((0, 2))]  # block after block
        array([1, 1, 1, 0, 0, 0])
    """

    numbers: Integer[np.ndarray, " n"]
    window: int

    def chosen(self, items: Integer[np.ndarray, " m"]) -> "Blocks":
        """The blocks of some of the images, in this order."""
        return Blocks(self.numbers[items], self.window)

    def permutation(self, key: tuple[int, ...]) -> Integer[np.ndarray, " n"]:
        """0..n-1 in an order that the key decides: the blocks shuffled, their images mixed.

        An image comes at most `window` and its block's own length after its block's first place, so
        about window / length + 1 blocks are open at any time.
        """
        _, blocks, lengths = np.unique(self.numbers, return_inverse=True, return_counts=True)
        order = permutation((*key, 0), len(lengths))
        first = np.empty(len(lengths), np.int64)
        first[order] = np.cumsum(lengths[order]) - lengths[order]
        moved = uniforms((*key, 1), np.arange(len(blocks)), 1)[:, 0].numpy().astype(float)
        return np.argsort(first[blocks] + moved * (self.window + lengths[blocks]), kind="stable")

    def spread(self, count: int) -> Integer[np.ndarray, " m"]:
        """About so many images, of whole blocks that lie evenly over the set, in order."""
        present = np.unique(self.numbers)
        some = min(len(present), -(-count * len(present) // len(self.numbers)))
        taken = present[np.linspace(0, len(present) - 1, some).round().astype(int)]
        return np.flatnonzero(np.isin(self.numbers, taken))
