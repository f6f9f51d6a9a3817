"""The page's JavaScript in Node: the one on the machine, or the one that playwright brings."""

import json
import shutil
import subprocess
import zlib
from base64 import b64decode
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from vision_attn.reports.translation import translate
from vision_attn.types import Model

HERE = Path(__file__).parent
LIVE = Path(str(files("vision_attn.render.live")))
SCRIPTS = [str(LIVE / "js" / name) for name in ("kernels.js", "network.js")]

RunInPage = Callable[..., dict]


def node() -> str:
    """The path of a Node."""
    found = shutil.which("node")
    if found is None:
        import playwright

        found = str(Path(playwright.__file__).parent / "driver" / "node")
    return found


@pytest.fixture
def run_in_page(tmp_path: Path) -> RunInPage:
    """Translates a model, and runs it on an input (3 h w) as the page does."""

    def run(model: Model, image, plain: bool = False, **options) -> dict:
        program = translate(model)
        (tmp_path / "weights.bin").write_bytes(b64decode(program.text()))
        pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy(), "<f4")
        (tmp_path / "pixels.bin").write_bytes(pixels.tobytes())
        job = {
            "scripts": SCRIPTS,
            "wasm": str(LIVE / "kernels.wasm"),
            "program": program.data(),
            "plain": plain,
            "options": options,
        }
        (tmp_path / "job.json").write_text(json.dumps(job))
        done = subprocess.run(
            [node(), str(HERE / "run_network.js"), str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert not done.returncode, done.stderr
        return json.loads(done.stdout)

    return run


def inflate(text: str) -> bytes:
    return zlib.decompress(b64decode(text))
