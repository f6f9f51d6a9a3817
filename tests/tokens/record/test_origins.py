"""Origins: what values are made of, against sets that are followed one by one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.layers.halo_attn import rel_logits_1d
from torch import nn
from torch.nn import functional as F
from torchvision.models import SwinTransformer

from vision_attn.models import ViT
from vision_attn.tokens import AttentionCall, record_attention
from vision_attn.tokens.path.traced import follow
from vision_attn.tokens.trace.labels import tight
from vision_attn.tokens.trace.origins import NOTHING, CallOrigins, Origins


def random_run(seed: int) -> tuple[Origins, dict[Any, set[Any]], list[CallOrigins]]:
    """Origins, what each was made of, and two attention calls whose outputs others are made of."""
    random = torch.Generator().manual_seed(seed)
    calls: list[Any]
    origins, made_of, calls = Origins(), {}, []
    ids = origins.new(7)
    for at in range(6):
        if at in (2, 4):
            queries, keys = ids[torch.randint(len(ids), (2, 3), generator=random)].unbind()
            outputs = origins.outputs(queries[None], len(calls), keys[None])
            calls.append(CallOrigins(queries[None], keys[None], outputs))
            ids = torch.cat([ids, outputs[0]])
        rows = ids[torch.randint(len(ids), (5, 3), generator=random)]
        rows[torch.rand(5, 3, generator=random) < 0.2] = NOTHING
        before, found = origins.count, origins.merge(rows)
        for one, row in zip(found.tolist(), rows.tolist(), strict=True):
            if one >= before:
                made_of[one] = {*row} - {NOTHING}
        ids = torch.cat([ids, found[found != NOTHING]])
    return origins, made_of, calls


def followed(
    ids: list[Any], made_of: dict[Any, Any], ends: frozenset[Any] | set[Any] = frozenset()
) -> set[Any]:
    found, stack = set(), list(ids)
    while stack:
        one = stack.pop()
        if one not in found:
            found.add(one)
            stack += made_of.get(one, ()) if one not in ends else ()
    return found


def listed(found: torch.Tensor) -> set[Any]:
    return set(found.nonzero()[:, 0].tolist())


def test_what_is_behind_is_what_each_was_made_of_followed_one_by_one() -> None:
    many = 0
    for seed in range(20):
        origins, made_of, calls = random_run(seed)
        for one, of in made_of.items():
            assert origins.members(one) == sorted(of)
            assert listed(origins.behind([one])) == followed([one], made_of)
        last = sorted(made_of)[-2:]
        through = dict(made_of)
        for call in calls:
            of = {*call.queries.flatten().tolist(), *call.keys.flatten().tolist()}
            through |= dict.fromkeys(call.outputs.flatten().tolist(), of - {NOTHING})
        everything = followed(last, through)
        assert listed(origins.behind(last, calls)) == everything
        many += everything > followed(last, made_of)
        ends = set(sorted(made_of)[2:8:2])
        stops = torch.zeros(origins.count, dtype=torch.bool)
        stops[list(ends)] = True
        assert listed(origins.behind(last, ends=stops)) == followed(last, made_of, ends)
    assert many > 5  # where a call made a difference


def test_nothing_is_behind_nothing() -> None:
    origins = Origins()
    origins.new(3)
    assert not origins.behind([]).any()


def test_equal_origins_of_an_axis_take_no_memory() -> None:
    ids = torch.arange(6)[:, None, None].expand(6, 50, 7).contiguous()
    found = tight(ids)
    assert torch.equal(found, ids)
    assert found.untyped_storage().nbytes() == 6 * 8


class Masked(nn.Module):
    """Attention twice, with a number added to each score."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Conv2d(3, 5, 8, 8), nn.Linear(5, 3)
        self.bias = nn.Parameter(torch.randn(1, 1, 4, 4))

    def forward(self, images: torch.Tensor) -> Any:
        x = self.embed(images).flatten(2).mT[:, None]
        for _ in range(2):
            x = x + F.scaled_dot_product_attention(x, x, x, attn_mask=self.bias)
        return self.head(x[:, 0].mean(1))


