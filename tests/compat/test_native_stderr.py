"""libjpeg's warnings of damaged photos, which name none, are not printed; Python's lines are."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

DECODE = """
import sys
from pathlib import Path
import numpy as np
from vision_attn.data import ImageFolder
from vision_attn.data.draws import Draws
source = ImageFolder("photos", size=32, storage=sys.argv[1], workers=int(sys.argv[2]))
train = source.load(Path("."), 0.0, 0).train
items = np.arange(len(train))
for _ in train.fetch_all([(items, Draws(0, 0, items))]):
    print("Python's own line", file=sys.stderr)
"""
WARN = """
import sys, threading
import cv2, numpy as np
from vision_attn.compat.native_stderr import native_stderr_dropped
data = np.fromfile("photos/cat/0.jpg", np.uint8)
for dropped in (True, False):
    if dropped:
        with native_stderr_dropped(), native_stderr_dropped():
            cv2.imdecode(data, cv2.IMREAD_COLOR)
            print("meanwhile", file=sys.stderr)
    else:
        cv2.imdecode(data, cv2.IMREAD_COLOR)
print("after", file=sys.stderr)
"""


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Four photos, one of them with bytes of its picture lost."""
    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(2):
            file = io.BytesIO()
            pixels = rng.integers(0, 256, (67, 53, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(file, "JPEG")
            data = bytearray(file.getvalue())
            if (label, number) == ("cat", 0):
                data[len(data) // 2 : len(data) // 2 + 200] = bytes(200)
            (tmp_path / "photos" / label / f"{number}.jpg").write_bytes(data)
    return tmp_path


def run(code: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    made = [sys.executable, "-c", code, *words]
    return subprocess.run(made, cwd=folder, capture_output=True, text=True, check=True)


def test_libjpeg_is_silent_only_meanwhile(photos: Path) -> None:
    lines = run(WARN, photos).stderr.splitlines()
    assert (lines[0], lines[-1]) == ("meanwhile", "after")
    assert ["JPEG" in line for line in lines] == [False, True, False]


@pytest.mark.parametrize(
    ("storage", "workers"),
    [
        pytest.param("cache", 0, marks=pytest.mark.slow),
        pytest.param("memory", 0, marks=pytest.mark.slow),
        pytest.param("stream", 0, marks=pytest.mark.slow),
        ("stream", 1),
    ],
)
def test_no_line_that_names_no_photo(photos: Path, storage: str, workers: int) -> None:
    done = run(DECODE, photos, storage, str(workers))
    assert "JPEG" not in done.stderr
    assert done.stderr.endswith("Python's own line\n")
