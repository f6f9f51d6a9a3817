"""Everything here is computed in float64, unless a test says otherwise."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
