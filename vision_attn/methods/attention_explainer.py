"""Explainers that read attention: run a network once, carry a map through its layers.

Axes: b batch, s rows carried, n and m tokens before and after the layers, h height, w width,
k classes, head, i queries, e value width.
"""

import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.arguments import checked
from vision_attn.inference import infer
from vision_attn.methods.base import Explainer, laid
from vision_attn.methods.passes import shared
from vision_attn.methods.targets import Target, TargetLike
from vision_attn.tokens.gradients.levels import levels_or_none
from vision_attn.tokens.outputs import check_finite, run
from vision_attn.tokens.path.branches import without_readout
from vision_attn.tokens.path.cells import KeptCells
from vision_attn.tokens.path.chain import Chain, Patches, PropagationRule
from vision_attn.tokens.path.path import NO_ATTENTION, Path, find_path
from vision_attn.tokens.path.support import refusal_of
from vision_attn.tokens.record.calls import AttentionCall, Fusion
from vision_attn.tokens.record.log import Part, Record
from vision_attn.tokens.record.record import record_attention
from vision_attn.types import Head, Heatmaps, Images, Model, TokenLayout

__all__ = [
    "AttentionExplainer",
    "ChainExplainer",
    "Gradients",
    "PerHead",
    "Place",
    "Trace",
    "full_precision",
    "gradients_of",
    "heatmaps_of",
    "kept_cells",
    "trace",
    "trace_gradients",
]

Place = Literal["cls"] | tuple[int, int] | tuple[float, float]
PerHead = Float[Tensor, "window head i e"]
Gradients = list[Tensor]  # one a call, each (window head i e)

# A norm above this many times the median of the patches makes a patch an outlier.
OUTLIER = 2.0


@dataclass(frozen=True)
class Trace:
    """One run of a network: its attention calls in order, and the chain that they make.

    Attributes:
        calls: Those that count.
        chain: How a map is carried back through them.
        images: What the run was of, (b c h w).
        outliers: Patches whose tokens have outlying norms, (b rows columns); None where that is not
            known.

    Examples:
        >>> import torch
        >>> from vision_attn.methods.attention_explainer import trace
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> traced = trace(network, torch.rand(1, 3, 16, 16), layout=None)
        >>> traced.layout.grid
        (2, 2)
        >>> traced.seed(traced.chain).tolist()
        [[[1.0, 0.0, 0.0, 0.0, 0.0]]]
    """

    calls: Sequence[AttentionCall]
    chain: Chain
    images: Images
    outliers: Bool[Tensor, "b rows columns"] | None

    @property
    def layout(self) -> TokenLayout:
        """How the tokens of the first layer lie on the image."""
        return self.chain.layout

    def seed(self, chain: Chain, where: Place | None = None) -> Float[Tensor, "b 1 m"]:
        """Make the row to start from: the tokens that the classifier reads, or one token."""
        if where is None:
            call = self.calls[0]
            return chain.seed(len(self.images), call.device, call.dtype)
        return self.rows_at(chain, [chain.token_at(where, self.images.shape[2:])])

    def rows_at(
        self, chain: Chain, tokens: Sequence[int] | Tensor | None
    ) -> Float[Tensor, "b s m"]:
        """Make rows for tokens of the last layer.

        Args:
            chain: The chain that they are to go back through.
            tokens: The tokens' indices; None takes all of them.

        Returns:
            A row each, (b s m).

        Raises:
            ValueError: An index is out of range.
        """
        call = self.calls[0]
        every = range(chain.tokens) if tokens is None else tokens
        indices = torch.as_tensor(every, device=call.device)
        if (
            indices.ndim != 1
            or not len(indices)
            or indices.min() < 0
            or indices.max() >= chain.tokens
        ):
            raise ValueError(
                f"tokens must be indices from 0 to {chain.tokens - 1} into the last layer's "
                f"sequence, got {tokens}"
            )
        rows = F.one_hot(indices, chain.tokens).to(call.dtype)
        return rows.expand(len(self.images), -1, -1)

    def heatmaps(
        self,
        shares: Float[Tensor, "b n"],
        method: Explainer,
        targets: Int[Tensor, " b"] | None = None,
        total: float | None = None,
    ) -> Heatmaps:
        """Make heatmaps of shares of the input tokens of this run: see `heatmaps_of`."""
        outliers, part = self.outliers, self.chain.part
        return heatmaps_of(shares, self.layout, method, targets, total, outliers, part)


