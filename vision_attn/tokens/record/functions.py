"""The function mode: it sees torch's functions, and finds attention that is written out in them.

Axes: b batch, n tokens, d width of a token, head, i queries, j keys.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from vision_attn.attention.shapes import broadcast_shape
from vision_attn.tokens.record.contraction import Contraction
from vision_attn.tokens.record.edits import (
    context_edited,
    edits_of_call,
    is_edited,
    keys_seen,
    keys_weighed,
    values_edited,
)
from vision_attn.tokens.record.log import CallLog, RecordError
from vision_attn.tokens.record.sdpa import SDPAInputs, multi_head_attention

__all__ = ["CallMode"]

NORM = {F.layer_norm, F.rms_norm}
SOFTMAX = {torch.softmax, Tensor.softmax, F.softmax}
DIVISION = {torch.div, torch.true_divide, Tensor.div, Tensor.div_, Tensor.true_divide}
DIVISION |= {Tensor.true_divide_, Tensor.__truediv__, Tensor.__itruediv__}
IN_PLACE = {Tensor.div_, Tensor.true_divide_, Tensor.__itruediv__}
EXPONENTIAL = {torch.exp, Tensor.exp, Tensor.exp_}
WATCHED = {F.scaled_dot_product_attention, F.multi_head_attention_forward}
WATCHED |= {*NORM, *SOFTMAX, *DIVISION, *EXPONENTIAL}
# What reads a tensor's memory past torch's operations.
READING = {Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.data_ptr}
READING |= {Tensor.storage, Tensor.untyped_storage, Tensor.share_memory_, Tensor.__reduce_ex__}
WATCHED |= READING
PRODUCT = {torch.matmul, Tensor.matmul, torch.bmm, Tensor.bmm}
ELEMENTWISE = {torch.mul, torch.multiply, Tensor.mul, Tensor.multiply}
ELEMENTWISE |= {Tensor.__mul__, Tensor.__rmul__}
SUM = {torch.sum, Tensor.sum}


class Factors(NamedTuple):
    """Weights and the values that they multiply, and the order of their axes."""

    weights: Tensor
    v: Tensor
    order: Contraction


UNTURNED = torch.empty(
    0, dtype=torch.float32, device="cpu"
)  # stands for the scores of a softmax over another axis than the last
UNSUMMED = torch.empty(
    0, dtype=torch.float32, device="cpu"
)  # for those of an exponential or a quotient, which may sum to 1


class CallMode(TorchFunctionMode):
    """See the calls of torch's attention, and of attention as a softmax and a product.

    Examples:
        >>> import torch
        >>> from vision_attn.tokens.record.functions import CallMode
        >>> from vision_attn.tokens.record.log import CallLog
        >>> q, k, v = torch.rand(3, 1, 2, 5, 7)
        >>> log = CallLog(keep=frozenset(), fusion=None)
        >>> with CallMode(log):
        ...     context = (q @ k.mT).softmax(-1) @ v
        >>> log.record.calls[0].queries
        5
    """

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
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func not in WATCHED and not self.softmax_outputs.data:
            return func(*args, **kwargs) if kwargs else func(*args)
        return self._watched(func, args, kwargs or {})

    def _watched(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a function that may be a step of an attention, and record the call that it ends."""
        outputs, log = self.softmax_outputs, self.log
        if not log.in_scope:
            return func(*args, **kwargs)
        if func in READING and log.tracer is not None and log.tracer.shapes is not None:
            log.tracer.shapes.read(args[0], func)
        if log.deferred:
            if func is not F.scaled_dot_product_attention:
                return func(*args, **kwargs)
            return log.attention(SDPAInputs(*args, **kwargs))
        if func is F.scaled_dot_product_attention:
            return self._sdpa(SDPAInputs(*args, **kwargs))
        if func in NORM and not outputs.data:
            out = func(*args, **kwargs)
            self._keep_stream(args[0])
            return out
        if func is F.multi_head_attention_forward:
            return self._multi_head(args, kwargs)
        if func is torch.einsum and len(args) == 2 and isinstance(args[1], list | tuple):
            args = (args[0], *args[1])  # operands in a list
        factors = self._factors(func, args, kwargs)
        if factors is not None and self._are_weights(factors, func):
            return self._weigh(factors, outputs.pop(factors.weights))
        if func is torch.einsum and (context := self._pooled(args)) is not None:
            return context
        if self.undivided.data or self.unsummed.data:
            context = self._finished(func, args, kwargs)
            if context is not None:
                return context
        out = func(*args, **kwargs)
        if factors is not None and outputs[factors.weights] is UNSUMMED:
            self.undivided[out] = factors
        dim = _dim(args, kwargs) if func in SOFTMAX and out.ndim > 1 else None
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
        elif func in NORM:
            self._keep_stream(args[0])
        return out

    def _keep_stream(self, x: Tensor) -> None:
        """Keep the input of a norm over a sequence."""
        if x.ndim == 3:
            self.log.record.streams[x.shape[1]] = x.detach()

    def _sdpa(self, inputs: SDPAInputs) -> Tensor:
        """Run and record torch's attention, by whatever kernel it chooses."""
        log, (query, key, value) = self.log, inputs[:3]
        last_keys, last_values = log.last_memory
        if value is last_values() and key is not last_keys():  # with the same keys: other queries
            raise RecordError(
                f"{log.module or 'the network'} attends twice over the same values, and how it "
                "combines the two is not known (differential attention?): one map cannot stand "
                "for it"
            )
        log.last_memory = ref(key), ref(value)
        batches = query.shape[:-2], key.shape[:-2], value.shape[:-2]
        if not inputs.enable_gqa and not batches[0] == batches[1] == batches[2]:
            shape = broadcast_shape(*batches)  # heads share keys and values
            query, key, value = (x.expand(*shape, -1, -1) for x in (query, key, value))
            inputs = inputs._replace(query=query, key=key, value=value)
        lead = query.shape[:-2]
        inputs = folded(inputs) if len(lead) > 2 else inputs
        if is_edited():
            inputs, context = self._edited(inputs)
        else:
            context = log.attention(inputs)
        if not log.add_fused_map():
            self._add_kernel(inputs, context)
        return context.reshape(*lead, *context.shape[-2:]) if len(lead) > 2 else context

    def _edited(self, inputs: SDPAInputs) -> tuple[SDPAInputs, Tensor]:
        """Run torch's attention with the edits of this call; return the inputs as edited too."""
        log = self.log
        with edits_of_call() as edits:
            if not edits:
                return inputs, log.attention(inputs)
            with log.untraced():
                inputs = inputs._replace(value=values_edited(edits, inputs.value))
            context = log.attention(inputs)
            with log.untraced():
                seen = partial(keys_seen, inputs)
                return inputs, context_edited(edits, context, inputs.value, seen)

    def _add_kernel(self, inputs: SDPAInputs, context: Tensor) -> None:
        """Record a call of torch's attention by its queries and keys."""
        query, key, value, mask = inputs[:4]
        if inputs.enable_gqa:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], dim=-3)
        q, k, v = (x.unsqueeze(-3) if x.ndim == 3 else x for x in (query, key, value))
        if mask is not None and query.ndim == mask.ndim == 3:
            mask = mask.unsqueeze(-3)
        self.log.add_lazy(q, k, v, context, inputs.alpha, mask, inputs.is_causal)

    def _multi_head(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Tensor, Tensor | None]:
        """Run `nn.MultiheadAttention` always through `_sdpa`."""
        log = self.log
        short, need_weights = log.short, kwargs.get("need_weights", True)
        if need_weights:  # by the network itself, which is owed those of each head
            log.short = None
        try:
            with self:
                out = multi_head_attention(*args, **kwargs)
        finally:
            log.short = short
        if not need_weights:
            return out, None
        weights = log.record.calls[-1].weights().to(out.dtype)
        if kwargs.get("average_attn_weights", True):
            weights = weights.mean(1)
        return out, weights if args[0].ndim == 3 else weights.squeeze(0)

    def _track(self, func: Callable[..., Any], args: tuple[Any, ...], out: Tensor) -> bool:
        """Keep track of weights through views, scales and mixtures of heads."""
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

    def _factors(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Factors | None:
        """The weights and values of weights @ v, (v' @ weights')' or an einsum; None for others."""
        if not self.softmax_outputs.data or not (func in PRODUCT or func is torch.einsum):
            return None
        args = operands(args, kwargs)
        equation, *factors = args if func is torch.einsum else ("...ij,...jd->...id", *args)
        if len(factors) < 2 or not all(isinstance(x, Tensor) for x in factors[:2]):
            return None
        left, right = factors[:2]
        if min(left.ndim, right.ndim) < 3 or (func in PRODUCT and left.ndim != right.ndim):
            return None
        turned = "{1},{0}->{2}".format(*re.split(",|->", equation)) if "->" in equation else ""
        for weights, v, order in ((left, right, equation), (right, left, turned)):
            if weights in self.softmax_outputs:
                contraction = Contraction.of(order, weights.ndim, v.ndim)
                if contraction is not None:
                    return Factors(weights, v, contraction)
        return None

    def _pooled(self, args: tuple[Any, ...]) -> Tensor | None:
        """Record a sequence's pool, weights (b j) of values (b j e); None where it is none."""
        if len(args) != 3 or not all(isinstance(x, Tensor) for x in args[1:]):
            return None
        equation, weights, v = args[0].replace(" ", ""), *args[1:]
        if weights not in self.softmax_outputs or (weights.ndim, v.ndim) != (2, 3):
            return None
        if not re.fullmatch(r"(\w)(\w),\1\2(\w)->\1\3", equation):
            return None
        order = Contraction.of("...ij,...jd->...id", 3, 3)
        assert order is not None
        self.softmax_outputs.pop(weights)
        return self._weigh(Factors(weights.unsqueeze(1), v, order)).squeeze(1)

    def _are_weights(self, factors: Factors, func: Callable[..., Any]) -> bool:
        """Whether values are attention weights: they sum to 1 over the keys."""
        x, keys = factors.weights, factors.order.weights[-1]
        scores = self.softmax_outputs[x]
        softmax = scores is not UNTURNED and scores is not UNSUMMED
        return (softmax and (func in PRODUCT or keys == x.ndim - 1)) or _sums_to_one(x, keys)

    def _finished(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tensor | None:
        """The context, if this call is the last step of an attention; None: it is not."""
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
            keeps_axis = kwargs.get("keepdim", len(args) > 2 and args[2])
            return context if context is None or keeps_axis else context.squeeze(dim)
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
        shape = broadcast_shape(a.shape, b.shape)
        rows = (*[shape[axis] for axis in lead], -1, shape[keys])
        a = a.permute(*lead, *queries, keys, *[x for x in others if x not in lead + queries])
        b = b.permute(*lead, keys, *width, *[x for x in others if x not in lead + width])
        order = Contraction.of("...ij,...jd->...id", len(rows), len(rows))
        assert order is not None
        a, b = a.reshape(rows), b.reshape(*rows[:-2], shape[keys], -1)
        context = self._weigh(Factors(a, b, order))
        axes = [*lead, *(queries or [ndim]), *width]
        moved = context.permute([axes.index(axis) for axis in sorted(axes)])
        return moved.reshape([1 if axis == keys else size for axis, size in enumerate(shape)])

    def _weigh(self, factors: Factors, scores: Tensor | None = None) -> Tensor:
        """Compute and record a product of weights and values; scores: the softmax's input."""
        weights, v, order = factors
        turned = scores is UNTURNED
        if scores is UNTURNED or scores is UNSUMMED:
            scores = None
        elif scores is not None and order.weights[-1] == scores.ndim - 1 == weights.ndim - 1:
            scores = scores.permute(order.weights)
        weights, v = weights.permute(order.weights), v.permute(order.v)
        lead = broadcast_shape(weights.shape[:-2], v.shape[:-2])
        if len(lead) > 2:
            weights, v = as_batch(weights, lead), as_batch(v, lead)
            scores = None if scores is None else as_batch(scores, lead)
        with self.log.untraced(), edits_of_call() as edits:
            v = values_edited(edits, v)
            context = weights @ v
            rows = weights.unsqueeze(1) if weights.ndim == 3 else weights
            context = context_edited(edits, context, v, partial(keys_weighed, rows))
        if weights.ndim == 3:
            weights, v = weights.unsqueeze(1), v.unsqueeze(1)
        v = v.expand(*weights.shape[:2], -1, -1)  # heads may share their values
        self.log.add_explicit(weights, v, context, scores, turned=turned)
        if len(lead) > 2:
            context = context.view(*lead, *context.shape[-2:])
        return context.permute(order.out).contiguous()


def as_batch(x: Tensor, lead: Sequence[int]) -> Tensor:
    """Count all axes but the last two as batch, of one head: (*lead n d) -> (b 1 n d)."""
    return x.expand(*lead, -1, -1).flatten(0, -3).unsqueeze(1)


def folded(inputs: SDPAInputs) -> SDPAInputs:
    """Bring attention over tensors of more than four axes to (b 1 n d); heads share nothing."""
    query, key, value, mask = inputs[:4]
    lead = query.shape[:-2]
    if inputs.enable_gqa:
        key = key.repeat_interleave(lead[-1] // key.shape[-3], dim=-3)
        value = value.repeat_interleave(lead[-1] // value.shape[-3], dim=-3)
    if mask is not None and mask.ndim > 2:
        mask = as_batch(mask, lead)
    query, key, value = (as_batch(x, lead) for x in (query, key, value))
    return inputs._replace(query=query, key=key, value=value, attn_mask=mask, enable_gqa=False)


def divides_rows(args: tuple[Any, ...], out: Any) -> bool:
    """Whether a division has one divisor for each row of what it gives."""
    divisor = args[1] if len(args) > 1 else None
    if not isinstance(out, Tensor) or not isinstance(divisor, Tensor):
        return False
    return out.ndim > 2 and divisor.shape == (*out.shape[:-1], 1)


def _sums_to_one(weights: Tensor, axis: int) -> bool:
    sums = weights.detach().sum(axis, dtype=torch.float32)
    return bool(((sums - 1).abs() < 1e-3).all())


def operands(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The tensors of a product, which may be given by their names."""
    named = (kwargs[name] for name in ("input", "other", "mat2") if name in kwargs)
    return (*args, *named)


def _dim(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    return kwargs.get("dim", args[1] if len(args) > 1 else None)
