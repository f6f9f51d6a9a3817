"""Passes that methods share: the same maps, of what they were asked about and of nothing else."""

from contextvars import copy_context
from typing import Any, Literal

import pytest
import torch
from torch import nn

from vision_attn.methods import (
    AttentionGradCAM,
    Class,
    Direction,
    Explainer,
    GradCAM,
    GradCAMPlusPlus,
    GradientRollout,
    HiResCAM,
    LayerCAM,
    PerImage,
    Relevance,
    Target,
    WeightedRollout,
    XGradCAM,
)
from vision_attn.methods.passes import shared_passes
from vision_attn.models import SEResNet, ViT

OF_ATTENTION = WeightedRollout(), GradientRollout(), Relevance(), AttentionGradCAM()
OF_FEATURES = GradCAM(), GradCAMPlusPlus(), XGradCAM(), HiResCAM(), LayerCAM()
IMAGES = (2, 3, 32, 48)


def vit(pool: Literal["cls", "mean"]) -> nn.Module:
    return ViT(IMAGES[2:], 8, 5, 12, 2, 3, pool=pool).double().eval()


def cnn() -> nn.Module:
    return SEResNet(5, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4)).double().eval()


class Runs:
    """How often a network ran."""

    def __init__(self, network: nn.Module):
        self.count = 0
        network.register_forward_hook(self.add)

    def add(self, *_: Any) -> None:
        self.count += 1


@pytest.mark.parametrize(
    ("network", "methods", "passes"),
    [
        (vit("cls"), OF_ATTENTION, 1),
        (vit("cls"), OF_FEATURES, 2),  # HiResCAM reads after the norm
        (vit("mean"), [*OF_ATTENTION, *OF_FEATURES], 2),
        (cnn(), OF_FEATURES, 2),
    ],
    ids=["attention", "class token", "both", "CNN"],
)
def test_maps_are_those_of_methods_alone(
    network: nn.Module, methods: list[Explainer], passes: int
) -> None:
    images = torch.randn(IMAGES, dtype=torch.float64)
    runs = Runs(network)
    alone = [method(network, images, [1, 3]).values for method in methods]
    runs.count = 0
    with shared_passes():
        together = [method(network, images, [1, 3]).values for method in methods]
        assert runs.count == passes
        again = methods[0](network, images, [1, 3]).values
        assert runs.count == passes
    for own, of_all in zip(alone, together, strict=True):
        torch.testing.assert_close(of_all, own, rtol=0, atol=0)
    torch.testing.assert_close(again, alone[0], rtol=0, atol=0)
    methods[0](network, images, [1, 3])
    assert runs.count == passes + 1


class Squared(Target):
    """A target that no other is equal to, and whose numbers hang on what it holds."""

    def __init__(self, index: int):
        self.index = index

    def __call__(self, output: torch.Tensor) -> torch.Tensor:
        return output[:, self.index].square()


@pytest.mark.parametrize("method", [Relevance(), GradCAM()], ids=str)
def test_another_question_is_another_pass(method: Explainer) -> None:
    network, other = vit("mean"), vit("mean")
    images = torch.randn(IMAGES, dtype=torch.float64)
    images_of_two = images.flip(0).contiguous()
    questions: list[tuple[nn.Module, torch.Tensor, Any]] = [
        (network, images, 1),
        (network, images, 3),
        (network, images, PerImage((Class(1), Class(3)))),
        (network, images, Squared(1)),
        (network, images, Squared(3)),
        (network, images, Direction(torch.arange(5.0))),
        (network, images, Direction(-torch.arange(5.0))),
        (network, images_of_two, 1),
        (network, images[:1], 1),
        (network, images[1:], 1),
        (other, images, 1),
    ]
    alone = [method(*question).values for question in questions]
    with shared_passes():
        for question, own in zip(questions, alone, strict=True):
            torch.testing.assert_close(method(*question).values, own, rtol=0, atol=0)
    assert len({values.flatten()[:6].sum().item() for values in alone}) > 7


def test_images_that_were_written_into_are_others() -> None:
    network, images = vit("mean"), torch.randn(IMAGES, dtype=torch.float64)
    with shared_passes():
        before = Relevance()(network, images, 1).values
        images.neg_()
        after = Relevance()(network, images, 1).values
    torch.testing.assert_close(after, Relevance()(network, images, 1).values, rtol=0, atol=0)
    assert not torch.equal(before, after)


def test_autocast_is_another_pass() -> None:
    network, images = vit("mean").float(), torch.randn(IMAGES)
    alone = Relevance()(network, images, 1).values
    with shared_passes():
        with torch.autocast("cpu", torch.bfloat16):
            half = Relevance()(network, images, 1).values
        torch.testing.assert_close(Relevance()(network, images, 1).values, alone, rtol=0, atol=0)
    assert not torch.equal(half, alone)


def test_nothing_is_kept_once_it_is_closed_in_a_copy_of_the_context_either() -> None:
    network, images = vit("mean"), torch.randn(IMAGES, dtype=torch.float64)
    with shared_passes():
        before = Relevance()(network, images, 1).values
        context = copy_context()
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(1.5)
    after = context.run(lambda: Relevance()(network, images, 1).values)
    torch.testing.assert_close(after, Relevance()(network, images, 1).values, rtol=0, atol=0)
    assert not torch.equal(before, after)
