"""What a config may add to a run: views, whitening, weights of classes, a range test of rates."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import SGD
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from vision_attn.compat.torch_private import FLASH_KERNEL
from vision_attn.data import ImageData, Planted, ProgressiveResizing, Source, Splits, TensorSet
from vision_attn.models import FastCNN, SEResNet, ViT, Whitening
from vision_attn.training import (
    BalancedCrossEntropy,
    ConstantRate,
    ImageClassifier,
    LearningRateRangeTest,
    LinearProbe,
    MuonAdamW,
    Summary,
    TestTimeAugmentation,
    Whiten,
    report,
)
from vision_attn.training.flops import forward_flops, peak_flops, training_flops


class Uneven(Source):
    """Seven dark images of one class and two bright ones of another."""

    def load(self, root: Path, val_fraction: Any, seed: int) -> Splits:
        labels = torch.tensor([0] * 7 + [1] * 2)
        images = (labels * 200).view(-1, 1, 1, 1).expand(-1, 3, 8, 8).to(torch.uint8).contiguous()
        part = TensorSet(images + torch.randint(0, 50, images.shape, dtype=torch.uint8), labels)
        return Splits(part, part, part, ["dark", "bright"])


def test_views_are_averaged_and_their_accuracy_stands_beside_the_plain_one(
    trainer: Callable[..., Any],
    stripes: Callable[..., Any],
    small_vit: Callable[..., Any],
    tmp_path: Path,
) -> None:
    model, data = ImageClassifier(small_vit()), stripes()
    views, summary = TestTimeAugmentation(shift=1), Summary(tmp_path)
    run = trainer(callbacks=[views, summary])
    (found,) = run.test(model, datamodule=data, verbose=False)
    images, labels = data.images[:17], data.labels[:17]
    framed = F.pad(images, [1] * 4, mode="reflect")
    with torch.no_grad():
        net = model.eval()
        both = [
            net(i) + net(i.flip(3)) for i in (images, framed[:, :, :8, :8], framed[:, :, 2:, 2:])
        ]
        mean = both[0] / 4 + (both[1] + both[2]) / 8
        torch.testing.assert_close(views.logits(net, images, net(images)), mean)
    assert found["test/top1_views"] == pytest.approx(
        (mean.argmax(1) == labels).float().mean().item()
    )
    assert "test top-1, mean over several views" in (tmp_path / "test.txt").read_text()
    assert "test/top1" in found
    (found,) = run.validate(model, datamodule=data, verbose=False)
    assert "val/top1_views" in found
    plain = trainer("fit", callbacks=[TestTimeAugmentation()], max_epochs=1)
    plain.fit(ImageClassifier(small_vit()), datamodule=data)
    assert "val/top1_views" not in plain.callback_metrics
    with pytest.raises(ValueError, match="at least 0 pixels, got -1"):
        TestTimeAugmentation(-1)


def test_mirrored_views_alone() -> None:
    class Left(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images[:, 0, :, 0]

    images = torch.randn(5, 3, 4, 7)
    expected = (images[:, 0, :, 0] + images[:, 0, :, -1]) / 2
    torch.testing.assert_close(
        TestTimeAugmentation(0).logits(Left(), images, Left()(images)), expected
    )


def test_balanced_cross_entropy_weighs_classes_by_their_data(
    trainer: Callable[..., Any], tmp_path: Path
) -> None:
    loss = BalancedCrossEntropy(label_smoothing=0.1)
    model = ImageClassifier(nn.Sequential(nn.Flatten(), nn.Linear(192, 2)), loss=loss)
    trainer(max_epochs=1).fit(model, datamodule=ImageData(Uneven(), batch_size=3))
    torch.testing.assert_close(loss.weight, torch.tensor([9 / 14, 9 / 4]))
    saved = torch.load(tmp_path / "run/last.ckpt", weights_only=True)["state_dict"]
    assert {name.split(".")[0] for name in saved} == {"network"}
    logits, labels = torch.randn(5, 2), torch.tensor([0, 1, 1, 0, 1])
    expected = F.cross_entropy(logits, labels, loss.weight, label_smoothing=0.1)
    torch.testing.assert_close(loss(logits, labels), expected)


def test_the_first_layer_is_whitened_before_the_run_and_kept_when_it_resumes(
    trainer: Callable[..., Any], tmp_path: Path
) -> None:
    data = partial(ImageData, Planted(16, train=40, val=8, test=8), batch_size=20)
    model = ImageClassifier(FastCNN(widths=(8, 8, 8)))
    trainer(max_epochs=1, callbacks=[Whiten()]).fit(model, datamodule=data())
    images, _ = (given := data()).examples(40, given.splits.train)
    layer, expected = model.network.whitening, Whitening()
    expected.fit(images)
    assert torch.equal(layer.conv.weight, expected.conv.weight)
    kept = layer.conv.weight.clone()
    resumed = ImageClassifier(FastCNN(widths=(8, 8, 8)))
    run = trainer("again", max_epochs=2, callbacks=[Whiten(images=13)])
    run.fit(resumed, datamodule=data(), ckpt_path=tmp_path / "run/last.ckpt")
    assert torch.equal(resumed.network.whitening.conv.weight, kept)
    with pytest.raises(ValueError, match="found no Whitening layer"):
        trainer("no", callbacks=[Whiten()]).fit(
            ImageClassifier(SEResNet(widths=(4, 4, 4, 4))), datamodule=data()
        )


def test_layers_learn_slower_the_deeper_they_are(
    trainer: Callable[..., Any], stripes: Callable[..., Any], small_vit: Callable[..., Any]
) -> None:
    model = ImageClassifier(small_vit(), partial(MuonAdamW, lr=0.1), ConstantRate, layer_decay=0.5)
    run = trainer(max_epochs=1)
    run.fit(model, datamodule=stripes())
    rates = {
        name: group["lr"]
        for name, parameter in model.network.named_parameters()
        for group in run.optimizers[0].param_groups
        if any(parameter is p for p in group["params"])
    }
    assert rates["blocks.0.attn.qkv.weight"] == pytest.approx(0.05)
    assert rates["patch_embed.proj.weight"] == pytest.approx(0.001 / 4)
    assert rates["head.weight"] == pytest.approx(0.001)


def test_a_range_test_suggests_a_rate_and_leaves_the_run_as_it_was(
    trainer: Callable[..., Any],
    small_vit: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def weights(name: str, callbacks: list[Any]) -> Any:
        data = ImageData(Planted(8 * 2, train=60, val=8, test=8), batch_size=20)
        model = ImageClassifier(small_vit(image_size=16, num_classes=10), partial(SGD, lr=0.1))
        trainer(name, callbacks=callbacks, max_epochs=2).fit(model, datamodule=data)
        return torch.load(tmp_path / name / "last.ckpt", weights_only=True)["state_dict"]

    test = LearningRateRangeTest(steps=30)
    plain, found = weights("plain", []), weights("found", [test])
    assert all(torch.equal(plain[name], found[name]) for name in plain)
    assert test.suggestion is None or 1e-3 < test.suggestion < 30
    assert "learning rates: suggested factor" in capsys.readouterr().out
    with pytest.raises(ValueError, match="at least 10 steps and 0 < low < high"):
        LearningRateRangeTest(low=2.0, high=1.0)


def test_the_suggestion_is_where_the_loss_falls_fastest() -> None:
    test = LearningRateRangeTest(steps=21, low=0.01, high=1.0)
    losses = [2.0] * 8 + [1.6, 1.0, 0.6] + [0.5] * 5 + [3.0] * 5
    assert test.factor(0) == pytest.approx(0.01)
    assert test.factor(20) == pytest.approx(1.0)
    best = test._best(losses)
    assert best is not None
    assert test.factor(6) <= best <= test.factor(10)
    assert test._best([2.0] * 9) is None


@pytest.mark.parametrize("by_torch", [True, False])
def test_operations_are_those_of_the_formula(
    by_torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_torch:  # as in torch 2.11, which does not know fused attention on CPUs
        for name in (FLASH_KERNEL, f"{FLASH_KERNEL}_backward"):
            monkeypatch.delitem(flop_registry, getattr(torch.ops.aten, name), raising=False)
    vit = ViT(8, 4, 3, dim=6, depth=2, heads=2, mlp_ratio=2.0, pool="mean", class_token=False)
    n, d = 4, 6
    block = 2 * n * d * (3 * d + d + 4 * d) + 4 * n * n * d
    expected = 2 * n * 48 * d + 2 * block + 2 * d * 3
    assert forward_flops(vit, torch.randn(1, 3, 8, 8)) == expected
    assert vit.training
    patches, again = 2 * n * 48 * d, 2 * n * n * d  # fused attention computes q k' again
    whole = 3 * expected - patches + 2 * again
    assert training_flops(vit, torch.randn(1, 3, 8, 8)) == whole
    assert all(parameter.grad is None for parameter in vit.parameters())
    vit.blocks.requires_grad_(False)  # gradients pass through, none are made
    kernels = block - 4 * n * n * d
    assert training_flops(vit, torch.randn(1, 3, 8, 8)) == whole - 2 * kernels
    assert peak_flops(torch.device("cpu"), torch.float32, size=64, rounds=1) > 1e6


def test_counting_draws_no_random_numbers(small_vit: Callable[..., Any]) -> None:
    vit = small_vit(drop_path=0.5, patch_drop=0.5)
    before = torch.get_rng_state()
    dropped = training_flops(vit, torch.randn(2, 3, 8, 8, generator=torch.Generator()))
    assert torch.equal(torch.get_rng_state(), before)
    assert dropped < training_flops(small_vit(), torch.zeros(2, 3, 8, 8))


def test_the_summary_counts_operations_and_what_the_machine_could(
    trainer: Callable[..., Any],
    stripes: Callable[..., Any],
    small_vit: Callable[..., Any],
    tmp_path: Path,
) -> None:
    model, summary = ImageClassifier(small_vit()), Summary(tmp_path)
    trainer(max_epochs=1, callbacks=[summary]).fit(model, datamodule=stripes())
    figures = json.loads((tmp_path / "summary.json").read_text())
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.network(torch.randn(1, 3, 8, 8))  # torch 2.9 counts no other kernel on a CPU
    assert figures["flops"] == counter.get_total_flops()
    one = training_flops(model.network, torch.zeros(1, 3, 8, 8))
    assert figures["pflop"] == pytest.approx(48 * one / 1e15)
    assert figures["flops/s"] == pytest.approx(3 * figures["flops"] * figures["images/s"])
    assert 0 < figures["flops/s"] < figures["peak flops/s"]
    text = (tmp_path / "summary.txt").read_text()
    assert "GFLOP an image" in text
    assert "PFLOP" in text
    assert "GF/s" in text


def test_the_summary_is_of_the_device_that_trained(
    trainer: Callable[..., Any],
    stripes: Callable[..., Any],
    small_vit: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, summary = ImageClassifier(small_vit()), Summary(tmp_path)
    run = trainer(max_epochs=1, callbacks=[summary])
    run.fit(model, datamodule=stripes())
    measured = []
    monkeypatch.setattr(report, "peak_flops", lambda *of: measured.append(of) or 1e15)
    device = torch.device("cuda", 1)  # when training has ended, the weights are on the CPU again
    monkeypatch.setattr(type(run.strategy), "root_device", property(lambda _: device))
    summary.on_train_end(run, model)
    summary.on_fit_end(run, model)
    assert measured == [(device, torch.float32)]
    assert summary.rows["trained"].endswith("32-true on cuda")


def test_the_peak_is_measured_between_the_steps_and_is_no_part_of_them(
    trainer: Callable[..., Any],
    stripes: Callable[..., Any],
    small_vit: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, summary = ImageClassifier(small_vit()), Summary(tmp_path)
    clock, peaks = [0.0], [9e9, 2e9, 1e9, 4e9, 7e9, 1e9]  # three steps an epoch

    def peak(*_: Any) -> float:
        clock[0] += 1000.0  # seconds
        return peaks.pop(0)

    def slow(*_: Any) -> None:
        clock[0] += 2.0

    monkeypatch.setattr(report, "PEAKS", 3.0)
    monkeypatch.setattr(report, "peak_flops", peak)
    monkeypatch.setattr(report, "perf_counter", lambda: clock[0])
    slowly = LambdaCallback(on_train_batch_end=slow)
    trainer(max_epochs=2, callbacks=[summary, slowly]).fit(model, datamodule=stripes())
    assert peaks == [7e9, 1e9]  # at 0, 4, 8 seconds of steps, and at the end
    figures = json.loads((tmp_path / "summary.json").read_text())
    assert figures["peak flops/s"] == pytest.approx(4e9)  # their mean
    assert figures["images/s"] == pytest.approx(96 / 12)


def test_the_peak_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    peak_flops(torch.device("cpu"), torch.bfloat16, size=7, rounds=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_on_growing_images_counts_the_operations_of_each_size(
    trainer: Callable[..., Any], small_vit: Callable[..., Any], tmp_path: Path
) -> None:
    data = ImageData(
        Planted(16, train=40, val=8, test=8),
        batch_size=20,
        augment=[ProgressiveResizing([8, 16], [0, 1])],
    )
    model = ImageClassifier(small_vit(image_size=16, patch_size=4, num_classes=10))
    run = trainer(max_epochs=3, callbacks=[Summary(tmp_path)])
    run.fit(model, datamodule=data)
    assert run.global_step == 6
    figures = json.loads((tmp_path / "summary.json").read_text())
    small, full = (forward_flops(model.network, torch.zeros(1, 3, s, s)) for s in (8, 16))
    assert figures["flops"] == full > small
    mean = (small + 2 * full) / 3
    steps = [training_flops(model.network, torch.zeros(1, 3, s, s)) for s in (8, 16, 16)]
    assert figures["pflop"] == pytest.approx(40 * sum(steps) / 1e15)
    assert figures["flops/s"] == pytest.approx(3 * mean * figures["images/s"])


def test_a_frozen_trunk_keeps_weights_and_statistics_and_its_classifier_learns(
    trainer: Callable[..., Any],
) -> None:
    torch.manual_seed(0)
    model = ImageClassifier(SEResNet(widths=(4, 4, 4, 4)), partial(SGD, lr=0.1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    data = ImageData(Planted(16, train=40, val=8, test=8), batch_size=20)
    trainer(max_epochs=1, callbacks=[LinearProbe()]).fit(model, datamodule=data)
    after = model.state_dict()
    moved = {name for name, value in before.items() if not torch.equal(after[name], value)}
    assert moved == {"network.fc.weight", "network.fc.bias"}
