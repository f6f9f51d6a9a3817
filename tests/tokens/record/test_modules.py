"""Attention by modules: torch's, and ours whatever its parts."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from vision_attn import attention as mechanisms
from vision_attn.attention import DotProduct, MultiHeadAttention
from vision_attn.methods.rollout import FUSIONS
from vision_attn.models import ViT
from vision_attn.tokens.record.calls import LazyWeights

TORCH = {
    "self": ({}, {}),
    "weights": ({}, {"need_weights": True}),
    "each head's": ({}, {"need_weights": True, "average_attn_weights": False}),
    "sequence first": ({"batch_first": False}, {"need_weights": True}),
    "bias": ({"add_bias_kv": True}, {"need_weights": False}),
    "zero": ({"add_zero_attn": True}, {"need_weights": False}),
    "padding": ({}, {"key_padding_mask": torch.tensor([[False] * 3 + [True] * 4, [False] * 7])}),
    "mask": ({}, {"attn_mask": torch.randn(7, 7)}),
    "mask a head": ({}, {"attn_mask": torch.randn(6, 7, 7)}),
}


@pytest.mark.parametrize(("made", "called"), TORCH.values(), ids=TORCH)
@pytest.mark.filterwarnings("ignore:.*mismatched key_padding_mask.*")
def test_torch_multi_head_attention(
    made: dict[str, bool], called: dict[str, bool | torch.Tensor], recorded: Callable[..., Any]
) -> None:
    module = nn.MultiheadAttention(12, 3, **{"batch_first": True} | made).eval()
    x = torch.randn(2, 7, 12) if module.batch_first else torch.randn(7, 2, 12)
    with torch.no_grad():
        true, true_weights = module(x, x, x, **called)
    record, (out, weights) = recorded(module, x, x, x, **called)
    torch.testing.assert_close(out, true)
    if called.get("need_weights", True):
        torch.testing.assert_close(weights, true_weights)
        whole = record.calls[0].weights()
        torch.testing.assert_close(whole if weights.ndim == 4 else whole.mean(1), true_weights)
    else:
        assert weights is None
    assert record.expected == [""]


@pytest.mark.parametrize("average", [True, False])
def test_weights_that_a_network_asks_for_are_of_each_head_whatever_is_fused(
    average: bool, recorded: Callable[..., Any]
) -> None:
    module = nn.MultiheadAttention(12, 3, batch_first=True).eval()
    x = torch.randn(2, 7, 12)
    options = {"need_weights": True, "average_attn_weights": average}
    with torch.no_grad():
        _, expected = module(x, x, x, **options)
    record, (_, weights) = recorded(module, x, x, x, keep=(), fusion=FUSIONS["max"], **options)
    torch.testing.assert_close(weights, expected)
    assert record.calls[0].heads == 3
    record, _ = recorded(module, x, x, x, keep=(), fusion=FUSIONS["max"], need_weights=False)
    assert record.calls[0].heads == 1


def test_torch_attention_over_another_sequence_without_batch(recorded: Callable[..., Any]) -> None:
    module = nn.MultiheadAttention(12, 3, kdim=5, vdim=4).eval()
    args = torch.randn(7, 12), torch.randn(9, 5), torch.randn(9, 4)
    record, (out, weights) = recorded(module, *args)
    for found, true in zip((out, weights), module(*args), strict=True):
        torch.testing.assert_close(found, true)
    assert (record.calls[0].queries, record.calls[0].keys) == (7, 9)


def test_the_fast_path_of_torch_encoders_is_seen(recorded: Callable[..., Any]) -> None:
    layer = nn.TransformerEncoderLayer(12, 2, 24, batch_first=True)
    network = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 7, 12)
    with torch.no_grad():
        true = network(x)
    record, out = recorded(network, x)
    torch.testing.assert_close(out, true)
    assert [call.module for call in record.calls] == [f"layers.{i}.self_attn" for i in range(2)]


OWN = {
    "fused": {},
    "cosine": {"score": mechanisms.CosineSimilarity},
    "additive": {"score": mechanisms.Additive},
    "sparse": {"normalizer": mechanisms.Sparsemax},
    "sigmoid": {"normalizer": mechanisms.Sigmoid},
}


@pytest.mark.parametrize("options", OWN.values(), ids=OWN)
@pytest.mark.parametrize("tokens", [7, 130])
def test_our_attention_whatever_its_parts(
    options: dict[str, Any], tokens: int, recorded: Callable[..., Any]
) -> None:
    module = MultiHeadAttention(12, 3, **options).eval()
    x = torch.randn(2, tokens, 12)
    record, _ = recorded(module, x)
    (call,) = record.calls
    torch.testing.assert_close(call.weights(), module.weights(x))
    torch.testing.assert_close(call.weights() @ call.v, call.context)
    assert record.expected == [""]


def test_heads_of_our_own_attention_are_fused_as_it_runs(recorded: Callable[..., Any]) -> None:
    network = ViT(image_size=32, patch_size=8, dim=24, heads=3, depth=2, num_classes=5).eval()
    images = torch.randn(2, 3, 32, 32)
    true, expected = recorded(network, images, keep=())
    record, logits = recorded(network, images, keep=(), fusion=FUSIONS["max"])
    torch.testing.assert_close(logits, expected)
    for call, of_heads in zip(record.calls, true.calls, strict=True):
        assert call.module == of_heads.module
        torch.testing.assert_close(call.weights()[:, 0], of_heads.weights().amax(1))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    "score", [mechanisms.ScaledDot, mechanisms.CosineSimilarity, mechanisms.General]
)
def test_our_products_keep_no_weights_whatever_kernel_ran(
    score: Callable[..., DotProduct], half: bool, recorded: Callable[..., Any]
) -> None:
    """Under bfloat16 on a CPU ours goes by plain products, a few heads at a time."""
    network = ViT((32, 48), 8, 5, 24, 2, 3, attention=partial(MultiHeadAttention, score=score))
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        record, _ = recorded(network.eval(), torch.randn(2, 3, 32, 48))
    assert record.expected == ["blocks.0.attn", "blocks.1.attn"]
    for call in record.calls:
        assert isinstance(call, LazyWeights)
        assert call.q.shape == call.k.shape == (2, 3, 25, 8)
        assert (call.lse is None) == half
        coarse: dict[str, Any] = {"rtol": 0.02, "atol": 0.02} if half else {}
        assert call.v is not None
        context = call.weights() @ call.v.float()
        assert call.context is not None
        torch.testing.assert_close(context, call.context.float(), **coarse)


def test_our_mask_and_queries_that_may_see_nothing(recorded: Callable[..., Any]) -> None:
    mask = torch.rand(2, 1, 7, 7) > 0.4
    mask[1, :, 3] = False
    module = MultiHeadAttention(12, 3).eval()
    record, _ = recorded(module, torch.randn(2, 7, 12), mask=mask)
    (call,) = record.calls
    weights = call.weights()
    assert not call.sums_to_one
    assert (weights[1, :, 3] == 0).all()
    torch.testing.assert_close(weights.sum(-1)[0], torch.ones(3, 7))
    torch.testing.assert_close(weights @ call.v, call.context)


def test_our_windows_are_one_map_over_all_tokens(recorded: Callable[..., Any]) -> None:
    window = partial(mechanisms.Local2d, radius=1)
    network = ViT(64, 8, 5, 24, 2, 3, attention=partial(MultiHeadAttention, window=window)).eval()
    record, _ = recorded(network, torch.randn(1, 3, 64, 64))
    assert [(call.queries, call.keys) for call in record.calls] == [(65, 65)] * 2
    for call in record.calls:
        torch.testing.assert_close(call.weights().sum(-1), torch.ones(1, 3, 65))
        torch.testing.assert_close(call.weights() @ call.v, call.context)
