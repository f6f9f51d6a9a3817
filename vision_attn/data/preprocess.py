"""From a photo to a network's input, and from a map over that input back to the photo.

Axes: h, w the network's input; H, W the photo.
"""

from dataclasses import dataclass, replace
from math import floor, isfinite
from os import PathLike
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from PIL import Image
from torch import Tensor

from vision_attn.arguments import check_fields
from vision_attn.data.channels import channels_of
from vision_attn.data.faults import sample_errors
from vision_attn.data.images import ImageError, read_image, to_rgb
from vision_attn.data.ranges import ValueRange, checked_value_range
from vision_attn.errors import quoted

__all__ = ["ImageError", "Preprocess", "read_image"]

INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")
FITS = ("crop", "squash")
MOST_WHOLE = 2**24  # pixels of a photo that is resized before it is cut
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Preprocess:
    """Resize and crop an image to its input size, scale to 0..1, subtract mean, divide by std.

    This is timm's evaluation transform to the bit (of a photo that has more than 16 million pixels
    once its shorter side fits the input, to within a few grey levels).

    Args:
        input_size: (h, w) of the network's input in pixels.
        mean: Of each channel, in 0..1.
        std: Of each channel, in 0..1, above 0.
        crop_pct: The share of the window's height and width that is kept, above 0 and at most 1.
        interpolation: nearest, bilinear, bicubic or lanczos.
        fit: "crop": the input is the photo's largest centred window of the input's aspect ratio;
            "squash": all of it, stretched.
        value_range: The numbers that are black and white in the files, such as (0, 4095) for 12
            bits in a TIFF of 16; None: as `read_image` finds them, which asks where they are not
            certain.

    Raises:
        ValueError: A value is out of range, or there are not as many stds as means.

    Examples:
        >>> from PIL import Image
        >>> from vision_attn.data import Preprocess
        >>> preprocess = Preprocess((16, 16), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
        >>> preprocess(Image.new("RGB", (30, 20))).shape
        torch.Size([3, 16, 16])
        >>> preprocess.box((30, 20))  # left, top, right, bottom of what is seen
        (5.0, 0.0, 25.0, 20.0)
    """

    input_size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_pct: float = 1.0
    interpolation: str = "bilinear"
    fit: str = "crop"
    value_range: ValueRange | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "value_range", checked_value_range(self.value_range))
        check_fields(self)
        if len(self.input_size) != 2 or min(self.input_size) < 1:
            raise ValueError(f"input_size must be (height, width) >= 1, got {self.input_size}")
        numbers = [*self.mean, *self.std]
        if not all(map(isfinite, numbers)):
            raise ValueError(
                f"expected finite means and stds, got mean {quoted(self.mean)} and std "
                f"{quoted(self.std)}"
            )
        if not self.mean or len(self.mean) != len(self.std) or min(self.std) <= 0:
            raise ValueError(
                "expected a mean and a positive std for each channel, got mean "
                f"{quoted(self.mean)} and std {quoted(self.std)}"
            )
        if not 0 < self.crop_pct <= 1:
            raise ValueError(f"crop_pct must be in (0, 1], got {self.crop_pct}")
        for name, choices in (("interpolation", INTERPOLATIONS), ("fit", FITS)):
            if (choice := getattr(self, name)) not in choices:
                raise ValueError(
                    f"{name} must be one of {', '.join(choices)}, got {quoted(choice)}"
                )

    def whole(self) -> "Preprocess":
        """The same for the whole photo, squeezed into the input's shape, instead of its middle.

        Examples:
            >>> from vision_attn.data import Preprocess
            >>> middle = Preprocess((16, 16), (0.5,) * 3, (0.5,) * 3, crop_pct=0.875)
            >>> middle.whole().box((30, 20))
            (0.0, 0.0, 30.0, 20.0)
        """
        return replace(self, fit="squash", crop_pct=1.0)

    def read(self, path: str | PathLike[str]) -> Image.Image:
        """The file as an upright RGB image.

        Raises:
            ImageError: The file cannot be used; the message names it.
        """
        return read_image(path, value_range=self.value_range)

    def __call__(self, image: Image.Image | str | PathLike[str]) -> Float[Tensor, "c h w"]:
        """The network's input for an image.

        Args:
            image: An image, which is turned as its EXIF orientation says, or a file.

        Returns:
            Floats, (c h w).

        Raises:
            ImageError: Whatever is wrong with a file, in one line that names it.
        """
        check_photo(image)
        if len(self.mean) != 3:
            return self._of_channels(image)
        opened = isinstance(image, Image.Image)
        with sample_errors(getattr(image, "filename", "") or "image" if opened else image):
            if isinstance(image, Image.Image):
                rgb = to_rgb(image, self.value_range)
            else:
                rgb = self.read(image)
            pixels = torch.from_numpy(np.array(self._resized(rgb))).permute(2, 0, 1).float() / 255
            mean, std = floats(self.mean), floats(self.std)
            return (pixels - mean[:, None, None]) / std[:, None, None]

    def _resized(self, photo: Image.Image) -> Image.Image:
        """Resize a photo whole, then cut, as timm does; of a very long one only what is seen.

        Pillow's bytes of a part are not those of the whole: it rounds after the first of two
        passes, and goes by the sizes which that is.
        """
        height, width = self.input_size
        resample = Image.Resampling[self.interpolation.upper()]
        whole, (left, top) = _frame(photo.size, self.input_size, self.crop_pct, self.fit)
        if whole[0] * whole[1] > MOST_WHOLE:
            return photo.resize((width, height), resample, box=self.box(photo.size))
        resized = photo.resize(whole, resample)
        if whole == (width, height):
            return resized
        return resized.crop((left, top, left + width, top + height))

    def _of_channels(self, image: Image.Image | str | PathLike[str]) -> Float[Tensor, "c h w"]:
        """The input of a network of one channel, four or more; each is resized by itself."""
        opened = isinstance(image, Image.Image)
        with sample_errors(getattr(image, "filename", "") or "image" if opened else image):
            photo = image if isinstance(image, Image.Image) else self.read(image)
            channels = channels_of(photo, len(self.mean))
            each = [self._resized(Image.fromarray(channel)) for channel in channels]
            pixels = torch.from_numpy(np.stack([np.array(channel) for channel in each]))
            mean, std = floats(self.mean), floats(self.std)
            return (pixels.float() / 255 - mean[:, None, None]) / std[:, None, None]

    def box(self, size: tuple[int, int]) -> Box:
        """The part of a photo that the network sees.

        Args:
            size: (W, H) of the photo in pixels.

        Returns:
            Left, top, right and bottom in pixels of the photo, fractional.
        """
        return seen_box(size, self.input_size, self.crop_pct, self.fit)

    def mask(
        self, mask: Bool[np.ndarray, "H W"] | Image.Image, size: tuple[int, int] | None = None
    ) -> Bool[Tensor, "h w"]:
        """Map a photo's mask to the network's input; nearest pixels.

        Args:
            mask: A bool array (H, W), or an image whose pixels count where they are not 0.
            size: (W, H) of the photo, to check that the mask is as large; None does not check.

        Returns:
            Bool, (h w).

        Raises:
            ValueError: The mask is none, or not as large.

        Examples:
            >>> import numpy as np
            >>> from vision_attn.data import Preprocess
            >>> preprocess = Preprocess((2, 2), (0.5,) * 3, (0.5,) * 3)
            >>> preprocess.mask(np.array([[False, True, True, False]] * 2))
            tensor([[True, True],
                    [True, True]])
        """
        whole = checked_mask(mask, size)
        own = (whole.shape[1], whole.shape[0])
        marked = Image.fromarray((whole != 0).astype(np.uint8))
        seen = marked.resize(self.input_size[::-1], Image.Resampling.NEAREST, box=self.box(own))
        return torch.from_numpy(np.array(seen) > 0)

    def boxes(self, boxes: Any, size: tuple[int, int]) -> Float[Tensor, "k 4"]:
        """Map boxes of a photo to the network's input.

        Args:
            boxes: [left, top, right, bottom] each, in pixels of the photo.
            size: (W, H) of the photo.

        Returns:
            The boxes in pixels of the network's input, (k 4), cut at its sides; a box of which less
                than a pixel is seen is left out.

        Raises:
            ValueError: A box has no width or height, or lies beyond the photo.

        Examples:
            >>> from vision_attn.data import Preprocess
            >>> preprocess = Preprocess((2, 2), (0.5,) * 3, (0.5,) * 3)
            >>> preprocess.boxes([[0, 0, 2, 2], [0, 0, 1, 1]], size=(4, 2))
            tensor([[0., 0., 1., 2.]])
        """
        corners = checked_boxes(boxes, size)
        left, top, right, bottom = self.box(size)
        h, w = self.input_size
        corner = floats([left, top, left, top])
        scale = floats([w / (right - left), h / (bottom - top)] * 2)
        return seen_boxes((corners - corner) * scale, self.input_size)

    def to_original(
        self, heatmap: Float[np.ndarray, "h w"], size: tuple[int, int]
    ) -> Float[np.ndarray, "H W"]:
        """Lay a map over the network's input on the photo.

        Bilinear between the map's pixel centres, in the same units.

        Args:
            heatmap: The map, of any resolution.
            size: (W, H) of the photo in pixels.

        Returns:
            The map, (H W); pixels of the photo that the network did not see are NaN.
        """
        left, top, right, bottom = self.box(size)
        rows, seen_rows = bilinear(heatmap.shape[0], size[1], top, bottom)
        columns, seen_columns = bilinear(heatmap.shape[1], size[0], left, right)
        on_photo = rows @ heatmap.astype(np.float32) @ columns.T
        on_photo[~(seen_rows[:, None] & seen_columns)] = np.nan
        return on_photo


