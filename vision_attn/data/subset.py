"""Less of any data set: a number or a share of each class's training images.

Axes: n images, m of them, b batch, h height, w width.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Integer, UInt8
from torch import Tensor

from vision_attn.data.draws import Drawn, Draws, permutation
from vision_attn.data.sources import Source, Splits
from vision_attn.data.tensors import Fetched, ImageSet, Items

__all__ = ["ChosenSet", "Subset", "few_of_each"]


def few_of_each(
    labels: Integer[np.ndarray, " n"], seed: int, fraction: float = 1.0, most: int | None = None
) -> Integer[np.ndarray, " m"]:
    """Choose a share of each class, one at least and `most` at most; the places are in order.

    A larger share has all of a smaller one with the same seed.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.data.subset import few_of_each
        >>> len(few_of_each(np.array([0, 0, 0, 0, 1, 1]), seed=0, fraction=0.5))
        3
    """
    few = []
    for label in np.unique(labels):
        indices = np.flatnonzero(labels == label)
        count = max(1, round(len(indices) * fraction))
        count = count if most is None else min(count, most)
        order = permutation((seed, int(label)), len(indices))
        few.append(indices[np.sort(order[:count])])
    return np.sort(np.concatenate(few))


class ChosenSet(ImageSet):
    """Some images of another set, in an order of their own.

    Examples:
        >>> import numpy as np
        >>> import torch
        >>> from vision_attn.data import TensorSet
        >>> from vision_attn.data.subset import ChosenSet
        >>> images = TensorSet(torch.zeros(5, 3, 8, 8, dtype=torch.uint8), torch.arange(5))
        >>> ChosenSet(images, np.array([4, 2])).labels
        tensor([4, 2])
    """

    def __init__(self, images: ImageSet, items: Integer[np.ndarray, " m"]) -> None:
        self.images, self.items = images, items
        self.labels = images.labels[torch.from_numpy(items)]
        self.size, self.ahead = images.size, images.ahead
        self.blocks = images.blocks.chosen(items) if images.blocks else None

    def fetch(self, items: Items, draws: Draws) -> UInt8[Tensor, "b 3 h w"]:
        return self.images.fetch(self.items[items], draws)

    def fetch_all(self, wanted: Iterable[Drawn]) -> Iterator[Fetched]:
        waiting: deque[Items] = deque()

        def there() -> Iterator[Drawn]:
            for items, draws in wanted:
                waiting.append(items)
                yield self.items[items], draws

        for _, draws, images in self.images.fetch_all(there()):
            yield waiting.popleft(), draws, images


class Subset(Source):
    """A source with fewer training images; its validation and test images stay as they are.

    Photos from folders, tables and shards have these options themselves, and decode no more than
    they take.

    Args:
        source: Where the images come from.
        fraction: This share of each class.
        per_class: At most so many of each class.

    Raises:
        ValueError: `fraction` is not above 0 and at most 1, or `per_class` is below 1.

    Examples:
        >>> from pathlib import Path
        >>> from vision_attn.data import Planted, Subset
        >>> source = Subset(Planted(size=16, train=40, val=5, test=5), fraction=0.5)
        >>> len(source.load(Path(), val_fraction=0.1, seed=0).train)
        20
    """

    def __init__(self, source: Source, fraction: float = 1.0, per_class: int | None = None) -> None:
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction must be above 0 and at most 1, got {fraction}")
        if per_class is not None and per_class < 1:
            raise ValueError(f"per_class must be at least 1, got {per_class}")
        self.source, self.fraction, self.per_class = source, fraction, per_class

    def prepare(self, root: Path) -> None:
        self.source.prepare(root)

    def load(self, root: Path, val_fraction: float, seed: int) -> Splits:
        splits = self.source.load(root, val_fraction, seed)
        labels = splits.train.labels.numpy()
        groups = labels if labels.ndim == 1 else np.zeros(len(labels), int)
        items = few_of_each(groups, seed, self.fraction, self.per_class)
        return replace(splits, train=ChosenSet(splits.train, items))