def heatmaps_of(
    shares: Float[Tensor, "b n"],
    layout: TokenLayout,
    method: Explainer,
    targets: Int[Tensor, " b"] | None = None,
    total: float | None = None,
    outliers: Bool[Tensor, "b rows columns"] | None = None,
    part: KeptCells | None = None,
) -> Heatmaps:
    """Make heatmaps of shares of the input tokens.

    total: what all the shares sum to, those of padding included; None takes the sum of `shares`.
    outliers: the patches whose share is the outlier mass. part: as of `Chain`.
    """
    shares = shares.float()
    values = layout.to_map(shares)
    mass = shares.sum(1) if total is None else torch.full_like(shares[:, 0], total)
    mass = mass.where(mass != 0, 1)  # a map of zeros has no shares
    padding = mass - shares.sum(1) if total is not None else 0.0
    prefix_mass = (shares[:, layout.beside].sum(1) + padding) / mass
    share = values / mass[:, None, None]
    outlier_mass = None if outliers is None else share.masked_fill(~outliers, 0).sum((1, 2))
    return laid(Heatmaps(values, str(method), targets, prefix_mass, outlier_mass), part)


@contextmanager
def full_precision(x: Tensor) -> Iterator[None]:
    """Compute off the graph, and without autocast, which would be in half precision."""
    kind = x.device.type
    without: AbstractContextManager[Any] = nullcontext()
    if torch.is_autocast_enabled(kind):
        without = torch.autocast(kind, enabled=False)
    with torch.no_grad(), without:
        yield


@dataclass(frozen=True)
class AttentionExplainer(Explainer):
    """A method that reads attention: any network that attends from token to token.

    Examples:
        >>> from torch import nn
        >>> from vision_attn.methods import Rollout
        >>> Rollout().refusal(nn.Conv2d(3, 5, 3))
        'no attention was found: no matrix product of values with weights that sum to 1'
    """

    def refusal(self, network: nn.Module) -> str | None:
        return with_advice(refusal_of(network), network)

    def refusal_for(
        self, network: nn.Module, images: Images, layout: TokenLayout | None = None
    ) -> str | None:
        return with_advice(refusal_of(network, images, layout), network)


def with_advice(reason: str | None, network: nn.Module) -> str | None:
    """Add to the reason of a refusal what to do with a network of convolutions alone."""
    if reason != NO_ATTENTION:
        return reason
    convolutions = sum(isinstance(module, nn.Conv2d) for module in network.modules())
    if convolutions < 2:  # one makes patches
        return reason
    return f"{reason} (a CNN without attention: use GradCAM)"


def trace(
    network: nn.Module,
    images: Images,
    layout: TokenLayout | None,
    keep: Sequence[Part] = (),
    fusion: Fusion | None = None,
) -> Trace:
    """Run a network on images and chain its attention calls; `keep`, `fusion`: `record_attention`.

    Raises ValueError where no map can be carried along the calls, or the layout does not fit them.
    """
    path = find_path(network, images)
    with record_attention(network, keep, fusion) as record:
        infer(network, images.clone())
    calls = path.counted(record.calls, len(images), network)
    return _traced(network, path, record, calls, layout, images)


def trace_gradients(
    network: nn.Module,
    images: Images,
    target: Target,
    layout: TokenLayout | None,
) -> tuple[Trace, Gradients, Target]:
    """Run a network and differentiate each image's target by the context of every call.

    Returns the run, the gradients and the target, with the predicted classes if it is of these.
    """
    return shared(
        "attention and its gradients",
        lambda: _trace_gradients(network, images, target, layout),
        *(network, images, target, layout),
    )


