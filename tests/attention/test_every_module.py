"""Every module compiles as one graph, exports, and works under autocast and in bfloat16."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vision_attn import attention as att
from vision_attn.types import TokenLayout

LAYOUT = TokenLayout(1, (11, 7))
N, D, HEADS = LAYOUT.tokens, 12, 3


def with_parts(**parts: Any) -> nn.Module:
    return att.MultiHeadAttention(D, HEADS, **parts)


PRODUCTS = [att.CosineSimilarity, att.Dot, att.ScaledDot, att.General, att.BiasedGeneral]
LEARNED = [
    att.ActivatedGeneral,
    att.Concat,
    att.Additive,
    att.Deep,
    partial(att.Location, positions=N),
    att.KeyOnly,
]
NORMALIZERS = [
    partial(att.Softmax, temperature=0.5),
    att.Sigmoid,
    att.Sparsemax,
    att.Entmax15,
    att.Hard,
    att.SampledHard,
]
WINDOWS = [
    partial(att.LocalMonotonic, radius=1),
    partial(att.LocalPredictive, radius=1),
    partial(att.Local2d, radius=1),
]
CO_ATTENTION = [
    att.AlternatingCoAttention,
    att.InteractiveAttention,
    att.ParallelCoAttention,
    att.MaxPoolCoAttention,
    att.AttentionOverAttention,
]
READOUTS: list[Callable[..., nn.Module]] = [
    att.ClassToken,
    att.MeanPool,
    att.AttentionPool,
    att.MultiDimPool,
    att.FeatureWisePool,
    partial(att.HopsPool, update=att.GRUUpdate),
    att.HierarchicalPool,
]
GATES = [att.SqueezeExcite, att.ChannelGate, att.SpatialGate, att.SpatialMask, att.CBAM, att.NoGate]


class Together(nn.Module):
    """Several modules called alike."""

    def __init__(self, modules: list[nn.Module], **options: Any):
        super().__init__()
        self.members, self.options = nn.ModuleList(modules), options

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        results: list[Tensor] = []
        for member in self.members:
            result = member(*inputs, **self.options)
            results += result if isinstance(result, tuple) else [result]
        return results


def groups() -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    torch.manual_seed(0)
    tokens, few = torch.randn(2, N, D), torch.randn(2, 5, D)
    heads = [with_parts(score=score) for score in PRODUCTS]
    heads += [with_parts(score=s, normalizer=n) for s, n in zip(LEARNED, NORMALIZERS, strict=True)]
    heads += [with_parts(window=window) for window in WINDOWS]
    heads += [with_parts(score=att.Additive, window=window) for window in WINDOWS]
    heads += [
        att.RotaryAttention(D, HEADS),
        att.MultiDimAttention(D, 4),
        att.MultiDimAttention(D, 4, score=att.General),
    ]
    pairs = [make(D) for make in CO_ATTENTION]
    pairs += [att.CoAttentionEnsemble(*(make(D) for make in CO_ATTENTION)), att.TargetGuided(D)]
    pairs += [att.MemoryHops(D), att.MemoryHops(D, update=att.GRUUpdate, shared=True)]
    return {
        "heads": (Together(heads, layout=LAYOUT), (tokens,)),
        "pairs": (Together(pairs), (few, tokens)),
        "three": (att.AttentionViaAttention(D), (few, tokens, few)),
        "groups": (att.Hierarchical(D), (torch.randn(2, 3, 5, D),)),
        "readouts": (Together([make(dim=D) for make in READOUTS], layout=LAYOUT), (tokens,)),
        "gates": (Together([make(channels=8) for make in GATES]), (torch.randn(2, 8, 7, 5),)),
    }


NAMES = ["heads", "pairs", "three", "groups", "readouts", "gates"]


@pytest.fixture(autouse=True)
def _float32(_float64: None) -> None:
    torch.set_default_dtype(torch.float32)


def total(results: Tensor | list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    results = [results] if isinstance(results, Tensor) else results
    return torch.stack([result.float().square().sum() for result in results]).sum()


@pytest.mark.compiled
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "heads")) for name in NAMES]
)
def test_compiles_as_one_graph(name: str) -> None:
    torch._dynamo.reset()
    module, inputs = groups()[name]
    inputs = [x.requires_grad_() for x in inputs]
    torch.manual_seed(1)
    expected = module(*inputs)
    expected_grads = torch.autograd.grad(total(expected), inputs)
    torch.manual_seed(1)
    results = torch.compile(module, backend="eager", fullgraph=True)(*inputs)
    torch.testing.assert_close(results, expected)
    torch.testing.assert_close(torch.autograd.grad(total(results), inputs), expected_grads)


@pytest.mark.compiled
@pytest.mark.parametrize("name", NAMES)
def test_exports(name: str) -> None:
    module, inputs = groups()[name]
    module.eval()
    program = torch.export.export(module, inputs)
    torch.testing.assert_close(program.module()(*inputs), module(*inputs))


@pytest.mark.parametrize("name", NAMES)
def test_works_in_bfloat16(name: str) -> None:
    module, inputs = groups()[name]
    module.eval()
    exact = module(*inputs)
    with torch.autocast("cpu", torch.bfloat16):
        results = module(*inputs)
    total(results).backward()
    assert all(p.grad.isfinite().all() for p in module.parameters() if p.grad is not None)
    pure = module.bfloat16()(*(x.bfloat16() for x in inputs))
    for result in (results, pure):
        # Hard choices may fall otherwise where two keys are nearly as good.
        for a, b in zip(listed(result), listed(exact), strict=True):
            assert a.shape == b.shape
            assert (a.float() - b).abs().median() < 0.05 * b.abs().max()
    assert all(result.dtype == torch.bfloat16 for result in listed(pure))


def listed(results: Tensor | list[Tensor] | tuple[Tensor, ...]) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else list(results)
