"""The chain of layers that a map is carried through, from the last to the first.

A link takes shares r of the tokens after a layer to shares of the tokens before it. Links differ in
which tokens are queries and which are keys; `tokens/path/walk.py` finds them.

Axes: b images, s rows carried (one a seed), n and m tokens before and after a link, i queries,
j keys.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.tokens.layout import coarser, patch_at, tokens_of_pool
from vision_attn.tokens.path.cells import KeptCells
from vision_attn.tokens.record.calls import AttentionCall
from vision_attn.types import TokenLayout

__all__ = ["Attention", "Chain", "Link", "Patches", "PropagationRule", "Regroup"]

Patches = Sequence[int] | None  # of the keys, those that are places of the image; None: all
After = Float[Tensor, "b s m"]
Before = Float[Tensor, "b s n"]


@dataclass(frozen=True)
class PropagationRule:
    """What one attention call does to the rows (b s i) -> (b s j): the part methods differ in.

    Queries keep `residual` of their share and pass on `attention` times what the step gives.

    Attributes:
        step: Called as step(layer, call, rows, windows, patches): `windows` in a row belong to one
            image; `patches` are the keys that are places of it, None: all.
        residual: The share that a query keeps.
        attention: The share that it passes on.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.path.chain import PropagationRule
        >>> rule = PropagationRule(lambda *_: None, residual=0.5, attention=0.25)
        >>> rule.mix(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0]]]))
        tensor([[[0.5000, 0.2500]]])
    """

    step: Callable[[int, AttentionCall, Tensor, int, Patches], Tensor]
    residual: float
    attention: float

    def mix(self, r: After, attended: After) -> After:
        """Add the residual's part of the shares to the attention's part."""
        return (self.residual * r).add_(attended, alpha=self.attention)


@dataclass(frozen=True)
class Link(ABC):
    """One layer; `layer` counts the attention calls from 0, `before` the tokens before it.

    A link of one's own says how shares go back through it:

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.path.chain import Link
        >>> class Reverse(Link):
        ...     def back(self, r, rule):
        ...         return r.flip(-1)
        >>> Reverse(layer=0, before=2).back(torch.tensor([[[0.0, 1.0]]]), rule=None)
        tensor([[[1., 0.]]])
    """

    layer: int
    before: int

    @property
    def always(self) -> bool:
        """Whether it changes the tokens, so that no map can pass it by."""
        return False

    @abstractmethod
    def back(self, r: After, rule: PropagationRule) -> Before:
        """Compute shares of the tokens before this link from shares of those after it."""


@dataclass(frozen=True)
class Attention(Link):
    """One attention call, among all tokens or in windows.

    Attributes:
        queries: The token at each place of the queries, the token count where there is none
            (padding).
        keys: The same of the keys.
        new: The places of the outputs among the tokens after the call, where they are tokens of
            their own: an attention pool, LeViT's smaller grid; None where each is added to its
            query, and the other tokens wait.
        kept: Whether the tokens before the call live on, ahead of the new.
        patches: The keys that are places of the image; None: all.
        foreign: Whether the weights of each query come of other tokens than the one its output is
            added to.
        call: None until a run gives it.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.path.chain import Attention, PropagationRule
        >>> all_tokens = torch.arange(3)[None]
        >>> link = Attention(0, 3, queries=torch.tensor([[0]]), keys=all_tokens)
        >>> rule = PropagationRule(lambda *_: torch.full((1, 1, 3), 1 / 3), 0.5, 0.5)
        >>> link.back(torch.tensor([[[1.0, 0.0, 0.0]]]), rule)
        tensor([[[0.6667, 0.1667, 0.1667]]])
    """

    queries: Int[Tensor, "window i"]
    keys: Int[Tensor, "window j"]
    new: Int[Tensor, "window i"] | None = None
    kept: bool = False
    patches: Patches = None
    foreign: bool = False
    call: AttentionCall | None = None

    @cached_property
    def whole(self) -> bool:
        """Whether all tokens attend to all, each added to itself."""
        every = torch.arange(self.before, device="cpu")[None]
        return self.new is None and all(
            token_indices.shape == every.shape and bool((token_indices.cpu() == every).all())
            for token_indices in (self.queries, self.keys)
        )

    def called(self, call: AttentionCall) -> "Attention":
        """Return this link with a run's call, and with what is cached about its tokens."""
        _ = self.whole
        linked = object.__new__(type(self))
        vars(linked).update(vars(self), call=call)
        return linked

    @property
    def always(self) -> bool:
        return self.new is not None

    def back(self, r: After, rule: PropagationRule) -> Before:
        call: Any = self.call
        windows = len(self.queries)
        if self.whole:
            return rule.mix(r, rule.step(self.layer, call, r, 1, self.patches))
        output_indices = (self.queries if self.new is None else self.new).to(r.device)
        b, s, _ = r.shape
        rows = torch.nn.functional.pad(r, (0, 1))[..., output_indices]  # b s window i
        rows = rows.transpose(1, 2).reshape(b * windows, s, -1)
        attended = rule.step(self.layer, call, rows, windows, self.patches)
        attended = attended.view(b, windows, s, -1).transpose(1, 2).reshape(b, s, -1)
        tokens = r.new_zeros(b, s, self.before + 1)
        tokens = tokens.index_add(2, self.keys.flatten().to(r.device), attended)[..., :-1]
        if self.new is not None:
            return tokens.add_(r[..., : self.before]) if self.kept else tokens
        share = r.new_ones(self.before + 1)
        share[output_indices.flatten()] = rule.residual
        return (share[:-1] * r).add_(tokens, alpha=rule.attention)

    def widened(self, more: int) -> "Attention":
        """Let `more` tokens pass the link unchanged, after the others."""
        wider = self.before + more  # which also stands for no token
        queries, keys = (x.masked_fill(x == self.before, wider) for x in (self.queries, self.keys))
        return replace(self, before=wider, queries=queries, keys=keys)


