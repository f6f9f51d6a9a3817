from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vision_attn.data import ImageError, Preprocess, find_images
from vision_attn.data.images import to_rgb
from vision_attn.data.preprocess import read_image

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def photo(height: int, width: int) -> Image.Image:
    rng = np.random.default_rng(0)
    small = rng.integers(0, 256, (height // 7 + 2, width // 7 + 2, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA", "P", "1", "CMYK", "I;16", "I", "F"])
def test_every_kind_of_pixel_reads_as_the_same_grey(tmp_path: Path, mode: str) -> None:
    values = {"I;16": 128 << 8, "I": 128 << 8, "F": 128 / 255, "1": 255}
    if mode in ("I;16", "I", "F"):
        dtype = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
        image = Image.fromarray(np.full((5, 7), values[mode], dtype))
    else:
        image = Image.new("L", (7, 5), values.get(mode, 128)).convert(mode)
    path = tmp_path / "image.tif"
    image.save(path)
    pixels = np.asarray(read_image(path, value_range=(0, 65_535) if mode == "I" else None))
    assert pixels.shape == (5, 7, 3)
    assert np.abs(pixels.astype(int) - (255 if mode == "1" else 128)).max() <= 1


def test_16_bit_png_keeps_its_upper_bits(tmp_path: Path) -> None:
    grey = np.arange(35, dtype=np.uint16).reshape(5, 7) * 1801
    Image.fromarray(grey).save(tmp_path / "deep.png")
    np.testing.assert_array_equal(np.asarray(read_image(tmp_path / "deep.png"))[..., 1], grey >> 8)


def test_transparent_pixels_show_white(tmp_path: Path) -> None:
    rgba = np.zeros((5, 7, 4), np.uint8)
    rgba[2, 3] = 10, 20, 30, 255
    Image.fromarray(rgba).save(tmp_path / "alpha.png")
    Image.fromarray(rgba).quantize().save(tmp_path / "palette.png")
    for name in ("alpha.png", "palette.png"):
        pixels = np.asarray(read_image(tmp_path / name))
        assert tuple(pixels[0, 0]) == (255, 255, 255)
        assert tuple(pixels[2, 3]) == (10, 20, 30)


def save_turned(upright: Image.Image, orientation: int, path: Path) -> None:
    """Save a photo as a camera that was held that way does."""
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # transpositions that EXIF will take back
    stored = upright.transpose(Image.Transpose(undo[orientation])) if orientation > 1 else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(path, exif=exif)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path: Path, orientation: int) -> None:
    upright = photo(23, 41)
    save_turned(upright, orientation, tmp_path / "turned.png")
    np.testing.assert_array_equal(read_image(tmp_path / "turned.png"), upright)


@pytest.mark.parametrize("name", ["turned.png", "turned.tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_of_an_opened_image_is_applied_once(
    tmp_path: Path, orientation: int, name: str
) -> None:
    upright, preprocess = photo(23, 41), Preprocess((16, 24), MEAN, STD, crop_pct=0.9)
    save_turned(upright, orientation, tmp_path / name)
    expected = preprocess(upright)
    for decoded in (False, True):
        with Image.open(tmp_path / name) as image:
            if decoded:
                image.load()
            assert torch.equal(preprocess(image), expected)
            np.testing.assert_array_equal(to_rgb(image), upright)
            np.testing.assert_array_equal(to_rgb(to_rgb(image)), upright)
    assert torch.equal(preprocess(tmp_path / name), expected)


@pytest.mark.parametrize("mode", ["HSV", "L", "LA", "P", "1", "CMYK", "YCbCr", "RGBA", "RGBX"])
def test_an_image_read_before_is_read_again_in_another_mode(mode: str) -> None:
    changed = to_rgb(photo(23, 41)).convert(mode)
    fresh = changed.copy()
    fresh.info = {}
    again = to_rgb(changed)
    assert again.mode == "RGB"
    np.testing.assert_array_equal(again, to_rgb(fresh))
    preprocess = Preprocess((16, 24), MEAN, STD, crop_pct=0.9)
    assert torch.equal(preprocess(changed), preprocess(fresh))


def test_an_array_is_no_photo_of_a_preprocess() -> None:
    array = np.zeros((23, 41, 3), np.uint8)
    prepare: Any = getattr(Preprocess.__call__, "__wrapped__", Preprocess.__call__)
    for preprocess in (Preprocess((16, 24), MEAN, STD), Preprocess((16, 24), (0.5,), (0.5,))):
        with pytest.raises(ImageError, match=r"expected a PIL image or a path, got .* ndarray: "):
            prepare(preprocess, array)


def test_parts_made_transparent_after_reading_are_white() -> None:
    image = to_rgb(photo(23, 41))
    image.putalpha(0)
    assert to_rgb(image).getextrema() == ((255, 255),) * 3


@pytest.mark.parametrize("size", [(1, 1), (1, 9973), (9973, 1), (5477, 3651), (7, 5)])
def test_any_size_gives_the_input_size(size: tuple[int, int]) -> None:
    preprocess = Preprocess((37, 53), MEAN, STD, crop_pct=0.9)
    image = Image.new("RGB", size, (51, 102, 153))
    pixels = preprocess(image)
    expected = (torch.tensor([0.2, 0.4, 0.6]) - torch.tensor(MEAN)) / torch.tensor(STD)
    torch.testing.assert_close(pixels, expected[:, None, None].expand(3, 37, 53))


def _broken_files(folder: Path) -> None:
    photo(97, 101).save(folder / "whole.jpg")
    whole = (folder / "whole.jpg").read_bytes()
    (folder / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "text.jpg").write_text("not an image")
    (folder / "empty.png").write_bytes(b"")
    (folder / "bytes.png").write_bytes(bytes(range(200)))
    (folder / "folder.png").mkdir()
    photo(97, 101).save(folder / "whole.png")
    damaged = bytearray((folder / "whole.png").read_bytes())
    damaged[400:480] = bytes(80)
    (folder / "damaged.png").write_bytes(damaged)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing.jpg", "no such file"),
        ("cut.jpg", "cut short or damaged"),
        ("damaged.png", "cut short or damaged"),
        ("text.jpg", "got text"),
        ("empty.png", "got an empty file"),
        ("bytes.png", "got other data"),
        ("folder.png", "got a folder"),
    ],
)
def test_a_file_that_is_no_image_is_named_in_one_line(tmp_path: Path, name: str, says: str) -> None:
    _broken_files(tmp_path)
    with pytest.raises(ImageError) as caught:
        Preprocess((32, 32), MEAN, STD)(tmp_path / name)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / name))
    assert says in message
    assert "\n" not in message


