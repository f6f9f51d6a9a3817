"""Tensors that a target is made of.

Axes: none.
"""

from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from vision_attn.errors import quoted

__all__ = ["checksum", "tensor_of"]


def tensor_of(values: Any, name: str, expected: str) -> Tensor:
    """Make a tensor of numbers, where they are; ValueError, in the words given, of what is none."""
    try:
        if isinstance(values, list | tuple) and any(isinstance(item, ndarray) for item in values):
            values = np.asarray(values)
        return torch.as_tensor(values, device=getattr(values, "device", "cpu"))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ValueError(f"{name}: expected {expected}, got {quoted(values)}") from None


def checksum(values: Tensor) -> int:
    """Compute the CRC-32 of a tensor's values."""
    return crc32(values.cpu().contiguous().numpy().tobytes())
