"""Transforms of one's own: a map lands on the photo where it is known to be, to the pixel."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image, ImageOps
from torch.nn import functional as F
from torchvision import transforms as v1
from torchvision.transforms import functional, v2

from vision_attn.data import Preprocess
from vision_attn.data.channels import channels_of, image_of_array, image_of_tensor
from vision_attn.data.measured import Geometry, MeasuredTransform

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
END = [v1.ToTensor(), v1.Normalize(MEAN, STD)]
SIZES = [(400, 300), (211, 377), (96, 97), (1600, 900)]


def shorter(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Of a resize of the shorter side: W and H."""
    W, H = size
    return (side, int(side * H / W)) if W < H else (int(side * W / H), side)


def crop_of(side: int, crop: int) -> Callable[..., Any]:
    def box(size: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
        W, H = size
        w, h = shorter(size, side)
        left, top = round((w - crop) / 2), round((h - crop) / 2)
        return left * W / w, top * H / h, (left + crop) * W / w, (top + crop) * H / h

    return box


def whole(size: tuple[int, int]) -> tuple[Any, ...]:
    return 0, 0, *size


def letterbox(image: Image.Image) -> Image.Image:
    """Fit into 64 x 64, centred, on grey."""
    return ImageOps.pad(image, (64, 64), Image.Resampling.BILINEAR, color=(114, 114, 114))


def letterbox_of(size: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    W, H = size
    scale = 64 / max(W, H)
    w, h = round(W * scale), round(H * scale)
    left, top = round((64 - w) * 0.5), round((64 - h) * 0.5)
    return -left * W / w, -top * H / h, (64 - left) * W / w, (64 - top) * H / h


def centre_of(side: int) -> Callable[..., Any]:
    def box(size: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
        W, H = size
        left, top = round((W - side) / 2), round((H - side) / 2)
        return left, top, left + side, top + side

    return box


def padded_of(pad: int) -> Callable[..., Any]:
    def box(size: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
        W, H = size
        across, down = pad * W / 64, pad * H / 64
        return -across, -down, W + across, H + down

    return box


def tensors(image: torch.Tensor) -> torch.Tensor:
    return F.interpolate(image[None], (64, 48), mode="bilinear", antialias=True)[0]


UPRIGHT = {
    "resize and crop": (v1.Compose([v1.Resize(72), v1.CenterCrop(64), *END]), crop_of(72, 64)),
    "bicubic": (
        v1.Compose([v1.Resize(72, v1.InterpolationMode.BICUBIC), v1.CenterCrop(64), *END]),
        crop_of(72, 64),
    ),
    "nearest": (
        v1.Compose([v1.Resize(72, v1.InterpolationMode.NEAREST), v1.CenterCrop(64), *END]),
        crop_of(72, 64),
    ),
    "squash": (v1.Compose([v1.Resize((48, 80)), *END]), whole),
    "pad to a square": (v1.Compose([letterbox, *END]), letterbox_of),
    "crop alone": (v1.Compose([v1.CenterCrop(80), *END]), centre_of(80)),
    "black border": (v1.Compose([v1.Resize((64, 64)), v1.Pad(8), *END]), padded_of(8)),
    "mirrored border": (
        v1.Compose([v1.Resize((64, 64)), v1.Pad(8, padding_mode="reflect"), *END]),
        padded_of(8),
    ),
    "grey": (
        v1.Compose([v1.Grayscale(1), v1.Resize((48, 80)), v1.ToTensor(), v1.Normalize(0.5, 0.5)]),
        whole,
    ),
    "a gamma": (
        v1.Compose(
            [
                v1.Lambda(lambda x: functional.adjust_gamma(x, 2.2)),
                v1.Resize((64, 64)),
                v1.ToTensor(),
            ]
        ),
        whole,
    ),
    "inverted, not normalised": (
        v1.Compose([ImageOps.invert, v1.Resize((64, 64)), v1.ToTensor()]),
        whole,
    ),
    "v2": (
        v2.Compose(
            [
                v2.ToImage(),
                v2.Resize(72, antialias=True),
                v2.CenterCrop(64),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(MEAN, STD),
            ]
        ),
        crop_of(72, 64),
    ),
    "tensors of uint8": (
        v2.Compose([v2.Resize((64, 48), antialias=True), v2.ToDtype(torch.float32, scale=True)]),
        whole,
    ),
    "tensors of floats": (tensors, whole),
    "timm": (
        timm.data.create_transform((3, 64, 64), crop_pct=0.875, interpolation="bicubic"),
        crop_of(73, 64),
    ),
    "timm, squashed": (
        timm.data.create_transform((3, 64, 64), crop_pct=1.0, crop_mode="squash"),
        whole,
    ),
    "half": (v1.Compose([v1.Resize((64, 64)), *END, lambda x: x.half()]), whole),
}


@pytest.mark.parametrize("name", UPRIGHT)
def test_what_is_seen_is_measured_to_the_pixel(name: str) -> None:
    transform, true = UPRIGHT[name]
    measured = MeasuredTransform(transform)
    for size in SIZES:
        box, wanted = measured.box(size), true(size)
        cell = max(
            (wanted[2] - wanted[0]) / measured.input_size[1], 1
        )  # of the input, on the photo
        assert box == pytest.approx(wanted, abs=max(0.5, 0.25 * cell)), size


def spot(size: tuple[int, int], x: int, y: int) -> Image.Image:
    """A photo with a bright spot around a place."""
    W, H = size
    row, column = np.mgrid[0:H, 0:W] + 0.5
    bump = np.exp(-((column - x) ** 2 + (row - y) ** 2) / (2 * (min(size) / 12) ** 2))
    return Image.fromarray((40 + 180 * bump).astype(np.uint8)).convert("RGB")


TURNED = {
    "mirrored": v1.Compose([v1.RandomHorizontalFlip(1.0), v1.Resize((64, 64)), *END]),
    "upside down": v1.Compose([v1.Resize((64, 96)), v1.RandomVerticalFlip(1.0), *END]),
    "a quarter turn": v1.Compose(
        [lambda x: x.transpose(Image.Transpose.ROTATE_90), v1.Resize((64, 64)), *END]
    ),
    "turned by 20 degrees": v1.Compose([v1.Resize((96, 96)), lambda x: x.rotate(20), *END]),
    "tilted": v1.Compose(
        [
            v1.Resize((96, 96)),
            lambda x: functional.perspective(
                x, [[0, 0], [95, 0], [95, 95], [0, 95]], [[10, 4], [90, 12], [84, 90], [2, 80]]
            ),
            *END,
        ]
    ),
}


@pytest.mark.parametrize("name", TURNED)
def test_a_spot_comes_back_to_its_place(name: str) -> None:
    measured, size = MeasuredTransform(TURNED[name]), (400, 300)
    for x, y in ((130, 100), (270, 180), (200, 150)):
        seen = measured(spot(size, x, y)).mean(0).numpy()
        laid = np.nan_to_num(measured.to_original(seen - seen.min(), size))
        row, column = np.unravel_index(laid.argmax(), laid.shape)
        assert abs(column + 0.5 - x) < 8
        assert abs(row + 0.5 - y) < 8
        mask = np.zeros((300, 400), bool)
        mask[y - 20 : y + 20, x - 20 : x + 20] = True
        v, u = (places.mean() for places in np.nonzero(measured.mask(mask).numpy()))
        down, across = np.unravel_index(seen.argmax(), seen.shape)
        assert abs(u - across) < 3
        assert abs(v - down) < 3
        ((left, top, right, bottom),) = measured.boxes(
            [[x - 20, y - 20, x + 20, y + 20]], size
        ).tolist()
        assert left < across < right
        assert top < down < bottom
    with pytest.raises(ValueError, match=r"turns, mirrors or tilts photos, .* no box"):
        measured.box(size)


def test_an_upright_transform_is_that_of_a_preprocess() -> None:
    """Maps, masks and boxes go the way that the class with the same geometry goes."""
    measured = MeasuredTransform(v1.Compose([v1.Resize(72), v1.CenterCrop(64), *END]))
    known = Preprocess((64, 64), MEAN, STD, crop_pct=64 / 72)
    torch.testing.assert_close(torch.tensor(measured.mean), torch.tensor(MEAN), atol=1e-4, rtol=0)
    torch.testing.assert_close(torch.tensor(measured.std), torch.tensor(STD), atol=1e-4, rtol=0)
    photo = spot((401, 300), 130, 90)
    assert measured(photo).shape == (3, 64, 64)
    assert (measured(photo) - known(photo)).abs().mean() < 0.01
    heat = torch.rand(7, 7).numpy()
    mine, theirs = (one.to_original(heat, photo.size) for one in (measured, known))
    assert (np.isnan(mine) != np.isnan(theirs)).mean() < 0.01
    np.testing.assert_allclose(np.nan_to_num(mine), np.nan_to_num(theirs), atol=0.05)
    mask = np.zeros((300, 401), bool)
    mask[90:200, 100:300] = True
    assert (measured.mask(mask) != known.mask(mask)).float().mean() < 0.02
    boxes = [[100, 90, 300, 200]]
    torch.testing.assert_close(
        measured.boxes(boxes, (401, 300)), known.boxes(boxes, (401, 300)), atol=0.3, rtol=0
    )


def test_no_map_lies_beside_the_photo_where_the_transform_pads() -> None:
    measured = MeasuredTransform(v1.Compose([letterbox, *END]))
    laid = measured.to_original(torch.rand(8, 8).numpy(), (400, 200))
    assert not np.isnan(laid).any()
    cropped = MeasuredTransform(v1.Compose([v1.Resize(72), v1.CenterCrop(64), *END]))
    assert np.isnan(cropped.to_original(torch.rand(8, 8).numpy(), (400, 200))).mean() > 0.4


def test_a_transform_of_many_channels_takes_tensors() -> None:
    measured = MeasuredTransform(
        v2.Compose(
            [
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize([0.5] * 5, [0.2] * 5),
                v2.Resize((32, 48), antialias=True),
            ]
        ),
        channels=5,
    )
    assert measured.channels == len(measured.mean) == 5
    photo = image_of_array(np.random.default_rng(0).random((60, 90, 5)))
    assert measured(photo).shape == (5, 32, 48)
    assert measured.box((90, 60)) == pytest.approx((0, 0, 90, 60), abs=0.3)
    with pytest.raises(ValueError, match="takes 5 channels, the photo has 3"):
        measured(Image.new("RGB", (90, 60)))


class Swirl:
    """A change of places that is no projection."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        pixels = functional.to_tensor(image.resize((64, 64)))
        v, u = torch.meshgrid(torch.linspace(-1, 1, 64), torch.linspace(-1, 1, 64), indexing="ij")
        angle = 2 * torch.exp(-(u**2 + v**2) * 2)
        grid = torch.stack(
            [u * angle.cos() - v * angle.sin(), u * angle.sin() + v * angle.cos()], -1
        )
        return F.grid_sample(pixels[None], grid[None], align_corners=True)[0]


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (v1.Compose([v1.Resize(72), v1.FiveCrop(64)]), "gives 5 images of a photo: expected one"),
        (
            v1.Compose(
                [
                    v1.Resize(72),
                    v1.FiveCrop(64),
                    v1.Lambda(lambda crops: torch.stack(list(map(v1.ToTensor(), crops)))),
                ]
            ),
            "gives 5 images of a photo: expected one",
        ),
        (v1.Compose([v1.RandomResizedCrop(64), *END]), "draws random numbers, .* for evaluation"),
        (v1.Compose([v1.Resize(64), *END]), "of 331 x 253 pixels and .* add a crop or a size"),
        (lambda image: image.resize((64, 64)), "type Image: expected a tensor .* ToTensor"),
        (v1.Compose([v1.Resize((64, 64)), v1.PILToTensor()]), "gives torch.uint8: expected floats"),
        (lambda image: image["pixels"], "the transform takes no photo: an image: TypeError"),
        (v1.Compose([Swirl()]), "more than move, stretch, turn, tilt or pad a photo"),
        (lambda image: torch.zeros(3, 32, 32), "does not tell light from dark photos"),
        (lambda image: torch.zeros(32, 32), "gives 32 x 32: expected a tensor"),
    ],
)
def test_a_transform_that_does_not_do_is_refused_in_a_line(
    transform: Callable[..., Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        MeasuredTransform(transform)
    assert "\n" not in str(caught.value)


def test_a_geometry_there_and_back() -> None:
    turn = Geometry(np.array([[0.0, -2, 90], [3, 0.1, 4], [1e-3, 0, 1]]))
    u, v = np.random.default_rng(0).random((2, 7)) * 60
    back = turn.on_input(*turn.on_photo(u, v))
    np.testing.assert_allclose(np.stack(back), np.stack([u, v]), atol=1e-9)
    assert not turn.upright


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_channels_are_kept(count: int) -> None:
    array = np.random.default_rng(0).integers(0, 256, (5, 6, count), np.uint8)
    image = image_of_array(array)
    assert (image.size, image.mode) == ((6, 5), "RGB")
    kept = channels_of(image, None if count == 3 else count)
    assert np.array_equal(kept, np.moveaxis(array, 2, 0))
    same = image_of_tensor(torch.from_numpy(np.moveaxis(array, 2, 0).copy()).float() / 255)
    assert np.array_equal(channels_of(same, count), kept)
    with pytest.raises(ValueError, match=f"takes 5 channels, the photo has {count}: give an array"):
        channels_of(image, 5)


@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_channels_of_a_changed_image_are_those_that_it_shows(count: int) -> None:
    array = np.random.default_rng(0).integers(0, 256, (6, 6, count), np.uint8)
    image = image_of_array(array)
    assert np.array_equal(channels_of(image.copy(), count), np.moveaxis(array, 2, 0))
    mirrored = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    for changed in (mirrored, image.crop((1, 2, 5, 4)), mirrored.convert("HSV")):
        shown = np.moveaxis(np.asarray(changed.convert("RGB")), 2, 0)
        assert np.array_equal(channels_of(changed, 3), shown)
        if count == 1 and changed.mode == "RGB":
            assert np.array_equal(channels_of(changed, 1), shown[:1])
        if count > 1:
            with pytest.raises(ValueError, match=f"takes {count} channels, the photo has 3"):
                channels_of(changed, count)


def test_bands_of_an_image_are_channels_where_the_network_has_as_many() -> None:
    rgba = Image.new("RGBA", (6, 5), (10, 20, 30, 40))
    assert channels_of(rgba, 4)[:, 0, 0].tolist() == [10, 20, 30, 40]
    assert channels_of(Image.new("RGB", (6, 5), (10, 20, 30)), 1)[0, 0, 0] == 18  # ITU-R 601


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: image_of_tensor(torch.zeros(2, 3, 4, 4)), r"got \(2, 3, 4, 4\); give a list"),
        (lambda: image_of_tensor(torch.randn(3, 4, 4)), "from 0 to 1, got .* before it is normal"),
        (lambda: image_of_tensor(torch.zeros(3, 4, 4, dtype=torch.int64)), "must be uint8, or fl"),
        (lambda: image_of_array(np.zeros((3,), np.uint8)), "an image as an array must be"),
        (lambda: image_of_array(np.zeros((0, 4, 3), np.uint8)), "must not be empty"),
    ],
)
def test_arrays_that_are_no_photos_are_refused(
    make: Callable[..., Image.Image], message: str
) -> None:
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("count", [1, 4, 5])
def test_a_preprocess_of_other_channels_resizes_each_as_it_does_colours(count: int) -> None:
    rng = np.random.default_rng(0)
    array = rng.integers(0, 256, (41, 60, count), np.uint8)
    mean, std = tuple(np.linspace(0.3, 0.6, count)), tuple(np.linspace(0.1, 0.4, count))
    many = Preprocess((16, 24), mean, std, crop_pct=0.9)
    found = many(image_of_array(array))
    for channel in range(count):
        one = Preprocess(
            (16, 24), mean[channel : channel + 1] * 3, std[channel : channel + 1] * 3, crop_pct=0.9
        )
        colours = Image.fromarray(np.repeat(array[..., channel : channel + 1], 3, axis=2))
        torch.testing.assert_close(found[channel], one(colours)[0])
    with pytest.raises(ValueError, match="a mean and a positive std for each channel"):
        Preprocess((16, 24), mean, std[:-1])
