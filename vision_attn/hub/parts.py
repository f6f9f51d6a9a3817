"""What a source of models is asked for, and what it gives.

Axes: k classes.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from vision_attn.data.preprocess import Preprocess
from vision_attn.errors import ModelError
from vision_attn.models.vit import ViT
from vision_attn.types import Calibration, TokenLayout, Trust

__all__ = [
    "LoadRequest",
    "LoadedParts",
    "Size",
    "check_side",
    "layout_or_none",
    "names_or_numbers",
    "usual_activation",
]

LARGEST_SIDE = 8192  # pixels of a network's input
Size = tuple[int, int]  # height, width


@dataclass(frozen=True)
class LoadRequest:
    """The arguments of `load_model`, without the word that says where the model comes from."""

    name: str
    weights: str | None
    pretrained: bool
    size: Size | None
    model_args: dict[str, Any]
    prompts: dict[str, list[str]] | None = None


class LoadedParts(NamedTuple):
    """What a source gives: `Model` is made of it."""

    network: nn.Module
    preprocess: Preprocess
    classes: list[str]
    calibration: Calibration = Calibration(activation="softmax")
    trust: Trust | None = None


def usual_activation(outputs: int) -> Calibration:
    """Return what makes probabilities of so many logits: a softmax, of one a sigmoid."""
    return Calibration(activation="sigmoid" if outputs == 1 else "softmax")


def names_or_numbers(names: list[str], count: int) -> list[str]:
    """Return the names where there are as many as outputs, else numbers."""
    return names if len(names) == count else [f"class {i}" for i in range(count)]


def check_side(size: Size) -> None:
    """Raise ValueError for a size that no photo has, and that no memory holds."""
    if max(size) > LARGEST_SIDE:
        height, width = size
        raise ValueError(f"expected a side of at most {LARGEST_SIDE} pixels, got {height}x{width}")


def layout_or_none(network: nn.Module, size: Size) -> TokenLayout | None:
    """Find how a network's tokens lie on inputs of this size; None where its kind does not say.

    Raises:
        ModelError: A network of ours has tokens, but not at this size.
    """
    from vision_attn.tokens.layout import layout_of

    try:
        return layout_of(network, size)
    except ValueError as error:
        if isinstance(network, ViT):  # it has tokens, but not at this size
            raise ModelError(f"image_size: {error}") from error
        return None  # a run tells, where there is attention