def _trace_gradients(
    network: nn.Module, images: Images, target: Target, layout: TokenLayout | None
) -> tuple[Trace, Gradients, Target]:
    path = find_path(network, images)
    with record_attention(network, ("v", "context")) as record:
        output = run(network, images.detach().requires_grad_())
    target = target.fixed(output)
    score = target(output).sum()
    calls, gradients = (
        path.counted(each, len(images), network) for each in gradients_of(score, record.calls)
    )
    return _traced(network, path, record, calls, layout, images), gradients, target


def gradients_of(
    score: Tensor, calls: Sequence[AttentionCall]
) -> tuple[list[AttentionCall], Gradients]:
    """Compute d score / d context of every call; also return the calls off the graph.

    Zeros where a call's context is not known. Raises ValueError where the score depends on none.
    """
    contexts = {index: call.context for index, call in enumerate(calls) if call.context is not None}
    of_contexts: Sequence[Tensor | None] = [None] * len(contexts)
    if score.requires_grad and contexts:
        of_contexts = torch.autograd.grad(score, list(contexts.values()), allow_unused=True)
    if all(gradient is None for gradient in of_contexts):
        raise ValueError("no gradient of the target reaches any attention call")
    gradient_at = dict(zip(contexts, of_contexts, strict=True))
    detached, gradients = [], []
    for index, call in enumerate(calls):
        context, gradient = call.context, gradient_at.get(index)
        context = None if context is None else per_head(context.detach())
        shape = call.batch, call.heads, call.queries, 1
        zeros = torch.zeros(shape, dtype=call.dtype, device=call.device)
        detached.append(replace(call, context=context))
        if gradient is not None:
            gradients.append(per_head(gradient))
        else:
            gradients.append(zeros if context is None else torch.zeros_like(context))
    return detached, gradients


def per_head(context: Tensor) -> PerHead:
    """Give a single head's context its head axis."""
    return context.unsqueeze(1) if context.ndim == 3 else context


def kept_cells(network: nn.Module, images: Images, path: Path) -> KeptCells | None:
    """Find which cells of the image the first tokens are; None: all, as far as is known.

    Boxes of pixels with gaps between them may be those of queries, whose tokens are of all keys:
    the network must crop, too.
    """
    part = None if path.chain is None else path.chain.part
    levels = None if part is None else levels_or_none(network, images)
    return part if levels is not None and levels.crops else None


def _traced(
    network: nn.Module,
    path: Path,
    record: Record,
    calls: Sequence[AttentionCall],
    layout: TokenLayout | None,
    images: Images,
) -> Trace:
    chain = path.chain_for(calls, layout, len(images))
    chain = replace(chain, part=kept_cells(network, images, path))
    for sentence in path.warnings(layout):
        warnings.warn(sentence, stacklevel=2)
    return Trace(calls, chain, images, _outliers(record, chain.layout, len(images)))


def _outliers(record: Record, layout: TokenLayout, images: int) -> Tensor | None:
    stream = record.streams.get(layout.tokens)
    if stream is None or len(stream) != images:
        return None
    norms = layout.to_map(stream.float().norm(dim=-1))
    return norms > OUTLIER * norms.flatten(1).median(1).values[:, None, None]


def without_outliers(maps: Heatmaps, outliers: Tensor | None) -> Heatmaps:
    """Set a map to 0 on patches with outlying norms; ValueError where these are not known."""
    if outliers is None:
        raise ValueError(
            f"{maps.method}: the norms of this network's last tokens are not known, so there is "
            "nothing to leave out: leave outliers=False away"
        )
    return replace(maps, values=maps.values.masked_fill(outliers, 0))


