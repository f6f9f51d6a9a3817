"""Heatmaps: where a network looks, by many methods, each an `Explainer`."""

from vision_attn.methods.attribution import Attribution, IntegratedGradients, Occlusion
from vision_attn.methods.base import Explainer
from vision_attn.methods.baselines import Baseline, CentreGaussian, EdgeMap, RandomMap
from vision_attn.methods.by_name import (
    choose_methods,
    fitting_methods,
    is_trusted,
    methods,
    parse_method,
    usual_method,
)
from vision_attn.methods.gates import ChannelGates, SpatialGates, gate_values
from vision_attn.methods.gradcam import GradCAM, GradCAMPlusPlus, HiResCAM, LayerCAM, XGradCAM
from vision_attn.methods.legrad import LeGrad
from vision_attn.methods.libra import LibraGradient
from vision_attn.methods.lime import LIME
from vision_attn.methods.masked_regression import MaskedRegression
from vision_attn.methods.raw_attention import QueryKey, RawAttention
from vision_attn.methods.relevance import AttentionGradCAM, Relevance
from vision_attn.methods.rollout import GradientRollout, Rollout, WeightedRollout
from vision_attn.methods.targets import (
    Box,
    Channel,
    Class,
    Difference,
    Direction,
    Function,
    Odds,
    PerImage,
    PixelsOf,
    Similarity,
    Target,
    as_target,
)

__all__ = [
    "LIME",
    "AttentionGradCAM",
    "Attribution",
    "Baseline",
    "Box",
    "CentreGaussian",
    "Channel",
    "ChannelGates",
    "Class",
    "Difference",
    "Direction",
    "EdgeMap",
    "Explainer",
    "Function",
    "GradCAM",
    "GradCAMPlusPlus",
    "GradientRollout",
    "HiResCAM",
    "IntegratedGradients",
    "LayerCAM",
    "LeGrad",
    "LibraGradient",
    "MaskedRegression",
    "Occlusion",
    "Odds",
    "PerImage",
    "PixelsOf",
    "QueryKey",
    "RandomMap",
    "RawAttention",
    "Relevance",
    "Rollout",
    "Similarity",
    "SpatialGates",
    "Target",
    "WeightedRollout",
    "XGradCAM",
    "as_target",
    "choose_methods",
    "fitting_methods",
    "gate_values",
    "is_trusted",
    "methods",
    "parse_method",
    "usual_method",
]
