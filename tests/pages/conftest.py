"""The page's JavaScript in Node: the one on the machine, or the one that playwright brings."""

import json
import shutil
import subprocess
import zlib
from base64 import b64decode
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vision_attn.pages.live.translation import translate
from vision_attn.types import Model

HERE = Path(__file__).parent
LIVE = Path(str(files("vision_attn.pages.live")))

InNode = Callable[..., Any]

RUN_NETWORK = """
const kernels = job.plain ? new PlainKernels() : await openKernels(read("kernels.wasm"));
const network = new Network(kernels, job.program, read("weights.bin"));
const run = network.run(new Float32Array(read("pixels.bin").buffer), job.options);
const layers = run.layers.map((layer) => ({ ...layer, fused: run.read(layer.fused) }));
const cams = job.program.cam && [...run.logits].map((_, target) => run.cam(target).values);
const { logits, gates } = run;
return { kernels: kernels.constructor.name, logits, layers, gates, rollout: run.rollout(), cams };
"""


def node() -> str:
    """The path of a Node."""
    found = shutil.which("node")
    if found is None:
        import playwright

        found = str(Path(playwright.__file__).parent / "driver" / "node")
    return found


@pytest.fixture
def in_node(tmp_path: Path) -> InNode:
    """Runs code after the page's scripts; what goes in are files and names, and out comes JSON."""

    def run(scripts: list[str], code: str, contents: dict[str, bytes], **job: Any) -> Any:
        for name, content in contents.items():
            (tmp_path / name).write_bytes(content)
        job |= {"scripts": [str(LIVE / "js" / name) for name in scripts], "code": code}
        (tmp_path / "job.json").write_text(json.dumps(job))
        done = subprocess.run(
            [node(), str(HERE / "page_in_node.js"), str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert not done.returncode, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture
def run_in_page(in_node: InNode) -> InNode:
    """Translates a model, and runs it on an input (3 h w) as the page does."""

    def run(model: Model, image: Any, plain: bool = False, **options: Any) -> dict[str, Any]:
        program = translate(model)
        contents = {
            "kernels.wasm": (LIVE / "kernels.wasm").read_bytes(),
            "weights.bin": zlib.decompress(b64decode(program.text())),
            "pixels.bin": np.ascontiguousarray(image.permute(1, 2, 0).numpy(), "<f4").tobytes(),
        }
        scripts = ["kernels.js", "network.js"]
        data = program.data()
        return in_node(scripts, RUN_NETWORK, contents, program=data, plain=plain, options=options)

    return run
