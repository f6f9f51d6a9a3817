"""GPUs without float64, as Apple's: nothing that explains or scores makes float64 there.

No such GPU runs these tests. A mode of torch plays one, on the CPU: tensors that were moved there
know that they are, meet no others, and are never float64.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from vision_attn import evaluate
from vision_attn.data import Preprocess
from vision_attn.evaluate.bootstrap import bca, paired_bootstrap, wilson
from vision_attn.evaluate.sanity import spearman
from vision_attn.methods import CentreGaussian
from vision_attn.runs.explain import Request
from vision_attn.runs.scoring.evidence import PlantedSamples
from vision_attn.runs.scoring.mosaics import Mosaic, MosaicSamples
from vision_attn.runs.scoring.scorer import Scorer, plain, removal
from vision_attn.tokens.path.chain import PropagationRule, Regroup
from vision_attn.types import Model

MPS = torch.device("mps")


class OnApple(torch.Tensor):
    """A tensor on the GPU that is played."""

    __torch_function__: Any = torch._C._disabled_torch_function_impl


class AppleGPU(TorchFunctionMode):
    """Plays the device mps: TypeError where float64 would come to lie there."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = tree_leaves((args, kwargs or {}))
        there = [x for x in given if isinstance(x, OnApple)]
        if func == torch.Tensor.device.__get__:
            return MPS if there else args[0].device
        moves = func in (torch.Tensor.to, torch.Tensor.cpu)
        here = [x for x in given if isinstance(x, torch.Tensor) and not isinstance(x, OnApple)]
        if there and any(x.ndim for x in here) and not moves:
            raise RuntimeError(f"{func}: expected all tensors to be on the same device")
        goes = bool(there) or MPS in given
        if moves:
            asked = given[1:] + ([torch.device("cpu")] if func is torch.Tensor.cpu else [])
            to = [x for x in asked if isinstance(x, torch.device | torch.Tensor)]
            goes = any(x == MPS if isinstance(x, torch.device) else isinstance(x, OnApple)
                       for x in to or given[:1])  # fmt: skip

        def on_the_cpu(x: Any) -> torch.device | torch.Tensor:
            if isinstance(x, OnApple):
                return x.as_subclass(torch.Tensor)
            return torch.device("cpu") if isinstance(x, torch.device) else x

        def back(x: Any) -> Any:
            if not isinstance(x, torch.Tensor) or not goes:
                return x
            if x.dtype == torch.float64:
                raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
            return x.as_subclass(OnApple)

        args, kwargs = tree_map(on_the_cpu, (args, kwargs or {}))
        return tree_map(back, func(*args, **kwargs))


@pytest.fixture
def apple() -> Iterator[Callable[..., Any]]:
    with AppleGPU():
        yield lambda x: x.to(MPS)


def test_the_gpu_that_is_played_has_no_float64(apple: Callable[..., Any]) -> None:
    x = apple(torch.rand(3))
    assert x.device == (x + 1).device == torch.zeros(2, device=x.device).device == MPS
    assert x.cpu().device == torch.rand(3).device == torch.device("cpu")
    assert x.cpu().double().to(x).dtype == torch.float32
    for wrong in (
        lambda: x.double(),
        lambda: x.to(torch.float64),
        lambda: torch.rand(3).double().to(x.device),
        lambda: torch.zeros(3, dtype=torch.float64, device=MPS),
    ):
        with pytest.raises(TypeError, match="float64"):
            wrong()
    with pytest.raises(RuntimeError, match="on the same device"):
        x + torch.rand(3)


MASKS = torch.zeros(4, 6, 6, dtype=torch.bool)
MASKS[:, 1:3, 2:5] = True
GIVEN = {
    "AveragePrecision": (MASKS, MASKS.roll(1, 1) & ~MASKS),
    "EnergyPointingGame": (MASKS,),
    "GridPointingGame": (torch.tensor([0, 3, 1, 2]),),
    "MeanIoU": (MASKS, MASKS.roll(1, 1) & ~MASKS),
    "PixelAccuracy": (MASKS,),
    "PointingGame": (MASKS,),
    "Sparseness": (),
}


@pytest.mark.parametrize("name", list(GIVEN))
def test_metrics_score_there_as_on_the_cpu(name: str, apple: Callable[..., Any]) -> None:
    maps = torch.randint(5, (4, 6, 6)) / 4 - 0.25
    maps[3] = 0.5
    here, there = (getattr(evaluate, name)() for _ in range(2))
    here.update(maps, *GIVEN[name])
    there.update(apple(maps), *map(apple, GIVEN[name]))
    assert [x.device for x in there.scores] == [MPS]
    assert torch.equal(there.per_image().cpu(), here.per_image())


def test_rank_correlations_there_are_as_on_the_cpu(apple: Callable[..., Any]) -> None:
    a, b = torch.randint(9, (2, 3, 5, 5)).float()
    there = spearman(apple(a), apple(b))
    assert there.device == MPS
    assert torch.equal(there.cpu(), spearman(a, b))


def test_intervals_take_scores_from_there(apple: Callable[..., Any]) -> None:
    a, b, hits = torch.rand(20), torch.rand(20), (torch.rand(2, 20) > 0.4).float()
    for measure, given in (
        (paired_bootstrap, (a, b)),
        (paired_bootstrap, (hits[0], hits[1])),
        (bca, (a,)),
        (wilson, (hits[0],)),
        (evaluate.auc, (a, b)),
        (evaluate.auc_interval, (a, b)),
    ):
        assert measure(*map(apple, given)) == measure(*given)


def test_records_are_plain_values_of_what_lies_there(apple: Callable[..., Any]) -> None:
    scores, curves = {"deletion": torch.rand(2)}, {"curve": torch.rand(2, 3)}
    there = ({name: apple(x) for name, x in of.items()} for of in (scores, curves))
    assert plain(2, *there) == plain(2, scores, curves)


def test_mosaics_there_are_scored_as_on_the_cpu(apple: Callable[..., Any]) -> None:
    preprocess = Preprocess((16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
    model = Model(nn.Identity(), preprocess, [f"class {i}" for i in range(10)], None)
    mosaic = Mosaic("2x2 mosaic 0", 2, (0, 1, 2, 3), (3, 1, 0, 2))
    sample = MosaicSamples(model, PlantedSamples(model, "none"), [mosaic], "full")[0]
    scorer = Scorer(Request.of(model, [CentreGaussian()]), removal(model))
    batch = scorer.batch([sample])
    there, here = (
        scorer.records("mosaic", CentreGaussian(), replace(batch, images=images))
        for images in (apple(batch.images), batch.images)
    )
    assert "scores" in here[0]
    assert there == here


def test_tokens_regroup_there(apple: Callable[..., Any]) -> None:
    made, of = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 2])
    part = torch.tensor([0.25, 0.75, 1.0], dtype=torch.float64)
    rule = PropagationRule(cast(Any, lambda *_: None), residual=0.5, attention=0.5)
    r = torch.rand(2, 1, 2)
    there = Regroup(0, 3, made, of, part).back(apple(r), rule)
    assert there.device == MPS
    assert torch.equal(there.cpu(), Regroup(0, 3, made, of, part).back(r, rule))
