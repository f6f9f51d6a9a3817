"""Checkpoints: networks as plain values and tensors, read back without running anyone's code.

The entry "vision_attn" of a checkpoint (`pack`, `unpack`) holds the network's description and what
it takes to use the network: class names and preprocessing, or vocabularies. A description is
{"class_path": "vision_attn.models.ViT", "init_args": {...}}; factories among the arguments (an
attention, a gate, a readout) are descriptions too, and all else is plain. `build` calls nothing but
classes of `vision_attn.attention` and `vision_attn.models`, and torch's activations.
"""

import functools
import importlib
import inspect
import pickle
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from vision_attn import __version__
from vision_attn.arguments import article
from vision_attn.errors import ModelError, quoted
from vision_attn.models.errors import no_empty_layers, not_much_larger_than
from vision_attn.models.shelf import is_shelved, shelved

__all__ = [
    "ENTRY",
    "FORMAT",
    "Checkpoint",
    "Rebuildable",
    "build",
    "describe",
    "load_weights",
    "pack",
    "read_file",
    "read_weights",
    "unpack",
    "without_prefix",
]

ENTRY = "vision_attn"
FORMAT = 1  # of the entry
PACKAGES = ("vision_attn.attention", "vision_attn.models", "vision_attn.sequences")
ACTIVATIONS = "torch.nn.modules.activation"
LARGEST = 10**7  # of the whole numbers in a description: sizes, counts


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of `vision-attn fit`, read and of a known format.

    Attributes:
        about: Its entry "vision_attn", plain values.
        weights: Its tensors by name, not yet compared with any network.

    Examples:
        >>> import tempfile, torch
        >>> from vision_attn.models import ViT
        >>> from vision_attn.models.checkpoint import ENTRY, pack, unpack
        >>> vit = ViT(image_size=16, patch_size=8, dim=12, depth=1, heads=2, num_classes=3)
        >>> weights = {f"network.{name}": value for name, value in vit.state_dict().items()}
        >>> with tempfile.NamedTemporaryFile(suffix=".ckpt") as file:
        ...     entry = pack(vit, {"classes": ["a", "b", "c"]})
        ...     torch.save({ENTRY: entry, "state_dict": weights}, file.name)
        ...     checkpoint = unpack(file.name)
        >>> checkpoint.about["classes"], checkpoint.build().grid
        (['a', 'b', 'c'], (2, 2))
    """

    path: Path
    about: dict[str, Any]
    weights: dict[str, Tensor]

    @property
    def of_sequences(self) -> bool:
        """Whether its network writes sequences or answers questions, and does not name classes."""
        return "vocabularies" in self.about

    def build(self) -> nn.Module:
        """Build the network, with fresh weights.

        A network of far more weights than the file holds is refused before it fills the memory.

        Raises:
            ValueError: The description allows none.
        """
        if self.about.get("network") is None:
            raise ValueError("its class is not one of vision_attn, so only your code can build it")
        if not self.weights:
            return build(self.about["network"])
        held = sum(tensor.numel() for tensor in self.weights.values())
        with not_much_larger_than(held):
            return build(self.about["network"])


def pack(network: nn.Module, about: Mapping[str, Any]) -> dict[str, Any]:
    """Make the entry "vision_attn" of a checkpoint; the opposite of `unpack`.

    about: plain values beside the network's description. A network from elsewhere has none: its
    checkpoint resumes a run, but cannot be built.
    """
    try:
        description = describe(network)
    except ValueError:
        description = None
    return {"format": FORMAT, "version": __version__, "network": description, **about}


def unpack(path: str | Path) -> Checkpoint:
    """Read a checkpoint of `vision-attn fit`, opening the file once; or a network of the shelf.

    path: a file, or vision_attn:NAME. Raises ModelError, one line, for a file that is missing,
    damaged, of another kind, or of another version's format.
    """
    if is_shelved(path):
        return _from_shelf(str(path))
    contents = read_file(path)
    if ENTRY not in contents:
        raise ModelError(
            f"{path}: not a checkpoint of vision-attn (it does not name its network); "
            "name the network and take only the weights from the file: timm:NAME --weights FILE"
        )
    about = contents[ENTRY]
    if not isinstance(about, dict) or not all(isinstance(key, str) for key in about):
        raise ModelError(
            f"{path}: damaged: its entry {quoted(ENTRY)} is not a dict of named values"
        )
    _check_format(about, path)
    return Checkpoint(Path(path), about, _named_tensors(contents.get("state_dict"), path))


def _from_shelf(spec: str) -> Checkpoint:
    card = shelved(spec)
    about = _with_tuples(card.values["checkpoint"])
    _check_format(about, card.path)
    card.check()
    return Checkpoint(Path(spec), about, _named_tensors(read_file(card.weights), card.weights))


def _with_tuples(value: Any) -> Any:
    """The values of a JSON file, which has no tuples, with a tuple for each list but of classes."""
    if isinstance(value, dict):
        return {k: v if k == "classes" else _with_tuples(v) for k, v in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def _check_format(about: Mapping[str, Any], path: str | Path) -> None:
    version = about.get("format")
    if not isinstance(version, int) or version != FORMAT:
        raise ModelError(
            f"{path}: its network cannot be rebuilt: made by vision-attn "
            f"{about.get('version', 'of an unknown version')}, in the format of another version"
        )


class Rebuildable(nn.Module):
    """Base of the networks that remember the class and the arguments they were made with.

    `init_class` stays when the network is wrapped in place, as by `fully_shard`.
    `rebuilt_with` fixes the arguments that count only the first time, such as where the starting
    weights come from: a description carries these values, and `build` insists on them.

    Examples:
        >>> from torch import nn
        >>> from vision_attn.models import build, describe
        >>> from vision_attn.models.checkpoint import Rebuildable
        >>> from vision_attn.models import FastCNN
        >>> cnn = FastCNN(num_classes=3, widths=(8, 8, 8))
        >>> cnn.init_args["widths"]
        (8, 8, 8)
        >>> build(describe(cnn)).init_args == cnn.init_args
        True
    """

    init_class: type["Rebuildable"]
    init_args: dict[str, Any]
    rebuilt_with: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        init: Any = cls.__init__
        signature = inspect.signature(init)

        @functools.wraps(init)
        def remember(self: "Rebuildable", *args: Any, **kwargs: Any) -> None:
            if "init_args" not in self.__dict__:  # a parent's __init__ comes second
                bound = signature.bind(self, *args, **kwargs)
                bound.apply_defaults()
                self.__dict__["init_class"] = type(self)
                self.__dict__["init_args"] = dict(list(bound.arguments.items())[1:])
            init(self, *args, **kwargs)

        cls.__init__ = remember  # type: ignore


def describe(network: nn.Module) -> dict[str, Any]:
    """Describe a network by its class and arguments as plain values, without its weights.

    Args:
        network: A network of `vision_attn.models`.

    Returns:
        Its `class_path` and `init_args`.

    Raises:
        ValueError: `build` would refuse it: a class from elsewhere, or an argument that is neither
            a plain value nor a factory of vision_attn.
    """
    if not isinstance(network, Rebuildable):
        raise ValueError(
            f"cannot describe a {_path(type(network))}: only the networks of vision_attn.models "
            "can be rebuilt from a checkpoint (TimmModel holds any network of timm)"
        )
    return _described(network.init_class, {**network.init_args, **network.rebuilt_with})


def build(description: Any) -> nn.Module:
    """Build the network of a description, with fresh weights; the opposite of `describe`.

    Args:
        description: Plain values, as `describe` gives them.

    Returns:
        The network.

    Raises:
        ValueError: The description asks for anything but classes of vision_attn that are
            `nn.Module`s, and plain values.
    """
    factory = _factory(description)
    cls: Any = factory.func
    if not issubclass(cls, Rebuildable):
        raise ValueError(f"{description['class_path']} is a part of a network, not a network")
    try:
        with no_empty_layers():
            network: nn.Module = factory(**cls.rebuilt_with)
            return network
    except ValueError:
        raise
    except Exception as error:  # an argument this version does not have, a size below 0, too large
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(f"cannot build {description['class_path']}: {reason}") from error


def _described(cls: type, args: dict[str, Any]) -> dict[str, Any]:
    package = ".".join(cls.__module__.split(".")[:2])
    path = f"{package}.{cls.__name__}"  # the public name, which survives a change of files
    if _public(path) is not cls:
        raise ValueError(
            f"cannot describe {_path(cls)}: a checkpoint names only public classes of "
            f"{', '.join(PACKAGES)}"
        )
    flat = _flat(cls, args)
    return {"class_path": path, "init_args": {k: _plain(k, v) for k, v in flat.items()}}


def _flat(cls: type, args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with those that `**options` gathers beside the others, not below its name."""
    flat = dict(args)
    for name, parameter in inspect.signature(cls).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD and isinstance(flat.get(name), dict):
            flat |= flat.pop(name)
    return flat


