"""A layout that is given is compared with what a run shows."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from torch import nn

import vision_attn
from vision_attn.data import Preprocess
from vision_attn.errors import ModelError
from vision_attn.methods import GradCAM, LeGrad, LibraGradient, Occlusion, RawAttention, Rollout
from vision_attn.models import SEResNet, ViT
from vision_attn.types import Model, TokenLayout

IMAGES = torch.randn(1, 3, 32, 48)
PREPROCESS = Preprocess((32, 48), (0.5,) * 3, (0.25,) * 3)
TRUE = TokenLayout(1, (4, 6))
# As many tokens as there are, in other places.
WRONG = {
    "turned": (TokenLayout(1, (6, 4)), r"25 tokens \(1 beside .* 0 \+ a grid of 6x4\), but a run"),
    "no class token": (TokenLayout(0, (5, 5), "mean"), r"25 tokens \(0 beside the image \+ a grid"),
    "more prefix": (TokenLayout(4, (3, 7)), r"\(4 beside the image in place 0, 1, 2, 3 \+ a grid"),
    "token last": (
        TokenLayout(0, (4, 6), "mean", registers=(-1,)),
        r"\(1 beside the image in place 24 \+ a grid of 4x6\), but a run of the network shows 25",
    ),
}


def own() -> ViT:
    return ViT((32, 48), 8, 5, dim=12, depth=2, heads=2).eval()


def of_timm() -> nn.Module:
    size: dict[str, Any] = {
        "img_size": (32, 48),
        "patch_size": 8,
        "embed_dim": 12,
        "depth": 2,
        "num_heads": 2,
    }
    return timm.create_model("vit_tiny_patch16_224", num_classes=5, **size).eval()


class Hidden(nn.Module):
    """A network whose kind says nothing of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([of_timm().patch_embed, nn.Linear(12, 36), nn.Linear(12, 5)])
        self.token = nn.Parameter(torch.randn(1, 1, 12))

    def forward(self, images: torch.Tensor) -> Any:
        embed, qkv, head = self.parts
        x = torch.cat([self.token.expand(len(images), -1, -1), embed(images)], 1)
        q, k, v = qkv(x).chunk(3, -1)
        x = x + nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return head(x[:, 0])


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("make", [own, of_timm, Hidden])
def test_a_layout_of_other_places_is_refused(make: Callable[..., Any], name: str) -> None:
    torch.manual_seed(0)
    network = make()
    layout, message = WRONG[name]
    with pytest.raises(ModelError, match=f"wrap: the layout has .*{message}") as caught:
        vision_attn.wrap(network, PREPROCESS, layout=layout)
    assert "\n" not in str(caught.value)
    assert r"a grid of 4x6): leave layout= out" in str(caught.value)
    methods = [Rollout(), RawAttention(), Occlusion(), GradCAM(), LibraGradient()]
    for method in methods + ([] if make is Hidden else [LeGrad()]):
        target = 3 if method.class_specific else None
        with pytest.raises(ValueError, match=message):
            method(network, IMAGES, target, layout=layout)
        unchecked = Model(network, PREPROCESS, list("abcde"), layout)
        with pytest.raises(ValueError, match=message):
            method(unchecked, IMAGES, target)


@pytest.mark.parametrize("make", [own, of_timm, Hidden])
def test_the_true_layout_is_taken_whatever_it_says_of_the_reading(make: Callable[..., Any]) -> None:
    network = make()
    for pool in ("cls", "mean", "cls_mean"):
        layout = TokenLayout(1, (4, 6), pool, class_token=True)
        model = vision_attn.wrap(network, PREPROCESS, layout=layout)
        assert model.layout == layout
        assert Rollout()(model, IMAGES).values.shape == (1, 4, 6)


@pytest.mark.parametrize("layout", [TokenLayout(1, (2, 3)), TokenLayout(2, (4, 6), "mean")])
def test_another_number_of_tokens_is_refused_where_a_model_is_made(layout: TokenLayout) -> None:
    message = rf"wrap: the layout has {layout.tokens} tokens .*, but the network has 25"
    with pytest.raises(ModelError, match=message):
        vision_attn.wrap(own(), PREPROCESS, layout=layout)


def test_a_layout_of_a_network_without_tokens_is_nobodys_to_refuse() -> None:
    network = SEResNet(5, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4)).eval()
    assert vision_attn.wrap(network, PREPROCESS, layout=TRUE).layout == TRUE
