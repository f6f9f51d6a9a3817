"""What sees the attention calls while a network runs; see `record`.

Axes: b batch, n tokens, d width of a token, head, i queries, j keys.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from vision_attn.attention import Attend, Readout
from vision_attn.attention.normalizers import Softmax
from vision_attn.attention.scores import DotProduct
from vision_attn.attention.windows import Global
from vision_attn.explain.calls import AttentionCall, Fused, WrittenOut
from vision_attn.explain.kernels import (
    attention_and_lse,
    is_matmul,
    multi_head_body,
    off,
    short_attention,
)

Part = Literal["v", "context", "scores", "weights"]

NORM = {F.layer_norm, F.rms_norm}
SOFTMAX = {torch.softmax, Tensor.softmax, F.softmax}
SEEN = {F.scaled_dot_product_attention, F.multi_head_attention_forward, *NORM, *SOFTMAX}
PRODUCT = {torch.matmul, Tensor.matmul, torch.bmm, Tensor.bmm}


@dataclass
class Record:
    """The calls in the order they ran, and the names of the attention modules that ran.

    streams: by the number n of tokens, what the last norm over a sequence (b n d) was given: the
    residual stream at the end of the network.
    """

    calls: list[AttentionCall] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    streams: dict[int, Tensor] = field(default_factory=dict)


class Recorder(TorchFunctionMode):
    def __init__(self, keep: frozenset[Part]):
        super().__init__()
        self.keep = keep
        self.record = Record()
        self.thread = threading.get_ident()
        self.running: list[tuple[str, int]] = []  # attention modules now running, calls before them
        self.told = 0  # of them, those that tell their call themselves when they are done
        self.lse: Tensor | None = None  # of the fused call in the one that does
        self.values: Callable[[], Tensor | None] = lambda: None  # of the last fused call
        # What softmax made and has not yet multiplied values, and what softmax was given.
        self.softmaxed: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def __torch_function__(
        self, func: Callable, types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in SEEN and not self.softmaxed.data:
            return func(*args, **kwargs)
        if self.told:
            if func is not F.scaled_dot_product_attention:
                return func(*args, **kwargs)
            context, self.lse = attention_and_lse(*args, **kwargs)
            return context
        if func is F.scaled_dot_product_attention:
            return self.fused(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            return self.multi_head(args, kwargs)
        if self.softmaxed.data and (func in PRODUCT or func is torch.einsum):
            product = self.product(func, args)
            if product is not None:
                return product
        out = func(*args, **kwargs)
        if func in SOFTMAX and out.ndim > 2 and _dim(args, kwargs) in (-1, out.ndim - 1):
            self.softmaxed[out] = args[0] if "scores" in self.keep else None
        elif self.softmaxed.data and isinstance(out, Tensor):
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
        if value is self.values():
            raise ValueError(
                f"{self.module or 'the network'} attends twice over the same values, and how it "
                "combines the two is not known (differential attention?): one map cannot stand "
                "for it"
            )
        self.values = ref(value)
        batches = [x.shape[:-2] for x in (query, key, value)]
        if not enable_gqa and batches != [batches[0]] * 3:  # heads that share keys and values
            whole = torch.broadcast_shapes(*batches)
            query, key, value = (x.expand(*whole, -1, -1) for x in (query, key, value))
        given = query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
        if "weights" in self.keep and (short := short_attention(*given)):
            context, weights = short
            self.record.calls.append(
                WrittenOut(self.module, None, None, made=weights, given=None, known_shares=True)
            )
            return context
        context, lse = attention_and_lse(*given)
        if enable_gqa:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], dim=-3)
        q, k, v = (x.unsqueeze(-3) if x.ndim == 3 else x for x in (query, key, value))
        if attn_mask is not None and query.ndim == attn_mask.ndim == 3:
            attn_mask = attn_mask.unsqueeze(-3)
        self.record.calls.append(
            Fused(
                self.module,
                v=off(v) if "v" in self.keep else None,
                context=context if "context" in self.keep else None,
                q=off(q),
                k=off(k),
                scale=q.shape[-1] ** -0.5 if scale is None else scale,
                mask=None if attn_mask is None else attn_mask.detach(),
                causal=is_causal,
                lse=None if lse is None else lse.detach(),
            )
        )
        return context

    def multi_head(self, args: tuple, kwargs: dict) -> tuple[Tensor, Tensor | None]:
        """`nn.MultiheadAttention`: torch's own code, on its path through fused attention."""
        with self:
            out, _ = multi_head_body(*args, **{**kwargs, "need_weights": False})
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
            if len(args) != 3 or not is_matmul(args[0]):
                return None
            args = args[1:]
        left, right = args[:2]
        if left.ndim not in (3, 4) or left.ndim != right.ndim:
            return None
        if left in self.softmaxed:
            return self.by_hand(left, right, self.softmaxed.pop(left))
        if right in self.softmaxed:
            return self.by_hand(right.mT, left.mT, self.softmaxed.pop(right)).mT.contiguous()
        return None

    def by_hand(self, weights: Tensor, v: Tensor, scores: Tensor | None) -> Tensor:
        context = weights @ v
        if weights.ndim == 3:
            weights, v = weights.unsqueeze(1), v.unsqueeze(1)
        self.written_out(weights, v, context, scores)
        return context

    def written_out(
        self, weights: Tensor, v: Tensor | None, context: Tensor | None, scores: Tensor | None
    ) -> None:
        self.record.calls.append(
            WrittenOut(
                self.module,
                v=off(v) if v is not None and "v" in self.keep else None,
                context=context if "context" in self.keep else None,
                made=weights.detach(),
                given=None if scores is None else scores.detach().reshape(weights.shape),
            )
        )

    @property
    def module(self) -> str:
        """The name of the attention module that is running."""
        return self.running[-1][0] if self.running else ""

    def enters(self, name: str, module: nn.Module) -> Callable:
        told = is_softmax_of_products(module)

        def hook(_module: nn.Module, _args: tuple) -> None:
            if threading.get_ident() == self.thread:
                self.running.append((name, len(self.record.calls)))
                self.told += told

        return hook

    def leaves(self, name: str) -> Callable:
        def hook(module: nn.Module, args: tuple, kwargs: dict, out: Any) -> None:
            if threading.get_ident() != self.thread:
                return
            before = self.running[-1][1]
            if is_softmax_of_products(module):
                self.products(module, out, *args, **kwargs)
                self.told -= 1
            elif isinstance(module, Attend):
                self.attended(module, before, out, *args, **kwargs)
            if isinstance(module, Readout):
                self.read_out(module, before, *args, **kwargs)
            self.running.pop()
            if not self.running:
                self.record.expected.append(name)
            if (seen := len(self.record.calls) - before) != 1:
                raise ValueError(_miscounted(name, module, seen))

        return hook

    def products(
        self,
        attend: Any,
        context: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        layout: Any = None,
    ) -> None:
        """Our own attention by a softmax of products, whatever kernel did it."""
        with torch.no_grad():
            q, k = attend.score.transform(q, k)
        heads = context.shape[1]
        self.record.calls.append(
            Fused(
                self.module,
                v=off(v.expand(-1, heads, -1, -1)) if "v" in self.keep else None,
                context=context if "context" in self.keep else None,
                q=off(q.expand(-1, heads, -1, -1)),
                k=off(k.expand(-1, heads, -1, -1)),
                scale=attend.score.scale / attend.normalizer.temperature,
                mask=mask,
                causal=False,
                lse=None if self.lse is None else self.lse.detach(),
            )
        )
        self.lse = None

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
        """Our own attention of any other kind: one call, or by its own account."""
        calls = self.record.calls
        whole, scored = (len(q), q.shape[-2]), "scores" in self.keep
        one = len(calls) == before + 1 and (calls[-1].batch, calls[-1].queries) == whole
        if one and not scored:
            return
        with torch.no_grad():
            weights = attend.weights(q, k, mask, layout)
            scores = attend.score(q, k).expand_as(weights) if scored else None
        del calls[before:]
        self.written_out(weights, v.expand(-1, weights.shape[1], -1, -1), context, scores)

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
        self.written_out(weights.unsqueeze(2), None, None, None)


def is_softmax_of_products(module: nn.Module) -> bool:
    """Whether it is our own attention by weights that queries and keys alone give."""
    return (
        isinstance(module, Attend)
        and isinstance(module.score, DotProduct)
        and isinstance(module.normalizer, Softmax)
        and isinstance(module.window, Global)
    )


def _dim(args: tuple, kwargs: dict) -> int | None:
    return kwargs.get("dim", args[1] if len(args) > 1 else None)


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
