from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vision_attn.attention import CBAM, NoGate
from vision_attn.models import ConvEmbed, FastCNN, ViT, Whitening, WideEmbed, build, describe
from vision_attn.training import parameter_groups


def test_whitened_patches_are_uncorrelated_with_variance_one() -> None:
    images = torch.randn(11, 3, 13, 17).cumsum(3)  # neighbours alike
    layer = Whitening()
    layer.fit(images, eps=1e-9)
    found = layer(images).transpose(0, 1).flatten(1).double()
    torch.testing.assert_close(found[:12].cov(), torch.eye(12).double(), atol=1e-3, rtol=0)
    torch.testing.assert_close(found[12:], -found[:12])
    assert not layer.conv.weight.requires_grad
    assert layer.conv.bias is not None
    assert layer.conv.bias.requires_grad


def test_fast_cnn_is_its_formula_and_starts_as_the_same_without_gates() -> None:
    torch.manual_seed(3)
    network = FastCNN(num_classes=7, widths=(5, 11)).eval()
    images = torch.randn(2, 3, 32, 32)
    x = F.gelu(network.whitening.conv(images))
    for block in network.blocks:
        x = F.gelu(block.bn1(F.max_pool2d(block.conv1(x), 2)))
        x = F.gelu(block.bn2(block.conv2(x)))
    expected = x.flatten(2).max(2).values @ network.fc.weight.T / 9
    torch.testing.assert_close(network(images), expected)
    bare = FastCNN(num_classes=7, widths=(5, 11), gate=NoGate).eval()
    bare.load_state_dict(network.state_dict(), strict=False)
    torch.testing.assert_close(bare(images), expected)
    first = network.blocks[1].conv2.weight
    assert torch.equal(first[:11], nn.init.dirac_(torch.empty(11, 11, 3, 3)))


@pytest.mark.parametrize("gate", [CBAM, NoGate])
def test_fast_cnn_is_rebuilt_from_its_description(gate: Callable[..., nn.Module]) -> None:
    network = FastCNN(widths=(5, 7), gate=gate).eval()
    again = build(describe(network)).eval()
    again.load_state_dict(network.state_dict())
    images = torch.randn(2, 3, 24, 32)
    torch.testing.assert_close(again(images), network(images))


def test_tokens_of_convolutions_lie_where_patches_would() -> None:
    embed = ConvEmbed(dim=12, patch_size=4)
    images = torch.randn(2, 3, 20, 28)
    x = images
    for conv in embed.convs:
        x = F.max_pool2d(conv(x).relu(), 3, 2, 1)
    tokens = embed(images)
    assert tokens.shape == (2, 35, 12)
    torch.testing.assert_close(tokens[:, 7 + 2], x[:, :, 1, 2])
    for size in (0, 1, 6):
        with pytest.raises(ValueError, match=f"power of 2, at least 2, got {size}"):
            ConvEmbed(12, size)


def test_tokens_of_wide_blocks_are_their_formula_and_lie_where_patches_would() -> None:
    torch.manual_seed(5)
    embed = WideEmbed(dim=11, patch_size=8, widths=(5, 7)).eval()
    images = torch.randn(2, 3, 24, 40)
    x = F.gelu(embed.whitening.conv(F.pad(images, (0, 1, 0, 1), mode="reflect")))
    for block in embed.blocks:
        x = F.gelu(block.bn1(F.max_pool2d(block.conv1(x), 2)))
        x = F.gelu(block.bn2(block.conv2(x)))
    tokens = embed(images)
    assert tokens.shape == (2, 15, 11)
    torch.testing.assert_close(tokens[:, 5 + 2], x[:, :, 1, 2])
    with pytest.raises(ValueError, match=r"expected patch_size 4 with widths \(64,\), got 8"):
        WideEmbed(12, patch_size=8)


def test_a_vit_of_wide_blocks_is_rebuilt_and_only_its_hidden_kernels_are_muons() -> None:
    torch.manual_seed(1)
    vit = ViT(16, 4, 3, dim=12, depth=1, heads=3, class_token=False, pool="mean", embed=WideEmbed)
    again = build(describe(vit.eval())).eval()
    again.load_state_dict(vit.state_dict())
    images = torch.randn(2, 3, 16, 24)
    torch.testing.assert_close(again(images), vit(images))
    (hidden,) = (group for group in parameter_groups(vit) if group.get("hidden"))
    kernels = [p for p in hidden["params"] if p.ndim == 4]
    assert {tuple(k.shape[:2]) for k in kernels} == {(64, 24), (64, 64), (12, 64), (12, 12)}


def test_tokens_of_several_convolutions_a_halving_with_norms() -> None:
    torch.manual_seed(5)
    embed = ConvEmbed(dim=10, patch_size=4, depth=2, norm=True)
    assert [c.out_channels for c in embed.convs] == [5, 5, 10, 10]
    for norm in embed.norms:  # statistics and a positive scale that are not the start's
        nn.init.uniform_(norm.weight, 0.5, 2)
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 2)
    images = torch.randn(2, 3, 20, 28)
    x = images
    for i, (conv, norm) in enumerate(zip(embed.convs, embed.eval().norms, strict=True)):
        x = norm(conv(x)).relu()
        x = x if i % 2 else F.max_pool2d(x, 3, 2, 1)
    torch.testing.assert_close(embed(images), x.flatten(2).mT)
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        ConvEmbed(12, depth=0)


def test_strided_convolutions_halve_instead_of_pooling() -> None:
    torch.manual_seed(7)
    embed = ConvEmbed(dim=10, patch_size=4, depth=2, strided=True).double()
    images = torch.randn(2, 3, 20, 28, dtype=torch.float64)
    x = images
    for i, conv in enumerate(embed.convs):
        x = F.conv2d(x, conv.weight, padding=1).relu()
        x = x if i % 2 else x[:, :, ::2, ::2]
    torch.testing.assert_close(embed(images), x.flatten(2).mT)


def test_a_compact_vit_learns_drops_patches_and_is_rebuilt() -> None:
    options: dict[str, Any] = {
        "pool": "mean",
        "class_token": False,
        "embed": ConvEmbed,
        "patch_drop": 0.5,
    }
    network = ViT(16, 4, 5, dim=12, depth=1, **options)
    images = torch.randn(3, 3, 16, 16)
    network(images).sum().backward()
    assert all(p.grad is not None for p in network.parameters())
    again = build(describe(network))
    again.load_state_dict(network.state_dict())
    torch.testing.assert_close(again.eval()(images), network.eval()(images))
