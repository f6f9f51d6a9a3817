"""Any number that a network gives: every explainer and target against a network wrapped by hand."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import timm
import torch
from torch import nn
from torch.nn import functional as F

from vision_attn.data import Preprocess
from vision_attn.methods import (
    Box,
    Channel,
    Class,
    Difference,
    Direction,
    Explainer,
    GradCAM,
    IntegratedGradients,
    MaskedRegression,
    Occlusion,
    Odds,
    PixelsOf,
    RandomMap,
    Rollout,
    Similarity,
    Target,
    as_target,
    methods,
)
from vision_attn.methods.targets import has_classifier
from vision_attn.methods.targets.boxes import nearest_score
from vision_attn.models import SEResNet, ViT
from vision_attn.types import Heatmaps, Model

CLASSES = 7
IMAGES = torch.randn(2, 3, 16, 24)


class Pair(NamedTuple):
    noise: torch.Tensor
    scores: torch.Tensor


@dataclass
class Answer:
    noise: torch.Tensor
    scores: torch.Tensor


def beside(x: Any) -> Any:
    return x.mean((2, 3)).repeat(1, 5)


SHAPES = {  # by the head that finds the logits in it
    None: lambda x, logits: logits,
    1: lambda x, logits: (beside(x), logits),
    "out": lambda x, logits: OrderedDict(aux=beside(x), out=logits),
    "scores": lambda x, logits: Answer(beside(x), logits),
    -1: lambda x, logits: Pair(beside(x), logits),
}


class Shaped(nn.Module):
    """A network whose logits are one part of its output."""

    def __init__(self, network: nn.Module, shape: Callable[..., Any]) -> None:
        super().__init__()
        self.network = network
        self.shape = shape

    def forward(self, images: torch.Tensor) -> Any:
        return self.shape(images, self.network(images))


VECTOR = torch.randn(CLASSES)
VECTORS = torch.randn(2, CLASSES)


def odds(logits: Any, i: int) -> Any:
    others = torch.cat([logits[:, :i], logits[:, i + 1 :]], dim=1)
    return logits[:, i] - others.exp().sum(1).log()


KINDS = {  # a target, and what it stands for, written out
    "class": (3, lambda y: y[:, 3]),
    "predicted": (None, None),
    "one an image": ([5, 2], None),
    "difference": (Difference(3, 1), lambda y: y[:, 3] - y[:, 1]),
    "predicted rather": (Difference(None, 1), None),
    "odds": (Odds(4), lambda y: odds(y, 4)),
    "vector": (VECTOR, lambda y: y @ VECTOR),
    "list of floats": (VECTOR.tolist(), lambda y: y @ VECTOR),
    "similarity": (
        Similarity(VECTOR),
        lambda y: (y @ VECTOR) / y.norm(dim=1) / VECTOR.norm(),
    ),
    "channel": (Channel(6), lambda y: y[:, 6]),
    "function": (lambda y: y[:, 2].square() + y[:, 0], lambda y: y[:, 2].square() + y[:, 0]),
}


def of_each(method: str) -> Explainer:
    options = {
        "IntegratedGradients": {"steps": 3},
        "MaskedRegression": {"samples": 8, "cells": 2},
        "LIME": {"samples": 8, "cells": 2},
        "Occlusion": {"window": 8},
    }
    return methods()[method](**options.get(method, {}))


ON_TOKENS = ["WeightedRollout", "GradientRollout", "Relevance", "AttentionGradCAM", "LeGrad"]
ON_FEATURES = ["GradCAM", "GradCAMPlusPlus", "XGradCAM", "HiResCAM", "LayerCAM"]
ON_BOTH = ["IntegratedGradients", "Occlusion", "MaskedRegression", "LIME"]


def vit() -> ViT:
    return ViT((16, 24), 8, CLASSES, 12, 2, 3)


def senet() -> SEResNet:
    return SEResNet(CLASSES, layers=(1, 1, 1, 1), widths=(4, 4, 4, 8))


def every_method() -> list[Any]:
    return [(senet, m) for m in ON_FEATURES + ON_BOTH] + [(vit, m) for m in ON_TOKENS + ON_BOTH]


@pytest.mark.parametrize(("make", "method"), every_method())
def test_every_target_is_the_output_of_a_network_wrapped_by_hand(make: Any, method: Any) -> None:
    torch.manual_seed(3)
    network, explainer = make().eval(), of_each(method)
    target: Any
    for name, (target, written) in KINDS.items():
        found = explainer(network, IMAGES, target).values
        if written is None:
            predicted = network(IMAGES).argmax(dim=1).tolist()
            targets: dict[str, list[Any]] = {
                "predicted": predicted,
                "one an image": target,
                "predicted rather": [Difference(index, 1) for index in predicted],
            }
            each = zip(IMAGES.split(1), targets[name], strict=True)
            true = torch.cat([explainer(network, image, index).values for image, index in each])
        else:
            by_hand = Shaped(network, lambda x, y, f=written: f(y)[:, None])
            true = explainer(by_hand, IMAGES, 0).values
        torch.testing.assert_close(found, true, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    ("make", "method"),
    [
        *every_method(),
        *((make, "LibraGradient") for make in (vit, senet)),  # whose rules end at the output
        *((vit, "Rollout"), (senet, "EdgeMap")),
    ],
)
def test_every_output_is_one_tensor_of_several(make: Callable[..., Any], method: str) -> None:
    torch.manual_seed(3)
    network, explainer = make().eval(), of_each(method)
    true = explainer(network, IMAGES, Odds(2))
    for head, shape in SHAPES.items():
        found = explainer(Shaped(network, shape), IMAGES, Odds(2), head=head)
        torch.testing.assert_close(found.values, true.values, msg=str(head))


def test_logits_are_found_in_an_output_and_a_head_wins() -> None:
    network = senet().eval()
    named = Shaped(network, lambda x, y: {"aux": y.flip(1), "logits": y})
    alone = Shaped(network, lambda x, y: [y])
    for other in (named, alone):
        maps = GradCAM()(other, IMAGES, 3).values
        torch.testing.assert_close(maps, GradCAM()(network, IMAGES, 3).values)
    turned = GradCAM()(named, IMAGES, 3, head="aux")
    torch.testing.assert_close(turned.values, GradCAM()(network, IMAGES, 3).values)
    first = GradCAM()(named, IMAGES, 6, head="aux")
    torch.testing.assert_close(first.values, GradCAM()(network, IMAGES, 0).values)


def test_a_function_gets_the_whole_output_or_the_head() -> None:
    network = Shaped(senet().eval(), lambda x, y: {"scores": y, "aux": beside(x)})
    plain = GradCAM()(network.network, IMAGES, 2).values
    whole = GradCAM()(network, IMAGES, lambda output: output["scores"][:, 2]).values
    part = GradCAM()(network, IMAGES, lambda scores: scores[:, 2], head="scores").values
    torch.testing.assert_close(whole, plain)
    torch.testing.assert_close(part, plain)


def test_a_target_of_its_own_for_each_image() -> None:
    network = senet().eval()
    targets: list[Any] = [Difference(3, 1), 5]
    for explainer in (GradCAM(), Occlusion(window=8), IntegratedGradients(steps=2)):
        maps = explainer(network, IMAGES, targets).values
        each = [
            explainer(network, image[None], target).values
            for image, target in zip(IMAGES, targets, strict=True)
        ]
        torch.testing.assert_close(maps, torch.cat(each), rtol=1e-5, atol=1e-6)
    maps = GradCAM()(network, IMAGES, Similarity(VECTORS)).values
    each = [
        GradCAM()(network, image[None], Similarity(vector)).values
        for image, vector in zip(IMAGES, VECTORS, strict=True)
    ]
    torch.testing.assert_close(maps, torch.cat(each))


class Segments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 5, 3, padding=1, stride=2)
        self.classifier = nn.Conv2d(5, CLASSES, 1)

    def forward(self, images: torch.Tensor) -> OrderedDict[Any, Any]:
        features = self.features(images).relu()
        small = self.classifier(features)
        return OrderedDict(out=F.interpolate(small, scale_factor=2), aux=small)


def test_pixels_of_a_segmentation() -> None:
    network = Segments().eval()
    mask = torch.zeros(16, 24).bool()
    mask[3:7, 5:11] = True
    explainer = GradCAM(layer="features")
    by_hand = Shaped(network, lambda x, y: (y["out"][:, 3] * mask).sum((1, 2))[:, None])
    true = explainer(by_hand, IMAGES, 0).values
    assert true.any()
    for same in (mask, mask.numpy(), mask.float(), mask.expand(2, -1, -1)):
        found = explainer(network, IMAGES, PixelsOf(same, 3), head="out").values
        torch.testing.assert_close(found, true)
    small = explainer(network, IMAGES, PixelsOf(mask[::2, ::2], 3), head="aux").values
    by_hand = Shaped(network, lambda x, y: (y["aux"][:, 3] * mask[::2, ::2]).sum((1, 2))[:, None])
    torch.testing.assert_close(small, explainer(by_hand, IMAGES, 0).values)

    output = network(IMAGES)["out"]
    index = int(output.argmax(1).mode().values.mode().values[0])
    own = PixelsOf(None, index)(output)
    where = output.argmax(1) == index
    torch.testing.assert_close(own, (output[:, index] * where).sum((1, 2)))

    channel = explainer(network, IMAGES, Channel(2), head="out").values
    by_hand = Shaped(network, lambda x, y: y["out"][:, 2].mean((1, 2))[:, None])
    torch.testing.assert_close(channel, explainer(by_hand, IMAGES, 0).values)
    spot = Channel(2, place=(4, 9))(output)
    assert torch.equal(spot, output[:, 2, 4, 9])
    tokens = torch.randn(2, 11, 5)
    assert torch.equal(Channel(4, place=3)(tokens), tokens[:, 3, 4])
    torch.testing.assert_close(Channel(4)(tokens), tokens[..., 4].mean(1))


class Detects(nn.Module):
    """Two detections an image, the more certain first, as torchvision's detectors give them."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 5, 3, padding=1)
        self.boxes = torch.tensor([[0.0, 0.0, 8.0, 8.0], [10.0, 2.0, 20.0, 9.0]])
        self.labels = torch.tensor([4, 6])

    def forward(self, images: torch.Tensor) -> list[dict[str, torch.Tensor]]:
        features = self.features(images).relu()
        found = []
        for one in features:
            scores = torch.stack([one[0].mean(), one[1].mean()]).sigmoid()
            order = scores.argsort(descending=True)
            found.append(
                {"boxes": self.boxes[order], "labels": self.labels[order], "scores": scores[order]}
            )
        return found


