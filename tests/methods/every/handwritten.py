"""Attention from token to token, written in the ways that people write it.

Each takes q, k, v (b head n d) and gives (b head n d); all of them are softmax(q k' / sqrt(d)) v.
"""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

WAYS: dict[Any, Any] = {}


def way(function: Any) -> Any:
    WAYS[function.__name__] = function
    return function


def scores(q: Any, k: Any) -> Any:
    return q @ k.mT / q.shape[-1] ** 0.5


@way
def fused(q: Any, k: Any, v: Any) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v)


@way
def matmul_of_softmax(q: Any, k: Any, v: Any) -> Any:
    return scores(q, k).softmax(-1) @ v


@way
def torch_softmax_and_matmul(q: Any, k: Any, v: Any) -> torch.Tensor:
    return torch.matmul(
        torch.softmax(torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1]), dim=-1), v
    )


@way
def by_names_of_arguments(q: Any, k: Any, v: Any) -> torch.Tensor:
    return torch.matmul(input=F.softmax(input=scores(q, k), dim=-1), other=v)


@way
def softmax_module(q: Any, k: Any, v: Any) -> Any:
    return nn.Softmax(dim=-1)(scores(q, k)) @ v


@way
def scaled_before(q: Any, k: Any, v: Any) -> Any:
    return ((q / q.shape[-1] ** 0.5) @ k.mT).softmax(-1) @ v


