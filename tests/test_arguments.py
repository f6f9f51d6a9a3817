"""Wrong values for every argument of the public functions, explainers and scores: one short line each."""

import inspect
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import vision_attn
from vision_attn import evaluate
from vision_attn.arguments import checked, conform, launched
from vision_attn.data import Preprocess, read_image
from vision_attn.errors import cut, listed, quoted
from vision_attn.methods import (
    Box,
    Channel,
    Class,
    Difference,
    Direction,
    Odds,
    PixelsOf,
    Similarity,
    methods,
    parse_method,
)
from vision_attn.methods.options import takes
from vision_attn.models import SEResNet, ViT
from vision_attn.runs.patches import PatchComponents, patch_components, patch_similarity
from vision_attn.tokens import attention_weights, record_attention
from vision_attn.types import Heatmaps, Model, TokenLayout

LONGEST = 300  # characters of a message
LONG = "x" * 5000
ANY = {  # values that no argument takes
    "an object": object(),
    "bytes": b"a",
    "a class": ViT,
    "a dict": {"a": 1},
    "a network": nn.Sequential(*[nn.ReLU()] * 99),
    "arrays": [np.zeros((99, 99))],
}
NOT = {  # values that an argument of this kind does not take
    "whole": {**ANY, "None": None, "1.5": 1.5, "text": "2", "true": True, "nan": float("nan"), "huge": 10**400},
    "count": {"0": 0, "-1": -1, "list": [3], "2.0": 2.0},
    "optional": ANY | {"text": "2", "1.5": 1.5, "0": 0, "-1": -1},
    "path": {**ANY, "int": 3, "empty": "", "null": "a\0b", "long": LONG, "list": ["a"]},
    "model": {**ANY, "None": None, "text": "timm:test_vit", "long": LONG, "int": 3, "tensor": torch.rand(3)},
    "head": {**ANY, "1.5": 1.5, "true": True, "list": [1]},
    "methods": {**ANY, "int": 3, "list": [["Rollout"]], "None in a list": [None], "long": LONG,
                "unknown": "Rolout", "option": "Rollout(a=1)", "long option": f"Rollout({LONG}=1)",
                "long value": f"Rollout(fusion={LONG})", "tensor": torch.rand(3)},
    "target": {name: value for name, value in ANY.items() if name != "a network"}
    | {"-1": -1, "3": 3, "1.5": 1.5, "unknown": "ant", "long": LONG, "true": True, "nan": float("nan"),
       "empty": [], "too many": [0, 1, 2, 0, 1], "2-d": torch.tensor([[1, 2]])},
    "photos": {**ANY, "None": None, "int": 7, "a vector": np.zeros(3), "range": torch.rand(3, 8, 8) + 7,
               "missing": "none.png", "long": LONG, "folder": ".", "empty": "", "null": "a\0b"},
    "paths": {**ANY, "None": None, "int": 7, "0-d": np.zeros(()), "tensor": torch.rand(3, 8, 8)},
    "images": {**ANY, "None": None, "int": 7, "text": "a.png", "3-d": torch.rand(3, 16, 16),
               "array": np.zeros((1, 3, 16, 16)), "uint8": torch.zeros(1, 3, 16, 16).byte(),
               "none": torch.zeros(0, 3, 16, 16), "nan": torch.full((1, 3, 16, 16), float("nan")),
               "float64": torch.rand(1, 3, 16, 16).double(), "grey": torch.rand(1, 1, 16, 16),
               "sparse": torch.rand(1, 3, 16, 16).to_sparse()},
    "layout": {**ANY, "int": 3, "tuple": (1, 2)},
    "shard": {**ANY, "int": 1, "three": (1, 2, 3), "0": (0, 1), "over": (3, 2), "text": ("1", "2")},
}  # fmt: skip
NOT["whole count"] = NOT["whole"] | NOT["count"]
NOT["count or 0"] = {word: value for word, value in NOT["whole count"].items() if word != "0"}
NOT["heads"] = {
    **{word: value for word, value in ANY.items() if word != "a dict"},
    "None": None, "int": 3, "text": "ab", "no layer": [(7, 0)], "-9": [(-9, 0)], "no head": [(0, 9)],
    "true": [(True, 0)], "float": [(0.0, 1)], "three": [(0, 1, 2)], "nested": [[[0], 1]], "one": [[0]],
    "huge": [(10**400, 0)], "kind": {(0, 0): "non"}, "no kind": {(0, 0): None}, "odd kind": {(0, 0): []},
    "dict": {"a": 1}, "long": {(0, 0): LONG},
}  # fmt: skip
NOT["layers"] = {**ANY, "None": None, "int": 3, "text": "ab", "no layer": [9], "-9": [-9], "true": [True],
                 "float": [0.0], "None in it": [None], "huge": [10**400], "nested": [[0]], "long": [LONG]}  # fmt: skip
