"""What torch's operations do with the tokens they are given, by their names."""

__all__ = [
    "BATCH_NORM",
    "CHOSEN",
    "EQUAL",
    "FOURIER",
    "FRESH",
    "LAYER_NORM",
    "MOVED",
    "PAIRED",
    "POINTWISE",
    "POOLS",
    "PRODUCT",
    "REDUCED",
    "RESHAPED",
    "SAME",
    "SOFTMAX",
]


def names(words: str) -> frozenset[str]:
    return frozenset(f"aten::{word}" for word in words.split())


RESHAPED = names("view _unsafe_view reshape _reshape_alias flatten unflatten")
FRESH = names(
    "new_zeros new_ones new_empty new_full new_empty_strided zeros_like ones_like empty_like "
    "full_like rand_like randn_like zero fill"
)
SAME = names("clone _to_copy alias detach lift_fresh contiguous dropout native_dropout bernoulli")
MOVED = names(
    "roll flip index index_select gather repeat unfold im2col pixel_shuffle pixel_unshuffle "
    "rot90 narrow reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d "
    "repeat_interleave permute transpose t squeeze unsqueeze expand slice select unbind split "
    "split_with_sizes chunk diagonal movedim swapaxes numpy_T mT tile slice_copy "
    "channel_shuffle"
)
CHOSEN = names("index index_select gather")
POINTWISE = names(
    "hardswish silu gelu relu relu6 hardtanh hardsigmoid mish leaky_relu elu prelu celu selu "
    "softplus celu _prelu_kernel sigmoid tanh log_sigmoid_forward threshold copy where masked_fill "
    "hardswish_ silu_ relu_ hardtanh_ hardsigmoid_ mish_ leaky_relu_ elu_ masked_fill_ copy_ "
    "nan_to_num quick_gelu"
)
FOURIER = names("_fft_r2c _fft_c2c")
PAIRED = names("mul add sub")  # of queries and keys, whose scores come of each pair
EQUAL = names("mean sum")
REDUCED = EQUAL | names(
    "amax amin max min var std var_mean linalg_vector_norm norm logsumexp prod nansum median"
)
PRODUCT = {
    **dict.fromkeys(names("mm bmm mv matmul dot"), 0),
    **dict.fromkeys(names("addmm baddbmm addmv _addmm_activation"), 1),
}
SOFTMAX = names("_softmax _log_softmax softmax _safe_softmax")
LAYER_NORM = names("native_layer_norm layer_norm _fused_rms_norm rms_norm")
BATCH_NORM = names(
    "native_batch_norm _native_batch_norm_legit_no_training batch_norm cudnn_batch_norm "
    "_batch_norm_no_update miopen_batch_norm"
)
POOLS = names("avg_pool1d avg_pool2d max_pool2d_with_indices max_pool2d")
