"""What images are scored with: masks, boxes, classes by folder or by name."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vision_attn
from vision_attn.data import Preprocess
from vision_attn.data.images import ImageError
from vision_attn.data.planted import paint
from vision_attn.data.sources import Source, Splits
from vision_attn.data.tensors import TensorSet
from vision_attn.evaluate import EnergyPointingGame, MaxBoxIoU
from vision_attn.hub import load_model
from vision_attn.methods import GradCAM
from vision_attn.models import ViT
from vision_attn.runs.labels import class_names
from vision_attn.runs.progress import Silent
from vision_attn.runs.scoring.evidence import SOURCES, open_data
from vision_attn.types import Model

QUICK = "--steps", 4, "--batch-size", 4, "--method", "GradCAM"


def test_the_masks_are_those_of_the_planted_images(models: Callable[[str], str]) -> None:
    model = load_model(models("vit"))
    sample = open_data("planted:shortcut", model, Path("."))[13]
    drawn = paint(13, 14, size=(32, 48), split="test", cue="agree")
    assert torch.equal(sample.masks["object"], drawn.object_mask[0])
    assert torch.equal(sample.masks["shortcut"], drawn.shortcut_mask[0])
    pixels = (sample.image * 0.25 + 0.5) * 255
    torch.testing.assert_close(pixels, drawn.images[0].float(), atol=1e-2, rtol=0)
    assert "shortcut" not in open_data("planted", model, Path("."))[13].masks


@pytest.fixture
def folder(tmp_path: Path, photos: Path) -> Path:
    """images/ and masks/: a palette mask with a border, a black and white one."""
    place = tmp_path / "masked"
    (place / "masks").mkdir(parents=True)
    photos.rename(place / "images")
    mask = np.zeros((331, 401), np.uint8)
    mask[100:200, 100:300], mask[100:120, 100:300] = 2, 255
    palette = Image.fromarray(mask)
    palette.putpalette(np.random.default_rng(0).bytes(768))  # mode P
    palette.save(place / "masks" / "cat.png")
    mask = np.zeros((500, 353), np.uint8)
    mask[200:300] = 255
    Image.fromarray(mask).save(place / "masks" / "dog.png")
    mask = np.zeros((40, 60), np.uint8)
    mask[15:25, 20:40] = 1
    Image.fromarray(mask).save(place / "masks" / "tiny.png")
    return place


def test_masks_land_where_the_network_sees_them(folder: Path, models: Callable[[str], str]) -> None:
    model = load_model(models("vit"))
    data = open_data(str(folder), model, Path("."))
    assert data.names == ["images/cat.png", "images/dog.jpg", "images/tiny.png"]
    cat = data[0]
    left, top, right, bottom = model.preprocess.box((401, 331))
    y = ((torch.arange(32) + 0.5) / 32 * (bottom - top) + top)[:, None]
    x = (torch.arange(48) + 0.5) / 48 * (right - left) + left
    inside = (y >= 120) & (y < 200) & (x >= 100) & (x < 300)
    assert (cat.masks["object"] != inside).float().mean() < 0.02
    assert cat.ignore is not None
    assert cat.ignore.any()
    assert not (cat.ignore & cat.masks["object"]).any()
    assert cat.label is None
    assert data[1].masks["object"].any()
    assert data[1].ignore is not None
    assert not data[1].ignore.any()


@pytest.mark.slow
def test_masks_are_scored_and_bad_ones_named(
    folder: Path,
    models: Callable[[str], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    score: Callable[..., int],
    scores: Callable[[Path], dict[str, Any]],
    complaint: Callable[[], str],
) -> None:
    out = tmp_path / "out"
    assert score(models("vit"), folder, *QUICK, "--limit", 5, "-o", out) == 0
    assert scores(out)["GradCAM"]["scores"]["mean_iou"]["n"] == 3
    assert "5 images requested, 3 found" in capsys.readouterr().out
    bad = {
        "size": (np.zeros((30, 60), np.uint8) + 1, "is 60 x 30, its image 60 x 40: save it"),
        "values": (np.full((40, 60), 77, np.uint8), "holds 77: expected 0 background, 1 to 20"),
        "absent": (np.zeros((40, 60), np.uint8), "the object is absent: the mask is 0 everywhere"),
        "full": (np.ones((40, 60), np.uint8), "no background: no pixel of the mask is 0"),
        "colour": (np.zeros((40, 60, 3), np.uint8), "one number per pixel (a grey or palette PNG)"),
        "aside": (np.eye(40, 60, dtype=np.uint8) * 0, "absent"),
    }
    corner = bad["aside"][0]
    corner[0, 0] = 1
    bad["aside"] = corner, "no object in what the network sees of the photo"
    data = open_data(str(folder), load_model(models("vit")), Path("."))
    for mask, told in bad.values():
        Image.fromarray(mask).save(folder / "masks" / "tiny.png")
        with pytest.raises(ImageError, match=re.escape(told)) as error:
            data[2]
        assert str(error.value).startswith(str(folder / "masks" / "tiny.png"))
    assert score(models("vit"), folder, *QUICK, "-o", tmp_path / "two") == 1
    assert len(complaint().splitlines()) == 1
    assert scores(tmp_path / "two")["GradCAM"]["scores"]["deletion"]["n"] == 2
    (folder / "masks" / "tiny.png").unlink()
    data = open_data(str(folder), load_model(models("vit")), Path("."))
    with pytest.raises(ImageError, match=r"no mask for this image: expected masks/tiny\.png"):
        data[2]
    for mask in (folder / "masks").iterdir():
        mask.rename(mask.with_stem("other"))
    with pytest.raises(ValueError, match="no mask belongs to an image: expected masks named like"):
        open_data(str(folder), load_model(models("vit")), Path("."))


def boxed(folder: Path, entries: list[Any]) -> Path:
    (folder / "boxes.json").write_text(json.dumps({"images": entries}))
    return folder


def test_boxes_are_scored_and_bad_ones_named(
    photos: Path,
    models: Callable[[str], str],
    tmp_path: Path,
    score: Callable[..., int],
    scores: Callable[[Path], dict[str, Any]],
    complaint: Callable[[], str],
) -> None:
    cat = {"file": "cat.png", "label": 1, "boxes": [[100, 50, 300, 200]], "size": [401, 331]}
    folder = boxed(
        photos, [cat, {"file": "dog.jpg", "wnid": "collie", "boxes": [[9, 99, 300, 400]]}]
    )
    assert score(models("vit"), folder, *QUICK, "-o", tmp_path / "out") == 0
    told = scores(tmp_path / "out")["GradCAM"]["scores"]
    assert "mean_iou" not in told
    model = load_model(models("vit"))
    data = open_data(str(folder), model, Path("."))
    samples = [data[item] for item in data.chosen(2)]
    images = torch.stack([sample.image for sample in samples])
    targets = [1 if sample.name == "dog.jpg" else None for sample in samples]
    assert [sample.label for sample in samples] == targets
    predicted = model.network(images).argmax(1)
    targets = torch.tensor(
        [int(p) if t is None else t for t, p in zip(targets, predicted, strict=True)]
    )
    maps = GradCAM()(model.network, images, targets).values
    metric, energy = MaxBoxIoU(), EnergyPointingGame()
    boxes: list[Any] = [sample.boxes for sample in samples]
    metric.update(maps, boxes, [(32, 48)] * 2)
    masks: list[Any] = [sample.masks["object"] for sample in samples]
    energy.update(maps, torch.stack(masks))
    assert told["box_iou"]["mean"] == pytest.approx(metric.compute().item(), abs=2e-3)
    assert told["energy_inside"]["mean"] == pytest.approx(energy.compute().item(), abs=2e-3)
    bad = {
        "no box for this image": {"file": "dog.jpg", "boxes": []},
        "353 x 500, but boxes.json is of 35 x 50": {
            **{"file": "dog.jpg", "size": [35, 50], "boxes": [[0, 0, 9, 9]]}
        },
        "left < right and top < bottom": {"file": "dog.jpg", "boxes": [[9, 0, 9, 9]]},
        "a box reaches beyond the photo of 353 x 500": {
            "file": "dog.jpg",
            "boxes": [[0, 0, 900, 9]],
        },
        "outside the part that the network sees": {"file": "dog.jpg", "boxes": [[0, 0, 9, 9]]},
        "no such file": {"file": "gone.jpg", "boxes": [[0, 0, 9, 9]]},
    }
    for told, entry in bad.items():
        data = open_data(str(boxed(photos, [cat, entry])), model, Path("."))
        with pytest.raises(ImageError, match=re.escape(told)):
            data[1]
    for text in (
        "[]",
        "{",
        '{"images": []}',
        '{"images": [{"file": 3, "boxes": []}]}',
        '{"images": [{"file": "cat.png", "boxes": [[1, 2, 3, 4]], "size": 3}]}',
        "[" * 9999,
    ):
        (photos / "boxes.json").write_text(text)
        assert score(models("vit"), photos, *QUICK, "-o", tmp_path / "x") == 2
        assert "boxes.json: " in complaint()


def test_labels_of_boxes_are_checked(photos: Path) -> None:
    vit = ViT(image_size=16, patch_size=8, dim=12, depth=1, heads=2, num_classes=1000).eval()
    preprocess = Preprocess((16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
    classes = ["collie", *(f"class {i}" for i in range(1, 999)), "Collie"]  # two of one name
    model = Model(vit, preprocess, classes, vit.layout((16, 16)))
    cat = {"file": "cat.png", "boxes": [[100, 50, 300, 200]]}
    label: Any
    for label, told in (("Class 3", 3), (0, 0), (999, 999), (None, None)):
        data = open_data(str(boxed(photos, [{**cat, "label": label}])), model, Path("."))
        assert (data[0].label, data.label(0)) == (told, told)
    for label in ("zebra", "collie", 1000, -1, True, False, 3.0, [3], {}):
        data = open_data(str(boxed(photos, [{**cat, "label": label}])), model, Path("."))
        told = f"cat.png: label {label!r} in boxes.json is none of the model's classes: give the"
        with pytest.raises(ImageError, match=re.escape(told)):
            data[0]
        assert data.label(0) is None  # mosaics leave it out
    tiny = {"file": "tiny.png", "boxes": [[10, 5, 30, 20]], "label": 1000}
    bad = [{**cat, "label": "zebra"}, tiny]
    dog = {"file": "dog.jpg", "label": 999, "boxes": [[9, 99, 300, 400]]}
    folder = str(boxed(photos, [*bad, dog]))
    found = vision_attn.score(model, folder, "GradCAM", steps=2, progress=Silent())
    assert list(found.results.numbers("box_iou", "GradCAM")) == ["dog.jpg"]
    assert [line for line in found.problems if "cat.png: label 'zebra'" in line]
    assert [line for line in found.problems if "tiny.png: label 1000" in line]


def test_a_folder_of_classes_says_the_class(
    photos: Path,
    models: Callable[[str], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    score: Callable[..., int],
) -> None:
    for place in ("train/collie", "val/tabby cat", "val/zebra"):
        (photos / place).mkdir(parents=True)
    (photos / "cat.png").rename(photos / "val/tabby cat/cat.png")
    (photos / "dog.jpg").rename(photos / "val/zebra/dog.jpg")
    (photos / "tiny.png").rename(photos / "train/collie/tiny.png")
    data = open_data(str(photos), load_model(models("vit")), Path("."))
    assert [data[item].label for item in range(2)] == [0, None]
    assert data.names == ["tabby cat/cat.png", "zebra/dog.jpg"]
    assert score(models("senet"), photos, *QUICK, "--removal", "blur", "-o", tmp_path / "a") == 0
    assert "of 1 classified right" in capsys.readouterr().out


def test_a_data_set_by_name(
    models: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    score: Callable[..., int],
    scores: Callable[[Path], dict[str, Any]],
) -> None:
    class Tiny(Source):
        def load(self, root: Path, val_fraction: float, seed: int) -> Splits:
            images = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8)
            given = TensorSet(images, torch.tensor([0, 1, 0, 1, 0, 1]))
            return Splits(given, given, given, ["Collie", "zebra"])

    monkeypatch.setitem(SOURCES, "cifar10", Tiny)
    assert score(models("senet"), "cifar10", *QUICK, "--data.root", tmp_path, "-o", tmp_path) == 0
    assert "of 3 classified right" in capsys.readouterr().out
    told = scores(tmp_path)["GradCAM"]["scores"]
    assert told["deletion"]["n"] == 6
    assert "pointing_game" not in told
    records = list(vision_attn.open_results(tmp_path))
    assert {record["target"] for record in records if record["label"] == 1} == {1}


def test_classes_by_name_synonym_and_wnid() -> None:
    names = class_names(["tabby, tabby cat", "crane", "crane, bird"])
    assert names["tabby cat"] == 0
    assert "crane" not in names
    assert names["bird"] == 2
    many = class_names(["tench, Tinca tinca", *(f"class {i}" for i in range(1, 1000))])
    assert many["n01440764"] == 0
    few = class_names(["golf ball", "tench", "crane"])
    assert few["n01440764"] == 1
    assert few["n03445777"] == 0
    assert few["n02012849"] == few["n03126707"] == 2  # the bird and the machine
    assert "n02102040" not in few