@dataclass(frozen=True)
class Regroup(Link):
    """Tokens made of others between two calls, each giving them equal parts of its share.

    Swin's merged patches, a mean of all tokens, tokens that are left out.

    Attributes:
        made: The token after, of each pair.
        of: The token before, of each pair.
        part: The part that passes between them.
        copies: Whether it copies tokens for calls side by side.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.path.chain import PropagationRule, Regroup
        >>> merged = torch.tensor([0, 0]), torch.tensor([0, 1]), torch.tensor([0.5, 0.5])
        >>> rule = PropagationRule(lambda *_: None, residual=0.5, attention=0.5)
        >>> Regroup(0, 2, *merged).back(torch.tensor([[[1.0]]]), rule)
        tensor([[[0.5000, 0.5000]]])
    """

    made: Int[Tensor, " pair"]
    of: Int[Tensor, " pair"]
    part: Float[Tensor, " pair"]
    copies: bool = False

    @property
    def always(self) -> bool:
        return True

    def back(self, r: After, rule: PropagationRule) -> Before:
        new_indices, of = self.made.to(r.device), self.of.to(r.device)
        part = self.part.to(r)  # at once: Apple's GPUs have no float64
        return r.new_zeros(*r.shape[:2], self.before).index_add(2, of, r[..., new_indices] * part)

    def widened(self, more: int) -> "Regroup":
        """Let `more` tokens pass the link unchanged, after the others."""
        waiting, after = torch.arange(more, device="cpu"), int(self.made.max()) + 1
        return replace(
            self,
            before=self.before + more,
            made=torch.cat([self.made, after + waiting]),
            of=torch.cat([self.of, self.before + waiting]),
            part=torch.cat([self.part, torch.ones(more, dtype=torch.float64, device="cpu")]),
        )


@dataclass(frozen=True)
class Chain:
    """Links in the order the network ran them; `tokens` come out of the last.

    Attributes:
        links: The calls, and what makes tokens of others between them.
        layout: How the tokens ahead of the first lie on the image.
        tokens: How many come out of the last.
        reads: The share of each of these that the classifier reads; None: as the layout's pool
            says.
        part: Where the layout's grid lies, if its boxes leave out some of the image.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.path.path import find_path
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> chain = find_path(network, torch.rand(1, 3, 16, 16)).chain
        >>> [type(link).__name__ for link in chain.links], chain.tokens
        (['Attention', 'Attention'], 5)
    """

    links: Sequence[Link]
    layout: TokenLayout
    tokens: int
    reads: Float[Tensor, " m"] | None = None
    part: KeptCells | None = None

    @property
    def layers(self) -> int:
        """Number of attention calls."""
        return 1 + max(link.layer for link in self.links)

    def back(self, r: After, rule: PropagationRule, layers: Container[int] | None = None) -> Before:
        """Compute shares of the network's input tokens from shares of its last.

        Args:
            r: The shares of the last layer's tokens, (b s m).
            rule: What an attention call does to them.
            layers: Those that count; the others pass shares on as a residual would. Links that
                change the tokens always count. None: all count.

        Returns:
            The shares of the input tokens, (b s n).
        """
        for link in reversed(self.links):
            if layers is None or link.layer in layers or link.always:
                r = link.back(r, rule)
        return r

    def seed(self, images: int, device: torch.device, dtype: torch.dtype) -> After:
        """Make one row an image (b 1 m): the shares of the tokens that the classifier reads."""
        if self.reads is not None:
            return self.reads.to(device, dtype).expand(images, 1, -1)
        r = torch.zeros(images, 1, self.tokens, device=device, dtype=dtype)
        for part, share in tokens_of_pool(self.layout, self.tokens):
            r[..., part] += share / r[..., part].shape[-1]
        return r

    def token_at(
        self, where: str | tuple[int, int] | tuple[float, float], image_size: Sequence[int]
    ) -> int:
        """Find a token of the last layer.

        Args:
            where: "cls", or a place (x, y) of the image.
            image_size: (height, width) in pixels.

        Raises:
            ValueError: There is no class token, or the place lies outside the image.
        """
        layout = self.layout
        if where == "cls":
            if not layout.class_token:
                beside = len(layout.beside)
                registers = f" ({beside} prefix tokens, none known to be one)" if beside else ""
                raise ValueError(f"this network has no class token{registers}: give a place (x, y)")
            return 0
        assert not isinstance(where, str)
        h, w = image_size
        where = where if self.part is None else self.part.place_among(where, (h, w))
        if self.tokens == layout.tokens:
            return layout.patches[patch_at(where, layout.grid, (h, w))]
        first = layout.prefix
        return first + patch_at(where, coarser(layout, self.tokens - first), (h, w))
