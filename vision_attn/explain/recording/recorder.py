"""The recorder: a function mode that sees the calls, hooks that see the modules, and their record.

Axes: b batch, n tokens, d width of a token, head, i queries, j keys.
"""

import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple
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
from vision_attn.compat.torch_private import uncompiled
from vision_attn.explain.networks.modules import attends, modules_of
from vision_attn.explain.recording.calls import (
    AttentionCall,
    ExplicitWeights,
    Fusion,
    LazyWeights,
    Workspace,
)
from vision_attn.explain.recording.contraction import Contraction
from vision_attn.explain.recording.origins import Tracer
from vision_attn.explain.recording.sdpa import (
    SDPAInputs,
    attention_and_lse,
    detached,
    multi_head_attention,
    short_attention,
)

__all__ = ["Part", "Record", "RecordError", "Recorder"]

Memory = tuple[Callable[[], Tensor | None], Callable[[], Tensor | None]]  # keys and values
Part = Literal["v", "context", "scores"]

NORM = {F.layer_norm, F.rms_norm}
SOFTMAX = {torch.softmax, Tensor.softmax, F.softmax}
DIVISION = {torch.div, torch.true_divide, Tensor.div, Tensor.div_, Tensor.true_divide}
DIVISION |= {Tensor.true_divide_, Tensor.__truediv__, Tensor.__itruediv__}
IN_PLACE = {Tensor.div_, Tensor.true_divide_, Tensor.__itruediv__}
EXPONENTIAL = {torch.exp, Tensor.exp, Tensor.exp_}
WATCHED = {F.scaled_dot_product_attention, F.multi_head_attention_forward}
WATCHED |= {*NORM, *SOFTMAX, *DIVISION, *EXPONENTIAL}
PRODUCT = {torch.matmul, Tensor.matmul, torch.bmm, Tensor.bmm}
ELEMENTWISE = {torch.mul, torch.multiply, Tensor.mul, Tensor.multiply}
ELEMENTWISE |= {Tensor.__mul__, Tensor.__rmul__}
SUM = {torch.sum, Tensor.sum}


class RecordError(ValueError):
    """A run made attention calls that no record of one a module holds.

    Examples:
        >>> from vision_attn.explain.recording.recorder import RecordError
        >>> issubclass(RecordError, ValueError)
        True
    """