def _plain(name: str, value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return type(value)(_plain(name, item) for item in value)
        case dict() if all(isinstance(key, str) for key in value):
            return {key: _plain(name, item) for key, item in value.items()}
        case type():
            return _described(value, {})
        case functools.partial():
            return _described_partial(name, value)
    raise ValueError(
        f"cannot describe {name}={quoted(value)}: expected a plain value, a class of vision_attn, "
        "or a "
        "functools.partial of one"
    )


def _described_partial(name: str, factory: functools.partial[object]) -> dict[str, Any]:
    """A partial of a class, or jsonargparse's partial of a function that is handed the class."""
    parts = (factory.func, *factory.args)
    index = next((i for i, part in enumerate(parts) if isinstance(part, type)), None)
    if index is None:
        raise ValueError(
            f"cannot describe {name}={quoted(factory)}: it is not a partial of a class"
        )
    cls: Any = parts[index]
    bound = inspect.signature(cls).bind_partial(*parts[index + 1 :], **factory.keywords)
    return _described(cls, bound.arguments)


def _factory(description: Any) -> functools.partial[nn.Module]:
    match description:
        case {"class_path": str(path), "init_args": dict(args), **rest} if not rest and all(
            isinstance(key, str) for key in args
        ):
            cls = _find(path)
            values = {k: _value(v) for k, v in args.items()}
            return functools.partial(cls, **_flat(cls, values))
    raise ValueError(
        f"expected a description with 'class_path' and 'init_args', got {quoted(description)}"
    )


def _value(value: Any) -> Any:
    match value:
        case int() if abs(value) > LARGEST:
            raise ValueError(f"a description with the size {value}: expected at most {LARGEST}")
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return type(value)(_value(item) for item in value)
        case {"class_path": _}:
            factory = _factory(value)
            if issubclass(factory.func, Rebuildable):  # type: ignore[arg-type]
                raise ValueError(f"{value['class_path']} is a network, not a part of one")
            return factory if factory.keywords else factory.func
        case dict() if all(isinstance(key, str) for key in value):
            return {key: _value(item) for key, item in value.items()}
    raise ValueError(f"expected a plain value in a description, got a {_path(type(value))}")


def _find(path: str) -> type[nn.Module]:
    """The class of that public name; ValueError where it is none that may be built."""
    cls = _public(path)
    if cls is None:
        raise ValueError(
            f"refused to build {quoted(path)}: expected an nn.Module of {' or '.join(PACKAGES)}"
        )
    return cls


def _public(path: str) -> type[nn.Module] | None:
    """The class of that name. It must be our own, or an activation: a package also holds what it
    imports."""
    package, _, name = path.rpartition(".")
    is_listed = package in (*PACKAGES, "torch.nn")
    value = getattr(importlib.import_module(package), name, None) if is_listed else None
    if not isinstance(value, type) or not issubclass(value, nn.Module):
        return None
    home = value.__module__
    own = home.startswith(tuple(f"{package}." for package in PACKAGES))
    return value if own or home == ACTIVATIONS else None


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def read_file(path: str | Path) -> dict[str, Any]:
    """Read a .safetensors file, or a PyTorch file of tensors and plain values.

    Raises ModelError naming the file where it is missing, cut short, of another kind, or holds
    pickled code (it is never run).
    """
    path = Path(path)
    if not path.is_file():
        raise ModelError(f"{path}: no such file; expected a checkpoint or a weights file")
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
    if head[8:9] == b"{":
        try:
            return load_file(path)
        except SafetensorError as error:
            raise ModelError(_damaged(path, "safetensors")) from error
    is_zip = head.startswith(b"PK")
    if not is_zip and not head.startswith(b"\x80\x02"):  # as torch wrote before 1.6
        raise ModelError(
            f"{path}: not a checkpoint or weights file; expected one written by torch.save "
            "(.ckpt, .pth, .pt, .bin) or a .safetensors file"
        )
    try:
        if is_zip:
            _check_not_compressed(path)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Validating sparse tensor invariants")
            warnings.filterwarnings("ignore", "Detected pickle protocol")
            contents = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except ModelError:
        raise
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{path}: holds pickled Python objects, which are not loaded because that runs their "
            "code; save tensors and plain values only (network.state_dict())"
        ) from error
    except Exception as error:  # a flipped byte can make torch raise anything, MemoryError too
        raise ModelError(_damaged(path, "PyTorch")) from error
    if not isinstance(contents, dict):
        raise ModelError(
            f"{path}: holds a {type(contents).__name__}; expected a dict of named weights"
        )
    return contents


