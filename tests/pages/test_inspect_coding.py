"""Attention in few bytes is still the attention."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import softmax as oracle

from vision_attn.pages.inspect.coding import TOLERANCE, Coded, Rows, Vectors, encode, softmax

RNG = np.random.default_rng(0)


def factors(n: int, d: int, sharpness: float) -> tuple[np.ndarray, np.ndarray]:
    """q and k with a constant and an outlying coordinate in the keys, as trained networks have."""
    q, k = RNG.normal(size=(2, n, d)).astype(np.float32)
    k += 3 * RNG.normal(size=d).astype(np.float32)
    k[:, 2] *= 4
    return q * np.float32(sharpness / d**0.5), k


def worst(coded: Coded, exact: Any) -> float:
    return float((np.abs(coded.weights() - exact).max(1) / exact.max(1)).max())


@pytest.mark.parametrize("sharpness", [0.1, 1.0, 5.0, 30.0])
@pytest.mark.parametrize(("n", "d"), [(37, 5), (197, 16), (197, 64)])
def test_every_row_is_within_the_tolerance(n: int, d: int, sharpness: float) -> None:
    q, k = factors(n, d, sharpness)
    exact = oracle(q.astype(np.float64) @ k.T.astype(np.float64), axis=1)
    coded = encode(softmax(q @ k.T), q, k)
    assert worst(coded, exact) <= TOLERANCE + 1e-5
    assert coded.error(exact) == pytest.approx(worst(coded, exact), rel=1e-3)


def test_the_smallest_coding_that_is_close_enough_is_taken() -> None:
    def code(n: int, d: int, sharpness: float) -> str:
        q, k = factors(n, d, sharpness)
        return encode(softmax(q @ k.T), q, k).code

    assert code(197, 64, 0.1) == "int8"
    assert code(197, 32, 3.0) == "int16"  # too sharp for 8 bits, and still smaller than rows
    assert code(197, 64, 3.0) == "rows"  # 197 weights a row are fewer than 4 x 64 bytes
    assert code(37, 64, 0.1) == "rows"


def test_weights_that_are_no_softmax_are_kept_as_rows() -> None:
    weights = np.zeros((7, 7), np.float32)
    weights[:5] = RNG.random((5, 7))  # rows that sum to anything, and rows of zeros
    coded = encode(weights)
    assert isinstance(coded, Rows)
    assert_allclose(coded.weights(), weights, atol=0.004 * weights.max())
    assert not coded.weights()[5:].any()
    assert coded.error(weights) <= 0.004


def test_rows_keep_the_detail_of_small_weights() -> None:
    weights = np.tile(np.array([1, 1e-2, 1e-3, 0], np.float32), (4, 1))
    assert_allclose(Rows.of(weights).weights(), weights, rtol=0.07)


def test_zero_queries_attend_evenly() -> None:
    q, k = np.zeros((2, 11, 3), np.float32)
    assert_allclose(encode(softmax(q @ k.T), q, k).weights(), 1 / 11, rtol=1e-2)


@pytest.mark.parametrize("width", [17, 1031])  # turned, and too wide for that
def test_cosines_and_products_of_coded_vectors_are_those_of_the_vectors(width: int) -> None:
    rng = np.random.default_rng(3)
    first, second = (rng.normal(size=(count, width)).astype("f4") for count in (11, 13))
    for each in (first, second):
        each[:, 5] += 70  # a channel that outshines the others, as trained ViTs have
    coded = Vectors.of(first), Vectors.of(second)
    exact = [one.astype("f8") for one in (first, second)]
    sizes = [np.linalg.norm(one, axis=1, keepdims=True) for one in exact]
    cosines = (exact[0] / sizes[0]) @ (exact[0] / sizes[0]).T
    assert np.abs(coded[0].cosines() - cosines).max() <= 0.01
    assert coded[0].error(coded[0].exact(first)) <= 0.01
    decoded = [one.scales[:, None] * one.codes.astype("f8") for one in coded]
    products = exact[0] @ exact[1].T
    assert np.abs(decoded[0] @ decoded[1].T - products).max() <= 0.01 * np.abs(products).max()
    assert len(coded[0].tobytes()) == 11 * (4 + width * coded[0].codes.itemsize)


def test_vectors_of_zeros_stay_zeros() -> None:
    coded = Vectors.of(np.zeros((3, 5), np.float32))
    assert not coded.codes.any()
    assert np.isfinite(coded.cosines()).all()
