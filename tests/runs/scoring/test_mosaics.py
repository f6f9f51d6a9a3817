"""Mosaics of sure photos: a network whose evidence is known, both frames, files, shards, errors."""

import csv
import json
import shutil
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import vision_attn
from vision_attn.cli import main
from vision_attn.commands.score import add_arguments
from vision_attn.data import Preprocess
from vision_attn.evaluate import GridPointingGame
from vision_attn.methods import (
    Attribution,
    Explainer,
    GradCAM,
    MaskedRegression,
    Occlusion,
    Rollout,
)
from vision_attn.models import ViT
from vision_attn.runs.explain import Request
from vision_attn.runs.progress import Silent
from vision_attn.runs.scoring import Scores
from vision_attn.runs.scoring.evidence import open_data
from vision_attn.runs.scoring.mosaics import Mosaics, paste
from vision_attn.runs.scoring.scorer import SampleBatch, Scorer, removal
from vision_attn.runs.scoring.tasks import Work
from vision_attn.runs.store import Store
from vision_attn.types import Heatmaps, Model

CLASSES = ["blue", "cyan", "gold", "green", "grey", "jade", "navy", "plum", "red"]
COLOURS = torch.tensor(
    [[128.0] * 3] + [[40.0 + 175 * (i >> c & 1) for c in range(3)] for i in range(8)]
)
PREPROCESS = Preprocess((24, 36), (0.5,) * 3, (0.5,) * 3)
FEW: dict[str, Any] = {"steps": 2, "batch_size": 9, "limit": 5, "progress": Silent()}
GRIDS = "grid_pointing_2x2", "grid_pointing_3x3"


class Colours(nn.Module):
    """The logit of a class: how many of the pixels have its colour. Any size, or one alone."""

    def __init__(self, size: tuple[int, int] | None = None):
        super().__init__()
        self.size = size
        self.centres = nn.Parameter((COLOURS / 255 - 0.5) / 0.5)

    def evidence(self, images: torch.Tensor) -> torch.Tensor:
        far = (images[:, None] - self.centres[:, :, None, None]).square().sum(2)
        return (-50 * far).exp()  # b k h w

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.size is not None:
            assert images.shape[2:] == self.size, "built for one size"
        return 40 * self.evidence(images).mean((2, 3))


@dataclass(frozen=True)
class Oracle(Explainer):
    """Where the class's colour is."""

    class_specific = True

    def refusal(self, network: Any) -> None:
        return None

    def explain(self, network: Any, images: torch.Tensor, target: Any, layout: Any) -> Heatmaps:
        classes = target.fixed(network(images)).classes(images)
        chosen = network.evidence(images)[torch.arange(len(images)), classes]
        return Heatmaps(chosen.detach(), str(self), classes)


@dataclass(frozen=True)
class Blind(Explainer):
    """The image's own first channel."""

    class_specific = False

    def refusal(self, network: Any) -> None:
        return None

    def explain(self, network: Any, images: torch.Tensor, target: Any, layout: Any) -> Heatmaps:
        return Heatmaps(images[:, 0].contiguous(), str(self))


@dataclass(frozen=True)
class Fails(Oracle):
    """Fails on more than one image, and on some."""

    def explain(self, network: Any, images: torch.Tensor, target: Any, layout: Any) -> Heatmaps:
        if len(images) > 1 or images.mean() > 0:
            raise ValueError("too bright")
        return super().explain(network, images, target, layout)


def model_of(network: nn.Module, classes: list[str] = CLASSES) -> Model:
    return Model(network.eval(), PREPROCESS, list(classes), None)


