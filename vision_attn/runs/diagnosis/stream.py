"""What happens to the tokens from block to block, reduced as each batch has run.

Every value is of one photo; the run averages them over photos. With x the stream before a block, a
and m what attention and MLP add to it, y the stream after it (y = x + a + m), over patches alone:

    norm       the median of |y_i|, and the largest
    outliers   the patches with |y_i| > 2 median |y| (Darcet et al. 2024, arXiv:2309.16588, find
               them by a fixed norm; the median makes it fit any network)
    shares     |x_i|, |a_i| and |m_i| over their sum, the mean over all tokens: after the mixing
               ratio of Kobayashi et al. 2021 (arXiv:2109.07152), with the MLP as a third part
    alike      mean_{i != j} cos(y_i, y_j), 1 where all patches are the same: oversmoothing (Gong et
               al. 2021, arXiv:2104.12753; Wang et al. 2022, arXiv:2203.05962)
    spread     sum |y_i - mean y|^2 / sum |y_i|^2, 0 where all patches are the same (Dong et al.
               2021, arXiv:2103.03404)
    rank       (sum s)^2 / sum s^2, s the squared singular values of y - mean y: how many directions
               the patches spread over (participation ratio)
    layers     mean_i cos(y_i, z_i), z the stream after another block

Axes: b images, n tokens, p patches, d width of a token, l and m blocks.
"""

from collections.abc import Sequence
from math import prod

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from vision_attn.methods.attention_explainer import OUTLIER
from vision_attn.tokens.blocks import BlockRun
from vision_attn.types import TokenLayout

__all__ = ["MOST", "OFTEN", "outliers_of", "patches_of", "similarity", "stream_values"]


MOST = 0.15  # of the patches that may be registers in disguise; more follow what a photo shows
OFTEN = 0.75  # of the photos that have outliers where these are a pattern (docs/lab/diagnosis.md)


def patches_of(layout: TokenLayout | None, tokens: int) -> slice | list[int]:
    """Choose the patches among so many tokens of a stream; all where the layout does not tell."""
    if layout is not None and tokens == layout.tokens:
        return layout.patches if layout.registers else slice(layout.prefix, None)
    return slice(None)


def outliers_of(norms: Float[Tensor, "b p"]) -> Bool[Tensor, "b p"]:
    """Find patches whose norm is above twice the median of their photo."""
    return norms > OUTLIER * norms.median(1, keepdim=True).values


def stream_values(
    run: BlockRun, layout: TokenLayout | None
) -> tuple[dict[str, Tensor], Bool[Tensor, "b p"]]:
    """Compute the values of a block's run, and its outliers; see the formulas of this module.

    Returns:
        norm, largest, outliers (how many), alike, spread, rank (b); where (b p), 1 for an outlier;
        shares (b 3) of residual, attention and MLP where these are known.
    """
    assert run.after is not None
    y = run.after.float() if run.after.dtype != torch.float64 else run.after
    patches = y[:, patches_of(layout, y.shape[1])]
    norms = patches.norm(dim=-1)
    outlying = outliers_of(norms)
    count = patches.shape[1]
    total = F.normalize(patches, dim=-1).sum(1).square().sum(-1)
    centred = patches - patches.mean(1, keepdim=True)
    energy, apart = patches.square().sum((1, 2)), centred.square().sum((1, 2))
    short = centred if centred.shape[1] <= centred.shape[2] else centred.mT
    squares = (short @ short.mT).square().sum((1, 2))
    values = {
        "norm": norms.median(1).values,
        "largest": norms.amax(1),
        "outliers": outlying.sum(1).to(y.dtype),
        "where": outlying.to(y.dtype),
        "alike": (total - count) / max(count * (count - 1), 1),
        "spread": apart / energy.clamp_min(torch.finfo(y.dtype).tiny),
        "rank": apart.square() / squares.clamp_min(torch.finfo(y.dtype).tiny),
    }
    if run.middle is not None:
        x, middle = run.before.to(y.dtype), run.middle.to(y.dtype)
        parts = torch.stack([one.norm(dim=-1) for one in (x, middle - x, y - middle)], -1)
        values["shares"] = (parts / parts.sum(-1, keepdim=True)).mean(1)
    return values, outlying


def similarity(runs: Sequence[BlockRun]) -> Float[Tensor, "b l m"] | None:
    """Compute the mean cosine of each token with itself after other blocks.

    None where the number of tokens or their width changes on the way.
    """
    streams = [run.after for run in runs if run.after is not None]
    if len({prod(one.shape) for one in streams}) != 1 or len({one.shape for one in streams}) != 1:
        return None
    each = F.normalize(torch.stack(streams, 2).float(), dim=-1)  # b n l d
    return (each @ each.mT).mean(1)
