"""Targets of outputs that are vectors or features: directions, embeddings, channels.

Axes: b images, r of them, k numbers of an output, c channels, h height, w width, n tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor
from torch.nn import functional as F

from vision_attn.arguments import check_fields
from vision_attn.methods.targets.target import Target
from vision_attn.methods.targets.tensors import checksum, tensor_of
from vision_attn.tokens.outputs import logits_of, only_tensor

__all__ = ["Channel", "Direction", "Similarity"]


@dataclass(frozen=True, eq=False, init=False)
class Direction(Target):
    """How far an output goes in a direction: its dot product with a vector.

    Args:
        vector: (k,), or one an image, (b, k): as long as the output.

    Raises:
        ValueError: It is no such vector of floats, or not finite.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import Direction
        >>> Direction(torch.tensor([1.0, -1.0]))(torch.tensor([[2.0, 5.0]]))
        tensor([-3.])
    """

    vector: Float[Tensor, "*b k"]

    def __init__(self, vector: "Tensor | ndarray | Sequence[float]"):
        vector = tensor_of(vector, type(self).__name__, "a vector of floats").detach()
        if vector.ndim not in (1, 2) or not vector.is_floating_point() or not vector.numel():
            raise ValueError(
                f"{type(self).__name__}: expected a vector of floats (k,), or one an image (b, k), "
                f"got {vector.dtype} of shape {tuple(vector.shape)}"
            )
        if not vector.isfinite().all():
            raise ValueError(f"{type(self).__name__}: the vector holds NaN or infinity")
        object.__setattr__(self, "vector", vector)

    def __call__(self, output: Any) -> Float[Tensor, " b"]:
        features, vector = self._aligned(output)
        return (features * vector).sum(dim=1)

    def _aligned(self, output: Any) -> tuple[Float[Tensor, "b k"], Float[Tensor, "#b k"]]:
        features = logits_of(output)
        if features.shape[1] != self.vector.shape[-1]:
            raise ValueError(
                f"{type(self).__name__}: a vector of {self.vector.shape[-1]} numbers, but the "
                f"network gives {features.shape[1]} an image"
            )
        self.check(len(features))
        return features, self.vector.to(features).reshape(-1, features.shape[1])

    def at(self, images: Int[Tensor, " r"]) -> "Direction":
        if self.vector.ndim == 1:
            return self
        return type(self)(self.vector[images.to(self.vector.device)])

    @property
    def count(self) -> int | None:
        return len(self.vector) if self.vector.ndim == 2 else None

    def key(self) -> str:
        return f"{self} {checksum(self.vector):08x}"

    def label(self, classes: Sequence[str] = ()) -> str:
        return f"a direction of {self.vector.shape[-1]} numbers"

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.vector.shape[-1]} numbers)"


@dataclass(frozen=True, eq=False, init=False)
class Similarity(Direction):
    """Cosine of an output with an embedding: of a photo, a class's mean, or a text.

    Args:
        embedding: (k,), or one an image, (b, k).

    Raises:
        ValueError: It is no such vector of floats, not finite, or 0.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import Similarity
        >>> Similarity(torch.tensor([3.0, 4.0]))(torch.tensor([[1.0, 0.0]]))
        tensor([0.6000])
    """

    def __init__(self, embedding: "Tensor | ndarray | Sequence[float]"):
        super().__init__(embedding)
        if not self.vector.any(dim=-1).all():
            raise ValueError("Similarity: the embedding is 0, which has no direction")

    def __call__(self, output: Any) -> Float[Tensor, " b"]:
        return F.cosine_similarity(*self._aligned(output), dim=1)

    def label(self, classes: Sequence[str] = ()) -> str:
        return f"similarity to an embedding of {self.vector.shape[-1]} numbers"


@dataclass(frozen=True)
class Channel(Target):
    """One channel of an output: its mean over all places, or its value in one of them.

    Channels are axis 1 of (b, c), (b, c, h, w), and the last axis of tokens (b, n, c).

    Args:
        index: The channel.
        place: A token, or (row, column) of a map; None for the mean over all.

    Examples:
        >>> import torch
        >>> from vision_attn.methods import Channel
        >>> Channel(2)(torch.arange(12.0).view(1, 3, 2, 2))
        tensor([9.5000])
    """

    index: int
    place: int | tuple[int, int] | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, output: Any) -> Float[Tensor, " b"]:
        features = only_tensor(output)
        if features is None or not 2 <= features.ndim <= 4:
            raise ValueError(f"{self}: expected one tensor (b, c), (b, c, h, w) or (b, n, c)")
        if features.ndim == 3:
            features = features.mT
        if not 0 <= self.index < features.shape[1]:
            raise ValueError(f"{self}: the output has {features.shape[1]} channels")
        channel = features[:, self.index]
        if self.place is None:
            return channel.flatten(1).mean(dim=1) if channel.ndim > 1 else channel
        indices = self.place if isinstance(self.place, tuple) else (self.place,)
        sides = tuple(channel.shape[1:])
        if len(indices) != len(sides) or not all(
            0 <= i < n for i, n in zip(indices, sides, strict=True)
        ):
            raise ValueError(f"{self}: the output's places are {' x '.join(map(str, sides)) or 1}")
        return channel[(slice(None), *indices)]

    def label(self, classes: Sequence[str] = ()) -> str:
        where = "" if self.place is None else f" at {self.place}"
        return f"channel {self.index}{where}"

    def __str__(self) -> str:
        where = "" if self.place is None else f", place={self.place}"
        return f"Channel({self.index}{where})"
