"""Random numbers that depend only on what they are for.

A generator hands out numbers in the order of asking, so batch size, process count or a restart
would change what a sample gets. Here number j of item i is a hash of (key, i, j): the same in any
batch, on any number of processes, before and after a restart.

Axes: n items, j numbers an item.
"""

import numpy as np
import torch
from jaxtyping import Float, Integer, UInt64
from torch import Tensor

__all__ = ["Draws", "bits", "permutation", "uniforms"]

Items = Integer[np.ndarray, " n"]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Draws:
    """The random numbers of one batch: functions of (seed, epoch, item, number of the call).

    Every call gives fresh numbers, on `device`.

    Args:
        seed: Of the run.
        epoch: The epoch's number.
        items: Which image each sample is.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.data.draws import Draws
        >>> items = np.array([3, 5])
        >>> first = Draws(seed=0, epoch=0, items=items).uniform(2)
        >>> again = Draws(seed=0, epoch=0, items=items[1:]).uniform(2)
        >>> first.shape, (first[1:] == again).all().item()  # whatever else the batch holds
        (torch.Size([2, 2]), True)
    """

    def __init__(self, seed: int, epoch: int, items: Items) -> None:
        self.seed = seed
        self.epoch = epoch
        self.items = items
        self.device = torch.device("cpu")
        self._calls = 0

    def uniform(self, count: int) -> Float[Tensor, "n j"]:
        """Draw numbers in [0, 1).

        Args:
            count: How many for each sample.
        """
        self._calls += 1
        key = (self.seed, self.epoch, self._calls)
        return uniforms(key, self.items, count).to(self.device)

    def coins(self) -> Float[Tensor, " n"]:
        """0 or 1 for each sample, the same in every epoch."""
        return (uniforms((self.seed,), self.items, 1)[:, 0] < 0.5).float().to(self.device)

    def to(self, device: torch.device | str) -> "Draws":
        """Give the numbers on this device from now on; return the draws themselves."""
        self.device = torch.device(device)
        return self


Drawn = tuple[Integer[np.ndarray, " _"], Draws]  # a batch of any size, and what is random about it


def uniforms(key: tuple[int, ...], items: Items, count: int) -> Float[Tensor, "n j"]:
    """`count` float32 numbers in [0, 1) for each item, multiples of 2^-24."""
    words = bits(key, items, count) >> np.uint64(40)
    return torch.from_numpy(words.astype(np.float32) * np.float32(2**-24))


def permutation(key: tuple[int, ...], length: int) -> Integer[np.ndarray, " n"]:
    """0..length-1 in an order that the key decides."""
    return np.argsort(bits(key, np.arange(length), 1)[:, 0], kind="stable")


def bits(key: tuple[int, ...], items: Items, count: int) -> UInt64[np.ndarray, "n j"]:
    """`count` random 64-bit words for each item; the counter hash of SplitMix64 (Steele 2014)."""
    state = np.zeros(1, np.uint64)
    for part in key:
        state = _mix(state + np.uint64(part % 2**64) + _GOLDEN)
    rows = _mix(state + items.astype(np.uint64) * _GOLDEN)
    return _mix(rows[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)


def _mix(words: UInt64[np.ndarray, "..."]) -> UInt64[np.ndarray, "..."]:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
