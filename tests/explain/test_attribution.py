"""Integrated gradients and occlusion: what captum computes, in our terms."""

import pytest
import torch
from torch import nn

from vision_attn.explain import attribution as perturbing
from vision_attn.explain.attribution import IntegratedGradients, Occlusion


@pytest.fixture
def network():
    return nn.Sequential(
        nn.Conv2d(3, 5, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(20, 7)
    )


IMAGES = torch.randn(3, 3, 14, 21)


def test_integrated_gradients_are_complete(network):
    maps = IntegratedGradients(steps=64, rows=5)(network, IMAGES, [1, 4, 6])
    difference = (network(IMAGES) - network(torch.zeros_like(IMAGES)))[[0, 1, 2], [1, 4, 6]]
    torch.testing.assert_close(maps.values.sum((1, 2)), difference, rtol=0, atol=1e-5)


def test_integrated_gradients_of_a_linear_network_are_weight_times_input():
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 5 * 7, 2))
    images = torch.randn(2, 3, 5, 7)
    expected = (images * network[1].weight[1].view(3, 5, 7)).sum(1)
    torch.testing.assert_close(IntegratedGradients(steps=3)(network, images, 1).values, expected)


def test_occlusion_is_its_definition(network):
    """On tiles that do not overlap: the logit lost with each."""
    maps = Occlusion(window=7, stride=7, rows=7)(network, IMAGES)
    logits = network(IMAGES)
    assert maps.targets.tolist() == logits.argmax(1).tolist()
    hidden = IMAGES.clone()
    hidden[:, :, 7:, 7:14] = 0
    lost = (logits - network(hidden)).gather(1, maps.targets[:, None])
    torch.testing.assert_close(maps.values[:, 7:, 7:14], lost[..., None].expand(3, 7, 7))


@pytest.mark.parametrize("method", [IntegratedGradients(steps=4), Occlusion()])
def test_batches(network, method):
    alone = torch.cat([method(network, image[None]).values for image in IMAGES])
    torch.testing.assert_close(method(network, IMAGES).values, alone, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("method", [IntegratedGradients(steps=4), Occlusion()])
def test_networks_that_hide_their_modules_are_explained_from_outside(network, method):
    expected = method(network, IMAGES, 1).values
    batch = ({0: torch.export.Dim.AUTO},)
    exported = torch.export.export(network, (IMAGES,), dynamic_shapes=batch).module()
    for sealed in (torch.jit.trace(network.eval(), IMAGES), exported):
        torch.testing.assert_close(method(sealed, IMAGES, 1).values, expected)


def test_errors(network, monkeypatch):
    with pytest.raises(ValueError, match=r"Occlusion\(window=15\): the window does not fit images"):
        Occlusion(window=15)(network, IMAGES)
    with pytest.raises(ValueError, match="a stride of 5 leaves pixels out of every 4 window"):
        Occlusion(window=4, stride=5)(network, IMAGES)
    with pytest.raises(ValueError, match="steps must be at least 1"):
        IntegratedGradients(steps=0)
    with pytest.raises(ValueError, match="rows must be at least 1"):
        Occlusion(rows=0)
    monkeypatch.setattr(perturbing, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="Occlusion is computed by captum: pip install captum"):
        Occlusion()(network, IMAGES)
