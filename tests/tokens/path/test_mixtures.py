"""Tokens that something other than attention mixes, moves or chooses between two calls."""

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

from vision_attn.methods import LibraGradient, QueryKey, Relevance, Rollout, choose_methods
from vision_attn.tokens import probe, record_attention
from vision_attn.tokens.trace.tracer import reached
from vision_attn.types import TokenLayout

sys.path.append(str(Path(__file__).parent))
from own_networks import (
    IMAGES,
    SIZE,
    Block,
    Own,
    fused,
    mean_of,
    own,
    rolled,
    softmaxed,
)


@pytest.mark.filterwarnings("ignore:a map shows")
def test_after_a_connection_that_skips_calls_a_map_begins_anew() -> None:
    class Skips(Own):
        def forward(self, images: torch.Tensor) -> Any:
            x = y = self.cut(images).flatten(2).mT
            for block in self.blocks:
                y = block(y)
            return self.head(self.blocks[0](y + x).mean(1))

    network = Skips([Block(fused), Block(fused)]).double().eval()
    path = probe(network, SIZE)
    assert [step.used for step in path.steps] == [False, False, True]
    assert path.left_out is not None
    assert "mixed with something that went through no attention call" in path.left_out
    with torch.no_grad(), record_attention(network, ()) as record:
        network(IMAGES)
    A = record.calls[2].weights().mean(1)
    found = Rollout()(network, IMAGES).values
    true = 0.5 * mean_of() + 0.5 * mean_of() @ A
    torch.testing.assert_close(found, true[:, 0].unflatten(1, (4, 6)).float())


