"""Page 6 of Learn in Keras 3: two inputs, each in the light of the other.

Axes: b batch, i tokens of the first input, j tokens of the second, d width.
Masks are True where a token exists.
"""

from keras import layers, ops


class MaxPoolCoAttention(layers.Layer):
    """Two inputs (b i d), (b j d) -> their weights (b i), (b j)."""

    def __init__(self, dim):
        super().__init__()
        self.affinity = layers.Dense(dim, use_bias=False)
        self.softmax = layers.Softmax()

    def call(self, q, k, q_mask=None, k_mask=None):
        pairs = ops.tanh(self.affinity(q) @ ops.swapaxes(k, 1, 2))
        by_q = by_k = pairs
        if q_mask is not None:  # what does not exist is nobody's best
            by_k = ops.where(q_mask[:, :, None], pairs, -1.0)
        if k_mask is not None:
            by_q = ops.where(k_mask[:, None], pairs, -1.0)
        a, b = ops.max(by_q, axis=2), ops.max(by_k, axis=1)
        return self.softmax(a, mask=q_mask), self.softmax(b, mask=k_mask)


class ParallelCoAttention(layers.Layer):
    """Two inputs (b i d), (b j d) -> their weights (b i), (b j)."""

    def __init__(self, dim, hidden=32):
        super().__init__()
        self.affinity, self.q, self.k, self.a, self.b = (
            layers.Dense(n, use_bias=False)
            for n in (dim, hidden, hidden, 1, 1)
        )
        self.softmax = layers.Softmax()

    def call(self, q, k, q_mask=None, k_mask=None):
        if q_mask is not None:
            q = ops.where(q_mask[..., None], q, 0.0)
        if k_mask is not None:
            k = ops.where(k_mask[..., None], k, 0.0)
        pairs = ops.tanh(self.affinity(q) @ ops.swapaxes(k, 1, 2))
        q, k = self.q(q), self.k(k)
        a = self.a(ops.tanh(q + pairs @ k))[..., 0]
        b = self.b(ops.tanh(k + ops.swapaxes(pairs, 1, 2) @ q))[..., 0]
        return self.softmax(a, mask=q_mask), self.softmax(b, mask=k_mask)


class AlternatingCoAttention(layers.Layer):
    """Two inputs (b i d), (b j d) -> their weights (b i), (b j)."""

    def __init__(self, hidden=32):
        super().__init__()
        self.alone, self.q, self.k, self.from_q, self.from_k = (
            layers.Dense(hidden, use_bias=False) for _ in range(5)
        )
        self.energies = [layers.Dense(1, use_bias=False) for _ in range(3)]
        self.softmax = layers.Softmax()

    def weigh(self, energy, hidden, mask):
        scores = energy(ops.tanh(hidden))[..., 0]
        return self.softmax(scores, mask=mask)[:, None]

    def call(self, q, k, q_mask=None, k_mask=None):
        first, second, third = self.energies
        mean = self.weigh(first, self.alone(q), q_mask) @ q
        b = self.weigh(second, self.k(k) + self.from_q(mean), k_mask)
        a = self.weigh(third, self.q(q) + self.from_k(b @ k), q_mask)
        return a[:, 0], b[:, 0]


class InteractiveAttention(layers.Layer):
    """Two inputs (b i d), (b j d) -> their weights (b i), (b j)."""

    def __init__(self, dim):
        super().__init__()
        self.to_q, self.to_k = (
            layers.Dense(dim, use_bias=False) for _ in range(2)
        )
        self.bias = self.add_weight(shape=(2,), initializer="zeros")
        self.pool = layers.GlobalAveragePooling1D()
        self.softmax = layers.Softmax()

    def call(self, q, k, q_mask=None, k_mask=None):
        from_k = self.to_q(self.pool(k, mask=k_mask))
        from_q = self.to_k(self.pool(q, mask=q_mask))
        a = ops.einsum("bd,bid->bi", from_k, q) + self.bias[0]
        b = ops.einsum("bd,bjd->bj", from_q, k) + self.bias[1]
        a = self.softmax(ops.tanh(a), mask=q_mask)
        return a, self.softmax(ops.tanh(b), mask=k_mask)


def attention_over_attention(q, k, q_mask=None, k_mask=None):
    """Two inputs (b i d), (b j d) -> their weights (b i), (b j)."""
    if q_mask is None:
        q_mask = ops.ones_like(q[..., 0], dtype="bool")
    if k_mask is None:
        k_mask = ops.ones_like(k[..., 0], dtype="bool")
    scores = q @ ops.swapaxes(k, 1, 2)
    exist = q_mask[:, :, None] & k_mask[:, None]
    scores = ops.where(exist, scores, -1e9)
    over_k = ops.where(exist, ops.softmax(scores, axis=2), 0.0)
    over_q = ops.where(exist, ops.softmax(scores, axis=1), 0.0)
    count = ops.sum(ops.cast(k_mask, q.dtype), axis=1, keepdims=True)
    a = ops.sum(over_q, axis=2) / count
    return a, ops.einsum("bi,bij->bj", a, over_k)
