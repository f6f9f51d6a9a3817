"""Very many photos in a handful of files: maps, records, kills, shards, and the way back."""

import json
import ntpath
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path, PureWindowsPath
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import vision_attn
from vision_attn.cli import main
from vision_attn.pages.gallery import browsing
from vision_attn.runs.drawing import _folder_names
from vision_attn.runs.explain import explain
from vision_attn.runs.ledger import Found, Ledger, MapFile, map_name, packed
from vision_attn.runs.opened import open_results
from vision_attn.runs.progress import Silent
from vision_attn.types import Model

METHODS = ["Rollout", "EdgeMap(cells=5)", "EdgeMap"]


@pytest.fixture
def model(models) -> Model:
    return vision_attn.load_model(models("vit"))


@pytest.fixture
def folder(tmp_path) -> Path:
    """Eleven photos: some in folders named for classes, some not."""
    rng = np.random.default_rng(0)
    for i in range(11):
        place = tmp_path / "in" / ("collie", "Tabby", "none")[i % 3]
        place.mkdir(parents=True, exist_ok=True)
        coarse = rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)
        photo = Image.fromarray(coarse).resize((70 + i, 50), Image.Resampling.BICUBIC)
        photo.save(place / f"{i:02}.png")
    return tmp_path / "in"


def run(model, folder, out, **more):
    return vision_attn.gallery(
        model, folder, METHODS, output=out, save="maps", batch_size=2, **more
    )


def rows_of(folder) -> list[dict]:
    """The records without what differs between shards and from run to run."""
    lines = (folder / "results.jsonl").read_text().splitlines()
    changing = ("seconds", "map", "row")
    return [{k: v for k, v in json.loads(line).items() if k not in changing} for line in lines]


@pytest.mark.slow
def test_maps_and_rows_are_those_of_explain(model, folder, tmp_path):
    summary = run(model, folder, tmp_path / "out")
    assert (summary.photos, summary.explained, summary.problems) == (11, 11, [])
    results = vision_attn.open_results(tmp_path / "out")
    files = sorted(folder.rglob("*.png"))
    assert [row["file"] for row in results] == [str(file) for file in files for _ in METHODS]
    assert len(results) == 33
    assert results[-1] == list(results)[-1]
    assert results.methods == METHODS
    expected = explain(model, files, METHODS, batch_size=2)
    for place, one in enumerate(expected):
        for number, method in enumerate(METHODS):
            row = results[3 * place + number]
            values = one[number].values
            near = {"rtol": 2**-11, "atol": float(abs(values).max()) * 2**-24}
            np.testing.assert_allclose(results.map(row), values, **near)
            np.testing.assert_allclose(results.maps(method)[place], values, **near)
            assert row["predicted"] == model.classes[one.predicted]
            assert row["prefix_mass"] == pytest.approx(one[number].prefix_mass)
    labels = [row.get("label") for row in results][::3]
    assert labels == [
        {"collie": "collie", "Tabby": "tabby, tabby cat"}.get(file.parent.name) for file in files
    ]
    assert [r["file"] for r in results.rows(label="collie", method="Rollout")] == [
        str(file) for file in files if file.parent.name == "collie"
    ]


def test_a_handful_of_files_whatever_the_number_of_photos(model, folder, tmp_path):
    out = tmp_path / "out"
    run(model, folder, out, page=True)
    names = {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()}
    names.discard("results.parquet")  # where pyarrow is
    maps = {f"maps/{name}.1-of-1.npy" for name in ("Rollout", "EdgeMap(cells=5)", "EdgeMap")}
    assert names == {"about.json", "index.html", "page/records-0.js", "results.jsonl", *maps}
    kept = np.load(out / "maps/Rollout.1-of-1.npy", mmap_mode="r")
    assert (kept.dtype, kept.shape) == (np.float16, (11, 4, 6))


@pytest.mark.parametrize(
    "values",
    [
        np.linspace(-3e-9, 7e-9, 35),
        np.linspace(0, 9e7, 35),
        np.linspace(0, 1 / 35, 35),
        np.zeros(35),
    ],
)
def test_float16_with_a_power_of_two_holds_maps_of_any_size(values):
    values = values.reshape(5, 7).astype(np.float32)
    half, scale = packed(values)
    assert np.log2(scale) % 1 == 0
    largest = float(abs(values).max())
    back = half.astype(np.float64) * scale
    np.testing.assert_allclose(back, values, rtol=2**-11, atol=largest * 2**-24)
    assert (scale == 1) == (largest == 0 or 2**-10 <= largest <= 2**15)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.slow
def test_shards_and_processes_give_what_one_process_gives(model, folder, tmp_path, shards):
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


