"""timm's CNNs, read out by attention."""

from functools import partial
from typing import Any

import pytest
import torch

from vision_attn.attention import AttentionPool, HierarchicalPool, HopsPool
from vision_attn.models import ModelError, PooledCNN, build, describe

IMAGES = torch.randn(2, 3, 64, 96)
SMALL = {"channels": [8, 8, 16, 16], "output_stride": 8}


@pytest.mark.parametrize(
    ("name", "args", "grid"),
    [
        ("resnet10t", SMALL, (8, 12)),
        ("mobilenetv3_small_050", {}, (2, 3)),
        ("convnext_atto", {}, (2, 3)),
    ],
)
@torch.no_grad()
def test_the_layout_is_that_of_the_last_features(
    name: str, args: dict[str, Any], grid: tuple[Any, ...]
) -> None:
    network = PooledCNN(name, 5, pool=HierarchicalPool, model_args=args).eval()
    assert network.trunk.forward_features(IMAGES).shape[2:] == grid
    assert network.layout((64, 96)).grid == grid
    assert network(IMAGES).shape == (2, 5)


@torch.no_grad()
def test_it_is_rebuilt_from_its_description() -> None:
    network = PooledCNN("resnet10t", 5, pool=partial(HopsPool, hops=2), model_args=SMALL).eval()
    again = build(describe(network)).eval()
    again.load_state_dict(network.state_dict())
    torch.testing.assert_close(again(IMAGES), network(IMAGES))


@torch.no_grad()
def test_the_answer_is_of_the_places_that_count() -> None:
    network = PooledCNN("resnet10t", 5, pool=AttentionPool, model_args=SMALL).eval()
    features = network.trunk.forward_features(IMAGES)
    weights = network.readout.weights(features.flatten(2).mT)[:, 0]
    vector = (features.flatten(2) * weights[:, None]).sum(2)
    torch.testing.assert_close(network(IMAGES), network.head(vector))


def test_what_is_no_cnn_is_refused() -> None:
    network = PooledCNN("vit_tiny_patch16_224", 5, model_args={"img_size": (64, 96), "depth": 1})
    with pytest.raises(ModelError, match=r"expected a CNN whose last features are \(b 192 h w\)"):
        network(IMAGES)
    with pytest.raises(ModelError, match="did you mean"):
        PooledCNN("resnet10", 5)
