import csv
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.profilers import SimpleProfiler
from torch.optim import SGD

from vision_attn.training import ImageClassifier, LeanLoop
from vision_attn.training.lean import NothingMeasured


def fitted(
    trainer: Callable[..., Any], data: Callable[..., Any], network: Any, **options: Any
) -> tuple[Any, ImageClassifier]:
    torch.manual_seed(0)
    model = ImageClassifier(network(), partial(SGD, lr=0.1))
    run = trainer(**options)
    run.fit(model, datamodule=data())
    return run, model


def test_a_lean_loop_learns_the_same(
    trainer: Callable[..., Any], stripes: Callable[..., Any], small_vit: Callable[..., Any]
) -> None:
    usual, plain = fitted(trainer, stripes, small_vit, name="usual")
    run, lean = fitted(trainer, stripes, small_vit, name="lean", callbacks=[LeanLoop()])
    assert isinstance(run.profiler, NothingMeasured)
    for name, weight in plain.state_dict().items():
        assert torch.equal(lean.state_dict()[name], weight), name
    for name, value in usual.callback_metrics.items():
        assert torch.equal(run.callback_metrics[name], value), name


def test_a_profiler_that_was_asked_for_stays(
    trainer: Callable[..., Any], stripes: Callable[..., Any], small_vit: Callable[..., Any]
) -> None:
    asked = SimpleProfiler()
    run, _ = fitted(trainer, stripes, small_vit, callbacks=[LeanLoop()], profiler=asked)
    assert run.profiler is asked
    assert len(asked.recorded_durations["run_training_batch"]) == run.global_step > 1


@pytest.mark.parametrize("gpu", [True, False])
def test_nobody_looks_for_gpus_at_every_step(
    trainer: Callable[..., Any],
    stripes: Callable[..., Any],
    small_vit: Callable[..., Any],
    gpu: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    class Looks(Callback):
        def on_train_batch_end(self, *rest: Any) -> None:
            seen.append(os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"])

    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    fitted(trainer, stripes, small_vit, max_epochs=1, callbacks=[LeanLoop(), Looks()])
    assert set(seen) == {"1" if gpu else "0"}
    assert os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"


HOOKS = [name for name in dir(Callback) if name.startswith("on_")]


def test_what_users_wrote_stays_theirs(
    trainer: Callable[..., Any], stripes: Callable[..., Any], small_vit: Callable[..., Any]
) -> None:
    """Methods are neither replaced nor hidden, in callbacks or in the model, while a fit runs."""
    changed: list[Any] = []

    class Looks(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
            for owner, base in ((self, Callback), (plain, Callback), (pl_module, LightningModule)):
                changed.extend(hook for hook in HOOKS if hook in vars(owner))
                known = [hook for hook in HOOKS if hasattr(base, hook)]
                changed.extend(hook for hook in known if not callable(getattr(owner, hook)))

    plain, looks = Callback(), Looks()
    by_hand = LambdaCallback(on_after_backward=lambda *rest: starts.append(1))
    starts: list[Any]
    starts, callbacks = [], [plain, LeanLoop(), looks, by_hand]
    run, _ = fitted(trainer, stripes, small_vit, max_epochs=1, callbacks=callbacks)
    assert len(starts) == run.global_step > 1
    assert not changed


class Heard(ImageClassifier):
    """Keeps what each training step saw: loss, right ones, size."""

    def __init__(self, *options: Any) -> None:
        super().__init__(*options)
        self.heard: list[tuple[float, float, int]] = []

    def training_step(self, batch: Any, batch_idx: Any) -> torch.Tensor:
        with torch.no_grad():
            right = (self(batch[0]).argmax(1) == batch[1]).sum().item()
        loss = super().training_step(batch, batch_idx)
        self.heard.append((loss.item(), right, len(batch[1])))
        return loss


def test_training_metrics_are_means_over_the_images_of_an_epoch(
    trainer: Callable[..., Any],
    stripes: Callable[..., Any],
    small_vit: Callable[..., Any],
    tmp_path: Path,
) -> None:
    model = Heard(small_vit(), partial(SGD, lr=0.1))
    run = trainer(max_epochs=3, log_every_n_steps=2)
    run.fit(model, datamodule=stripes())
    steps = len(model.heard) // 3
    losses, right, sizes = torch.tensor(model.heard, dtype=torch.float64).T
    assert steps > 1
    last = slice(2 * steps, None)
    expected = (losses[last] * sizes[last]).sum() / sizes[last].sum()
    assert run.callback_metrics["train/loss"].item() == pytest.approx(expected.item(), rel=1e-6)
    share = right[last].sum() / sizes[last].sum()
    assert run.callback_metrics["train/top1"].item() == pytest.approx(share.item(), rel=1e-6)
    rows = list(csv.DictReader((tmp_path / "run/metrics.csv").read_text().splitlines()))
    of_steps = {int(r["step"]): float(r["train/loss_step"]) for r in rows if r["train/loss_step"]}
    assert sorted(of_steps) == list(range(1, 3 * steps, 2))  # a step counts from 0
    for step, loss in of_steps.items():
        assert loss == pytest.approx(losses[step].item(), rel=1e-6)


@pytest.mark.parametrize("every", [0, 1, 3])
def test_the_progress_bar_has_a_loss_from_the_first_step(
    trainer: Callable[..., Any],
    stripes: Callable[..., Any],
    small_vit: Callable[..., Any],
    every: int,
) -> None:
    class FirstStep(Callback):
        loss: float | None = None

        def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:
            if self.loss is None:
                self.loss = trainer.progress_bar_metrics["train/loss_step"]

    first = FirstStep()
    fitted(trainer, stripes, small_vit, max_epochs=1, log_every_n_steps=every, callbacks=[first])
    assert first.loss is not None
    assert first.loss > 0


def test_a_fit_that_fails_looks_for_gpus_again(
    trainer: Callable[..., Any],
    stripes: Callable[..., Any],
    small_vit: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Fails(Callback):
        def on_train_batch_end(self, *rest: Any) -> None:
            raise RuntimeError(os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"])

    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"^0$"):
        fitted(trainer, stripes, small_vit, callbacks=[LeanLoop(), Fails()])
    assert os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"
