"""Changes to a batch of training images, each sample by random numbers of its own.

Every Augment takes images on any device, bytes or floats in 0..1, and gives images of that shape:
bytes where it only moves pixels, a quarter of the memory, else floats. The random numbers come from
`draws`: the same sample in the same epoch changes in the same way, in any batch.

Axes: b batch, c channels, h height, w width.
"""

from abc import ABC, abstractmethod
from math import log

import torch
from einops import rearrange, reduce
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.data.draws import Draws

__all__ = [
    "AlternatingFlip",
    "Augment",
    "ColorJitter",
    "Cutout",
    "Flip",
    "RandomErasing",
    "RandomResizedCrop",
    "Translate",
]

Pixels = Float[Tensor, "b c h w"] | UInt8[Tensor, "b c h w"]
Floats = Float[Tensor, "b c h w"]
Numbers = Float[Tensor, " b"]
LUMA = 0.2989, 0.587, 0.114  # ITU-R 601-2, as torchvision and Pillow weigh them
TRIES = 10  # random boxes drawn before the central one is taken
ONE_BY_ONE = 2**15  # bytes of an image above which a loop over images costs less than more passes
BY_OPENCV = torch.uint8, torch.float32


class Augment(nn.Module, ABC):
    """Base class: a random change to every image of a batch.

    `draws` gives the random numbers, a function of the seed, the epoch and the image.

    Examples:
        >>> import numpy as np
        >>> import torch
        >>> from vision_attn.data import Augment
        >>> from vision_attn.data.draws import Draws
        >>> class Darken(Augment):
        ...     def forward(self, images, draws):
        ...         factor = draws.uniform(1).view(-1, 1, 1, 1)
        ...         return factor * images
        >>> draws = Draws(seed=0, epoch=0, items=np.arange(2))
        >>> Darken()(torch.ones(2, 3, 4, 4), draws).shape
        torch.Size([2, 3, 4, 4])
    """

    @abstractmethod
    def forward(self, images: Pixels, draws: Draws) -> Pixels: ...


