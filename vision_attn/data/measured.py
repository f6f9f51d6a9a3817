"""A transform of one's own, whose geometry is measured: where each pixel of its output comes from.

The transform is run on images whose pixels are their own coordinates, in 256 shades with an ordered
dither, so that means of many pixels are exact to a fraction of one. What comes out is fitted by a
plane for each coordinate (crops, stretches, pads, flips, turns), or by a projection.

Axes: c channels, h, w the network's input, u, v places on it in pixels (right and down), H, W the
photo, x, y places on that.
"""

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from numpy import ndarray
from PIL import Image
from torch import Tensor

from vision_attn.data.channels import channels_of, image_of_channels
from vision_attn.data.faults import reason
from vision_attn.data.images import read_image
from vision_attn.data.preprocess import (
    Box,
    bilinear,
    check_photo,
    checked_boxes,
    checked_mask,
    seen_boxes,
)

__all__ = ["Geometry", "MeasuredTransform"]

Kind = Literal["an image", "a tensor of uint8", "a tensor of floats"]
KINDS: tuple[Kind, ...] = ("an image", "a tensor of uint8", "a tensor of floats")
SIZES = (331, 253), (250, 341)  # of the photos on which a transform is tried: W, H
LEVELS = np.linspace(0, 255, 18).round().astype(np.uint8)  # whose outputs are known exactly
DARKEST, STEEP, FLAT = 16.0, 196.9, 23.7  # shades of the coordinates' images
BORDER = 2  # pixels of the output beside which a resize is not sure
NEAR = 0.75  # pixels of the photo, or of the output if these are larger: a place that is right
INSIDE = 0.9  # of a pixel's brightness: it is of the photo, and not of a pad
BLOCKS = 900  # about so many means of pixels are fitted
FEWEST = 12  # of these
PROPOSALS = 200
CAME = 0.3  # share of the places that lie on a plane, where the others are of a mirrored border
ALL = 0.98  # share of the places that a projection has to explain
MOST_KEPT = 256  # sizes of photos whose geometry is remembered


@dataclass(frozen=True, eq=False)
class Geometry:
    """Where the places of a network's input lie on a photo: (x, y, 1) ~ matrix (u, v, 1).

    Examples:
        >>> import numpy as np
        >>> from vision_attn.data.measured import Geometry
        >>> crop = Geometry(np.array([[2.0, 0, 10], [0, 2, 20], [0, 0, 1]]))
        >>> crop.box((8, 4))  # an input of 8 rows and 4 columns
        (10.0, 20.0, 18.0, 36.0)
    """

    matrix: Float[ndarray, "3 3"]

    def on_photo(self, u: ndarray, v: ndarray) -> tuple[ndarray, ndarray]:
        """Return x and y of places of the input."""
        return through(self.matrix, u, v)

    def on_input(self, x: ndarray, y: ndarray) -> tuple[ndarray, ndarray]:
        """Return u and v of places of the photo."""
        return through(np.linalg.inv(self.matrix), x, y)

    @property
    def upright(self) -> bool:
        """Whether the photo is only moved and stretched: not turned, mirrored or tilted."""
        (a, b, _), (c, d, _), (e, f, _) = self.matrix
        return bool(b == c == e == f == 0 and a > 0 and d > 0)

    def box(self, input_size: tuple[int, int]) -> Box:
        """Left, top, right and bottom of what the input shows, of an upright geometry."""
        height, width = input_size
        (left, right), (top, bottom) = self.on_photo(
            np.array([0.0, width]), np.array([0.0, height])
        )
        return float(left), float(top), float(right), float(bottom)


