"""What every explainer shares: options, checks, and a network left as it was found."""

import copy
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch
from torch import nn

from vision_attn.methods import Difference
from vision_attn.methods.base import Explainer
from vision_attn.tokens.outputs import class_logits, run
from vision_attn.types import Heatmaps


@dataclass(frozen=True)
class InputGradient(Explainer):
    """sum_c d logit / dx: the least explainer that needs gradients."""

    kind: Literal["signed", "length"] = "signed"
    power: float = 1.0
    place: tuple[int, int] | None = None
    layer: int | Literal["mean"] = -1

    class_specific = True
    needs_gradients = True

    def refusal(self, network: Any) -> str | None:
        return "it is too plain" if isinstance(network, nn.Identity) else None

    def explain(self, network: Any, images: torch.Tensor, target: Any, layout: Any) -> Heatmaps:
        images.requires_grad_()
        output = run(network, images)
        target = target.fixed(output)
        (gradient,) = torch.autograd.grad(target(output).sum(), images)
        return Heatmaps(gradient.sum(1), str(self), target.classes(images))


@dataclass(frozen=True)
class Brightness(Explainer):
    class_specific = False

    def refusal(self, network: Any) -> None:
        return None

    def explain(self, network: Any, images: torch.Tensor, target: Any, layout: Any) -> Heatmaps:
        assert not torch.is_grad_enabled()
        assert not network.training
        class_logits(network, images)
        return Heatmaps(images.mean(1), str(self))


@pytest.fixture
def network() -> nn.Sequential:
    network = nn.Sequential(
        nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Dropout(), nn.AdaptiveAvgPool2d(1)
    )
    return nn.Sequential(network, nn.Flatten(), nn.Linear(5, 7))


IMAGES = torch.randn(2, 3, 11, 13)


def state(
    network: nn.Sequential,
) -> tuple[list[Any], list[Any], list[Any], list[dict[Any, Any]], Any]:
    return (
        [module.training for module in network.modules()],
        [weight.requires_grad for weight in network.parameters()],
        [weight.grad for weight in network.parameters()],
        [dict(module._forward_hooks) for module in network.modules()],
        copy.deepcopy(network.state_dict()),
    )


def assert_same(
    before: tuple[list[Any], list[Any], list[Any], list[dict[Any, Any]], Any],
    after: tuple[list[Any], list[Any], list[Any], list[dict[Any, Any]], Any],
) -> None:
    assert before[:4] == after[:4]
    torch.testing.assert_close(before[4], after[4], rtol=0, atol=0)


@pytest.mark.parametrize("explainer", [InputGradient(), Brightness()])
def test_the_network_is_left_as_it_was(network: Any, explainer: Explainer) -> None:
    network[0][1].eval()
    network[2].bias.requires_grad_(False)
    before = state(network)
    explainer(network, IMAGES)
    assert_same(before, state(network))
    network[2].weight.data[3, 2] = torch.nan
    before = state(network)
    with pytest.raises(
        ValueError, match=r"so do the network's weights, first '2.weight' \(1 of 9\)"
    ):
        explainer(network, IMAGES)
    assert before[:4] == state(network)[:4]


def test_images_that_require_gradients_get_none(network: nn.Sequential) -> None:
    images = IMAGES.clone().requires_grad_()
    InputGradient()(network, images)
    assert images.grad is None
    plain = IMAGES.clone()
    InputGradient()(network, plain)
    assert not plain.requires_grad


def test_gradients_inside_inference_mode(network: nn.Sequential) -> None:
    expected = InputGradient()(network, IMAGES).values
    with torch.inference_mode():
        torch.testing.assert_close(InputGradient()(network, IMAGES.clone()).values, expected)
        assert torch.is_inference_mode_enabled()
        made_inside = copy.deepcopy(network)
    with pytest.raises(ValueError, match=r"gradients cannot pass '0.0.weight'.*inference_mode"):
        InputGradient()(made_inside, IMAGES)
    torch.testing.assert_close(InputGradient()(copy.deepcopy(made_inside), IMAGES).values, expected)


