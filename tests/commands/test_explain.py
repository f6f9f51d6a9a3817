"""`vision-attn explain`, called in this process with tiny networks."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vision_attn.cli import main
from vision_attn.hub import load_model
from vision_attn.methods import GradCAM, QueryKey
from vision_attn.models.trust import write_trust
from vision_attn.pages.gallery.run import page_title
from vision_attn.runs.explain import query_place
from vision_attn.runs.loop import TaskResult
from vision_attn.runs.naming import file_names
from vision_attn.types import Trust


def explain(*words: Any) -> int:
    return main(["explain", *map(str, words), "--device", "cpu"])


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def pictures(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.png")}


def read(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def test_the_class_of_one_photo_is_printed(
    models: Callable[[str], str], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    for photo in ("cat.png", "dog.jpg"):  # into one folder
        file = next(photos.rglob(f"{Path(photo).stem}.*"))
        assert explain(models("vit"), file, "-o", out, "--method", "GradCAM") == 0
        *_, record = (one for one in records(out) if one["file"] == str(file))
        said = f"{file.name}: {record['predicted']} ({record['probability']:.1%})"
        assert said in capsys.readouterr().out.splitlines()


def test_the_method_that_nobody_asked_for_is_named_with_what_is_known_of_it(
    models: Callable[[str], str], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tmp_path / "best.ckpt"
    checkpoint.write_bytes(Path(models("vit")).read_bytes())
    unknown = "Not shown to be trusted here: vision-attn score finds out"

    def printed(*words: str) -> str:
        assert explain(checkpoint, photos / "cat.png", "-o", tmp_path / "out", *words) == 0
        return capsys.readouterr().out

    assert f"LibraGradient(smooth=1.0): {unknown}" in printed().splitlines()
    assert unknown not in printed("--method", "GradCAM")
    path = write_trust(checkpoint, Trust(("MaskedRegression", "LeGrad(smooth=1.0)"), 37, "photos"))
    passed = "LeGrad(smooth=1.0): Passed on this network (at least 37 images of photos)."
    assert passed in printed().splitlines()
    written = json.loads(path.read_text())
    for damaged in (
        path.read_text()[:40],
        json.dumps(written | {"checkpoint": "0" * 8}),  # of another one
        json.dumps(written | {"images": float("inf")}),
        json.dumps(written | {"images": -3}),
        json.dumps(written | {"methods": ["LeGrad(smooth=9e9)", "Nothing", ""]}),
        json.dumps([written]),
    ):
        path.write_text(damaged)
        assert f"LibraGradient(smooth=1.0): {unknown}" in printed().splitlines()


def test_each_photo_gets_a_picture_a_map_and_a_record(
    models: Callable[[str], str], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert explain(models("vit"), photos, "-o", out, "--method", "GradCAM") == 0
    assert pictures(out) == {"cat.GradCAM.png", "dog.GradCAM.png", "tiny.GradCAM.png"}
    assert f"3 of 3 images explained: {out}" in capsys.readouterr().out
    model = load_model(models("vit"))
    for record in records(out):
        image = model.preprocess(record["file"])[None]
        probabilities = model.network(image).softmax(1)[0]
        best = int(probabilities.argmax())
        assert record["method"] == "GradCAM"
        assert record["options"] == {"layer": None, "smooth": 0.0}
        assert record["predicted"] == record["target"] == model.classes[best]
        assert record["predicted_index"] == record["target_index"] == best
        assert record["probability"] == pytest.approx(probabilities[best].item(), abs=1e-4)
        assert 0 < record["seconds"] < 60
        want = GradCAM()(model.network, image).values[0].numpy()
        got = np.load(out / f"{Path(record['file']).stem}.GradCAM.npy")
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)


def test_the_picture_is_the_photo_with_grey_outside_of_the_crop(
    models: Callable[[str], str], photos: Path, tmp_path: Path
) -> None:
    assert explain(models("vit"), photos / "dog.jpg", "-o", tmp_path, "--method", "GradCAM") == 0
    picture, photo = read(tmp_path / "dog.GradCAM.png"), read(photos / "dog.jpg")
    assert picture.shape[0] == 500
    picture = picture[:, :353]
    left, top, right, bottom = load_model(models("vit")).preprocess.box((353, 500))
    inside = np.zeros((500, 353), bool)
    inside[round(top) : round(bottom), round(left) : round(right)] = True
    assert (picture[~inside] == picture[~inside][:, :1]).mean() > 0.99
    raw = np.load(tmp_path / "dog.GradCAM.npy")
    assert raw.shape == (4, 6)
    untouched = (picture == photo).all(-1)
    assert untouched[inside].any() == (raw[:-1, :-1] == 0).any()


def test_files_and_folders_before_and_after_options(
    models: Callable[[str], str], photos: Path, tmp_path: Path
) -> None:
    words = [photos / "cat.png", "--method", "EdgeMap", photos / "dog.jpg", "-o", tmp_path / "a"]
    assert explain(models("vit"), *words) == 0
    assert len(records(tmp_path / "a")) == 2
    words = ["--method", "EdgeMap", "-o", tmp_path / "b", models("vit"), photos, photos / "cat.png"]
    assert explain(*words) == 0
    assert len(records(tmp_path / "b")) == 3
    assert explain(models("vit"), photos, "--limit", 1, "--method", "EdgeMap", "-o", tmp_path) == 0
    assert len(records(tmp_path)) == 1


def test_several_methods_give_a_grid_and_options_a_name(
    models: Callable[[str], str], photos: Path, tmp_path: Path
) -> None:
    methods = ["--method", "GradCAM", "--method", "RandomMap( cells=5, seed = 3 )"]
    assert explain(models("vit"), photos / "cat.png", *methods, "-o", tmp_path) == 0
    assert pictures(tmp_path) == {
        "cat.GradCAM.png",
        "cat.RandomMap(cells=5,seed=3).png",
        "cat.grid.png",
    }
    assert records(tmp_path)[1]["options"] == {"cells": 5, "seed": 3, "smooth": 0.0}
    assert records(tmp_path)[1]["target"] is None


def test_all_methods_that_fit(models: Callable[[str], str], photos: Path, tmp_path: Path) -> None:
    assert explain(models("senet"), photos / "tiny.png", "--method", "all", "-o", tmp_path) == 0
    found = {record["method"] for record in records(tmp_path)}
    assert {"GradCAM", "ChannelGates"} <= found
    assert not {"SpatialGates", "Rollout"} & found
    assert {"tiny.grid.png", "tiny.channels.png"} <= pictures(tmp_path)


def test_the_default_is_libra_gradient_or_gradcam(
    models: Callable[[str], str], photos: Path, tmp_path: Path
) -> None:
    for name, method in (("vit", "LibraGradient(smooth=1.0)"), ("senet", "GradCAM")):
        assert explain(models(name), photos / "cat.png", "-o", tmp_path / name) == 0
        assert pictures(tmp_path / name) == {f"cat.{method}.png"}


def test_the_query_is_marked_where_it_is(
    models: Callable[[str], str], photos: Path, tmp_path: Path
) -> None:
    model = load_model(models("vit"))
    for query, x, y in (("(12, 4)", 12.5 / 48, 4.5 / 32), ("(0.75, 0.5)", 0.75, 0.5)):
        out = tmp_path / str(x)
        methods = [f"QueryKey(query={query})", "QueryKey(query=cls)"]
        words = [word for method in methods for word in ("--method", method)]
        assert explain(models("vit"), photos / "cat.png", *words, "-o", out, "--style", "dim") == 0
        marked, plain = (
            read(out / f"cat.QueryKey(query={q.replace(' ', '')}).png") for q in (query, "cls")
        )
        left, top, right, bottom = model.preprocess.box((401, 331))
        at = (marked[..., :] > 250).all(-1) & (plain < 250).any(-1)
        ys, xs = np.nonzero(at)
        assert np.median(xs) == pytest.approx(left + x * (right - left), abs=6)
        assert np.median(ys) == pytest.approx(top + y * (bottom - top), abs=6)


def test_the_target_is_a_name_an_index_or_what_is_predicted(
    models: Callable[[str], str], photos: Path, tmp_path: Path
) -> None:
    maps = {}
    for target in ("tabby cat", "0", "Collie", "predicted"):
        words = ["--target", target, "--method", "GradCAM", "-o", tmp_path]
        assert explain(models("vit"), photos / "cat.png", *words) == 0
        maps[target] = np.load(tmp_path / "cat.GradCAM.npy")
    assert (maps["tabby cat"] == maps["0"]).all()
    assert (maps["0"] != maps["Collie"]).any()


@pytest.mark.parametrize(
    ("option", "word", "message"),
    [
        ("--target", "colly", "no class named 'colly'; did you mean collie"),
        ("--target", "7", "no class 7: expected 0 to 2"),
        ("--contrast", "tabbi", "no class named 'tabbi'; did you mean tabby"),
        ("--method", "Rolout", "unknown method 'Rolout' (did you mean 'Rollout'?)"),
        ("--method", "EdgeMap(sells=3)", "EdgeMap has no option 'sells' (did you mean 'cells'?)"),
        ("--style", "infernal", "unknown colour map 'infernal'"),
        ("--device", "tpu9", "device 'tpu9' is not on this machine"),
        ("--image-size", "32x", "expected a side or HEIGHTxWIDTH, such as 224 or 160x224"),
        ("--pretrained", "maybe", "expected true or false, got 'maybe'"),
        ("--batch-size", "0", "expected a whole number of at least 1, got '0'"),
        ("--limit", "-3", "expected a whole number of at least 1, got '-3'"),
        ("--masks", "nowhere", "--masks nowhere: expected a folder"),
        ("--masks", ".", "--masks .: expected masks named like the images, such as cat.png"),
        ("--weights", "none.pth", "none.pth"),
        ("--metod", "Rollout", "unknown option --metod"),
    ],
)
def test_a_wrong_option_is_one_line(
    models: Callable[[str], str],
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    option: str,
    word: str,
    message: str,
) -> None:
    words = [models("vit"), photos, "--method", "EdgeMap", option, word, "-o", tmp_path / "out"]
    assert main(["explain", *map(str, words)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_method_that_does_not_fit_costs_its_pictures_only(
    models: Callable[[str], str], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [photos / "cat.png", "--method", "EdgeMap", "--method", "ChannelGates", "-o", tmp_path]
    assert main(["explain", models("vit"), *map(str, words)]) == 1
    assert "ChannelGates does not fit this model" in capsys.readouterr().err
    assert [record["method"] for record in records(tmp_path)] == ["EdgeMap"]
    assert main(["explain", models("vit"), str(photos), "--method", "ChannelGates"]) == 2


def test_a_map_without_a_place_says_so(models: Callable[[str], str], tmp_path: Path) -> None:
    Image.new("RGB", (64, 64), (90, 120, 40)).save(tmp_path / "even.png")
    words = [tmp_path / "even.png", "--method", "EdgeMap", "-o", tmp_path]
    assert explain(models("vit"), *words) == 0
    (record,) = records(tmp_path)
    assert record["note"] == "Constant map: every place has the same value"


def test_a_wrong_model_is_one_line(
    models: Callable[[str], str], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "cut.ckpt"
    cut.write_bytes(Path(models("vit")).read_bytes()[:2000])
    for model, message in (
        (cut, "cut.ckpt"),
        ("timm:vit_smal_patch16_224", "vit_small_patch16_224"),
        ("nothing.ckpt", "nothing.ckpt"),
    ):
        assert explain(model, photos, "--pretrained", "false", "-o", tmp_path / "out") == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_contrast_is_the_difference_of_logits(
    models: Callable[[str], str], photos: Path, tmp_path: Path
) -> None:
    words = [models("senet"), photos / "cat.png", "--method", "IntegratedGradients(steps=2)"]
    maps = {}
    for name, target, other in (("a", 0, None), ("b", 1, None), ("a-b", 0, 1)):
        contrast = [] if other is None else ["--contrast", "collie"]
        out = tmp_path / name
        assert explain(*words, "--target", target, *contrast, "-o", out) == 0
        maps[name] = np.load(out / "cat.IntegratedGradients(steps=2).npy")
        assert records(out)[0]["contrast"] == (None if other is None else "collie")
        assert records(out)[0]["completeness_gap"] >= 0
    np.testing.assert_allclose(maps["a-b"], maps["a"] - maps["b"], rtol=1e-3, atol=1e-4)


def test_bad_images_are_named_and_the_rest_is_done(
    models: Callable[[str], str], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "text.jpg").write_text("not an image")
    (photos / "cut.jpg").write_bytes((photos / "dog.jpg").read_bytes()[:900])
    (tmp_path / "empty").mkdir()
    words = [photos, tmp_path / "missing.png", tmp_path / "empty", "--method", "EdgeMap"]
    assert explain(models("vit"), *words, "-o", tmp_path / "out") == 1
    streams = capsys.readouterr()
    lines = streams.err.splitlines()
    assert len(lines) == 4
    for word in ("text.jpg", "cut.jpg", "missing.png", "empty"):
        assert sum(word in line for line in lines) == 1
    assert len(records(tmp_path / "out")) == 3
    assert "3 of 5 images explained" in streams.out


def test_no_image_is_said(
    models: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(models("vit"), "-o", tmp_path) == 2
    assert "no image given" in capsys.readouterr().err
    assert explain(models("vit"), tmp_path / "missing.png", "", "-o", tmp_path) == 1
    streams = capsys.readouterr()
    missing, unnamed = streams.err.splitlines()
    assert "missing.png" in missing
    assert "IMAGE '': expected the path of an image or a folder, got an empty one" in unnamed
    assert "explained" not in streams.out  # neither "0 of 0", nor what the current folder holds


def test_an_output_that_cannot_be_written_is_said(
    models: Callable[[str], str], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for output in (tmp_path / "file", tmp_path / "file" / "below"):
        assert explain(models("vit"), photos, "-o", output) == 2
        assert f"--output {output}: cannot write there" in capsys.readouterr().err


def odd_images(folder: Path) -> None:
    """Every kind of image that must work."""
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (60, 90, 3), dtype=np.uint8))
    image.convert("L").save(folder / "grey.png")
    image.convert("RGBA").save(folder / "alpha.png")
    image.convert("P").save(folder / "palette.png")
    image.convert("CMYK").save(folder / "cmyk.jpg")
    Image.fromarray(rng.integers(0, 65536, (60, 90), dtype=np.uint16)).save(folder / "deep.png")
    turned = Image.Exif()
    turned[0x0112] = 6
    image.save(folder / "turned.jpg", exif=turned)
    image.resize((1, 1)).save(folder / "pixel.png")
    image.resize((1, 300)).save(folder / "line.png")


def test_every_kind_of_image_works(models: Callable[[str], str], tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    odd_images(folder)
    words = ["--method", "EdgeMap", "--page", "-o", tmp_path / "out"]
    assert explain(models("vit"), folder, *words) == 0
    assert len(records(tmp_path / "out")) == 8
    assert read(tmp_path / "out" / "turned.EdgeMap.png").shape[0] == 270  # 90 high, enlarged by 3


@pytest.mark.slow  # render/test_overlay.py draws as many in the usual run
def test_twenty_megapixels(models: Callable[[str], str], tmp_path: Path) -> None:
    image = Image.new("RGB", (5200, 3900), (90, 120, 40))
    image.paste((10, 10, 10), (0, 0, 2600, 3900))
    image.save(tmp_path / "large.jpg")
    words = [tmp_path / "large.jpg", "--method", "EdgeMap", "-o", tmp_path]
    assert explain(models("vit"), *words) == 0
    assert read(tmp_path / "large.EdgeMap.png").shape[0] == 3900


def test_the_batch_size_changes_nothing(
    models: Callable[[str], str], photos: Path, tmp_path: Path
) -> None:
    for size in (1, 2, 8):
        words = ["--method", "GradCAM", "--batch-size", size, "-o", tmp_path / str(size)]
        assert explain(models("vit"), photos, *words) == 0
    for path in (tmp_path / "1").glob("*.npy"):
        for name in ("2", "8"):
            np.testing.assert_allclose(
                np.load(path), np.load(tmp_path / name / path.name), rtol=1e-3, atol=1e-5
            )


def test_a_gallery_names_the_end_of_a_checkpoints_path(tmp_path: Path) -> None:
    (tmp_path / "run/version_0").mkdir(parents=True)
    (tmp_path / "run/version_0/best.ckpt").touch()
    assert page_title(str(tmp_path / "run/version_0/best.ckpt")) == (
        "Where run/version_0/best.ckpt looks"
    )
    assert page_title("timm:vit_small_patch16_224") == "Where timm:vit_small_patch16_224 looks"


def test_names_of_pictures_tell_files_apart() -> None:
    def names(*files: str) -> list[str]:
        return file_names([Path("/data") / file for file in files])

    assert names("a/cat.jpg", "b/dog.jpg") == ["cat", "dog"]
    assert names("a/cat.jpg", "a/cat.png", "a/dog.png") == ["cat.jpg", "cat.png", "dog"]
    assert names("a/cat.jpg", "b/cat.jpg") == ["a-cat.jpg", "b-cat.jpg"]
    assert names("a/b/x.png", "c/b/x.png", "x.png") == ["a-b-x.png", "c-b-x.png", "data-x.png"]
    assert names("a/Cat.jpg", "a/cat.png") == ["Cat.jpg", "cat.png"]
    assert names() == []


def test_the_page_shows_every_photo_and_no_tag_from_names(
    models: Callable[[str], str], photos: Path, tmp_path: Path
) -> None:
    masks = tmp_path / "masks"
    masks.mkdir()
    Image.fromarray(np.eye(40, 60, dtype=np.uint8) * 255).save(masks / "tiny.png")
    words = ["--method", "EdgeMap", "--method", "GradCAM", "--target", 2, "--page"]
    assert explain(models("vit"), photos, *words, "--masks", masks, "-o", tmp_path) == 0
    source = (tmp_path / "index.html").read_text()
    assert source.count("<article") == 3
    assert source.count("<figure") == 3 * 3 + 1
    assert "<img src=x" not in source
    assert (tmp_path / "page" / "tiny.mask.jpg").is_file()


def test_ctrl_c_keeps_what_is_done(
    models: Callable[[str], str],
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vision_attn.runs.photos import ExplainPhotos

    do, batches = ExplainPhotos.do, iter(range(2))

    def do_two(job: Any, task: Any, read: Any) -> TaskResult:
        if next(batches, None) is None:
            raise KeyboardInterrupt
        return do(job, task, read)

    monkeypatch.setattr(ExplainPhotos, "do", do_two)
    words = ["--method", "EdgeMap", "--batch-size", 1, "--page", "-o", tmp_path / "out"]
    assert explain(models("vit"), photos, *words) == 130
    assert f"2 images are done, in {tmp_path / 'out'}" in capsys.readouterr().err
    assert len(records(tmp_path / "out")) == 2
    assert (tmp_path / "out" / "index.html").read_text().count("<article") == 2


def same_but_for_time(folder: Path, other: Path) -> set[str]:
    """Both folders hold the same files, but for the seconds in their records; return the shards."""
    found, expected = (
        {str(path.relative_to(at)): path.read_bytes() for path in at.rglob("*") if path.is_file()}
        for at in (folder, other)
    )
    lines, wanted = records(folder), records(other)
    assert [{**line, "seconds": 0} for line in lines] == [{**line, "seconds": 0} for line in wanted]
    parts = {name for name in found if name.startswith("store/") and name != "store/run.json.gz"}
    for files in (found, expected):
        for name in [name for name in files if name.startswith("store/")]:
            files.pop(name)
        files.pop("results.jsonl")
    assert found == expected
    return parts


@pytest.fixture(scope="module")
def alone(
    models: Callable[[str], str], kept_photos: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Any], Any]:
    """Words, and the folder that one process fills."""
    folder = tmp_path_factory.mktemp("explained") / "alone"
    words = [models("vit"), kept_photos, "--method", "Rollout", "--method", "RandomMap", "--page"]
    words += ["--batch-size", 1]
    assert explain(*words, "-o", folder) == 0
    return words, folder


@pytest.mark.slow
@pytest.mark.xdist_group("explained")
def test_processes_fill_the_folder_as_one_does(
    alone: tuple[list[Any], Any], tmp_path: Path
) -> None:
    words, folder = alone
    assert explain(*words, "--processes", 2, "-o", tmp_path / "two") == 0
    assert same_but_for_time(tmp_path / "two", folder) == {"store/1-of-1.sqlite"}


@pytest.mark.slow
@pytest.mark.xdist_group("explained")
def test_the_last_shard_puts_all_together(
    alone: tuple[list[Any], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, folder = alone
    out = tmp_path / "out"
    for shard in ("3/3", "1/3"):
        assert explain(*words, "--shard", shard, "-o", out) == 0
        said = capsys.readouterr().out
        assert f"shard {shard[0]} of 3 is done; the last one to finish merges the results" in said
        assert not (out / "results.jsonl").exists()
    assert explain(*words, "--shard", "2/3", "--style", "dim", "-o", out) == 0
    assert "shard 2 of 3 is done" in capsys.readouterr().out  # of other words: not of these
    assert explain(*words, "--shard", "2/3", "-o", out) == 0
    assert f"all 3 shards are done; their results are merged in {out}" in capsys.readouterr().out
    assert same_but_for_time(out, folder) == {f"store/{i}-of-3.sqlite" for i in (1, 2, 3)}


@pytest.mark.slow
@pytest.mark.parametrize("old", [b"CREATE TABLE", b"RandomMap", b"SQLite"])
@pytest.mark.xdist_group("explained")
def test_a_damaged_shard_is_named_and_done_again(
    alone: tuple[list[Any], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], old: bytes
) -> None:
    words, folder = alone
    out = tmp_path / "out"
    assert explain(*words, "--shard", "1/2", "-o", out) == 0
    file = out / "store" / "1-of-2.sqlite"
    content = file.read_bytes()
    assert old in content
    file.write_bytes(content.replace(old, old[:-1] + b"?", 1))
    assert explain(*words, "--shard", "2/2", "-o", out) == 2
    error = capsys.readouterr().err
    assert f"{file}: damaged" in error
    assert "run --shard 1/2 again" in error
    assert explain(*words, "--shard", "1/2", "-o", out) == 0
    assert same_but_for_time(out, folder)


def test_what_is_explained_already_is_not_explained_again(
    models: Callable[[str], str], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vision_attn.runs.photos import ExplainPhotos

    words = [models("vit"), photos, "--method", "EdgeMap", "--page", "-o", tmp_path / "out"]
    assert explain(*words) == 0
    before, done, do = records(tmp_path / "out"), [], ExplainPhotos.do
    monkeypatch.setattr(
        ExplainPhotos,
        "do",
        lambda job, task, read: done.extend(task.samples) or do(job, task, read),
    )
    assert explain(*words) == 0
    assert (done, records(tmp_path / "out")) == ([], before)
    (tmp_path / "out" / "cat.EdgeMap.png").unlink()
    Image.new("RGB", (40, 30), (9, 99, 9)).save(photos / "tiny.png")
    assert explain(*words) == 0
    assert sorted(Path(photo.file).name for photo in done) == ["cat.png", "tiny.png"]
    assert (tmp_path / "out" / "cat.EdgeMap.png").is_file()
    assert len(records(tmp_path / "out")) == 3


@pytest.mark.xdist_group("explained")
def test_torchrun_says_which_shard_a_process_is(
    alone: tuple[list[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, folder = alone
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        assert explain(*words, "-o", tmp_path / "out") == 0
    assert len(same_but_for_time(tmp_path / "out", folder)) == 2


def test_a_network_of_nans_is_said(
    models: Callable[[str], str], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = torch.load(models("vit"), weights_only=True)
    contents["state_dict"]["network.norm.weight"].fill_(float("nan"))
    torch.save(contents, tmp_path / "nan.ckpt")
    words = [tmp_path / "nan.ckpt", photos, "--method", "GradCAM", "-o", tmp_path / "out"]
    assert explain(*words) == 2
    errors = capsys.readouterr().err
    assert "NaN" in errors
    assert "norm.weight" in errors
    assert not (tmp_path / "out" / "results.jsonl").exists()


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from vision_attn.cli import main; main(['explain', '--help']); "
        "assert 'torch' not in sys.modules"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "COLUMNS": "100"},
    )
    assert run.returncode == 0, run.stderr
    assert "--contrast" in run.stdout


def test_real_photos(models: Callable[[str], str], data_root: Path, tmp_path: Path) -> None:
    words = [data_root / "photos", data_root / "pet_masks" / "images", "--limit", 12, "--page"]
    assert explain(models("senet"), *words, "-o", tmp_path) == 0
    assert len(pictures(tmp_path)) == 12


def test_the_mark_of_a_query_is_in_the_centre_where_registers_are_all_there_is() -> None:
    without: dict[str, Any] = {"class_token": False, "reg_tokens": 2, "global_pool": "avg"}
    small: dict[str, Any] = {
        "img_size": 32,
        "depth": 1,
        "embed_dim": 24,
        "num_heads": 3,
        "pretrained": False,
    }
    model = load_model("timm:vit_tiny_patch16_224", **small, **without)
    assert query_place(QueryKey(), model) == (0.5, 0.5)
    assert query_place(QueryKey(), load_model("timm:vit_tiny_patch16_224", **small)) is None


def test_a_range_of_numbers_is_asked_for_and_taken(
    models: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "scans"
    folder.mkdir()
    values = np.linspace(0, 4095, 30 * 40).reshape(30, 40).astype(np.uint16)
    Image.fromarray(values).save(folder / "scan.tif")
    same = np.rint(values.astype(float) / 4095 * 255).astype(np.uint8)
    Image.fromarray(same).save(tmp_path / "scan.png")
    words = ["explain", models("vit"), folder, "--method", "EdgeMap", "-o", tmp_path / "out"]
    assert main([str(word) for word in words]) == 1
    told = "its 16-bit numbers run from 0 to 4095, and which are black and white is not certain: "
    assert f"scan.tif: {told}give both, such as --value-range 0 4095" in capsys.readouterr().err
    assert main([str(word) for word in [*words, "--value-range", 0, 4095]]) == 0
    words[2], words[-1] = tmp_path / "scan.png", tmp_path / "png"
    assert main([str(word) for word in words]) == 0
    scan, same = ((tmp_path / place / "scan.EdgeMap.png").read_bytes() for place in ("out", "png"))
    assert scan == same
    for given, told in (
        (["4095", "0"], "expected the numbers of black and of white, the smaller first"),
        (["0", "white"], "expected a number, got 'white'"),
        (["0"], "expected 2 arguments"),
    ):
        assert main([*map(str, words), "--value-range", *given]) == 2
        assert told in capsys.readouterr().err
