"""The path of the tokens, proven by a run: what is chained, what is read, and what is refused."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vision_attn.methods import GradientRollout, LeGrad, Relevance, Rollout
from vision_attn.models import ViT
from vision_attn.tokens import probe, record_attention
from vision_attn.types import TokenLayout

sys.path.append(str(Path(__file__).parent))
from own_networks import (
    IMAGES,
    SIZE,
    Block,
    Own,
    Parallel,
    fused,
    own,
    rolled,
    softmaxed,
)

READ = {
    "first": (lambda x: x[:, 0], 2, 0, [0], "cls"),
    "mean of the patches": (lambda x: x[:, 1:].mean(1), 1, 0, range(1, 25), "mean"),
    "registers after": (lambda x: x[:, :24].mean(1), 0, 3, range(24), "mean"),
    "both ends": (lambda x: x[:, 0], 1, 3, [0], "cls"),
    "all": (lambda x: x.mean(1), 1, 0, range(25), "mean"),
}


@pytest.mark.parametrize(("read", "before", "after", "tokens", "pool"), READ.values(), ids=READ)
def test_what_is_read_and_where_the_patches_lie_come_from_the_run(
    read: Callable[..., Any], before: int, after: int, tokens: list[int] | range, pool: str
) -> None:
    network = own(read=read, before=before, after=after)
    path = probe(network, SIZE)
    beside = list(range(before)) + list(range(before + 24, before + 24 + after))
    assert path.layout is not None
    assert (path.refusal, path.layout.grid, path.layout.beside) == (None, (4, 6), beside)
    assert path.layout.pool == pool
    assert path.patch == (8, 8)
    seed = torch.zeros(24 + before + after, dtype=torch.float64)
    seed[list(tokens)] = 1 / len(tokens)
    shares = rolled(network, seed)
    found = Rollout()(network, IMAGES)
    true = shares[:, before : before + 24].unflatten(1, (4, 6))
    torch.testing.assert_close(found.values, true.float())
    torch.testing.assert_close(found.prefix_mass, 1 - true.sum((1, 2)).float())


def test_registers_can_be_said_in_a_layout() -> None:
    network = own(read=lambda x: x[:, :24].mean(1), after=3)
    layout = TokenLayout(0, (4, 6), "mean", registers=(-3, -2, -1))
    assert layout.registers == (24, 25, 26)
    expected = Rollout()(network, IMAGES)
    assert torch.equal(Rollout()(network, IMAGES, layout=layout).values, expected.values)
    for wrong in ((0,), (5, 5), (99,)):
        with pytest.raises(ValueError, match="registers must be places after the prefix"):
            TokenLayout(1, (2, 3), registers=wrong)


class Twice(nn.Module):
    def __init__(self, network: ViT, flipped: bool = True) -> None:
        super().__init__()
        self.network, self.flipped = network, flipped

    def forward(self, images: torch.Tensor) -> Any:
        other = images.flip(-1) if self.flipped else images
        return (self.network(images) + self.network(other)) / 2


def test_two_runs_of_one_network_are_two_chains() -> None:
    network = ViT(SIZE, 8, 5, 24, 2, 3).double().eval()
    for name, weight in network.named_parameters():
        if "qkv" in name:
            weight.data *= 5
    once, mirrored = (Rollout()(network, x).values for x in (IMAGES, IMAGES.flip(-1)))
    twice = Rollout()(Twice(network, flipped=False), IMAGES)
    torch.testing.assert_close(twice.values, once)
    assert not torch.allclose(once, mirrored)
    flipped = Rollout()(Twice(network), IMAGES)
    torch.testing.assert_close(flipped.values, (once + mirrored.flip(-1)) / 2)


def test_branches_side_by_side_count_alike() -> None:
    network = own(Block, Parallel, Block)
    with torch.no_grad(), record_attention(network, ()) as record:
        network(IMAGES)
    first, one, other, last = (call.weights().mean(1) for call in record.calls)
    r = torch.full((2, 1, 24), 1 / 24, dtype=torch.float64)
    for A in (last, (one + other) / 2, first):
        r = r @ (0.5 * torch.eye(24, dtype=torch.float64) + 0.5 * A)
    found = Rollout()(network, IMAGES).values
    torch.testing.assert_close(found, r[:, 0].unflatten(1, (4, 6)).float())


class Joining(Own):
    """Four tokens are pooled from the patches; then larger patches join them."""

    def __init__(self) -> None:
        super().__init__([Block(fused)])
        self.pooled = nn.Parameter(torch.randn(1, 4, 24))
        self.larger = nn.Conv2d(3, 24, 16, 16)

    def forward(self, images: torch.Tensor) -> Any:
        x = self.cut(images).flatten(2).mT
        x = softmaxed(self.pooled, x) @ x
        larger = self.larger(images).flatten(2).mT
        return self.head(self.blocks(torch.cat([x, larger], 1)).mean(1))


def test_tokens_that_join_after_a_pool_are_refused() -> None:
    network = Joining().double().eval()
    with pytest.raises(ValueError, match="tokens join after others were pooled"):
        Rollout()(network, IMAGES)


def linear(q: Any, k: Any, v: Any) -> Any:
    return q.softmax(-1) @ (k.softmax(-2).mT @ v)


def channels(q: Any, k: Any, v: Any) -> Any:
    return ((q.mT @ k).softmax(-1) @ v.mT).mT


def test_two_softmaxes_in_a_row_are_two_calls() -> None:
    """Efficient attention of one head: its weights from token to token are a product of two."""
    torch.manual_seed(3)
    network = Own([Block(linear, heads=1)]).double().eval()  # 24 tokens, 24 wide
    block, x = network.blocks[0], network.cut(IMAGES).flatten(2).mT
    q, k, _ = block.mix(block.norm(x)).unsqueeze(1).chunk(3, -1)
    A = (q.softmax(-1) @ k.softmax(-2).mT)[:, 0].detach()
    r = torch.full((2, 1, 24), 1 / 24, dtype=torch.float64)
    r = r @ (0.5 * torch.eye(24, dtype=torch.float64) + 0.5 * A)
    found = Rollout()(network, IMAGES).values
    torch.testing.assert_close(found, r[:, 0].unflatten(1, (4, 6)).float())


@pytest.mark.parametrize(
    ("attend", "heads"),
    [(linear, 3), (channels, 1), (channels, 3)],
    ids=["linear", "channels", "channels of 3 heads"],
)
def test_attention_over_channels_is_not_taken_for_tokens(
    attend: Callable[..., Any], heads: int
) -> None:
    network = Own([Block(attend, heads=heads)]).double().eval()  # 24 tokens, 24 or 8 wide
    refusal = probe(network, SIZE).refusal
    assert refusal is not None
    assert "attention over channels" in refusal or "mixtures of the tokens" in refusal
    with pytest.raises(ValueError, match="does not fit Own"):
        Rollout()(network, IMAGES, layout=TokenLayout(0, (4, 6), "mean"))


def test_a_pool_by_a_softmax_over_the_tokens_is_a_call() -> None:
    pool = nn.Linear(24, 1).double()
    pool.weight.data *= 9
    network = own(read=lambda x: (pool(x).softmax(1).mT @ x)[:, 0])
    path = probe(network, SIZE)
    assert [step.shape[2:] for step in path.steps] == [(24, 24), (24, 24), (1, 24)]
    with torch.no_grad():
        seed = pool(network.blocks(network.cut(IMAGES).flatten(2).mT)).softmax(1).mT
        with record_attention(network, ()) as record:
            network(IMAGES)
    for call in reversed(record.calls[:2]):
        seed = seed @ (0.5 * torch.eye(24, dtype=torch.float64) + 0.5 * call.weights().mean(1))
    found = Rollout()(network, IMAGES).values
    torch.testing.assert_close(found, seed[:, 0].unflatten(1, (4, 6)).float())


def test_tokens_of_frequencies_lie_beside_the_image() -> None:
    class Frequencies(Own):
        def forward(self, images: torch.Tensor) -> Any:
            waves = torch.view_as_real(torch.fft.fft2(images)).movedim(-1, 2).flatten(1, 2)
            both = [self.waves(waves).flatten(2).mT, self.cut(images).flatten(2).mT]
            return self.head(self.blocks(torch.cat(both, 1)).mean(1))

    torch.manual_seed(3)
    network = Frequencies([Block(fused), Block(fused)])
    network.waves = nn.Conv2d(6, 24, 16, 16)
    network = network.double().eval()
    path = probe(network, SIZE)
    assert path.layout is not None
    assert (path.layout.grid, path.layout.beside) == ((4, 6), list(range(6)))
    shares = rolled(network, torch.full((30,), 1 / 30, dtype=torch.float64))
    found = Rollout()(network, IMAGES).values
    torch.testing.assert_close(found, shares[:, 6:].unflatten(1, (4, 6)).float())


class InWindows(Block):
    """Attention in windows of 2x3 of 4x6 tokens; axes: those of its queries before the last two."""

    def __init__(self, attend: Callable[..., Any], axes: str) -> None:
        super().__init__(attend)
        self.axes = axes

    def heads_of(self, x: Any) -> Any:
        x = x.unflatten(1, (2, 2, 2, 3)).transpose(2, 3).reshape(len(x), 4, 6, 24)
        return self.mix(self.norm(x)).unflatten(-1, (3, 3, 8)).permute(3, 0, 1, 4, 2, 5)

    def branch(self, x: Any) -> Any:
        q, k, v = self.heads_of(x)  # b window head n d
        if self.axes == "b head window":
            c = self.attend(*(each.transpose(1, 2) for each in (q, k, v))).transpose(1, 2)
        elif self.axes == "b window head":
            c = self.attend(q, k, v)
        else:
            c = self.attend(*(each.flatten(0, 1) for each in (q, k, v))).unflatten(0, (-1, 4))
        c = c.transpose(2, 3).flatten(3).unflatten(2, (2, 3)).unflatten(1, (2, 2))
        return self.out(c.transpose(2, 3).flatten(1, 4))

    def dense(self, x: Any) -> torch.Tensor:
        token = torch.arange(24).unflatten(0, (2, 2, 2, 3)).transpose(1, 2).reshape(4, 6)
        A = torch.zeros(len(x), 24, 24, dtype=x.dtype)
        weights = softmaxed(*self.heads_of(x)[:2]).mean(2)
        for window, places in enumerate(token):
            A[:, places[:, None], places] = weights[:, window]
        return A


@pytest.mark.parametrize("attend", [fused, lambda q, k, v: softmaxed(q, k) @ v])
@pytest.mark.parametrize("axes", ["b head window", "b window head", "b*window head"])
def test_windows_and_heads_over_tensors_of_five_axes(attend: Callable[..., Any], axes: str) -> None:
    torch.manual_seed(3)
    network = Own([InWindows(attend, axes), Block(attend)]).double().eval()
    with torch.no_grad():
        x = network.cut(IMAGES).flatten(2).mT
        first, x = network.blocks[0].dense(x), network.blocks[0](x)
        q, k, _ = (
            network.blocks[1]
            .mix(network.blocks[1].norm(x))
            .unflatten(-1, (3, 3, 8))
            .permute(2, 0, 3, 1, 4)
        )
    r = torch.full((2, 1, 24), 1 / 24, dtype=torch.float64)
    for A in (softmaxed(q, k).mean(1), first):
        r = r @ (0.5 * torch.eye(24, dtype=torch.float64) + 0.5 * A)
    found = Rollout()(network, IMAGES).values
    torch.testing.assert_close(found, r[:, 0].unflatten(1, (4, 6)).float())
    usual = Own([InWindows(attend, "b*window head"), Block(attend)]).double().eval()
    usual.load_state_dict(network.state_dict())
    for method in (GradientRollout(), Relevance()):
        expected = method(usual, IMAGES, 1).values
        torch.testing.assert_close(method(network, IMAGES, 1).values, expected)


def test_a_layout_that_says_attention_where_nothing_pools() -> None:
    with pytest.raises(ValueError, match="the queries of every attention call are tokens"):
        Rollout()(own(), IMAGES, layout=TokenLayout(0, (4, 6), "attention"))


def test_heads_that_were_folded_into_the_batch() -> None:
    def folded(q: Any, k: Any, v: Any) -> Any:
        context = F.scaled_dot_product_attention(*(x.flatten(0, 1) for x in (q, k, v)))
        return context.unflatten(0, q.shape[:2])

    torch.manual_seed(3)
    network = Own([Block(folded), Block(folded)]).double().eval()
    plain = own()
    plain.load_state_dict(network.state_dict())
    for method in (Rollout(), GradientRollout(), Relevance()):
        found, true = (method(each, IMAGES, 1).values for each in (network, plain))
        torch.testing.assert_close(found, true)


@pytest.mark.parametrize(
    "product",
    [lambda A, v: torch.matmul(input=A, other=v), lambda A, v: A @ v[:, :1]],
    ids=["by name", "one head's values"],
)
def test_products_of_weights_and_values_in_every_form(product: Callable[..., Any]) -> None:
    torch.manual_seed(3)
    network = Own([Block(lambda q, k, v: product(softmaxed(q, k), v))]).double().eval()
    for method in (Rollout(), GradientRollout(), Relevance()):
        assert method(network, IMAGES, 1).values.max() > 0


def test_a_pooling_head_that_the_logits_do_not_use_is_left_out() -> None:
    import transformers

    config = transformers.SiglipVisionConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48,
        patch_size=8, image_size=32,
    )  # fmt: skip
    config_of: Any = transformers.SiglipConfig
    network = transformers.SiglipForImageClassification(
        config_of(vision_config=config.to_dict(), num_labels=5)
    )
    network = network.double().eval()
    for name, weight in network.named_parameters():
        if "q_proj" in name or "k_proj" in name:
            weight.data.normal_(std=0.5)
    images = IMAGES[..., :32]
    path = probe(network, (32, 32))
    assert [step.used for step in path.steps] == [True, True, False][: len(path.steps)]
    with torch.no_grad(), record_attention(network, ()) as record:
        network(images)
    r = torch.full((2, 1, 16), 1 / 16, dtype=torch.float64)
    for call in reversed(record.calls[:2]):
        r = r @ (0.5 * torch.eye(16, dtype=torch.float64) + 0.5 * call.weights().mean(1))
    found = Rollout()(network, images).values
    torch.testing.assert_close(found, r[:, 0].unflatten(1, (4, 4)).float())
    assert Relevance()(network, images, 1).values.max() > 0


def test_a_path_is_remembered_until_the_network_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    from vision_attn.tokens.path import path as module

    runs, run_path = [], module.run_path
    monkeypatch.setattr(module, "run_path", lambda *args: (runs.append(1), run_path(*args))[1])
    network = own()
    for _ in range(3):
        Rollout()(network, IMAGES)
    assert len(runs) == 1
    network.classes = 7
    Rollout()(network, IMAGES)
    assert len(runs) == 2


class MoreForBright(nn.Module):
    """A network that attends once more, outside of its modules, where the image is bright."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 12, 7, 7)
        self.layer = nn.TransformerEncoderLayer(12, 3, 24, batch_first=True)
        self.head = nn.Linear(12, 5)

    def forward(self, images: torch.Tensor) -> Any:
        x = self.layer(self.embed(images).flatten(2).mT)
        if images.mean() > 0.5:
            x = x + F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0]
        return self.head(x.mean(1))


