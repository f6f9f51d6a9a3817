"""Photos decoded as they are needed, in processes of their own: no cache, and no memory for them.

torch's DataLoader has the processes; what they decode, and in which order, is a function of the
seed, the epoch and the photo, so that it is the same with any number of them.

Axes: n photos, b batch, h height, w width, H, W those of a photo.
"""

import logging
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cv2
import numpy as np
import torch
from jaxtyping import Float, Integer, UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from vision_attn.cores import usable_cores
from vision_attn.data.draws import Draws
from vision_attn.data.images import ImageError
from vision_attn.data.photos import Photos
from vision_attn.data.sources import DataError
from vision_attn.data.tensors import Fetched, ImageSet, Items

__all__ = ["Crop", "StreamedSet", "stretch"]

log = logging.getLogger(__name__)

MOST_WORKERS = 8
AHEAD = 2  # batches that each process decodes before they are asked for

# From the sides (height, width) of images, what is shown: left, top, right, bottom, in pixels.
Crop = Callable[[Integer[np.ndarray, "b 2"], Draws], Float[np.ndarray, "b 4"]]
Pixels = UInt8[np.ndarray, "h w 3"]
Wanted = tuple[Items, Draws]
Problems = dict[int, str]


def stretch(
    image: UInt8[np.ndarray, "H W 3"], box: list[int], out: UInt8[np.ndarray, "3 h w"]
) -> None:
    """Fill `out` with the box of an image, of one pixel at least.

    Linear interpolation leaves no pixel out down to a half, and is five times as fast as areas.
    """
    left, top, right, bottom = box
    left, top = min(left, image.shape[1] - 1), min(top, image.shape[0] - 1)
    seen = image[top : max(bottom, top + 1), left : max(right, left + 1)]
    height, width = out.shape[1:]
    shrinks = seen.shape[0] > 2 * height or seen.shape[1] > 2 * width
    method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    cv2.split(cv2.resize(seen, (width, height), interpolation=method), list(out))


class StreamedSet(ImageSet):
    """Photos that are decoded when a batch needs them; JPEGs at a half, quarter or eighth if large.

    What they show is what `CachedSet` shows, to the bit. workers: processes that decode; None: one
    a CPU core up to eight; 0: threads of this process. max_corrupt: how many unreadable photos are
    passed over, each named in a warning, another one of the same labels in its place; one more
    stops with a DataError.

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

    def fetch(self, items: Items, draws: Draws) -> UInt8[Tensor, "b 3 h w"]:
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            images, problems = self.decoded(items, draws, threads.map)
        self._pass_over(problems)
        return images

    def fetch_all(self, wanted: Iterable[Wanted]) -> Iterator[Fetched]:
        if not self.workers:
            yield from super().fetch_all(wanted)
            return
        loader: Iterable[Any] = DataLoader(
            _Decoding(self),
            batch_size=None,
            sampler=_Asked(wanted),
            num_workers=self.workers,
            prefetch_factor=AHEAD,
            collate_fn=_as_it_is,
            worker_init_fn=_quiet,
            pin_memory=torch.cuda.is_available(),
        )
        try:
            for items, draws, images, problems in loader:
                self._pass_over(problems)
                yield items, draws, images
        except RuntimeError as error:
            text = " ".join(str(error).split())
            if "DataLoader worker" not in text or "Caught " in text:
                raise
            raise DataError(
                f"a process that decodes photos was ended from outside, perhaps for lack of memory "
                f"({text.partition('.')[0]}): continue from last.ckpt, with fewer `workers` of "
                "this source or a smaller batch"
            ) from error

    def decoded(
        self, items: Items, draws: Draws, over: Callable[..., Iterable[Any]] = map
    ) -> tuple[UInt8[Tensor, "b 3 h w"], Problems]:
        """Decode a batch, and say by number which photos could not be read.

        over: what maps a function over the photos: threads, or one after the other.
        """
        problems: Problems = {}
        read = list(over(lambda item: self._read(int(item), problems), items))
        sides = np.array([image.shape[:2] for image in read])
        boxes = self.crop(sides, draws).round().astype(int).tolist()
        out = np.empty((len(items), 3, *self.size), np.uint8)
        list(over(lambda one: stretch(*one), zip(read, boxes, out, strict=True)))
        return torch.from_numpy(out), problems

    def _read(self, item: int, problems: Problems) -> Pixels:
        """Decode a photo, or the next of the same labels that can be read."""
        try:
            return self.photos.pixels(item, self.shorter_side)
        except ImageError as error:
            problems[item] = str(error)
        alike = (self.labels == self.labels[item]).reshape(len(self.labels), -1).all(1)
        places = alike.nonzero()[:, 0].numpy()
        after = np.roll(places, -1 - int(np.searchsorted(places, item)))
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
                    log.warning("%s. Another photo of its class stands in for it.", text)
        if len(self.corrupt) > self.max_corrupt:
            some = "; ".join(list(self.corrupt.values())[:10])
            raise DataError(
                f"{len(self.corrupt)} photos cannot be read, {self.max_corrupt} are allowed "
                f"(`max_corrupt` of this source): {some}"
            )


class _Decoding(Dataset[Any]):
    """What the processes do: a batch for what is asked."""

    def __init__(self, images: StreamedSet) -> None:
        self.images = images

    def __getitem__(self, wanted: Wanted) -> tuple[Items, Draws, Tensor, Problems]:
        items, draws = wanted
        return items, draws, *self.images.decoded(items, draws)


class _Asked(Sampler[Any]):
    """The batches that are asked for, in their order."""

    def __init__(self, wanted: Iterable[Wanted]) -> None:
        self.wanted = wanted

    def __iter__(self) -> Iterator[Wanted]:
        return iter(self.wanted)


def _as_it_is(batch: Any) -> Any:
    return batch


def _quiet(worker: int) -> None:
    """Leave Ctrl-C to the first process, and the cores to the other processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cv2.setNumThreads(0)
