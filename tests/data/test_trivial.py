from math import atan, degrees
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as tv

from vision_attn.data import TrivialAugment, trivial
from vision_attn.data.draws import Draws


def picture(height: int = 37, width: int = 53) -> torch.Tensor:
    small = torch.rand(1, 3, 5, 7)
    image = torch.nn.functional.interpolate(small, (height, width), mode="bilinear")[0]
    return (image * 255).to(torch.uint8)


def _affine(image: torch.Tensor, **how: Any) -> torch.Tensor:
    defaults = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]}
    return tv.affine(
        image.float() / 255, **(defaults | how), fill=0.5, interpolation=InterpolationMode.BILINEAR
    )


def _shear(image: Any, strength: Any, axis: int) -> torch.Tensor:
    shear = [0.0, 0.0]
    shear[axis] = degrees(atan(0.99 * strength))
    return _affine(image, shear=shear, center=[0, 0])


def stretched(image: Any) -> Any:
    """The darkest pixel of each channel 0, the brightest 1, by the formula."""
    low, high = image.amin((1, 2), keepdim=True), image.amax((1, 2), keepdim=True)
    return (image - low) / (high - low)


def equalized(image: Any) -> torch.Tensor:
    pixels = ImageOps.equalize(Image.fromarray(image.permute(1, 2, 0).numpy()))
    return torch.from_numpy(np.array(pixels)).permute(2, 0, 1).float() / 255


ORACLES = {
    "shear_x": lambda image, s: _shear(image, s, 0),
    "shear_y": lambda image, s: _shear(image, s, 1),
    "translate_x": lambda image, s: _affine(image, translate=[round(32 * s), 0]),
    "translate_y": lambda image, s: _affine(image, translate=[0, round(32 * s)]),
    "rotate": lambda image, s: tv.rotate(
        image.float() / 255, 135 * s, fill=0.5, interpolation=InterpolationMode.BILINEAR
    ),
    "brightness": lambda image, s: tv.adjust_brightness(image.float() / 255, 1 + 0.99 * s),
    "saturation": lambda image, s: tv.adjust_saturation(image.float() / 255, 1 + 0.99 * s),
    "contrast": lambda image, s: tv.adjust_contrast(image.float() / 255, 1 + 0.99 * s),
    "sharpness": lambda image, s: tv.adjust_sharpness(image.float() / 255, 1 + 0.99 * s),
    "posterize": lambda image, s: tv.posterize(image, 8 - round(6 * abs(s))).float() / 255,
    "solarize": lambda image, s: tv.solarize(image.float() / 255, 1 - abs(s)),
    "autocontrast": lambda image, s: stretched(image.float() / 255),
    "equalize": lambda image, s: equalized(image),
}


@pytest.mark.parametrize("name", ORACLES)
def test_every_operation_is_torchvisions_or_pillows(name: str) -> None:
    assert [operation.__name__ for operation in trivial.OPERATIONS] == list(ORACLES)
    images = torch.stack([picture() for _ in range(5)])
    strengths = torch.tensor([-1.0, -0.59375, 0.03125, 0.5, 0.9375])  # whole pixels of 32
    ours = getattr(trivial, name)(images.float() / 255, strengths)
    for image, strength, got in zip(images, strengths.tolist(), ours, strict=True):
        expected = ORACLES[name](image, strength)
        differs = (got - expected).abs().amax(0) > 2e-3
        # at the image's edge the two blend with the fill in different ways
        assert differs.float().mean() < (0.05 if name in list(ORACLES)[:5] else 1e-9)


def test_flat_images_stay() -> None:
    flat = torch.full((3, 3, 7, 11), 0.25)
    for operation in (trivial.autocontrast, trivial.equalize):
        torch.testing.assert_close(operation(flat, torch.ones(3)), flat, atol=2e-3, rtol=0)


def test_every_operation_is_drawn_about_equally() -> None:
    which = (Draws(0, 0, np.arange(14_000)).uniform(3)[:, 0] * 14).long().bincount()
    assert len(which) == 14
    assert which.min() > 850
    images = torch.stack([picture() for _ in range(211)]).float() / 255
    out = TrivialAugment()(images, Draws(0, 0, np.arange(211)))
    assert 0.01 < (out == images).flatten(1).all(1).float().mean() < 0.3
