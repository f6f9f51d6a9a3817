"""`vision-attn score`, called in this process with tiny networks."""

import csv
import json
import re
import shutil
from argparse import ArgumentParser
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from nbclient import NotebookClient
from PIL import Image

import vision_attn
from vision_attn.cli import main
from vision_attn.commands.score import add_arguments
from vision_attn.data.images import ImageError
from vision_attn.data.planted import paint
from vision_attn.data.sources import Source, Splits
from vision_attn.data.tensors import TensorSet
from vision_attn.evaluate import (
    Deletion,
    DroppedTokens,
    EnergyPointingGame,
    FilledCells,
    MaxBoxIoU,
    PointingGame,
    paired_bootstrap,
)
from vision_attn.explain import Explainer, GradCAM, RandomMap
from vision_attn.hub import load_model
from vision_attn.models import ViT
from vision_attn.models.checkpoint import describe
from vision_attn.reports.scoring import tasks as score_work
from vision_attn.reports.scoring.evidence import SOURCES, class_names, open_data
from vision_attn.reports.scoring.results import Results
from vision_attn.reports.scoring.scorer import Scorer, removal
from vision_attn.types import Heatmaps

BASELINES = {"RandomMap", "CentreGaussian", "EdgeMap"}
QUICK = "--steps", 4, "--batch-size", 4, "--method", "GradCAM"


def score(*words: object) -> int:
    return main(["score", *map(str, words), "--device", "cpu"])


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.strip()


def scores(folder: Path) -> dict:
    return json.loads((folder / "scores.json").read_text())["methods"]


def same(a: dict, b: dict) -> None:
    assert a.keys() == b.keys()
    for method in a:
        for metric, told in a[method]["scores"].items():
            other = b[method]["scores"][metric]
            assert told["mean"] == pytest.approx(other["mean"], abs=2e-3), (method, metric)
            assert told["n"] == other["n"]


@pytest.fixture(scope="module")
def planted(models, tmp_path_factory) -> Path:
    """Ten planted images, scored."""
    folder = tmp_path_factory.mktemp("scored")
    assert score(models("vit"), "planted", *QUICK, "--images", 10, "-o", folder) == 0
    return folder


def test_the_table_is_what_the_metrics_say(planted, models):
    model = load_model(models("vit"))
    data = open_data("planted", model, Path("."))
    samples = [data[item] for item in data.chosen(10)]
    images = torch.stack([sample.image for sample in samples])
    predicted = model.network(images).argmax(1)
    told, settings = scores(planted), json.loads((planted / "settings.json").read_text())
    assert settings["removal"] == "tokens"
    removal = DroppedTokens(model.network.forward_kept_tokens, (4, 6))
    found = {}
    for explainer in (GradCAM(), RandomMap()):
        maps = explainer(model.network, images, predicted, model.layout).values
        deletion, pointing = Deletion(removal, steps=4), PointingGame()
        with torch.autocast("cpu", torch.bfloat16, enabled=settings["precision"] == "bf16"):
            deletion.update(images, maps, predicted)
        pointing.update(maps, torch.stack([sample.masks["object"] for sample in samples]))
        found[str(explainer)] = deletion.per_image()
        for name, metric in (("deletion", deletion), ("pointing_game", pointing)):
            row = told[str(explainer)]["scores"][name]
            assert row["mean"] == pytest.approx(metric.compute().item(), abs=2e-3)
            assert row["standard_error"] == pytest.approx(metric.standard_error().item(), abs=2e-3)
            assert row["n"] == 10
    ahead = told["GradCAM"]["scores"]["deletion"]["better_than"]["RandomMap"]
    want = paired_bootstrap(found["RandomMap"], found["GradCAM"])
    assert [ahead["mean"], ahead["low"], ahead["high"]] == pytest.approx(list(want), abs=2e-3)
    assert ahead["certain"] == (ahead["low"] > 0)


