"""`vision-attn score`, called in this process with tiny networks."""

import csv
import json
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import nbformat
import pytest
import torch
from nbclient import NotebookClient
from PIL import Image

import vision_attn
from vision_attn.cli import main
from vision_attn.commands.score import keep_trust
from vision_attn.data.planted import paint
from vision_attn.evaluate import Deletion, DroppedTokens, PointingGame, paired_bootstrap
from vision_attn.hub import load_model
from vision_attn.methods import GradCAM, RandomMap
from vision_attn.models import ViT
from vision_attn.models.checkpoint import describe
from vision_attn.runs.scoring.evidence import open_data
from vision_attn.types import Trust

QUICK = "--steps", 4, "--batch-size", 4, "--method", "GradCAM"
BASELINES = {"RandomMap", "CentreGaussian", "EdgeMap"}


@pytest.mark.xdist_group("scored")
def test_the_table_is_what_the_metrics_say(
    planted: Path, models: Callable[[str], str], scores: Callable[[Path], dict[str, Any]]
) -> None:
    model = load_model(models("vit"))
    data = open_data("planted", model, Path("."))
    samples = [data[item] for item in data.chosen(10)]
    images = torch.stack([sample.image for sample in samples])
    predicted = model.network(images).argmax(1)
    methods = scores(planted)
    settings = json.loads((planted / "scores.json").read_text())["settings"]
    assert settings["removal"] == "tokens"
    removal = DroppedTokens(model.network.forward_kept_tokens, (4, 6))
    found = {}
    for explainer in (GradCAM(), RandomMap()):
        maps = explainer(model.network, images, predicted, model.layout).values
        deletion, pointing = Deletion(removal, steps=4), PointingGame()
        with torch.autocast("cpu", torch.bfloat16, enabled=settings["precision"] == "bf16"):
            deletion.update(images, maps, predicted)
        pointing.update(maps, torch.stack([sample.masks["object"] for sample in samples]))
        found[str(explainer)] = deletion.per_image()
        for name, metric in (("deletion", deletion), ("pointing_game", pointing)):
            row = methods[str(explainer)]["scores"][name]
            assert row["mean"] == pytest.approx(metric.compute().item(), abs=2e-3)
            assert row["standard_error"] == pytest.approx(metric.standard_error().item(), abs=2e-3)
            assert row["n"] == 10
    ahead = methods["GradCAM"]["scores"]["deletion"]["better_than"]["RandomMap"]
    want = paired_bootstrap(found["RandomMap"], found["GradCAM"])
    assert [ahead["mean"], ahead["low"], ahead["high"]] == pytest.approx(list(want), abs=2e-3)
    assert ahead["certain"] == (ahead["low"] > 0)