def test_the_box_of_a_detector() -> None:
    network = Detects().eval()
    first = network(IMAGES)
    for explainer in (GradCAM(), GradCAM(layer="features")):
        found = explainer(network, IMAGES, Box(1)).values
        by_hand = Shaped(network, lambda x, y: torch.stack([y[0]["scores"][1], y[1]["scores"][1]]))
        torch.testing.assert_close(found, explainer(by_hand, IMAGES, 0).values)

    kept = Box(0).fixed(first)
    swapped = [{name: value.flip(0) for name, value in image.items()} for image in first]
    torch.testing.assert_close(kept(swapped), Box(0)(first))
    for image in swapped:
        image["labels"] = image["labels"] + 1
    assert not kept(swapped).any()  # no detection of that label overlaps it

    detr = {"logits": torch.randn(2, 5, 4), "pred_boxes": torch.rand(2, 5, 4)}
    detr["logits"][0, 3, 2] = detr["logits"][0, 3].max() + 1  # the last class before "nothing"
    own = detr["logits"][:, 3, :-1].max(1).values
    assert torch.equal(Box(3)(detr), own)
    again = Box(3).fixed(detr)({"logits": detr["logits"] - 9, "pred_boxes": None})
    torch.testing.assert_close(again, own - 9)


def test_heatmaps_say_which_class_they_are_of() -> None:
    network = senet().eval()
    predicted = network(IMAGES).argmax(1).tolist()
    classes = [
        GradCAM()(network, IMAGES, target).targets
        for target in (None, Odds(3), Difference(None, 3))
    ]
    assert [row.tolist() for row in classes if row is not None] == [predicted, [3, 3], predicted]
    assert GradCAM()(network, IMAGES, VECTOR).targets is None
    assert Occlusion(window=8)(network, IMAGES, lambda y: y[:, 1]).targets is None