def _check_not_compressed(path: Path) -> None:
    """Raise ModelError for an archive with a compressed part, which may unfold to any size.

    torch.save compresses nothing, so that tensors can be mapped into memory as they lie there.
    """
    with zipfile.ZipFile(path) as archive:
        for part in archive.infolist():
            if part.compress_type != zipfile.ZIP_STORED or part.file_size > part.compress_size:
                raise ModelError(
                    f"{path}: its part {quoted(part.filename)} is compressed, from "
                    f"{part.file_size:,} to {part.compress_size:,} bytes; expected a file as "
                    "torch.save writes it: "
                    "load it with torch where it comes from, and save it again"
                )


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read the named tensors of a weights file or checkpoint; averaged ones where it has both.

    path: a file, or vision_attn:NAME.
    """
    if is_shelved(path):
        return unpack(path).weights
    contents = read_file(path)
    for key in ("state_dict_ema", "model_ema", "state_dict", "model"):
        if isinstance(contents.get(key), dict):
            contents = contents[key]
            break
    return _named_tensors(contents, path)


def _named_tensors(contents: Any, path: str | Path) -> dict[str, Tensor]:
    """The tensors of a state_dict; ModelError where there is none, or a name is not a word."""
    if not isinstance(contents, dict):
        got = "nothing" if contents is None else article(type(contents).__name__)
        raise ModelError(
            f"{path}: holds no weights: its state_dict is {got}; expected named tensors"
        )
    weights = {name: value for name, value in contents.items() if isinstance(value, Tensor)}
    if not weights:
        raise ModelError(f"{path}: holds no weights; expected tensors by name (a state_dict)")
    for name in weights:
        if not isinstance(name, str):
            raise ModelError(
                f"{path}: damaged: a weight has the name {quoted(name)}, expected a word"
            )
    return weights


def load_weights(network: nn.Module, weights: dict[str, Tensor], source: str | Path) -> None:
    """Copy `weights` into the network: every name and shape must fit.

    A wrapper's prefix ("network.", "module.") is taken off. Raises ModelError that names `source`
    and the first of what is missing, unexpected, of another shape, or holds no usable numbers: a
    sparse or quantised tensor, one without data, NaN.
    """
    expected = network.state_dict()
    weights = without_prefix(weights, expected)
    missing = [name for name in expected if name not in weights]
    unexpected = [name for name in weights if name not in expected]
    reshaped = [
        f"{name} {_shape(weights[name])} for {_shape(tensor)}"
        for name, tensor in expected.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    faults = [
        f"{len(names)} {fault} ({', '.join(names[:2])}{', ...' if len(names) > 2 else ''})"
        for fault, names in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("of another shape", reshaped),
        )
        if names
    ]
    if faults:
        raise ModelError(
            f"{source}: its weights do not fit {type(network).__name__}: {'; '.join(faults)}; "
            "check the model's name, number of classes and image size"
        )
    for name, tensor in expected.items():
        if fault := _fault(weights[name], tensor):
            raise ModelError(f"{source}: damaged: its weights {quoted(name)} {fault}")
    network.load_state_dict(weights)


def _fault(weights: Tensor, expected: Tensor) -> str:
    """What makes these numbers no weights, if anything."""
    if weights.layout != torch.strided:
        return "are a sparse tensor; expected a dense one"
    if weights.is_quantized:
        return "are quantised; expected plain numbers"
    if weights.is_meta and not expected.is_meta:
        return "have a shape and no numbers (a meta tensor)"
    if weights.is_complex() and not expected.is_complex():
        return "are complex numbers"
    numbers = weights.is_floating_point() and weights.itemsize > 1 and not weights.is_meta
    if numbers and weights.isnan().any():
        return "hold NaN (the run that wrote it diverged): take an earlier checkpoint"
    return ""


def without_prefix(weights: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, Tensor]:
    """Take the weights under the prefix that makes their names those expected; leave out others."""
    probe = max(expected, key=len, default="")
    prefixes = [name.removesuffix(probe) for name in weights if name.endswith(probe)]
    prefix = min(prefixes, key=len, default="")
    return {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


def _damaged(path: Path, kind: str) -> str:
    return f"{path}: cut short or damaged; expected a whole {kind} file: copy or download it again"