@pytest.mark.parametrize(("first", "second", "calls"), [(0.2, 0.8, (2, 1)), (0.8, 0.2, (1, 2))])
def test_a_path_that_changes_with_the_image_is_refused_and_not_believed(
    first: float, second: float, calls: tuple[int, int]
) -> None:
    network = MoreForBright().eval()
    Rollout()(network, torch.full((1, 3, 28, 35), first))
    line = f"made {calls[0]} attention calls, and {calls[1]} for another image of this size"
    with pytest.raises(ValueError, match=line):
        Rollout()(network, torch.full((1, 3, 28, 35), second))


def test_legrad_says_why_where_its_list_holds_the_bare_attention() -> None:
    class Bare(Own):
        def forward(self, images: torch.Tensor) -> Any:
            x = self.cut(images).flatten(2).mT
            for attention in self.blocks:
                x = x + attention(x)
            return self.head(x.mean(1))

    class QKV(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(24, 72)

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(x).unsqueeze(1).chunk(3, -1)
            return fused(q, k, v).squeeze(1)

    network = Bare([QKV(), QKV()]).double().eval()
    with pytest.raises(ValueError, match="its list holds QKV, attention layers alone"):
        LeGrad()(network, IMAGES, 1)


def test_the_table() -> None:
    printed = str(probe(own(read=lambda x: x[:, 0], before=1), SIZE))
    assert printed.splitlines()[0] == "25 tokens: 1 beside the image, 4x6 patches of 8x8 pixels"
    assert printed.splitlines()[-1] == "the logits read: the class token"


def heads_third(q: Any, k: Any, v: Any) -> torch.Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = (torch.einsum("bqhd,bkhd->bqhk", q, k) / q.shape[-1] ** 0.5).softmax(-1)
    return torch.einsum("bqhk,bkhd->bqhd", weights, v).transpose(1, 2)


def exp_and_sum(q: Any, k: Any, v: Any) -> Any:
    powers = (q @ k.mT / q.shape[-1] ** 0.5).exp()
    return (powers / powers.sum(-1, keepdim=True)) @ v


def head_by_head(q: Any, k: Any, v: Any) -> torch.Tensor:
    one = [softmaxed(q[:, head], k[:, head]) @ v[:, head] for head in range(q.shape[1])]
    return torch.stack(one, 1)


def in_chunks(q: Any, k: Any, v: Any) -> torch.Tensor:
    return torch.cat([fused(chunk, k, v) for chunk in q.split(7, 2)], 2)


@pytest.mark.parametrize("attend", [heads_third, exp_and_sum, head_by_head, in_chunks])
def test_however_attention_is_written_its_rollout_is_that_of_its_weights(
    attend: Callable[..., Any],
) -> None:
    torch.manual_seed(5)
    network = Own([Block(attend), Block(attend)]).double().eval()
    with torch.no_grad():
        x, r = network.cut(IMAGES).flatten(2).mT, torch.full((2, 1, 24), 1 / 24).double()
        weights = []
        for block in network.blocks:
            q, k, _ = block.mix(block.norm(x)).unflatten(-1, (3, 3, -1)).permute(2, 0, 3, 1, 4)
            weights.append(softmaxed(q, k).mean(1))
            x = block(x)
        for each in reversed(weights):
            r = 0.5 * r + 0.5 * r @ each
    found = Rollout()(network, IMAGES).values.flatten(1)
    torch.testing.assert_close(found, r[:, 0].to(found), atol=1e-7, rtol=1e-5)


class Embedded(nn.Module):
    """Patches by a convolution that looks at the image, or at patches cut before it; one block."""

    def __init__(self, channels: int, cut: bool) -> None:
        super().__init__()
        self.cut = nn.PixelUnshuffle(8) if cut else nn.Identity()
        self.norm = nn.BatchNorm2d(channels)
        self.embed = nn.Conv2d(channels * 64, 24, 1) if cut else nn.Conv2d(channels, 24, 8, 8)
        self.mix, self.head = nn.MultiheadAttention(24, 2, batch_first=True), nn.Linear(24, 5)

    def forward(self, images: torch.Tensor) -> Any:
        tokens = self.embed(self.cut(self.norm(images))).flatten(2).mT
        return self.head((tokens + self.mix(tokens, tokens, tokens)[0]).mean(1))


@pytest.mark.parametrize(("channels", "cut"), [(3, True), (1, False), (13, False)])
def test_a_probe_has_as_many_channels_as_the_network_takes(channels: int, cut: bool) -> None:
    network = Embedded(channels, cut)
    path = probe(network, (16, 24))
    assert path.layout is not None
    assert (path.refusal, path.layout.grid, path.layout.pool) == (None, (2, 3), "mean")
    assert network.training
    assert network.norm.num_batches_tracked == 0
    assert not network.embed._forward_pre_hooks
