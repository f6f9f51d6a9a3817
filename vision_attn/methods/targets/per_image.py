"""A target of its own for each image.

Axes: b images, r of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.arguments import check_fields
from vision_attn.methods.targets.target import Target
from vision_attn.tokens.outputs import one_row, rows_of
from vision_attn.types import Model

__all__ = ["PerImage"]


@dataclass(frozen=True)
class PerImage(Target):
    """A target of its own for each image.

    Args:
        targets: As many as there are images, in their order.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import Class, Odds, PerImage
        >>> PerImage((Class(0), Odds(1)))(torch.zeros(2, 2))
        tensor([0., 0.])
    """

    targets: tuple[Target, ...]

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, output: Any) -> Float[Tensor, " b"]:
        count = len(self.targets)
        numbers = [
            target(rows_of(output, one_row(image), count))
            for image, target in enumerate(self.targets)
        ]
        return torch.cat(numbers)

    def fixed(self, output: Any) -> "PerImage":
        count = len(self.targets)
        return PerImage(
            tuple(
                target.fixed(rows_of(output, one_row(image), count))
                for image, target in enumerate(self.targets)
            )
        )

    def at(self, images: Int[Tensor, " r"]) -> "Target":
        chosen = tuple(self.targets[image] for image in images.tolist())
        return chosen[0] if len(chosen) == 1 else PerImage(chosen)

    def named(self, model: Model) -> "PerImage":
        return PerImage(tuple(target.named(model) for target in self.targets))

    @property
    def count(self) -> int | None:
        return len(self.targets)

    def key(self) -> str:
        return "; ".join(target.key() for target in self.targets)

    def label(self, classes: Sequence[str] = ()) -> str:
        return ", ".join(dict.fromkeys(target.label(classes) for target in self.targets))
