import json
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
from PIL import Image

from vision_attn.data import cache as cache_module
from vision_attn.data.cache import PixelCache


@pytest.fixture
def photos(tmp_path):
    """Eleven images of different sizes; number 7 is small, number 8 is text."""
    folder = tmp_path / "photos"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(11):
        size = (5, 7) if i == 7 else (40 + 3 * i, 60 - 2 * i)
        pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    (folder / "8.png").write_text("no image")
    return folder


NAMES = [f"{i}.png" for i in range(11)]


def expected(folder, name: str, side: int = 20) -> np.ndarray:
    image = Image.open(folder / name)
    scale = min(1, side / min(image.size))
    size = tuple(round(length * scale) for length in image.size)
    return np.asarray(image.resize(size, Image.Resampling.BILINEAR) if scale < 1 else image)


def assert_whole(cache: PixelCache, folder, names=NAMES) -> None:
    pixels, errors = cache.load(folder, names)
    assert len(pixels) == len(names)
    assert list(errors) == [place for place, name in enumerate(names) if name == "8.png"]
    for place, name in enumerate(names):
        if name != "8.png":
            np.testing.assert_array_equal(pixels[place], expected(folder, name))


@pytest.fixture
def decoded(monkeypatch) -> list[str]:
    """The names of the files that are read, in any order."""
    names = []
    read_image = cache_module.read_image
    monkeypatch.setattr(
        cache_module,
        "read_image",
        lambda path, *side: names.append(path.name) or read_image(path, *side),
    )
    return names


def test_pixels_are_decoded_once_reduced_and_in_order(tmp_path, photos, decoded):
    cache = PixelCache(tmp_path / "cache", 20)
    assert_whole(cache, photos)
    assert sorted(decoded) == sorted(NAMES)
    pixels, errors = cache.load(photos, NAMES)
    assert pixels[0].shape == (20, 30, 3)
    assert pixels[7].shape == (5, 7, 3)
    assert pixels[8].shape == (0, 0, 3)
    assert errors[8].startswith(str(photos / "8.png"))
    decoded.clear()
    assert_whole(PixelCache(tmp_path / "cache", 20), photos, NAMES[::-1])
    assert decoded == ["8.png"]  # what failed is tried again


def test_more_names_are_added(tmp_path, photos, decoded):
    cache = PixelCache(tmp_path / "cache", 20)
    assert_whole(cache, photos, NAMES[:4])
    assert_whole(cache, photos, NAMES[2:])
    assert sorted(decoded) == sorted(NAMES)


def test_a_changed_file_is_decoded_anew_and_a_mapped_cache_stays_as_it_was(
    tmp_path, photos, decoded
):
    cache = PixelCache(tmp_path / "cache", 20)
    before, _ = cache.load(photos, NAMES)
    kept = [before[i].copy() for i in range(11)]
    decoded.clear()
    Image.new("RGB", (50, 40), (1, 2, 3)).save(photos / "3.png")
    (photos / "9.png").unlink()
    assert_whole(cache, photos, [name for name in NAMES if name != "9.png"])
    assert sorted(decoded) == ["3.png", "8.png"]
    for i in range(11):
        np.testing.assert_array_equal(before[i], kept[i])


def test_a_file_that_is_gone_is_an_error_of_its_own(tmp_path, photos):
    cache = PixelCache(tmp_path / "cache", 20)
    (photos / "9.png").unlink()
    _, errors = cache.load(photos, NAMES)
    assert "no such file" in errors[9]


def test_a_cache_full_of_old_pixels_starts_afresh(tmp_path, photos):
    cache = PixelCache(tmp_path / "cache", 20)
    first, _ = cache.load(photos, NAMES)
    copy = first[5].copy()
    for turn in range(6):
        for name in NAMES[:7]:
            Image.new("RGB", (50 + turn, 40), (turn, 2, 3)).save(photos / name)
        assert_whole(cache, photos)
    size = (tmp_path / "cache" / "pixels.bin").stat().st_size
    live = sum(expected(photos, name).nbytes for name in NAMES if name != "8.png")
    assert size <= 3 * live
    np.testing.assert_array_equal(first[5], copy)


@pytest.mark.parametrize(
    "damage", ["torn index", "torn pixels", "extra pixels", "no pixels", "no index", "noise"]
)
def test_a_damaged_cache_is_mended(tmp_path, photos, damage):
    place = tmp_path / "cache"
    PixelCache(place, 20).load(photos, NAMES)
    index, pixels = place / "index.jsonl", place / "pixels.bin"
    match damage:
        case "torn index":
            index.write_bytes(index.read_bytes()[:-9])
        case "torn pixels":
            os.truncate(pixels, pixels.stat().st_size - 1000)
        case "extra pixels":
            with pixels.open("ab") as file:
                file.write(bytes(5000))
        case "no pixels":
            pixels.unlink()
        case "no index":
            index.unlink()
        case "noise":
            index.write_text('{"a": 1}\n[1, 2]\nnonsense\n' + index.read_text())
    assert_whole(PixelCache(place, 20), photos)
    assert_whole(PixelCache(place, 20), photos)
    lines = [json.loads(line) for line in index.read_text().splitlines()]
    assert sorted(line[0] for line in lines) == sorted(set(NAMES) - {"8.png"})


def _slow_build(place, folder) -> None:
    cache_module.CHUNK = 1
    read_image = cache_module.read_image

    def slowly(path, side):
        time.sleep(0.02)
        return read_image(path, side)

    cache_module.read_image = slowly
    PixelCache(place, 20).load(folder, NAMES)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_killed_build_goes_on(tmp_path, photos, decoded):
    place = tmp_path / "cache"
    fork = multiprocessing.get_context("fork")
    build = fork.Process(target=_slow_build, args=(place, photos))
    build.start()
    index = place / "index.jsonl"
    while build.is_alive() and not (index.exists() and index.read_text().count("\n") >= 3):
        time.sleep(0.005)
    os.kill(build.pid, signal.SIGKILL)
    build.join()
    done = index.read_text().count("\n")
    assert 3 <= done < 10
    assert_whole(PixelCache(place, 20), photos)
    assert len(decoded) == 11 - done


@pytest.mark.skipif(not hasattr(os, "fork"), reason="builds in forked processes")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_two_processes_build_one_cache(tmp_path, photos):
    place = tmp_path / "cache"
    fork = multiprocessing.get_context("fork")
    builds = [fork.Process(target=_slow_build, args=(place, photos)) for _ in range(3)]
    for build in builds:
        build.start()
    for build in builds:
        build.join()
        assert build.exitcode == 0
    assert_whole(PixelCache(place, 20), photos)
    lines = (place / "index.jsonl").read_text().splitlines()
    assert len(lines) == 10
    assert (place / "pixels.bin").stat().st_size == json.loads(lines[-1])[3] + np.prod(
        json.loads(lines[-1])[4:]
    ) * 3
