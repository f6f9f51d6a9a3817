"""Queries, keys and values, a module that attends as it is told, and its record."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from vision_attn.tokens import record_attention
from vision_attn.tokens.record.log import Record


@pytest.fixture(scope="session")
def recorded() -> Callable[..., Any]:
    """Runs a module without gradients; returns the record and what came out."""

    def run(
        module: Any, *args: Any, keep: Any = None, fusion: Any = None, **kwargs: Any
    ) -> tuple[Record, Any]:
        with torch.no_grad(), record_attention(module, keep, fusion) as record:
            out = module(*args, **kwargs)
        return record, out

    return run


class Calls(nn.Module):
    """A module that attends by whatever function it is given."""

    def __init__(self, attend: Callable[..., Any]) -> None:
        super().__init__()
        self.attend = attend

    def forward(self, *args: Any) -> Any:
        return self.attend(*args)


@pytest.fixture(scope="session")
def attending() -> Callable[..., Calls]:
    """Makes a module of a function."""
    return Calls


@pytest.fixture(scope="session")
def qkv() -> Callable[..., Any]:
    """Draws queries, keys and values."""

    def drawn(
        b: int = 2,
        h: int = 3,
        i: int = 5,
        j: int = 7,
        d: int = 11,
        e: int = 11,
        dtype: torch.dtype = torch.float64,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return (
            torch.randn(b, h, i, d, dtype=dtype),
            torch.randn(b, h, j, d, dtype=dtype),
            torch.randn(b, h, j, e, dtype=dtype),
        )

    return drawn
