"""Run-time type checks on the package, one thread a worker, fixtures that all parts share.

torch is imported where it is needed: the process that hands tests to workers starts without it.
"""

import atexit
import dataclasses
import gc
import inspect
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ForwardRef, Literal, cast, get_args, get_origin

import jaxtyping
import numpy as np
import pytest
from beartype import BeartypeConf, beartype
from PIL import Image

_by_jaxtyping = jaxtyping.jaxtyped
_by_beartype = beartype(conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))


def _names_a_shape(annotation: Any) -> bool:
    """Whether an annotation may hold a type of jaxtyping; what is still a text may."""
    if isinstance(annotation, str | ForwardRef):
        return True
    if get_origin(annotation) is Literal:
        return False
    own = inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray)
    return own or any(map(_names_a_shape, get_args(annotation)))


def _checked(made: Any = None, *, typechecker: Any) -> Any:
    """Check as jaxtyping does; where no shape is annotated, by beartype alone, at 1/20 of the time."""
    if made is None:
        return partial(_checked, typechecker=typechecker)
    if inspect.isfunction(made) and not any(map(_names_a_shape, made.__annotations__.values())):
        return _by_beartype(made)
    if dataclasses.is_dataclass(made) and "__init__" in vars(made):
        cls: Any = made
        cls.__init__ = _checked(cls.__init__, typechecker=typechecker)
        return made
    return _by_jaxtyping(made, typechecker=typechecker)


if os.environ.get("VISION_ATTN_TYPECHECK", "1") != "0":
    jaxtyping.jaxtyped = cast(Any, _checked)
    jaxtyping.install_import_hook("vision_attn", "beartype.beartype")

if not any(os.environ.get(name) for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")):
    os.environ["GOMP_SPINCOUNT"] = "2000"  # as the command line does, here and in every process

# As make test does. Else `fit` says that it takes fewer threads where other programs are busy.
os.environ.setdefault("OMP_NUM_THREADS", "1")

if os.environ.get("PYTEST_XDIST_WORKER"):
    atexit.register(os._exit, 0)  # the last to be called: to take down what is loaded takes seconds
    import torch

    torch.set_num_threads(1)

gc.disable()  # until all is imported: what imports make, stays


def pytest_collection_finish() -> None:
    """Collect the tests' garbage, and look no more through what their imports made."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let Python clean up at its end, if it will."""
    if not os.environ.get("PYTEST_XDIST_WORKER"):
        gc.unfreeze()


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real data that VISION_ATTN_DATA names."""
    root = os.environ.get("VISION_ATTN_DATA")
    if not root:
        pytest.skip("VISION_ATTN_DATA is not set: it names the folder with the real data sets")
    if not Path(root).is_dir():
        pytest.fail(f"VISION_ATTN_DATA names {root!r}, which is not a folder")
    return Path(root)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built as `make docs` builds it: a warning fails."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    root = Path(__file__).parent.parent
    built = subprocess.run(words, cwd=root, capture_output=True, text=True, env=quiet)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture
def control_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Write this process's own line of control groups, and the files of the groups."""

    def write(own: str, files: dict[str, str]) -> None:
        (tmp_path / "own").write_text(own)
        for name, text in files.items():
            file = tmp_path / "groups" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    monkeypatch.setattr("vision_attn.cores.GROUPS", tmp_path / "groups")
    monkeypatch.setattr("vision_attn.cores.OWN", tmp_path / "own")
    return write


CLASSES = ["tabby, tabby cat", "collie", "<img src=x onerror=alert(1)>"]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Checkpoints by name: a ViT for 32x48 images, and an SENet for 32x32."""
    import torch

    from vision_attn.attention import SqueezeExcite
    from vision_attn.models import SEResNet, ViT
    from vision_attn.models.checkpoint import describe

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models")
    networks = {
        "vit": (ViT((32, 48), 8, 3, dim=12, depth=2, heads=2), (32, 48)),
        "senet": (
            SEResNet(3, layers=(1, 1, 1, 1), widths=(8, 8, 16, 16), gate=SqueezeExcite),
            (32, 32),
        ),
    }
    for name, (network, size) in networks.items():
        for weight in network.parameters():
            torch.nn.init.normal_(weight, std=0.3)
        torch.save(
            {
                "state_dict": {f"network.{k}": v for k, v in network.state_dict().items()},
                "vision_attn": {
                    "format": 1,
                    "network": describe(network),
                    "classes": CLASSES,
                    "preprocess": {
                        "input_size": size,
                        "mean": (0.5, 0.5, 0.5),
                        "std": (0.25, 0.25, 0.25),
                        "crop_pct": 0.9,
                    },
                    "version": "0",
                },
            },
            folder / f"{name}.ckpt",
        )
    return lambda name: str(folder / f"{name}.ckpt")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of three photos, one of them tall, one small."""
    return _three_photos(tmp_path / "photos")


@pytest.fixture(scope="session")
def kept_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same photos for several tests: to read alone."""
    return _three_photos(tmp_path_factory.mktemp("kept") / "photos")


def _three_photos(folder: Path) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, shape in (("cat.png", (331, 401)), ("dog.jpg", (500, 353)), ("tiny.png", (40, 60))):
        coarse = rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize(shape[::-1], Image.Resampling.BICUBIC).save(folder / name)
    return folder


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB that holds one small file, a.txt."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("needs a small disk: there is no mount command")
    if done.returncode:
        pytest.skip(f"needs a small disk: mounting is not possible here ({done.stderr.strip()})")
    (place / "a.txt").write_text("before")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture(autouse=True)
def _seed() -> None:
    seed()


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Draw what a file draws as it is imported alike, whatever was collected before."""
    if isinstance(collector, pytest.Module):
        seed()


def seed() -> None:
    import torch

    # Without a GPU, torch.manual_seed would keep a text of the stack for the day that there is one.
    (torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed)(0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what this machine cannot run, and says so in the summary as deselected."""
    import torch

    for item in items:
        if "site" in getattr(item, "fixturenames", ()):  # which is built in three languages
            item.add_marker(pytest.mark.timeout(900))

    absent = set()
    if not torch.cuda.is_available():
        absent.add("gpu")
    if not any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")):
        absent.add("browser")
    left_out = [item for item in items if absent & {mark.name for mark in item.iter_markers()}]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def torch_threads() -> Iterator[Callable[..., None]]:
    """Set the number of torch's threads; the old number is set again after the test."""
    import torch

    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
