"""The demo, small: three runs, the page, and the notebooks on what it made."""

import json
import re
import shlex
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest
from nbclient import NotebookClient
from PIL import Image

from vision_attn.cli import main
from vision_attn.data import example_photos
from vision_attn.hub import load_model
from vision_attn.pages.demo.photos import photo_networks

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("demo")]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "demo"
    assert main(["demo", "--minutes", "0.02", "--output", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("name", ["vit", "senet", "spatial_cnn"])
def test_each_network_is_trained_and_loads(demo: Path, name: str) -> None:
    model = load_model(demo / name / "best.ckpt")
    assert len(model.classes) == 10
    assert model.preprocess.input_size == (64, 64)
    results = json.loads((demo / name / "summary.json").read_text())
    assert 0 <= results["test/top1"] <= 1
    assert results["minutes"] > 0


def test_the_page_shows_every_map_beside_its_mask(demo: Path) -> None:
    page = (demo / "index.html").read_text()
    sources = re.findall(r'(?:src|href)="\./([^"#]+)"', page)
    assert len(sources) > 2 * 10 * 8  # ten images, eight columns, small and large
    missing = [source for source in sources if not (demo / unquote(source)).is_file()]
    assert not missing
    assert page.count("the object") >= 10


def test_the_page_begins_with_photos_if_a_network_knows_them(demo: Path) -> None:
    page = (demo / "index.html").read_text()
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", page)
    known = [spec.removeprefix("vision_attn:") for spec in photo_networks()]
    first = ["Where they look in photos", "Ask the networks"] if known else []
    assert headings[: len(first) + 1] == [*first, "Trained here"]
    assert (demo / "live.html").is_file() == bool(known)
    section = page.partition("<h2>Where they look in photos</h2>")[2].partition("</section>")[0]
    for model in known:
        method = "LibraGradient(smooth=1.0)" if "vit" in model else "GradCAM"
        for name in example_photos():
            assert f"photos.{name}.{model}.{method}" in unquote(section)


LITTLE = {
    "explain": "--device cpu",
    "inspect": "--device cpu",
    "live": "--device cpu",
    "score": "--device cpu --limit 2 --steps 2 --sanity 0",
    "fit": "--trainer.max_epochs 1 --data.source.train 40 --data.source.val 20 "
    "--data.source.test 20",
}


def test_the_next_steps_work_as_they_are_written(
    demo: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = (demo / "index.html").read_text().partition("<h2>What next</h2>")[2]
    commands = re.findall(r"<code>(.*?)</code>", section)
    words = [shlex.split(unescape(re.sub(r"</?span>", "", line))) for line in commands]
    assert [line[1] for line in words] == ["explain", "explain", "inspect", "live", "score", "fit"]
    (photos / "cat.png").rename(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    for line in words:
        assert line[0] == "vision-attn"
        random = ["--pretrained", "false"] if line[2].startswith("timm:") else []  # no download
        assert main([*line[1:], *shlex.split(LITTLE[line[1]]), *random]) == 0
    for made in (
        "look/index.html",
        "explain/index.html",
        "inspect.html",
        "live.html",
        "score/scores.md",
    ):
        assert (tmp_path / "outputs" / made).is_file()


def test_each_network_has_its_learning_curves_on_the_page(demo: Path) -> None:
    page = (demo / "index.html").read_text()
    for name, title in (("vit", "Vision Transformer"), ("senet", "SENet")):
        section = page.partition(f"<h2>How the {title} learned</h2>")[2].partition("</section>")[0]
        figures = re.findall(r'src="\./([^"]+)" width="(\d+)"', section)
        curves = [f"page/{name}.loss.png", f"page/{name}.top-1_accuracy.png"]
        assert [file for file, _ in figures[:2]] == curves
        for file, width in figures:
            with Image.open(demo / unquote(file)) as picture:
                assert picture.width == int(width)


def test_minutes_must_be_a_positive_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--minutes", "soon"]) == 2
    assert "expected a number of minutes above 0, got 'soon'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("01_train_and_look", "images, epochs = 256, 1"),
        ("02_inside_attention", "number, spatial_cnn = 3, {demo!r} + '/spatial_cnn/best.ckpt'"),
    ],
)
def test_notebook(demo: Path, name: str, parameters: str) -> None:
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "strip the outputs"
    (cell,) = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    cell.source = parameters.format(demo=str(demo))
    NotebookClient(notebook, timeout=240, kernel_name="python3").execute(cwd=str(NOTEBOOKS))
    pictures = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert len(pictures) >= 2