NAMES = ["tabby, tabby cat", "collie", *(f"class {i}" for i in range(2, CLASSES))]


def model_of(network: nn.Module, classes: list[str], **more: Any) -> Model:
    return Model(
        network.eval(), Preprocess((16, 24), (0.5,) * 3, (0.2,) * 3), classes, None, **more
    )


def test_a_model_knows_its_classes_by_name() -> None:
    model = model_of(senet(), NAMES)
    plain = GradCAM()(model.network, IMAGES, [0, 1]).values
    assert torch.equal(GradCAM()(model, IMAGES, ["Tabby", "collie"]).values, plain)
    both = GradCAM()(model, IMAGES, Difference("tabby cat", "collie")).values
    assert torch.equal(both, GradCAM()(model.network, IMAGES, Difference(0, 1)).values)
    of_collie = GradCAM()(model, IMAGES, Odds("collie")).targets
    assert of_collie is not None
    assert of_collie.tolist() == [1, 1]
    with pytest.raises(ValueError, match="no class named 'colie'; did you mean collie"):
        GradCAM()(model, IMAGES, "colie")
    with pytest.raises(ValueError, match="a class by its name, 'collie', needs a model"):
        GradCAM()(model.network, IMAGES, "collie")


def test_a_models_head_is_taken() -> None:
    network = senet()
    model = model_of(Shaped(network, SHAPES["out"]), NAMES, head="out")
    assert torch.equal(GradCAM()(model, IMAGES, 2).values, GradCAM()(network, IMAGES, 2).values)


