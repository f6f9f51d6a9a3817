"""TrivialAugment (Müller & Hutter 2021, arXiv:2103.10158, the "wide" space), for a batch at once.

Axes: b batch (of the samples that get one operation), c channels, h height, w width.
"""

from math import radians

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from vision_attn.data.augment import Augment, Pixels, as_float, luma
from vision_attn.data.draws import Draws

__all__ = ["TrivialAugment"]

Floats = Float[Tensor, "b c h w"]
Strength = Float[Tensor, " b"]
FILL = 0.5


class TrivialAugment(Augment):
    """One operation out of fourteen for every sample, at a strength uniform in 0..1.

    Unlike torchvision's: strength is continuous instead of 31 steps, geometry is bilinear instead
    of nearest, and what comes in from outside is grey instead of black.

    Examples:
        >>> import numpy as np
        >>> import torch
        >>> from vision_attn.data import TrivialAugment
        >>> from vision_attn.data.draws import Draws
        >>> TrivialAugment()(torch.rand(5, 3, 8, 8), Draws(0, 0, np.arange(5))).shape
        torch.Size([5, 3, 8, 8])
    """

    def forward(self, images: Pixels, draws: Draws) -> Pixels:
        which, strength, sign = draws.uniform(3).unbind(1)
        strength = torch.where(sign < 0.5, strength, -strength)
        which = (which * (len(OPERATIONS) + 1)).long()
        images = as_float(images)
        out = images.clone()
        for number, operation in enumerate(OPERATIONS):
            chosen = (which == number).nonzero()[:, 0]
            if len(chosen):
                out[chosen] = operation(images[chosen], strength[chosen])
        return out


def shear_x(images: Floats, strength: Strength) -> Floats:
    """Row y shifts by 0.99 * strength * y: the top stays."""
    bend = 0.99 * strength * (images.shape[2] / images.shape[3])
    ones, zero = torch.ones_like(bend), torch.zeros_like(bend)
    return _affine(images, [ones, bend, bend, zero, ones, zero])


def shear_y(images: Floats, strength: Strength) -> Floats:
    """Column x shifts by 0.99 * strength * x: the left side stays."""
    bend = 0.99 * strength * (images.shape[3] / images.shape[2])
    ones, zero = torch.ones_like(bend), torch.zeros_like(bend)
    return _affine(images, [ones, zero, zero, bend, ones, bend])


def translate_x(images: Floats, strength: Strength) -> Floats:
    """To the right by 32 * strength pixels."""
    ones, zero = torch.ones_like(strength), torch.zeros_like(strength)
    return _affine(images, [ones, zero, strength * (-64 / images.shape[3]), zero, ones, zero])


def translate_y(images: Floats, strength: Strength) -> Floats:
    """Down by 32 * strength pixels."""
    ones, zero = torch.ones_like(strength), torch.zeros_like(strength)
    return _affine(images, [ones, zero, zero, zero, ones, strength * (-64 / images.shape[2])])


def rotate(images: Floats, strength: Strength) -> Floats:
    """Around the centre by 135 * strength degrees, anticlockwise."""
    angle, zero = strength * radians(135), torch.zeros_like(strength)
    tall = images.shape[2] / images.shape[3]
    sin, cos = angle.sin(), angle.cos()
    return _affine(images, [cos, -sin * tall, zero, sin / tall, cos, zero])


def brightness(images: Floats, strength: Strength) -> Floats:
    return _away(images, torch.zeros_like(images), strength)


def saturation(images: Floats, strength: Strength) -> Floats:
    return _away(images, luma(images)[:, None], strength)


def contrast(images: Floats, strength: Strength) -> Floats:
    return _away(images, luma(images).mean((1, 2))[:, None, None, None], strength)


def sharpness(images: Floats, strength: Strength) -> Floats:
    """Away from, or towards, the image smoothed by [1 1 1; 1 5 1; 1 1 1] / 13, borders apart."""
    kernel = images.new_ones(3, 3)
    kernel[1, 1] = 5
    kernel = (kernel / 13).expand(images.shape[1], 1, 3, 3)
    smooth = images.clone()
    smooth[..., 1:-1, 1:-1] = F.conv2d(images, kernel, groups=images.shape[1])
    return _away(images, smooth, strength)


def posterize(images: Floats, strength: Strength) -> Floats:
    """Keeps 8 - 6 * |strength| bits, rounded."""
    step = 2 ** (6 * strength.abs()).round()[:, None, None, None]
    return ((images * 255).round() / step).floor() * step / 255


def solarize(images: Floats, strength: Strength) -> Floats:
    """Inverts what is at least as bright as 1 - |strength|."""
    return torch.where(images >= 1 - strength.abs()[:, None, None, None], 1 - images, images)


def autocontrast(images: Floats, strength: Strength) -> Floats:
    """Stretches every channel to 0..1; a flat channel stays."""
    from torchvision.transforms.v2.functional import autocontrast

    stretched: Tensor = autocontrast(images)
    return stretched


def equalize(images: Floats, strength: Strength) -> Floats:
    """Flattens every channel's histogram over 256 levels."""
    from torchvision.transforms.v2.functional import equalize

    equal: Tensor = equalize((images * 255).round().to(torch.uint8))
    return equal.to(images.dtype) / 255


OPERATIONS = (
    shear_x, shear_y, translate_x, translate_y, rotate, brightness, saturation, contrast,
    sharpness, posterize, solarize, autocontrast, equalize,
)  # fmt: skip  # the fourteenth changes nothing


def _away(images: Floats, base: Float[Tensor, "b ..."], strength: Strength) -> Floats:
    """base + (1 + 0.99 * strength) * (images - base): at -1 nearly the base."""
    factor = 1 + 0.99 * strength[:, None, None, None]
    return (base + factor * (images - base)).clamp(0, 1)


def _affine(images: Floats, theta: list[Strength]) -> Floats:
    """Pixel (x, y) comes from theta (2 x 3) @ (x, y, 1), the image running from -1 to 1."""
    grid = F.affine_grid(
        torch.stack(theta, 1).view(-1, 2, 3), list(images.shape), align_corners=False
    )
    return F.grid_sample(images - FILL, grid, align_corners=False) + FILL
