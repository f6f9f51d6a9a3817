"""Attention: score, normalise, weighted mean; and the short compositions made of it."""

from vision_attn.attention.attend import Attend
from vision_attn.attention.coattention import (
    AlternatingCoAttention,
    AttentionOverAttention,
    CoAttention,
    CoAttentionEnsemble,
    InteractiveAttention,
    MaxPoolCoAttention,
    ParallelCoAttention,
)
from vision_attn.attention.gates import (
    CBAM,
    ChannelGate,
    Gate,
    NoGate,
    SpatialGate,
    SpatialMask,
    SqueezeExcite,
)
from vision_attn.attention.hierarchy import (
    AttentionViaAttention,
    Hierarchical,
    HierarchicalPool,
    TargetGuided,
)
from vision_attn.attention.hops import (
    GRUUpdate,
    HopsPool,
    LinearUpdate,
    MemoryHops,
    SumUpdate,
    Update,
)
from vision_attn.attention.insert import add_gates
from vision_attn.attention.local import Local2d, LocalMonotonic
from vision_attn.attention.masks import causal_mask, padding_mask
from vision_attn.attention.multidim import MultiDimAttention
from vision_attn.attention.multihead import MultiHeadAttention
from vision_attn.attention.normalizers import (
    Hard,
    Normalizer,
    SampledHard,
    Sigmoid,
    Softmax,
)
from vision_attn.attention.pooling import (
    AttentionPool,
    ClassToken,
    FeatureWisePool,
    MeanPool,
    MultiDimPool,
    Readout,
)
from vision_attn.attention.quadratic import QuadraticAttention
from vision_attn.attention.rotary import RotaryAttention
from vision_attn.attention.scores import (
    ActivatedGeneral,
    Additive,
    BiasedGeneral,
    Concat,
    CosineSimilarity,
    Deep,
    Dot,
    DotProduct,
    General,
    KeyOnly,
    Location,
    MultiDimAdditive,
    ScaledDot,
    Score,
)
from vision_attn.attention.sparse import Entmax15, Sparsemax
from vision_attn.attention.windows import Global, LocalPredictive, Window

__all__ = [
    "CBAM",
    "ActivatedGeneral",
    "Additive",
    "AlternatingCoAttention",
    "Attend",
    "AttentionOverAttention",
    "AttentionPool",
    "AttentionViaAttention",
    "BiasedGeneral",
    "ChannelGate",
    "ClassToken",
    "CoAttention",
    "CoAttentionEnsemble",
    "Concat",
    "CosineSimilarity",
    "Deep",
    "Dot",
    "DotProduct",
    "Entmax15",
    "FeatureWisePool",
    "GRUUpdate",
    "Gate",
    "General",
    "Global",
    "Hard",
    "Hierarchical",
    "HierarchicalPool",
    "HopsPool",
    "InteractiveAttention",
    "KeyOnly",
    "LinearUpdate",
    "Local2d",
    "LocalMonotonic",
    "LocalPredictive",
    "Location",
    "MaxPoolCoAttention",
    "MeanPool",
    "MemoryHops",
    "MultiDimAdditive",
    "MultiDimAttention",
    "MultiDimPool",
    "MultiHeadAttention",
    "NoGate",
    "Normalizer",
    "ParallelCoAttention",
    "QuadraticAttention",
    "Readout",
    "RotaryAttention",
    "SampledHard",
    "ScaledDot",
    "Score",
    "Sigmoid",
    "Softmax",
    "Sparsemax",
    "SpatialGate",
    "SpatialMask",
    "SqueezeExcite",
    "SumUpdate",
    "TargetGuided",
    "Update",
    "Window",
    "add_gates",
    "causal_mask",
    "padding_mask",
]