@pytest.mark.parametrize(("limit", "batch"), [(11, 50), (13, 5)])
def test_the_time_of_all_is_told_after_the_first_eight_images(
    limit: int,
    batch: int,
    models: Callable[[str], str],
    score: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In one line on stderr, where that is no terminal: as if each look at the clock took 6 s."""
    clock = count(step=6.0)
    monkeypatch.setattr("vision_attn.commands.options.perf_counter", lambda: next(clock))
    words = "--steps", 2, "--method", "GradCAM", "--limit", limit, "--batch-size", batch
    assert score(models("vit"), "planted", *words, "-o", tmp_path / "out") == 0
    (line,) = capsys.readouterr().err.splitlines()
    methods = 4  # with the baselines
    looks = methods if batch > 8 else 2 * methods  # a task each; 5 images and 5 in the other
    done = 8 if batch > 8 else 10
    seconds = 6 * looks * limit / done
    told = f"{seconds:.0f} seconds" if seconds < 100 else f"{seconds / 60:.0f} minutes"
    assert line == f"vision-attn: scoring: about {told} for {limit} images, by the first 8"


def test_a_few_images_tell_no_time(
    models: Callable[[str], str],
    score: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "--steps", 2, "--method", "GradCAM", "--limit", 8, "-o", tmp_path / "out"
    assert score(models("vit"), "planted", *words) == 0
    assert not capsys.readouterr().err


@pytest.mark.xdist_group("scored")
def test_the_files_say_the_same(planted: Path, scores: Callable[[Path], dict[str, Any]]) -> None:
    methods = scores(planted)
    assert set(methods) == {"GradCAM", *BASELINES}
    rows = list(csv.DictReader((planted / "scores.csv").read_text().splitlines()))
    assert len(rows) == sum(len(method["scores"]) for method in methods.values())
    for row in rows:
        want = methods[row["method"]]["scores"][row["metric"]]
        assert float(row["mean"]) == pytest.approx(want["mean"])
        if row["method"] == "GradCAM":
            assert float(row["ahead_of_EdgeMap"]) == want["better_than"]["EdgeMap"]["mean"]
    text = (planted / "scores.md").read_text()
    mean = methods["GradCAM"]["scores"]["energy_inside"]["mean"]
    assert f"{mean:.3f}".lstrip("0") in text
    assert "± " not in text.split("##")[1]
    for name in ("curves.png", "best_and_worst.png"):
        with Image.open(planted / name) as picture:
            assert min(picture.size) > 300
    assert not (planted / "sanity.png").exists()


class Believed:
    """Scores that trust these methods."""

    def __init__(self, *methods: Any) -> None:
        self.methods = methods

    def verdict(self) -> SimpleNamespace:
        return SimpleNamespace(of=lambda trust: list(self.methods) if trust == "yes" else [])

    def trust(self) -> Trust:
        return Trust(self.methods, 37, "photos")


def test_explain_takes_what_is_trusted_and_says_where_nothing_is(
    models: Callable[[str], str], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = Path(shutil.copy(models("vit"), tmp_path / "best.ckpt"))
    words = "explain", checkpoint, photos, "--device", "cpu", "--limit", 1, "-o"

    def explained(folder: Path) -> tuple[Any, Any, int]:
        assert main([*map(str, words), str(folder)]) == 0
        record = json.loads((folder / "results.jsonl").read_text())
        with Image.open(folder / record["picture"]) as picture:
            return record["method"], record.get("unproven", False), picture.size[1]

    keep_trust(checkpoint, cast(Any, Believed()))
    before = explained(tmp_path / "before")
    assert before[:2] == ("LibraGradient", True)
    capsys.readouterr()
    keep_trust(checkpoint, cast(Any, Believed("MaskedRegression", "GradCAM")))
    kept = tmp_path / "best.trust.json"
    assert f"{kept}: explain takes the best" in "".join(capsys.readouterr())
    after = explained(tmp_path / "after")
    assert after[:2] == ("GradCAM", False)
    assert after[2] < before[2]  # without the sentence below it


@pytest.mark.xdist_group("scored")
def test_from_python_it_is_the_same(planted: Path, models: Callable[[str], str]) -> None:
    found = vision_attn.score(
        load_model(models("vit")), "planted", "GradCAM",
        limit=10, steps=4, batch_size=4, name=models("vit"),
    )  # fmt: skip
    assert found.to_dict() == json.loads((planted / "scores.json").read_text())


@pytest.mark.slow
def test_all_methods_and_the_sanity_check(
    models: Callable[[str], str],
    tmp_path: Path,
    score: Callable[..., int],
    scores: Callable[[Path], dict[str, Any]],
) -> None:
    words = "--limit", 3, "--steps", 2, "--sanity", 2
    methods = "GradCAM", "IntegratedGradients(steps=2)", "Occlusion(window=16, stride=16)"
    given = [word for method in methods for word in ("--method", method)]
    assert score(models("vit"), "planted", *words, *given, "-o", tmp_path) == 0
    methods = scores(tmp_path)
    assert methods["RandomMap"]["scores"]["randomisation"]["mean"] == pytest.approx(1)
    assert methods["GradCAM"]["scores"]["randomisation"]["n"] == 2
    assert methods["GradCAM"]["scores"]["randomisation"]["mean"] < 1
    layers = json.loads((tmp_path / "scores.json").read_text())["layers"]
    assert layers[0] == "head"
    assert len(methods["GradCAM"]["curves"]["ssim"]) == len(layers)
    assert (tmp_path / "sanity.png").is_file()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere.ckpt", "planted"], "nowhere.ckpt: no such file; expected a checkpoint"),
        (["{vit}", "plantd"], "no data 'plantd': did you mean planted"),
        (["{vit}", "{vit}"], "expected a folder of images, got a file"),
        (
            ["{vit}", "planted", "--method", "Rolout"],
            "unknown method 'Rolout' (did you mean 'Rollout'?)",
        ),
        (["{senet}", "planted", "--method", "Rollout"], "Rollout does not fit this model"),
        (["{senet}", "planted", "--removal", "tokens"], "removal tokens: SEResNet is not a ViT"),
        (["{vit}", "planted", "--shard", "3/2"], "expected I/N, such as 1/4 to 4/4, got '3/2'"),
        (
            ["{vit}", "planted", "--sanity", "some"],
            "expected a whole number, 0 or more, got 'some'",
        ),
        (["{vit}", "planted", "--limit", "0"], "expected a whole number of at least 1, got '0'"),
        (["{vit}", "planted", "--output", "/proc/here"], "--output /proc/here: cannot write there"),
        (["{vit}", "cifar10", "--data.root", "/proc"], "/proc"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    models: Callable[[str], str],
    tmp_path: Path,
    words: list[str],
    told: str,
    score: Callable[..., int],
    complaint: Callable[[], str],
) -> None:
    words = [word.format(vit=models("vit"), senet=models("senet")) for word in words]
    given = [] if "--output" in words else ["--output", str(tmp_path)]
    assert score(*words, *given) == 2
    lines = complaint().splitlines()
    assert len(lines) == 1
    assert told in lines[0]


def test_a_network_that_gives_no_numbers_stops_the_run(
    models: Callable[[str], str],
    tmp_path: Path,
    score: Callable[..., int],
    complaint: Callable[[], str],
) -> None:
    contents = torch.load(models("vit"))
    contents["state_dict"]["network.head.bias"][1] = float("nan")
    torch.save(contents, tmp_path / "broken.ckpt")
    assert score(tmp_path / "broken.ckpt", "planted", *QUICK, "-o", tmp_path / "out") == 2
    assert "its weights 'head.bias' hold NaN" in complaint()


NOTEBOOK = Path(__file__).parents[3] / "notebooks" / "06_which_heatmap_to_trust.ipynb"


@pytest.mark.xdist_group("demo")
@pytest.mark.slow
def test_notebook(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = ViT(64, 8, 10, dim=12, depth=2, heads=2, pool="mean", class_token=False)
    about = {
        "format": 1,
        "network": describe(network),
        "classes": paint(0, 1).classes,
        "preprocess": {"input_size": (64, 64), "mean": (0.5,) * 3, "std": (0.25,) * 3},
        "version": "0",
    }
    weights = {f"network.{name}": weight for name, weight in network.state_dict().items()}
    checkpoint = tmp_path / "vit.ckpt"
    torch.save({"state_dict": weights, "vision_attn": about}, checkpoint)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "strip the outputs"
    (cell,) = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    cell.source = f"honest = cheat = {str(checkpoint)!r}\nimages = 20"
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute(cwd=str(NOTEBOOK.parent))
    pictures = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 3
