"""One layer as it is: the row of one query against every key.

Axes: b batch, n tokens, head.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vision_attn.explain.calls import AttentionCall
from vision_attn.explain.chain import Chain, Through, Whole
from vision_attn.explain.pull import pull
from vision_attn.explain.trace import AttentionExplainer, Place, exactly, trace
from vision_attn.types import Heatmaps, Images, TokenLayout


@dataclass(frozen=True)
class RawAttention(AttentionExplainer):
    """The weights of one layer in the rows that the classifier reads, unchanged.

    With a class token its row; with mean pooling the mean row of the patches; with an attention
    pool, as the last layer, the pool's own row. layer: in the order they ran, -1 the last. head:
    one head, None the mean of all; a pool's heads are its looks: views, hops one after the other,
    levels (what each patch counts for, then what its region does). Only the rows needed are
    computed: O(n) each.
    """

    layer: int = -1
    head: int | None = None

    class_specific = False

    def explain(
        self,
        network: nn.Module,
        images: Images,
        targets: Int[Tensor, " b"] | None,
        layout: TokenLayout | None,
    ) -> Heatmaps:
        traced = trace(network, images, layout)
        with exactly(images):
            chain = traced.chain
            shares = one_layer(chain, traced.seed(chain), self.layer, self.head)
            return traced.heatmaps(shares[:, 0], self, total=1.0)


@dataclass(frozen=True)
class QueryKey(AttentionExplainer):
    """What one query makes of every key, in one layer.

    query: "cls" for the class token, or a place (x, y) of the image, x to the right and y down: two
    whole numbers are a pixel of the network's input, two fractions are shares of its width and
    height. None: the class token where there is one, else the centre. kind: softmax weights, or the
    scores before the softmax. layer: in the order they ran, -1 the last in which patches take part.
    head: one head, None the mean of all. Costs O(n d).
    """

    query: Place | None = None
    kind: Literal["weights", "scores"] = "weights"
    layer: int = -1
    head: int | None = None

    class_specific = False

    def explain(
        self,
        network: nn.Module,
        images: Images,
        targets: Int[Tensor, " b"] | None,
        layout: TokenLayout | None,
    ) -> Heatmaps:
        scores = self.kind == "scores"
        traced = trace(network, images, layout, ["scores"] if scores else [])
        chain = traced.chain.without_readout()
        usual: Place = "cls" if traced.layout.class_token else (0.5, 0.5)
        where = usual if self.query is None else self.query
        with exactly(images):
            if not scores:
                shares = one_layer(chain, traced.seed(chain, where), self.layer, self.head)
                return traced.heatmaps(shares[:, 0], self, total=1.0)
            link = chain.links[layer_index(chain.layers, self.layer)]
            if not isinstance(link, Whole):
                raise ValueError(
                    f"{self}: in layer {self.layer} the query meets only some of the tokens "
                    "(a window, say), so most have no score: kind='weights' shows them as 0"
                )
            token = chain.token_at(where, images.shape[2:])
            heads = one_head(link.call, self.head)
            row = link.call.scores(heads=heads, rows=torch.tensor([token], device=images.device))
            return Heatmaps(traced.layout.to_map(row[:, :, 0].mean(1)).float(), str(self))


def one_layer(
    chain: Chain, seed: Float[Tensor, "b s m"], layer: int, head: int | None
) -> Float[Tensor, "b s n"]:
    """The seed's shares of the tokens before this layer; the other layers pass them unchanged."""
    chosen = layer_index(chain.layers, layer)

    def step(at: int, call: AttentionCall, r: Tensor, windows: int, spared: int) -> Tensor:
        if at != chosen:
            return pull(call, r)
        share = torch.zeros(call.batch, call.heads, device=r.device, dtype=r.dtype)
        heads = one_head(call, head)
        share[:, heads] = 1 / share[:, heads].shape[1]
        return pull(call, r, share)

    return chain.back(seed, Through(step, keep=0.0, take=1.0), [chosen])


def layer_index(layers: int, layer: int) -> int:
    if not -layers <= layer < layers:
        raise ValueError(
            f"layer must be from {-layers} to {layers - 1}, as there are {layers} attention calls, "
            f"got {layer}"
        )
    return layer % layers


def one_head(call: AttentionCall, head: int | None) -> slice:
    if head is None:
        return slice(None)
    if not 0 <= head < call.heads:
        raise ValueError(
            f"head must be from 0 to {call.heads - 1} in {call.module or 'this layer'}, got {head}"
        )
    return slice(head, head + 1)