@pytest.fixture(scope="module")
def model() -> Model:
    return model_of(Colours())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven photos of each class: its colour with more and more noise, the last of another class."""
    place = tmp_path_factory.mktemp("colours")
    rng = np.random.default_rng(0)
    for number, name in enumerate(CLASSES):
        (place / name).mkdir()
        for i in range(7):
            colour = COLOURS[(number + 1) % len(CLASSES) if i == 6 else number].numpy()
            noise = rng.normal(0, 2 + 2 * i, (24, 36, 3))
            pixels = (colour + noise).clip(0, 255).round().astype(np.uint8)
            Image.fromarray(pixels).save(place / name / f"{i}.png")
    return place


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scored")


@pytest.fixture(scope="module")
def scored(model: Model, folder: Path, output: Path) -> Scores:
    methods = [Oracle(), Blind()]
    return vision_attn.score(
        model, folder, methods, **FEW, mosaic=[3, 2], output=output, name="colours"
    )


@pytest.mark.xdist_group("mosaics")
def test_the_oracle_scores_one_and_what_is_blind_to_the_class_the_share_of_a_cell(
    scored: Scores,
) -> None:
    for side, metric in zip((2, 3), GRIDS, strict=True):
        means = {m: scored.results.mean(metric, m) for m in scored.methods}
        assert means["Oracle"].value == pytest.approx(1, abs=1e-3)
        for method in ("Blind", "RandomMap", "CentreGaussian", "EdgeMap"):
            assert means[method].value == pytest.approx(1 / side**2, abs=1e-5)
            assert means[method].error == pytest.approx(0, abs=1e-5)
        assert {mean.n for mean in means.values()} == {5}


@pytest.mark.xdist_group("mosaics")
def test_a_mosaic_holds_the_surest_photos_that_are_named_right(
    scored: Scores, model: Model, folder: Path
) -> None:
    data = open_data(str(folder), model, folder)
    with torch.no_grad():
        chances = torch.cat([model.network(data[i].image[None]).softmax(1) for i in range(63)])
    labels = torch.arange(63) // 7
    right = chances.argmax(1) == labels
    assert not right[6::7].any()
    for side in (2, 3):
        records = [r for (kind, _, image), r in scored.results.records.items()
                   if kind == "mosaic" and r["method"] == "Oracle"
                   and image.startswith(f"{side}x{side}")]  # fmt: skip
        photos = [photo for record in records for photo in record["photos"]]
        assert len(set(photos)) == len(photos) == 5 * side**2
        items = torch.tensor([list(data.names).index(photo) for photo in photos])
        assert right[items].all()
        for record in records:
            assert len({photo.split("/")[0] for photo in record["photos"]}) == side**2
            assert len(record["cells"]) == side**2
        for label in range(9):  # the surest come first
            used = chances[items[labels[items] == label], label]
            mine = chances[(labels == label) & right, label].sort(descending=True).values
            torch.testing.assert_close(used.sort(descending=True).values, mine[: len(used)])


@pytest.mark.xdist_group("mosaics")
def test_the_files_say_how_and_mark_what_is_class_blind(scored: Scores, output: Path) -> None:
    folder = output
    report = json.loads((folder / "scores.json").read_text())
    assert [row["side"] for row in report["mosaics"]] == [2, 3]
    assert report["mosaics"][0]["frame"] == "full"
    assert report["mosaics"][0]["named"] == {"full": 1.0, "shrunk": 1.0}
    assert not report["methods"]["Blind"]["class_specific"]
    ahead = report["methods"]["Oracle"]["scores"][GRIDS[0]]["better_than"]["RandomMap"]
    assert ahead["mean"] == pytest.approx(0.75, abs=1e-3)
    assert ahead["low"] <= ahead["mean"] <= ahead["high"]
    rows = list(csv.DictReader((folder / "scores.csv").read_text().splitlines()))
    assert {row["metric"] for row in rows} >= set(GRIDS)
    for text in ((folder / "scores.md").read_text(), str(scored), scored._repr_html_()):
        assert ".250 class-blind" in text
        assert "In a mosaic, does the map of a class lie on its photo?" in text
        assert "mosaics of 2x2: 5, each photo at its own size" in text
        assert "100.0% are among its 4 most probable (shrunk: 100.0%)" in text
    assert "grid pointing 2x2 ↑: better than every baseline: Oracle" in str(scored)


def test_the_verdict_knows_what_answers_for_a_class(model: Model, folder: Path) -> None:
    few: dict[str, Any] = {**FEW, "limit": 40, "steps": 1}
    scores = vision_attn.score(model, folder, [Oracle(), Blind()], **few, mosaic=2)
    verdict = scores.verdict()
    assert verdict.mosaics == (2, 13)  # 54 photos are named right
    assert {m.method: m.pointing for m in verdict.methods} == {
        "Oracle": "open",  # fewer than 20 mosaics
        "Blind": "class-blind",
    }
    assert verdict.text.splitlines()[2] == (
        "Asked for one class of a 2x2 mosaic, these cannot, being the same for every class: Blind; "
        "cannot tell from 13 mosaics: Oracle."
    )
    remarks = {m.method: m.remarks for m in verdict.methods}
    assert remarks["Oracle"] == (
        "in mosaics of 2x2, 1.000 of it lies on the photo of its class, .250 by chance",
    )
    assert not remarks["Blind"]


def test_mosaics_of_a_side_hold_so_many_photos(
    model: Model, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vision_attn.runs.scoring.mosaics.PHOTOS", 19)
    scores = vision_attn.score(model, folder, "RandomMap", **FEW, mosaic=[2, 3])
    assert [row["mosaics"] for row in scores.to_dict()["mosaics"]] == [4, 2]


def test_a_network_of_one_size_sees_shrunk_photos(folder: Path) -> None:
    scores = vision_attn.score(model_of(Colours((24, 36))), folder, Oracle(), **FEW, mosaic=2)
    row = scores.to_dict()["mosaics"][0]
    assert row["frame"] == "shrunk"
    assert row["named"] == {"shrunk": 1.0}
    assert "each photo shrunk into the network's input" in str(scores)
    assert scores.results.mean(GRIDS[0], "Oracle").value == pytest.approx(1, abs=1e-2)


def test_the_frame_is_the_one_in_which_more_is_named(folder: Path) -> None:
    class Near(Colours):  # blind beyond its own size
        def evidence(self, images: torch.Tensor) -> torch.Tensor:
            found = super().evidence(images)
            return found[..., : PREPROCESS.input_size[0], : PREPROCESS.input_size[1]]

    row = vision_attn.score(model_of(Near()), folder, "RandomMap", **FEW, mosaic=2)
    row = row.to_dict()["mosaics"][0]
    assert row["frame"] == "shrunk"
    assert row["named"]["shrunk"] == 1
    assert row["named"]["full"] < 1


def batch_of(mosaics: Mosaics, numbers: list[Any]) -> SampleBatch:
    """Mosaics in the frame of their photos' own size."""
    samples = mosaics.samples("full")
    return Scorer(Request(mosaics.model, []), removal(mosaics.model)).batch(
        [samples[number] for number in numbers]
    )