@pytest.mark.parametrize("mode", ["center", "squash"])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("side", [(112, 112), (224, 224), (160, 224), (97, 61)])
def test_equals_timms_evaluation_transform_to_the_bit(
    side: tuple[int, int], interpolation: str, mode: str
) -> None:
    """Noise shows every difference; photos wide and tall, smaller and larger, of one side alone."""
    from timm.data import create_transform

    rng = np.random.default_rng(0)
    fit = "squash" if mode == "squash" else "crop"
    for crop_pct in (1.0, 0.875, 0.9, 0.95):
        oracle = create_transform(
            (3, *side), False, interpolation=interpolation, mean=(0.0,) * 3, std=(1.0,) * 3,
            crop_pct=crop_pct, crop_mode=mode,
        )  # fmt: skip
        preprocess = Preprocess(side, (0.0,) * 3, (1.0,) * 3, crop_pct, interpolation, fit)
        for height, width in ((211, 307), (307, 211), (601, 233), (40, 60), side, side[::-1]):
            image = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
            assert torch.equal(preprocess(image), oracle(image)), (crop_pct, height, width)


def test_of_a_photo_that_is_long_only_what_is_seen_is_resized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []
    resize = Image.Image.resize
    monkeypatch.setattr(
        Image.Image,
        "resize",
        lambda image, size, *a, **o: made.append(size) or resize(image, size, *a, **o),
    )
    for size in ((1, 90_000), (90_000, 1)):
        Preprocess((37, 53), MEAN, STD)(Image.new("RGB", size))
    assert all(width * height <= 2**24 for width, height in made)


def test_a_map_lands_where_the_network_looked() -> None:
    """A spot on a photo, preprocessed and mapped back, is the spot again; the rest is NaN."""
    H, W = 211, 503
    spots = np.zeros((H, W, 3), np.uint8)
    spots[90:130, 280:320] = 255
    preprocess = Preprocess((61, 89), (0.0,) * 3, (1.0,) * 3, crop_pct=0.8)
    seen = preprocess(Image.fromarray(spots))[0].numpy()
    back = preprocess.to_original(seen, (W, H))
    assert back.shape == (H, W)
    left, top, right, bottom = preprocess.box((W, H))
    inside = np.zeros((H, W), bool)
    inside[round(top) : round(bottom), round(left) : round(right)] = True
    np.testing.assert_array_equal(np.isnan(back), ~inside)
    wrong = (back[inside] > 0.5) != (spots[..., 0] > 0)[inside]
    assert wrong.sum() <= 8  # two pixels at each corner of the spot, rounded off


