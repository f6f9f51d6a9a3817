"""What goes wrong with one photo costs that photo, whatever its type, in all that explains."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image

import vision_attn
from vision_attn.cli import main
from vision_attn.hub import load_model
from vision_attn.pages.inspect.inspection import inspect
from vision_attn.pages.live.report import live
from vision_attn.runs.progress import Silent
from vision_attn.types import Model, Preprocessing

ERRORS = [
    SyntaxError("not a TIFF file (header b'junk' not valid)"),
    MemoryError(),
    KeyError(274),
]
each_error = pytest.mark.parametrize(
    "error",
    [
        pytest.param(error, id=type(error).__name__, marks=pytest.mark.slow if index else [])
        for index, error in enumerate(reversed(ERRORS))
    ],
)
SPOILED = (67, 30)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five photos in two folders, dog/1.png of a size of its own."""
    rng = np.random.default_rng(0)
    for place, size in {
        "cat/0": (40, 30), "cat/1": (41, 30), "dog/0": (42, 30), "dog/1": SPOILED, "dog/2": (43, 30),
    }.items():  # fmt: skip
        path = tmp_path / "set" / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return tmp_path / "set"


class Spoiling:
    """Preprocessing that fails on photos of one size, whatever way."""

    def __init__(self, own: Preprocessing, error: Any, when: str = "call") -> None:
        self.own, self.error, self.when = own, error, when
        self.input_size, self.mean, self.std = own.input_size, own.mean, own.std

    def read(self, path: Any) -> Image.Image:
        photo = self.own.read(path)
        if self.when == "read" and photo.size == SPOILED:
            raise self.error
        return photo

    def box(self, size: tuple[int, int]) -> tuple[float, float, float, float]:
        return self.own.box(size)

    def mask(self, mask: Any, size: Any = None) -> torch.Tensor:
        return self.own.mask(mask, size)

    def boxes(self, boxes: Any, size: tuple[int, int]) -> torch.Tensor:
        return self.own.boxes(boxes, size)

    def to_original(self, heatmap: Any, size: tuple[int, int]) -> np.ndarray:
        return self.own.to_original(heatmap, size)

    def __call__(self, image: Any) -> torch.Tensor:
        photo = image if isinstance(image, Image.Image) else self.own.read(image)
        if self.when == "call" and photo.size == SPOILED:
            raise self.error
        return self.own(photo)


@pytest.fixture
def spoiled(models: Callable[[str], str]) -> Callable[..., Any]:
    def make(error: Any, when: str = "call") -> Model:
        model = load_model(models("vit"))
        return replace(model, preprocess=cast(Any, Spoiling(model.preprocess, error, when)))

    return make


@each_error
@pytest.mark.parametrize("when", ["read", "call"])
@pytest.mark.parametrize("save", ["pictures", "maps"])
def test_of_a_gallery(
    spoiled: Callable[..., Any], folder: Path, tmp_path: Path, error: Any, when: str, save: Any
) -> None:
    summary = vision_attn.gallery(
        spoiled(error, when), str(folder), ["EdgeMap"], output=tmp_path / "out", save=save
    )
    assert (summary.explained, summary.photos, len(summary.problems)) == (4, 5, 1)
    assert summary.problems[0].startswith(str(folder / "dog" / "1.png"))


@each_error
@pytest.mark.parametrize("when", ["read", "call"])
def test_of_scores(spoiled: Callable[..., Any], folder: Path, error: Any, when: str) -> None:
    scores = vision_attn.score(
        spoiled(error, when), str(folder), ["EdgeMap"], steps=2, sanity=2, batch_size=3
    )
    assert {row["n"] for row in scores.table() if row["metric"] == "deletion"} == {4}
    assert len(scores.problems) == 1
    assert "dog/1.png" in scores.problems[0]


@each_error
@pytest.mark.parametrize("when", ["read", "call"])
def test_of_a_page_to_inspect(
    spoiled: Callable[..., Any], folder: Path, error: Any, when: str
) -> None:
    silent = Silent()
    files = sorted(folder.rglob("*.png"))
    page = inspect(spoiled(error, when), files, methods=["EdgeMap"], progress=silent)
    assert len(page.data["inspections"] if hasattr(page, "data") else files) >= 4
    assert len(silent.problems) == 1
    assert silent.problems[0].startswith(str(files[3]))


@each_error
def test_of_a_live_page(spoiled: Callable[..., Any], folder: Path, error: Any) -> None:
    silent = Silent()
    files = sorted(folder.rglob("*.png"))
    live(spoiled(error, "read"), files, progress=silent)
    assert len(silent.problems) == 1
    assert silent.problems[0].startswith(str(files[3]))