NOT["tokens"] = NOT["layers"] | {"no token": [(0, 99)], "no layer": [(9, 0)], "nested": [[[0], 1]],
                                 "-9": [(0, -9)]}  # fmt: skip


def a_line(call: Any) -> None:
    """The call ends in a ValueError of one line that is not too long."""
    with pytest.raises(ValueError) as caught:
        call()
    text = str(caught.value)
    assert text.strip(), "an empty message"
    assert "\n" not in text, text
    assert len(text) <= LONGEST, text


@pytest.fixture(scope="module")
def vit() -> Model:
    torch.manual_seed(0)
    network = ViT(image_size=16, patch_size=8, dim=12, depth=2, heads=2, num_classes=3).eval()
    preprocess = Preprocess((16, 16), (0.5,) * 3, (0.25,) * 3)
    return Model(network, preprocess, ["cat", "dog", "fox"], network.layout((16, 16)))


@pytest.fixture(scope="module")
def cnn() -> Model:
    torch.manual_seed(0)
    network = SEResNet(3, layers=(1, 1, 1, 1), widths=(4, 4, 8, 8)).eval()
    return Model(
        network, Preprocess((32, 32), (0.5,) * 3, (0.25,) * 3), ["cat", "dog", "fox"], None
    )


PHOTO = Image.new("RGB", (40, 30), (9, 99, 50))


def entered(model: Model, **changes: Any) -> None:
    """Open a change of a network."""
    with vision_attn.intervene(model, **changes):
        pass


SHARED = {
    "model": "model",
    "methods": "methods",
    "limit": "optional",
    "output": "path",
    "head": "head",
}
FUNCTIONS = {  # of each argument, what it does not take
    "explain": {**SHARED, "images": "photos", "target": "target", "contrast": "target",
                "batch_size": "whole count"},
    "gallery": {**SHARED, "images": "paths", "target": "target", "contrast": "target", "masks": "path",
                "batch_size": "whole count", "processes": "whole count", "shard": "shard",
                "style": "layout", "progress": "layout"},
    "film": {**SHARED, "images": "path", "batch_size": "whole count"},
    "inspect": {**SHARED, "images": "photos", "progress": "layout"},
    "live": {**{k: v for k, v in SHARED.items() if k != "head"}, "images": "photos", "progress": "layout"},
    "score": {**SHARED, "images": "paths", "target": "target", "steps": "whole count", "root": "path",
              "sanity": "head", "mosaic": "head", "removal": "path", "batch_size": "whole count",
              "seed": "whole", "shard": "shard", "progress": "layout"},
    "removal": {"model": "model", "how": "path", "seed": "whole"},
    "probe": {"network": "layout", "image_size": "shard"},
    "export": {"model": "model", "path": "path"},
    "open_results": {"folder": "path"},
    "draw_pictures": {"folder": "path", "limit": "whole count"},
    "list_models": {"folder": "path"},
    "load_model": {"spec": "model", "weights": "path", "value_range": "shard"},
    "wrap": {"network": "layout", "transform": "layout", "layout": "layout", "head": "head"},
    "diagnose": {"model": "model", "images": "paths", "limit": "optional", "output": "path", "seed": "whole",
                 "root": "path", "batch_size": "whole count", "thresholds": "layout", "name": "layout",
                 "progress": "layout"},
    "add_registers": {"model": "model", "images": "paths", "neurons": "whole count", "block": "optional",
                      "limit": "whole count", "batch_size": "whole count", "seed": "whole", "root": "path"},
    "ablate": {**{k: v for k, v in SHARED.items() if k != "methods"}, "images": "paths", "parts": "methods",
               "target": "target", "contrast": "target", "replacement": "path", "prune": "count or 0",
               "batch_size": "whole count", "seed": "whole", "root": "path", "progress": "layout"},
    "compare": {**{k: v for k, v in SHARED.items() if k != "model"}, "models": "shard", "images": "paths",
                "target": "target", "contrast": "target", "shown": "whole count",
                "batch_size": "whole count", "progress": "layout"},
    "patch_states": {"model": "model", "photo": "photos", "other": "photos", "target": "target",
                     "contrast": "target", "output": "path", "head": "head", "batch_size": "whole count",
                     "progress": "layout"},
    "intervene": {"model": "model", "heads": "heads", "tokens": "tokens", "mlps": "layers", "blocks": "layers",
                  "patch_from": "photos"},
    "fit": {"config": "path", "overrides": "methods", "data_root": "path", "output": "path", "seed": "head"},
}  # fmt: skip
USUAL = {  # what is given for the other arguments
    "explain": {"images": PHOTO},
    "gallery": {"images": "none.png", "output": "out"},
    "film": {"images": "clip.mp4", "output": "out"},
    "inspect": {"images": PHOTO},
    "live": {"images": PHOTO},
    "score": {"images": [PHOTO], "methods": "GradCAM"},
    "removal": {},
    "probe": {"network": nn.Conv2d(3, 5, 3)},
    "export": {"path": "a.onnx"},
    "open_results": {},
    "draw_pictures": {"folder": "none"},
    "list_models": {},
    "load_model": {"spec": "timm:test_vit", "pretrained": False},
    "wrap": {"network": nn.Conv2d(3, 5, 3), "transform": None},
    "diagnose": {"images": [PHOTO, PHOTO]},
    "add_registers": {"images": [PHOTO, PHOTO]},
    "ablate": {"images": [PHOTO, PHOTO]},
    "compare": {"images": "a.png", "methods": "Rollout"},
    "patch_states": {
        "photo": PHOTO,
        "other": Image.effect_noise((40, 30), 90).convert("RGB"),
        "target": 1,
    },
    "intervene": {},
    "fit": {"config": "none.yaml"},
}
# Right for one argument, though wrong for others of its kind; and what only the run of it finds.
FITS = {
    *((function, "images", "arrays") for function in ("explain", "inspect", "live")),
    *((function, "network", "a network") for function in ("probe", "wrap")),
    ("load_model", "spec", "text"),
    ("load_model", "value_range", "0"),
    ("probe", "image_size", "over"),
    ("score", "sanity", "None"),
    ("fit", "overrides", "a dict"),
    ("add_registers", "block", "0"),
    ("intervene", "patch_from", "None"),
    *(("patch_states", name, "arrays") for name in ("photo", "other")),
}  # fmt: skip


