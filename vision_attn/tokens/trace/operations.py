"""What torch's operations do with the tokens they are given, by their names."""

__all__ = [
    "AXES_IN_PLACE",
    "BATCH_NORM",
    "CHOSEN",
    "CONVOLUTION",
    "EQUAL",
    "FOURIER",
    "FRESH",
    "LAYER_NORM",
    "LINEAR",
    "MOVED",
    "PAIRED",
    "POINTWISE",
    "POOLS",
    "PRODUCT",
    "REDUCED",
    "RESHAPED",
    "SAME",
    "SOFTMAX",
    "WRITTEN",
]


def names(words: str) -> frozenset[str]:
    return frozenset(f"aten::{word}" for word in words.split())


def quantized(words: str) -> frozenset[str]:
    return frozenset(f"quantized::{word}" for word in words.split())


RESHAPED = names("view _unsafe_view reshape _reshape_alias flatten unflatten")
FRESH = names(
    "new_zeros new_ones new_empty new_full new_empty_strided zeros_like ones_like empty_like "
    "full_like rand_like randn_like zero fill"
)
SAME = names(
    "clone _to_copy alias detach lift_fresh contiguous dropout native_dropout bernoulli "
    # to whole numbers and back, each value by itself, with a scale for all of a tensor
    "quantize_per_tensor quantize_per_tensor_dynamic quantize_per_channel dequantize "
    "fake_quantize_per_tensor_affine fake_quantize_per_tensor_affine_cachemask "
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams fake_quantize_per_channel_affine "
    "fake_quantize_per_channel_affine_cachemask _fused_moving_avg_obs_fq_helper"
)
MOVED = names(
    "roll flip index index_select gather repeat unfold im2col pixel_shuffle pixel_unshuffle "
    "rot90 narrow reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d "
    "repeat_interleave permute transpose t squeeze unsqueeze expand slice select unbind split "
    "split_with_sizes chunk diagonal movedim swapaxes numpy_T mT tile slice_copy "
    "channel_shuffle"
)
# A tensor gets other axes, and its memory stays as it is.
AXES_IN_PLACE = names("transpose_ t_ squeeze_ unsqueeze_ swapaxes_ swapdims_ as_strided_")
CHOSEN = names("index index_select gather")
# A part is written over: which argument has its values.
WRITTEN = {
    **dict.fromkeys(names("slice_scatter select_scatter diagonal_scatter"), 1),
    "aten::index_put": 2,
    "aten::index_copy": 3,
    "aten::scatter": 3,
}
POINTWISE = names(
    "hardswish silu gelu relu relu6 hardtanh hardsigmoid mish leaky_relu elu prelu celu selu "
    "softplus celu _prelu_kernel sigmoid tanh log_sigmoid_forward threshold copy where masked_fill "
    "hardswish_ silu_ relu_ hardtanh_ hardsigmoid_ mish_ leaky_relu_ elu_ masked_fill_ copy_ "
    "nan_to_num quick_gelu"
) | quantized(
    "add add_relu add_scalar add_scalar_relu mul mul_relu mul_scalar mul_scalar_relu hardswish elu "
    "celu leaky_relu prelu relu6 sigmoid"
)
FOURIER = names("_fft_r2c _fft_c2c")
PAIRED = names("mul add sub")  # of queries and keys, whose scores come of each pair
EQUAL = names("mean sum")
LINEAR = {"aten::linear"} | quantized(
    "linear linear_relu linear_dynamic linear_relu_dynamic linear_dynamic_fp16 "
    "linear_relu_dynamic_fp16 linear_leaky_relu linear_tanh"
)
CONVOLUTION = quantized(
    "conv1d conv1d_relu conv2d conv2d_relu conv1d_dynamic conv2d_dynamic conv2d_add conv2d_add_relu"
)
REDUCED = EQUAL | names(
    "amax amin max min var std var_mean linalg_vector_norm norm logsumexp prod nansum median"
)
PRODUCT = {
    **dict.fromkeys(names("mm bmm mv matmul dot"), 0),
    **dict.fromkeys(names("addmm baddbmm addmv _addmm_activation"), 1),
}
SOFTMAX = names("_softmax _log_softmax softmax _safe_softmax")
LAYER_NORM = names("native_layer_norm layer_norm _fused_rms_norm rms_norm") | quantized(
    "layer_norm"
)
BATCH_NORM = names(
    "native_batch_norm _native_batch_norm_legit_no_training batch_norm cudnn_batch_norm "
    "_batch_norm_no_update miopen_batch_norm"
)
POOLS = names("avg_pool1d avg_pool2d max_pool2d_with_indices max_pool2d")