def test_one_logit_of_two_names_is_the_second_and_its_negative_the_first() -> None:
    network = nn.Sequential(senet(), nn.Linear(CLASSES, 1)).eval()
    model = model_of(network, ["cat", "dog"])
    logit = network(IMAGES)
    expected = torch.cat([-logit, logit], 1)
    for index, name in enumerate(model.classes):
        assert torch.equal(as_target(name, model)(logit), expected[:, index])
        assert torch.equal(as_target(index, model)(logit), expected[:, index])
    predicted: Any = as_target(None, model).fixed(logit)
    assert predicted.index == tuple(expected.argmax(1).tolist())
    by_hand = Shaped(network, lambda x, y: torch.cat([-y, y], 1))
    maps = IntegratedGradients(steps=2)(model, IMAGES, "cat").values
    torch.testing.assert_close(maps, IntegratedGradients(steps=2)(by_hand, IMAGES, 0).values)
    torch.testing.assert_close(as_target(Odds("dog"), model)(logit), logit[:, 0])
    assert torch.equal(Class(0)(logit), logit[:, 0])
    assert torch.equal(Class(0)(logit[:, 0]), logit[:, 0])  # (b,) is one logit
    with pytest.raises(
        ValueError, match=r"class 1 is out of range: the network has 1 class, 0 to 0"
    ):
        GradCAM()(network, IMAGES, 1)


HEADLESS = {
    "timm": lambda: timm.create_model("test_vit", num_classes=0, img_size=(16, 24), patch_size=8),
    "a model": lambda: model_of(senet(), []),
}


def transformers_vit(kind: str) -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        image_size=(16, 24), patch_size=8, hidden_size=12, num_hidden_layers=2,
        num_attention_heads=3, intermediate_size=16,
    )  # fmt: skip
    return getattr(transformers, kind)(config).eval()


class Pooled(nn.Module):
    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> Any:
        return self.network(images).pooler_output


@pytest.mark.parametrize("name", [*HEADLESS, "transformers", "transformers, pooled"])
def test_an_encoder_has_no_class_to_explain_by_itself(name: str) -> None:
    network: Any
    head: str | None
    if name in HEADLESS:
        network, head = HEADLESS[name](), None
    elif name == "transformers":
        network, head = transformers_vit("ViTModel"), "pooler_output"
    else:
        network, head = Pooled(transformers_vit("ViTModel")), None
    assert not has_classifier(network)
    for explainer in (MaskedRegression(samples=4, cells=2), IntegratedGradients(steps=1)):
        with pytest.raises(ValueError, match=r"has no classifier, and so no class .* give target="):
            explainer(network, IMAGES, head=head)
    blind = [RandomMap()] if name == "a model" else [RandomMap(), Rollout()]
    for explainer in blind:
        assert len(explainer(network, IMAGES, head=head)) == 2
    width = CLASSES if name == "a model" else 12 if head or name.endswith("pooled") else 64
    embedding = torch.randn(width)
    maps = MaskedRegression(samples=4, cells=2)(network, IMAGES, Similarity(embedding), head=head)
    assert maps.targets is None
    assert maps.values.any()