def test_a_followed_run_keeps_no_more_of_its_calls_than_their_shapes() -> None:
    explicit = SwinTransformer((4, 4), 12, (2,), (3,), (2, 2), num_classes=5).eval()
    plain = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=3, heads=3)
    kept = {}
    for network in (explicit, Masked(), plain):
        run = follow(network, torch.rand(1, 3, 16, 16))
        with record_attention(network) as record, torch.no_grad():
            network(torch.rand(2, 3, 16, 16))
        assert [call.shape for call in run.calls] == [call.shape for call in record.calls]
        for followed, recorded in zip(run.calls[:-1], record.calls, strict=False):
            kept[type(recorded).__name__, *large(recorded)] = large(followed)
    assert kept == {
        ("ExplicitWeights", "all_weights"): [],
        ("LazyWeights", "mask"): [],
        ("LazyWeights", "lse"): [],
    }


def large(call: AttentionCall) -> list[Any]:
    """What a call holds of each of its queries, and is no query."""
    names = [
        name for name in ("all_weights", "mask", "lse") if getattr(call, name, None) is not None
    ]
    return [name for name in names if getattr(call, name).untyped_storage().nbytes() > 8]


class Scored(nn.Module):
    """Attention twice; what is added to each score depends on its query: relative positions."""

    def __init__(self, relate: Callable[..., Any], side: int) -> None:
        super().__init__()
        self.relate = relate
        self.embed, self.head = nn.Conv2d(3, 5, 8, 8), nn.Linear(5, 3)
        self.before = nn.Parameter(torch.randn(1, 1, 5))
        self.project = nn.ModuleList(nn.Linear(5, 15) for _ in range(2))
        self.relative = nn.Parameter(torch.randn(5, 2 * side - 1))

    def forward(self, images: torch.Tensor) -> Any:
        patches = self.embed(images).flatten(2).mT
        x = torch.cat([self.before.expand(len(patches), -1, -1), patches], 1)
        for project in self.project:
            q, k, v = project(x).chunk(3, -1)
            x = x + self.relate(q @ k.mT, q, self.relative).softmax(-1) @ v
        return self.head(x.mean(1))


def alone(scores: Any, q: Any, relative: Any) -> Any:
    return scores


def written(scores: Any, q: Any, relative: Any) -> Any:
    scores[:, 1:, 1:] = scores[:, 1:, 1:] + q[:, 1:] @ relative[:, :6]
    return scores


def by_rows_and_columns(scores: Any, q: Any, relative: Any) -> Any:
    """A query's score for a row and one for a column, cut from those for every distance."""
    patches = q[:, 1:].unflatten(1, (3, 3))
    columns = rel_logits_1d(patches, relative.mT, [0, 1, 3, 2, 4])
    rows = rel_logits_1d(patches.transpose(1, 2), relative.mT, [0, 3, 1, 4, 2])
    return scores + F.pad((rows + columns).flatten(1, 2).flatten(2), (1, 0, 1, 0))


@pytest.mark.parametrize(
    ("relate", "size", "side"),
    [(written, (16, 24), 6), (by_rows_and_columns, (24, 24), 3)],
    ids=["in place", "by rows and columns"],
)
def test_relative_positions_make_no_origin_for_each_score(
    relate: Callable[..., Any], size: tuple[int, int], side: int
) -> None:
    counts = []
    for way in (alone, relate):
        torch.manual_seed(0)
        run = follow(Scored(way, side), torch.rand(1, 3, *size))
        counts.append(run.origins.count)
        assert [call.keys for call in run.calls] == [size[0] * size[1] // 64 + 1] * 2
    assert counts[0] == counts[1]
