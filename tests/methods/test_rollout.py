"""Rollout and its kin: the mistakes that public code makes, seeds, batches, threads, precision."""

import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import timm
import torch
from torch import nn
from torch.nn import functional as F

from vision_attn.attention import MultiHeadAttention, Sigmoid
from vision_attn.methods import (
    AttentionGradCAM,
    GradientRollout,
    LeGrad,
    QueryKey,
    RawAttention,
    Relevance,
    Rollout,
    WeightedRollout,
    parse_method,
)
from vision_attn.methods.attention_explainer import AttentionExplainer, ChainExplainer
from vision_attn.models import ViT
from vision_attn.tokens import AttentionCall, record_attention
from vision_attn.tokens.carry import tiles as tiling
from vision_attn.tokens.carry import transpose as transposing
from vision_attn.types import Heatmaps, TokenLayout

SIZE = (32, 48)
ALL = [
    Rollout(),
    Rollout(fusion="max", discard=0.8),
    WeightedRollout(),
    GradientRollout(),
    Relevance(),
    AttentionGradCAM(),
    LeGrad(),
    QueryKey(),
    RawAttention(),
]


def network(depth: int = 3, **options: Any) -> ViT:
    """A small ViT of ours in float64, with attention that chooses."""
    torch.manual_seed(5)
    made = ViT(SIZE, 8, 4, 24, depth, 3, **options).double().eval()
    for name, weight in made.named_parameters():
        if "qkv.weight" in name:
            weight.data.normal_(std=0.45)
        elif name == "head.weight":
            weight.data.normal_(std=0.5)
        elif name in ("cls_token", "reg_token"):
            weight.data.normal_()
    return made


def pictures(count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, *SIZE, dtype=torch.float64)


def maps_and_gradients(
    network: ViT, images: torch.Tensor, target: int
) -> tuple[list[Any], tuple[torch.Tensor, ...]]:
    """Every layer's weights and the gradient of the logit by them, by autograd through the maps."""
    maps, plain = [], F.scaled_dot_product_attention

    class Spelled(nn.Module):
        def forward(self, q: Any, k: Any, v: Any, mask: Any = None, layout: Any = None) -> Any:
            maps.append((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1))
            return maps[-1] @ v

    kept = [block.attn.attend for block in network.blocks]
    for block in network.blocks:
        block.attn.attend = Spelled()
    score = network(images)[:, target].sum()
    for block, attend in zip(network.blocks, kept, strict=True):
        block.attn.attend = attend
    assert F.scaled_dot_product_attention is plain
    gradients = torch.autograd.grad(score, maps, allow_unused=True)
    return [A.detach() for A in maps], gradients


# ---- each mistake that was found in public code ----


def dense(
    fused: list[torch.Tensor],
    seed: torch.Tensor,
    prefix: int,
    discard: float = 0.0,
    mistake: str | None = None,
) -> Any:
    """Rollout by whole matrices of fused maps (layer b n n), with one mistake in it or none."""
    images, n = fused[0].shape[:2]
    joint = torch.eye(n, dtype=fused[0].dtype).repeat(images, 1, 1)
    for F_l in fused if mistake != "layers reversed" else fused[::-1]:
        if discard:
            low = F_l.flatten(1).quantile(discard, dim=1)[:, None, None]
            gone = F_l < low
            gone[..., :prefix] = False
            if mistake == "discard in image 0 only":
                gone[1:] = False
            F_l = F_l.masked_fill(gone, 0)
        if mistake == "columns normalised":
            F_l = F_l / F_l.sum(-2, keepdim=True)
        F_l = F_l / F_l.sum(-1, keepdim=True)
        joint = (0.5 * torch.eye(n, dtype=F_l.dtype) + 0.5 * F_l) @ joint
    row = (seed @ joint)[:, 0, prefix:].unflatten(1, (4, 6))
    if mistake == "scaled to its maximum":
        row = row / row.amax((1, 2), keepdim=True)
    if mistake == "stretched to 0..1":
        low, high = row.amin((1, 2), keepdim=True), row.amax((1, 2), keepdim=True)
        row = (row - low) / (high - low)
    return row


