import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vision_attn.data import DataError, ImageData, ImageFolder, ImageSet, Preprocess, Splits
from vision_attn.data.draws import Draws
from vision_attn.data.folders import imagenet_names


def write(
    folder: Path, count: int, colour: tuple[int, int, int], size: tuple[int, int] = (60, 44)
) -> None:
    folder.mkdir(parents=True)
    for i in range(count):
        Image.new("RGB", size, (*colour[:2], i)).save(folder / f"{i:02}.png")


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    for label, name in enumerate(("ant", "bee", "cat")):
        write(tmp_path / "set" / name, 20, (label * 50, 99, 0))
    return tmp_path


def content(part: ImageSet) -> list[tuple[int, int]]:
    """(label by colour, number of the file) of every image of a set."""
    items = np.arange(len(part))
    images = part.fetch(items, Draws(0, 0, items))
    assert (images[:, 1] == 99).all()
    classes = images[:, 0, 0, 0] // 50
    assert classes.tolist() == part.labels.tolist()
    return list(zip(classes.tolist(), images[:, 2, 0, 0].tolist(), strict=True))


def test_a_flat_folder_is_split_by_seed_in_every_class(flat: Path) -> None:
    splits = ImageFolder("set", size=32).load(flat, 0.25, 0)
    parts = [content(part) for part in (splits.train, splits.val, splits.test)]
    assert [len(part) for part in parts] == [36, 12, 12]
    assert sorted(parts[0] + parts[1] + parts[2]) == [
        (label, i) for label in range(3) for i in range(20)
    ]
    assert [sum(label == 1 for label, _ in part) for part in parts] == [12, 4, 4]
    assert splits.classes == ["ant", "bee", "cat"]
    again = ImageFolder("set", size=32).load(flat, 0.25, 0)
    assert content(again.val) == parts[1]
    assert content(ImageFolder("set", size=32).load(flat, 0.25, 1).val) != parts[1]


def test_train_and_val_folders(tmp_path: Path) -> None:
    for part, count in (("train", 10), ("val", 3)):
        for label, name in enumerate(("ant", "bee")):
            write(tmp_path / "set" / part / name, count, (label * 50, 99, 0))
    splits = ImageFolder("set", size=16).load(tmp_path, 0.2, 0)
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [16, 4, 6]
    assert content(splits.test) == [(label, i) for label in range(2) for i in range(3)]
    write(tmp_path / "set" / "test" / "ant", 1, (0, 99, 0))
    write(tmp_path / "set" / "test" / "bee", 1, (50, 99, 0))
    splits = ImageFolder("set", size=16).load(tmp_path, 0.2, 0)
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [20, 6, 2]


def test_classes_and_per_class(flat: Path) -> None:
    source = ImageFolder("set", size=32, classes=["cat", "ant"], per_class=5, test_fraction=0.2)
    splits = source.load(flat, 0.25, 0)
    assert splits.classes == ["cat", "ant"]
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [6, 2, 2]
    items = np.arange(6)
    colours = splits.train.fetch(items, Draws(0, 0, items))[:, 0, 0, 0] // 50
    assert colours.tolist() == [2, 2, 2, 0, 0, 0]


def test_evaluation_shows_what_preprocess_shows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("ant", "bee"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(8):
            small = rng.integers(0, 256, (9, 7, 3), dtype=np.uint8)
            size = (70 + 11 * i, 150 - 9 * i)
            photo = Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)
            photo.save(tmp_path / "set" / name / f"{i}.png")
    splits = ImageFolder("set", size=(24, 40), test_fraction=0.9).load(tmp_path, 0.0, 0)
    assert len(splits.val) == 0
    preprocess = Preprocess((24, 40), (0.0,) * 3, (1.0,) * 3, splits.crop_pct)
    singles = [preprocess(path) for path in sorted((tmp_path / "set").rglob("*.png"))]
    items = np.arange(len(splits.test))
    for ours in splits.test.fetch(items, Draws(0, 0, items)):
        nearest = min((ours / 255 - single).abs().mean() for single in singles)
        assert nearest < 0.035