class Convolved(Own):
    """A convolution among the tokens, and a gate of channels, between the first block and others."""

    def __init__(self, kernel: int) -> None:
        super().__init__([Block(fused), Block(fused), Block(fused)])
        self.conv = nn.Conv2d(24, 24, kernel, padding=kernel // 2)

    def forward(self, images: torch.Tensor) -> Any:
        x = self.blocks[0](self.cut(images).flatten(2).mT).mT.unflatten(2, (4, 6))
        x = x + self.conv(x)
        x = (x * x.mean((2, 3), keepdim=True).sigmoid()).flatten(2).mT
        return self.head(self.blocks[1:](x).mean(1))


@pytest.mark.filterwarnings("ignore:a map shows")
@pytest.mark.parametrize("kernel", [3, 13])  # of 13 every token comes of the whole image
def test_a_map_begins_after_a_convolution_among_the_tokens_and_says_so(kernel: int) -> None:
    torch.manual_seed(3)
    network = Convolved(kernel).double().eval()
    path = probe(network, SIZE)
    assert path.layout is not None
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
    assert choose_methods(None, network) == [LibraGradient()]
    assert choose_methods(["Rollout"], network) == [Rollout()]


def test_queries_give_weights_alone_so_a_convolution_may_mix_them() -> None:
    """A token is what the context is added to: the map is of all calls, and exact."""

    class Queries(Own):
        def forward(self, images: torch.Tensor) -> Any:
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
    assert path.layout is not None
    assert (path.refusal, path.left_out, path.layout.grid) == (None, None, (4, 6))
    with torch.no_grad(), record_attention(network, ()) as record:
        network(IMAGES)
    r = mean_of()
    for A in (*reversed(network.weights), record.calls[0].weights().mean(1)):
        r = r @ (0.5 * torch.eye(24, dtype=torch.float64) + 0.5 * A.detach())
    found = Rollout()(network, IMAGES).values
    torch.testing.assert_close(found, r[:, 0].unflatten(1, (4, 6)).float())


@pytest.mark.filterwarnings("ignore:a map shows")
def test_keys_that_a_convolution_mixes_count_as_the_mean_of_their_window() -> None:
    class Values(Own):
        def forward(self, images: torch.Tensor) -> Any:
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
def test_what_goes_past_the_last_call_is_left_out_and_said() -> None:
    """A convolution fuses the tokens after the call with those of an earlier stage."""

    class Fuses(Own):
        def forward(self, images: torch.Tensor) -> Any:
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


def test_a_classifier_that_reads_a_state_between_two_calls() -> None:
    class Reads(Own):
        def forward(self, images: torch.Tensor) -> Any:
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


def test_a_maximum_counts_tokens_alike_and_says_so() -> None:
    network = own(read=lambda x: x.amax(1))
    with pytest.warns(UserWarning, match="reads the tokens by amax, so they do not count equally"):
        found = Rollout()(network, IMAGES).values
    shares = rolled(network, torch.full((24,), 1 / 24, dtype=torch.float64))
    torch.testing.assert_close(found, shares.unflatten(1, (4, 6)).float())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settled = Rollout()(network, IMAGES, layout=TokenLayout(0, (4, 6), "mean")).values
    torch.testing.assert_close(settled, found)


def test_of_several_grids_the_finest_is_shown() -> None:
    class Two(Own):
        def forward(self, images: torch.Tensor) -> Any:
            fine, coarse = (x.flatten(2).mT for x in (self.cut(images), self.coarse(images)))
            x = torch.cat([self.blocks[0](fine), self.blocks[1](coarse)], 1)
            return self.head(self.blocks[2](x)[:, 24:].mean(1))

    torch.manual_seed(3)
    network = Two([Block(fused), Block(fused), Block(fused)])
    network.coarse = nn.Conv2d(3, 24, 16, 16)
    network = network.double().eval()
    path = probe(network, SIZE)
    assert path.layout is not None
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


def test_a_pool_by_weights_without_an_axis_of_heads() -> None:
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
def test_places_that_a_transposed_convolution_reaches(how: tuple[int, int, int, int, int]) -> None:
    n, size, stride, padding, dilation = how
    x = torch.eye(n)[:, None]
    out = F.conv_transpose1d(
        x, torch.ones(1, 1, size), stride=stride, padding=padding, dilation=dilation
    )[:, 0]
    found = reached(n, out.shape[1], size, stride, padding, dilation)
    assert torch.equal(found, out.T != 0)


def test_tokens_of_a_smaller_grid_are_made_of_those_that_they_lie_between() -> None:
    class Coarse(Own):
        def forward(self, images: torch.Tensor) -> Any:
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


def test_tokens_on_no_grid_are_refused_until_a_layout_is_given() -> None:
    class Fewer(Own):
        def forward(self, images: torch.Tensor) -> Any:
            return self.head(self.blocks(self.cut(images).flatten(2).mT[:, :23]).mean(1))

    network = Fewer([Block(fused)]).double().eval()
    reason = Rollout().refusal_for(network, IMAGES)
    assert reason is not None
    assert "how its 23 tokens lie on the image is not known" in reason
    layout = TokenLayout(0, (1, 23), "mean")
    assert Rollout()(network, IMAGES, layout=layout).values.shape == (2, 1, 23)


def test_a_query_by_place_is_refused_where_the_last_tokens_are_no_grid() -> None:
    class Thirds(nn.Module):
        def forward(self, x: Any) -> Any:
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


def test_of_two_streams_of_tokens_the_finer_grid_is_shown() -> None:
    class TwoStreams(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fine, self.coarse = nn.Conv2d(3, 24, 8, 8), nn.Conv2d(3, 24, 16, 16)
            self.first, self.second, self.both = Block(fused), Block(fused), Block(fused)
            self.head = nn.Linear(24, 5)

        def forward(self, images: torch.Tensor) -> Any:
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


def test_class_attention_to_a_class_token_that_is_normed_apart() -> None:
    class ClassAttention(nn.Module):
        """The class token's residual is the parameter itself; the norm's output joins the keys."""

        def __init__(self) -> None:
            super().__init__()
            self.network, self.last = own(Block), Block(fused).double()
            self.first = nn.Parameter(torch.randn(1, 1, 24, dtype=torch.float64))

        def forward(self, images: torch.Tensor) -> Any:
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


class Reordered(nn.Module):
    """The tokens in another order: a fixed one, or one drawn anew in every run."""

    def __init__(self, order: torch.Tensor | None = None) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: Any) -> Any:
        order = torch.rand(x.shape[1]).argsort() if self.order is None else self.order
        return x.gather(1, order[None, :, None].expand_as(x))


def test_tokens_are_followed_through_a_fixed_choice_by_their_places() -> None:
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


def test_a_choice_by_random_numbers_is_refused_as_the_next_run_makes_another() -> None:
    network = own()
    network.blocks.insert(1, Reordered())
    with pytest.raises(ValueError, match="a choice of tokens by random numbers"):
        Rollout()(network, IMAGES)


def flex(q: Any, k: Any, v: Any) -> torch.Tensor:
    return flex_attention(q, k, v)


def test_flex_attention_is_refused_in_words() -> None:
    network = Own([Block(flex)]).eval()
    network.blocks[0].qkv = nn.Identity()  # a name by which it is known to attend
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch: it runs as it is written, not compiled
        found = probe(network, SIZE)
    assert "it runs torch's flex_attention, which hides its weights" in str(found)


class Weighed(nn.Module):
    """Each token times a number of its own: its product with one vector."""

    def __init__(self) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.randn(24, dtype=torch.float64))

    def forward(self, x: Any) -> Any:
        return x * (x @ self.vector).sigmoid()[..., None]


def test_a_product_with_a_vector_mixes_no_tokens() -> None:
    network = own()
    network.blocks.insert(1, Weighed())
    expected = rolled(network, mean_of()).view(2, 4, 6)
    torch.testing.assert_close(
        Rollout()(network, IMAGES).values, expected.float(), rtol=3e-6, atol=1e-8
    )
