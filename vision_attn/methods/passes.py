"""Passes through a network that several methods make of the same images, made once.

Axes: none.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from vision_attn.compat.torch_private import write_count
from vision_attn.methods.targets import Target
from vision_attn.tokens.outputs import head_given
from vision_attn.types import TokenLayout

__all__ = ["shared", "shared_passes"]

Result = TypeVar("Result")

_RESULTS: ContextVar[dict[Hashable, Any] | None] = ContextVar("results", default=None)


@contextmanager
def shared_passes() -> Iterator[None]:
    """Let methods that are called while this is open share passes of the same images and target.

    Nothing may change the network, the images or the target meanwhile, and targets that are equal
    must mean the same. What passes gave is kept until this is closed.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import Class, GradCAM, LayerCAM
        >>> from vision_attn.methods.passes import shared_passes
        >>> from vision_attn.models import SEResNet
        >>> network = SEResNet(num_classes=5, layers=(1, 1, 1, 1), widths=(4, 4, 4, 4))
        >>> runs, images, target = [], torch.rand(1, 3, 32, 32), Class(3)
        >>> hook = network.fc.register_forward_hook(lambda *_: runs.append(1))
        >>> first = GradCAM()(network, images, target)  # which also runs to see what it crops
        >>> runs.clear()
        >>> with shared_passes():
        ...     maps = [method(network, images, target) for method in (GradCAM(), LayerCAM())]
        >>> len(runs)
        1
    """
    results: dict[Hashable, Any] = {}
    token = _RESULTS.set(results)
    try:
        yield
    finally:
        _RESULTS.reset(token)
        results.clear()  # also for who has a copy of this context


def shared(
    what: Hashable,
    make: Callable[[], Result],
    network: nn.Module,
    images: Tensor,
    target: Target,
    layout: TokenLayout | None,
) -> Result:
    """Make what passes give, or take it as it was made for the same inside `shared_passes`."""
    results = _RESULTS.get()
    if results is None:
        return make()
    own = images.data_ptr(), images.shape, images.stride(), images.dtype, write_count(images)
    question: Hashable = target
    try:
        hash(question)
    except TypeError:
        question = id(target)
    kind = images.device.type
    precision = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)
    key = what, id(network), own, question, layout, head_given(), precision
    if key not in results:
        results[key] = make(), (network, images, target)  # kept: no other object gets an id of them
    result: Result = results[key][0]
    return result
