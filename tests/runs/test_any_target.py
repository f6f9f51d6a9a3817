"""Any target in what a person asks for: explanations, galleries, scores, pages."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import vision_attn
from vision_attn.data import Preprocess
from vision_attn.methods import Difference, GradCAM, Odds, Similarity, usual_method
from vision_attn.models import SEResNet, ViT
from vision_attn.pages.inspect.inspection import Look, inspect
from vision_attn.pages.inspect.page import Page
from vision_attn.pages.live.report import live
from vision_attn.runs.explain import explain
from vision_attn.runs.explanation import Explanation
from vision_attn.runs.progress import Silent
from vision_attn.types import Model

CLASSES = ["tabby, tabby cat", "collie", "pug"]
PREPROCESS = Preprocess((16, 24), (0.5,) * 3, (0.25,) * 3)
VECTOR = torch.randn(3)


class Pair(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> tuple[Any, Any]:
        return images.mean((2, 3)), self.network(images)


def senet() -> SEResNet:
    torch.manual_seed(0)
    network = SEResNet(3, layers=(1, 1, 1, 1), widths=(4, 4, 4, 8)).eval()
    for weight in network.parameters():
        nn.init.normal_(weight, std=0.3)
    return network


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(senet(), PREPROCESS, CLASSES, None)


@pytest.fixture(scope="module")
def encoder() -> Model:
    torch.manual_seed(0)
    network = ViT((16, 24), 8, 3, 12, 2, 3).eval()
    return Model(network, PREPROCESS, [], network.layout((16, 24)))


def record_of(found: Explanation) -> dict[str, Any]:
    return found.records(lambda one: "")[0]


def test_records_say_what_is_explained(model: Model, photos: Path) -> None:
    cat = photos / "cat.png"
    asked = {
        "tabby": ("tabby, tabby cat", 0, None, None),
        2: ("pug", 2, None, None),
        Difference("tabby", 1): ("tabby, tabby cat", 0, "collie", 1),
        Odds("pug"): ("odds of pug", None, None, None),
        Similarity(VECTOR): ("similarity to an embedding of 3 numbers", None, None, None),
    }
    images = PREPROCESS(cat)[None]
    target: Any
    for target, wanted in asked.items():
        found = explain(model, cat, "GradCAM", target=target)
        record = record_of(found)
        known = [record[k] for k in ("target", "target_index", "contrast", "contrast_index")]
        assert tuple(known) == wanted
        values = GradCAM()(model, images, target).values[0]
        np.testing.assert_allclose(found[0].values, values, atol=1e-7)
    contrasted = explain(model, cat, "GradCAM", target="tabby", contrast="collie")
    assert tuple(record_of(contrasted)[k] for k in ("target_index", "contrast_index")) == (0, 1)
    blind = record_of(explain(model, cat, "EdgeMap", target="tabby"))
    assert (blind["target"], blind["target_index"]) == (None, None)


def test_one_target_a_photo_also_in_batches(model: Model, photos: Path) -> None:
    every: list[Any] = [photos / name for name in ("cat.png", "dog.jpg", "tiny.png")]
    targets: list[Any] = ["pug", Difference("collie", "pug"), VECTOR]
    found = explain(model, every, ["GradCAM", "EdgeMap"], target=targets, batch_size=2)
    for path, target, one in zip(every, targets, found, strict=True):
        alone = explain(model, path, "GradCAM", target=target)
        np.testing.assert_allclose(one["GradCAM"].values, alone[0].values, atol=1e-6)
        assert one["GradCAM"].explained == alone[0].explained
    classes = explain(model, every, "GradCAM", target=["pug", 0, None], limit=2)
    assert [one[0].target for one in classes] == [2, 0]
    with pytest.raises(ValueError, match=r"one for all images or 3 \(one an image\), got 2"):
        explain(model, every, "GradCAM", target=["pug", 0])


def test_the_class_that_a_folder_is_named_for(model: Model, photos: Path) -> None:
    folder = photos / "collie"
    folder.mkdir()
    (photos / "cat.png").rename(folder / "cat.png")
    found = explain(model, [folder / "cat.png", photos / "dog.jpg"], "GradCAM", target="label")
    assert [one[0].target for one in found] == [1, found[1].predicted]
    apart = explain(model, folder / "cat.png", "GradCAM", target="label", contrast="pug")
    assert (apart[0].target, apart[0].contrast) == (1, 2)


def test_pictures_say_what_is_explained_if_it_is_not_the_predicted_class(
    model: Model, photos: Path, tmp_path: Path
) -> None:
    cat = photos / "cat.png"
    found = explain(model, cat, ["GradCAM"])
    assert found.asked == ""
    other = next(name for i, name in enumerate(CLASSES) if i != found.predicted)
    asked = explain(model, cat, ["GradCAM", "EdgeMap"], target=other, output=tmp_path / "out")
    assert asked.asked == f"explained: {other.split(',')[0]}"
    heights = {}
    for name, one in (("plain", found), ("asked", asked)):
        folder = one.save(tmp_path / name)
        with Image.open(folder / "cat.GradCAM.png") as picture:
            heights[name] = picture.height
    assert heights["asked"] > heights["plain"]
    lines = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["target"] for line in lines] == [other, None]


def test_a_head_of_several_outputs(model: Model, photos: Path) -> None:
    pair = replace(model, network=Pair(model.network))
    plain = explain(model, photos / "cat.png", "GradCAM", target="pug")
    for found in (
        explain(pair, photos / "cat.png", "GradCAM", target="pug", head=1),
        explain(replace(pair, head=1), photos / "cat.png", "GradCAM", target="pug"),
    ):
        np.testing.assert_allclose(found[0].values, plain[0].values)
        np.testing.assert_allclose(found.probabilities, plain.probabilities)
    with pytest.raises(ValueError, match=r"expected logits .* got tuple of 0 \(1, 3\), 1 \(1, 3\)"):
        explain(pair, photos / "cat.png", "GradCAM")


def test_names_and_outputs_of_different_number_are_refused(model: Model, photos: Path) -> None:
    two = replace(model, classes=CLASSES[:2])
    with pytest.raises(ValueError, match=r"gives 3 numbers an image, but .* names of 2 classes"):
        explain(two, photos / "cat.png", "GradCAM")
    with pytest.raises(ValueError, match=r"gives 3 numbers an image, but .* names of 2 classes"):
        GradCAM()(two, PREPROCESS(photos / "cat.png")[None])


def test_an_encoder_is_explained_for_what_is_asked(encoder: Model, photos: Path) -> None:
    cat = photos / "cat.png"
    found = explain(encoder, cat)
    assert found.methods == ["Rollout"]
    assert found.predicted is None
    mixed = explain(encoder, cat, ["Rollout", "GradCAM", "LeGrad"])
    assert mixed.methods == ["Rollout"]
    assert len(mixed.problems) == 1
    assert mixed.problems[0].startswith("GradCAM, LeGrad: ViT has no classifier, and so no class")
    with pytest.raises(ValueError, match="GradCAM: ViT has no classifier"):
        explain(encoder, cat, "GradCAM")
    similar = explain(encoder, cat, ["GradCAM", "LeGrad"], target=Similarity(VECTOR))
    assert similar.methods == ["GradCAM", "LeGrad"]
    assert record_of(similar)["target"] == "similarity to an embedding of 3 numbers"


QUICK: dict[str, Any] = {"steps": 2, "batch_size": 4, "limit": 5, "progress": Silent()}


def test_scores_of_any_target(model: Model) -> None:
    found = vision_attn.score(model, "planted", ["GradCAM"], target=Odds("pug"), **QUICK)
    assert {"deletion", "insertion", "energy_inside"} <= set(found.metrics)
    assert not {"positive_perturbation", "average_drop"} & set(found.metrics)
    assert "explained for odds of pug; deletion and insertion follow this number" in str(found)
    assert found.to_dict()["settings"]["target"] == "Odds(class 2)"
    drawn = found.results
    changes: dict[Any, Any] = {}
    for record in drawn.records.values():
        changes.setdefault(record["image"], record["deletion"][0] - record["deletion"][-1])
    mean = sum(map(abs, changes.values())) / len(changes)
    assert mean == pytest.approx(1, abs=0.01)  # in units of the mean change
    with pytest.raises(ValueError, match="target: expected one for all images"):
        vision_attn.score(model, "planted", ["GradCAM"], target=[0, 1], **QUICK)


def test_scores_of_one_class_for_all_images_and_of_a_contrast(model: Model) -> None:
    found = vision_attn.score(model, "planted", ["GradCAM"], target="pug", **QUICK)
    assert {record["target"] for record in found.results.records.values()} == {2}
    assert "explained for pug" in str(found)
    assert "average_drop" in found.metrics
    apart = vision_attn.score(
        model, "planted", ["GradCAM"], target="pug", contrast="collie", **QUICK
    )
    assert "explained for pug rather than collie" in str(apart)


def test_scores_of_an_encoder_need_a_target(encoder: Model) -> None:
    with pytest.raises(ValueError, match="ViT has no classifier, and so no class to explain"):
        vision_attn.score(encoder, "planted", ["GradCAM"], **QUICK)
    found = vision_attn.score(
        encoder, "planted", ["GradCAM", "Rollout"], target=Similarity(VECTOR), **QUICK
    )
    assert found.methods[:2] == ["GradCAM", "Rollout"]
    assert found.table()[0]["n"] == 5


def test_an_encoder_that_nothing_but_baselines_explains_needs_a_target(
    photos: Path, tmp_path: Path
) -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 5, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    model = vision_attn.Model(network, PREPROCESS, [], None, "an encoder")
    cat, needs_target = photos / "cat.png", "GradCAM: Sequential has no classifier.* give target="
    with pytest.raises(ValueError, match=needs_target):
        explain(model, cat)
    with pytest.raises(ValueError, match=needs_target):
        vision_attn.gallery(model, [cat], output=tmp_path)
    assert usual_method(model, class_blind=True) == GradCAM()
    assert explain(model, cat, target=lambda output: output[:, 0]).methods == ["GradCAM"]
    assert explain(model, cat, "RandomMap").methods == ["RandomMap"]
    assert [one["method"] for one in item_of(inspect(model, cat))["maps"]] == []


def test_scores_of_a_head(model: Model) -> None:
    plain = vision_attn.score(model, "planted", ["GradCAM"], **QUICK)
    pair = replace(model, network=Pair(model.network))
    headed = vision_attn.score(pair, "planted", ["GradCAM"], head=1, **QUICK)
    for one, other in zip(plain.table(), headed.table(), strict=True):
        assert one["mean"] == pytest.approx(other["mean"], abs=1e-4)


def item_of(page: Page) -> Any:
    return json.loads(re.findall(r'id="data">(.*?)</script>', page.html)[0])["items"][0]


def test_a_page_shows_other_targets_beside_the_classes(
    model: Model, photos: Path, tmp_path: Path
) -> None:
    targets = ["pug", Similarity(VECTOR)]
    page = inspect(model, photos / "cat.png", "GradCAM", target=targets, output=tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text() == page.html
    item = item_of(page)
    last = item["predictions"][-1]
    assert (last["name"], last["probability"]) == ("similarity to an embedding of 3 numbers", None)
    assert [one["target"] for one in item["maps"]][-1] == last["target"] == 3
    assert {0, 1, 2, 3} == {one["target"] for one in item["maps"]}


def test_a_page_of_an_encoder(encoder: Model, photos: Path) -> None:
    item = item_of(inspect(encoder, photos / "cat.png"))
    assert item["predictions"] == []
    assert {one["target"] for one in item["maps"]} == {None}
    asked = item_of(inspect(encoder, photos / "cat.png", "GradCAM", target=VECTOR, score=True))
    assert [one["name"] for one in asked["predictions"]] == ["a direction of 3 numbers"]
    assert set(asked["maps"][0]["scores"]) == {"deletion", "insertion"}
    with pytest.raises(ValueError, match="GradCAM: ViT has no classifier"):
        inspect(encoder, photos / "cat.png", "GradCAM")


def test_the_live_page_offers_what_it_computes(model: Model, photos: Path, tmp_path: Path) -> None:
    page = live(model, photos / "cat.png", "GradCAM", target=["pug"], output=tmp_path / "a.html")
    data = json.loads(re.findall(r'id="data">(.*?)</script>', page.html)[0])
    assert data["networks"][0]["asked"] == [2]
    assert (tmp_path / "a.html").is_file()
    for wrong, message in (
        (
            {"methods": "MaskedRegression"},
            "MaskedRegression: the page of live computes GradCAM alone",
        ),
        ({"target": VECTOR}, "the page of live takes classes alone"),
        ({"contrast": "pug"}, "contrast: the page of live computes none"),
        ({"target": "pugg"}, "no class named 'pugg'"),
    ):
        with pytest.raises(ValueError, match=message):
            live(model, photos / "cat.png", **wrong)


def test_every_door_has_one_signature() -> None:
    import inspect as standard

    names = ["model", "images", "methods", "target", "contrast", "limit", "output"]
    doors: list[Any] = [vision_attn.score, vision_attn.gallery, vision_attn.film, vision_attn.inspect,
             vision_attn.live, explain]  # fmt: skip
    for door in doors:
        parameters = standard.signature(door).parameters
        assert list(parameters)[:7] == names, door
        assert all(parameters[name].default is None for name in names[2:])
        assert [parameters[name].kind.name for name in names[3:]] == ["KEYWORD_ONLY"] * 4
    method = list(standard.signature(vision_attn.Model.explain).parameters)
    assert method[1:7] == names[1:]


def wrong(output: Any) -> Any:
    return output.logits


DOORS = {
    "explain": lambda model, path, **how: explain(model, path / "cat.png", "GradCAM", **how),
    "inspect": lambda model, path, **how: inspect(model, path / "cat.png", "GradCAM", **how),
    "inspect several": lambda model, path, **how: inspect(
        model, [path / "cat.png", path / "dog.jpg"], "GradCAM", progress=Silent(), **how
    ),
    "score": lambda model, path, **how: vision_attn.score(
        model, path, ["GradCAM"], steps=1, limit=2, progress=Silent(), **how
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_function_that_fails_is_told_so_in_a_line_everywhere(
    model: Model, photos: Path, door: str
) -> None:
    got = r"wrong: expected one float an image, .* it raised AttributeError: .*'logits'"
    with pytest.raises(ValueError, match=got) as raised:
        DOORS[door](model, photos, target=wrong)
    assert "\n" not in str(raised.value)


def test_a_function_that_fails_is_told_so_by_each_photo_of_a_folder(
    model: Model, photos: Path, tmp_path: Path
) -> None:
    shown: Any = Silent()
    lines: list[Any] = []
    shown.problem = lines.append
    found = vision_attn.gallery(
        model, photos, ["GradCAM", "EdgeMap"], target=wrong, output=tmp_path / "o", progress=shown
    )
    assert found.explained
    failed = [line for line in lines if "it raised AttributeError" in line]
    assert len(failed) == found.explained
    assert not any("\n" in line or "GradCAM: GradCAM" in line for line in lines)


def test_a_page_takes_a_vector_as_tensor_array_or_one_of_several(model: Model) -> None:
    for target in (VECTOR, VECTOR.numpy(), [VECTOR.numpy(), None], ["predicted", VECTOR]):
        shown = Look("a network", model, target=target).predictions(torch.randn(1, 3, 16, 24))
        assert shown[-1].name == "a direction of 3 numbers"


def test_no_class_is_contrasted_with_itself(
    model: Model, photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cat, message = photos / "cat.png", "expected another class than the target, got"
    doors: list[Any] = [
        lambda **asked: explain(model, cat, "GradCAM", **asked),
        lambda **asked: vision_attn.gallery(model, cat, "GradCAM", output=tmp_path, **asked),
        lambda **asked: vision_attn.inspect(model, cat, "GradCAM", **asked),
        lambda **asked: vision_attn.score(model, "planted", ["GradCAM"], **asked, **QUICK),
    ]
    for door in doors:
        with pytest.raises(ValueError, match=f"{message} pug for both"):
            door(target="pug", contrast="pug")
    with pytest.raises(ValueError, match=f"{message} class 3 for both"):
        Difference(3, 3)
    predicted = explain(model, cat, "GradCAM").predicted
    assert predicted is not None
    own = explain(model, cat, ["GradCAM", "EdgeMap"], contrast=predicted)
    assert [found.note for found in own.maps] == ["Empty map: its class is the contrast itself", ""]
    assert caplog.messages == [f"{cat}: Empty map: its class is the contrast itself"]
    vision_attn.inspect(model, cat, "GradCAM", contrast=predicted)


def test_photos_whose_folder_names_no_class_are_counted(
    model: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("pug", "collie", "other"):
        (tmp_path / "in" / name).mkdir(parents=True)
        Image.new("RGB", (24, 16), (9, 99, 50)).save(tmp_path / "in" / name / "a.png")
    every = sorted((tmp_path / "in").rglob("*.png"))
    line = "in no folder that is named for a class: the predicted class is explained there"
    vision_attn.gallery(model, tmp_path / "in", "GradCAM", target="label", output=tmp_path / "out")
    assert caplog.messages == [f"1 of 3 photos lies {line}"]
    caplog.clear()
    images: list[Any] = [*every, np.zeros((16, 24, 3), np.uint8)]
    explain(model, images, "GradCAM", target="label")
    assert caplog.messages == [f"2 of 4 photos lie {line}"]
    caplog.clear()
    explain(model, images[:1], "GradCAM", target="label")
    explain(model, images, "EdgeMap", target="label")
    explain(model, images, "GradCAM")
    assert not caplog.messages
