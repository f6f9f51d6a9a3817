"""Photos decoded as they are needed, in processes of their own: no cache, and no memory for them.

torch's DataLoader has the processes; what they decode, and in which order, is a function of the
seed, the epoch and the photo, so that it is the same with any number of them.

Axes: n photos, b batch, h height, w width, H, W those of a photo.
"""

import logging
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Integer, UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from vision_attn.compat.native_stderr import drop_native_stderr, native_stderr_dropped
from vision_attn.cores import usable_cores
from vision_attn.data.block_photos import BlockPhotos, read_ahead
from vision_attn.data.draws import Drawn, Draws
from vision_attn.data.images import ImageError
from vision_attn.data.photos import Photos
from vision_attn.data.sources import DataError
from vision_attn.data.tensors import Fetched, ImageSet, Items, ahead_of

__all__ = ["Crop", "StreamedSet", "stretch"]

log = logging.getLogger(__name__)

MOST_WORKERS = 8
AHEAD = 2  # batches that each process decodes before they are asked for

# From the sides (height, width) of images, what is shown: left, top, right, bottom, in pixels.
Crop = Callable[[Integer[np.ndarray, "b 2"], Draws], Float[np.ndarray, "b 4"]]
Pixels = UInt8[np.ndarray, "h w 3"]
Wanted = tuple[Items, Draws, Photos]  # photos: those that have the items
Problems = dict[int, str]


def stretch(
    image: UInt8[np.ndarray, "H W 3"], box: list[int], out: UInt8[np.ndarray, "3 h w"]
) -> None:
    """Fill `out` with the box of an image, of one pixel at least.

    Linear interpolation leaves no pixel out down to a half, and is five times as fast as areas.
    """
    import cv2

    left, top, right, bottom = box
    left, top = min(left, image.shape[1] - 1), min(top, image.shape[0] - 1)
    seen = image[top : max(bottom, top + 1), left : max(right, left + 1)]
    height, width = out.shape[1:]
    shrinks = seen.shape[0] > 2 * height or seen.shape[1] > 2 * width
    method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    cv2.split(cv2.resize(seen, (width, height), interpolation=method), list(out))


class StreamedSet(ImageSet):
    """Photos that are decoded when a batch needs them; JPEGs at a half, quarter or eighth if large.

    What they show is what `CachedSet` shows, to the bit. One photo more than `max_corrupt` that
    cannot be read stops with a DataError.

    Args:
        photos: The encoded photos.
        labels: (n), or (n k) of 0 and 1.
        size: (h, w) of every image in pixels.
        crop: Which box of each photo is shown, by the photos' sides and the random numbers.
        shorter_side: What the shorter side of a photo is reduced to.
        workers: Processes that decode; None: one a CPU core up to eight; 0: threads of this
            process.
        max_corrupt: How many unreadable photos are passed over, each named in a warning, another
            one of the same labels in its place.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from PIL import Image
        >>> from vision_attn.data.draws import Draws
        >>> from vision_attn.data.folders import CenterCrop
        >>> from vision_attn.data.photos import FilePhotos
        >>> from vision_attn.data.streaming import StreamedSet
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("RGB", (40, 30)).save(f"{folder}/a.png")
        ...     photos = FilePhotos(Path(folder), ["a.png"])
        ...     images = StreamedSet(photos, np.array([3]), (8, 8), CenterCrop((8, 8), 1.0), 10)
        ...     images.fetch(np.array([0]), Draws(0, 0, np.array([0]))).shape
        torch.Size([1, 3, 8, 8])
    """

    def __init__(
        self,
        photos: Photos,
        labels: np.ndarray,
        size: tuple[int, int],
        crop: Crop,
        shorter_side: int,
        workers: int | None = None,
        max_corrupt: int = 0,
    ) -> None:
        self.photos, self.labels = photos, torch.from_numpy(labels)
        self.size, self.crop, self.shorter_side = size, crop, shorter_side
        self.workers = min(usable_cores(), MOST_WORKERS) if workers is None else workers
        self.max_corrupt = max_corrupt
        self.corrupt: Problems = {}
        self.ahead = 0 if self.workers else torch.get_num_threads() + 1
        self.blocks = photos.blocks if isinstance(photos, BlockPhotos) else None

    def fetch(self, items: Items, draws: Draws) -> UInt8[Tensor, "b 3 h w"]:
        return self._fetch((items, draws, self.photos))

    def fetch_all(self, wanted: Iterable[Drawn]) -> Iterator[Fetched]:
        if isinstance(self.photos, BlockPhotos):
            every = read_ahead(self.photos, wanted)
        else:
            every = ((items, draws, self.photos) for items, draws in wanted)
        if self.workers:
            yield from self._from_processes(every)
            return
        for (items, draws, _), images in ahead_of(self._fetch, every, self.ahead):
            yield items, draws, images

    def _fetch(self, wanted: Wanted) -> UInt8[Tensor, "b 3 h w"]:
        with native_stderr_dropped(), ThreadPoolExecutor(torch.get_num_threads()) as threads:
            images = self.empty(len(wanted[0]))
            problems = self.decoded(wanted, images, threads.map)
        self._pass_over(problems)
        return images

    def _from_processes(self, every: Iterator[Wanted]) -> Iterator[Fetched]:
        first = list(islice(every, 1))
        if not first:
            return
        ring = SharedRing(self.workers * AHEAD + 1, len(first[0][0]), self.size)
        loader: Iterable[Any] = DataLoader(
            _Decoding(self, ring),
            batch_size=None,
            sampler=_Numbered(chain(first, every)),
            num_workers=self.workers,
            prefetch_factor=AHEAD,
            collate_fn=_as_it_is,
            worker_init_fn=_quiet,
        )
        try:
            for number, (items, draws, images, problems) in enumerate(loader):
                self._pass_over(problems)
                yield items, draws, ring.copied(number, len(items)) if images is None else images
        except RuntimeError as error:
            text = " ".join(str(error).split())
            if "DataLoader worker" not in text or "Caught " in text:
                raise
            raise DataError(
                f"a process that decodes photos was killed, perhaps for lack of memory "
                f"({text.partition('.')[0]}): continue from last.ckpt, with fewer `workers` of "
                "this source or a smaller batch"
            ) from error

    def decoded(
        self,
        wanted: Wanted,
        out: UInt8[Tensor, "b 3 h w"],
        over: Callable[..., Iterable[Any]] = map,
    ) -> Problems:
        """Decode a batch.

        Args:
            wanted: The items, their random numbers, and the photos that have them.
            out: What is filled, bytes (b 3 h w).
            over: What maps a function over the photos: threads, or one after the other.

        Returns:
            What is wrong with the photos that could not be read, by number.
        """
        items, draws, photos = wanted
        problems: Problems = {}
        read = list(over(lambda item: self._read(int(item), photos, problems), items))
        sides = np.array([image.shape[:2] for image in read])
        boxes = self.crop(sides, draws).round().astype(int).tolist()
        list(over(lambda item: stretch(*item), zip(read, boxes, out.numpy(), strict=True)))
        return problems

    def empty(self, count: int) -> UInt8[Tensor, "count 3 h w"]:
        """Make room for so many images."""
        return torch.empty(count, 3, *self.size, dtype=torch.uint8, device="cpu")

    def _read(self, item: int, photos: Photos, problems: Problems) -> Pixels:
        """Decode a photo, or the next of the same labels that can be read."""
        try:
            return photos.pixels(item, self.shorter_side)
        except ImageError as error:
            problems[item] = str(error)
        alike = (self.labels == self.labels[item]).reshape(len(self.labels), -1).all(1)
        positions = alike.nonzero()[:, 0].numpy()
        after = np.roll(positions, -1 - int(np.searchsorted(positions, item)))
        for other in after[:-1]:
            try:
                return self.photos.pixels(int(other), self.shorter_side)
            except ImageError as error:
                problems[int(other)] = str(error)
        raise DataError(f"{problems[item]}; no other photo of its class can be read")

    def _pass_over(self, problems: Problems) -> None:
        for item, text in problems.items():
            if item not in self.corrupt:
                self.corrupt[item] = text
                if len(self.corrupt) <= self.max_corrupt:
                    log.warning("%s. Another photo of its class takes its place.", text)
        if len(self.corrupt) > self.max_corrupt:
            some = "; ".join(list(self.corrupt.values())[:10])
            raise DataError(
                f"{len(self.corrupt)} photos cannot be read, {self.max_corrupt} are allowed "
                f"(`max_corrupt` of this source): {some}"
            )


