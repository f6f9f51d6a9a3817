"""Seven photos of each of three classes, in a folder, and what other sources must give of them."""

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from vision_attn.data import ImageFolder, Splits

sys.path.append(str(Path(__file__).parent))
from copies import CLASSES, SIZES


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Seven photos of each of three classes in set/CLASS/."""
    rng = np.random.default_rng(0)
    for name in CLASSES:
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(7):
            small = rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)
            photo = Image.fromarray(small).resize((70 + i, 50), Image.Resampling.BICUBIC)
            photo.save(tmp_path / "set" / name / f"{name}{i}.jpg", quality=90)
    return tmp_path


@pytest.fixture
def expected(root: Path) -> Splits:
    return ImageFolder("set", **SIZES).load(root, 0.2, 0)


@pytest.fixture
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    reason = "needs datasets: pip install 'vision-attn[datasets]'"
    found = pytest.importorskip("datasets", reason=reason)
    monkeypatch.setattr(found.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    found.disable_progress_bars()
    return found