@dataclass
class Record:
    """The attention calls of a network in the order they ran.

    calls: one an attention module. expected: the names of the attention modules that ran. streams:
    by the number n of tokens, the input (b n d) of the last norm over a sequence of so many: the
    residual stream at the end of the network.

    Examples:
        >>> import torch
        >>> from vision_attn.explain import record_attention
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


class Recorder:
    """Record the attention calls of a network: a mode sees the calls, hooks count them.

    keep, fusion: as of `record_attention`, which also checks that there was a call at all. tracer:
    told of every call's output, which its own operations have mixed.

    Examples:
        >>> import torch
        >>> from vision_attn.explain.recording.recorder import Recorder
        >>> from vision_attn.models import ViT
        >>> network = ViT(image_size=16, patch_size=8, num_classes=5, dim=12, depth=2, heads=3)
        >>> recorder = Recorder(keep=frozenset({"v"}))
        >>> with recorder.watching(network):
        ...     logits = network(torch.rand(2, 3, 16, 16))
        >>> len(recorder.record.calls)
        2
    """

    def __init__(
        self, keep: frozenset[Part], fusion: Fusion | None = None, tracer: Tracer | None = None
    ):
        self._log = CallLog(keep, fusion, tracer)
        self._mode = CallMode(self._log)
        self._hooks = ModuleHooks(self._log)

    @property
    def record(self) -> Record:
        """The calls so far."""
        return self._log.record

    @contextmanager
    def watching(self, network: nn.Module) -> Iterator[None]:
        """Record the runs of `network` in the thread that made this recorder, while this is open.

        Raises ValueError where an attention module ran without exactly one call seen.
        """
        with self._hooks.attached(network), self._mode, uncompiled():
            yield


class Run(NamedTuple):
    """A module that is running."""

    name: str
    calls: int  # on record before it
    expected: int
    handled: BaseException | None  # the exception that was being handled then

    def failed(self, out: Any) -> bool:
        return out is None and sys.exception() is not self.handled


class CallLog:
    """What the mode and the hooks share: the record, what runs now, and the kernel's last result.

    A kernel's result is its log-sum-exp or, where heads were fused, the map.
    """

    def __init__(self, keep: frozenset[Part], fusion: Fusion | None, tracer: Tracer | None = None):
        self.keep, self.fusion, self.tracer = keep, fusion, tracer
        self.workspace = Workspace()
        self.record = Record()
        self.thread = threading.get_ident()
        self.running: list[Run] = []  # attention modules
        self.deferred = 0  # of them, those whose calls are recorded by their hooks when they end
        self.fused_map: Tensor | None = None
        self.lse: Tensor | None = None
        self.last_memory: Memory = (nothing, nothing)

    @property
    def module(self) -> str:
        """The name of the attention module that is running."""
        return self.running[-1].name if self.running else ""

    def start_run(self, name: str) -> Run:
        return Run(name, len(self.record.calls), len(self.record.expected), sys.exception())

    def attention(self, inputs: SDPAInputs) -> Tensor:
        """Run torch's attention, and fuse the weights of its heads if that is wanted and cheap."""
        self.forget_kernel()
        if self.fusion is not None:
            short = short_attention(inputs, self.fusion, self.workspace)
            if short is not None:
                context, self.fused_map = short
                return context
        with self.untraced():
            context, self.lse = attention_and_lse(inputs)
        return context

    def untraced(self) -> AbstractContextManager:
        """Run the product of an attention call, of which the tracer is told when it is recorded."""
        return nullcontext() if self.tracer is None else self.tracer.paused()

    def forget_kernel(self) -> None:
        self.fused_map = self.lse = None

    def add_fused_map(self) -> bool:
        """Record the last call if its heads were fused; return whether they were."""
        if self.fusion is None or self.fused_map is None:
            return False
        weights, normalized = self.fused_map.unsqueeze(1), self.fusion.keeps_row_sums
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
        """Record a call of a kernel that kept no weights, with the log-sum-exp it returned."""
        lse, self.lse = self.lse, None
        if self.tracer is not None:
            self.tracer.attended(len(self.record.calls), v, context, q)
        self.record.calls.append(
            LazyWeights(
                self.module,
                v=detached(v) if "v" in self.keep else None,
                context=context if "context" in self.keep else None,
                q=detached(q),
                k=detached(k),
                scale=scale,
                mask=mask,
                causal=causal,
                lse=None if lse is None else lse.detach(),
            )
        )

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

        turned: whether the softmax ran over another axis than the last, so that what reads the
        context may be a product of the same head.
        """
        if self.tracer is not None and v is not None and context is not None:
            self.tracer.attended(len(self.record.calls), v, context, query, weights, turned)
        self.record.calls.append(
            ExplicitWeights(
                self.module,
                v=detached(v) if v is not None and "v" in self.keep else None,
                context=context if "context" in self.keep else None,
                all_weights=weights.detach(),
                all_scores=None if scores is None else scores.detach().reshape(weights.shape),
            )
        )


def nothing() -> None:
    return None


class CallMode(TorchFunctionMode):
    """See the calls of torch's attention, and of attention as a softmax and a product."""

    def __init__(self, log: CallLog):
        super().__init__()
        self.log = log
        # Outputs of softmax that have not yet multiplied values, each with the softmax's input.
        self.softmax_outputs: WeakIdKeyDictionary = WeakIdKeyDictionary()
        # Products with values of exponentials whose sum may be divided by afterwards.
        self.undivided: WeakIdKeyDictionary = WeakIdKeyDictionary()
        # Weights times values, element by element, that may be summed over the keys.
        self.unsummed: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def __torch_function__(
        self, func: Callable, types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        outputs, log = self.softmax_outputs, self.log
        if func not in WATCHED and not outputs.data:
            return func(*args, **kwargs)
        if log.deferred:
            if func is not F.scaled_dot_product_attention:
                return func(*args, **kwargs)
            return log.attention(SDPAInputs(*args, **kwargs))
        if func is F.scaled_dot_product_attention:
            return self._sdpa(SDPAInputs(*args, **kwargs))
        if func is F.multi_head_attention_forward:
            return self._multi_head(args, kwargs)
        factors = self._factors(func, operands(args, kwargs))
        if factors is not None and self._are_weights(factors, func):
            return self._weigh(factors, outputs.pop(factors.weights))
        if self.undivided.data or self.unsummed.data:
            context = self._finished(func, args, kwargs)
            if context is not None:
                return context
        out = func(*args, **kwargs)
        if factors is not None and outputs[factors.weights] is UNSUMMED:
            self.undivided[out] = factors
        dim = _dim(args, kwargs) if func in SOFTMAX and out.ndim > 2 else None
        if dim is not None and dim % out.ndim > 0:
            over_last = dim in (-1, out.ndim - 1)
            keeps = over_last and "scores" in log.keep
            outputs[out] = operands(args, kwargs)[0] if keeps else None if over_last else UNTURNED
        elif outputs.data and isinstance(out, Tensor) and self._track(func, args, out):
            pass
        elif (func in DIVISION and divides_rows(args, out)) or (
            func in EXPONENTIAL and out.ndim > 2
        ):
            outputs[out] = UNSUMMED
        elif func in NORM and args[0].ndim == 3:
            log.record.streams[args[0].shape[1]] = args[0].detach()
        return out

    def _sdpa(self, inputs: SDPAInputs) -> Tensor:
        """Run and record torch's attention, by whatever kernel it chooses."""
        log, (query, key, value, mask) = self.log, inputs[:4]
        last_keys, last_values = (each() for each in log.last_memory)
        if value is last_values and key is not last_keys:  # with the same keys: other queries
            raise RecordError(
                f"{log.module or 'the network'} attends twice over the same values, and how it "
                "combines the two is not known (differential attention?): one map cannot stand "
                "for it"
            )
        log.last_memory = ref(key), ref(value)
        if query.ndim > 4:
            raise RecordError(
                f"{log.module or 'the network'} attends over tensors of {query.ndim} axes, and "
                "which of them are heads or windows is not known"
            )
        batches = [x.shape[:-2] for x in (query, key, value)]
        if not inputs.enable_gqa and batches != [batches[0]] * 3:  # heads share keys and values
            shape = torch.broadcast_shapes(*batches)
            query, key, value = (x.expand(*shape, -1, -1) for x in (query, key, value))
            inputs = inputs._replace(query=query, key=key, value=value)
        context = log.attention(inputs)
        if log.add_fused_map():
            return context
        if inputs.enable_gqa:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], dim=-3)
        q, k, v = (x.unsqueeze(-3) if x.ndim == 3 else x for x in (query, key, value))
        if mask is not None and query.ndim == mask.ndim == 3:
            mask = mask.unsqueeze(-3)
        mask = None if mask is None else mask.detach()
        log.add_lazy(q, k, v, context, inputs.alpha, mask, inputs.is_causal)
        return context

    def _multi_head(self, args: tuple, kwargs: dict) -> tuple[Tensor, Tensor | None]:
        """Run `nn.MultiheadAttention` always through `_sdpa`."""
        log = self.log
        fusion, need_weights = log.fusion, kwargs.get("need_weights", True)
        if need_weights:  # by the network itself, which is owed those of each head
            log.fusion = None
        try:
            with self:
                out = multi_head_attention(*args, **kwargs)
        finally:
            log.fusion = fusion
        if not need_weights:
            return out, None
        weights = log.record.calls[-1].weights().to(out.dtype)
        if kwargs.get("average_attn_weights", True):
            weights = weights.mean(1)
        return out, weights if args[0].ndim == 3 else weights.squeeze(0)

    def _track(self, func: Callable, args: tuple, out: Tensor) -> bool:
        """Take weights that were only moved, scaled or mixed for weights still."""
        outputs = self.softmax_outputs
        for arg in args:
            if isinstance(arg, Tensor) and arg in outputs and arg.numel() == out.numel():
                outputs[out] = outputs[arg]
                return True
        if func in ELEMENTWISE and isinstance(args[1], Tensor):
            for weights, v in (args[:2], args[1::-1]):
                if weights in outputs:
                    self.unsummed[out] = (weights, v)
                    return True
        return False

    def _factors(self, func: Callable, args: tuple) -> "Factors | None":
        """The weights and values of weights @ v, (v' @ weights')' or an einsum; None for others."""
        if not self.softmax_outputs.data or not (func in PRODUCT or func is torch.einsum):
            return None
        equation, *factors = args if func is torch.einsum else ("...ij,...jd->...id", *args)
        if len(factors) < 2 or not all(isinstance(x, Tensor) for x in factors[:2]):
            return None
        left, right = factors[:2]
        if not {left.ndim, right.ndim} <= {3, 4} or (func in PRODUCT and left.ndim != right.ndim):
            return None
        turned = "{1},{0}->{2}".format(*re.split(",|->", equation)) if "->" in equation else ""
        for weights, v, order in ((left, right, equation), (right, left, turned)):
            if weights in self.softmax_outputs:
                contraction = Contraction.of(order, weights.ndim, v.ndim)
                if contraction is not None:
                    return Factors(weights, v, contraction)
        return None

    def _are_weights(self, factors: "Factors", func: Callable) -> bool:
        """Whether they sum to 1 over the keys, as a softmax does over its last axis."""
        x, keys = factors.weights, factors.order.weights[-1]
        scores = self.softmax_outputs[x]
        softmax = scores is not UNTURNED and scores is not UNSUMMED
        return (softmax and (func in PRODUCT or keys == x.ndim - 1)) or _sums_to_one(x, keys)

    def _finished(self, func: Callable, args: tuple, kwargs: dict) -> Tensor | None:
        """The context, where this call ends an attention that others began; None where not."""
        if func in DIVISION - IN_PLACE and len(args) > 1 and isinstance(args[1], Tensor):
            factors = self.undivided.get(args[0])
            if factors is None:
                return None
            weights, _, order = factors
            sums = weights.sum(order.weights[-1], keepdim=True)
            divisor = sums.permute(order.weights).permute(order.out)
            alike = args[1].ndim == divisor.ndim and args[1].numel() == divisor.numel()
            if alike and torch.allclose(args[1].reshape(divisor.shape), divisor, rtol=1e-3):
                return self._weigh(Factors(weights / sums, *factors[1:]))
        if func in SUM and args[0] in self.unsummed:
            weights, v = self.unsummed[args[0]]
            dim: Any = _dim(args, kwargs)
            context = self._summed(weights, v, dim)
            kept = kwargs.get("keepdim", len(args) > 2 and args[2])
            return context if context is None or kept else context.squeeze(dim)
        return None

    def _summed(self, weights: Tensor, v: Tensor, dim: Any) -> Tensor | None:
        """Record (weights * v).sum(dim), each with axes of length 1 where the other has its own."""
        dim = dim[0] if isinstance(dim, list | tuple) and len(dim) == 1 else dim
        ndim = max(weights.ndim, v.ndim)
        a, b = (x[(None,) * (ndim - x.ndim)] for x in (weights, v))
        if not isinstance(dim, int) or a.shape[dim] != b.shape[dim]:
            return None
        keys, others = dim % ndim, [axis for axis in range(ndim) if axis != dim % ndim]
        queries = [axis for axis in others if a.shape[axis] > 1 == b.shape[axis]]
        width = [axis for axis in others if b.shape[axis] > 1 == a.shape[axis]]
        lead = [axis for axis in others if a.shape[axis] == b.shape[axis] > 1 or axis == 0]
        if len(queries) > 1 or len(width) != 1 or len(lead) > 2 or not _sums_to_one(a, keys):
            return None
        if keys == 0 or 0 in queries + width:
            return None
        shape = torch.broadcast_shapes(a.shape, b.shape)
        rows = (*[shape[axis] for axis in lead], -1, shape[keys])
        a = a.permute(*lead, *queries, keys, *[x for x in others if x not in lead + queries])
        b = b.permute(*lead, keys, *width, *[x for x in others if x not in lead + width])
        order = Contraction.of("...ij,...jd->...id", len(rows), len(rows))
        assert order is not None
        a, b = a.reshape(rows), b.reshape(*rows[:-2], shape[keys], -1)
        context = self._weigh(Factors(a, b, order))
        made = [*lead, *(queries or [ndim]), *width]
        moved = context.permute([made.index(axis) for axis in sorted(made)])
        return moved.reshape([1 if axis == keys else size for axis, size in enumerate(shape)])

    def _weigh(self, factors: "Factors", scores: Tensor | None = None) -> Tensor:
        """Compute and record a product of weights and values; scores: the softmax's input."""
        weights, v, order = factors
        turned = scores is UNTURNED
        if scores is UNTURNED or scores is UNSUMMED:
            scores = None
        elif scores is not None and order.weights[-1] == scores.ndim - 1 == weights.ndim - 1:
            scores = scores.permute(order.weights)
        weights, v = weights.permute(order.weights), v.permute(order.v)
        with self.log.untraced():
            context = weights @ v
        if weights.ndim == 3:
            weights, v = weights.unsqueeze(1), v.unsqueeze(1)
        v = v.expand(*weights.shape[:2], -1, -1)  # heads may share their values
        self.log.add_explicit(weights, v, context, scores, turned=turned)
        return context.permute(order.out).contiguous()


