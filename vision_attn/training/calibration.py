"""Temperature scaling: one number that makes a network's confidence match its accuracy.

Axes: b batch, k classes.
"""

import math

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from vision_attn.types import Calibration, Logits

__all__ = ["calibrate"]

RANGE = (0.01, 100.0)  # of temperatures
HALVINGS = 60
FEWEST = 20  # photos of which 5 % are one


def calibrate(logits: Logits, labels: Int[Tensor, " b"], below: float = 0.05) -> Calibration:
    """Fit the temperature with the least cross-entropy, and the threshold for photos apart.

    The cross-entropy of z / T is convex in 1 / T, so that its minimum is found by halving: Guo et
    al. 2017 (arXiv:1706.04599).

    Args:
        logits: (b k), of images that the network did not learn from.
        labels: (b), their classes.
        below: The share of them whose surest class has less than the threshold, after the
            temperature.

    Returns:
        The calibration.

    Raises:
        ValueError: There are fewer than 20 images.

    Examples:
        >>> import torch
        >>> from vision_attn.training import calibrate
        >>> labels = torch.arange(40) % 2
        >>> right = torch.arange(40) >= 10  # three of four are right, yet it is sure of all
        >>> logits = 8.0 * torch.eye(2)[torch.where(right, labels, 1 - labels)]
        >>> round(calibrate(logits, labels).threshold, 3)
        0.75
    """
    if len(logits) < FEWEST:
        raise ValueError(f"expected at least {FEWEST} images to calibrate by, got {len(logits)}")
    logits = logits.double()
    right = logits.gather(1, labels[:, None]).mean()

    def slope(inverse: float) -> float:
        """The derivative of the cross-entropy by 1 / T."""
        expected = ((inverse * logits).softmax(1) * logits).sum(1).mean()
        return (expected - right).item()

    low, high = (math.log(1 / temperature) for temperature in reversed(RANGE))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(math.exp(middle)) > 0 else (middle, high)
    temperature = math.exp(-(low + high) / 2)
    surest = F.softmax(logits / temperature, dim=1).amax(1)
    threshold = torch.quantile(surest, below, interpolation="lower").item()
    return Calibration(temperature, threshold)
