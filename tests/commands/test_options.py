"""One flag, one meaning: options of the same name are alike in every command."""

import argparse
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from vision_attn.cli import COMMANDS, Parser, main
from vision_attn.commands import options
from vision_attn.types import Model

# Where a flag differs among commands, and why.
EXCEPTIONS = {
    "--target": "explain takes one class, inspect some beside the likeliest, score whose class",
}


def parser_of(command: str) -> argparse.ArgumentParser:
    parser = Parser(prog=f"vision-attn {command}")
    import_module(f"vision_attn.commands.{command}").add_arguments(parser)
    return parser


def meaning(text: str) -> str:
    """What a flag's help says of every command: all up to a colon, without the default."""
    return re.split(r":|;| \(default", text)[0]


def kind(action: argparse.Action) -> tuple[object, ...]:
    metavar = "FILE or DIR" if action.metavar in ("FILE", "DIR") else action.metavar
    return type(action), action.type, metavar, action.nargs, tuple(action.option_strings)


def flags() -> dict[str, dict[str, argparse.Action]]:
    """The visible actions of each long flag, by command."""
    found: dict[str, dict[str, argparse.Action]] = defaultdict(dict)
    for command in COMMANDS:
        for action in parser_of(command)._actions:
            for option in action.option_strings:
                if option.startswith("--") and action.help != argparse.SUPPRESS:
                    found[option][command] = action
    return found


@pytest.mark.parametrize("flag", [flag for flag, used in flags().items() if len(used) > 1])
def test_a_flag_means_the_same_in_every_command(flag: Any) -> None:
    actions = flags()[flag].values()
    if flag in EXCEPTIONS:
        assert len({(meaning(a.help or ""), kind(a)) for a in actions}) > 1, "no exception any more"
        return
    assert len({meaning(action.help or "") for action in actions}) == 1
    assert len({kind(action) for action in actions}) == 1


def test_o_is_output_in_every_command_that_writes() -> None:
    for command in COMMANDS:
        short = {option: a for a in parser_of(command)._actions for option in a.option_strings}
        if command not in ("configs", "models", "probe"):
            assert short["-o"] is short["--output"]
    found = flags()
    assert {"--limit", "--output", "--method", "--seed", "--batch-size"} <= set(found)
    assert set(found["--limit"]) == {
        *("ablate", "compare", "diagnose", "explain", "features"),
        *("inspect", "live", "pictures", "score"),
    }


