"""Attention of short sequences, its heads fused as it runs: the same output, and the true map."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from vision_attn.methods.rollout import FUSIONS
from vision_attn.tokens.record import sdpa
from vision_attn.tokens.record.sdpa import SDPAInputs, ShortAttention


def qkv(
    b: int = 2,
    h: int = 3,
    i: int = 5,
    j: int = 7,
    d: int = 11,
    e: int = 11,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        torch.randn(b, h, i, d, dtype=dtype),
        torch.randn(b, h, j, d, dtype=dtype),
        torch.randn(b, h, j, e, dtype=dtype),
    )


@torch.no_grad()
def fused(*args: Any, fusion: str = "mean", **options: Any) -> Any:
    return ShortAttention(FUSIONS[fusion])(SDPAInputs(*args, **options))


@pytest.mark.parametrize("limit", [10**6, 2 * 7 * 3 * 7, 3 * 3 * 7, 1])
@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("scale", [None, 0.3])
def test_the_output_and_the_fused_map(
    scale: float | None, fusion: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdpa, "CPU_TILE", limit)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    q, k, v = qkv(e=13)
    context, heads = fused(q, k, v, scale=scale, fusion=fusion)
    torch.testing.assert_close(context, F.scaled_dot_product_attention(q, k, v, scale=scale))
    weights = torch.softmax(q @ k.mT * (scale or 11**-0.5), -1)
    true = {"mean": weights.mean(1), "max": weights.amax(1), "min": weights.amin(1)}[fusion]
    torch.testing.assert_close(heads, true)


def test_only_where_attention_is_plain_exact_short_and_without_gradients() -> None:
    assert fused(*qkv())
    assert fused(*qkv(h=2, j=13, d=2, i=5))  # 65 numbers of a map, 72 of q and k
    assert fused(*qkv(h=2, j=21, d=2, i=5)) is None  # 105, 104
    assert fused(*qkv(dtype=torch.bfloat16)) is None
    assert fused(*(x[0] for x in qkv())) is None
    assert fused(*qkv(), attn_mask=torch.ones(5, 7, dtype=torch.bool)) is None
    assert fused(*qkv(), is_causal=True) is None
    assert fused(*qkv(), dropout_p=0.5) is None
    assert fused(*qkv(), enable_gqa=True) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert fused(*qkv(dtype=torch.float32)) is None
    with torch.enable_grad():
        assert ShortAttention(FUSIONS["mean"])(SDPAInputs(*qkv())) is None


@pytest.mark.parametrize("empty", [{"b": 0}, {"j": 0}])
def test_not_where_there_is_nothing_to_weigh(empty: dict[str, Any]) -> None:
    assert fused(*qkv(**empty)) is None


def test_no_queries() -> None:
    context, heads = fused(*qkv(i=0))
    assert (context.shape, heads.shape) == ((2, 3, 0, 11), (2, 0, 7))


@pytest.mark.parametrize("e", [8, 5])
@pytest.mark.parametrize(
    "laid_out",
    [
        lambda x: x,
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: torch.stack([x.transpose(1, 2)] * 3, 2).permute(2, 0, 3, 1, 4)[0],
        lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
        lambda x: x[:, :1].expand(x.shape),
    ],
    ids=["by heads", "by tokens", "q, k and v together", "heads first", "shared by heads"],
)
def test_the_output_is_laid_out_as_by_torch(laid_out: Callable[..., Any], e: int) -> None:
    q, k, v = qkv(d=8, e=e)
    q = laid_out(q)
    context, _ = fused(q, k, v)
    expected = F.scaled_dot_product_attention(q, k, v)
    assert context.stride() == expected.stride()
    torch.testing.assert_close(context, expected)


def by_tokens(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def test_each_call_is_its_own_whatever_was_found_for_the_calls_before() -> None:
    attend = ShortAttention(FUSIONS["mean"])
    shapes: list[dict[str, Any]]
    shapes = [{}, {"b": 1}, {"b": 1, "dtype": torch.float32}, {"b": 1, "i": 3, "j": 13}, {"e": 5}]
    inputs = [qkv(**shape) for shape in shapes]
    inputs += [(by_tokens(q), k, v) for q, k, v in inputs]
    both = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    with torch.no_grad():
        for kernels in (both, [SDPBackend.MATH], both):
            for q, k, v in inputs:
                with sdpa_kernel(kernels):
                    short = attend(SDPAInputs(q, k, v))
                    expected = F.scaled_dot_product_attention(q, k, v)
                assert short is not None
                assert short[0].stride() == expected.stride()
                torch.testing.assert_close(short[0], expected)
                weights = torch.softmax(q @ k.mT * 11**-0.5, -1)
                torch.testing.assert_close(short[1], weights.mean(1))
        q, k, v = inputs[2]
        with torch.autocast("cpu", torch.bfloat16):
            assert attend(SDPAInputs(q, k, v)) is None
    assert attend(SDPAInputs(q, k, v)) is None


def test_a_plan_serves_in_and_out_of_inference_mode() -> None:
    attend, inputs = ShortAttention(FUSIONS["mean"]), SDPAInputs(*qkv(b=1))
    with torch.inference_mode():
        inside = attend(inputs)
    with torch.no_grad():
        outside = attend(inputs)
    assert inside is not None
    assert outside is not None
    torch.testing.assert_close(inside[1].clone(), outside[1])
