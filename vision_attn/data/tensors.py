"""Sets of images in memory, and the batches of an epoch.

Axes: n images of a set, b batch, h height, w width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int, Integer, UInt8
from torch import Tensor

from vision_attn.data.blocks import Blocks
from vision_attn.data.draws import Drawn, Draws, permutation

__all__ = ["Batch", "Batches", "ImageSet", "InOrder", "Shuffled", "TensorSet"]

Wanted = TypeVar("Wanted")
Found = TypeVar("Found")
Items = Integer[np.ndarray, " b"]
Labels = Int[Tensor, " n"] | Float[Tensor, "n k"]
Fetched = tuple[Items, Draws, UInt8[Tensor, "b 3 h w"]]


class ImageSet(ABC):
    """Labelled images that come in batches of one size.

    Attributes:
        labels: (n), or (n k) where an image has any number of k classes.
        size: (h, w) of every batch.
        ahead: How many batches are fetched in threads while the network computes; 0 where fetching
            costs nothing.
        blocks: Which images are read together, for the order of an epoch; None where each is read
            alone.

    Examples:
        >>> from vision_attn.data import ImageSet
        >>> sorted(ImageSet.__abstractmethods__)  # what a subclass has to say
        ['fetch']
    """

    labels: Labels
    size: tuple[int, int]
    ahead: int = 0
    blocks: Blocks | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def fetch(self, items: Items, draws: Draws) -> UInt8[Tensor, "b 3 h w"]:
        """Fetch a batch.

        Args:
            items: The images' places in the set, (b).
            draws: Decides what is random about them.

        Returns:
            Bytes, (b 3 h w).
        """

    def fetch_all(self, wanted: Iterable[Drawn]) -> Iterator[Fetched]:
        """Yield batch after batch as `fetch` gives them, `ahead` of them fetched meanwhile.

        Args:
            wanted: The items and the random numbers of each batch.
        """
        for (items, draws), images in ahead_of(
            lambda request: self.fetch(*request), wanted, self.ahead
        ):
            yield items, draws, images


def ahead_of(
    fetch: Callable[[Wanted], Found], wanted: Iterable[Wanted], ahead: int
) -> Iterator[tuple[Wanted, Found]]:
    """Yield all that is wanted with what is found for it; so many are fetched ahead in threads.

    Examples:
        >>> from vision_attn.data.tensors import ahead_of
        >>> list(ahead_of(str, [3, 1], ahead=2))
        [(3, '3'), (1, '1')]
    """
    if not ahead:
        for request in wanted:
            yield request, fetch(request)
        return
    waiting: list[tuple[Wanted, Future[Found]]] = []
    with ThreadPoolExecutor(ahead) as threads:
        for request in wanted:
            waiting.append((request, threads.submit(fetch, request)))
            if len(waiting) > ahead:
                first, images = waiting.pop(0)
                yield first, images.result()
        for first, images in waiting:
            yield first, images.result()


class TensorSet(ImageSet):
    """Images that all lie in one uint8 tensor, on any device.

    Args:
        images: Bytes, (n 3 h w).
        labels: (n), or (n k) where an image has any number of k classes.

    Examples:
        >>> import numpy as np
        >>> import torch
        >>> from vision_attn.data import TensorSet
        >>> from vision_attn.data.draws import Draws
        >>> images = TensorSet(torch.zeros(5, 3, 8, 8, dtype=torch.uint8), torch.arange(5))
        >>> images.fetch(np.array([4, 0]), Draws(0, 0, np.array([4, 0]))).shape
        torch.Size([2, 3, 8, 8])
    """

    def __init__(self, images: UInt8[Tensor, "n 3 h w"], labels: Labels) -> None:
        self.images = images
        self.labels = labels
        self.size = (images.shape[2], images.shape[3])

    def fetch(self, items: Items, draws: Draws) -> UInt8[Tensor, "b 3 h w"]:
        return self.images.index_select(0, torch.from_numpy(items).to(self.images.device))

    def to(self, device: torch.device) -> "TensorSet":
        return TensorSet(self.images.to(device), self.labels)


class Batch:
    """Images as they are stored, their labels, and the random numbers to change them.

    No dataclass: Lightning's precisions would take that apart and turn labels into their numbers.

    Args:
        images: Bytes, (b 3 h w).
        labels: Class indices (b), or shares (b k).
        draws: The random numbers.

    Examples:
        >>> import torch
        >>> from vision_attn.data import Batches, InOrder, TensorSet
        >>> images = TensorSet(torch.zeros(5, 3, 8, 8, dtype=torch.uint8), torch.arange(5))
        >>> batch = next(iter(Batches(images, InOrder(5, batch_size=5))))
        >>> len(batch), batch.labels
        (5, tensor([0, 1, 2, 3, 4]))
    """

    def __init__(
        self,
        images: UInt8[Tensor, "b 3 h w"],
        labels: Int[Tensor, " b"] | Float[Tensor, "b k"],
        draws: Draws,
    ) -> None:
        self.images = images
        self.labels = labels
        self.draws = draws

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        """Copy the batch to a device, where its draws give their numbers too."""
        images = self.images.to(device, non_blocking=non_blocking)
        labels = self.labels.to(device, non_blocking=non_blocking)
        return Batch(images, labels, self.draws.to(device))


class InOrder:
    """Batches of nearly equal size of 0..length-1 in order, and a process's share of each.

    No item is left out and none comes twice: an epoch has as few batches as `batch_size` allows,
    their sizes differ by at most one. Over `world` processes, one batch is world * batch_size items
    and each process gets a slice of it, so N processes see together what one process sees at N
    times the batch size.

    Args:
        length: How many items there are.
        batch_size: Items a process, at most.
        rank: The number of this process.
        world: How many processes there are.

    Raises:
        ValueError: `batch_size` is below 1, or there are fewer items than processes.

    Examples:
        >>> from vision_attn.data import InOrder
        >>> [items.tolist() for items in InOrder(7, batch_size=3).batches()]
        [[0, 1, 2], [3, 4], [5, 6]]
        >>> [items.tolist() for items in InOrder(7, batch_size=2, rank=1, world=2).batches()]
        [[2, 3], [6]]
    """

    def __init__(self, length: int, batch_size: int, rank: int = 0, world: int = 1) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if length < world:
            raise ValueError(f"{length} images cannot be divided among {world} processes")
        self.length = length
        self.batch_size = batch_size
        self.rank = rank
        self.world = world
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch whose order comes next."""
        self.epoch = epoch

    def __len__(self) -> int:
        fewest = -(-self.length // (self.batch_size * self.world))
        return min(fewest, self.length // self.world)  # every process needs an item in every batch

    def items(self) -> Integer[np.ndarray, " n"]:
        """All items in the order of this epoch."""
        return np.arange(self.length)

    def batches(self, first: int = 0) -> Iterator[Items]:
        """This process's share of the batches of this epoch.

        Args:
            first: The number of the first batch, from 0.
        """
        for batch in np.array_split(self.items(), len(self))[first:]:
            yield np.array_split(batch, self.world)[self.rank]


class Shuffled(InOrder):
    """`InOrder` in a new order every epoch, a function of (seed, epoch).

    Args:
        length: How many items there are.
        batch_size: Items a process, at most.
        rank: The number of this process.
        world: How many processes there are.
        seed: Another seed, other orders.
        blocks: Of images that are read together, which then stay near one another.

    Raises:
        ValueError: `batch_size` is below 1, or there are fewer items than processes.

    Examples:
        >>> from vision_attn.data import Shuffled
        >>> order = Shuffled(7, batch_size=7, seed=0)
        >>> order.set_epoch(1)
        >>> sorted(order.items().tolist())
        [0, 1, 2, 3, 4, 5, 6]
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        rank: int = 0,
        world: int = 1,
        seed: int = 0,
        blocks: Blocks | None = None,
    ) -> None:
        super().__init__(length, batch_size, rank, world)
        self.seed, self.blocks = seed, blocks

    def items(self) -> Integer[np.ndarray, " n"]:
        key = self.seed, self.epoch
        return self.blocks.permutation(key) if self.blocks else permutation(key, self.length)


class Batches:
    """The batches of an epoch, for a Lightning trainer or a plain loop.

    Lightning numbers the epochs through `sampler`. `state_dict` says how far the epoch is: a loader
    that takes it over goes on with the next batch, and gives the batches that the first would have.

    Args:
        images: The set.
        order: Which images each batch has.
        seed: Of the random numbers that a batch brings along.

    Examples:
        >>> import torch
        >>> from vision_attn.data import Batches, Shuffled, TensorSet
        >>> images = TensorSet(torch.zeros(5, 3, 8, 8, dtype=torch.uint8), torch.arange(5))
        >>> sorted(len(batch) for batch in Batches(images, Shuffled(5, batch_size=2)))
        [1, 2, 2]
    """

    batch_sampler = None  # Lightning asks for it where there is a sampler

    def __init__(self, images: ImageSet, order: InOrder, seed: int = 0) -> None:
        self.images = images
        self.sampler = order
        self.seed = seed
        self._given = 0
        self._resume: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        epoch, first = self._resume or (0, 0)
        self._resume = None
        self._given = first if epoch == self.sampler.epoch else 0
        for batch in self._fetched(self._given):
            self._given += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """The place in the epoch, as plain values."""
        return {"epoch": self.sampler.epoch, "batches": self._given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from this place, a `state_dict`."""
        self._resume = state["epoch"], state["batches"]

    def _fetched(self, first: int) -> Iterator[Batch]:
        wanted = (
            (items, Draws(self.seed, self.sampler.epoch, items))
            for items in self.sampler.batches(first)
        )
        for items, draws, images in self.images.fetch_all(wanted):
            yield Batch(images, self.images.labels[torch.from_numpy(items)], draws)
