"""Which heatmaps `vision-attn score` has shown to be trusted for a checkpoint, kept beside it."""

import json
from pathlib import Path
from typing import Any
from zlib import crc32

from vision_attn.files import write_text
from vision_attn.types import Trust

__all__ = ["read_trust", "trust_of", "trust_path", "write_trust"]


def trust_path(checkpoint: Path) -> Path:
    """Name the file: best.trust.json for best.ckpt."""
    return checkpoint.with_suffix(".trust.json")


def write_trust(checkpoint: Path, trust: Trust) -> Path:
    """Write it beside a checkpoint, with the checkpoint's CRC-32; return the file.

    Raises OSError where it cannot be written.
    """
    path = trust_path(checkpoint)
    values = {"checkpoint": f"{crc32(checkpoint.read_bytes()):08x}", **vars(trust)}
    write_text(path, json.dumps(values, indent=1) + "\n")
    return path


def read_trust(checkpoint: Path) -> Trust | None:
    """Read what is kept of a checkpoint as it is; None of another one, and of none."""
    try:
        values = json.loads(trust_path(checkpoint).read_text(encoding="utf-8"))
        if values["checkpoint"] != f"{crc32(checkpoint.read_bytes()):08x}":
            return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return trust_of(values)


def trust_of(values: Any) -> Trust | None:
    """Make it of plain values, as JSON holds them; None of anything else.

    Examples:
        >>> from vision_attn.models.trust import trust_of
        >>> trust_of({"methods": ["GradCAM"], "images": 300, "data": "photos"}).methods
        ('GradCAM',)
    """
    try:
        names, images = values["methods"], values["images"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return None
        if not isinstance(images, int) or isinstance(images, bool) or images < 0:
            return None
        return Trust(tuple(names), images, str(values["data"]))
    except (KeyError, TypeError):
        return None
