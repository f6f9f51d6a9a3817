"""One layer as it is: the row of one query against every key.

Axes: b batch, n tokens, head.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vision_attn.errors import quoted
from vision_attn.methods.attention_explainer import AttentionExplainer, Place, full_precision, trace
from vision_attn.methods.base import laid
from vision_attn.methods.targets import Target
from vision_attn.tokens.carry.transpose import apply_transpose
from vision_attn.tokens.layout import coarser
from vision_attn.tokens.modules import LayerLike, calls_of_layer
from vision_attn.tokens.path.branches import of_one_call, without_readout
from vision_attn.tokens.path.chain import Attention, Chain, Patches, PropagationRule
from vision_attn.tokens.path.path import find_path
from vision_attn.tokens.record.calls import AttentionCall
from vision_attn.types import Heatmaps, Images, TokenLayout

__all__ = ["AttentionLayer", "QueryKey", "RawAttention", "layer_index"]

AttentionLayer = int | LayerLike | list[int | LayerLike] | tuple[int | LayerLike, ...]


@dataclass(frozen=True)
class RawAttention(AttentionExplainer):
    """The weights of one layer in the rows that the classifier reads, unchanged.

    With a class token its row; with mean pooling the mean row of the patches; with an attention
    pool, as the last layer, the pool's own row. Only the rows needed are computed: O(n) each.

    Args:
        layer: In the order they ran, -1 the last; or the module that attends or a block around it,
            or the name of one (`blocks.-2`); of a list of these the mean of their maps.
        head: One head, None the mean of all; a pool's heads are its looks: views, hops one after
            the other, levels (what each patch counts for, then what its region does).

    Examples:
        >>> import torch
        >>> from vision_attn.methods import RawAttention
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> maps = RawAttention(head=0)(network, torch.rand(1, 3, 16, 16))
        >>> torch.allclose(maps.values.sum() + maps.prefix_mass, torch.ones(1))
        True
    """

    layer: AttentionLayer = -1
    head: int | None = None

    class_specific = False
    why_empty = "the query attends to nothing on the image in this layer"

    def explain(
        self,
        network: nn.Module,
        images: Images,
        target: Target,
        layout: TokenLayout | None,
    ) -> Heatmaps:
        traced = trace(network, images, layout)
        with full_precision(images):
            index = layer_index(traced.chain, self.layer, network)
            chain = of_one_call(traced.chain, index)
            shares = one_layer(chain, traced.seed(chain), index, self.head)
            return traced.heatmaps(shares[:, 0], self, total=1.0)


@dataclass(frozen=True)
class QueryKey(AttentionExplainer):
    """One query's attention weights, or scores, for every key, in one layer.

    Costs O(n d).

    Args:
        query: "cls" for the class token, or a place (x, y) of the image, x to the right and y down:
            two whole numbers are a pixel of the network's input, two fractions are shares of its
            width and height. None: the class token where there is one, else the centre.
        kind: Softmax `weights`, or the `scores` before the softmax.
        layer: In the order they ran, -1 the last in which patches take part; or as RawAttention
            takes it.
        head: One head, None the mean of all.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import QueryKey
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> QueryKey(query=(12, 3))(network, torch.rand(1, 3, 16, 16)).values.shape
        torch.Size([1, 2, 2])
    """

    query: Place | None = None
    kind: Literal["weights", "scores"] = "weights"
    layer: AttentionLayer = -1
    head: int | None = None

    class_specific = False
    why_empty = "the query attends to nothing on the image in this layer"

    def refusal_for(
        self, network: nn.Module, images: Images, layout: TokenLayout | None = None
    ) -> str | None:
        if reason := super().refusal_for(network, images, layout):
            return reason
        chain = find_path(network, images).chain
        if chain is None:
            return None
        chain = without_readout(chain if layout is None else replace(chain, layout=layout))
        layout = chain.layout
        by_place = self.query != "cls" if self.query is not None else not layout.class_token
        if by_place and chain.tokens != layout.tokens:
            try:
                coarser(layout, chain.tokens - layout.prefix)
            except ValueError as error:
                return f"which of its last tokens lies in a place is not known: {error}"
        return None

    def explain(
        self,
        network: nn.Module,
        images: Images,
        target: Target,
        layout: TokenLayout | None,
    ) -> Heatmaps:
        scores = self.kind == "scores"
        traced = trace(network, images, layout, ["scores"] if scores else [])
        chain = without_readout(traced.chain)
        index = layer_index(chain, self.layer, network)
        chain = of_one_call(chain, index)
        usual: Place = "cls" if traced.layout.class_token else (0.5, 0.5)
        where = usual if self.query is None else self.query
        with full_precision(images):
            seed = traced.seed(chain, where)
            if not scores:
                shares = one_layer(chain, seed, index, self.head)
                return traced.heatmaps(shares[:, 0], self, total=1.0)
            readout = row_of(chain, seed[0, 0], index)
            if readout is None:
                raise ValueError(
                    f"{self}: in layer {self.layer} the query meets only some of the tokens "
                    "(a window, say), so most have no score: kind='weights' shows them as 0"
                )
            call, row, tokens = readout
            scored = call.scores(heads=one_head(call, self.head), rows=row)[:, :, 0].mean(1)
            maps = Heatmaps(traced.layout.to_map(scored[:, tokens]).float(), str(self))
            return laid(maps, chain.part)


def one_layer(
    chain: Chain, seed: Float[Tensor, "b s m"], layer: int, head: int | None
) -> Float[Tensor, "b s n"]:
    """Carry the seed through this layer; the others pass its shares on unchanged."""

    def step(index: int, call: AttentionCall, r: Tensor, windows: int, patches: Patches) -> Tensor:
        if index != layer:
            return apply_transpose(call, r)
        share = torch.zeros(call.batch, call.heads, device=r.device, dtype=r.dtype)
        heads = one_head(call, head)
        share[:, heads] = 1 / share[:, heads].shape[1]
        return apply_transpose(call, r, share)

    return chain.back(seed, PropagationRule(step, residual=0.0, attention=1.0), [layer])


def row_of(
    chain: Chain, seed: Float[Tensor, " m"], layer: int
) -> tuple[AttentionCall, Int[Tensor, "1"], Int[Tensor, " n"]] | None:
    """Find a token's row in a layer whose keys are all tokens of the input, and the key of each.

    seed: of the token, after the last layer. None where the layer has no such row.
    """
    index = next(
        index
        for index, link in enumerate(chain.links)
        if isinstance(link, Attention) and link.layer == layer
    )
    link, rule = chain.links[index], PropagationRule(_nothing, residual=1.0, attention=0.0)
    assert isinstance(link, Attention)
    after, before = (
        replace(chain, links=links) for links in (chain.links[index + 1 :], chain.links[:index])
    )
    if len(link.queries) > 1 or link.new is not None or link.call is None:
        return None
    token_indices = after.back(seed[None, None], rule, ())[0, 0].nonzero()[:, 0]
    row = (link.queries[0].to(token_indices.device)[:, None] == token_indices).nonzero()[:, 0]
    keys = link.keys[0]
    if len(token_indices) != 1 or len(row) != 1 or bool((keys >= link.before).any()):
        return None
    every = torch.eye(link.before, dtype=torch.float32, device="cpu")
    tokens = before.back(every[None, keys], rule, ())[0]
    if tokens.shape[0] != tokens.shape[1] or not _is_permutation(tokens):
        return None
    return link.call, row, tokens.argmax(0).to(token_indices.device)


def _is_permutation(rows: Float[Tensor, "n n"]) -> bool:
    return bool(((rows == 0) | (rows == 1)).all() and (rows.sum(0) == 1).all())


def _nothing(layer: int, call: AttentionCall, r: Tensor, windows: int, patches: Patches) -> Tensor:
    return r.new_zeros(*r.shape[:2], call.keys)


def layer_index(chain: Chain, layer: AttentionLayer, network: nn.Module) -> int:
    """Count a layer from 0, given by its index, -1 the last, or as a module or its name.

    Raises ValueError where there is no such layer, or several calls in it.
    """
    callers = [""] * chain.layers
    for link in chain.links:
        if isinstance(link, Attention) and link.call is not None:
            callers[link.layer] = link.call.module
    assert not isinstance(layer, tuple | list)  # one of them at a time
    calls = calls_of_layer(network, callers, layer)
    if len(calls) > 1:
        raise ValueError(
            f"layer {quoted(layer)}: it makes {len(calls)} attention calls; expected one of "
            f"{', '.join(callers[index] for index in calls)}"
        )
    return calls[0]


def one_head(call: AttentionCall, head: int | None) -> slice:
    if head is None:
        return slice(None)
    if not 0 <= head < call.heads:
        raise ValueError(
            f"head must be from 0 to {call.heads - 1} in {call.module or 'this layer'}, got {head}"
        )
    return slice(head, head + 1)
