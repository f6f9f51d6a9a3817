"""Attention that a network writes out is seen; products that look like it are not taken for it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F


def softmaxed(q: Any, k: Any, **options: Any) -> torch.Tensor:
    return torch.softmax(q @ k.mT / 3, dim=-1, **options)


def heads_third(q: Any, k: Any, v: Any) -> torch.Tensor:
    """Axes b n head d, as linear layers leave them."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = torch.einsum("bqhd,bkhd->bqhk", q, k).softmax(-1)
    return torch.einsum("bqhk,bkhd->bqhd", weights, v).transpose(1, 2)


def divided(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.mT
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    powers /= powers.sum(-1, keepdim=True)
    return powers @ v


MIX = torch.eye(3, dtype=torch.float64) + 0.1


WRITTEN_OUT = {
    "matmul": lambda q, k, v: softmaxed(q, k) @ v,
    "functional": lambda q, k, v: F.softmax(q @ k.mT, -1).matmul(v),
    "module": lambda q, k, v: torch.matmul(nn.Softmax(dim=3)(q @ k.mT), v),
    "bmm": lambda q, k, v: torch.bmm(softmaxed(q[:, 0], k[:, 0]), v[:, 0]),
    "einsum": lambda q, k, v: torch.einsum("b h i j, b h j d -> b h i d", softmaxed(q, k), v),
    "einsum of values first": lambda q, k, v: torch.einsum(
        "bkhd,bhqk->bhqd", v.transpose(1, 2), softmaxed(q, k)
    ),
    "einsum, dots": lambda q, k, v: torch.einsum("...ij,...jd->...id", softmaxed(q, k), v),
    "heads third": heads_third,
    "exp and sum": divided,
    "a quotient": lambda q, k, v: (a := (q @ k.mT).sigmoid()).div(a.sum(-1, keepdim=True)) @ v,
    "log softmax": lambda q, k, v: F.log_softmax(q @ k.mT, -1).exp() @ v,
    "turned": lambda q, k, v: (v.mT @ softmaxed(q, k).transpose(-2, -1)).mT,
    "dropped": lambda q, k, v: F.dropout(softmaxed(q, k), 0.3, training=False) @ v,
    "in half": lambda q, k, v: (softmaxed(q, k, dtype=torch.float32).to(v.dtype)) @ v,
    "gated": lambda q, k, v: (0.3 * softmaxed(q, k) + 0.7 * softmaxed(-q, k)) @ v,
    "heads mixed": lambda q, k, v: (
        F.linear(softmaxed(q, k).permute(0, 2, 3, 1), MIX).permute(0, 3, 1, 2) @ v
    ),
}  # fmt: skip


@pytest.mark.parametrize("attend", WRITTEN_OUT.values(), ids=WRITTEN_OUT)
def test_attention_written_out(
    attend: Callable[..., Any],
    recorded: Callable[..., Any],
    attending: Callable[..., Any],
    qkv: Callable[..., Any],
) -> None:
    q, k, v = qkv()
    record, out = recorded(attending(attend), q, k, v)
    torch.testing.assert_close(out, attend(q, k, v))
    (call,) = record.calls
    heads = v if out.ndim == 4 else v[:, :1]
    torch.testing.assert_close(call.weights() @ heads, out.reshape(2, -1, 5, 11))
    torch.testing.assert_close(call.context, out)


NO_WEIGHTS = {
    "a softmax over the queries": lambda q, k, v: torch.einsum(
        "bhij,bhid->bhjd", softmaxed(q, k), v[:, :, :5]
    ),
    "lengths of 1": lambda q, k, v: (q / q.norm(dim=-1, keepdim=True)) @ k.mT,
    "no sum": lambda q, k, v: (q @ k.mT).exp() @ v,
    "a sum over two axes": lambda q, k, v: torch.einsum("bhij,bhjd->bid", softmaxed(q, k), v),
}


@pytest.mark.parametrize("product", NO_WEIGHTS.values(), ids=NO_WEIGHTS)
def test_products_that_look_like_it_are_not_attention(
    product: Callable[..., Any],
    recorded: Callable[..., Any],
    attending: Callable[..., Any],
    qkv: Callable[..., Any],
) -> None:
    q, k, v = qkv()
    seen = attending(lambda q, k, v: product(q, k, v) + 0 * (softmaxed(q, k) @ v).sum())
    record, out = recorded(seen, q, k, v)
    torch.testing.assert_close(out, product(q, k, v))
    assert len(record.calls) == 1


def test_queries_may_attend_in_chunks(
    recorded: Callable[..., Any], attending: Callable[..., Any], qkv: Callable[..., Any]
) -> None:
    q, k, v = qkv()
    attention = F.scaled_dot_product_attention
    record, out = recorded(
        attending(lambda q, k, v: torch.cat([attention(c, k, v) for c in q.split(2, 2)], 2)),
        q,
        k,
        v,
    )
    torch.testing.assert_close(torch.cat([c.weights() @ v for c in record.calls], 2), out)
    assert [call.queries for call in record.calls] == [2, 2, 1]


def test_softmax_for_other_ends_is_not_attention(
    recorded: Callable[..., Any], attending: Callable[..., Any], qkv: Callable[..., Any]
) -> None:
    q, k, v = qkv()
    classes = attending(
        lambda q, k, v: (softmaxed(q, k) @ v).mean((1, 2)).softmax(-1) @ v[0, 0, :, :].mT
    )
    record, _ = recorded(classes, q, k, v)
    assert len(record.calls) == 1