def keep(folder, shards):
    """Run all shards over five photos; the map of each is full of its number."""
    for number in range(1, shards + 1):
        ledger = Ledger(folder, list("abcde"), (number, shards), methods=["EdgeMap"])
        name = map_name("EdgeMap", (number, shards))
        for place in ledger.left():
            file, values = "abcde"[place], np.full((2, 3), place / 2, np.float16)
            record = {"file": file, "map": name, "row": place // shards, "map_scale": 2.0}
            ledger.add([Found(place, file, [record], {name: values})])
        ledger.end()


@pytest.mark.parametrize(("before", "now"), [(3, 2), (2, 3), (2, 1), (1, 2)])
def test_maps_of_an_earlier_number_of_shards_do_not_count(tmp_path, before, now):
    keep(tmp_path, before)
    keep(tmp_path, now)
    maps = open_results(tmp_path).maps("EdgeMap")
    assert len(maps.arrays) == now
    assert [float(one.max()) for one in maps] == [0, 1, 2, 3, 4]
    keep(tmp_path, before)  # what was kept of them is still good
    assert [float(one.max()) for one in open_results(tmp_path).maps("EdgeMap")] == [0, 1, 2, 3, 4]


def test_a_file_of_maps_that_is_gone_is_named(tmp_path):
    keep(tmp_path, 3)
    (tmp_path / "maps/EdgeMap.2-of-3.npy").unlink()
    with pytest.raises(ValueError, match=r"for all photos .*: maps/EdgeMap\.2-of-3\.npy is not"):
        open_results(tmp_path).maps("EdgeMap")


KILLED = """
import sys, os, vision_attn
from vision_attn.runs.ledger import Ledger
add, left = Ledger.add, iter(range(int(sys.argv[4])))
def add_some(ledger, found):
    if next(left, None) is None:
        os.kill(os.getpid(), 9)
    add(ledger, found)
Ledger.add = add_some
model = vision_attn.load_model(sys.argv[1])
vision_attn.gallery(model, sys.argv[2], ["EdgeMap"], output=sys.argv[3], save="maps", batch_size=2)
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_and_explains_no_photo_twice(model, models, folder, tmp_path):
    out = tmp_path / "out"
    words = [sys.executable, "-c", KILLED, models("vit"), str(folder), str(out), "3"]
    killed = subprocess.run(words, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    journal = out / "results.1-of-1.jsonl"
    assert len(journal.read_text().splitlines()) == 1 + 6
    with journal.open("ab") as file:
        file.write(b'{"place": 6, "file": "cut sh')  # killed within a line
    seen = []

    class Counting(Silent):
        def advance(self, steps=1):
            seen.append(steps)

    more = {"save": "maps", "batch_size": 2, "page": False, "progress": Counting()}
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


def test_another_request_starts_over(tmp_path):
    first = Ledger(tmp_path, ["a", "b"], settings={"methods": ["Rollout"]})
    first.add([Found(0, "a", [{"file": "a"}])])
    assert list(Ledger(tmp_path, ["a", "b"], settings={"methods": ["Rollout"]}).left()) == [1]
    assert list(Ledger(tmp_path, ["a", "b"], settings={"methods": ["GradCAM"]}).left()) == [0, 1]


@pytest.mark.parametrize(("old", "new"), [("b.png", "c.png"), ('{"place"', '{"ploce"')])
def test_a_damaged_line_is_found_and_its_photo_done_again(tmp_path, old, new):
    files = ["a.png", "b.png", "c.png", "d.png"]

    def of(number):
        ledger = Ledger(tmp_path, files, (number, 2))
        left = list(ledger.left())
        ledger.add([Found(i, files[i], [{"file": files[i]}]) for i in left])
        return ledger, left

    assert not of(1)[0].end()
    second = of(2)[0]
    assert second.end()
    part = tmp_path / "results.2-of-2.jsonl"
    part.write_text(part.read_text().replace(old, new, 1))
    with pytest.raises(ValueError, match=r"results\.2-of-2\.jsonl: damaged: run --shard 2/2 again"):
        of(1)[0].end()
    again, left = of(2)
    assert left == [1]
    assert again.end()
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["file"] for line in lines] == files


def test_a_photo_that_cannot_be_read_costs_itself_and_has_no_map(model, folder, tmp_path):
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
def test_pictures_drawn_later_are_those_drawn_at_once(model, folder, tmp_path):
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


def test_classes_of_one_name_are_drawn_into_folders_of_their_own(model, folder, tmp_path):
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
def test_the_command_and_its_errors(models, folder, tmp_path, capsys):
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
        (["pictures", str(folder)], f"{folder}: no results in this folder: expected results.jsonl"),
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


def test_both_keeps_maps_and_draws_pictures_without_an_array_each(model, folder, tmp_path):
    out = tmp_path / "out"
    vision_attn.gallery(model, folder, ["EdgeMap"], output=out, save="both", page=True)
    assert len(list(out.glob("*.EdgeMap.png"))) == 11
    assert not list(out.glob("*.npy"))
    row = open_results(out)[4]
    assert (out / row["picture"]).is_file()
    assert f'"{row["picture"]}"' in (out / "page/records-0.js").read_text()


def test_maps_of_pictures_are_read_back_too(model, folder, tmp_path):
    vision_attn.gallery(model, folder, ["Rollout"], output=tmp_path / "out", page=False)
    results = open_results(tmp_path / "out")
    expected = explain(model, sorted(folder.rglob("*.png"))[3], ["Rollout"])
    np.testing.assert_allclose(results.map(3), expected[0].values, rtol=1e-6)


def test_no_results_and_no_maps_are_said(tmp_path):
    with pytest.raises(ValueError, match=r"no results in this folder: expected results\.jsonl"):
        open_results(tmp_path)
    Ledger(tmp_path, ["a"], (1, 2))
    with pytest.raises(ValueError, match="1 shards are not finished: run the same command until"):
        open_results(tmp_path)
    (tmp_path / "results.jsonl").write_text('{"file": "a.png"}\nbroken\n')
    results = open_results(tmp_path)
    with pytest.raises(ValueError, match=r"no map of a\.png was kept"):
        results.map(0)
    with pytest.raises(ValueError, match="no maps of 'Rollout'"):
        results.maps("Rollout")
    with pytest.raises(ValueError, match=r"results\.jsonl: a damaged line"):
        results[1]


def test_maps_of_two_sizes_are_refused(tmp_path):
    maps = MapFile(tmp_path / "a.npy", rows=2)
    maps.write(0, np.zeros((3, 5), np.float16))
    with pytest.raises(ValueError, match=r"expected a map of \(3, 5\), .* got \(5, 3\)"):
        maps.write(1, np.zeros((5, 3), np.float16))


def test_a_full_disk_stops_with_a_line_and_loses_nothing(full_disk):
    ledger = Ledger(full_disk, [f"{i}" for i in range(64)], methods=["EdgeMap"])
    name = next(iter(ledger.maps))
    one = np.ones((64, 64), np.float16)

    def fill():
        for i in range(64):
            ledger.add([Found(i, f"{i}", [{"file": f"{i}"}], {name: one})])

    with pytest.raises(OSError, match=r"cannot be written \(No space left on device\): free space"):
        fill()
    done = int(ledger.done.sum())
    assert 0 < done < 64
    again = Ledger(full_disk, [f"{i}" for i in range(64)], methods=["EdgeMap"])
    assert list(again.left()) == list(range(done, 64))
    assert (np.load(full_disk / name, mmap_mode="r")[:done] == 1).all()


def test_parquet_holds_the_records(model, folder, tmp_path):
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


def test_without_pyarrow_there_are_lines_and_a_hint(model, folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr("vision_attn.runs.columns.find_spec", lambda name: None)
    run(model, folder, tmp_path / "out")
    assert not (tmp_path / "out" / "results.parquet").exists()
    with pytest.raises(ValueError, match=r"pip install 'vision-attn\[parquet\]'"):
        open_results(tmp_path / "out").table()


def test_a_folder_of_scores_opens_too(model, folder, tmp_path):
    vision_attn.score(
        model, folder, "EdgeMap", limit=3, steps=2, processes=1, output=tmp_path / "out"
    )
    results = open_results(tmp_path / "out")
    kinds = {(row["method"], row["image"]) for row in results.rows(kind="maps")}
    assert len([m for m, _ in kinds if m == "EdgeMap"]) == 3


def test_the_python_of_the_page_runs(model, folder, tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs/large_data.md"
    monkeypatch.chdir(tmp_path)
    vision_attn.gallery(model, folder, output="outputs/explain", save="maps", page=False)
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    names: dict = {}
    exec(compile(block, page.name, "exec"), names)
    assert len(names["maps"]) == 11
    assert (tmp_path / "outputs/explain/pictures/collie/index.html").is_file()


def test_results_move_with_their_photos_named_from_where_they_were_made(
    model, folder, tmp_path, monkeypatch
):
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
def test_the_page_links_photos_on_windows_and_on_another_drive(monkeypatch, file, link):
    monkeypatch.setattr(browsing, "os", SimpleNamespace(path=ntpath))
    monkeypatch.setattr(browsing, "Path", PureWindowsPath)
    assert browsing._thumb(Path(r"C:\out"), [{"file": file}]).link == link
