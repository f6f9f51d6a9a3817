"""What of the image a value is of, where a network crops its maps on the way.

A crop is followed as a share of the map that it is taken of, which lies over all that the map is
of: maps behind many convolutions are made of the whole image, and do not tell.

Axes: b batch, c channels, h height, w width.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from vision_attn.compat.torch_private import uncompiled
from vision_attn.inference import asked_once
from vision_attn.tokens.gradients.mode import tensors_in
from vision_attn.tokens.gradients.rules import flows, functions
from vision_attn.tokens.path.cells import KeptCells
from vision_attn.types import Images

__all__ = ["ImageWindow", "ImageWindows", "feature_axes", "parts_noted", "takes_parts"]

CROPS = functions("getitem narrow index_select")
PADS = functions("pad constant_pad_nd")
ALIKE, UNLIKE = 1.25, 1.5  # times the image's proportions: a map of it, and none


class ImageWindow(NamedTuple):
    """A part of the image in shares of its height and width.

    Attributes:
        crops: Whether something was left out on the way; paddings alone make a window, too.

    Examples:
        >>> from vision_attn.tokens.gradients.windows import ImageWindow
        >>> window = ImageWindow((0.25, 0.0), (0.75, 1.0))
        >>> window.pixels((32, 48)), window.cells((2, 6))
        ((16.0, 48.0), KeptCells(grid=(4, 6), rows=(1, 2), columns=(0, 1, 2, 3, 4, 5)))
    """

    start: tuple[float, float] = (0.0, 0.0)
    end: tuple[float, float] = (1.0, 1.0)
    crops: bool = False

    def pixels(self, size: tuple[int, int]) -> tuple[float, float]:
        """Compute height and width of its part of an image of this (height, width)."""
        height, width = (
            (end - start) * side
            for start, end, side in zip(self.start, self.end, size, strict=True)
        )
        return height, width

    def cells(self, grid: tuple[int, int]) -> KeptCells | None:
        """Find which cells of the image a grid (h, w) over the window is; None: all of them."""
        lines = []
        for start, end, count in zip(self.start, self.end, grid, strict=True):
            whole = round(count / (end - start))
            first = max(0, round(start * whole))
            if whole - count == 1 and abs(start * whole - first) > 0.25:
                whole, first = count, 0  # half a cell on either side
            lines.append((max(whole, first + count), tuple(range(first, first + count))))
        (h, rows), (w, columns) = lines
        return None if (h, w) == grid else KeptCells((h, w), rows, columns)

    def of(self, axis: int, first: float, last: float, crops: bool = True) -> "ImageWindow":
        """Return the part from one share of an axis, 0 or 1, to another."""
        start, end = [*self.start], [*self.end]
        extent = end[axis] - start[axis]
        start[axis], end[axis] = start[axis] + first * extent, start[axis] + last * extent
        return ImageWindow((start[0], start[1]), (end[0], end[1]), self.crops or crops)


class ImageWindows:
    """The windows of the values of a run; what has none is of the whole image.

    What is left of tokens, or of every second row, has the window of what it was taken of.

    Args:
        size: (height, width) of the image in pixels.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.gradients.windows import ImageWindows
        >>> windows, x = ImageWindows((4, 6)), torch.rand(1, 3, 4, 6, requires_grad=True)
        >>> top = x.narrow(2, 0, 2)
        >>> windows.follow(torch.Tensor.narrow, (x, 2, 0, 2), {}, [top])
        >>> windows.of(top)
        ImageWindow(start=(0.0, 0.0), end=(0.5, 1.0), crops=True)
    """

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size
        self._windows: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def of(self, x: Tensor) -> ImageWindow | None:
        """Return what a value is of; None: the whole image, as far as is known."""
        window: ImageWindow | None = self._windows.get(x)
        return window

    def follow(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        outs: Sequence[Tensor],
    ) -> None:
        """Remember what a function's results are of: as its largest value, less what it crops."""
        moves = func in CROPS or func in PADS
        if not (moves or self._windows.data):
            return
        values = [x for x in [*tensors_in(args), *tensors_in(kwargs)] if flows(x)]
        largest = max(values, key=Tensor.numel)
        window = self.of(largest)
        if moves and largest is args[0] and len(largest) == 1:  # one image, in no windows or heads
            if largest.ndim == 4:
                window = self._moved(func, args, kwargs, window)
            elif outs[0].ndim == largest.ndim == 3 and outs[0].shape[1] < largest.shape[1]:
                window = (window or ImageWindow())._replace(crops=True)
        if window is not None:
            for x in outs:
                self._windows[x] = window

    def _moved(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        window: ImageWindow | None,
    ) -> ImageWindow | None:
        """Find what is left of a map, which is of this window; None: all of the image."""
        shape, moved = args[0].shape, window or ImageWindow()
        channels = feature_axes(shape, moved.pixels(self.size))
        axes = [axis for axis in (1, 2, 3) if axis != channels] if channels is not None else []
        for line, axis in enumerate(axes):
            side = shape[axis]
            if func in PADS:
                pads = kwargs.get("pad", args[1] if len(args) > 1 else ())
                before, after = [*pads, *[0] * 8][2 * (3 - axis) : 2 * (3 - axis) + 2]
                if before or after:
                    crops = min(before, after) < 0
                    moved = moved.of(line, -before / side, 1 + after / side, crops)
                continue
            indices = torch.arange(side, dtype=torch.long, device=args[0].device)
            around = [side if each == axis else 1 for each in range(4)]
            picked = func(indices.view(around).expand(shape), *args[1:], **kwargs)
            picks = picked.unique().tolist()
            if picked.ndim == 4 and 0 < len(picks) < side:
                step = min(b - a for a, b in itertools.pairwise(picks)) if picks[1:] else 1
                moved = moved.of(line, picks[0] / side, min(picks[-1] + step, side) / side)
        return None if moved == ImageWindow() else moved


