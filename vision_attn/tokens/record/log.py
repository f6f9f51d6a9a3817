"""The log of a recording: the calls so far, and which module is running.

Axes: b batch, n tokens, d width of a token, head, i queries, j keys.
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from vision_attn.hooks import current_scope
from vision_attn.tokens.record.calls import (
    AttentionCall,
    ExplicitWeights,
    Fusion,
    LazyWeights,
)
from vision_attn.tokens.record.sdpa import (
    SDPAInputs,
    ShortAttention,
    attention_and_lse,
    detached,
)
from vision_attn.tokens.trace.tracer import Tracer

__all__ = ["CallLog", "Part", "Record", "RecordError"]

Memory = tuple[Callable[[], Tensor | None], Callable[[], Tensor | None]]  # keys and values
Part = Literal["v", "context", "scores"]


class RecordError(ValueError):
    """A run made more or fewer attention calls than one for each module.

    Examples:
        >>> from vision_attn.tokens.record.log import RecordError
        >>> issubclass(RecordError, ValueError)
        True
    """


@dataclass
class Record:
    """The attention calls of a network in the order they ran.

    Attributes:
        calls: One an attention module.
        expected: The names of the attention modules that ran.
        streams: By the number n of tokens, the input (b n d) of the last norm over a sequence of so
            many: the residual stream at the end of the network.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens import record_attention
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> with record_attention(network) as record:
        ...     logits = network(torch.rand(2, 3, 16, 16))
        >>> record.expected
        ['blocks.0.attn', 'blocks.1.attn']
        >>> record.streams[5].shape
        torch.Size([2, 5, 12])
    """

    calls: list[AttentionCall] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    streams: dict[int, Tensor] = field(default_factory=dict)


class Run(NamedTuple):
    """A module that is running."""

    name: str
    calls: int  # on record before it
    expected: int
    handled: BaseException | None  # the exception that was being handled then

    def failed(self, out: Any) -> bool:
        return out is None and sys.exception() is not self.handled


class CallLog:
    """State shared by mode and hooks: record, running modules, the kernel's last result.

    A kernel's result is its log-sum-exp or, where heads were fused, the map.

    Examples:
        >>> from vision_attn.tokens.record.log import CallLog
        >>> log = CallLog(keep=frozenset(), fusion=None)
        >>> log.record.calls, log.module
        ([], '')
    """

    def __init__(
        self,
        keep: frozenset[Part],
        fusion: Fusion | None,
        tracer: Tracer | None = None,
        detach: bool = True,
    ):
        self.keep, self.tracer, self.detach = keep, tracer, detach
        self.short = None if fusion is None else ShortAttention(fusion)
        self.record = Record()
        self.scope = current_scope()
        self.running: list[Run] = []  # attention modules
        self.deferred = 0  # of them, those whose calls are recorded by their hooks when they end
        self.fused_map: Tensor | None = None
        self.lse: Tensor | None = None
        self.last_memory: Memory = (nothing, nothing)

    @property
    def in_scope(self) -> bool:
        """Whether the running code belongs to the scope of this log."""
        return self.scope is current_scope()

    @property
    def module(self) -> str:
        """The name of the attention module that is running."""
        return self.running[-1].name if self.running else ""

    def start_run(self, name: str) -> Run:
        """Begin the run of a module."""
        return Run(name, len(self.record.calls), len(self.record.expected), sys.exception())

    def attention(self, inputs: SDPAInputs) -> Tensor:
        """Run torch's attention, and fuse the weights of its heads if that is wanted and cheap."""
        self.forget_kernel()
        short = None if self.short is None else self.short(inputs)
        if short is not None:
            context, self.fused_map = short
            return context
        with self.untraced():
            shapes = None if self.tracer is None else self.tracer.shapes
            if shapes is not None and any(map(shapes.is_blank, inputs[:3])) and inputs.by_products:
                return shapes.context(inputs.query, inputs.value)
            context, self.lse = attention_and_lse(inputs)
        return context

    def untraced(self) -> AbstractContextManager[None]:
        """Run the product of an attention call untraced; the tracer gets it when it is recorded."""
        return nullcontext() if self.tracer is None else self.tracer.paused()

    def of_graph(self, x: Tensor) -> Tensor:
        """Detach a value, unless gradients are wanted."""
        return detached(x) if self.detach else x

    def computing(self) -> AbstractContextManager[None]:
        """Compute what the network did not compute, with gradients if these are wanted."""
        return nullcontext() if not self.detach else torch.no_grad()

    def forget_kernel(self) -> None:
        """Drop the result of the last kernel."""
        self.fused_map = self.lse = None

    def add_fused_map(self) -> bool:
        """Record the last call if its heads were fused; return whether they were."""
        if self.short is None or self.fused_map is None:
            return False
        weights, normalized = self.fused_map.unsqueeze(1), self.short.fusion.keeps_row_sums
        self.record.calls.append(
            ExplicitWeights(self.module, None, None, weights, None, normalized)
        )
        self.fused_map = None
        return True

    def add_lazy(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        context: Tensor,
        scale: float,
        mask: Tensor | None,
        causal: bool,
    ) -> None:
        """Record a call of a kernel that kept no weights, with the log-sum-exp it returned.

        Weights that stay on the graph are made without it, as it has no gradient.
        """
        lse, self.lse = self.lse if self.detach else None, None
        if self.tracer is not None:
            self.tracer.attended(len(self.record.calls), v, context, q)
        self._lighten_last()
        self.record.calls.append(
            LazyWeights(
                self.module,
                v=self.of_graph(v) if "v" in self.keep else None,
                context=context if "context" in self.keep else None,
                q=self.of_graph(q),
                k=self.of_graph(k),
                scale=scale,
                mask=mask.detach() if self.detach and mask is not None else mask,
                causal=causal,
                lse=None if lse is None else lse.detach(),
            )
        )

    def _lighten_last(self) -> None:
        """Under a tracer, keep no more of the previous call than its shape."""
        calls = self.record.calls
        if self.tracer is None or not calls:
            return
        last = calls[-1]
        if isinstance(last, LazyWeights):
            calls[-1] = replace(last, mask=None, lse=None)
        elif isinstance(last, ExplicitWeights):
            shape = last.all_weights.new_empty(()).expand(last.shape)
            calls[-1] = replace(last, all_weights=shape, all_scores=None)

    def add_explicit(
        self,
        weights: Tensor,
        v: Tensor | None,
        context: Tensor | None,
        scores: Tensor | None,
        query: Tensor | None = None,
        turned: bool = False,
    ) -> None:
        """Record a call whose weights are at hand, and its query where it has one.

        Args:
            turned: Whether the softmax ran over another axis than the last, so that what reads the
                context may be a product of the same head.
        """
        if self.tracer is not None and v is not None and context is not None:
            self.tracer.attended(len(self.record.calls), v, context, query, weights, turned)
        self._lighten_last()
        self.record.calls.append(
            ExplicitWeights(
                self.module,
                v=self.of_graph(v) if v is not None and "v" in self.keep else None,
                context=context if "context" in self.keep else None,
                all_weights=weights.detach() if self.detach else weights,
                all_scores=None
                if scores is None
                else (scores.detach() if self.detach else scores).reshape(weights.shape),
            )
        )


def nothing() -> None:
    return None
