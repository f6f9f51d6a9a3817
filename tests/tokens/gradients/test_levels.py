"""Where the tokens of a level lie: a batch of windows is none of images, and tokens may be turned."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vision_attn.methods import LibraGradient
from vision_attn.tokens.gradients.graph import Value
from vision_attn.tokens.gradients.levels import by_shape, find_levels
from vision_attn.tokens.gradients.mode import Mark
from vision_attn.tokens.path.path import find_path
from vision_attn.types import TokenLayout


@pytest.mark.parametrize(("shape", "lies"), [((1, 17, 6), True), ((64, 17, 6), False)])
def test_only_a_value_of_one_image_lies_on_its_grid(shape: tuple[int, ...], lies: bool) -> None:
    value = Value(0, Mark("add", shape, 0))
    level = by_shape(value, (32, 32), TokenLayout(1, (4, 4)), attends=True)
    assert (level is not None) is lies
    features = Value(0, Mark("add", (shape[0], 6, 4, 4), 0))
    assert (by_shape(features, (32, 32), None, attends=True) is not None) is lies


class Turned(nn.Module):
    """Attention over patches that come by rows or by columns, and their mean."""

    def __init__(self, by_columns: bool) -> None:
        super().__init__()
        self.by_columns, self.cut = by_columns, nn.Conv2d(3, 11, 8, 8)
        self.head = nn.Linear(11, 5)

    def forward(self, images: torch.Tensor) -> Any:
        x = self.cut(images)
        x = (x.mT if self.by_columns else x).flatten(2).mT
        return self.head((x + F.scaled_dot_product_attention(x, x, x)).mean(1))


@pytest.mark.parametrize("by_columns", [False, True])
def test_tokens_in_another_order_are_found(by_columns: bool) -> None:
    network, image = Turned(by_columns).eval(), torch.randn(1, 3, 24, 40)
    assert find_path(network, image).is_ordered is not by_columns
    rows = torch.arange(15).view(5, 3).T if by_columns else torch.arange(15)
    readout = find_levels(network, image).readout
    assert readout is not None
    assert readout.order is not None
    assert list(readout.order) == rows.flatten().tolist()


class ChannelsLast(nn.Module):
    """Attention over patches in rows and columns, as many channels as rows."""

    def __init__(self, channels_last: bool) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.channels_last = channels_last
        self.cut, self.head = nn.Conv2d(3, 6, 4, 4), nn.Linear(6, 5)

    def forward(self, images: torch.Tensor) -> Any:
        x = self.cut(images)
        x = x.permute(0, 2, 3, 1) if self.channels_last else x
        tokens = x.flatten(1, 2) if self.channels_last else x.flatten(2).mT
        y = F.scaled_dot_product_attention(tokens, tokens, tokens)
        y = y.unflatten(1, (6, 6)) if self.channels_last else y.mT.unflatten(2, (6, 6))
        return self.head((x + y).mean((1, 2) if self.channels_last else (2, 3)))


def test_as_many_channels_as_rows_are_told_from_rows() -> None:
    images = torch.rand(2, 3, 24, 24)
    images[:, :, 4:8, 16:20] += 3
    last, first = (ChannelsLast(channels_last).eval() for channels_last in (True, False))
    torch.testing.assert_close(last(images), first(images))
    maps, expected = (
        LibraGradient(smooth=0)(network, images, 2).values for network in (last, first)
    )
    torch.testing.assert_close(maps, expected)


class TwoSizes(Turned):
    """Attention over small and over large patches apart, and the mean of both logits."""

    def __init__(self) -> None:
        super().__init__(by_columns=False)
        self.large, self.large_head = nn.Conv2d(3, 7, 12, 12), nn.Linear(7, 5)

    def forward(self, images: torch.Tensor) -> Any:
        x = self.large(images).flatten(2).mT
        large = self.large_head((x + F.scaled_dot_product_attention(x, x, x)).mean(1))
        return torch.stack([super().forward(images), large]).mean(0)


def test_branches_of_several_patch_sizes_are_refused_as_such_and_no_layout_is_asked_for() -> None:
    refusal = find_levels(TwoSizes().eval(), torch.randn(1, 3, 24, 48)).refusal
    assert refusal is not None
    assert "branches side by side" in refusal
    assert "layout" not in refusal
