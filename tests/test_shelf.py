"""The shelf: what ships is small and whole; a network of it is built, tested, shown, fine-tuned."""

import csv
import hashlib
import importlib.util
import json
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import vision_attn
from vision_attn import load_model
from vision_attn.cli import main
from vision_attn.errors import ModelError
from vision_attn.models.checkpoint import unpack
from vision_attn.models.shelf import Card, Shelf
from vision_attn.training.flops import training_flops
from vision_attn.types import Trust

ROOT = Path(__file__).parent.parent
TINY = """
seed_everything: 3
model:
  network:
    class_path: vision_attn.models.SEResNet
    init_args: {num_classes: 10, layers: [1, 1, 1, 1], widths: [4, 6, 8, 10]}
data:
  source:
    class_path: vision_attn.data.Planted
    init_args: {size: 16, train: 60, val: 41, test: 37}
  batch_size: 20
trainer:
  max_epochs: 1
  accelerator: cpu
  enable_progress_bar: false
"""


def script() -> ModuleType:
    """docs/models.py as a module."""
    spec = importlib.util.spec_from_file_location("models_page", ROOT / "docs/models.py")
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "tiny.yaml").write_text(TINY)
    return vision_attn.fit(folder / "tiny.yaml", output=folder).folder


@pytest.fixture(scope="module")
def made(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shelf with one network of 10 classes of 16 x 16 images, and its page."""
    folder = tmp_path_factory.mktemp("made")
    words = ["--shelf", str(folder), "--docs", str(folder), "add", str(run), "tiny"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "sys.argv", ["models.py", *words, "--command", "vision-attn fit", "--licence", "MIT"]
        )
        script().main()
    return folder


@pytest.fixture
def shelf(made: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(made, tmp_path / "shelf"))


@pytest.fixture
def spec(shelf: Path) -> str:
    return f"vision_attn:{shelf / 'tiny.json'}"


def change(shelf: Path, **values: Any) -> None:
    """Put other values into the card's checkpoint."""
    card = json.loads((shelf / "tiny.json").read_text())
    card["checkpoint"] |= values
    (shelf / "tiny.json").write_text(json.dumps(card))


# what ships


def test_the_files_of_the_shelf_are_small() -> None:
    sizes = [path.stat().st_size for path in Shelf().folder.glob("*.safetensors")]
    assert all(size <= 6e6 for size in sizes)
    assert sum(sizes) <= 24e6


@pytest.mark.parametrize("card", list(Shelf()), ids=lambda card: card.name)
def test_what_ships_is_whole(card: Any) -> None:
    card.check()
    assert card.weights.stat().st_size == card.values["bytes"]
    model = load_model(f"vision_attn:{card.name}")
    assert (
        sum(p.numel() for p in model.network.parameters()) == card.values["network"]["parameters"]
    )
    photo = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    assert len(model.explain(photo).classes(99)) == len(model.classes)
    confusion = np.array(card.values["test"]["confusion"])
    assert confusion.sum() == card.values["test"]["images"] == card.values["data"]["test"]
    assert confusion.trace() / confusion.sum() == pytest.approx(card.values["test"]["top1"])


def test_the_page_is_that_of_the_cards(tmp_path: Path) -> None:
    page = script().write_page(Shelf(), tmp_path)
    assert page.read_text() == (ROOT / "docs/models.md").read_text(), "run python docs/models.py"
    drawn = {path.name for path in (ROOT / "docs/pictures/models").glob("*.png")}
    assert drawn == {f"{card.name}.png" for card in Shelf()}


# a network put on a shelf


@pytest.mark.parametrize(
    ("parts", "methods", "expected"),
    [
        ([("BA", 3)], "BA", "B, of 3 scored, on 50 images or more"),
        ([("", 3)], "", "none, of 3 scored, on 50 images or more"),
        ([("A", 1), ("CAB", 4)], "ACB", "A, of 5 scored, on 50 images or more"),
        ([("", 2), ("B", 1)], "B", "B, of 3 scored, on 50 images or more"),
    ],
)
@pytest.mark.xdist_group("made shelf")
def test_the_heatmap_to_trust_is_of_the_scores(
    parts: list[tuple[str, int]],
    methods: str,
    expected: str,
    shelf: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that the first folder trusts come first, in their order there."""
    folders = []
    for number, (trusted, scored) in enumerate(parts):
        folders.append(tmp_path / str(number))
        folders[-1].mkdir()
        scores = {
            "images": 50 + number,
            "settings": {"data": "photos"},
            "verdict": {"methods": [{}] * scored, "trusted": list(trusted)},
        }
        (folders[-1] / "scores.json").write_text(json.dumps(scores))
    before = (shelf / "tiny.json").read_text()
    words = ["--shelf", str(shelf), "--docs", str(shelf), "scored", "tiny", *map(str, folders)]
    monkeypatch.setattr("sys.argv", ["models.py", *words])
    script().main()
    after = (shelf / "tiny.json").read_text()
    found = Card.read(shelf / "tiny.json").values["trust"]
    assert (found["methods"], found["images"], found["data"]) == (list(methods), 50, "photos")
    assert json.loads(after) | {"trust": None} == json.loads(before)
    assert load_model(f"vision_attn:{shelf / 'tiny.json'}").trust == Trust(
        tuple(methods), 50, "photos"
    )
    assert f"| heatmap to trust | {expected} |" in (shelf / "models.md").read_text()


@pytest.mark.xdist_group("made shelf")
def test_the_weights_are_those_of_the_run_rounded(made: Path, run: Path) -> None:
    whole = unpack(run / "best.ckpt").weights
    shipped = load_file(made / "tiny.safetensors")
    assert {f"network.{name}" for name in shipped} == {n for n in whole if n.startswith("network.")}
    for name, weight in shipped.items():
        exact = whole[f"network.{name}"].numpy()
        half = exact.astype(np.float16) if exact.dtype == np.float32 else exact
        np.testing.assert_array_equal(weight.numpy(), half)
    digest = hashlib.sha256((made / "tiny.safetensors").read_bytes()).hexdigest()
    assert Shelf(made)["tiny"].values["sha256"] == digest


@pytest.mark.xdist_group("made shelf")
def test_the_card_says_what_was_measured(made: Path) -> None:
    """Against the planted images themselves, through the model as a person loads it."""
    from vision_attn.data import planted

    values = Shelf(made)["tiny"].values
    model = load_model(f"vision_attn:{made / 'tiny.json'}")
    splits = planted.Planted(size=16, train=60, val=41, test=37).load(Path(), 0.1, 0)
    mean, std = (np.array(v)[:, None, None] for v in (model.preprocess.mean, model.preprocess.std))

    def logits_of(part: Any) -> Any:
        pixels = (part.images.numpy() / 255 - mean) / std
        return model.network(torch.from_numpy(pixels).float()).detach()

    logits, labels = logits_of(splits.test), splits.test.labels
    assert values["test"]["top1"] == pytest.approx((logits.argmax(1) == labels).double().mean())
    assert values["test"]["low"] < values["test"]["top1"] < values["test"]["high"]
    cells = np.zeros((10, 10), int)
    np.add.at(cells, (labels.numpy(), logits.argmax(1).numpy()), 1)
    assert values["test"]["confusion"] == cells.tolist()
    found = vision_attn.training.calibrate(logits_of(splits.val), splits.val.labels)
    assert model.calibration.temperature == pytest.approx(found.temperature, rel=1e-3)
    assert model.calibration.threshold == pytest.approx(found.threshold, rel=1e-3)
    assert values["data"] | {"config": 0} == {
        **{"name": "planted", "config": 0, "train": 60, "held_out": 41, "test": 37},
        **{"licence": "MIT", "classes": model.classes},
    }
    pair = training_flops(model.network, torch.zeros(2, 3, *model.preprocess.input_size))
    assert values["training"]["flops"] == pytest.approx(60 * pair / 2)
    assert values["trust"] is None
    page = (made / "models.md").read_text()
    assert values["sha256"] in page
    assert (made / "pictures/models/tiny.png").is_file()


def test_it_ships_at_another_size_with_what_was_measured_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Photos of one colour each are the same at any size: what is right can be counted apart."""
    for name, red in (("ant", 60), ("bee", 200)):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(50):
            colour = (red + i, 250 - 4 * i, 30 + i)
            Image.new("RGB", (41, 37), colour).save(tmp_path / "set" / name / f"{i}.png")
    (tmp_path / "tiny.yaml").write_text(
        TINY.replace("vision_attn.data.Planted", "vision_attn.data.ImageFolder")
        .replace("size: 16, train: 60, val: 41, test: 37", f"path: {tmp_path / 'set'}, size: 16")
        .replace("num_classes: 10", "num_classes: 2")
        .replace("batch_size: 20", "batch_size: 8\n  val_fraction: 0.3")
    )
    run = vision_attn.fit(tmp_path / "tiny.yaml", output=tmp_path / "run").folder
    place = ["models.py", "--shelf", str(tmp_path / "shelf"), "--docs", str(tmp_path)]
    about = ["--command", "vision-attn fit", "--licence", "MIT"]
    root = ["--data-root", str(tmp_path)]
    for words in (["add", str(run), "tiny", *root, *about], ["sized", "tiny", "24", *root]):
        monkeypatch.setattr("sys.argv", [*place, *words])
        script().main()
        if words[0] == "add":
            before = Shelf(tmp_path / "shelf")["tiny"].values
    card = Shelf(tmp_path / "shelf")["tiny"]
    assert card.values["sha256"] == before["sha256"]
    assert before["checkpoint"]["preprocess"]["input_size"] == [16, 16]
    assert card.values["checkpoint"]["preprocess"]["input_size"] == [24, 24]
    assert card.values["checkpoint"]["preprocess"]["crop_pct"] == 1
    model = load_model(f"vision_attn:{card.path}")
    data = vision_attn.data.ImageData(
        vision_attn.data.ImageFolder(str(tmp_path / "set"), size=24, shorter_side=24),
        val_fraction=0.3,
    )
    data.setup("test")
    (batch,) = data.test_dataloader()
    assert batch.images.shape == (20, 3, 24, 24)
    seen = model.preprocess
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (seen.mean, seen.std))
    logits = model.network((batch.images / 255 - mean) / std)
    right = (logits.argmax(1) == batch.labels).double().mean().item()
    test = card.values["test"]
    assert (test["images"], test["top1"]) == (20, pytest.approx(right))
    assert "before rounding" not in (tmp_path / "models.md").read_text()
    assert card.values["network"]["flops"] > 2 * before["network"]["flops"]
    assert card.values["trust"] is None
    small = load_model(f"vision_attn:{card.path}", image_size=16)
    assert model.calibration.threshold is not None
    assert small.calibration.threshold is None


def test_folders_with_imagenets_numbers_are_classes_with_names() -> None:
    from vision_attn.runs.labels import label_of

    names = script().named(["n01440764", "church", "n03888257"])
    assert names == ["tench, Tinca tinca, n01440764", "church", "parachute, chute, n03888257"]
    assert label_of("val/n03888257/1.JPEG", names) == 2


@pytest.mark.xdist_group("made shelf")
def test_its_row_and_the_command_that_lists_it(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (row,) = vision_attn.list_models(made)
    size = (made / "tiny.safetensors").stat().st_size
    assert (row["name"], row["size"]) == ("tiny", size)
    assert (row["network"], row["data"]) == ("SEResNet", "planted")
    assert main(["models", "--shelf", str(made)]) == 0
    printed = capsys.readouterr().out
    assert "tiny" in printed
    assert f"{row['accuracy']:.1%}" in printed


# loaded


@pytest.mark.xdist_group("made shelf")
def test_random_weights_and_another_size_are_not_calibrated(spec: str) -> None:
    own = load_model(spec)
    assert own.weights == "trained"
    assert own.calibration.threshold is not None
    assert load_model(spec, image_size=16).calibration == own.calibration
    larger = load_model(spec, image_size=(24, 40))
    assert larger.preprocess.input_size == (24, 40)
    assert larger.calibration.threshold is None
    drawn = load_model(spec, pretrained=False)
    assert (drawn.weights, drawn.calibration.threshold) == ("random", None)
    assert not torch.equal(drawn.network.fc.weight, own.network.fc.weight)


@pytest.mark.xdist_group("made shelf")
def test_it_takes_no_arguments_of_the_network(spec: str) -> None:
    with pytest.raises(ModelError, match="takes no model arguments, got depth"):
        load_model(spec, depth=3)


@pytest.mark.xdist_group("made shelf")
def test_an_unknown_name_offers_the_nearest(made: Path) -> None:
    with pytest.raises(ModelError, match="named 'tniy'; did you mean tiny"):
        Shelf(made)["tniy"]
    with pytest.raises(ModelError, match="named 'xyz'; there are tiny"):
        Shelf(made)["xyz"]
    with pytest.raises(ModelError, match="no pretrained network named 'nothing_like_it'"):
        load_model("vision_attn:nothing_like_it")


@pytest.mark.xdist_group("made shelf")
def test_a_damaged_file_is_named_by_its_checksum(shelf: Path, spec: str) -> None:
    path = shelf / "tiny.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    found = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    expected = hashlib.sha256(whole).hexdigest()[:12]
    said = (
        rf"tiny.safetensors: damaged: its SHA-256 checksum is {found}..., the card says {expected}"
    )
    with pytest.raises(ModelError, match=f"{said}.*install vision-attn again"):
        load_model(spec)
    path.unlink()
    with pytest.raises(ModelError, match=f"no such file; expected .* checksum {expected}.*install"):
        load_model(spec)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "damaged: expected a card in JSON"),
        ("[]", "damaged: a card without sha256"),
        ('{"sha256": 3}', "damaged: a card without sha256"),
        ('{"sha256": "3", "bytes": 3, "checkpoint": []}', "damaged: a card without checkpoint"),
        (
            '{"sha256": "3", "bytes": 3, "checkpoint": {}, "data": 4}',
            "damaged: a card without data.name: install vision-attn again",
        ),
    ],
)
@pytest.mark.xdist_group("made shelf")
def test_a_damaged_card_is_one_line(text: str, message: str, shelf: Path, spec: str) -> None:
    (shelf / "tiny.json").write_text(text)
    with pytest.raises(ModelError, match=message):
        load_model(spec)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format": 99}, "in the format of another version"),
        ({"network": {"class_path": "os.system", "init_args": {}}}, "refused to build 'os.system'"),
        ({"calibration": {"temperature": -1.0}}, "temperature must be above 0"),
        ({"calibration": {"threshold": "high"}}, "cannot be rebuilt"),
        ({"classes": ["a"]}, "expected 10 class names, one for each output, got 1"),
    ],
)
@pytest.mark.xdist_group("made shelf")
def test_a_card_that_asks_for_what_may_not_be_is_refused(
    values: dict[str, int | list[str] | dict[str, Collection[str] | float | str]],
    message: str,
    shelf: Path,
    spec: str,
) -> None:
    change(shelf, **values)
    with pytest.raises(ModelError, match=message):
        load_model(spec)


