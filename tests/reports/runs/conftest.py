"""A config whose run takes a second, in a folder to work in."""

from pathlib import Path

import pytest

TINY = """
seed_everything: 3
model:
  network:
    class_path: vision_attn.models.ViT
    init_args: {image_size: 16, patch_size: 8, num_classes: 10, dim: 8, depth: 1, heads: 2}
  optimizer:
    class_path: torch.optim.AdamW
    init_args: {lr: 0.01}
  schedule:
    class_path: vision_attn.training.CosineDecay
    init_args: {warmup: 0.2}
data:
  source:
    class_path: vision_attn.data.Planted
    init_args: {size: 16, train: 40, val: 20, test: 20}
  batch_size: 20
trainer:
  max_epochs: 1
  accelerator: cpu
  enable_progress_bar: false
"""


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> Path:
    """The folder of one finished run of the tiny config."""
    from vision_attn import fit

    folder = tmp_path_factory.mktemp("fitted")
    (folder / "tiny.yaml").write_text(TINY)
    return fit(folder / "tiny.yaml", output=folder).folder


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A folder to work in, with tiny.yaml."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    return tmp_path


@pytest.fixture
def tiny() -> str:
    return TINY
