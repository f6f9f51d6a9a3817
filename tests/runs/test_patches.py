"""Features of patches: cosines and principal components."""

from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from sklearn.decomposition import PCA
from torch import nn
from torchvision.transforms import ToTensor

import vision_attn
from vision_attn.hub import load_model
from vision_attn.runs.patches import components_of, layer_features, patch_features
from vision_attn.types import Model

RNG = np.random.default_rng(0)
PHOTOS = [RNG.integers(0, 256, (97, 131, 3), dtype=np.uint8) for _ in range(3)]


@pytest.fixture(scope="module")
def encoder() -> Model:
    torch.manual_seed(0)
    return load_model("timm:test_vit", pretrained=False, num_classes=0, image_size=(48, 80))


def of_timm(model: Model, photos: list[np.ndarray]) -> Any:
    """The final tokens of timm, without the class token, by rows."""
    inputs = torch.stack([model.preprocess(vision_image(photo)) for photo in photos])
    with torch.no_grad():
        tokens = model.network.forward_features(inputs)[:, 1:]
    return tokens  # b n d


def vision_image(photo: np.ndarray) -> Image.Image:
    from PIL import Image

    return Image.fromarray(photo)


def test_the_features_are_those_of_the_final_norm(encoder: Model) -> None:
    inputs = torch.randn(2, 3, 48, 80)
    with torch.no_grad():
        expected = encoder.network.forward_features(inputs)[:, 1:].mT.unflatten(-1, (3, 5))
        blocks = encoder.network.get_intermediate_layers(inputs, [0], reshape=True)[0]
    torch.testing.assert_close(patch_features(encoder, inputs), expected)
    torch.testing.assert_close(patch_features(encoder, inputs, "blocks.0"), blocks)
    named = patch_features(encoder, inputs, encoder.network.blocks[0])
    torch.testing.assert_close(named, blocks)


def test_a_cnn_has_its_last_map() -> None:
    network = timm.create_model("test_resnet", num_classes=5).eval()
    model = vision_attn.wrap(network, lambda image: ToTensor()(image.resize((96, 64))))
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        expected = network.forward_features(images)
    torch.testing.assert_close(patch_features(model, images), expected)


def test_cosines_by_hand(encoder: Model) -> None:
    tokens = of_timm(encoder, PHOTOS[:2])
    unit = tokens / tokens.norm(dim=-1, keepdim=True)
    own = (unit[0] @ unit[0, 7]).view(3, 5)  # row 1, column 2
    for place in ((40, 20), (0.5, 0.45)):
        found = vision_attn.patch_similarity(encoder, PHOTOS[0], place)
        torch.testing.assert_close(found, own)
    assert found[1, 2] == pytest.approx(1)
    found = vision_attn.patch_similarity(encoder, PHOTOS[0], (40, 20), other=PHOTOS[1])
    torch.testing.assert_close(found, (unit[1] @ unit[0, 7]).view(3, 5))
    on_photo = encoder.preprocess.to_original(found.numpy(), (131, 97))
    assert on_photo.shape == (97, 131)


