"""Run the Keras code of Learn on TensorFlow or JAX, in an environment of its own.

    python tests/release/keras_backends.py tensorflow
    python tests/release/keras_backends.py jax

1. Our own classes compute what each mechanism must give, here, with torch.
2. Keras and the backend's package for CPUs are installed in an empty environment, without torch
   and this package.
3. There tests/in_keras/compare.py runs what the pages show, and compares in float64.

The environment lies in a temporary folder, or in --folder, which is kept. uv makes it faster where
it is installed. The tests run the same on torch: make test SLOW=1.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1] / "in_keras"))
import keras_cases

ROOT = Path(__file__).parents[2]
PACKAGES = {"tensorflow": "tensorflow-cpu", "jax": "jax"}  # without the libraries of a GPU


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("backend", choices=PACKAGES)
    parser.add_argument("--folder", type=Path, help="where the environment is made, and kept")
    args = parser.parse_args()
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        keras_cases.write(folder / "cases.npz")
        python = installed(folder / args.backend, requirements(args.backend))
        differences = compared(python, folder / "cases.npz", args.backend)
    wrong = 0
    for name, found in differences.items():
        allowed = found.pop("allowed")
        fits = all(value <= allowed for value in found.values())
        wrong += not fits
        numbers = ", ".join(f"{what} {value:.0e}" for what, value in found.items())
        console.print(f"{'ok  ' if fits else 'FAIL'}  {name}: {numbers}", markup=False)
    console.print(f"{len(differences) - wrong} of {len(differences)} cases agree on {args.backend}")
    return int(bool(wrong))


def requirements(backend: str) -> list[str]:
    """Return what the extra `keras` names, with the backend's own package for TensorFlow."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = project["optional-dependencies"]["keras"]
    if backend == "tensorflow":
        return [line.replace("tensorflow", PACKAGES[backend]) for line in named]
    return [*(line for line in named if not line.startswith("tensorflow")), PACKAGES[backend]]


def installed(venv: Path, wanted: list[str]) -> Path:
    """Install packages in an empty environment; return its Python."""
    shutil.rmtree(venv, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    python = venv / "bin" / "python"
    uv = shutil.which("uv")
    install = [uv, "pip", "install", "--python"] if uv else [str(python), "-m", "pip", "install"]
    subprocess.run([*install, *([str(python)] if uv else []), "-q", *wanted], check=True)
    return python


def compared(python: Path, cases: Path, backend: str) -> dict[str, dict[str, float]]:
    """Run the comparison there; exit with what it says where it breaks."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    chosen = {
        "KERAS_BACKEND": backend,
        "KERAS_HOME": str(cases.parent),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    words = [str(python), str(ROOT / "tests/in_keras/compare.py"), str(cases)]
    done = subprocess.run(words, env={**clean, **chosen}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
