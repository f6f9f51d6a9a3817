"""A batch in parts gives what the whole batch gives, or is left whole."""

import threading
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch import nn
from torch.optim import SGD, AdamW

from vision_attn.models import FastCNN, ViT
from vision_attn.threads import Threads
from vision_attn.training import Compile, ImageClassifier, ThreadParallel
from vision_attn.training.classifier import as_it_is
from vision_attn.training.cpu.threads import InParts


class Seen(nn.Module):
    """Passes images on, and notes in which thread, how many and in what modes."""

    calls: ClassVar[list[Any]] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        name = threading.current_thread().name
        modes = torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
        self.calls.append((name, len(images), torch.get_num_threads(), self.training, *modes))
        return images


class Noted(nn.Module):
    """The network behind a `Seen`; its calls, but for those in which it is tried out."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.seen, self.network = Seen(), network

    def forward(self, images: torch.Tensor) -> Any:
        return self.network(self.seen(images))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(Seen, "calls", found)
    return found


@pytest.fixture
def in_parts() -> Iterator[Callable[..., Any]]:
    made = []

    def make(threads: int = 2, **options: Any) -> InParts:
        made.append(InParts(threads, **{"least": 0.0, **options}))
        return made[-1]

    yield make
    for each in made:
        each.close()


def vit(**options: Any) -> ViT:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "image_size": 8,
        "patch_size": 2,
        "num_classes": 5,
        "dim": 12,
        "depth": 2,
    }
    return ViT(**sizes, **options).train()


def gradients(
    network: nn.Module,
    run: Callable[..., torch.Tensor],
    images: torch.Tensor,
    dtype: torch.dtype = torch.float64,
    autocast: bool = False,
) -> tuple[Any, dict[Any, Any]]:
    """Logits, and gradients of a loss that is no mean over images."""
    network.to(dtype).zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = run(network, images.to(dtype))
    (logits.softmax(1)[:, 0].prod() ** (1 / len(images))).backward()
    return logits, {
        name: p.grad.clone() for name, p in network.named_parameters() if p.requires_grad
    }


@pytest.mark.parametrize("images", [2, 7, 13])
@pytest.mark.parametrize("threads", [2, 3])
def test_logits_and_gradients_are_those_of_the_whole_batch(
    images: int, threads: int, in_parts: Callable[..., Any], calls: list[Any]
) -> None:
    network, batch = Noted(vit()), torch.randn(images, 3, 8, 8)
    whole = gradients(network, as_it_is, batch)
    parts = in_parts(threads)
    gradients(network, parts, batch)
    calls.clear()
    found = gradients(network, parts, batch)
    torch.testing.assert_close(found, whole, rtol=1e-12, atol=1e-15)
    count = min(threads, images)
    assert sorted(size for _, size, *_ in calls) == sorted(map(len, batch.tensor_split(count)))
    assert all(name.startswith("part") and cores >= 1 for name, _, cores, *_ in calls)


def test_the_same_bits_every_time(in_parts: Callable[..., Any]) -> None:
    network, batch, parts = vit(), torch.randn(11, 3, 8, 8), in_parts(3)
    first = gradients(network, parts, batch, torch.float32)
    for _ in range(5):
        again = gradients(network, parts, batch, torch.float32)
        torch.testing.assert_close(again, first, rtol=0, atol=0)


def test_threads_have_the_modes_of_the_caller(
    in_parts: Callable[..., Any], calls: list[Any]
) -> None:
    network, batch, parts = Noted(vit()), torch.randn(4, 3, 8, 8), in_parts()
    with torch.autocast("cpu", torch.bfloat16):
        logits = parts(network, batch)
        calls.clear()
        assert parts(network, batch).dtype == logits.dtype == torch.bfloat16
    assert {call[3:] for call in calls} == {(True, False, True)}
    calls.clear()
    network.eval()
    with torch.inference_mode():
        assert parts(network, batch).is_inference()
    assert {call[3:] for call in calls} == {(False, True, False)}
    assert len(calls) == 2
    calls.clear()
    with torch.no_grad():
        found = parts(network, batch)
    assert not found.requires_grad
    assert len(calls) == 2
    torch.testing.assert_close(found, network(batch).detach())


class Sum(nn.Module):
    """Two parameters with one and the same gradient, one without any, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.unused = (nn.Parameter(torch.rand(5)) for _ in range(3))
        self.frozen = nn.Parameter(torch.rand(5), requires_grad=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean((2, 3)).sum(1, keepdim=True) * self.frozen + (self.a + self.b)


def test_shared_missing_and_frozen_gradients(in_parts: Callable[..., Any]) -> None:
    network, batch = Sum(), torch.rand(7, 3, 8, 8)
    in_parts()(network, batch).sum().backward()
    torch.testing.assert_close(network.a.grad, torch.full((5,), 7.0))
    torch.testing.assert_close(network.b.grad, torch.full((5,), 7.0))
    assert network.unused.grad is None
    assert network.frozen.grad is None


class Drawing(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images * torch.rand(()) if self.training else images


class Counting(nn.Module):
    """Counts its images in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("images", torch.zeros((), dtype=torch.long))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.images += len(images)
        return images


@pytest.mark.parametrize(
    "first", [Drawing, partial(nn.Dropout, 0.1), partial(nn.BatchNorm2d, 3), Counting,
              partial(nn.BatchNorm2d, 3, track_running_stats=False)],
)  # fmt: skip
def test_what_would_not_be_the_same_stays_whole(
    first: Callable[..., nn.Module],
    in_parts: Callable[..., Any],
    calls: list[Any],
) -> None:
    """And the trial leaves no trace: the network goes on to the bit as without."""
    network, batch = Noted(nn.Sequential(first(), vit())), torch.randn(6, 3, 8, 8)
    same = deepcopy(network)
    torch.manual_seed(1)
    expected = gradients(same, as_it_is, batch), gradients(same, as_it_is, batch)
    calls.clear()
    parts = in_parts()
    torch.manual_seed(1)
    found = gradients(network, parts, batch), gradients(network, parts, batch)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    torch.testing.assert_close(network.state_dict(), same.state_dict(), rtol=0, atol=0)
    assert [size for name, size, *_ in calls if name == "MainThread"][-2:] == [6, 6]


def test_the_trial_leaves_no_casts_behind(in_parts: Callable[..., Any]) -> None:
    """Autocast would keep what it cast without gradients, and use it with them."""
    network, batch = nn.Sequential(Drawing(), vit()), torch.randn(6, 3, 8, 8)
    found = []
    for run in (as_it_is, in_parts()):
        torch.manual_seed(1)
        found.append(gradients(network, run, batch, torch.float32, autocast=True))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


def test_buffers_that_changed_between_are_those_of_the_parts(in_parts: Callable[..., Any]) -> None:
    """Trained whole, as its batches are small, evaluated in parts: with its present statistics."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3 * 64, 5))
    parts, batch = in_parts(batch_norms=True), torch.randn(6, 3, 8, 8)
    with torch.inference_mode():
        parts(network.eval(), batch)
    for _ in range(3):
        parts(network.train(), batch[:1])
    with torch.inference_mode():
        torch.testing.assert_close(parts(network.eval(), batch), network(batch))
    parts(network.train(), batch).sum().backward()


def test_two_calls_before_one_backward_pass(in_parts: Callable[..., Any]) -> None:
    network, batch = nn.Sequential(nn.BatchNorm2d(3), vit()), torch.randn(6, 3, 8, 8)
    parts = in_parts(batch_norms=True)
    sum(parts(network, batch).square().sum() for _ in range(2)).backward()
    assert all(p.grad is not None for p in network.parameters())


def test_batch_norms_in_parts_where_wanted(in_parts: Callable[..., Any]) -> None:
    """Each part by its own statistics, the running ones the means of the parts'."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3, momentum=0.3)
    network = nn.Sequential(norm, nn.Flatten(), nn.Linear(3 * 64, 5))
    batch = 2 + 3 * torch.randn(7, 3, 8, 8)
    parts = in_parts(batch_norms=True)
    for _ in range(2):
        logits = parts(network, batch)
        logits.sum().backward()
    halves, expected = batch.tensor_split(2), []
    for half in halves:
        axes = (0, 2, 3)
        spread = (half.var(axes, unbiased=False)[:, None, None] + norm.eps).sqrt()
        normal = (half - half.mean(axes)[:, None, None]) / spread
        expected.append(network[2](normal.flatten(1)))
    torch.testing.assert_close(logits, torch.cat(expected))
    mean = torch.stack([half.mean((0, 2, 3)) for half in halves]).mean(0)
    variance = torch.stack([half.var((0, 2, 3)) for half in halves]).mean(0)
    torch.testing.assert_close(norm.running_mean, (0.3 + 0.7 * 0.3) * mean)
    torch.testing.assert_close(norm.running_var, 0.7**2 + (0.3 + 0.7 * 0.3) * variance)
    assert norm.num_batches_tracked == 2
    assert norm.running_mean is not None
    norm.running_mean.fill_(5)  # as a checkpoint that is loaded does
    network.eval()
    with torch.no_grad():
        torch.testing.assert_close(parts(network, batch), network(batch))


@pytest.mark.parametrize(("least", "divided"), [(2.5, True), (3.5, False)])
def test_small_work_stays_whole(
    least: float, divided: bool, in_parts: Callable[..., Any], calls: list[Any]
) -> None:
    """6 images are 6 times one; a part must have at least `least` times one."""
    network, batch = Noted(vit()), torch.randn(6, 3, 8, 8)
    parts = in_parts()
    parts(network, batch[:1])
    parts.least = least * parts._operations[batch.shape[1:]]
    calls.clear()
    with torch.no_grad():
        parts(network.eval(), batch)
    assert sorted(size for _, size, *_ in calls) == ([3, 3] if divided else [6])


def test_what_needs_the_images_gradient_stays_whole(in_parts: Callable[..., Any]) -> None:
    network, batch = vit(), torch.randn(4, 3, 8, 8, requires_grad=True)
    in_parts()(network, batch).sum().backward()
    assert batch.grad is not None
    assert batch.grad.abs().sum() > 0


def test_hooks_are_not_copied_and_other_networks_are_told_apart(
    in_parts: Callable[..., Any],
) -> None:
    network, other, batch = vit(), vit(), torch.randn(4, 3, 8, 8)
    nn.init.normal_(other.head.weight)
    heard, parts = [], in_parts()
    network.head.register_forward_hook(lambda module, args, out: heard.append(module))
    for each in (network, other, network):
        torch.testing.assert_close(parts(each, batch), each(batch))
    assert all(module is network.head for module in heard)


def test_threads_that_come_later_have_all_cores(in_parts: Callable[..., Any]) -> None:
    before, found = torch.get_num_threads(), []
    try:
        torch.set_num_threads(2)
        parts = in_parts()
        parts(vit(), torch.randn(4, 3, 8, 8))
        for end in (lambda: None, parts.close):
            end()
            later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
            later.start()
            later.join()
    finally:
        torch.set_num_threads(before)
    assert found == [2, 2]


def test_a_thread_new_to_torch_keeps_its_cores() -> None:
    """It may never have asked for their number before it hands work on."""
    before, found = torch.get_num_threads(), []

    def work() -> None:
        torch.set_num_threads(2)
        with Threads(2) as threads:
            threads.each(torch.zeros, [3, 4])
        found.append(torch.get_num_threads())

    try:
        user = threading.Thread(target=work)
        user.start()
        user.join()
    finally:
        torch.set_num_threads(before)
    assert found == [2]


class Broken(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if len(images) > 1:
            raise ValueError("this image is none")
        return images.mean((2, 3))


def test_an_error_in_a_part_is_the_callers(in_parts: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"^this image is none$"):
        in_parts()(Broken().eval(), torch.rand(6, 3, 8, 8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"least": -1.0}, r"least must be at least 0 operations, got -1\.0"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        ThreadParallel(**options)


class Ways(Callback):
    """How the network is called in training and in validation."""

    def __init__(self) -> None:
        self.found: set[tuple[str, type]] = set()

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: Any
    ) -> None:
        self.found.add(("train", type(pl_module.run)))

    def on_validation_batch_start(
        self,
        trainer: Any,
        pl_module: Any,
        batch: Any,
        batch_idx: Any,
        dataloader_idx: int = 0,
    ) -> None:
        self.found.add(("validate", type(pl_module.run)))


def test_a_run_in_parts_ends_with_the_same_weights(
    trainer: Callable[..., Any],
    small_vit: Callable[..., Any],
    stripes: Callable[..., Any],
    tmp_path: Path,
) -> None:
    def fit(name: str, *callbacks: Any, **options: Any) -> ImageClassifier:
        torch.manual_seed(0)
        model = ImageClassifier(small_vit(), partial(SGD, lr=0.1, momentum=0.9))
        trainer(name, callbacks=list(callbacks), **options).fit(model, datamodule=stripes())
        return model

    whole, ways = fit("whole"), Ways()
    parts = fit("parts", ThreadParallel(2, least=0.0), ways)
    assert ways.found == {("train", InParts), ("validate", InParts)}
    assert parts.run is as_it_is
    torch.testing.assert_close(parts.state_dict(), whole.state_dict())
    saved = torch.load(tmp_path / "parts/last.ckpt", weights_only=True)["state_dict"]
    assert saved.keys() == whole.state_dict().keys()


def test_beside_averaged_and_frozen_weights(
    trainer: Callable[..., Any], stripes: Callable[..., Any], small_vit: Callable[..., Any]
) -> None:
    """What copies the model copies no threads."""

    def fit(name: str, *callbacks: Any) -> ImageClassifier:
        torch.manual_seed(0)
        network = small_vit()
        network.patch_embed.requires_grad_(False)
        model = ImageClassifier(network, partial(AdamW, lr=1e-2))
        with_average = [EMAWeightAveraging(decay=0.9), *callbacks]
        trainer(name, callbacks=with_average).fit(model, datamodule=stripes())
        return model

    threads = ThreadParallel(2, least=0.0)
    torch.testing.assert_close(fit("parts", threads).state_dict(), fit("whole").state_dict())


@pytest.mark.compiled
def test_compiled_networks_stay_whole(
    trainer: Callable[..., Any], small_vit: Callable[..., Any], stripes: Callable[..., Any]
) -> None:
    def fit(name: str, *callbacks: Any) -> ImageClassifier:
        torch.manual_seed(0)
        model = ImageClassifier(small_vit(), partial(SGD, lr=0.1))
        trainer(name, callbacks=list(callbacks)).fit(model, datamodule=stripes())
        return model

    compiled = fit("compiled", Compile(backend="aot_eager"), ThreadParallel(2, least=0.0))
    torch.testing.assert_close(compiled.state_dict(), fit("plain").state_dict())


def test_a_run_that_fails_gives_its_threads_back(
    trainer: Callable[..., Any], small_vit: Callable[..., Any], stripes: Callable[..., Any]
) -> None:
    model = ImageClassifier(small_vit(), partial(SGD, lr=0.1))
    with pytest.raises(ValueError, match=r"^loss is nan at step"):
        trainer(callbacks=[ThreadParallel(2, least=0.0)]).fit(
            model, datamodule=stripes(poisoned=30)
        )
    assert model.run is as_it_is


def test_the_fast_cnn_learns_in_parts(
    trainer: Callable[..., Any], stripes: Callable[..., Any]
) -> None:
    """A network of batch norms, whitened first."""
    torch.manual_seed(0)
    model = ImageClassifier(FastCNN(3, widths=(8, 8)), partial(AdamW, lr=1e-2))
    threads = ThreadParallel(2, batch_norms=True, least=0.0)
    made = trainer(callbacks=[threads], max_epochs=8)
    made.fit(model, datamodule=stripes())
    assert made.callback_metrics["val/top1"] > 0.9