def check_photo(image: object) -> None:
    """Raise ImageError for what is no PIL image and no path, such as an array."""
    if not isinstance(image, Image.Image | str | PathLike):
        raise ImageError(
            f"expected a PIL image or a path, got a value of type {type(image).__name__}: "
            "PIL.Image.fromarray makes an image of an array, and explain takes arrays and tensors"
        )


def floats(numbers: Any) -> Tensor:
    """Numbers as a tensor in float32 on the CPU, whatever torch's defaults are."""
    return torch.as_tensor(numbers, dtype=torch.float32, device="cpu")


def seen_box(
    size: tuple[int, int], input_size: tuple[int, int], crop_pct: float = 1.0, fit: str = "crop"
) -> Box:
    """Left, top, right, bottom of what a Preprocess shows of a photo of `size` (W, H).

    In pixels of the photo, fractional: as if it had been resized whole and then cut.
    """
    W, H = size
    h, w = input_size
    (whole_w, whole_h), (left, top) = _frame(size, input_size, crop_pct, fit)
    per_w, per_h = W / whole_w, H / whole_h
    right, bottom = (left + w) * per_w, (top + h) * per_h
    return left * per_w, top * per_h, min(right, float(W)), min(bottom, float(H))


def _frame(
    size: tuple[int, int], input_size: tuple[int, int], crop_pct: float, fit: str
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Width and height of a photo of `size` (W, H) when it is resized whole, and the corner seen.

    As timm and torchvision round them: down where the sides are equal, else to the nearest.
    """
    W, H = size
    h, w = input_size
    whole_h, whole_w = floor(h / crop_pct), floor(w / crop_pct)
    if fit == "crop" and whole_h == whole_w:
        if W > H:
            whole_w = whole_h * W // H
        else:
            whole_h = whole_w * H // W
    elif fit == "crop":
        ratio = min(H / whole_h, W / whole_w)
        whole_h, whole_w = round(H / ratio), round(W / ratio)
    return (whole_w, whole_h), (round((whole_w - w) / 2), round((whole_h - h) / 2))


def checked_boxes(boxes: Any, size: tuple[int, int]) -> Float[Tensor, "k 4"]:
    """Return boxes of a photo of `size` (W, H); ValueError for one that is none, or beyond it."""
    try:
        array = floats(boxes)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # no numbers, or a ragged list
        array = floats([])
    if array.ndim != 2 or array.shape[1] != 4 or (array[:, :2] >= array[:, 2:]).any():
        raise ValueError(
            f"expected boxes [left, top, right, bottom], left < right and top < bottom, got {boxes}"
        )
    if (array < -1).any() or (array[:, 2:] > floats(size) + 1).any():
        raise ValueError(f"a box reaches beyond the photo of {size[0]} x {size[1]}: {boxes}")
    return array


def seen_boxes(boxes: Float[Tensor, "n 4"], input_size: tuple[int, int]) -> Float[Tensor, "k 4"]:
    """Cut boxes at the sides of the input; leave out one of which less than a pixel is seen."""
    h, w = input_size
    seen = boxes.clamp(min=floats([0] * 4), max=floats([w, h, w, h]))
    return seen[((seen[:, 2:] - seen[:, :2]) >= 1).all(dim=1)]


def checked_mask(
    mask: Bool[np.ndarray, "H W"] | Image.Image, size: tuple[int, int] | None
) -> np.ndarray:
    """Return a mask as an array (H, W); ValueError where it is none, or not of the photo's size."""
    whole = np.asarray(mask)
    if whole.ndim != 2:
        raise ValueError(
            f"expected a mask with one number per pixel, got an array of shape {whole.shape}"
        )
    own = (whole.shape[1], whole.shape[0])
    if size is not None and own != size:
        raise ValueError(
            f"the mask is {own[0]} x {own[1]}, its photo {size[0]} x {size[1]}: "
            "save it at the photo's size"
        )
    return whole


def bilinear(
    points: int, pixels: int, start: float, stop: float
) -> tuple[Float[np.ndarray, "pixels points"], Bool[np.ndarray, " pixels"]]:
    """Weights that carry `points` values, spread evenly over start..stop, to pixel centres.

    With them, whether each pixel's centre lies in start..stop.
    """
    centres = np.arange(pixels) + 0.5
    positions = (centres - start) / (stop - start) * points - 0.5
    distance = np.abs(positions.clip(0, points - 1)[:, None] - np.arange(points))
    return np.maximum(0, 1 - distance).astype(np.float32), (start <= centres) & (centres <= stop)
