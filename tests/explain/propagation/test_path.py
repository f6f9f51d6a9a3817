"""The path of the tokens, proven by a run: what is chained, what is read, and what is refused."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

from vision_attn.explain import (
    GradCAM,
    GradientRollout,
    LeGrad,
    QueryKey,
    Relevance,
    Rollout,
    choose_methods,
    probe,
    record_attention,
)
from vision_attn.explain.recording.tracer import reached
from vision_attn.models import ViT
from vision_attn.types import TokenLayout

SIZE = (32, 48)
IMAGES = torch.randn(2, 3, *SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class Block(nn.Module):
    """A pre-norm block around any attention (q, k, v) -> context, sharp."""

    def __init__(self, attend, dim=24, heads=3):
        super().__init__()
        self.attend, self.heads = attend, heads
        self.norm, self.mix, self.out = (
            nn.LayerNorm(dim),
            nn.Linear(dim, 3 * dim),
            nn.Linear(dim, dim),
        )
        self.mix.weight.data *= 6

    def branch(self, x):
        q, k, v = self.mix(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))

    def forward(self, x):
        return x + self.branch(x)


class Parallel(Block):
    def __init__(self, attend):
        super().__init__(attend)
        self.other = Block(attend)

    def forward(self, x):
        return x + self.branch(x) + self.other.branch(x)


def fused(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def softmaxed(q, k):
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)


class Own(nn.Module):
    """A network of nobody's: no names that tell, registers where they are told to be."""

    def __init__(self, blocks, read=lambda x: x.mean(1), before=0, after=0, classes=5):
        super().__init__()
        self.cut = nn.Conv2d(3, 24, 8, 8)
        self.first = nn.Parameter(torch.randn(1, before, 24))
        self.last = nn.Parameter(torch.randn(1, after, 24))
        self.blocks, self.read, self.head = nn.Sequential(*blocks), read, nn.Linear(24, classes)

    def forward(self, images):
        x = self.cut(images).flatten(2).mT
        joined = [p.expand(len(x), -1, -1) for p in (self.first, self.last) if p.shape[1]]
        if len(joined) == 2:
            x = torch.cat([joined[0], x, joined[1]], 1)
        elif joined:
            x = torch.cat([*joined, x] if self.first.shape[1] else [x, *joined], 1)
        return self.head(self.read(self.blocks(x)))


def own(*blocks, **options):
    torch.manual_seed(3)
    return Own([block(fused) for block in blocks or (Block, Block)], **options).double().eval()


def rolled(network, seed, images=IMAGES):
    """The seed's row of the product of dense matrices."""
    with torch.no_grad(), record_attention(network, ()) as record:
        network(images)
    r = seed.expand(len(images), 1, -1)
    for call in reversed(record.calls):
        A = call.weights().mean(1)
        r = r @ (0.5 * torch.eye(A.shape[-1], dtype=A.dtype) + 0.5 * A)
    return r[:, 0]


def mean_of(count=24):
    return torch.full((2, 1, count), 1 / count, dtype=torch.float64)


READ = {
    "first": (lambda x: x[:, 0], 2, 0, [0], "cls"),
    "mean of the patches": (lambda x: x[:, 1:].mean(1), 1, 0, range(1, 25), "mean"),
    "registers after": (lambda x: x[:, :24].mean(1), 0, 3, range(24), "mean"),
    "both ends": (lambda x: x[:, 0], 1, 3, [0], "cls"),
    "all": (lambda x: x.mean(1), 1, 0, range(25), "mean"),
}


@pytest.mark.parametrize(("read", "before", "after", "tokens", "pool"), READ.values(), ids=READ)
def test_what_is_read_and_where_the_patches_lie_come_from_the_run(
    read, before, after, tokens, pool
):
    network = own(read=read, before=before, after=after)
    path = probe(network, SIZE)
    beside = list(range(before)) + list(range(before + 24, before + 24 + after))
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


