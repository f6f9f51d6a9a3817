"""Fixtures of small runs; what they are made of is imported by the tests that need it alone."""

import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))


@pytest.fixture
def stripes() -> Callable[..., Any]:
    from small_runs import Stripes

    return Stripes


@pytest.fixture
def small_vit() -> Callable[..., Any]:
    from small_runs import small_vit

    return small_vit


@pytest.fixture
def trainer(tmp_path: Path) -> Callable[..., Any]:
    """Makes trainers that keep their checkpoints in tmp_path/NAME."""
    from small_runs import make_trainer

    return partial(make_trainer, tmp_path)


@pytest.fixture
def mesh() -> Iterator[Any]:
    """One process, as if it were one of many."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh

    distributed.init_process_group(
        "gloo", store=vars(distributed)["HashStore"](), rank=0, world_size=1
    )
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


@pytest.fixture(autouse=True, scope="session")
def _the_machines_peak() -> Iterator[None]:
    """Measured once for all runs: each summary names it, and the machine stays the same."""
    from vision_attn.training import report

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "peak_flops", cache(vars(report)["peak_flops"]))
        yield
