"""The pixels behind each value, by its origins, against those that change it."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vision_attn.tokens.trace.shapes import NeedsValuesError, Shapes
from vision_attn.tokens.trace.tracer import Tracer

SIZE = (5, 7)
SEEDS = range(60)


def drawn(*shape: int) -> Tensor:
    """Positive weights, so that no two ways cancel."""
    return torch.rand(*shape, dtype=torch.float64) + 0.1


def convolved(x: Tensor, size: tuple[int, int], **how: Any) -> Tensor:
    return F.conv2d(x, drawn(3, x.shape[1] // how.get("groups", 1), *size), **how)


def average(x: Tensor, *axes: int) -> Tensor:
    return x.mean(axes, keepdim=True).expand_as(x)


def mirrored(x: Tensor) -> Tensor:
    return x[:, :, torch.arange(x.shape[2] - 1, -1, -1)]


def with_a_token(x: Tensor) -> Tensor:
    tokens = x.flatten(2)
    return torch.cat([tokens.mean(2, keepdim=True), tokens[..., 1:]], 2).view_as(x)


def in_windows(x: Tensor) -> Tensor:
    x = F.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2))
    windows = x.unfold(2, 2, 2).unfold(3, 2, 2).flatten(4)
    return (windows + windows.mean(4, keepdim=True)).permute(0, 1, 4, 2, 3).flatten(1, 2)


MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "convolution": lambda x: convolved(x, (3, 3), padding=1),
    "convolution of one place": lambda x: convolved(x, (1, 1)),
    "convolution in steps": lambda x: convolved(x, (3, 2), padding=1, stride=2),
    "wide convolution": lambda x: convolved(x, (2, 2), padding=1, dilation=2),
    "depthwise convolution": lambda x: F.conv2d(
        x, drawn(x.shape[1], 1, 3, 3), padding=1, groups=x.shape[1]
    ),
    "transposed convolution": lambda x: F.conv_transpose2d(x, drawn(x.shape[1], 3, 2, 2), stride=2)[
        ..., :7, :7
    ],
    "mean pool": lambda x: F.avg_pool2d(x, 2, stride=1, padding=1),
    "ragged pool": lambda x: F.avg_pool2d(x, 2, stride=2, ceil_mode=True),
    "one place": lambda x: F.adaptive_avg_pool2d(x, 1),
    "mean of the map": lambda x: average(x, 2, 3),
    "mean of columns": lambda x: average(x, 2),
    "mean of channels": lambda x: average(x, 1),
    "gate": lambda x: x * x.mean((2, 3), keepdim=True),
    "neighbour": lambda x: x + x.roll(1, 3),
    "turn": lambda x: x.roll((1, 2), (2, 3)),
    "padding": lambda x: F.pad(x, (1, 0, 0, 1)),
    "reflection": lambda x: F.pad(x, (x.shape[3] - 1, 0, 0, 0), mode="reflect"),
    "crop": lambda x: x[..., x.shape[2] // 2 :, :],
    "context beside": lambda x: torch.cat([x, average(x, 2, 3)], 1),
    "map below": lambda x: torch.cat([x, x.flip(2)], 2)[:, :, :7],
    "nearest": lambda x: F.interpolate(x, scale_factor=2)[..., :7, :7],
    "transposition": lambda x: x.transpose(2, 3),
    "linear layer": lambda x: F.linear(x.permute(0, 2, 3, 1), drawn(3, x.shape[1])).movedim(3, 1),
    "product from the left": lambda x: torch.matmul(drawn(3, x.shape[2]), x),
    "rows and columns": lambda x: x.mean(3, keepdim=True) + x.mean(2, keepdim=True),
    "product of rows and columns": lambda x: x.mean(3, keepdim=True) * x.mean(2, keepdim=True),
    "token": with_a_token,
    "windows": in_windows,
    "index": mirrored,
    "halves": lambda x: torch.cat(x.chunk(2, 2)[::-1], 2),
    "mean expanded": lambda x: x.mean((2, 3))[:, :, None, None].expand(-1, -1, *x.shape[2:]),
}


def part_of_zeros(x: Tensor) -> Tensor:
    y = x.new_zeros(*x.shape[:3], x.shape[3] + 1)
    y[..., : x.shape[3]] = x
    return y


def added_to_a_row(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[:, :, 0] += x.mean(2)
    return y + x


def row_by_row(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    for row in range(x.shape[2]):
        y[:, :, row] = x[:, :, row] + x[:, :, max(0, row - 1)]
    return y


def coupled(x: Tensor) -> Tensor:
    y = x.clone()
    first, rest = y.split([1, y.shape[2] - 1], 2)
    first.add_(rest.sum(2, keepdim=True))
    return y


def first_of_all(x: Tensor) -> Tensor:
    y = x.clone()
    columns = y.unbind(3)
    columns[0].copy_(columns[-1] + x.mean(3))
    return y


def read_after_writing(x: Tensor) -> Tensor:
    y = x.clone()
    view = y[:, :, :1]
    part = view[..., :1]
    y += x.roll(1, 3)
    y[:, :, 0] *= x.mean(2)
    return y + view + part


def through_turned_axes(x: Tensor) -> Tensor:
    y = x.clone()
    y.transpose(2, 3)[:, :, 0] += x.mean(3)
    return y


def filled(x: Tensor) -> Tensor:
    y = x + x.roll(1, 2)
    y[:, :, 0] = 0
    return y


def exchanged(x: Tensor) -> Tensor:
    y = x.clone()
    first, last = y[:, :, 0], y[:, :, -1].clone()
    y[:, :, -1] = first
    first.copy_(last)
    return y


def rows_by_index(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[:, :, torch.tensor([2, 0])] = x[:, :, :2]
    return y + x.roll(1, 3)


def copied_by_index(x: Tensor) -> Tensor:
    return x.index_copy(2, torch.tensor([1]), x.mean(2, keepdim=True))


def scattered(x: Tensor) -> Tensor:
    index = torch.zeros(1, 3, x.shape[2], 2, dtype=torch.long) + torch.tensor([1, 3])
    return x.scatter(3, index, x[..., -2:] + x.mean()).scatter(3, index[..., :1], 0.0)


def replaced_slices(x: Tensor) -> Tensor:
    y = torch.slice_scatter(x, x[:, :, -2:].flip(2), 2, 0, 2)
    return torch.select_scatter(y, x.mean(3), 3, 1)


def turned_in_place(x: Tensor) -> Tensor:
    y = x.clone()
    row = y[:, :, 1:]
    row.transpose_(2, 3)
    row[:, :, 0] += x.mean(3)[:, :, 1:]
    return y + row.mean()


def turned_under_a_view(x: Tensor) -> Tensor:
    y = x.clone()
    view = y[:, :, :1]
    y.transpose_(2, 3)
    y[:, :, 0] = x.mean(3)
    return x + view + y.transpose(2, 3)


def turned_twice(x: Tensor) -> Tensor:
    y = x.clone().transpose_(2, 3).unsqueeze_(2)
    y[..., 0] *= x.mean(2).unsqueeze(2)
    y.squeeze_(2).swapaxes_(2, 3)
    y[:, :, -1] = 0
    return y


def square(x: Tensor) -> Tensor:
    side = min(x.shape[2:])
    y = x[:, :, :side, :side].clone()
    y.transpose_(2, 3)
    y[:, :, 0] += y[:, :, -1]
    return y


def strided(x: Tensor) -> Tensor:
    y = x.contiguous().clone()
    *lead, rows, _ = y.stride()
    diagonal = y.as_strided((*y.shape[:2], min(y.shape[2:])), (*lead, rows + 1))
    diagonal *= x.mean((2, 3)).unsqueeze(2)
    return y + diagonal.sum()


def one_number(x: Tensor) -> Tensor:
    y = x.clone()
    y[0, 0, 0, 0] = 0
    return y


def norm_of_none(x: Tensor) -> Tensor:
    none = F.layer_norm(x[:, :0].mT, x.shape[2:3])
    return torch.cat([x, none.mT], 1)


def complex_pairs(x: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x[..., :4].unflatten(3, (2, 2)).contiguous())
    return torch.view_as_real(pairs * (1 + 2j)).flatten(3)


def strided_in_place(x: Tensor) -> Tensor:
    y = x.contiguous().clone()
    row = y[:, :, 1]
    *lead, rows, columns = y.stride()
    y.as_strided_((*y.shape[:2], y.shape[3], y.shape[2]), (*lead, columns, rows))
    y[:, :, :, 0] += x.mean(2)
    row.as_strided_((*y.shape[:2], 1), (*lead, rows))
    return y + row[..., None]


def strided_turn(x: Tensor) -> Tensor:
    side = min(x.shape[2:])
    y = x[:, :, :side, :side].contiguous()
    *lead, rows, columns = y.stride()
    return y.as_strided(y.shape, (*lead, columns, rows))


def strided_before_writing(x: Tensor) -> Tensor:
    y = x.contiguous().clone()
    row = y.as_strided((*y.shape[:2], 1, y.shape[3]), y.stride())
    y += x.roll(1, 3)
    return y * row


WRITES: dict[str, Callable[[Tensor], Tensor]] = {
    function.__name__: function
    for function in (
        *(part_of_zeros, added_to_a_row, row_by_row, coupled, first_of_all, read_after_writing),
        *(through_turned_axes, filled, exchanged, rows_by_index, copied_by_index, scattered),
        *(replaced_slices, turned_in_place, turned_under_a_view, turned_twice, square),
        *(strided, strided_turn, strided_before_writing, strided_in_place),
        *(one_number, norm_of_none, complex_pairs),
    )
}
EVERY = MOVES | WRITES


def behind(function: Callable[[Tensor], Tensor], image: Tensor, by_shapes: bool) -> list[set[int]]:
    """The pixels behind each place of a result (c i j), by origins."""
    tracer = Tracer(Shapes() if by_shapes else None)
    with torch.no_grad():
        traced = tracer.image(image)
        with tracer:
            out = function(traced)
    pixels = image[0, 0].numel()

    def of(ids: list[int]) -> set[int]:
        found = tracer.origins.behind([origin for origin in ids if origin])
        return set(found[1 : pixels + 1].nonzero()[:, 0].tolist())

    return [of(ids) for ids in tracer.origins_of(out)[0].flatten(1).T.tolist()]


@torch.no_grad()
def reached(function: Callable[[Tensor], Tensor], image: Tensor) -> list[set[int]]:
    """The pixels that change each place of a result."""
    before = function(image)[0].flatten(1)
    found: list[set[int]] = [set() for _ in range(before.shape[1])]
    for pixel in range(image[0, 0].numel()):
        other = image.clone()
        other.view(-1, image[0, 0].numel())[:, pixel] += 1
        changed = (function(other)[0].flatten(1) != before).any(0)
        for place in changed.nonzero()[:, 0].tolist():
            found[place].add(pixel)
    return found


@pytest.mark.parametrize("by_shapes", [False, True])
@pytest.mark.parametrize("name", EVERY)
def test_one_operation_keeps_its_pixels(name: str, by_shapes: bool) -> None:
    torch.manual_seed(0)
    image = drawn(1, 3, *SIZE)

    def function(x: Tensor) -> Tensor:
        torch.manual_seed(1)
        return EVERY[name](x)

    assert behind(function, image, by_shapes) == reached(function, image)


@pytest.mark.parametrize("before", ["mean of the map", "mean of columns", "one place"])
@pytest.mark.parametrize("name", EVERY)
def test_an_axis_on_which_all_is_equal_keeps_its_pixels(name: str, before: str) -> None:
    torch.manual_seed(0)
    image = drawn(1, 3, *SIZE)

    def function(x: Tensor) -> Tensor:
        torch.manual_seed(1)
        return EVERY[name](MOVES[before](x).expand_as(x))

    assert behind(function, image, False) == reached(function, image)


@pytest.mark.parametrize("seed", SEEDS)
def test_operations_in_a_row_lose_no_pixel(seed: int) -> None:
    names = random.Random(seed).choices(list(EVERY), k=3)
    torch.manual_seed(seed)
    image = drawn(1, 3, *SIZE)

    def function(x: Tensor) -> Tensor:
        torch.manual_seed(seed)
        for name in names:
            x = F.pad(EVERY[name](x)[:, :4], (0, 1, 0, 1))
        return x

    wanted = reached(function, image)
    for by_shapes in (False, True):
        try:
            found = behind(function, image, by_shapes)
        except NeedsValuesError:
            assert by_shapes
            continue
        assert all(one <= other for one, other in zip(wanted, found, strict=True)), names
