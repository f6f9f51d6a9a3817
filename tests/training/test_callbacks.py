import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EMAWeightAveraging
from safetensors import safe_open
from safetensors.torch import load_file
from torch.optim import SGD, AdamW

from vision_attn.models import SpatialCNN
from vision_attn.training import (
    ChannelsLast,
    ConfusionMatrix,
    ConstantRate,
    ImageClassifier,
    LastCheckpoint,
    LearningCurves,
    PerClass,
    PortableWeights,
    Predictions,
    Summary,
    best_checkpoint,
    run_callbacks,
)


def weights(path: Path) -> Any:
    return torch.load(path, weights_only=True)["state_dict"]


def same(first: dict[Any, Any], second: dict[str, Any]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


@pytest.fixture
def model(small_vit: Callable[..., Any]) -> ImageClassifier:
    return ImageClassifier(small_vit(), partial(SGD, lr=0.05), ConstantRate)


class Scripted(Callback):
    """Makes up the validation accuracy of each epoch."""

    def __init__(self, *scores: Any) -> None:
        self.scores = scores

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        score = torch.tensor(self.scores[trainer.current_epoch])
        trainer.callback_metrics["val/top1"] = score
        trainer._logger_connector._callback_metrics["val/top1"] = score


class Snapshots(Callback):
    """The weights after each epoch."""

    def __init__(self) -> None:
        self.after: list[dict[str, torch.Tensor]] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.after.append({k: v.clone() for k, v in pl_module.state_dict().items()})


def test_best_is_the_best_epoch_and_last_the_last(
    trainer: Callable[..., Any], model: ImageClassifier, stripes: Callable[..., Any], tmp_path: Path
) -> None:
    seen = Snapshots()
    run = trainer(callbacks=[seen, Scripted(0.1, 0.7, 0.3)], max_epochs=3)
    run.fit(model, datamodule=stripes())
    assert best_checkpoint(run) == tmp_path / "run/best.ckpt"
    assert same(weights(tmp_path / "run/best.ckpt"), seen.after[1])
    assert same(weights(tmp_path / "run/last.ckpt"), seen.after[2])


class CtrlC(Callback):
    """Presses Ctrl-C in the middle of a step, `times` times."""

    def __init__(self, step: int, times: int = 1) -> None:
        self.step, self.times = step, times

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if trainer.global_step == self.step - 1:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)


