"""Operations that share out what they give, and those for which there is no rule.

By the names of autograd's nodes, so that nothing is missed that runs outside torch's functions.
"""

import re
from collections.abc import Sequence
from typing import Any

from vision_attn.compat.torch_private import function_of, is_rounded
from vision_attn.tokens.gradients.graph import COUNTED_NAMES, GraphMode
from vision_attn.tokens.gradients.rules import RULES

__all__ = ["unknown_operations"]


def named(words: str) -> frozenset[str]:
    return frozenset(words.split())


LINEAR = named(
    "Add Sub Rsub Neg Mul Div Mm Bmm Addmm Addbmm Addmv Addr Baddbmm Addcmul Addcdiv Mv Dot "
    "Linear Convolution ConvolutionOverrideable MkldnnConvolution SlowConv2D View UnsafeView "
    "ReshapeAlias Permute Transpose T Squeeze Unsqueeze Expand Slice Select SelectScatter "
    "SliceScatter Index IndexSelect IndexAdd IndexCopy IndexPut Gather Scatter ScatterAdd Cat "
    "Stack Split SplitWithSizes Unbind UnsafeSplit UnsafeChunk Mean Sum Cumsum Nansum AvgPool2D "
    "AvgPool3D AdaptiveAvgPool2D AdaptiveAvgPool3D MkldnnAdaptiveAvgPool2D UpsampleNearest1D "
    "UpsampleNearest2D UpsampleNearestExact2D UpsampleBilinear2D UpsampleBicubic2D "
    "UpsampleLinear1D UpsampleBilinear2DAa UpsampleBicubic2DAa ConstantPadNd ReflectionPad1D "
    "ReflectionPad2D ReplicationPad1D ReplicationPad2D Roll Flip Unfold Im2Col Col2Im "
    "PixelShuffle PixelUnshuffle Clone Copy CopySlices AsStrided AsStridedScatter ToCopy Alias "
    "Diagonal Triu Tril Repeat RepeatInterleave MaskedFill MaskedSelect MaskedScatter Where "
    "NativeBatchNorm CudnnBatchNorm MiopenBatchNorm BatchNorm NativeDropout FftR2C FftC2C FftC2R "
    "ViewAsReal ViewAsComplex Real Imag Conj ResolveConj Complex Lerp Einsum Trace Rot90 "
    "GridSampler2D ScaledDotProductFlashAttentionForCpu ScaledDotProductFlashAttention "
    "ScaledDotProductEfficientAttention ScaledDotProductCudnnAttention "
    "ScaledDotProductFusedAttentionOverrideable ScaledDotProductAttentionMath SumToSize ExpandAs "
    "IndexFill Fill Zero FillDiagonal Put DiagonalScatter BlockDiag ConvTbc "
    "ViewAs Identity ChannelScale SqueezeMultiple Trilinear TransposeCopy ViewDtype Chunk"
)
HOMOGENEOUS = named(
    "Relu LeakyRelu Prelu PreluKernel RreluWithNoise Abs MaxPool2DWithIndices "
    "MaxPool3DWithIndices MaxPool1D AdaptiveMaxPool2D FractionalMaxPool2D Amax Amin Max Min "
    "Maximum Minimum Fmax Fmin Topk Sort Median Kthvalue LinalgVectorNorm Norm Clamp "
    "ClampMin Aminmax MkldnnMaxPool2D"
)
PRODUCTS = named(
    "GridSampler2D Mul Div Mm Bmm Mv Dot Addmm Addbmm Addmv Addr Baddbmm Addcmul Addcdiv Prelu "
    "PreluKernel ScaledDotProductFlashAttentionForCpu ScaledDotProductFlashAttention "
    "ScaledDotProductEfficientAttention ScaledDotProductCudnnAttention "
    "ScaledDotProductFusedAttentionOverrideable ScaledDotProductAttentionMath"
)
# By a constant, where one value alone is in the graph.
BOUNDS = named("Clamp ClampMin ClampMax Maximum Minimum Fmax Fmin")
JOINING = named(  # what makes one value of several: a constant, where one alone is in the graph
    "Add Sub Rsub Cat Stack Where MaskedFill MaskedScatter ConstantPadNd Scatter ScatterAdd "
    "IndexPut IndexAdd IndexCopy SliceScatter SelectScatter Lerp CopySlices NativeBatchNorm "
    "CudnnBatchNorm MiopenBatchNorm"
)
OWN = named("HeldNorm Gated")
RULED = {func.__name__ for func in RULES}
ENDS = named("AccumulateGrad Error NotImplemented")
SHARING = LINEAR | HOMOGENEOUS | OWN | ENDS


def kind_of(node: Any) -> str:
    """Name a node's operation, without the number of its overload."""
    return re.sub(r"Backwards?\d*$", "", type(node).__name__)


def is_foreign(node: Any) -> bool:
    """Whether a node is of a function whose gradient is another's own code."""
    function = function_of(node)
    return function is not None and function.__module__.partition(".")[0] != "vision_attn"


def unknown_operations(order: Sequence[Any], mode: GraphMode) -> list[str]:
    """List the functions of a run that share out less than they give, each once.

    They are those whose graph has a node without a rule, a product or quotient of two values or a
    sum with a constant made inside a function that has none, and those whose results are held and
    then join values. order: the nodes, each before what it was made of.
    """
    names: dict[Any, str] = {}
    unknown: dict[str, None] = {}
    for node in order:
        name = mode.names.get(node, names.get(node, ""))
        for part, _ in node.next_functions:
            names.setdefault(part, name)
        kind = kind_of(node)
        parts = sum(part is not None for part, _ in node.next_functions)
        alone = kind in PRODUCTS and parts > 1 + kind.startswith("Add") and name not in RULED
        constant = kind in JOINING | BOUNDS and parts < 2 and name not in COUNTED_NAMES
        if kind not in SHARING or alone or constant or is_foreign(node) or is_rounded(node):
            in_compiled = kind in LINEAR | BOUNDS and not is_foreign(node)
            unknown[name or (f"{kind} in compiled code" if in_compiled else kind)] = None
    return list(unknown | mode.held)
