"""torch's attention as the recorder calls it: with its log-sum-exp, or with its heads fused.

Axes: b batch, head, i queries, j keys, d width of a head, e value width.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.backends.cuda import flash_sdp_enabled, math_sdp_enabled
from torch.nn import functional as F

from vision_attn.compat.torch_private import chooses_flash, flash_attention
from vision_attn.tokens.record.calls import CPU_TILE, Fusion, Workspace, cut_tiles, product

__all__ = [
    "SDPAInputs",
    "ShortAttention",
    "attention_and_lse",
    "detached",
    "multi_head_attention",
]

SMALL = 2**20  # bytes that are not worth a copy


class SDPAInputs(NamedTuple):
    """The arguments of torch's `scaled_dot_product_attention`, in its order.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.record.sdpa import SDPAInputs
        >>> inputs = SDPAInputs(*torch.rand(3, 1, 2, 5, 16))
        >>> inputs.alpha
        0.25
        >>> inputs.plain
        True
    """

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    @property
    def alpha(self) -> float:
        """Factor that products of queries and keys are multiplied by."""
        return self.query.shape[-1] ** -0.5 if self.scale is None else self.scale

    @property
    def plain(self) -> bool:
        """Whether every query (b head i d) sees every key, and the CPU computes exactly."""
        masked = self.attn_mask is not None or self.is_causal
        return not masked and not self.enable_gqa and self.query.ndim == 4 and _exact(self.query)

    @property
    def by_products(self) -> bool:
        """Whether torch would compute it on a CPU by plain products of matrices, not by a kernel.

        The context (b head i e) is contiguous then. False for what torch would refuse.
        """
        query, key, value, mask = self[:4]
        alike = all(x.ndim == 4 and x.dtype == query.dtype for x in (query, key, value))
        if self.dropout_p or not alike or not _exact(query):
            return False
        (b, heads, i, width), (*lead, j, _) = query.shape, key.shape
        shared = heads % lead[1] == 0 if self.enable_gqa and lead[1] else heads == lead[1]
        if lead[0] != b or not shared or (*lead, j, width) != tuple(key.shape):
            return False
        if tuple(value.shape[:3]) != (*lead, j):
            return False
        if mask is not None:
            sides = zip(reversed(mask.shape), (j, i, heads, b), strict=False)
            if mask.ndim > 4 or not all(n in (1, most) for n, most in sides):
                return False
            if mask.dtype not in (torch.bool, query.dtype) or self.is_causal:
                return False
        return chooses_flash(**self._asdict()) is False

    def empty_context(self, flash: bool | None) -> Tensor:
        """Make an unfilled output of torch's attention without a mask, with the strides it has.

        The flash kernel's has the strides of the query, those of the others are contiguous.

        Args:
            flash: Whether torch would choose that kernel; None: torch's own attention runs.
        """
        if flash is None:
            return F.scaled_dot_product_attention(**self._asdict())
        if flash:
            return torch.empty_like(self.query)
        return self.query.new_empty(*self.query.shape[:-1], self.value.shape[-1])


def attention_and_lse(inputs: SDPAInputs) -> tuple[Tensor, Tensor | None]:
    """Run torch's attention; also return log sum_j exp(score_ij) if its kernel computes it.

    It is the kernel that torch would choose: flash attention for float32 and float64 on a CPU. The
    second value (b head i) is what `LazyWeights.lse` takes; None from every other kernel.
    """
    if inputs.plain:
        both = flash_attention(*inputs[:3], inputs.dropout_p, inputs.scale)
        if both is not None:
            return both
    return F.scaled_dot_product_attention(**inputs._asdict()), None


class _Plan(NamedTuple):
    """How attention over some shapes is computed by products."""

    flash: bool | None  # whether torch would choose its flash kernel; None: nobody knows
    limit: int  # elements of a tile
    scores: Tensor | None  # where all of it fits into one tile of one image, the tile's memory


class ShortAttention:
    """torch's attention of short sequences by products, with its heads fused on the way.

    That is a gain where the fused map takes no more memory than the queries and keys, which would
    be kept in its place, and the network computes without gradients on a CPU, in float32 or
    float64. What is found for one call serves the next ones of its shapes and strides.

    Args:
        fusion: How the weights of the heads become one map.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.record.calls import Fusion
        >>> from vision_attn.tokens.record.sdpa import SDPAInputs, ShortAttention
        >>> attend = ShortAttention(Fusion(lambda weights: weights.mean(1)))
        >>> with torch.no_grad():
        ...     context, fused = attend(SDPAInputs(*torch.rand(3, 1, 2, 5, 16)))
        >>> context.shape, fused.shape
        (torch.Size([1, 2, 5, 16]), torch.Size([1, 5, 5]))
    """

    def __init__(self, fusion: Fusion):
        self.fusion, self.workspace = fusion, Workspace()
        self._plans: dict[Any, _Plan | None] = {}

    def __call__(
        self, inputs: SDPAInputs
    ) -> tuple[Float[Tensor, "b head i e"], Float[Tensor, "b i j"]] | None:
        """Return the context, with the strides that torch's would have, and the fused map.

        None where it is no gain.
        """
        query, key, value, mask, dropout_p, is_causal, _, enable_gqa = inputs
        if mask is not None or dropout_p or is_causal or enable_gqa or torch.is_grad_enabled():
            return None
        kind = (
            *(query.shape, query.stride(), query.dtype, query.is_cpu),
            *(key.shape, key.stride(), key.dtype, value.shape, value.stride(), value.dtype),
            *(torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled()),
            *(flash_sdp_enabled(), math_sdp_enabled(), torch.get_num_threads()),
        )
        if kind not in self._plans:
            self._plans[kind] = self._plan(inputs)
        plan = self._plans[kind]
        if plan is None:
            return None
        context = inputs.empty_context(plan.flash)
        if (scores := plan.scores) is not None:  # in as few operations as can be
            scores.baddbmm_(query[0], key[0].mT, beta=0, alpha=inputs.alpha)
            torch.softmax(scores, -1, out=scores)
            torch.bmm(scores, value[0], out=context[0])
            return context, self.fusion.fuse(scores.unsqueeze(0))
        batch, heads, queries, keys = *query.shape[:3], key.shape[2]
        fused = query.new_empty(batch, queries, keys)
        for tile in cut_tiles(batch, 1, queries, heads * keys, plan.limit):
            image, row = tile.images, tile.rows
            q, k = query[image, :, row], key[image]
            scores = product(q, k.mT, "weights", self.workspace, inputs.alpha)
            weights = torch.softmax(scores, -1, out=scores)
            context[image, :, row] = weights @ value[image]
            fused[image, row] = self.fusion.fuse(weights)
        return context, fused

    def _plan(self, inputs: SDPAInputs) -> _Plan | None:
        """Find how attention over shapes as these is computed; None where it is no gain."""
        query, key, value = inputs[:3]
        if not inputs.plain:
            return None
        (batch, heads, queries, width), keys = query.shape, key.shape[2]
        if not (batch, heads) == key.shape[:2] == value.shape[:2]:
            return None
        if not batch * keys or queries * keys > (queries + keys) * heads * width:
            return None
        flash = chooses_flash(query, key, value, inputs.dropout_p, inputs.scale)
        limit, scores = CPU_TILE * torch.get_num_threads(), None
        if batch == 1 and heads * queries * keys <= limit:
            scores = self.workspace.buffer("weights", (heads, queries, keys), query)
        return _Plan(flash, limit, scores)


def _exact(x: Tensor) -> bool:
    """Whether a CPU computes products of a tensor in full float32 or float64 precision."""
    exact = x.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return exact and x.device.type == "cpu"


def detached(tensor: Tensor) -> Tensor:
    """Take a tensor off the graph. A large view is copied: it would keep q, k and v alive."""
    small = tensor.nbytes <= SMALL or tensor.untyped_storage().nbytes() <= tensor.nbytes
    if tensor.requires_grad or small:
        return tensor.detach()
    return tensor.clone(memory_format=torch.contiguous_format)


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    **newer: Any,
) -> Tensor:
    """Compute what `F.multi_head_attention_forward` does, without weights, from the same arguments.

    torch's own would hand its work back to the function mode that called it, or else hide its
    `scaled_dot_product_attention` from the mode. query (i b e), key and value (j b e), or without
    b; returns (i b e). Masks as there: true, or minus infinity, where a key is not seen.
    """
    if unknown := [
        name
        for name, value_given in newer.items()
        if value_given is not None and value_given is not False
    ]:
        raise ValueError(
            f"nn.MultiheadAttention of torch {torch.__version__} is given {', '.join(unknown)}, "
            "which the recorder does not know: use an older torch, or leave it out"
        )
    same, batched = query is key is value, query.ndim == 3
    if not batched:
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    packed: Any = in_proj_weight  # None if the weights are separate
    if same and not use_separate_proj_weight:
        q, k, v = F.linear(query, packed, in_proj_bias).chunk(3, dim=-1)
    else:
        separate: Any = (q_proj_weight, k_proj_weight, v_proj_weight)
        weights = separate if use_separate_proj_weight else packed.chunk(3)
        biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
        q, k, v = map(F.linear, (query, key, value), weights, biases)

    def of_heads(x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (num_heads, -1))
        return heads.permute(1, 2, 0, 3)  # b head j d

    batch, more = query.shape[1], 0
    if bias_k is not None and bias_v is not None:  # one more key and value, learned
        k, v = (
            torch.cat([x, learned.expand(-1, batch, -1)])
            for x, learned in ((k, bias_k), (v, bias_v))
        )
        more += 1
    k = of_heads(k) if static_k is None else static_k.unflatten(0, (batch, num_heads))
    v = of_heads(v) if static_v is None else static_v.unflatten(0, (batch, num_heads))
    if add_zero_attn:  # and one of zeros
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        more += 1
    is_causal = is_causal and key_padding_mask is None
    mask = None
    if attn_mask is not None and not is_causal:  # one for all, or one for each image and head
        mask = F.pad(_added(attn_mask, query.dtype), (0, more))
        mask = mask.unflatten(0, (batch, num_heads)) if mask.ndim == 3 else mask
    if key_padding_mask is not None:
        padding = F.pad(_added(key_padding_mask, query.dtype), (0, more))
        padding = padding[:, None, None].expand(-1, num_heads, -1, -1)
        mask = padding if mask is None else mask + padding
    dropped = dropout_p if training else 0.0
    context = F.scaled_dot_product_attention(of_heads(q), k, v, mask, dropped, is_causal)
    out = F.linear(context.permute(2, 0, 1, 3).flatten(2), out_proj_weight, out_proj_bias)
    return out if batched else out.squeeze(1)


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a mask into what it adds to the scores: minus infinity where it is true."""
    if mask.is_floating_point():
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, float("-inf"))
