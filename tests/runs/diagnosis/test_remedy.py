"""Registers at test time beside the paper's formula, and Rollout without the outliers' share."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.nn import functional as F

import vision_attn
from vision_attn.methods import (
    AttentionGradCAM,
    Explainer,
    GradCAM,
    GradientRollout,
    LeGrad,
    LibraGradient,
    Occlusion,
    QueryKey,
    RawAttention,
    Relevance,
    Rollout,
    WeightedRollout,
)
from vision_attn.tokens.blocks import find_blocks
from vision_attn.tokens.registers import TestTimeRegisters, neuron_scores
from vision_attn.types import Trust

from .conftest import model_of, vit

NEURON = 13  # of 33, in block 1


def by_hand(
    network: VisionTransformer, images: torch.Tensor, chosen: list[tuple[int, int]]
) -> torch.Tensor:
    """Jiang et al. 2025: zeros join, the largest activation of the patches moves there."""
    x = network.norm_pre(network._pos_embed(network.patch_embed(images)))
    x = torch.cat([x, torch.zeros(len(x), 1, 21, dtype=x.dtype)], 1)
    for at, block in enumerate(network.blocks):
        x = x + block.attn(block.norm1(x))
        active = F.gelu(block.mlp.fc1(block.norm2(x)))
        for where, neuron in chosen:
            if where == at:
                for image in range(len(x)):
                    largest = max(active[image, token, neuron].item() for token in range(1, 16))
                    active[image, 1:16, neuron] = 0
                    active[image, 16, neuron] = largest
        x = x + block.mlp.fc2(active)
    return network.forward_head(network.norm(x[:, :-1]))


@torch.no_grad()
def test_the_wrapper_is_the_papers_formula(images: torch.Tensor) -> None:
    network = vit()
    chosen = [(0, 5), (1, 2), (1, 31)]
    neurons = [(f"blocks.{at}.mlp.fc2", neuron) for at, neuron in chosen]
    layout = model_of(network).layout
    assert layout is not None
    moved = TestTimeRegisters(network, "blocks.0", "blocks.2", neurons, layout).eval()
    torch.testing.assert_close(
        moved(images), by_hand(network, images, chosen), rtol=1e-12, atol=1e-12
    )
    assert not torch.allclose(moved(images), network(images))


@torch.no_grad()
def planted() -> VisionTransformer:
    """A neuron of block 1 that writes a norm of about 50 wherever a patch is bright."""
    network = vit()
    look, write = torch.eye(21, dtype=torch.float64)[[3, 8]]
    assert network.pos_embed is not None
    network.pos_embed[:, 7] += 4.5 * look  # patch (1, 1)
    mlp = network.blocks[1].mlp
    mlp.fc1.weight[NEURON], mlp.fc1.bias[NEURON] = 9 * look, -22.0
    mlp.fc2.weight[:, NEURON] = 8 * write
    for block in network.blocks:
        block.attn.proj.weight *= 0.3
        block.mlp.fc2.weight[:, :NEURON] *= 0.3
        block.mlp.fc2.weight[:, NEURON + 1 :] *= 0.3
    return network


@torch.no_grad()
def test_scores_are_those_of_algorithm_1(images: torch.Tensor) -> None:
    network = planted()
    blocks = find_blocks(network, images)
    where = torch.zeros(7, 16, dtype=torch.bool)
    where[0, [3, 7]] = where[1, 5] = True  # the others have none
    scores = neuron_scores(network, [images], blocks[:2], lambda: where)
    assert list(scores) == ["blocks.0", "blocks.1"]
    x = network.norm_pre(network._pos_embed(network.patch_embed(images)))
    for block, score in zip(network.blocks, scores.values(), strict=False):
        x = x + block.attn(block.norm1(x))
        active = F.gelu(block.mlp.fc1(block.norm2(x)))
        x = x + block.mlp.fc2(active)
        by_photo = [active[0, [3, 7]].abs().mean(0), active[1, 5].abs()]
        torch.testing.assert_close(score, (by_photo[0] + by_photo[1]) / 2)
    assert neuron_scores(network, [images], blocks, lambda: where & False) == {}


def test_the_planted_neuron_is_found_and_moved(tmp_path: Path, images: torch.Tensor) -> None:
    from PIL import Image

    files = []
    for at, image in enumerate(images):
        pixels = (image.clamp(-1, 1) * 127 + 128).to(torch.uint8).permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(tmp_path / f"{at}.png")
        files.append(tmp_path / f"{at}.png")
    model = replace(model_of(planted()), trust=Trust(("GradCAM",), 31, "photos"))
    before = vision_attn.diagnose(model, files)
    assert before.outliers is not None
    assert before.outliers.first == 1, before.blocks
    moved = vision_attn.add_registers(model, files, neurons=1)
    assert dict(moved.network.neurons) == {"blocks.1.mlp.fc2": [NEURON]}
    after = vision_attn.diagnose(moved, files)
    assert after.blocks[1].outliers < before.blocks[1].outliers
    assert moved.layout is not None
    assert moved.layout.beside == [0, 16]
    assert moved.name == "a ViT with a test-time register"
    assert moved.trust is None
    maps = Rollout()(moved, images, layout=moved.layout)
    assert maps.prefix_mass is not None
    total = maps.values.sum((1, 2)) + maps.prefix_mass
    torch.testing.assert_close(total, torch.ones(7))
    assert model.network.training is False
    assert not model.network.blocks[0]._forward_pre_hooks


class Moving(nn.Module):
    """GELU; then what chosen neurons of the patches hold goes to token 1, the register."""

    def __init__(self, neurons: list[Any]) -> None:
        super().__init__()
        self.neurons = neurons

    def forward(self, x: Any) -> torch.Tensor:
        x = F.gelu(x)
        chosen = torch.zeros(x.shape[2], dtype=torch.bool)
        chosen[self.neurons] = True
        largest = x[:, 2:].amax(1, keepdim=True)
        if not largest.requires_grad:  # else the patches would be followed into token 1
            largest = torch.tensor(largest.tolist(), dtype=x.dtype)
        moved = torch.where(chosen, largest, x[:, 1:2])
        return torch.cat([x[:, :1], moved, x[:, 2:].masked_fill(chosen, 0)], 1)


@torch.no_grad()
def with_a_register_of_its_own(
    network: VisionTransformer, chosen: list[tuple[int, int]]
) -> VisionTransformer:
    """The same as timm's network with a register token: zeros, after the class token."""
    own = vit(registers=1, no_embed_class=False)
    state = network.state_dict()
    place = state["pos_embed"]
    state["pos_embed"] = torch.cat([place[:, :1], torch.zeros_like(place[:, :1]), place[:, 1:]], 1)
    assert own.reg_token is not None
    own.load_state_dict(state | {"reg_token": torch.zeros_like(own.reg_token)})
    for at, block in enumerate(own.blocks):
        block.mlp.act = Moving([neuron for where, neuron in chosen if where == at])
    return own


