"""Whether shares and constants add up, and what is said where they do not.

Axes: b batch, n tokens, d width.
"""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vision_attn.tokens.gradients.completeness import Account, CountedGradients, account_of
from vision_attn.tokens.gradients.mode import HeldGradients


def drawn(*shape: Any, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, PARAMETER = drawn(1, 5, 7), drawn(5, 7, seed=1)
CONSTANTS = {
    "a parameter": (lambda x: x + PARAMETER, 1),
    "a parameter first": (lambda x: PARAMETER - x, 1),
    "a number": (lambda x: x - 3, 1),
    "a number first": (lambda x: 2 - x, 1),
    "in place": (lambda x: (x * 1).add_(PARAMETER), 1),
    "tokens beside": (lambda x: torch.cat([PARAMETER[None, :2], x, PARAMETER[None, 2:]], 1), 2),
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
