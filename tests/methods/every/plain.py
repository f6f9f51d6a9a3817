"""torch's softmax and attention, swapped for plain ones that keep, and may change, their weights."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.nn import functional as F

MIXERS = ("TalkingHeadAttn", "GPSA")  # mix the outputs of softmaxes before they weigh values


class Plain:
    """torch's softmax and attention, plain; `replace(at, weights)` may change the weights."""

    def __init__(self, replace: Callable[..., Any] | None = None):
        self.disturbs = replace is not None
        self.replace = replace or (lambda at, weights: weights)
        self.scores: list[torch.Tensor] = []
        self.weights: list[torch.Tensor] = []
        self.mixed: list[int] = []
        self.tracked: list[torch.Tensor] = []  # the weights on the graph
        self.softmax = torch.softmax

    def of(self, scores: Any, dim: int) -> torch.Tensor:
        weights = self.softmax(scores, dim)
        if scores.ndim < 3 or dim is None:
            return weights
        self.scores.append(scores.detach())
        self.weights.append(weights.detach())
        self.tracked.append(weights)
        return weights if self.mixed else self.replace(len(self.weights) - 1, weights)

    def softmaxed(
        self, input: Any, dim: Any = None, *_: Any, dtype: Any = None, **__: Any
    ) -> torch.Tensor:
        return self.of(input if dtype is None else input.to(dtype), dim)

    def attend(
        self, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        if enable_gqa:
            times = query.shape[-3] // key.shape[-3]
            key, value = (x.repeat_interleave(times, -3) for x in (key, value))
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None:
            hidden = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if hidden else scores + attn_mask
        return self.of(scores, -1) @ value

    @contextmanager
    def running(self, network: Any) -> Iterator["Plain"]:
        """Swap while this is open; group norms become norms of each place, as they mix no tokens."""

        def places(
            x: Any,
            groups: Callable[..., Any],
            weight: Any = None,
            bias: Any = None,
            eps: float = 1e-5,
        ) -> Any:
            x = F.layer_norm(x.movedim(1, -1), x.shape[1:2], eps=eps).movedim(-1, 1)
            one = [1, -1, *[1] * (x.ndim - 2)]
            x = x if weight is None else x * weight.view(one)
            return x if bias is None else x + bias.view(one)

        mixers = [m for m in network.modules() if type(m).__name__ in MIXERS]
        hooks = []
        for module in mixers:
            made = 2 if type(module).__name__ == "GPSA" else 1
            hooks.append(module.register_forward_pre_hook(lambda *_: self.mixed.append(1)))

            def after(_: Any, args: Any, made: int = made) -> tuple[Any, ...]:
                self.mixed.clear()
                del self.weights[-made:], self.scores[len(self.scores) - made + 1 :]
                del self.tracked[-made:]
                self.weights.append(args[0].detach())
                self.tracked.append(args[0])
                return (self.replace(len(self.weights) - 1, args[0].nan_to_num(0)), *args[1:])

            hooks.append(module.attn_drop.register_forward_pre_hook(after))

        def mixed(module: Any, args: Any, out: Any) -> Any:
            self.weights[-1], self.tracked[-1] = out.detach(), out
            return self.replace(len(self.weights) - 1, out)

        heads = [m for m in network.modules() if hasattr(m, "talking_head2") and m not in mixers]
        for module in heads:
            hooks.append(
                module.talking_head1.register_forward_hook(lambda *_: self.mixed.append(1))
            )
            hooks.append(
                module.talking_head2.register_forward_pre_hook(lambda *_: self.mixed.clear())
            )
            hooks.append(module.talking_head2.register_forward_hook(mixed))
        fused = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        with (
            patch.object(F, "scaled_dot_product_attention", self.attend),
            patch.object(F, "softmax", self.softmaxed),
            patch.object(torch, "softmax", self.softmaxed),
            patch.object(torch.Tensor, "softmax", lambda x, *a, **k: self.softmaxed(x, *a, **k)),
            patch.object(F, "group_norm", places if self.disturbs else F.group_norm),
        ):
            try:
                yield self
            finally:
                torch.backends.mha.set_fastpath_enabled(fused)
                for hook in hooks:
                    hook.remove()
