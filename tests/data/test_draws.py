import numpy as np
import torch

from vision_attn.data.draws import Draws, bits, permutation, uniforms


def splitmix64(state: int) -> int:
    """One output of SplitMix64 in Python's integers, as Steele et al. 2014 print it."""
    mask = 2**64 - 1
    z = (state + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_bits_are_splitmix64_of_key_item_and_place() -> None:
    words = bits((7, -3), np.array([0, 5, 2**40]), 3)
    state = splitmix64(splitmix64(7) - 3)
    for row, item in zip(words, (0, 5, 2**40), strict=True):
        seed = splitmix64(state + (item - 1) * 0x9E3779B97F4A7C15)
        expected = [splitmix64(seed + j * 0x9E3779B97F4A7C15) for j in range(3)]
        assert row.tolist() == expected


def test_a_number_depends_on_its_key_item_and_place_alone() -> None:
    items = np.arange(101)
    whole = uniforms((1, 2), items, 7)
    torch.testing.assert_close(uniforms((1, 2), items[37:41], 5), whole[37:41, :5], atol=0, rtol=0)
    assert not (uniforms((1, 3), items, 7) == whole).any()
    assert not (uniforms((2, 1), items, 7) == whole).any()


def test_numbers_are_uniform_and_unrelated() -> None:
    numbers = uniforms((0,), np.arange(20_011), 3)
    assert numbers.dtype == torch.float32
    assert 0 <= numbers.min() < 1e-3
    assert 1 - 1e-3 < numbers.max() < 1
    counts = torch.histc(numbers[:, 1], 16, 0, 1)
    expected = 20_011 / 16
    assert ((counts - expected) ** 2 / expected).sum() < 40  # chi-square, 15 degrees: p < 0.0005
    neighbours = torch.stack([numbers[1:, 0], numbers[:-1, 0], numbers[1:, 1], numbers[1:, 2]])
    assert (torch.corrcoef(neighbours) - torch.eye(4)).abs().max() < 0.03


def test_permutation() -> None:
    order = permutation((3,), 1009)
    np.testing.assert_array_equal(np.sort(order), np.arange(1009))
    np.testing.assert_array_equal(order, permutation((3,), 1009))
    assert (order != permutation((4,), 1009)).mean() > 0.99


def test_draws_are_fresh_at_every_call_and_every_epoch() -> None:
    items = np.array([3, 1, 2])
    draws = Draws(0, 5, items)
    first, second = draws.uniform(2), draws.uniform(2)
    assert not (first == second).any()
    assert not (first == Draws(0, 6, items).uniform(2)).any()
    torch.testing.assert_close(first[1:], Draws(0, 5, items[1:]).uniform(2), atol=0, rtol=0)
    coins = Draws(0, 5, np.arange(1000)).coins()
    torch.testing.assert_close(coins, Draws(0, 6, np.arange(1000)).coins(), atol=0, rtol=0)
    assert 0.45 < coins.mean() < 0.55
