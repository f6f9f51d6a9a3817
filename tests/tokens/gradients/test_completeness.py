"""Whether shares and constants add up, and what is said where they do not.

Axes: b batch, n tokens, d width.
"""

import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vision_attn.tokens.gradients.completeness import Account, CountedGradients, account_of
from vision_attn.tokens.gradients.graph import GraphMode, order_of
from vision_attn.tokens.gradients.mode import HeldGradients
from vision_attn.tokens.gradients.operations import unknown_operations


def drawn(*shape: Any, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, PARAMETER = drawn(1, 5, 7), drawn(5, 7, seed=1)
ROWS = torch.tensor([0, 3])
STATISTICS: tuple[Any, ...] = (
    PARAMETER[:, 0],
    PARAMETER[:, 1],
    PARAMETER[:, 2],
    PARAMETER[:, 3].abs(),
)
BATCH_NORM: Any = torch.batch_norm  # torch's types leave its arguments out
INSTANCE_NORM: Any = torch.instance_norm
SQUARE = PARAMETER.T @ PARAMETER
KERNEL, TIME = drawn(2, 5, 3, seed=5), drawn(1, 7, 2, seed=5)
FIRST = torch.zeros(1, 1, 7, dtype=torch.long)
# Linear but for what is added, whatever the values are.
AFFINE: dict[str, Any] = {
    "padded": lambda x: F.pad(x, (0, 0, 1, 2), value=0.7),
    "padded and cropped": lambda x: F.pad(x, (-1, 2), "constant", 0.7),
    "a padding module": lambda x: nn.ConstantPad1d(1, 0.7)(x),
    "padded by a number of torch's": lambda x: torch.constant_pad_nd(x, (1, 1), 0.7),
    "a mask's number": lambda x: x.masked_fill(X < 0, 0.7),
    "a mask's number by name": lambda x: x.masked_fill(mask=X < 0, value=0.7),
    "a mask's tensor": lambda x: x.masked_fill(X < 0, torch.tensor(0.7)),
    "a mask's number, in place": lambda x: (x * 1).masked_fill_(X < 0, 0.7),
    "rows filled": lambda x: x.index_fill(1, ROWS, 0.7),
    "rows filled, in place": lambda x: (x * 1).index_fill_(1, ROWS, 0.7),
    "a part filled": lambda x: part_of(x, lambda part: part.fill_(0.7)),
    "a part copied into": lambda x: part_of(x, lambda part: part.copy_(PARAMETER[0])),
    "a part filled, then emptied": lambda x: part_of(x + 0.7, lambda part: part.zero_()),
    "a diagonal filled": lambda x: (x[0, :5, :5] * 1).fill_diagonal_(0.7),
    "a diagonal replaced": lambda x: torch.diagonal_scatter(x[0], PARAMETER[:, 0]),
    "where, of a number": lambda x: torch.where(X > 0, 0.7, x),
    "where, of whole numbers": lambda x: torch.where(X > 0, x, torch.tensor(2)),
    "where, by name": lambda x: torch.where(X > 0, input=x, other=PARAMETER),
    "a full tensor": lambda x: x + torch.full((5, 7), 0.7, dtype=x.dtype),
    "one like it": lambda x: x + torch.full_like(x, 0.7),
    "a number of numpy's": lambda x: x + np.float32(0.7),
    "whole numbers": lambda x: x + torch.arange(7),
    "truth values": lambda x: x + (PARAMETER > 0),
    "a truth value": lambda x: x + True,
    "times a number": lambda x: torch.add(x, PARAMETER, alpha=2),
    "a number times a number": lambda x: torch.sub(x, other=3, alpha=2),
    "a sinusoidal table": lambda x: x + sinusoids(x),
    "beside, by name": lambda x: torch.cat(tensors=[x, PARAMETER[None]], dim=1),
    "whole numbers beside": lambda x: torch.cat([x, torch.ones(1, 2, 7, dtype=torch.int64)], 1),
    "stacked by name": lambda x: torch.stack(tensors=(x, PARAMETER[None]), dim=1),
    "blocks": lambda x: torch.block_diag(x[0], PARAMETER),
    "rows stacked": lambda x: torch.row_stack([x[0], PARAMETER]),
    "pairs": lambda x: torch.cartesian_prod(x[0, :, 0], PARAMETER[0]),
    "differences": lambda x: torch.diff(x, prepend=PARAMETER[None, :, :1]),
    "interpolated": lambda x: torch.lerp(x, PARAMETER[None], 0.3),
    "interpolated, by name": lambda x: torch.lerp(x, end=PARAMETER[None], weight=0.3),
    "interpolated from it": lambda x: torch.lerp(PARAMETER[None], x, PARAMETER.abs()),
    "a product's term": lambda x: torch.addcmul(PARAMETER, x, PARAMETER),
    "a product of constants": lambda x: torch.addcmul(x, PARAMETER, PARAMETER, value=0.5),
    "by name": lambda x: torch.addcmul(x, tensor1=PARAMETER, tensor2=PARAMETER),
    "a quotient's term": lambda x: torch.addcdiv(PARAMETER, x, PARAMETER.abs() + 1),
    "a quotient of constants": lambda x: torch.addcdiv(x, PARAMETER, PARAMETER.abs() + 1),
    "a matrix product of constants": lambda x: torch.addmm(x[0], PARAMETER, SQUARE),
    "the same in a batch": lambda x: torch.baddbmm(x, PARAMETER[None], SQUARE[None]),
    "the same in place": lambda x: (x * 1).baddbmm_(PARAMETER[None], SQUARE[None]),
    "the sum of a batch": lambda x: torch.addbmm(x[0], PARAMETER[None], SQUARE[None]),
    "with a vector": lambda x: torch.addmv(x[0, :, 0], PARAMETER, PARAMETER[0]),
    "an outer product": lambda x: torch.addr(x[0], PARAMETER[:, 0], PARAMETER[0]),
    "written into a canvas": lambda x: canvas(x),
    "added to a canvas": lambda x: torch.full((1, 5, 7), 0.7, dtype=x.dtype).add_(x),
    "copied into a part of a canvas": lambda x: canvas(x, lambda part, x: part.copy_(x)),
    "added to a part of a canvas": lambda x: canvas(x, lambda part, x: part.add_(x)),
    "added to a table": lambda x: added_to(PARAMETER[None].clone(), x),
    "a slice replaced": lambda x: torch.slice_scatter(x, PARAMETER[None, :2], 1, 0, 2),
    "a row replaced": lambda x: torch.select_scatter(x, PARAMETER[:1], 1, 0),
    "scattered, a number": lambda x: x.scatter(1, FIRST, 0.7),
    "scattered": lambda x: x.scatter(1, FIRST, PARAMETER[None, :1]),
    "scattered into": lambda x: PARAMETER[None].scatter(1, FIRST, x[:, :1]),
    "put": lambda x: x.put(ROWS, PARAMETER[0, :2]),
    "added to rows": lambda x: x.index_add(1, ROWS, PARAMETER[None, :2], alpha=2),
    "a convolution's bias": lambda x: F.conv1d(x, KERNEL, PARAMETER[0, :2]),
    "a convolution's bias, in time": lambda x: torch.conv_tbc(x, TIME, PARAMETER[0, :2]),
    "torch's own batch norm": lambda x: BATCH_NORM(x, *STATISTICS, False, 0.1, 1e-5, False),
    "torch's own instance norm": lambda x: INSTANCE_NORM(x, *STATISTICS, False, 0.1, 1e-5, False),
    "a complex number": lambda x: (torch.complex(x, x) * (2 - 1j) + (1 + 2j)).imag,
    "an imaginary part": lambda x: (torch.complex(x, PARAMETER[None]) * (2 - 1j)).real,
    "one number": lambda x: x.mean() + 0.7,
    "one number, by a mask": lambda x: torch.where(X.mean() > 9, x.mean(), 0.7) + x.sum(),
}


def part_of(x: Any, write: Any) -> Any:
    x = x * 1
    write(x[:, 0])
    return x


def sinusoids(x: Any) -> Any:
    """Positions that the network makes as it runs."""
    angles = torch.arange(x.shape[1])[:, None] / 100 ** (torch.arange(7, dtype=x.dtype) / 7)
    return torch.cat([angles.sin()[:, :4], angles.cos()[:, 4:]], 1)


def canvas(x: Any, write: Any = None) -> Any:
    whole = torch.full((1, 6, 7), 0.7, dtype=x.dtype)
    if write is None:
        whole[:, 1:] = x
    else:
        write(whole[:, 1:], x)
    return whole


def added_to(table: Any, x: Any) -> Any:
    table += x
    return table


@pytest.mark.parametrize("name", AFFINE)
def test_a_functions_constants_are_what_it_gives_at_0(name: str) -> None:
    """And its shares the difference of what it gives for twice the values and for these."""
    function = AFFINE[name]
    x = X.clone().requires_grad_()
    with CountedGradients(x) as counted:
        y = function(x)
    at_zero, at_one, at_two = (function(X * factor) for factor in (0, 1, 2))
    torch.testing.assert_close(y.detach(), at_one)
    weight = torch.tensor(1.3) if y.ndim == 0 else drawn(*y.shape, seed=3)
    account = account_of((y * weight).sum(), x, 2, counted)
    assert account.constants == pytest.approx(float((at_zero * weight).sum()), abs=1e-13)
    assert account.shares == pytest.approx(float(((at_two - at_one) * weight).sum()), abs=1e-13)
    assert account.gap < 1e-14
    assert not account.held
    assert abs(account.constants) > 1e-3
    x = X.clone().requires_grad_()
    with GraphMode() as mode:
        y = function(x)
    assert unknown_operations(order_of([y.grad_fn]), mode) == []


@pytest.mark.parametrize("name", AFFINE)
def test_single_precision_stays_single(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = sys.modules[__name__]
    for constant in ("X", "PARAMETER", "SQUARE", "KERNEL", "TIME"):
        monkeypatch.setattr(here, constant, getattr(here, constant).float())
    monkeypatch.setattr(here, "STATISTICS", tuple(each.float() for each in STATISTICS))
    x = X.clone().requires_grad_()
    with CountedGradients(x):
        y = AFFINE[name](x)
    torch.testing.assert_close(y.detach(), AFFINE[name](X), atol=1e-5, rtol=1e-5)


CONSTANTS = {
    "a parameter": (lambda x: x + PARAMETER, 1),
    "a parameter first": (lambda x: PARAMETER - x, 1),
    "a number": (lambda x: x - 3, 1),
    "a number first": (lambda x: 2 - x, 1),
    "in place": (lambda x: (x * 1).add_(PARAMETER), 1),
    "tokens beside": (lambda x: torch.cat([PARAMETER[None, :2], x, PARAMETER[None, 2:]], 1), 1),
    "bounds": (lambda x: x.clamp(PARAMETER - 1, PARAMETER + 1), 2),
    "a lower bound": (lambda x: torch.clamp(x, min=PARAMETER), 1),
    "a lower bound, a number": (lambda x: x.clamp(min=0.3), 1),
    "bounds of its own": (lambda x: x.clamp(max=x.flip(1) / 2 + 0.1), 1),
    "a bilinear layer's bias": (
        lambda x: F.bilinear(x[0], x[0], drawn(3, 7, 7), PARAMETER[0, :3]),
        1,
    ),
    "a bias": (lambda x: F.linear(x, PARAMETER, PARAMETER[:, 0]), 1),
    "a norm's bias": (lambda x: F.layer_norm(x, (7,), PARAMETER[0], PARAMETER[1]), 1),
    "a threshold": (lambda x: torch.maximum(x, PARAMETER), 1),
    "where": (lambda x: torch.where(x > 0, x, PARAMETER), 1),
    "where, of a number": (lambda x: torch.where(x > 0, x, 0.3), 1),
    "a mask's number": (lambda x: x.masked_fill(x < 0, 0.7), 1),
    "written in": (lambda x: written(x, PARAMETER[0]), 1),
    "written in, a number": (lambda x: written(x, 1.5), 1),
    "a running mean": (lambda x: F.batch_norm(x, PARAMETER[:, 0], PARAMETER[:, 1].abs()), 1),
    "sigmoid's half": (lambda x: x.sigmoid(), 1),
    "float32 among float64": (lambda x: x + PARAMETER.float(), 1),
    "addmm": (lambda x: torch.addmm(PARAMETER[:, :5], x[0], PARAMETER.T), 1),
}


def written(x: Any, value: Any) -> Any:
    x = x * 1
    x[:, 0] = value
    return x


@pytest.mark.parametrize("name", CONSTANTS)
def test_every_constant_that_is_added_is_counted(name: str) -> None:
    function, count = CONSTANTS[name]
    x = X.clone().requires_grad_()
    with CountedGradients(x) as counted:
        y = function(x)
    torch.testing.assert_close(y.detach(), function(X), check_dtype=True)
    assert len(counted.constants) == count
    assert not counted.held
    account = account_of((y * drawn(*y.shape, seed=3)).sum(), x, 2, counted)
    assert account.gap < 1e-14
    assert abs(account.constants) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("low", [-math.inf, torch.tensor(-math.inf), -0.25])
def test_a_maximum_over_what_a_mask_leaves_is_shared_out(low: Any, dtype: torch.dtype) -> None:
    x = X.to(dtype, copy=True).requires_grad_()
    with CountedGradients(x) as counted:
        y = x.masked_fill(X.median(1, keepdim=True)[0] > X, low).amax(1)
        y = y + torch.where(X[:, 0] > 0, x[:, 0], 0.5)
    assert y.dtype == dtype
    account = account_of(y.sum(), x, 2, counted)
    assert account.gap < (1e-14 if dtype == torch.float64 else 0.01)


def test_weights_of_products_are_no_constants() -> None:
    x = X.clone().requires_grad_()
    with CountedGradients(x) as counted:
        (x * PARAMETER) @ PARAMETER.T / 3
    assert not counted.constants


def test_what_is_held_and_then_added_is_told_by_its_function() -> None:
    x = X.clone().requires_grad_()
    with CountedGradients(x) as counted:
        y = (x + x.softmax(-1)).sum()
    account = account_of(y, x, 2, counted)
    assert not counted.constants
    assert account.held == pytest.approx({"softmax": 5.0})
    assert account.gap == pytest.approx(5 / max(abs(float(y.detach())), account.size))


def test_constants_beside_what_is_held_are_counted_still() -> None:
    x = X.clone().requires_grad_()
    with CountedGradients(x) as counted:
        beside = torch.cat([x, PARAMETER[None], x.softmax(-1), x.detach()], 1).sum()
        weighed = torch.addcdiv(PARAMETER, 2 * PARAMETER, 1 + x.abs()).sum()
        mixed = torch.lerp(x, PARAMETER[None], x.sigmoid()).sum()
    account = account_of(beside + weighed + mixed, x, 2, counted)
    assert account.constants == pytest.approx(float(2 * PARAMETER.sum()))
    expected = {
        "softmax": 5.0,
        "detach": float(X.sum()),
        "addcdiv": float((2 * PARAMETER / (1 + X.abs())).sum()),
        "lerp": float((PARAMETER * X.sigmoid()).sum()),
    }
    assert account.held == pytest.approx(expected)
    shares = float(X.sum() + (X * (1 - X.sigmoid())).sum())
    assert account.shares == pytest.approx(shares)


def test_what_passes_the_first_level_by_is_no_constant() -> None:
    from vision_attn.tokens.gradients.mode import Mark

    with CountedGradients(X, [(Mark("relu", (1, 5, 7), 0), False)]) as counted:
        y = (X.relu() + X).sum()
    account = account_of(y, counted.kept[0], 2, counted)
    assert account.held == pytest.approx({"what goes past the first level": float(X.sum())})


def test_the_gap_is_a_share_of_the_larger_of_the_score_and_the_shares() -> None:
    assert Account(2.0, 1.0, 1.5, 0.5, {}).gap == 0.25
    assert Account(0.0, 3.0, 6.0, 0.0, {}).gap == 0.5
    assert Account(0.0, 0.0, 0.0, 0.0, {}).gap == 0


def test_a_norm_that_is_not_held_takes_all_shares_from_what_goes_into_it() -> None:
    """Euler: before a norm, and nothing else, tokens times plain gradients sum to 0."""
    head = drawn(7, seed=4)
    for mode, expected in ((None, False), (HeldGradients(), True)):
        x = X.clone().requires_grad_()
        if mode is None:
            y = (F.layer_norm(x, (7,), eps=0) @ head).sum()
        else:
            with mode:
                y = (F.layer_norm(x, (7,), eps=0) @ head).sum()
        (gradient,) = torch.autograd.grad(y, x)
        shares = (x * gradient).sum(-1)
        assert bool((shares.abs() > 1e-3).any()) is expected
        assert float((shares.sum() - y).abs().detach()) < 1e-12 or not expected


def test_half_precision_runs_in_half_precision() -> None:
    network = nn.Sequential(nn.Linear(7, 11), nn.GELU(), nn.LayerNorm(11)).bfloat16()
    network.requires_grad_(False)
    x = X[0].bfloat16().requires_grad_()
    with CountedGradients(x):
        y = network(x) + 1
    assert y.dtype == torch.bfloat16
