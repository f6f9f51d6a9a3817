"""Alignment matrices and weighed words."""

import numpy as np
import pytest

from vision_attn import sequences


def dark(picture: np.ndarray) -> float:
    return float((picture < 60).all(-1).mean())


def test_an_alignment_is_dark_where_weights_are() -> None:
    names = "0123456789"
    empty = sequences.alignment(np.zeros((10, 10), np.float32), names, names)
    full = sequences.alignment(np.ones((10, 10), np.float32), names, names)
    diagonal = sequences.alignment(np.eye(10, dtype=np.float32), names, names)
    assert empty.dtype == np.uint8
    assert empty.shape == full.shape
    ratio = (dark(diagonal) - dark(empty)) / (dark(full) - dark(empty))
    assert 0.08 < ratio < 0.12


def test_it_takes_words_and_blanks() -> None:
    weights = np.full((2, 4), 0.25, np.float32)
    assert sequences.alignment(weights, ["red disk", "stop"], list("a b."), "title").ndim == 3


def test_words_stand_on_their_weights() -> None:
    weights = np.array([[1, 0, 0], [0.5, 0.5, 0]], np.float32)
    picture = sequences.word_weights(weights, ["what", "is", "it"], ["hop 1", "hop 2"])
    assert picture.shape[1] > picture.shape[0]


def test_names_must_be_as_many_as_weights() -> None:
    with pytest.raises(ValueError, match=r"expected weights of shape \(2, 3\), a row for each wri"):
        sequences.alignment(np.zeros((3, 2), np.float32), "ab", "abc")
    with pytest.raises(ValueError, match=r"expected weights of shape \(1, 3\), a row for each loo"):
        sequences.word_weights(np.zeros((3, 1), np.float32), ["a", "b", "c"], ["look"])
