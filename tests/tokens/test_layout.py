"""Token layouts: prefix, grid and seed, the seed against what the classifier's gradient reaches."""

from typing import Any

import pytest
import timm
import torch

from vision_attn.methods import QueryKey, Rollout
from vision_attn.methods.attention_explainer import trace
from vision_attn.models import ViT
from vision_attn.tokens import layout_of, record_attention
from vision_attn.types import Pool, TokenLayout

SMALL: dict[str, Any] = {"depth": 2, "num_classes": 5}
THIN = {"embed_dim": 96, "num_heads": 3}

# name: (options, size of the image, its layout)
LAYOUTS = {
    "vit_tiny_patch16_224": ({}, (64, 96), TokenLayout(1, (4, 6), "cls")),
    "deit_tiny_distilled_patch16_224": ({}, (96, 64), TokenLayout(2, (6, 4), "cls_dist")),
    "vit_small_patch14_reg4_dinov2": ({}, (56, 84), TokenLayout(5, (4, 6), "cls")),
    "vit_medium_patch16_reg4_gap_256": ({}, (64, 96), TokenLayout(4, (4, 6), "mean")),
    "vit_small_patch16_dinov3": ({}, (64, 96), TokenLayout(5, (4, 6), "mean", True)),
    "beit_base_patch16_224": (THIN, (64, 96), TokenLayout(1, (4, 6), "mean", True)),
    "eva02_tiny_patch14_224": ({}, (56, 84), TokenLayout(1, (4, 6), "mean", True)),
    "vit_relpos_base_patch16_clsgap_224": (THIN, (64, 96), TokenLayout(1, (4, 6), "mean", True)),
    "vit_base_patch16_siglip_gap_224": (THIN, (64, 96), TokenLayout(0, (4, 6), "mean")),
    "vit_base_patch16_siglip_224": (THIN, (64, 96), TokenLayout(0, (4, 6), "attention")),
    "flexivit_small": ({}, (64, 96), TokenLayout(1, (4, 6), "cls")),
}


def reached(network: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Which tokens that leave the last block the logits depend on: b n."""
    leaves = []

    def cut(_module: Any, _args: Any, out: Any) -> Any:
        leaves.append(out.detach().requires_grad_())
        return leaves[0]

    hook = network.blocks[-1].register_forward_hook(cut)
    logits = network(images)
    hook.remove()
    (gradient,) = torch.autograd.grad((logits * torch.randn_like(logits)).sum(), leaves)
    return gradient.abs().sum(-1) > 0


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_seed_is_what_the_classifier_reads(name: str) -> None:
    options, size, layout = LAYOUTS[name]
    network = timm.create_model(name, img_size=size, **SMALL | options).eval()
    for part, weight in network.named_parameters():
        if part.startswith("head") and weight.ndim > 1:
            weight.data.normal_(std=0.3)
    images = torch.randn(2, 3, *size)
    assert layout_of(network, size) == layout
    with torch.no_grad():
        chain = trace(network, images, None).chain
    read = reached(network, images)
    if layout.pool == "attention":  # by the pool's own weights, which are the last link
        assert chain.tokens == 1
        assert read.all()
        return
    (seed,) = chain.seed(1, images.device, images.dtype)[0]
    assert torch.equal(seed > 0, read[0])
    torch.testing.assert_close(seed.sum(), torch.tensor(1.0))
    assert len(seed[seed > 0].unique()) == 1, "all that is read counts alike"


def test_class_token_and_mean_together_count_half_each() -> None:
    network = ViT((32, 48), 8, 4, 24, 1, 3, registers=2).eval()
    layout = TokenLayout(3, (4, 6), "cls_mean")
    with torch.no_grad():
        traced = trace(network, torch.randn(1, 3, 32, 48), layout)
    seed = traced.seed(traced.chain)[0, 0]
    torch.testing.assert_close(seed[0], torch.tensor(0.5))
    torch.testing.assert_close(seed[1:3], torch.zeros(2))
    torch.testing.assert_close(seed[3:], torch.full((24,), 0.5 / 24))


REGISTERS: dict[str, Any] = {"class_token": False, "reg_tokens": 2, "global_pool": "avg"}
WITHOUT_CLASS_TOKEN = {
    "timm": lambda: timm.create_model(
        "vit_tiny_patch16_224", img_size=(64, 96), **SMALL, **REGISTERS
    ),
    "ours": lambda: ViT((64, 96), 16, 5, 24, 2, 3, pool="mean", class_token=False, registers=2),
}


@pytest.mark.parametrize("name", WITHOUT_CLASS_TOKEN)
def test_a_register_is_no_class_token(name: str) -> None:
    network, images = WITHOUT_CLASS_TOKEN[name]().eval(), torch.randn(2, 3, 64, 96)
    assert layout_of(network, (64, 96)) == TokenLayout(2, (4, 6), "mean", class_token=False)
    usual = QueryKey()(network, images).values
    torch.testing.assert_close(usual, QueryKey(query=(0.5, 0.5))(network, images).values)
    for method in (QueryKey(query="cls"), Rollout(query="cls")):
        with pytest.raises(ValueError, match=r"no class token \(2 prefix tokens, none known"):
            method(network, images)


def test_a_class_token_that_the_pool_leaves_out_can_be_asked() -> None:
    network = ViT((64, 96), 16, 5, 24, 2, 3, pool="mean", registers=1).eval()
    layout, images = network.layout((64, 96)), torch.randn(2, 3, 64, 96)
    assert layout == TokenLayout(2, (4, 6), "mean", class_token=True)
    usual = QueryKey()(network, images).values
    with torch.no_grad(), record_attention(network) as record:
        network(images)
    row = record.calls[-1].weights()[:, :, 0, 2:].mean(1)
    torch.testing.assert_close(usual, row.unflatten(-1, (4, 6)))


def test_what_the_pool_reads_says_whether_there_is_a_class_token() -> None:
    pools: list[tuple[Pool, int]] = [("cls", 1), ("cls_dist", 2), ("cls_mean", 3)]
    for pool, prefix in pools:
        assert TokenLayout(prefix, (4, 6), pool).class_token is True
        with pytest.raises(ValueError, match="reads the class token, but class_token is False"):
            TokenLayout(prefix, (4, 6), pool, class_token=False)
    assert TokenLayout(2, (4, 6), "mean").class_token is False
    with pytest.raises(ValueError, match="class_token is True, but prefix is 0"):
        TokenLayout(0, (4, 6), "mean", class_token=True)


def test_wrappers_are_looked_through() -> None:
    network = timm.create_model("vit_tiny_patch16_224", img_size=(64, 96), **SMALL)
    inside = torch.nn.DataParallel(torch.nn.Sequential(network))
    assert layout_of(inside, (64, 96)) == TokenLayout(1, (4, 6), "cls")


def test_an_unknown_network_is_told_what_to_give() -> None:
    with pytest.raises(ValueError, match=r"Linear lie on the image is not known: give layout="):
        layout_of(torch.nn.Linear(3, 4), (64, 96))


def test_a_pool_that_no_layout_says_is_told() -> None:
    network = timm.create_model("vit_tiny_patch16_224", global_pool="max", **SMALL)
    with pytest.raises(ValueError, match="pools by 'max', which no layout can say"):
        layout_of(network, (224, 224))
