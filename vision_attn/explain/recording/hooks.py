"""What sees which modules of a network attend while it runs, and how our own do; see `record`.

Axes: b batch, n tokens, d width of a token, head, i queries, j keys.
"""

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from vision_attn.attention import Attend, Readout
from vision_attn.attention.normalizers import Softmax
from vision_attn.attention.scores import DotProduct
from vision_attn.attention.windows import Global
from vision_attn.explain.recording.calls import Fused, Fusion
from vision_attn.explain.recording.recorder import CallRecorder, Part, Run, no_values
from vision_attn.explain.recording.sdpa import off


class Recorder(CallRecorder):
    """Checks that each attention module is seen once a run, by hooks on them and on the network."""

    def __init__(self, keep: frozenset[Part], fusion: Fusion | None = None):
        super().__init__(keep, fusion)
        self.runs: list[Run] = []  # of the network

    def starting(self, name: str) -> Run:
        calls, expected = self.record.calls, self.record.expected
        return Run(name, len(calls), len(expected), sys.exception())

    def begins(self, _network: nn.Module, _args: tuple) -> None:
        if threading.get_ident() == self.thread:
            self.runs.append(self.starting(""))
            self.values = no_values  # it may be given the same again

    def ends(self, _network: nn.Module, _args: tuple, out: Any) -> None:
        if threading.get_ident() != self.thread or not self.runs:
            return
        run = self.runs.pop()
        if run.failed(out):
            del self.record.calls[run.calls :], self.record.expected[run.expected :]

    def enters(self, name: str, module: nn.Module) -> Callable:
        told = is_softmax_of_products(module)

        def hook(_module: nn.Module, _args: tuple) -> None:
            if threading.get_ident() == self.thread:
                self.running.append(self.starting(name))
                self.told += told
                self.fused_map = self.lse = None  # of a call that failed

        return hook

    def leaves(self, name: str) -> Callable:
        def hook(module: nn.Module, args: tuple, kwargs: dict, out: Any) -> None:
            if threading.get_ident() != self.thread:
                return
            if not self.running or self.running[-1].name != name:
                return  # another hook raised before it could enter
            run, told = self.running[-1], is_softmax_of_products(module)
            before = run.calls
            self.told -= told
            if run.failed(out):
                del self.record.calls[before:]
                self.running.pop()
                return
            if isinstance(module, Attend):
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
        self, attend: Any, context: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None
    ) -> None:
        """Our own attention by a softmax of products, whatever kernel did it."""
        if self.told_fused():
            return
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
                lse=self.take_lse(),
            )
        )

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
        """Our own attention: by a softmax of products, as one call, or by its own account."""
        if is_softmax_of_products(attend):
            self.products(attend, context, q, k, v, mask)
            return
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
