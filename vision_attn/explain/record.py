"""Record every attention call of a network as it runs, with the fused kernels on.

    with record_attention(network) as record:
        network(images)
    record.calls[0].q, record.calls[0].weights(rows=slice(0, 1))

Three things see the calls. A `TorchFunctionMode`, which is thread-local and leaves nothing behind,
sees `scaled_dot_product_attention`, and follows what a softmax made until it multiplies values:
that is attention written out by hand. The same mode sees `nn.MultiheadAttention`, whose fast path
it turns off, and runs torch's own code for it with itself switched on. Forward hooks on the modules
that have query and key projections check that each of them was seen exactly once a run.

Axes: b batch (windows count as batch), head, i queries, j keys, d head width, e value width.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from vision_attn.attention import Attend, Readout

Part = Literal["v", "context", "scores"]

NORM = {F.layer_norm, F.rms_norm}
SOFTMAX = {torch.softmax, Tensor.softmax, F.softmax}
PRODUCT = {torch.matmul, Tensor.matmul, torch.bmm, Tensor.bmm}

# What modules call their query and key projections: one name, or one of a pair.
PROJECTIONS: tuple[frozenset[str], ...] = tuple(
    frozenset(names.split())
    for names in (
        "qkv", "q k", "q kv", "q_proj k_proj", "q_proj kv_proj", "query key", "to_qkv", "to_q to_k",
        "to_q to_kv", "query_key_value", "Wqkv", "in_proj_weight", "q_lin k_lin", "qk",
        "in_proj attn_out_proj",
    )
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """context = softmax(scale q k' + mask) v, as one attention call of the network computed it.

    q, k, v: (b head i d), (b head j d), (b head j e), as the kernel got them. mask: True where i
    may attend to j, or a number to add to the score; it broadcasts to (b head i j). context: the
    output, on the autograd graph of the run. written_out: the weights themselves, where the network
    made them in the open; then q and k are None, and `scores` is what its softmax was given. What
    the recorder was not asked to keep is None.
    """

    module: str
    heads: int
    queries: int
    keys: int
    scale: float = 1.0
    q: Tensor | None = None
    k: Tensor | None = None
    v: Tensor | None = None
    mask: Tensor | None = None
    causal: bool = False
    context: Tensor | None = field(default=None, repr=False)
    written_out: Tensor | None = None
    written_scores: Tensor | None = None

    @property
    def batch(self) -> int:
        """Images, or windows of all images."""
        return len(self._made_of)

    @property
    def device(self) -> torch.device:
        return self._made_of.device

    @property
    def dtype(self) -> torch.dtype:
        """What the weights are computed in: float32, or float64 if the network ran in it."""
        return torch.promote_types(self._made_of.dtype, torch.float32)

    @property
    def sums_to_one(self) -> bool:
        """Whether the weights are shares: not below 0, and summing to 1 for each query."""
        if self.written_out is None:
            return True
        off = (self.written_out.sum(-1, dtype=self.dtype) - 1).abs().max()
        return bool(off < 1e-3) and bool(self.written_out.min() >= 0)

    def scores(
        self, images: slice = slice(None), heads: slice = slice(None), rows: Any = slice(None)
    ) -> Float[Tensor, "b head i j"]:
        """scale q k' + mask for a tile: some images, heads and queries, against every key."""
        if self.q is None or self.k is None:
            if self.written_scores is None:
                raise ValueError(f"{self.module}: the scores of this call were not recorded")
            return self.written_scores[images, heads][:, :, rows].to(self.dtype)
        q, k = self.q[images, heads][:, :, rows], self.k[images, heads]
        scores = (q.to(self.dtype) * self.scale) @ k.to(self.dtype).mT
        if self.mask is not None:
            mask = self.mask.expand(self.batch, self.heads, *self.mask.shape[-2:])[images, heads]
            mask = mask[:, :, rows] if mask.shape[2] > 1 else mask
            if mask.dtype == torch.bool:
                scores.masked_fill_(~mask, -torch.inf)
            else:
                scores += mask
        if self.causal:
            query = torch.arange(self.queries, device=self.device)[rows, None]
            scores.masked_fill_(query < torch.arange(self.keys, device=self.device), -torch.inf)
        return scores

    def weights(
        self, images: slice = slice(None), heads: slice = slice(None), rows: Any = slice(None)
    ) -> Float[Tensor, "b head i j"]:
        """The attention weights of a tile, in `dtype`."""
        if self.written_out is not None:
            return self.written_out[images, heads][:, :, rows].to(self.dtype)
        return self.scores(images, heads, rows).softmax(-1)

    @property
    def _made_of(self) -> Tensor:
        source = self.written_out if self.q is None else self.q
        if source is None:
            raise ValueError(f"{self.module}: neither q and k nor the weights were recorded")
        return source


@dataclass
class Record:
    """The calls in the order they ran, and the names of the attention modules that ran.

    streams: by the number n of tokens, what the last norm over a sequence (b n d) was given: the
    residual stream at the end of the network.
    """

    calls: list[AttentionCall] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    streams: dict[int, Tensor] = field(default_factory=dict)


@contextmanager
def record_attention(
    network: nn.Module, keep: Sequence[Part] = ("v", "context", "scores")
) -> Iterator[Record]:
    """Record the attention calls of every run of `network` in this thread, while this is open.

    keep: parts wanted besides q and k, or the weights where they are written out. Never a partial
    record in silence: raises ValueError where a module that has query and key projections ran
    without exactly one call seen and, on leaving without an error, where there was no call at all.
    """
    recorder = _Recorder(frozenset(keep))
    hooks = []
    try:
        for name, module in network.named_modules():
            if attends(module):
                hooks += [
                    module.register_forward_pre_hook(recorder.enters(name)),
                    module.register_forward_hook(recorder.leaves(name), with_kwargs=True),
                ]
        with recorder:
            yield recorder.record
    finally:
        for hook in hooks:
            hook.remove()
    if not recorder.record.calls:
        raise ValueError(
            f"no attention call was seen in {type(network).__name__}: it has no attention, was not "
            "run inside `record_attention`, or attends by a kernel that is not torch's"
        )


def attends(module: nn.Module) -> bool:
    """Whether a module itself projects to queries and keys."""
    if isinstance(module, Attend | Readout):
        return True
    names = {*module._modules, *module._parameters}
    return any(projections <= names for projections in PROJECTIONS)


class _Recorder(TorchFunctionMode):
    def __init__(self, keep: frozenset[Part]):
        super().__init__()
        self.keep = keep
        self.record = Record()
        self.thread = threading.get_ident()
        self.running: list[tuple[str, int]] = []  # attention modules now running, calls before them
        self.values: Tensor | None = None  # of the last call
        # What softmax made and has not yet multiplied values, and what softmax was given.
        self.softmaxed: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def __torch_function__(
        self, func: Callable, types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self.fused(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            return self.multi_head(args, kwargs)
        if self.softmaxed and (func in PRODUCT or func is torch.einsum):
            product = self.product(func, args)
            if product is not None:
                return product
        out = func(*args, **kwargs)
        if func in SOFTMAX and out.ndim > 2 and _dim(args, kwargs) in (-1, out.ndim - 1):
            self.softmaxed[out] = args[0] if "scores" in self.keep else None
        elif self.softmaxed and isinstance(out, Tensor):
            self.follow(args, out)
        elif func in NORM and args[0].ndim == 3:
            self.record.streams[args[0].shape[1]] = args[0].detach()
        return out

    def fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """torch's attention, by whatever kernel it chooses."""
        if value is self.values:
            module = self.running[-1][0] if self.running else "the network"
            raise ValueError(
                f"{module} attends twice over the same values, and how it combines the two is not "
                "known (differential attention?): one map cannot stand for it"
            )
        self.values = value
        context = F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        if enable_gqa:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], dim=-3)
        q, k, v = (x.unsqueeze(-3) if x.ndim == 3 else x for x in (query, key, value))
        if attn_mask is not None and query.ndim == attn_mask.ndim == 3:
            attn_mask = attn_mask.unsqueeze(-3)
        self.add(
            heads=q.shape[-3],
            queries=q.shape[-2],
            keys=k.shape[-2],
            scale=q.shape[-1] ** -0.5 if scale is None else scale,
            q=off(q),
            k=off(k),
            v=off(v) if "v" in self.keep else None,
            mask=None if attn_mask is None else attn_mask.detach(),
            causal=is_causal,
            context=context,
        )
        return context

    def multi_head(self, args: tuple, kwargs: dict) -> tuple[Tensor, Tensor | None]:
        """`nn.MultiheadAttention`: torch's own code, on its path through fused attention."""
        with self:
            out, _ = _multi_head_body(*args, **{**kwargs, "need_weights": False})
        if not kwargs.get("need_weights", True):
            return out, None
        weights = self.record.calls[-1].weights().to(out.dtype)
        if kwargs.get("average_attn_weights", True):
            weights = weights.mean(1)
        return out, weights if args[0].ndim == 3 else weights.squeeze(0)

    def follow(self, args: tuple, out: Tensor) -> None:
        """Weights that were only moved, scaled or mixed are still weights."""
        for arg in args:
            if isinstance(arg, Tensor) and arg in self.softmaxed and arg.numel() == out.numel():
                self.softmaxed[out] = self.softmaxed[arg]
                return

    def product(self, func: Callable, args: tuple) -> Tensor | None:
        """weights @ v, also written (v' @ weights')' or as einsum; None for any other product."""
        if func is torch.einsum:
            if len(args) != 3 or not _is_matmul(args[0]):
                return None
            args = args[1:]
        left, right = args[:2]
        if left.ndim not in (3, 4) or left.ndim != right.ndim:
            return None
        if left in self.softmaxed:
            return self.explicit(left, right, self.softmaxed.pop(left))
        if right in self.softmaxed:
            return self.explicit(right.mT, left.mT, self.softmaxed.pop(right)).mT.contiguous()
        return None

    def explicit(self, weights: Tensor, v: Tensor, scores: Tensor | None) -> Tensor:
        """Attention written out."""
        context = weights @ v
        if weights.ndim == 3:
            weights, v = weights.unsqueeze(1), v.unsqueeze(1)
        if scores is not None:
            scores = scores.detach().reshape(weights.shape)
        self.add_written_out(weights, context, v, written_scores=scores)
        return context

    def add_written_out(
        self, weights: Tensor, context: Tensor | None, v: Tensor | None, **parts: Any
    ) -> None:
        _, heads, queries, keys = weights.shape
        self.add(
            heads=heads,
            queries=queries,
            keys=keys,
            v=off(v) if v is not None and "v" in self.keep else None,
            written_out=weights.detach(),
            context=context,
            **parts,
        )

    def add(self, context: Tensor | None, **parts: Any) -> None:
        module = self.running[-1][0] if self.running else ""
        kept = context if "context" in self.keep else None
        self.record.calls.append(AttentionCall(module, context=kept, **parts))

    def enters(self, name: str) -> Callable:
        def hook(_module: nn.Module, _args: tuple) -> None:
            if threading.get_ident() == self.thread:
                self.running.append((name, len(self.record.calls)))

        return hook

    def leaves(self, name: str) -> Callable:
        def hook(module: nn.Module, args: tuple, kwargs: dict, out: Any) -> None:
            if threading.get_ident() != self.thread:
                return
            _, before = self.running.pop()
            if isinstance(module, Attend):
                self.attended(module, before, out, *args, **kwargs)
            if isinstance(module, Readout):
                self.read_out(module, before, *args, **kwargs)
            if not self.running:
                self.record.expected.append(name)
            if (seen := len(self.record.calls) - before) != 1:
                raise ValueError(_miscounted(name, module, seen))

        return hook

    def attended(
        self,
        attend: Attend,
        before: int,
        context: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        layout: Any = None,
    ) -> None:
        """Our own attention: one call, or by its own account where it took another way."""
        calls = self.record.calls
        if len(calls) == before + 1 and calls[-1].queries == q.shape[-2]:
            return
        with torch.no_grad():
            weights = attend.weights(q, k, mask, layout)
        del calls[before:]
        self.add_written_out(weights, context, v.expand(-1, weights.shape[1], -1, -1))

    def read_out(
        self, readout: Readout, before: int, tokens: Tensor, layout: Any = None, mask: Any = None
    ) -> None:
        """Our own readouts: one query's call, or by its own account with its looks for heads."""
        calls = self.record.calls
        if len(calls) == before + 1 and (calls[-1].queries, calls[-1].keys) == (1, tokens.shape[1]):
            return
        with torch.no_grad():
            weights = readout.weights(tokens, layout, mask)
        del calls[before:]
        self.add_written_out(weights.unsqueeze(2), None, None)


def off(tensor: Tensor) -> Tensor:
    """Off the graph. A view is copied, or it would keep q, k and v alive, unless the graph does."""
    if tensor.requires_grad or tensor.untyped_storage().nbytes() <= tensor.nbytes:
        return tensor.detach()
    return tensor.clone(memory_format=torch.contiguous_format)


# torch's own code, but never handed back to the function mode that called it.
_multi_head_body = FunctionType(
    F.multi_head_attention_forward.__code__,
    {**F.multi_head_attention_forward.__globals__, "has_torch_function": lambda _: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)
_multi_head_body.__kwdefaults__ = F.multi_head_attention_forward.__kwdefaults__


def _dim(args: tuple, kwargs: dict) -> int | None:
    return kwargs.get("dim", args[1] if len(args) > 1 else None)


def _is_matmul(equation: str) -> bool:
    """Whether an einsum of two tensors is `...ij,...jd->...id`."""
    left, _, out = equation.replace(" ", "").partition("->")
    weights, _, v = left.partition(",")
    return (
        len(weights) == len(v) == len(out) > 2
        and weights[:-2] == v[:-2] == out[:-2]
        and weights[-2:] + v[-2:] == out[-2] + weights[-1] * 2 + out[-1]
    )


def _miscounted(name: str, module: nn.Module, seen: int) -> str:
    what = f"{name or 'the network'} ({type(module).__name__})"
    if seen == 0:
        return (
            f"{what} ran, but no attention call of it was seen: its kernel is not torch's, or it "
            "does not weigh values by a softmax over keys. Where it has a choice, choose torch's "
            "scaled_dot_product_attention (Hugging Face: attn_implementation='sdpa')"
        )
    return (
        f"{what} makes {seen} attention calls a run, and how it combines them is not known: one "
        "map cannot stand for it"
    )
