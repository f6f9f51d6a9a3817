"""Pools, hops, levels, windows and hard choices as heatmaps: RawAttention and QueryKey."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vision_attn import attention as att
from vision_attn.methods import GradCAM, QueryKey, RawAttention, Rollout
from vision_attn.models import PooledCNN, ViT

IMAGES = torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(1))

POOLS = {
    "additive": att.AttentionPool,
    "key only, heads": partial(att.AttentionPool, heads=3, score=att.KeyOnly),
    "fused": partial(att.AttentionPool, heads=2, score=att.ScaledDot),
    "sparse": partial(att.AttentionPool, normalizer=att.Sparsemax),
    "hard": partial(att.AttentionPool, heads=2, normalizer=att.Hard),
    "multidim": partial(att.MultiDimPool, views=5),
    "feature-wise": att.FeatureWisePool,
    "hops": att.HopsPool,
    "hops, shared": partial(att.HopsPool, hops=2, shared=True, update=att.GRUUpdate),
    "hierarchical": partial(att.HierarchicalPool, regions=(2, 3)),
}


def vit(**options: Any) -> ViT:
    torch.manual_seed(0)
    network = ViT((32, 48), 8, 3, dim=12, depth=2, heads=2, **options)
    for weight in network.parameters():
        nn.init.normal_(weight, std=0.3)
    return network.eval()


def given(network: nn.Module, part: nn.Module) -> Tensor:
    """The tokens that a part of the network is given."""
    seen: list[Tensor] = []
    hook = part.register_forward_pre_hook(lambda _module, args: seen.append(args[0]))
    with torch.no_grad():
        network(IMAGES)
    hook.remove()
    return seen[0]


@pytest.mark.parametrize("name", POOLS)
@torch.no_grad()
def test_raw_attention_shows_every_look_of_a_pool(name: str) -> None:
    network = vit(pool=POOLS[name])
    layout = network.layout((32, 48))
    looks = network.readout.weights(given(network, network.readout), layout)
    found = RawAttention()(network, IMAGES)
    torch.testing.assert_close(found.values, layout.to_map(looks.mean(1)))
    torch.testing.assert_close(found.prefix_mass, looks.mean(1)[:, 0], atol=1e-6, rtol=0)
    for look in range(looks.shape[1]):
        found = RawAttention(head=look)(network, IMAGES)
        torch.testing.assert_close(found.values, layout.to_map(looks[:, look]))
    with pytest.raises(ValueError, match="head must be from 0 to"):
        RawAttention(head=looks.shape[1])(network, IMAGES)
    rolled = Rollout()(network, IMAGES)
    assert rolled.prefix_mass is not None
    torch.testing.assert_close(rolled.values.sum((1, 2)) + rolled.prefix_mass, torch.ones(2))


@pytest.mark.parametrize("pool", ["cls", "mean", att.ClassToken, att.MeanPool])
def test_a_fixed_readout_is_no_attention(pool: Any) -> None:
    network = vit(pool=pool)
    tokens = given(network, network.blocks[-1].attn)
    with torch.no_grad():
        weights = network.blocks[-1].attn.weights(tokens).mean(1)
    layout = network.layout((32, 48))
    seed = weights[:, 0] if layout.pool == "cls" else weights[:, 1:].mean(1)
    torch.testing.assert_close(RawAttention()(network, IMAGES).values, layout.to_map(seed))


def test_a_hard_pool_is_one_patch_a_head() -> None:
    network = vit(pool=POOLS["hard"], class_token=False)
    for head in range(2):
        values = RawAttention(head=head)(network, IMAGES).values.flatten(1)
        assert values.sort(1).values[:, -2:].tolist() == [[0, 1], [0, 1]]


PARTS: dict[str, dict[str, Any]] = {
    "local2d": {"window": partial(att.Local2d, radius=1)},
    "monotonic": {"window": partial(att.LocalMonotonic, radius=2)},
    "predictive": {"window": partial(att.LocalPredictive, radius=3)},
    "hard": {"normalizer": att.Hard},
    "sparse": {"normalizer": att.Sparsemax},
    "additive": {"score": att.Additive},
    "additive in a window": {"score": att.Additive, "window": partial(att.Local2d, radius=1)},
}


@pytest.mark.parametrize("name", PARTS)
@torch.no_grad()
def test_query_key_shows_windows_and_choices(name: str) -> None:
    network = vit(
        attention=partial(att.MultiHeadAttention, **PARTS[name]), class_token=False, pool="mean"
    )
    layout, attention = network.layout((32, 48)), network.blocks[-1].attn
    tokens = given(network, attention)
    weights = attention.weights(tokens, layout=layout)
    q, k, _ = attention.project(tokens)
    scores = attention.attend.score(q, k)
    for (x, y), patch in {(0, 0): 0, (20, 12): 8, (47, 31): 23}.items():
        found = QueryKey(query=(x, y))(network, IMAGES).values
        torch.testing.assert_close(found, layout.to_map(weights[:, :, patch].mean(1)))
        found = QueryKey(query=(x, y), head=1)(network, IMAGES).values
        torch.testing.assert_close(found, layout.to_map(weights[:, 1, patch]))
        if name == "local2d":
            assert (found > 0).sum() == 2 * (4 if patch != 8 else 9)
        found = QueryKey(query=(x, y), kind="scores", head=1)(network, IMAGES).values
        torch.testing.assert_close(found, layout.to_map(scores[:, 1, patch]))


def test_multidim_views_are_heads() -> None:
    network = vit(attention=att.MultiDimAttention)
    tokens = given(network, network.blocks[-1].attn)
    with torch.no_grad():
        weights = network.blocks[-1].attn.weights(tokens)
    found = QueryKey(head=1)(network, IMAGES).values
    torch.testing.assert_close(found, network.layout((32, 48)).to_map(weights[:, 1, 0]))


def test_a_cnn_read_out_by_attention_shows_where() -> None:
    network = PooledCNN("resnet10t", 3, model_args={"channels": [8, 8, 16, 16]}).eval()
    with torch.no_grad():
        features = network.trunk.forward_features(IMAGES)
        looks = network.readout.weights(features.flatten(2).mT)
    layout = network.layout((32, 48))
    assert layout.grid == tuple(features.shape[2:])
    found = RawAttention()(network, IMAGES)
    torch.testing.assert_close(found.values, layout.to_map(looks[:, 0]))
    assert GradCAM()(network, IMAGES).values.shape[0] == 2
