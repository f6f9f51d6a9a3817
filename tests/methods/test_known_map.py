"""A network whose attention is set by hand, so that its true map is known: every explainer finds it."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vision_attn.methods import (
    AttentionGradCAM,
    Explainer,
    GradientRollout,
    IntegratedGradients,
    LeGrad,
    MaskedRegression,
    Occlusion,
    QueryKey,
    RawAttention,
    Relevance,
    Rollout,
    WeightedRollout,
)
from vision_attn.types import TokenLayout


class Look(nn.Module):
    """Channel 0: how bright a patch is, 1: how dark, 2 and 3: what the heads found.

    Every token's first head looks at the bright patch, the second at the dark one.
    """

    def forward(self, x: Any) -> Any:
        q = torch.full((*x.shape[:2], 2, 1), 50.0).transpose(1, 2)
        k = x[..., :2, None].transpose(1, 2)
        found = F.scaled_dot_product_attention(q, k, k.clone())[..., 0]  # b head n
        return x + torch.cat([torch.zeros_like(x[..., :2]), found.mT], -1)


class ByHand(nn.Module):
    """Class 1 is what the first head found; the second head's finding says nothing of it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.ModuleList(Look() for _ in range(2))
        self.head = nn.Linear(4, 2, bias=False)
        self.head.weight.data = torch.tensor([[0.0, 0, 0, 0], [0, 0, 1, 0]])

    def layout(self, image_size: Any) -> TokenLayout:
        return TokenLayout(1, (image_size[0] // 8, image_size[1] // 8), "cls")

    def forward(self, images: torch.Tensor) -> Any:
        seen = F.avg_pool2d(images.mean(1, keepdim=True), 8).flatten(1)
        seen = F.pad(seen, (1, 0))
        x = torch.stack([seen.relu(), (-seen).relu(), 0 * seen, 0 * seen], -1)
        for look in self.attention:
            x = look(x)
        return self.head(x[:, 0])


@pytest.mark.parametrize(
    "method",
    [
        Rollout(),
        Rollout(fusion="max"),
        Rollout(query=(3, 30)),
        WeightedRollout(),
        GradientRollout(),
        Relevance(),
        AttentionGradCAM(),
        LeGrad(),
        RawAttention(head=0),
        QueryKey(head=0),
        QueryKey(head=0, kind="scores"),
        QueryKey(query=(3, 30), head=0),
        IntegratedGradients(),
        Occlusion(window=8, stride=8),
        MaskedRegression(),
        MaskedRegression(cells=4),
    ],
    ids=str,
)
def test_every_explainer_finds_it(method: Explainer) -> None:
    images = torch.zeros(3, 3, 32, 48)
    places = [(0, 4), (3, 1), (2, 5)]
    for image, (row, column) in zip(images, places, strict=True):
        image[:, 8:16, 16:24] = -1.0
        image[:, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 1.0
    maps = F.adaptive_avg_pool2d(method(ByHand(), images, 1).values, (4, 6))
    for found, (row, column) in zip(maps, places, strict=True):
        if method.class_specific:
            assert found.argmax() == row * 6 + column
            assert found[row, column] > 10 * found[1, 2], "the other head says nothing of the class"
        else:
            assert found[row, column] >= 0.99 * found.max()


def test_the_heads_of_all_are_seen_where_the_class_is_not_asked_for() -> None:
    images = torch.zeros(1, 3, 32, 48)
    images[..., :8, :8], images[..., 24:, 40:] = 1, -1
    (found,) = Rollout()(ByHand(), images).values
    torch.testing.assert_close(found[0, 0], found[3, 5])
    assert found[0, 0] + found[3, 5] > 0.7
