"""Multi-head and multi-dimensional attention against torch's, timm's, and the formula."""

from functools import partial
from typing import Any

import pytest
import timm.layers
import torch
from torch import Tensor, nn

from vision_attn.attention import (
    Additive,
    General,
    Local2d,
    LocalPredictive,
    MultiDimAdditive,
    MultiDimAttention,
    MultiHeadAttention,
    ScaledDot,
    Sparsemax,
    causal_mask,
)
from vision_attn.types import TokenLayout

B, N, J, DIM, HEADS = 2, 5, 7, 15, 3


def torchs_own(ours: MultiHeadAttention) -> nn.MultiheadAttention:
    theirs = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
    theirs.in_proj_weight.data.copy_(ours.qkv.weight)
    theirs.in_proj_bias.data.copy_(ours.qkv.bias)
    theirs.out_proj.load_state_dict(ours.proj.state_dict())
    return theirs


def randomized(module: nn.Module) -> Any:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_multihead_attention_is_torchs(cross: bool, masked: bool) -> None:
    ours = randomized(MultiHeadAttention(DIM, HEADS))
    theirs = torchs_own(ours)
    x = torch.randn(B, N, DIM, requires_grad=True)
    memory = torch.randn(B, J, DIM, requires_grad=True) if cross else x
    mask = causal_mask(N, memory.size(1)) if masked else None
    context = ours(x, memory if cross else None, mask)
    expected, weights = theirs(
        x,
        memory,
        memory,
        attn_mask=None if mask is None else ~mask,
        average_attn_weights=False,
    )
    torch.testing.assert_close(context, expected)
    torch.testing.assert_close(ours.weights(x, memory if cross else None, mask), weights)

    grad = torch.randn_like(context)
    context.backward(grad, inputs=(x, memory, *ours.parameters()), retain_graph=True)
    grads = [x.grad, memory.grad]
    x.grad = memory.grad = None
    expected.backward(grad)
    torch.testing.assert_close(grads, [x.grad, memory.grad])
    torch.testing.assert_close(ours.qkv.weight.grad, theirs.in_proj_weight.grad)
    torch.testing.assert_close(ours.qkv.bias.grad, theirs.in_proj_bias.grad)
    torch.testing.assert_close(ours.proj.weight.grad, theirs.out_proj.weight.grad)


@pytest.mark.parametrize("bias", [False, True])
def test_it_loads_timms_weights(bias: bool) -> None:
    theirs = timm.layers.Attention(DIM, HEADS, qkv_bias=bias)
    ours = MultiHeadAttention(DIM, HEADS, qkv_bias=bias)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(B, N, DIM)
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours(x, x), theirs(x))


def test_blocks_have_parts_of_their_own() -> None:
    ours = MultiHeadAttention(
        DIM,
        HEADS,
        score=partial(Additive, hidden_dim=11),
        normalizer=Sparsemax,
        window=partial(LocalPredictive, radius=2),
    )
    assert ours.attend.score.query_proj.weight.shape == (HEADS, DIM // HEADS, 11)
    assert ours.attend.window.hidden.weight.shape == (HEADS, DIM // HEADS, DIM // HEADS)
    x = torch.randn(B, N, DIM)
    assert ours(x).shape == (B, N, DIM)
    assert ours.weights(x).shape == (B, HEADS, N, N)


def test_the_layout_reaches_the_window() -> None:
    ours = MultiHeadAttention(DIM, HEADS, window=partial(Local2d, radius=0))
    layout = TokenLayout(1, (2, 2))
    weights = ours.weights(torch.randn(B, 5, DIM), layout=layout)
    assert (weights[:, :, 1, 2:] == 0).all()
    assert (weights[:, :, 0] > 0).all()


def test_dropouts() -> None:
    x = torch.randn(B, N, DIM)
    cases: list[dict[str, Any]] = [{"dropout": 0.5}, {"proj_dropout": 0.5}]
    for options in cases:
        ours = MultiHeadAttention(DIM, HEADS, **options)
        assert not torch.equal(ours(x), ours(x))
        ours.eval()
        assert torch.equal(ours(x), ours(x))


@pytest.mark.parametrize("views", [3, DIM])
def test_multidim_attention_weighs_every_view(views: int) -> None:
    ours = randomized(MultiDimAttention(DIM, views, score=partial(MultiDimAdditive, hidden_dim=7)))
    x, memory = torch.randn(B, N, DIM), torch.randn(B, J, DIM)
    score, part = ours.attend.score, DIM // views
    q = x @ ours.qkv.weight[:DIM].T + ours.qkv.bias[:DIM]
    k = memory @ ours.qkv.weight[DIM : 2 * DIM].T + ours.qkv.bias[DIM : 2 * DIM]
    v = memory @ ours.qkv.weight[2 * DIM :].T + ours.qkv.bias[2 * DIM :]
    context = torch.empty(B, N, DIM)
    for b in range(B):
        for i in range(N):
            hidden = q[b, i] @ score.query_proj.weight[0] + k[b] @ score.key_proj.weight[0]
            views_of_keys = hidden.tanh() @ score.energy.weight[0]  # j view
            for view in range(views):
                weights = views_of_keys[:, view].softmax(0)
                torch.testing.assert_close(ours.weights(x, memory)[b, view, i], weights)
                own = slice(view * part, (view + 1) * part)
                context[b, i, own] = weights @ v[b, :, own]
    torch.testing.assert_close(ours(x, memory), ours.proj(context))


def test_multidim_attention_takes_bilinear_and_sigmoid_forms() -> None:
    x = torch.randn(B, N, DIM)
    for score in (General, partial(MultiDimAdditive, activation=nn.Sigmoid)):
        ours = MultiDimAttention(DIM, 5, score=score)
        assert ours(x).shape == (B, N, DIM)
        weights: Tensor = ours.weights(x)
        torch.testing.assert_close(weights.sum(-1), torch.ones(B, 5, N))
    stack = ours.attend.score.energy.weight
    assert stack.shape[-1] == 5


def test_bad_input_is_refused() -> None:
    for make in (MultiHeadAttention, MultiDimAttention):
        for dim, heads in ((15, 4), (0, 3), (15, 0)):
            message = f"dim must be a multiple of heads, got dim={dim} and heads={heads}"
            with pytest.raises(ValueError, match=message):
                make(dim, heads)
    with pytest.raises(
        ValueError, match=r"score must be one with parameters for each view .*got ScaledDot"
    ):
        MultiDimAttention(DIM, HEADS, score=ScaledDot)
    ours = MultiHeadAttention(DIM, HEADS)
    with pytest.raises(ValueError, match="must not be empty"):
        ours(torch.randn(B, 0, DIM))
    with pytest.raises(ValueError, match="mask must be bool"):
        ours(torch.randn(B, N, DIM), mask=torch.zeros(N, N))
