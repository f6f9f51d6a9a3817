"""Pages 3 and 4 of Learn in Keras 3: windows, normalisers, a heatmap.

Axes: b batch, i queries, j keys, d width; h rows, w columns and c channels
of the feature map of a photo.
"""

import keras
from keras import layers, ops


def local_monotonic(scores, radius):
    """Scores (b i j) -> weights (b i j): key j near place i alone."""
    queries, keys = scores.shape[-2:]
    key = ops.arange(keys, dtype=scores.dtype)
    query = ops.arange(queries, dtype=scores.dtype)[:, None]
    seen = ops.abs(key - query * keys / queries) <= radius
    weights = ops.softmax(ops.where(seen, scores, -1e9))
    return ops.where(seen, weights, 0.0)


class LocalPredictive(layers.Layer):
    """Queries (b i d), scores (b i j) -> weights (b i j)."""

    def __init__(self, dim, radius):
        super().__init__()
        self.radius = radius
        self.hidden = layers.Dense(dim, "tanh", use_bias=False)
        self.place = layers.Dense(1, "sigmoid", use_bias=False)

    def call(self, q, scores):
        keys = scores.shape[-1]
        centre = keys * self.place(self.hidden(q))  # b i 1
        away = (ops.arange(keys, dtype=centre.dtype) - centre) / self.radius
        seen = ops.abs(away) <= 1
        weights = ops.softmax(ops.where(seen, scores, -1e9))
        gain = ops.exp(-2 * ops.square(away))
        return ops.where(seen, weights * gain, 0.0)


def softmax(scores, temperature=1.0):
    """Scores (... j) -> weights (... j)."""
    scores = scores / temperature
    largest = ops.max(scores, axis=-1, keepdims=True)
    powers = ops.exp(scores - largest)  # so that none overflows
    return powers / ops.sum(powers, axis=-1, keepdims=True)


def sparsemax(scores):
    """Scores (... j) -> weights (... j), some exactly 0."""
    z = ops.flip(ops.sort(scores, axis=-1), axis=-1)
    count = ops.arange(1, z.shape[-1] + 1, dtype=z.dtype)
    above = ops.cumsum(z, axis=-1) - 1 < z * count  # weight above 0
    size = ops.sum(ops.cast(above, z.dtype), axis=-1, keepdims=True)
    total = ops.sum(ops.where(above, z, 0.0), axis=-1, keepdims=True)
    return ops.relu(scores - (total - 1) / size)


def hard(scores, temperature=1.0, draw=False):
    """Scores (... j) -> weights (... j), one of them 1."""
    if draw:  # with the probability that the softmax gives
        noise = keras.random.uniform(ops.shape(scores), minval=1e-7)
        scores = scores - ops.log(-ops.log(ops.cast(noise, scores.dtype)))
    soft = ops.softmax(scores / temperature)
    best = ops.argmax(soft, axis=-1)
    one = ops.one_hot(best, soft.shape[-1], dtype=soft.dtype)
    # The bracket is 0; its gradient is that of the softmax.
    return one + (soft - ops.stop_gradient(soft))


class PhotoAttention(layers.Layer):
    """A word (b d), a photo (b h w c) -> context (b c), map (b h w)."""

    def __init__(self, hidden=32):
        super().__init__()
        self.word = layers.Dense(hidden, use_bias=False)
        self.place = layers.Dense(hidden, use_bias=False)
        self.energy = layers.Dense(1, use_bias=False)

    def call(self, word, photo):
        h, w, c = photo.shape[1:]
        places = ops.reshape(photo, (-1, h * w, c))
        hidden = self.place(places) + self.word(word)[:, None]
        weights = ops.softmax(self.energy(ops.tanh(hidden)), axis=1)
        context = ops.sum(weights * places, axis=1)
        return context, ops.reshape(weights, (-1, h, w))
