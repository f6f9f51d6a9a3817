"""One photo's heatmap by one method, as it is drawn and kept.

Axes: h height, w width.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from numpy import ndarray
from torch import Tensor

from vision_attn.methods import Baseline, Explainer, LibraGradient, is_trusted
from vision_attn.methods.libra import MISSED
from vision_attn.render import Scale
from vision_attn.types import Heatmaps, Model

__all__ = ["Map"]

NOT_SHOWN = "Not shown to be trusted here: vision-attn score finds out"
ITS_OWN_CONTRAST = "Empty map: its class is the contrast itself"


@dataclass(frozen=True, eq=False)
class Map:
    """One photo's heatmap by one method, with what it takes to draw it rightly.

    Attributes:
        explainer: The method.
        values: Raw, (h w), on the token or feature grid.
        scale: What full colour stands for.
        prefix_mass: As in `Heatmaps`.
        outlier_mass: As in `Heatmaps`.
        completeness_gap: As in `Heatmaps`.
        target: The class that is explained; None for what is no class, and for methods that explain
            none.
        contrast: The class that it is compared with, or None.
        explained: What is explained, in words; empty where `target` is None.
        seconds: The photo's share of its batch.
        query: The place (x, y) whose attention is shown, as shares of the network's input.
        left_out: As in `Heatmaps`; a record lists the numbers of these cells, row by row.
        unproven: Whether the method was not asked for, and no scores have shown that its maps can
            be trusted for this model.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.methods import Rollout
        >>> from vision_attn.render import natural
        >>> from vision_attn.runs.maps import Map
        >>> values = np.full((3, 5), 1 / 15, np.float32)
        >>> Map(Rollout(), values, natural(values)).method
        'Rollout'
    """

    explainer: Explainer
    values: Float[ndarray, "h w"]
    scale: Scale
    prefix_mass: float | None = None
    outlier_mass: float | None = None
    completeness_gap: float | None = None
    target: int | None = None
    contrast: int | None = None
    explained: str = ""
    seconds: float = 0.0
    query: tuple[float, float] | None = None
    unproven: bool = False
    left_out: Bool[ndarray, "h w"] | None = None

    @property
    def method(self) -> str:
        """The method as it is written on the command line."""
        return str(self.explainer)

    @property
    def note(self) -> str:
        """A line where the map is 0 everywhere, and why, or constant; empty otherwise."""
        if self.target is not None and self.target == self.contrast:
            return ITS_OWN_CONTRAST
        low, high = float(self.values.min()), float(self.values.max())
        if low != high:
            return ""
        if high:
            return "Constant map: every place has the same value"
        if self.prefix_mass is not None and self.prefix_mass > 1 - 1e-6:
            return "Empty map: all of it is on tokens that are not on the image"
        return f"Empty map: {self.explainer.why_empty}"

    @property
    def caution(self) -> str:
        """Sentences where the map is unproven, has a gap or is of a part of the image, or none."""
        unproven = NOT_SHOWN if self.unproven else ""
        return ". ".join(filter(None, [unproven, self.missing, self.partial]))

    @property
    def partial(self) -> str:
        """How much of the image the network leaves out on its way; empty where that is nothing."""
        if self.left_out is None or not self.left_out.any():
            return ""
        count, cells = int(self.left_out.sum()), self.left_out.size
        return f"{self.method}: the network leaves out {count} of {cells} cells, where the map is 0"

    @property
    def missing(self) -> str:
        """How much is in no share, where `check` asks for it or it is much; empty otherwise."""
        gap, explainer = self.completeness_gap, self.explainer
        if gap is None or not isinstance(explainer, LibraGradient):
            return ""
        if gap <= MISSED and not explainer.check:
            return ""
        size = f"{gap:.1%}" if gap >= MISSED else f"less than {MISSED:.1%}"
        return f"{self.method}: {size} of what is explained is in no share"

    def passed(self, model: Model) -> str:
        """Say on how many images of what the method passed for the model; empty if it did not."""
        trusted = model.trust is not None and is_trusted(self.explainer, model)
        return model.trust.verdict(self.method) if model.trust and trusted else ""

    @property
    def title(self) -> str:
        """The method, marked where it is a baseline, which knows nothing of the network."""
        return f"{self.method} (baseline)" if isinstance(self.explainer, Baseline) else self.method

    def heatmaps(self) -> Heatmaps:
        """Return the raw map as a batch of one."""

        def one(value: float | None) -> Tensor | None:
            return (
                None if value is None else torch.tensor([value], dtype=torch.float32, device="cpu")
            )

        return Heatmaps(
            torch.from_numpy(self.values)[None],
            self.method,
            None
            if self.target is None
            else torch.tensor([self.target], dtype=torch.long, device="cpu"),
            one(self.prefix_mass),
            one(self.outlier_mass),
            one(self.completeness_gap),
            None if self.left_out is None else torch.from_numpy(self.left_out),
        )
