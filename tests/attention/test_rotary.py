"""Rotary positions against rotations of complex numbers in float64."""

from typing import Any

import pytest
import torch

from vision_attn.attention import RotaryAttention
from vision_attn.methods import Rollout
from vision_attn.models import ViT, build, describe
from vision_attn.types import TokenLayout

LAYOUT = TokenLayout(prefix=2, grid=(3, 5), pool="cls", class_token=True)
N, DIM, HEADS = 17, 24, 3


def attention(**options: Any) -> RotaryAttention:
    torch.manual_seed(2)
    return RotaryAttention(DIM, HEADS, **options).double()


def turned(features: torch.Tensor, base: float) -> torch.Tensor:
    """(b head n d) with the pair (i, i + d / 2) of each patch as a complex number, turned."""
    half = features.shape[-1] // 2
    numbers = torch.complex(features[..., :half], features[..., half:])
    for token in range(LAYOUT.prefix, N):
        row, column = divmod(token - LAYOUT.prefix, 5)
        for pair in range(half):
            place = row if pair < half // 2 else column
            frequency = base ** (-(pair % (half // 2)) * 4 / (2 * half))
            angle = torch.tensor(place * frequency).double()
            numbers[:, :, token, pair] *= torch.polar(torch.ones(()).double(), angle)
    return numbers


@pytest.mark.parametrize("base", [100.0, 7.0])
def test_scores_are_those_of_turned_queries_and_keys(base: float) -> None:
    ours = attention(base=base)
    x = torch.randn(2, N, DIM).double()
    q, k, v = ours.project(x)
    q, k = turned(q, base), turned(k, base)
    weights = (q @ k.conj().mT).real.div((DIM // HEADS) ** 0.5).softmax(-1)
    torch.testing.assert_close(ours.weights(x, layout=LAYOUT), weights, rtol=1e-6, atol=1e-7)
    expected = ours.proj((weights @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(ours(x, layout=LAYOUT), expected, rtol=1e-6, atol=1e-7)


def test_a_network_in_bfloat16_turns_by_the_same_angles() -> None:
    layout = TokenLayout(prefix=1, grid=(61, 53))
    x = torch.randn(1, layout.tokens, DIM).bfloat16()
    low = RotaryAttention(DIM, heads=1).bfloat16()
    q, k, _ = (part.double() for part in low.project(x))
    exact = RotaryAttention(DIM, heads=1).placed(q, k, layout)
    for found, expected in zip(low.placed(q.bfloat16(), k.bfloat16(), layout), exact, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=0.02, atol=0.01)


def test_patches_alike_see_one_another_by_where_they_lie() -> None:
    x = torch.randn(1, 1, DIM).double().expand(1, N, DIM)
    weights = attention().weights(x, layout=LAYOUT)[0]
    scores = weights.log()
    patches = scores[:, 2:, 2:].view(HEADS, 3, 5, 3, 5)
    offset = patches - patches[:, 0, 0, 0, 0][:, None, None, None, None]
    here = offset[:, 0, 1, 1, 3] - offset[:, 0, 1, 0, 1]  # one row and two columns on, and itself
    there = offset[:, 1, 2, 2, 4] - offset[:, 1, 2, 1, 2]
    torch.testing.assert_close(here, there, rtol=0, atol=1e-6)
    back = offset[:, 1, 2, 0, 0] - offset[:, 1, 2, 1, 2]
    assert (here - back).abs().min() > 1e-4  # forth is another place than back


def test_a_vit_with_rotary_positions_is_rebuilt_and_its_rollout_is_exact() -> None:
    torch.manual_seed(0)
    vit = ViT(12, 4, 5, dim=16, depth=2, heads=2, registers=1, attention=RotaryAttention).eval()
    again = build(describe(vit)).eval()
    again.load_state_dict(vit.state_dict())
    images = torch.randn(2, 3, 12, 20)  # another grid than that of the learned positions
    torch.testing.assert_close(again(images), vit(images))
    layout = vit.layout((12, 20))
    x, matrix = vit.tokens(images, layout.grid, None), torch.eye(17).double()
    for block in vit.blocks:
        weights = block.attn.weights(block.norm1(x), layout=layout).double().mean(1)
        matrix = (weights + torch.eye(17)) / 2 @ matrix
        x = block(x, layout)
    expected = matrix[:, 0, 2:].view(2, 3, 5)
    found = Rollout()(vit, images).values.double()
    scale = expected.amax((1, 2), keepdim=True) / found.amax((1, 2), keepdim=True)
    torch.testing.assert_close(found * scale, expected, rtol=1e-4, atol=1e-7)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"dim / heads to be a multiple of 4, got 18 / 3"):
        RotaryAttention(18, 3)
    with pytest.raises(ValueError, match=r"base must be above 1, got 1\.0"):
        RotaryAttention(24, 3, base=1.0)
    with pytest.raises(ValueError, match=r"need the places of the tokens: give attention\(tokens"):
        attention()(torch.randn(1, N, DIM).double())
    vit = ViT(8, 4, 5, dim=16, depth=1, heads=2, attention=RotaryAttention, patch_drop=0.5)
    with pytest.raises(ValueError, match="a ViT that leaves patches out has none: patch_drop=0"):
        vit(torch.randn(1, 3, 8, 8))
    with pytest.raises(ValueError, match=r"expected the 2 \+ 3 x 5 tokens .* got 16 and 16"):
        attention()(torch.randn(1, 16, DIM).double(), layout=LAYOUT)
