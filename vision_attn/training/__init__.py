"""Training any network as an image classifier: what Lightning and torch do not bring along."""

from vision_attn.training.callbacks import (
    BestCheckpoint,
    ChannelsLast,
    LastCheckpoint,
    best_checkpoint,
)
from vision_attn.training.classifier import ImageClassifier, NonFiniteLoss
from vision_attn.training.muon import MuonAdamW
from vision_attn.training.parameters import parameter_groups
from vision_attn.training.precision import native_precision
from vision_attn.training.report import (
    ConfusionMatrix,
    LearningCurves,
    PortableWeights,
    Predictions,
    Summary,
    run_callbacks,
)
from vision_attn.training.schedules import ConstantRate, CosineDecay, LinearDecay
from vision_attn.training.watch import WatchHeatmaps