def public_cases() -> Iterator[Any]:
    for function, arguments in FUNCTIONS.items():
        for name, kind in arguments.items():
            takes_long = (function, name) in (("score", "methods"), ("fit", "config"))
            marks = [pytest.mark.slow] if takes_long else []
            yield pytest.param(function, name, kind, id=f"{function}-{name}", marks=marks)


@pytest.mark.compiled  # the tests' own types would be first
@pytest.mark.parametrize(("function", "name", "kind"), list(public_cases()))
def test_public_functions_refuse_wrong_values_in_a_line(
    function: Any,
    name: Any,
    kind: Any,
    vit: Model,
    cnn: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    PHOTO.save("a.png")
    call = getattr(vision_attn, function)
    usual = dict(cast(Any, USUAL[function]))
    if function == "compare":
        usual["models"] = (vit, vit)
    if function == "intervene":
        call = entered
    if "model" in inspect.signature(call).parameters:
        usual["model"] = cnn if function == "live" else vit
    for word, value in NOT[kind].items():
        if (function, name, word) not in FITS:
            try:
                a_line(partial(call, **{**usual, name: value}))
            except BaseException as error:
                raise AssertionError(f"{function}({name}={word}): {error!r}"[:500]) from error


@pytest.mark.compiled
@pytest.mark.parametrize("method", methods())
def test_explainers_refuse_wrong_values_in_a_line(method: str, vit: Model, cnn: Model) -> None:
    explainer = methods()[method]()
    model = cnn if explainer.refusal(vit.network) else vit
    size = model.preprocess.input_size
    images = torch.rand(2, 3, *size)
    if reason := explainer.refusal(model.network):
        pytest.skip(reason)
    blind = method in ("RandomMap", "CentreGaussian", "EdgeMap")  # to the network and to numbers
    for name, kind in (
        ("images", "images"),
        ("layout", "layout"),
        ("head", "head"),
        ("network", "model"),
    ):
        for word, value in NOT[kind].items():
            skipped = word in ("a network", "tensor") and name == "network"
            if not skipped and not (blind and word in ("nan", "float64", "grey")):
                given: dict[str, Any] = {"network": model.network, "images": images, name: value}
                a_line(partial(explainer, **given))
    for value in NOT["target"].values() if explainer.class_specific else ():
        a_line(partial(explainer, model, images, target=cast(Any, value)))
    for option, kind in explainer.options().items():
        wrong = [object(), b"a", float("nan"), 10**400, [object()] * 999]
        wrong += [] if takes(kind, nn.Module) else [nn.ReLU(), ["a"] * 999]  # as layers they fit
        for value in wrong:
            options: dict[str, Any] = {option: value}
            a_line(partial(type(explainer), **options))


NETWORK = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
SCORES = {
    **{name: lambda name=name: getattr(evaluate, name)(evaluate.FilledCells(NETWORK, (4, 4)), steps=2)
       for name in ("Deletion", "Insertion", "PositivePerturbation", "NegativePerturbation")},
    **{name: lambda name=name: getattr(evaluate, name)(NETWORK)
       for name in ("AverageDrop", "AverageIncrease")},
    **{name: getattr(evaluate, name)
       for name in ("PointingGame", "EnergyPointingGame", "AveragePrecision", "PixelAccuracy", "MeanIoU",
                    "GridPointingGame", "Sparseness", "MaxBoxIoU")},
}  # fmt: skip
RIGHT = {
    "images": torch.rand(2, 3, 8, 8), "maps": torch.rand(2, 4, 4), "target": 0,
    "masks": torch.ones(2, 8, 8).bool(), "cells": torch.tensor([0, 1]),
    "boxes": [torch.tensor([[1, 2, 5, 6]])] * 2, "sizes": [(8, 8)] * 2,
}  # fmt: skip
NO_TENSORS = {**ANY, "None": None, "int": 3, "text": "a", "list": [1], "vector": torch.rand(3),
              "array": np.zeros((2, 4, 4)), "complex": torch.zeros(2, 4, 4, dtype=torch.complex64)}  # fmt: skip
NO_TARGETS = {"too many": [0, 1, 2], "-1": -1, "4": 4, "1.5": 1.5, "floats": torch.rand(2), "text": "cat",
              "2-d": torch.zeros(2, 2).long(), "None": None, "true": True}  # fmt: skip


@pytest.mark.compiled
@pytest.mark.parametrize("name", SCORES)
def test_scores_refuse_wrong_values_in_a_line(name: str) -> None:
    parameters = inspect.signature(SCORES[name]().update).parameters
    right = {each: RIGHT[each] for each in parameters if each in RIGHT}
    SCORES[name]().update(**right)
    for each in right:
        for value in (NO_TARGETS if each == "target" else NO_TENSORS).values():
            a_line(lambda value=value, each=each: SCORES[name]().update(**{**right, each: value}))


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"WORLD_SIZE": "0"},
            "WORLD_SIZE=0 in the environment: expected a whole number of at least 1",
        ),
        ({"RANK": "x"}, "RANK=x in the environment: .* as torchrun sets it: unset RANK"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK=-1"),
        ({"SLURM_PROCID": ""}, "SLURM_PROCID= in the environment: .* as SLURM sets it"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 in the environment: expected 0 to 1"),
    ],
)
def test_variables_of_launchers_are_checked(
    variables: dict[str, str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in [name for name in os.environ if name.startswith(("RANK", "WORLD_SIZE", "SLURM_"))]:
        monkeypatch.delenv(name)
    assert launched() == (0, 1)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        launched()
    from vision_attn.cli import main

    assert main(["explain", "none.ckpt", "none.png"]) == 2
    assert re.search(message, capsys.readouterr().err)


ODD = {
    **ANY, "None": None, "long": LONG, "1.5": 1.5, "nan": float("nan"), "true": True, "-1": -1,
    "huge": 10**400, "empty": "", "null": "a\0b", "list": [1, [2]], "empty list": [], "set": {1},
    "0-d": torch.tensor(3), "whole": torch.arange(3), "complex": torch.randn(5).to(torch.complex64),
    "objects": np.array([object()]), "words": np.array(["a"]), "function": lambda: 3,
}  # fmt: skip
OUTPUT = torch.randn(2, 5)
PIXELS = torch.randn(2, 5, 3, 4)
BOXES = [{"boxes": torch.rand(2, 4), "labels": torch.tensor([1, 2]), "scores": torch.rand(2)}]
PARTS: dict[
    str, tuple[Callable[[Any], Any], int]
] = {  # what is called with each odd value, and for how many of them there is no other meaning
    "Class": (lambda value: Class(value)(OUTPUT), 16),
    "Odds": (lambda value: Odds(value)(OUTPUT), 16),
    "Direction": (lambda value: Direction(value)(OUTPUT), 20),
    "Similarity": (lambda value: Similarity(value)(OUTPUT), 20),
    "Difference": (lambda value: Difference(value, 1)(OUTPUT), 16),
    "Channel": (lambda value: Channel(value)(OUTPUT), 20),
    "a place": (lambda value: Channel(1, value)(PIXELS), 20),
    "PixelsOf": (lambda value: PixelsOf(value, 1)(PIXELS), 18),
    "its class": (lambda value: PixelsOf(torch.ones(3, 4).bool(), value)(PIXELS), 20),
    "Box": (lambda value: Box(value)(BOXES), 20),
    "input_size": (lambda value: Preprocess(value, (0.5,) * 3, (0.5,) * 3), 20),
    "mean": (lambda value: Preprocess((8, 8), value, (0.5,) * 3), 20),
    "prefix": (lambda value: TokenLayout(value, (4, 4)), 20),
    "grid": (lambda value: TokenLayout(1, value), 20),
    "Heatmaps.resized": (lambda value: Heatmaps(torch.rand(1, 3, 4), "").resized(value, 3), 20),
    "read_image": (read_image, 20),
    "record_attention": (lambda value: record_attention(value).__enter__(), 20),
    "parse_method": (parse_method, 20),
    "attention_weights, layers": (lambda value: of_vit(attention_weights, IMAGE, value), 17),
    "attention_weights, heads": (lambda value: of_vit(attention_weights, IMAGE, 0, value), 17),
    "patch_similarity, place": (lambda value: of_vit(patch_similarity, PHOTO, value), 20),
    "patch_components, k": (lambda value: of_vit(patch_components, PHOTO, value), 20),
}
IMAGE: torch.Tensor = torch.rand(1, 3, 16, 16)


def of_vit(
    function: Callable[..., dict[str, torch.Tensor] | torch.Tensor | PatchComponents], *args: Any
) -> dict[str, torch.Tensor] | torch.Tensor | PatchComponents:
    torch.manual_seed(0)
    vit = ViT(16, 8, 5, dim=12, depth=1, heads=2).eval()
    preprocess = Preprocess((16, 16), (0.5,) * 3, (0.5,) * 3)
    return function(Model(vit, preprocess, list("abcde"), vit.layout((16, 16))), *args)


def refusal_of(call: Callable[..., Any], value: Any) -> str | None:
    try:
        call(value)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.compiled
@pytest.mark.parametrize("name", PARTS)
def test_parts_of_what_is_given_refuse_odd_values_in_a_line(name: str) -> None:
    call, least = PARTS[name]
    found = {word: refusal_of(call, value) for word, value in ODD.items()}
    lines = [line for line in found.values() if line is not None]
    assert not [line for line in lines if "\n" in line or len(line) > 2 * LONGEST]
    assert len(lines) >= least, [word for word, line in found.items() if line is None]


@pytest.mark.parametrize("name", ["WORLD_SIZE", "RANK", "SLURM_NTASKS"])
@pytest.mark.parametrize("text", ["", " ", "-1", "1.5", "two", "9" * 12, "9" * 5000, "\u00b2"])
def test_numbers_of_processes_are_whole_and_short(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(
        ValueError, match=f"^{name}=.*expected a whole number of at least"
    ) as raised:
        launched()
    assert len(str(raised.value)) < LONGEST


def test_quoted_values_are_short_lines() -> None:
    assert quoted("cat") == "'cat'"
    assert quoted(LONG) == f"'{'x' * 37}...{'x' * 37}'"
    assert quoted(torch.zeros(2, 3)) == "Tensor of shape (2, 3)"
    assert quoted([nn.ReLU()]) == "[a network (ReLU)]"
    for value in [*ANY.values(), LONG, ["a\n" * 99] * 99, {1: LONG}, 10**400, [[[[1]]]]]:
        assert len(quoted(value)) <= 80
        assert "\n" not in quoted(value)
    assert cut("abcdefghij", 7) == "ab...ij"
    assert listed(range(1000), most=8) == "0, 1, 2 and 997 more"


def test_arguments_are_converted_and_checked() -> None:
    def annotated(
        count: int | None = None, *, place: str | os.PathLike[str] = ".", **more: int
    ) -> tuple[int | None, Any, dict[str, int]]:
        return count, place, more

    function: Any = checked(count=2)(annotated)
    assert function() == (None, ".", {})
    assert function(np.int64(3), place="a", other="b") == (3, "a", {"other": "b"})
    assert conform([1, 2], tuple[float, float]) == (1.0, 2.0)
    assert conform(("a",), list[str]) == ("a",)
    with pytest.raises(ValueError, match=r"^count must be at least 2, got 1$"):
        function(1)
    with pytest.raises(ValueError, match=r"^count: expected a whole number or none, got '3'$"):
        function("3")
    with pytest.raises(ValueError, match=r"^place: expected a path, got an empty one$"):
        function(place="")
    with pytest.raises(TypeError, match="positional"):
        function(1, 2)