@way
def einsum_heads_second(q: Any, k: Any, v: Any) -> torch.Tensor:
    weights = torch.einsum("bhid,bhjd->bhij", q, k).div(q.shape[-1] ** 0.5).softmax(-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


@way
def einsum_heads_third(q: Any, k: Any, v: Any) -> torch.Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = (torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v).transpose(1, 2)


@way
def einsum_heads_between(q: Any, k: Any, v: Any) -> torch.Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = (torch.einsum("bqhd,bkhd->bqhk", q, k) / q.shape[-1] ** 0.5).softmax(-1)
    return torch.einsum("bqhk,bkhd->bqhd", weights, v).transpose(1, 2)


@way
def einsum_with_ellipsis(q: Any, k: Any, v: Any) -> torch.Tensor:
    weights = torch.einsum("...id,...jd->...ij", q, k).div(q.shape[-1] ** 0.5).softmax(-1)
    return torch.einsum("...ij,...jd->...id", weights, v)


@way
def einsum_values_first(q: Any, k: Any, v: Any) -> torch.Tensor:
    return torch.einsum("bhjd,bhij->bhid", v, scores(q, k).softmax(-1))


@way
def transposed_product(q: Any, k: Any, v: Any) -> Any:
    return (v.mT @ scores(q, k).softmax(-1).mT).mT


@way
def softmax_over_rows_of_the_transpose(q: Any, k: Any, v: Any) -> Any:
    return scores(k, q).softmax(-2).mT @ v


@way
def heads_last_softmax_second(q: Any, k: Any, v: Any) -> torch.Tensor:
    q, k, v = (x.permute(0, 2, 3, 1) for x in (q, k, v))  # b n d head
    weights = (torch.einsum("bidh,bjdh->bijh", q, k) / q.shape[2] ** 0.5).softmax(2)
    return torch.einsum("bijh,bjdh->bidh", weights, v).permute(0, 3, 1, 2)


@way
def exponentials_over_their_sum(q: Any, k: Any, v: Any) -> Any:
    powers = scores(q, k).exp()
    return (powers / powers.sum(-1, keepdim=True)) @ v


@way
def product_then_division(q: Any, k: Any, v: Any) -> Any:
    e = scores(q, k)
    powers = (e - e.amax(-1, keepdim=True)).exp()
    return (powers @ v) / powers.sum(-1, keepdim=True)


@way
def product_then_division_by_einsum(q: Any, k: Any, v: Any) -> torch.Tensor:
    powers = torch.exp(scores(q, k))
    return torch.einsum("bhij,bhjd->bhid", powers, v) / powers.sum(-1)[..., None]


@way
def stable_exponentials(q: Any, k: Any, v: Any) -> Any:
    e = scores(q, k)
    powers = torch.exp(e - e.max(-1, keepdim=True).values)
    return powers.div(powers.sum(dim=-1, keepdim=True)) @ v


@way
def log_softmax_and_exp(q: Any, k: Any, v: Any) -> Any:
    return F.log_softmax(scores(q, k), -1).exp() @ v


@way
def normalised_by_f_normalize(q: Any, k: Any, v: Any) -> Any:
    return F.normalize(scores(q, k).exp(), p=1, dim=-1) @ v


@way
def weights_times_values_summed(q: Any, k: Any, v: Any) -> Any:
    weights = scores(q, k).softmax(-1)
    return (weights.unsqueeze(-1) * v.unsqueeze(-3)).sum(-2)


@way
def elementwise_and_mT(q: Any, k: Any, v: Any) -> Any:
    weights = (q.unsqueeze(3) * k.unsqueeze(2)).sum(-1).div(q.shape[-1] ** 0.5).softmax(-1)
    return weights @ v


@way
def a_loop_over_heads(q: Any, k: Any, v: Any) -> torch.Tensor:
    return torch.stack(
        [scores(q[:, h], k[:, h]).softmax(-1) @ v[:, h] for h in range(q.shape[1])], 1
    )


@way
def a_loop_over_heads_concatenated(q: Any, k: Any, v: Any) -> Any:
    parts = [
        scores(a, b).softmax(-1) @ c
        for a, b, c in zip(*(x.unbind(1) for x in (q, k, v)), strict=True)
    ]
    return torch.cat(parts, -1).unflatten(-1, (q.shape[1], -1)).transpose(1, 2)


@way
def a_loop_over_images(q: Any, k: Any, v: Any) -> torch.Tensor:
    return torch.stack([scores(a, b).softmax(-1) @ c for a, b, c in zip(q, k, v, strict=True)])


@way
def a_loop_over_images_fused(q: Any, k: Any, v: Any) -> torch.Tensor:
    return torch.cat(
        [
            F.scaled_dot_product_attention(q[i : i + 1], k[i : i + 1], v[i : i + 1])
            for i in range(len(q))
        ]
    )


@way
def chunks_of_queries(q: Any, k: Any, v: Any) -> torch.Tensor:
    return torch.cat([F.scaled_dot_product_attention(part, k, v) for part in q.split(7, 2)], 2)


@way
def chunks_of_queries_by_hand(q: Any, k: Any, v: Any) -> torch.Tensor:
    return torch.cat([scores(part, k).softmax(-1) @ v for part in q.chunk(3, 2)], 2)


@way
def heads_in_the_batch(q: Any, k: Any, v: Any) -> torch.Tensor:
    b, head = q.shape[:2]
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    return torch.bmm(scores(q, k).softmax(-1), v).view(b, head, *v.shape[1:])


@way
def heads_in_the_batch_fused(q: Any, k: Any, v: Any) -> Any:
    b, head = q.shape[:2]
    return F.scaled_dot_product_attention(*(x.flatten(0, 1) for x in (q, k, v))).unflatten(
        0, (b, head)
    )


@way
def heads_before_images(q: Any, k: Any, v: Any) -> torch.Tensor:
    b, head = q.shape[:2]
    q, k, v = (x.transpose(0, 1).flatten(0, 1) for x in (q, k, v))
    return torch.bmm(scores(q, k).softmax(-1), v).view(head, b, *v.shape[1:]).transpose(0, 1)


@way
def heads_first(q: Any, k: Any, v: Any) -> Any:
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    return (scores(q, k).softmax(-1) @ v).transpose(0, 1)


@way
def baddbmm_of_heads(q: Any, k: Any, v: Any) -> torch.Tensor:
    b, head, n, d = q.shape
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    weights = torch.baddbmm(q.new_zeros(1, 1, 1), q, k.mT, beta=0, alpha=d**-0.5).softmax(-1)
    return torch.bmm(weights, v).view(b, head, n, -1)


@way
def a_mask_of_nothing(q: Any, k: Any, v: Any) -> Any:
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    return scores(q, k).masked_fill(~mask, -torch.inf).softmax(-1) @ v


@way
def a_fused_mask_of_nothing(q: Any, k: Any, v: Any) -> torch.Tensor:
    return F.scaled_dot_product_attention(
        q, k, v, torch.zeros(q.shape[2], k.shape[2], dtype=q.dtype)
    )


@way
def dropout_of_weights(q: Any, k: Any, v: Any) -> Any:
    return F.dropout(scores(q, k).softmax(-1), 0.1, training=False) @ v


@way
def weights_in_another_dtype(q: Any, k: Any, v: Any) -> Any:
    return F.softmax(scores(q, k), dim=-1, dtype=torch.float64).to(q.dtype) @ v


@way
def weights_contiguous_and_reshaped(q: Any, k: Any, v: Any) -> torch.Tensor:
    weights = scores(q, k).softmax(-1)
    b, head, i, j = weights.shape
    return torch.bmm(weights.reshape(b * head, i, j), v.reshape(b * head, j, -1)).reshape(
        b, head, i, -1
    )


@way
def the_function_of_torch(q: Any, k: Any, v: Any) -> torch.Tensor:
    n, d = q.shape[2], q.shape[1] * q.shape[3]
    eye, heads = torch.eye(d, dtype=q.dtype), q.shape[1]
    q, k, v = (x.permute(2, 0, 1, 3).flatten(2) for x in (q, k, v))
    out, _ = F.multi_head_attention_forward(
        q, k, v, d, heads, None, None, None, None, False, 0.0, eye, None, training=False,
        use_separate_proj_weight=True, q_proj_weight=eye, k_proj_weight=eye, v_proj_weight=eye,
        need_weights=False,
    )  # fmt: skip
    return out.view(n, -1, heads, d // heads).permute(1, 2, 0, 3)


@way
def keys_in_two_parts(q: Any, k: Any, v: Any) -> Any:
    """Online softmax over two halves of the keys."""
    half = k.shape[2] // 2
    parts = []
    for keys, values in ((k[:, :, :half], v[:, :, :half]), (k[:, :, half:], v[:, :, half:])):
        e = scores(q, keys)
        parts.append((e.logsumexp(-1, keepdim=True), e.softmax(-1) @ values))
    total = torch.logaddexp(parts[0][0], parts[1][0])
    return sum((lse - total).exp() * context for lse, context in parts)


class Block(nn.Module):
    """A pre-norm block around one way of attention, sharp."""

    def __init__(self, attend: Any, dim: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.attend, self.heads = attend, heads
        self.norm, self.mix, self.out = (
            nn.LayerNorm(dim),
            nn.Linear(dim, 3 * dim),
            nn.Linear(dim, dim),
        )
        self.mix.weight.data *= 6

    def parts(self, x: Any) -> Any:
        return self.mix(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def forward(self, x: Any) -> Any:
        return x + self.out(self.attend(*self.parts(x)).transpose(1, 2).flatten(2))


class Own(nn.Module):
    """Patches of 8x8 pixels, two blocks, the mean of the tokens, 5 classes."""

    def __init__(self, attend: Any, dim: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, dim, 8, 8)
        self.blocks = nn.Sequential(Block(attend, dim, heads), Block(attend, dim, heads))
        self.head = nn.Linear(dim, 5)

    def forward(self, images: torch.Tensor) -> Any:
        return self.head(self.blocks(self.cut(images).flatten(2).mT).mean(1))

    @torch.no_grad()
    def dense_rollout(self, images: torch.Tensor) -> Any:
        """The rollout (b h w), of weights that no recorder gave."""
        x = self.cut(images)
        grid, x = x.shape[2:], x.flatten(2).mT
        layers = []
        for block in self.blocks:
            q, k, _ = block.parts(x)
            layers.append(torch.softmax(scores(q, k), -1).mean(1))
            x = block(x)
        rows = torch.full((len(x), 1, x.shape[1]), 1 / x.shape[1], dtype=x.dtype)
        for weights in reversed(layers):
            rows = 0.5 * rows + 0.5 * rows @ weights
        return rows[:, 0].unflatten(1, grid)
