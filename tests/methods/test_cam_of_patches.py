"""Class activation maps of transformers that classify by their patches, written out in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from torch import nn

from vision_attn import methods as explain
from vision_attn.attention import AttentionPool
from vision_attn.methods.gradcam import ClassActivationMap
from vision_attn.models import ViT
from vision_attn.models.checkpoint import Rebuildable
from vision_attn.tokens.gradients.levels import find_levels
from vision_attn.types import TokenLayout

CLASS, GRID = 3, (3, 5)
IMAGES = torch.randn(2, 3, 21, 35, generator=torch.Generator().manual_seed(0)).double()


def spread(network: Any) -> Any:
    """Weights far from their start, so that norms, biases and attention count."""
    torch.manual_seed(1)
    for name, parameter in network.named_parameters():
        if parameter.ndim < 2:
            nn.init.normal_(parameter, float("norm" in name and "weight" in name), 0.3)
        elif name.startswith("head"):
            nn.init.normal_(parameter)
        else:
            parameter.data *= 10
    return network.double().eval()


def vit(**options: Any) -> ViT:
    sizes: dict[str, Any] = {"image_size": IMAGES.shape[2:], "patch_size": 7, "num_classes": 5}
    return spread(ViT(**sizes, dim=22, depth=2, heads=2, **options))


def timm_vit(**options: Any) -> Any:
    sizes: dict[str, Any] = {"img_size": IMAGES.shape[2:], "patch_size": 7, "num_classes": 5}
    sizes |= {"embed_dim": 22, "depth": 2, "num_heads": 2}
    return spread(timm.models.VisionTransformer(**sizes, **options))


def last_tokens(network: ViT) -> Any:
    """What the last block gives."""
    x = network.tokens(IMAGES, GRID, None)
    for block in network.blocks:
        x = block(x, network.layout((21, 35)))
    return x.detach()


def by_formula(name: str, features: Any, gradient: Any) -> Any:
    """The maps of features and gradients (b n d), a loop over channels and images."""
    maps = []
    for image, slope in zip(features, gradient, strict=True):
        rows = []
        for a, g in zip(image.T, slope.T, strict=True):
            if name == "GradCAM":
                rows.append(g.mean() * a)
            elif name == "HiResCAM":
                rows.append(g * a)
            elif name == "LayerCAM":
                rows.append(g.clamp(min=0) * a)
            elif name == "XGradCAM":
                rows.append((g * a / a.sum()).sum() * a)
            else:
                alpha = g**2 / (2 * g**2 + a.sum() * g**3)
                rows.append((alpha * g.clamp(min=0)).sum() * a)
        maps.append(sum(rows).clamp(min=0))
    return torch.stack(maps).unflatten(1, GRID).float()


def signed(method: ClassActivationMap, network: nn.Module) -> torch.Tensor:
    """The map before its ReLU: that of the logit less that of its negative."""
    for_it = method(network, IMAGES, lambda logits: logits[:, CLASS]).values
    against = method(network, IMAGES, lambda logits: -logits[:, CLASS]).values
    return for_it - against


POOLS: dict[str, dict[str, Any]] = {
    "mean": {"pool": "mean", "norm_after_pool": False, "class_token": False},
    "mean beside registers": {"pool": "mean", "norm_after_pool": False, "registers": 2},
    "attention pool": {"pool": AttentionPool, "class_token": False},
    "attention pool of a class token too": {"pool": AttentionPool},
}


@pytest.mark.parametrize("name", ["GradCAM", "GradCAMPlusPlus", "XGradCAM", "HiResCAM", "LayerCAM"])
@pytest.mark.parametrize("pool", POOLS)
def test_patches_are_read_after_the_last_norm(name: str, pool: str) -> None:
    network = vit(**POOLS[pool])
    x = network.norm(last_tokens(network)).detach().requires_grad_()
    logits = network.head(network.readout(x, layout=network.layout((21, 35))))
    torch.testing.assert_close(logits, network(IMAGES))
    (gradient,) = torch.autograd.grad(logits[:, CLASS].sum(), x)
    patches = slice(network.prefix, None)
    expected = by_formula(name, x[:, patches].detach(), gradient[:, patches])
    assert expected.amax() > 0
    maps = getattr(explain, name)()(network, IMAGES, CLASS)
    torch.testing.assert_close(maps.values, expected, atol=1e-5, rtol=1e-3)  # it is of float32
    named = getattr(explain, name)(layer="norm")(network, IMAGES, CLASS)
    torch.testing.assert_close(maps.values, named.values, atol=1e-5, rtol=1e-3)


def test_of_a_mean_behind_the_norm_hirescam_is_the_logit_without_its_bias() -> None:
    network = vit(**POOLS["mean"])
    shares = signed(explain.HiResCAM(), network).sum((1, 2))
    expected = (network(IMAGES) - network.head.bias)[:, CLASS].detach().float()
    torch.testing.assert_close(shares, expected, atol=1e-5, rtol=1e-5)
    smooth = signed(explain.HiResCAM(smooth=1.0), network).sum((1, 2))
    torch.testing.assert_close(smooth, expected, atol=1e-5, rtol=1e-5)


def last_of_timm(network: Any) -> Any:
    return network.forward_features(IMAGES).detach()


@pytest.mark.parametrize(
    ("network", "tokens_of"),
    [
        (vit(pool="mean"), last_tokens),
        (vit(pool="mean", class_token=False), last_tokens),
        (timm_vit(global_pool="avg", reg_tokens=2), last_of_timm),
    ],
)
def test_where_the_norm_follows_the_mean_its_divisor_is_a_constant(
    network: Any, tokens_of: Callable[[Any], Any]
) -> None:
    x = tokens_of(network)[:, -15:]
    mean, norm, head = x.mean(1), network.fc_norm, network.head
    deviation = (mean.var(1, unbiased=False) + norm.eps).sqrt()
    weight = norm.weight * head.weight[CLASS]
    centred = x - x.mean(2, keepdim=True)
    shares = (centred * weight).sum(2) / deviation[:, None] / 15
    constant = head.weight[CLASS] @ norm.bias + head.bias[CLASS]
    torch.testing.assert_close(shares.sum(1) + constant, network(IMAGES)[:, CLASS])
    expected = shares.detach().float().unflatten(1, GRID)
    found = signed(explain.HiResCAM(), network)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    gradient = (weight - weight.mean()) / deviation[:, None] / 15
    gradient = gradient[:, None].expand_as(x).detach()
    for name in ("GradCAM", "LayerCAM", "GradCAMPlusPlus"):
        maps = getattr(explain, name)()(network, IMAGES, CLASS)
        torch.testing.assert_close(maps.values, by_formula(name, x, gradient), atol=1e-5, rtol=1e-4)


class ClassTokenAndMean(nn.Module):
    def forward(self, x: Any, layout: TokenLayout) -> torch.Tensor:
        return torch.cat([x[:, 0], x[:, 1:].mean(1)], 1)


class Both(nn.Module):
    """A classifier of the class token beside the mean of the patches, as DINOv2's."""

    def __init__(self) -> None:
        super().__init__()
        self.vit, self.classifier = vit(), nn.Linear(44, 5).double()
        self.vit.readout, self.vit.head = ClassTokenAndMean(), nn.Identity()

    def layout(self, size: tuple[int, int]) -> TokenLayout:
        return TokenLayout(1, (size[0] // 7, size[1] // 7), "cls_mean", class_token=True)

    def forward(self, images: torch.Tensor) -> Any:
        return self.classifier(self.vit(images))


def distilled() -> Any:
    return spread(
        timm.models.deit.VisionTransformerDistilled(
            img_size=(21, 35), patch_size=7, num_classes=5, embed_dim=22, depth=2, num_heads=2
        )
    )


@pytest.mark.parametrize(
    ("make", "layer"),
    [
        (vit, "blocks.1.norm1"),
        (distilled, "blocks.1.norm1"),
        (lambda: timm_vit(reg_tokens=2), "blocks.1.norm1"),
        (Both, "vit.blocks.1.norm1"),
    ],
    ids=["class token", "distillation token too", "registers", "the mean of the patches too"],
)
def test_a_class_token_is_read_before_the_last_attention(make: Any, layer: str) -> None:
    network = make()
    maps = explain.HiResCAM()(network, IMAGES, CLASS).values
    assert maps.amax() > 0
    assert torch.equal(maps, explain.HiResCAM(layer=layer)(network, IMAGES, CLASS).values)


def test_a_layer_that_is_named_is_read_as_it_is() -> None:
    network = vit(**POOLS["mean"])
    block = network.blocks[1]
    x = network.blocks[0](network.tokens(IMAGES, GRID, None)).detach()
    normed = block.norm1(x).detach().requires_grad_()
    attended = x + block.attn(normed)
    logits = network.head(network.norm(attended + block.mlp(block.norm2(attended))).mean(1))
    (gradient,) = torch.autograd.grad(logits[:, CLASS].sum(), normed)
    expected = by_formula("HiResCAM", normed.detach(), gradient)
    maps = explain.HiResCAM(layer="blocks.1.norm1")(network, IMAGES, CLASS).values
    torch.testing.assert_close(maps, expected, atol=1e-5, rtol=1e-4)


class PostNorm(nn.Module):
    """Blocks whose norms follow their attention, and the mean of all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, 22, 7, 7)
        layer = nn.TransformerEncoderLayer(22, 2, 31, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(22, 5)

    def forward(self, images: torch.Tensor) -> Any:
        return self.head(self.encoder(self.cut(images).flatten(2).mT).mean(1))


def test_where_norms_follow_attention_patches_are_read_after_the_last_norm() -> None:
    network: Any = spread(PostNorm())
    with torch.no_grad():
        x = network.encoder(network.cut(IMAGES).flatten(2).mT)
        shares = (x @ network.head.weight[CLASS]).unflatten(1, GRID) / 15
    for method in (explain.HiResCAM(), explain.GradCAM()):
        torch.testing.assert_close(signed(method, network), shares.float(), atol=1e-5, rtol=1e-4)


def test_a_map_takes_one_run_of_the_network_once_its_readout_is_known() -> None:
    network: Rebuildable = vit(**POOLS["attention pool"])
    explain.GradCAM()(network, IMAGES, CLASS)
    runs = []
    network.blocks[0].register_forward_hook(lambda *_: runs.append(1))
    explain.GradCAM()(network, IMAGES, CLASS)
    del runs[:]  # the hook is new to it
    explain.GradCAM()(network, IMAGES, CLASS)
    assert len(runs) == 1


class OneByOne(nn.Module):
    """Runs image after image."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.network(image[None]) for image in images])


def test_what_is_read_of_another_run_is_said() -> None:
    network = OneByOne(vit(**POOLS["mean"]))
    alone = explain.HiResCAM()(network, IMAGES[:1], CLASS).values
    torch.testing.assert_close(alone, explain.HiResCAM()(network.network, IMAGES[:1], CLASS).values)
    with pytest.raises(ValueError, match=r"not for these images, on which .* name a layer"):
        explain.HiResCAM()(network, IMAGES, CLASS)
    with pytest.raises(ValueError, match="does not depend on this layer's output"):
        explain.HiResCAM()(network, IMAGES[:1], lambda logits: logits.detach().sum(1))


def test_weights_of_zero_read_no_patches() -> None:
    network = vit(**POOLS["mean"])
    network.head.weight.data.zero_()
    assert find_levels(network, IMAGES).readout is None
