"""From stored numbers to 8 bits: only what is certain, and never black or white in silence."""

import re
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, TiffImagePlugin

from vision_attn.data import ImageError, ImageFolder, Preprocess, read_image
from vision_attn.data.draws import Draws
from vision_attn.data.images import to_rgb

MEAN, STD = (0.0,) * 3, (1.0,) * 3
RNG = np.random.default_rng(0)


def ramp(low: float, high: float, dtype: Any, shape: tuple[int, int] = (31, 37)) -> np.ndarray:
    return np.linspace(low, high, np.prod(shape)).reshape(shape).astype(dtype)


def linear(values: np.ndarray, low: float, high: Any) -> np.ndarray:
    """The oracle: black at low, white at high, in float64."""
    scaled = (values.astype(np.float64) - low) / (high - low) * 255
    return np.clip(np.rint(scaled), 0, 255).astype(np.uint8)


def write(path: Path, values: np.ndarray, **tags: Any) -> Path:
    """A TIFF by OpenCV, which knows every type, or by Pillow with tags."""
    if not tags:
        assert cv2.imwrite(str(path), values)
        return path
    directory = TiffImagePlugin.ImageFileDirectory_v2()
    for number, value in tags.items():
        directory[int(number[1:])] = value
    Image.fromarray(values).save(path, tiffinfo=directory)
    return path


def grey(path: Path, value_range: tuple[float, float] | None = None) -> np.ndarray:
    pixels = np.asarray(read_image(path, value_range=value_range))
    assert (pixels == pixels[..., :1]).all()
    return pixels[..., 0]


UNCERTAIN = {
    "12 bits in 16": (ramp(0, 4095, np.uint16), "16-bit numbers run from 0 to 4095", "0 4095"),
    "10 bits in 16": (ramp(3, 1000, np.uint16), "16-bit numbers run from 3 to 1000", "0 1023"),
    "14 bits in 16": (ramp(0, 16_383, np.uint16), "from 0 to 16383", "0 16383"),
    "CT": (ramp(-1024, 3071, np.int16), "signed 16-bit numbers run from -1024", "-1024 3071"),
    "signed bytes": (
        ramp(-100, 99, np.int8),
        "signed 8-bit numbers run from -100 to 99",
        "-100 99",
    ),
    "int32": (ramp(0, 70_000, np.int32), "signed 32-bit numbers run from 0 to 70000", "0 131071"),
    "float grey": (ramp(0, 255, np.float32), "float 32-bit numbers run from 0 to 255", "0 255"),
    "float signed": (ramp(-1, 1, np.float32), "float 32-bit numbers run from -1 to 1", "-1 1"),
    "float large": (ramp(0, 1e6, np.float32), "run from 0 to 1000000", "0 1000000"),
}


@pytest.mark.parametrize("name", UNCERTAIN)
def test_what_is_not_certain_is_refused_with_what_was_found_and_what_to_give(
    tmp_path: Path, name: str
) -> None:
    values, found, give = UNCERTAIN[name]
    path = write(tmp_path / "a.tif", values)
    with pytest.raises(ImageError) as caught:
        read_image(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: its ")
    assert found in text
    assert f"--value-range {give} (value_range=({give.replace(' ', ', ')})" in text
    assert "damaged" not in text
    black, white = map(float, give.split())
    np.testing.assert_array_equal(grey(path, (black, white)), linear(values, black, white))


CERTAIN = {
    "16 bits": (ramp(0, 65_535, np.uint16), lambda values: values >> 8),
    "more than 14 bits": (ramp(0, 16_384, np.uint16), lambda values: values >> 8),
    "floats of 0 to 1": (ramp(0, 1, np.float32), lambda values: linear(values, 0, 1)),
    "dark floats": (ramp(0.1, 0.2, np.float32), lambda values: linear(values, 0, 1)),
    "8 bits": (ramp(0, 255, np.uint8), lambda values: values),
    "dark 8 bits": (ramp(0, 9, np.uint8), lambda values: values),
}


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        (name, suffix)
        for name in CERTAIN
        for suffix in ("tif", "png")
        if suffix == "tif" or "float" not in name
    ],
)
def test_what_is_certain_is_read_as_it_is(tmp_path: Path, name: Any, suffix: Any) -> None:
    values, expected = CERTAIN[name]
    path = write(tmp_path / f"a.{suffix}", values)
    np.testing.assert_array_equal(grey(path), expected(values))


