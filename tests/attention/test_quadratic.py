"""A convolution as attention: equal outputs, one pixel a head, and refusals."""

import pytest
import torch
from torch import nn

from vision_attn.attention import QuadraticAttention


@pytest.mark.parametrize(("kernel", "bias"), [(3, True), (3, False), (5, True), (1, True)])
def test_quadratic_attention_is_the_convolution(kernel: int, bias: bool) -> None:
    conv = nn.Conv2d(5, 7, kernel, padding=kernel // 2, bias=bias)
    images = torch.randn(2, 5, 11, 13)
    attention = QuadraticAttention.from_conv(conv)
    torch.testing.assert_close(attention(images), conv(images), atol=1e-4, rtol=0)


def test_each_head_looks_at_one_neighbour() -> None:
    weights = QuadraticAttention.from_conv(nn.Conv2d(2, 3, 3, padding=1)).weights((4, 6))
    assert weights.shape == (9, 24, 48)
    torch.testing.assert_close(weights.sum(-1), torch.ones(9, 24))
    for head, (down, right) in enumerate((y, x) for y in (-1, 0, 1) for x in (-1, 0, 1)):
        for pixel in range(24):
            row, column = divmod(pixel, 6)
            there = (row + down + 1) * 8 + column + right + 1  # inside a margin of 1
            assert weights[head, pixel, there] > 1 - 1e-6


def test_the_weights_are_the_formula() -> None:
    attention = QuadraticAttention(2, 3, heads=2, margin=1)
    weights = attention.weights((2, 3))
    keys = [(y, x) for y in range(-1, 3) for x in range(-1, 4)]
    for head in range(2):
        alpha, (dy, dx) = attention.locality[head], attention.shift[head]
        for i, (y, x) in enumerate((y, x) for y in range(2) for x in range(3)):
            scores = [-alpha * ((v - y - dy) ** 2 + (u - x - dx) ** 2) for v, u in keys]
            torch.testing.assert_close(weights[head, i], torch.stack(scores).softmax(0))


def test_less_locality_is_a_blur() -> None:
    conv, images = nn.Conv2d(3, 4, 3, padding=1), torch.randn(1, 3, 9, 9)
    off = [
        (QuadraticAttention.from_conv(conv, a)(images) - conv(images)).abs().max()
        for a in (1, 4, 16)
    ]
    assert off[0] > off[1] > off[2]


def test_shift_and_locality_learn() -> None:
    attention = QuadraticAttention(3, 4, heads=5)
    attention(torch.randn(1, 3, 6, 5)).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in attention.parameters())


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(2, 2, 3),
        nn.Conv2d(2, 2, 3, padding=1, stride=2),
        nn.Conv2d(2, 2, 3, padding=2, dilation=2),
        nn.Conv2d(2, 2, 3, padding=1, groups=2),
        nn.Conv2d(2, 2, 4, padding=2),
        nn.Conv2d(2, 2, (3, 5), padding=(1, 2)),
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"),
    ],
)
def test_other_convolutions_are_refused(conv: nn.Conv2d) -> None:
    with pytest.raises(ValueError, match="expected an odd, square kernel, stride 1"):
        QuadraticAttention.from_conv(conv)


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="heads must be at least 1, got 0"):
        QuadraticAttention(2, 3, heads=0)
    with pytest.raises(ValueError, match="margin must be at least 0, got -1"):
        QuadraticAttention(2, 3, margin=-1)
    with pytest.raises(ValueError, match="locality must be above 0, got 0"):
        QuadraticAttention.from_conv(nn.Conv2d(2, 2, 1), 0)
