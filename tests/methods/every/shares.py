"""Whether the shares of a network's pixels and additive constants add up to its logit.

In float64, on sharp random weights: s - sum x . g - sum b . g, as a part of the larger of |s| and
sum |x . g|. Where they do not, each function's own part is measured: what it gives times the
gradient of that, less what it takes times the gradient of that.

Axes: b images, c channels, h height, w width.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from oracle import TooMuchError, built, sharp
from torch import Tensor

from vision_attn.inference import eval_mode, frozen_parameters
from vision_attn.methods import LibraGradient
from vision_attn.tokens.gradients.completeness import Account, CountedGradients, account_of
from vision_attn.tokens.gradients.mode import own_weights_held
from vision_attn.tokens.gradients.rules import flows
from vision_attn.tokens.outputs import class_logits

COMPLETE = 1e-10
CLASS = 1


class InFloat64(CountedGradients):
    """The rules, for a network that keeps to float64: what it casts to float32 itself is rounded."""

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func in (Tensor.float, Tensor.to) and args[0].dtype == torch.float64:
            args = tuple(torch.float64 if x is torch.float32 else x for x in args)
            if kwargs.get("dtype") is torch.float32:
                kwargs = kwargs | {"dtype": torch.float64}
            func = func if func is Tensor.to else Tensor.double
        return super().run(func, args, kwargs)


class Ledger(InFloat64):
    """What each function adds to the sum of values times gradients, by its name."""

    def __init__(self, image: torch.Tensor) -> None:
        super().__init__(image)
        self.created: defaultdict[str, float] = defaultdict(float)

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self._depth or in_place(func, args, kwargs):
            return super().run(func, args, kwargs)
        name, known = func.__name__, len(self.constants)
        args = tuple(self._watched(name, x) for x in args)
        kwargs = {key: self._watched(name, x) for key, x in kwargs.items()}
        out = super().run(func, args, kwargs)
        for leaf in self.constants[known:]:
            self._count(name, leaf, -1)
        for x in out if isinstance(out, tuple | list) else [out]:
            if flows(x):
                self._count(name, x, 1)
        return out

    def _watched(self, name: Any, x: Any) -> Any:
        if isinstance(x, tuple | list) and not hasattr(x, "_fields"):
            return type(x)(self._watched(name, each) for each in x)
        if not flows(x):
            return x
        seen = self.mark(x.view_as(x), self.strength(x))
        self._count(name, seen, -1)
        return seen

    def _count(self, name: Any, x: Tensor, sign: int) -> None:
        value = x.detach().clone()

        def hook(gradient: Any) -> None:
            if gradient is not None:
                self.created[name] += sign * float((value * gradient).sum())

        x.register_hook(hook)


WRITING = [
    "relu",
    "relu6",
    "silu",
    "mish",
    "hardswish",
    "hardsigmoid",
    "hardtanh",
    "elu",
    "selu",
    "celu",
    "leaky_relu",
    "dropout",
]


def in_place(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a function may write over what it is given."""
    name = func.__name__
    asked = name in WRITING and (kwargs.get("inplace") or True in [x is True for x in args[1:]])
    return name.endswith("_") or name == "__get__" or bool(asked)


def accounted(
    network: Any, image: torch.Tensor, kind: Callable[..., InFloat64 | Ledger] = InFloat64
) -> tuple[Account, Any]:
    """Account for the logit of a class of one image (1 c h w) by its pixels; also the run's mode."""
    with eval_mode(network), frozen_parameters(network):
        image = image.detach().clone().requires_grad_()
        mode = kind(image)
        with mode, own_weights_held(network, mode.hold):
            logits = class_logits(network, image)
        return account_of(logits[0, CLASS], image, 1, mode), mode


def culprits(network: Any, image: torch.Tensor) -> list[Any]:
    """The functions that break the sum, the worst first, in a word each."""
    account, mode = accounted(network, image, Ledger)
    worst = [name for name, part in mode.created.items() if abs(part) > 1e-9]
    worst.sort(key=lambda name: -abs(mode.created[name]))
    held = [f"{name}, held and added" for name, part in account.held.items() if abs(part) > 1e-9]
    return [*worst, *held][:3]


def shared_out(entry: Any, most: float = float("inf")) -> Any:
    """Build a network of the catalogue and account for its logit: what was found, as a dictionary.

    map: complete, gap, refused, or why there is nothing to account for. why: the functions that
    break the sum, or the refusal. levels: how many LibraGradient reads it at.
    """
    try:
        network, images = built(entry, most)
    except TooMuchError as error:
        return error.found
    network, image = sharp(network, images), images[:1]
    try:
        class_logits(network, image)
    except ValueError as error:
        return {"map": "not built", "why": str(error)[:300]}
    account, _ = accounted(network, image)
    found: dict[str, Any] = {"gap": account.gap}
    method = LibraGradient()
    if reason := method.refusal_for(network, image):
        return found | {"map": "refused", "why": reason}
    maps = method(network, image, CLASS)
    found |= {"grid": list(maps.values.shape[1:])}
    if account.gap <= COMPLETE:
        return found | {"map": "complete", "why": ""}
    return found | {"map": "gap", "why": ", ".join(culprits(network, image)) or "nothing known"}
