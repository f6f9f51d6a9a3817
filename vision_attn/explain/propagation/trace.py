"""Run a network once and have its attention as a chain; what all attention explainers share.

Axes: b batch, n tokens, h height, w width, k classes, head, i queries, e value width.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.explain.base import Explainer, chosen, class_logits
from vision_attn.explain.networks.layout import layout_of
from vision_attn.explain.networks.support import chain_through, refusal_of
from vision_attn.explain.propagation.chain import Chain
from vision_attn.explain.recording.calls import AttentionCall, Fusion
from vision_attn.explain.recording.record import record_attention
from vision_attn.explain.recording.recorder import Part, Record
from vision_attn.types import Heatmaps, Images, TokenLayout

Place = Literal["cls"] | tuple[int, int] | tuple[float, float]
PerHead = Float[Tensor, "window head i e"]
Gradients = list[Tensor]  # one a call, each (window head i e)

# A norm above this many times the median of the patches makes a patch an outlier.
OUTLIER = 2.0


@dataclass(frozen=True)
class Trace:
    """One run: its attention calls in order, the chain they make, and where outliers lie."""

    calls: Sequence[AttentionCall]
    chain: Chain
    images: Images
    outliers: Bool[Tensor, "b rows columns"] | None

    @property
    def layout(self) -> TokenLayout:
        return self.chain.layout

    def seed(self, chain: Chain, where: Place | None = None) -> Float[Tensor, "b 1 m"]:
        """What the classifier reads of the last layer's tokens, or one token of them."""
        if where is None:
            call = self.calls[0]
            return chain.seed(len(self.images), call.device, call.dtype)
        return self.one(chain, [chain.token_at(where, self.images.shape[2:])])

    def one(self, chain: Chain, tokens: Sequence[int] | Tensor | None) -> Float[Tensor, "b s m"]:
        """A row for each of these tokens of the last layer; None takes all of them."""
        call = self.calls[0]
        which = torch.arange(chain.tokens) if tokens is None else torch.as_tensor(tokens)
        if which.ndim != 1 or not len(which) or which.min() < 0 or which.max() >= chain.tokens:
            raise ValueError(
                f"tokens must be indices from 0 to {chain.tokens - 1} into the last layer's "
                f"sequence, got {tokens}"
            )
        rows = F.one_hot(which.to(call.device), chain.tokens).to(call.dtype)
        return rows.expand(len(self.images), -1, -1)

    def heatmaps(
        self,
        shares: Float[Tensor, "b n"],
        method: Explainer,
        targets: Int[Tensor, " b"] | None = None,
        total: float | None = None,
    ) -> Heatmaps:
        """The map of shares over the input tokens, with what fell beside the image."""
        return heatmaps(shares, self.layout, method, targets, total, self.outliers)


def heatmaps(
    shares: Float[Tensor, "b n"],
    layout: TokenLayout,
    method: Explainer,
    targets: Int[Tensor, " b"] | None = None,
    total: float | None = None,
    outliers: Bool[Tensor, "b rows columns"] | None = None,
) -> Heatmaps:
    """The map of shares over the input tokens.

    total: what all the shares sum to, those of padding included; None takes the sum of `shares`.
    """
    shares = shares.float()
    values = layout.to_map(shares)
    whole = shares.sum(1) if total is None else torch.full_like(shares[:, 0], total)
    whole = whole.where(whole != 0, 1)  # a map of zeros has no shares
    padding = whole - shares.sum(1) if total is not None else 0.0
    beside = (shares[:, : layout.prefix].sum(1) + padding) / whole
    share = values / whole[:, None, None]
    outlying = None if outliers is None else share.masked_fill(~outliers, 0).sum((1, 2))
    return Heatmaps(values, str(method), targets, beside, outlying)


@contextmanager
def exactly(images: Images) -> Iterator[None]:
    """Off the graph, and without autocast, which would compute in half precision."""
    with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
        yield


@dataclass(frozen=True)
class AttentionExplainer(Explainer):
    """A method that reads attention: any network that attends from token to token."""

    def refusal(self, network: nn.Module) -> str | None:
        return refusal_of(network)


def trace(
    network: nn.Module,
    images: Images,
    layout: TokenLayout | None,
    keep: Sequence[Part] = (),
    fusion: Fusion | None = None,
) -> Trace:
    """Run the network on the images, as `record_attention` is told.

    Raises ValueError where the layout does not fit the calls.
    """
    layout = layout or layout_of(network, (images.shape[2], images.shape[3]))
    with record_attention(network, keep, fusion) as record:
        network(images)
    return _traced(network, record, record.calls, layout, images)


def trace_gradients(
    network: nn.Module,
    images: Images,
    targets: Int[Tensor, " b"] | None,
    layout: TokenLayout | None,
) -> tuple[Trace, Gradients, Int[Tensor, " b"]]:
    """The run, the gradient of each image's class logit by every call's context, the classes."""
    layout = layout or layout_of(network, (images.shape[2], images.shape[3]))
    with record_attention(network, ("v", "context")) as record:
        logits = class_logits(network, images.detach().requires_grad_())
    targets = chosen(logits, targets)
    score = logits.gather(1, targets[:, None]).sum()
    calls, gradients = gradients_of(score, record.calls)
    return _traced(network, record, calls, layout, images), gradients, targets


def gradients_of(
    score: Tensor, calls: Sequence[AttentionCall]
) -> tuple[list[AttentionCall], Gradients]:
    """d score / d context of every call, in the calls' own order; and the calls off the graph.

    Zeros where a call's context is not known. Raises ValueError where the score depends on none.
    """
    contexts = {at: call.context for at, call in enumerate(calls) if call.context is not None}
    given: Sequence[Tensor | None] = [None] * len(contexts)
    if score.requires_grad and contexts:
        given = torch.autograd.grad(score, list(contexts.values()), allow_unused=True)
    if all(gradient is None for gradient in given):
        raise ValueError("the logits do not depend on any attention call through the graph")
    gradients = dict(zip(contexts, given, strict=True))
    off, found = [], []
    for at, call in enumerate(calls):
        context, gradient = call.context, gradients.get(at)
        context = None if context is None else per_head(context.detach())
        nothing = torch.zeros(call.batch, call.heads, call.queries, 1, device=call.device)
        off.append(replace(call, context=context))
        if gradient is not None:
            found.append(per_head(gradient))
        else:
            found.append(nothing if context is None else torch.zeros_like(context))
    return off, found


def per_head(context: Tensor) -> PerHead:
    """A single head's context with its head axis."""
    return context.unsqueeze(1) if context.ndim == 3 else context


def _traced(
    network: nn.Module,
    record: Record,
    calls: Sequence[AttentionCall],
    layout: TokenLayout,
    images: Images,
) -> Trace:
    chain = chain_through(network, calls, layout, len(images))
    return Trace(calls, chain, images, _outliers(record, layout, len(images)))


def _outliers(record: Record, layout: TokenLayout, images: int) -> Tensor | None:
    stream = record.streams.get(layout.tokens)
    if stream is None or len(stream) != images:
        return None
    norms = layout.to_map(stream.float().norm(dim=-1))
    return norms > OUTLIER * norms.flatten(1).median(1).values[:, None, None]