class Flip(Augment):
    """Mirror images, left and right exchanged.

    Args:
        p: The probability, for each image.

    Raises:
        ValueError: `p` is not from 0 to 1.

    Examples:
        >>> import numpy as np
        >>> import torch
        >>> from vision_attn.data import Flip
        >>> from vision_attn.data.draws import Draws
        >>> image = torch.arange(3.0).expand(1, 3, 1, 3)
        >>> Flip(p=1.0)(image, Draws(0, 0, np.arange(1)))[0, 0]
        tensor([[2., 1., 0.]])
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = _share("p", p)

    def forward(self, images: Pixels, draws: Draws) -> Pixels:
        return _mirrored(images, draws.uniform(1)[:, 0] < self.p)


class AlternatingFlip(Augment):
    """Mirror images of half of the set in the first epoch, of the other half in the next.

    Two epochs in a row show every image both ways. Jordan 2024, arXiv:2404.00498, section 3.3.

    Examples:
        >>> import numpy as np
        >>> import torch
        >>> from vision_attn.data import AlternatingFlip
        >>> from vision_attn.data.draws import Draws
        >>> image = torch.arange(3.0).expand(1, 3, 1, 3)
        >>> flip, item = AlternatingFlip(), np.arange(1)
        >>> first, second = (flip(image, Draws(0, epoch, item)) for epoch in (0, 1))
        >>> torch.equal(first, second.flip(3))
        True
    """

    def forward(self, images: Pixels, draws: Draws) -> Pixels:
        return _mirrored(images, (draws.coins() + draws.epoch) % 2 == 1)


class Translate(Augment):
    """Shifts by whole pixels; what comes in is the image's reflection.

    Args:
        pixels: How far at most, each way.

    Raises:
        ValueError: `pixels` is below 0.

    Examples:
        >>> import numpy as np
        >>> import torch
        >>> from vision_attn.data import Translate
        >>> from vision_attn.data.draws import Draws
        >>> images = torch.rand(5, 3, 8, 8)
        >>> Translate(pixels=2)(images, Draws(0, 0, np.arange(5))).shape
        torch.Size([5, 3, 8, 8])
    """

    def __init__(self, pixels: int = 4) -> None:
        super().__init__()
        if pixels < 0:
            raise ValueError(f"pixels must be at least 0, got {pixels}")
        self.pixels = pixels

    def forward(self, images: Pixels, draws: Draws) -> Pixels:
        if self.pixels >= min(images.shape[2:]):
            raise ValueError(
                f"a shift by {self.pixels} pixels needs images larger than that, "
                f"got {images.shape[2]} x {images.shape[3]}"
            )
        shifts = (draws.uniform(2) * (2 * self.pixels + 1)).long() - self.pixels
        rows = _reflected(shifts[:, 0], images.shape[2])[:, None, :, None]
        columns = _reflected(shifts[:, 1], images.shape[3])[:, None, None, :]
        images = images.gather(2, rows.expand_as(images))
        return images.gather(3, columns.expand_as(images))


class RandomResizedCrop(Augment):
    """A random box of the image, stretched to its full size (Szegedy 2015, Inception).

    As in torchvision, a box that does not fit into the image is drawn again; after ten the largest
    central box of an allowed ratio is taken.

    Args:
        scale: The smallest and the largest share of the area that the box covers.
        ratio: The smallest and the largest ratio of its width to its height, in whole pixels.

    Raises:
        ValueError: A range does not rise, or begins at 0.

    Examples:
        >>> import numpy as np
        >>> import torch
        >>> from vision_attn.data import RandomResizedCrop
        >>> from vision_attn.data.draws import Draws
        >>> images = torch.rand(5, 3, 8, 8)
        >>> RandomResizedCrop(scale=(0.5, 1.0))(images, Draws(0, 0, np.arange(5))).shape
        torch.Size([5, 3, 8, 8])
    """

    def __init__(
        self, scale: tuple[float, float] = (0.35, 1.0), ratio: tuple[float, float] = (0.75, 4 / 3)
    ) -> None:
        super().__init__()
        self.scale, self.ratio = checked_range("scale", scale), checked_range("ratio", ratio)

    def forward(self, images: Pixels, draws: Draws) -> Pixels:
        size = list(images.shape[2:])
        sides = torch.tensor(size, dtype=torch.long, device=images.device).expand(len(images), 2)
        boxes = random_crops(draws.uniform(2 * TRIES + 2), sides, self.scale, self.ratio)
        height, width, top, left = (boxes / sides.repeat(1, 2)).unbind(1)
        # from the box to grid_sample's coordinates, in which the image runs from -1 to 1
        zero = torch.zeros_like(width)
        rows = [width, zero, 2 * left + width - 1, zero, height, 2 * top + height - 1]
        theta = torch.stack(rows, 1).view(-1, 2, 3)
        images = as_float(images)
        grid = F.affine_grid(theta, list(images.shape), align_corners=False)
        return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


class Cutout(Augment):
    """A square around a random pixel, painted over (DeVries & Taylor 2017).

    Args:
        size: Side of the square in pixels.
        fill: The grey that it is painted in, from 0 to 1.

    Raises:
        ValueError: `size` is below 1.

    Examples:
        >>> import numpy as np
        >>> import torch
        >>> from vision_attn.data import Cutout
        >>> from vision_attn.data.draws import Draws
        >>> painted = Cutout(size=16, fill=0.5)(torch.ones(1, 3, 4, 4), Draws(0, 0, np.arange(1)))
        >>> painted.unique()
        tensor([0.5000])
    """

    def __init__(self, size: int = 8, fill: float = 0.5) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        self.size, self.fill = size, fill

    def forward(self, images: Pixels, draws: Draws) -> Pixels:
        height, width = images.shape[2:]
        size = torch.tensor([height, width], dtype=torch.float32, device=images.device)
        centre = draws.uniform(2) * size
        first = centre.long() - self.size // 2
        box = torch.cat([first, first + self.size], 1)
        return _filled(images, inside(box, height, width), self.fill)


class RandomErasing(Augment):
    """A random box of the image, painted over; see RandomResizedCrop for its size.

    A box that does not fit is drawn again, ten times at most; then nothing is painted. Zhong et al.
    2020, arXiv:1708.04896.

    Args:
        p: The probability, for each image.
        scale: The smallest and the largest share of the area that the box covers.
        ratio: The smallest and the largest ratio of its width to its height.
        fill: The grey that it is painted in, from 0 to 1.

    Raises:
        ValueError: `p` is not from 0 to 1, or a range does not rise, or begins at 0.

    Examples:
        >>> import numpy as np
        >>> import torch
        >>> from vision_attn.data import RandomErasing
        >>> from vision_attn.data.draws import Draws
        >>> images = torch.ones(5, 3, 8, 8)
        >>> RandomErasing(p=1.0, fill=0.0)(images, Draws(0, 0, np.arange(5))).mean() < 1
        tensor(True)
    """

    def __init__(
        self,
        p: float = 0.25,
        scale: tuple[float, float] = (0.02, 1 / 3),
        ratio: tuple[float, float] = (0.3, 10 / 3),
        fill: float = 0.5,
    ) -> None:
        super().__init__()
        self.p, self.fill = _share("p", p), fill
        self.scale, self.ratio = checked_range("scale", scale), checked_range("ratio", ratio)

    def forward(self, images: Pixels, draws: Draws) -> Pixels:
        height, width = images.shape[2:]
        size = [height, width]
        sides = torch.tensor(size, dtype=torch.long, device=images.device).expand(len(images), 2)
        u = draws.uniform(2 * TRIES + 2)
        extent = first_fit(u[:, :-2], sides, self.scale, self.ratio)
        corner = corners(u[:, -2:], sides - extent)
        box = torch.cat([corner, corner + extent], 1)
        chosen = draws.uniform(1)[:, 0] < self.p
        mask = inside(box, height, width) & rearrange(chosen, "b -> b 1 1 1")
        return _filled(images, mask, self.fill)


class ColorJitter(Augment):
    """Random brightness, contrast and saturation, each by a factor of 1 +- its argument, and hue.

    The first three as torchvision defines them, in this order; hue turns the colours around the
    grey axis at equal luma. All four are one 3x3 matrix a sample.

    Args:
        brightness: How far its factor goes from 1.
        contrast: How far its factor goes from 1.
        saturation: How far its factor goes from 1.
        hue: How far the colours turn at most, each way, as a share of a whole turn.

    Raises:
        ValueError: A number is below 0, or `hue` above 0.5.

    Examples:
        >>> import numpy as np
        >>> import torch
        >>> from vision_attn.data import ColorJitter
        >>> from vision_attn.data.draws import Draws
        >>> images = torch.rand(5, 3, 8, 8)
        >>> ColorJitter(brightness=0.4, hue=0.1)(images, Draws(0, 0, np.arange(5))).shape
        torch.Size([5, 3, 8, 8])
    """

    def __init__(
        self,
        brightness: float = 0.4,
        contrast: float = 0.4,
        saturation: float = 0.4,
        hue: float = 0.0,
    ) -> None:
        super().__init__()
        if min(brightness, contrast, saturation) < 0 or not 0 <= hue <= 0.5:
            raise ValueError(
                "brightness, contrast and saturation must be at least 0 and hue in 0..0.5, got "
                f"{brightness}, {contrast}, {saturation}, {hue}"
            )
        self.brightness, self.contrast = brightness, contrast
        self.saturation, self.hue = saturation, hue

    def forward(self, images: Pixels, draws: Draws) -> Pixels:
        brightness, contrast, saturation, turn = (draws.uniform(4) * 2 - 1).unbind(1)
        brightness = (1 + brightness * self.brightness).clamp_min(0)
        contrast = (1 + contrast * self.contrast).clamp_min(0)
        saturation = (1 + saturation * self.saturation).clamp_min(0)
        gain = hue_and_saturation(turn * self.hue, saturation)
        gain = gain * rearrange(brightness * contrast, "b -> b 1 1")
        images = as_float(images)
        grey = reduce(luma(images), "b h w -> b", "mean") * brightness
        return recolor(images, gain, grey * (1 - contrast)).clamp(0, 1)


def random_crops(
    u: Float[Tensor, "b numbers"],
    sides: Int[Tensor, "b 2"],
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Int[Tensor, "b 4"]:
    """Height, width, top, left of a random box in pixels, distributed as torchvision's.

    u: in [0, 1), two numbers a try and two for the place. sides: height and width of each image.
    scale and ratio as in RandomResizedCrop.
    """
    extent = first_fit(u[:, :-2], sides, scale, ratio)
    height, width = sides.unbind(1)
    widest = (height * ratio[1]).round().long().clamp(min=1)
    highest = (width / ratio[0]).round().long().clamp(min=1)
    central = torch.stack([height.minimum(highest), width.minimum(widest)], 1)
    fits = extent.any(dim=1, keepdim=True)
    corner = torch.where(fits, corners(u[:, -2:], sides - extent), (sides - central) // 2)
    return torch.cat([torch.where(fits, extent, central), corner], 1)


def first_fit(
    u: Float[Tensor, "b numbers"],
    sides: Int[Tensor, "b 2"],
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Int[Tensor, "b 2"]:
    """Height and width of the first of several random boxes that fits into the image; 0 if none.

    u: in [0, 1), a share of the area and a ratio for every try.
    """
    areas, ratios = u.unflatten(1, (-1, 2)).unbind(2)
    area = (scale[0] + (scale[1] - scale[0]) * areas) * sides.prod(dim=1, keepdim=True)
    wide = (log(ratio[0]) + (log(ratio[1]) - log(ratio[0])) * ratios).exp()
    extents = torch.stack([(area / wide).sqrt(), (area * wide).sqrt()], 2).round().long()  # b try 2
    fits = ((extents > 0) & (extents <= sides[:, None])).all(dim=2)
    first = fits.int().argmax(dim=1)
    return extents[torch.arange(len(u), device=u.device), first] * fits.any(dim=1, keepdim=True)


def corners(u: Float[Tensor, "b 2"], room: Int[Tensor, "b 2"]) -> Int[Tensor, "b 2"]:
    """Whole numbers from 0 to `room`, each as likely."""
    return (u * (room + 1)).long().minimum(room)


def inside(box: Int[Tensor, "b 4"], height: int, width: int) -> Tensor:
    """Which pixels (b 1 h w) lie in the boxes (top, left, bottom, right), ends not included."""
    top, left, bottom, right = (edge[:, None] for edge in box.unbind(1))
    row, column = torch.arange(height, device=box.device), torch.arange(width, device=box.device)
    rows, columns = (row >= top) & (row < bottom), (column >= left) & (column < right)
    return rows[:, None, :, None] & columns[:, None, None, :]


def as_float(images: Pixels) -> Floats:
    """Floats in 0..1."""
    return images.float() / 255 if images.dtype == torch.uint8 else images


def luma(images: Floats) -> Float[Tensor, "b h w"]:
    """The grey of every pixel."""
    return torch.einsum("bchw,c->bhw", images, images.new_tensor(LUMA))


def recolor(images: Floats, gain: Float[Tensor, "b 3 3"], offset: Numbers) -> Floats:
    """gain @ (red, green, blue) + offset for every pixel."""
    flat = torch.baddbmm(rearrange(offset, "b -> b 1 1"), gain, images.flatten(2))
    return flat.view_as(images)


def hue_and_saturation(turn: Numbers, saturation: Numbers) -> Float[Tensor, "b 3 3"]:
    """The matrices that keep luma, turn colour by `turn` of a circle and scale it.

    Grey part + saturation * (cos * (rest) + sin * (rest turned by a quarter)), as in SVG's
    hueRotate.
    """
    grey = turn.new_tensor(LUMA).expand(3, 3)
    # (x, y, z) cross the grey axis, less its luma: a quarter turn of the colours of equal luma
    across = turn.new_tensor([[0, -1, 1], [1, 0, -1], [-1, 1, 0]]) / 3**0.5
    quarter = across - grey @ across
    rest = torch.eye(3, dtype=turn.dtype, device=turn.device) - grey
    angle = rearrange(turn * 2 * torch.pi, "b -> b 1 1")
    return grey + saturation[:, None, None] * (angle.cos() * rest + angle.sin() * quarter)


def _mirrored(images: Pixels, chosen: Bool[Tensor, " b"]) -> Pixels:
    """The chosen ones mirrored: large ones on a CPU one by one, else picked from both kinds, which
    is 6 times faster than `where`."""
    if images.is_cpu and images[:1].nbytes > ONE_BY_ONE and images.dtype in BY_OPENCV:
        import cv2

        mirrored = torch.empty_like(images, memory_format=torch.contiguous_format)
        rows = (x.contiguous().flatten(1, 2).numpy() for x in (images, mirrored))
        for image, out, turned in zip(*rows, chosen.tolist(), strict=True):
            if turned:
                cv2.flip(image, 1, dst=out)
            else:
                out[:] = image
        return mirrored
    indices = torch.arange(len(images), device=images.device) + len(images) * chosen
    return torch.cat([images, images.flip(3)]).index_select(0, indices)


def _reflected(shift: Int[Tensor, " b"], length: int) -> Int[Tensor, "b length"]:
    """Where pixel j of the shifted line comes from, the line going on as its mirror image."""
    positions = (torch.arange(length, device=shift.device) + shift[:, None]).abs()
    return length - 1 - (length - 1 - positions).abs()


def _filled(images: Pixels, mask: Tensor, fill: float) -> Pixels:
    return images.masked_fill(mask, round(fill * 255) if images.dtype == torch.uint8 else fill)


def _share(name: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be in 0..1, got {value}")
    return value


def checked_range(name: str, bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = bounds
    if not 0 < low <= high:
        raise ValueError(f"{name} must be (low, high) with 0 < low <= high, got ({low}, {high})")
    return low, high
