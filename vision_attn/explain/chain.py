"""The chain of layers that a map is carried through, from the last to the first.

A link takes shares r of the tokens after a layer to shares of the tokens before it. For most
networks every link is attention over the whole sequence; the others differ in which tokens ask and
which answer, and where windows or merged patches lie.

Axes: b images, s rows carried (one a seed), n and m tokens before and after a link, i queries,
j keys.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.explain.calls import AttentionCall
from vision_attn.explain.layout import coarser, patch_at, tokens_of_pool
from vision_attn.types import TokenLayout

After = Float[Tensor, "b s m"]
Before = Float[Tensor, "b s n"]


@dataclass(frozen=True)
class Through:
    """What one attention call does to the rows (b s i) -> (b s j): the part methods differ in.

    step(layer, call, rows, windows, spared): windows in a row belong to one image; the first
    `spared` keys are prefix tokens. The tokens that asked keep `keep` of their share and pass on
    `take` times what the step gives.
    """

    step: Callable[[int, AttentionCall, Tensor, int, int], Tensor]
    keep: float
    take: float

    def mix(self, r: After, pulled: After) -> After:
        return (self.keep * r).add_(pulled, alpha=self.take)


@dataclass(frozen=True)
class Link(ABC):
    """One layer; `layer` counts the attention calls from 0."""

    layer: int

    @abstractmethod
    def back(self, r: After, through: Through) -> Before:
        """Shares of the tokens before this link, from shares of those after it."""


@dataclass(frozen=True)
class Whole(Link):
    """Self-attention over the whole sequence, with its residual."""

    call: AttentionCall
    prefix: int

    def back(self, r: After, through: Through) -> Before:
        return through.mix(r, through.step(self.layer, self.call, r, 1, self.prefix))


@dataclass(frozen=True)
class Patches(Link):
    """Self-attention among the patches; the prefix tokens wait (CaiT's first layers)."""

    call: AttentionCall
    prefix: int

    def back(self, r: After, through: Through) -> Before:
        waiting, asking = r[..., : self.prefix], r[..., self.prefix :]
        pulled = through.step(self.layer, self.call, asking.contiguous(), 1, 0)
        return torch.cat([waiting, through.mix(asking, pulled)], -1)


@dataclass(frozen=True)
class ClassToken(Link):
    """The class token alone asks, all answer, and only it changes (CaiT's last layers)."""

    call: AttentionCall
    prefix: int

    def back(self, r: After, through: Through) -> Before:
        asking, waiting = r[..., :1], r[..., 1:]
        pulled = through.step(self.layer, self.call, asking.contiguous(), 1, self.prefix)
        return torch.cat([through.keep * asking, waiting], -1) + through.take * pulled


@dataclass(frozen=True)
class Resample(Link):
    """New tokens ask, without a residual: an attention pool, LeViT's smaller grid."""

    call: AttentionCall
    prefix: int
    unasked: int  # prefix tokens that are no keys

    def back(self, r: After, through: Through) -> Before:
        pulled = through.step(self.layer, self.call, r, 1, self.prefix - self.unasked)
        return torch.nn.functional.pad(pulled, (self.unasked, 0))


@dataclass(frozen=True)
class Windows(Link):
    """Self-attention inside windows. places: the token in each place, the token count if none."""

    call: AttentionCall
    places: Int[Tensor, "window place"]

    def back(self, r: After, through: Through) -> Before:
        (windows, size), (b, s, n) = self.places.shape, r.shape
        asking = torch.nn.functional.pad(r, (0, 1))[..., self.places]  # b s window place
        asking = asking.transpose(1, 2).reshape(b * windows, s, size)
        pulled = through.step(self.layer, self.call, asking, windows, 0)
        pulled = pulled.view(b, windows, s, size).transpose(1, 2).reshape(b, s, -1)
        onto = r.new_zeros(b, s, n + 1).index_add(2, self.places.flatten(), pulled)
        return through.mix(r, onto[..., :n])


@dataclass(frozen=True)
class Merge(Link):
    """Neighbours become one token, which gives each of them an equal part of its share."""

    parent: Int[Tensor, " n"]

    def back(self, r: After, through: Through) -> Before:
        children = torch.bincount(self.parent, minlength=r.shape[-1])
        return (r / children)[..., self.parent]


@dataclass(frozen=True)
class Chain:
    """Links in the order the network ran them; `tokens` come out of the last."""

    links: Sequence[Link]
    layout: TokenLayout
    tokens: int

    @property
    def layers(self) -> int:
        return 1 + max(link.layer for link in self.links)

    def without_readout(self) -> "Chain":
        """The chain without the attention pool that reads the last layer's tokens, if any."""
        if self.layout.pool != "attention":
            return self
        links = list(self.links)
        while links and isinstance(links[-1], Resample):
            links.pop()
        return Chain(links, self.layout, self.layout.tokens)

    def back(self, r: After, through: Through, layers: Container[int] | None = None) -> Before:
        """Shares of the network's input tokens, from shares of its last.

        layers: those that count (None: all); the others pass shares on as a residual would. Links
        that change the tokens are always gone through.
        """
        for link in reversed(self.links):
            if layers is None or link.layer in layers or isinstance(link, Resample | Merge):
                r = link.back(r, through)
        return r

    def seed(self, images: int, device: torch.device, dtype: torch.dtype) -> After:
        """One row an image: what the classifier reads."""
        r = torch.zeros(images, 1, self.tokens, device=device, dtype=dtype)
        for part, share in tokens_of_pool(self.layout, self.tokens):
            r[..., part] += share / r[..., part].shape[-1]
        return r

    def token_at(
        self, where: str | tuple[int, int] | tuple[float, float], image_size: Sequence[int]
    ) -> int:
        """The last layer's token: "cls", or the patch at a place (x, y) of the image."""
        prefix = self.layout.prefix
        if where == "cls":
            if not self.layout.class_token:
                registers = f" ({prefix} prefix tokens, none known to be one)" if prefix else ""
                raise ValueError(f"this network has no class token{registers}: give a place (x, y)")
            return 0
        assert not isinstance(where, str)
        h, w = image_size
        return prefix + patch_at(where, coarser(self.layout, self.tokens - prefix), (h, w))


def chain_of(calls: Sequence[AttentionCall], layout: TokenLayout, images: int) -> Chain:
    """The chain of calls over one sequence, by the numbers of queries and keys of each.

    Raises ValueError at the first call that does not fit the tokens the one before it left.
    """
    links: list[Link] = []
    n, prefix = layout.tokens, layout.prefix
    for layer, call in enumerate(calls):
        i, j, last = call.queries, call.keys, layer == len(calls) - 1
        if call.batch != images:
            raise ValueError(
                f"attention call {layer} ({call.module}) has a batch of {call.batch} for {images} "
                "images: windows whose places are not known, or heads counted as batch"
            )
        if i == j == n:
            links.append(Whole(layer, call, prefix))
        elif prefix and i == j == n - prefix:
            links.append(Patches(layer, call, prefix))
        elif layout.class_token and i == 1 and j == n and layout.pool != "attention":
            links.append(ClassToken(layer, call, prefix))
        elif j == n and (i < n if prefix == 0 else last and layout.pool == "attention"):
            links.append(Resample(layer, call, prefix, 0))
            n = i
        elif last and layout.pool == "attention" and j == n - prefix:
            links.append(Resample(layer, call, prefix, prefix))
            n = i
        else:
            raise ValueError(
                f"attention call {layer} ({call.module}) is {i} x {j}, but {n} tokens reach it "
                f"({layout.prefix} prefix + a grid of {layout.grid[0]}x{layout.grid[1]} at the "
                "start): not token by token (channel attention, pooled keys), or another layout: "
                "give layout="
            )
    return Chain(links, layout, n)
