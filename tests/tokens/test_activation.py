"""Any head: what a network's outputs are, and what probabilities are made of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vision_attn
from vision_attn.data import Preprocess
from vision_attn.hub import load_model
from vision_attn.methods import GradCAM, as_target
from vision_attn.methods.targets import has_classifier, model_logits
from vision_attn.models import SEResNet
from vision_attn.pages.inspect.inspection import Look
from vision_attn.pages.live.report import live
from vision_attn.runs.explain import explain
from vision_attn.runs.progress import Silent
from vision_attn.tokens.activation import activation_of, settled
from vision_attn.types import Calibration, Model

NOISE = torch.randn(5, 3, 16, 24) * torch.tensor([0.0, 0.5, 1.0, 2.0, 4.0])[:, None, None, None]
PREPROCESS = Preprocess((16, 24), (0.5,) * 3, (0.25,) * 3)


def network(outputs: int, *end: Any) -> nn.Sequential:
    torch.manual_seed(0)
    body = SEResNet(outputs, layers=(1, 1, 1, 1), widths=(4, 4, 4, 8))
    for weight in body.parameters():
        nn.init.normal_(weight, std=0.3)
    return nn.Sequential(body, *end).eval()


class Log(nn.Module):
    def forward(self, logits: Any) -> Any:
        return logits.log_softmax(1)


class Mean(nn.Module):
    """Mean sigmoids of two views, which no graph tells."""

    def forward(self, logits: Any) -> Any:
        return (logits.sigmoid() + logits.flip(0).sigmoid()) / 2


@pytest.mark.parametrize(
    ("outputs", "end", "activation"),
    [
        (7, (), "softmax"),
        (1, (), "sigmoid"),
        (2, (), "softmax"),
        (7, (Log(),), "softmax"),  # a softmax of log-probabilities gives these probabilities
        (7, (nn.Softmax(1),), "identity"),
        (2, (nn.Softmax(1), nn.Dropout()), "identity"),
        (7, (nn.Sigmoid(),), "identity"),
        (1, (nn.Sigmoid(),), "identity"),
        (1, (nn.Sigmoid(), nn.Flatten(0)), "identity"),
        (1, (nn.Hardsigmoid(),), "identity"),
        (37, (Mean(),), "identity"),
        (3, (nn.Softmax(1), Log()), "softmax"),
        (7, (nn.ReLU(),), "softmax"),
    ],
)
def test_a_run_tells_what_the_outputs_are(
    outputs: int, end: tuple[nn.Module, ...], activation: str
) -> None:
    net = network(outputs, *end)
    assert activation_of(net, NOISE) == activation
    assert activation_of(net.train(), NOISE) == activation
    assert net.training
    for weight in net.parameters():
        weight.requires_grad_(False)
    with torch.inference_mode():
        assert activation_of(net, NOISE) == activation


def test_small_logits_of_a_fresh_network_are_no_probabilities() -> None:
    torch.manual_seed(1)
    net = network(3)
    nn.init.constant_(net[0].fc.bias, 0.4)
    net[0].fc.weight.data *= 1e-4
    assert activation_of(net, NOISE) == "softmax"
    assert float(net(NOISE).detach().min()) > 0


CHANCES = {  # of two names, by what the network gives
    "two logits": (2, (), lambda y: y.softmax(1)),
    "one logit": (1, (), lambda y: torch.cat([(-y).sigmoid(), y.sigmoid()], 1)),
    "probabilities": (2, (nn.Softmax(1),), lambda y: y),
    "one probability": (1, (nn.Sigmoid(),), lambda y: torch.cat([1 - y, y], 1)),
    "two sigmoids": (2, (nn.Sigmoid(),), lambda y: y),
}


@pytest.mark.parametrize("kind", CHANCES)
def test_nothing_is_squashed_twice(kind: str, photos: Path) -> None:
    outputs, end, true = CHANCES[kind]
    net = network(outputs, *end)
    model = Model(net, PREPROCESS, ["cat", "dog"], None)
    image = PREPROCESS(photos / "cat.png")[None]
    expected = true(net(image).detach())[0]
    found = explain(model, photos / "cat.png", "GradCAM")
    torch.testing.assert_close(torch.tensor(found.probabilities), expected)
    assert found.predicted == int(expected.argmax())
    shown = Look("m", model, ["GradCAM"]).at(photos / "cat.png").predictions
    chances = {one.target: one.probability for one in shown}
    assert chances == pytest.approx(dict(enumerate(expected.tolist())), abs=1e-6)
    scores = vision_attn.score(
        model, [photos / "cat.png"], ["GradCAM"], target="dog", steps=2, progress=Silent()
    )
    start = next(r for r in scores.results.records.values() if "deletion" in r)["deletion"][0]
    assert start == pytest.approx(float(expected[1]), abs=5e-3)  # bfloat16, where it is native


def test_what_is_told_is_not_found() -> None:
    told = Model(network(7), PREPROCESS, list("abcdefg"), None, calibration=Calibration(2.0, 0.5))
    assert settled(told).calibration == Calibration(2.0, 0.5, "softmax")
    kept = replace(told, calibration=Calibration(activation="sigmoid"))
    assert settled(kept) is kept
    encoder = replace(told, classes=[])
    assert settled(encoder) is encoder


def test_a_network_that_cannot_run_on_noise_is_taken_for_a_softmax() -> None:
    class Odd(nn.Module):
        def forward(self, images: torch.Tensor) -> None:
            raise RuntimeError("no")

    assert settled(Model(Odd(), PREPROCESS, ["a"], None)).calibration.activation == "softmax"


SIZES: dict[str, Any] = {"image_size": 16, "patch_size": 8, "hidden_size": 8, "intermediate_size": 8,
         "num_hidden_layers": 1, "num_attention_heads": 2}  # fmt: skip


@pytest.mark.parametrize(
    ("labels", "problem", "activation"),
    [(3, None, "softmax"), (3, "single_label_classification", "softmax"),
     (3, "multi_label_classification", "sigmoid"), (3, "regression", "none"),
     (1, "regression", "none"), (1, None, "sigmoid")],
)  # fmt: skip
def test_problem_types_of_transformers_are_obeyed(
    labels: int, problem: str | None, activation: str, photos: Path
) -> None:
    pytest.importorskip("transformers")
    model = load_model("hf:vit", pretrained=False, num_labels=labels, problem_type=problem, **SIZES)
    assert model.calibration.activation == activation
    with torch.no_grad():
        logits = model_logits(model, model.preprocess(photos / "cat.png")[None])[0]
    if labels > 1 and activation == "none":
        with pytest.raises(ValueError, match="gives several values: give target=, one of LABEL_0"):
            explain(model, photos / "cat.png", "GradCAM")
    found = explain(model, photos / "cat.png", "GradCAM", target="LABEL_0")
    wanted = {"softmax": logits.softmax(0), "sigmoid": logits.sigmoid(), "none": logits}[activation]
    torch.testing.assert_close(torch.tensor(found.probabilities), wanted)
    record = found.records(lambda one: "")[0]
    if activation == "none":
        assert found.predicted is None
        assert "probability" not in record
        assert record["values"] == pytest.approx(logits.tolist(), abs=1e-5)
        assert found.prediction.startswith(f"LABEL_0 {float(logits[0]):.4g}")
        assert has_classifier(model) == (labels == 1)
    else:
        assert record["probability"] == pytest.approx(float(wanted.max()), abs=1e-5)


def test_libraries_networks_with_one_logit_are_sigmoids() -> None:
    timm = load_model("timm:test_resnet", pretrained=False, num_classes=1)
    vision = load_model("torchvision:squeezenet1_1", pretrained=False, num_classes=1)
    assert timm.calibration.activation == vision.calibration.activation == "sigmoid"


def test_the_live_page_needs_an_output_for_each_class(photos: Path) -> None:
    model = Model(network(1)[0], PREPROCESS, ["cat", "dog"], None)
    with pytest.raises(ValueError, match="the probability of each class, from as many outputs"):
        live(model, photos / "cat.png")


def test_targets_of_one_probability_are_p_and_what_is_left() -> None:
    net = network(1, nn.Sigmoid())
    model = settled(Model(net, PREPROCESS, ["cat", "dog"], None))
    p = net(NOISE).detach()
    torch.testing.assert_close(as_target("dog", model)(p), p[:, 0])
    torch.testing.assert_close(as_target("cat", model)(p), 1 - p[:, 0])
    assert GradCAM()(model, NOISE, "cat").values.shape[0] == 5


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises((ValueError, TypeError), match=r"activation.*softmax"):
        Calibration(activation="tanh")  # type: ignore[arg-type]
