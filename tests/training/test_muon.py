import re
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import SGD, AdamW, Optimizer

from vision_attn.training import MuonAdamW, MuonSGD, muon, parameter_groups
from vision_attn.training.muon import orthogonal


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 7, 3), nn.Conv2d(7, 13, 3), nn.Flatten(), nn.Linear(13, 11), nn.Linear(11, 5)
    )


def step(network: nn.Sequential, optimizer: Optimizer) -> None:
    optimizer.zero_grad()
    torch.manual_seed(1)
    network(torch.randn(17, 3, 5, 5)).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("small", [0, 76, muon.SMALL])
def test_hidden_matrices_move_as_with_torchs_muon(
    small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(muon, "SMALL", small)  # no stacks, those of 5 x 13, of all
    shapes = [(11, 7), (5, 13), (11, 7), (11, 11), (11, 7), (5, 13), (11, 11)]
    ours = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [nn.Parameter(weight.detach().clone()) for weight in ours]
    options: dict[str, Any] = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1}
    optimizer = MuonAdamW([{"params": ours, "hidden": True}], **options)
    oracle = torch.optim.Muon(theirs, **options)
    for turn in range(3):
        for at, (weight, twin) in enumerate(zip(ours, theirs, strict=True)):
            weight.grad = None if (turn, at) == (1, 2) else torch.randn(weight.shape)
            twin.grad = None if weight.grad is None else weight.grad.clone()
        optimizer.step()
        oracle.step()
    for weight, twin in zip(ours, theirs, strict=True):
        torch.testing.assert_close(weight, twin, atol=2e-3, rtol=0)


def test_small_matrices_of_one_shape_are_worked_on_together() -> None:
    weights = [
        torch.empty(shape, requires_grad=True)
        for shape in [(7, 3, 3, 3), (7, 27), (27, 7), (512, 513), (512, 513), (7, 27)]
    ]
    for weight in weights[:-1]:
        weight.grad = torch.empty_like(weight)
    groups = muon.alike(weights)
    places = [[next(i for i, w in enumerate(weights) if w is one) for one in g] for g in groups]
    assert places == [[0, 1], [2], [3], [4]]


def test_normed_weights_step_from_the_norm_of_the_square_root_of_their_rows() -> None:
    weight = nn.Parameter(17 * torch.randn(7, 3, 3, 3))
    start = weight.detach().flatten(1)
    start = start * 7**0.5 / start.square().sum().sqrt()
    weight.grad = torch.randn(7, 3, 3, 3)
    step = orthogonal(weight.grad.flatten(1) * 1.95)  # with the momentum of the first step
    MuonAdamW([{"params": [weight], "hidden": True}], lr=0.3, weight_decay=0.0, normed=True).step()
    torch.testing.assert_close(weight.detach().flatten(1), start - 0.3 * step)


def test_the_rest_moves_as_with_adamw() -> None:
    ours, theirs = network(), network()
    muon = MuonAdamW(parameter_groups(ours), adam_lr=0.01, betas=(0.8, 0.9), weight_decay=0.1)
    _, *rest = parameter_groups(theirs)
    oracle = AdamW(rest, lr=0.01, betas=(0.8, 0.9), weight_decay=0.1)
    step(ours, muon)
    step(theirs, oracle)
    for name in ("0.weight", "0.bias", "1.bias", "4.weight", "4.bias"):
        torch.testing.assert_close(ours.get_parameter(name), theirs.get_parameter(name))


