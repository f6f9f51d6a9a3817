"""Compact attention: what the page needs to show any row of it, within 1 % of exact.

A row is what one query gives to every key: w_i = softmax_j(q_i . k_j). For many tokens q and k are
far smaller than all rows; for few tokens, or for weights that are no softmax of q . k, the rows
themselves are kept.

Axes: head, i queries, j keys, n tokens, d head width.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
from jaxtyping import Float, Float32, Int, UInt8
from numpy import ndarray

__all__ = ["Coded", "CodedFactors", "Rows", "Vectors", "encode", "softmax"]

TOLERANCE = 0.01  # the largest error shown, as a share of the row's largest weight
LEVELS = (127, 2047, 32767)  # whole numbers up to these: 8 bits, 12 that deflate well, 16
CHECKED = 1024  # queries a head at most, evenly spread
TURNED = 1024  # numbers of a vector at most that are spread by a rotation, which costs their cube

Queries = slice


class Coded(ABC):
    """Base class: one head's attention in few bytes. `encode` chooses the subclass.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.pages.inspect.coding import Coded, encode, softmax
        >>> isinstance(encode(softmax(np.zeros((4, 4)))), Coded)
        True
    """

    @property
    @abstractmethod
    def code(self) -> str:
        """Name of this coding in the page's attention.js."""

    @abstractmethod
    def weights(self, queries: Queries = slice(None)) -> Float[ndarray, "i j"]:
        """Decode the rows of these queries, as the page does."""

    @abstractmethod
    def tobytes(self) -> bytes:
        """Pack into bytes, little-endian, in the order that attention.js reads."""

    @final
    def error(self, exact: Float[ndarray, "i j"]) -> float:
        """Measure the largest deviation from `exact`, as a share of the row's largest weight."""
        queries = _checked(len(exact))
        exact = exact[queries]
        largest = np.maximum(exact.max(axis=1), np.finfo(np.float32).tiny)
        return float((np.abs(self.weights(queries) - exact).max(axis=1) / largest).max())


@dataclass(frozen=True)
class CodedFactors(Coded):
    """Queries and keys as whole numbers, each token with a scale of its own.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.pages.inspect.coding import CodedFactors
        >>> q, k = np.eye(3), np.ones((3, 3))
        >>> CodedFactors.of(q, k, top=127).weights().round(3)[0]
        array([0.333, 0.333, 0.333], dtype=float32)
    """

    scales: Float32[ndarray, "2 n"]
    q: Int[ndarray, "n d"]
    k: Int[ndarray, "n d"]

    @classmethod
    def of(cls, q: Float[ndarray, "n d"], k: Float[ndarray, "n d"], top: int) -> "CodedFactors":
        """Code q and k with whole numbers from -top to top."""
        both = np.stack([q, k])
        scales = np.abs(both).max(axis=2).astype(np.float32) / np.float32(top)
        whole = np.rint(both / np.where(scales > 0, scales, 1)[..., None])
        return cls(scales, *whole.astype(np.int8 if top <= 127 else np.int16))

    @property
    def code(self) -> str:
        return self.q.dtype.name

    def weights(self, queries: Queries = slice(None)) -> Float[ndarray, "i j"]:
        products = self.q[queries].astype(np.float32) @ self.k.astype(np.float32).T
        return softmax(self.scales[0, queries, None] * self.scales[1] * products)

    def tobytes(self) -> bytes:
        return self.scales.tobytes() + self.q.tobytes() + self.k.tobytes()


@dataclass(frozen=True)
class Rows(Coded):
    """The weights themselves: largest * (c / 255)^2, so that small ones keep their detail.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.pages.inspect.coding import Rows
        >>> Rows.of(np.array([[0.25, 0.75], [1.0, 0.0]])).weights(slice(1, 2))
        array([[1., 0.]], dtype=float32)
    """

    largest: Float32[ndarray, " i"]
    codes: UInt8[ndarray, "i j"]

    @classmethod
    def of(cls, weights: Float[ndarray, "i j"]) -> "Rows":
        """Code the rows of weights that are at least 0."""
        largest = weights.max(axis=1).astype(np.float32)
        share = weights / np.where(largest > 0, largest, 1)[:, None]
        return cls(largest, np.rint(255 * np.sqrt(share)).astype(np.uint8))

    @property
    def code(self) -> str:
        return "rows"

    def weights(self, queries: Queries = slice(None)) -> Float[ndarray, "i j"]:
        return self.largest[queries, None] * (self.codes[queries].astype(np.float32) / 255) ** 2

    def tobytes(self) -> bytes:
        return self.largest.tobytes() + self.codes.tobytes()


