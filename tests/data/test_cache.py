import json
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from vision_attn.data import cache as cache_module
from vision_attn.data import photos as photos_module
from vision_attn.data.cache import PixelCache
from vision_attn.data.photos import FilePhotos
from vision_attn.data.sources import DataError


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Eleven images of different sizes; number 7 is small, number 8 is text."""
    return draw_photos(tmp_path / "photos")


def draw_photos(folder: Path) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(11):
        size = (5, 7) if i == 7 else (40 + 3 * i, 60 - 2 * i)
        pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    (folder / "8.png").write_text("no image")
    return folder


NAMES = [f"{i}.png" for i in range(11)]


def expected(folder: Path, name: str, side: int = 20) -> np.ndarray:
    image = Image.open(folder / name)
    scale = min(1, side / min(image.size))
    size = round(image.width * scale), round(image.height * scale)
    return np.asarray(image.resize(size, Image.Resampling.BILINEAR) if scale < 1 else image)


def assert_whole(cache: PixelCache, folder: Path, names: list[str] = NAMES) -> None:
    pixels, errors = cache.load(folder, names)
    assert len(pixels) == len(names)
    assert list(errors) == [place for place, name in enumerate(names) if name == "8.png"]
    for place, name in enumerate(names):
        if name != "8.png":
            np.testing.assert_array_equal(pixels[place], expected(folder, name))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read, in any order."""
    names = []
    read_image = vars(photos_module)["read_image"]
    monkeypatch.setattr(
        photos_module,
        "read_image",
        lambda path, *side: names.append(path.name) or read_image(path, *side),
    )
    return names


def test_pixels_are_decoded_once_reduced_and_in_order(
    tmp_path: Path, photos: Path, decoded: list[str]
) -> None:
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


def test_more_names_are_added(tmp_path: Path, photos: Path, decoded: list[str]) -> None:
    cache = PixelCache(tmp_path / "cache", 20)
    assert_whole(cache, photos, NAMES[:4])
    assert_whole(cache, photos, NAMES[2:])
    assert sorted(decoded) == sorted(NAMES)


def test_a_changed_file_is_decoded_anew_and_a_mapped_cache_stays_as_it_was(
    tmp_path: Path, photos: Path, decoded: list[str]
) -> None:
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


def test_two_photos_of_one_name_are_refused(tmp_path: Path, photos: Path) -> None:
    """They would share the pixels of one of them."""

    class Clash(FilePhotos):
        def cached_as(self) -> list[Any]:
            return ["a", "b", "b"]

    size = (photos / "1.png").stat().st_size
    cache = PixelCache(tmp_path / "cache", 20)
    message = rf"^b: expected one photo of this name, got two, of {size} and \d+ bytes: rename"
    with pytest.raises(DataError, match=message):
        cache.load_photos(Clash(photos, ["0.png", "1.png", "2.png"]))
    pixels, _ = cache.load_photos(Clash(photos, ["0.png", "1.png", "1.png"]))  # one photo, twice
    np.testing.assert_array_equal(pixels[2], expected(photos, "1.png"))


def test_a_file_that_is_gone_is_an_error_of_its_own(tmp_path: Path, photos: Path) -> None:
    cache = PixelCache(tmp_path / "cache", 20)
    (photos / "9.png").unlink()
    _, errors = cache.load(photos, NAMES)
    assert "no such file" in errors[9]


def test_a_cache_full_of_old_pixels_starts_afresh(tmp_path: Path, photos: Path) -> None:
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
def test_a_damaged_cache_is_mended(tmp_path: Path, photos: Path, damage: str) -> None:
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


