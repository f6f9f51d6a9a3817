"""Scores of heatmaps, each a `torchmetrics.Metric`: which maps to believe."""

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
    EnergyInside,
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
from vision_attn.evaluate.sanity import MaxSensitivity, ModelRandomisation, cascade
from vision_attn.evaluate.sparseness import Sparseness
