"""What holds for every composition, readout and gate: gradients, nothing to see, NaN."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vision_attn import attention as att
from vision_attn.types import TokenLayout

D = 3
LAYOUT = TokenLayout(1, (2, 3))

Make = Callable[..., nn.Module]

# Each with the shapes of what it is given.
COMPOSITIONS: dict[str, tuple[Make, list[tuple[int, ...]]]] = {
    "multihead": (partial(att.MultiHeadAttention, D, 3), [(2, 5, D)]),
    "multidim": (partial(att.MultiDimAttention, D, 3), [(2, 5, D)]),
    "multidim bilinear": (partial(att.MultiDimAttention, D, 3, score=att.General), [(2, 5, D)]),
    "hops": (partial(att.MemoryHops, D, hops=2), [(2, 2, D), (2, 5, D)]),
    "hops shared": (
        partial(att.MemoryHops, D, hops=2, shared=True, update=att.GRUUpdate),
        [(2, 2, D), (2, 5, D)],
    ),
    "hierarchical": (partial(att.Hierarchical, D), [(2, 2, 3, D)]),
    "via": (partial(att.AttentionViaAttention, D), [(2, 2, D), (2, 3, D), (2, 5, D)]),
    "target guided": (partial(att.TargetGuided, D), [(2, 2, D), (2, 5, D)]),
    "alternating": (partial(att.AlternatingCoAttention, D), [(2, 2, D), (2, 5, D)]),
    "interactive": (partial(att.InteractiveAttention, D), [(2, 2, D), (2, 5, D)]),
    "parallel": (partial(att.ParallelCoAttention, D), [(2, 2, D), (2, 5, D)]),
    "max pool": (partial(att.MaxPoolCoAttention, D), [(2, 2, D), (2, 5, D)]),
    "over attention": (partial(att.AttentionOverAttention, D), [(2, 2, D), (2, 5, D)]),
}
POOLS: dict[str, Make] = {
    "mean": att.MeanPool,
    "additive": att.AttentionPool,
    "key only": partial(att.AttentionPool, score=att.KeyOnly, heads=3),
    "sparse": partial(att.AttentionPool, normalizer=att.Entmax15),
    "multidim": partial(att.MultiDimPool, views=2),
    "feature-wise": att.FeatureWisePool,
    "hops": partial(att.HopsPool, hops=2),
    "hierarchical": partial(att.HierarchicalPool, regions=(1, 2)),
}
GATES: dict[str, Make] = {
    "squeeze and excite": att.SqueezeExcite,
    "channel": att.ChannelGate,
    "spatial": partial(att.SpatialGate, kernel_size=3),
    "mask": att.SpatialMask,
    "cbam": partial(att.CBAM, reduction=1, kernel_size=3),
    "none": att.NoGate,
}


def joined(results: Tensor | tuple[Tensor, ...]) -> Tensor:
    results = (results,) if isinstance(results, Tensor) else results
    return torch.cat([result.flatten() for result in results])


def check_gradients(module: nn.Module, *inputs: Tensor, **options: Any) -> None:
    """By inputs and parameters, away from the start values, some of which are 0."""
    parameters = {name: torch.randn_like(p) for name, p in module.named_parameters()}

    def call(*values: Tensor) -> Tensor:
        given = dict(zip(parameters, values[len(inputs) :], strict=True))
        results = torch.func.functional_call(module, given, values[: len(inputs)], options)
        return joined(results)

    leaves = [x.detach().requires_grad_() for x in (*inputs, *parameters.values())]
    assert torch.autograd.gradcheck(call, leaves, fast_mode=True)


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_gradients_of_compositions(name: str) -> None:
    make, shapes = COMPOSITIONS[name]
    check_gradients(make(), *(torch.randn(shape) for shape in shapes))


@pytest.mark.parametrize("name", POOLS)
def test_gradients_of_readouts(name: str) -> None:
    check_gradients(POOLS[name](dim=D), torch.randn(2, LAYOUT.tokens, D), layout=LAYOUT)


@pytest.mark.parametrize("name", GATES)
def test_gradients_of_gates(name: str) -> None:
    check_gradients(GATES[name](channels=D), torch.randn(2, D, 5, 3))


@pytest.mark.parametrize("name", [name for name in COMPOSITIONS if "multi" not in name])
def test_compositions_over_nothing(name: str) -> None:
    """Zeros, the query itself where contexts are added to it, and finite gradients."""
    make, shapes = COMPOSITIONS[name]
    module = make()
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    masked = (
        inputs[1:] if isinstance(module, att.MemoryHops | att.AttentionViaAttention) else inputs
    )
    results = module(*inputs, *(torch.zeros(x.shape[:-1], dtype=torch.bool) for x in masked))
    out = joined(results)
    if name == "hops":
        assert torch.equal(results, inputs[0])
    elif name != "hops shared":
        assert (out == 0).all()
    out.sum().backward()
    assert all(x.grad is None or x.grad.isfinite().all() for x in (*inputs, *module.parameters()))


@pytest.mark.parametrize("name", POOLS)
def test_readouts_of_nothing(name: str) -> None:
    pool, tokens = POOLS[name](dim=D), torch.randn(2, LAYOUT.tokens, D, requires_grad=True)
    nothing = torch.zeros(2, LAYOUT.tokens, dtype=torch.bool)
    assert (pool.weights(tokens, LAYOUT, nothing) == 0).all()
    vector = pool(tokens, LAYOUT, nothing)
    expected = pool.query[0].expand(2, -1) if name == "hops" else torch.zeros_like(vector)
    assert torch.equal(vector, expected)
    vector.sum().backward()
    assert all(x.grad is None or x.grad.isfinite().all() for x in (tokens, *pool.parameters()))


def test_second_memories_have_masks_of_their_own() -> None:
    via, guided = att.AttentionViaAttention(D), att.TargetGuided(D)
    few, many, fine = torch.randn(2, 2, D), torch.randn(2, 5, D), torch.randn(2, 7, D)
    there, too = torch.rand(5) > 0.4, torch.rand(7) > 0.4
    masks = there.expand(2, 5), too.expand(2, 7)
    expected = via(few, many[:, there], fine[:, too])
    torch.testing.assert_close(via(few, many, fine, *masks), expected)
    expected = guided(many[:, there], fine[:, too])
    torch.testing.assert_close(guided(many, fine, *masks), expected)


def spoiled(x: Tensor) -> Tensor:
    """One number of the first image is NaN."""
    x = x.clone()
    x[(0,) + (1,) * (x.ndim - 1)] = torch.nan
    return x


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_nan_goes_through_compositions(name: str) -> None:
    make, shapes = COMPOSITIONS[name]
    module, inputs = make(), [torch.randn(shape) for shape in shapes]
    for at in range(len(inputs)):
        given = [spoiled(x) if i == at else x for i, x in enumerate(inputs)]
        results = module(*given)
        results = (results,) if isinstance(results, Tensor) else results
        assert any(result[0].isnan().any() for result in results)
        assert all(result[1].isfinite().all() for result in results)


@pytest.mark.parametrize("name", POOLS)
def test_nan_goes_through_readouts(name: str) -> None:
    vector = POOLS[name](dim=D)(spoiled(torch.randn(2, LAYOUT.tokens, D)), LAYOUT)
    assert vector[0].isnan().any()
    assert vector[1].isfinite().all()


@pytest.mark.parametrize("name", GATES)
def test_nan_goes_through_gates(name: str) -> None:
    y = GATES[name](channels=D)(spoiled(torch.randn(2, D, 5, 3)))
    assert y[0].isnan().any()
    assert y[1].isfinite().all()


@pytest.mark.compiled  # these errors are the user's, who has no run-time type checks
def test_masks_that_do_not_fit_are_named() -> None:
    few, many = torch.randn(2, 2, D), torch.randn(2, 5, D)
    right = torch.ones(2, 5, dtype=torch.bool)
    for wrong in (right.double(), right[:, :4], right[0]):
        for make in (att.InteractiveAttention, att.ParallelCoAttention, att.AttentionOverAttention):
            with pytest.raises(ValueError, match=r"key_mask must be bool of shape \(2, 5\)"):
                make(D)(few, many, None, wrong)
            with pytest.raises(ValueError, match=r"query_mask must be bool of shape \(2, 5\)"):
                make(D)(many, few, wrong)
        for call in (
            lambda mask: att.MemoryHops(D)(few, many, mask),
            lambda mask: att.TargetGuided(D)(few, many, None, mask),
            lambda mask: att.AttentionViaAttention(D)(few, many, many, None, mask),
            lambda mask: att.AttentionPool(D)(many, mask=mask),
            lambda mask: att.MeanPool(D)(many, mask=mask),
            lambda mask: att.HierarchicalPool(D)(many, TokenLayout(1, (2, 2)), mask),
        ):
            with pytest.raises(ValueError, match="mask must"):
                call(wrong)
