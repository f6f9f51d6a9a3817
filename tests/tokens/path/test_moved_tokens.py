"""Rollout of networks that move and write their tokens, against products of dense matrices."""

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parent))
from own_networks import Block, fused, softmaxed

from vision_attn.methods import Rollout

COUNT = 24
ORDER = torch.tensor(random.Random(5).sample(range(COUNT), COUNT))


def written_one_by_one(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    for i, j in enumerate(ORDER.tolist()):
        y[:, i] = x[:, j]
    return y


def written_into_zeros(x: Tensor) -> Tensor:
    y = x.new_zeros(len(x), COUNT + 1, x.shape[2])
    y[:, :7] = x[:, -7:]
    y[:, 7:-1] = x[:, :-7]
    return y[:, :COUNT]


def written_by_index(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[:, ORDER] = x
    return y


def written_into_parts(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    first, rest = y.split([5, COUNT - 5], 1)
    first.copy_(x[:, -5:])
    rest.copy_(x[:, :-5])
    return y


def exchanged(x: Tensor) -> Tensor:
    y = x.clone()
    first, last = y[:, :11], y[:, -11:]
    kept = first.clone()
    first.copy_(last)
    last.copy_(kept)
    return y


def turned_in_place(x: Tensor) -> Tensor:
    """The tokens of a grid of 4 x 6, column by column."""
    grid = x.reshape(len(x), 4, 6, -1).clone()
    last = grid[:, -1]
    grid.transpose_(1, 2)
    last.unsqueeze_(1).squeeze_(1)
    first = grid[:, :, 0].clone()
    grid[:, :, 0] = last
    grid[:, :, -1] = first
    return grid.flatten(1, 2)


def strided(x: Tensor) -> Tensor:
    """Every fifth token, around and around."""
    twice = torch.cat([x] * 5, 1).contiguous()
    batch, token, width = twice.stride()
    return twice.as_strided(x.shape, (batch, 5 * token, width))


MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "stays": lambda x: x,
    "flips": lambda x: x.flip(1),
    "turns": lambda x: x.roll(5, 1),
    "is chosen": lambda x: x[:, ORDER],
    "is gathered": lambda x: x.gather(1, ORDER[None, :, None].expand_as(x)),
    "is divided": lambda x: torch.cat(x.split([3, COUNT - 3], 1)[::-1], 1),
    "is woven": lambda x: torch.stack([x[:, :12], x[:, 12:]], 2).flatten(1, 2),
    "is listed": lambda x: torch.stack([x[:, i] for i in ORDER.tolist()], 1),
    "is scattered": lambda x: torch.slice_scatter(x, x[:, :2].flip(1), 1, 0, 2),
    **{
        function.__name__: function
        for function in (
            *(written_one_by_one, written_into_zeros, written_by_index, written_into_parts),
            *(exchanged, turned_in_place, strided),
        )
    },
}


class Attention:
    """Fused or written attention that keeps the mean of its heads' weights."""

    def __init__(self, is_fused: bool) -> None:
        self.is_fused, self.weights = is_fused, torch.empty(0)

    def __call__(self, q: Any, k: Any, v: Any) -> Tensor:
        if self.is_fused:
            self.weights = softmaxed(q.detach(), k.detach()).mean(1)
            return fused(q, k, v)
        weights: Tensor = softmaxed(q, k)
        self.weights = weights.mean(1)
        return weights @ v


class InPlace(Block):
    def forward(self, x: Any) -> Any:
        y = x.clone()
        y += self.branch(x)
        return y


class Moving(nn.Module):
    """Blocks, before each of which tokens move; some attend in windows of six tokens."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        chance = random.Random(seed)
        torch.manual_seed(seed)
        self.cut, self.position = nn.Conv2d(3, 24, 8, 8), nn.Parameter(torch.randn(COUNT, 24))
        self.names = chance.choices(list(MOVES), k=3)
        self.in_windows = chance.choices([False, False, True], k=3)
        self.attend = [Attention(chance.random() < 0.5) for _ in self.names]
        self.blocks = nn.ModuleList(
            chance.choice([Block, InPlace])(attend) for attend in self.attend
        )
        self.reads_first, self.head = chance.random() < 0.5, nn.Linear(24, 5)

    def forward(self, images: Tensor) -> Any:
        x = self.cut(images).flatten(2).mT + self.position
        for name, in_windows, block in zip(self.names, self.in_windows, self.blocks, strict=True):
            x = MOVES[name](x)
            x = block(x.reshape(-1, 6, 24)).reshape(x.shape) if in_windows else block(x)
        return self.head(x[:, 0] if self.reads_first else x.mean(1))


@torch.no_grad()
def rolled(network: Moving, image: Tensor) -> Tensor:
    """What of each patch reaches the classifier, by matrices of attention and of moves."""
    network(image)
    row = torch.full((COUNT,), 1 / COUNT, dtype=torch.float64)
    if network.reads_first:
        row = torch.eye(COUNT, dtype=torch.float64)[0]
    eye = torch.eye(COUNT, dtype=torch.float64)
    for name, attend in reversed(list(zip(network.names, network.attend, strict=True))):
        weights = torch.block_diag(*attend.weights)
        row = row @ (0.5 * eye + 0.5 * weights) @ MOVES[name](eye[None])[0]
    return row


@pytest.mark.parametrize("seed", range(60))
def test_tokens_are_followed_wherever_they_move(seed: int) -> None:
    network = Moving(seed).double().eval()
    image = torch.randn(1, 3, 32, 48, dtype=torch.float64)
    found = Rollout()(network, image)
    values = found.values[0].flatten().double()
    torch.testing.assert_close(
        values, rolled(network, image), rtol=1e-5, atol=1e-7, msg=str(network.names)
    )  # maps are float32
    assert found.values.shape == (1, 4, 6)
