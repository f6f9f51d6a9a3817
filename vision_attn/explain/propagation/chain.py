"""The chain of layers that a map is carried through, from the last to the first.

A link takes shares r of the tokens after a layer to shares of the tokens before it. For most
networks every link is attention over the whole sequence; the others differ in which tokens are
queries and which are keys, and where windows or merged patches lie.

Axes: b images, s rows carried (one a seed), n and m tokens before and after a link, i queries,
j keys.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.explain.networks.layout import coarser, patch_at, tokens_of_pool
from vision_attn.explain.recording.calls import AttentionCall
from vision_attn.types import TokenLayout

__all__ = ["Chain", "Link", "PropagationRule", "chain_of"]

After = Float[Tensor, "b s m"]
Before = Float[Tensor, "b s n"]


@dataclass(frozen=True)
class PropagationRule:
    """What one attention call does to the rows (b s i) -> (b s j): the part methods differ in.

    step(layer, call, rows, windows, prefix): `windows` in a row belong to one image; the first
    `prefix` keys are prefix tokens. Queries keep `residual` of their share and pass on `attention`
    times what the step gives.

    Examples:
        >>> import torch
        >>> from vision_attn.explain.propagation.chain import PropagationRule
        >>> rule = PropagationRule(lambda *_: None, residual=0.5, attention=0.25)
        >>> rule.mix(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0]]]))
        tensor([[[0.5000, 0.2500]]])
    """

    step: Callable[[int, AttentionCall, Tensor, int, int], Tensor]
    residual: float
    attention: float

    def mix(self, r: After, attended: After) -> After:
        """Add the residual's part of the shares to the attention's part."""
        return (self.residual * r).add_(attended, alpha=self.attention)


@dataclass(frozen=True)
class Link(ABC):
    """One layer; `layer` counts the attention calls from 0.

    A link of one's own says how shares go back through it:

    Examples:
        >>> import torch
        >>> from vision_attn.explain.propagation.chain import Link
        >>> class Reverse(Link):
        ...     def back(self, r, rule):
        ...         return r.flip(-1)
        >>> Reverse(layer=0).back(torch.tensor([[[0.0, 1.0]]]), rule=None)
        tensor([[[1., 0.]]])
    """

    layer: int

    @abstractmethod
    def back(self, r: After, rule: PropagationRule) -> Before:
        """Compute shares of the tokens before this link from shares of those after it."""


@dataclass(frozen=True)
class SelfAttention(Link):
    """Self-attention over the whole sequence, with its residual."""

    call: AttentionCall
    prefix: int

    def back(self, r: After, rule: PropagationRule) -> Before:
        return rule.mix(r, rule.step(self.layer, self.call, r, 1, self.prefix))


@dataclass(frozen=True)
class PatchAttention(Link):
    """Self-attention among the patches; the prefix tokens wait (CaiT's first layers)."""

    call: AttentionCall
    prefix: int

    def back(self, r: After, rule: PropagationRule) -> Before:
        waiting, queries = r[..., : self.prefix], r[..., self.prefix :]
        attended = rule.step(self.layer, self.call, queries.contiguous(), 1, 0)
        return torch.cat([waiting, rule.mix(queries, attended)], -1)


@dataclass(frozen=True)
class ClassAttention(Link):
    """The class token alone queries all tokens, and only it changes (CaiT's last layers)."""

    call: AttentionCall
    prefix: int

    def back(self, r: After, rule: PropagationRule) -> Before:
        query, waiting = r[..., :1], r[..., 1:]
        attended = rule.step(self.layer, self.call, query.contiguous(), 1, self.prefix)
        return torch.cat([rule.residual * query, waiting], -1) + rule.attention * attended


@dataclass(frozen=True)
class Resample(Link):
    """New tokens are queries, without a residual: an attention pool, LeViT's smaller grid.

    left_out: how many prefix tokens are no keys.
    """

    call: AttentionCall
    prefix: int
    left_out: int

    def back(self, r: After, rule: PropagationRule) -> Before:
        attended = rule.step(self.layer, self.call, r, 1, self.prefix - self.left_out)
        return torch.nn.functional.pad(attended, (self.left_out, 0))


@dataclass(frozen=True)
class WindowAttention(Link):
    """Self-attention inside windows. places: the token in each place, the token count if none."""

    call: AttentionCall
    places: Int[Tensor, "window place"]

    def back(self, r: After, rule: PropagationRule) -> Before:
        (windows, size), (b, s, n) = self.places.shape, r.shape
        queries = torch.nn.functional.pad(r, (0, 1))[..., self.places]  # b s window place
        queries = queries.transpose(1, 2).reshape(b * windows, s, size)
        attended = rule.step(self.layer, self.call, queries, windows, 0)
        attended = attended.view(b, windows, s, size).transpose(1, 2).reshape(b, s, -1)
        tokens = r.new_zeros(b, s, n + 1).index_add(2, self.places.flatten(), attended)
        return rule.mix(r, tokens[..., :n])


@dataclass(frozen=True)
class PatchMerging(Link):
    """Neighbours become one token, which gives each of them an equal part of its share."""

    parent: Int[Tensor, " n"]

    def back(self, r: After, rule: PropagationRule) -> Before:
        children = torch.bincount(self.parent, minlength=r.shape[-1])
        return (r / children)[..., self.parent]


@dataclass(frozen=True)
class Chain:
    """Links in the order the network ran them; `tokens` come out of the last.

    Examples:
        >>> import torch
        >>> from vision_attn.explain import layout_of, record_attention
        >>> from vision_attn.explain.propagation.chain import chain_of
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> with record_attention(network) as record:
        ...     logits = network(torch.rand(2, 3, 16, 16))
        >>> chain = chain_of(record.calls, layout_of(network, (16, 16)), images=2)
        >>> [type(link).__name__ for link in chain.links], chain.tokens
        (['SelfAttention', 'SelfAttention'], 5)
    """

    links: Sequence[Link]
    layout: TokenLayout
    tokens: int

    @property
    def layers(self) -> int:
        """Number of attention calls."""
        return 1 + max(link.layer for link in self.links)

    def without_readout(self) -> "Chain":
        """Drop the attention pool that reads the last layer's tokens, if any."""
        if self.layout.pool != "attention":
            return self
        links = list(self.links)
        while links and isinstance(links[-1], Resample):
            links.pop()
        return Chain(links, self.layout, self.layout.tokens)

    def back(self, r: After, rule: PropagationRule, layers: Container[int] | None = None) -> Before:
        """Compute shares of the network's input tokens from shares of its last.

        layers: those that count (None: all); the others pass shares on as a residual would. Links
        that change the tokens always count.
        """
        for link in reversed(self.links):
            if layers is None or link.layer in layers or isinstance(link, Resample | PatchMerging):
                r = link.back(r, rule)
        return r

    def seed(self, images: int, device: torch.device, dtype: torch.dtype) -> After:
        """Make one row an image (b 1 m): the shares of the tokens that the classifier reads."""
        r = torch.zeros(images, 1, self.tokens, device=device, dtype=dtype)
        for part, share in tokens_of_pool(self.layout, self.tokens):
            r[..., part] += share / r[..., part].shape[-1]
        return r

    def token_at(
        self, where: str | tuple[int, int] | tuple[float, float], image_size: Sequence[int]
    ) -> int:
        """Find the last layer's token: "cls", or the patch at a place (x, y) of the image.

        Raises ValueError for a class token where there is none, and for a place outside the image.
        """
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
    """Make the chain of calls over one sequence, by the numbers of queries and keys of each.

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
            links.append(SelfAttention(layer, call, prefix))
        elif prefix and i == j == n - prefix:
            links.append(PatchAttention(layer, call, prefix))
        elif layout.class_token and i == 1 and j == n and layout.pool != "attention":
            links.append(ClassAttention(layer, call, prefix))
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