def test_registers_can_be_said_in_a_layout():
    network = own(read=lambda x: x[:, :24].mean(1), after=3)
    layout = TokenLayout(0, (4, 6), "mean", registers=(-3, -2, -1))
    assert layout.registers == (24, 25, 26)
    expected = Rollout()(network, IMAGES)
    assert torch.equal(Rollout()(network, IMAGES, layout=layout).values, expected.values)
    for wrong in ((0,), (5, 5), (99,)):
        with pytest.raises(ValueError, match="registers must be places after the prefix"):
            TokenLayout(1, (2, 3), registers=wrong)


class Twice(nn.Module):
    def __init__(self, network, flipped=True):
        super().__init__()
        self.network, self.flipped = network, flipped

    def forward(self, images):
        other = images.flip(-1) if self.flipped else images
        return (self.network(images) + self.network(other)) / 2


def test_two_runs_of_one_network_are_two_chains():
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


def test_branches_side_by_side_count_alike():
    network = own(Block, Parallel, Block)
    with torch.no_grad(), record_attention(network, ()) as record:
        network(IMAGES)
    first, one, other, last = (call.weights().mean(1) for call in record.calls)
    r = torch.full((2, 1, 24), 1 / 24, dtype=torch.float64)
    for A in (last, (one + other) / 2, first):
        r = r @ (0.5 * torch.eye(24, dtype=torch.float64) + 0.5 * A)
    found = Rollout()(network, IMAGES).values
    torch.testing.assert_close(found, r[:, 0].unflatten(1, (4, 6)).float())


@pytest.mark.filterwarnings("ignore:a map shows")
def test_after_a_connection_that_skips_calls_a_map_begins_anew():
    class Skips(Own):
        def forward(self, images):
            x = y = self.cut(images).flatten(2).mT
            for block in self.blocks:
                y = block(y)
            return self.head(self.blocks[0](y + x).mean(1))

    network = Skips([Block(fused), Block(fused)]).double().eval()
    path = probe(network, SIZE)
    assert [step.used for step in path.steps] == [False, False, True]
    assert "mixed with something that went through no attention call" in path.left_out
    with torch.no_grad(), record_attention(network, ()) as record:
        network(IMAGES)
    A = record.calls[2].weights().mean(1)
    found = Rollout()(network, IMAGES).values
    true = 0.5 * mean_of() + 0.5 * mean_of() @ A
    torch.testing.assert_close(found, true[:, 0].unflatten(1, (4, 6)).float())


def linear(q, k, v):
    return q.softmax(-1) @ (k.softmax(-2).mT @ v)


def channels(q, k, v):
    return ((q.mT @ k).softmax(-1) @ v.mT).mT


def test_two_softmaxes_in_a_row_are_two_calls():
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
def test_attention_over_channels_is_not_taken_for_tokens(attend, heads):
    network = Own([Block(attend, heads=heads)]).double().eval()  # 24 tokens, 24 or 8 wide
    refusal = probe(network, SIZE).refusal
    assert "attention over channels" in refusal or "mixtures of the tokens" in refusal
    with pytest.raises(ValueError, match="does not fit Own"):
        Rollout()(network, IMAGES, layout=TokenLayout(0, (4, 6), "mean"))


def test_a_pool_by_a_softmax_over_the_tokens_is_a_call():
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


def test_tokens_of_frequencies_lie_beside_the_image():
    class Frequencies(Own):
        def forward(self, images):
            waves = torch.view_as_real(torch.fft.fft2(images)).movedim(-1, 2).flatten(1, 2)
            both = [self.waves(waves).flatten(2).mT, self.cut(images).flatten(2).mT]
            return self.head(self.blocks(torch.cat(both, 1)).mean(1))

    torch.manual_seed(3)
    network = Frequencies([Block(fused), Block(fused)])
    network.waves = nn.Conv2d(6, 24, 16, 16)
    network = network.double().eval()
    path = probe(network, SIZE)
    assert (path.layout.grid, path.layout.beside) == ((4, 6), list(range(6)))
    shares = rolled(network, torch.full((30,), 1 / 30, dtype=torch.float64))
    found = Rollout()(network, IMAGES).values
    torch.testing.assert_close(found, shares[:, 6:].unflatten(1, (4, 6)).float())