TAGS: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "MaxSampleValue": ({"t281": 4095}, (0, 4095)),
    "Min and MaxSampleValue": ({"t280": 100, "t281": 4000}, (100, 4000)),
    "SMaxSampleValue": ({"t341": 5000.0}, (0, 5000)),
    "SMin and SMaxSampleValue": ({"t340": 0.0, "t341": 4095.0}, (0, 4095)),
    "ImageJ": ({"t270": "ImageJ=1.53t\nimages=1\nmin=200.0\nmax=3000.0\n"}, (200, 3000)),
    "OME": ({"t270": '<OME><Pixels SignificantBits="12" Type="uint16"/></OME>'}, (0, 4095)),
}


@pytest.mark.parametrize("name", TAGS)
def test_a_files_own_tags_say_its_range_and_the_users_is_first(tmp_path: Path, name: str) -> None:
    tags, (black, white) = TAGS[name]
    values = ramp(100, 4000, np.uint16)
    path = write(tmp_path / "a.tif", values, **tags)
    np.testing.assert_array_equal(grey(path), linear(values, black, white))
    np.testing.assert_array_equal(grey(path, (0, 8000)), linear(values, 0, 8000))


@pytest.mark.parametrize("tags", [{"t281": 255}, {"t281": 65_535}, {"t280": 500, "t281": 4095}])
def test_tags_that_the_numbers_contradict_or_that_nobody_set_say_nothing(
    tmp_path: Path, tags: dict[str, int]
) -> None:
    path = write(tmp_path / "a.tif", ramp(100, 4000, np.uint16), **tags)
    with pytest.raises(ImageError, match="16-bit numbers run from 100 to 4000"):
        read_image(path)


def test_12_bits_that_a_tiff_packs_are_12_bits(tmp_path: Path) -> None:
    values = ramp(0, 4095, np.uint16, (6, 8))
    pairs = values.reshape(-1, 2).astype(np.uint32)
    packed = np.stack(
        [pairs[:, 0] >> 4, (pairs[:, 0] & 15) << 4 | pairs[:, 1] >> 8, pairs[:, 1] & 255], 1
    )
    Image.fromarray(np.zeros((6, 8), np.uint16)).save(tmp_path / "a.tif")
    content = bytearray((tmp_path / "a.tif").read_bytes())
    image: Any
    with Image.open(tmp_path / "a.tif") as image:
        place = image.tag_v2[273][0]
    entry = content.index((258).to_bytes(2, "little"))
    content[entry + 8 : entry + 10] = (12).to_bytes(2, "little")
    content[place:] = packed.astype(np.uint8).tobytes()
    entry = content.index((279).to_bytes(2, "little"))
    content[entry + 8 : entry + 12] = packed.size.to_bytes(4, "little")
    (tmp_path / "b.tif").write_bytes(content)
    np.testing.assert_array_equal(grey(tmp_path / "b.tif"), linear(values, 0, 4095))


def test_where_0_is_white_it_is_white(tmp_path: Path) -> None:
    values = ramp(0, 65_535, np.uint16)
    path = write(tmp_path / "a.tif", values, t262=1)
    content = bytearray(path.read_bytes())
    entry = content.index((262).to_bytes(2, "little"))
    content[entry + 8] = 0
    path.write_bytes(content)
    np.testing.assert_array_equal(grey(path), 255 - (values >> 8))