@dataclass(frozen=True)
class Vectors:
    """Vectors as whole numbers, each with a scale of its own; of one width all are turned alike.

    Dot products and cosines of two of these are those of what they were made of, nearly.

    Examples:
        >>> import numpy as np
        >>> from vision_attn.pages.inspect.coding import Vectors
        >>> Vectors.of(np.array([[3.0, 4.0], [1.0, 0.0]])).cosines()[0].round(2)
        array([1. , 0.6], dtype=float32)
    """

    scales: Float32[ndarray, " n"]
    codes: Int[ndarray, "n d"]

    @classmethod
    def of(cls, vectors: Float[ndarray, "n d"]) -> "Vectors":
        """Code vectors by 8 bits a number if all cosines are then right to 0.01, else by 16."""
        width = vectors.shape[1]
        turned = vectors @ _rotation(width) if width <= TURNED else vectors
        exact = cls.exact(vectors)
        for top in (LEVELS[0], LEVELS[-1]):
            scales = np.abs(turned).max(axis=1).astype(np.float32) / np.float32(top)
            whole = np.rint(turned / np.where(scales > 0, scales, 1)[:, None])
            coded = cls(scales, whole.astype(np.int8 if top <= 127 else np.int16))
            if coded.error(exact) <= TOLERANCE:
                break
        return coded

    def cosines(self, queries: Queries = slice(None)) -> Float32[ndarray, "i j"]:
        """Compute the cosine of each of these vectors with every one, as the page does."""
        unit = _unit(self.codes.astype(np.float32))
        return unit[queries] @ unit.T

    @staticmethod
    def exact(vectors: Float[ndarray, "n d"]) -> Float[ndarray, "i j"]:
        """Compute the cosines that `error` checks, of vectors that are not coded."""
        unit = _unit(vectors)
        return unit[_checked(len(unit))] @ unit.T

    def error(self, exact: Float[ndarray, "i j"]) -> float:
        """Measure how far cosines are from exact ones, of as many queries as are checked."""
        return float(np.abs(self.cosines(_checked(len(self.codes))) - exact).max())

    def tobytes(self) -> bytes:
        """Pack into bytes, little-endian, in the order that features.js reads."""
        return self.scales.tobytes() + self.codes.tobytes()


def _checked(count: int) -> Queries:
    """Choose the queries by which a coding is checked."""
    return slice(None, None, -(-count // CHECKED))


def _unit(vectors: Float[ndarray, "n d"]) -> Float[ndarray, "n d"]:
    sizes = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(sizes, np.finfo(np.float32).tiny)


def encode(
    exact: Float[ndarray, "n n"],
    q: Float[ndarray, "n d"] | None = None,
    k: Float[ndarray, "n d"] | None = None,
) -> Coded:
    """Choose the smallest coding of these weights whose rows are all within the tolerance.

    q and k where exact = softmax(q k'). A key's constant part cancels in the softmax, so it is
    taken off; a rotation changes no product and spreads over all of d what one outlying coordinate
    would spoil for the others.
    """
    if q is None or k is None:
        return Rows.of(exact)  # off by 0.4 % at most
    turn = _rotation(q.shape[1])
    q, k = q @ turn, (k - k.mean(axis=0)) @ turn
    for top in LEVELS:
        factors = CodedFactors.of(q, k, top)
        if factors.q.nbytes + factors.k.nbytes >= exact.size:
            break
        if factors.error(exact) <= TOLERANCE:
            return factors
    return Rows.of(exact)


def softmax(scores: Float[ndarray, "i j"]) -> Float[ndarray, "i j"]:
    """Compute the softmax over the last axis."""
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


@lru_cache(maxsize=4)
def _rotation(d: int) -> Float32[ndarray, "d d"]:
    """Make a random rotation, the same each time."""
    return np.linalg.qr(np.random.default_rng(0).normal(size=(d, d)))[0].astype(np.float32)
