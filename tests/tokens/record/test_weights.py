"""Attention weights: in one call, and on the autograd graph for losses."""

from typing import Any

import pytest
import timm
import torch
from torch import nn
from torch.nn import functional as F

import vision_attn
from vision_attn.attention import Entmax15, MultiHeadAttention, Softmax
from vision_attn.models import ViT
from vision_attn.tokens import attention_weights, record_attention
from vision_attn.tokens.record.calls import Fusion

IMAGES = torch.randn(2, 3, 48, 32)


def vit(**options: Any) -> ViT:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "image_size": (48, 32),
        "patch_size": 16,
        "num_classes": 5,
        "dim": 12,
        "depth": 3,
    }
    return ViT(heads=3, **sizes, **options).eval()


def by_timm(network: nn.Module, images: torch.Tensor) -> list[Any]:
    """The weights that timm's attention computes where it is told not to fuse."""
    weights = []
    for block in network.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda _m, args, _out: weights.append(args[0]))
    with torch.no_grad():
        network(images)
    return weights


def test_weights_are_those_that_timm_computes() -> None:
    network = timm.create_model("test_vit", img_size=(48, 32), num_classes=5).eval()
    found = attention_weights(network, IMAGES)
    assert list(found) == [f"blocks.{at}.attn" for at in range(len(network.blocks))]
    for weights, expected in zip(found.values(), by_timm(network, IMAGES), strict=True):
        torch.testing.assert_close(weights, expected)


def test_layers_and_heads_are_chosen_as_people_name_them() -> None:
    network = vit()
    every = attention_weights(network, IMAGES)
    names = list(every)
    layers: Any
    for layers, expected in [
        (-1, names[2:]),
        ("blocks.-3", names[:1]),
        (network.blocks[1], names[1:2]),
        ("blocks", names),
        ([2, "blocks.0.attn", 0], [names[0], names[2]]),
    ]:
        assert list(attention_weights(network, IMAGES, layers)) == expected
    some = vision_attn.attention_weights(network, IMAGES, 1, heads=[-1, 0])
    torch.testing.assert_close(some[names[1]], every[names[1]][:, [2, 0]], rtol=0, atol=0)


def test_a_module_that_attends_twice_has_both() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.head = nn.Conv2d(3, 6, 16, 16), nn.Linear(6, 5)
            self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

        def forward(self, images: torch.Tensor) -> Any:
            x = self.patches(images).flatten(2).mT
            for _ in range(2):
                x = x + self.attention(x, x, x, need_weights=False)[0]
            return self.head(x.mean(1))

    network = Twice().eval()
    found = attention_weights(network, IMAGES)
    assert list(found) == ["attention", "attention:2"]
    x = network.patches(IMAGES).flatten(2).mT
    first, expected = network.attention(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(found["attention"], expected)
    x = x + first
    expected = network.attention(x, x, x, average_attn_weights=False)[1]
    torch.testing.assert_close(found["attention:2"], expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 3}, "layer must be from -3 to 2, as there are 3 attention calls, got 3"),
        ({"layers": "blocks.-4"}, "layer 'blocks.-4': no such layer; expected an index from -3"),
        ({"layers": "head"}, "layer 'head': it makes no attention call; expected an index"),
        ({"layers": nn.ReLU()}, "layer 'ReLU': no such layer"),
        ({"heads": 3}, "heads must be from -3 to 2 in blocks.0.attn.attend, got 3"),
        ({"heads": []}, "heads must be from -3 to 2"),
    ],
)
def test_what_is_not_there_gets_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        attention_weights(vit(), IMAGES, **options)
    assert "\n" not in str(caught.value)


class Written(nn.Module):
    """One layer of attention by hand, which also returns its weights."""

    def __init__(self, mask: str | None = None) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(6, 18), nn.Linear(6, 3)
        self.bias = nn.Parameter(torch.randn(2, 5, 5)) if mask == "bias" else None
        hidden = torch.tensor([0, 1, 0, 0, 0]).bool()
        self.sees = (~hidden).expand(5, 5) if mask == "hidden" else None

    def split(self, x: Any) -> Any:
        return self.qkv(x).view(7, 5, 3, 2, 3).permute(2, 0, 3, 1, 4)

    def forward(self, x: Any) -> Any:
        q, k, v = self.split(x)
        mask = self.bias if self.sees is None else self.sees
        context = F.scaled_dot_product_attention(q, k, v, mask)
        return self.head(context.transpose(1, 2).flatten(2).mean(1))

    def by_hand(self, x: Any) -> tuple[Any, Any]:
        q, k, v = self.split(x)
        scores = q @ k.mT / 3**0.5
        if self.bias is not None:
            scores = scores + self.bias
        if self.sees is not None:
            scores = scores.masked_fill(~self.sees, -torch.inf)
        weights = scores.softmax(-1)
        return self.head((weights @ v).transpose(1, 2).flatten(2).mean(1)), weights


@pytest.mark.parametrize("mask", [None, "bias", "hidden"])
def test_a_loss_on_attention_has_the_gradient_of_a_network_written_by_hand(
    mask: str | None,
) -> None:
    torch.manual_seed(0)
    network = Written(mask).double()
    x, labels = torch.randn(7, 5, 6, dtype=torch.float64), torch.arange(7) % 3
    wanted = torch.rand(7, 2, 5, 5, dtype=torch.float64).softmax(-1)

    def gradients(logits: Any, weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        loss = F.cross_entropy(logits, labels) + 3 * (weights - wanted).square().sum()
        return torch.autograd.grad(loss, list(network.parameters()))

    with record_attention(network, detach=False) as record:
        logits = network(x)
    found = gradients(logits, record.calls[0].weights())
    for one, expected in zip(found, gradients(*network.by_hand(x)), strict=True):
        torch.testing.assert_close(one, expected)


def test_training_on_attention_moves_it() -> None:
    network = vit()
    wanted = torch.zeros(7).index_fill(0, torch.tensor([3]), 1.0)
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    losses = []
    for _ in range(20):
        with record_attention(network, detach=False) as record:
            network(IMAGES)
        loss = (record.calls[-1].weights()[:, :, 0] - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 4


@pytest.mark.parametrize("normalizer", ["softmax", "entmax"])
def test_our_own_attention_stays_on_the_graph(normalizer: str) -> None:
    kind = Entmax15 if normalizer == "entmax" else Softmax
    attention = MultiHeadAttention(dim=6, heads=2, normalizer=kind).double()
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    with record_attention(attention, detach=False) as record:
        attention(x)
    weights = record.calls[0].weights()
    q, k = (
        part.unflatten(-1, (2, 3)).transpose(1, 2) for part in attention.qkv(x).chunk(3, -1)[:2]
    )
    expected = attention.attend.weights(q, k)
    torch.testing.assert_close(weights, expected)
    (found,) = torch.autograd.grad(weights[0, 1, 2, 3], attention.qkv.weight)
    (gradient,) = torch.autograd.grad(expected[0, 1, 2, 3], attention.qkv.weight)
    torch.testing.assert_close(found, gradient)


def test_weights_are_off_the_graph_unless_asked_for_and_are_never_fused_on_it() -> None:
    network = vit()
    with record_attention(network) as record:
        network(IMAGES)
    assert not record.calls[0].weights().requires_grad
    fusion = Fusion(lambda weights: weights.mean(1))
    with (
        pytest.raises(ValueError, match="got detach=False and a fusion; give one"),
        record_attention(network, fusion=fusion, detach=False),
    ):
        pass
