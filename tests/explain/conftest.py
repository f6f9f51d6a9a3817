"""Fixtures that the tests of explainers share."""

import pytest
import torch


@pytest.fixture
def torch_threads():
    """torch.set_num_threads for the length of a test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
