"""`vision_attn.score` from Python: in memory, in a folder, stopped, in shards, and its errors."""

import csv
import doctest
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import vision_attn
from vision_attn.data import Preprocess
from vision_attn.evaluate import Deletion
from vision_attn.files import claimed
from vision_attn.methods import CentreGaussian, GradCAM, Rollout
from vision_attn.models import ViT
from vision_attn.runs.loop import RunTask, TaskResult
from vision_attn.runs.progress import Silent
from vision_attn.runs.scoring import Scores, scorer, tables
from vision_attn.runs.scoring.pictures import paint
from vision_attn.runs.scoring.scorer import KeptMap, SampleBatch, Scorer
from vision_attn.runs.scoring.tasks import ScoreFolder, Work, drawn_of, records_of
from vision_attn.runs.store import MemoryStore
from vision_attn.types import Heatmaps, Model

BASELINES = ["RandomMap", "CentreGaussian", "EdgeMap"]
QUICK: dict[str, Any] = {"steps": 2, "batch_size": 4, "limit": 7, "progress": Silent()}


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    network = ViT((32, 48), 8, 3, dim=12, depth=2, heads=2).eval()
    for weight in network.parameters():
        nn.init.normal_(weight, std=0.3)
    preprocess = Preprocess((32, 48), (0.5,) * 3, (0.25,) * 3)
    return Model(network, preprocess, ["a", "b", "c"], network.layout((32, 48)))


@pytest.fixture(scope="module")
def planted(model: Model) -> Scores:
    return vision_attn.score(model, "planted", "GradCAM", **QUICK)


def same(one: Scores, other: Scores) -> None:
    """The same numbers: exactly, but for what depends on how images are batched."""
    for mine, theirs in zip(one.table(), other.table(), strict=True):
        assert (mine["method"], mine["metric"], mine["n"]) == (
            *(theirs["method"], theirs["metric"], theirs["n"]),
        )
        assert mine["mean"] == pytest.approx(theirs["mean"], abs=2e-3)


@pytest.mark.xdist_group("scored in memory")
def test_rows_are_plain_values_and_the_csv(planted: Scores, tmp_path: Path) -> None:
    rows = planted.table()
    assert {row["method"] for row in rows} == {"GradCAM", *BASELINES}
    for row in rows:
        assert all(isinstance(value, str | int | float | None) for value in row.values())
    planted.save(tmp_path)
    written = list(csv.DictReader(io.StringIO((tmp_path / "scores.csv").read_text())))
    assert [row["metric"] for row in written] == [row["metric"] for row in rows]
    assert float(written[0]["mean"]) == rows[0]["mean"]
    ahead = planted.to_dict()["methods"]["GradCAM"]["scores"]["deletion"]["better_than"]
    assert rows[0]["ahead_of_EdgeMap_low"] == ahead["EdgeMap"]["low"]


