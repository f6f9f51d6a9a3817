"""Scores of heatmaps, each a `torchmetrics.Metric`: which maps to trust."""

from vision_attn.evaluate.bootstrap import (
    Interval,
    PairedDifference,
    auc,
    auc_interval,
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
    GridPointingGame,
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
from vision_attn.evaluate.single import SaCo, SingleDeletion
from vision_attn.evaluate.sparseness import Sparseness

__all__ = [
    "AverageDrop",
    "AverageIncrease",
    "AveragePrecision",
    "BlurFill",
    "Deletion",
    "DroppedTokens",
    "EnergyPointingGame",
    "FilledCells",
    "GridPointingGame",
    "ImageScore",
    "Insertion",
    "MaxBoxIoU",
    "MaxSensitivity",
    "MeanFill",
    "MeanIoU",
    "ModelRandomisation",
    "NegativePerturbation",
    "NoiseFill",
    "PairedDifference",
    "PixelAccuracy",
    "PointingGame",
    "PositivePerturbation",
    "Removal",
    "SaCo",
    "SingleDeletion",
    "Sparseness",
    "auc",
    "auc_interval",
    "cascading_randomisation",
    "paired_bootstrap",
    "wilson",
]
