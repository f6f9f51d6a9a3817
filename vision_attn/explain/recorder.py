"""What sees the calls of torch's attention, and attention by a softmax of products; see `record`.

Axes: b batch, n tokens, d width of a token, head, i queries, j keys.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from vision_attn.explain.calls import AttentionCall, Fused, Fusion, WrittenOut
from vision_attn.explain.kernels import (
    Given,
    attention_and_lse,
    is_matmul,
    multi_head_attention,
    off,
)
from vision_attn.explain.room import Room
from vision_attn.explain.short import short_attention

Part = Literal["v", "context", "scores"]

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


def no_values() -> None:
    return None


class Run(NamedTuple):
    """A module that is running."""

    name: str
    calls: int  # on record before it
    expected: int
    handled: BaseException | None  # the exception that was being handled then

    def failed(self, out: Any) -> bool:
        return out is None and sys.exception() is not self.handled


class CallRecorder(TorchFunctionMode):
    """Records while it is switched on, in the thread that made it."""

    def __init__(self, keep: frozenset[Part], fusion: Fusion | None = None):
        super().__init__()
        self.keep, self.fusion, self.room = keep, fusion, Room()
        self.record = Record()
        self.thread = threading.get_ident()
        self.running: list[Run] = []  # attention modules
        self.told = 0  # of them, those that tell their call themselves when they are done
        # Of the last call of torch's attention: its map where its heads were fused, or else what
        # its kernel told; its values.
        self.fused_map: Tensor | None = None
        self.lse: Tensor | None = None
        self.values: Callable[[], Tensor | None] = no_values
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
            return self.attention(Given(*args, **kwargs))
        if func is F.scaled_dot_product_attention:
            return self.fused(Given(*args, **kwargs))
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

    def fused(self, given: Given) -> Tensor:
        """torch's attention, by whatever kernel it chooses."""
        query, key, value, mask = given[:4]
        if value is self.values():
            raise ValueError(
                f"{self.module or 'the network'} attends twice over the same values, and how it "
                "combines the two is not known (differential attention?): one map cannot stand "
                "for it"
            )
        self.values = ref(value)
        batches = [x.shape[:-2] for x in (query, key, value)]
        if not given.enable_gqa and batches != [batches[0]] * 3:  # heads that share keys and values
            whole = torch.broadcast_shapes(*batches)
            query, key, value = (x.expand(*whole, -1, -1) for x in (query, key, value))
            given = given._replace(query=query, key=key, value=value)
        context = self.attention(given)
        if self.told_fused():
            return context
        if given.enable_gqa:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], dim=-3)
        q, k, v = (x.unsqueeze(-3) if x.ndim == 3 else x for x in (query, key, value))
        if mask is not None and query.ndim == mask.ndim == 3:
            mask = mask.unsqueeze(-3)
        self.record.calls.append(
            Fused(
                self.module,
                v=off(v) if "v" in self.keep else None,
                context=context if "context" in self.keep else None,
                q=off(q),
                k=off(k),
                scale=given.alpha,
                mask=None if mask is None else mask.detach(),
                causal=given.is_causal,
                lse=self.take_lse(),
            )
        )
        return context

    def attention(self, given: Given) -> Tensor:
        """torch's attention, with its heads' weights fused on the way where that is wanted."""
        self.fused_map = self.lse = None
        if self.fusion is not None:
            short = short_attention(given, self.fusion, self.room)
            if short is not None:
                context, self.fused_map = short
                return context
        context, self.lse = attention_and_lse(given)
        return context

    def told_fused(self) -> bool:
        """Puts the last call on record if its heads were fused. Whether they were."""
        if self.fusion is None or self.fused_map is None:
            return False
        made, shares = self.fused_map.unsqueeze(1), self.fusion.keeps_shares
        self.record.calls.append(WrittenOut(self.module, None, None, made, None, shares))
        self.fused_map = None
        return True

    def take_lse(self) -> Tensor | None:
        """What the kernel told in the last call, once."""
        lse, self.lse = self.lse, None
        return None if lse is None else lse.detach()

    def multi_head(self, args: tuple, kwargs: dict) -> tuple[Tensor, Tensor | None]:
        """`nn.MultiheadAttention`, always through fused attention, which this mode sees."""
        wanted = kwargs.get("need_weights", True)
        fusion = self.fusion
        if wanted:  # by the network itself, which is owed those of each head
            self.fusion = None
        try:
            with self:
                out = multi_head_attention(*args, **kwargs)
        finally:
            self.fusion = fusion
        if not wanted:
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
        return self.running[-1].name if self.running else ""


def _dim(args: tuple, kwargs: dict) -> int | None:
    return kwargs.get("dim", args[1] if len(args) > 1 else None)
