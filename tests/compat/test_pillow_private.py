"""What libtiff finds wrong is an error of the image's own, with the reach into Pillow and without."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
from PIL import Image

from vision_attn.compat import pillow_private as reaches
from vision_attn.data.images import ImageError, read_image

READ = """
import sys
from vision_attn.compat import pillow_private as reaches
from vision_attn.data.images import ImageError, read_image
if sys.argv[1] == "without":
    reaches.handler_is_set = lambda: False
for path in sys.argv[2:]:
    try:
        print(read_image(path).size)
    except ImageError as error:
        print(error)
"""


@pytest.fixture
def tiffs(tmp_path: Path) -> list[Any]:
    """A sound TIFF, one whose decoder fails, and one that Pillow passes with half its rows lost."""
    pixels = np.random.default_rng(0).integers(0, 256, (64, 53, 3), dtype=np.uint8)
    paths = []
    for name, mode, compression in (
        ("sound", "RGB", "tiff_lzw"),
        ("failing", "RGB", "tiff_lzw"),
        ("lossy", "1", "group4"),
    ):
        path = tmp_path / f"{name}.tif"
        Image.fromarray(pixels).convert(mode).save(path, compression=compression)
        if name != "sound":
            damaged = bytearray(path.read_bytes())
            for at in range(200, min(len(damaged) - 300, 1200), 37):
                damaged[at] ^= 0x5A
            path.write_bytes(damaged)
        paths.append(path)
    return paths


def test_the_handler_of_libtiff_can_be_set() -> None:
    assert reaches.handler_is_set(), (
        f"Pillow {PIL.__version__} no longer shows libtiff's TIFFSetErrorHandler: stderr is caught"
    )


@pytest.mark.parametrize("way", ["with", pytest.param("without", marks=pytest.mark.slow)])
def test_each_damaged_tiff_is_one_line_and_stderr_is_empty(way: str, tiffs: list[Any]) -> None:
    words = [sys.executable, "-c", READ, way, *map(str, tiffs)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    sound, failing, lossy = done.stdout.splitlines()
    assert sound == "(53, 64)"
    assert failing.startswith(f"{tiffs[1]}: the image is cut short or damaged (")
    assert "decoder error" not in failing
    assert lossy.startswith(f"{tiffs[2]}: the image is cut short or damaged (")
    assert "Bad code word" in lossy


def test_errors_stay_with_the_thread_that_met_them(
    tiffs: list[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def read(path: Path) -> str | tuple[int, int]:
        try:
            return read_image(path).size
        except ImageError as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(read, tiffs * 7))
    for at in range(3):
        assert len(set(answers[at::3])) == 1
    assert answers[0] == (53, 64)
    assert capfd.readouterr().err == ""
