from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from vision_attn.training import ImageClassifier, MuonAdamW, parameter_groups
from vision_attn.training.cpu.fused import fuse_on_cpu


class Mixed(nn.Module):
    """Parameters of one to four axes, some of them hidden matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 5))
        self.stem = nn.Conv2d(3, 5, 2)
        self.norm = nn.LayerNorm(5)
        self.inner = nn.Linear(5, 11)
        self.head = nn.Linear(11, 3)


@pytest.mark.parametrize("optimizer_of", [Adam, AdamW, partial(AdamW, amsgrad=True), MuonAdamW])
def test_a_fused_adam_steps_as_the_usual_one(
    optimizer_of: Callable[..., Optimizer],
) -> None:
    torch.manual_seed(0)
    usual = Mixed().double()
    fused = deepcopy(usual)
    optimizers = [
        optimizer_of(parameter_groups(net), lr=0.01, weight_decay=0.1) for net in (usual, fused)
    ]
    fuse_on_cpu(optimizers[1])
    assert {group["fused"] for group in optimizers[0].param_groups} == {None}
    assert {group["fused"] for group in optimizers[1].param_groups} == {True}
    for _ in range(7):
        for one, other in zip(usual.parameters(), fused.parameters(), strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for name, weight in usual.named_parameters():
        found = fused.get_parameter(name)
        torch.testing.assert_close(found, weight, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "asked",
    [{"fused": False}, {"foreach": True}, {"foreach": False}, {"differentiable": True}],
    ids=str,
)
def test_what_the_config_asked_for_is_not_fused(asked: dict[str, Any]) -> None:
    optimizer = AdamW(parameter_groups(Mixed()), **asked)
    before = [dict(group) for group in optimizer.param_groups]
    fuse_on_cpu(optimizer)
    assert optimizer.param_groups == before


def test_other_optimisers_and_devices_are_not_fused() -> None:
    elsewhere = Mixed().to("meta")
    for optimizer in (SGD(parameter_groups(Mixed())), AdamW(parameter_groups(elsewhere))):
        fuse_on_cpu(optimizer)
        assert {group["fused"] for group in optimizer.param_groups} == {None}


def test_parameters_in_shares_are_not_fused(mesh: DeviceMesh) -> None:
    whole = nn.Parameter(torch.randn(5, 3))
    shared = nn.Parameter(DTensor.from_local(torch.randn(5, 3), mesh))
    optimizer = AdamW([{"params": [whole]}, {"params": [shared]}])
    fuse_on_cpu(optimizer)
    assert [group["fused"] for group in optimizer.param_groups] == [True, None]


def test_a_run_is_fused_and_still_clips_gradients(
    trainer: Callable[..., Any], stripes: Callable[..., Any], small_vit: Callable[..., Any]
) -> None:
    model = ImageClassifier(small_vit(), partial(AdamW, lr=0.01, weight_decay=0.0))
    before = model.network.head.weight.clone()
    run = trainer(max_epochs=1, precision="bf16-mixed", gradient_clip_val=1e-12)
    run.fit(model, datamodule=stripes())
    (optimizer,) = run.optimizers
    assert all(group["fused"] for group in optimizer.param_groups)
    moved = (model.network.head.weight - before).abs().max()
    assert 0 < moved < 0.01 * run.global_step / 2  # eps stops gradients so small; whole ones move 1


def test_a_run_goes_on_as_it_began(
    trainer: Callable[..., Any],
    stripes: Callable[..., Any],
    small_vit: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that began before there was this does not change its way in the middle."""
    path = tmp_path / "as it was.ckpt"
    run = trainer(max_epochs=1)
    with monkeypatch.context() as patch:
        patch.setattr("vision_attn.training.module.fuse_on_cpu", lambda optimizer: None)
        run.fit(ImageClassifier(small_vit(), AdamW), datamodule=stripes())
    run.save_checkpoint(path)
    on = trainer(max_epochs=2, name="on")
    model = ImageClassifier(small_vit(), AdamW)
    on.fit(model, datamodule=stripes(), ckpt_path=path, weights_only=False)
    assert {group["fused"] for group in on.optimizers[0].param_groups} == {None}
    assert on.global_step == 2 * run.global_step


class Convolved(nn.Module):
    """Two kernels whose numbers lie in another order in channels-last memory."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 7, 3)
        self.last = nn.Conv2d(7, 3, 3)

    def forward(self, images: torch.Tensor) -> Any:
        return self.last(self.stem(images)).mean((2, 3))


def test_moments_of_another_memory_format_are_laid_out_anew(
    trainer: Callable[..., Any], stripes: Callable[..., Any], tmp_path: Path
) -> None:
    """A run of channels-last kernels goes on with kernels of the usual format, and the reverse."""
    data, path = stripes(), tmp_path / "half.ckpt"
    formats = torch.channels_last, torch.contiguous_format

    def fit(
        name: str, epochs: int, layout: torch.memory_format, **options: Any
    ) -> tuple[Any, ImageClassifier]:
        torch.manual_seed(0)
        network = Convolved().double().to(memory_format=layout)
        model = ImageClassifier(network, partial(AdamW, lr=0.01), schedule=constant)
        run = trainer(name=name, max_epochs=epochs, precision="64-true")
        run.fit(model, datamodule=data, **options)
        return run, model

    for first, then in (formats, formats[::-1]):
        run, _ = fit(f"half {first}", 1, first)
        run.save_checkpoint(path)
        on, found = fit(f"on {first}", 2, then, ckpt_path=path, weights_only=False)
        _, whole = fit(f"whole {first}", 2, then)
        assert {group["fused"] for group in on.optimizers[0].param_groups} == {True}
        for name, weight in whole.network.named_parameters():
            kept = on.optimizers[0].state[found.network.get_parameter(name)]["exp_avg"]
            assert kept.stride() == weight.stride()
            torch.testing.assert_close(found.network.get_parameter(name), weight)


def constant(optimizer: Any, steps: int) -> LambdaLR:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_kernels_step_the_same_in_either_memory_format(layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    usual = Convolved().double()
    fused = deepcopy(usual).to(memory_format=layout)
    optimizers = [AdamW(net.parameters(), lr=0.01) for net in (usual, fused)]
    fuse_on_cpu(optimizers[1])
    for _ in range(5):
        images = torch.randn(5, 3, 11, 11, dtype=torch.float64)
        for net, optimizer in zip((usual, fused), optimizers, strict=True):
            optimizer.zero_grad()
            net(images).square().sum().backward()
            optimizer.step()
    for name, weight in usual.named_parameters():
        torch.testing.assert_close(fused.get_parameter(name), weight)


def test_parameters_with_gaps_in_memory_are_not_fused() -> None:
    part = nn.Parameter(torch.randn(7, 5)[:, :3])
    optimizer = AdamW([part])
    fuse_on_cpu(optimizer)
    assert optimizer.param_groups[0]["fused"] is None
