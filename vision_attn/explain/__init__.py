"""Heatmaps: where a network looks, by many methods, each an `Explainer`."""

from vision_attn.deprecated import old_names
from vision_attn.explain.attribution import Attribution, IntegratedGradients, Occlusion
from vision_attn.explain.base import Explainer
from vision_attn.explain.baselines import Baseline, CentreGaussian, EdgeMap, RandomMap
from vision_attn.explain.contrast import Contrast
from vision_attn.explain.gates import ChannelGates, SpatialGates, gate_values
from vision_attn.explain.gradcam import GradCAM, GradCAMPlusPlus, HiResCAM, LayerCAM, XGradCAM
from vision_attn.explain.legrad import LeGrad
from vision_attn.explain.lime import LIME
from vision_attn.explain.methods import choose_methods, fitting_methods, methods, parse_method
from vision_attn.explain.networks.layout import layout_of
from vision_attn.explain.propagation.support import probe
from vision_attn.explain.raw_attention import QueryKey, RawAttention
from vision_attn.explain.recording.calls import AttentionCall
from vision_attn.explain.recording.record import record_attention
from vision_attn.explain.relevance import AttentionGradCAM, Relevance
from vision_attn.explain.rollout import GradientRollout, Rollout, WeightedRollout

__all__ = [
    "LIME",
    "AttentionCall",
    "AttentionGradCAM",
    "Attribution",
    "Baseline",
    "CentreGaussian",
    "ChannelGates",
    "Contrast",
    "EdgeMap",
    "Explainer",
    "GradCAM",
    "GradCAMPlusPlus",
    "GradientRollout",
    "HiResCAM",
    "IntegratedGradients",
    "LayerCAM",
    "LeGrad",
    "Occlusion",
    "QueryKey",
    "RandomMap",
    "RawAttention",
    "Relevance",
    "Rollout",
    "SpatialGates",
    "WeightedRollout",
    "XGradCAM",
    "choose_methods",
    "fitting_methods",
    "gate_values",
    "layout_of",
    "methods",
    "parse_method",
    "probe",
    "record_attention",
]

__getattr__ = old_names(__name__, {"fitting": "fitting_methods"})  # until 0.3