def feature_axes(shape: Sequence[int], size: tuple[int, int] | tuple[float, float]) -> int | None:
    """Find the axis of channels, 1 or 3, of features whose other axes have the image's proportions.

    None where neither is, or both may be.
    """
    if len(shape) != 4:
        return None

    def skew(height: int, width: int) -> float:
        ratio = height * size[1] / (width * size[0])
        return max(ratio, 1 / ratio)

    skews = {1: skew(*shape[2:4]), 3: skew(*shape[1:3])}
    best = min(skews, key=lambda axis: skews[axis])
    other = skews[4 - best]
    return best if skews[best] < ALIKE and (other > UNLIKE or best == 1) else None


class PartsSeen(TorchFunctionMode):
    """Whether a run takes a part of a value: a slice, chosen rows, a padding below 0."""

    def __init__(self) -> None:
        super().__init__()
        self.any = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if (func in CROPS or func in PADS) and isinstance(out, Tensor) and not self.any:
            whole, *_ = [*tensors_in(args), *tensors_in(kwargs or {})]
            self.any = out.ndim != whole.ndim or any(
                part < side for part, side in zip(out.shape, whole.shape, strict=True)
            )
        return out


@contextmanager
def parts_noted(network: nn.Module, images: Images) -> Iterator[None]:
    """Note in the first run on images of a size whether the network takes parts of its values."""
    noted, size = asked_once(network, _parts), tuple(images.shape[1:])
    if size in noted:
        yield
        return
    with uncompiled(), PartsSeen() as seen:
        yield
    noted[size] = seen.any


def takes_parts(network: nn.Module, images: Images) -> bool:
    """Whether a network takes a part of a value, which may be a crop, as far as is noted."""
    return asked_once(network, _parts).get(tuple(images.shape[1:]), True)


def _parts(_network: nn.Module) -> dict[Any, bool]:
    return {}
