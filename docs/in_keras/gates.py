"""Page 9 of Learn in Keras 3: gates in a CNN.

Axes: b batch, h height, w width, c channels; Keras puts the channels last.
"""

from keras import layers, ops


class SqueezeExcite(layers.Layer):
    """Features (b h w c) -> the same, each channel gated."""

    def __init__(self, channels, reduction=16):
        super().__init__()
        hidden = max(1, channels // reduction)
        self.squeeze = layers.Dense(hidden, "relu")
        self.excite = layers.Dense(channels, "sigmoid")

    def call(self, x):
        mean = ops.mean(x, axis=(1, 2), keepdims=True)
        return x * self.excite(self.squeeze(mean))


class ChannelGate(layers.Layer):
    """Features (b h w c) -> the same, each channel gated."""

    def __init__(self, channels, reduction=16):
        super().__init__()
        hidden = max(1, channels // reduction)
        self.squeeze = layers.Dense(hidden, "relu", use_bias=False)
        self.excite = layers.Dense(channels, "sigmoid", use_bias=False)

    def call(self, x):
        mean = ops.mean(x, axis=(1, 2), keepdims=True)
        peak = ops.max(x, axis=(1, 2), keepdims=True)
        # The second map is linear: it may come after the sum.
        return x * self.excite(self.squeeze(mean) + self.squeeze(peak))


class SpatialGate(layers.Layer):
    """Features (b h w c) -> the same, each place gated."""

    def __init__(self, size=7):
        super().__init__()
        self.conv = layers.Conv2D(
            1,
            size,
            padding="same",
            activation="sigmoid",
            use_bias=False,
        )

    def call(self, x):
        mean = ops.mean(x, axis=-1, keepdims=True)
        peak = ops.max(x, axis=-1, keepdims=True)
        return x * self.conv(ops.concatenate([mean, peak], axis=-1))


class SpatialMask(layers.Layer):
    """Features (b h w c) -> the same, each place gated."""

    def __init__(self, hidden, size=3):
        super().__init__()
        self.first = layers.Conv2D(
            hidden, size, padding="same", activation="relu"
        )
        self.second = layers.Conv2D(1, 1, activation="sigmoid")

    def call(self, x):
        return x * self.second(self.first(x))
