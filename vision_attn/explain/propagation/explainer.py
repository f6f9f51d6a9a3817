"""Methods that carry a map through the layers: what they share.

Axes: b batch, s rows carried, n tokens.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vision_attn.explain.base import (
    Targets,
    as_targets,
    check_finite,
    check_images,
    grads,
    outside_inference,
    untouched,
)
from vision_attn.explain.propagation.chain import Chain, Through
from vision_attn.explain.propagation.trace import AttentionExplainer, Place, Trace, exactly
from vision_attn.explain.recording.calls import AttentionCall
from vision_attn.types import Heatmaps, Images, TokenLayout


@dataclass(frozen=True)
class Chained(AttentionExplainer):
    """A map carried from one token, or what the classifier reads, through the layers to the input.

    start_layer: the first attention call that counts, from 0; those below pass shares on unchanged.
    query: where the map starts: None for what the classifier reads, "cls" for the class token, or a
    place (x, y) of the image, x to the right and y down: two whole numbers are a pixel of the
    network's input, two fractions are shares of its width and height.
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
    def prepare(
        self,
        network: nn.Module,
        images: Images,
        targets: Int[Tensor, " b"] | None,
        layout: TokenLayout | None,
    ) -> tuple[Trace, Through, Int[Tensor, " b"] | None]:
        """The run, what a layer does to the rows, and the classes explained, if any."""

    def explain(
        self,
        network: nn.Module,
        images: Images,
        targets: Int[Tensor, " b"] | None,
        layout: TokenLayout | None,
    ) -> Heatmaps:
        traced, through, targets = self.prepare(network, images, targets, layout)
        with exactly(images):
            chain = traced.chain if self.query is None else traced.chain.without_readout()
            shares = self._carry(chain, traced.seed(chain, self.query), through)
            return traced.heatmaps(shares[:, 0], self, targets, self.total)

    @final
    def rows(
        self,
        network: nn.Module,
        images: Tensor,
        tokens: Sequence[int] | Tensor | None = None,
        targets: Targets | None = None,
        layout: TokenLayout | None = None,
    ) -> Float[Tensor, "b s n"]:
        """The shares of every input token, prefix too, in each of these tokens of the last layer.

        tokens: indices into the last layer's sequence, prefix tokens first; None takes all. They go
        through the layers together, in one sweep. An attention pool at the end is left out.
        """
        if reason := self.refusal(network):
            raise ValueError(f"{self} does not fit {type(network).__name__}: {reason}")
        check_images(network, images)
        with untouched(network), grads(network) if self.needs_gradients else torch.no_grad():
            wanted = None if targets is None else as_targets(targets, images)
            images = outside_inference(images.detach())
            traced, through, _ = self.prepare(network, images, wanted, layout)
            with exactly(images):
                chain = traced.chain.without_readout()
                shares = self._carry(chain, traced.one(chain, tokens), through)
                check_finite(shares, f"the rows of {self}", network, images)
        return shares

    def _carry(self, chain: Chain, seed: Tensor, through: Through) -> Float[Tensor, "b s n"]:
        if self.start_layer >= chain.layers:
            raise ValueError(
                f"start_layer must be below {chain.layers}, the number of attention calls, "
                f"got {self.start_layer}"
            )
        layers = range(self.start_layer, chain.layers)
        shares = chain.back(seed, through, layers)
        return shares if self.keeps_seed else shares - chain.back(seed, RESIDUALS, layers)


def _nothing(layer: int, call: AttentionCall, r: Tensor, windows: int, spared: int) -> Tensor:
    return r.new_zeros(*r.shape[:2], call.keys)


RESIDUALS = Through(_nothing, keep=1.0, take=0.0)
