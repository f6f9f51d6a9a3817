"""Our ViT against timm's, with weights far from the start so that every one of them counts."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import timm
import torch
from torch import nn

from vision_attn.attention import Additive, ClassToken, MeanPool, MultiHeadAttention, Readout
from vision_attn.models import ModelError, ViT, vit_from_timm
from vision_attn.types import TokenLayout


def perturbed(network: nn.Module, by: float = 0.05) -> Any:
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(by * torch.randn_like(parameter))
    return network.eval()


def small(**args: Any) -> ViT:
    return perturbed(ViT(**{"image_size": 16, "dim": 12, "depth": 2, "heads": 3, **args}))


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("vit_tiny_patch16_224", {}),
        ("vit_small_patch16_224", {"depth": 6}),
        ("vit_base_patch16_224", {"img_size": 64, "depth": 4}),
        ("vit_small_patch16_224", {"global_pool": "avg", "depth": 3}),
        ("vit_small_patch16_224", {"global_pool": "avg", "fc_norm": False, "depth": 3}),
        ("vit_small_patch16_224", {"img_size": (160, 224), "depth": 3}),
        ("vit_base_patch16_reg4_gap_256", {"img_size": 64, "depth": 4}),
        ("vit_small_patch14_reg4_dinov2", {"img_size": 98, "depth": 4}),
        ("vit_tiny_patch16_224", {"qkv_bias": False, "class_token": False, "global_pool": "avg"}),
    ],
)
@torch.no_grad()
def test_timm_weights_give_timm_logits(name: str, args: dict[str, Any]) -> None:
    theirs = perturbed(timm.create_model(name, **args))
    ours = vit_from_timm(theirs)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    images = torch.randn(2, 3, *theirs.patch_embed.img_size)
    expected = theirs(images)
    print(f"{name} {args}: max difference {(ours(images) - expected).abs().max():.1e}")
    assert expected.std() > 0.3
    torch.testing.assert_close(ours(images), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("args", [{}, {"no_embed_class": True, "reg_tokens": 3}])
@torch.no_grad()
def test_another_image_size_resamples_positions_as_timm(args: dict[str, Any]) -> None:
    theirs = perturbed(
        timm.create_model("vit_tiny_patch16_224", dynamic_img_size=True, depth=3, **args)
    )
    ours, images = vit_from_timm(theirs), torch.randn(2, 3, 160, 224)
    torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=1e-4)
    assert ours.layout((160, 224)).grid == (10, 14)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet18", "expected a plain ViT of timm, got ResNet"),
        ("vit_base_patch16_siglip_224", "token or mean pooling"),
        ("vit_base_patch32_clip_224", "eps 1e-6"),
        ("vit_base_patch32_clip_quickgelu_224", "exact GELU"),
    ],
)
def test_other_networks_of_timm_are_refused(name: str, message: str) -> None:
    with torch.device("meta"):
        theirs = timm.create_model(name)
    with pytest.raises(ModelError, match=message):
        vit_from_timm(theirs)


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"pool": "mean", "class_token": False},
        {"registers": 2, "embed_prefix": False, "layer_scale": 0.1},
    ],
)
@torch.no_grad()
def test_kept_tokens_are_all_the_network_sees(args: dict[str, float]) -> None:
    vit = small(**args)
    images = torch.randn(2, 3, 16, 24)
    every = torch.arange(6).expand(2, 6)
    torch.testing.assert_close(vit.forward_kept_tokens(images, every), vit(images))
    order = torch.stack([torch.randperm(6), torch.randperm(6)])
    torch.testing.assert_close(vit.forward_kept_tokens(images, order), vit(images))

    keep = torch.tensor([[0, 4], [5, 2]])
    kept = vit.forward_kept_tokens(images, keep)
    assert not torch.allclose(kept, vit(images), atol=1e-3)
    patches = torch.ones(2, 6, dtype=torch.bool).scatter(1, keep, False)
    dropped = patches.unflatten(1, (2, 3)).repeat_interleave(8, 1).repeat_interleave(8, 2)
    changed = torch.where(dropped[:, None], torch.randn_like(images), images)
    torch.testing.assert_close(vit.forward_kept_tokens(changed, keep), kept)


def test_only_the_class_token_can_do_without_patches() -> None:
    images, none = torch.randn(2, 3, 16, 16), torch.empty(2, 0, dtype=torch.long)
    assert small().forward_kept_tokens(images, none).isfinite().all()
    with pytest.raises(ValueError, match="keep at least one patch: pool='mean' reads the patches"):
        small(pool="mean").forward_kept_tokens(images, none)


def test_patch_drop_works_in_training_alone() -> None:
    vit, images = small(patch_drop=0.5), torch.randn(2, 3, 16, 16)
    seen = []
    vit.blocks[0].register_forward_hook(lambda _m, args, _out: seen.append(args[0].shape[1]))
    vit.train()(images)
    vit.eval()(images)
    assert seen == [1 + 2, 1 + 4]


def test_drop_path_rises_with_depth() -> None:
    vit = ViT(depth=3, drop_path=0.2)
    assert [block.drop_path.drop_prob for block in vit.blocks] == [0, 0.1, 0.2]


def test_any_attention_goes_in_its_slot() -> None:
    factory = partial(MultiHeadAttention, score=Additive)
    vit, images = small(attention=factory), torch.randn(2, 3, 16, 24)
    scores = [block.attn.attend.score for block in vit.blocks]
    assert all(isinstance(score, Additive) for score in scores)
    assert scores[0] is not scores[1]
    vit(images).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in scores[0].parameters())


class First(nn.Module):
    """A readout of the first patch, at half the width."""

    def __init__(self, dim: int):
        super().__init__()
        self.out_dim = dim // 2

    def forward(self, tokens: Any, layout: Any = None) -> Any:
        return tokens[:, layout.prefix, : self.out_dim]


def test_a_readout_goes_in_the_pool_slot() -> None:
    vit = small(pool=First)
    assert vit(torch.randn(2, 3, 16, 16)).shape == (2, 10)
    assert vit.head.in_features == 6
    assert vit.layout((16, 24)) == TokenLayout(
        prefix=1, grid=(2, 3), pool="attention", class_token=True
    )


def test_layout_counts_every_prefix_token() -> None:
    vit = small(registers=2, pool="mean")
    assert vit.layout((24, 16)) == TokenLayout(prefix=3, grid=(3, 2), pool="mean", class_token=True)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"class_token": False}, "class_token is False"),
        ({"class_token": False, "pool": ClassToken}, "class_token is False"),
        ({"patch_drop": 1.0}, "patch_drop must be at least 0 and below 1, got 1.0"),
        ({"patch_size": -1}, "patch_size must be at least 1, got -1"),
        ({"patch_size": 0}, "patch_size must be at least 1, got 0"),
        ({"dim": 0}, "dim must be at least 1, got 0"),
        ({"depth": 10**12}, "depth must be at most 10000, got 1000000000000"),
        ({"image_size": (16, 20)}, "multiples of the patch size 8, got 16x20"),
    ],
)
def test_wrong_arguments_are_named(args: dict[str, float | tuple[int, int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**args)


def test_an_image_that_does_not_fit_the_patches_is_named() -> None:
    with pytest.raises(ValueError, match=r"patch size 8, got 16x20 \(height x width\)"):
        small()(torch.zeros(1, 3, 16, 20))


@pytest.mark.parametrize(("name", "readout"), [("cls", ClassToken), ("mean", MeanPool)])
def test_a_pool_by_name_and_its_readout_are_one(name: str, readout: Callable[..., Readout]) -> None:
    torch.manual_seed(3)
    by_name = small(pool=name, registers=2)
    torch.manual_seed(3)
    by_class = small(pool=partial(readout), registers=2)
    assert by_name.state_dict().keys() == by_class.state_dict().keys()
    assert by_name.layout((16, 24)) == by_class.layout((16, 24))
    images, keep = torch.randn(2, 3, 16, 16), torch.tensor([[0, 3], [1, 2]])
    for kept in (None, keep):  # without its neighbours a patch has no layout
        expected = by_name.forward_kept_tokens(images, kept)
        assert torch.equal(by_class.forward_kept_tokens(images, kept), expected)


def test_a_mean_leaves_out_the_prefix_of_kept_patches() -> None:
    vit = small(pool="mean", registers=2, depth=0)
    images, keep = torch.randn(2, 3, 16, 16), torch.tensor([[0, 3], [1, 2]])
    patches = vit.tokens(images, vit.grid, keep)[:, 3:]
    expected = vit.head(vit.fc_norm(patches.mean(1)))
    torch.testing.assert_close(vit.forward_kept_tokens(images, keep), expected)