def test_the_files_say_the_same(planted, capsys):
    told = scores(planted)
    assert set(told) == {"GradCAM", *BASELINES}
    rows = list(csv.DictReader((planted / "scores.csv").read_text().splitlines()))
    assert len(rows) == sum(len(method["scores"]) for method in told.values())
    for row in rows:
        want = told[row["method"]]["scores"][row["metric"]]
        assert float(row["mean"]) == pytest.approx(want["mean"])
        if row["method"] == "GradCAM":
            assert float(row["ahead_of_EdgeMap"]) == want["better_than"]["EdgeMap"]["mean"]
    text = (planted / "scores.md").read_text()
    mean = told["GradCAM"]["scores"]["energy_inside"]["mean"]
    assert f"{mean:.3f}".lstrip("0") in text
    assert "± " not in text.split("##")[1]
    for name in ("curves.png", "best_and_worst.png"):
        with Image.open(planted / name) as picture:
            assert min(picture.size) > 300
    assert not (planted / "sanity.png").exists()


def test_from_python_it_is_the_same(planted, models):
    found = vision_attn.score(
        load_model(models("vit")), "planted", "GradCAM",
        images=10, steps=4, batch_size=4, name=models("vit"),
    )  # fmt: skip
    assert found.to_dict() == json.loads((planted / "scores.json").read_text())


def test_images_is_the_old_word_for_limit(capsys):
    parser = ArgumentParser()
    add_arguments(parser)
    assert parser.parse_args(["model", "planted", "--limit", "3"]).limit == 3
    assert capsys.readouterr().err == ""
    assert parser.parse_args(["model", "planted", "--images", "3"]).limit == 3
    assert capsys.readouterr().err == (
        "vision-attn: --images is now --limit: the old spelling works until 0.3\n"
    )
    assert "--images" not in parser.format_help()


def test_the_masks_are_those_of_the_planted_images(models):
    model = load_model(models("vit"))
    sample = open_data("planted:shortcut", model, Path("."))[13]
    drawn = paint(13, 14, size=(32, 48), split="test", cue="agree")
    assert torch.equal(sample.masks["object"], drawn.object_mask[0])
    assert torch.equal(sample.masks["shortcut"], drawn.shortcut_mask[0])
    pixels = (sample.image * 0.25 + 0.5) * 255
    torch.testing.assert_close(pixels, drawn.images[0].float(), atol=1e-2, rtol=0)
    assert "shortcut" not in open_data("planted", model, Path("."))[13].masks


def test_a_stopped_run_goes_on(models, planted, tmp_path, monkeypatch, capsys):
    words = models("vit"), "planted", *QUICK, "--images", 10, "-o", tmp_path
    do, count = score_work.Work.do, 0

    def interrupted(self, task):
        nonlocal count
        count += 1
        if count == 6:
            raise KeyboardInterrupt
        return do(self, task)

    monkeypatch.setattr(score_work.Work, "do", interrupted)
    assert score(*words) == 130
    assert f"20 scored maps are kept in {tmp_path}" in complaint(capsys)
    assert not (tmp_path / "scores.json").exists()
    lines = tmp_path / "per_image" / "all.jsonl"
    lines.write_text(lines.read_text()[:-40])  # as a killed process leaves them
    count = 6
    assert score(*words) == 0
    assert count == 6 + 7 + 1 + 4  # twelve tasks, five done, one image lost; four of maps to draw
    same(scores(tmp_path), scores(planted))


