"""Layers of attention as people give them: indices, names from the end, modules, lists."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from vision_attn.methods import AttentionGradCAM, QueryKey, RawAttention
from vision_attn.methods.attention_explainer import AttentionExplainer
from vision_attn.models import ViT

IMAGES = torch.randn(2, 3, 48, 32)


@pytest.fixture(scope="module")
def network() -> ViT:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "image_size": (48, 32),
        "patch_size": 16,
        "num_classes": 5,
        "dim": 12,
        "depth": 3,
    }
    return ViT(heads=3, **sizes).eval()


@pytest.mark.parametrize("method", [RawAttention, QueryKey, AttentionGradCAM])
def test_a_layer_by_its_index_name_or_module(
    network: ViT, method: Callable[..., AttentionExplainer]
) -> None:
    target = 2 if method is AttentionGradCAM else None
    expected = method(layer=1)(network, IMAGES, target).values
    for layer in ("blocks.1.attn.attend", "blocks.-2", network.blocks[1].attn, -2):
        found = method(layer=layer)(network, IMAGES, target)
        assert torch.equal(found.values, expected)
    assert found.method == f"{method.__name__}(layer=-2)"


def test_several_layers_are_the_mean_of_their_maps(network: ViT) -> None:
    found = RawAttention(layer=[0, network.blocks[2]])(network, IMAGES)
    parts = [RawAttention(layer=at)(network, IMAGES) for at in (0, 2)]
    assert found.method == "RawAttention(layer=(0, 'blocks.2'))"
    torch.testing.assert_close(found.values, (parts[0].values + parts[1].values) / 2)
    assert parts[0].prefix_mass is not None
    assert parts[1].prefix_mass is not None
    mass = (parts[0].prefix_mass + parts[1].prefix_mass) / 2
    torch.testing.assert_close(found.prefix_mass, mass)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ("blocks", "layer 'blocks': it makes 3 attention calls; expected one of blocks.0.attn.att"),
        ("head", "layer 'head': it makes no attention call; expected an index from -3 to 2"),
        ("blocks.-4", "layer 'blocks.-4': no such layer"),
        (3, "layer must be from -3 to 2, as there are 3 attention calls, got 3"),
        (nn.ReLU(), "the ReLU that is given as a layer is no part of this network"),
    ],
)
def test_no_such_layer(network: ViT, layer: str | int | nn.ReLU, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RawAttention(layer=layer)(network, IMAGES)