# tested, and asked


@pytest.mark.xdist_group("made shelf")
def test_the_test_command_prints_the_cards_accuracy(
    shelf: Path,
    spec: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
    change(shelf, classes=[f"class {i}" for i in range(10)])  # other names than the data's
    assert main(["test", "--ckpt_path", spec, *words]) == 0
    card = json.loads((shelf / "tiny.json").read_text())
    assert f"{card['test']['top1']:.4f}" in capsys.readouterr().out
    summary = json.loads(Path("outputs/tiny/test.json").read_text())
    assert summary["test/top1"] == pytest.approx(card["test"]["top1"])
    assert summary["test/ece"] == pytest.approx(card["test"]["calibration_error"], abs=1e-6)
    assert not list(shelf.glob("*.txt"))


@pytest.mark.xdist_group("made shelf")
def test_predictions_are_calibrated(
    shelf: Path, spec: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
    change(shelf, calibration={"temperature": 7.0, "threshold": 0.5})
    assert main(["predict", "--ckpt_path", spec, "--images", str(photos), *words]) == 0
    with Path("outputs/tiny/predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    model = load_model(spec)
    assert len(rows) == 3
    for row in rows:
        logits = model.network(model.preprocess(row["file"])[None])[0] / 7.0
        assert float(row["probability"]) == pytest.approx(logits.softmax(0).max().item(), abs=1e-4)


@pytest.mark.xdist_group("made shelf")
def test_a_photo_unlike_what_is_known_is_said_to_be(
    shelf: Path, spec: str, photos: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    for threshold, warned in ((1.0, True), (0.0, False)):
        change(shelf, calibration={"temperature": 3.0, "threshold": threshold})
        summary = vision_attn.gallery(
            load_model(spec), str(photos), ["GradCAM", "EdgeMap"], output=folder
        )
        for record in summary.records():
            sentence = (
                "Unlike the images that the network knows: the most probable class has "
                f"{record['probability']:.1%}, where 95% of held-out images have at least 100.0%"
            )
            assert record["unlike"] == (sentence if warned else "")
            assert summary.page is not None
            assert (sentence in summary.page.read_text()) == warned
        with (
            Image.open(folder / "cat.GradCAM.png") as picture,
            Image.open(folder / "cat.grid.png") as grid,
        ):
            sizes = picture.size, grid.size
        if warned:
            larger = sizes
    assert larger[0][1] > sizes[0][1]  # a line below the picture, and one above the grid
    assert larger[1][1] > sizes[1][1]


@pytest.mark.xdist_group("made shelf")
def test_an_explanation_says_so_and_shows_calibrated_probabilities(
    shelf: Path, spec: str, photos: Path
) -> None:
    change(shelf, calibration={"temperature": 3.0, "threshold": 1.0})
    model = load_model(spec)
    found = model.explain(photos / "cat.png", "GradCAM")
    logits = model.network(model.preprocess(photos / "cat.png")[None])[0].detach()
    np.testing.assert_allclose(found.probabilities, (logits / 3).softmax(0).numpy(), rtol=1e-5)
    assert found.predicted == logits.argmax()
    assert found.unlike.startswith("Unlike the images that the network knows")
    assert found.unlike in repr(found)
    raw = unpack(spec)
    change(shelf, calibration={})
    plain = load_model(spec).explain(photos / "cat.png", "GradCAM")
    np.testing.assert_array_equal(plain[0].values, found[0].values)  # of the raw network
    assert plain.unlike == ""
    assert raw.about["calibration"]["temperature"] == 3.0


def test_a_model_without_a_threshold_says_nothing(
    models: Callable[[str], str], photos: Path, tmp_path: Path
) -> None:
    summary = vision_attn.gallery(load_model(models("vit")), str(photos), output=tmp_path / "out")
    assert all("unlike" not in record for record in summary.records())


# fine-tuned


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """Ten photos of each of three kinds, apart in colour."""
    rng = np.random.default_rng(0)
    for kind, colour in (("red", (200, 40, 40)), ("green", (40, 200, 40)), ("blue", (40, 40, 200))):
        folder = tmp_path / "task" / kind
        folder.mkdir(parents=True)
        for at in range(10):
            pixels = np.clip(np.array(colour) + rng.normal(0, 40, (48, 64, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{at}.png")
    return tmp_path / "task"


FIT = ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]


@pytest.mark.slow
@pytest.mark.parametrize("source", ["shelf", "checkpoint"])
@pytest.mark.xdist_group("made shelf")
def test_a_network_learns_a_new_task_from_its_weights(
    source: str,
    spec: str,
    run: Path,
    task: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    weights = spec if source == "shelf" else str(run / "best.ckpt")
    words = [
        "--model.weights",
        weights,
        "--data.source.path",
        str(task),
        "--data.source.size",
        "32",
    ]
    assert main(["fit", "--config", "finetune_shelf_imagefolder", *words, *FIT]) == 0
    printed = "".join(capsys.readouterr().out.split())  # lines are broken at the terminal's width
    assert f"start: 88 of 90 tensors from {weights}".replace(" ", "") in printed
    assert "new: fc.weight, fc.bias, for 3 classes instead of 10".replace(" ", "") in printed
    folder = Path("outputs/finetune_shelf_imagefolder/version_0")
    summary = json.loads((folder / "summary.json").read_text())
    model = load_model(folder / "best.ckpt")
    assert model.classes == ["blue", "green", "red"]
    assert model.preprocess.mean == pytest.approx(load_model(spec).preprocess.mean)
    assert summary["test/top1"] > 0.5  # by chance a third


@pytest.mark.xdist_group("made shelf")
def test_what_does_not_fit_is_one_line(
    spec: str,
    models: Callable[[str], str],
    task: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)

    def complaint(*words: Any) -> str:
        assert main(["fit", *words, *FIT]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert not Path("outputs").exists()
        return line

    shelf = ["--config", "finetune_shelf_imagefolder", "--data.source.path", str(task)]
    assert "no pretrained network named 'nothing_like_it'" in complaint(
        *shelf, "--model.weights", "vision_attn:nothing_like_it"
    )
    assert "none.ckpt: no such file; expected a checkpoint" in complaint(
        *shelf, "--model.weights", "none.ckpt"
    )
    assert "the config names no network: give --model.weights" in complaint(*shelf)
    tiny = ["--config", "tiny.yaml"]
    assert "weights do not fit SEResNet" in complaint(*tiny, "--model.weights", models("vit"))
    assert (
        "no training state to continue from: start from its weights with --model.weights"
        in complaint(*tiny, "--ckpt_path", spec)
    )