class InWindows(Block):
    """Attention in windows of 2x3 of 4x6 tokens; axes: those of its queries before the last two."""

    def __init__(self, attend, axes):
        super().__init__(attend)
        self.axes = axes

    def heads_of(self, x):
        x = x.unflatten(1, (2, 2, 2, 3)).transpose(2, 3).reshape(len(x), 4, 6, 24)
        return self.mix(self.norm(x)).unflatten(-1, (3, 3, 8)).permute(3, 0, 1, 4, 2, 5)

    def branch(self, x):
        q, k, v = self.heads_of(x)  # b window head n d
        if self.axes == "b head window":
            c = self.attend(*(each.transpose(1, 2) for each in (q, k, v))).transpose(1, 2)
        elif self.axes == "b window head":
            c = self.attend(q, k, v)
        else:
            c = self.attend(*(each.flatten(0, 1) for each in (q, k, v))).unflatten(0, (-1, 4))
        c = c.transpose(2, 3).flatten(3).unflatten(2, (2, 3)).unflatten(1, (2, 2))
        return self.out(c.transpose(2, 3).flatten(1, 4))

    def dense(self, x):
        token = torch.arange(24).unflatten(0, (2, 2, 2, 3)).transpose(1, 2).reshape(4, 6)
        A = torch.zeros(len(x), 24, 24, dtype=x.dtype)
        weights = softmaxed(*self.heads_of(x)[:2]).mean(2)
        for window, places in enumerate(token):
            A[:, places[:, None], places] = weights[:, window]
        return A


@pytest.mark.parametrize("attend", [fused, lambda q, k, v: softmaxed(q, k) @ v])
@pytest.mark.parametrize("axes", ["b head window", "b window head", "b*window head"])
def test_windows_and_heads_over_tensors_of_five_axes(attend, axes):
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