class Gated(nn.Module):
    """A matrix, a gate that keeps apart, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.matrix = nn.Linear(11, 7), nn.Linear(7, 7)
        self.gate, self.head = nn.Linear(7, 7), nn.Linear(7, 5)
        vars(self.gate)["orthogonal"] = False
        self.double()


@pytest.mark.parametrize("head_lr", [0.7, None])
def test_with_muon_sgd_the_rest_moves_as_with_nesterov_sgd_and_gates_as_with_adamw(
    head_lr: float | None,
) -> None:
    ours, theirs, start = Gated(), Gated(), Gated()
    muon = MuonSGD(
        parameter_groups(ours), lr=0.2, sgd_lr=0.3, head_lr=head_lr, adam_lr=0.02, momentum=0.5,
        sgd_momentum=0.9, weight_decay=0.01,
    )  # fmt: skip
    fast: dict[str, Any] = {"lr": head_lr, "weight_decay": 0.01 * 0.3 / head_lr} if head_lr else {}
    heads = {"params": [theirs.stem.weight, theirs.head.weight], **fast}
    biases: dict[str, Any] = {"params": [theirs.stem.bias, theirs.matrix.bias, theirs.head.bias]}
    decay: dict[str, Any] = {"momentum": 0.9, "weight_decay": 0.01}
    oracles = [
        SGD([heads, biases], lr=0.3, nesterov=True, **decay),
        AdamW(theirs.gate.parameters(), lr=0.02, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    for _ in range(3):
        gradients = [torch.randn_like(weight) for weight in ours.parameters()]
        for net in (ours, theirs):
            for weight, gradient in zip(net.parameters(), gradients, strict=True):
                weight.grad = gradient.clone()
        muon.step()
        for oracle in oracles:
            oracle.step()
    for name, weight in theirs.named_parameters():
        if name != "matrix.weight":
            torch.testing.assert_close(ours.get_parameter(name), weight, msg=name)
    assert torch.equal(theirs.matrix.weight, start.matrix.weight)
    assert ours.matrix.weight.norm().item() == pytest.approx(7**0.5, rel=0.25)  # normed, and a step


@pytest.mark.parametrize("shape", [(13, 5), (5, 13), (11, 11)])
def test_orthogonal_has_singular_values_near_one_and_keeps_the_directions(
    shape: tuple[int, int],
) -> None:
    matrix = torch.randn(shape)
    found = orthogonal(matrix)
    u, s, vt = torch.linalg.svd(matrix, full_matrices=False)
    along = torch.diagonal(u.T @ found @ vt.T)
    assert found.shape == shape
    assert (along[s > 0.05 * s[0]] - 0.95).abs().max() < 0.35


@pytest.mark.parametrize(("precision", "rounding"), [("32-true", 1e-2), ("bf16-mixed", 0.25)])
def test_orthogonal_brings_values_above_a_share_of_the_norm_near_one(
    precision: str, rounding: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bounds of its docstring, of a square matrix whose values go down to almost 0."""
    monkeypatch.setattr(muon, "native_precision", lambda device: precision)
    values = torch.logspace(0, -7, 41)
    u, v = (torch.linalg.qr(torch.randn(41, 41)).Q for _ in range(2))
    found = torch.linalg.svdvals(orthogonal(u @ values.diag() @ v.T))
    large = values >= 0.0015 * values.norm()
    assert found[large].min() > 0.66
    assert found.max() < 1.23
    assert (found[~large] <= 500 * values[~large] / values.norm() + rounding).all()
    assert found.min() < 0.1


