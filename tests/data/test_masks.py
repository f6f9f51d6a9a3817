"""Which mask belongs to which photo, and which of its numbers are the object."""

import re
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image

from vision_attn.data import ImageError, read_image
from vision_attn.data.masks import Masks, read_mask, regions_of


def files(folder: Path, *names: Any) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (3, 2)).save(path)
    return folder


def found(folder: Any, photos: dict[str, str]) -> dict[Any, Any]:
    masks = Masks(folder, photos)
    below = {photo: masks.of(photo) for photo in photos}
    return {
        photo: None if mask is None else mask.relative_to(folder).as_posix()
        for photo, mask in below.items()
    }


def test_a_mask_has_the_path_of_its_photo_and_its_exact_stem(tmp_path: Path) -> None:
    masks = files(tmp_path, "circle/1.png", "square/1.tif", "cat.2.png", "2.png", "deep/er/3.png")
    photos = ["circle/1.jpg", "square/1.jpg", "cat.jpg", "cat.2.jpg", "circle/2.jpg", "er/3.jpg"]
    assert found(masks, {f"in/{name}": name for name in photos}) == {
        "in/circle/1.jpg": "circle/1.png",
        "in/square/1.jpg": "square/1.tif",
        "in/cat.jpg": None,
        "in/cat.2.jpg": "cat.2.png",
        "in/circle/2.jpg": None,
        "in/er/3.jpg": None,
    }


def test_a_photo_named_itself_has_the_mask_of_as_much_of_its_path_as_there_is(
    tmp_path: Path,
) -> None:
    masks = files(tmp_path, "circle/1.png", "square/1.png", "3.png")
    photos = {f"in/{place}": place.split("/")[1] for place in ("circle/1.jpg", "square/1.jpg")}
    photos |= {"in/circle/3.jpg": "3.jpg", "in/star/1.jpg": "1.jpg"}
    assert list(found(masks, photos).values()) == ["circle/1.png", "square/1.png", "3.png", None]


def test_doubles_are_refused_by_name_and_the_others_are_not(tmp_path: Path) -> None:
    masks = files(tmp_path, "a.png", "a.tif", "b.png", "c.png")
    photos = {f"in/{name}": name for name in ("a.jpg", "b.jpg", "b.webp", "c.jpg")}
    assert list(found(masks, photos).values()) == [None, None, None, "c.png"]
    lines = Masks(masks, photos).problems
    assert len(lines) == 3
    assert lines[0] == f"in/a.jpg: 2 masks for this image ({masks}/a.png, {masks}/a.tif): leave one"
    expected = f"{masks}/b.png would be the mask of 2 images (in/b.jpg, in/b.webp)"
    assert lines[1:] == [
        f"{name}: {expected}: give each one of its own" for name in list(photos)[1:3]
    ]


def test_two_photos_of_one_name_in_two_folders_share_no_mask(tmp_path: Path) -> None:
    masks = files(tmp_path, "1.png")
    assert set(found(masks, {"circle/1.jpg": "1.jpg", "square/1.jpg": "1.jpg"}).values()) == {None}


def test_a_photo_is_not_its_own_mask(tmp_path: Path) -> None:
    folder = files(tmp_path, "a.png", "b.png")
    assert found(folder, {f"{folder}/a.png": "a.png", f"{folder}/b.jpg": "b.jpg"}) == {
        f"{folder}/a.png": None,
        f"{folder}/b.jpg": "b.png",
    }


def test_letters_may_be_written_either_way(tmp_path: Path) -> None:
    composed, apart = (unicodedata.normalize(form, "été") for form in ("NFC", "NFD"))
    masks = files(tmp_path, f"{apart}.png")
    assert list(found(masks, {f"in/{composed}.jpg": f"{composed}.jpg"}).values()) == [
        f"{apart}.png"
    ]