METHODS = [
    *(RawAttention(), RawAttention(layer=0), QueryKey(), QueryKey(query=(0.7, 0.4))),
    *(LeGrad(), LibraGradient(), GradCAM()),
    *(Rollout(), WeightedRollout(), GradientRollout(), Relevance(), AttentionGradCAM()),
    Occlusion(window=4),
]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_every_method_takes_the_register_for_a_token_beside_the_patches(
    method: Explainer, images: torch.Tensor
) -> None:
    """As on the same network with a register of its own, which every method knows as a prefix."""
    network, chosen = vit(), [(0, 5), (1, 2), (1, 31)]
    neurons = [(f"blocks.{at}.mlp.fc2", neuron) for at, neuron in chosen]
    layout = model_of(network).layout
    assert layout is not None
    moved = TestTimeRegisters(network, "blocks.0", "blocks.2", neurons, layout)
    own = with_a_register_of_its_own(network, chosen)
    with torch.no_grad():
        torch.testing.assert_close(moved(images), own(images), rtol=1e-12, atol=1e-12)
    wanted = method(own, images[:2], target=3)
    found = method(moved.eval(), images[:2], target=3)
    assert wanted.values.abs().max() > 0
    torch.testing.assert_close(found.values, wanted.values, rtol=1e-5, atol=1e-7)
    if wanted.prefix_mass is not None:
        torch.testing.assert_close(found.prefix_mass, wanted.prefix_mass, rtol=1e-5, atol=1e-7)


def test_errors_of_registers(tmp_path: Path, images: torch.Tensor) -> None:
    layout = model_of(vit()).layout
    assert layout is not None
    with pytest.raises(ValueError, match=r"VisionTransformer has no module nowhere"):
        TestTimeRegisters(vit(), "blocks.0", "nowhere", [], layout)
    model = model_of(planted().float())
    from PIL import Image

    Image.new("RGB", (20, 12)).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"block must be from 0 to 2, got 9"):
        vision_attn.add_registers(model, [tmp_path / "a.png"], block=9)


def test_rollout_without_the_outliers_share() -> None:
    network = planted()
    with torch.no_grad():
        assert network.pos_embed is not None
        network.pos_embed[:, 5] *= 300
    images = torch.randn(3, 3, 12, 20, dtype=torch.float64)
    whole, less = Rollout()(network, images), Rollout(outliers=False)(network, images)
    assert less.method == "Rollout(outliers=False)"
    gone = less.values == 0
    assert gone[:, 0, 4].all()
    torch.testing.assert_close(less.values, whole.values.masked_fill(gone, 0))
    torch.testing.assert_close(less.outlier_mass, whole.outlier_mass)
    lost = whole.values.sum((1, 2)) - less.values.sum((1, 2))
    torch.testing.assert_close(lost, whole.outlier_mass)
