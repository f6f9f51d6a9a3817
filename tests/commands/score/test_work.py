"""How much work there is to score, and how one map of it is measured."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from vision_attn import devices
from vision_attn.evaluate import DroppedTokens, FilledCells
from vision_attn.hub import load_model
from vision_attn.methods import Explainer
from vision_attn.models import ViT
from vision_attn.runs.explain import Request
from vision_attn.runs.loop import RunTask, fill
from vision_attn.runs.progress import Silent
from vision_attn.runs.scoring import tasks as score_work
from vision_attn.runs.scoring.evidence import Samples, open_data
from vision_attn.runs.scoring.results import Results
from vision_attn.runs.scoring.scorer import Scorer, removal
from vision_attn.runs.store import MemoryStore
from vision_attn.types import Heatmaps

BASELINES = {"RandomMap", "CentreGaussian", "EdgeMap"}


@pytest.mark.parametrize(
    ("maps", "cores", "processes"), [(999, 2, 1), (1000, 2, 2), (90_000, 1, 1), (90_000, 16, 4)]
)
def test_as_many_processes_as_there_is_work_for(
    maps: int,
    cores: int,
    processes: int,
    models: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: cores)
    tasks = [RunTask((0,) * 10)] * (maps // 10) + [RunTask((0,) * (maps % 10))]
    work = score_work.Work(load_model(models("vit")), "planted", "GradCAM", limit=1)
    assert work.usual_processes(tasks) == processes
    monkeypatch.setattr(type(work.model), "device", torch.device("cuda"))
    assert work.usual_processes(tasks) == 1


class Many(Samples):
    """More images than are scored by default; none is read."""

    names: Any = range(2000)

    def __getitem__(self, item: Any) -> Any:
        raise NotImplementedError


def test_how_many_images_are_scored(models: Callable[[str], str]) -> None:
    model = load_model(models("vit"))
    usual = score_work.Work(model, "planted")
    assert (usual.requested, len(usual.all.sane)) == (96, 0)
    others = Many(model)
    usual = score_work.Work(model, others)
    assert (usual.requested, len(usual.all.sane)) == (1000, 0)
    every = score_work.Work(model, others, "all")
    assert (every.requested, len(every.all.sane)) == (500, 32)
    assert every.all.chosen == every.data.chosen(500, 0)
    assert score_work.Work(model, "planted", "all", limit=1200).requested == 1200


def test_the_default_methods_are_quick_and_all_are_not() -> None:
    network = ViT((32, 48), 8, 3, dim=12, depth=2, heads=2)
    usual = {type(method).__name__ for method in score_work.methods_for(None, network)}
    every = {type(method).__name__ for method in score_work.methods_for(["all"], network)}
    assert {"Rollout", "GradCAM", *BASELINES} <= usual
    assert every - usual == {"IntegratedGradients", "Occlusion", "MaskedRegression", "LIME"}


@dataclass(frozen=True)
class Odd(Explainer):
    """Constant for the first image of each batch, NaN for images that start bright."""

    class_specific = False

    def refusal(self, network: Any) -> None:
        return None

    def explain(self, network: Any, images: torch.Tensor, target: Any, layout: Any) -> Heatmaps:
        maps = torch.rand(len(images), 4, 6)
        maps[0] = 0.25
        maps[images.mean((1, 2, 3)) > self.bright] = float("nan")
        return Heatmaps(maps, str(self))

    @property
    def bright(self) -> float:
        return 0.0


def test_constant_and_nan_maps(models: Callable[[str], str], tmp_path: Path) -> None:
    model = load_model(models("vit"))
    work = score_work.Work(
        *(model, "planted", "GradCAM"),
        limit=8, steps=2, how="mean", target="predicted", batch_size=8,
    )  # fmt: skip
    work.explainers = {"Odd": Odd(), **{str(e): e for e in score_work.BASELINES}}
    batch, _ = work.batch([work.read(("data", item)) for item in work.all.chosen])
    assert batch is not None
    bright = batch.images.mean((1, 2, 3)) > 0
    assert bright.any()
    assert not bright.all()
    memory = MemoryStore()
    fill(memory, work, work.tasks(memory), 1, Silent())
    found = score_work.records_of(memory)
    odd = [record for (_, method, _), record in found.items() if method == "Odd"]
    assert ["problem" in record for record in odd] == bright.tolist()
    assert "holds NaN or infinity" in next(r for r in odd if "problem" in r)["problem"]
    for i, record in enumerate(odd):
        if "scores" in record:  # alone in its batch, so constant
            share = batch.samples[i].masks["object"].float().mean().item()
            assert record["constant"]
            for metric in ("pointing_game", "energy_inside", "average_precision"):
                assert record["scores"][metric] == pytest.approx(share, abs=1e-4)
            assert record["scores"]["pixel_accuracy"] == pytest.approx(0.5, abs=1e-4)
    results = Results(work, found)
    count = int((~bright).sum())
    assert f"Odd: {count} of 8 maps are constant, and score as random" in results.notes()
    assert results.problems()[0].startswith(f"Odd (maps) failed on {8 - count} of 8 images, first:")
    assert results.mean("deletion", "Odd").n == count


def test_tokens_are_dropped_only_where_that_is_the_same_as_masking(
    models: Callable[[str], str],
) -> None:
    from vision_attn.attention import Local2d, MultiHeadAttention

    model = load_model(models("vit"))
    assert isinstance(removal(model, "auto"), DroppedTokens)
    for name in ("mean", "blur", "noise"):
        filled = removal(model, name)
        assert isinstance(filled, FilledCells)
        assert filled.grid == (4, 6)
        assert type(filled.fill).__name__.lower() == f"{name}fill"
    local = ViT(
        (32, 48),
        8,
        3,
        dim=12,
        depth=1,
        heads=2,
        attention=lambda dim, heads: MultiHeadAttention(
            dim, heads, window=partial(Local2d, radius=1)
        ),
    )
    model.network.blocks = local.blocks
    assert isinstance(removal(model, "auto"), FilledCells)
    senet = removal(load_model(models("senet")), "auto")
    assert senet.grid == (8, 8)


class Viewed(nn.Module):
    """A network with a `view` that channels-last features do not have."""

    def __init__(self, network: nn.Sequential) -> None:
        super().__init__()
        self.network, self.head = network, nn.LazyLinear(3)

    def forward(self, images: torch.Tensor) -> Any:
        features = self.network(images)
        return self.head(features.view(len(images), -1))


@pytest.mark.parametrize("native", ["32-true", "bf16-mixed"])
def test_convolutions_in_float32_get_their_images_channels_last(
    native: str, models: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "native_precision", lambda kind: native)
    model = load_model(models("senet"))
    formats = []
    model.network.register_forward_pre_hook(
        lambda _, given: formats.append(given[0].is_contiguous(memory_format=torch.channels_last))
    )
    found: Any = removal(model, "mean")
    formats.clear()
    images, order = torch.randn(3, 3, 32, 48), torch.stack([torch.randperm(64) for _ in range(3)])
    logits = found.logits(images, order, [0, 7, 64])
    assert formats == [native == "32-true"]
    usual = FilledCells(model.network, (8, 8)).logits(images, order, [0, 7, 64])
    torch.testing.assert_close(logits, usual, atol=1e-5, rtol=1e-5)
    of_vit: Any = removal(load_model(models("vit")), "mean")
    assert of_vit.memory_format == torch.contiguous_format
    convs = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Conv2d(5, 5, 3))
    viewed, images = Viewed(convs), torch.randn(2, 3, 32, 48)
    viewed(images)  # its head finds its size
    view: Any = removal(replace(model, network=viewed), "mean")
    assert view.memory_format == torch.contiguous_format
    assert view.logits(images, order[:2], [64]).shape == (2, 1, 3)


def test_tokens_of_timms_vit_are_dropped() -> None:
    model = load_model("timm:vit_tiny_patch16_224", pretrained=False, num_classes=4)
    dropped = removal(model, "auto")
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        logits = dropped.logits(images, torch.arange(196)[None], [196])
        torch.testing.assert_close(logits[:, 0], model.network(images), atol=1e-4, rtol=1e-4)
    assert Scorer(Request(model, []), dropped).batch(
        [open_data("planted", model, Path("."))[0]]
    ).images.shape == (1, 3, 224, 224)