def test_damaged_scores_are_made_again(models, planted, tmp_path, monkeypatch):
    """A digit, a name, bytes that are no text, brackets without an end: each costs its image."""
    shutil.copytree(planted, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "per_image" / "all.jsonl"
    lines = file.read_bytes().splitlines()
    digit = max(
        i for i, c in enumerate(lines[0]) if chr(c).isdigit() and i < lines[0].index(b"checksum")
    )
    lines[0] = (
        lines[0][:digit]
        + (b"1" if lines[0][digit : digit + 1] != b"1" else b"2")
        + lines[0][digit + 1 :]
    )
    lines[1] = lines[1].replace(b'"kind"', b'"kynd"')
    lines[2] = b"\xff\xfe" + lines[2]
    lines[3] = b"[" * 100_000
    lines[4] = b"[1]"
    file.write_bytes(b"\n".join(lines) + b"\n")
    done = []
    do = score_work.Work.do
    monkeypatch.setattr(score_work.Work, "do", lambda s, task: done.append(task) or do(s, task))
    assert score(models("vit"), "planted", *QUICK, "--images", 10, "-o", tmp_path) == 0
    assert done
    same(scores(tmp_path), scores(planted))


@pytest.mark.parametrize("text", ["", "{", "3", "[1]", "[" * 100_000])
def test_damaged_settings_are_named(models, tmp_path, capsys, text):
    (tmp_path / "settings.json").write_text(text)
    assert score(models("vit"), "planted", *QUICK, "--images", 2, "-o", tmp_path) == 2
    assert "settings.json: damaged: what its scores are of is unknown" in complaint(capsys)


def test_more_methods_and_images_add_to_what_is_there(models, tmp_path, monkeypatch):
    words = models("vit"), "planted", "--steps", 2, "--batch-size", 4, "-o", tmp_path
    assert score(*words, "--method", "GradCAM", "--images", 4) == 0
    done = []
    do = score_work.Work.do
    monkeypatch.setattr(score_work.Work, "do", lambda s, task: done.append(task) or do(s, task))
    assert score(*words, "--method", "GradCAM", "--method", "RawAttention", "--images", 4) == 0
    assert [task[:2] for task in done] == [("maps", "RawAttention"), ("drawn", "RawAttention")]
    assert set(scores(tmp_path)) == {"GradCAM", "RawAttention", *BASELINES}


def test_shards_are_put_together(models, planted, tmp_path, capsys):
    words = models("vit"), "planted", *QUICK, "--images", 10, "-o", tmp_path
    for shard in ("2/2", "1/2"):
        assert score(*words, "--shard", shard) == 0
        assert f"shard {shard[0]} of 2 is done" in capsys.readouterr().out
        assert not (tmp_path / "scores.json").exists()
    assert score(*words) == 0
    files = sorted(path.name for path in (tmp_path / "per_image").glob("*.jsonl"))
    assert files == ["1-of-2.jsonl", "2-of-2.jsonl"]
    same(scores(tmp_path), scores(planted))


@pytest.mark.slow
def test_other_processes_give_the_same(models, planted, tmp_path):
    """One task is left to do, so that one process starts."""
    shutil.copytree(planted, tmp_path, dirs_exist_ok=True)
    lines = tmp_path / "per_image" / "all.jsonl"
    kept = [line for line in lines.read_text().splitlines() if '"GradCAM"' not in line]
    lines.write_text("\n".join(kept))
    words = "--method", "GradCAM", "--steps", 4, "--images", 10, "--processes", 2
    assert score(models("vit"), "planted", *words, "-o", tmp_path) == 0
    assert len(lines.read_text().splitlines()) == len(kept) + 10
    same(scores(tmp_path), scores(planted))


def test_all_methods_and_the_sanity_check(models, tmp_path, capsys):
    words = "--images", 3, "--steps", 2, "--sanity", 2
    methods = "GradCAM", "IntegratedGradients(steps=2)", "Occlusion(window=16, stride=16)"
    given = [word for method in methods for word in ("--method", method)]
    assert score(models("vit"), "planted", *words, *given, "-o", tmp_path) == 0
    told = scores(tmp_path)
    assert told["RandomMap"]["scores"]["randomisation"]["mean"] == pytest.approx(1)
    assert told["GradCAM"]["scores"]["randomisation"]["n"] == 2
    assert told["GradCAM"]["scores"]["randomisation"]["mean"] < 1
    layers = json.loads((tmp_path / "scores.json").read_text())["layers"]
    assert layers[0] == "head"
    assert len(told["GradCAM"]["curves"]["ssim"]) == len(layers)
    assert (tmp_path / "sanity.png").is_file()


@pytest.mark.parametrize(
    ("maps", "cores", "processes"), [(999, 2, 1), (1000, 2, 2), (90_000, 1, 1), (90_000, 16, 4)]
)
def test_as_many_processes_as_there_is_work_for(maps, cores, processes, models, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: cores)
    tasks = [score_work.Task("maps", "Rollout", (0,) * 10)] * (maps // 10)
    tasks += [score_work.Task("maps", "Rollout", (0,) * (maps % 10))]
    work = score_work.Work(load_model(models("vit")), "planted", "GradCAM", images=1)
    assert work.usual_processes(tasks) == processes
    monkeypatch.setattr(type(work.model), "device", torch.device("cuda"))
    assert work.usual_processes(tasks) == 1


def test_how_many_images_are_scored(models):
    model = load_model(models("vit"))
    usual = score_work.Work(model, "planted")
    assert (usual.asked, len(usual.all.sane)) == (1000, 0)
    every = score_work.Work(model, "planted", "all")
    assert (every.asked, len(every.all.sane)) == (500, 32)
    assert every.all.chosen == every.data.chosen(500, 0)


def test_the_default_methods_are_quick_and_all_are_not():
    network = ViT((32, 48), 8, 3, dim=12, depth=2, heads=2)
    usual = {type(method).__name__ for method in score_work.methods_for(None, network)}
    every = {type(method).__name__ for method in score_work.methods_for(["all"], network)}
    assert {"Rollout", "GradCAM", *BASELINES} <= usual
    assert every - usual == {"IntegratedGradients", "Occlusion"}


@pytest.fixture
def folder(tmp_path, photos) -> Path:
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


def test_masks_land_where_the_network_sees_them(folder, models):
    model = load_model(models("vit"))
    data = open_data(str(folder), model, Path("."))
    assert data.names == ["images/cat.png", "images/dog.jpg", "images/tiny.png"]
    cat = data[0]
    left, top, right, bottom = model.preprocess.box((401, 331))
    y = ((torch.arange(32) + 0.5) / 32 * (bottom - top) + top)[:, None]
    x = (torch.arange(48) + 0.5) / 48 * (right - left) + left
    inside = (y >= 120) & (y < 200) & (x >= 100) & (x < 300)
    assert (cat.masks["object"] != inside).float().mean() < 0.02
    assert cat.ignore.any()
    assert not (cat.ignore & cat.masks["object"]).any()
    assert cat.label is None
    assert data[1].masks["object"].any()
    assert not data[1].ignore.any()


def test_masks_are_scored_and_bad_ones_named(folder, models, tmp_path, capsys):
    out = tmp_path / "out"
    assert score(models("vit"), folder, *QUICK, "--images", 5, "-o", out) == 0
    assert scores(out)["GradCAM"]["scores"]["mean_iou"]["n"] == 3
    assert "5 images asked, 3 there are" in capsys.readouterr().out
    bad = {
        "size": (np.zeros((30, 60), np.uint8) + 1, "is 60 x 30, its image 60 x 40: save it"),
        "values": (np.full((40, 60), 77, np.uint8), "holds 77: expected 0 background, 1 to 20"),
        "absent": (np.zeros((40, 60), np.uint8), "the object is absent: the mask is 0 everywhere"),
        "full": (np.ones((40, 60), np.uint8), "no background: no pixel of the mask is 0"),
        "colour": (np.zeros((40, 60, 3), np.uint8), "one number a pixel (a grey or palette PNG)"),
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
    assert len(complaint(capsys).splitlines()) == 1
    assert scores(tmp_path / "two")["GradCAM"]["scores"]["deletion"]["n"] == 2
    (folder / "masks" / "tiny.png").unlink()
    data = open_data(str(folder), load_model(models("vit")), Path("."))
    with pytest.raises(ImageError, match=r"no mask of this image: expected masks/tiny\.png"):
        data[2]
    for mask in (folder / "masks").iterdir():
        mask.rename(mask.with_stem("other"))
    with pytest.raises(ValueError, match="no mask fits an image: expected files of the same stem"):
        open_data(str(folder), load_model(models("vit")), Path("."))


def boxed(folder: Path, entries: list) -> Path:
    (folder / "boxes.json").write_text(json.dumps({"images": entries}))
    return folder


def test_boxes_are_scored_and_bad_ones_named(photos, models, tmp_path, capsys):
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
    metric.update(maps, [sample.boxes for sample in samples], [(32, 48)] * 2)
    energy.update(maps, torch.stack([sample.masks["object"] for sample in samples]))
    assert told["box_iou"]["mean"] == pytest.approx(metric.compute().item(), abs=2e-3)
    assert told["energy_inside"]["mean"] == pytest.approx(energy.compute().item(), abs=2e-3)
    bad = {
        "no box of this image": {"file": "dog.jpg", "boxes": []},
        "353 x 500, but boxes.json is of 35 x 50": {
            **{"file": "dog.jpg", "size": [35, 50], "boxes": [[0, 0, 9, 9]]}
        },
        "left < right and top < bottom": {"file": "dog.jpg", "boxes": [[9, 0, 9, 9]]},
        "a box leaves the photo of 353 x 500": {"file": "dog.jpg", "boxes": [[0, 0, 900, 9]]},
        "outside of what the network sees": {"file": "dog.jpg", "boxes": [[0, 0, 9, 9]]},
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
        assert "boxes.json: " in complaint(capsys)


def test_a_folder_of_classes_says_the_class(photos, models, tmp_path, capsys):
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


def test_a_data_set_by_name(models, tmp_path, monkeypatch, capsys):
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
    records = [
        json.loads(line) for line in (tmp_path / "per_image/all.jsonl").read_text().splitlines()
    ]
    assert {record["target"] for record in records if record["label"] == 1} == {1}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere.ckpt", "planted"], "nowhere.ckpt: no such file; expected a checkpoint"),
        (["{vit}", "plantd"], "no data 'plantd': did you mean planted"),
        (["{vit}", "{vit}"], "expected a folder of images, got a file"),
        (
            ["{vit}", "planted", "--method", "Rolout"],
            "unknown method 'Rolout' (did you mean 'Rollout'?)",
        ),
        (["{senet}", "planted", "--method", "Rollout"], "Rollout does not fit this model"),
        (["{senet}", "planted", "--removal", "tokens"], "removal tokens: SEResNet is not a ViT"),
        (["{vit}", "planted", "--shard", "3/2"], "expected I/N, such as 1/4 to 4/4, got '3/2'"),
        (
            ["{vit}", "planted", "--sanity", "some"],
            "expected a whole number, 0 or more, got 'some'",
        ),
        (["{vit}", "planted", "--images", "0"], "expected a whole number of at least 1, got '0'"),
        (["{vit}", "planted", "--output", "/proc/here"], "--output /proc/here: cannot write there"),
        (["{vit}", "cifar10", "--data.root", "/proc"], "/proc"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(models, tmp_path, capsys, words, told):
    words = [word.format(vit=models("vit"), senet=models("senet")) for word in words]
    given = [] if "--output" in words else ["--output", str(tmp_path)]
    assert score(*words, *given) == 2
    lines = complaint(capsys).splitlines()
    assert len(lines) == 1
    assert told in lines[0]


def test_scores_of_other_settings_do_not_mix(models, planted, capsys):
    assert score(models("vit"), "planted", "--steps", 5, "-o", planted) == 2
    assert "it holds scores of other settings (steps 4, now 5)" in complaint(capsys)
    assert score(models("senet"), "planted", *QUICK, "-o", planted) == 2
    assert "weights" in complaint(capsys)


@dataclass(frozen=True)
class Odd(Explainer):
    """Constant for the first image of each batch, NaN for images that start bright."""

    class_specific = False

    def refusal(self, network):
        return None

    def explain(self, network, images, targets, layout):
        maps = torch.rand(len(images), 4, 6)
        maps[0] = 0.25
        maps[images.mean((1, 2, 3)) > self.bright] = float("nan")
        return Heatmaps(maps, str(self))

    @property
    def bright(self) -> float:
        return 0.0


def test_constant_and_nan_maps(models, tmp_path, capsys):
    model = load_model(models("vit"))
    work = score_work.Work(
        *(model, "planted", "GradCAM"),
        images=8, steps=2, how="mean", target="predicted", batch_size=8,
    )  # fmt: skip
    work.explainers = {"Odd": Odd(), **{str(e): e for e in score_work.BASELINES}}
    batch, _ = work.read(tuple(work.all.chosen))
    bright = batch.images.mean((1, 2, 3)) > 0
    assert bright.any()
    assert not bright.all()
    found = {}
    for task in work.tasks(set()):
        for record in work.do(task).records:
            found[record["kind"], record["method"], record["image"]] = record
    odd = [record for (_, method, _), record in found.items() if method == "Odd"]
    assert ["problem" in record for record in odd] == bright.tolist()
    assert "holds NaN or infinity" in next(r for r in odd if "problem" in r)["problem"]
    for i, record in enumerate(odd):
        if "scores" in record:  # alone in its batch, so constant
            share = batch.samples[i].masks["object"].float().mean().item()
            assert record["constant"]
            for metric in ("pointing_game", "energy_inside", "average_precision"):
                assert record["scores"][metric] == pytest.approx(share, abs=1e-4)
            assert record["scores"]["pixel_accuracy"] == pytest.approx(0.5, abs=1e-4)
    results = Results(work, found)
    count = int((~bright).sum())
    assert f"Odd: {count} of 8 maps are constant, and score as random" in results.notes()
    assert results.problems()[0].startswith(f"Odd (maps) failed on {8 - count} of 8 images, first:")
    assert results.mean("deletion", "Odd").n == count


def test_a_network_that_gives_no_numbers_stops_the_run(models, tmp_path, capsys):
    contents = torch.load(models("vit"))
    contents["state_dict"]["network.head.bias"][1] = float("nan")
    torch.save(contents, tmp_path / "broken.ckpt")
    assert score(tmp_path / "broken.ckpt", "planted", *QUICK, "-o", tmp_path / "out") == 2
    assert "its weights 'head.bias' hold NaN" in complaint(capsys)


def test_tokens_are_dropped_only_where_that_is_the_same_as_masking(models):
    from vision_attn.attention import Local2d, MultiHeadAttention

    model = load_model(models("vit"))
    assert isinstance(removal(model, "auto"), DroppedTokens)
    for name in ("mean", "blur", "noise"):
        filled = removal(model, name)
        assert isinstance(filled, FilledCells)
        assert filled.grid == (4, 6)
        assert type(filled.fill).__name__.lower() == f"{name}fill"
    local = ViT(
        (32, 48),
        8,
        3,
        dim=12,
        depth=1,
        heads=2,
        attention=lambda dim, heads: MultiHeadAttention(
            dim, heads, window=partial(Local2d, radius=1)
        ),
    )
    model.network.blocks = local.blocks
    assert isinstance(removal(model, "auto"), FilledCells)
    senet = removal(load_model(models("senet")), "auto")
    assert senet.grid == (8, 8)


def test_tokens_of_timms_vit_are_dropped():
    model = load_model("timm:vit_tiny_patch16_224", pretrained=False, num_classes=4)
    dropped = removal(model, "auto")
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        logits = dropped.logits(images, torch.arange(196)[None], [196])
        torch.testing.assert_close(logits[:, 0], model.network(images), atol=1e-4, rtol=1e-4)
    assert Scorer(model, dropped).batch(
        [open_data("planted", model, Path("."))[0]]
    ).images.shape == (1, 3, 224, 224)


def test_classes_by_name_synonym_and_wnid():
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


NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "06_which_heatmap_to_trust.ipynb"


@pytest.mark.xdist_group("demo")
@pytest.mark.slow
def test_notebook(tmp_path):
    torch.manual_seed(0)
    network = ViT(64, 8, 10, dim=12, depth=2, heads=2, pool="mean", class_token=False)
    about = {
        "format": 1,
        "network": describe(network),
        "classes": paint(0, 1).classes,
        "preprocess": {"input_size": (64, 64), "mean": (0.5,) * 3, "std": (0.25,) * 3},
        "version": "0",
    }
    weights = {f"network.{name}": weight for name, weight in network.state_dict().items()}
    checkpoint = tmp_path / "vit.ckpt"
    torch.save({"state_dict": weights, "vision_attn": about}, checkpoint)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "strip the outputs"
    (cell,) = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    cell.source = f"honest = cheat = {str(checkpoint)!r}\nimages = 20"
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute(cwd=str(NOTEBOOK.parent))
    pictures = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 3
