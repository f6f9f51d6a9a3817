"""Compiled networks are explained as they are written, and stay compiled."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from vision_attn.methods import GradCAM, LeGrad, QueryKey, Relevance, Rollout, WeightedRollout
from vision_attn.models import ViT
from vision_attn.tokens import record_attention

METHODS = [Rollout(), WeightedRollout(), Relevance(), LeGrad(), QueryKey(), GradCAM()]


def vit() -> ViT:
    torch.manual_seed(0)
    return ViT(image_size=16, patch_size=4, num_classes=3, dim=12, depth=2, heads=3).eval()


def in_place(counter: Any) -> ViT:
    network = vit()
    network.compile(backend=counter)
    return network


def wrapped(counter: Any) -> Callable[..., Any]:
    return torch.compile(vit(), backend=counter)


@pytest.mark.compiled
@pytest.mark.parametrize("compiled", [in_place, wrapped])
def test_a_compiled_network_has_the_maps_it_would_have_without(
    compiled: Callable[..., Any],
) -> None:
    images, plain = torch.randn(2, 3, 16, 16), vit()
    counter = CompileCounter()
    network = compiled(counter)
    logits = network(images)
    assert counter.frame_count
    for method in METHODS:
        expected, found = method(plain, images, 1), method(network, images, 1)
        torch.testing.assert_close(found.values, expected.values, msg=str(method))
    with record_attention(network) as record:
        network(images)
    assert len(record.calls) == 2
    before = counter.frame_count
    torch.testing.assert_close(network(images), logits)
    assert counter.frame_count == before, "it runs compiled as before"
