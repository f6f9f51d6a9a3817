from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torchvision.transforms import RandomResizedCrop as TorchvisionCrop
from torchvision.transforms.v2 import functional as tv

from vision_attn.data import (
    AlternatingFlip,
    Augment,
    ColorJitter,
    Cutout,
    Flip,
    RandomErasing,
    RandomResizedCrop,
    Translate,
    TrivialAugment,
)
from vision_attn.data.augment import as_float, hue_and_saturation, luma, random_crops, recolor
from vision_attn.data.draws import Draws

EVERY = [
    Flip(), AlternatingFlip(), Translate(3), RandomResizedCrop(), Cutout(5), RandomErasing(0.5),
    ColorJitter(hue=0.1), TrivialAugment(),
]  # fmt: skip


def pictures(count: int, height: int = 17, width: int = 23) -> torch.Tensor:
    small = torch.rand(count, 3, 5, 7)
    return torch.nn.functional.interpolate(small, (height, width), mode="bilinear")


@pytest.mark.parametrize("augment", EVERY, ids=lambda augment: type(augment).__name__)
def test_a_sample_changes_the_same_way_in_any_batch(augment: Augment) -> None:
    images, items = pictures(37), np.arange(100, 137)
    whole = augment(images, Draws(1, 2, items))
    assert whole.shape == images.shape
    assert whole.dtype == torch.float32
    assert whole.min() >= -1e-5
    assert whole.max() <= 1 + 1e-5
    assert (whole != images).any((1, 2, 3)).sum() > 10
    part = augment(images[11:18], Draws(1, 2, items[11:18]))
    torch.testing.assert_close(part, whole[11:18], atol=1e-6, rtol=0)
    assert (augment(images, Draws(1, 3, items)) != whole).any()


@pytest.mark.parametrize("augment", EVERY, ids=lambda augment: type(augment).__name__)
def test_bytes_change_as_floats_do(augment: Augment) -> None:
    images = (pictures(23) * 255).to(torch.uint8)
    items = np.arange(23)
    expected = augment(images.float() / 255, Draws(0, 0, items))
    out = augment(images, Draws(0, 0, items))
    moves_whole_pixels = isinstance(
        augment, Flip | AlternatingFlip | Translate | Cutout | RandomErasing
    )
    assert (out.dtype == torch.uint8) == moves_whole_pixels
    torch.testing.assert_close(as_float(out), expected, atol=0.51 / 255, rtol=0)


