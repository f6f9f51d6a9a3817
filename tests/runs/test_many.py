"""Very many photos in a handful of files: maps, records, kills, shards, and the way back."""

import json
import ntpath
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path, PureWindowsPath
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image

import vision_attn
from vision_attn.cli import main
from vision_attn.methods import EdgeMap
from vision_attn.pages.gallery import browsing
from vision_attn.pages.gallery.drawing import _folder_names
from vision_attn.pages.gallery.run import GallerySummary
from vision_attn.runs.explain import explain
from vision_attn.runs.loop import TaskResult
from vision_attn.runs.photos import ExplainPhotos
from vision_attn.runs.progress import Silent
from vision_attn.runs.results import open_results
from vision_attn.runs.rows import explained_columns
from vision_attn.runs.runfile import RunFile, write_run
from vision_attn.runs.shard import Column, StoreRow
from vision_attn.runs.store import Store
from vision_attn.types import Model

METHODS = ["Rollout", "EdgeMap(cells=5)", "EdgeMap"]


@pytest.fixture
def model(models: Callable[[str], str]) -> Model:
    return vision_attn.load_model(models("vit"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Eleven photos: some in folders named for classes, some not."""
    rng = np.random.default_rng(0)
    for i in range(11):
        place = tmp_path / "in" / ("collie", "Tabby", "none")[i % 3]
        place.mkdir(parents=True, exist_ok=True)
        coarse = rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)
        photo = Image.fromarray(coarse).resize((70 + i, 50), Image.Resampling.BICUBIC)
        photo.save(place / f"{i:02}.png")
    return tmp_path / "in"


def run(model: Model, folder: Any, out: Any, **more: Any) -> GallerySummary:
    return vision_attn.gallery(
        model, folder, METHODS, output=out, save="maps", batch_size=2, **more
    )


@pytest.fixture
def threads_seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Call it with how many threads have a core now; a list of how many each batch was explained with."""
    before, seen = torch.get_num_threads(), []
    do = ExplainPhotos.do

    def counted(self: Any, task: Any, read: Any) -> TaskResult:
        seen.append(torch.get_num_threads())
        return do(self, task, read)

    monkeypatch.setattr(ExplainPhotos, "do", counted)
    torch.set_num_threads(3)

    def load(threads: int) -> list[int]:
        seen.clear()
        monkeypatch.setattr("vision_attn.threads.threads_to_use", lambda most: threads)
        return seen

    yield load
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)


def test_shards_and_runs_that_go_on_keep_the_threads_of_the_first(
    model: Model, folder: Path, tmp_path: Path, threads_seen: Callable[..., Any]
) -> None:
    out = tmp_path / "out"
    seen = threads_seen(2)
    run(model, folder, out, shard=(1, 2))
    assert set(seen) == {2}
    threads_seen(3)
    run(model, folder, out, shard=(2, 2))
    assert set(seen) == {2}
    (out / "store" / "2-of-2.sqlite").unlink()  # as if that machine was lost
    threads_seen(1)
    run(model, folder, out, shard=(2, 2))
    assert set(seen) == {2}
    threads_seen(1)
    run(model, folder, out, target=1)  # another job
    assert set(seen) == {1}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The records without what differs between shards and from run to run."""
    lines = (folder / "results.jsonl").read_text().splitlines()
    changing = ("seconds", "row")
    return [
        {
            k: float(f"{v:.4g}") if isinstance(v, float) else v  # batches of 1 and 2 round apart
            for k, v in json.loads(line).items()
            if k not in changing
        }
        for line in lines
    ]


@pytest.mark.slow
def test_maps_and_rows_are_those_of_explain(model: Model, folder: Path, tmp_path: Path) -> None:
    summary = run(model, folder, tmp_path / "out")
    assert (summary.photos, summary.explained, summary.problems) == (11, 11, [])
    results = vision_attn.open_results(tmp_path / "out")
    files: list[Any] = sorted(folder.rglob("*.png"))
    assert [row["file"] for row in results] == [str(file) for file in files for _ in METHODS]
    assert len(results) == 33
    assert results[-1] == list(results)[-1]
    assert results.methods == METHODS
    expected = explain(model, files, METHODS, batch_size=2)
    for place, one in enumerate(expected):
        for number, method in enumerate(METHODS):
            row = results[3 * place + number]
            values = one[number].values
            close = partial(
                np.testing.assert_allclose, rtol=2**-11, atol=float(abs(values).max()) * 2**-24
            )
            close(results.map(row), values)
            close(results.maps(method)[place], values)
            assert one.predicted is not None
            assert row["predicted"] == model.classes[one.predicted]
            assert row["prefix_mass"] == pytest.approx(one[number].prefix_mass)
    labels = [row.get("label") for row in results][::3]
    assert labels == [
        {"collie": "collie", "Tabby": "tabby, tabby cat"}.get(file.parent.name) for file in files
    ]
    assert [r["file"] for r in results.rows(label="collie", method="Rollout")] == [
        str(file) for file in files if file.parent.name == "collie"
    ]


def test_a_handful_of_files_whatever_the_number_of_photos(
    model: Model, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run(model, folder, out, page=True)
    names = {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()}
    names.discard("results.parquet")  # where pyarrow is
    store = {"store/run.json.gz", "store/1-of-1.sqlite"}
    maps = {f"maps/{name}.1-of-1.npy" for name in ("Rollout", "EdgeMap(cells=5)", "EdgeMap")}
    assert names == {"index.html", "page/records-0.js", "results.jsonl", *store, *maps}
    kept = np.load(out / "maps/Rollout.1-of-1.npy", mmap_mode="r")
    assert (kept.dtype, kept.shape) == (np.float16, (11, 4, 6))


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.slow
def test_shards_and_processes_give_what_one_process_gives(
    model: Model, folder: Path, tmp_path: Path, shards: int
) -> None:
    run(model, folder, tmp_path / "alone")
    out = tmp_path / "out"
    for number in range(shards, 0, -1):
        processes = 2 if shards == 1 else 1
        summary = run(model, folder, out, shard=(number, shards), processes=processes)
        assert summary.merged == (number == 1 and shards > 1)
        assert (out / "results.jsonl").is_file() == (number == 1)
    assert rows_of(out) == rows_of(tmp_path / "alone")
    alone, together = open_results(tmp_path / "alone"), open_results(out)
    for method in METHODS:
        assert len(together.maps(method).arrays) == shards
        for one, other in zip(alone.maps(method), together.maps(method), strict=True):
            np.testing.assert_array_equal(one, other)


EDGES = Column("map", "EdgeMap")


def keep(folder: Path, shards: int) -> None:
    """Run all shards over five photos; the map of each is full of its number."""
    run = RunFile(
        {"what": "explain", "asked": {"methods": ["EdgeMap"]}}, list("abcde"), shards, (EDGES.key,)
    )
    write_run(folder, run)
    for number in range(1, shards + 1):
        with Store(folder, (number, shards), [EDGES]) as store:
            for i in run.numbers(number):
                if not store.has(EDGES, ["abcde"[i]])[0]:
                    values = np.full((2, 3), i, np.float32)
                    store.add([StoreRow(EDGES, "abcde"[i], {"method": "EdgeMap"}, map=values)])
            store.finish(run.number)


@pytest.mark.parametrize(("before", "now"), [(3, 2), (2, 3), (2, 1), (1, 2)])
def test_maps_of_an_earlier_number_of_shards_do_not_count(
    tmp_path: Path, before: int, now: int
) -> None:
    keep(tmp_path, before)
    keep(tmp_path, now)
    maps = open_results(tmp_path).maps("EdgeMap")
    assert len(maps.arrays) == now
    assert [float(one.max()) for one in maps] == [0, 1, 2, 3, 4]
    keep(tmp_path, before)  # what was kept of them is still good
    assert [float(one.max()) for one in open_results(tmp_path).maps("EdgeMap")] == [0, 1, 2, 3, 4]


def test_a_file_of_maps_that_is_gone_is_named(tmp_path: Path) -> None:
    keep(tmp_path, 3)
    (tmp_path / "maps/EdgeMap.2-of-3.npy").unlink()
    with pytest.raises(
        ValueError, match=r"2-of-3\.npy: this file of maps is not there: run --shard"
    ):
        open_results(tmp_path).maps("EdgeMap")


KILLED = """
import sys, os, vision_attn
from vision_attn.runs.store import Store
add, left = Store.add, iter(range(int(sys.argv[4])))
def add_some(store, rows):
    if next(left, None) is None:
        os.kill(os.getpid(), 9)
    add(store, rows)
    store.commit()
Store.add = add_some
model = vision_attn.load_model(sys.argv[1])
vision_attn.gallery(model, sys.argv[2], ["EdgeMap"], output=sys.argv[3], save="maps", batch_size=2)
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_and_explains_no_photo_twice(
    model: Model, models: Callable[[str], str], folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = [sys.executable, "-c", KILLED, models("vit"), str(folder), str(out), "3"]
    killed = subprocess.run(words, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    seen = []

    class Counting(Silent):
        def advance(self, steps: int = 1) -> None:
            seen.append(steps)

    more: dict[str, Any] = {"save": "maps", "batch_size": 2, "page": False, "progress": Counting()}
    summary = vision_attn.gallery(model, folder, ["EdgeMap"], output=out, **more)
    assert sum(seen) == 11 - 6
    assert summary.explained == 11
    whole = tmp_path / "whole"
    vision_attn.gallery(model, folder, ["EdgeMap"], output=whole, save="maps", batch_size=2)
    assert rows_of(out) == rows_of(whole)
    for one, other in zip(
        open_results(out).maps("EdgeMap"), open_results(whole).maps("EdgeMap"), strict=True
    ):
        np.testing.assert_array_equal(one, other)


class Counted(Silent):
    """How many photos are explained."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def advance(self, steps: int = 1) -> None:
        self.count += steps


def count(
    model: Model,
    folder: Path,
    out: Path,
    methods: tuple[str] | list[str] = ("EdgeMap",),
    **more: Any,
) -> int:
    """Explain what is missing; return how many photos were explained now."""
    counted = Counted()
    given = {"save": "maps", "batch_size": 2, "page": False, "progress": counted, **more}
    vision_attn.gallery(model, folder, list(methods), output=out, **given)
    return counted.count


def test_what_a_row_depends_on_computes_it_again(
    model: Model, folder: Path, tmp_path: Path
) -> None:
    out, photos = tmp_path / "out", sorted(folder.rglob("*.png"))
    assert count(model, folder, out) == 11
    assert count(model, folder, out) == 0
    photos[0].write_bytes(photos[1].read_bytes())  # a photo in place of another
    assert count(model, folder, out) == 1
    first, second = open_results(out).maps("EdgeMap")[:2]
    np.testing.assert_array_equal(first, second)
    assert count(model, folder, out, ["EdgeMap", "RandomMap"]) == 11  # of the other method alone
    assert count(model, folder, out) == 0
    other = replace(model, preprocess=replace(cast(Any, model.preprocess), mean=(0.1, 0.2, 0.3)))
    assert count(other, folder, out) == 11
    photos[3].unlink()
    assert count(other, folder, out) == 0
    assert len(open_results(out)) == 10
    with torch.no_grad():
        next(other.network.parameters()).add_(1)
    assert count(other, folder, out) == 10


def test_another_question_continues_no_old_rows(model: Model, folder: Path, tmp_path: Path) -> None:
    """Another class, contrast, function or part of the output; of methods that explain one."""
    out, methods = tmp_path / "out", ["GradCAM", "EdgeMap"]
    weights = torch.arange(len(model.classes), dtype=torch.float32)

    def weighted(by: float) -> Callable[..., Any]:
        return lambda output: output @ (by * weights)

    def asked(**question: Any) -> int:
        return count(model, folder, out, methods, **question)

    for question in (
        {"target": "collie"},
        {"target": "tabby, tabby cat"},
        {"target": "collie", "contrast": "tabby, tabby cat"},
        {"target": weighted(1.0)},
        {"target": weighted(2.0)},
        {"target": "label"},
        {},
    ):
        assert asked(**question) == 11
        assert asked(**question) == 0
    assert count(model, folder, out, ["EdgeMap"]) == 0
    assert count(model, folder, out, ["EdgeMap"], target="collie") == 0  # shows no class
    columns = [explained_columns(replace(model, head=head), [EdgeMap()], "x") for head in (None, 0)]
    assert columns[0][0].key != columns[1][0].key


def test_only_the_methods_that_are_missing_run(
    model: Model, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    count(model, folder, out, ["EdgeMap", "RandomMap"])
    (out / "maps/RandomMap.1-of-1.npy").unlink()
    monkeypatch.setattr(EdgeMap, "explain", lambda *words: 1 / 0)
    assert count(model, folder, out, ["EdgeMap", "RandomMap"]) == 11
    assert len(open_results(out)) == 22


@pytest.mark.parametrize("what", ["lost", "cut", "a byte"])
def test_maps_that_are_lost_cut_or_damaged_are_computed_again(
    model: Model, folder: Path, tmp_path: Path, what: str
) -> None:
    out = tmp_path / "out"
    count(model, folder, out)
    whole = np.stack(open_results(out).maps("EdgeMap"))
    path = out / "maps/EdgeMap.1-of-1.npy"
    content = bytearray(path.read_bytes())
    if what == "lost":
        path.unlink()
    elif what == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[-3] ^= 1
        path.write_bytes(content)
        with pytest.raises(
            ValueError, match=r"the map of row 11: its CRC is wrong\): run the same"
        ):
            open_results(out).map(10)
    assert count(model, folder, out) == {"lost": 11, "cut": 7, "a byte": 1}[what]
    np.testing.assert_array_equal(np.stack(open_results(out).maps("EdgeMap")), whole)


def test_the_list_of_photos_is_that_of_the_first_shard(
    model: Model, folder: Path, tmp_path: Path
) -> None:
    """A photo that came later is named and left out, one that is gone is one failed photo."""
    out, photos = tmp_path / "out", sorted(folder.rglob("*.png"))

    def shard(number: int) -> vision_attn.pages.gallery.run.GallerySummary:
        return vision_attn.gallery(
            model, folder, ["EdgeMap"], output=out, save="maps", shard=(number, 2), page=False
        )

    assert shard(1).problems == []
    (folder / "collie" / "000.png").write_bytes(photos[0].read_bytes())
    photos[1].unlink()
    summary = shard(2)
    assert summary.merged
    new, gone = summary.problems
    assert new.startswith(f"1 new since the first shard began ({folder}/collie/000.png): left out")
    assert f"{photos[1]}: no such file" in gone
    files = [row["file"] for row in open_results(out)]
    assert files == [str(photo) for photo in photos if photo != photos[1]]
    assert shard(1).problems == []  # all had finished: the list is a new one
    assert not (out / "results.jsonl").exists()
    assert shard(2).merged
    files = [row["file"] for row in open_results(out)]
    assert files == sorted(map(str, folder.rglob("*.png")))


def test_the_photos_of_another_folder_begin_a_new_list(
    model: Model, folder: Path, tmp_path: Path
) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    other.mkdir()
    Image.new("RGB", (40, 30)).save(other / "a.png")
    given: dict[str, Any] = {"output": out, "save": "none", "page": False}
    vision_attn.gallery(model, folder, ["EdgeMap"], shard=(1, 2), **given)
    for number in (1, 2):
        summary = vision_attn.gallery(model, other, ["EdgeMap"], shard=(number, 2), **given)
        assert summary.problems == []
    assert summary.merged
    assert [row["file"] for row in open_results(out)] == [str(other / "a.png")]


def test_a_photo_that_cannot_be_read_costs_itself_and_has_no_map(
    model: Model, folder: Path, tmp_path: Path
) -> None:
    (folder / "none" / "05.png").write_text("no image")
    summary = run(model, folder, tmp_path / "out")
    assert (summary.photos, summary.explained) == (11, 10)
    (problem,) = summary.problems
    assert "05.png: expected an image" in problem
    results = open_results(tmp_path / "out")
    files = sorted(folder.rglob("*.png"))
    assert len(results) == 30
    maps = results.maps("Rollout")
    assert [bool(np.isnan(one).all()) for one in maps] == [file.name == "05.png" for file in files]


@pytest.mark.slow
def test_pictures_drawn_later_are_those_drawn_at_once(
    model: Model, folder: Path, tmp_path: Path
) -> None:
    run(model, folder, tmp_path / "out")
    drawn = vision_attn.draw_pictures(tmp_path / "out", ["collie", "tabby"], ["EdgeMap", "Rollout"])
    assert not drawn.problems
    assert [place.name for place in drawn] == ["collie", "tabby"]
    rows = list(open_results(tmp_path / "out"))[::3]
    collies = [row for row in rows if row.get("label", row["predicted"]) == "collie"]
    assert (drawn[0] / "index.html").read_text().count("<article") == len(collies) >= 4
    assert drawn.photos == sum(
        row.get("label", row["predicted"]) in model.classes[:2] for row in rows
    )
    vision_attn.gallery(
        model, folder / "collie", ["EdgeMap", "Rollout"], output=tmp_path / "direct", page=False
    )
    direct = sorted((tmp_path / "direct").glob("*.png"))
    assert {p.name for p in direct} <= {p.name for p in drawn[0].glob("*.png")}
    assert len(direct) == 4 * 3
    for picture in direct:
        with Image.open(picture) as one, Image.open(drawn[0] / picture.name) as other:
            difference = np.asarray(one).astype(int) - np.asarray(other).astype(int)
        assert abs(difference).mean() < 0.5, picture.name


def test_classes_of_one_name_are_drawn_into_folders_of_their_own(
    model: Model, folder: Path, tmp_path: Path
) -> None:
    names = ["crane, tabby", "Crane, collie", *model.classes[2:]]
    out = tmp_path / "out"
    run(replace(model, classes=names), folder, out)
    drawn = vision_attn.draw_pictures(out, [0, 1], ["EdgeMap"])
    assert [place.name for place in drawn] == ["crane-0", "Crane-1"]
    for place, file in zip(drawn, ("01.png", "00.png"), strict=True):
        assert f">{file}<" in (place / "index.html").read_text()
    (alone,) = vision_attn.draw_pictures(out, [1], ["EdgeMap"], limit=1)
    assert alone.name == "Crane-1"
    assert _folder_names(["a, b", "A", "a-0", "b"]) == ["a-0-0", "A-1", "a-0-2", "b"]


@pytest.mark.slow
def test_the_command_and_its_errors(
    models: Callable[[str], str], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    words = ["explain", models("vit"), str(folder), "--device", "cpu", "-o", out]
    assert main([*words, "--save", "maps", "--method", "EdgeMap", "--page"]) == 0
    assert f"11 of 11 images explained: {out}/index.html" in capsys.readouterr().out
    assert main(["pictures", out, "--class", "collie", "--limit", "2"]) == 0
    said = capsys.readouterr().out
    assert "2 photos drawn" in said
    assert (Path(out) / "pictures/collie/index.html").is_file()
    for wrong, message in (
        (["pictures", out, "--class", "coll"], "no class named 'coll'; did you mean collie?"),
        (
            ["pictures", out, "--method", "Rollout"],
            f"no maps of Rollout in {out}: there are EdgeMap",
        ),
        (["pictures", str(folder)], f"{folder}: no results in this folder: expected what explain"),
        ([*words, "--save", "maps", "--masks", out], "masks are drawn on pictures"),
        (
            [*words, "--save", "none", "--frames", "2"],
            "--save none: expected photos, got the video",
        ),
    ):
        assert main(wrong) == 2
        assert message in capsys.readouterr().err
    assert main([*words, "--save", "none", "--method", "EdgeMap"]) == 0
    capsys.readouterr()
    assert main(["pictures", out]) == 2
    assert "no maps were kept: explain --save maps (or both) keeps them" in capsys.readouterr().err


def test_both_keeps_maps_and_draws_pictures_without_an_array_each(
    model: Model, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    vision_attn.gallery(model, folder, ["EdgeMap"], output=out, save="both", page=True)
    assert len(list(out.glob("*.EdgeMap.png"))) == 11
    assert not list(out.glob("*.npy"))
    row = open_results(out)[4]
    assert (out / row["picture"]).is_file()
    assert f'"{row["picture"]}"' in (out / "page/records-0.js").read_text()


def test_maps_of_pictures_are_read_back_too(model: Model, folder: Path, tmp_path: Path) -> None:
    vision_attn.gallery(model, folder, ["Rollout"], output=tmp_path / "out", page=False)
    results = open_results(tmp_path / "out")
    expected = explain(model, sorted(folder.rglob("*.png"))[3], ["Rollout"])
    np.testing.assert_allclose(results.map(3), expected[0].values, rtol=1e-6)


def test_no_results_and_no_maps_are_said(model: Model, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no results in this folder: expected what explain or sco"):
        open_results(tmp_path)
    given: dict[str, Any] = {"output": tmp_path / "out", "page": False}
    vision_attn.gallery(model, folder, ["EdgeMap"], shard=(1, 2), save="none", **given)
    with pytest.raises(ValueError, match="1 shards are not finished: run the same command until"):
        open_results(tmp_path / "out")
    vision_attn.gallery(model, folder, ["EdgeMap"], save="none", **given)
    with pytest.raises(ValueError, match="png: expected a folder that explain or score wrote"):
        open_results(sorted(folder.rglob("*.png"))[1])
    results = open_results(tmp_path / "out")
    with pytest.raises(ValueError, match=r"no map of .*01\.png was kept"):
        results.map(0)
    with pytest.raises(ValueError, match="no maps of 'Rollout'"):
        results.maps("Rollout")


def test_what_an_explanation_saves_is_opened_too(
    model: Model, folder: Path, tmp_path: Path
) -> None:
    photos = sorted(folder.rglob("*.png"))[:2]
    with Image.open(photos[0]) as first, Image.open(photos[1]) as second:
        images: list[Any] = [first.convert("RGB"), second.convert("RGB"), str(photos[1])]
        found = explain(model, images, ["EdgeMap", "Rollout"])
    found.save(tmp_path / "out")
    results = open_results(tmp_path / "out")
    assert len(results) == 6
    np.testing.assert_array_equal(results.map(4), found[2].maps[0].values)
    assert [row["file"] for row in results][-1] == str(photos[1])


def test_records_edited_by_hand_find_no_map_of_another_photo(
    model: Model, folder: Path, tmp_path: Path
) -> None:
    run(model, folder, tmp_path / "out")
    results = open_results(tmp_path / "out")
    row = results[4]
    values = results.map(4)
    edited: dict[str, Any]
    for edited in ({"row": -1}, {"row": 3}, {"predicted": "dog"}):
        np.testing.assert_array_equal(results.map(row | edited), values)
    for edited in ({"file": "no.png"}, {"method": "Rolout"}, {"options": {}}, {"file": 3}):
        with pytest.raises(ValueError, match="no such row: file"):
            results.map(row | edited)
    with pytest.raises(ValueError, match="no such row: file None"):
        results.map({})
    lines = tmp_path / "out/results.jsonl"
    lines.write_text(lines.read_text().replace('"row":3', '"row":-1'))
    assert results[4] == row  # the lines are an export


def test_pictures_are_drawn_over_the_photo_that_was_explained(
    model: Model, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another photo of the same relative name is not drawn on."""
    monkeypatch.chdir(folder.parent)
    run(model, "in", "out")
    other = tmp_path / "other"
    shutil.copytree("in", other / "in")
    odd = other / "in" / "collie" / "00.png"
    odd.write_bytes((other / "in" / "collie" / "03.png").read_bytes())
    monkeypatch.chdir(other)
    drawn = vision_attn.draw_pictures(tmp_path / "out", methods=["EdgeMap"])
    assert (drawn.photos, drawn.problems) == (11, [])  # 00.png where it was explained
    (folder / "collie" / "00.png").unlink()
    drawn = vision_attn.draw_pictures(tmp_path / "out", methods=["EdgeMap"])
    assert drawn.photos == 10
    (problem,) = drawn.problems
    assert problem.startswith("in/collie/00.png: it is not the photo that was explained")
    odd.unlink()
    (problem,) = vision_attn.draw_pictures(tmp_path / "out", methods=["EdgeMap"]).problems
    assert problem.endswith(
        "in/collie/00.png: no such file: its maps are kept, but the photo is gone"
    )


def test_a_full_disk_stops_with_a_line(model: Model, folder: Path, full_disk: Path) -> None:
    (full_disk / "a.txt").write_bytes(b"x" * (65_536 - 40_000))
    with pytest.raises(OSError, match=r"cannot be written \(No space left on device\): free space"):
        count(model, folder, full_disk, [f"EdgeMap(cells={i})" for i in range(20, 40)])
    (full_disk / "a.txt").unlink()
    assert 0 < count(model, folder, full_disk, ["EdgeMap(cells=20)"]) <= 11
    with open_results(full_disk) as results:
        assert not np.isnan(results.map(0)).any()


def test_parquet_holds_the_records(model: Model, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'vision-attn[parquet]'")
    run(model, folder, tmp_path / "out")
    results = open_results(tmp_path / "out")
    table = results.table().to_pylist()
    assert len(table) == 33
    for row, columns in zip(results, table, strict=True):
        assert json.loads(columns.pop("options")) == row.pop("options")
        assert {k: v for k, v in columns.items() if v is not None} == {
            k: v for k, v in row.items() if v is not None
        }


def test_without_pyarrow_there_are_lines_and_a_hint(
    model: Model, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr("vision_attn.runs.parquet.find_spec", lambda name: None)
    run(model, folder, tmp_path / "out")
    assert not (tmp_path / "out" / "results.parquet").exists()
    with pytest.raises(ValueError, match=r"pip install 'vision-attn\[parquet\]'"):
        open_results(tmp_path / "out").table()


def test_a_folder_of_scores_opens_too(model: Model, folder: Path, tmp_path: Path) -> None:
    vision_attn.score(
        model, folder, "EdgeMap", limit=3, steps=2, processes=1, output=tmp_path / "out"
    )
    results = open_results(tmp_path / "out")
    kinds = {(row["method"], row["image"]) for row in results.rows(kind="maps")}
    assert len([m for m, _ in kinds if m == "EdgeMap"]) == 3


def test_the_python_of_the_page_runs(
    model: Model, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).parents[2] / "docs/large_data.md"
    monkeypatch.chdir(tmp_path)
    vision_attn.gallery(model, folder, output="outputs/explain", save="maps", page=False)
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, page.name, "exec"), names)
    assert len(names["maps"]) == 11
    assert (tmp_path / "outputs/explain/pictures/collie/index.html").is_file()


def test_results_move_with_their_photos_named_from_where_they_were_made(
    model: Model, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    vision_attn.gallery(model, "in/collie", ["EdgeMap"], output="out", save="maps", page=False)
    os.chdir("/")
    assert vision_attn.draw_pictures(tmp_path / "out").photos == 4


@pytest.mark.parametrize(
    ("file", "link"),
    [
        (r"C:\photos\a cat\50%.png", "../photos/a%20cat/50%25.png"),
        (r"D:\photos\a cat\50%.png", "file:///D:/photos/a%20cat/50%25.png"),
    ],
)
def test_the_page_links_photos_on_windows_and_on_another_drive(
    monkeypatch: pytest.MonkeyPatch, file: str, link: str
) -> None:
    monkeypatch.setattr(browsing, "os", SimpleNamespace(path=ntpath))
    monkeypatch.setattr(browsing, "Path", PureWindowsPath)
    assert browsing._thumb(Path(r"C:\out"), [{"file": file}]).link == link
