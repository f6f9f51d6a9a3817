"""Blocks that make several attention calls, side by side or in a row: maps of one call, and of all.

The oracle keeps the weights that the network itself multiplies values by, and knows how its blocks
join the calls; no recorder, path or chain takes part.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

from vision_attn.types import Heatmaps

sys.path.append(str(Path(__file__).parent))
from own_networks import IMAGES, SIZE, Own

from vision_attn.methods import (
    AttentionGradCAM,
    GradientRollout,
    LeGrad,
    QueryKey,
    RawAttention,
    Relevance,
    Rollout,
    WeightedRollout,
)
from vision_attn.tokens import probe

TOKENS, GRID = 25, (4, 6)  # a class token and the patches


class Kept:
    """Attention that keeps the scores and the weights of each call."""

    def __init__(self) -> None:
        self.scores: list[torch.Tensor] = []
        self.weights: list[torch.Tensor] = []

    def __call__(self, q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.mT / q.shape[-1] ** 0.5
        self.scores.append(scores)
        self.weights.append(scores.softmax(-1))
        return self.weights[-1] @ v


class Branch(nn.Module):
    """A norm, an attention that chooses, and a projection."""

    def __init__(self, attend: Kept, dim: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.attend, self.heads = attend, heads
        self.norm, self.qkv = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.qkv.weight.data *= 6

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Branches, and how they are joined."""

    def __init__(self, attend: Kept, branches: int, join: Any) -> None:
        super().__init__()
        self.branches = nn.ModuleList(Branch(attend) for _ in range(branches))
        self.join, self.linear = join, nn.Linear(48, 24)

    def forward(self, x: Any) -> Any:
        return self.join(self, x, *self.branches)


def in_a_row(_: Any, x: Any, one: Any, other: Any) -> Any:
    x = x + one(x)
    return x + other(x)


def one_module_twice(_: Any, x: Any, one: Any) -> Any:
    x = x + one(x)
    return x + one(x)


def after_one_another(_: Any, x: Any, one: Any, other: Any) -> Any:
    y = x + one(x)
    return y + other(x)


def two_summed_first(_: Any, x: Any, one: Any, other: Any, third: Any) -> Any:
    both = one(x) + other(x)
    return x + (both + third(x))


def one_module_beside_itself(_: Any, x: Any, one: Any) -> Any:
    return x + one(x) + one(-x)


# By name: the branches, the calls, whether they lie side by side, and the block.
KINDS = {
    "plain": (1, 1, False, lambda _, x, one: x + one(x)),
    "in a row": (2, 2, False, in_a_row),
    "one module twice": (1, 2, False, one_module_twice),
    "side by side": (2, 2, True, lambda _, x, one, other: x + one(x) + other(x)),
    "one module beside itself": (1, 2, True, one_module_beside_itself),
    "after one another": (2, 2, True, after_one_another),
    "mean": (2, 2, True, lambda _, x, one, other: x + (one(x) + other(x)) / 2),
    "joined": (2, 2, True, lambda me, x, *of: x + me.linear(torch.cat([b(x) for b in of], -1))),
    "three": (3, 3, True, lambda _, x, one, *more: x + one(x) + more[0](x) + more[1](x)),
    "two summed first": (3, 3, True, two_summed_first),
    "stacked": (3, 3, True, lambda _, x, *of: x + torch.stack([b(x) for b in of]).sum(0)),
}


def network_of(kind: str, order: str, read: str) -> tuple[Any, list[list[Any]], Kept]:
    """A network, the groups of its calls that lie side by side, and its attention."""
    torch.manual_seed(3)
    attend, kinds = Kept(), [kind if one == "it" else "plain" for one in order.split()]

    def make(name: str) -> Block:
        branches, _, _, join = KINDS[name]
        return Block(attend, branches, join)

    network = Own([make(name) for name in kinds], READS[read], before=1).double().eval()
    nn.init.normal_(network.head.weight)
    groups, count = [], 0
    for name in kinds:
        _, made, side_by_side, _ = KINDS[name]
        calls = [*range(count, count + made)]
        groups += [calls] if side_by_side else [[call] for call in calls]
        count += made
    return network, groups, attend


READS = {"cls": lambda x: x[:, 0], "mean": lambda x: x.mean(1)}
EVERY = [
    pytest.param(kind, order, read, id=f"{kind}: {order}, {read}")
    for kind in KINDS
    for order, read in (("plain it plain", "cls"), ("it it", "mean"))
] + [pytest.param("side by side", "plain it", "cls", id="side by side: plain it, cls")]