def test_to_original_is_bilinear_between_centres() -> None:
    """The whole photo seen: torch's interpolate (align_corners=False) is the oracle."""
    heatmap = np.random.default_rng(0).random((5, 7), dtype=np.float32)
    ours = Preprocess((32, 32), MEAN, STD, fit="squash").to_original(heatmap, (83, 47))
    oracle = torch.nn.functional.interpolate(
        torch.from_numpy(heatmap)[None, None], (47, 83), mode="bilinear"
    )[0, 0].numpy()
    np.testing.assert_allclose(ours, oracle, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"input_size": (0, 32)}, "input_size must be"),
        ({"mean": (0.5,)}, "expected a mean and a positive std for each channel"),
        ({"mean": (0.5, float("nan"), 0.5)}, "expected finite means and stds"),
        ({"std": (0.5, 0.0, 0.5)}, "a positive std for each channel"),
        ({"crop_pct": 0.0}, "crop_pct must be"),
        ({"fit": "pad"}, "fit must be one of crop, squash"),
        ({"interpolation": "cubic"}, "interpolation must be one of nearest, bilinear"),
    ],
)
def test_bad_fields_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Preprocess(**({"input_size": (32, 32), "mean": MEAN, "std": STD} | fields))


def test_find_images(tmp_path: Path) -> None:
    for name in ("b.png", "a.JPG", "sub/c.webp", ".hidden.png", "notes.txt", "odd.name"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    (tmp_path / "none").mkdir()
    found = find_images([tmp_path / "in" / "odd.name", tmp_path / "in", tmp_path / "in" / "b.png"])
    assert [path.relative_to(tmp_path / "in").as_posix() for path in found] == [
        "odd.name", "a.JPG", "b.png", "sub/c.webp",
    ]  # fmt: skip
    with pytest.raises(ImageError, match="no image in this folder"):
        find_images([tmp_path / "none"])
    with pytest.raises(ImageError, match="no such file or folder"):
        find_images([tmp_path / "gone"])


def test_masks_and_boxes_go_the_way_of_their_photo() -> None:
    """A white rectangle, its mask and its box land on the same pixels."""
    photo = np.zeros((90, 140, 3), np.uint8)
    photo[20:60, 40:100] = 255
    preprocess = Preprocess((32, 48), (0.0,) * 3, (1.0,) * 3, crop_pct=0.9)
    white = preprocess(Image.fromarray(photo))[0] > 0.5
    mask = preprocess.mask(photo[..., 0] > 0, (140, 90))
    assert (mask != white).float().mean() < 0.05
    assert torch.equal(mask, preprocess.mask(Image.fromarray(photo[..., 0])))
    ((left, top, right, bottom),) = preprocess.boxes([[40, 20, 100, 60]], (140, 90)).round().int()
    boxed = torch.zeros(32, 48, dtype=torch.bool)
    boxed[top:bottom, left:right] = True
    assert (boxed != white).float().mean() < 0.05
    assert preprocess.boxes([[0, 0, 2, 2]], (140, 90)).shape == (0, 4)  # beside the crop


@pytest.mark.parametrize("boxes", [[["a", 0, 1, 1]], [[None] * 4], [[0, 0, 1], [1]], {}, 3, [{}]])
def test_boxes_that_are_no_numbers(
    boxes: dict[Any, Any] | int | list[dict[Any, Any] | list[int | None]],
) -> None:
    preprocess = Preprocess((2, 2), (0.5,) * 3, (0.5,) * 3)
    with pytest.raises(ValueError, match=r"expected boxes \[left, top, right, bottom\]"):
        preprocess.boxes(boxes, (4, 2))


def test_masks_and_boxes_that_do_not_fit() -> None:
    preprocess = Preprocess((32, 48), (0.0,) * 3, (1.0,) * 3)
    with pytest.raises(ValueError, match="the mask is 5 x 3, its photo 50 x 30: save it at the ph"):
        preprocess.mask(np.ones((3, 5), bool), (50, 30))
    with pytest.raises(
        ValueError, match=r"one number per pixel, got an array of shape \(3, 5, 3\)"
    ):
        preprocess.mask(Image.new("RGB", (5, 3)))
    for boxes in ([[9, 0, 9, 9]], [[0, 0, 9]], [0, 0, 9, 9]):
        with pytest.raises(ValueError, match="left < right and top < bottom, got"):
            preprocess.boxes(boxes, (50, 30))
    with pytest.raises(ValueError, match="a box reaches beyond the photo of 50 x 30"):
        preprocess.boxes([[0, 0, 60, 9]], (50, 30))