class SharedRing:
    """Places in shared memory, one after the other in a ring, for batches that are handed over.

    The pages of new shared memory cost more than the pixels that are written to them, so the same
    ones are used again. A batch's place is free when the next batch has been handed over.
    """

    def __init__(self, count: int, most: int, size: tuple[int, int]) -> None:
        try:
            self.images = torch.empty(
                count, most, 3, *size, dtype=torch.uint8, device="cpu"
            ).share_memory_()
        except RuntimeError as error:
            needed = count * most * 3 * size[0] * size[1] / 2**20
            raise DataError(
                f"{needed:.0f} MB of shared memory cannot be had ({str(error).splitlines()[0]}): "
                "expected room for two batches a process; make /dev/shm larger, or use fewer "
                "`workers` of this source or a smaller batch"
            ) from error

    def place(self, number: int, count: int) -> UInt8[Tensor, "count 3 h w"] | None:
        """Find the place of batch `number`, of `count` images; None where it is too large."""
        slot = self.images[number % len(self.images)]
        return slot[:count] if count <= len(slot) else None

    def copied(self, number: int, count: int) -> UInt8[Tensor, "count 3 h w"]:
        """Copy batch `number` from its place, for a GPU into pinned memory."""
        slot = self.images[number % len(self.images), :count]
        if torch.cuda.is_available():
            return torch.empty_like(slot, pin_memory=True).copy_(slot)
        return torch.from_numpy(slot.numpy().copy())  # NumPy's large pages


class _Decoding(Dataset[Any]):
    """What the processes do: a batch for what is asked, into its place."""

    def __init__(self, images: StreamedSet, ring: SharedRing) -> None:
        self.images, self.ring = images, ring

    def __getitem__(
        self, numbered: tuple[int, Wanted]
    ) -> tuple[Items, Draws, UInt8[Tensor, "b 3 h w"] | None, Problems]:
        number, wanted = numbered
        items, draws, _ = wanted
        slot = self.ring.place(number, len(items))
        images = self.images.empty(len(items)) if slot is None else slot
        problems = self.images.decoded(wanted, images)
        return items, draws, images if slot is None else None, problems


class _Numbered(Sampler[Any]):
    """The batches that are asked for, in their order, with their numbers."""

    def __init__(self, wanted: Iterable[Wanted]) -> None:
        self.wanted = wanted

    def __iter__(self) -> Iterator[tuple[int, Wanted]]:
        return enumerate(self.wanted)


def _as_it_is(batch: Any) -> Any:
    return batch


def _quiet(worker: int) -> None:
    """Leave Ctrl-C to the first process, the cores to the others, and stderr to Python."""
    import cv2

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cv2.setNumThreads(0)
    drop_native_stderr()
