"""Pages 1 and 2 of Learn in Keras 3: scores, and what is made of them.

Axes: b batch, i queries, j keys, d width, e width of a value.
"""

from keras import layers, ops


def attend(scores, values, mask=None):
    """Scores (b i j), values (b j e) -> contexts (b i e)."""
    if mask is not None:  # True where query i may see key j
        scores = ops.where(mask, scores, -1e9)
    weights = ops.softmax(scores)
    if mask is not None:  # who may see nothing, gets zeros
        weights = ops.where(mask, weights, 0.0)
    return weights @ values


class Additive(layers.Layer):
    """Queries (b i d), keys (b j d) -> scores (b i j)."""

    def __init__(self, hidden=32):
        super().__init__()
        self.key = layers.Dense(hidden, use_bias=False)
        self.query = layers.Dense(hidden, use_bias=False)
        self.energy = layers.Dense(1, use_bias=False)

    def call(self, q, k):
        pairs = self.query(q)[:, :, None] + self.key(k)[:, None]
        return ops.squeeze(self.energy(ops.tanh(pairs)), -1)


def dot_product(q, k, scaled=False):
    """Queries (b i d), keys (b j d) -> scores (b i j)."""
    scores = q @ ops.swapaxes(k, -1, -2)
    if scaled:
        scores = scores / q.shape[-1] ** 0.5
    return scores


class CosineSimilarity(layers.Layer):
    """beta cos(q, k): queries (b i d), keys (b j d) -> scores (b i j)."""

    def __init__(self):
        super().__init__()
        self.beta = self.add_weight(shape=(), initializer="ones")

    def call(self, q, k):
        q, k = ops.normalize(q), ops.normalize(k)
        return self.beta * q @ ops.swapaxes(k, -1, -2)


class General(layers.Layer):
    """Queries (b i d), keys (b j d) -> scores (b i j)."""

    def __init__(self, dim):
        super().__init__()
        self.query = layers.Dense(dim, use_bias=False)

    def call(self, q, k):
        return self.query(q) @ ops.swapaxes(k, -1, -2)


class Concat(layers.Layer):
    """v . tanh W[k; q]: queries (b i d), keys (b j d) -> scores (b i j)."""

    def __init__(self, hidden=32):
        super().__init__()
        self.pair = layers.Dense(hidden, "tanh", use_bias=False)
        self.energy = layers.Dense(1, use_bias=False)

    def call(self, q, k):
        i, j = q.shape[1], k.shape[1]
        q = ops.repeat(q[:, :, None], j, axis=2)
        k = ops.repeat(k[:, None], i, axis=1)
        hidden = self.pair(ops.concatenate([k, q], axis=-1))
        return ops.squeeze(self.energy(hidden), -1)


class Location(layers.Layer):
    """(W q)_j: queries (b i d), keys (b j d) -> scores (b i j)."""

    def __init__(self, positions):  # the longest memory
        super().__init__()
        self.query = layers.Dense(positions, use_bias=False)

    def call(self, q, k):
        return self.query(q)[:, :, : k.shape[1]]


class Deep(layers.Layer):
    """An MLP of pairs: queries (b i d), keys (b j d) -> scores (b i j)."""

    def __init__(self, hidden=32, depth=2):
        super().__init__()
        self.query = layers.Dense(hidden, use_bias=False)
        self.key = layers.Dense(hidden)
        relus = [layers.Dense(hidden, "relu") for _ in range(depth - 1)]
        self.rest = [*relus, layers.Dense(1)]

    def call(self, q, k):
        x = ops.relu(self.query(q)[:, :, None] + self.key(k)[:, None])
        for layer in self.rest:
            x = layer(x)
        return ops.squeeze(x, -1)