@dataclass(frozen=True)
class ChainExplainer(AttentionExplainer):
    """A map carried from one token, or what the classifier reads, through the layers to the input.

    Args:
        start_layer: The first attention call that counts, from 0; those below pass shares on
            unchanged.
        query: Where the map starts: None for what the classifier reads, "cls" for the class token,
            or a place (x, y) of the image, x to the right and y down: two whole numbers are a pixel
            of the network's input, two fractions are shares of its width and height.

    Raises:
        ValueError: `start_layer` is below 0.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import Rollout
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> images = torch.rand(1, 3, 16, 16)
        >>> rows = Rollout().rows(network, images)  # of all 5 tokens at once
        >>> maps = Rollout(query="cls")(network, images)
        >>> torch.allclose(rows[0, 0, 1:], maps.values[0].flatten())
        True
    """

    start_layer: int = field(default=0, kw_only=True)
    query: Place | None = field(default=None, kw_only=True)

    total: ClassVar[float | None] = None
    """What a map and the shares beside the image sum to; None where it is not known."""

    keeps_seed: ClassVar[bool] = True
    """Whether what the seed keeps through the residuals alone counts in the map."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start_layer < 0:
            raise ValueError(f"start_layer must be at least 0, got {self.start_layer}")

    @abstractmethod
    def run(
        self,
        network: nn.Module,
        images: Images,
        target: Target,
        layout: TokenLayout | None,
    ) -> tuple[Trace, PropagationRule, Target | None]:
        """Run the network; return its trace, the rule for its layers, and the target, if any."""

    def explain(
        self,
        network: nn.Module,
        images: Images,
        target: Target,
        layout: TokenLayout | None,
    ) -> Heatmaps:
        traced, rule, explained = self.run(network, images, target, layout)
        classes = None if explained is None else explained.classes(images)
        with full_precision(images):
            chain = traced.chain if self.query is None else without_readout(traced.chain)
            shares = self._carry(chain, traced.seed(chain, self.query), rule)
            maps = traced.heatmaps(shares[:, 0], self, classes, self.total)
            outliers, part = traced.outliers, chain.part
            outliers = outliers if outliers is None or part is None else part.lay(outliers)
            return maps if self.keeps_outliers else without_outliers(maps, outliers)

    @property
    def keeps_outliers(self) -> bool:
        """Whether patches with outlying norms keep their share of the map."""
        return getattr(self, "outliers", True)

    @final
    @checked()
    def rows(
        self,
        network: nn.Module | Model,
        images: Tensor,
        tokens: Sequence[int] | Tensor | None = None,
        target: TargetLike = None,
        layout: TokenLayout | None = None,
        head: Head | None = None,
    ) -> Float[Tensor, "b s n"]:
        """Compute the share of every input token, prefix too, in these tokens of the last layer.

        The tokens go through the layers together, in one sweep. An attention pool at the end is
        left out. The arguments that are not listed and the errors are those of a call.

        Args:
            network: A network, or a model.
            images: (b, c, h, w).
            tokens: Indices into the last layer's sequence, prefix tokens first; None takes all.
            target: As in a call.
            layout: As in a call.
            head: As in a call.

        Returns:
            The shares, (b s n): of n input tokens in each of s tokens.

        Raises:
            ValueError: As in a call, or an index is out of range.
        """
        with self.prepared(network, images, target, layout, head) as arguments:
            network, images, *_ = arguments
            traced, rule, _ = self.run(*arguments)
            with full_precision(images):
                chain = without_readout(traced.chain)
                shares = self._carry(chain, traced.rows_at(chain, tokens), rule)
                check_finite(shares, f"a row of {self}", network, images)
        return shares

    def _carry(self, chain: Chain, seed: Tensor, rule: PropagationRule) -> Float[Tensor, "b s n"]:
        if self.start_layer >= chain.layers:
            raise ValueError(
                f"start_layer must be below {chain.layers}, the number of attention calls, "
                f"got {self.start_layer}"
            )
        layers = range(self.start_layer, chain.layers)
        shares = chain.back(seed, rule, layers)
        return shares if self.keeps_seed else shares - chain.back(seed, RESIDUALS, layers)


def _no_attention(
    layer: int, call: AttentionCall, r: Tensor, windows: int, patches: Patches
) -> Tensor:
    return r.new_zeros(*r.shape[:2], call.keys)


RESIDUALS = PropagationRule(_no_attention, residual=1.0, attention=0.0)
