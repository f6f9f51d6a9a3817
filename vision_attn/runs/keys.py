"""What a row of the store depends on, as numbers: a sample's name, its content, settings.

A content's upper half is of what a look at the file tells (its size and time), so that a run that
goes on need not read a million photos; its lower half is the CRC-32 of the photo's bytes.
"""

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from jaxtyping import Int64
from numpy import ndarray
from torch import nn

from vision_attn.data.images import regular_file
from vision_attn.runs.workers import checksum
from vision_attn.types import Model

__all__ = [
    "bytes_crc",
    "content_number",
    "digest",
    "file_stamp",
    "model_settings",
    "sample_number",
    "sample_numbers",
]

CHUNK = 1 << 20


def digest(value: Any) -> int:
    """Compute a signed number of 64 bits of plain values.

    Examples:
        >>> from vision_attn.runs.keys import digest
        >>> digest(["Rollout", 1]) == digest(["Rollout", 1]) != digest(["Rollout", 2])
        True
    """
    text = json.dumps(value, sort_keys=True, default=repr)
    return _number(text.encode())


def sample_number(name: str) -> int:
    """Compute a signed number of 64 bits of a sample's name."""
    return _number(name.encode(errors="surrogatepass"))


def sample_numbers(names: Sequence[str]) -> Int64[ndarray, " n"]:
    """Compute the number of each sample's name."""
    return np.fromiter(map(sample_number, names), np.int64, len(names))


def file_stamp(*paths: str | os.PathLike[str], more: Any = None) -> int:
    """Compute 32 bits of the sizes and times of files, and of `more`; a missing file counts too."""
    state = [_size_and_time(path) for path in paths]
    return crc32(json.dumps([state, more], sort_keys=True, default=repr).encode())


def content_number(stamp: int, crc: int = 0) -> int:
    """Join 32 bits of a stamp and the 32 of a CRC into one signed number."""
    both = (stamp << 32) | crc
    return both - (1 << 64) if both >> 63 else both


def bytes_crc(path: str | os.PathLike[str]) -> int:
    """Compute the CRC-32 of a file's bytes. Raises ImageError where it cannot be read."""
    total = 0
    with regular_file(Path(path)) as file:
        while chunk := file.read(CHUNK):
            total = crc32(chunk, total)
    return total


def model_settings(model: Model) -> dict[str, Any]:
    """List what a map depends on of a model, as plain values."""
    preprocess = model.preprocess
    return {
        "weights": f"{checksum(model.network):08x}",
        "network": f"{_structure(model.network):08x}",
        "source": model.weights,
        "preprocess": asdict(preprocess) if is_dataclass(preprocess) else repr(preprocess),
        "layout": None if model.layout is None else asdict(model.layout),
        "calibration": asdict(model.calibration),
        "classes": f"{_of_texts(model.classes):08x}",
        "head": model.head,
    }


def _structure(network: nn.Module) -> int:
    """CRC-32 of a network as it is printed, without addresses, which differ from run to run."""
    return crc32(re.sub(r"0x[0-9a-f]+", "", repr(network)).encode())


def _of_texts(texts: Iterable[str]) -> int:
    return crc32("\0".join(texts).encode(errors="surrogatepass"))


def _number(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "big", signed=True)


def _size_and_time(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
