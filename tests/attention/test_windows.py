"""Windows: by definition, in tiles, by gathering; and that the last two grow with the length."""

import warnings
from collections.abc import Callable
from functools import partial
from math import ceil, exp, inf
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vision_attn.attention import (
    Additive,
    Attend,
    General,
    Local2d,
    LocalMonotonic,
    LocalPredictive,
    MultiDimAdditive,
    ScaledDot,
    Score,
    Sparsemax,
    Window,
)
from vision_attn.attention.local import Axis, Grid, tiled
from vision_attn.attention.windows import gathered, positions_around
from vision_attn.types import TokenLayout

B, HEADS, D = 2, 3, 5


def sequence(n: int, heads: int = HEADS) -> Tensor:
    return torch.randn(B, heads, n, D)


def test_local_monotonic_sees_the_positions_around_its_own() -> None:
    for queries, keys in ((7, 7), (5, 13), (13, 5)):
        mask, gain = LocalMonotonic(radius=2).terms(sequence(queries), sequence(keys), None)
        assert gain is None
        for i in range(queries):
            for j in range(keys):
                assert mask is not None
                assert mask[i, j] == (abs(j - i * keys / queries) <= 2)


@pytest.mark.parametrize("radius", [0, 1, 2, 3, inf])
@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_local2d_sees_the_neighbours_on_the_grid_and_the_prefix(prefix: int, radius: int) -> None:
    layout = TokenLayout(prefix, (3, 5), "mean")
    tokens = sequence(layout.tokens)
    mask, _ = Local2d(radius=radius).terms(tokens, tokens, layout)
    mask = torch.ones(layout.tokens, layout.tokens) if mask is None else mask
    for i in range(layout.tokens):
        for j in range(layout.tokens):
            (y, x), (z, w) = divmod(i - prefix, 5), divmod(j - prefix, 5)
            near = abs(y - z) <= radius and abs(x - w) <= radius
            assert mask[i, j] == (i < prefix or j < prefix or near)


def test_local_predictive_is_the_formula_for_every_pair() -> None:
    window = LocalPredictive(D, heads=HEADS, radius=3)
    attend = Attend(ScaledDot(D), window=window)
    q, k = sequence(5), sequence(11)
    weights, whole = attend.weights(q, k), Attend(ScaledDot(D))
    for b in range(B):
        for h in range(HEADS):
            for i in range(5):
                hidden = (window.hidden.weight[h].T @ q[b, h, i]).tanh()
                p = 11 / (1 + exp(-(window.position.weight[h, :, 0] @ hidden).item()))
                seen = [j for j in range(11) if abs(j - p) <= 3]
                mask = torch.zeros(11, dtype=torch.bool)
                mask[seen] = True
                inside = whole.weights(q, k, mask)[b, h, i]
                for j in range(11):
                    gain = exp(-((j - p) ** 2) / (2 * 1.5**2)) if j in seen else 0.0
                    torch.testing.assert_close(weights[b, h, i, j], inside[j] * gain)


def test_local_predictive_in_bfloat16_sees_as_many_of_a_long_memory() -> None:
    """bfloat16 has no odd number between 256 and 512, and only every fourth up to 1024."""
    window = LocalPredictive(D, heads=HEADS, radius=3)
    q, k = sequence(5), sequence(997)
    attend = Attend(ScaledDot(D), window=window).to(torch.bfloat16)
    q, k = q.bfloat16(), k.bfloat16()
    centre = window.centre(q, 997)
    assert centre.dtype == torch.float32
    weights = attend.weights(q, k)
    assert weights.dtype == torch.bfloat16
    expected = (torch.arange(997) - centre).abs() <= 3
    assert expected.sum(-1).min() >= 6
    assert torch.equal(weights > 0, expected)
    torch.testing.assert_close(attend(q, k, k), weights @ k, rtol=0.05, atol=0.02)


def test_the_gradient_of_local_predictive_reaches_the_position() -> None:
    window = LocalPredictive(D, radius=2)
    q, k, v = sequence(5), sequence(41), sequence(41)
    for forward in (Attend(ScaledDot(D), window=window), partial(by_definition, window)):
        window.zero_grad()
        forward(q, k, v).square().sum().backward()
        assert window.position.weight.grad.abs().sum() > 0
        assert window.hidden.weight.grad.abs().sum() > 0