def test_components_are_those_of_scikit_learn(encoder: Model) -> None:
    found = vision_attn.patch_components(encoder, PHOTOS, k=4)
    rows = of_timm(encoder, PHOTOS).flatten(0, 1).double().numpy()
    pca = PCA(4, svd_solver="full").fit(rows)
    signs = np.sign(
        np.take_along_axis(
            pca.components_, np.abs(pca.components_).argmax(1, keepdims=True), axis=1
        )
    )
    torch.testing.assert_close(
        found.directions.double(), torch.from_numpy(pca.components_ * signs), atol=1e-5, rtol=1e-5
    )
    scores = (pca.transform(rows) * signs.T).reshape(3, 3, 5, 4).transpose(0, 3, 1, 2)
    torch.testing.assert_close(
        found.scores.double(), torch.from_numpy(scores), atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(
        found.variance.double(), torch.from_numpy(pca.explained_variance_ratio_), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(
        found.mean.double(), torch.from_numpy(rows.mean(0)), atol=1e-5, rtol=0
    )
    assert (found.directions.gather(1, found.directions.abs().argmax(1, keepdim=True)) > 0).all()


def test_two_runs_agree_and_colours_are_of_all_photos_alike(encoder: Model) -> None:
    first, again = (vision_attn.patch_components(encoder, PHOTOS) for _ in range(2))
    assert torch.equal(first.scores, again.scores)
    colours = first.colors()
    assert colours.shape == (3, 3, 5, 3)
    assert (colours.min(), colours.max()) >= (0, 0)
    assert colours.max() <= 1
    scale = 2 * first.scores.pow(2).mean((0, 2, 3)).sqrt()
    expected = ((first.scores[1, :, 2, 3] / scale + 1) / 2).clamp(0, 1)
    np.testing.assert_allclose(colours[1, 2, 3], expected, rtol=1e-5)
    one = vision_attn.patch_components(encoder, PHOTOS[0], k=1)
    assert one.scores.shape == (1, 1, 3, 5)
    with pytest.raises(ValueError, match="colours need three components, got 1"):
        one.colors()


def test_what_is_not_there_gets_one_line(encoder: Model) -> None:
    with pytest.raises(
        ValueError, match=r"pixel \(x, y\) = \(80, 3\) is outside the image of 80x48"
    ):
        vision_attn.patch_similarity(encoder, PHOTOS[0], (80, 3))
    with pytest.raises(ValueError, match=r"layer 'blocks\.9': VisionTransformer has no such layer"):
        vision_attn.patch_similarity(encoder, PHOTOS[0], (8, 3), layer="blocks.9")
    with pytest.raises(ValueError, match="layer 'fc_norm': it gives a vector for each place"):
        vision_attn.patch_components(encoder, PHOTOS[0], layer="fc_norm")
    with pytest.raises(
        ValueError, match="k must be from 1 to 14, as there are 14 components, got 15"
    ):
        vision_attn.patch_components(encoder, PHOTOS[0], k=15)
    flat = vision_attn.wrap(
        nn.Sequential(nn.Flatten(), nn.Linear(3072, 2)),
        lambda image: ToTensor()(image.resize((32, 32))),
    )
    with pytest.raises(ValueError, match="no layer gives a vector for each place of the image"):
        vision_attn.patch_components(flat, PHOTOS[0])


def blob(
    photos: int = 2, d: int = 7, rows: int = 11, columns: int = 13
) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of an object in the middle, whose channels vary, on a background that hardly does."""
    rng = np.random.default_rng(5)
    features = 0.1 * rng.normal(size=(photos, d, rows, columns))
    inside = np.zeros((photos, rows, columns), bool)
    inside[0, 3:8, 2:9], inside[1, 5:9, 4:11] = True, True
    features += inside[:, None] * (4 + rng.normal(size=features.shape))
    return torch.from_numpy(features), torch.from_numpy(inside)


def least_variance(values: Any) -> Any:
    """Every cut, by hand: the two sides that vary least."""
    ordered = np.sort(values)
    cuts = [
        at * ordered[:at].var() + (len(ordered) - at) * ordered[at:].var()
        for at in range(1, len(ordered))
    ]
    return ordered[1 + int(np.argmin(cuts))]  # the first of the upper side


@pytest.mark.parametrize("sign", [1, -1])
def test_the_background_is_split_off_by_the_first_component(sign: int) -> None:
    features, inside = blob()
    found = components_of(sign * features, split_background=True)
    assert torch.equal(found.foreground, inside)
    rows = (sign * features).movedim(1, -1).flatten(1, 2).numpy()
    for photo, own in zip(rows, found.foreground.flatten(1).numpy(), strict=True):
        first = PCA(1, svd_solver="full").fit_transform(photo)[:, 0]
        upper = first >= least_variance(first)
        np.testing.assert_array_equal(own, upper if upper[0] == own[0] else ~upper)
    among = PCA(3, svd_solver="full").fit(rows[inside.flatten(1).numpy()])
    np.testing.assert_allclose(found.variance, among.explained_variance_ratio_, rtol=1e-5)
    np.testing.assert_allclose(
        abs(found.directions.double().numpy() @ among.components_.T), np.eye(3), atol=1e-6
    )
    colors = found.colors()
    assert not colors[~inside.numpy()].any()
    spread = found.scores[0, :, 4, 5] / (
        2 * found.scores.movedim(1, -1)[inside].square().mean(0).sqrt()
    )
    np.testing.assert_allclose(colors[0, 4, 5], ((spread + 1) / 2).clamp(0, 1), rtol=1e-5)


def test_without_a_split_all_is_foreground(encoder: Model) -> None:
    assert vision_attn.patch_components(encoder, PHOTOS).foreground.all()
    split = vision_attn.patch_components(encoder, PHOTOS, split_background=True)
    assert 0 < split.foreground.sum() < split.foreground.numel()
    with pytest.raises(ValueError, match="k must be from 1 to 7, as there are 7 components of the"):
        components_of(blob()[0], k=8, split_background=True)
    with pytest.raises(ValueError, match="expected at least one photo, got an empty list"):
        vision_attn.patch_components(encoder, [])


def test_layers_are_blocks_and_the_last_norm(encoder: Model) -> None:
    inputs = torch.randn(2, 3, 48, 80)
    found = layer_features(encoder, inputs)
    assert list(found) == [*(f"blocks.{at}" for at in range(6)), "norm"]
    for name, features in found.items():
        torch.testing.assert_close(features, patch_features(encoder, inputs, name))
    assert list(layer_features(encoder, inputs, most=3)) == ["blocks.0", "blocks.3", "norm"]
    compact = vision_attn.load_model("vision_attn:compact_vit_imagenette")  # pooled by attention
    inputs = torch.randn(1, 3, *compact.preprocess.input_size)
    assert compact.layout is not None
    assert patch_features(compact, inputs).shape[2:] == compact.layout.grid
    names = list(layer_features(compact, inputs))
    assert all(name.startswith(("blocks.", "norm")) for name in names)
    cnn = load_model("timm:test_resnet", pretrained=False)
    stages = layer_features(cnn, torch.randn(1, 3, 64, 96))
    assert list(stages)[-1].startswith("layer4.")
    assert {tuple(each.shape[2:]) for each in stages.values()} >= {(16, 24), (8, 12), (2, 3)}
