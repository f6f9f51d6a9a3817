import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vision_attn import pages, render
from vision_attn.files import replacing, write_text
from vision_attn.pages.inspect.page import Page
from vision_attn.render.video import VideoWriter


def inside(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_file_appears_whole_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("before")
    with replacing(path) as beside:
        beside.write_text("after")
        assert beside.parent == tmp_path
        assert beside.suffix == ".txt"
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert inside(tmp_path) == ["a.txt"]


def test_writers_that_go_by_the_suffix_know_the_file(tmp_path: Path) -> None:
    with replacing(tmp_path / "a.npy") as beside:
        np.save(beside, np.arange(3))
    with replacing(tmp_path / "a.webp") as beside:
        Image.new("RGB", (5, 7)).save(beside)
    assert np.load(tmp_path / "a.npy").tolist() == [0, 1, 2]
    with Image.open(tmp_path / "a.webp") as image:
        assert image.format == "WEBP"
    assert inside(tmp_path) == ["a.npy", "a.webp"]


def _half(path: Path, error: type[BaseException]) -> None:
    with replacing(path) as beside:
        beside.write_text("half")
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_block_that_fails_or_is_stopped_leaves_what_was_there(
    tmp_path: Path, error: type[BaseException]
) -> None:
    (tmp_path / "a.txt").write_text("before")
    for name in ("a.txt", "b.txt"):
        with pytest.raises(error):
            _half(tmp_path / name, error)
    assert (tmp_path / "a.txt").read_text() == "before"
    assert inside(tmp_path) == ["a.txt"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no file modes")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_the_mode_is_that_of_the_umask_whatever_wrote_the_file(
    tmp_path: Path, umask: int, mode: int
) -> None:
    earlier = os.umask(umask)
    try:
        write_text(tmp_path / "a.txt", "a")
        with replacing(tmp_path / "b.txt") as beside:  # as safetensors writes: renamed, mode 600
            private = tmp_path / "private"
            private.touch(0o600)
            os.replace(private, beside)
    finally:
        os.umask(earlier)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a.txt", "b.txt")]
    assert modes == [mode, mode]


def test_a_full_disk_keeps_what_was_there_and_the_error_names_the_file(full_disk: Path) -> None:
    for name in ("a.txt", "b.txt"):
        with pytest.raises(OSError) as caught:
            write_text(full_disk / name, "x" * 200_000)
        assert str(caught.value) == (
            f"{full_disk / name}: cannot be written (No space left on device): "
            "free space on that disk, or write to another"
        )
        assert caught.value.errno == errno.ENOSPC
    with (
        pytest.raises(OSError, match=r"b\.npy: cannot be written"),
        replacing(full_disk / "b.npy") as beside,
    ):
        np.save(beside, np.zeros(50_000))
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    with (
        pytest.raises(OSError, match=r"b\.png: cannot be written"),
        replacing(full_disk / "b.png") as beside,
    ):
        Image.fromarray(noise).save(beside)
    assert inside(full_disk) == ["a.txt"]
    assert (full_disk / "a.txt").read_text() == "before"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"/dev/full: cannot be written \(No space left on device\)"):
        write_text("/dev/full", "x")
    write_text("/dev/null", "x")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "gone" / "a.txt"
    with pytest.raises(FileNotFoundError) as caught:
        write_text(missing, "a")
    assert str(caught.value) == (
        f"{missing}: cannot be written (No such file or directory): "
        "check the disk, the folder and its permissions"
    )
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match="folder: cannot be written"):
        write_text(tmp_path / "folder", "a")
    assert inside(tmp_path) == ["folder"]


def test_an_error_about_another_file_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, replacing(tmp_path / "a.txt"):
        (tmp_path / "source.txt").read_text()
    assert caught.value.filename == str(tmp_path / "source.txt")
    assert inside(tmp_path) == []


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.txt").symlink_to(tmp_path / "real" / "a.txt")
    write_text(tmp_path / "link.txt", "a")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real" / "a.txt").read_text() == "a"


def test_a_name_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    path = tmp_path / ("ü" * 120 + ".txt")
    write_text(path, "a")
    assert path.read_text() == "a"


NOISE = np.random.default_rng(0).integers(0, 256, (400, 400, 3), dtype=np.uint8)


def _write_film(path: Path) -> None:
    with VideoWriter(path, 25.0) as film:
        for turn in range(9):
            film.append(np.roll(NOISE, 31 * turn, 0))


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.png", lambda path: render.save(NOISE, path)),
        ("a.jpg", lambda path: render.save(NOISE, path)),
        ("index.html", lambda path: pages.write_page(path.parent, "x" * 99_999, [])),
        ("a.html", lambda path: Page("x" * 99_999).save(path)),
        ("a.mp4", _write_film),
    ],
)
def test_what_is_drawn_is_whole_or_not_there(
    full_disk: Path, name: str, write: Callable[..., Path | None]
) -> None:
    (full_disk / name).write_text("before")
    with pytest.raises(OSError, match=f"{name}: cannot be written"):
        write(full_disk / name)
    assert (full_disk / name).read_text() == "before"
    assert inside(full_disk) == sorted({name, "a.txt"})


def test_a_film_that_is_stopped_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _stopped_film(tmp_path / "a.mp4")
    assert inside(tmp_path) == []


def _stopped_film(path: Path) -> None:
    with VideoWriter(path, 25.0) as film:
        film.append(NOISE)
        raise KeyboardInterrupt
