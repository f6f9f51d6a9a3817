"""Photos without labels, for prediction.

Axes: b batch, h height, w width.
"""

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.data.faults import ImageError, sample_errors
from vision_attn.data.preprocess import Preprocess
from vision_attn.data.tensors import InOrder

__all__ = ["ImageFiles"]

log = logging.getLogger(__name__)


class ImageFiles:
    """Batches of (images, paths) from files, each one preprocessed.

    A file that cannot be read is left out of its batch: an error line is logged for it, and
    `failed` keeps its message.

    Args:
        paths: The files.
        preprocess: What makes a file the network's input.
        order: Cuts the files into batches and processes.

    Examples:
        >>> from pathlib import Path
        >>> from vision_attn.data import InOrder, Preprocess
        >>> from vision_attn.data.files import ImageFiles
        >>> preprocess = Preprocess((16, 16), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
        >>> batches = ImageFiles([Path("a.png")], preprocess, InOrder(1, batch_size=1))
        >>> len(batches)
        1
    """

    def __init__(self, paths: Sequence[Path], preprocess: Preprocess, order: InOrder) -> None:
        self.paths = paths
        self.preprocess = preprocess
        self.order = order
        self.failed: list[str] = []

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[tuple[Float[Tensor, "b 3 h w"], list[str]]]:
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            for items in self.order.batches():
                paths = [self.paths[i] for i in items]
                read = list(zip(pool.map(self._read, paths), paths, strict=True))
                images = [image for image, _ in read if image is not None]
                if images:
                    yield (
                        torch.stack(images),
                        [str(path) for image, path in read if image is not None],
                    )

    def _read(self, path: Path) -> Tensor | None:
        try:
            with sample_errors(path):
                return self.preprocess(path)
        except ImageError as error:
            log.error("%s", error)
            self.failed.append(str(error))
            return None