class Factors(NamedTuple):
    """Weights and the values that they multiply, and the order of their axes."""

    weights: Tensor
    v: Tensor
    order: Contraction


UNTURNED = torch.empty(0)  # stands for the scores of a softmax over another axis than the last
UNSUMMED = torch.empty(0)  # for those of an exponential or a quotient, which may sum to 1


def divides_rows(args: tuple, out: Any) -> bool:
    """Whether a division has one divisor for each row of what it gives."""
    divisor = args[1] if len(args) > 1 else None
    if not isinstance(out, Tensor) or not isinstance(divisor, Tensor):
        return False
    return out.ndim > 2 and divisor.shape == (*out.shape[:-1], 1)


def _sums_to_one(weights: Tensor, axis: int) -> bool:
    sums = weights.detach().sum(axis, dtype=torch.float32)
    return bool(((sums - 1).abs() < 1e-3).all())


def operands(args: tuple, kwargs: dict) -> tuple:
    """The tensors of a product, which may be given by their names."""
    named = (kwargs[name] for name in ("input", "other", "mat2") if name in kwargs)
    return (*args, *named)


def _dim(args: tuple, kwargs: dict) -> int | None:
    return kwargs.get("dim", args[1] if len(args) > 1 else None)


class ModuleHooks:
    """Check that each attention module makes one call a run; record our own attention.

    Modules inside an attention module make their calls for it.
    """

    def __init__(self, log: CallLog):
        self.log = log
        self.runs: list[Run] = []  # of the network

    @contextmanager
    def attached(self, network: nn.Module) -> Iterator[None]:
        """Keep hooks on the network and its attention modules while this is open."""
        hooks: list = [
            network.register_forward_pre_hook(self._before_network),
            network.register_forward_hook(self._after_network, always_call=True),
        ]
        try:
            for module, name in modules_of(network).items():
                if attends(module):
                    hooks += [
                        module.register_forward_pre_hook(self._before(name, module)),
                        module.register_forward_hook(
                            self._after(name), with_kwargs=True, always_call=True
                        ),
                    ]
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _before_network(self, _network: nn.Module, _args: tuple) -> None:
        log = self.log
        if threading.get_ident() == log.thread:
            self.runs.append(log.start_run(""))
            log.last_memory = (nothing, nothing)  # it may be given the same again

    def _after_network(self, _network: nn.Module, _args: tuple, out: Any) -> None:
        if threading.get_ident() != self.log.thread or not self.runs:
            return
        record, run = self.log.record, self.runs.pop()
        if run.failed(out):
            del record.calls[run.calls :], record.expected[run.expected :]

    def _before(self, name: str, module: nn.Module) -> Callable:
        log, deferred = self.log, is_softmax_of_products(module)

        def hook(_module: nn.Module, _args: tuple) -> None:
            if threading.get_ident() == log.thread:
                log.running.append(log.start_run(name))
                log.deferred += deferred
                log.forget_kernel()  # a call that failed

        return hook

    def _after(self, name: str) -> Callable:
        log = self.log

        def hook(module: nn.Module, args: tuple, kwargs: dict, out: Any) -> None:
            if threading.get_ident() != log.thread:
                return
            if not log.running or log.running[-1].name != name:
                return  # another hook raised before it could enter
            run, calls = log.running[-1], log.record.calls
            log.deferred -= is_softmax_of_products(module)
            if run.failed(out):
                del calls[run.calls :]
                log.running.pop()
                return
            if isinstance(module, Attend):
                self._attend(module, run.calls, out, *args, **kwargs)
            if isinstance(module, Readout):
                self._read_out(module, run.calls, out, *args, **kwargs)
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
        with torch.no_grad():
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
        with torch.no_grad():
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
        with torch.no_grad():
            weights = readout.weights(tokens, layout, mask)
        del calls[before:]
        if self.log.tracer is not None:
            self.log.tracer.attended(before, tokens.unsqueeze(1), out)
        self.log.add_explicit(weights.unsqueeze(2), None, None, None)


def is_softmax_of_products(module: nn.Module) -> bool:
    """Whether it is our own attention by weights that queries and keys alone give."""
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