def test_targets(network: nn.Sequential) -> None:
    predicted = network.eval()(IMAGES).argmax(1)
    maps = InputGradient()(network, IMAGES)
    assert maps.targets is not None
    assert maps.targets.tolist() == predicted.tolist()
    one_for_all = InputGradient()(network, IMAGES, 3)
    torch.testing.assert_close(
        one_for_all.values, InputGradient()(network, IMAGES, torch.tensor([3, 3])).values
    )
    torch.testing.assert_close(one_for_all.values, InputGradient()(network, IMAGES, [3, 3]).values)
    with pytest.raises(
        ValueError, match="class 7 is out of range: the network has 7 classes, 0 to"
    ):
        InputGradient()(network, IMAGES, [0, 7])
    with pytest.raises(ValueError, match="class -1 is out of range"):
        InputGradient()(network, IMAGES, -1)
    with pytest.raises(ValueError, match=r"one for all images or 2 \(one an image\), got 3"):
        InputGradient()(network, IMAGES, [1, 2, 3])
    with pytest.raises(ValueError, match="a vector of 2 numbers, but the network gives 7"):
        InputGradient()(network, IMAGES, torch.tensor([0.5, 1.0]))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (IMAGES[0], r"got shape \(3, 11, 13\); add the batch axis: images\[None\]"),
        (IMAGES[:0], r"none of them 0, got shape \(0, 3, 11, 13\)"),
        (IMAGES.byte(), r"images must be floats.*torch.uint8"),
        (IMAGES.to("meta"), "the images are on meta, the network is on cpu"),
        (IMAGES * torch.inf, "holds NaN or infinity: the images hold NaN"),
    ],
)
def test_bad_images(network: nn.Sequential, images: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        InputGradient()(network, images)


def test_a_refused_network_says_why() -> None:
    with pytest.raises(ValueError, match=r"InputGradient does not fit Identity: it is too plain"):
        InputGradient()(nn.Identity(), IMAGES)


def test_a_network_without_logits() -> None:
    with pytest.raises(ValueError, match=r"expected logits \(2, classes\).*got \(2, 3, 11, 13\)"):
        Brightness()(nn.ReLU(), IMAGES)


def test_options_are_checked_and_spelt() -> None:
    assert str(InputGradient()) == "InputGradient"
    pair: Any = [3, 5]
    explainer = InputGradient(kind="length", power=2, place=pair, layer="mean")
    spelt = "InputGradient(kind='length', power=2.0, place=(3, 5), layer='mean')"
    assert str(explainer) == spelt
    options: Any
    for options, message in [
        (
            {"kind": "lenght"},
            r"kind: expected 'signed' or 'length', got 'lenght' \(did you mean 'l",
        ),
        ({"power": "2"}, "power: expected a number, got '2'"),
        ({"power": True}, "power: expected a number, got True"),
        (
            {"place": (3,)},
            r"place: expected \(a whole number, a whole number\) or none, got \(3,\)",
        ),
        ({"place": (3, 1.5)}, "place: expected"),
        ({"layer": "maen"}, "layer: expected a whole number or 'mean', got 'maen' .did you mean"),
        ({"power": torch.zeros(99)}, r"power: expected a number, got Tensor of shape \(99,\)$"),
        (
            {"kind": nn.Identity()},
            r"kind: got a network; give it with the images, InputGradient\(\)\(network, images\)",
        ),
    ]:
        with pytest.raises(ValueError, match=f"InputGradient: option {message}"):
            InputGradient(**options)


def test_contrast_is_the_difference_of_the_maps(network: nn.Sequential) -> None:
    difference = (
        InputGradient()(network, IMAGES, 2).values - InputGradient()(network, IMAGES, 4).values
    )
    contrast = InputGradient()(network, IMAGES, Difference(2, 4))
    torch.testing.assert_close(contrast.values, difference)
    with pytest.raises(ValueError, match=r"class 9 is out of range.*7 classes"):
        InputGradient()(network, IMAGES, Difference(None, 9))


def test_what_a_network_cannot_do_is_told_in_one_line(network: nn.Sequential) -> None:
    class CannotBeDerived(Brightness):
        def explain(self, network: Any, images: torch.Tensor, target: Any, layout: Any) -> Any:
            raise NotImplementedError("no gradient of this kernel\nC++ stack trace")

    with pytest.raises(ValueError, match=r"does not fit \w+: no gradient of this kernel$"):
        CannotBeDerived()(network, torch.randn(2, 3, 5, 7))
