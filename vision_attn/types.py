"""What the parts hand to each other: images, logits, heatmaps, and how tokens lie on the image.

Axes: b batch, c channels, h height, w width, n tokens, k classes.
"""

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

Images = Float[Tensor, "b c h w"]
Logits = Float[Tensor, "b k"]
PAD, START, STOP = 0, 1, 2  # of every sequence of symbols; the symbols themselves follow
Pool = Literal["cls", "cls_dist", "cls_mean", "mean", "attention"]


@dataclass(frozen=True)
class TokenLayout:
    """How a sequence of tokens lies on the image.

    The sequence is `prefix` tokens (class, distillation, registers) and then `grid` = (h, w) patch
    tokens, row by row. `pool` says what the classifier reads: the first token (`cls`), the first
    two (`cls_dist`), the mean of the patch tokens (`mean`), both `cls` and `mean` (`cls_mean`), or
    an attention pool over the tokens (`attention`). `class_token` says whether the first of the
    prefix is a class token rather than a register; None: only where `pool` reads one.
    """

    prefix: int
    grid: tuple[int, int]
    pool: Pool = "cls"
    class_token: bool | None = None

    def __post_init__(self) -> None:
        if self.prefix < 0:
            raise ValueError(f"prefix must be at least 0, got {self.prefix}")
        if len(self.grid) != 2 or min(self.grid) < 1:
            raise ValueError(f"grid must be (height, width), each at least 1, got {self.grid}")
        least = {"cls": 1, "cls_dist": 2, "cls_mean": 1}.get(self.pool, 0)
        if self.prefix < least:
            raise ValueError(
                f"pool {self.pool!r} reads {least} prefix token(s), but prefix is {self.prefix}"
            )
        if self.class_token is None:
            object.__setattr__(self, "class_token", least > 0)
        if self.class_token and self.prefix == 0:
            raise ValueError(
                "class_token is True, but prefix is 0: count the class token in prefix"
            )
        if least and not self.class_token:
            raise ValueError(f"pool {self.pool!r} reads the class token, but class_token is False")

    @property
    def tokens(self) -> int:
        """Length of the whole sequence, prefix included."""
        return self.prefix + prod(self.grid)

    def to_map(self, row: Float[Tensor, "*lead n"]) -> Float[Tensor, "*lead h w"]:
        """The patch part of a row over all tokens, laid out on the grid (prefix left out)."""
        if row.shape[-1] != self.tokens:
            raise ValueError(
                f"expected {self.tokens} tokens ({self.prefix} prefix + grid "
                f"{self.grid[0]}x{self.grid[1]}), got {row.shape[-1]}"
            )
        return row[..., self.prefix :].unflatten(-1, self.grid)


@dataclass(frozen=True, eq=False)
class Heatmaps:
    """A map an image, raw: what the method's formula gives, never scaled for display.

    values: float32 (b, h, w) on the token or feature grid. method: the explainer as it is written
    on the command line. targets: the class explained, (b,), None where the method asks for none.
    prefix_mass: the share that fell on tokens that are not on the image, (b,), None where the
    method has no such tokens; values are not scaled up to make good for it. outlier_mass: the
    share that fell on patches whose tokens have outlying norms, (b,), None where that is not known.
    completeness_gap: |sum of the map - what it shares out| over the size of that, (b,), for methods
    that share out a change of the logit by numerical integration, else None.
    """

    values: Float[Tensor, "b h w"]
    method: str
    targets: Int[Tensor, " b"] | None = None
    prefix_mass: Float[Tensor, " b"] | None = None
    outlier_mass: Float[Tensor, " b"] | None = None
    completeness_gap: Float[Tensor, " b"] | None = None

    def __post_init__(self) -> None:
        if self.values.ndim != 3 or self.values.dtype != torch.float32:
            raise ValueError(
                "values must be float32 of shape (batch, height, width), got "
                f"{self.values.dtype} of shape {tuple(self.values.shape)}"
            )
        for name in ("targets", "prefix_mass", "outlier_mass", "completeness_gap"):
            given = getattr(self, name)
            if given is not None and tuple(given.shape) != self.values.shape[:1]:
                raise ValueError(
                    f"{name} must have shape ({self.values.shape[0]},), got {tuple(given.shape)}"
                )

    def __len__(self) -> int:
        return self.values.shape[0]

    def resized(self, height: int, width: int) -> "Heatmaps":
        """The same maps at another size, bilinear, in the same units (values, not mass)."""
        values = F.interpolate(
            self.values[:, None], size=(height, width), mode="bilinear", align_corners=False
        )
        return replace(self, values=values[:, 0])
