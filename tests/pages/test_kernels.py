"""kernels.wasm is what kernels.c says: built again where clang is, it computes the same numbers."""

import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

LIVE = Path(str(files("vision_attn.pages.live")))
RNG = np.random.default_rng(0)

RUN = """
const results = {};
const parts = { built: await openKernels(read("built.wasm")), kept: await openKernels(read("kept.wasm")),
  plain: new PlainKernels() };
for (const [name, kernels] of Object.entries(parts)) {
  const { m, n, k } = job;
  const given = new Float32Array(read("numbers.bin").buffer);
  const [x, w, bias, out] = [kernels.start, kernels.start + 1024, kernels.start + 2048, kernels.start + 3072];
  kernels.reserve(kernels.start + 4096);
  kernels.heap.set(given.subarray(0, m * k), x);
  kernels.heap.set(given.subarray(m * k, m * k + k * panels(n) * PANEL), w);
  kernels.heap.set(given.subarray(900, 900 + n), bias);
  const read_ = (count) => kernels.heap.slice(out, out + count);
  kernels.matmul(x, k, w, bias, out, n, m, n, k);
  const product = read_(m * n);
  kernels.softmax(out, bias, bias + m, 1.7, m, n);
  const weights = read_(m * n);
  const sums = kernels.heap.slice(bias, bias + 2 * m);
  kernels.norm(x, w, w + k, out, 1e-6, m, k);
  const normed = read_(m * k);
  kernels.gelu(x, out, m * k);
  results[name] = { kind: kernels.constructor.name, product, weights, sums, normed, gelu: read_(m * k) };
}
return results;
"""


@pytest.mark.skipif(not shutil.which("clang"), reason="needs clang")
def test_the_source_is_that_of_the_binary(in_node: Any, tmp_path: Path) -> None:
    built = tmp_path / "built.wasm"
    lines = (LIVE.parents[2] / "Makefile").read_text().split("\nwasm:\n\t")[1].split("\n\n")[0]
    command = lines.replace("\\\n", " ").replace("$(LIVE)/kernels.wasm", str(built))
    command = command.replace("$(LIVE)", str(LIVE))
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    m, n, k = 7, 13, 11
    contents = {
        "built.wasm": built.read_bytes(),
        "kept.wasm": (LIVE / "kernels.wasm").read_bytes(),
        "numbers.bin": RNG.normal(size=1000).astype("<f4").tobytes(),
    }
    found = in_node(["kernels.js"], RUN, contents, m=m, n=n, k=k)
    assert [one.pop("kind") for one in found.values()] == [*["WasmKernels"] * 2, "PlainKernels"]
    for name, numbers in found["kept"].items():
        np.testing.assert_allclose(found["built"][name], numbers, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(found["plain"][name], numbers, rtol=1e-5, atol=1e-6)
