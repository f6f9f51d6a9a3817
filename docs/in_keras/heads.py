"""Pages 7 and 8 of Learn in Keras 3: self-attention, heads and views.

Axes: b batch, n tokens, j tokens of the memory, d width, h head, v view.
"""

from keras import layers, ops


class SelfAttention(layers.Layer):
    """Tokens (b n d) -> contexts (b n d), by one head."""

    def __init__(self, dim):
        super().__init__()
        self.query, self.key, self.value = (
            layers.Dense(dim) for _ in range(3)
        )
        self.softmax = layers.Softmax()

    def call(self, x, attention_mask=None):
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = q @ ops.swapaxes(k, 1, 2) / x.shape[-1] ** 0.5
        return self.softmax(scores, mask=attention_mask) @ v


class MultiHeadAttention(layers.Layer):
    """Tokens (b n d), a memory (b j d) -> new tokens (b n d)."""

    def __init__(self, dim, heads=8):
        super().__init__()
        self.cut = layers.Reshape((-1, heads, dim // heads))
        self.join = layers.Reshape((-1, dim))
        self.query, self.key, self.value, self.proj = (
            layers.Dense(dim) for _ in range(4)
        )
        self.softmax = layers.Softmax()

    def call(self, x, memory, attention_mask=None):  # self: memory = x
        q = self.cut(self.query(x))
        k, v = self.cut(self.key(memory)), self.cut(self.value(memory))
        scores = ops.einsum("bnhd,bjhd->bhnj", q, k) / q.shape[-1] ** 0.5
        weights = self.softmax(scores, mask=attention_mask)
        contexts = ops.einsum("bhnj,bjhd->bnhd", weights, v)
        return self.proj(self.join(contexts))


class MultiDimAttention(layers.Layer):
    """Tokens (b n d) -> new tokens (b n d), each view with its weights."""

    def __init__(self, dim, views, hidden=32):
        super().__init__()
        self.cut = layers.Reshape((-1, views, dim // views))
        self.join = layers.Reshape((-1, dim))
        self.query, self.key, self.value, self.proj = (
            layers.Dense(dim) for _ in range(4)
        )
        self.of_query, self.of_key, self.energy = (
            layers.Dense(n, use_bias=False) for n in (hidden, hidden, views)
        )

    def call(self, x):
        q, k = self.of_query(self.query(x)), self.of_key(self.key(x))
        scores = self.energy(ops.tanh(q[:, :, None] + k[:, None]))
        weights = ops.softmax(scores, axis=2)  # b n j v
        v = self.cut(self.value(x))
        contexts = ops.einsum("bnjv,bjvd->bnvd", weights, v)
        return self.proj(self.join(contexts))


class MultiDimPool(layers.Layer):
    """Tokens (b n d) -> as many means as views, side by side (b v*d)."""

    def __init__(self, views=4, hidden=32):
        super().__init__()
        self.key = layers.Dense(hidden, use_bias=False)
        self.energy = layers.Dense(views, use_bias=False)
        self.query = self.add_weight(shape=(hidden,))
        self.softmax = layers.Softmax(axis=1)
        self.flatten = layers.Flatten()

    def call(self, x, x_mask=None):
        mask = None if x_mask is None else x_mask[..., None]
        scores = self.energy(ops.tanh(self.key(x) + self.query))
        weights = self.softmax(scores, mask=mask)  # b n v
        return self.flatten(ops.einsum("bnv,bnd->bvd", weights, x))