class MeasuredTransform:
    """A transform from a photo to a network's input, and the way back, found by running it.

    Args:
        transform: From a PIL image, or from a tensor (c, H, W) of uint8 or of floats from 0 to 1,
            to a tensor (c, h, w), the same for the same photo and of one size for all.
        channels: How many channels a tensor has, if it takes tensors.

    Raises:
        ValueError: It takes no photo, gives another thing than one image of one size, draws random
            numbers, or is no change of places and of each pixel by itself.

    Examples:
        >>> from PIL import Image
        >>> from torchvision.transforms import CenterCrop, Compose, ToTensor
        >>> from vision_attn.data.measured import MeasuredTransform
        >>> preprocess = MeasuredTransform(Compose([CenterCrop(100), ToTensor()]))
        >>> preprocess(Image.new("RGB", (300, 200))).shape
        torch.Size([3, 100, 100])
        >>> [round(side) for side in preprocess.box((300, 200))]
        [100, 50, 200, 150]
    """

    def __init__(self, transform: Callable[[Any], Any], channels: int = 3):
        self.transform = transform
        self._geometries: dict[tuple[int, int], Geometry] = {}
        self.kind, self.channels = self._kind(channels)
        shades = [self._run(np.full((64, 64), level, np.uint8)) for level in LEVELS]
        middle = [
            each[:, each.shape[1] // 2, each.shape[2] // 2].double().numpy() for each in shades
        ]
        self._shades: Float[ndarray, "n c"] = np.stack(middle)
        first = self._try(SIZES[0])
        self.input_size = (first.shape[1], first.shape[2])
        other = self._try(SIZES[1])
        if other.shape != first.shape:
            raise ValueError(
                f"the transform gives {shape(first)} of a photo of {sides(SIZES[0])} and "
                f"{shape(other)} of one of {sides(SIZES[1])}: add a crop or a size, so that photos "
                "of any size become inputs of one"
            )
        low, high = self._shades[0], self._shades[-1]
        self.std = tuple(float(value) for value in 1 / np.where(high == low, 1, high - low))
        self.mean = tuple(float(-value * std) for value, std in zip(low, self.std, strict=True))
        self.geometry(SIZES[0])

    def __call__(self, image: Image.Image | str | PathLike[str]) -> Float[Tensor, "c h w"]:
        """Make the network's input of a photo or an image file."""
        check_photo(image)
        photo = image if isinstance(image, Image.Image) else self.read(image)
        return self._apply(photo)

    @staticmethod
    def read(path: str | PathLike[str]) -> Image.Image:
        """Read a file as an upright RGB image."""
        return read_image(path)

    def box(self, size: tuple[int, int]) -> Box:
        """Left, top, right and bottom of what the network sees of a photo of `size` (W, H).

        Beyond the photo where the transform pads.

        Raises:
            ValueError: It turns or mirrors it.
        """
        geometry = self.geometry(size)
        if not geometry.upright:
            raise ValueError(
                "the transform turns, mirrors or tilts photos, so that what the network sees of "
                "one is no box on it: only maps on the photo itself can be shown"
            )
        return geometry.box(self.input_size)

    def mask(
        self, mask: Bool[ndarray, "H W"] | Image.Image, size: tuple[int, int] | None = None
    ) -> Bool[Tensor, "h w"]:
        """Lay a photo's mask over the network's input; nearest pixels, none beside the photo."""
        whole = checked_mask(mask, size)
        height, width = self.input_size
        v, u = np.mgrid[0:height, 0:width] + 0.5
        x, y = self.geometry((whole.shape[1], whole.shape[0])).on_photo(u, v)
        column, row = np.floor(x).astype(int), np.floor(y).astype(int)
        inside = (column >= 0) & (column < whole.shape[1]) & (row >= 0) & (row < whole.shape[0])
        seen = whole[row.clip(0, whole.shape[0] - 1), column.clip(0, whole.shape[1] - 1)]
        return torch.from_numpy((seen != 0) & inside)

    def boxes(self, boxes: Any, size: tuple[int, int]) -> Float[Tensor, "k 4"]:
        """Lay boxes of a photo of `size` (W, H) over the network's input; see `Preprocess`."""
        left, top, right, bottom = checked_boxes(boxes, size).double().numpy().T
        geometry = self.geometry(size)
        corners = [geometry.on_input(x, y) for x in (left, right) for y in (top, bottom)]
        u, v = (np.stack(each) for each in zip(*corners, strict=True))
        moved = torch.from_numpy(np.stack([u.min(0), v.min(0), u.max(0), v.max(0)], axis=1))
        return seen_boxes(moved.float(), self.input_size)

    def to_original(
        self, heatmap: Float[ndarray, "h w"], size: tuple[int, int]
    ) -> Float[ndarray, "H W"]:
        """Lay a map over the network's input on the photo of `size` (W, H); NaN beside it."""
        geometry, (W, H) = self.geometry(size), size
        rows, columns = heatmap.shape
        if geometry.upright:
            left, top, right, bottom = geometry.box(self.input_size)
            down, seen_rows = bilinear(rows, H, top, bottom)
            across, seen_columns = bilinear(columns, W, left, right)
            laid = down @ heatmap.astype(np.float32) @ across.T
            laid[~(seen_rows[:, None] & seen_columns)] = np.nan
            return laid
        y, x = np.mgrid[0:H, 0:W] + 0.5
        u, v = geometry.on_input(x, y)
        height, width = self.input_size
        seen = (u >= 0) & (u <= width) & (v >= 0) & (v <= height)
        row = (v / height * rows - 0.5).clip(0, rows - 1)
        column = (u / width * columns - 0.5).clip(0, columns - 1)
        top, left = np.floor(row).astype(int), np.floor(column).astype(int)
        bottom, right = (top + 1).clip(max=rows - 1), (left + 1).clip(max=columns - 1)
        down, across = row - top, column - left
        upper = heatmap[top, left] * (1 - across) + heatmap[top, right] * across
        lower = heatmap[bottom, left] * (1 - across) + heatmap[bottom, right] * across
        laid = (upper * (1 - down) + lower * down).astype(np.float32)
        laid[~seen] = np.nan
        return laid

    def geometry(self, size: tuple[int, int]) -> Geometry:
        """Measure where the input's places lie on a photo of `size` (W, H).

        Raises:
            ValueError: That is no plane and no projection.
        """
        if size not in self._geometries:
            if len(self._geometries) == MOST_KEPT:
                self._geometries.pop(next(iter(self._geometries)))
            self._geometries[size] = self._measure(size)
        return self._geometries[size]

    def _measure(self, size: tuple[int, int]) -> Geometry:
        W, H = size
        y, x = np.mgrid[0:H, 0:W]
        dither = (0.7548776662 * x + 0.5698402910 * y) % 1
        across, down = (x + 0.5) / W, (y + 0.5) / H
        # Each image runs along both axes, so that no row of an output is rounded as the next one.
        ramps = [
            DARKEST + STEEP * along + FLAT * other
            for along, other in ((across, down), (down, across))
        ]
        first, second = (
            self._levels(self._run(np.floor(ramp + dither).astype(np.uint8))) - DARKEST
            for ramp in ramps
        )
        scale = STEEP**2 - FLAT**2
        coordinates = (
            (STEEP * first - FLAT * second) * (W / scale),
            (STEEP * second - FLAT * first) * (H / scale),
        )
        low, high = (self._run(np.full((H, W), level, np.uint8)) for level in (64, 192))
        inside = (self._levels(high) - self._levels(low)) / 128 > INSIDE
        for _ in range(BORDER):
            inside = eroded(inside)
        matrix = fitted(*coordinates, inside, max(W, H) / STEEP)
        if matrix is None:
            raise ValueError(
                "the transform does more than move, stretch, turn, tilt or pad a photo, and change "
                "the colour of each pixel: where a map lies on the photo cannot be told; give a "
                "Preprocess, or a transform without it"
            )
        return Geometry(matrix)

    def _levels(self, output: Float[Tensor, "c h w"]) -> Float[ndarray, "h w"]:
        """Which shade of 0 to 255 each pixel was, by what shades become; the mean of channels."""
        values = output.double().numpy()
        curves = []
        for channel, shades in zip(values, self._shades.T, strict=True):
            steps = np.diff(shades)
            if shades[0] != shades[-1] and ((steps >= 0).all() or (steps <= 0).all()):
                order = np.argsort(shades, kind="stable")
                curves.append(np.interp(channel, shades[order], LEVELS[order].astype(float)))
        if not curves:
            raise ValueError("the transform does not tell light from dark photos in any channel")
        return np.mean(curves, axis=0)

    def _run(self, grey: UInt8[ndarray, "H W"]) -> Float[Tensor, "c h w"]:
        """Run the transform on a photo that is the same in each channel."""
        return self._apply(image_of_channels(np.repeat(grey[None], self.channels, axis=0)))

    def _try(self, size: tuple[int, int]) -> Float[Tensor, "c h w"]:
        """Run it twice on noise; ValueError where these differ."""
        noise = np.random.default_rng(0).integers(0, 256, (self.channels, *size[::-1]), np.uint8)
        first, second = (self._apply(image_of_channels(noise)) for _ in range(2))
        if first.shape != second.shape or not torch.equal(first, second):
            raise ValueError(
                "the transform draws random numbers, and gives another image each time: give the "
                "one for evaluation"
            )
        return first

    def _kind(self, channels: int) -> tuple[Kind, int]:
        """Find what the transform takes; ValueError, with its own words, where that is no photo."""
        failures, refused = [], []
        for kind in KINDS:
            for count in dict.fromkeys([3, channels] if kind == "an image" else [channels, 3]):
                self.kind = kind
                blank = np.zeros((count, *SIZES[0][::-1]), np.uint8)
                try:
                    output = self.transform(self._input(image_of_channels(blank)))
                except Exception as error:  # somebody else's code
                    failures.append(f"{kind}: {reason(error)}")
                    continue
                try:
                    checked_output(output)
                except ValueError as error:
                    refused.append(str(error))
                    continue
                return kind, count
        takes_none = f"the transform takes no photo: {'; '.join(dict.fromkeys(failures))}"
        raise ValueError(refused[0] if refused else takes_none)

    def _input(self, photo: Image.Image) -> Any:
        """Make what the transform takes of a photo."""
        if self.kind == "an image":
            return photo
        pixels = torch.from_numpy(channels_of(photo, getattr(self, "channels", None)).copy())
        return pixels if self.kind == "a tensor of uint8" else pixels.float() / 255

    def _apply(self, photo: Image.Image) -> Float[Tensor, "c h w"]:
        return checked_output(self.transform(self._input(photo))).detach()


def checked_output(output: Any) -> Float[Tensor, "c h w"]:
    """Return what a transform gives; ValueError where that is not one image."""
    if isinstance(output, tuple | list) or (isinstance(output, Tensor) and output.ndim == 4):
        raise ValueError(
            f"the transform gives {len(output)} images of a photo: expected one, (c, h, w)"
        )
    if not isinstance(output, Tensor):
        raise ValueError(
            f"the transform gives a value of type {type(output).__name__}: expected a tensor "
            "(c, h, w); end it with ToTensor"
        )
    if output.ndim != 3 or 0 in output.shape:
        raise ValueError(f"the transform gives {shape(output)}: expected a tensor (c, h, w)")
    if not output.is_floating_point():
        raise ValueError(f"the transform gives {output.dtype}: expected floats; scale it to 0 to 1")
    return output.as_subclass(Tensor)


def fitted(
    x: Float[ndarray, "h w"],
    y: Float[ndarray, "h w"],
    inside: Bool[ndarray, "h w"],
    step: float,
) -> Float[ndarray, "3 3"] | None:
    """Fit a plane to each coordinate, or a projection to both; None where neither is right.

    inside: what counts. step: how far one shade is, in pixels of the photo.
    """
    side = max(1, int((inside.sum() / BLOCKS) ** 0.5))
    u, v, x, y = blocks(x, y, inside, side)
    if len(u) < FEWEST:
        return None
    noise = step / side
    matrix, near = agreed_plane(u, v, x, y, noise)
    if near.mean() >= CAME:
        return upright(matrix, u[near], v[near], x[near], y[near])
    matrix = projection(u, v, x, y)
    right = away(matrix, u, v, x, y) < tolerance(matrix, noise)
    return matrix if right.mean() >= ALL else None


def agreed_plane(
    u: ndarray, v: ndarray, x: ndarray, y: ndarray, noise: float
) -> tuple[Float[ndarray, "3 3"], Bool[ndarray, " n"]]:
    """Find the plane that most places lie on (RANSAC, Fischler and Bolles 1981), and which do."""
    random = np.random.default_rng(0)
    best = np.zeros(len(u), bool)
    for _ in range(PROPOSALS):
        three = random.choice(len(u), 3, replace=False)
        if abs(np.linalg.det(np.stack([u[three], v[three], np.ones(3)]))) < 1:
            continue  # they lie on a line
        matrix = plane(u[three], v[three], x[three], y[three])
        near = away(matrix, u, v, x, y) < 4 * tolerance(matrix, noise)
        best = near if near.sum() > best.sum() else best
    matrix = np.eye(3)
    for _ in range(3):
        if best.sum() < FEWEST:
            break
        matrix = plane(u[best], v[best], x[best], y[best])
        best = away(matrix, u, v, x, y) < tolerance(matrix, noise)
    return matrix, best


def blocks(
    x: Float[ndarray, "h w"], y: Float[ndarray, "h w"], inside: Bool[ndarray, "h w"], side: int
) -> tuple[ndarray, ndarray, ndarray, ndarray]:
    """Take the means of whole blocks inside: the centres u and v, and x and y there."""
    h, w = (length // side * side for length in x.shape)

    def mean(values: ndarray) -> ndarray:
        return values[:h, :w].reshape(h // side, side, w // side, side).mean((1, 3))

    v, u = np.mgrid[0 : x.shape[0], 0 : x.shape[1]] + 0.5
    whole = mean(inside.astype(float)) == 1
    return mean(u)[whole], mean(v)[whole], mean(x)[whole], mean(y)[whole]


def plane(u: ndarray, v: ndarray, x: ndarray, y: ndarray) -> Float[ndarray, "3 3"]:
    """Fit x and y by planes over (u, v), with the least squares."""
    points = np.stack([u, v, np.ones(len(u))], axis=1)
    both = np.linalg.lstsq(points, np.stack([x, y], axis=1), rcond=None)[0]
    return np.concatenate([both.T, [[0.0, 0.0, 1.0]]])


def upright(
    matrix: Float[ndarray, "3 3"], u: ndarray, v: ndarray, x: ndarray, y: ndarray
) -> Float[ndarray, "3 3"]:
    """Fit x by u alone and y by v alone, where that is as good."""
    slant = max(abs(matrix[0, 1]) * np.ptp(v), abs(matrix[1, 0]) * np.ptp(u))
    if slant > NEAR * max(np.abs(matrix[:2, :2]).sum(axis=1).max(), 1.0):
        return matrix
    (a, left), (d, top) = np.polyfit(u, x, 1), np.polyfit(v, y, 1)
    return np.array([[a, 0, left], [0, d, top], [0, 0, 1.0]])


def projection(u: ndarray, v: ndarray, x: ndarray, y: ndarray) -> Float[ndarray, "3 3"]:
    """Fit a projection by the direct linear transform, of places from -1 to 1."""
    (source, from_source), (target, from_target) = (scaled(u, v), scaled(x, y))
    (u, v), (x, y) = source, target
    ones, zero = np.ones(len(u)), np.zeros(len(u))
    rows = [
        np.stack([u, v, ones, zero, zero, zero, -x * u, -x * v, -x], axis=1),
        np.stack([zero, zero, zero, u, v, ones, -y * u, -y * v, -y], axis=1),
    ]
    normalised = np.linalg.svd(np.concatenate(rows))[2][-1].reshape(3, 3)
    matrix = np.linalg.inv(from_target) @ normalised @ from_source
    return matrix / matrix[2, 2]


def scaled(x: ndarray, y: ndarray) -> tuple[tuple[ndarray, ndarray], Float[ndarray, "3 3"]]:
    """Bring places to -1 to 1; return them and the matrix that does it."""
    (left, top), (width, height) = (x.min(), y.min()), (np.ptp(x) or 1.0, np.ptp(y) or 1.0)
    matrix = np.array([[2 / width, 0, -2 * left / width - 1],
                       [0, 2 / height, -2 * top / height - 1], [0, 0, 1.0]])  # fmt: skip
    return through(matrix, x, y), matrix


def through(matrix: Float[ndarray, "3 3"], u: ndarray, v: ndarray) -> tuple[ndarray, ndarray]:
    """Return (x, y) of places (u, v)."""
    x, y, w = (row[0] * u + row[1] * v + row[2] for row in matrix)
    return x / w, y / w


def away(
    matrix: Float[ndarray, "3 3"], u: ndarray, v: ndarray, x: ndarray, y: ndarray
) -> Float[ndarray, " n"]:
    """Measure how far each place is from where the matrix has it, in pixels of the photo."""
    return np.hypot(*(a - b for a, b in zip(through(matrix, u, v), (x, y), strict=True)))


def tolerance(matrix: Float[ndarray, "3 3"], noise: float) -> float:
    """How far a place may be off: a part of a pixel of the photo, or of the input's if larger."""
    return NEAR * max(1.0, float(np.abs(matrix[:2, :2]).sum(axis=1).max())) + noise


def eroded(inside: Bool[ndarray, "h w"]) -> Bool[ndarray, "h w"]:
    """Take one pixel away all around."""
    wide = np.pad(inside, 1)
    return inside & wide[2:, 1:-1] & wide[:-2, 1:-1] & wide[1:-1, 2:] & wide[1:-1, :-2]


def shape(output: Tensor) -> str:
    """Put the shape of a tensor in words."""
    return " x ".join(map(str, output.shape))


def sides(size: tuple[int, int]) -> str:
    """Put the width and height of a photo in words."""
    return f"{size[0]} x {size[1]} pixels"
