"""Small networks of nobody's, to find paths in, and the rollout of their recorded weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from vision_attn.tokens import record_attention

SIZE = (32, 48)
IMAGES = torch.randn(2, 3, *SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class Block(nn.Module):
    """A pre-norm block around any attention (q, k, v) -> context, sharp."""

    def __init__(self, attend: Callable[..., Any], dim: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.attend, self.heads = attend, heads
        self.norm, self.mix, self.out = (
            nn.LayerNorm(dim),
            nn.Linear(dim, 3 * dim),
            nn.Linear(dim, dim),
        )
        self.mix.weight.data *= 6

    def branch(self, x: Any) -> Any:
        q, k, v = self.mix(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))

    def forward(self, x: Any) -> Any:
        return x + self.branch(x)


class Parallel(Block):
    def __init__(self, attend: Callable[..., Any]) -> None:
        super().__init__(attend)
        self.other = Block(attend)

    def forward(self, x: Any) -> Any:
        return x + self.branch(x) + self.other.branch(x)


def fused(q: Any, k: Any, v: Any) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def softmaxed(q: Any, k: Any) -> Any:
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)


class Own(nn.Module):
    """A network of nobody's: no names that tell, registers where they are told to be."""

    def __init__(
        self,
        blocks: list[Any],
        read: Callable[..., Any] = lambda x: x.mean(1),
        before: int = 0,
        after: int = 0,
        classes: int = 5,
    ) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, 24, 8, 8)
        self.first = nn.Parameter(torch.randn(1, before, 24))
        self.last = nn.Parameter(torch.randn(1, after, 24))
        self.blocks, self.read, self.head = nn.Sequential(*blocks), read, nn.Linear(24, classes)

    def forward(self, images: torch.Tensor) -> Any:
        x = self.cut(images).flatten(2).mT
        joined = [p.expand(len(x), -1, -1) for p in (self.first, self.last) if p.shape[1]]
        if len(joined) == 2:
            x = torch.cat([joined[0], x, joined[1]], 1)
        elif joined:
            x = torch.cat([*joined, x] if self.first.shape[1] else [x, *joined], 1)
        return self.head(self.read(self.blocks(x)))


def own(*blocks: Any, **options: Any) -> Own:
    torch.manual_seed(3)
    return Own([block(fused) for block in blocks or (Block, Block)], **options).double().eval()


def rolled(network: Any, seed: torch.Tensor, images: torch.Tensor = IMAGES) -> Any:
    """The seed's row of the product of dense matrices."""
    with torch.no_grad(), record_attention(network, ()) as record:
        network(images)
    r = seed.expand(len(images), 1, -1)
    for call in reversed(record.calls):
        A = call.weights().mean(1)
        r = r @ (0.5 * torch.eye(A.shape[-1], dtype=A.dtype) + 0.5 * A)
    return r[:, 0]


def mean_of(count: int = 24) -> torch.Tensor:
    return torch.full((2, 1, count), 1 / count, dtype=torch.float64)