class Convolved(Own):
    """A convolution among the tokens, and a gate of channels, between the first block and others."""

    def __init__(self, kernel):
        super().__init__([Block(fused), Block(fused), Block(fused)])
        self.conv = nn.Conv2d(24, 24, kernel, padding=kernel // 2)

    def forward(self, images):
        x = self.blocks[0](self.cut(images).flatten(2).mT).mT.unflatten(2, (4, 6))
        x = x + self.conv(x)
        x = (x * x.mean((2, 3), keepdim=True).sigmoid()).flatten(2).mT
        return self.head(self.blocks[1:](x).mean(1))


@pytest.mark.filterwarnings("ignore:a map shows")
@pytest.mark.parametrize("kernel", [3, 13])  # of 13 every token comes of the whole image
def test_a_map_begins_after_a_convolution_among_the_tokens_and_says_so(kernel):
    torch.manual_seed(3)
    network = Convolved(kernel).double().eval()
    path = probe(network, SIZE)
    assert (path.refusal, path.layout.grid, path.layout.beside) == (None, (4, 6), [])
    assert [step.used for step in path.steps] == [False, True, True]
    assert "last 2 of 3 attention calls" in str(path)
    with torch.no_grad(), record_attention(network, ()) as record:
        network(IMAGES)
    r = torch.full((2, 1, 24), 1 / 24, dtype=torch.float64)
    for call in record.calls[:0:-1]:
        A = call.weights().mean(1)
        r = r @ (0.5 * torch.eye(24, dtype=torch.float64) + 0.5 * A)
    with pytest.warns(UserWarning, match="shows the last 2 of 3 attention calls alone: the tokens"):
        found = Rollout()(network, IMAGES).values
    torch.testing.assert_close(found, r[:, 0].unflatten(1, (4, 6)).float())
    assert Relevance()(network, IMAGES, 1).values.std() > 0
    network.image_size = list(SIZE)
    assert choose_methods(None, network) == [GradCAM()]
    assert choose_methods(["Rollout"], network) == [Rollout()]


def test_queries_give_weights_alone_so_a_convolution_may_mix_them():
    """A token is what the context is added to: the map is of all calls, and exact."""

    class Queries(Own):
        def forward(self, images):
            x, self.weights = self.blocks(self.cut(images).flatten(2).mT), []
            for conv in self.convs:
                mixed = conv(x.mT.unflatten(2, (4, 6))).flatten(2).mT
                self.weights.append(softmaxed(9 * mixed, x))
                x = x + self.weights[-1] @ x
            return self.head(x.mean(1))

    torch.manual_seed(3)
    network = Queries([Block(fused)])
    network.convs = nn.ModuleList(nn.Conv2d(24, 24, 3, padding=1) for _ in range(2))
    network = network.double().eval()
    path = probe(network, SIZE)
    assert (path.refusal, path.left_out, path.layout.grid) == (None, None, (4, 6))
    with torch.no_grad(), record_attention(network, ()) as record:
        network(IMAGES)
    r = mean_of()
    for A in (*reversed(network.weights), record.calls[0].weights().mean(1)):
        r = r @ (0.5 * torch.eye(24, dtype=torch.float64) + 0.5 * A.detach())
    found = Rollout()(network, IMAGES).values
    torch.testing.assert_close(found, r[:, 0].unflatten(1, (4, 6)).float())


@pytest.mark.filterwarnings("ignore:a map shows")
def test_keys_that_a_convolution_mixes_count_as_the_mean_of_their_window():
    class Values(Own):
        def forward(self, images):
            x = self.blocks(self.cut(images).flatten(2).mT)
            small = self.conv(x.mT.unflatten(2, (4, 6))).flatten(2).mT
            self.A = softmaxed(9 * x, small).detach()
            return self.head((x + self.A @ small).mean(1))

    torch.manual_seed(3)
    network = Values([Block(fused)])
    network.conv = nn.Conv2d(24, 24, 3, stride=2, padding=1)
    network = network.double().eval()
    path = probe(network, SIZE)
    assert [step.used for step in path.steps] == [False, True]
    assert "counts each as the mean" in str(path)
    windows = torch.zeros(6, 4, 6, dtype=torch.float64)
    for at in range(6):
        y, x = 2 * (at // 3), 2 * (at % 3)
        windows[at, max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2] = 1
    windows = windows.flatten(1) / windows.sum((1, 2))[:, None]
    with pytest.warns(UserWarning, match="counts each as the mean"):
        found = Rollout()(network, IMAGES).values
    r = mean_of()
    true = 0.5 * r + 0.5 * r @ network.A @ windows
    torch.testing.assert_close(found, true[:, 0].unflatten(1, (4, 6)).float())


@pytest.mark.filterwarnings("ignore:a map shows")
def test_what_goes_past_the_last_call_is_left_out_and_said():
    """A convolution fuses the tokens after the call with those of an earlier stage."""

    class Fuses(Own):
        def forward(self, images):
            x = self.blocks[0](self.cut(images).flatten(2).mT).mT.unflatten(2, (4, 6))
            y = self.blocks[1](self.conv(x).flatten(2).mT).mT.unflatten(2, (4, 6))
            return self.head(self.fuse(torch.cat([x, y], 1)).mean((2, 3)))

    torch.manual_seed(3)
    network = Fuses([Block(fused), Block(fused)])
    network.conv, network.fuse = nn.Conv2d(24, 24, 3, padding=1), nn.Conv2d(48, 24, 1)
    network = network.double().eval()
    assert [step.used for step in probe(network, SIZE).steps] == [False, True]
    with torch.no_grad(), record_attention(network, ()) as record:
        network(IMAGES)
    A = record.calls[1].weights().mean(1)
    r = 0.5 * mean_of() + 0.5 * mean_of() @ A
    with pytest.warns(UserWarning, match="also reads what went past the attention calls shown"):
        found = Rollout()(network, IMAGES).values
    torch.testing.assert_close(found, r[:, 0].unflatten(1, (4, 6)).float())


def test_a_classifier_that_reads_a_state_between_two_calls():
    class Reads(Own):
        def forward(self, images):
            x = self.blocks[0](self.cut(images).flatten(2).mT)
            y = self.blocks[1](x)
            return self.head(x.mean(1)) + self.head(y[:, 5])

    torch.manual_seed(3)
    network = Reads([Block(fused), Block(fused)]).double().eval()
    with torch.no_grad(), record_attention(network, ()) as record:
        network(IMAGES)
    first, last = (
        0.5 * torch.eye(24, dtype=torch.float64) + 0.5 * call.weights().mean(1)
        for call in record.calls
    )
    r = 0.5 * mean_of() @ first + 0.5 * (last @ first)[:, 5:6]
    found = Rollout()(network, IMAGES).values
    torch.testing.assert_close(found, r[:, 0].unflatten(1, (4, 6)).float())


def test_a_maximum_counts_tokens_alike_and_says_so():
    network = own(read=lambda x: x.amax(1))
    with pytest.warns(UserWarning, match="reads the tokens by amax, so they do not count equally"):
        found = Rollout()(network, IMAGES).values
    shares = rolled(network, torch.full((24,), 1 / 24, dtype=torch.float64))
    torch.testing.assert_close(found, shares.unflatten(1, (4, 6)).float())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settled = Rollout()(network, IMAGES, layout=TokenLayout(0, (4, 6), "mean")).values
    torch.testing.assert_close(settled, found)


def test_of_several_grids_the_finest_is_shown():
    class Two(Own):
        def forward(self, images):
            fine, coarse = (x.flatten(2).mT for x in (self.cut(images), self.coarse(images)))
            x = torch.cat([self.blocks[0](fine), self.blocks[1](coarse)], 1)
            return self.head(self.blocks[2](x)[:, 24:].mean(1))

    torch.manual_seed(3)
    network = Two([Block(fused), Block(fused), Block(fused)])
    network.coarse = nn.Conv2d(3, 24, 16, 16)
    network = network.double().eval()
    path = probe(network, SIZE)
    assert (path.layout.grid, path.layout.beside) == ((4, 6), list(range(24, 30)))
    with torch.no_grad(), record_attention(network, ()) as record:
        network(IMAGES)
    r = torch.zeros(2, 1, 30, dtype=torch.float64)
    r[..., 24:] = 1 / 6
    fine, coarse, both = (call.weights().mean(1) for call in record.calls)
    first = torch.zeros(2, 30, 30, dtype=torch.float64)
    first[:, :24, :24], first[:, 24:, 24:] = fine, coarse
    for A in (both, first):
        r = r @ (0.5 * torch.eye(30, dtype=torch.float64) + 0.5 * A)
    with pytest.warns(UserWarning, match="shows the finest, and counts the tokens of the others"):
        found = Rollout()(network, IMAGES)
    torch.testing.assert_close(found.values, r[:, 0, :24].unflatten(1, (4, 6)).float())
    torch.testing.assert_close(found.prefix_mass, r[:, 0, 24:].sum(1).float())


def test_a_pool_by_weights_without_an_axis_of_heads():
    pool = nn.Linear(24, 1).double()
    pool.weight.data *= 9
    network = own(read=lambda x: torch.einsum("b n, b n d -> b d", pool(x)[..., 0].softmax(1), x))
    with torch.no_grad():
        seed = pool(network.blocks(network.cut(IMAGES).flatten(2).mT)).softmax(1).mT
        with record_attention(network, ()) as record:
            network(IMAGES)
    for call in reversed(record.calls[:2]):
        seed = seed @ (0.5 * torch.eye(24, dtype=torch.float64) + 0.5 * call.weights().mean(1))
    found = Rollout()(network, IMAGES).values
    torch.testing.assert_close(found, seed[:, 0].unflatten(1, (4, 6)).float())


@pytest.mark.parametrize(
    "how", [(5, 3, 2, 1, 1), (7, 4, 2, 1, 1), (3, 3, 1, 1, 2), (4, 2, 3, 0, 1)]
)
def test_places_that_a_transposed_convolution_reaches(how):
    n, size, stride, padding, dilation = how
    x = torch.eye(n)[:, None]
    out = F.conv_transpose1d(
        x, torch.ones(1, 1, size), stride=stride, padding=padding, dilation=dilation
    )[:, 0]
    found = reached(n, out.shape[1], size, stride, padding, dilation)
    assert torch.equal(found, out.T != 0)


def test_tokens_of_a_smaller_grid_are_made_of_those_that_they_lie_between():
    class Coarse(Own):
        def forward(self, images):
            x = self.cut(images)
            small = F.interpolate(x, (2, 3), mode="bilinear").flatten(2).mT
            x = x.flatten(2).mT
            self.A = softmaxed(3 * small.unsqueeze(1), x.unsqueeze(1))
            return self.head((small + (self.A @ x.unsqueeze(1))[:, 0]).mean(1))

    network = Coarse([]).double().eval()
    r = torch.full((2, 1, 6), 1 / 6, dtype=torch.float64)
    merged = torch.zeros(6, 24, dtype=torch.float64)
    for at in range(24):
        merged[at // 12 * 3 + at % 6 // 2, at] = 1 / 4
    found = Rollout()(network, IMAGES).values
    with torch.no_grad():
        network(IMAGES)
    true = r @ (0.5 * merged + 0.5 * network.A[:, 0])
    torch.testing.assert_close(found, true[:, 0].unflatten(1, (4, 6)).float())


def test_tokens_on_no_grid_are_refused_until_a_layout_is_given():
    class Fewer(Own):
        def forward(self, images):
            return self.head(self.blocks(self.cut(images).flatten(2).mT[:, :23]).mean(1))

    network = Fewer([Block(fused)]).double().eval()
    assert "how its 23 tokens lie on the image is not known" in Rollout().refusal_for(
        network, IMAGES
    )
    layout = TokenLayout(0, (1, 23), "mean")
    assert Rollout()(network, IMAGES, layout=layout).values.shape == (2, 1, 23)


def test_a_query_by_place_is_refused_where_the_last_tokens_are_no_grid():
    class Thirds(nn.Module):
        def forward(self, x):
            return x.unflatten(1, (8, 3)).mean(2)

    network = Own([Block(fused), Thirds(), Block(fused)]).double().eval()
    reason = QueryKey().refusal_for(network, IMAGES)
    assert reason == (
        "which of its last tokens lies in a place is not known: 8 tokens are not a coarser grid of "
        "4x6"
    )
    with pytest.raises(ValueError, match="8 tokens are not a coarser grid of 4x6"):
        QueryKey(query=(0.5, 0.5))(network, IMAGES)
    assert Rollout()(network, IMAGES).values.shape == (2, 4, 6)


def test_of_two_streams_of_tokens_the_finer_grid_is_shown():
    class TwoStreams(nn.Module):
        def __init__(self):
            super().__init__()
            self.fine, self.coarse = nn.Conv2d(3, 24, 8, 8), nn.Conv2d(3, 24, 16, 16)
            self.first, self.second, self.both = Block(fused), Block(fused), Block(fused)
            self.head = nn.Linear(24, 5)

        def forward(self, images):
            fine = self.first(self.fine(images).flatten(2).mT)
            coarse = self.second(self.coarse(images).flatten(2).mT)
            return self.head(self.both(torch.cat([fine, coarse], 1)).mean(1))

    network = TwoStreams().double().eval()
    assert probe(network, SIZE).caveats == [
        "the tokens lie on several grids: a map shows the finest, and counts the tokens of the others "
        "(6) among those beside the image"
    ]
    with torch.no_grad(), record_attention(network, ()) as record:
        network(IMAGES)
    first, second, both = (call.weights().mean(1) for call in record.calls)
    r = 0.5 * mean_of(30) + 0.5 * mean_of(30) @ both
    fine, coarse = r[..., :24], r[..., 24:]
    fine, coarse = (0.5 * x + 0.5 * x @ A for x, A in ((fine, first), (coarse, second)))
    with pytest.warns(UserWarning, match="several grids"):
        found = Rollout()(network, IMAGES)
    torch.testing.assert_close(found.values.flatten(1), fine[:, 0].float())
    torch.testing.assert_close(found.prefix_mass, coarse[:, 0].sum(1).float())


def test_class_attention_to_a_class_token_that_is_normed_apart():
    class ClassAttention(nn.Module):
        """The class token's residual is the parameter itself; the norm's output joins the keys."""

        def __init__(self):
            super().__init__()
            self.network, self.last = own(Block), Block(fused).double()
            self.first = nn.Parameter(torch.randn(1, 1, 24, dtype=torch.float64))

        def forward(self, images):
            x = self.network.blocks(self.network.cut(images).flatten(2).mT)
            first = self.first.expand(len(x), -1, -1)
            keys = torch.cat([self.last.norm(first), x], 1)
            q, k, v = self.last.mix(keys).unflatten(-1, (3, 3, -1)).permute(2, 0, 3, 1, 4)
            found = fused(q[:, :, :1], k, v).transpose(1, 2).flatten(2)
            return self.network.head((first + self.last.out(found))[:, 0])

    network = ClassAttention().eval()
    with torch.no_grad(), record_attention(network, ()) as record:
        network(IMAGES)
    first, last = (call.weights().mean(1) for call in record.calls)
    r = 0.5 * last[:, :, 1:] @ (0.5 * torch.eye(24, dtype=torch.float64) + 0.5 * first)
    found = Rollout()(network, IMAGES).values
    torch.testing.assert_close(found, r[:, 0].unflatten(1, (4, 6)).float())


def test_a_layout_that_says_attention_where_nothing_pools():
    with pytest.raises(ValueError, match="the queries of every attention call are tokens"):
        Rollout()(own(), IMAGES, layout=TokenLayout(0, (4, 6), "attention"))


def test_heads_that_were_folded_into_the_batch():
    def folded(q, k, v):
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
def test_products_of_weights_and_values_in_every_form(product):
    torch.manual_seed(3)
    network = Own([Block(lambda q, k, v: product(softmaxed(q, k), v))]).double().eval()
    for method in (Rollout(), GradientRollout(), Relevance()):
        assert method(network, IMAGES, 1).values.max() > 0


def test_a_pooling_head_that_the_logits_do_not_use_is_left_out():
    import transformers

    config = transformers.SiglipVisionConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48,
        patch_size=8, image_size=32,
    )  # fmt: skip
    network = transformers.SiglipForImageClassification(
        transformers.SiglipConfig(vision_config=config.to_dict(), num_labels=5)
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


def test_a_path_is_remembered_until_the_network_changes(monkeypatch):
    from vision_attn.explain.propagation import path as module

    runs, run_path = [], module.run_path
    monkeypatch.setattr(module, "run_path", lambda *args: (runs.append(1), run_path(*args))[1])
    network = own()
    for _ in range(3):
        Rollout()(network, IMAGES)
    assert len(runs) == 1
    network.classes = 7
    Rollout()(network, IMAGES)
    assert len(runs) == 2


def test_legrad_says_why_where_its_list_holds_the_bare_attention():
    class Bare(Own):
        def forward(self, images):
            x = self.cut(images).flatten(2).mT
            for attention in self.blocks:
                x = x + attention(x)
            return self.head(x.mean(1))

    class QKV(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(24, 72)

        def forward(self, x):
            q, k, v = self.qkv(x).unsqueeze(1).chunk(3, -1)
            return fused(q, k, v).squeeze(1)

    network = Bare([QKV(), QKV()]).double().eval()
    with pytest.raises(ValueError, match="its list holds QKV, attention layers alone"):
        LeGrad()(network, IMAGES, 1)


def test_the_table():
    printed = str(probe(own(read=lambda x: x[:, 0], before=1), SIZE))
    assert printed.splitlines()[0] == "25 tokens: 1 beside the image, 4x6 patches of 8x8 pixels"
    assert printed.splitlines()[-1] == "the logits read: the class token"


class Reordered(nn.Module):
    """The tokens in another order: a fixed one, or one drawn anew in every run."""

    def __init__(self, order=None):
        super().__init__()
        self.order = order

    def forward(self, x):
        order = torch.rand(x.shape[1]).argsort() if self.order is None else self.order
        return x.gather(1, order[None, :, None].expand_as(x))


def test_tokens_are_followed_through_a_fixed_choice_by_their_places():
    order = torch.randperm(24, generator=torch.Generator().manual_seed(2))
    network = own()
    network.blocks.insert(1, Reordered(order))
    with torch.no_grad(), record_attention(network, ()) as record:
        network(IMAGES)
    one, two = (0.5 * torch.eye(24) + 0.5 * call.weights().mean(1) for call in record.calls)
    r = mean_of() @ two
    before = torch.zeros_like(r).index_add(2, order, r)  # token i of the second was order[i]
    expected = (before @ one)[:, 0].view(2, 4, 6)
    found = Rollout()(network, IMAGES).values
    torch.testing.assert_close(found, expected.float(), rtol=3e-6, atol=1e-8)


def test_a_choice_by_random_numbers_is_refused_as_the_next_run_makes_another():
    network = own()
    network.blocks.insert(1, Reordered())
    with pytest.raises(ValueError, match="a choice of tokens by random numbers"):
        Rollout()(network, IMAGES)


def flex(q, k, v):
    return flex_attention(q, k, v)


def test_flex_attention_is_refused_in_words():
    network = Own([Block(flex)]).eval()
    network.blocks[0].qkv = nn.Identity()  # a name by which it is known to attend
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch: it runs as it is written, not compiled
        found = probe(network, SIZE)
    assert "it runs torch's flex_attention, which hides its weights" in str(found)


class Weighed(nn.Module):
    """Each token times a number of its own: its product with one vector."""

    def __init__(self):
        super().__init__()
        self.vector = nn.Parameter(torch.randn(24, dtype=torch.float64))

    def forward(self, x):
        return x * (x @ self.vector).sigmoid()[..., None]


def test_a_product_with_a_vector_mixes_no_tokens():
    network = own()
    network.blocks.insert(1, Weighed())
    expected = rolled(network, mean_of()).view(2, 4, 6)
    torch.testing.assert_close(
        Rollout()(network, IMAGES).values, expected.float(), rtol=3e-6, atol=1e-8
    )


def heads_third(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = (torch.einsum("bqhd,bkhd->bqhk", q, k) / q.shape[-1] ** 0.5).softmax(-1)
    return torch.einsum("bqhk,bkhd->bqhd", weights, v).transpose(1, 2)


def exp_and_sum(q, k, v):
    powers = (q @ k.mT / q.shape[-1] ** 0.5).exp()
    return (powers / powers.sum(-1, keepdim=True)) @ v


def head_by_head(q, k, v):
    one = [softmaxed(q[:, head], k[:, head]) @ v[:, head] for head in range(q.shape[1])]
    return torch.stack(one, 1)


def in_chunks(q, k, v):
    return torch.cat([fused(chunk, k, v) for chunk in q.split(7, 2)], 2)


@pytest.mark.parametrize("attend", [heads_third, exp_and_sum, head_by_head, in_chunks])
def test_however_attention_is_written_its_rollout_is_that_of_its_weights(attend):
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