# before a model is built


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a model is built."""

    def built(*args: Any, **kwargs: Any) -> None:
        pytest.fail("the model was built")

    monkeypatch.setattr(options, "load", built)


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        (["explain", "MODEL", "nothere.jpg"], 1, "nothere.jpg: no such file or folder"),
        (["explain", "timm:vit_tiny_patch16_224", "no.mp4"], 1, "no.mp4: no such file or folder"),
        (["explain", "MODEL", "none", "--frames", "5"], 1, "none: no such file or folder"),
        (["explain", "MODEL", ".", "--masks", "none"], 2, "--masks none: expected a folder"),
        (["inspect", "MODEL", "nothere.jpg"], 1, "nothere.jpg: no such file or folder"),
        (["features", "MODEL", "nothere.jpg"], 1, "nothere.jpg: no such file or folder"),
        (["features", "MODEL", ".", "--nearest", "none"], 1, "none: no such file or folder"),
        (["compare", "MODEL", "MODEL", "nothere.jpg"], 1, "nothere.jpg: no such file or folder"),
        (["ablate", "MODEL", "nothere"], 2, "no data 'nothere': expected planted"),
        (["diagnose", "MODEL", "nothere"], 2, "no data 'nothere': expected planted"),
        (["score", "MODEL", "nothere"], 2, "no data 'nothere': expected planted"),
        (["score", "MODEL", "planed"], 2, "no data 'planed': did you mean planted"),
        (["fit", "--config", "nothere"], 2, "no such config file: nothere"),
    ],
)
def test_a_path_that_leads_nowhere_is_one_line_before_the_model_is_built(
    words: list[str],
    status: int,
    line: str,
    models: Callable[[str], str],
    no_model: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([models("vit") if word == "MODEL" else word for word in words]) == status
    (complaint,) = capsys.readouterr().err.splitlines()
    assert complaint.startswith(f"vision-attn: error: {line}")


def test_weights_that_are_not_there_are_missed_before_the_model_is_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import timm

    monkeypatch.setattr(timm, "create_model", lambda *a, **k: pytest.fail("the model was built"))
    words = ["export", "timm:vit_tiny_patch16_224", "--weights", "none.pth", "-o", "x.onnx"]
    assert main([*words, "--device", "cpu"]) == 2
    assert "none.pth: no such file; expected a checkpoint" in capsys.readouterr().err


def test_an_image_to_predict_that_is_not_there_is_missed_before_the_network_is_made(
    models: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from vision_attn.fitting.run import TrainingRun

    monkeypatch.setattr(TrainingRun, "instantiate_classes", lambda self: pytest.fail("made"))
    words = ["predict", "--ckpt_path", models("vit"), "--images", "nothere.jpg"]
    assert main(words) == 2
    assert "--images nothere.jpg: no such file or folder" in capsys.readouterr().err


# one line each, as it was


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--device", "meta"], "device"),
        (["--image-size", "100000"], "image_size"),
    ],
)
def test_what_no_machine_has_is_one_line(
    words: list[str],
    line: str,
    models: Callable[[str], str],
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain", models("vit"), str(photos), *words, "-o", str(tmp_path / "o")]) == 2
    (complaint,) = capsys.readouterr().err.splitlines()
    assert line in complaint


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["diagnose", "MODEL", "none"], "none: no image in this folder"),
        (["diagnose", "MODEL", "planted", "--limit", "0"], "--limit"),
        (["diagnose", "MODEL", "planted", "--limit", "1.5"], "--limit"),
        (["diagnose", "MODEL", "planted", "--batch-size", "-1"], "--batch-size"),
        (["diagnose", "MODEL", "planted", "--registers", "0"], "--registers"),
        (["diagnose", "MODEL", "planted", "--limit", "2", "--device", "meta"], "device"),
        (["ablate", "MODEL", "none"], "none: no image in this folder"),
        (["ablate", "MODEL", "planted", "--limit", "1"], "limit must be at least 2, got 1"),
        (["ablate", "MODEL", "planted", "--prune", "-1"], "--prune"),
        (["ablate", "MODEL", "planted", "--part", "tails"], "--part"),
        (["ablate", "MODEL", "planted", "--replacement", "none"], "--replacement"),
        (["ablate", "MODEL", "planted", "--target", "ant"], "ant"),
        (["ablate", "CNN", "planted", "--limit", "2"], "no attention call was seen"),
        (["compare", "MODEL", "MODEL", "none"], "none: no image in this folder"),
        (["compare", "MODEL", "CNN", "photos", "--method", "Rollout"], "Rollout"),
        (["compare", "MODEL", "MODEL", "photos", "--shown", "0"], "--shown"),
        (["compare", "MODEL", "MODEL", "photos", "--method", "Rolout"], "Rolout"),
        (["compare", "MODEL", "MODEL"], "no image given"),
    ],
)
def test_wrong_values_and_empty_folders_are_one_line(
    words: list[str],
    line: str,
    models: Callable[[str], str],
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "none").mkdir()
    places = {"MODEL": "vit", "CNN": "senet"}
    words = [models(places[word]) if word in places else word for word in words]
    words = [str(photos) if word == "photos" else word for word in words]
    device = [] if "--device" in words else ["--device", "cpu"]
    assert main([*words, *device]) in (1, 2)
    (complaint,) = capsys.readouterr().err.splitlines()
    assert complaint.startswith("vision-attn")
    assert line in complaint
    assert len(complaint) < 400


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--trainer.devices", "-3"], "-3"),
        (["--trainer.accelerator", "tpu"], "needs the package torch_xla"),
        (["--name", "../../x"], "--name '../../x': expected the name of a folder"),
    ],
)
def test_what_no_run_can_be_is_one_line(
    words: list[str],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "--config", "vit_planted", *words]) == 2
    lines = [x for x in capsys.readouterr().err.splitlines() if not x.startswith("Seed set")]
    assert len(lines) == 1
    assert line in lines[0]
    assert not list(tmp_path.parent.glob("x"))


def test_explain_keeps_what_is_there(
    models: Callable[[str], str], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [models("senet"), "gone.png", str(photos), "-o", str(tmp_path / "out")]
    assert main(["explain", *words, "--device", "cpu"]) == 1
    captured = capsys.readouterr()
    assert captured.err == (
        "vision-attn: error: gone.png: no such file or folder: check the path\n"
    )
    assert captured.out == f"3 of 3 images explained: {tmp_path / 'out'}\n"


def test_the_whole_photo_is_seen_where_that_is_asked(
    models: Callable[[str], str], photos: Path, tmp_path: Path
) -> None:
    def seen(*more: str) -> tuple[Model, list[float]]:
        words = [models("vit"), str(photos / "cat.png"), "--device", "cpu", *more]
        args = parser_of("inspect").parse_args(words)
        model = options.load(args)
        return model, list(model.preprocess.box((90, 20)))

    usual, box = seen()
    assert box[0] > 20
    assert box[2] < 70
    whole, box = seen("--whole-photo")
    assert box == [0, 0, 90, 20]
    usual_preprocess: Any = usual.preprocess
    assert whole.preprocess == replace(usual_preprocess, fit="squash", crop_pct=1.0)