def test_networks_with_a_classifier_are_known_as_such() -> None:
    body = timm.create_model("test_vit", num_classes=0)
    assert has_classifier(nn.Sequential(body, nn.Linear(64, 3)))
    assert has_classifier(timm.create_model("test_vit", num_classes=3))
    assert has_classifier(senet())
    assert has_classifier(nn.Flatten())
    assert has_classifier(transformers_vit("ViTForImageClassification"))
    assert not has_classifier(nn.DataParallel(body))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (7, "class 7 is out of range: the network has 7 classes, 0 to 6"),
        (-1, "class -1 is out of range"),
        ([1, 2, 3], r"one for all images or 2 \(one an image\), got 3"),
        ([], "target: expected one for all or one an image, got an empty list"),
        (True, "target: expected a class, a vector or a function, got True"),
        (torch.tensor(0.5), r"target: expected class indices .* got torch.float32 of shape \(\)"),
        (torch.tensor([True, False]), "target: expected class indices .* got torch.bool"),
        (torch.rand(5), "Direction: a vector of 5 numbers, but the network gives 7 an image"),
        (torch.rand(3, 7), r"one for all images or 2 \(one an image\), got 3"),
        (torch.rand(1, 2, 7), r"Direction: expected a vector of floats .* shape \(1, 2, 7\)"),
        (torch.tensor([torch.nan] * 7), "Direction: the vector holds NaN"),
        (lambda: Similarity(torch.zeros(7)), "Similarity: the embedding is 0"),
        (lambda: Similarity(torch.arange(7)), "Similarity: expected a vector of floats"),
        (Odds, "target: got the class Odds itself: make one, Odds"),
        (lambda: Odds(VECTOR), "Odds: expected a class, got Direction"),
        (Odds(9), "class 9 is out of range"),
        (lambda: Difference(3, None), "Difference: expected a class or another target"),
        (Difference(3, 9), "class 9 is out of range"),
        (Channel(7), r"Channel\(7\): the output has 7 channels"),
        (Channel(3, place=2), r"Channel\(3, place=2\): the output's places are 1"),
        (lambda: PixelsOf(torch.rand(4, 4), 3), "PixelsOf: expected a mask of bool or 0 and 1"),
        (lambda: PixelsOf(None, None), "PixelsOf: expected a class, got None"),
        (PixelsOf(None, 3), r"PixelsOf: expected a segmentation .* got \(2, 7\)"),
        (lambda: Box(-1), "Box: index must be at least 0, got -1"),
        (Box(0), "Box: expected the output of a detector"),
        (lambda y: y[:, 3].detach(), "does not depend on this layer's output"),
    ],
)
def test_wrong_targets_are_refused_in_words(target: Any, message: str) -> None:
    network, explainer = senet().eval(), GradCAM()

    def explained() -> Heatmaps:
        late = type(target).__name__ == "function" and not target.__code__.co_argcount
        return explainer(network, IMAGES, target() if late else target)

    with pytest.raises(ValueError, match=message):
        explained()


GOT = r"expected one float an image, a tensor \(2,\), of a tensor of shape \(2, 7\); it "


class OfTwo:
    def __call__(self, output: Any, scale: Any) -> Any:
        return output


class Attribute(Target):
    def __call__(self, output: Any) -> Any:
        return output.logits


class Whole(Target):
    def __call__(self, output: Any) -> Any:
        return output