def pointed(mosaics: Mosaics, method: Explainer) -> list[dict[str, Any]]:
    return Scorer(Request(mosaics.model, []), removal(mosaics.model)).records(
        "mosaic", method, batch_of(mosaics, [0, 1])
    )


def of_a_vit(folder: Path) -> Mosaics:
    """Two mosaics, as a ViT of random weights sees them."""
    network = ViT((24, 36), 12, 9, dim=12, depth=2, heads=2)
    for weight in network.parameters():
        nn.init.normal_(weight, std=0.3)
    model = Model(network.eval(), PREPROCESS, CLASSES, network.layout((24, 36)))
    data = open_data(str(folder), model, folder)
    mosaics = Mosaics("colours", model, data, sides=(2,), most=2)
    right = {
        ("named", "", data.names[i]): {"label": i // 7, "predicted": i // 7, "probability": 0.5}
        for i in range(63)
    }
    mosaics.compose(right)
    scorer = Scorer(Request(model, []), removal(model))
    records = scorer.records("framed", None, batch_of(mosaics, [0, 1]))
    framed = {("framed", "", record["image"]): record for record in records}
    mosaics.choose_frames(framed)
    return mosaics


@pytest.mark.parametrize("method", [MaskedRegression(samples=24), Occlusion(window=12)])
def test_what_a_method_of_many_passes_shows_of_a_class_is_the_same_beside_the_others(
    folder: Path, method: Attribution
) -> None:
    mosaics = of_a_vit(folder)
    network = mosaics.model.network
    for number, record in enumerate(pointed(mosaics, method)):
        images = batch_of(mosaics, [number]).images
        for cell, target in enumerate(mosaics.made[number].classes):
            maps = method(network, images, target, network.layout((48, 72))).values
            game = GridPointingGame(2)
            game.update(maps, torch.tensor([cell]))
            assert record["cells"][cell] == pytest.approx(game.compute().item(), abs=2e-5)


def test_a_vit_has_a_layout_of_the_mosaic(folder: Path) -> None:
    mosaics = of_a_vit(folder)
    network = mosaics.model.network
    record, _ = pointed(mosaics, GradCAM())
    images = batch_of(mosaics, [0]).images
    assert tuple(images.shape) == (1, 3, 48, 72)
    want = []
    for cell, target in enumerate(mosaics.made[0].classes):
        maps = GradCAM()(network, images, target).values[0].relu()
        assert maps.shape == (4, 6)
        y, x = divmod(cell, 2)
        inside = maps[2 * y : 2 * y + 2, 3 * x : 3 * x + 3].sum()
        want.append(float(inside / maps.sum()) if maps.any() else 0.25)
    assert record["cells"] == pytest.approx(want, abs=1e-4)
    rollout, _ = pointed(mosaics, Rollout())
    assert sum(rollout["cells"]) == pytest.approx(1, abs=1e-4)


@pytest.mark.slow
@pytest.mark.xdist_group("mosaics")
def test_a_stopped_call_and_shards_give_the_same(
    model: Model, folder: Path, scored: Scores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask: dict[str, Any] = {**FEW, "mosaic": (2, 3), "output": tmp_path, "name": "colours"}
    methods = [Oracle(), Blind()]
    for shard in ((2, 2), (1, 2)):
        part = vision_attn.score(model, folder, methods, **ask, shard=shard)
        assert not (tmp_path / "scores.json").exists()
        assert 0 < part.results.mean(GRIDS[0], "Oracle").n < 5
    with Store(tmp_path / "per_image", (1, 2), keeps_others=True) as store:
        store.remove(store.index.ids[len(store.index.ids) // 2 :])
    whole = vision_attn.score(model, folder, methods, **ask)
    assert whole.to_dict()["mosaics"] == scored.to_dict()["mosaics"]
    for method in scored.methods:
        for metric in GRIDS:
            assert whole.results.numbers(metric, method) == scored.results.numbers(metric, method)
    monkeypatch.setattr(Work, "do", lambda *given: 1 / 0)  # all of it is kept
    again = vision_attn.score(model, folder, methods, **ask)
    assert again.to_dict() == whole.to_dict()


def test_scores_without_mosaics_go_on_with_them(model: Model, folder: Path, tmp_path: Path) -> None:
    ask: dict[str, Any] = {**FEW, "output": tmp_path}
    before = vision_attn.score(model, folder, Oracle(), **ask)
    assert before.to_dict()["mosaics"] == []
    assert "mosaic" not in str(before)
    after = vision_attn.score(model, folder, Oracle(), **ask, mosaic=2)
    assert set(after.metrics) - set(before.metrics) == {GRIDS[0]}
    more = vision_attn.score(model, folder, Oracle(), **{**ask, "limit": 7}, mosaic=2)
    kept = after.results.numbers(GRIDS[0], "Oracle")
    assert kept.items() <= more.results.numbers(GRIDS[0], "Oracle").items()


def test_a_method_that_fails_on_some_mosaics_is_scored_on_the_others(
    model: Model, folder: Path
) -> None:
    scores = vision_attn.score(model, folder, [Fails()], **FEW, mosaic=2)
    n = scores.results.mean(GRIDS[0], "Fails").n
    failed = [line for line in scores.problems if line.startswith("Fails (mosaic)")]
    assert failed == ([f"Fails (mosaic) failed on {5 - n} of 5 images, first: too bright"])


def test_pasted_photos() -> None:
    photos = torch.rand(9, 3, 11, 7)
    whole = paste(photos, "full")
    assert whole.shape == (3, 33, 21)
    assert torch.equal(whole[:, 22:, 7:14], photos[7])
    flat = torch.arange(9.0)[:, None, None, None].expand(-1, 3, 11, 7)
    small = paste(flat, "shrunk")
    assert small.shape == (3, 11, 7)
    assert small[0, :, 0].round().int().tolist() == [0] * 4 + [3] * 3 + [6] * 4
    assert small[0, 0].round().int().tolist() == [0] * 2 + [1] * 3 + [2] * 2


def without(folder: Path, tmp_path: Path, names: list[Any]) -> Path:
    for name in names:
        shutil.copytree(folder / name, tmp_path / name)
    return tmp_path


def test_what_cannot_be_made_is_said_in_a_line(model: Model, folder: Path, tmp_path: Path) -> None:
    def words(data: Any, sides: int, network: Model = model) -> str:
        with pytest.raises(ValueError) as error:
            vision_attn.score(network, data, Oracle(), **FEW, mosaic=sides)
        assert "\n" not in str(error.value)
        return str(error.value)

    for side in (0, 1, 5):
        assert words(folder, side) == f"mosaic must be 2, 3, 4 photos a side, got {side}"
    few = without(folder, tmp_path, ["red", "gold", "navy"])
    assert words(few, 2) == (
        f"{few}: a mosaic of 2x2 needs photos of 4 classes that the model knows, got 3 "
        "(gold, navy, red)"
    )
    assert words(folder / "red", 2).endswith("of 4 classes that the model knows, got 1 (red)")
    strange = model_of(Colours(), ["cat", "dog", "cow", "pig", "hen", "elk", "ape", "bee", "emu"])
    assert words(folder, 2, strange) == (
        f"{folder}: the model knows no class named blue, cyan, gold, green, ...: give a folder "
        "with one folder for each class, named like the model's classes, such as cat, dog, cow, pig, "
        "..."
    )
    assert words(folder / "red", 2, strange) == (
        f"{folder}/red: mosaics need to know what each photo shows: give a folder with one folder "
        "for each class, named like the model's classes, such as cat, dog, cow, pig, ..."
    )
    assert "mosaics need to know" in words([Image.new("RGB", (36, 24))], 2)
    lost = model_of(Colours(), [*CLASSES[1:], CLASSES[0]])  # its names are off by one
    assert words(folder, 2, lost) == (
        f"{folder}: a mosaic of 2x2 needs photos of 4 classes that the model classifies right, got 0"
    )


def test_on_the_command_line(
    models: Callable[[str], str],
    model: Model,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parser = ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(["m", "d", "--mosaic", "2", "--mosaic", "3"])
    assert args.mosaic == [2, 3]
    command = ["score", models("senet"), str(folder), "--mosaic", "2", "--device", "cpu"]
    assert main([*command, "-o", str(tmp_path / "out")]) == 2
    complaint = capsys.readouterr().err.strip()
    assert complaint.startswith(
        f"vision-attn: error: {folder}: the model knows no class named blue, cyan, "
    )
    assert "\n" not in complaint
    monkeypatch.setattr("vision_attn.commands.options.load", lambda args: model)
    limits = ["--limit", "5", "--steps", "1", "--method", "RandomMap", "-o", str(tmp_path / "ok")]
    assert main([*command, *limits, "--processes", "1"]) == 0
    assert "grid pointing 2x2 ↑" in capsys.readouterr().out
    assert "class-blind" in (tmp_path / "ok" / "scores.md").read_text()
    assert main(["score", "m", "d", "--mosaic", "two"]) == 2
    assert "--mosaic: expected a whole number, 0 or more, got 'two'" in capsys.readouterr().err
