"""Results and photos stay apart: no picture replaces a photo, and none is taken for one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vision_attn
from vision_attn.cli import main
from vision_attn.data import find_images
from vision_attn.data.listing import walk
from vision_attn.hub import load_model
from vision_attn.pages.inspect.page import Page
from vision_attn.runs.progress import Silent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """a.png, a.Rollout.png, a.EdgeMap.png and sub/b.png: photos all of them."""
    rng = np.random.default_rng(0)
    for name in ("a", "a.Rollout", "a.EdgeMap", "sub/b"):
        path = tmp_path / "photos" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(path)
    return tmp_path / "photos"


def contents(folder: Path) -> dict[Any, Any]:
    return {path: path.read_bytes() for path in folder.rglob("*.png")}


@pytest.mark.parametrize("save", ["pictures", "maps", "both"])
@pytest.mark.parametrize("into", [".", "sub"])
def test_output_among_the_photos_is_refused_and_nothing_is_lost(
    models: Callable[[str], str], folder: Path, save: Any, into: str
) -> None:
    before = contents(folder)
    with pytest.raises(
        ValueError, match=r"output .*: the photos lie there, and pictures would mix"
    ):
        vision_attn.gallery(
            load_model(models("vit")), str(folder), ["EdgeMap"], output=folder / into, save=save
        )
    assert contents(folder) == before


@pytest.mark.parametrize("command", ["explain", "score"])
def test_on_the_command_line_it_is_one_line(
    models: Callable[[str], str], folder: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    before = contents(folder)
    words = [command, models("vit"), str(folder), "--method", "EdgeMap", "-o", str(folder)]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert f"error: --output {folder}: the photos lie there" in error
    assert error.count("\n") == 1
    assert contents(folder) == before


@pytest.mark.parametrize("command", ["inspect", "live"])
def test_a_page_replaces_no_photo(
    models: Callable[[str], str], folder: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    before = contents(folder)
    photo = str(folder / "a.png")
    assert main([command, models("vit"), photo, "-o", photo]) == 2
    assert "it is one of the photos: name another file" in capsys.readouterr().err
    assert contents(folder) == before


def test_scores_of_a_list_replace_no_photo(models: Callable[[str], str], folder: Path) -> None:
    (folder / "a.png").rename(folder / "curves.png")
    before = contents(folder)
    files = [str(folder / "curves.png"), str(folder / "a.EdgeMap.png")]
    with pytest.raises(ValueError, match=r"curves\.png: it is one of the photos: name another"):
        vision_attn.score(load_model(models("vit")), files, ["EdgeMap"], output=folder)
    assert contents(folder) == before


def test_photos_named_themselves_keep_their_files_in_their_own_folder(
    models: Callable[[str], str], folder: Path
) -> None:
    before = contents(folder)
    model = load_model(models("vit"))
    files = [str(folder / f"{name}.png") for name in ("a", "a.Rollout", "a.EdgeMap")]
    summary = vision_attn.gallery(model, files, ["EdgeMap"], output=folder)
    assert summary.explained == 3
    after = contents(folder)
    assert {path: after[path] for path in before} == before
    pictures = [record["picture"] for record in summary.records()]
    assert len(set(pictures)) == 3
    assert all((folder / picture) in after for picture in pictures)
    found = model.explain([*files], "EdgeMap").save(folder)
    assert {path: contents(found)[path] for path in before} == before
    with pytest.raises(ValueError, match="the photos lie there"):
        vision_attn.gallery(model, [*files, str(folder / pictures[1])], ["EdgeMap"], output=folder)


def test_pictures_of_an_earlier_run_below_the_photos_are_no_photos(
    models: Callable[[str], str], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = load_model(models("vit"))
    expected = find_images([folder])
    first = vision_attn.gallery(model, str(folder), ["EdgeMap"], output=folder / "out")
    second = vision_attn.gallery(model, str(folder), ["EdgeMap"], output=folder / "other")
    assert (first.explained, second.explained) == (4, 4)
    assert find_images([folder]) == expected
    assert list(walk(folder)) == [str(path) for path in expected]
    assert f"{folder}: pictures of earlier results are passed over: {folder / 'out'}" in caplog.text
    assert len(find_images([folder / "out"])) == 12  # named itself it is taken at its word


def test_two_photos_never_have_one_picture(models: Callable[[str], str], tmp_path: Path) -> None:
    model = load_model(models("vit"))
    names = ["a-b/c/x", "a/b-c/x", "q/c/x", "q/b-c/x", "r/b-c/x"]
    for i, name in enumerate(names):
        path = tmp_path / "in" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), (50 * i, 0, 0)).save(path)
    summary = vision_attn.gallery(model, str(tmp_path / "in"), ["EdgeMap"], output=tmp_path / "out")
    pictures = {record["file"]: record["picture"] for record in summary.records()}
    assert len({name.casefold() for name in pictures.values()}) == len(names)
    for file, picture in pictures.items():
        red = np.asarray(Image.open(file))[0, 0, 0]
        assert (tmp_path / "out" / picture).is_file(), red
    arrays: list[Any] = [np.full((30, 40, 3), i, np.uint8) for i in range(3)]
    saved = model.explain(arrays, "EdgeMap").save(tmp_path / "arrays")
    assert len(list(saved.glob("*.EdgeMap.png"))) == 3


ONE_PHOTO = {
    "explain": lambda model, photo, place: model.explain(photo, "EdgeMap", output=place),
    "save": lambda model, photo, place: model.explain(photo, "EdgeMap").save(place),
    "gallery": lambda model, photo, place: vision_attn.gallery(
        model, str(photo), ["EdgeMap"], output=place, progress=Silent()
    ),
}


@pytest.mark.parametrize("door", ONE_PHOTO)
def test_the_picture_of_a_photo_is_not_written_over_another_photo(
    door: str, models: Callable[[str], str], tmp_path: Path
) -> None:
    model = load_model(models("vit"))
    for name in ("a.png", "a.EdgeMap.png"):
        Image.new("RGB", (20, 16), (9, 99, 50)).save(tmp_path / name)
    before = (tmp_path / "a.EdgeMap.png").read_bytes()
    with pytest.raises(ValueError, match="the photos lie there, and pictures would mix with them"):
        ONE_PHOTO[door](model, tmp_path / "a.png", tmp_path)
    assert (tmp_path / "a.EdgeMap.png").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.EdgeMap.png", "a.png"]


def test_beside_a_photo_alone_pictures_are_written_again_and_again(
    models: Callable[[str], str], tmp_path: Path
) -> None:
    model = load_model(models("vit"))
    Image.new("RGB", (20, 16), (9, 99, 50)).save(tmp_path / "a.png")
    for _ in range(2):
        model.explain(tmp_path / "a.png", "EdgeMap", output=tmp_path)
    assert (tmp_path / "a.EdgeMap.png").is_file()


@pytest.mark.parametrize("page", [vision_attn.inspect, vision_attn.live])
def test_a_page_is_not_written_over_a_photo(
    page: Callable[..., Page], models: Callable[[str], str], tmp_path: Path
) -> None:
    model = load_model(models("senet"))
    photo = tmp_path / "a.png"
    Image.new("RGB", (20, 16), (9, 99, 50)).save(photo)
    before = photo.read_bytes()
    with pytest.raises(ValueError, match="it is one of the photos: name another file"):
        page(model, photo, output=tmp_path / "." / "a.png", progress=Silent())
    assert photo.read_bytes() == before