@pytest.mark.parametrize("shape", [(64, 64), (64, 40), (37, 101)])
def test_orthogonal_keeps_the_bounds_that_its_docstring_names(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(muon, "native_precision", lambda device: "32-true")
    assert orthogonal.__doc__ is not None
    words = " ".join(orthogonal.__doc__.split())
    bounds = re.search(r"between (\d\.\d+) and (\d\.\d+)", words)
    assert bounds is not None
    low, high = map(float, bounds.groups())
    share = re.search(r"of at least (\d\.\d+) of the matrix's Frobenius norm", words)
    matrix = torch.randn(shape)
    u, values, v = torch.linalg.svd(matrix, full_matrices=False)
    found = (u.T @ orthogonal(matrix) @ v.T).diag()
    named = found[values >= (float(share[1]) if share else 0) * values.norm()]
    assert low <= named.min()
    assert named.max() <= high


@pytest.mark.parametrize("rank", [3, 31])
@pytest.mark.parametrize("shape", [(31, 37), (31, 61), (31, 62), (67, 31), (31, 211), (3, 31, 79)])
def test_orthogonal_is_the_polynomial_of_the_singular_values(
    shape: tuple[int, ...], rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all of them, in float64, whichever products it takes."""
    monkeypatch.setattr(muon, "native_precision", lambda device: "32-true")
    *stack, rows, columns = shape
    matrices = torch.randn(*stack, rows, rank) @ torch.randn(*stack, rank, columns)
    u, s, vt = torch.linalg.svd(matrices.double(), full_matrices=False)
    s = s / s.square().sum(-1, keepdim=True).sqrt()
    s[..., rank:] = 0
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    expected = u @ s.diag_embed() @ vt
    error = (orthogonal(matrices) - expected).norm() / expected.norm()
    print(f"{shape}, rank {rank}: {error:.1e}")
    assert error < 5e-4


@pytest.mark.parametrize("shape", [(3, 13, 5), (3, 5, 13)])
def test_orthogonal_of_a_stack_is_that_of_each(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape) * torch.logspace(-2, 2, 3)[:, None, None]
    each = torch.stack([orthogonal(matrix) for matrix in matrices])
    torch.testing.assert_close(orthogonal(matrices), each, atol=0.02, rtol=0)


@pytest.mark.parametrize(
    ("optimizer_of", "rates"),
    [
        (partial(MuonAdamW, lr=0.02, adam_lr=0.001), [0.01, 0.0005, 0.0005]),
        (partial(MuonSGD, lr=0.02, sgd_lr=0.1, head_lr=0.3), [0.01, 0.15, 0.05]),
    ],
)
def test_schedules_scale_all_rates_and_the_state_survives_saving(
    optimizer_of: Callable[..., Optimizer],
    rates: list[float],
    tmp_path: Path,
) -> None:
    net = network()
    optimizer = optimizer_of(parameter_groups(net))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 0.5**t)
    step(net, optimizer)
    schedule.step()
    assert [g["lr"] for g in optimizer.param_groups] == rates
    torch.save(optimizer.state_dict(), tmp_path / "state")
    other = network()
    other.load_state_dict(net.state_dict())
    kind: Any = type(optimizer)
    resumed = kind(parameter_groups(other))
    resumed.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    step(net, optimizer)
    step(other, resumed)
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("optimizer_of", "name"),
    [
        *((MuonAdamW, name) for name in ("lr", "momentum")),
        *((MuonSGD, name) for name in ("sgd_lr", "head_lr", "sgd_momentum", "weight_decay")),
    ],
)
def test_rates_are_not_below_zero(optimizer_of: Callable[..., MuonAdamW], name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 0, got -0.5"):
        optimizer_of(parameter_groups(network()), **{name: -0.5})


@pytest.mark.parametrize(
    "optimizer_of", [MuonAdamW, partial(MuonAdamW, normed=True), partial(MuonSGD, sgd_lr=0.1)]
)
def test_weights_in_shares_move_as_whole_ones(
    mesh: DeviceMesh,
    optimizer_of: Callable[..., Optimizer],
) -> None:
    whole = network().insert(3, nn.Linear(13, 13)).insert(3, nn.Linear(13, 13))  # go as a stack
    shared = deepcopy(whole)
    fully_shard(shared, mesh=mesh)
    for net in (whole, shared):
        optimizer = optimizer_of(parameter_groups(net), lr=0.1)
        step(net, optimizer)
        step(net, optimizer)
    for name, weight in whole.named_parameters():
        found = shared.get_parameter(name)
        assert isinstance(found, DTensor)
        torch.testing.assert_close(found.full_tensor(), weight)
