"""Pages 10 and 11 of Learn in Keras 3: Vision Transformer and rollout.

Axes: b batch, y and x pixels, c channels, n tokens, d width, h head.
"""

from keras import layers, ops


class Block(layers.Layer):
    """Tokens (b n d) -> new tokens (b n d)."""

    def __init__(self, dim, heads, mlp_ratio=4):
        super().__init__()
        self.norm1 = layers.LayerNormalization(epsilon=1e-6)
        self.attention = layers.MultiHeadAttention(heads, dim // heads)
        self.norm2 = layers.LayerNormalization(epsilon=1e-6)
        self.fc1 = layers.Dense(mlp_ratio * dim)
        self.fc2 = layers.Dense(dim)

    def call(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y)
        hidden = ops.gelu(self.fc1(self.norm2(x)), approximate=False)
        return x + self.fc2(hidden)


class PatchEmbed(layers.Layer):
    """Images (b y x c) -> tokens (b n d), each with its position."""

    def __init__(self, dim, patch_size, tokens):
        super().__init__()
        self.proj = layers.Conv2D(dim, patch_size, strides=patch_size)
        self.flatten = layers.Reshape((tokens, dim))
        self.positions = self.add_weight(shape=(tokens, dim))

    def call(self, images):
        return self.flatten(self.proj(images)) + self.positions


def rollout(weights, read, alpha=0.5):
    """Weights (b h n n) of each layer, what is read (b n) -> map (b n)."""
    r = read  # of the class token 1, or 1/n of each patch
    for layer in reversed(weights):
        mean = ops.mean(layer, axis=1)  # of the heads
        attended = ops.einsum("bi,bij->bj", r, mean)
        r = alpha * r + (1 - alpha) * attended
    return r