@pytest.mark.parametrize("storage", ["cache", "stream"])
@pytest.mark.parametrize("size", [16, (16, 24)])
@pytest.mark.parametrize("test_size", [40, (24, 40)])
def test_what_is_not_for_training_has_a_size_of_its_own(
    tmp_path: Path, storage: str, size: int | tuple[int, int], test_size: int | tuple[int, int]
) -> None:
    """As a source of that size shows it; training shows what it does without."""
    rng = np.random.default_rng(0)
    for name in ("ant", "bee"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(6):
            pixels = rng.integers(0, 256, (47 + i, 53, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "set" / name / f"{i}.png")

    def splits(**sizes: Any) -> Splits:
        ask: dict[str, Any] = {"shorter_side": 43, "storage": storage, "workers": 0}
        return ImageFolder("set", **sizes, **ask).load(tmp_path, 0.25, 0)

    def shown(images: ImageSet) -> torch.Tensor:
        items = np.arange(len(images))
        return images.fetch(items, Draws(0, 0, items))

    both, small, large = (
        splits(size=size, test_size=test_size),
        splits(size=size),
        splits(size=test_size),
    )
    assert both.train.size == ((16, 16) if size == 16 else size)
    assert torch.equal(shown(both.train), shown(small.train))
    assert both.val.size == both.test.size == large.test.size
    assert torch.equal(shown(both.val), shown(large.val))
    assert torch.equal(shown(both.test), shown(large.test))
    assert both.crop_pct == large.crop_pct == 40 / 43


def test_a_network_takes_photos_at_the_size_that_it_is_tested_at(flat: Path) -> None:
    half = (0.5, 0.5, 0.5)
    photos = ImageFolder("set", size=16, test_size=24)
    data = ImageData(photos, root=str(flat), val_fraction=0.25, mean=half, std=half)
    data.setup("fit")
    assert data.splits.train.size == (16, 16)
    assert data.input_size == data.preprocess.input_size == (24, 24)
    (batch, _), *_ = map(data.for_evaluation, data.test_dataloader())
    photo = flat / "set" / "ant" / "00.png"
    assert batch[0].shape == data.preprocess(photo).shape == (3, 24, 24)


def test_training_shows_random_boxes_that_depend_on_the_draws(tmp_path: Path) -> None:
    """A photo whose colour is its coordinate: each crop shows where it was taken."""
    ramp = np.zeros((90, 120, 3), np.uint8)
    ramp[..., 0] = np.arange(120) * 2
    ramp[..., 1] = np.arange(90)[:, None] * 2
    for name in ("ant", "bee"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(4):
            Image.fromarray(ramp).save(tmp_path / "set" / name / f"{i}.png")
    source = ImageFolder(
        "set", size=32, shorter_side=90, test_fraction=0.25, scale=(0.1, 0.5), ratio=(0.8, 1.25)
    )
    train = source.load(tmp_path, 0.0, 0).train
    items = np.zeros(101, int) + np.arange(101) % len(train)
    images = torch.cat([train.fetch(items, Draws(0, epoch, items)) for epoch in range(6)]).float()
    width = (images[:, 0, 16, -1] - images[:, 0, 16, 0]) / 2 * 32 / 31
    height = (images[:, 1, -1, 16] - images[:, 1, 0, 16]) / 2 * 32 / 31
    share = width * height / (90 * 120)
    assert share.min() == pytest.approx(0.1, abs=0.02)
    assert share.max() == pytest.approx(0.5, abs=0.04)
    assert (width / height).max() == pytest.approx(1.25, abs=0.1)
    assert images[:, 0].min() < 10
    assert images[:, 0].max() > 228
    first = train.fetch(items[:5], Draws(0, 3, items[:5]))
    torch.testing.assert_close(first, train.fetch(items[:5], Draws(0, 3, items[:5])))


def test_unreadable_images_are_left_out_with_their_names_or_stop(
    flat: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (flat / "set" / "bee" / "03.png").write_text("no image")
    (flat / "set" / "cat" / "05.png").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        splits = ImageFolder("set", size=32).load(flat, 0.25, 0)
    assert sum(map(len, (splits.train, splits.val, splits.test))) == 58
    assert "2 of 60 images cannot be read" in caplog.text
    assert str(flat / "set" / "bee" / "03.png") in caplog.text
    content(splits.train)
    with pytest.raises(DataError, match="2 of 60 images cannot be read"):
        ImageFolder("set", size=32, corrupt="error").load(flat, 0.25, 0)


def test_a_class_that_another_part_lacks_or_has_alone_is_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for part, classes in (("train", "abc"), ("val", "ab"), ("test", "abcd")):
        for name in classes:
            write(tmp_path / "set" / part / name, 2, (90, 0, 0))
    splits = ImageFolder("set", size=16).load(tmp_path, 0.2, 0)
    assert splits.val.labels.tolist() == [0, 0, 1, 1]
    assert splits.test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line.partition(": ")[2] for line in lines] == [
        "1 of 4 folders have no training image (d): they are left out",
        "no image of 1 of 3 classes (c): they are not measured on the val images",
    ]
    for file in (tmp_path / "set/val").rglob("*.png"):
        file.unlink()
    with pytest.raises(DataError, match="val: no image of any class: expected folders such as a"):
        ImageFolder("set", size=16).load(tmp_path, 0.2, 0)


def test_errors(flat: Path, tmp_path: Path) -> None:
    def says(text: str, path: str = "set", **options: Any) -> None:
        with pytest.raises(DataError, match=text) as caught:
            ImageFolder(path, **options).load(flat, 0.1, 0)
        assert "\n" not in str(caught.value)

    says("gone: no such folder", "gone")
    (flat / "empty").mkdir()
    says("at least two classes, got 0", "empty")
    write(flat / "single" / "ant", 2, (0, 0, 0))
    says(r"at least two classes, got 1 \(ant\)", "single")
    says("no class 'bea'; the nearest: bee", classes=["ant", "bea"])
    (flat / "set" / "dog").mkdir()
    says("dog: no image in this folder", "set")
    says(
        "cannot be written.*option `cache`", classes=["ant", "bee"], cache=f"{flat}/set/ant/00.png"
    )
    with pytest.raises(
        ValueError, match=r"shorter_side of at least each size, got size \(64, 64\) a"
    ):
        ImageFolder("set", size=64, shorter_side=32)
    with pytest.raises(
        ValueError, match=r"size \(64, 64\), test_size \(96, 70\) and shorter_side 8"
    ):
        ImageFolder("set", size=64, test_size=(96, 70), shorter_side=80)
    with pytest.raises(ValueError, match=r"expected sizes of at least 1 pixel.*test_size \(0, 0\)"):
        ImageFolder("set", test_size=0)
    with pytest.raises(ValueError, match="per_class must be at least 1"):
        ImageFolder("set", per_class=0)


def test_imagenette(data_root: Path, tmp_path: Path) -> None:
    source = ImageFolder("imagenette", size=64, per_class=4, cache=str(tmp_path))
    splits = source.load(data_root, 0.25, 0)
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [30, 10, 40]
    assert splits.classes[0] == "n01440764"
    items = np.arange(40)
    images = splits.test.fetch(items, Draws(0, 0, items))
    assert images.shape == (40, 3, 64, 64)
    assert images.float().std() > 40


def test_classes_of_imagenets_folders_have_names(tmp_path: Path, data_root: Path) -> None:
    write(tmp_path / "set" / "n03888257", 5, (50, 99, 0))
    write(tmp_path / "set" / "n02102040", 5, (0, 99, 0))
    splits = ImageFolder("set", size=32, names="imagenet").load(tmp_path, 0.2, 0)
    assert splits.classes == ["English springer", "parachute"]
    content(splits.train)
    index = json.loads((data_root / "imagenet_class_index.json").read_text())
    wnids, names = zip(*index.values(), strict=True)
    ours = imagenet_names(wnids)
    assert len(set(ours)) == 1000
    alike = [
        a.split(",")[0].lower() == b.replace("_", " ").lower()
        for a, b in zip(ours, names, strict=True)
    ]
    assert sum(alike) > 980  # the file spells some of them anew


def test_ids_that_share_a_name_are_told_apart() -> None:
    assert imagenet_names(["n03126707"]) == ["crane"]
    both = ["n02012849", "n03126707", "n03445777"]
    assert imagenet_names(both) == ["crane (n02012849)", "crane (n03126707)", "golf ball"]


def test_a_folder_that_is_no_imagenet_id_is_named(flat: Path) -> None:
    with pytest.raises(DataError, match="ant: expected a folder named by a WordNet id of ImageNet"):
        ImageFolder("set", size=32, names="imagenet").load(flat, 0.25, 0)
    with pytest.raises(DataError, match=r"n0144076: .* \(such as n01440764"):
        imagenet_names(["n0144076"])