def test_a_stopped_and_resumed_run_ends_as_if_it_had_not_been(
    trainer: Callable[..., Any],
    small_vit: Callable[..., Any],
    stripes: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """To the bit, with a schedule over the whole run and patches dropped at random."""

    def fit(
        name: str, start: str | None = None, callbacks: tuple[Any, ...] | list[Any] = ()
    ) -> Any:
        model = ImageClassifier(small_vit(patch_drop=0.5), partial(AdamW, lr=0.01))
        run = trainer(name, max_epochs=3, callbacks=callbacks)
        run.fit(model, datamodule=stripes(), ckpt_path=start and tmp_path / start)
        return weights(tmp_path / name / "last.ckpt")

    whole = fit("whole")
    for step in (3, 4):  # the last of an epoch of 3, the first of the next
        with pytest.raises(SystemExit):
            fit(f"stopped{step}", callbacks=[CtrlC(step)])
        assert same(whole, fit(f"resumed{step}", f"stopped{step}/last.ckpt"))


def test_a_run_stops_with_all_the_batches_of_a_step(
    trainer: Callable[..., Any],
    small_vit: Callable[..., Any],
    stripes: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """Ctrl-C at each batch of an epoch of 3: the first two make a step, and so does the last."""

    class AtBatch(Callback):
        def __init__(self, batch: int) -> None:
            self.batch = batch

        def on_train_batch_start(
            self, trainer: Any, pl_module: Any, batch: Any, batch_idx: Any
        ) -> None:
            if trainer.current_epoch == 1 and batch_idx == self.batch:
                os.kill(os.getpid(), signal.SIGINT)

    def fit(
        name: str, start: str | None = None, callbacks: tuple[Any, ...] | list[Any] = ()
    ) -> Any:
        model = ImageClassifier(small_vit(), partial(AdamW, lr=0.01))
        run = trainer(name, max_epochs=3, callbacks=callbacks, accumulate_grad_batches=2)
        run.fit(model, datamodule=stripes(), ckpt_path=start and tmp_path / start)
        return weights(tmp_path / name / "last.ckpt")

    whole = fit("whole")
    for batch, step in enumerate([3, 3, 4]):
        with pytest.raises(SystemExit):
            fit(f"stopped{batch}", callbacks=[AtBatch(batch)])
        last = torch.load(tmp_path / f"stopped{batch}/last.ckpt", weights_only=True)
        assert last["global_step"] == step
        assert same(whole, fit(f"resumed{batch}", f"stopped{batch}/last.ckpt"))


def test_a_run_of_many_gpus_resumes_on_fewer(
    trainer: Callable[..., Any], model: ImageClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, generators = trainer(), [None, None]  # as in torch, one beyond them is an IndexError
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(generators))
    monkeypatch.setattr(
        torch.cuda.random, "set_rng_state", lambda state, at: generators.__setitem__(at, state)
    )
    saved = [torch.tensor([gpu], dtype=torch.uint8) for gpu in range(4)]
    last = LastCheckpoint()
    last.load_state_dict({"random": {"cpu": torch.get_rng_state(), "cuda": saved}})
    last.on_train_start(run, model)
    last.teardown(run, model, "fit")
    assert generators == saved[:2]


def test_the_best_of_the_earlier_run_comes_along(
    trainer: Callable[..., Any], model: ImageClassifier, stripes: Callable[..., Any], tmp_path: Path
) -> None:
    trainer("first", callbacks=[Scripted(0.9, 0.2)]).fit(model, datamodule=stripes())
    best = weights(tmp_path / "first/best.ckpt")
    run = trainer("second", callbacks=[Scripted(0, 0, 0.5, 0.4)], max_epochs=4)
    run.fit(model, datamodule=stripes(), ckpt_path=tmp_path / "first/last.ckpt")
    assert best_checkpoint(run) == tmp_path / "second/best.ckpt"
    assert same(weights(tmp_path / "second/best.ckpt"), best)

    run = trainer("third", callbacks=[Scripted(0, 0, 0.5, 0.95)], max_epochs=4)
    run.fit(model, datamodule=stripes(), ckpt_path=tmp_path / "first/last.ckpt")
    assert not same(weights(tmp_path / "third/best.ckpt"), best)
    assert same(weights(tmp_path / "first/best.ckpt"), best)


def test_the_best_of_a_run_that_was_moved_comes_along(
    trainer: Callable[..., Any], model: ImageClassifier, stripes: Callable[..., Any], tmp_path: Path
) -> None:
    trainer("first", callbacks=[Scripted(0.9, 0.2)]).fit(model, datamodule=stripes())
    best = weights(tmp_path / "first/best.ckpt")
    (tmp_path / "first").rename(tmp_path / "moved")
    run = trainer("second", callbacks=[Scripted(0, 0, 0.5)], max_epochs=3)
    run.fit(model, datamodule=stripes(), ckpt_path=tmp_path / "moved/last.ckpt")
    assert best_checkpoint(run) == tmp_path / "second/best.ckpt"
    assert same(weights(tmp_path / "second/best.ckpt"), best)


def test_a_run_whose_best_is_gone_resumes_without_it(
    trainer: Callable[..., Any], model: ImageClassifier, stripes: Callable[..., Any], tmp_path: Path
) -> None:
    trainer("first", max_epochs=1).fit(model, datamodule=stripes())
    (tmp_path / "first/best.ckpt").unlink()
    run = trainer("second", max_epochs=2)
    run.fit(model, datamodule=stripes(), ckpt_path=tmp_path / "first/last.ckpt")
    assert (tmp_path / "second/best.ckpt").is_file()


def test_without_validation_the_best_is_the_newest(
    trainer: Callable[..., Any], model: ImageClassifier, stripes: Callable[..., Any], tmp_path: Path
) -> None:
    run = trainer(max_epochs=2, limit_val_batches=0)
    run.fit(model, datamodule=stripes())
    best, last = (weights(tmp_path / "run" / name) for name in ("best.ckpt", "last.ckpt"))
    assert same(best, last)


@pytest.mark.filterwarnings("ignore:Total length of `list` across ranks is zero")
def test_a_data_set_without_validation_images_has_its_best_too(
    trainer: Callable[..., Any], model: ImageClassifier, stripes: Callable[..., Any], tmp_path: Path
) -> None:
    data = stripes()
    data.val_dataloader = lambda: []
    trainer(max_epochs=2).fit(model, datamodule=data)
    best, last = (weights(tmp_path / "run" / name) for name in ("best.ckpt", "last.ckpt"))
    assert same(best, last)


def test_ctrl_c_finishes_the_step_and_saves(
    trainer: Callable[..., Any],
    model: ImageClassifier,
    stripes: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit):
        trainer(callbacks=[CtrlC(5)], max_epochs=9).fit(model, datamodule=stripes())
    assert "stopping after this step" in capsys.readouterr().out
    checkpoint = torch.load(tmp_path / "run/last.ckpt", weights_only=True)
    assert checkpoint["global_step"] == 5
    assert same(checkpoint["state_dict"], model.state_dict())
    assert signal.getsignal(signal.SIGINT) is before


def test_a_full_disk_leaves_the_last_good_checkpoint_whole(
    trainer: Callable[..., Any], model: ImageClassifier, stripes: Callable[..., Any], tmp_path: Path
) -> None:
    resource = pytest.importorskip("resource")
    run, last = trainer(), tmp_path / "run/last.ckpt"
    run.fit(model, datamodule=stripes())
    good = last.read_bytes()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(good) // 2, limit[1]))
    try:
        with pytest.raises(OSError, match=r"last\.ckpt: cannot be written .*before it is intact"):
            run.save_checkpoint(last)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert last.read_bytes() == good
    assert sorted(path.name for path in last.parent.glob("*.ckpt")) == ["best.ckpt", "last.ckpt"]
    assert not [path for path in last.parent.iterdir() if path.name.startswith(".")]


def test_a_second_ctrl_c_stops_at_once(
    trainer: Callable[..., Any], model: ImageClassifier, stripes: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit):
        trainer(callbacks=[CtrlC(5, times=2)], max_epochs=9).fit(model, datamodule=stripes())
    assert torch.load(tmp_path / "run/last.ckpt", weights_only=True)["global_step"] == 3


def test_averaged_weights_are_what_is_kept_and_resumed(
    trainer: Callable[..., Any], model: ImageClassifier, stripes: Callable[..., Any], tmp_path: Path
) -> None:
    average = partial(EMAWeightAveraging, decay=0.5)
    run = trainer(callbacks=[average()], max_epochs=2)
    run.fit(model, datamodule=stripes())
    last = torch.load(tmp_path / "run/last.ckpt", weights_only=True)
    assert same(last["state_dict"], model.state_dict())
    assert not same(last["state_dict"], last["current_model_state"])
    resumed = trainer("again", callbacks=[average()], max_epochs=3)
    resumed.fit(model, datamodule=stripes(), ckpt_path=tmp_path / "run/last.ckpt")
    torch.load(tmp_path / "again/best.ckpt", weights_only=True)


def test_a_run_leaves_pictures_summary_and_portable_weights(
    trainer: Callable[..., Any], model: ImageClassifier, stripes: Callable[..., Any], tmp_path: Path
) -> None:
    written = [Summary, LearningCurves, ConfusionMatrix, PortableWeights]
    run = trainer(callbacks=[callback(tmp_path / "run") for callback in written])
    run.fit(model, datamodule=stripes())
    run.test(model, datamodule=stripes(), ckpt_path=best_checkpoint(run), verbose=False)
    folder = tmp_path / "run"
    files = {path.name for path in folder.iterdir()}
    assert files == {
        "best.ckpt", "best.safetensors", "confusion_matrix.png", "last.ckpt",
        "learning_curves.png", "metrics.csv", "summary.json", "summary.txt",
    }  # fmt: skip
    modes = {(folder / name).stat().st_mode for name in ("best.safetensors", "last.ckpt")}
    assert modes == {(folder / "metrics.csv").stat().st_mode}
    found = load_file(folder / "best.safetensors")
    saved = weights(folder / "best.ckpt")
    assert same({f"network.{k}": v for k, v in found.items()}, saved)
    with safe_open(folder / "best.safetensors", "pt") as file:
        assert '"row 1"' in file.metadata()["vision_attn"]
    summary = (folder / "summary.txt").read_text()
    for words in ("ViT, 0.00 M", "2 epochs, 6 steps", "images/s", "best val/top1", "test top-1"):
        assert words in summary
    figures = json.loads((folder / "summary.json").read_text())
    assert figures["epochs"] == 2
    assert figures["parameters"] == sum(p.numel() for p in model.parameters())
    tested = len(run.test_dataloaders.dataset)
    assert f"{figures['test/top1']:.4f} of {tested} images" in summary
    assert summary.count(f"of {tested} images") == 1  # of the first number alone
    header = (folder / "metrics.csv").read_text().splitlines()[0].split(",")
    assert "top-5" not in summary  # of three classes
    assert not any("top5" in column for column in header)
    assert {"val/top1", "val/ece", "test/top1", "train/loss"} <= set(header)


def test_the_summary_is_a_file_in_a_notebook_too(
    trainer: Callable[..., Any],
    model: ImageClassifier,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    summary = Summary(tmp_path)
    summary.rows["trained"] = "2 epochs"
    summary.on_test_end(trainer(), model)
    assert "2 epochs" in (tmp_path / "summary.txt").read_text()
    assert capsys.readouterr().out == ""


def test_channels_last_kernels_are_saved_contiguous(
    trainer: Callable[..., Any], stripes: Callable[..., Any], tmp_path: Path
) -> None:
    model = ImageClassifier(SpatialCNN(num_classes=3, widths=(8, 8)))
    portable = PortableWeights(tmp_path / "run")
    trainer(callbacks=[ChannelsLast(), portable], max_epochs=1).fit(model, datamodule=stripes())
    kernel = model.network.stages[1][0].conv.weight
    assert kernel.is_contiguous(memory_format=torch.channels_last)
    assert load_file(tmp_path / "run/best.safetensors")["stages.1.0.conv.weight"].is_contiguous()


def test_the_last_checkpoint_is_written_within_an_epoch_too(
    trainer: Callable[..., Any], model: ImageClassifier, stripes: Callable[..., Any], tmp_path: Path
) -> None:
    kept = []

    class Steps(LastCheckpoint):
        def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:
            super().on_train_batch_end(trainer, *rest)
            file = tmp_path / "every" / "last.ckpt"
            step = torch.load(file, weights_only=True)["global_step"] if file.exists() else 0
            kept.append((trainer.global_step, step))

    run = trainer(callbacks=[Steps(tmp_path / "every", every=2)], max_epochs=1)
    run.fit(model, datamodule=stripes())
    assert kept == [(1, 0), (2, 2), (3, 2)]  # (step, that of the file)


def test_these_are_the_callbacks_of_a_run() -> None:
    names = [type(callback).__name__ for callback in run_callbacks("folder")]
    assert names == [
        "LeanLoop", "KeepMemory", "ThreadParallel", "Summary", "LearningCurves",
        "ConfusionMatrix", "PerClass", "PortableWeights", "BestCheckpoint", "LastCheckpoint",
    ]  # fmt: skip


def test_names_that_are_not_utf8_lose_no_predictions(
    trainer: Callable[..., Any], model: ImageClassifier, tmp_path: Path
) -> None:
    predictions = Predictions(tmp_path / "predictions.csv")
    predictions.rows = [("caf\udce9.png", "row 1", "0.5000"), ("b.png", "row \udcff", "0.4000")]
    predictions.on_predict_end(trainer(), model)
    rows = (tmp_path / "predictions.csv").read_text(encoding="utf-8").splitlines()
    assert rows == ["file,class,probability", "caf?.png,row 1,0.5000", "b.png,row ?,0.4000"]
    names, counts = ["row \udcff", "row 1"], torch.tensor([[1, 0, 1, 0, 1], [1, 0, 1, 0, 1]])
    PerClass(tmp_path)._write(names, counts, None)
    rows = (tmp_path / "per_class.csv").read_text(encoding="utf-8").splitlines()
    assert [row.partition(",")[0] for row in rows] == ["class", "row ?", "row 1", "mean"]
