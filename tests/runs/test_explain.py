"""`model.explain`, `gallery` and `film`: what the command does, from Python."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import vision_attn
from vision_attn.attention.gates import SpatialMask
from vision_attn.cli import main
from vision_attn.data.images import ImageError
from vision_attn.data.video import Video
from vision_attn.methods import Explainer, GradCAM, LibraGradient, RandomMap, Rollout
from vision_attn.render import ColorMap, Dim, Scale, natural, overlay, with_colorbar
from vision_attn.render.video import VideoWriter
from vision_attn.runs.explain import read
from vision_attn.runs.maps import NOT_SHOWN
from vision_attn.runs.scoring.evidence import PhotoSamples
from vision_attn.types import RANDOM_CLASSIFIER, RANDOM_WEIGHTS, Heatmaps, Model


@pytest.fixture
def vit(models: Callable[[str], str]) -> Model:
    return vision_attn.load_model(models("vit"))


@pytest.fixture
def senet(models: Callable[[str], str]) -> Model:
    return vision_attn.load_model(models("senet"))


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def test_one_photo_by_name_and_by_explainer(vit: Model, photos: Path) -> None:
    found = vit.explain(photos / "dog.jpg", ["Rollout", GradCAM()], target="collie")
    assert found.methods == ["Rollout", "GradCAM"]
    image = vit.preprocess(photos / "dog.jpg")[None]
    expected = vit.network(image).softmax(1)[0]
    assert dict(found.classes()) == pytest.approx(
        dict(zip(vit.classes, expected.tolist(), strict=True)), abs=1e-5
    )
    want = GradCAM()(vit.network, image, 1).values[0].numpy()
    np.testing.assert_allclose(found["GradCAM"].values, want, rtol=1e-3, atol=1e-5)
    assert found["GradCAM"].target == 1
    assert found["Rollout"].target is None
    assert found[1] is found[GradCAM()] is found["GradCAM"]
    with pytest.raises(KeyError, match="no map of LeGrad: there are Rollout, GradCAM"):
        found["LeGrad"]


class Cosine(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cos()


def test_what_is_in_no_share_stands_below_the_map_of_that_method_alone(
    vit: Model, photos: Path, tmp_path: Path
) -> None:
    network, photo = vit.network, photos / "cat.png"

    def captions(*methods: Explainer) -> list[str]:
        found = vit.explain(photo, methods or None)
        found.save(tmp_path)
        return [each.caution for each in found.maps]

    def height(method: str) -> int:
        return len(pixels(tmp_path / f"cat.{method}.png"))

    assert captions(LibraGradient(), GradCAM()) == ["", ""]
    plain = [height(method) for method in ("LibraGradient(smooth=1.0)", "GradCAM")]
    said = (
        "LibraGradient(smooth=1.0, check=True): less than 0.1% of what is explained is in no share"
    )
    assert captions(LibraGradient(check=True)) == [said]
    blocks: Any = network.blocks
    blocks[0].mlp = Cosine()
    with pytest.warns(UserWarning, match="no rule for cos"):
        own, other = captions(LibraGradient(), GradCAM())
    assert re.fullmatch(
        r"LibraGradient\(smooth=1.0\): \d+\.\d% of what is explained is in no share", own
    )
    assert other == ""
    assert height("LibraGradient(smooth=1.0)") > plain[0]
    assert height("GradCAM") == plain[1]
    with pytest.warns(UserWarning, match="no rule for cos"):
        (usual,) = captions()
    assert usual == f"{NOT_SHOWN}. {own}"


def test_the_raw_map_lies_on_the_photos_pixels(vit: Model, photos: Path) -> None:
    found = vit.explain(photos / "cat.png", "GradCAM")
    laid = found.on_photo()
    assert laid.shape == (331, 401)
    left, top, right, bottom = vit.preprocess.box((401, 331))
    inside = np.zeros((331, 401), bool)
    inside[int(top + 1) : int(bottom), int(left + 1) : int(right)] = True
    assert np.isfinite(laid[inside]).all()
    assert np.isnan(laid[0, 0]) == (left > 1 or top > 1)


def test_photos_may_be_paths_images_and_arrays(vit: Model, photos: Path) -> None:
    path = photos / "cat.png"
    with Image.open(path) as image:
        array = np.asarray(image.convert("RGB"))
        same = vit.explain([path, str(path), image, array], "GradCAM", batch_size=3)
    assert [one.name for one in same] == [str(path), str(path), str(path), "image"]
    for one in same[1:]:
        np.testing.assert_allclose(one[0].values, same[0][0].values, rtol=1e-3, atol=1e-5)
    maps = same.heatmaps("GradCAM")
    assert isinstance(maps, Heatmaps)
    assert maps.values.shape == (4, 4, 6)
    assert maps.targets is not None
    assert maps.targets.tolist() == [same[0].predicted] * 4
    grey = vit.explain(array[..., 0], "GradCAM")
    assert grey.photo.mode == "RGB"


@pytest.mark.parametrize(
    ("photo", "words"),
    [
        (np.zeros((3, 48, 64), np.uint8), r"an array must be \(height, width, channels\).*has 64"),
        (np.zeros((3, 48, 64), np.float32), r"an array must be \(height, width, channels\)"),
        (torch.zeros(48, 64, 3), r"a tensor must be \(channels, height, width\).*has 48 channels"),
    ],
)
def test_axes_in_another_order_are_not_taken_for_channels(
    photo: np.ndarray | torch.Tensor, words: str, vit: Model
) -> None:
    with pytest.raises(ValueError, match=words):
        vit.explain(photo, "Rollout")


def test_a_photo_held_sideways_is_the_same_by_path_and_opened(vit: Model, photos: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned a quarter to the right, it is upright
    with Image.open(photos / "cat.png") as image:
        image.save(photos / "sideways.jpg", exif=exif)
    with Image.open(photos / "sideways.jpg") as image:
        by_path, opened = vit.explain([photos / "sideways.jpg", image], "GradCAM")
        scored = PhotoSamples(vit, [image])[0]
    assert by_path.photo.size == opened.photo.size == (331, 401)
    np.testing.assert_array_equal(opened.photo, by_path.photo)
    np.testing.assert_allclose(opened[0].values, by_path[0].values, rtol=1e-5, atol=1e-8)
    assert torch.equal(scored.image, vit.preprocess(photos / "sideways.jpg"))


@pytest.mark.parametrize("name", ["cat.png", "dog.jpg"])
@pytest.mark.parametrize("method", ["Rollout", "GradCAM", "QueryKey(query=(0.3, 0.7))"])
def test_the_overlay_is_the_commands_picture(
    vit: Model, models: Callable[[str], str], photos: Path, tmp_path: Path, name: str, method: str
) -> None:
    words = ["--method", method, "-o", tmp_path / "out", "--device", "cpu"]
    assert main(["explain", models("vit"), str(photos / name), *map(str, words)]) == 0
    (path,) = (tmp_path / "out").glob("*.png")
    found = vit.explain(photos / name, method)
    drawn = np.asarray(found.overlay())
    picture = pixels(path)
    height, width = drawn.shape[:2]
    assert (picture[:height, :width] == drawn).all()
    with_bar = with_colorbar(drawn, ColorMap(), found[0].scale)
    assert (picture == with_bar).all()


def test_a_nearly_uniform_rollout_stays_pale(vit: Model, photos: Path) -> None:
    """The map of a network that attends evenly: at most 1.04 times its mean."""
    for block in vit.network.blocks:
        for weight in block.attn.parameters():
            torch.nn.init.normal_(weight, std=0.01)
    found = vit.explain(photos / "cat.png", "Rollout")
    values = found[0].values
    assert values.max() < 1.04 * values.mean()
    assert found[0].scale == natural(values, found[0].prefix_mass)
    photo = np.asarray(found.photo).astype(int)
    inside = np.isfinite(found.on_photo())
    changed = np.abs(np.asarray(found.overlay()).astype(int) - photo)[inside]
    stretched = overlay(found.photo, found.on_photo(), scale=Scale(float(values.max())))
    most = np.abs(stretched.astype(int) - photo)[inside]
    assert changed.mean() < 0.6 * most.mean()


def test_saved_it_is_what_the_command_writes(
    vit: Model, models: Callable[[str], str], photos: Path, tmp_path: Path
) -> None:
    methods = ["GradCAM", "RandomMap(seed=3)"]
    words = [word for method in methods for word in ("--method", method)]
    words += ["-o", str(tmp_path / "command"), "--device", "cpu"]
    assert main(["explain", models("vit"), str(photos), *words]) == 0
    every: list[Any] = sorted(photos.iterdir())
    folder = vit.explain(every, methods).save(tmp_path / "python")
    files = {path.name for path in (tmp_path / "command").iterdir()}
    assert files == {path.name for path in folder.iterdir()}
    for name in files - {"results.jsonl", "store"}:
        command, python = (path / name for path in (tmp_path / "command", folder))
        if name.endswith(".npy"):
            np.testing.assert_allclose(np.load(python), np.load(command), rtol=1e-4, atol=1e-6)
        else:
            assert np.abs(pixels(python).astype(int) - pixels(command)).max() <= 1
    lines = [
        [
            {**json.loads(line), "seconds": 0, "probability": 0}
            for line in path.read_text().splitlines()
        ]
        for path in (tmp_path / "command" / "results.jsonl", folder / "results.jsonl")
    ]
    assert lines[0] == lines[1]


def test_it_shows_itself(senet: Model, photos: Path, tmp_path: Path) -> None:
    found = senet.explain(photos / "tiny.png", ["GradCAM", "ChannelGates"])
    data = found._repr_png_()
    assert data.startswith(b"\x89PNG")
    figure = found.show()
    figure.savefig(tmp_path / "figure.png")
    drawn, grid = pixels(tmp_path / "figure.png"), np.asarray(found.grid())
    assert drawn.shape == grid.shape
    assert np.abs(drawn.astype(int) - grid).mean() < 3
    assert found.channels
    both = senet.explain([photos / "tiny.png", photos / "cat.png"], "GradCAM")
    assert both._repr_html_().count("<img src=") == 2
    assert repr(both[0]).startswith("Explanation(")
    assert "GradCAM" in repr(both)


def test_what_is_wrong_is_said(vit: Model, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no image")
    photo = photos / "cat.png"
    with pytest.raises(ValueError, match="unknown method 'Rolout'"):
        vit.explain(photo, "Rolout")
    with pytest.raises(ValueError, match="ChannelGates does not fit this model"):
        vit.explain(photo, "ChannelGates")
    with pytest.raises(ValueError, match="no class named 'tabbi'; did you mean tabby"):
        vit.explain(photo, target="tabbi")
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        vit.explain(photo, batch_size=0)
    with pytest.raises(ImageError, match=r"text.png: expected an image"):
        vit.explain(tmp_path / "text.png")
    with pytest.raises(ValueError, match="must be uint8"):
        read(np.zeros((3, 5, 3), np.int16), vit.preprocess)
    with pytest.raises(ValueError, match="at least one explained photo, got none"):
        vit.explain([]).heatmaps()


class Fussy(RandomMap):
    """Fails on photos whose first pixel is dark."""

    def explain(self, network: Any, images: torch.Tensor, target: Any, layout: Any) -> Heatmaps:
        if (images[:, 0, 0, 0] < 0).any():
            raise ValueError("too dark")
        return super().explain(network, images, target, layout)


def test_a_method_that_fails_on_a_photo_costs_that_map_only(vit: Model) -> None:
    dark, light = (np.full((50, 60, 3), value, np.uint8) for value in (10, 240))
    both = vit.explain([dark, light, dark], [Fussy(), GradCAM()])
    assert [one.methods for one in both] == [["GradCAM"], ["GradCAM", "Fussy"], ["GradCAM"]]
    assert both.problems == ["image: Fussy: too dark"] * 2
    with pytest.raises(ValueError, match="image: Fussy: too dark"):
        vit.explain(dark, Fussy())


def test_a_gate_that_no_image_goes_through_is_none(senet: Model, photos: Path) -> None:
    whole = senet.explain(photos / "tiny.png", "ChannelGates")
    senet.network.idle = SpatialMask(4)
    again = senet.explain(photos / "tiny.png", "ChannelGates")
    del senet.network.idle
    assert list(again.channels) == list(whole.channels)
    assert whole.channels
    assert not again.problems


def test_gates_that_cannot_be_read_cost_the_chart_of_the_channels_only(
    senet: Model, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(network: Any, images: torch.Tensor) -> None:
        raise ValueError("they are not there")

    monkeypatch.setattr("vision_attn.runs.explain.gate_values", fail)
    found = senet.explain(photos / "tiny.png", ["ChannelGates", "EdgeMap"])
    assert found.methods == ["ChannelGates", "EdgeMap"]
    assert not found.channels
    assert found.problems == ["ChannelGates: the gates' values: they are not there"]


def test_explainers_and_maps_agree_with_a_model(vit: Model, photos: Path) -> None:
    image = vit.preprocess(photos / "cat.png")[None]
    found = vit.explain(photos / "cat.png", Rollout())
    maps = Rollout()(vit, image)
    np.testing.assert_allclose(found[0].values, maps.values[0].numpy(), rtol=1e-4, atol=1e-7)
    kept = found[0].heatmaps()
    assert kept.prefix_mass is not None
    assert maps.prefix_mass is not None
    assert kept.prefix_mass.item() == pytest.approx(maps.prefix_mass.item())


def test_a_gallery_from_python_is_the_commands(
    vit: Model, models: Callable[[str], str], photos: Path, tmp_path: Path
) -> None:
    words = ["--method", "EdgeMap", "--page", "-o", str(tmp_path / "command"), "--device", "cpu"]
    assert main(["explain", models("vit"), str(photos), *words]) == 0
    summary = vision_attn.gallery(vit, photos, ["EdgeMap"], output=tmp_path / "python")
    assert (summary.photos, summary.explained, summary.problems) == (3, 3, [])
    assert summary.page == tmp_path / "python" / "index.html"
    assert {path.name for path in summary.folder.rglob("*")} == {
        path.name for path in (tmp_path / "command").rglob("*")
    }
    assert summary.page.read_text() == (tmp_path / "command" / "index.html").read_text()
    assert [record["method"] for record in summary.records()] == ["EdgeMap"] * 3


def test_a_gallery_goes_on_after_bad_images(vit: Model, photos: Path, tmp_path: Path) -> None:
    (photos / "text.jpg").write_text("no image")
    summary = vision_attn.gallery(
        vit, [photos, tmp_path / "none.png"], ["EdgeMap"], output=tmp_path / "out", style=Dim()
    )
    assert summary.explained == 3
    assert len(summary.problems) == 2
    with pytest.raises(ValueError, match=r"masks .*: expected a folder"):
        vision_attn.gallery(vit, photos, output=tmp_path / "out", masks=tmp_path / "none")
    with pytest.raises(ValueError, match=r"output .*text.jpg: cannot write there"):
        vision_attn.gallery(vit, photos, output=photos / "text.jpg")


def test_an_output_that_cannot_be_written_to_is_refused(vit: Model, photos: Path) -> None:
    text = photos / "text.jpg"
    text.write_text("no image")
    cannot = r"output .*text.jpg: cannot write there \(File exists\): name another folder"
    with pytest.raises(ValueError, match=cannot):
        vision_attn.explain(vit, photos / "cat.png", "EdgeMap", output=text)
    with pytest.raises(ValueError, match=cannot):
        vision_attn.explain(vit, photos / "cat.png", "EdgeMap").save(text)


def test_transparent_parts_of_an_array_are_white_as_those_of_an_image(vit: Model) -> None:
    array = np.random.default_rng(0).integers(0, 256, (40, 60, 4), np.uint8)
    image = vision_attn.explain(vit, Image.fromarray(array), "EdgeMap").photo
    tensor = torch.from_numpy(np.moveaxis(array, 2, 0).copy())
    for photo in (array, tensor):
        same = vision_attn.explain(vit, photo, "EdgeMap").photo
        np.testing.assert_array_equal(same, image)


def test_a_film_from_python(senet: Model, tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (5, 198, 322, 3), dtype=np.uint8)
    with VideoWriter(tmp_path / "clip.mp4", 10.0) as video:
        for frame in frames:
            video.append(frame)
    summary = vision_attn.film(senet, tmp_path / "clip.mp4", "GradCAM", output=tmp_path / "out")
    assert summary.films == {str(tmp_path / "clip.mp4"): 5}
    assert {path.name for path in summary.folder.iterdir()} == {
        "clip.GradCAM.mp4", "clip.GradCAM.npy", "results.jsonl", "store",
    }  # fmt: skip
    assert [record["frame"] for record in summary.records()] == [*range(5)]
    (tmp_path / "frames").mkdir()
    with pytest.raises(ValueError, match="give frames=RATE"):
        vision_attn.film(senet, tmp_path / "frames")
    with pytest.raises(ImageError, match="no such file"):
        vision_attn.film(senet, tmp_path / "none.mp4")


@pytest.fixture(params=["trained", "unknown", "random", "random classifier"])
def provenance(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.slow
def test_random_weights_are_marked_wherever_their_maps_are_seen(
    vit: Model, photos: Path, tmp_path: Path, provenance: Any
) -> None:
    """By a line below the picture and in the title; nothing is drawn over the picture itself."""
    model = replace(vit, weights=provenance)
    lines = int(provenance.startswith("random"))
    words = RANDOM_CLASSIFIER if provenance == "random classifier" else RANDOM_WEIGHTS
    trained, found = (
        one.explain(photos / "dog.jpg", ["Rollout", "GradCAM"]) for one in (vit, model)
    )
    assert (found.grid().size != trained.grid().size) == bool(lines)
    assert (pixels_of(found._repr_png_()).shape != pixels_of(trained._repr_png_()).shape) == lines
    assert (words in repr(found)) == bool(lines)
    assert found.overlay().size == trained.overlay().size == found.photo.size
    for name, one in (("new", model), ("old", vit)):
        summary = vision_attn.gallery(
            one, photos / "dog.jpg", ["Rollout", "ChannelGates"][:1], output=tmp_path / name
        )
    new, old = (pixels(tmp_path / name / "dog.Rollout.png") for name in ("new", "old"))
    assert (new[: len(old)] == old).all()
    assert (len(new) > len(old)) == bool(lines)
    record = json.loads((tmp_path / "new" / "results.jsonl").read_text())
    assert record["weights"] == provenance
    page = (tmp_path / "new" / "index.html").read_text()
    assert (f'<small class="warning">{words}</small></h1>' in page) == bool(lines)
    assert (f" · {words}</title>" in page) == bool(lines)
    assert summary.records()[0]["weights"] == "trained"
    inspected = vision_attn.inspect(model, photos / "dog.jpg", ["Rollout"]).html
    assert (f'<p class="warning">{words}</p>' in inspected) == bool(lines)


def pixels_of(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(png)))


def test_a_film_of_random_weights_says_so_in_each_frame(senet: Model, tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (2, 198, 322, 3), dtype=np.uint8)
    with VideoWriter(tmp_path / "clip.mp4", 10.0) as video:
        for frame in frames:
            video.append(frame)
    heights = {}
    for name, model in (("trained", senet), ("random", replace(senet, weights="random"))):
        out = tmp_path / name
        summary = vision_attn.film(model, tmp_path / "clip.mp4", "GradCAM", output=out)
        assert {record["weights"] for record in summary.records()} == {name}
        heights[name] = next(iter(Video.file(out / "clip.GradCAM.mp4"))).height
    assert heights["random"] > heights["trained"]


@pytest.mark.slow
def test_all_methods_stand_by_kind_and_baselines_last_and_marked(
    vit: Model, photos: Path, tmp_path: Path
) -> None:
    found = vit.explain(photos / "tiny.png", ["EdgeMap", "all", "Rollout(fusion=max)"])
    baselines = ["EdgeMap", "RandomMap", "CentreGaussian"]
    assert found.methods[-3:] == baselines
    assert found.methods[:4] == ["RawAttention", "QueryKey", "Rollout", "WeightedRollout"]
    cams = [found.methods.index(one) for one in ("GradCAM", "GradCAMPlusPlus", "LayerCAM")]
    assert found.methods.index("LeGrad") < cams[0] < cams[1] < cams[2]
    assert cams[2] < found.methods.index("Occlusion")
    titles = [panel.title for panel in found.panels()]
    assert titles[-3:] == [f"{name} (baseline)" for name in baselines]
    assert not any("baseline" in title for title in titles[:-3])
    summary = vision_attn.gallery(
        vit, photos / "tiny.png", ["RandomMap", "GradCAM"], output=tmp_path
    )
    assert [record["method"] for record in summary.records()] == ["GradCAM", "RandomMap"]
    assert summary.page is not None
    page = summary.page.read_text()
    assert "<figcaption>RandomMap (baseline)</figcaption>" in page
    assert "<figcaption>GradCAM</figcaption>" in page
    assert (tmp_path / "tiny.RandomMap.png").is_file()


def test_an_explainer_of_ones_own_has_a_name() -> None:
    assert issubclass(Fussy, Explainer)
    assert str(Fussy()) == "Fussy"


@pytest.mark.parametrize(
    ("asked", "is_told"),
    [({"target": 1}, True), ({"contrast": 1}, True), ({"target": "label"}, True), ({}, False)],
)
def test_a_method_that_shows_no_target_is_told(
    vit: Model,
    photos: Path,
    asked: dict[str, Any],
    is_told: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    vit.explain([photos / "tiny.png"], ["Rollout", "GradCAM", "RandomMap"], **asked)
    lines = [line for line in caplog.messages if "whatever the target" in line]
    assert lines == ["Rollout: the same for every class, whatever the target"] * is_told
