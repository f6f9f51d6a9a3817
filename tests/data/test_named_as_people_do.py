"""Folders and files as people name them: taken for what they are, and what is left out is said."""

import logging
import os
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vision_attn.data import DataError, ImageError, ImageFolder, find_images, read_image
from vision_attn.data.images import images_below
from vision_attn.data.kinds import image_format
from vision_attn.data.listing import Tree, walk
from vision_attn.data.split_names import part_of, split_folders


def write(folder: Path, count: int = 2, colour: tuple[int, int, int] = (9, 9, 9)) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        Image.new("RGB", (20, 20), colour).save(folder / f"{i}.png")


def two_classes(folder: Path, count: int = 2) -> None:
    for name in ("cat", "dog"):
        write(folder / name, count)


@pytest.mark.parametrize(
    ("train", "val", "test"),
    [
        ("train", "valid", "test"),
        ("Train", "Val", "Test"),
        ("training", "validation", "testing"),
        ("TRAINING", "dev", "eval"),
        ("train2017", "val2017", "test_set"),
        ("train_images", "valid-images", "Test Data"),
        ("trainset", "ValSet", "testdata"),
    ],
)
def test_parts_are_known_by_their_usual_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, train: str, val: str, test: str
) -> None:
    for name, count in ((train, 5), (val, 3), (test, 2)):
        two_classes(tmp_path / "set" / name, count)
    caplog.set_level(logging.INFO, "vision_attn.data.split_names")
    splits = ImageFolder("set", size=16).load(tmp_path, 0.2, 0)
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [10, 6, 4]
    assert splits.classes == ["cat", "dog"]
    (line,) = [r.getMessage() for r in caplog.records if r.levelname == "INFO"]
    assert line.endswith(f"set: {train}/ for training, {val}/ for validation, {test}/ for test")


@pytest.mark.parametrize("name", ["valid", "Val", "validation", "dev", "test", "Eval"])
def test_one_part_beside_train_is_the_test_set(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "vision_attn.data.split_names")
    two_classes(tmp_path / "set" / "train", 5)
    two_classes(tmp_path / "set" / name, 3)
    splits = ImageFolder("set", size=16).load(tmp_path, 0.2, 0)
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [8, 2, 6]
    (line,) = [r.getMessage() for r in caplog.records if r.levelname == "INFO"]
    assert line.endswith(
        f"set: train/ for training, a part of train/ for validation, {name}/ for test"
    )


@pytest.mark.parametrize("name", ["trains", "values", "tested", "development", "cat", "2017", ""])
def test_other_names_are_no_parts(name: str) -> None:
    assert part_of(name) is None


def test_two_folders_for_one_part_are_refused(tmp_path: Path) -> None:
    for name in ("train", "val", "Valid"):
        two_classes(tmp_path / "set" / name)
    with pytest.raises(DataError, match="Valid/ and val/ both name the validation images: rename"):
        ImageFolder("set", size=16).load(tmp_path, 0.2, 0)


def test_parts_without_training_images_are_refused(tmp_path: Path) -> None:
    for name in ("val", "test"):
        two_classes(tmp_path / "set" / name)
    with pytest.raises(
        DataError, match=r"no folder of training images \(train/\) beside val/, test/"
    ):
        ImageFolder("set", size=16).load(tmp_path, 0.2, 0)
    assert set(split_folders(tmp_path / "set")) == {"val", "test"}  # enough to be scored


def test_classes_beside_parts_are_refused_or_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """cat/ and dog/, and in val/ the same again; then photos beside train/ and val/."""
    two_classes(tmp_path / "set")
    two_classes(tmp_path / "set" / "val")
    with pytest.raises(DataError, match="val/ look like parts of the set, cat/, dog/ like classes"):
        ImageFolder("set", size=16).load(tmp_path, 0.2, 0)
    two_classes(tmp_path / "set" / "train")
    ImageFolder("set", size=16).load(tmp_path, 0.2, 0)
    assert (
        "cat/, dog/ beside val/, train/" in caplog.text
        or "cat/, dog/ beside train/, val/" in caplog.text
    )
    assert "images in them are not used" in caplog.text


def test_folders_without_images_beside_parts_are_none_of_our_business(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    two_classes(tmp_path / "set" / "train")
    two_classes(tmp_path / "set" / "val")
    (tmp_path / "set" / "labels").mkdir()
    (tmp_path / "set" / "labels" / "0.txt").write_text("0 0.5 0.5 1 1")
    ImageFolder("set", size=16).load(tmp_path, 0.2, 0)
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_a_class_named_train_is_a_class_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("bus", "train", "tram"):
        write(tmp_path / "set" / name, 5)
    splits = ImageFolder("set", size=16).load(tmp_path, 0.2, 0)
    assert splits.classes == ["bus", "train", "tram"]
    assert "train/ taken as a class, as bus/, tram/" in caplog.text


SAVED: dict[str, dict[str, Any]] = {
    "JPEG": {},
    "PNG": {},
    "WEBP": {},
    "GIF": {},
    "BMP": {},
    "TIFF": {},
    "PPM": {},
    "AVIF": {},
}
SAVED |= {"JPEG2000": {}}


@pytest.mark.parametrize("kind", SAVED)
@pytest.mark.parametrize("name", ["photo.{}", "photo.xyz", "photo", "photo.bak", "a.b.c"])
def test_an_image_in_a_folder_is_found_whatever_it_is_called(
    tmp_path: Path, kind: str, name: str
) -> None:
    suffixes = {"JPEG": "jfif", "JPEG2000": "jp2", "PPM": "pnm"}
    path = tmp_path / name.format(suffixes.get(kind, kind.lower()))
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, kind)
    assert find_images([tmp_path]) == [path]
    assert list(walk(tmp_path)) == [str(path)]
    assert Tree(tmp_path).files() == [path.name]
    with Image.open(path) as image:
        np.testing.assert_array_equal(read_image(path), np.asarray(image.convert("RGB")))


HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40)


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Two images; files that are none, in two folders; side files; hidden ones; a pipe."""
    write(tmp_path / "in" / "sub", 2)
    for name, content in {
        "a.psd": b"8BPS\0\1", "sub/b.PSD": b"8BPS\0\1", "c.heic": HEIC, "notes": b"text",
        "BMW.doc": b"BMW is a car, and this is a text", "P5.is": b"P5 is a format of Netpbm, and",
        "d.json": b"{}", "e.txt": b"", "f.xml": b"", "g.csv": b"", "sub/.hidden": b"", "h.png.part": b"",
    }.items():  # fmt: skip
        (tmp_path / "in" / name).write_bytes(content)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "in" / "pipe.xyz")
    return tmp_path / "in"


@pytest.mark.parametrize(
    "listed", [lambda f: find_images([f]), lambda f: list(walk(f)), lambda f: Tree(f).files()]
)
def test_what_is_passed_over_is_one_line_with_a_count_a_suffix(
    mixed: Path, caplog: pytest.LogCaptureFixture, listed: Callable[..., list[Path | str]]
) -> None:
    assert len(listed(mixed)) == 2
    (line,) = [record.getMessage() for record in caplog.records]
    count = 8 if hasattr(os, "mkfifo") else 7
    assert line.startswith(
        f"{mixed}: {count} files are passed over, which cannot be read as images: "
    )
    for words in ("2 .psd", "1 HEIF (.heic)", "1 no suffix", "1 .doc", "1 .is", "1 .part"):
        assert words in line
    for word in ("json", "txt", "xml", "csv", "hidden"):
        assert word not in line
    assert line.endswith(": pip install pillow-heif reads HEIC and HEIF")


def test_a_later_start_by_the_index_says_it_again(
    mixed: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    for _ in range(2):
        tree = Tree(mixed, tmp_path / "index.json")
        tree._known = {k: (os.stat(mixed / k).st_mtime_ns, *v[1:]) for k, v in tree._known.items()}
        tree.files()
        tree.keep()
    assert tree.read == 0
    assert len(caplog.records) == 2
    assert caplog.records[0].getMessage() == caplog.records[1].getMessage()


def test_a_heic_named_itself_says_which_package_reads_it(mixed: Path) -> None:
    with pytest.raises(
        ImageError, match=r"c\.heic: .*got HEIC \(pip install pillow-heif reads it\)"
    ):
        read_image(mixed / "c.heic")


def test_texts_that_begin_like_images_are_none() -> None:
    for text in (b"BMW", b"P5 is", b"GIF is", b"II. Act", b"MM", b"RIFFraff", b"", b"\xff\xd8"):
        assert image_format(text) is None


@pytest.mark.parametrize("name", ["__MACOSX", "@eaDir", "$RECYCLE.BIN", ".ipynb_checkpoints"])
def test_folders_that_systems_leave_are_no_classes_and_hold_no_photos(
    name: str, tmp_path: Path
) -> None:
    for place in ("cat", "dog", name):
        (tmp_path / place).mkdir()
        for i in range(4):
            Image.new("RGB", (20, 16), (40 * i, 90, 10)).save(tmp_path / place / f"{i}.png")
    splits = ImageFolder(str(tmp_path), size=16).load(tmp_path, val_fraction=0.25, seed=0)
    assert splits.classes == ["cat", "dog"]
    assert {path.parent.name for path in images_below(tmp_path)} == {"cat", "dog"}
    assert {PurePath(path).parent.name for path in walk(tmp_path)} == {"cat", "dog"}


def test_folders_that_all_hold_the_same_folders_are_said_to_be_taken_as_classes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for fold in ("fold1", "fold2"):
        two_classes(tmp_path / fold, 4)
    splits = ImageFolder(str(tmp_path), size=16).load(tmp_path, val_fraction=0.25, seed=0)
    assert splits.classes == ["fold1", "fold2"]
    told = "fold1/, fold2/ are taken as classes, though all of them hold cat/, dog/"
    assert told in caplog.text


def test_one_folder_around_all_is_named(tmp_path: Path) -> None:
    two_classes(tmp_path / "data")
    with pytest.raises(DataError, match=rf"got 1 \(data\); is it {tmp_path / 'data'}\?"):
        ImageFolder(str(tmp_path), size=16).load(tmp_path, val_fraction=0.25, seed=0)


@pytest.mark.parametrize("suffix", [".nef", ".CR2", ".dng"])
def test_raw_data_of_cameras_are_not_taken_for_their_preview(
    suffix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They begin as a TIFF does, and its first picture is what Pillow would read."""
    write(tmp_path, 3)
    raw = tmp_path / f"a{suffix}"
    Image.new("RGB", (16, 12)).save(raw, format="TIFF")
    assert [path.name for path in find_images([tmp_path])] == ["0.png", "1.png", "2.png"]
    assert f"1 {suffix.lower()}" in caplog.text
    with pytest.raises(ImageError, match="raw data of a camera"):
        read_image(raw)
