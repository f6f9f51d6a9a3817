"""Images that a network does not take: each wrong one is told in a line, by every explainer."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from torch import nn

from vision_attn.methods import EdgeMap, Explainer, GradCAM, MaskedRegression, Occlusion, Rollout
from vision_attn.models import SEResNet, ViT
from vision_attn.tokens.inputs import images_in_words, why_not

IMAGES = torch.randn(2, 3, 16, 24)


def vit() -> ViT:
    return ViT((16, 24), 8, 5, 12, 2, 3)


def senet() -> SEResNet:
    return SEResNet(5, layers=(1, 1, 1, 1), widths=(4, 4, 4, 8))


def fixed() -> nn.Module:
    small: dict[str, Any] = {
        "embed_dim": 12,
        "depth": 1,
        "num_heads": 2,
        "patch_size": 8,
        "num_classes": 5,
    }
    return timm.create_model("vit_tiny_patch16_224", img_size=(16, 24), **small)


@pytest.mark.parametrize(
    ("make", "explainer"),
    [(vit, Rollout()), (vit, GradCAM()), (senet, GradCAM()), (senet, MaskedRegression(samples=4, cells=2)),
     (fixed, Rollout()), (senet, Occlusion(window=8))],
)  # fmt: skip
def test_wrong_images_are_told_in_a_line(make: Callable[..., Any], explainer: Explainer) -> None:
    network = make().eval()
    wrong = {
        r"takes images of torch.float32, .* got torch.float64: give images.to\(torch.f": (
            IMAGES.double()
        ),
        "takes images of 3 channels, got 1$": IMAGES[:, :1],
        "takes images of 3 channels, got 4$": torch.randn(2, 4, 16, 24),
    }
    if make is fixed:
        wrong["takes images of 16x24, got 24x16"] = IMAGES.mT.contiguous()
    if make is vit:
        wrong["patch size 8, got 17x24"] = torch.randn(2, 3, 17, 24)
    for message, images in wrong.items():
        with pytest.raises(ValueError, match=message) as caught:
            explainer(network, images)
        assert "\n" not in str(caught.value)
    assert len(EdgeMap()(network, IMAGES[:, :1])) == 2  # which does not run the network


def test_other_failures_are_told_with_their_first_line() -> None:
    class Odd(nn.Module):
        def forward(self, images: torch.Tensor) -> None:
            raise RuntimeError("this\nand that")

    message = "Odd fails on images of shape .2, 3, 16, 24. and torch.float32: this"
    with pytest.raises(ValueError, match=message):
        MaskedRegression(samples=4, cells=2)(Odd(), IMAGES)


def test_errors_that_are_not_the_networks_stay_as_they_are() -> None:
    network = senet().eval()
    with pytest.raises(RuntimeError, match="ours"), images_in_words(network, IMAGES):
        raise RuntimeError("ours")
    with pytest.raises(torch.OutOfMemoryError), images_in_words(network, IMAGES[:, :1]):
        raise torch.OutOfMemoryError
    assert why_not(network, IMAGES) is None
