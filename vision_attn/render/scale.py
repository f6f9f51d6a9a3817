"""Scales: what full colour stands for, and the one place where raw values are normalised.

A scale always starts at 0: heat 0 is no colour, for every method. A map that is constant therefore
shows as flat, whatever its value, and never as the noise that min-max scaling makes of it.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray

__all__ = ["Scale", "fit", "natural", "times_uniform"]

QUANTILE = 0.99  # full colour at this quantile of a map, so that one outlier does not hide the rest
TINIEST = 1e-12  # a map that stays below this is zero


@dataclass(frozen=True)
class Scale:
    """Scale from raw values to heat: t = clip(factor * value / top, -1, 1).

    Without sign t is clipped to [0, 1].

    Args:
        top: What full colour stands for, in `unit`; above 0.
        unit: What the colour bar's numbers are called.
        factor: From raw values to `unit`.
        signed: Whether values below 0 mean something (evidence against) and get colours of their
            own.

    Raises:
        ValueError: `top` is not finite and above 0.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.render import Scale
        >>> Scale(top=2.0).heat(np.array([-1.0, 1.0, 5.0]))
        array([0. , 0.5, 1. ])
        >>> Scale(top=2.0, signed=True).heat(np.array([-1.0, 1.0, 5.0]))
        array([-0.5,  0.5,  1. ])
    """

    top: float
    unit: str = ""
    factor: float = 1.0
    signed: bool = False

    def __post_init__(self) -> None:
        if not (np.isfinite(self.top) and self.top > 0):
            raise ValueError(f"top must be a finite number above 0, got {self.top}")

    @property
    def low(self) -> float:
        """The other end of the colour bar, in `unit`."""
        return -self.top if self.signed else 0.0

    def heat(self, values: Float[ndarray, "*shape"]) -> Float[ndarray, "*shape"]:
        """Compute t for each raw value.

        Args:
            values: Raw values, of any shape.

        Returns:
            t, of that shape; NaN stays NaN.
        """
        return np.clip(values * np.float32(self.factor / self.top), -1.0 if self.signed else 0.0, 1)


def fit(values: Float[ndarray, "*shape"]) -> Scale:
    """Fit a scale to one map, or to several that share it: up to the 99th percentile of |values|.

    Args:
        values: One map (h w), or several (... h w).

    Returns:
        The scale.

    Examples:
        >>> import numpy as np
        >>> from vision_attn import render
        >>> render.fit(np.array([[0.0, 0.5], [1.0, 1.0]])).top
        1.0
    """
    finite = values[np.isfinite(values)]
    top = float(np.quantile(np.abs(finite), QUANTILE)) if finite.size else 0.0
    if top < TINIEST and finite.size:  # a few bright pixels on nothing at all
        top = float(np.abs(finite).max())
    signed = bool(finite.size and finite.min() < 0)
    return Scale(top=top if top >= TINIEST else 1.0, signed=signed)


def times_uniform(values: Float[ndarray, "*lead h w"], least: float = 3.0) -> Scale:
    """Scale attention so that 1 is the share of a position where all get the same.

    Args:
        values: One map (h w), or several (... h w).
        least: Full colour is at least so many times that, so that attention that is nearly even
            looks it.

    Returns:
        The scale.

    Examples:
        >>> import numpy as np
        >>> from vision_attn import render
        >>> scale = render.times_uniform(np.full((2, 2), 0.25))
        >>> scale.top, scale.unit
        (3.0, '× uniform')
    """
    cells = values.shape[-2] * values.shape[-1]
    top = fit(values).top * cells
    return Scale(top=max(top, least), unit="× uniform", factor=float(cells))


def natural(
    values: Float[ndarray, "*lead h w"], prefix_mass: float | Float[ndarray, "*lead"] | None = None
) -> Scale:
    """Choose `times_uniform` for shares of one whole, else `fit`; several maps share the scale.

    Args:
        values: One map (h w), or several (... h w).
        prefix_mass: The share of the whole that fell on prefix tokens, one number or one a map;
            None for maps that are no shares.

    Returns:
        The scale.

    Examples:
        >>> import numpy as np
        >>> from vision_attn import render
        >>> render.natural(np.full((2, 2), 0.2), prefix_mass=0.2).unit
        '× uniform'
    """
    wholes = values.sum(axis=(-2, -1)) + (0.0 if prefix_mass is None else prefix_mass)
    if values.min() >= 0 and np.all(np.abs(wholes - 1) < 1e-3):
        return times_uniform(values)
    return fit(values)