@pytest.mark.parametrize("limit", [0, 2**30])
def test_flip_mirrors_about_its_share(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vision_attn.data.augment.ONE_BY_ONE", limit)
    images = pictures(1009)
    before = images.clone()
    out = Flip(0.3)(images, Draws(0, 0, np.arange(1009)))
    flipped = (out == images.flip(3)).flatten(1).all(1)
    assert ((out == images).flatten(1).all(1) ^ flipped).all()
    assert 0.26 < flipped.float().mean() < 0.34
    assert torch.equal(images, before)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize("channels_last", [False, True])
def test_large_images_are_mirrored_as_small_ones(
    dtype: torch.dtype, channels_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = (pictures(13) * 255).to(dtype)
    if channels_last:
        images = images.to(memory_format=torch.channels_last)
    expected = Flip()(images, Draws(0, 0, np.arange(13)))
    monkeypatch.setattr("vision_attn.data.augment.ONE_BY_ONE", 0)
    assert torch.equal(Flip()(images, Draws(0, 0, np.arange(13))), expected)


def test_alternating_flip_shows_both_sides_in_two_epochs() -> None:
    images, items = pictures(101), np.arange(101)
    flip = AlternatingFlip()
    epochs = [flip(images, Draws(0, epoch, items)) for epoch in range(3)]
    torch.testing.assert_close(epochs[0], epochs[1].flip(3), atol=0, rtol=0)
    torch.testing.assert_close(epochs[0], epochs[2], atol=0, rtol=0)
    assert 0.3 < (epochs[0] == images).flatten(1).all(1).float().mean() < 0.7


def test_translate_is_a_crop_of_the_reflected_image() -> None:
    images = pictures(53)
    out = Translate(3)(images, Draws(0, 0, np.arange(53)))
    padded = torch.nn.functional.pad(images, (3, 3, 3, 3), mode="reflect")
    seen = set()
    for image, source in zip(out, padded, strict=True):
        places = [
            (y, x)
            for y in range(7)
            for x in range(7)
            if torch.equal(image, source[:, y : y + 17, x : x + 23])
        ]
        assert len(places) == 1
        seen.add(places[0])
    assert {y for y, _ in seen} == {x for _, x in seen} == set(range(7))


def test_random_resized_crop_stretches_its_box() -> None:
    images = pictures(29, 64, 48)
    crop = RandomResizedCrop((0.2, 0.8), (0.5, 2.0))
    out = crop(images, Draws(0, 0, np.arange(29)))
    sides = torch.tensor([64, 48]).expand(29, 2)
    u = Draws(0, 0, np.arange(29)).uniform(22)
    pixels = random_crops(u, sides, (0.2, 0.8), (0.5, 2.0)).tolist()
    for image, ours, (height, width, top, left) in zip(images, out, pixels, strict=True):
        # the box's corners, a little inside of it, are found at the output's corners
        for v, u in ((0.1, 0.1), (0.1, 0.9), (0.9, 0.1), (0.5, 0.6)):
            y, x = top + v * height - 0.5, left + u * width - 0.5
            grid = torch.tensor([[[[(2 * x + 1) / 48 - 1, (2 * y + 1) / 64 - 1]]]])
            here = torch.tensor([[[[2 * u - 1, 2 * v - 1]]]])
            expected = torch.nn.functional.grid_sample(image[None], grid, align_corners=False)
            got = torch.nn.functional.grid_sample(ours[None], here, align_corners=False)
            torch.testing.assert_close(got, expected, atol=0.03, rtol=0)


def test_random_boxes_keep_scale_ratio_and_borders() -> None:
    sides = torch.tensor([400, 600]).expand(10_007, 2)
    u = Draws(0, 0, np.arange(10_007)).uniform(22)
    height, width, top, left = random_crops(u, sides, (0.2, 0.5), (0.5, 2.0)).unbind(1)
    area, ratio = height * width / 240_000, width / height
    assert (area.min(), area.max()) == pytest.approx((0.2, 0.5), abs=2e-3)
    assert (ratio.min(), ratio.max()) == pytest.approx((0.5, 2.0), abs=2e-2)
    for first, length, side in ((top, height, 400), (left, width, 600)):
        assert first.min() == 0
        assert (first + length).max() == side


CROPS = {  # height, width of the image, scale, ratio
    "square": (32, 32, (0.35, 1.0), (0.75, 4 / 3)),
    "usual": (224, 224, (0.08, 1.0), (0.75, 4 / 3)),
    "large": (96, 96, (0.9, 1.0), (0.5, 2.0)),
    "wide": (40, 200, (0.35, 1.0), (0.75, 4 / 3)),
    "high": (201, 32, (0.5, 1.0), (0.75, 4 / 3)),
}


@pytest.mark.parametrize("name", CROPS)
def test_random_crops_are_distributed_as_torchvisions(name: str) -> None:
    height, width, scale, ratio = CROPS[name]
    n = 5000
    params = TorchvisionCrop.get_params
    image = torch.empty(1, height, width)
    theirs = np.array([params(image, list(scale), list(ratio)) for _ in range(n)])
    u = Draws(0, 0, np.arange(n)).uniform(22)
    sides = torch.tensor([height, width]).expand(n, 2)
    ours = random_crops(u, sides, scale, ratio).numpy()[:, [2, 3, 0, 1]]
    areas = [(boxes[:, 2] * boxes[:, 3]).astype(float) for boxes in (ours, theirs)]
    for mine, its in (*zip(ours.T.astype(float), theirs.T.astype(float), strict=True), areas):
        error = np.sqrt((mine.var() + its.var()) / n)
        assert abs(mine.mean() - its.mean()) <= 4 * error
        assert scipy.stats.ks_2samp(mine, its).pvalue > 1e-4


def test_a_box_that_never_fits_is_the_central_one_or_nothing_is_erased() -> None:
    u = torch.rand(3, 22)
    sides = torch.tensor([[20, 100], [100, 20], [30, 30]])
    boxes = random_crops(u, sides, (2.0, 3.0), (0.5, 2.0))
    assert boxes.tolist() == [[20, 40, 0, 30], [40, 20, 30, 0], [30, 30, 0, 0]]
    images = torch.rand(7, 3, 9, 50)
    erased = RandomErasing(p=1.0, scale=(2.0, 3.0))(images, Draws(0, 0, np.arange(7)))
    torch.testing.assert_close(erased, images)


def test_cutout_paints_one_square_cut_at_the_border() -> None:
    images = torch.zeros(997, 3, 17, 23)
    painted = Cutout(5, fill=1.0)(images, Draws(0, 0, np.arange(997)))[:, 0]
    area = painted.sum((1, 2))
    assert area.max() == 25
    assert area.min() == 9  # a centre in a corner
    assert (painted.amax(1).sum(1) * painted.amax(2).sum(1) == area).all()  # a box
    assert painted.mean(0).min() > 0  # every pixel is reached


def test_random_erasing_paints_boxes_of_the_asked_area() -> None:
    images = torch.zeros(997, 3, 101, 103)
    erase = RandomErasing(0.4, (0.05, 0.2), (0.5, 2.0), fill=1.0)
    area = erase(images, Draws(0, 0, np.arange(997)))[:, 1].mean((1, 2))
    assert 0.35 < (area > 0).float().mean() < 0.45
    assert area[area > 0].min() > 0.045
    assert area.max() < 0.21


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_color_jitter_is_torchvisions(name: str) -> None:
    images = pictures(31) * 0.5 + 0.2
    strengths = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0} | {name: 0.3}
    draws = Draws(0, 0, np.arange(31))
    out = ColorJitter(**strengths)(images, draws)
    column = ("brightness", "contrast", "saturation").index(name)
    factors = 1 + 0.3 * (Draws(0, 0, np.arange(31)).uniform(4)[:, column] * 2 - 1)
    adjust = getattr(tv, f"adjust_{name}")
    for image, ours, factor in zip(images, out, factors, strict=True):
        torch.testing.assert_close(ours, adjust(image, factor.item()), atol=1e-4, rtol=0)


def test_turning_the_hue_keeps_luma_and_a_third_turn_three_times_is_nothing() -> None:
    images = pictures(5) * 0.4 + 0.3
    third = hue_and_saturation(torch.full((5,), 1 / 3), torch.ones(5))
    turned = recolor(images, third, torch.zeros(5))
    assert (turned - images).abs().max() > 0.05
    torch.testing.assert_close(luma(turned), luma(images), atol=3e-4, rtol=0)  # LUMA sums to 0.9999
    thrice = recolor(recolor(turned, third, torch.zeros(5)), third, torch.zeros(5))
    torch.testing.assert_close(thrice, images, atol=3e-4, rtol=0)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Flip(1.5), "p must be in 0..1, got 1.5"),
        (lambda: Translate(-1), "pixels must be at least 0"),
        (lambda: Cutout(0), "size must be at least 1"),
        (lambda: RandomResizedCrop((0.0, 1.0)), "scale must be"),
        (lambda: RandomErasing(ratio=(2.0, 1.0)), "ratio must be"),
        (lambda: ColorJitter(hue=0.7), "hue in 0..0.5"),
        (lambda: Translate(17)(pictures(2), Draws(0, 0, np.arange(2))), "shift by 17 pixels"),
    ],
)
def test_errors(make: Callable[..., Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()
