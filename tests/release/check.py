"""Build the sdist and the wheel, check both, and run the main commands as a user would.

    python tests/release/check.py            (make release-check)
    python tests/release/check.py --lowest   (with the lowest versions that pyproject.toml allows)

1. The sdist and the wheel are built twice; both times they have the same bytes. A wheel that is
   built from the unpacked sdist is the same too.
2. twine and check-wheel-contents find nothing wrong, and the files that the package reads while it
   runs (weights, cards, configs, pages, photos, fonts, licences) are all in the wheel.
3. The wheel is installed in an empty environment, without extras, and the commands of COMMANDS run
   in an empty folder. Each must exit with 0 and write what it promises.

Needs build, twine and check-wheel-contents (the extra `release`); uv makes it faster where it is
installed. The environments lie in a temporary folder, or in --folder, which is kept.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).parents[2]
SHELF = "vision_attn:compact_vit_imagenette"
READ_WHILE_RUNNING = {".safetensors", ".json", ".js", ".css", ".wasm", ".html", ".jpg", ".ttf"}
# What a user does first, in an empty folder, and the files that must be there afterwards.
COMMANDS: list[tuple[list[str], list[str]]] = [
    (["--version"], []),
    (["models"], []),
    (
        ["explain", SHELF, "photos/church.jpg", "--output", "look"],
        ["look/results.jsonl", "look/church.*.png"],
    ),
    (["inspect", SHELF, "photos/church.jpg", "--output", "inspect.html"], ["inspect.html"]),
    (["live", SHELF, "photos/church.jpg", "--output", "live.html"], ["live.html"]),
    (
        ["fit", "--config", "vit_planted_fast", "--output", "run", "--trainer.max_steps", "10"],
        ["run/**/summary.json", "run/**/*.ckpt"],
    ),
    (["score", SHELF, "photos", "--limit", "8", "--output", "scores"], ["scores/scores.md"]),
]


def check() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where the environments are made, and kept")
    parser.add_argument("--lowest", action="store_true", help="the lowest versions allowed")
    parser.add_argument("--constraints", type=Path, help="versions of what is installed")
    args = parser.parse_args()
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        wrong = []
        for name, problems in checks(folder.resolve(), args.lowest, args.constraints):
            console.print(f"{'ok  ' if not problems else 'FAIL'}  {name}")
            for problem in problems:
                console.print(f"      {problem}", markup=False)
            wrong += problems
    return int(bool(wrong))


def checks(folder: Path, lowest: bool, constraints: Path | None) -> Iterator[tuple[str, list[str]]]:
    """Run each check; yield its name and what is wrong."""
    first, second = build(folder / "first"), build(folder / "second")
    yield "the same bytes twice", differing(first, second)
    (sdist,), (wheel,) = (list(first.glob(f"*{kind}")) for kind in (".tar.gz", ".whl"))
    unpacked = folder / "sdist"
    shutil.rmtree(unpacked, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    (source,) = unpacked.iterdir()
    again = build(folder / "from_sdist", source, "--wheel")
    yield "the wheel of the sdist is the wheel of the tree", differing(again, first, "*.whl")
    yield (
        "twine",
        said([sys.executable, "-m", "twine", "check", "--strict", *map(str, (sdist, wheel))]),
    )
    yield "check-wheel-contents", said([beside("check-wheel-contents"), str(wheel)])
    yield "what is read while it runs is in the wheel", missing(wheel)
    python = installed(wheel, folder / "venv", lowest, constraints)
    empty = folder / "empty"
    shutil.rmtree(empty, ignore_errors=True)
    empty.mkdir()
    copy = "import shutil, vision_attn.data as d; from pathlib import Path; " \
        "shutil.copytree(Path(d.__file__).parent / 'photos', 'photos')"  # fmt: skip
    yield "the package's photos", said([str(python), "-I", "-c", copy], empty)
    for words, promised in COMMANDS:
        began = time.monotonic()
        problems = said([str(python.parent / "vision-attn"), *words], empty)
        problems += [f"{name} was not written" for name in promised if not any(empty.glob(name))]
        yield f"vision-attn {' '.join(words)}  ({time.monotonic() - began:.0f} s)", problems


def build(folder: Path, source: Path = ROOT, *kinds: str) -> Path:
    """Build what hatchling makes of a source tree, into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "build", "--outdir", str(folder), *kinds, str(source)]
    uv = shutil.which("uv")
    subprocess.run(
        [*command, *(["--installer", "uv"] if uv else [])], check=True, capture_output=True
    )
    return folder


def differing(one: Path, other: Path, pattern: str = "*") -> list[str]:
    """The files of a folder whose bytes are not those of the other's."""
    return [
        f"{path.name} differs from the other build"
        for path in sorted(one.glob(pattern))
        if digest(path) != digest(other / path.name)
    ]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def missing(wheel: Path) -> list[str]:
    """The files of the package that the code reads, and its configs, that the wheel has not."""
    with zipfile.ZipFile(wheel) as archive:
        there = set(archive.namelist())
    package = ROOT / "vision_attn"
    files = [path for path in package.rglob("*") if path.suffix in READ_WHILE_RUNNING]
    wanted = {path.relative_to(ROOT).as_posix() for path in files}
    wanted |= {f"vision_attn/configs/{path.name}" for path in (ROOT / "configs").glob("*.yaml")}
    wanted |= {"vision_attn/py.typed"}
    absent = sorted(wanted - there)
    if not any(name.endswith("licenses/LICENSE") for name in there):
        absent.append("LICENSE")
    return [f"{name} is not in the wheel" for name in absent]


def installed(wheel: Path, venv: Path, lowest: bool, constraints: Path | None) -> Path:
    """Install a wheel, without extras, in an empty environment; return its Python."""
    shutil.rmtree(venv, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    python = venv / "bin" / "python"
    uv = shutil.which("uv")
    if lowest and not uv:
        raise SystemExit("--lowest needs uv, which resolves to the lowest versions: install uv")
    install = (
        [uv, "pip", "install", "--python", str(python)]
        if uv
        else [str(python), "-m", "pip", "install"]
    )
    if lowest:  # of what pyproject.toml names itself; the rest as new as there is
        pyproject = ["--resolution", "lowest-direct", "-r", str(ROOT / "pyproject.toml")]
        subprocess.run([*install, "-q", *pyproject], check=True)
    options = ["--no-deps"] if lowest else []
    options += ["-c", str(constraints.resolve())] if constraints else []
    subprocess.run([*install, "-q", *options, str(wheel)], check=True)
    return python


def beside(script: str) -> str:
    """A script of the environment that this one runs in."""
    return str(Path(sys.executable).parent / script)


def said(command: Sequence[str], folder: Path | None = None) -> list[str]:
    """Run a command apart from this project; return its last lines if it fails or raises."""
    hidden = ("PYTHONPATH", "VISION_ATTN_DATA", "VIRTUAL_ENV")
    clean = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True)
    output = done.stdout + done.stderr
    if done.returncode or "Traceback (most recent call last)" in output:
        return [f"exit status {done.returncode}", *output.strip().splitlines()[-8:]]
    return []


if __name__ == "__main__":
    sys.exit(check())