def seed_of(read: Any) -> torch.Tensor:
    first = torch.zeros(1, TOKENS, dtype=torch.float64)
    first[0, 0] = 1
    return first if read == "cls" else torch.full_like(first, 1 / TOKENS)


def run(network: Any, attend: Kept) -> tuple[list[Any], list[Any], list[Any]]:
    """Weights (b head i j), scores and the gradient of logit 1 by the weights, of each call."""
    attend.weights, attend.scores = [], []
    logits = network(IMAGES)
    weights, scores = attend.weights, attend.scores
    gradients = torch.autograd.grad(logits[:, 1].sum(), weights, allow_unused=True)
    gradients = [
        torch.zeros_like(A) if dA is None else dA for A, dA in zip(weights, gradients, strict=True)
    ]
    return [A.detach() for A in weights], [s.detach() for s in scores], gradients


def assert_is(maps: Heatmaps, row: torch.Tensor) -> None:
    """Maps of shares of the input tokens (b n)."""
    torch.testing.assert_close(maps.values, row[:, 1:].unflatten(1, GRID).float())
    total = row.sum(1)
    share = torch.where(total != 0, row[:, 0] / total.where(total != 0, 1), 0)
    if maps.prefix_mass is not None:
        torch.testing.assert_close(maps.prefix_mass, share.float(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("kind", "order", "read"), EVERY)
def test_a_map_of_one_call_is_its_own_row(kind: Any, order: Any, read: Any) -> None:
    network, groups, attend = network_of(kind, order, read)
    weights, scores, gradients = run(network, attend)
    seed = seed_of(read)
    for call in range(sum(map(len, groups))):
        A = weights[call].mean(1)
        assert_is(RawAttention(layer=call)(network, IMAGES), (seed @ A)[:, 0])
        head = RawAttention(layer=call, head=2)(network, IMAGES)
        assert_is(head, (seed @ weights[call][:, 2])[:, 0])
        if read == "cls":  # else nothing tells that the first token is one
            assert_is(QueryKey(layer=call, query="cls")(network, IMAGES), A[:, 0])
        place = QueryKey(layer=call, query=(19, 27))  # the patch in row 3, column 2
        assert_is(place(network, IMAGES), A[:, 1 + 3 * 6 + 2])
        found = QueryKey(layer=call, query=(19, 27), kind="scores")(network, IMAGES)
        true = scores[call][:, :, 1 + 3 * 6 + 2].mean(1)
        torch.testing.assert_close(found.values, true[:, 1:].unflatten(1, GRID).float())
        share = (seed.unsqueeze(1) @ gradients[call])[..., 0, 1:].mean(-1)[:, :, None, None]
        cam = (seed @ (weights[call] * share).mean(1))[:, 0].clamp(min=0)
        assert_is(AttentionGradCAM(layer=call)(network, IMAGES, 1), cam)


def carried(
    fused: list[Any],
    groups: list[list[Any]],
    seed: torch.Tensor,
    keep: float,
    take: Callable[..., float],
) -> torch.Tensor:
    """The seed's row through groups of calls side by side, each group's fused maps weighed alike."""
    r = seed.expand(len(IMAGES), 1, -1)
    for calls in reversed(groups):
        both = torch.stack([fused[call] for call in calls]).mean(0)
        r = keep * r + take(len(calls)) * (r @ both)
    return r[:, 0]


@pytest.mark.parametrize(("kind", "order", "read"), EVERY)
def test_maps_of_all_calls_are_their_dense_formulas(kind: Any, order: Any, read: Any) -> None:
    network, groups, attend = network_of(kind, order, read)
    weights, _, gradients = run(network, attend)
    seed, half = seed_of(read), lambda _: 0.5
    fused = [A.mean(1) for A in weights]
    assert_is(Rollout()(network, IMAGES), carried(fused, groups, seed, 0.5, half))
    if read == "cls":
        assert_is(Rollout(query="cls")(network, IMAGES), carried(fused, groups, seed, 0.5, half))
    place = torch.eye(TOKENS, dtype=torch.float64)[None, 1 + 3 * 6 + 2]
    found = Rollout(query=(19, 27))(network, IMAGES)
    assert_is(found, carried(fused, groups, place, 0.5, half))
    importance = [
        (A * dA).sum((2, 3)).clamp(min=0) for A, dA in zip(weights, gradients, strict=True)
    ]
    heads = [
        torch.where(one.sum(1, True) > 0, one / one.sum(1, True).clamp(min=1e-30), 1 / 3)
        for one in importance
    ]
    fused = [
        torch.einsum("bhij,bh->bij", A, share) for A, share in zip(weights, heads, strict=True)
    ]
    assert_is(WeightedRollout()(network, IMAGES, 1), carried(fused, groups, seed, 0.5, half))
    fused = [(A * dA).mean(1).clamp(min=0) for A, dA in zip(weights, gradients, strict=True)]
    total = [one.sum(-1, keepdim=True) for one in fused]
    eye = torch.eye(TOKENS, dtype=torch.float64)
    fused = [torch.where(t > 0, one / t, eye) for one, t in zip(fused, total, strict=True)]
    assert_is(GradientRollout()(network, IMAGES, 1), carried(fused, groups, seed, 0.5, half))
    # R + (mean of C_1, C_2, ...) R, less the identity: as if all heads were one call's
    fused = [(A * dA).clamp(min=0).mean(1) for A, dA in zip(weights, gradients, strict=True)]
    row = carried(fused, groups, seed, 1, lambda _: 1) - seed
    assert_is(Relevance()(network, IMAGES, 1), row)


def legrad(
    network: Any, groups_of_blocks: list[list[Any]], attend: Kept, read: str
) -> torch.Tensor:
    """mean over blocks, their calls and heads, and queries, of (d s_l / d A)+."""
    with torch.no_grad():
        x = network.cut(IMAGES).flatten(2).mT
        x = torch.cat([network.first.expand(len(x), -1, -1), x], 1)
    maps = []
    for block in network.blocks:
        attend.weights, attend.scores = [], []
        x = block(x.detach().requires_grad_())
        score = network.head(READS[read](x))[:, 1].sum()
        gradients = torch.autograd.grad(score, attend.weights)
        maps.append(torch.stack([dA.clamp(min=0).mean((1, 2)) for dA in gradients]).mean(0))
    return torch.stack(maps).mean(0)


@pytest.mark.parametrize(("order", "read"), [("it it", "cls"), ("it", "mean")])
@pytest.mark.parametrize("kind", [kind for kind, (_, _, beside, _) in KINDS.items() if beside])
def test_legrad_takes_the_calls_of_a_block_together(kind: Any, read: str, order: str) -> None:
    network, groups, attend = network_of(kind, order, read)
    true = legrad(network, groups, attend, read)
    assert_is(LeGrad()(network, IMAGES, 1), true)


@pytest.mark.parametrize(
    ("kind", "order"), [("in a row", "it it"), ("one module twice", "it"), ("three", "plain it")]
)
def test_legrad_refuses_blocks_with_other_calls_than_as_many_side_by_side(
    kind: str, order: str
) -> None:
    network, _, _ = network_of(kind, order, "cls")
    with pytest.raises(ValueError, match=r"blocks? makes? \d attention calls; expected one"):
        LeGrad()(network, IMAGES, 1)
    assert "attention calls; expected one" in str(LeGrad().refusal(network))


def test_timms_parallel_blocks() -> None:
    torch.manual_seed(3)
    network = timm.create_model(
        "vit_small_patch16_18x2_224", img_size=(32, 48), patch_size=8, depth=2, num_classes=5,
        embed_dim=24, num_heads=3,
    ).double().eval()  # fmt: skip
    for name, weight in network.named_parameters():
        if "qkv.weight" in name:
            weight.data *= 20
        elif ".ls" in name:
            weight.data.fill_(0.5)
    weights = []
    for module in network.modules():
        if hasattr(module, "fused_attn"):
            setattr(module, "fused_attn", False)  # noqa: B010
            module.attn_drop.register_forward_pre_hook(
                lambda _, args: weights.append(args[0].detach())
            )
    with torch.no_grad():
        network(IMAGES)
    assert len(weights) == 4
    kept = list(weights)
    for call, A in enumerate(kept):
        A = A.mean(1)
        assert_is(RawAttention(layer=call)(network, IMAGES), A[:, 0])
        assert_is(QueryKey(layer=call)(network, IMAGES), A[:, 0])
    r = torch.eye(TOKENS, dtype=torch.float64)[:1]
    eye = torch.eye(TOKENS, dtype=torch.float64)
    for one, other in ((2, 3), (0, 1)):
        r = r @ (eye + (kept[one] + kept[other]).mean(1) / 2) / 2
    assert_is(Rollout()(network, IMAGES), r[:, 0])
    assert "the logits read: the class token" in str(probe(network, SIZE))
    assert LeGrad()(network, IMAGES, 1).values.shape == (2, *GRID)


class WindowBeside(nn.Module):
    """A call among all tokens, and beside it one in two windows of rows."""

    def __init__(self, attend: Kept) -> None:
        super().__init__()
        self.whole, self.inside = Branch(attend), Branch(attend)

    def forward(self, x: Any) -> Any:
        b = len(x)
        windows = x.unflatten(1, (2, 12)).flatten(0, 1)
        return x + self.whole(x) + self.inside(windows).view(b, 24, -1)


def test_a_window_beside_a_call_among_all_tokens() -> None:
    torch.manual_seed(3)
    attend = Kept()
    network = Own([WindowBeside(attend), WindowBeside(attend)]).double().eval()
    with torch.no_grad():
        network(IMAGES)
    weights = [A.mean(1).detach() for A in attend.weights]
    token = 3 * 6 + 2  # in the second window
    for call in (0, 2):
        found = QueryKey(layer=call, query=(19, 27))(network, IMAGES).values
        torch.testing.assert_close(found, weights[call][:, token].unflatten(1, GRID).float())
    for call in (1, 3):
        row = torch.zeros(2, 24, dtype=torch.float64)
        row[:, 12:] = weights[call].unflatten(0, (2, 2))[:, 1, token - 12]
        found = QueryKey(layer=call, query=(19, 27))(network, IMAGES).values
        torch.testing.assert_close(found, row.unflatten(1, GRID).float())
        with pytest.raises(ValueError, match=r"meets only some of the tokens \(a window, say\)"):
            QueryKey(layer=call, query=(19, 27), kind="scores")(network, IMAGES)


class OfAllHeads(nn.Module):
    """Attention whose heads are those of two branches with the same norm."""

    def __init__(self, one: Any, other: Any) -> None:
        super().__init__()
        self.one, self.other, self.qkv = one, other, one.qkv

    def forward(self, x: Any) -> Any:
        pair = (self.one, self.other)
        parts = [
            b.qkv(b.norm(x)).unflatten(-1, (3, b.heads, -1)).permute(2, 0, 3, 1, 4) for b in pair
        ]
        context = self.one.attend(*torch.cat(parts, 2))  # all heads at once
        of_each = context.transpose(1, 2).unflatten(2, (2, -1)).flatten(3).unbind(2)
        return sum(b.out(own) for b, own in zip(pair, of_each, strict=True))


class OneCall(nn.Module):
    def __init__(self, block: Any) -> None:
        super().__init__()
        self.attention = OfAllHeads(*block.branches)

    def forward(self, x: Any) -> Any:
        return x + self.attention(x)


def test_calls_side_by_side_count_as_one_with_all_heads() -> None:
    apart, _, _ = network_of("side by side", "it it", "cls")
    torch.manual_seed(3)
    together, _, _ = network_of("side by side", "it it", "cls")
    together.blocks = nn.Sequential(*(OneCall(block) for block in together.blocks))
    torch.testing.assert_close(apart(IMAGES), together(IMAGES))
    for method in (Rollout(), Relevance(), LeGrad(), Rollout(query=(19, 27))):
        one, other = (method(network, IMAGES, 1) for network in (apart, together))
        torch.testing.assert_close(one.values, other.values, msg=str(method))
        torch.testing.assert_close(one.prefix_mass, other.prefix_mass, atol=1e-5, rtol=1e-4)


class Ensemble(nn.Module):
    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> Any:
        return (self.network(images) + self.network(images.flip(-1))) / 2


def test_a_call_of_one_of_two_runs_side_by_side() -> None:
    network, _, attend = network_of("plain", "it it", "mean")
    both = Ensemble(network)
    with torch.no_grad():
        both(IMAGES)
    weights = [A.mean(1) for A in attend.weights]
    for call, A in enumerate(weights):
        row = A[:, 1 + 3 * 6 + (3 if call > 1 else 2), 1:].unflatten(1, GRID)
        row = row.flip(-1) if call > 1 else row
        found = QueryKey(layer=call, query=(19, 27))(both, IMAGES)
        torch.testing.assert_close(found.values, row.float())