def _slow_build(place: Path, folder: Path) -> None:
    cache_module.CHUNK = 1
    read_image = vars(photos_module)["read_image"]

    def slowly(*options: Any) -> Image.Image:
        time.sleep(0.02)
        return read_image(*options)

    vars(photos_module)["read_image"] = slowly
    PixelCache(place, 20).load(folder, NAMES)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_killed_build_goes_on(tmp_path: Path, photos: Path, decoded: list[str]) -> None:
    place = tmp_path / "cache"
    fork = multiprocessing.get_context("fork")
    build = fork.Process(target=_slow_build, args=(place, photos))
    build.start()
    index = place / "index.jsonl"
    while build.is_alive() and not (index.exists() and index.read_text().count("\n") >= 3):
        time.sleep(0.005)
    assert build.pid is not None
    os.kill(build.pid, signal.SIGKILL)
    build.join()
    done = index.read_text().count("\n")
    assert 3 <= done < 10
    assert_whole(PixelCache(place, 20), photos)
    assert len(decoded) == 11 - done


@pytest.mark.skipif(not hasattr(os, "fork"), reason="builds in forked processes")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_two_processes_build_one_cache(tmp_path: Path, photos: Path) -> None:
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
        json.loads(lines[-1])[4:6]
    ) * 3


def lines_of(place: Path) -> list[list[Any]]:
    return [json.loads(line) for line in (place / "index.jsonl").read_text().splitlines()]


def write_lines(place: Path, lines: list[list[Any]]) -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (place / "index.jsonl").write_text(text)


