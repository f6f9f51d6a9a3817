"""Two checkpoints compared: against the maps of `explain`, and the page that shows it."""

import html
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vision_attn
from vision_attn.cli import main
from vision_attn.data import Preprocess
from vision_attn.models import ViT
from vision_attn.runs.comparison import (
    ComparedPhoto,
    Comparison,
    jackknife,
    overlap,
    overlaps_without,
)
from vision_attn.runs.progress import Silent
from vision_attn.types import Model

CLASSES = ["cat", "dog", "fox"]


def vit(seed: int, size: int = 24, classes: list[str] = CLASSES) -> Model:
    torch.manual_seed(seed)
    network = ViT(image_size=size, patch_size=8, num_classes=len(classes), dim=12, depth=2, heads=2)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    preprocess = Preprocess((size, size), (0.5,) * 3, (0.25,) * 3)
    return Model(
        network.eval(), preprocess, list(classes), network.layout((size, size)), f"vit{seed}"
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(3)
    for name in ("cat", "dog", "other", "fox"):
        (tmp_path / "in" / name).mkdir(parents=True)
        for at in range(0 if name == "fox" else 3):
            pixels = random.integers(0, 256, (30, 30, 3), np.uint8)
            Image.fromarray(pixels).resize((40, 40)).save(tmp_path / "in" / name / f"{at}.png")
    return tmp_path / "in"


def test_overlap_is_the_mass_in_the_same_places() -> None:
    a, b = np.array([[1.0, 0, 1], [0, 0, 2]]), np.array([[0.0, 3, 1], [-5, 0, 0]])
    assert overlap(a, b) == pytest.approx(min(1 / 4, 1 / 4))
    assert overlap(a, a) == pytest.approx(1)
    assert overlap(a, np.array([[0.0, 1, 0], [1, 1, 0]])) == 0
    seen = np.array([[np.nan, 3, 1], [0, 0, 0]])
    assert overlap(a, seen) == pytest.approx(min(1 / 3, 1 / 4))
    assert np.isnan(overlap(a, np.zeros((2, 3))))


def test_an_interval_leaves_each_part_of_the_photo_out_once() -> None:
    random = np.random.default_rng(5)
    a, b = random.gamma(0.5, size=(2, 13, 19))
    a[:, 17:] = np.nan  # not seen by the first: of the last parts, of 3 columns, one is left
    without = overlaps_without(a, b)
    rows, columns = np.arange(13) * 6 // 13, np.arange(19) * 6 // 19
    wanted = []
    for row in range(6):
        for column in range(6):
            p, q = (
                np.array(
                    [
                        one[y, x] for y in range(13) for x in range(17)
                        if (rows[y], columns[x]) != (row, column)
                    ]
                )
                for one in (a, b)
            )  # fmt: skip
            wanted.append(np.minimum(p / p.sum(), q / q.sum()).sum())
    np.testing.assert_allclose(without, wanted)
    interval = jackknife([overlap(a, b)], without[:, None])
    assert interval is not None
    low, high = interval
    half = 1.96 * (35 / 36 * ((np.array(wanted) - np.mean(wanted)) ** 2).sum()) ** 0.5
    assert (low, high) == pytest.approx((overlap(a, b) - half, overlap(a, b) + half))
    of_one: Any = jackknife([1.0], overlaps_without(a, a)[:, None])
    assert of_one == (pytest.approx(1), 1)
    spot = np.zeros((13, 19))
    spot[0, 0] = 1
    assert jackknife([overlap(a, spot)], overlaps_without(a, spot)[:, None]) == (0, 1)
    assert jackknife([0.5], np.array([[0.5]])) is None


def test_intervals_hold_the_overlap_of_whole_maps_19_times_of_20() -> None:
    """Maps whose parts are drawn apart from each other: what a jackknife over parts takes for granted."""
    random, inside = np.random.default_rng(7), 0
    levels = random.gamma(2.0, size=(10**6, 2)), np.clip(random.normal(size=10**6), -1, 1) * 0.6
    p, q = levels[0][:, 0], levels[0][:, 0] * np.exp(levels[1])
    truth = np.minimum(p / p.sum(), q / q.sum()).sum()
    for _ in range(300):
        drawn = random.integers(0, 10**6, (6, 6))
        a, b = (np.kron(one[drawn], np.ones((2, 2))) for one in (p, q))
        interval = jackknife([overlap(a, b)], overlaps_without(a, b)[:, None])
        assert interval is not None
        low, high = interval
        inside += low <= truth <= high
    assert 0.9 <= inside / 300 <= 0.98


def test_ranks_have_the_intervals_that_overlaps_allow() -> None:
    ends = [(0.1, 0.2), (0.15, 0.4), (0.3, 0.5), (0.7, 0.9), None]
    photos = [
        ComparedPhoto(f"{at}.png", 0, (0, 0), (0.9, 0.6), {"Rollout": 0.1 * at}, interval=end)
        for at, end in enumerate(ends)
    ]
    table = Comparison(("a", "b"), ["cat"], ["Rollout"], photos[::-1], []).table()
    assert [row["rank"] for row in table] == [1, 2, 3, 4, 5]
    for row in table:
        low, high = ends[int(row["file"][0])] or (0, 1)
        below = sum(other is not None and other[1] < low for other in ends)
        above = sum(other is not None and other[0] > high for other in ends)
        assert (row["rank_low"], row["rank_high"]) == (1 + below, 5 - above), row
    assert [table[0]["overlap_low"], table[4]["overlap_low"]] == [0.1, None]


def test_a_model_is_like_itself_and_unlike_another(folder: Path) -> None:
    model = vit(1)
    same = vision_attn.compare((model, model), folder, ["Rollout", "GradCAM"], batch_size=4)
    assert same.agreement()["share"] == 1
    assert same.overlap()["mean"] == pytest.approx(1)
    assert same.models == ("vit1 (a)", "vit1 (b)")
    other = vision_attn.compare((model, vit(2)), folder, "GradCAM", batch_size=4)
    assert other.overlap()["mean"] < 0.999
    table = other.table()
    assert [row["overlap"] for row in table] == sorted(row["overlap"] for row in table)
    assert all(row["overlap_low"] <= row["overlap"] <= row["overlap_high"] for row in table)
    assert {row["rank_high"] for row in same.table()} == {9}


def test_values_are_those_of_the_maps_of_the_same_class(folder: Path) -> None:
    models = vit(1), vit(2)
    found = vision_attn.compare(models, folder, "GradCAM", batch_size=4)
    row = next(row for row in found.table() if row["file"].endswith("dog/1.png"))
    maps = [
        vision_attn.explain(model, folder / "dog" / "1.png", "GradCAM", target="dog")
        for model in models
    ]
    wanted = overlap(*(one.on_photo() for one in maps))
    assert row["overlap"] == pytest.approx(wanted, abs=0.02)  # on another grid
    assert row["label"] == "dog"
    predicted: list[Any] = [one.predicted for one in maps]
    assert [row["predicted_a"], row["predicted_b"]] == [CLASSES[index] for index in predicted]
    unknown = next(row for row in found.table() if "other" in row["file"])
    asked = vision_attn.explain(models[0], unknown["file"], "GradCAM")
    second = vision_attn.explain(models[1], unknown["file"], "GradCAM", target=asked.predicted)
    assert unknown["label"] is None
    assert unknown["overlap"] == pytest.approx(
        overlap(asked.on_photo(), second.on_photo()), abs=0.02
    )


def test_tables_count_photos_and_classes(folder: Path) -> None:
    found = vision_attn.compare((vit(1), vit(2)), folder, "Rollout")
    rows = found.table()
    same = [row["predicted_a"] == row["predicted_b"] for row in rows]
    assert found.agreement()["share"] == pytest.approx(np.mean(same))
    known = [row for row in rows if row["label"]]
    right = found.accuracy()
    assert right is not None
    assert right["n"] == len(known) == 6
    assert right["a"] == pytest.approx(
        np.mean([row["predicted_a"] == row["label"] for row in known])
    )
    classes = found.by_class()
    assert sum(row["n"] for row in classes) == 9
    assert [row["overlap"] for row in classes] == sorted(row["overlap"] for row in classes)
    cats = [row for row in rows if (row["label"] or row["predicted_a"]) == "cat"]
    (cat,) = (row for row in classes if row["class"] == "cat")
    assert cat["overlap"] == pytest.approx(np.mean([row["overlap"] for row in cats]))
    assert cat["overlap_low"] <= cat["overlap"] <= cat["overlap_high"]
    mean = found.overlap("Rollout")
    assert mean["low"] <= mean["mean"] <= mean["high"]
    assert 0 < mean["apart"] <= 1
    with pytest.raises(ValueError, match="method: expected one of Rollout, got 'GradCAM'"):
        found.overlap("GradCAM")


def test_one_photo_of_a_known_class_has_an_accuracy_without_an_interval(folder: Path) -> None:
    known = folder / "cat" / "0.png"
    others = sorted((folder / "other").glob("*.png"))
    found = vision_attn.compare((vit(1), vit(2)), [known, *others], "Rollout")
    right = found.accuracy()
    assert right is not None
    assert (right["n"], right["low"]) == (1, None)
    line = (
        f"Accuracy {right['a']:.1%} and {right['b']:.1%}: the second less the first is "
        f"{right['difference']:.1%}."
    )
    assert line in str(found).splitlines()


def test_models_of_other_sizes_are_compared_on_the_photo(folder: Path) -> None:
    found = vision_attn.compare((vit(1), vit(2, size=32)), folder, "Rollout", limit=3)
    assert len(found.photos) == 3


def test_the_page_begins_with_what_differs_most(folder: Path, tmp_path: Path) -> None:
    (folder / "cat" / "broken.png").write_bytes(b"none")
    output = tmp_path / "out"
    found = vision_attn.compare((vit(1), vit(2)), folder, "Rollout", output=output, shown=5)
    assert len(found.problems) == 1
    assert "broken.png" in found.problems[0]
    page = (output / "index.html").read_text()
    shown = [row["file"].rpartition("/")[2] for row in found.table()[:5]]
    places = [page.index(f"overlap {row['overlap']:.1%}") for row in found.table()[:5]]
    assert len(set(shown)) <= 5
    assert places == sorted(places)
    row = found.table()[0]
    assert f"overlap {row['overlap']:.1%} ({row['overlap_low']:.1%} to " in page
    assert f"rank 1 (1 to {row['rank_high']})" in page
    assert page.count("<article") == 5
    assert "(5 of 9)" in page
    assert len(list((output / "page").glob("*.jpg"))) == 15
    saved = json.loads((output / "comparison.json").read_text())
    assert saved["agreement"] == found.agreement()
    assert len((output / "comparison.csv").read_text().splitlines()) == 10


def test_the_page_says_each_thing_once_and_has_no_empty_columns(
    folder: Path, tmp_path: Path
) -> None:
    labelled, bare = tmp_path / "labelled", tmp_path / "bare"
    found = vision_attn.compare((vit(1), vit(2)), folder, "Rollout", output=labelled, shown=2)
    page = (labelled / "index.html").read_text()
    assert page.count(f">accuracy {found.models[0]}<") == 1
    for at, line in enumerate(map(html.escape, found.sentences())):
        assert page.count(line) == 1, at
    photos = [Image.open(folder / "cat" / f"{at}.png") for at in (0, 1)]
    (tmp_path / "photos").mkdir()
    for at, photo in enumerate(photos):
        photo.save(tmp_path / "photos" / f"{at}.png")
    vision_attn.compare((vit(1), vit(2)), tmp_path / "photos", "Rollout", output=bare)
    assert "accuracy" not in (bare / "index.html").read_text().partition("<script")[0]


def test_both_maps_of_a_photo_are_shown_where_there_are_many(folder: Path, tmp_path: Path) -> None:
    for at in range(6):
        Image.effect_noise((30, 30), 40 + at).convert("RGB").save(folder / "fox" / f"{at}.png")
    vision_attn.compare((vit(1), vit(2)), folder, "Rollout", output=tmp_path / "out")
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.count("<article") == 15
    assert "most different first" in page
    assert "<details>" not in page.partition("<main>")[2]
    assert 'aria-label="Map shown"' not in page


class Stopping(Silent):
    def advance(self, steps: int = 1) -> None:
        raise KeyboardInterrupt


def test_the_keyboard_stops_it_with_what_there_is(folder: Path) -> None:
    found = vision_attn.compare(
        (vit(1), vit(2)), folder, "Rollout", batch_size=2, progress=Stopping()
    )
    assert found.problems == ["stopped: compared on 2 of 9 photos"]
    assert len(found.photos) == 2


def test_what_does_not_fit_is_told_in_a_line(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"two models of the same classes, got 3 and 2 classes"):
        vision_attn.compare((vit(1), vit(2, classes=["cat", "dog"])), folder)
    with pytest.raises(ValueError, match="models: expected"):
        vision_attn.compare((vit(1),), folder)  # type: ignore[arg-type]
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "a.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"no photo could be compared: .*a\.png"):
        vision_attn.compare((vit(1), vit(2)), tmp_path / "none")


def test_the_commands_write_what_they_say(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], models: Callable[[str], str]
) -> None:
    checkpoint = str(models("vit"))
    out = str(tmp_path / "compared")
    words = ["compare", checkpoint, checkpoint, str(folder), "-o", out, "--device", "cpu"]
    assert main([*words, "--limit", "3", "--method", "Rollout"]) == 0
    said = capsys.readouterr().out
    assert "predict the same class for 100.0% of 3 photos" in said
    assert (tmp_path / "compared" / "index.html").is_file()
    assert main(["compare", checkpoint, checkpoint]) == 2
    assert "no image given: name image files or folders after MODEL2" in capsys.readouterr().err
    out = str(tmp_path / "ablated")
    words = ["ablate", checkpoint, str(folder), "-o", out, "--device", "cpu", "--limit", "4"]
    assert main([*words, "--part", "mlps", "--part", "heads", "--prune", "2"]) == 0
    said = capsys.readouterr().out
    assert "what lies behind each unit was run again" in said
    assert "0 heads gone" in said
    assert (tmp_path / "ablated" / "ablation.csv").is_file()
    assert main(["ablate", checkpoint, "nowhere", "--device", "cpu"]) == 2
    assert "nowhere" in capsys.readouterr().err
