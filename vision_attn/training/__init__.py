"""Training any network as an image classifier: what Lightning and torch lack."""

from vision_attn.devices import native_precision
from vision_attn.training.calibration import calibrate
from vision_attn.training.callbacks import (
    BestCheckpoint,
    ChannelsLast,
    LastCheckpoint,
    WholeFiles,
    best_checkpoint,
)
from vision_attn.training.classifier import ImageClassifier
from vision_attn.training.cpu.compiling import Compile
from vision_attn.training.cpu.memory import KeepMemory, kept_memory
from vision_attn.training.cpu.plan import ExecutionPlan, Planned
from vision_attn.training.cpu.threads import KeepThreads, ThreadParallel
from vision_attn.training.finetuning import LinearProbe
from vision_attn.training.fsdp import FSDP2
from vision_attn.training.lean import LeanLoop
from vision_attn.training.losses import BalancedCrossEntropy, MultiLabelCrossEntropy
from vision_attn.training.module import NonFiniteLoss, TrainingModule
from vision_attn.training.muon import MuonAdamW, MuonSGD
from vision_attn.training.parameters import parameter_groups
from vision_attn.training.per_class import PerClass
from vision_attn.training.rate import LearningRateRangeTest
from vision_attn.training.report import (
    ConfusionMatrix,
    EpochLines,
    LearningCurves,
    PortableWeights,
    Predictions,
    Summary,
    faster,
    run_callbacks,
)
from vision_attn.training.schedules import ConstantRate, CosineDecay, LinearDecay
from vision_attn.training.views import TestTimeAugmentation
from vision_attn.training.watch import WatchHeatmaps
from vision_attn.training.whitening import Whiten

__all__ = [
    "FSDP2",
    "BalancedCrossEntropy",
    "BestCheckpoint",
    "ChannelsLast",
    "Compile",
    "ConfusionMatrix",
    "ConstantRate",
    "CosineDecay",
    "EpochLines",
    "ExecutionPlan",
    "ImageClassifier",
    "KeepMemory",
    "KeepThreads",
    "LastCheckpoint",
    "LeanLoop",
    "LearningCurves",
    "LearningRateRangeTest",
    "LinearDecay",
    "LinearProbe",
    "MultiLabelCrossEntropy",
    "MuonAdamW",
    "MuonSGD",
    "NonFiniteLoss",
    "PerClass",
    "Planned",
    "PortableWeights",
    "Predictions",
    "Summary",
    "TestTimeAugmentation",
    "ThreadParallel",
    "TrainingModule",
    "WatchHeatmaps",
    "Whiten",
    "WholeFiles",
    "best_checkpoint",
    "calibrate",
    "faster",
    "kept_memory",
    "native_precision",
    "parameter_groups",
    "run_callbacks",
]