@pytest.mark.parametrize("part", [0.0, 0.5, 0.999])
def test_a_flipped_byte_of_the_pixels_is_decoded_again(
    tmp_path: Path, photos: Path, decoded: list[str], part: float, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "cache"
    PixelCache(place, 20).load(photos, NAMES)
    decoded.clear()
    pixels = bytearray((place / "pixels.bin").read_bytes())
    at = int(part * len(pixels))
    pixels[at] ^= 4
    (place / "pixels.bin").write_bytes(pixels)
    (hit,) = [
        name for name, _, _, offset, h, w, _ in lines_of(place) if 0 <= at - offset < h * w * 3
    ]
    assert_whole(PixelCache(place, 20), photos)
    assert sorted(decoded) == sorted([hit, "8.png"])
    assert f"1 images of this cache are damaged (the first: {hit})" in caplog.text
    decoded.clear()
    assert_whole(PixelCache(place, 20), photos)
    assert decoded == ["8.png"]


@pytest.mark.parametrize("field", range(7))
@pytest.mark.parametrize("change", [lambda value: value + 1, lambda value: value // 2])
def test_a_changed_field_of_a_line_is_decoded_again(
    tmp_path: Path, photos: Path, decoded: list[str], field: int, change: Callable[..., Any]
) -> None:
    place = tmp_path / "cache"
    PixelCache(place, 20).load(photos, NAMES)
    decoded.clear()
    lines = lines_of(place)
    lines[4][field] = "5.png" if field == 0 else change(lines[4][field])
    write_lines(place, lines)
    assert_whole(PixelCache(place, 20), photos)
    assert "4.png" in decoded


def test_swapped_offsets_of_equal_images_are_seen(tmp_path: Path, decoded: list[str]) -> None:
    """Two photos of one size: every number is plausible, and the pictures are exchanged."""
    folder, place = tmp_path / "photos", tmp_path / "cache"
    folder.mkdir()
    for name, colour in (("a.png", (9, 0, 0)), ("b.png", (0, 9, 0))):
        Image.new("RGB", (8, 6), colour).save(folder / name)
    PixelCache(place, 20).load(folder, ["a.png", "b.png"])
    (a, b) = lines_of(place)
    a[3], b[3] = b[3], a[3]
    write_lines(place, [a, b])
    pixels, _ = PixelCache(place, 20).load(folder, ["a.png", "b.png"])
    assert pixels[0][0, 0].tolist() == [9, 0, 0]
    assert pixels[1][0, 0].tolist() == [0, 9, 0]


def test_a_damaged_entry_whose_photo_is_gone_is_an_error_of_its_own(
    tmp_path: Path, photos: Path
) -> None:
    place = tmp_path / "cache"
    PixelCache(place, 20).load(photos, NAMES)
    (place / "pixels.bin").write_bytes(bytes((place / "pixels.bin").stat().st_size))
    (photos / "2.png").unlink()
    pixels, errors = PixelCache(place, 20).load(photos, NAMES)
    assert sorted(errors) == [2, 8]
    assert errors[2] == f"{photos / '2.png'}: no such file: check the path"
    np.testing.assert_array_equal(pixels[3], expected(photos, "3.png"))


def test_a_cache_without_checksums_is_built_anew(
    tmp_path: Path, photos: Path, decoded: list[str]
) -> None:
    place = tmp_path / "cache"
    PixelCache(place, 20).load(photos, NAMES)
    size = (place / "pixels.bin").stat().st_size
    write_lines(place, [line[:6] for line in lines_of(place)])
    decoded.clear()
    assert_whole(PixelCache(place, 20), photos)
    assert sorted(decoded) == sorted(NAMES)
    assert (place / "pixels.bin").stat().st_size == size


def test_what_is_mapped_is_never_written_over(tmp_path: Path, photos: Path) -> None:
    """The last image of pixels.bin changes while a run reads it."""
    cache = PixelCache(tmp_path / "cache", 20)
    mapped, _ = cache.load(photos, NAMES)
    before = mapped[10].copy()
    Image.new("RGB", (50, 40), (1, 2, 3)).save(photos / "10.png")
    assert_whole(cache, photos)
    np.testing.assert_array_equal(mapped[10], before)


BYTES = st.binary(min_size=1, max_size=12)
PLACE = st.floats(0, 1, exclude_max=True)
VALUE = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
    st.sampled_from([10**30, -1, [[]], {"a": 1}, "3.png"]),
)  # fmt: skip
DAMAGE = st.one_of(
    st.tuples(st.just("write"), PLACE, BYTES),
    st.tuples(st.just("cut"), PLACE, st.just(b"")),
    st.tuples(st.just("insert"), PLACE, st.one_of(BYTES, st.just(b"[" * 10_000), st.just(b"\n"))),
    st.tuples(st.just("field"), PLACE, st.tuples(st.integers(0, 6), VALUE)),
    st.tuples(st.just("drop field"), PLACE, st.integers(0, 6)),
    st.tuples(st.just("repeat"), PLACE, st.just(b"")),
)


@pytest.mark.slow
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(damages=st.lists(DAMAGE, min_size=1, max_size=3), file=st.sampled_from(["index", "pixels"]))
def test_whatever_is_damaged_the_images_are_right(
    tmp_path_factory: pytest.TempPathFactory,
    whole_cache: tuple[Any, Any],
    damages: list[Any],
    file: str,
) -> None:
    photos, built = whole_cache
    place = tmp_path_factory.mktemp("damaged") / "cache"
    shutil.copytree(built, place)
    path = place / ("index.jsonl" if file == "index" else "pixels.bin")
    for how, where, what in damages:
        damage(path, how, where, what)
    assert_whole(PixelCache(place, 20), photos)
    assert_whole(PixelCache(place, 20), photos)


def damage(path: Path, how: str, where: float, what: Any) -> None:
    content = path.read_bytes()
    at = int(where * len(content))
    if how in ("field", "drop field", "repeat"):
        lines = content.split(b"\n")
        number = int(where * len(lines))
        try:
            line = json.loads(lines[number])
            if how == "field":
                line[what[0]] = what[1]
            elif how == "drop field":
                del line[what]
            lines[number:number] = [json.dumps(line).encode()]
        except (ValueError, IndexError, TypeError, KeyError, RecursionError):
            return
        if how != "repeat":
            del lines[number + 1]
        path.write_bytes(b"\n".join(lines))
        return
    end = {"write": at + len(what), "cut": len(content), "insert": at}[how]
    path.write_bytes(content[:at] + what + content[end:])


@pytest.fixture(scope="module")
def whole_cache(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Photos and their cache, never written to."""
    folder = tmp_path_factory.mktemp("whole")
    draw_photos(folder / "photos")
    PixelCache(folder / "cache", 20).load(folder / "photos", NAMES)
    return folder / "photos", folder / "cache"
