"""The hooks on modules: one call for each attention module, and our own attention by its parts.

Axes: b batch, n tokens, d width of a token, head, i queries, j keys.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from vision_attn.attention import Attend, Readout
from vision_attn.attention.normalizers import Softmax
from vision_attn.attention.scores import DotProduct
from vision_attn.attention.windows import Global
from vision_attn.hooks import Hooks
from vision_attn.tokens.modules import attending
from vision_attn.tokens.record.log import CallLog, RecordError, Run, nothing

__all__ = ["ModuleHooks"]


class ModuleHooks:
    """Check that each attention module makes one call a run; record our own attention.

    Modules inside an attention module make their calls for it.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.record.hooks import ModuleHooks
        >>> from vision_attn.tokens.record.log import CallLog
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> log = CallLog(keep=frozenset(), fusion=None)
        >>> with ModuleHooks(log).attached(network):
        ...     logits = network(torch.rand(1, 3, 16, 16))
        >>> len(log.record.expected)
        2
    """

    def __init__(self, log: CallLog):
        self.log = log
        self.runs: list[Run] = []  # of the network

    @contextmanager
    def attached(self, network: nn.Module) -> Iterator[None]:
        """Keep hooks on the network and its attention modules while this is open."""
        with Hooks() as hooks:
            hooks.before(network, self._before_network)
            hooks.after(network, self._after_network, always_call=True)
            for module, name in attending(network).items():
                hooks.before(module, self._before(name, module))
                hooks.after(module, self._after(name, module), with_kwargs=True, always_call=True)
            yield

    def _before_network(self, _network: nn.Module, _args: tuple[Any, ...]) -> None:
        self.runs.append(self.log.start_run(""))
        self.log.last_memory = (nothing, nothing)  # it may be given the same again

    def _after_network(self, _network: nn.Module, _args: tuple[Any, ...], out: Any) -> None:
        if not self.runs:
            return
        record, run = self.log.record, self.runs.pop()
        if run.failed(out):
            del record.calls[run.calls :], record.expected[run.expected :]

    def _before(self, name: str, module: nn.Module) -> Callable[..., Any]:
        log, deferred = self.log, is_softmax_of_products(module)

        def hook(_module: nn.Module, _args: tuple[Any, ...]) -> None:
            log.running.append(log.start_run(name))
            log.deferred += deferred
            log.forget_kernel()  # a call that failed

        return hook

    def _after(self, name: str, module: nn.Module) -> Callable[..., Any]:
        log, deferred = self.log, is_softmax_of_products(module)
        record_own: Callable[..., None] | None = None
        if isinstance(module, Attend):
            record_own = self._attend
        elif isinstance(module, Readout):
            record_own = self._read_out

        def hook(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
        ) -> None:
            if not log.running or log.running[-1].name != name:
                return  # another hook raised before it could enter
            run, calls = log.running[-1], log.record.calls
            log.deferred -= deferred
            if run.failed(out):
                del calls[run.calls :]
                log.running.pop()
                return
            if record_own is not None:
                record_own(module, run.calls, out, *args, **kwargs)
            log.running.pop()
            if not log.running:
                log.record.expected.append(name)
            if (count := len(calls) - run.calls) != 1:
                raise RecordError(_miscounted(name, module, count))

        return hook

    def _attend(
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
        """Record our own attention: by queries and keys if they say it all, else by its weights."""
        if is_softmax_of_products(attend):
            self._attend_by_products(attend, context, q, k, v, mask)
            return
        calls, keep_scores = self.log.record.calls, "scores" in self.log.keep
        expected_shape = (len(q), q.shape[-2])
        complete = (
            len(calls) == before + 1 and (calls[-1].batch, calls[-1].queries) == expected_shape
        )
        if complete and not keep_scores:
            if self.log.tracer is not None:
                self.log.tracer.attended(before, v, context, q)
            return
        with self.log.computing():
            weights = attend.weights(q, k, mask, layout)
            scores = attend.score(q, k).expand_as(weights) if keep_scores else None
        del calls[before:]
        v = v.expand(-1, weights.shape[1], -1, -1)
        self.log.add_explicit(weights, v, context, scores, q)

    def _attend_by_products(
        self, attend: Any, context: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None
    ) -> None:
        """Record our own attention by a softmax of products, whatever kernel ran."""
        if self.log.add_fused_map():
            return
        with self.log.computing():
            q, k = attend.score.transform(q, k)
        q, k, v = (x.expand(-1, context.shape[1], -1, -1) for x in (q, k, v))
        scale = attend.score.scale / attend.normalizer.temperature
        self.log.add_lazy(q, k, v, context, scale, mask, causal=False)

    def _read_out(
        self,
        readout: Readout,
        before: int,
        out: Tensor,
        tokens: Tensor,
        layout: Any = None,
        mask: Any = None,
    ) -> None:
        """Record our own readouts: one query's call, or their weights with looks for heads."""
        calls = self.log.record.calls
        if len(calls) == before + 1 and (calls[-1].queries, calls[-1].keys) == (1, tokens.shape[1]):
            return
        with self.log.computing():
            weights = readout.weights(tokens, layout, mask)
        del calls[before:]
        if self.log.tracer is not None:
            self.log.tracer.attended(before, tokens.unsqueeze(1), out)
        self.log.add_explicit(weights.unsqueeze(2), None, None, None)


def is_softmax_of_products(module: nn.Module) -> bool:
    """Whether a module is our attention and queries and keys alone decide its weights."""
    return (
        isinstance(module, Attend)
        and isinstance(module.score, DotProduct)
        and isinstance(module.normalizer, Softmax)
        and isinstance(module.window, Global)
    )


def _miscounted(name: str, module: nn.Module, count: int) -> str:
    what = f"{name or 'the network'} ({type(module).__name__})"
    if count == 0:
        return (
            f"{what} ran, but no attention call of it was seen: its kernel is not torch's, or it "
            "does not weigh values by a softmax over keys. If it offers a choice, choose torch's "
            "scaled_dot_product_attention (Hugging Face: attn_implementation='sdpa')"
        )
    return (
        f"{what} makes {count} attention calls a run, and how it combines them is not known: one "
        "map cannot stand for it"
    )