def by_definition(
    window: Window,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    layout: TokenLayout | None = None,
    score: Score | None = None,
) -> Tensor:
    attend = Attend(ScaledDot(D) if score is None else score, window=window)
    return attend.weights(q, k, mask, layout) @ v


def masks(n: int, keys: int | None = None) -> dict[str, Tensor | None]:
    keys = n if keys is None else keys
    shapes = [(B, 1, 1, keys), (n, keys), (B, HEADS, n, keys), (1, HEADS, n, 1), (B, 1, n, keys)]
    return {"none": None} | {str(shape): torch.rand(shape) > 0.4 for shape in shapes}


@pytest.mark.parametrize("make", [ScaledDot, Additive])
@pytest.mark.parametrize(
    ("size", "reach", "prefix"),
    [((11, 13), (2, 2), 1), ((7, 5), (1, 3), 0), ((29, 1), (5, 0), 2), ((4, 9), (3, 0), 1)],
)
def test_tiles_give_what_the_definition_gives(
    size: tuple[int, int], reach: tuple[int, int], prefix: int, make: Callable[..., Score]
) -> None:
    grid = Grid(Axis.of(size[0], reach[0]), Axis.of(size[1], reach[1]))
    n = prefix + size[0] * size[1]
    near = torch.nn.functional.pad(grid.near(torch.device("cpu")), (prefix, 0, prefix, 0), value=1)
    attend = Attend(make(D, heads=HEADS))
    q, k, v = (sequence(n).requires_grad_() for _ in range(3))
    for mask in masks(n).values():
        axes4 = None if mask is None else mask[(None,) * (4 - mask.ndim)]
        in_tiles = tiled(attend._context, grid, prefix, q, k, v, axes4)
        dense = attend(q, k, v, near if mask is None else near & mask)
        torch.testing.assert_close(in_tiles, dense)
        grad = torch.randn_like(dense)
        for a, b in zip(
            torch.autograd.grad(in_tiles, (q, k, v), grad),
            torch.autograd.grad(dense, (q, k, v), grad),
            strict=True,
        ):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("make", [ScaledDot, Additive])
def test_gathering_gives_what_the_definition_gives(make: Callable[..., Score]) -> None:
    attend = Attend(make(D, heads=HEADS))
    q, k, v = (sequence(n).requires_grad_() for n in (7, 19, 19))
    centre = 19 * torch.rand(B, HEADS, 7, 1)
    seen = positions_around(centre, 2)
    near, gain = (torch.arange(19) - centre).abs() <= 2, torch.rand(B, HEADS, 7, 19)
    inside = seen.clamp(0, 18)
    for mask in masks(7, 19).values():
        axes4 = None if mask is None else mask[(None,) * (4 - mask.ndim)]
        own = near.gather(-1, inside), gain.gather(-1, inside)
        sparse = gathered(attend._context, q, k, v, axes4, seen, *own)
        dense = (attend.weights(q, k, near if mask is None else near & mask) * gain) @ v
        torch.testing.assert_close(sparse, dense)
        grad = torch.randn_like(dense)
        for a, b in zip(
            torch.autograd.grad(sparse, (q, k, v), grad),
            torch.autograd.grad(dense, (q, k, v), grad),
            strict=True,
        ):
            torch.testing.assert_close(a, b)


LONG: dict[str, tuple[Callable[..., Window], int, int, TokenLayout | None]] = {
    "monotonic": (partial(LocalMonotonic, radius=3), 211, 211, None),
    "monotonic with prefix": (
        partial(LocalMonotonic, radius=3),
        211,
        211,
        TokenLayout(2, (19, 11)),
    ),
    "monotonic over a longer memory": (partial(LocalMonotonic, radius=1), 53, 211, None),
    "predictive": (partial(LocalPredictive, radius=1), 53, 211, None),
    "2d": (partial(Local2d, radius=1), 210, 210, TokenLayout(1, (19, 11))),
}


