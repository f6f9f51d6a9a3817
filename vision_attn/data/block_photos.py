"""Photos that are read in blocks, such as the row groups of Parquet, and a reader that goes ahead.

Axes: n photos, m of them, b batch.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from jaxtyping import Integer

from vision_attn.data.blocks import Blocks
from vision_attn.data.draws import Drawn, Draws
from vision_attn.data.photos import Photos

__all__ = ["BlockPhotos", "read_ahead"]

READERS = 2  # threads
AHEAD = 4  # batches whose blocks are read before they are needed

Items = Integer[np.ndarray, " b"]


class BlockPhotos(Photos):
    """Photos that are read block by block.

    Examples:
        >>> from vision_attn.data.block_photos import BlockPhotos
        >>> sorted(BlockPhotos.__abstractmethods__)  # what a subclass has to say
        ['chosen', 'held', 'read', 'read_block', 'side', 'stamp']
    """

    blocks: Blocks

    @abstractmethod
    def read_block(self, block: int) -> Any:
        """Read a block, and keep the photos that belong to this set and nothing else of it.

        Several threads may do so at once.

        Raises:
            DataError: The block cannot be read.
        """

    @abstractmethod
    def held(self, items: Items, blocks: Mapping[int, Any]) -> Photos:
        """The photos `items`, under the same numbers, out of the blocks that were read."""

    @abstractmethod
    def chosen(self, items: Integer[np.ndarray, " m"]) -> "BlockPhotos":
        """Choose some of the photos, in this order; nothing is read."""


def read_ahead(
    photos: BlockPhotos, wanted: Iterable[Drawn]
) -> Iterator[tuple[Items, Draws, Photos]]:
    """Yield batch after batch with the photos that it needs, their blocks read meanwhile.

    A block is read once, and let go after the last batch that needs it.
    """
    every = list(wanted)
    needed = [np.unique(photos.blocks.numbers[items]).tolist() for items, _ in every]
    last = {block: number for number, blocks in enumerate(needed) for block in blocks}
    reading: dict[int, Future[Any]] = {}
    started = 0
    threads = ThreadPoolExecutor(READERS)
    try:
        for number, (items, draws) in enumerate(every):
            while started < min(number + 1 + AHEAD, len(every)):
                for block in needed[started]:
                    if block not in reading:
                        reading[block] = threads.submit(photos.read_block, block)
                started += 1
            decoded = {block: reading[block].result() for block in needed[number]}
            yield items, draws, photos.held(items, decoded)
            for block in needed[number]:
                if last[block] == number:
                    del reading[block]
    finally:
        threads.shutdown(cancel_futures=True)
