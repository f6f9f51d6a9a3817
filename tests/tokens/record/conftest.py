"""Queries, keys and values, a module that attends as it is told, and its record."""

import pytest
import torch
from torch import nn

from vision_attn.tokens import record_attention


@pytest.fixture(scope="session")
def recorded():
    """Runs a module without gradients; returns the record and what came out."""

    def run(module, *args, keep=None, fusion=None, **kwargs):
        with torch.no_grad(), record_attention(module, keep, fusion) as record:
            out = module(*args, **kwargs)
        return record, out

    return run


class Calls(nn.Module):
    """A module that attends by whatever function it is given."""

    def __init__(self, attend):
        super().__init__()
        self.attend = attend

    def forward(self, *args):
        return self.attend(*args)


@pytest.fixture(scope="session")
def attending():
    """Makes a module of a function."""
    return Calls


@pytest.fixture(scope="session")
def qkv():
    """Draws queries, keys and values."""

    def drawn(b=2, h=3, i=5, j=7, d=11, e=11, dtype=torch.float64):
        return (
            torch.randn(b, h, i, d, dtype=dtype),
            torch.randn(b, h, j, d, dtype=dtype),
            torch.randn(b, h, j, e, dtype=dtype),
        )

    return drawn