OF_THE_USER: list[tuple[Any, str]] = [  # a target, and what the message says that it gave
    (lambda y: y["logits"], r"raised IndexError: too many indices"),
    (lambda y: dict[str, Any]()["x" * 5000], r"raised KeyError: 'xxx.*\.\.\."),
    (lambda y: next(iter(())), r"raised StopIteration$"),
    (lambda y: y.sum(), r"gave a tensor of shape \(\)$"),
    (lambda y: y, r"gave a tensor of shape \(2, 7\)$"),
    (lambda y: y[0], r"gave a tensor of shape \(7,\)$"),
    (lambda y: 3, "gave 3$"),
    (lambda y: None, "gave None$"),
    (lambda y: [1.0, 2.0], r"gave \[1.0, 2.0\]$"),
    (lambda y: y.detach().numpy()[:, 0], r"gave ndarray of shape \(2,\)$"),
    (lambda y: y.argmax(1), "gave torch.int64$"),
    (lambda y: y[:, 0] * torch.nan, "gave NaN or infinity$"),
    (OfTwo(), "raised TypeError: .*'scale'"),
    (Attribute(), "raised AttributeError: .*'logits'"),
    (Whole(), r"gave a tensor of shape \(2, 7\)$"),
    (Difference(lambda y: y, 1), r"gave a tensor of shape \(2, 7\)$"),
]


@pytest.mark.parametrize(("target", "found"), OF_THE_USER)
def test_a_function_of_the_user_is_told_what_it_got_gave_and_must_give(
    target: Any, found: str
) -> None:
    with pytest.raises(ValueError, match=GOT + found) as raised:
        as_target(target)(torch.randn(2, 7))
    assert len(str(raised.value)) < 300
    assert "\n" not in str(raised.value)


def test_a_target_of_the_user_keeps_its_name_and_what_it_computes() -> None:
    class Second(Target):
        """The second number."""

        def __call__(self, output: Any) -> Any:
            """Take it."""
            return output[:, 1]

    class Third(Second):
        pass

    assert Second.__call__.__doc__ == "Take it."
    output = torch.randn(3, 5)
    assert torch.equal(Second()(output), output[:, 1])
    assert torch.equal(Third()(output), output[:, 1])


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (
            None,
            r"expected logits .* got OrderedDict of 'aux' \(2, 15\), 'out' \(2, 7\): give head='a",
        ),
        ("logits", "head 'logits': the network gives OrderedDict of 'aux'"),
        (5, "head 5: the network gives OrderedDict"),
        ("items", "head 'items': the network gives OrderedDict"),
    ],
)
def test_a_wrong_head_is_refused_with_those_there_are(head: str | int | None, message: str) -> None:
    network = Shaped(senet().eval(), SHAPES["out"])
    with pytest.raises(ValueError, match=message):
        GradCAM()(network, IMAGES, 3, head=head)
    assert not network._forward_hooks


def test_a_head_of_a_single_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match=r"head 0: the network gives a tensor of shape \(2, 7\)"):
        GradCAM()(senet().eval(), IMAGES, 3, head=0)


def test_targets_say_in_words_what_they_are() -> None:
    words = {
        "tabby rather than class 5": Difference(0, 5),
        "odds of collie": Odds(1),
        "the predicted class": Class(),
        "a direction of 7 numbers": Direction(VECTOR),
        "similarity to an embedding of 7 numbers": Similarity(VECTOR),
        "channel 4": Channel(4),
        "pixels of collie": PixelsOf(None, 1),
        "detection 3": Box(3),
        "tabby, collie": as_target([0, 1]),
        "odds": as_target(cast(Any, odds)),
    }
    for label, target in words.items():
        assert target.label(NAMES) == label
    assert str(Difference(0, Odds(1))) == "Difference(class 0, Odds(class 1))"


def test_numbers_of_numpy_are_targets_too() -> None:
    network = senet().eval()
    expected = GradCAM()(network, IMAGES, [3, 1]).values
    assert torch.equal(GradCAM()(network, IMAGES, np.array([3, 1])).values, expected)
    assert torch.equal(GradCAM()(network, IMAGES, [np.int64(3), 1]).values, expected)
    one = GradCAM()(network, IMAGES, np.int64(3)).values
    assert torch.equal(one, GradCAM()(network, IMAGES, torch.tensor(3)).values)
    vector = GradCAM()(network, IMAGES, VECTOR.double().numpy()).values
    torch.testing.assert_close(vector, GradCAM()(network, IMAGES, VECTOR).values)


