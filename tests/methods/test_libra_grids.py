"""LibraGradient of networks that shrink their grid, beside the same networks with torch's functions replaced.

Each function that holds something is written out, with what it holds detached; the levels are those of
modules that are named: the tokens before the first block of the last grid, and after each. In float64.

Axes: b batch, h height, w width, c channels, n tokens.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import pytest
import timm
import torch
from torch import nn
from torch.nn import functional as F

from vision_attn.methods import LibraGradient
from vision_attn.methods.targets import Class, Odds

CLASS = 3
GELU, SOFTMAX, SIGMOID = F.gelu, torch.Tensor.softmax, torch.Tensor.sigmoid


def layer_norm(
    x: Any, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    dims = tuple(range(-len(shape), 0))
    deviation = (x.detach().var(dims, correction=0, keepdim=True) + eps).sqrt()
    y = (x - x.mean(dims, keepdim=True)) / deviation
    return (y if weight is None else y * weight) + (0 if bias is None else bias)


def gelu(x: Any, approximate: str = "none") -> Any:
    return x * (GELU(x.detach(), approximate=approximate) / x.detach())


def silu(x: Any, inplace: bool = False) -> Any:
    return x * SIGMOID(x.detach())


def attention(q: Any, k: Any, v: Any, attn_mask: Any = None, **_: Any) -> Any:
    weights = q.detach() @ k.detach().mT / math.sqrt(q.shape[-1])
    return SOFTMAX(weights if attn_mask is None else weights + attn_mask, -1) @ v


@contextlib.contextmanager
def held() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for owner, name, function in (
            (F, "layer_norm", layer_norm), (F, "gelu", gelu), (F, "silu", silu),
            (F, "scaled_dot_product_attention", attention),
            (torch.Tensor, "softmax", lambda x, *args, **more: SOFTMAX(x.detach(), *args, **more)),
            (torch.Tensor, "sigmoid", lambda x: SIGMOID(x.detach())),
        ):  # fmt: skip
            stack.enter_context(mock.patch.object(owner, name, function))
        yield


def swin(network: Any) -> list[tuple[Any, bool]]:
    blocks = network.layers[-1].blocks
    return [(blocks[0], True), *((block, False) for block in blocks)]


def pvt(network: Any) -> list[tuple[Any, bool]]:
    blocks = network.stages[-1].blocks
    return [(blocks[0], True), *((block, False) for block in blocks)]


def mobilevit(network: Any) -> list[tuple[Any, bool]]:
    return [(network.stages[-1][0], False), (network.final_conv, False)]


def maxvit(network: Any) -> list[tuple[Any, bool]]:
    block = network.stages[-1].blocks[0]
    return [(block.conv, False), (block.attn_block, False), (block.attn_grid, False)]


Levels = Callable[[Any], list[tuple[Any, bool]]]
NETWORKS: dict[str, tuple[Levels, dict[str, Any]]] = {
    "swin_tiny_patch4_window7_224": (swin, {"img_size": (64, 96), "embed_dim": 12, "depths": (1, 1, 2), "num_heads": (1, 2, 3), "window_size": 4}),
    "pvt_v2_b0": (pvt, {"embed_dims": (8, 8, 20, 16), "depths": (1, 1, 1, 2), "num_heads": (1, 2, 5, 8)}),
    "mobilevit_xxs": (mobilevit, {}),
    "maxvit_rmlp_pico_rw_256": (maxvit, {"img_size": (64, 96), "depths": (1, 1, 1, 1), "embed_dim": (32, 32, 32, 32)}),
}  # fmt: skip


def built(name: str, options: dict[str, Any]) -> Any:
    torch.manual_seed(1)
    network = (
        timm.create_model(name, num_classes=5, **options).eval().double().requires_grad_(False)
    )
    for weight in network.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight, std=1.2 / math.sqrt(weight[0].numel()))
        else:
            weight.add_(0.2 * torch.randn_like(weight))
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            nn.init.normal_(module.running_mean, std=0.2)
            assert module.running_var is not None
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return network


def shares(
    network: Any, images: torch.Tensor, levels: list[tuple[Any, bool]], score: Callable[[Any], Any]
) -> Any:
    """The shares (level b cells) of what comes into a module, or out of it."""
    kept: list[Any] = []
    hooks = [
        module.register_forward_pre_hook(lambda _, args: kept.append(args[0])) if into
        else module.register_forward_hook(lambda _, args, out: kept.append(out))
        for module, into in levels
    ]  # fmt: skip
    with held():
        logits = network(images.clone().requires_grad_())
        gradients = torch.autograd.grad(score(logits).sum(), kept)
    for hook in hooks:
        hook.remove()
    torch.testing.assert_close(logits.detach(), network(images))
    products = [(h * g).detach() for h, g in zip(kept, gradients, strict=True)]
    channels = [
        next(i for i in (3, 1, 2) if i < h.ndim and h.shape[i] not in (2, 3, 4, 6)) for h in kept
    ]
    return torch.stack(
        [each.sum(axis).flatten(1) for each, axis in zip(products, channels, strict=True)]
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_the_mean_over_the_levels_of_the_last_grid(name: str) -> None:
    levels, options = NETWORKS[name]
    network = built(name, options)
    images = torch.randn(2, 3, 64, 96, dtype=torch.float64)
    others = [i for i in range(5) if i != CLASS]
    for target, score in (
        (Class(CLASS), lambda z: z[:, CLASS]),
        (Odds(CLASS), lambda z: z[:, CLASS] - z[:, others].logsumexp(1)),
    ):
        expected = shares(network, images, levels(network), score).mean(0)
        found = LibraGradient(smooth=0, check=True)(network, images, target)
        torch.testing.assert_close(found.values.flatten(1), expected.float(), rtol=1e-4, atol=1e-6)
        assert found.values.shape[1] * 3 == found.values.shape[2] * 2
    alone = LibraGradient(smooth=0)(network, images[1:], Odds(CLASS))
    torch.testing.assert_close(alone.values[0], found.values[1])
    gaps = LibraGradient(check=True)(network, images, CLASS).completeness_gap
    assert gaps is not None
    assert gaps.max() < 1e-12
