"""See the attention calls of a run: queries, keys and log-sum-exps, while fused kernels stay on."""
