"""Run-time type checks on the package, one thread a worker, fixtures that all parts share."""

import os
import shutil
from pathlib import Path

import pytest

if os.environ.get("VISION_ATTN_TYPECHECK", "1") != "0":
    from jaxtyping import install_import_hook

    install_import_hook("vision_attn", "beartype.beartype")

import torch

if os.environ.get("PYTEST_XDIST_WORKER"):
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real data that VISION_ATTN_DATA names."""
    root = os.environ.get("VISION_ATTN_DATA")
    if not root:
        pytest.skip("VISION_ATTN_DATA is not set: it names the folder with the real data sets")
    if not Path(root).is_dir():
        pytest.fail(f"VISION_ATTN_DATA names {root!r}, which is not a folder")
    return Path(root)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what this machine cannot run, and says so in the summary as deselected."""
    absent = set()
    if not torch.cuda.is_available():
        absent.add("gpu")
    if not any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")):
        absent.add("browser")
    left_out = [item for item in items if absent & {mark.name for mark in item.iter_markers()}]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
