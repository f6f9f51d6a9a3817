"""`vision-attn inspect` and `vision_attn.inspect`, called in this process with tiny networks."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vision_attn import inspect, load_model
from vision_attn.cli import Parser
from vision_attn.commands import inspect as command
from vision_attn.methods import ChannelGates, QueryKey, Rollout
from vision_attn.pages.inspect import Layer, QueryKeys, ShownChannelGate, Weights
from vision_attn.pages.inspect.coding import softmax
from vision_attn.pages.inspect.encoding import with_components
from vision_attn.pages.inspect.inspection import Look, prefix_names
from vision_attn.runs.patches import patch_components, patch_features
from vision_attn.types import Calibration, TokenLayout, Trust


def run(*words: Any) -> int:
    parser = Parser(prog="vision-attn inspect")
    command.add_arguments(parser)
    return command.run(parser.parse_intermixed_args([*map(str, words), "--device", "cpu"]))


def items_of(html: str) -> list[dict[str, Any]]:
    return json.loads(re.findall(r'id="data">(.*?)</script>', html)[0])["items"]


def rows_of(layer: Layer, head: int) -> np.ndarray:
    if isinstance(layer, QueryKeys):
        return softmax(layer.q[head] @ layer.k[head].T)
    assert isinstance(layer, Weights)
    return layer.weights[head]


def test_a_page_of_every_photo_and_model(
    models: Callable[[str], str], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "new" / "page.html"
    assert run(models("vit"), photos, "-o", page, "--versus", models("senet"), "--limit", 2) == 0
    assert f"{page}: 0." in capsys.readouterr().out
    items = items_of(page.read_text())
    assert [(one["image"], one["model"]) for one in items] == [
        (image, models(name)) for image in ("cat.png", "dog.jpg") for name in ("vit", "senet")
    ]
    assert [len(one["layers"]) for one in items] == [2, 0, 2, 0]
    assert [len(one["gates"]) for one in items] == [0, 4, 0, 4]
    assert all(one["maps"] for one in items)
    assert items[0]["maps"][0]["method"] == "LibraGradient(smooth=1.0)"
    assert {"Rollout(fusion='max')", "Rollout(fusion='min')"} <= {
        one["method"] for one in items[0]["maps"]
    }


def test_attention_is_that_of_query_key(models: Callable[[str], str], photos: Path) -> None:
    model = load_model(models("vit"))
    shown = Look("vit", model).at(photos / "dog.jpg")
    images = model.preprocess(photos / "dog.jpg")[None]
    assert shown.grid == (4, 6)
    assert shown.prefix == ["class token"]
    for at, layer in enumerate(shown.layers):
        for head in range(2):
            rows = rows_of(layer, head)
            queries: list[tuple[Any, int]] = [("cls", 0), ((0.75, 0.3), 1 + 1 * 6 + 4)]
            for query, token in queries:
                wanted = QueryKey(query=query, layer=at, head=head)(model.network, images)
                found = torch.from_numpy(rows[token, 1:]).view(1, 4, 6)
                torch.testing.assert_close(found, wanted.values, rtol=1e-4, atol=1e-6)


def test_maps_are_those_of_the_methods_for_each_class(
    models: Callable[[str], str], photos: Path
) -> None:
    model = load_model(models("senet"))
    asked = ["GradCAM", "ChannelGates(kind=selected)"]
    shown = Look("senet", model, asked, ["tabby"]).at(photos / "cat.png")
    images = model.preprocess(photos / "cat.png")[None]
    assert [one.method for one in shown.maps] == [*3 * ["GradCAM"], "ChannelGates(kind='selected')"]
    assert [one.target for one in shown.maps] == [one.target for one in shown.predictions] + [None]
    assert sum(one.probability or 0 for one in shown.predictions) == pytest.approx(1)
    chances = model.network(images).detach().softmax(1)[0]
    assert shown.predictions[0].probability == pytest.approx(float(chances.max()), abs=1e-5)
    gate = shown.gates[2]
    assert isinstance(gate, ShownChannelGate)
    assert gate.where is not None
    wanted = ChannelGates(layer=2, kind="selected")(model.network, images).values[0]
    torch.testing.assert_close(torch.from_numpy(gate.where), wanted)


def test_maps_are_scored_where_that_is_asked_for(
    models: Callable[[str], str], photos: Path
) -> None:
    model = load_model(models("vit"))
    shown = Look("vit", model, ["Rollout", "GradCAM"], score=True).at(photos / "cat.png")
    assert all(set(one.scores) == {"deletion", "insertion"} for one in shown.maps)
    assert all(0 <= score <= 1 for one in shown.maps for score in one.scores.values())
    unscored = Look("vit", model, ["Rollout"]).at(photos / "cat.png")
    assert unscored.maps[0].scores == {}


def test_in_python(models: Callable[[str], str], photos: Path) -> None:
    model = load_model(models("vit"))
    named = tuple(replace(model, name=name) for name in "ab")
    page = inspect(named, [photos / "cat.png", Image.new("RGB", (50, 40))])
    items = items_of(page.html)
    assert [(one["model"], one["image"]) for one in items] == [
        ("a", "cat.png"),
        ("b", "cat.png"),
        ("a", "image"),
        ("b", "image"),
    ]
    unnamed = inspect(replace(model, name=""), str(photos / "cat.png"))
    assert items_of(unnamed.html)[0]["model"] == "ViT"


def test_a_model_with_a_method_that_cannot_be_says_why(
    models: Callable[[str], str], photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(models("vit"))

    def fail(*_args: Any) -> None:
        raise ValueError("this one cannot")

    monkeypatch.setattr(Rollout, "explain", fail)
    assert "Rollout: this one cannot" in Look("vit", model).at(photos / "cat.png").notes
    with pytest.raises(ValueError, match="this one cannot"):
        Look("vit", model, ["Rollout"]).at(photos / "cat.png")


def test_what_is_wrong_is_said(
    models: Callable[[str], str], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.jpg").write_text("no image")
    page = tmp_path / "page.html"
    assert run(models("vit"), photos / "cat.png", tmp_path / "text.jpg", "-o", page) == 1
    assert "text.jpg" in capsys.readouterr().err
    assert len(items_of(page.read_text())) == 1
    with pytest.raises(
        ValueError, match=r"none of 1 images could be shown, the first: .*text\.jpg"
    ):
        run(models("vit"), tmp_path / "text.jpg", "-o", page)
    with pytest.raises(ValueError, match="no image given"):
        run(models("vit"), "-o", page)
    with pytest.raises(ValueError, match="no class named 'tabbi'"):
        run(models("vit"), photos, "-o", page, "--target", "tabbi")
    with pytest.raises(ValueError, match="ChannelGates does not fit this model"):
        run(models("vit"), photos, "-o", page, "--method", "ChannelGates")
    with pytest.raises(ValueError, match="cannot write there"):
        run(models("vit"), photos, "-o", tmp_path / "text.jpg" / "page.html")


def test_prefix_tokens_are_named_as_far_as_is_known() -> None:
    def names(*layout: Any) -> list[str]:
        return prefix_names(TokenLayout(*layout))

    assert names(3, (2, 2), "cls") == ["class token", "register 0", "register 1"]
    assert names(2, (2, 2), "cls_dist") == ["class token", "distillation token"]
    assert names(1, (2, 2), "mean") == ["prefix token 0"]
    assert names(0, (2, 2), "attention") == []
    assert names(2, (2, 2), "mean", True) == ["class token", "prefix token 1"]


@pytest.mark.parametrize(("name", "last"), [("vit", "norm"), ("senet", "layer4.0")])
def test_features_are_those_of_every_layer(
    models: Callable[[str], str], photos: Path, name: str, last: str
) -> None:
    model = load_model(models(name))
    first, second = (Look(name, model).at(photos / file) for file in ("dog.jpg", "cat.png"))
    images = model.preprocess(photos / "dog.jpg")[None]
    assert first.features[-1].name == last
    for one in first.features:
        expected = patch_features(model, images, one.name)[0].movedim(0, -1)
        np.testing.assert_allclose(one.vectors, expected, atol=1e-6)
    shown = with_components([first, second])
    files = [photos / "dog.jpg", photos / "cat.png"]
    for at in (0, -1):
        layer = first.features[at].name
        found = patch_components(model, files, layer=layer, split_background=True)
        for each, colors, foreground in zip(shown, found.colors(), found.foreground, strict=True):
            shown_colors = each.features[at].colors
            assert shown_colors is not None
            np.testing.assert_allclose(shown_colors, 255 * colors, atol=1)
            np.testing.assert_array_equal(each.features[at].foreground, foreground)


def test_methods_that_passed_come_first_and_each_says_whether_it_did(
    models: Callable[[str], str], photos: Path
) -> None:
    model = replace(load_model(models("vit")), trust=Trust(("LeGrad(smooth=1.0)",), 31, "photos"))
    known = replace(model, calibration=Calibration(threshold=0.9999))
    seen = Look("vit", known).at(photos / "cat.png")
    first, *others = seen.maps
    assert (first.method, first.passed) == ("LeGrad(smooth=1.0)", True)
    assert first.about.endswith(" Passed on this network (at least 31 images of photos).")
    assert others
    for one in others:
        assert one.passed == (one.method == "LeGrad(smooth=1.0)")
        if not one.passed:
            assert one.about.endswith("(at least 31 images of photos): LeGrad(smooth=1.0) did.")
    assert seen.unlike.startswith("Unlike the images that the network knows")
    assert not Look("vit", model).at(photos / "cat.png").unlike
