"""Adapters that PEFT saved, in a folder: added to the weights of the network that they change.

PEFT is optional, and imported where it is needed.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vision_attn.errors import ModelError
from vision_attn.models.checkpoint import read_weights
from vision_attn.models.errors import library_errors

__all__ = ["Adapter"]

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
CLASSIFIER = ".classifier.weight"


@dataclass(frozen=True)
class Adapter:
    """An adapter in a folder: what PEFT's adapter_config.json says, and its weights by name.

    Attributes:
        base: The network that it changes, a folder or a repository.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> from vision_attn.models.adapters import Adapter
        >>> with TemporaryDirectory() as folder:
        ...     print(Adapter.found(folder))
        None
    """

    folder: Path
    base: str
    weights: dict[str, Tensor]

    @classmethod
    def found(cls, name: str) -> "Adapter | None":
        """Read the adapter of a folder; None where the folder holds none, or is none.

        Raises:
            ModelError: The adapter is damaged or names no network; one line.
        """
        folder = Path(name)
        if not (folder / CONFIG).is_file():
            return None
        try:
            options = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            base = options.get("base_model_name_or_path")
        except (OSError, ValueError, AttributeError) as error:
            raise ModelError(
                f"hf:{name}: expected the options of a PEFT adapter in {CONFIG}, a JSON object: "
                "save the adapter again"
            ) from error
        if not isinstance(base, str) or not base:
            raise ModelError(
                f"hf:{name}: a PEFT adapter that names no network: write the folder or repository "
                f"of its base model into {CONFIG}, as base_model_name_or_path"
            )
        file = next((folder / weights for weights in WEIGHTS if (folder / weights).is_file()), None)
        if file is None:
            raise ModelError(
                f"hf:{name}: a PEFT adapter of {base} without weights: expected {WEIGHTS[0]}"
            )
        return cls(folder, base, read_weights(file))

    @property
    def classes(self) -> int | None:
        """How many classes its own classifier has; None where it keeps that of its base."""
        own = [weight for name, weight in self.weights.items() if name.endswith(CLASSIFIER)]
        return len(own[0]) if own else None

    def merged(self, network: nn.Module) -> nn.Module:
        """Add the adapter to the weights of its base, whose layers stay what they are.

        Raises:
            ModelError: PEFT is missing or the adapter does not fit; one line.
        """
        try:
            from peft import PeftModel
        except ImportError as error:
            raise ModelError(
                f"hf:{self.folder}: a PEFT adapter of {self.base} needs peft: pip install peft"
            ) from error
        with library_errors(f"hf:{self.folder}: the adapter of {self.base}"):
            network_: Any = PeftModel.from_pretrained(network, str(self.folder))
            return network_.merge_and_unload()

    def supplies(self, name: str) -> bool:
        """Whether a weight of the network is the adapter's own."""
        return any(own.endswith(f".{name}") for own in self.weights)
