"""Configs that name any class that a config may name, with any values; what they must not do.

What is built is also trained with for a step. An audit hook of Python watches: no program is
started but compilers and their like, no socket is opened to another machine, and no file is written
outside of the case's folder.
"""

import importlib
import inspect
import os
import pkgutil
import socket
import sys
import tempfile
import types
import warnings
from collections.abc import Iterator
from datetime import timedelta
from enum import Enum
from functools import cache
from pathlib import Path, PurePath
from random import Random
from typing import Any, Literal, Union, cast, get_args, get_origin

import seeds
import yaml

from vision_attn.compat.jsonargparse_private import Option, options_of_class
from vision_attn.data import ImageData
from vision_attn.fitting.kinds import KINDS
from vision_attn.fitting.making import make_run
from vision_attn.training import ImageClassifier

PROGRAMS = {"uname", "lscpu", "ldconfig", "gcc", "g++", "cc", "c++", "clang++", "nvidia-smi", "ld"}
STARTS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn"}
CHANGES = {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree", "os.link", "os.symlink", "os.chmod"}  # fmt: skip
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
SLOTS = {  # each option that takes a class, and whether in a list
    "model.network": False,
    "model.network.init_args.attention": False,
    "model.network.init_args.embed": False,
    "model.network.init_args.pool": False,
    "model.optimizer": False,
    "model.schedule": False,
    "model.loss": False,
    "data.source": False,
    "data.augment": True,
    "data.mix": True,
    "trainer.callbacks": True,
    "trainer.logger": True,
    "trainer.profiler": False,
    "trainer.strategy": False,
    "trainer.plugins": True,
    "trainer.accelerator": False,
}
LAUNCHER = "torch.distributed.launcher.api"
# This machine; and the hub, where weights and data sets are fetched by their names.
HOSTS = {None, "localhost", "127.0.0.1", socket.gethostname(), "huggingface.co"}
BUILT, REFUSED, RAISED, WRONG = 0, 2, 3, 9
MOST_WEIGHTS = 3_000_000


@cache
def subclasses(base: Any) -> list[type]:
    """The classes that the kinds have of a base, and vision_attn, in order of their names."""
    modules = {"vision_attn", *(module for kind in KINDS for module in kind.modules)}
    for name in modules:
        _import_below(name)
    found, waiting = {}, [base]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        path = f"{cls.__module__}.{cls.__qualname__}"
        inside = any(f"{path}.".startswith(f"{module}.") for module in modules)
        if inside and not inspect.isabstract(cls) and "<locals>" not in path:
            found[path] = cls
    return [found[path] for path in sorted(found)]


def _import_below(name: str) -> None:
    warnings.filterwarnings("ignore", "Importing from timm", FutureWarning)
    module = importlib.import_module(name)
    for part in pkgutil.walk_packages(getattr(module, "__path__", []), f"{name}."):
        if not part.name.endswith("__main__"):
            try:
                importlib.import_module(part.name)
            except ImportError:  # needs a package that is not here
                continue


@cache
def slot_types() -> dict[str, Any]:
    """The type of each slot, as the parser of a run has it."""
    from lightning.pytorch import Trainer

    from vision_attn.models import ViT

    parts = {"model": ImageClassifier, "data": ImageData, "trainer": Trainer}
    found = {
        f"{part}.{option.name}": option.type
        for part, cls in parts.items()
        for option in options_of_class(cls)
    }
    return found | {f"model.network.init_args.{o.name}": o.type for o in options_of_class(ViT)}


@cache
def required(cls: type) -> set[str]:
    """The options without which a class is not made."""
    empty = inspect.Parameter.empty
    return {p.name for p in inspect.signature(cls).parameters.values() if p.default is empty}


class Values:
    """Values for the options of classes, usual ones and hostile ones, for a case in a folder."""

    def __init__(self, draw: Random, here: Path) -> None:
        self.draw = draw
        self.hostility = draw.choice([0.0, 0.0, 0.1, 0.3])  # the share of values
        self.program, self.file = str(here / "canary"), str(here / "canary.txt")

    def spec(self, cls: type, depth: int, skip: int = 0) -> dict[str, Any]:
        """A class with values for what it needs, and for some of what it does not.

        skip: how many of its options come from its caller.
        """
        path = f"{cls.__module__}.{cls.__qualname__}"
        given = {}
        try:
            options = options_of_class(cls)
        except Exception:  # jsonargparse cannot read it, so no config can name it
            return {"class_path": path}
        for option in options[skip:]:
            if option.name in required(cls) or self.draw.random() < 0.15:
                given[option.name] = self.value(option, depth)
        found: dict[str, Any] = {"class_path": path, "init_args": given}
        if self.draw.random() < self.hostility / 2:
            found["dict_kwargs"] = {self.draw.choice(["dir", "settings", "x"]): self.hostile()}
        return found

    def value(self, option: Option, depth: int) -> Any:
        if self.draw.random() < self.hostility:
            return self.hostile()
        return self.of_type(option.type, option.name, depth)

    def of_type(self, hint: Any, name: str, depth: int, skip: int = 0) -> Any:
        origin, inner, draw = get_origin(hint), get_args(hint), self.draw
        if origin in (Union, types.UnionType):
            return self.of_type(draw.choice(inner), name, depth)
        if origin is Literal:
            return draw.choice(inner)
        if origin is not None and hasattr(origin, "__mro__"):
            if issubclass(origin, dict) or origin.__name__ == "Mapping":
                return {"a": self.of_type(inner[-1] if inner else str, name, depth)}
            if origin.__name__ == "Callable":
                return self.of_type(inner[-1] if inner else None, name, depth, len(inner) - 1)
            if origin is type:
                base: Any = inner[0]
                classes = subclasses(cast(Any, base)) if inspect.isclass(base) else []
                cls = draw.choice(classes) if classes else int
                return f"{cls.__module__}.{cls.__qualname__}"
            return [self.of_type(part, name, depth) for part in inner if part is not Ellipsis]
        if not inspect.isclass(hint):
            return self.plain(name)
        return self.of_class(hint, name, depth, skip)

    def of_class(self, hint: type, name: str, depth: int, skip: int) -> Any:
        draw = self.draw
        if hint is type(None) or issubclass(hint, type):
            return None
        if issubclass(hint, bool):
            return draw.random() < 0.5
        if issubclass(hint, int):
            return draw.choice([0, 1, 2, 3, 4, 8, 10, 16])
        if issubclass(hint, float):
            return draw.choice([0.0, 0.1, 0.5, 1.0])
        if issubclass(hint, Enum):
            return draw.choice(list(hint)).name
        if issubclass(hint, timedelta):
            return "00:00:01:00"
        if issubclass(hint, (str, PurePath)):
            return str(self.plain(name))
        classes = [] if hint is object else subclasses(cast(Any, hint))
        if not depth or not classes:
            return self.plain(name)
        return self.spec(draw.choice(classes), depth - 1, skip)

    def plain(self, name: str) -> Any:
        return self.draw.choice(["a", "val/loss", "loss", "cpu", "min", 1, 0.1, name, None])

    def hostile(self) -> Any:
        """A program, a file or an address where it does harm if anything uses it."""
        hook = {"class_path": f"{LAUNCHER}.elastic_launch", "init_args": {"entrypoint": self.program}}  # fmt: skip
        up = os.path.relpath(self.file, Path(self.file).parent / "out")
        module = "lightning.pytorch.callbacks.LambdaCallback"
        return self.draw.choice(
            [
                *(self.program, [self.program], f"|{self.program}", f"$({self.program})"),
                *(self.file, f"file://{self.file}", up, f"~/../{Path(self.file).name}"),
                *("http://192.0.2.1/x", "192.0.2.1", "s3://bucket/x", f"pipe:{self.program}"),
                *("os.system", "subprocess.call", "torch.hub.load", "builtins.exec"),
                *(hook, {**hook, "class_path": "subprocess.Popen", "init_args": {"args": self.program}}),
                {"class_path": module, "init_args": {"setup": hook}},
                {"class_path": "torch.nn.Identity"},
                {"class_path": "vision_attn.fitting.records.SavedConfig", "init_args": {"folder": Path(self.file).parent.name, "text": "x"}},
                *("__import__('os').system('canary')", {"x": self.program}, "/dev/zero", "\0"),
            ]
        )  # fmt: skip


def config(draw: Random, here: Path) -> dict[str, Any]:
    """A small run, one to three of whose options name any class."""
    tree = yaml.safe_load(seeds.CONFIG)
    values = Values(draw, here)
    for slot in draw.sample(list(SLOTS), draw.choice([1, 1, 2, 3])):
        *outer, last = slot.split(".")
        section = tree
        for key in outer:
            section = section.setdefault(key, {})
        hint = slot_types()[slot]
        bases = [base for base in _bases(hint) if subclasses(base)]
        skip = (
            len(get_args(hint)) - 1
            if getattr(get_origin(hint), "__name__", "") == "Callable"
            else 0
        )
        spec = values.spec(draw.choice(subclasses(draw.choice(bases))), 3, skip)
        spec = values.hostile() if draw.random() < values.hostility / 4 else spec
        section[last] = [spec] if SLOTS[slot] else spec
    if draw.random() < values.hostility / 4:
        tree[draw.choice(["output", "name", "ckpt_path"])] = values.hostile()
    if draw.random() < values.hostility / 4:
        tree["trainer"][draw.choice(["model_registry", "profiler", "strategy"])] = values.hostile()
    return tree


def _bases(hint: Any) -> Iterator[type]:
    """The classes in a type, but plain ones."""
    for part in get_args(hint) or [hint]:
        if inspect.isclass(part) and part.__module__.startswith(
            ("vision_attn", "torch", "lightning")
        ):
            yield part
        elif get_args(part) or get_origin(part):
            yield from _bases(part)


def built(path: Path, here: Path) -> int:
    """Make the run of a config and train for a step; `WRONG`, with a line, if it does harm."""
    harm: list[str] = []
    os.environ["PATH"] = f"{here}:{os.environ.get('PATH', '')}"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{tempfile.gettempdir()}/compiled"
    os.chdir(here / "out")
    watch(here.parent, harm)
    code = BUILT
    try:
        words = ["--config", str(path), "--trainer.fast_dev_run", "true"]
        run = make_run("fit", words)
        if sum(weight.numel() for weight in run.model.parameters()) < MOST_WEIGHTS:
            code = RAISED
            run.fit()
            code = BUILT
    except ValueError as error:
        code = REFUSED
        print(error, file=sys.stderr)
    except BaseException:  # of a library, with options that no check of its own refuses
        code = RAISED
    for line in harm[:3]:
        print(line, file=sys.stderr)
    return WRONG if harm else code


def watch(folder: Path, harm: list[str]) -> None:
    """Note what the process does outside of the folder; an audit hook cannot be taken off again."""
    inside = tuple(f"{os.path.realpath(place)}/" for place in (folder, tempfile.gettempdir()))

    def outside(path: Any) -> bool:
        if isinstance(path, int) or not isinstance(path, (str, bytes, PurePath)):
            return False
        text = os.path.realpath(os.fsdecode(path))
        spared = text.startswith(("/dev/", "/proc/")) or "__pycache__" in text
        return not spared and not f"{text}/".startswith(inside)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in STARTS:
            program = args[0] if isinstance(args[0], str) else os.fsdecode(args[0] or b"")
            if Path(program.split(" ")[0]).name not in PROGRAMS:
                harm.append(f"{event}: {args[:2]!r:.300}")
        elif event == "socket.connect" and args[0].family != socket.AF_UNIX:
            if not str(args[1][0]).startswith(("127.", "localhost", "::1")):
                harm.append(f"{event}: {args[1]!r}")
        elif event == "socket.getaddrinfo" and args[0] not in HOSTS:
            harm.append(f"{event}: {args[0]!r}")
        writes = event == "open" and isinstance(args[2], int) and args[2] & WRITES
        changed = (
            args[: 1 + (event in ("os.rename", "os.link"))] if writes or event in CHANGES else ()
        )
        harm.extend(f"{event}: {path!r}" for path in changed if outside(path))

    sys.addaudithook(hook)
