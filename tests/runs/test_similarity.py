"""Explained similarity of two photos against sums over every pair; the nearest photos of a folder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torchvision.transforms import ToTensor

import vision_attn
from vision_attn.hub import load_model
from vision_attn.runs.progress import Silent
from vision_attn.runs.similarity import PhotoSimilarity
from vision_attn.types import Model

RNG = np.random.default_rng(0)
PHOTOS: Any = [RNG.integers(0, 256, (97, 131, 3), dtype=np.uint8) for _ in range(2)]


@pytest.fixture(scope="module")
def encoder() -> Model:
    torch.manual_seed(0)
    model = load_model("timm:test_vit", pretrained=False, num_classes=0, image_size=(48, 80))
    model.network.double()
    return model


def pairs_by_hand(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """What each pair of patches adds, in loops: (n d) and (m d) to (n, m)."""
    size = np.linalg.norm(np.mean(first, axis=0)) * np.linalg.norm(np.mean(second, axis=0))
    return np.array(
        [[sum(f * g) / (len(first) * len(second) * size) for g in second] for f in first]
    )


def test_parts_are_those_of_every_pair() -> None:
    first, second = torch.randn(7, 3, 5).double(), torch.randn(7, 2, 11).double() + 0.3
    found = PhotoSimilarity.of(first, second)
    pairs = pairs_by_hand(first.flatten(1).mT.numpy(), second.flatten(1).mT.numpy())
    assert found.cosine == pytest.approx(pairs.sum(), rel=1e-12)
    means = first.mean((1, 2)), second.mean((1, 2))
    assert found.cosine == pytest.approx(float(torch.cosine_similarity(*means, dim=0)), rel=1e-12)
    np.testing.assert_allclose(found.maps[0], pairs.sum(1).reshape(3, 5), atol=1e-14)
    np.testing.assert_allclose(found.maps[1], pairs.sum(0).reshape(2, 11), atol=1e-14)
    row = found.row((0.3, 0.9))  # column 1, row 2 of 3x5
    np.testing.assert_allclose(row, pairs[2 * 5 + 1].reshape(2, 11), atol=1e-14)
    assert row.sum() == pytest.approx(float(found.maps[0][2, 1]), rel=1e-12)
    column = found.row((0.3, 0.9), second=True)  # column 3, row 1 of 2x11
    np.testing.assert_allclose(column, pairs[:, 11 + 3].reshape(3, 5), atol=1e-14)
    with pytest.raises(ValueError, match=r"place \(x, y\) = \(1\.5, 0\.0\) is outside"):
        found.row((1.5, 0.0))


def test_of_a_network_with_a_class_token_the_patches_are_compared(encoder: Model) -> None:
    found = vision_attn.photo_similarity(encoder, *PHOTOS)
    inputs = torch.stack([encoder.preprocess(Image.fromarray(photo)) for photo in PHOTOS]).double()
    with torch.no_grad():
        tokens = encoder.network.forward_features(inputs)
    pairs = pairs_by_hand(*tokens[:, 1:].numpy())
    assert found.cosine == pytest.approx(pairs.sum(), abs=1e-12)
    np.testing.assert_allclose(found.maps[0].flatten(), pairs.sum(1), atol=1e-12)
    np.testing.assert_allclose(found.maps[1].flatten(), pairs.sum(0), atol=1e-12)
    own = float(torch.cosine_similarity(tokens[:1, 0], tokens[1:, 0]))
    assert found.embedding == pytest.approx(own, abs=1e-12)
    assert found.embedding is not None
    assert abs(found.embedding - found.cosine) > 1e-6
    block = vision_attn.photo_similarity(encoder, PHOTOS[0], PHOTOS[1], layer="blocks.2")
    assert block.cosine != found.cosine
    assert repr(found) == f"PhotoSimilarity(cosine={found.cosine:.4f}, embedding={own:.4f})"


def test_where_the_embedding_is_the_mean_both_are_one() -> None:
    network = timm.create_model("test_resnet", num_classes=0).eval().double()
    transform = lambda image: ToTensor()(image.resize((96, 64))).double()  # noqa: E731
    found = vision_attn.photo_similarity(vision_attn.wrap(network, transform, classes=()), *PHOTOS)
    assert found.embedding == pytest.approx(found.cosine, abs=1e-12)
    classifier = timm.create_model("test_resnet", num_classes=5).eval().double()
    model = vision_attn.wrap(classifier, transform)
    assert vision_attn.photo_similarity(model, *PHOTOS).embedding is None


def test_the_nearest_are_those_of_highest_cosine(encoder: Model, tmp_path: Path) -> None:
    files = []
    for at in range(7):
        shade = np.linspace(0, 40 * at, 131)[None, :, None] % 256
        files.append(tmp_path / f"{at}.png")
        Image.fromarray((PHOTOS[at % 2] // 4 + shade * 0.7).astype(np.uint8)).save(files[-1])
    (tmp_path / "broken.png").write_bytes(b"no photo")
    cosine = {
        str(file): vision_attn.photo_similarity(encoder, files[2], file).cosine for file in files
    }
    del cosine[str(files[2])]  # the photo itself
    expected = sorted(cosine, key=cosine.__getitem__, reverse=True)
    progress = Silent()
    found = vision_attn.nearest_photos(
        encoder, files[2], tmp_path, k=3, batch_size=2, progress=progress
    )
    assert [each.file for each in found] == expected[:3]
    for each in found:
        assert each.similarity.cosine == pytest.approx(cosine[each.file], abs=1e-12)
        assert float(each.similarity.maps[1].sum()) == pytest.approx(cosine[each.file], abs=1e-12)
    (problem,) = progress.problems
    assert "broken.png" in problem
    every = vision_attn.nearest_photos(encoder, files[2], [str(file) for file in files], k=99)
    assert [each.file for each in every] == expected
    with pytest.raises(ValueError, match="found no other photo to compare"):
        vision_attn.nearest_photos(encoder, files[2], files[2])
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        vision_attn.nearest_photos(encoder, files[2], tmp_path, k=0)
