"""Tokens: where every token of a network comes from, and how attention carries it.

record/ sees attention calls while fused kernels stay on, trace/ follows the origin of every value,
path/ proves which call attends over what, carry/ takes one row through the layers without an
n x n matrix.
"""

from vision_attn.tokens.layout import layout_of
from vision_attn.tokens.path.support import probe
from vision_attn.tokens.record.calls import AttentionCall
from vision_attn.tokens.record.record import record_attention
from vision_attn.tokens.record.weights import attention_weights

__all__ = ["AttentionCall", "attention_weights", "layout_of", "probe", "record_attention"]