@pytest.mark.parametrize("make", [ScaledDot, General, Additive, MultiDimAdditive])
@pytest.mark.parametrize(("window", "queries", "keys", "layout"), LONG.values(), ids=LONG)
def test_long_inputs_take_the_short_way_to_the_same_result(
    window: Callable[..., Window],
    queries: int,
    keys: int,
    layout: TokenLayout | None,
    make: Callable[..., Score],
) -> None:
    score, window = make(D, heads=HEADS), window(head_dim=D, heads=1)
    one_head = make in (General, MultiDimAdditive)  # views: one head of queries and keys
    q, k = sequence(queries, 1 if one_head else HEADS), sequence(keys, 1 if one_head else HEADS)
    v = sequence(keys)
    attend = Attend(score, window=window)
    largest = Largest()
    with largest:
        context = attend(q, k, v, None, layout)
    torch.testing.assert_close(context, by_definition(window, q, k, v, None, layout, score))
    if make is ScaledDot:
        assert largest.numbers < B * HEADS * queries * keys / 2
    mask = torch.rand(B, 1, 1, keys) > 0.3
    torch.testing.assert_close(
        attend(q, k, v, mask, layout), by_definition(window, q, k, v, mask, layout, score)
    )


def test_sparse_weights_in_a_window() -> None:
    layout = TokenLayout(1, (17, 13))
    attend = Attend(ScaledDot(D), Sparsemax(), Local2d(radius=1))
    q, k, v = (sequence(layout.tokens) for _ in range(3))
    expected = attend.weights(q, k, layout=layout) @ v
    torch.testing.assert_close(attend(q, k, v, layout=layout), expected)


class Largest(TorchDispatchMode):
    """The numbers in the largest tensor that any operation makes."""

    numbers = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        made = result if isinstance(result, tuple | list) else [result]
        sizes = [x.untyped_storage().nbytes() // x.itemsize for x in made if isinstance(x, Tensor)]
        self.numbers = max([self.numbers, *sizes])
        return result


@pytest.mark.parametrize("name", ["monotonic", "predictive", "2d"])
def test_memory_grows_with_the_length_alone(name: str) -> None:
    largest = []
    for side in (32, 64):
        n = side * side
        window, _, _, layout = LONG[name]
        layout = None if layout is None else TokenLayout(1, (side, side))
        n += 0 if layout is None else 1
        q, k, v = (torch.randn(1, 1, n, D, requires_grad=True) for _ in range(3))
        with Largest() as seen:
            attend = Attend(ScaledDot(D), window=window(head_dim=D))
            attend(q, k, v, None, layout).sum().backward()
        largest.append(seen.numbers)
    assert largest[1] < 5 * largest[0]
    assert largest[1] < 4096 * 100


@pytest.mark.slow
def test_flex_attention_agrees() -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    rows, columns, radius = 11, 13, 2
    n = rows * columns
    q, k, v = (torch.randn(1, 2, n, 16) for _ in range(3))

    def near_on_grid(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        y, x = i // columns - j // columns, i % columns - j % columns
        return (y.abs() <= radius) & (x.abs() <= radius)

    def near_in_line(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i - j).abs() <= radius

    for window, near in (
        (Local2d(radius=radius), near_on_grid),
        (LocalMonotonic(radius=radius), near_in_line),
    ):
        block_mask = create_block_mask(near, None, None, n, n, device="cpu", _compile=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns that it is slow unless compiled
            expected = flex_attention(q, k, v, block_mask=block_mask)
        layout = TokenLayout(0, (rows, columns), "mean") if isinstance(window, Local2d) else None
        context = Attend(ScaledDot(16), window=window)(q, k, v, layout=layout)
        torch.testing.assert_close(context, expected)


def test_tiles_cover_the_axis() -> None:
    for size in range(1, 60):
        for radius in (0, 1, 3, 7, 100, inf):
            axis = Axis.of(size, radius)
            assert 0 <= axis.beyond < axis.tile <= size
            assert axis.tiles == ceil(size / axis.tile)


def test_bad_input_is_refused() -> None:
    for make in (Local2d, LocalMonotonic):
        for radius in (-1, 1.5, float("nan")):
            message = f"radius must be a whole number of at least 0, or inf, got {radius}"
            with pytest.raises(ValueError, match=message):
                make(radius=radius)
    with pytest.raises(ValueError, match="radius must be at least 1, got 0"):
        LocalPredictive(D, radius=0)
    q = sequence(10)
    attend = Attend(ScaledDot(D), window=Local2d(radius=1))
    with pytest.raises(ValueError, match=r"Local2d needs to know the grid: give layout="):
        attend(q, q, q)
    with pytest.raises(ValueError, match="layout has 13 tokens, got 10 queries and 10 keys"):
        attend(q, q, q, layout=TokenLayout(1, (3, 4)))
    with pytest.raises(ValueError, match="layout has 10 tokens, got 9 queries and 10 keys"):
        attend(q[:, :, 1:], q, q, layout=TokenLayout(1, (3, 3)))