@pytest.mark.parametrize("most", [1023, 4095, 65_535])
def test_the_header_of_a_pgm_says_its_range(tmp_path: Path, most: int) -> None:
    values = ramp(0, most // 3, np.uint16)
    header = f"P5\n{values.shape[1]} {values.shape[0]}\n{most}\n".encode()
    (tmp_path / "a.pgm").write_bytes(header + values.astype(">u2").tobytes())
    off = grey(tmp_path / "a.pgm").astype(int) - linear(values, 0, most)
    assert np.abs(off).max() <= 1


@pytest.mark.parametrize("suffix", ["tif", "png"])
@pytest.mark.parametrize("channels", [3, 4])
def test_colours_of_16_bits_follow_the_rule(tmp_path: Path, suffix: str, channels: int) -> None:
    values = RNG.integers(0, 4096, (23, 29, channels), dtype=np.uint16)
    if channels == 4:
        values[..., 3] = 65_535
    path = tmp_path / f"a.{suffix}"
    assert cv2.imwrite(str(path), values)
    colours = values[..., :3][..., ::-1]  # OpenCV has blue first
    with pytest.raises(
        ImageError, match=f"16-bit numbers run from {colours.min()} to {colours.max()}"
    ):
        read_image(path)
    np.testing.assert_array_equal(read_image(path, value_range=(0, 4095)), linear(colours, 0, 4095))
    bright = values.copy()
    bright[..., :3] *= 16
    assert cv2.imwrite(str(path), bright)
    np.testing.assert_array_equal(read_image(path), bright[..., :3][..., ::-1] >> 8)


def test_a_range_of_8_bits_stretches_8_bits_and_a_wider_one_is_refused(tmp_path: Path) -> None:
    values = RNG.integers(0, 256, (23, 29, 3), dtype=np.uint8)
    Image.fromarray(values).save(tmp_path / "a.png")
    np.testing.assert_array_equal(
        read_image(tmp_path / "a.png", value_range=(20, 120)), linear(values, 20, 120)
    )
    with pytest.raises(ImageError, match="8-bit numbers run from 0 to 255, the value range from 0"):
        read_image(tmp_path / "a.png", value_range=(0, 4095))


def test_bool_is_black_and_white(tmp_path: Path) -> None:
    Image.fromarray(np.eye(5) > 0).save(tmp_path / "a.tif")
    np.testing.assert_array_equal(grey(tmp_path / "a.tif"), np.eye(5, dtype=np.uint8) * 255)


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    values = ramp(0, 1, np.float32)
    values[0, :3] = np.nan, np.inf, -np.inf
    write(tmp_path / "a.tif", values)
    assert grey(tmp_path / "a.tif")[0, :3].tolist() == [0, 255, 0]
    write(tmp_path / "a.tif", values * np.nan)
    with pytest.raises(ImageError, match="no number of it is finite"):
        read_image(tmp_path / "a.tif")


@pytest.mark.parametrize("value_range", [(1, 1), (2, 1), (0,), (0, 1, 2), "ab", 3, (0, np.inf)])
def test_a_range_that_is_none_is_refused(value_range: str | int | tuple[float, ...]) -> None:
    from vision_attn.data.ranges import checked_value_range

    with pytest.raises(
        ValueError, match=r"value_range: expected the numbers of black and of white"
    ):
        checked_value_range(value_range)


def test_a_preprocessing_reads_by_its_range_and_scales_once(tmp_path: Path) -> None:
    values = ramp(0, 4095, np.uint16)
    path = write(tmp_path / "a.tif", values)
    preprocess = Preprocess(values.shape, MEAN, STD, value_range=(0, 4095))
    expected = linear(values, 0, 4095)
    photo = preprocess.read(path)
    for image in (path, photo, photo.copy(), Image.fromarray(values), Image.open(path)):
        given = (preprocess(image)[0] * 255).round().numpy().astype(np.uint8)
        np.testing.assert_array_equal(given, expected)
    assert to_rgb(photo) is photo


@pytest.mark.parametrize("storage", ["memory", "cache", "stream"])
def test_training_reads_by_the_range_and_the_checkpoint_keeps_it(
    tmp_path: Path, storage: str
) -> None:
    from vision_attn.data import DataError, ImageData

    for name, low in (("dark", 0), ("light", 2000)):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(4):
            write(tmp_path / "set" / name / f"{i}.tif", ramp(low, low + 2000, np.uint16, (16, 16)))
    how: dict[str, Any] = {"size": 16, "shorter_side": 16, "storage": storage, "workers": 0}
    with pytest.raises(DataError, match="value_range"):
        ImageData(ImageFolder("set", **how), root=str(tmp_path)).setup("fit")
    data = ImageData(ImageFolder("set", **how, value_range=(0, 4095)), root=str(tmp_path))
    data.setup("fit")
    items = np.array([0])
    pixels = data.splits.test.fetch(items, Draws(0, 0, items))[0, 0].numpy()
    np.testing.assert_array_equal(pixels, linear(ramp(0, 2000, np.uint16, (16, 16)), 0, 4095))
    assert data.preprocess.value_range == (0, 4095)
    kept = data.state_dict()["preprocess"]
    assert Preprocess(**kept) == data.preprocess
    assert re.search("0to4095", str(list((tmp_path / ".cache").iterdir()))) or storage != "cache"