class Peak(Target):
    def __call__(self, output: Any) -> Any:
        return output.logsumexp(dim=1)


def test_a_target_of_ones_own() -> None:
    network = senet().eval()
    by_hand = Shaped(network, lambda x, y: y.logsumexp(1)[:, None])
    found = GradCAM()(network, IMAGES, Peak()).values
    torch.testing.assert_close(found, GradCAM()(by_hand, IMAGES, 0).values)
    assert Peak().label() == "Peak"


def test_pixels_of_the_classes_that_there_are() -> None:
    logits, mask = torch.randn(2, 3, 5, 7), torch.ones(5, 7).bool()
    torch.testing.assert_close(PixelsOf(mask, 2)(logits), logits[:, 2].sum((1, 2)))
    for index in (3, 4, 6):  # fewer than rows and columns
        with pytest.raises(ValueError, match=f"class {index} is out of range: the network has 3"):
            PixelsOf(mask, index)(logits)


def test_the_pixels_that_the_network_gives_to_a_class_are_fixed() -> None:
    logits = torch.zeros(2, 3, 5, 7)
    logits[0, 2, 1, 4] = logits[1, 2, 3] = 1.0
    fixed = PixelsOf(None, 2).fixed(logits)
    assert torch.equal(cast(torch.Tensor, fixed.mask), logits[:, 2] > 0)
    with pytest.raises(ValueError, match="gives class 1 no pixel of image 0: give a mask"):
        PixelsOf(None, 1).fixed(logits)
    logits[1, 2] = 0
    with pytest.raises(ValueError, match="gives class 2 no pixel of image 1: give a mask"):
        PixelsOf(None, 2).fixed(logits)


def test_pixels_of_some_of_the_images() -> None:
    masks = torch.zeros(3, 5, 7).bool()
    masks[1, 2, 3] = masks[2, 4, 6] = True
    some = PixelsOf(masks, 1).at(torch.tensor([2, 1]))
    assert torch.equal(cast(torch.Tensor, some.mask), masks[[2, 1]])
    for whole in (PixelsOf(masks[1], 1), PixelsOf(None, 1)):
        assert whole.at(torch.tensor([2, 1])) is whole
    keys = {PixelsOf(mask, 1).key() for mask in (*masks, masks, None)}
    assert len(keys) == 5
    assert PixelsOf(masks[1].clone(), 1).key() == PixelsOf(masks[1], 1).key()


def test_a_target_is_a_value() -> None:
    for target in (PixelsOf(None, 1), Class(3), Difference(3, 1)):
        with pytest.raises(FrozenInstanceError):
            setattr(target, "index", 2)  # noqa: B010


def test_the_two_classes_of_a_difference() -> None:
    assert Difference(3, 1).pair() == (3, 1)
    assert Class(3).pair() == (3, None)
    assert Difference(Difference(3, 1), 2).pair() == (3, 2)


def test_a_box_is_the_same_from_half_an_overlap_on() -> None:
    box = torch.tensor([0.0, 0.0, 2.0, 4.0])
    for height, score in ((2.0, 0.7), (1.9, 0.0)):
        boxes = torch.tensor([[0.0, 0.0, 2.0, height]])
        image = {"boxes": boxes, "labels": torch.tensor([3]), "scores": torch.tensor([0.7])}
        assert float(nearest_score(image, box, 3)) == pytest.approx(score)


def test_a_channel_of_an_output_of_any_shape() -> None:
    for shape in ((5,), (2, 3, 5, 7, 11)):
        with pytest.raises(ValueError, match=r"expected one tensor \(b, c\), \(b, c, h, w\) or"):
            Channel(1)(torch.randn(shape))
    maps, tokens = torch.randn(2, 3, 5, 7), torch.randn(2, 5, 3)
    torch.testing.assert_close(Channel(1, place=(0, 6))(maps), maps[:, 1, 0, 6])
    torch.testing.assert_close(Channel(1, place=4)(tokens), tokens[:, 4, 1])
    for output, place in ((maps, (-1, 2)), (maps, (0, 7)), (maps, 3), (tokens, -1), (tokens, 5)):
        with pytest.raises(ValueError, match="the output's places are"):
            Channel(1, place=place)(output)
