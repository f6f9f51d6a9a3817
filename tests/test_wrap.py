"""Networks and transforms of one's own, as models: any channels, any dtype, any head."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

import vision_attn
from vision_attn.data import Preprocess
from vision_attn.data.measured import MeasuredTransform
from vision_attn.errors import ModelError
from vision_attn.hub import load_model, wrap
from vision_attn.methods import GradCAM, PixelsOf, Rollout
from vision_attn.models import SEResNet, ViT
from vision_attn.runs.explain import read
from vision_attn.runs.progress import Silent
from vision_attn.types import Model, TokenLayout

CROP = v1.Compose(
    [v1.Resize(36), v1.CenterCrop(32), v1.ToTensor(), v1.Normalize((0.5,) * 3, (0.25,) * 3)]
)
NAMES = ["cat", "dog", "hen"]


def unchecked(function: Callable[..., Model | tuple[str, Image.Image]]) -> Any:
    """The function without the types that the tests check."""
    return getattr(function, "__wrapped__", function)


def drawn(network: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for weight in network.parameters():
        nn.init.normal_(weight, std=0.3)
    return network


def senet(classes: int = 3) -> nn.Module:
    return drawn(SEResNet(classes, layers=(1, 1, 1, 1), widths=(4, 4, 4, 8)))


def vit(classes: int = 3) -> nn.Module:
    return drawn(ViT(32, 8, classes, 12, 2, 3))


def test_a_wrapped_network_does_what_a_loaded_one_does(photos: Path, tmp_path: Path) -> None:
    model = wrap(vit(), CROP, NAMES, name="mine", weights="trained")
    assert model.layout == TokenLayout(1, (4, 4), "cls", class_token=True)
    photo = Image.open(photos / "cat.png").convert("RGB")
    found = model.explain(photos / "cat.png", ["Rollout", "GradCAM"], target="dog")
    known = vision_attn.Model(
        model.network,
        Preprocess((32, 32), (0.5,) * 3, (0.25,) * 3, crop_pct=32 / 36),
        NAMES,
        model.layout,
    )
    same = known.explain(photos / "cat.png", ["Rollout", "GradCAM"], target="dog")
    images = CROP(photo)[None]
    for method in (Rollout(), GradCAM()):
        maps = method(model.network, images, 1).values[0].numpy()
        np.testing.assert_allclose(found[str(method)].values, maps, atol=1e-6)
        mine, theirs = (one.on_photo(str(method)) for one in (found, same))
        assert (np.isnan(mine) == np.isnan(theirs)).mean() > 0.98
    assert found.model.warning == ""
    assert found.grid().size == same.grid().size
    summary = vision_attn.gallery(model, photos, ["Rollout"], output=tmp_path / "out")
    assert summary.explained == 3
    vision_attn.inspect(model, photos / "cat.png", ["GradCAM"], output=tmp_path / "a.html")
    scores = vision_attn.score(model, "planted", ["Rollout"], limit=3, steps=2, progress=Silent())
    assert scores.methods[0] == "Rollout"


def test_classes_are_named_by_number_or_not_at_all() -> None:
    assert wrap(senet(), CROP).classes == ["class 0", "class 1", "class 2"]
    assert wrap(senet(), CROP, ()).classes == []
    assert wrap(timm.create_model("test_vit", num_classes=0), CROP).classes == []
    binary = wrap(senet(1), CROP, ["cat", "dog"])
    assert (binary.classes, binary.calibration.activation) == (["cat", "dog"], "sigmoid")
    value = wrap(senet(1), CROP, ["age"], activation="none")
    assert value.explain(Image.new("RGB", (50, 40)), "GradCAM").prediction.startswith("age ")
    ends = wrap(nn.Sequential(senet(), nn.Softmax(1)), CROP, NAMES)
    assert ends.calibration.activation == "identity"


class Segments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 5, 3, padding=1)
        self.classifier = nn.Conv2d(5, 3, 1)

    def forward(self, images: torch.Tensor) -> dict[Any, Any]:
        return {"aux": images.mean((2, 3)), "out": self.classifier(self.features(images).relu())}


def test_a_segmentation_has_no_predicted_class_and_is_explained_by_pixels(photos: Path) -> None:
    model = wrap(drawn(Segments()), CROP, head="out")
    assert model.classes == []
    named = wrap(model.network, CROP, head="aux")
    assert len(named.classes) == 3
    mask = np.zeros((32, 32), bool)
    mask[8:20, 10:30] = True
    found = model.explain(photos / "cat.png", "GradCAM(layer=features)", target=PixelsOf(mask, 2))
    assert found[0].values.any()
    assert found.records(lambda one: "")[0]["target"] == "pixels of class 2"


@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_any_number_of_channels(count: int, tmp_path: Path) -> None:
    network = drawn(SEResNet(3, layers=(1, 1, 1, 1), widths=(4, 4, 4, 8)))
    network.conv1 = nn.Conv2d(count, 4, 3, padding=1, bias=False)
    transform = v2.Compose(
        [
            v2.Resize((32, 48), antialias=True),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * count, [0.25] * count),
        ]
    )
    measured = wrap(network, transform, NAMES)
    fixed = wrap(
        network, Preprocess((32, 48), (0.5,) * count, (0.25,) * count, fit="squash"), NAMES
    )
    array = np.random.default_rng(0).integers(0, 256, (40, 60, count), np.uint8)
    tensor = torch.from_numpy(np.moveaxis(array, 2, 0).copy())
    images = transform(tensor)[None]
    expected = GradCAM()(network, images, 1).values[0].numpy()
    for photo in (array, tensor, tensor.float() / 255):
        found = measured.explain(photo, ["GradCAM", "LIME(samples=4, cells=2)"], target="dog")
        np.testing.assert_allclose(found["GradCAM"].values, expected, rtol=1e-3, atol=1e-5)
        assert fixed.explain(photo, "GradCAM", target="dog")[0].values.shape == expected.shape
        assert found.photo.size == (60, 40)
        again = measured.explain(found.photo, "GradCAM", target="dog")[0].values
        np.testing.assert_array_equal(again, found["GradCAM"].values)
    both: Any = measured.explain(torch.stack([tensor, tensor]), "GradCAM")
    assert len(both) == 2
    both.save(tmp_path)
    if count == 1:
        grey = Image.fromarray(array[..., 0])
        same = fixed.explain(grey, "GradCAM", target="dog")
        np.testing.assert_allclose(
            same[0].values, fixed.explain(array, "GradCAM", target="dog")[0].values
        )
        scores = vision_attn.score(
            fixed, "planted", ["GradCAM"], limit=2, steps=2, progress=Silent()
        )
        assert "deletion" in scores.metrics
    else:
        with pytest.raises(
            ValueError, match=f"the network takes {count} channels, the photo has 3"
        ):
            fixed.explain(Image.new("RGB", (60, 40)), "GradCAM")
        with pytest.raises(ValueError, match="planted images have colours"):
            vision_attn.score(fixed, "planted", ["GradCAM"], limit=2, steps=2, progress=Silent())
    if count == 4:
        rgba = Image.fromarray(array, "RGBA")
        same = fixed.explain(rgba, "GradCAM", target="dog")
        np.testing.assert_allclose(
            same[0].values, fixed.explain(array, "GradCAM", target="dog")[0].values
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("make", [vit, senet])
def test_any_dtype(make: Callable[..., Any], dtype: torch.dtype, photos: Path) -> None:
    network = make()
    plain = wrap(network, CROP, NAMES).explain(photos / "cat.png", "GradCAM", target="dog")
    cast = network.to(dtype)
    model = wrap(cast, CROP, NAMES)
    assert model.dtype == dtype
    methods = ["GradCAM", "LIME(samples=4, cells=2)", "IntegratedGradients(steps=2)"]
    methods += ["Rollout", "Relevance", "LeGrad"] if make is vit else ["ChannelGates"]
    found = model.explain(photos / "cat.png", methods, target="dog")
    assert found.problems == []
    tolerance = {torch.bfloat16: 0.15, torch.float16: 0.03, torch.float64: 1e-4}[dtype]
    top = np.abs(plain[0].values).max()
    assert np.abs(found["GradCAM"].values - plain[0].values).max() <= tolerance * top
    scores = vision_attn.score(model, "planted", ["GradCAM"], limit=2, steps=2, progress=Silent())
    assert scores.problems == []


@pytest.mark.parametrize(
    ("network", "transform", "classes", "message"),
    [
        (
            lambda: senet(),
            v1.Compose([v1.FiveCrop(32)]),
            None,
            "wrap: the transform gives 5 images",
        ),
        (lambda: senet(), CROP, ["cat"], "wrap: the network gives 3 numbers .* names of 1 classes"),
        (
            lambda: senet(),
            v1.Compose([v1.Grayscale(), v1.Resize((32, 32)), v1.ToTensor()]),
            None,
            "wrap: SEResNet takes images of 3 channels, got 1",
        ),
        (
            lambda: timm.create_model("vit_tiny_patch16_224", embed_dim=12, depth=1, num_heads=2),
            CROP,
            None,
            "wrap: VisionTransformer takes images of 224x224, got 32x32",
        ),
    ],
)
def test_what_does_not_fit_is_told_in_a_line(
    network: Callable[..., Any], transform: Any, classes: list[str] | None, message: str
) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        wrap(network(), transform, classes)
    assert "\n" not in str(caught.value)


def test_a_network_given_to_load_model_is_told_where_to_go() -> None:
    with pytest.raises(
        ModelError, match=r"got a network .SEResNet.: a network of your own goes into .*wrap"
    ):
        unchecked(load_model)(senet())


@pytest.mark.parametrize(
    ("photo", "message"),
    [
        (torch.randn(3, 40, 50) * 3, "from 0 to 1, got .*: give the photo as it is before it is n"),
        (7, "expected a photo: a path, a PIL image, an array .*, got 7"),
        (np.zeros((40, 50, 3), np.int32), "a photo as an array must be uint8"),
    ],
)
def test_what_is_no_photo_is_told(photo: torch.Tensor | int | np.ndarray, message: str) -> None:
    model = wrap(senet(), CROP, NAMES)
    with pytest.raises(ValueError, match=message):
        unchecked(read)(photo, model.preprocess)


@pytest.mark.parametrize(
    "steps", [[v1.Resize((32, 32))], [v1.Resize((28, 28)), v1.Pad(2)]], ids=["whole", "padded"]
)
def test_a_photo_that_is_seen_whole_or_in_a_padding_has_a_page(
    steps: list[Any], photos: Path
) -> None:
    model = wrap(vit(), v1.Compose([*steps, v1.ToTensor()]), NAMES)
    photo = np.asarray(Image.open(photos / "cat.png").convert("RGB"))
    for size in ((160, 160), (401, 331)):
        page = vision_attn.inspect(model, Image.fromarray(photo).resize(size), ["GradCAM"])
        [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.html)
        [item] = json.loads(data)["items"]
        share = 2 / 28 if len(steps) == 2 else 0
        assert item["box"] == pytest.approx((-share, -share, 1 + share, 1 + share), abs=0.01)


def test_a_turned_photo_has_maps_but_no_page(photos: Path) -> None:
    turned = v1.Compose([v1.RandomHorizontalFlip(1.0), v1.Resize((32, 32)), v1.ToTensor()])
    model = wrap(senet(), turned, NAMES)
    assert isinstance(model.preprocess, MeasuredTransform)
    assert model.explain(photos / "cat.png", "GradCAM").overlay().size == (401, 331)
    with pytest.raises(ValueError, match="turns, mirrors or tilts photos"):
        vision_attn.inspect(model, photos / "cat.png", ["GradCAM"])
