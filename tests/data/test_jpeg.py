"""Plain JPEGs: the pixels of Pillow, which reads all that is not plain."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vision_attn.data.images import decode_image
from vision_attn.data.jpeg import jpeg_size, plain_jpeg
from vision_attn.data.photos import FilePhotos, Photos


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth colours with grain."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (height // 9 + 1, width // 9 + 1, 3), dtype=np.uint8)
    smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    grain = rng.normal(0, 9, (height, width, 3))
    return Image.fromarray((np.asarray(smooth) + grain).clip(0, 255).astype(np.uint8))


def encoded(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


PLAIN = {
    "usual": {},
    "rough": {"quality": 30},
    "fine": {"quality": 97, "subsampling": "4:4:4"},
    "half": {"subsampling": "4:2:2"},
    "progressive": {"progressive": True},
    "own tables": {"optimize": True},
    "restarts": {"restart_marker_blocks": 3},
    "comment": {"comment": b"a comment"},
    "profile": {"icc_profile": bytes(70_000)},
    "red, green, blue": {"keep_rgb": True},
}


@pytest.mark.parametrize("options", PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize(("side", "reduced"), [(None, 1), (400, 1), (100, 2), (50, 4), (11, 8)])
def test_pixels_are_pillows(options: dict[str, Any], side: int | None, reduced: int) -> None:
    data = encoded(photo(613, 403), **options)
    assert jpeg_size(data) == (613, 403)
    found = plain_jpeg(data, side)
    assert found is not None
    assert found.shape == (-(-403 // reduced), -(-613 // reduced), 3)
    np.testing.assert_array_equal(found, np.asarray(decode_image(data, "a.jpg", side)))


def with_exif(orientation: int) -> dict[str, Any]:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return {"exif": exif}


def not_plain() -> dict[str, bytes]:
    image = photo(61, 43)
    whole = encoded(image)
    return {
        "grey": encoded(image.convert("L")),
        "four inks": encoded(image.convert("CMYK")),
        "turned": encoded(image, **with_exif(6)),
        "with XMP": encoded(image, xmp=b"<x:xmpmeta/>"),
        "several": encoded(image, "MPO", save_all=True, append_images=[photo(61, 43, 1)]),
        "PNG": encoded(image, "PNG"),
        "cut short": whole[: len(whole) // 2],
        "the header alone": whole[:20],
        "more after its end": whole + b"more",
        "no JPEG": b"\xff\xd8\xff" + bytes(40) + b"\xff\xd9",
        "nothing": b"",
    }


@pytest.mark.parametrize("name", not_plain())
def test_all_else_is_left_to_pillow(name: str) -> None:
    assert plain_jpeg(not_plain()[name]) is None


def test_a_photo_of_too_many_pixels_is_left_to_what_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = encoded(photo(61, 43))
    monkeypatch.setenv("VISION_ATTN_MAX_PIXELS", str(61 * 43))
    assert plain_jpeg(data) is not None
    monkeypatch.setenv("VISION_ATTN_MAX_PIXELS", str(61 * 43 - 1))
    assert plain_jpeg(data) is None


def test_damage_within_the_picture_shows_as_in_pillow(capfd: pytest.CaptureFixture[str]) -> None:
    data = bytearray(encoded(photo(613, 403)))
    data[len(data) // 2 : len(data) // 2 + 40] = bytes(40)
    found = plain_jpeg(bytes(data))
    np.testing.assert_array_equal(found, np.asarray(decode_image(bytes(data), "a.jpg")))


@pytest.mark.parametrize("side", [13, 43, 90])
def test_photos_are_as_if_pillow_read_them_all(tmp_path: Path, side: int) -> None:
    for name, data in {"plain": encoded(photo(61, 43)), **not_plain()}.items():
        (tmp_path / f"{name}.jpg").write_bytes(data)
    names = ["plain", "grey", "four inks", "turned", "with XMP", "several", "PNG"]
    photos = FilePhotos(tmp_path, [f"{name}.jpg" for name in names])

    class ByPillow(FilePhotos):
        jpeg = Photos.jpeg

    pillows = ByPillow(tmp_path, photos.names)
    for item in range(len(names)):
        np.testing.assert_array_equal(photos.pixels(item, side), pillows.pixels(item, side))