@each_error
@pytest.mark.parametrize("broken", [{1}, {0, 3}])
def test_of_a_film_it_costs_the_frame(
    models: Callable[[str], str], tmp_path: Path, error: Any, broken: set[int]
) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "clip").mkdir()
    for number in range(5):
        pixels = rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)
        pixels[0, 0] = number, 77, 77
        Image.fromarray(pixels).save(tmp_path / "clip" / f"{number}.png")
    model = load_model(models("vit"))

    class Frames(Spoiling):
        def __call__(self, image: Any) -> torch.Tensor:
            first = np.asarray(image)[0, 0]
            if tuple(first[1:]) == (77, 77) and int(first[0]) in broken:
                raise self.error
            return self.own(image)

    model = replace(model, preprocess=cast(Any, Frames(model.preprocess, error)))
    clip, out = tmp_path / "clip", tmp_path / "out"
    summary = vision_attn.film(model, clip, "EdgeMap", output=out, frames=3.0, batch_size=2)
    assert summary.films == {str(clip): 5 - len(broken)}
    assert len(summary.problems) == len(broken)
    assert summary.problems[0].startswith(f"{clip}, frame {min(broken)}: ")
    again = vision_attn.film(model, clip, "EdgeMap", output=out, frames=3.0, batch_size=2)
    assert (again.films, again.problems) == (summary.films, summary.problems)
    maps = np.load(out / "clip.EdgeMap.npy")
    whole = vision_attn.film(
        load_model(models("vit")), clip, "EdgeMap", output=tmp_path / "all", frames=3.0
    )
    assert whole.problems == []
    kept = [number for number in range(5) if number not in broken]
    np.testing.assert_array_equal(maps, np.load(tmp_path / "all" / "clip.EdgeMap.npy")[kept])


def test_a_network_without_numbers_for_one_photo_costs_it(
    models: Callable[[str], str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN in the logits of one image of a batch."""
    model = load_model(models("vit"))
    bad = model.preprocess(folder / "dog" / "1.png")
    forward = type(model.network).forward

    def spoiled(network: Any, images: torch.Tensor) -> torch.Tensor:
        logits = forward(network, images)
        same = (images == bad.to(images)).flatten(1).all(dim=1)
        return torch.where(same[:, None], torch.nan, logits)

    monkeypatch.setattr(type(model.network), "forward", spoiled)
    scores = vision_attn.score(model, str(folder), ["EdgeMap"], steps=2, sanity=0, removal="mean")
    assert {row["n"] for row in scores.table() if row["metric"] == "deletion"} == {4}
    assert any(problem.startswith("dog/1.png: ") for problem in scores.problems)


@pytest.mark.parametrize(
    "words", [["explain"], ["explain", "--save", "maps"], ["score"], ["inspect"]]
)
def test_a_photo_with_a_damaged_exif_header_stops_no_command(
    models: Callable[[str], str],
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    for name in ("no TIFF", "cut"):
        header = {"no TIFF": b"Exif\0\0garbage", "cut": b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\x01"}
        Image.new("RGB", (40, 30)).save(folder / "cat" / f"{name}.jpg", exif=header[name])
    command, *more = words
    out = tmp_path / ("page.html" if command == "inspect" else "out")
    usual = [command, models("vit"), folder, "--method", "EdgeMap", "-o", out, *more]
    usual += ["--sanity", 0, "--steps", 2] if command == "score" else []
    assert main([str(word) for word in usual]) == 0
    output = capsys.readouterr()
    assert "error" not in output.err
    assert output.err.count("its EXIF header is damaged") == 1
    if command == "explain":
        assert "7 of 7 images explained" in output.out


def test_why_nothing_could_be_scored_is_said_in_python_too(
    models: Callable[[str], str], tmp_path: Path
) -> None:
    for name, mode in (("cat", "RGB"), ("dog", "L")):
        for part in ("images", "masks"):
            (tmp_path / part).mkdir(exist_ok=True)
        Image.new("RGB", (40, 30)).save(tmp_path / "images" / f"{name}.png")
        Image.new(mode, (40, 30) if mode == "RGB" else (20, 15), 1).save(
            tmp_path / "masks" / f"{name}.png"
        )
    with pytest.raises(ValueError, match="nothing could be scored: ") as caught:
        vision_attn.score(load_model(models("vit")), str(tmp_path), ["EdgeMap"], steps=2)
    text = str(caught.value)
    assert "one number per pixel (a grey or palette PNG), got mode RGB" in text
    assert "the mask is 20 x 15, its image 40 x 30" in text
