"""Scores of heatmaps, each a `torchmetrics.Metric`: which maps to believe."""

from typing import Any
from warnings import warn

from vision_attn.evaluate.bootstrap import (
    Difference,
    Interval,
    bca,
    paired_bootstrap,
    paired_wilson,
    wilson,
)
from vision_attn.evaluate.boxes import MaxBoxIoU
from vision_attn.evaluate.faithfulness import (
    AverageDrop,
    AverageIncrease,
    Deletion,
    Insertion,
    NegativePerturbation,
    PositivePerturbation,
)
from vision_attn.evaluate.localization import (
    AveragePrecision,
    EnergyPointingGame,
    MeanIoU,
    PixelAccuracy,
    PointingGame,
)
from vision_attn.evaluate.per_image import ImageScore
from vision_attn.evaluate.removal import (
    BlurFill,
    DroppedTokens,
    FilledCells,
    MeanFill,
    NoiseFill,
    Removal,
)
from vision_attn.evaluate.sanity import MaxSensitivity, ModelRandomisation, cascading_randomisation
from vision_attn.evaluate.sparseness import Sparseness

__all__ = [
    "AverageDrop",
    "AverageIncrease",
    "AveragePrecision",
    "BlurFill",
    "Deletion",
    "Difference",
    "DroppedTokens",
    "EnergyPointingGame",
    "FilledCells",
    "ImageScore",
    "Insertion",
    "MaxBoxIoU",
    "MaxSensitivity",
    "MeanFill",
    "MeanIoU",
    "ModelRandomisation",
    "NegativePerturbation",
    "NoiseFill",
    "PixelAccuracy",
    "PointingGame",
    "PositivePerturbation",
    "Removal",
    "Sparseness",
    "cascading_randomisation",
    "paired_bootstrap",
]

_RENAMED = {"EnergyInside": "EnergyPointingGame", "cascade": "cascading_randomisation"}


def __getattr__(name: str) -> Any:
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn(f"evaluate.{name} is now {_RENAMED[name]}", DeprecationWarning, stacklevel=2)
    return globals()[_RENAMED[name]]
