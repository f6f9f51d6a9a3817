"""Make a target of whatever one is given as: a class, a vector, a function, a list.

Axes: none.
"""

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from vision_attn.methods.targets.classes import Class
from vision_attn.methods.targets.functions import Function
from vision_attn.methods.targets.per_image import PerImage
from vision_attn.methods.targets.target import Target, TargetLike
from vision_attn.methods.targets.tensors import tensor_of
from vision_attn.methods.targets.vectors import Direction
from vision_attn.types import Model

__all__ = ["as_target"]


def as_target(target: TargetLike, model: Model | None = None) -> Target:
    """Make a target of whatever one is given as.

    Args:
        target: A `Target`; None or "predicted" for each image's predicted class; a class, by index
            or, with a model, by name; a list of these, one an image; a vector of floats, a
            direction in the output; or a function of the output that gives one number an image.
        model: Whose classes the names are.

    Returns:
        The target.

    Raises:
        ValueError: It is none of these, or the model has no such class.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import as_target
        >>> str(as_target([3, 5])), str(as_target(torch.rand(7)))
        ('class 3, class 5', 'Direction(7 numbers)')
    """
    if isinstance(target, type):
        raise ValueError(
            f"target: got the class {target.__name__} itself: make one, {target.__name__}(...)"
        )
    converted = _made(target)
    return converted if model is None else converted.named(model)


def _made(target: Any) -> Target:
    if isinstance(target, Target):
        return target
    if target is None or (isinstance(target, str) and target.strip() == "predicted"):
        return Class()
    if isinstance(target, bool | np.bool_):
        raise ValueError(f"target: expected a class, a vector or a function, got {target}")
    if isinstance(target, str):
        return Class(target)
    if isinstance(target, Integral):
        return Class(int(target))
    if isinstance(target, Tensor | ndarray):
        return _of_numbers(tensor_of(target, "target", "class indices or a vector of floats"))
    if isinstance(target, list | tuple):
        return _of_list(target)
    if callable(target):
        return Function(target)
    raise ValueError(
        "target: expected a class, one an image, a vector of floats, a function of the output or a "
        f"Target, got a value of type {type(target).__name__}"
    )


def _of_numbers(numbers: Tensor) -> Target:
    if numbers.is_floating_point() and numbers.ndim:
        return Direction(numbers)
    whole = not numbers.is_floating_point() and numbers.dtype != torch.bool
    if not whole or numbers.ndim > 1 or numbers.is_complex():
        raise ValueError(
            "target: expected class indices (whole numbers), one or one an image, or a vector of "
            f"floats, got {numbers.dtype} of shape {tuple(numbers.shape)}"
        )
    return Class(tuple(numbers.tolist()) if numbers.ndim else int(numbers))


def _of_list(targets: Sequence[Any]) -> Target:
    if not targets:
        raise ValueError("target: expected one for all or one an image, got an empty list")
    if all(isinstance(item, Real) and not isinstance(item, Integral) for item in targets):
        return Direction(
            torch.tensor([float(item) for item in targets], dtype=torch.float32, device="cpu")
        )
    every = tuple(map(_made, targets))
    if all(isinstance(item, Class) and not isinstance(item.index, tuple) for item in every):
        return Class(tuple(item.index for item in every))  # type: ignore[attr-defined]
    return PerImage(every)