def first(n: int) -> torch.Tensor:
    return F.one_hot(torch.tensor([0]), n).double()


@pytest.mark.parametrize(
    "mistake",
    [
        "columns normalised",
        "layers reversed",
        "discard in image 0 only",
        "scaled to its maximum",
        "stretched to 0..1",
    ],
)
def test_rollout_is_right_where_others_are_not(mistake: str) -> None:
    net, images = network(), pictures()
    fused = [A.amax(1) for A in maps_and_gradients(net, images, 0)[0]]
    found = Rollout(fusion="max", discard=0.6)(net, images).values.double()
    torch.testing.assert_close(found, dense(fused, first(25), 1, 0.6), rtol=0, atol=1e-7)
    wrong = dense(fused, first(25), 1, 0.6, mistake)
    assert (found - wrong).abs().max() > 0.01 * found.max()


def test_gradients_meet_their_own_layers() -> None:
    net, images = network(), pictures()
    maps, gradients = maps_and_gradients(net, images, 1)

    def with_gradients(gradients: tuple[torch.Tensor, ...]) -> list[Any]:
        fused = [(A * dA).mean(1).clamp(min=0) for A, dA in zip(maps, gradients, strict=True)]
        empty = [f.sum(-1, keepdim=True) == 0 for f in fused]
        return [
            torch.where(e, torch.eye(25).double(), f) for f, e in zip(fused, empty, strict=True)
        ]

    found = GradientRollout()(net, images, 1).values.double()
    right = dense(with_gradients(gradients), first(25), 1)
    torch.testing.assert_close(found, right, rtol=0, atol=1e-7)
    wrong = dense(with_gradients(gradients[::-1]), first(25), 1)
    assert (found - wrong).abs().max() > 0.01 * found.max()


@pytest.mark.parametrize("registers", [0, 3])
def test_any_number_of_prefix_tokens_and_a_grid_that_is_not_square(registers: int) -> None:
    net, images = network(registers=registers), pictures()
    fused = [A.mean(1) for A in maps_and_gradients(net, images, 0)[0]]
    found = Rollout()(net, images)
    right = dense(fused, first(25 + registers), 1 + registers)
    torch.testing.assert_close(found.values.double(), right, rtol=0, atol=1e-7)
    beside = 1 - right.sum((1, 2))
    assert found.prefix_mass is not None
    torch.testing.assert_close(found.prefix_mass.double(), beside, rtol=0, atol=1e-6)
    assert (beside > 0.02).all()


def test_mean_pooling_starts_at_all_patches_not_at_row_0() -> None:
    net, images = network(pool="mean"), pictures()
    fused = [A.mean(1) for A in maps_and_gradients(net, images, 0)[0]]
    everywhere = torch.ones(1, 25).double() / 24
    everywhere[:, 0] = 0
    found = Rollout()(net, images).values.double()
    torch.testing.assert_close(found, dense(fused, everywhere, 1), rtol=0, atol=1e-7)
    assert (found - dense(fused, first(25), 1)).abs().max() > 0.01 * found.max()


