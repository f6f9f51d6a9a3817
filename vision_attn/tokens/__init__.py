"""Tokens: where every token of a network comes from, and how attention carries it.

Two functions are its face. `record_attention` keeps queries and keys of every attention call of the
runs inside it, while fused kernels stay on. `trace_tokens` proves by one run which call attends
over what, from the patches to the logits; `probe` prints that.

Inside, record/ sees the calls, trace/ follows the origin of every value, path/ links the calls, and
carry/ takes one row through a layer without an n x n matrix.
"""

from vision_attn.tokens.layout import layout_of
from vision_attn.tokens.path.path import Path
from vision_attn.tokens.path.support import probe, trace_tokens
from vision_attn.tokens.record.calls import AttentionCall
from vision_attn.tokens.record.record import record_attention
from vision_attn.tokens.record.weights import attention_weights

__all__ = [
    "AttentionCall",
    "Path",
    "attention_weights",
    "layout_of",
    "probe",
    "record_attention",
    "trace_tokens",
]