@pytest.mark.xdist_group("scored in memory")
def test_in_memory_and_in_a_folder_it_is_the_same(
    model: Model, planted: Scores, tmp_path: Path
) -> None:
    kept = vision_attn.score(model, "planted", [GradCAM()], **QUICK, output=tmp_path)
    assert kept.to_dict() == planted.to_dict()
    assert json.loads((tmp_path / "scores.json").read_text()) == planted.to_dict()
    planted.save(tmp_path / "again")
    for name in ("scores.csv", "scores.json", "scores.md", "curves.png", "best_and_worst.png"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


@pytest.mark.xdist_group("scored in memory")
def test_best_and_the_tables_that_show_themselves(planted: Scores) -> None:
    means = {r["method"]: r["mean"] for r in planted.table() if r["metric"] == "insertion"}
    assert planted.best("insertion") == max(means, key=means.__getitem__)
    assert set(planted.better_than_baselines("insertion")) <= {"GradCAM"}
    with pytest.raises(ValueError, match="no scores by 'speed': expected one of deletion, inse"):
        planted.best("speed")
    for text in (str(planted), planted._repr_html_()):
        assert "ViT on planted: 7 images" in text
        for method in planted.methods:
            assert method in text
    assert "<b>" in planted._repr_html_()


@pytest.mark.slow
@pytest.mark.xdist_group("scored in memory")
def test_a_stopped_call_goes_on_and_draws_without_the_network(
    model: Model, planted: Scores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    do, count = Work.do, 0

    def interrupted(self: Any, task: Any, read: Any) -> TaskResult:
        nonlocal count
        count += 1
        if count == 5:
            raise KeyboardInterrupt
        return do(self, task, read)

    monkeypatch.setattr(Work, "do", interrupted)
    with pytest.raises(KeyboardInterrupt, match=f"^16 scored maps are kept in {tmp_path}: the sam"):
        vision_attn.score(model, "planted", "GradCAM", **QUICK, output=tmp_path)
    same(vision_attn.score(model, "planted", "GradCAM", **QUICK, output=tmp_path), planted)
    first = (tmp_path / "best_and_worst.png").read_bytes()
    (tmp_path / "best_and_worst.png").unlink()

    def no_network(self: Any, *given: Any) -> None:
        raise AssertionError(given)

    monkeypatch.setattr(Work, "do", no_network)
    again = vision_attn.score(model, "planted", "GradCAM", **QUICK, output=tmp_path)
    assert (tmp_path / "best_and_worst.png").read_bytes() == first
    monkeypatch.setattr(model.network, "forward", no_network)
    again.save(tmp_path)


@pytest.mark.slow
def test_a_map_that_was_cut_short_is_drawn_again(model: Model, tmp_path: Path) -> None:
    vision_attn.score(model, "planted", "GradCAM", **QUICK, output=tmp_path)
    maps = tmp_path / "per_image" / "maps" / "GradCAM.1-of-1.npy"
    content = maps.read_bytes()
    first = (tmp_path / "best_and_worst.png").read_bytes()
    maps.write_bytes(content[: len(content) // 2])
    vision_attn.score(model, "planted", "GradCAM", **QUICK, output=tmp_path)
    assert (tmp_path / "best_and_worst.png").read_bytes() == first
    assert len(maps.read_bytes()) == len(content)


@pytest.mark.xdist_group("scored in memory")
def test_scores_on_a_full_disk_stay_as_they_were(planted: Scores, full_disk: Path) -> None:
    (full_disk / "a.txt").write_bytes(b"x" * 65_536)
    for name in ("scores.json", "scores.csv", "scores.md"):
        (full_disk / name).touch()  # which takes no room
    with pytest.raises(OSError, match=rf"{full_disk}/scores\.json: cannot be written \(No space"):
        planted.save(full_disk)
    (full_disk / "a.txt").write_bytes(b"x" * 53_248)
    with pytest.raises(OSError, match=r"cannot be written \(No space"):
        planted.save(full_disk)
    for path in full_disk.glob("scores.*"):
        text = path.read_text()
        assert not text or text == tables_of(planted)[path.suffix]


def tables_of(scores: Scores) -> dict[str, str]:
    """The files of scores, by suffix, as they are when they are whole."""
    results = scores.results
    as_json = json.dumps(scores.to_dict(), indent=1) + "\n"
    return {".json": as_json, ".csv": tables.as_csv(results), ".md": tables.as_markdown(results)}


def test_two_calls_at_once_do_not_write_to_one_folder(model: Model, tmp_path: Path) -> None:
    with (
        claimed(tmp_path),
        pytest.raises(ValueError, match="another job is writing there"),
    ):
        vision_attn.score(model, "planted", "GradCAM", **QUICK, output=tmp_path)


@pytest.mark.xdist_group("scored in memory")
def test_shards_meet_in_a_folder(model: Model, planted: Scores, tmp_path: Path) -> None:
    for number in (2, 1):
        part = vision_attn.score(
            model, "planted", "GradCAM", **QUICK, output=tmp_path, shard=(number, 2)
        )
        assert len(part.results.images) == (4 if number == 1 else 3)
        assert not (tmp_path / "scores.json").exists()
    empty = vision_attn.score(model, "planted", "GradCAM", **QUICK, shard=(3, 3))
    assert empty.table() == []
    same(vision_attn.score(model, "planted", "GradCAM", **QUICK, output=tmp_path), planted)


@pytest.mark.slow
@pytest.mark.xdist_group("scored in memory")
def test_two_processes_give_the_same(model: Model, planted: Scores) -> None:
    same(vision_attn.score(model, "planted", "GradCAM", **QUICK, processes=2), planted)


@pytest.mark.xdist_group("scored in memory")
def test_a_model_that_cannot_be_sent_is_scored_in_one_process(
    model: Model, planted: Scores
) -> None:
    class Local(nn.Module):  # known to this function alone
        def __init__(self) -> None:
            super().__init__()
            self.network = model.network

        def forward(self, x: Any) -> Any:
            return self.network(x)

    local = Model(Local().eval(), model.preprocess, model.classes, None)
    scores = vision_attn.score(
        local, "planted", "RandomMap", **{**QUICK, "progress": None}, processes=2
    )
    assert len(scores.problems) == 1
    assert "cannot be sent to other processes" in scores.problems[0]
    assert scores.problems[0].endswith("so one process does it all")
    assert scores.best("sparseness")


class Restless(CentreGaussian):
    """Maps of torch's own random numbers."""

    def draw(self, images: torch.Tensor, height: int, width: int) -> torch.Tensor:
        return torch.rand(len(images), height, width)


def test_the_callers_random_numbers_go_on_and_change_no_score(model: Model) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    found = []
    for before in (5, 6):
        torch.manual_seed(before)
        scores = vision_attn.score(model, "planted", Restless(), **QUICK)
        found.append(scores.to_dict()["methods"])
        if before == 5:
            assert torch.equal(torch.rand(3), expected)
    assert found[0] == found[1]
    torch.manual_seed(5)
    with pytest.raises(ValueError, match="no data"):
        vision_attn.score(model, "plante", "GradCAM", **QUICK)
    assert torch.equal(torch.rand(3), expected)


def test_lists_of_files_and_images(model: Model, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = [Image.fromarray(rng.integers(0, 256, (40, 50, 3), np.uint8)) for _ in range(3)]
    (tmp_path / "b").mkdir()
    pixels[0].save(tmp_path / "b" / "one.png")
    photos: list[Any] = [tmp_path / "b" / "one.png", pixels[1], tmp_path / "gone.png"]
    progress = Silent()
    scores = vision_attn.score(model, photos, "GradCAM", steps=2, progress=progress)
    assert scores.problems == [f"{tmp_path}/gone.png: no such file: check the path"]
    assert progress.problems == scores.problems
    records = scores.results.records
    assert {image for _, _, image in records} == {str(photos[0]), "image 1"}
    assert records["maps", "GradCAM", str(photos[0])]["label"] == 1
    assert records["maps", "GradCAM", "image 1"]["label"] is None
    out = tmp_path / "out"
    vision_attn.score(model, pixels[:2], "GradCAM", steps=2, output=out, progress=progress)
    with pytest.raises(ValueError, match=r"scores of other settings \(data a list of images \("):
        vision_attn.score(model, pixels[1:], "GradCAM", steps=2, output=out, progress=progress)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"limit": 0}, "limit must be at least 1, got 0"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"batch_size": -1}, "batch_size must be at least 1, got -1"),
        ({"processes": 0}, "processes must be at least 1, got 0"),
        ({"sanity": -1}, "sanity must be at least 0, got -1"),
        ({"target": "tabbi"}, "no class named 'tabbi': there are a; b; c"),
        ({"contrast": 7}, "no class 7: expected 0 to 2, or a name"),
        ({"target": [0, 1]}, "target: expected one for all images, got one an image"),
        ({"removal": "none"}, "removal must be one of auto, tokens, mean, blur, noise, got 'none'"),
        ({"shard": (3, 2)}, "shard must be (number, of how many), such as (1, 4), got (3, 2)"),
        ({"methods": "Rolout"}, "unknown method 'Rolout' (did you mean 'Rollout'?)"),
        ({"methods": "ChannelGates"}, "ChannelGates does not fit this model"),
        ({"images": "plantd"}, "no data 'plantd': did you mean planted"),
        ({"images": []}, "expected at least one image, got an empty list"),
        (
            {"images": ["gone.png"]},
            "a list of files: nothing could be scored: gone.png: no such file: check the path",
        ),
        ({"output": "/proc/here"}, "/proc/here: cannot write there"),
    ],
)
def test_what_does_not_fit_is_said(model: Model, given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        vision_attn.score(model, **{"images": "planted", **QUICK, **given})


def test_removal_is_what_deletion_needs(model: Model) -> None:
    images = torch.randn(2, 3, 32, 48)
    maps = Rollout()(model.network, images)
    scores = []
    given: Any
    for given in (maps, maps.values):
        deletion = Deletion(vision_attn.removal(model))
        deletion.update(images, given, torch.tensor([0, 1]))
        scores.append(deletion.per_image())
    assert torch.equal(*scores)
    blurred: Any = vision_attn.removal(model, "blur")
    assert type(blurred.fill).__name__ == "BlurFill"


def test_a_map_is_drawn_in_its_own_scale(model: Model) -> None:
    """A nearly even rollout with half of its mass on the class token stays nearly colourless."""
    data = Work(model, "planted", "GradCAM", limit=1).data
    even = np.full((4, 6), 0.5 / 24, np.float32)
    even[1, 2] *= 1.04
    even[0, 0] -= even.sum() - 0.5
    known, bare = (paint(data[0], KeptMap(even, mass), model.preprocess) for mass in (0.5, None))
    assert np.abs(known.astype(int) - bare).mean() > 20


def in_a_batch(work: Work) -> SampleBatch | None:
    """The batch of all chosen images."""
    batch, problems = work.batch([work.read(("data", item)) for item in work.all.chosen])
    assert problems == []
    return batch


def test_maps_are_kept_with_their_prefix_mass(model: Model, tmp_path: Path) -> None:
    work = Work(model, "planted", "Rollout", limit=2, steps=2)
    batch = in_a_batch(work)
    assert batch is not None
    found = Rollout()(model.network, batch.images)
    task = RunTask(tuple(("data", i) for i in work.all.chosen), (work.column("drawn", "Rollout"),))
    memory = MemoryStore()
    memory.add(work.do(task, [work.read(sample) for sample in task.samples]).rows)
    with ScoreFolder(tmp_path, work) as folder:
        folder.add(list(memory.kept()))
    with ScoreFolder(tmp_path, work) as folder:
        for store in (memory, folder):
            drawn = drawn_of(store)
            for i, sample in enumerate(batch.samples):
                one = drawn["Rollout", sample.name]
                np.testing.assert_allclose(one.values, found.values[i], atol=1e-6)
                assert found.prefix_mass is not None
                assert one.prefix_mass == pytest.approx(float(found.prefix_mass[i]))
        assert records_of(folder) == {}


def photos_in(folder: Path, count: int = 7) -> Path:
    rng = np.random.default_rng(0)
    folder.mkdir()
    for i in range(count):
        pixels = rng.integers(0, 256, (40, 50, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return folder


def test_what_a_score_depends_on_scores_it_again(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A photo in place of another, a mask, a mean in the checkpoint: old rows are not taken."""
    done, do = [], Work.do

    def noted(self: Any, task: Any, read: Any) -> TaskResult:
        if self.columns[task.columns[0]].kind != "drawn":  # of the best and the worst, for pictures
            done.extend(task.samples)
        return do(self, task, read)

    monkeypatch.setattr(Work, "do", noted)
    photos, masks = photos_in(tmp_path / "images"), photos_in(tmp_path / "masks")
    for mask in masks.iterdir():
        Image.fromarray(np.eye(40, 50, dtype=np.uint8) * 255).save(mask)
    ask: dict[str, Any] = {**QUICK, "output": tmp_path / "out", "name": "m"}

    def scored(network: Model = model) -> set[int]:
        done.clear()
        vision_attn.score(network, tmp_path, "GradCAM", **ask)
        return {item for _, item in done}

    assert scored() == set(range(7))
    assert scored() == set()
    (photos / "2.png").write_bytes((photos / "3.png").read_bytes())
    assert scored() == {2}
    Image.fromarray(np.eye(40, 50, 3, dtype=np.uint8) * 255).save(masks / "5.png")
    assert scored() == {5}
    other = replace(model, preprocess=replace(cast(Any, model.preprocess), mean=(0.1, 0.2, 0.3)))
    assert scored(other) == set(range(7))


def test_old_rows_of_another_preprocessing_do_not_count_beside_new_ones_of_shards(
    model: Model, tmp_path: Path
) -> None:
    photos = photos_in(tmp_path / "in")
    ask: dict[str, Any] = {**QUICK, "output": tmp_path / "out", "name": "m"}
    vision_attn.score(model, photos, "GradCAM", **ask)
    other = replace(model, preprocess=replace(cast(Any, model.preprocess), mean=(0.1, 0.2, 0.9)))
    for shard in ((1, 2), (2, 2)):
        vision_attn.score(other, photos, "GradCAM", **ask, shard=shard)
    merged = vision_attn.score(other, photos, "GradCAM", **ask)
    alone = vision_attn.score(other, photos, "GradCAM", **{**ask, "output": None})
    assert merged.to_dict() == alone.to_dict()


def test_shards_of_a_folder_that_changes_are_scored_whole(model: Model, tmp_path: Path) -> None:
    photos = photos_in(tmp_path / "in")
    ask: dict[str, Any] = {**QUICK, "limit": 20, "output": tmp_path / "out"}
    vision_attn.score(model, photos, "RandomMap", **ask, shard=(1, 2))
    (photos / "1.png").unlink()
    (photos / "0a.png").write_bytes((photos / "0.png").read_bytes())
    vision_attn.score(model, photos, "RandomMap", **ask, shard=(2, 2))
    scores = vision_attn.score(model, photos, "RandomMap", **ask)
    images = {image for _, _, image in scores.results.records}
    assert images == {path.name for path in photos.iterdir()}


def test_drawn_leaves_out_what_fails(model: Model) -> None:
    class Fails(GradCAM):
        def explain(self, network: Any, images: torch.Tensor, target: Any, layout: Any) -> Heatmaps:
            if len(images) > 1 or images.mean() > 0:
                raise ValueError("bright")
            return super().explain(network, images, target, layout)

    work = Work(model, "planted", "GradCAM", limit=6)
    batch = in_a_batch(work)
    assert batch is not None
    drawn = Scorer(work.request, work.scorer.removal).drawn(Fails(), batch)
    dark = {s.name for s in batch.samples if s.image.mean() <= 0}
    assert set(drawn) == dark


@pytest.mark.slow
def test_scoring_loads_no_lightning() -> None:
    code = (
        "import sys, vision_attn; vision_attn.score; import vision_attn.hub;"
        "print([name for name in sys.modules if 'lightning' in name.split('.')[0]"
        " and name != 'lightning_utilities' and not name.startswith('lightning_utilities.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "module", ["vision_attn.runs.scoring", scorer.__name__, "vision_attn.data.preprocess"]
)
def test_examples(module: str) -> None:
    result = doctest.testmod(sys.modules[module])
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.xdist_group("scored in memory")
def test_nothing_here_prints(
    planted: Scores, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    planted.save(tmp_path)
    assert capsys.readouterr() == ("", "")
    assert isinstance(planted.save(str(tmp_path)), Path)
