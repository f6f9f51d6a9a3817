"""Weights from a file into a network, and what to say when they do not fit."""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from vision_attn.errors import ModelError


def read_file(path: str | Path) -> dict[str, Any]:
    """The contents of a .safetensors file, or of a PyTorch file of tensors and plain values.

    Raises ModelError naming the file where it is missing, cut short, of another kind, or holds
    pickled code (it is never run).
    """
    path = Path(path)
    if not path.is_file():
        raise ModelError(f"{path}: no such file; expected a checkpoint or a weights file")
    with path.open("rb") as file:
        head = file.read(16)
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
    if is_zip and not zipfile.is_zipfile(path):
        raise ModelError(_damaged(path, "PyTorch"))
    try:
        contents = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{path}: holds pickled Python objects, which are not loaded because that runs their "
            "code; save tensors and plain values only (network.state_dict())"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise ModelError(_damaged(path, "PyTorch")) from error
    if not isinstance(contents, dict):
        raise ModelError(
            f"{path}: holds a {type(contents).__name__}; expected a dict of named weights"
        )
    return contents


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The named tensors of a weights file or checkpoint; the averaged ones where it has both."""
    contents = read_file(path)
    for key in ("state_dict_ema", "model_ema", "state_dict", "model"):
        if isinstance(contents.get(key), dict):
            contents = contents[key]
            break
    weights = {name: value for name, value in contents.items() if isinstance(value, Tensor)}
    if not weights:
        raise ModelError(f"{path}: holds no weights; expected tensors by name (a state_dict)")
    return weights


def load_weights(network: nn.Module, weights: dict[str, Tensor], source: str | Path) -> None:
    """Copy `weights` into the network: every name and shape must fit.

    A wrapper's prefix ("network.", "module.") is taken off. Raises ModelError that names `source`
    and the first of what is missing, unexpected or of another shape.
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
    network.load_state_dict(weights)


def without_prefix(weights: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights under the prefix that makes their names those expected; others are left out."""
    probe = max(expected, key=len, default="")
    prefixes = [name.removesuffix(probe) for name in weights if name.endswith(probe)]
    prefix = min(prefixes, key=len, default="")
    return {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


def _damaged(path: Path, kind: str) -> str:
    return f"{path}: cut short or damaged; expected a whole {kind} file: copy or download it again"
