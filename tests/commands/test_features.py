"""`vision-attn features`, called in this process with a tiny encoder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vision_attn
from vision_attn.cli import main
from vision_attn.types import Model

MODEL = ["timm:test_vit", "--pretrained", "false", "--image-size", "48x80", "--device", "cpu"]


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return vision_attn.load_model("timm:test_vit", pretrained=False, image_size=(48, 80))


def run(folder: Path, *words: Any) -> int:
    return main(["features", *MODEL, "-o", str(folder), *map(str, words)])


def test_components_are_what_is_drawn_by_itself(
    model: Model, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "out", photos) == 0
    files = sorted(photos.iterdir())
    found = vision_attn.patch_components(model, files, split_background=True)
    for file, scores, colors in zip(files, found.scores, found.colors(), strict=True):
        written = np.load(tmp_path / "out" / f"{file.stem}.components.npy")
        np.testing.assert_allclose(written, scores, atol=1e-5)
        picture = np.asarray(Image.open(tmp_path / "out" / f"{file.stem}.components.png"))
        photo = np.asarray(Image.open(file).convert("RGB"))
        factor = max(1, 320 // max(photo.shape[:2]))
        height, width = (side * factor for side in photo.shape[:2])
        laid = [
            model.preprocess.to_original(channel, (width, height))
            for channel in colors.transpose(2, 0, 1)
        ]
        middle = (height // 2, width // 2)
        expected = [
            0.15 * before + 0.85 * 255 * channel[middle]
            for before, channel in zip(
                photo[middle[0] // factor, middle[1] // factor], laid, strict=True
            )
        ]
        np.testing.assert_allclose(picture[middle], expected, atol=1)
        assert picture.shape[1] == width
        assert picture.shape[0] > height  # a caption says that weights are random
    out = capsys.readouterr().out
    shares = [f"{share:.0%}" for share in found.variance.tolist()]
    assert f"have {shares[0]}, {shares[1]} and {shares[2]} of the foreground's variance" in out
    assert "features of 3 images" in out


def test_too_few_components_for_colours_name_the_option_that_gives_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (80, 48)).save(tmp_path / "black.png")
    words = ["features", "timm:resnet10t", "--pretrained", "false", "--image-size", "64x64"]
    words += ["--device", "cpu", "-o", str(tmp_path / "out"), str(tmp_path / "black.png")]
    assert main([*words, "--components"]) == 2
    error = capsys.readouterr().err
    assert "foreground of these images has fewer: take the background too (--keep-bac" in error
    deep = [*words, "--layer", "layer4", "--image-size", "32x64"]
    assert main([*deep, "--keep-background"]) == 2
    assert "fewer: name a layer with more patches (--layer)" in capsys.readouterr().err


def test_similar_places_photos_and_the_nearest(
    model: Model, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cat, dog = photos / "cat.png", photos / "dog.jpg"
    out = tmp_path / "out"
    words = ["--similar-to", 0.5, 0.4, "--compare", "--nearest", photos, "--count", 2]
    assert run(out, cat, dog, *words) == 0
    for file, other in ((cat, None), (dog, dog)):
        expected = vision_attn.patch_similarity(model, cat, (0.5, 0.4), other)
        np.testing.assert_allclose(
            np.load(out / f"{file.stem}.similarity.npy"), expected, atol=1e-5
        )
    alike = vision_attn.photo_similarity(model, cat, dog)
    for name, values in zip(("cat", "dog"), alike.maps, strict=True):
        np.testing.assert_allclose(np.load(out / f"cat.and.dog.{name}.npy"), values, atol=1e-6)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(f"cat.png, dog.jpg: cosine {alike.cosine:.4f}") for line in lines)
    nearest = vision_attn.nearest_photos(model, dog, photos, k=2)
    at = lines.index("most like dog.jpg:")
    assert lines[at + 1 : at + 3] == [
        f"{n}. {each.file}: cosine {each.similarity.cosine:.4f}"
        for n, each in enumerate(nearest, 1)
    ]
    written = {file.name for file in out.glob("*.png")}
    assert written == {
        *("cat.similarity.png", "dog.similarity.png", "cat.and.dog.png"),
        *("cat.nearest.png", "dog.nearest.png"),
    }


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--compare"], "--compare expects at least two images, got 1"),
        (
            ["--similar-to", "2", "0.5"],
            "argument --similar-to: expected a share from 0 to 1, got 2",
        ),
        (["--layer", "block.0"], "layer 'block.0': VisionTransformer has no such layer"),
        (["--style", "infermo"], "unknown colour map 'infermo'"),
    ],
)
def test_a_wrong_word_is_one_line(
    words: list[str], line: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "out", photos / "cat.png", *words) == 2
    (complaint,) = capsys.readouterr().err.splitlines()
    assert complaint.startswith(f"vision-attn: error: {line}")


def test_a_photo_that_cannot_be_read_is_left_out(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nno more")
    assert run(tmp_path / "out", photos, "--similar-to", 0, 1) == 1
    (complaint,) = capsys.readouterr().err.splitlines()
    assert "broken.png" in complaint
    assert len(list((tmp_path / "out").glob("*.similarity.png"))) == 3
