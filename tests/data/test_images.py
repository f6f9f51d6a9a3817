"""What may be opened as an image, and what must not: other formats, pipes, loops, giants."""

import os
import re
import socket
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

import vision_attn
from vision_attn.cli import main
from vision_attn.data.images import (
    MOST_PIXELS,
    ImageError,
    find_images,
    max_pixels,
    open_image,
    read_image,
)

POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n{ } loop\n"
linux = pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")


@pytest.mark.parametrize("name", ["x.png", "x.jpg", "x.eps"])
def test_postscript_starts_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def run(*args: Any, **options: Any) -> None:
        raise AssertionError("Ghostscript was started")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", run)
    (tmp_path / name).write_bytes(POSTSCRIPT)
    with pytest.raises(ImageError, match=rf"{name}: expected an image \(JPEG, PNG, .*\), got text"):
        read_image(tmp_path / name)


def test_images_are_opened_in_one_place() -> None:
    """By the list of formats; Pillow's own `open` would try every format that it knows."""
    package = Path(vision_attn.__file__).parent
    opening = [
        p for p in package.rglob("*.py") if re.search(r"\bImage\.open\(|imread", p.read_text())
    ]
    assert [path.relative_to(package).as_posix() for path in opening] == ["data/images.py"]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_every_format_is_known_by_its_content(tmp_path: Path, kind: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 11, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo", kind)
    with Image.open(tmp_path / "photo") as expected:
        whole = np.asarray(expected.convert("RGB"))
    np.testing.assert_array_equal(np.asarray(read_image(tmp_path / "photo")), whole)


@pytest.fixture
def odd(photos: Path) -> Path:
    """The photos' folder with a pipe, a socket, two loops, a dead link and a link to a device."""
    os.mkfifo(photos / "pipe.png")
    with socket.socket(socket.AF_UNIX) as listener:
        earlier = os.getcwd()
        os.chdir(photos)  # a socket's path is short
        listener.bind("socket.png")
        os.chdir(earlier)
    (photos / "a-loop.png").symlink_to("b-loop.png")
    (photos / "b-loop.png").symlink_to("a-loop.png")
    (photos / "dead.png").symlink_to("nowhere.png")
    (photos / "device.png").symlink_to("/dev/zero")
    return photos


@linux
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pipe.png", "expected a file, got a named pipe"),
        ("socket.png", "expected a file, got a socket"),
        ("device.png", "expected a file, got a device"),
        ("a-loop.png", "Too many levels of symbolic links"),
        ("dead.png", "no such file: check the path"),
    ],
)
def test_only_regular_files_are_read(odd: Path, name: str, message: str) -> None:
    with pytest.raises(ImageError, match=rf"{name}: .*{message}"):
        read_image(odd / name)


@linux
def test_a_loop_given_by_name_is_one_line(odd: Path) -> None:
    message = r"a-loop.png: cannot be reached \(Too many levels of symbolic links\)"
    with pytest.raises(ImageError, match=message):
        find_images([odd / "a-loop.png"])


@linux
@pytest.mark.parametrize("command", ["explain", "score"])
def test_odd_files_cost_a_line_each_and_the_rest_is_done(
    odd: Path,
    models: Callable[[str], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *args, **more: pytest.fail("started"))
    (odd / "script.png").write_bytes(POSTSCRIPT)
    words = [command, models("vit"), odd, "--method", "EdgeMap", "-o", tmp_path / "out"]
    words += ["--sanity", 0, "--steps", 2] if command == "score" else []
    main([str(word) for word in words])
    error = capsys.readouterr().err
    for name in ("pipe", "socket", "a-loop", "b-loop", "dead", "device", "script"):
        assert sum(f"{name}.png: " in line for line in error.splitlines()) == 1, error
    assert sum("error: " in line for line in error.splitlines()) == 7
    if command == "explain":
        assert len(list((tmp_path / "out").glob("*.EdgeMap.png"))) == 3


@pytest.fixture
def giant(tmp_path: Path) -> Path:
    """A PNG of 13,300 x 13,300 pixels in a few kilobytes."""
    path = tmp_path / "giant.png"
    Image.new("1", (13_300, 13_300)).save(path)
    assert path.stat().st_size < 40_000
    return path


def test_an_image_of_too_many_pixels_is_not_decoded(
    giant: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = []
    load = Image.Image.load
    monkeypatch.setattr(Image.Image, "load", lambda image: decoded.append(image) or load(image))
    message = rf"giant.png: 13300 x 13300 pixels are more than the {MOST_PIXELS:,} allowed"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Pillow has a warning of its own
        with pytest.raises(ImageError, match=message):
            read_image(giant)
    assert decoded == []


def test_the_bound_on_pixels_is_the_users(
    photos: Path, giant: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pillows = Image.MAX_IMAGE_PIXELS
    monkeypatch.setenv("VISION_ATTN_MAX_PIXELS", str(331 * 401))
    assert read_image(photos / "cat.png").size == (401, 331)
    with pytest.raises(ImageError, match="500 pixels are more than the 132,731 allowed"):
        read_image(photos / "dog.jpg")
    monkeypatch.setenv("VISION_ATTN_MAX_PIXELS", str(13_300**2))
    with open_image(giant) as image:
        assert image.size == (13_300, 13_300)
    assert pillows == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize("text", ["0", "-3", "many", "1e8", ""])
def test_a_bound_that_is_none_is_one_line(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("VISION_ATTN_MAX_PIXELS", text)
    with pytest.raises(ValueError, match="VISION_ATTN_MAX_PIXELS: expected a whole number above 0"):
        max_pixels()


def test_max_pixels_on_the_command_line_holds_for_one_command(
    photos: Path, models: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["explain", models("vit"), str(photos), "--method", "EdgeMap"]
    words += ["--max-pixels", "2400", "-o", str(tmp_path / "out")]
    assert main(words) == 1
    output = capsys.readouterr()
    assert "1 of 3 images explained" in output.out
    assert output.err.count("pixels are more than the 2,400 allowed: scale it down") == 2
    assert max_pixels() == MOST_PIXELS


def test_a_large_jpeg_is_decoded_small_enough_to_be_quick_and_large_enough_to_be_right(
    tmp_path: Path,
) -> None:
    coarse = np.random.default_rng(0).integers(0, 256, (9, 13, 3), dtype=np.uint8)
    photo = Image.fromarray(coarse).resize((1300, 900), Image.Resampling.BICUBIC)
    photo.save(tmp_path / "photo.jpg", quality=95)
    whole, small = read_image(tmp_path / "photo.jpg"), read_image(tmp_path / "photo.jpg", 100)
    assert (whole.size, small.size) == ((1300, 900), (325, 225))
    reduced = [
        np.asarray(image.resize((144, 100), Image.Resampling.BILINEAR)).astype(float)
        for image in (whole, small)
    ]
    assert np.abs(reduced[0] - reduced[1]).mean() < 1
    assert read_image(tmp_path / "photo.jpg", 500).size == (1300, 900)
