"""`save` of an explanation: what is there of other photos stays, and what is replaced is said."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vision_attn
from vision_attn.cli import main
from vision_attn.types import Model


@pytest.fixture
def vit(models: Callable[[str], str]) -> Model:
    return vision_attn.load_model(models("vit"))


def image_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (32, 48, 3), np.uint8)


def records(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "results.jsonl").read_text().splitlines()
    with vision_attn.open_results(folder) as results:
        found = list(results)
    assert found == [json.loads(line) for line in lines]
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".png"}


def test_images_without_a_name_are_kept_apart(vit: Model, tmp_path: Path) -> None:
    found = [vit.explain(image_of(seed), "Rollout") for seed in range(3)]
    for one in found:
        one.save(tmp_path)
    names = ["image", "image (2)", "image (3)"]
    assert [row["file"] for row in records(tmp_path)] == names
    assert sorted(contents(tmp_path)) == sorted(f"{name}.Rollout.png" for name in names)
    with vision_attn.open_results(tmp_path) as results:
        for place, one in enumerate(found):
            np.testing.assert_array_equal(results.map(place), one["Rollout"].values)


def test_one_by_one_and_together_leave_the_same(vit: Model, photos: Path, tmp_path: Path) -> None:
    every: list[Any] = [*sorted(photos.iterdir()), image_of(0), image_of(1)]
    found = vit.explain(every, ["Rollout", "GradCAM"])
    found.save(tmp_path / "together")
    for one in found:
        one.save(tmp_path / "apart")
    assert records(tmp_path / "together") == records(tmp_path / "apart")
    assert contents(tmp_path / "together") == contents(tmp_path / "apart")


def test_the_same_again_changes_nothing_and_says_nothing(
    vit: Model, photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = vit.explain([photos / "cat.png", image_of(0), image_of(1)], "Rollout")
    found.save(tmp_path / "out")
    before = records(tmp_path / "out"), contents(tmp_path / "out")
    found[2].save(tmp_path / "out")
    found[0].save(tmp_path / "out")
    found.save(tmp_path / "out")
    assert not caplog.messages
    assert (records(tmp_path / "out"), contents(tmp_path / "out")) == before


def test_photos_of_one_name_have_pictures_of_their_own(
    vit: Model, photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "others").mkdir()
    Image.fromarray(image_of(0)).save(tmp_path / "others" / "cat.png")
    first = vit.explain(photos / "cat.png", "Rollout")
    second = vit.explain(tmp_path / "others" / "cat.png", "Rollout")
    first.save(tmp_path / "out")
    kept = (tmp_path / "out" / "cat.Rollout.png").read_bytes()
    second.save(tmp_path / "out")
    first.save(tmp_path / "out")
    assert (tmp_path / "out" / "cat.Rollout.png").read_bytes() == kept
    pictures = {row["file"]: row["picture"] for row in records(tmp_path / "out")}
    assert pictures == {
        str(photos / "cat.png"): "cat.Rollout.png",
        str(tmp_path / "others" / "cat.png"): "others-cat.png.Rollout.png",
    }


def test_another_method_stands_beside_the_first(vit: Model, photos: Path, tmp_path: Path) -> None:
    for method in ("Rollout", "GradCAM"):
        vit.explain(photos / "cat.png", method).save(tmp_path / "out")
    assert [row["method"] for row in records(tmp_path / "out")] == ["Rollout", "GradCAM"]
    with vision_attn.open_results(tmp_path / "out") as results:
        assert results.methods == ["Rollout", "GradCAM"]


def test_another_target_replaces_the_first_and_says_so(
    vit: Model, photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    methods = ["GradCAM", "Rollout"]
    vit.explain(photos / "cat.png", methods, target=vit.classes[0]).save(tmp_path / "out")
    second = vit.explain(photos / "cat.png", methods, target=vit.classes[1])
    second.save(tmp_path / "out")
    assert "replaced 1 result of an earlier run (GradCAM)" in caplog.text
    assert [row["target_index"] for row in records(tmp_path / "out")] == [1, None]
    np.testing.assert_array_equal(
        np.load(tmp_path / "out" / "cat.GradCAM.npy"), second["GradCAM"].values
    )


def test_results_of_another_model_are_replaced(
    vit: Model,
    models: Callable[[str], str],
    photos: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    senet = vision_attn.load_model(models("senet"))
    vit.explain([photos / "cat.png", photos / "dog.jpg"], "Rollout").save(tmp_path / "out")
    senet.explain(photos / "cat.png", "GradCAM").save(tmp_path / "out")
    assert "replaced 2 results of an earlier run (Rollout)" in caplog.text
    assert [row["method"] for row in records(tmp_path / "out")] == ["GradCAM"]


def test_results_of_other_weights_are_replaced(
    vit: Model, photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = vit.explain([photos / "cat.png", photos / "dog.jpg"], "Rollout")
    found.save(tmp_path / "out")
    with torch.no_grad():
        next(vit.network.parameters()).mul_(1.5)
    vit.explain(photos / "cat.png", "Rollout").save(tmp_path / "out")
    assert "replaced 2 results of an earlier run (Rollout)" in caplog.text
    assert [row["file"] for row in records(tmp_path / "out")] == [str(photos / "cat.png")]


def test_results_of_a_command_are_replaced(
    vit: Model,
    models: Callable[[str], str],
    photos: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    words = [models("vit"), str(photos), "--method", "Rollout", "--device", "cpu"]
    assert main(["explain", *words, "-o", str(tmp_path / "out")]) == 0
    vit.explain(photos / "cat.png", "Rollout").save(tmp_path / "out")
    assert "replaced 2 results of an earlier run (Rollout)" in caplog.text
    assert [row["file"] for row in records(tmp_path / "out")] == [str(photos / "cat.png")]


def test_a_damaged_run_counts_as_none(vit: Model, photos: Path, tmp_path: Path) -> None:
    vit.explain(photos / "cat.png", "Rollout").save(tmp_path / "out")
    (tmp_path / "out" / "store" / "run.json.gz").write_bytes(b"cut")
    vit.explain(photos / "dog.jpg", "Rollout").save(tmp_path / "out")
    assert [row["file"] for row in records(tmp_path / "out")] == [str(photos / "dog.jpg")]


def test_a_photo_that_has_changed_is_one_photo(vit: Model, photos: Path, tmp_path: Path) -> None:
    vit.explain(photos / "cat.png", "Rollout").save(tmp_path / "out")
    shutil.copy(photos / "tiny.png", photos / "cat.png")
    changed = vit.explain(photos / "cat.png", "Rollout")
    changed.save(tmp_path / "out")
    (row,) = records(tmp_path / "out")
    np.testing.assert_array_equal(
        np.load(tmp_path / "out" / row["picture"].replace(".png", ".npy")),
        changed["Rollout"].values,
    )
