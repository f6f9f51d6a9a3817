"""Page 5 of Learn in Keras 3: attention after attention.

Axes: b batch, i queries, j keys, d width, g groups, m members of a group.
Masks are True where a token exists.
"""

from keras import layers, ops


class MemoryHops(layers.Layer):
    """Queries (b i d), memory (b j d) -> last queries (b i d)."""

    def __init__(self, dim, hops=3):
        super().__init__()
        self.keys, self.values = (
            [layers.Dense(dim, use_bias=False) for _ in range(hops)]
            for _ in range(2)
        )
        self.softmax = layers.Softmax()

    def call(self, query, memory, memory_mask=None):
        mask = None if memory_mask is None else memory_mask[:, None]
        for key, value in zip(self.keys, self.values, strict=True):
            scores = query @ ops.swapaxes(key(memory), 1, 2)
            weights = self.softmax(scores, mask=mask)
            query = query + weights @ value(memory)
        return query


class KeyOnly(layers.Layer):
    """Keys (b j d) -> scores (b j), the same for every query."""

    def __init__(self, hidden=32):
        super().__init__()
        self.key = layers.Dense(hidden, "tanh")
        self.energy = layers.Dense(1, use_bias=False)

    def call(self, k):
        return ops.squeeze(self.energy(self.key(k)), -1)


class Hierarchical(layers.Layer):
    """Sentences of words (b g m d) -> the whole text (b d)."""

    def __init__(self, hidden=32):
        super().__init__()
        self.word = layers.Dense(hidden, "tanh")
        self.word_energy = layers.Dense(1, use_bias=False)
        self.sentence = layers.Dense(hidden, "tanh")
        self.sentence_energy = layers.Dense(1, use_bias=False)
        self.softmax = layers.Softmax(axis=-2)

    def call(self, words, words_mask=None):
        mask = None if words_mask is None else words_mask[..., None]
        scores = self.word_energy(self.word(words))
        weights = self.softmax(scores, mask=mask)  # b g m 1
        sentences = ops.sum(weights * words, axis=-2)  # b g d
        mask = None if mask is None else ops.any(mask, axis=-2)
        scores = self.sentence_energy(self.sentence(sentences))
        weights = self.softmax(scores, mask=mask)  # b g 1
        return ops.sum(weights * sentences, axis=-2)


class AttentionViaAttention(layers.Layer):
    """Queries (b i d), two memories (b j d) -> a context of each."""

    def __init__(self, dim, hidden=32):
        super().__init__()
        wide = [layers.Dense(hidden, use_bias=False) for _ in range(4)]
        self.to_coarse, self.coarse, self.to_fine, self.fine = wide
        self.both = layers.Dense(dim, use_bias=False)
        self.look, self.look_again = (
            layers.AdditiveAttention() for _ in range(2)
        )

    def call(self, q, coarse, fine, coarse_mask=None, fine_mask=None):
        inputs = [self.to_coarse(q), coarse, self.coarse(coarse)]
        context = self.look(inputs, mask=[None, coarse_mask])
        q = self.both(ops.concatenate([q, context], axis=-1))
        inputs = [self.to_fine(q), fine, self.fine(fine)]
        return context, self.look_again(inputs, mask=[None, fine_mask])


class TargetGuided(layers.Layer):
    """Target (b j d), sentence (b n d) -> the sentence's context (b d)."""

    def __init__(self, hidden=32):
        super().__init__()
        self.word = layers.Dense(hidden, "tanh")
        self.energy = layers.Dense(1, use_bias=False)
        self.query, self.key = (
            layers.Dense(hidden, use_bias=False) for _ in range(2)
        )
        self.softmax = layers.Softmax(axis=1)
        self.look = layers.AdditiveAttention()

    def call(self, target, sentence, target_mask=None, sentence_mask=None):
        mask = None if target_mask is None else target_mask[..., None]
        weights = self.softmax(self.energy(self.word(target)), mask=mask)
        q = ops.sum(weights * target, axis=1, keepdims=True)
        inputs = [self.query(q), sentence, self.key(sentence)]
        return self.look(inputs, mask=[None, sentence_mask])[:, 0]