def square(*counts: tuple[int, int]) -> np.ndarray:
    """40 x 40 of 0, with a square of 255 of 20 x 20, and so many pixels of each number, apart."""
    values = np.zeros((40, 40), np.uint8)
    values[10:30, 10:30] = 255
    free = [(y, x) for y in range(1, 40, 3) for x in range(1, 40, 3)]
    for number, count in counts:
        for _ in range(count):
            values[free.pop()] = number
    return values


@pytest.mark.parametrize("number", [1, 7, 20])
@pytest.mark.parametrize("count", [1, 3, 17])
def test_a_few_stray_pixels_do_not_make_the_object_a_border(number: int, count: int) -> None:
    values = square((number, count))
    inside, ignored, note = regions_of(values)
    np.testing.assert_array_equal(inside, values == 255)
    np.testing.assert_array_equal(ignored, values == number)
    pixels = "pixel" if count == 1 else "pixels"
    assert note.startswith(f"{count} stray {pixels} of 1 to 20 beside ")
    assert "255 is taken as the object" in note


def test_where_numbers_are_many_or_hang_together_255_is_a_border() -> None:
    many = square((3, 40))
    blob = square()
    blob[0:4, 0:4] = 5
    for values, number in ((many, 3), (blob, 5)):
        inside, ignored, note = regions_of(values)
        np.testing.assert_array_equal(inside, values == number)
        np.testing.assert_array_equal(ignored, values == 255)
        assert note == ""


def test_a_small_object_of_pascal_voc_keeps_its_border() -> None:
    """3 x 3 pixels in a border of five all around."""
    values = np.zeros((40, 40), np.uint8)
    values[10:23, 10:23] = 255
    values[15:18, 15:18] = 12
    inside, ignored, _ = regions_of(values)
    np.testing.assert_array_equal(inside, values == 12)
    np.testing.assert_array_equal(ignored, values == 255)


def test_what_was_decided_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Image.fromarray(square((9, 2))).save(tmp_path / "a.png")
    for _ in range(2):
        read_mask(tmp_path / "a.png", (40, 40))
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"{tmp_path / 'a.png'}: 2 stray pixels")


def test_other_masks_are_refused_in_a_line(tmp_path: Path) -> None:
    for image, size, told in [
        (Image.new("RGB", (5, 3)), (5, 3), "expected a mask with one number per pixel (a grey or"),
        (Image.new("L", (5, 3), 1), (3, 5), "the mask is 5 x 3, its image 3 x 5: save it at"),
        (Image.new("L", (5, 3), 77), (5, 3), "the mask holds 77: expected 0 background, 1 to 20"),
    ]:
        image.save(tmp_path / "m.png")
        with pytest.raises(ImageError, match=re.escape(f"{tmp_path / 'm.png'}: {told}")):
            read_mask(tmp_path / "m.png", size)
    shown = read_mask(tmp_path / "m.png", (5, 3), any_numbers=True)
    assert shown.inside.all()
    assert not shown.ignored.any()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_mask_drawn_before_its_photo_was_turned_is_turned_with_it(
    orientation: int, tmp_path: Path
) -> None:
    """The corner that is white in the photo is the object, whichever way EXIF turns both."""
    stored = np.zeros((8, 16, 3), np.uint8)
    stored[:3, :5] = 255
    photo = Image.fromarray(stored)
    exif = photo.getexif()
    exif[ExifTags.Base.Orientation] = orientation
    photo.save(tmp_path / "a.png", exif=exif)
    upright = np.asarray(read_image(tmp_path / "a.png"))[..., 0] == 255
    sideways = orientation >= 5
    drawn = stored[..., 0] if sideways else np.where(upright, 255, 0).astype(np.uint8)
    Image.fromarray(drawn).save(tmp_path / "m.png")
    size = upright.shape[::-1]
    found = read_mask(tmp_path / "m.png", size, photo=tmp_path / "a.png")
    np.testing.assert_array_equal(found.inside, upright)
    if sideways:
        with pytest.raises(ImageError, match="the mask is 16 x 8, its image 8 x 16"):
            read_mask(tmp_path / "m.png", size)
