"""A run whose path is known is watched in its attention modules and last norms alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.nn import functional as F

from vision_attn.methods import Rollout, attention_explainer
from vision_attn.methods.attention_explainer import trace
from vision_attn.models import ViT
from vision_attn.tokens.path.path import find_path
from vision_attn.tokens.record.functions import CallMode
from vision_attn.tokens.record.record import Recorder

IMAGES = torch.rand(2, 3, 28, 28, generator=torch.Generator().manual_seed(1))


class OfEncoderLayers(nn.Module):
    """Torch's own layers, whose fast path no mode sees."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 10, 7, stride=7)
        layers = [nn.TransformerEncoderLayer(10, 5, 13, batch_first=True) for _ in range(2)]
        self.layers, self.norm, self.head = (
            nn.Sequential(*layers),
            nn.LayerNorm(10),
            nn.Linear(10, 3),
        )

    def forward(self, x: Any) -> Any:
        return self.head(self.norm(self.layers(self.embed(x).flatten(2).mT)).mean(1))


class OutsideModules(OfEncoderLayers):
    """Attention in the network's own forward."""

    def forward(self, x: Any) -> Any:
        x = self.embed(x).flatten(2).mT
        return self.head(self.norm(x + (x @ x.mT).softmax(-1) @ x).mean(1))


def swin() -> SwinTransformer:
    return SwinTransformer(
        img_size=28, patch_size=7, embed_dim=6, depths=(1, 1), num_heads=(1, 3), window_size=2
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "ViT": lambda: ViT(image_size=28, patch_size=7, num_classes=3, dim=10, depth=2, heads=5),
    "timm": lambda: VisionTransformer(
        img_size=28, patch_size=7, embed_dim=10, depth=2, num_heads=5
    ),
    "timm, by weights": lambda: unfused(NETWORKS["timm"]()),
    "Swin": swin,
    "torch's layers": OfEncoderLayers,
}


def unfused(network: Any) -> Any:
    for block in network.blocks:
        block.attn.fused_attn = False
    return network


def network_of(name: str) -> Any:
    torch.manual_seed(3)
    return NETWORKS[name]().eval()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Torch's functions that the mode saw."""
    functions, own = [], CallMode.__torch_function__

    def noting(
        self: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        functions.append(func)
        return own(self, func, types, args, kwargs)

    monkeypatch.setattr(CallMode, "__torch_function__", noting)
    return functions


@pytest.mark.parametrize("name", NETWORKS)
def test_the_maps_are_those_of_a_run_watched_whole(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = network_of(name)
    assert find_path(network, IMAGES).norms is not None
    maps = Rollout()(network, IMAGES)
    monkeypatch.setattr(attention_explainer, "_recorded_inside", lambda *_: None)
    whole = Rollout()(network, IMAGES)
    assert torch.equal(maps.values, whole.values)
    assert maps.outlier_mass is not None
    assert whole.outlier_mass is not None
    assert torch.equal(maps.outlier_mass, whole.outlier_mass)


@pytest.mark.parametrize("name", ["ViT", "timm", "torch's layers"])
def test_what_lies_outside_is_not_seen(name: str, seen: list[Any]) -> None:
    network = network_of(name)
    find_path(network, IMAGES)
    seen.clear()
    trace(network, IMAGES, None)
    assert F.scaled_dot_product_attention in seen
    assert not {torch.conv2d, F.gelu, F.relu, torch.relu, torch.Tensor.mean} & set(seen)


def test_attention_outside_modules_has_the_whole_network_watched() -> None:
    network = OutsideModules().eval()
    path = find_path(network, IMAGES)
    assert path.norms is None
    inside = replace(path, norms=frozenset({"norm"}))
    assert attention_explainer._recorded_inside(inside, network, IMAGES, (), None) is None
    assert len(trace(network, IMAGES, None).calls) == 1


def test_a_norm_whose_weight_is_not_a_modules_has_the_whole_network_watched() -> None:
    network = network_of("ViT")
    held = network.norm.weight
    network.norm.forward = lambda x: F.layer_norm(x, (10,), held * 2)
    assert find_path(network, IMAGES).norms is None


def test_an_interrupt_leaves_no_mode(seen: list[Any]) -> None:
    network = network_of("timm")
    path = find_path(network, IMAGES)
    watch = Recorder(frozenset())

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    network.blocks[1].attn.proj.register_forward_hook(interrupt)
    with watch.watching(network, path.norms):
        with pytest.raises(KeyboardInterrupt):
            network(IMAGES)
        torch.relu(IMAGES)
    torch.neg(IMAGES)
    assert torch.relu in seen  # the mode was left open
    assert torch.neg not in seen
