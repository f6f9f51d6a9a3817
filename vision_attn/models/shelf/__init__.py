"""Pretrained networks of the package: a card and a file of weights each, beside this file.

    NAME.json         the card: all that is known of the network, and what it takes to build it
    NAME.safetensors  its weights, float16 or bfloat16

A shelf of your own is a folder of such pairs; `vision_attn:FOLDER/NAME.json` names a network of it.
Light to import: torch comes in where weights are read.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from vision_attn.arguments import checked
from vision_attn.errors import ModelError, did_you_mean, quoted

__all__ = ["PREFIX", "Card", "Shelf", "is_shelved", "list_models", "shelved"]

PREFIX = "vision_attn:"  # of the spec of a network on a shelf
REPAIR = "install vision-attn again, or copy the file from a complete installation"
NEEDED = {  # of a card, by the names on the way
    "sha256": str,
    "bytes": int,
    "checkpoint": dict,
    "data.name": str,
    "data.config": dict,
    "test.top1": float,
    "network.class": str,
    "network.parameters": int,
}


@dataclass(frozen=True)
class Card:
    """All that is known of a network on a shelf.

    Attributes:
        values: Plain values, of which `checkpoint` is the entry "vision_attn" of a checkpoint
            (class path and arguments, classes, preprocessing, calibration), `data` the part of a
            config, `test` what was measured of these weights, `training` where they come from.

    Examples:
        >>> from pathlib import Path
        >>> from vision_attn.models.shelf import Card
        >>> Card(Path("shelf/vit.json"), {"sha256": "12ab"}).weights.as_posix()
        'shelf/vit.safetensors'
    """

    path: Path
    values: dict[str, Any]

    @classmethod
    def read(cls, path: str | PathLike[str]) -> "Card":
        """Read a card.

        Raises:
            ModelError: The file is missing or no card; one line.
        """
        path = Path(path)
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{path}: damaged: expected a card in JSON: {REPAIR}") from error
        for name, kind in NEEDED.items():
            value = values
            for part in name.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if not isinstance(value, kind):
                raise ModelError(f"{path}: damaged: a card without {name}: {REPAIR}")
        return cls(path, values)

    @property
    def name(self) -> str:
        """What the network is called on its shelf."""
        return self.path.stem

    @property
    def weights(self) -> Path:
        """The file of weights beside the card."""
        return self.path.with_suffix(".safetensors")

    def check(self) -> None:
        """Raise ModelError, one line, unless the file of weights is the one of the card."""
        expected = self.values["sha256"]
        if not self.weights.is_file():
            raise ModelError(
                f"{self.weights}: no such file; expected the weights with the SHA-256 checksum "
                f"{expected[:12]}...: {REPAIR}"
            )
        checksum = hashlib.sha256(self.weights.read_bytes()).hexdigest()
        if checksum != expected:
            raise ModelError(
                f"{self.weights}: damaged: its SHA-256 checksum is {checksum[:12]}..., "
                f"the card says {expected[:12]}...: {REPAIR}"
            )

    def row(self) -> dict[str, Any]:
        """Plain values of the table of networks; accuracy is a share, size in bytes of the file."""
        values = self.values
        return {
            "name": self.name,
            "network": values["network"]["class"],
            "data": values["data"]["name"],
            "accuracy": values["test"]["top1"],
            "parameters": values["network"]["parameters"],
            "size": values["bytes"],
        }


class Shelf:
    """A folder of networks; None is the one that comes with vision_attn.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> from vision_attn.models.shelf import Shelf
        >>> with TemporaryDirectory() as folder:
        ...     list(Shelf(folder))
        []
    """

    def __init__(self, folder: str | PathLike[str] | None = None):
        self.folder = Path(__file__).parent if folder is None else Path(folder)

    def __iter__(self) -> Iterator[Card]:
        """Yield the cards, sorted by name."""
        return (Card.read(path) for path in sorted(self.folder.glob("*.json")))

    def __getitem__(self, name: str) -> Card:
        """Return the card of that name; ModelError, with the nearest names, where there is none."""
        names = sorted(path.stem for path in self.folder.glob("*.json"))
        if name not in names:
            near = did_you_mean(name, names) or f"; there are {', '.join(names) or 'none'}"
            raise ModelError(f"no pretrained network named {quoted(name)}{near}")
        return Card.read(self.folder / f"{name}.json")


def is_shelved(spec: object) -> bool:
    """Whether a spec is of a network on a shelf, vision_attn:NAME or vision_attn:CARD.json."""
    return str(spec).startswith(PREFIX)


def shelved(spec: str | PathLike[str]) -> Card:
    """Find the card that vision_attn:NAME or vision_attn:CARD.json names.

    Raises ModelError, one line, for a name that there is not, or a damaged card.

    Examples:
        >>> from vision_attn.models.shelf import shelved
        >>> shelved("vision_attn:nothing.json")
        Traceback (most recent call last):
        vision_attn.errors.ModelError: nothing.json: cannot be read (No such file or directory)
    """
    name = str(spec).removeprefix(PREFIX)
    return Card.read(name) if name.endswith(".json") else Shelf()[name]


@checked()
def list_models(folder: str | PathLike[str] | None = None) -> list[dict[str, Any]]:
    """List the pretrained networks of the package, as rows of plain values.

    Args:
        folder: Another shelf.

    Returns:
        Of each its name (`load_model("vision_attn:NAME")`), network, data, accuracy (top-1, a share
        of the test images), parameters, and size (of the file, in bytes).

    Examples:
        >>> import vision_attn
        >>> [row["accuracy"] for row in vision_attn.list_models() if row["name"] == "none"]
        []
    """
    return [card.row() for card in Shelf(folder)]