def test_a_fused_kernel_gives_no_empty_map() -> None:
    layer = nn.TransformerEncoderLayer(24, 2, 48, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    net = nn.Sequential(nn.Conv2d(3, 24, 8, 8), nn.Flatten(2), Turned(), encoder, Mean())
    layout = TokenLayout(0, (4, 6), "mean")
    found = Rollout()(net, torch.randn(2, 3, *SIZE), layout=layout)
    assert (found.values > 0).all()
    torch.testing.assert_close(found.values.sum((1, 2)), torch.ones(2))


class Turned(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.mT


class Mean(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.mean(1)


def test_channel_attention_is_refused() -> None:
    net = timm.create_model("xcit_nano_12_p16_224", depth=1)
    assert Rollout().refusal(net) == (
        "the keys of attention call 0 (blocks.0.attn) are not one token each (32 of them, made of "
        "1): linear attention, or attention over channels"
    )
    with pytest.raises(ValueError, match="Rollout does not fit Xcit: the keys of attention call 0"):
        Rollout()(net, torch.randn(1, 3, 224, 224))


# ---- one by one or together, twice, after errors, in threads ----


@pytest.mark.parametrize("method", ALL, ids=str)
def test_together_as_one_by_one_and_twice_as_once(method: AttentionExplainer) -> None:
    net, images = network(registers=1), pictures(3)
    together = method(net, images, [0, 3, 1])
    for index, target in enumerate((0, 3, 1)):
        alone = method(net, images[index : index + 1], target)
        torch.testing.assert_close(alone.values[0], together.values[index], rtol=1e-5, atol=1e-9)
        for name in ("prefix_mass", "outlier_mass"):
            one, all_ = getattr(alone, name), getattr(together, name)
            assert (one is None) == (all_ is None)
            if one is not None:
                torch.testing.assert_close(one[0], all_[index], rtol=0, atol=1e-6)
    assert torch.equal(method(net, images, [0, 3, 1]).values, together.values)


@pytest.mark.parametrize("method", ALL, ids=str)
def test_an_error_on_the_way_changes_nothing(method: AttentionExplainer) -> None:
    net: Any = network()
    images = pictures()
    before = method(net, images, 0)
    net.train()
    net.norm.weight.requires_grad_(False)
    good, net.head.forward = net.head.forward, lambda x: 1 / 0
    with pytest.raises(ZeroDivisionError):
        method(net, images, 0)
    net.head.forward = good
    assert net.training
    assert [w.requires_grad for w in net.parameters()].count(False) == 1
    assert all(w.grad is None for w in net.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
    assert torch.equal(method(net, images, 0).values, before.values)


def test_two_threads_on_two_networks() -> None:
    nets, images = [network(depth) for depth in (2, 4)], pictures()
    alone = [[method(net, images, 0).values for method in ALL] for net in nets]
    found: list[list[torch.Tensor]] = [[], []]

    def work(index: Any) -> None:
        for method in ALL:
            found[index].append(method(nets[index], images, 0).values)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for index in range(2):
        for one, other in zip(found[index], alone[index], strict=True):
            assert torch.equal(one, other)


# ---- seeds ----


CHAINED = [Rollout(), Rollout(fusion="min"), WeightedRollout(), GradientRollout(), Relevance()]


@pytest.mark.parametrize("method", CHAINED, ids=str)
def test_rows_of_any_tokens_in_one_sweep(method: ChainExplainer) -> None:
    net, images = network(), pictures()
    every = method.rows(net, images, target=2)
    assert every.shape == (2, 25, 25)
    some = method.rows(net, images, [7, 0], target=2)
    torch.testing.assert_close(some, every[:, [7, 0]])
    own = method(net, images, 2).values
    torch.testing.assert_close(every[:, 0, 1:].float(), own.flatten(1))
    if method.total is not None:
        torch.testing.assert_close(every.sum(-1), torch.ones(2, 25).double())


def test_a_query_is_the_class_token_or_a_place() -> None:
    net, images = network(), pictures()
    every = Rollout().rows(net, images)[..., 1:].unflatten(-1, (4, 6)).float()
    query: Any
    for query, token in (
        ("cls", 0),
        ((0, 0), 1),
        ((47, 31), 24),
        ((1.0, 1.0), 24),
        ((0.0, 0.25), 7),
        ((20, 8), 1 + 6 + 2),
        ((0.99, 0.0), 6),
    ):
        found = Rollout(query=query)(net, images).values
        torch.testing.assert_close(found, every[:, token])


def test_64_rows_are_the_rows_one_by_one() -> None:
    net, images = network(), pictures(1)
    tokens = torch.randint(0, 25, (64,))
    many = Rollout().rows(net, images, tokens)
    for index in (0, 31, 63):
        one = Rollout().rows(net, images, tokens[index : index + 1])
        torch.testing.assert_close(many[:, index], one[:, 0])


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("Rollout(residual=1.0)", "residual must be at least 0 and below 1, got 1.0"),
        ("Rollout(discard=-0.1)", "discard must be at least 0 and below 1, got -0.1"),
        ("Rollout(start_layer=-1)", "start_layer must be at least 0, got -1"),
        ("Rollout(fusion=sum)", "option fusion: expected 'mean', 'max' or 'min', got 'sum'"),
        ("Rollout(query=dog)", "option query: expected"),
        ("QueryKey(kind=logits)", "option kind: expected 'weights' or 'scores', got 'logits'"),
    ],
)
def test_options_are_checked(method: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_method(method)


def test_methods_are_written_as_they_are_read() -> None:
    for text in ("Rollout(fusion='max', discard=0.9)", "QueryKey(query=(3, 5), head=1)"):
        assert str(parse_method(text)) == text
    assert parse_method("Rollout(query=(0.5, 1))") == Rollout(query=(0.5, 1.0))


@pytest.mark.parametrize(
    ("explain", "message"),
    [
        (lambda net, x: Rollout(start_layer=3)(net, x), "start_layer must be below 3"),
        (lambda net, x: Rollout(query=(48, 0))(net, x), "is outside the image of 48x32"),
        (lambda net, x: Rollout(query=(0.5, 1.5))(net, x), "is outside the image: 0.0 to 1.0"),
        (lambda net, x: Rollout().rows(net, x, [25]), "indices from 0 to 24"),
        (lambda net, x: WeightedRollout()(net, x, 4), "target class 4 is out of range"),
        (lambda net, x: RawAttention(layer=3)(net, x), "layer must be from -3 to 2"),
        (lambda net, x: RawAttention(head=3)(net, x), "head must be from 0 to 2"),
        (lambda net, x: LeGrad(start_layer=3)(net, x), "start_layer must be from 0 to 2"),
        (
            lambda net, x: Rollout()(net, x, layout=TokenLayout(0, (4, 6), "mean")),
            r"attention call 0 \(blocks.0.attn.attend\) is 25 x 25, but the layout has 24 tokens",
        ),
        (lambda net, x: Rollout()(nn.Flatten(), x), "no attention was found"),
    ],
)
def test_what_does_not_fit_is_an_error(
    explain: Callable[..., Heatmaps | torch.Tensor], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        explain(network(), pictures())


def test_weights_that_are_not_numbers_are_an_error() -> None:
    net = network()
    net.blocks[1].attn.qkv.weight.data[0, 0] = torch.nan
    for method in ALL:
        with pytest.raises(ValueError, match=r"blocks\.1\.attn\.qkv\.weight"):
            method(net, pictures(), 0)


def test_a_network_made_in_inference_mode_gives_no_gradients() -> None:
    with torch.inference_mode():
        net = network()
        Rollout()(net, pictures())
    with pytest.raises(ValueError, match="inference_mode"):
        Relevance()(net, pictures(), 0)


# ---- exactness ----


def test_tiles_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    net, images = network(depth=2), pictures(3)
    methods = [*ALL, Rollout(fusion="min", discard=0.3), GradientRollout(discard=0.5)]
    whole = [method(net, images, 0).values for method in methods]
    for limit, wide in ((200, 7), (1500, 20)):
        monkeypatch.setattr(tiling, "CPU_TILE", limit)
        monkeypatch.setattr(transposing, "WIDE", wide)
        monkeypatch.setattr(transposing, "ALIGNED", 1)
        for method, true in zip(methods, whole, strict=True):
            torch.testing.assert_close(method(net, images, 0).values, true, rtol=1e-5, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_with_tiles_of_their_own_give_the_same(
    threads: int, torch_threads: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, images = network(depth=2, registers=1), pictures(5)
    methods = [*ALL, Rollout(fusion="min", discard=0.3), Rollout(query=(40, 3))]
    torch_threads(1)
    whole = [method(net, images, 0).values for method in methods]
    torch_threads(threads)
    monkeypatch.setattr(tiling, "SHARE", 30)
    for limit in (150, 3000):  # a part of a head, and a few images
        monkeypatch.setattr(tiling, "CPU_TILE", limit)
        for method, true in zip(methods, whole, strict=True):
            found = method(net, images, 0).values
            torch.testing.assert_close(found, true, rtol=1e-6, atol=1e-9)
            assert torch.equal(method(net, images, 0).values, found)
    later = []
    new = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    new.start()
    new.join()
    assert later == [threads]


def recorded_weights(weights: torch.Tensor) -> AttentionCall:
    class Softmax(nn.Module):
        def forward(self, scores: Any) -> Any:
            return scores.softmax(-1) @ torch.zeros(*scores.shape[:2], scores.shape[3], 1).to(
                scores
            )

    with record_attention(Softmax()) as record:
        Softmax()(weights.log())
    call: Any
    (call,) = record.calls
    call.all_weights.copy_(weights)
    return call


def test_float32_is_exact_to_the_fifth_digit_where_attention_is_sharp() -> None:
    net, images = network(), pictures()
    for name, weight in net.named_parameters():
        if "qkv.weight" in name:
            weight.data *= 4
    true = Rollout()(net, images).values
    with torch.no_grad(), record_attention(net) as record:
        net(images)
    assert record.calls[0].weights().amax(-1).median() > 0.99
    single = Rollout()(net.float(), images.float()).values
    torch.testing.assert_close(single, true, rtol=0, atol=1e-4 * true.max().item())


def test_autocast_makes_the_network_coarse_but_not_the_map() -> None:
    net, images = network().float(), pictures().float()
    with torch.autocast("cpu", torch.bfloat16):
        found = Rollout()(net, images)
        with torch.no_grad(), record_attention(net) as record:
            net(images)
    fused = [call.weights().double().mean(1) for call in record.calls]
    true = dense(fused, first(25), 1)
    torch.testing.assert_close(found.values.double(), true, rtol=0, atol=1e-5 * true.max().item())
    with torch.autocast("cpu", torch.bfloat16):
        for method in ALL:
            assert method(net, images, 0).values.isfinite().all()


def test_shares_that_do_not_sum_to_1_are_told() -> None:
    from vision_attn.methods.rollout import check_sums

    record = recorded_weights(torch.full((1, 1, 3, 3), 1 / 3))
    r = torch.tensor([[[0.2, 0.3, 0.5]]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_sums(r, r, record)
    with pytest.warns(RuntimeWarning, match="off by 1.0e-01"):
        check_sums(0.9 * r, r, record)


def test_weights_that_do_not_sum_to_1_are_made_to() -> None:
    attention = partial(MultiHeadAttention, normalizer=Sigmoid)
    net, images = network(attention=attention), pictures()
    with torch.no_grad(), record_attention(net) as record:
        net(images)
    assert not record.calls[0].sums_to_one
    fused = [call.weights().mean(1) for call in record.calls]
    found = Rollout()(net, images)
    torch.testing.assert_close(found.values.double(), dense(fused, first(25), 1), rtol=0, atol=1e-7)
    for method in (WeightedRollout(), GradientRollout()):
        maps = method(net, images, 0)
        assert maps.prefix_mass is not None
        torch.testing.assert_close(maps.values.sum((1, 2)) + maps.prefix_mass, torch.ones(2))


def test_outliers_are_patches_with_a_large_norm() -> None:
    net, images = network(), pictures()
    loud = torch.zeros(25, 24, dtype=torch.float64)
    loud[1 + 9] = 300 * torch.randn(24)
    net.pos_embed.data[0] += loud
    maps = Rollout()(net, images)
    assert maps.outlier_mass is not None
    torch.testing.assert_close(maps.outlier_mass, maps.values.flatten(1)[:, 9], rtol=0, atol=1e-6)
    assert (maps.outlier_mass > 0).all()
