"""The gallery's page: what it takes on the disk, and what it knows of each photo."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vision_attn.data import Preprocess
from vision_attn.data.masks import Masks, read_mask
from vision_attn.methods import choose_methods
from vision_attn.models import ViT
from vision_attn.pages.gallery.run import gallery
from vision_attn.render import save_within
from vision_attn.runs.explain import explain
from vision_attn.runs.explanation import LEAST_BYTES, PAGE_BYTES, Pictures, page_bytes
from vision_attn.types import Model, Trust

CLASSES = ["tench, Tinca tinca", "church", "golf ball"]


@pytest.fixture
def model() -> Model:
    vit = ViT(image_size=16, patch_size=8, dim=8, depth=1, heads=2, num_classes=3).eval()
    preprocess = Preprocess((16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
    return Model(vit, preprocess, CLASSES, vit.layout((16, 16)))


def fill(folder: Path, count: int, size: tuple[int, int] = (400, 300)) -> Path:
    """Photos of noise, which no JPEG makes small, in folders named for the classes."""
    rng = np.random.default_rng(0)
    for i in range(count):
        named = folder / ("Tench", "church", "none")[i % 3]
        named.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(named / f"{i:03}.jpg", quality=50)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("methods", [["Rollout", "GradCAM", "EdgeMap"], ["all"]])
def test_a_photo_takes_less_than_60_kilobytes_of_the_page(
    model: Model, methods: list[str], tmp_path: Path
) -> None:
    count = 40 if len(methods) > 1 else 5
    summary = gallery(model, fill(tmp_path / "in", count), methods, output=tmp_path / "out")
    assert summary.explained == count
    assert summary.page is not None
    files = [summary.page, *(tmp_path / "out" / "page").iterdir()]
    most = max(60_000, 5_000 * (len(files) // count + 1))
    assert sum(file.stat().st_size for file in files) < count * most
    assert summary.page is not None
    source = summary.page.read_text()
    assert len(set(re.findall(r'src="\./(page/[^"]+)"', source))) == len(files) - 1
    assert source.partition("<template>")[0].count("<article") == min(count, 24)
    assert source.count("<article") == count


def test_a_card_knows_the_predicted_and_the_true_class(model: Model, tmp_path: Path) -> None:
    summary = gallery(model, fill(tmp_path / "in", 13, (40, 30)), ["EdgeMap"], output=tmp_path)
    assert summary.page is not None
    source, records = summary.page.read_text(), summary.records()
    for record in records:
        name, folder = Path(record["file"]).name, Path(record["file"]).parent.name
        (card,) = [card for card in source.split("<article")[1:] if f">{name}<" in card]
        facts = dict(re.findall(r'data-(\w+)="([^"]*)"', card.partition(">")[0]))
        assert facts["predicted"] == record["predicted"].split(",")[0]
        assert float(facts["probability"]) == pytest.approx(record["probability"], abs=1e-6)
        true = {"Tench": "tench", "church": "church", "none": None}[folder]
        assert facts.get("label") == true
        card = card.partition("</article>")[0]
        assert ("✓ right" in card) == (true == facts["predicted"])
        assert ("✗ true class" in card) == (true not in (None, facts["predicted"]))


def test_photos_of_one_name_are_told_apart(model: Model, tmp_path: Path) -> None:
    files = [tmp_path / folder / name for folder in "ab" for name in ("same.png", f"{folder}.png")]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        Image.new("RGB", (40, 30)).save(file)
    page = gallery(model, files, ["EdgeMap"], output=tmp_path / "out").page
    assert page is not None
    source = page.read_text()
    for title in ("a-same.png", "b-same.png", "a.png", "b.png"):
        assert source.count(f">{title}<") == 1
    assert ">same.png<" not in source


def test_two_classes_of_one_name_are_told_apart(model: Model, tmp_path: Path) -> None:
    names = ["crane, bird", "crane, machine", "church"]
    (tmp_path / "bird").mkdir()
    Image.new("RGB", (40, 30)).save(tmp_path / "bird" / "a.png")
    found = explain(replace(model, classes=names), tmp_path / "bird" / "a.png", ["EdgeMap"])
    for predicted, label in ((0, "crane"), (1, "crane (class 0)")):
        sure = replace(found, probabilities=np.eye(3, dtype=np.float32)[predicted])
        assert sure.facts == ("crane", label, 1.0)


@pytest.mark.parametrize("count", [1, 3, 14])
def test_the_bytes_of_a_photo_are_divided_among_its_pictures(count: int) -> None:
    links = [None, *(f"{i}.png" for i in range(count))]
    photo, *maps = page_bytes(links)
    assert len(set(maps)) == 1
    assert 2 * maps[0] <= photo <= 2 * maps[0] + 1
    if count < 14:
        assert photo + sum(maps) <= PAGE_BYTES - 600 * len(links)
    else:
        assert maps[0] == LEAST_BYTES


def test_maps_that_passed_come_first_with_a_badge(model: Model, tmp_path: Path) -> None:
    trusted = replace(model, trust=Trust(("LeGrad(smooth=1.0)", "GradCAM"), 31, "/data/photos/val"))
    names = list(map(str, choose_methods("all", trusted)))
    assert names[:2] == ["LeGrad(smooth=1.0)", "GradCAM"]
    assert sorted(names[1:]) == sorted(map(str, choose_methods("all", model)))
    Image.new("RGB", (40, 30), "red").save(tmp_path / "a.png")
    chosen = ["Rollout", "LeGrad(smooth=1.0)"]
    page = gallery(trusted, tmp_path / "a.png", chosen, output=tmp_path / "out").page
    assert page is not None
    source = page.read_text()
    said = "Passed on this network (at least 31 images of photos/val)."
    badge = f'LeGrad(<wbr>smooth=1.0)<span class="badge" title="{said}">passed</span>'
    assert source.count('class="badge"') == source.count(badge) == 1
    assert "“passed”: tested by covering, on at least 31 images of photos/val." in source
    plain = gallery(model, tmp_path / "a.png", chosen, output=tmp_path / "other")
    assert plain.page is not None
    assert 'class="badge"' not in plain.page.read_text()


def test_a_picture_is_as_large_as_its_bytes_allow(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (600, 800, 3), dtype=np.uint8)
    sizes = []
    for most in (60_000, 20_000, 6_000):
        kept = save_within(noise, tmp_path / "a.jpg", most)
        assert (tmp_path / "a.jpg").stat().st_size <= most
        with Image.open(tmp_path / "a.jpg") as saved:
            assert saved.size == (kept.shape[1], kept.shape[0])
        sizes.append(kept.shape[1])
    assert sizes == sorted(set(sizes), reverse=True)
    assert save_within(noise, tmp_path / "a.jpg", 10).shape == (60, 80, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trusted", "methods", "first"),
    [
        (None, ["all"], "LibraGradient(smooth=1.0)"),
        (["MaskedRegression", "GradCAM"], ["all"], "MaskedRegression"),
        (["LeGrad(smooth=3.0)", "GradCAM"], ["all"], "LeGrad(smooth=3.0)"),
        (["GradCAM"], ["EdgeMap", "Rollout"], "Rollout"),
    ],
)
def test_of_all_methods_the_one_to_trust_is_shown_first(
    model: Model, trusted: list[str] | None, methods: list[str], first: str, tmp_path: Path
) -> None:
    trust = Trust(tuple(trusted), 37, "photos") if trusted else None
    model = replace(model, trust=trust)
    summary = gallery(model, fill(tmp_path / "in", 13, (40, 30)), methods, output=tmp_path)
    assert summary.page is not None
    (shown,) = re.findall(r'<select name="map".*?</select>', summary.page.read_text())
    assert re.findall(r"<option value=\"([^\"]+)", shown)[0] == first
    for card in summary.page.read_text().split("<article")[1:]:
        card = card.replace("<wbr>", "")
        assert re.findall(r"<figcaption>(.*?)<", card)[:2] == ["photo", first]


def test_shards_merge_photos_whose_names_are_no_text(model: Model, tmp_path: Path) -> None:
    files = ["c.png", "b\udcff.png", "é.png", "b\udcfe.png", "a.png"]  # Linux allows any bytes
    alone, merged = tmp_path / "alone", tmp_path / "merged"
    (tmp_path / "in").mkdir()
    for file in files:
        with open(tmp_path / "in" / file, "wb") as opened:
            Image.new("RGB", (40, 30)).save(opened, "PNG")
    for folder, shards in ((alone, 1), (merged, 2)):
        for number in range(1, shards + 1):
            summary = gallery(
                model, tmp_path / "in", ["EdgeMap"], output=folder, shard=(number, shards)
            )
            assert summary.merged == (number == shards > 1)
    assert 'href="./b%FF.EdgeMap.png"' in (alone / "index.html").read_text()
    assert (merged / "index.html").read_text() == (alone / "index.html").read_text()
    found, wanted = ((folder / "results.jsonl").read_text() for folder in (merged, alone))
    time = re.compile(r'"seconds":[^,}]+|"row":[0-9]+')
    assert time.sub("", found) == time.sub("", wanted)


def shown_mask(folder: Path, size: tuple[int, int]) -> Any:
    masks = Masks(folder, {"cat.jpg": "cat.jpg"})
    return Pictures(folder, masks=masks).mask("cat.jpg", size)


@pytest.mark.parametrize(
    "rows",
    [
        [[0, 255, 12], [0, 255, 12]],
        [[0, 20, 255], [7, 0, 0]],
        [[0, 1, 255], [0, 0, 0]],
        [[0, 255, 255], [0, 0, 0]],
        [[0, 3, 1], [0, 2, 0]],
    ],
)
def test_a_mask_is_shown_as_score_reads_it(rows: list[list[int]], tmp_path: Path) -> None:
    Image.fromarray(np.array(rows, np.uint8)).save(tmp_path / "cat.png")
    inside, border, _ = read_mask(tmp_path / "cat.png", (3, 2))
    shown = shown_mask(tmp_path, (3, 2))
    np.testing.assert_array_equal(shown, inside + 0.5 * border)


def test_a_mask_with_soft_edges_is_shown_whole(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 9, 130, 255]], np.uint8)).save(tmp_path / "cat.png")
    shown = shown_mask(tmp_path, (4, 1))
    np.testing.assert_array_equal(shown, [[0, 1, 1, 1]])


def test_results_that_another_method_replaces_are_counted(
    model: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    photos = fill(tmp_path / "photos", 3)
    gallery(model, photos, "Rollout", output=tmp_path / "looks")
    assert not caplog.messages
    gallery(model, photos, "LeGrad", output=tmp_path / "looks")
    (line,) = caplog.messages
    assert line.endswith(
        "replaced 3 results of an earlier run (Rollout): another output folder keeps both"
    )
    gallery(model, photos, "LeGrad", output=tmp_path / "looks")
    assert caplog.messages == [line]


def test_a_folder_without_photos_leaves_earlier_results_as_they_are(
    model: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    photos = fill(tmp_path / "photos", 2)
    before = gallery(model, photos, "Rollout", output=tmp_path / "looks").records()
    (tmp_path / "empty").mkdir()
    summary = gallery(model, tmp_path / "empty", "LeGrad", output=tmp_path / "looks")
    assert (summary.photos, summary.explained, len(summary.problems)) == (0, 0, 1)
    assert caplog.messages[-1].endswith("nothing to explain: the results of an earlier run stay")
    assert gallery(model, photos, "Rollout", output=tmp_path / "looks").records() == before
    assert len(before) == 2


def test_a_photo_is_drawn_again_where_another_of_its_name_was_drawn_over_it(
    model: Model, tmp_path: Path
) -> None:
    photos = [tmp_path / folder / "same.photo.png" for folder in "ab"]
    for photo, grey in zip(photos, (40, 200), strict=True):
        photo.parent.mkdir()
        Image.new("RGB", (40, 30), (grey,) * 3).save(photo)
    picture, shown = tmp_path / "out" / "same.photo.EdgeMap.png", []
    for photo in (photos[0], photos[1], photos[0]):
        gallery(model, photo, "EdgeMap", output=tmp_path / "out")
        shown.append(picture.read_bytes())
    assert shown[0] != shown[1]
    assert shown[2] == shown[0]
